//! Bounds of TLS: of handshakes and of sessions.

use std::time::Duration;

// Handshakes.

/// Time in which a TLS handshake must be done.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// TLS handshakes under way on a core; with more of them one of the address with the most ends.
pub const HANDSHAKES_PER_CORE_MAX: usize = 2_000;
/// Bytes that all handshakes under way on a core were sent; when there are more, an old one with
/// many ends, of the address with the most.
pub const HANDSHAKE_BYTES_PER_CORE_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a caller that was not answered yet. Hellos have a few hundred, with keys of the coming
/// kinds and a ticket some thousands; with the names of all authorities of a system, which some
/// libraries add when they are asked to, twenty thousand.
pub const TLS_HELLO_BYTES_MAX: usize = 32 * 1024;
/// One of so many parts of the log core's time is for handshakes that members, or others, begin.
pub const PEER_HANDSHAKE_PARTS: u64 = 10;
/// For a handshake that comes to nothing new ones of its address wait for so many times as long as
/// it has cost, ...
pub const WASTED_TIMES: u64 = 8;
/// ... to which so many microseconds belong beside its computing, for its connection. ...
pub const WASTED_CONNECTION_MICROSECONDS: u64 = 100;
/// ... It has them wait for so many microseconds at most, and each waits for no more than that
/// behind the one before it: others of that address may be honest. ...
pub const WASTED_WAIT_MICROSECONDS_MAX: u64 = 2_000;
/// ... For all that came to nothing together they wait for so many microseconds at most.
pub const WASTED_MICROSECONDS_KEPT: u64 = 100_000;
/// Addresses that wait for that on a core; one more does not wait.
pub const WASTING_ADDRESSES_MAX: usize = 1_024;

// Certificates.

/// Certificates behind the first one of a chain: public chains have two or three.
pub const TLS_CHAIN_MAX: usize = 5;
/// Orders of the certificates of a chain that are looked at, each with a signature for each
/// authority of its last issuer's name, and for those below it that are genuine: there are 17 of an
/// authority and three roots of one name above it, the first two of which it has outlived.
pub const TLS_CHAIN_ORDERS_MAX: usize = 17;
/// Certificates of members whose names are being looked up.
pub const TLS_LOOK_UPS_MAX: usize = 4;
/// Host names of one certificate that are looked up.
pub const TLS_LOOK_UP_NAMES_MAX: usize = 32;
/// Time between looks at the files of certificates; a change counts when two find the same.
pub const TLS_FILES_INTERVAL: Duration = Duration::from_secs(1);

// Records of sessions.

/// Bytes of a TLS record or a handshake message that is not whole, as rustls bounds them: a message
/// in several records, and the beginning of the next record.
pub const TLS_UNFINISHED_BYTES: usize = 80 * 1024;
/// The same of a caller once its handshake is done: the longest record, and a few short ones that
/// carry nothing. More than that is a message in several records, which no caller has to send.
pub const TLS_UNFINISHED_SESSION_BYTES: usize = 5 + (16 + 2 + 2) * 1024;
/// TLS records of a session with little in them that are read before others have their turn.
pub const TLS_RECORDS_AT_ONCE: usize = 32;
/// A record has little in it with less than this on average.
pub const TLS_RECORD_BYTES_LITTLE: usize = 32;
/// Records without data, such as new keys, that a caller's session may send with little data
/// between them, in less time than a handshake takes. TLS needs new keys each 2^24 records or so.
pub const TLS_EMPTY_RECORDS_MAX: usize = 16;
/// Bytes of data, of either side, that allow one more of them.
pub const TLS_BYTES_PER_EMPTY_RECORD: usize = 64 * 1024;
/// Bytes of TLS records of a connection that wait for the kernel.
pub const TLS_SEND_BYTES: usize = 64 * 1024;
/// Bytes of TLS records read at a time.
pub const TLS_READ_BYTES: usize = 16 * 1024;
/// The same in handshakes: most hellos and chains are shorter.
pub const TLS_HANDSHAKE_READ_BYTES: usize = 4096;
/// The same where the reader has hardly any room.
pub const TLS_SMALL_READ_BYTES: usize = 2048;
