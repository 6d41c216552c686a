//! Every bound of the server. Reaching one gives etcd's error for it and affects no other client.
//!
//! Bounds of the member (log, apply, reads, leases, watches) are in its own `limits.rs`; they are
//! re-exported here under the same names.

use std::time::Duration;

pub use revd_member::limits::*;
pub use tls::*;

mod tls;

// Users: tokens and passwords.

/// Simple tokens that a member keeps; beyond, the user with most loses one not used for long.
pub const TOKENS_MAX: usize = 65_536;
/// Tokens of that user that are looked at, to find one.
pub const TOKENS_LOOKED_AT_FOR_ROOM: usize = 16;
/// Bytes of a signed token.
pub const JWT_BYTES_MAX: usize = 16 * 1024;
/// Signed tokens that a member remembers to have verified; beyond, those that were not used for
/// long are verified again.
pub const JWTS_VERIFIED_MAX: usize = 16_384;
/// Wrong signed tokens that a member remembers to have refused; beyond, those that did not come for
/// long are verified again.
pub const JWTS_REFUSED_MAX: usize = 4_096;
/// Tokens that are looked at, to see whether their time is over, each time that one is made.
pub const TOKENS_LOOKED_AT: usize = 4;
/// Threads that make and check hashes of passwords.
pub const PASSWORD_THREADS: usize = 2;
/// They give way to cores that serve, and yet have a tenth of a CPU that is never idle: clients of
/// etcd wait two seconds for a login.
pub const PASSWORD_THREADS_NICE: i32 = 10;
/// Longer than the slices of other threads, which take the CPU from them as they wake; and yet no
/// longer than a caller may wait where a kernel lets a thread go on to the end of its slice.
pub const PASSWORD_THREADS_SLICE: Duration = Duration::from_millis(10);
/// They work so long before they leave their CPU to others, which wait no longer for it than this
/// and one round of a hash.
pub const PASSWORD_THREADS_WORK: Duration = Duration::from_micros(250);
/// They rest so long then: where nobody wants the CPU, a login takes an eighth longer for it, and
/// what waking up takes.
pub const PASSWORD_THREADS_REST: Duration = Duration::from_micros(30);
/// Passwords that wait for them: of users that are made or changed, and as many of logins in each
/// standing; beyond, the newest of who has most waiting is refused with `too many requests`.
pub const PASSWORDS_WAITING_MAX: usize = 1_024;
/// Those of one address.
pub const PASSWORDS_PER_ADDRESS_MAX: usize = 256;
/// The cost of a hash that a client has made itself, above which it counts as wrong: it would keep
/// a thread for minutes.
pub const PASSWORD_COST_MAX: u32 = 14;
/// Users may change so often while a login is under way.
pub const LOGIN_ATTEMPTS_MAX: usize = 10;
/// Failed logins in one name from one address before the next one has to wait.
pub const GUESSES_FREE: u32 = 10;
/// Failed logins in one name from all addresses, or from one address in all names: beyond, one is
/// free where nobody has logged in under that name before.
pub const GUESSES_BEFORE_ALARM: u32 = 100;
/// Milliseconds of the first wait; each is twice the one before.
pub const GUESS_WAIT_MS: u64 = 250;
/// Milliseconds of the longest wait.
pub const GUESS_WAIT_MS_MAX: u64 = 30_000;
/// Milliseconds without a guess after which those before are forgotten: many times the longest
/// wait, or waiting that long would make guesses free.
pub const LOGINS_FORGOTTEN_MS: u64 = 600_000;
/// Names with addresses for which failed logins are counted; the oldest make room. As many
/// addresses are known by a login that was right, and as many connections; of these the oldest of
/// the name that has most make room.
pub const LOGIN_ORIGINS_MAX: usize = 16_384;
/// The same of names.
pub const LOGIN_NAMES_MAX: usize = 4_096;
/// The same of addresses.
pub const LOGIN_ADDRESSES_MAX: usize = 4_096;
/// The bytes of a name that count.
pub const LOGIN_NAME_BYTES_MAX: usize = 512;

// Pending requests of an edge.

/// Bounds of what one edge may have on its way through the log, each kind with slots of its own.
#[derive(Debug, Clone, Copy)]
pub struct ProposalLimits {
    /// Commands of clients without an outcome; the next one is refused with `too many requests`.
    pub inflight_max: usize,
    /// Payload bytes of those commands.
    pub inflight_bytes_max: usize,
    /// Linearizable reads that wait; the next one is refused with `too many requests`.
    pub reads_max: usize,
    /// Keepalives without an outcome; a stream with a further one waits.
    pub keepalives_max: usize,
    /// Alarms that are being raised or cleared.
    pub alarms_max: usize,
    /// Commands that the member proposes on its own account.
    pub chores_max: usize,
}

/// Pending requests of one edge. etcd refuses at 5000 unapplied entries.
pub const PROPOSALS: ProposalLimits = ProposalLimits {
    inflight_max: 20_000,
    inflight_bytes_max: 256 * 1024 * 1024,
    reads_max: 100_000,
    keepalives_max: 100_000,
    alarms_max: 100,
    chores_max: 100,
};
/// Time until a member proposes its own attributes again, after they were lost with a leader.
pub const PUBLICATION_INTERVAL: Duration = Duration::from_millis(200);
/// Time between an edge's sweeps for requests that have waited too long.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// How often the state core looks for Views that have ended, while there are older ones than the
/// newest and nothing changes.
pub const FREE_INTERVAL: Duration = Duration::from_secs(1);
/// Sweeps that pending requests may wait, as in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSweeps {
    /// A request that has waited for more of them times out: five seconds and two election
    /// timeouts, and one more, since the log core may know the cause.
    pub request_max: u64,
    /// Two election timeouts: a request that came this long before a new leader may have been lost
    /// with the one before.
    pub leader_lost: u64,
}

impl RequestSweeps {
    /// By the time without a leader before an election.
    #[must_use]
    pub fn new(election_timeout: Duration) -> Self {
        let sweeps = |time: Duration| {
            u64::try_from(time.as_millis().div_ceil(SWEEP_INTERVAL.as_millis())).unwrap_or(u64::MAX)
        };
        let lost = 2 * election_timeout;
        Self { request_max: 1 + sweeps(REQUEST_TIMEOUT + lost), leader_lost: sweeps(lost) }
    }
}

/// Committed entries that are not applied here before writes of clients are refused, as in etcd.
pub const UNAPPLIED_ENTRIES_MAX: u64 = 5_000;
/// The same for the revocation of leases, which makes room.
pub const UNAPPLIED_ENTRIES_REVOKE_MAX: u64 = 10_000;
/// Election timeouts in a row without a leader before streams that need one are ended, as in etcd.
pub const LEADERLESS_TIMEOUTS_MAX: u32 = 3;
/// How often an edge looks for a leader in an election timeout.
pub const LEADER_LOOKS: u32 = 10;
/// Messages in a mailbox between two cores.
pub const MAILBOX_MESSAGES_MAX: usize = 128;

// Peers.

/// Bytes of frames that wait to be sent to one other member, or are being sent; more are dropped.
pub const PEER_OUTBOX_BYTES: usize = 64 * 1024 * 1024;
/// Members that are not known here and are dialed, so that they get answers; of more, none is.
pub const PEER_GUESTS_MAX: usize = 8;
/// Bytes of frames that wait for one of them.
pub const PEER_GUEST_OUTBOX_BYTES: usize = 4 * 1024 * 1024;
/// Bytes received from one other member that the log core has not taken; it is not read then.
pub const PEER_BACKLOG_BYTES: usize = 8 * 1024 * 1024;
/// How long a name of a peer waits for another one that is being looked up, before it looks again.
pub const PEER_LOOK_UP_PAUSE: Duration = Duration::from_millis(10);
/// Bytes read from a peer at a time.
pub const PEER_READ_BYTES: usize = 256 * 1024;
/// Reads from a peer without giving way, while each finds less than there is room for.
pub const PEER_READS_IN_A_ROW_MAX: u32 = 16;
/// Bytes of frames that are not whole yet, of all members together that are not known here: one is
/// as long as a frame may be.
pub const PEER_UNKNOWN_BYTES: usize = PEER_FRAME_BYTES_MAX + PEER_READ_BYTES;
/// Connections that others may have open to the peer port: half of them are kept for members.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// The part of the connections that there is room for, one in so many, that is kept for them; the
/// addresses of metrics have another one.
pub const PEER_CONNECTIONS_PART: usize = 8;
/// Time in which a peer accepts a connection.
pub const PEER_DIAL_DEADLINE: Duration = Duration::from_secs(3);
/// Time in which a dialer says who it is, and a listener answers.
pub const PEER_HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Time for each step of asking another member about the cluster, before a new member begins.
pub const REMOTE_CLUSTER_DEADLINE: Duration = Duration::from_secs(2);
/// Time in which a name server has to answer.
pub const DNS_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of its answer: as many as a message can have.
pub const DNS_ANSWER_BYTES_MAX: usize = 65_535;
/// Records of members in an answer: more than a cluster has; each name in them is looked up.
pub const SRV_RECORDS_MAX: usize = 64;
/// Bytes of an answer of a discovery service: many more members than a cluster has.
pub const REGISTRY_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Time between two lines that say that members have not registered yet.
pub const REGISTRY_TELL_INTERVAL: Duration = Duration::from_secs(10);
/// Time in which another member has to answer what the hash of its keys is.
pub const REMOTE_HASH_DEADLINE: Duration = Duration::from_secs(20);
/// Hashes of keys that other members are told at a time; each takes a part of the log core's time.
pub const PEER_HASHES_MAX: usize = 4;
/// Bytes of the answer: more members than a cluster has.
pub const REMOTE_CLUSTER_BYTES_MAX: u64 = 1024 * 1024;
/// Time between the first attempts to reach a peer.
pub const PEER_DIAL_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Time between attempts to reach a peer that was away for long.
pub const PEER_DIAL_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Time in which the state of a member comes to say that another one was removed; longer ago that
/// one is missing for another reason.
pub const PEER_MISSING_TIME: Duration = Duration::from_secs(5);
/// Time between signs of life on a connection.
pub const PEER_PULSE_INTERVAL: Duration = Duration::from_secs(1);
/// Signs of life that may be missing before a connection is given up.
pub const PEER_SILENT_PULSES_MAX: u32 = 5;
/// Time between two lines about connections that were refused.
pub const PEER_COMPLAINT_INTERVAL: Duration = Duration::from_secs(1);
/// Time to send what waits before a member stops.
pub const PEER_STOP_DEADLINE: Duration = Duration::from_millis(500);
/// Bytes of a state that are read at a time to be sent, while as many are written.
pub const STATE_READ_BYTES: usize = 1024 * 1024;
/// Bytes of a state that are sent in a second at most while others are served, so that they keep
/// the network and the disk; and no more than half of the time is spent on it then.
pub const STATE_BYTES_PER_SECOND: u64 = 512 * 1024 * 1024;
/// Reads of a state's parts that wait to be added to its file, of [`PEER_READ_BYTES`] each. As many
/// are being added meanwhile, pages of as many wait to be written, or are, and one is being read:
/// 17 MiB of the one state that comes.
pub const STATE_PARTS_WAITING_MAX: usize = 16;
/// Bytes of a state that comes behind which its file is synced, so that little is left for the end.
pub const STATE_SYNC_BYTES: usize = 16 * 1024 * 1024;
/// The longest time between two parts of a state that is sent while others are served.
pub const STATE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time in which the next part of a state must come, from a sender whose disk may be slow.
pub const STATE_PART_DEADLINE: Duration = Duration::from_secs(60);
/// Time without a part of a state behind which the leader's own takes its place.
pub const STATE_STILL_TIME: Duration = Duration::from_secs(5);
/// Time after a state that could not be sent.
pub const STATE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

// Memory.

/// Bytes that the connections of one core may hold; `budget` says how they share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Requests, decompressed, from their first byte until they are handled.
    pub requests: usize,
    /// Replies that are being made or that the client has not read yet.
    pub replies: usize,
    /// Watch replies that the client has not read yet.
    pub watches: usize,
}

impl MemoryLimits {
    /// The budgets of one of `edges` cores: half of the machine's memory is for the store. Calls,
    /// frames and the allocator take about a quarter more beside replies that wait, so that those
    /// get three sixteenths.
    #[must_use]
    pub fn new(memory_bytes: u64, edges: usize) -> Self {
        let eighth = usize::try_from(memory_bytes / 8).unwrap_or(usize::MAX / 8) / edges.max(1);
        Self {
            requests: eighth.min(REQUEST_BYTES_PER_CORE_MAX),
            replies: (eighth + eighth / 2).min(REPLY_BYTES_PER_CORE_MAX),
            watches: eighth.min(WATCH_BYTES_PER_CORE_MAX),
        }
    }
}

/// Bytes of requests on one core from their first byte until they are handled, however much memory
/// the machine has.
pub const REQUEST_BYTES_PER_CORE_MAX: usize = 512 * 1024 * 1024;
/// Bytes of replies that one core is making or sending, however much memory the machine has.
pub const REPLY_BYTES_PER_CORE_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Bytes of watch replies that wait on one core, however much memory the machine has.
pub const WATCH_BYTES_PER_CORE_MAX: usize = 512 * 1024 * 1024;
/// Attempts at a reply that finds no room; each waits until there is room for twice as much as the
/// one before.
pub const REPLY_ATTEMPTS_MAX: u32 = 16;
/// Time between returns of unused memory to the system.
pub const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// A core spends one in so many parts of its time on looking through its heap, or more where that
/// would be more rarely than below.
pub const GIVE_BACK_PART: u32 = 2_000;
/// The longest time between a core's parts of it.
pub const GIVE_BACK_INTERVAL_MAX: Duration = Duration::from_secs(16);
/// Memory of a machine that does not say how much it has.
pub const MEMORY_ASSUMED_BYTES: u64 = 1 << 30;
/// Remains of dropped Views that wait for the thread that frees them; a core with more frees them
/// itself.
pub const GARBAGE_MAX: usize = 4_096;
/// Memory registered with the kernel for writes of the log; a frame that finds no room there is
/// written from other memory.
pub const LOG_IO_BYTES: usize = 4 * 1024 * 1024;
/// Memory registered with the kernel by a core that writes no log.
pub const IO_BYTES: usize = 64 * 1024;
/// Helper threads of a core for what takes long: a checkpoint, the preparation of a log segment, a
/// change of the log's directory that waits for it, a command that visits very many keys, and of a
/// state that comes its parts and the sync of its file.
pub const HELPER_THREADS_PER_CORE: usize = 6;
/// Members on one machine that begin with the same CPU, before others do not look any more.
pub const MEMBERS_PER_CPU_MAX: u32 = 16;

// The disk.

/// Bytes of the reserve: a segment, and a checkpoint of `CHECKPOINT_BYTES_MAX`.
pub const RESERVE_BYTES: u64 = 32 * 1024 * 1024;
/// Bytes written at a time while a segment is prepared.
pub const PREPARED_BYTES_PER_WRITE: usize = 1 << 20;
/// Time between attempts to make the reserve again after the disk was full.
pub const RESERVE_INTERVAL: Duration = Duration::from_secs(5);

// Log lines.

/// Microseconds of a loop's turn above which a warning is logged.
pub const TURN_FAR_TOO_LONG_MICROSECONDS: u64 = 100_000;
/// Milliseconds between two such warnings.
pub const TURN_WARNING_MILLISECONDS: u64 = 10_000;
/// Time between two lines about the progress of long work.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two lines about TLS handshakes of clients that failed.
pub const REJECTED_INTERVAL: Duration = Duration::from_secs(1);
/// Lines about callers that were refused, of each kind, which an edge writes in a second.
pub const AUDIT_LINES_PER_SECOND: u32 = 20;
/// Lines about changes of users or roles that an edge loses together; one more tells of all others.
pub const LOST_CHANGE_LINES_MAX: usize = 100;
/// Time between two lines about refused connections.
pub const REFUSED_INTERVAL: Duration = Duration::from_secs(10);
/// Log lines that may wait to be written; more are dropped and counted.
pub const LOG_LINES_MAX: usize = 4096;

// Calls.

/// Bytes that gRPC accepts beyond `--max-request-bytes`, so that etcd's error can be sent for a
/// request that is too large.
pub const GRPC_OVERHEAD_BYTES: usize = 512 * 1024;
/// Bytes of a refused call that are decoded at a time, to tell whether they are a message: what
/// they are decoded to is thrown away, and may take many times as much.
pub const REFUSED_PART_BYTES: usize = 8 * 1024;
/// Comparisons, operations and their requests in a transaction, nested ones included, unless a
/// larger `--max-txn-ops` lets one branch have more: decoded they take some MiB. etcd has no bound
/// of its own for what is nested.
pub const TXN_PARTS_MAX: usize = 40_000;
/// Bytes that a decoded transaction takes without being counted: those of some ten operations.
pub const TXN_BYTES_UNCOUNTED: usize = 4 * 1024;
/// Fields of a request to add or update a member, most of which are its URLs: decoded, one of two
/// bytes takes twelve times as much.
pub const MEMBER_FIELDS_MAX: usize = 1_024;
/// Keys in the first chunk of a range stream.
pub const STREAM_KEYS_FIRST: usize = 10;
/// Keys in any chunk of a range stream; a chunk is read in one turn.
pub const STREAM_KEYS_MAX: usize = RANGE_KEYS_PER_TURN;
/// Bytes of messages, with their prefixes, between a streaming call and the transport; one more
/// message is let in when they are below it.
pub const STREAM_BYTES_MAX: usize = 256 * 1024;
/// Places for chunks of messages that an idle streaming call keeps.
pub const STREAM_PLACES_KEPT: usize = 8;
/// Bytes up to which a body is copied behind its header, and a message behind its prefix: small
/// ones leave as one piece.
pub const COPY_BYTES_MAX: usize = 4096;
/// Parts of a reply, with its prefix, that are sent as one frame.
pub const FRAME_PARTS_MAX: usize = 8;
/// Bytes of small messages of a stream that are sent together; the last message may exceed it.
pub const STREAM_CHUNK_BYTES: usize = 64 * 1024;
/// Watch replies that are handed on before the next request of their stream is looked for.
pub const WATCH_REPLIES_AT_A_TIME: usize = 16;
/// Watchers that are judged in one step of a hub after users or roles have changed.
pub const WATCHERS_JUDGED_PER_STEP: usize = 1_000;
/// Requests and replies of a watch stream handled in one turn.
pub const WATCH_TURNS: u64 = 512;
/// As many of them a request counts for whose caller is found out by a token.
pub const WATCH_TURNS_OF_TOKEN: u64 = 16;

// Leases at the edges.

/// Keys that a reply about a lease shows, whose reader is judged in one turn.
pub const LEASE_KEYS_JUDGED_PER_TURN: usize = 1_000;
/// Bytes of a lease while a list of all is made: its deadline and id, its id alone, and its place
/// in the reply.
pub const LISTED_LEASE_BYTES: usize = 16 + 8 + 13;
/// Keepalives of one stream that are under way at a time.
pub const KEEPALIVES_PER_STREAM: usize = 1_000;
/// Time between looks at the versions of members. etcd looks every four seconds, by requests to
/// each of them; here they are known from the connections.
pub const VERSIONS_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the leader's looks for expired leases.
pub const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes read from a connection after which it is no longer waited for: more than flow control lets
/// a client have under way, with frame headers and prefixes.
pub const HEARING_BYTES_MAX: usize = 2 * CONNECTION_WINDOW_BYTES as usize;

// Connections.

/// Connections to the addresses of metrics: those of clients take none of their places.
pub const METRICS_CONNECTIONS_MAX: usize = 64;
/// Connections of clients for each edge: the edges together have no more than so many times their
/// number, wherever these are.
pub const CONNECTIONS_PER_CORE_MAX: usize = 20_000;
/// How many times as many connections an edge has as the one whose core plays log and state too, if
/// the kernel's spreading gives that one more.
pub const CONNECTIONS_BESIDE_LOG: usize = 3;
/// Connections that such a core keeps beyond its share, where fewer have come to it before.
pub const CONNECTIONS_MADE_GOOD: usize = 16;
/// Connections on their way from one core to another.
pub const HANDED_CONNECTIONS_MAX: usize = 128;
/// Connections that the kernel holds until they are accepted.
pub const LISTEN_BACKLOG: i32 = 4096;
/// Open files kept from clients for the member itself: segments and directory of the log, the tree,
/// the reserve.
pub const FILES_RESERVED: u64 = 32;
/// Open files kept from clients for each core: its rings, its wakers, and connections that are
/// accepted to be closed.
pub const FILES_PER_CORE: u64 = 8;
/// Connections accepted in one turn.
pub const ACCEPTS_PER_TURN: usize = 16;
/// Time after a failed accept (most likely too many open files) until the next one.
pub const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Tries at an address that is in use before it counts as taken.
pub const BIND_TRIES: u32 = 300;
/// Time between those tries.
pub const BIND_INTERVAL: Duration = Duration::from_millis(10);
/// Room that is kept for sockets that wait to be closed.
pub const CLOSING_KEPT: usize = 64;
/// Microseconds that closing a socket counts at least: the kernel does a part of it later.
pub const CLOSE_MICROSECONDS_MIN: u64 = 50;
/// Microseconds of TLS handshakes, or of closing sockets, behind which others have their turn ...
pub const SIDE_WORK_MICROSECONDS: u64 = 100;
/// ... or one of so many parts of the time that the rest takes, if that is more, ...
pub const SIDE_WORK_PARTS: u64 = 8;
/// ... up to so many microseconds.
pub const SIDE_WORK_MICROSECONDS_MOST: u64 = 2_000;
/// Time between looks at the memory, the time and the files of this process, for its metrics.
pub const PROCESS_INTERVAL: Duration = Duration::from_secs(1);
/// Seconds before the end of a certificate from which on there are warnings: a month.
pub const CERTIFICATE_WARNING_SECONDS: i64 = 30 * 24 * 3600;
/// Looks at the files between two of those warnings: a day.
pub const CERTIFICATE_WARNING_LOOKS: u64 = 24 * 3600;
/// Time in which a connection must send its preface or first request line.
pub const FIRST_BYTES_DEADLINE: Duration = Duration::from_secs(10);
/// Time in which an HTTP/2 connection must send its SETTINGS, and in which a header block must end:
/// no other frame may interrupt one.
pub const HTTP2_DEADLINE: Duration = Duration::from_secs(30);
/// Time without a new request, also within one, after which an HTTP/1 connection is closed.
pub const HTTP1_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes read at a time from an HTTP/2 connection, into a buffer that the connections of a core
/// share.
pub const READ_BYTES: usize = 32 * 1024;
/// Bytes that clients may leave unfinished, of a core: parts of TLS records, requests of HTTP/1
/// that are not answered, and their replies in TLS. The connection that asks for more is closed.
pub const SESSION_BYTES_PER_CORE: usize = 32 * 1024 * 1024;
/// Bytes that each may leave unfinished and that count as nothing: a probe is answered however
/// little room there is.
pub const SESSION_BYTES_FREE: usize = 2 * 1024;
/// Bytes read at a time from an HTTP/1 connection.
pub const HTTP1_READ_BYTES: usize = 4096;
/// Silence after which a connection is probed.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without an answer after which a connection is closed.
pub const KEEPALIVE_PROBES: u32 = 6;
/// Time in which clients hear of a stop; calls that they begin until then are served.
pub const LAST_CALL_DEADLINE: Duration = Duration::from_secs(1);
/// Time that open calls have after a stop, as in etcd. Streams without an end are ended at once.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(7);
/// Time in which a client that has received everything has to close its side.
pub const LINGER_DEADLINE: Duration = Duration::from_secs(1);

// HTTP/2.

/// Streams that a connection may have open, unless `--max-concurrent-streams` says less.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 10_000;
/// Bytes of a request's headers; a request with more is refused.
pub const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of a header block on the wire; a longer one ends the connection, since nothing behind it
/// could be decoded.
pub const HEADER_BLOCK_BYTES_MAX: u32 = 128 * 1024;
/// Decoded header blocks that a connection remembers.
pub const HEADS_REMEMBERED: usize = 4;
/// Bytes of the longest header block that is remembered.
pub const HEAD_REMEMBERED_BYTES_MAX: usize = 256;
/// Streams ended before their deadline that a connection keeps in its heap, beyond twice the open
/// ones.
pub const DEADLINES_ENDED_MAX: usize = 64;
/// Bytes that a client may send on one stream before it must wait.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes that a client may send on one connection before it must wait.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Streams that a client may reset in a second.
pub const RESETS_PER_SECOND: u32 = 5_000;
/// Streams that a client may reset in the first second of a connection.
pub const RESETS_IN_FIRST_SECOND: u32 = 500;
/// Frames without content that a client may send in a second: pings, priorities, empty data.
pub const IDLE_FRAMES_PER_SECOND: u32 = 10_000;
/// SETTINGS frames that a client may send in a second: each may unblock all streams. A client that
/// estimates its bandwidth sends one each time it doubles its windows.
pub const SETTINGS_PER_SECOND: u32 = 100;
/// Milliseconds after which a client may send all its resets, idle frames and SETTINGS again.
pub const ALLOWANCE_MILLISECONDS: u64 = 1_000;
/// Early pings that are forgiven, as in grpc-go.
pub const PING_STRIKES_MAX: u32 = 2;
/// Milliseconds between pings that a client without open calls may send, as in grpc-go.
pub const PING_IDLE_MILLISECONDS: u64 = 2 * 3600 * 1000;

// Turns of connections.

/// Microseconds that busy connections of a core share: the more there are, the shorter their turns.
pub const ROUND_MICROSECONDS: u64 = 5_000;
/// Microseconds of busy connections' turns behind which the rest of the core has its turn.
pub const BUSY_MICROSECONDS: u64 = 250;
/// Microseconds of the shortest turn of a connection.
pub const TURN_MICROSECONDS_MIN: u64 = 100;
/// Microseconds after which a connection leaves the rest of its input, and short calls that wait,
/// to its next turn.
pub const BATCH_MICROSECONDS: u64 = 1_000;
/// Frames or calls that a connection processes before it looks at the clock.
pub const BATCH_STEPS: u32 = 16;
/// Calls with a wrong token behind which it leaves the rest of its input to its next turn.
pub const STRANGE_CALLS_PER_TURN: u32 = 16;
/// Bytes of replies behind which it looks at the clock sooner.
pub const BATCH_BYTES: usize = 64 * 1024;
/// Microseconds after which a connection begins no long calls and sends no more in this turn.
pub const TURN_MICROSECONDS: u64 = 500;
/// Bytes of messages that are decompressed in one turn; one more message may exceed it.
pub const UNPACKED_BYTES_PER_TURN: usize = 256 * 1024;
/// Bytes ready for the socket of a connection above which data stays queued on its stream.
pub const SEND_BUFFER_BYTES: usize = 1024 * 1024;
/// Pieces handed to the kernel in one send.
pub const SEND_SLICES: usize = 64;
/// Send buffers that a core keeps for the next connection that has something to send.
pub const SPARE_BUFFERS: usize = 32;
/// Bytes of the largest of those buffers.
pub const SPARE_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// Bytes of unsent replies on one connection before its next calls wait.
pub const REPLY_BYTES_PER_CONNECTION: usize = 16 * 1024 * 1024;
/// Bytes of replies that there is room for where metrics are asked for: they are rarely longer.
pub const METRICS_REPLY_BYTES: usize = 64 * 1024;
/// Ranges of many keys under way at a time on one connection. Each holds its reply so far, and all
/// share the core: more at a time would not end sooner.
pub const LONG_CALLS_PER_CONNECTION: usize = 8;
/// Bytes of the messages in a connection's wait queue.
pub const WAITING_CALL_BYTES_MAX: usize = 16 * 1024 * 1024;

// Slow clients.

/// Time without progress of a large reply after which its connection is closed.
pub const STALL_DEADLINE: Duration = Duration::from_secs(30);
/// Milliseconds between looks at connections that hold much of a core's memory.
pub const PACE_INTERVAL: u64 = 2_000;
/// Bytes of replies from which a connection is looked at; one that holds watch replies or requests
/// always is.
pub const PACE_BYTES_MIN: usize = 256 * 1024;
/// Part of its replies, one in so many, that such a client has to read between two looks while
/// others need the memory.
pub const TAKEN_PART: usize = 16;
/// Least bytes that such a client has to read between two looks (64 KiB a second).
pub const TAKEN_BYTES_MIN: usize = 128 * 1024;
/// Bytes between two looks that are always enough (a megabyte a second).
pub const TAKEN_BYTES_ENOUGH: usize = 2 * 1024 * 1024;
/// Looks in a row, at each of which its client had read too little, after which a connection ends.
pub const SLOW_LOOKS: u32 = 2;
/// Looks at which a request was incomplete, after which it is refused if others need its memory.
pub const UNFINISHED_LOOKS: u32 = 3;
/// Milliseconds without progress after which the socket of a client that was ended as too slow is
/// closed: until then it may read what is sent already.
pub const FAREWELL_MILLISECONDS: u64 = 1_000;

const _: () = {
    assert!(
        RESERVE_BYTES >= SEGMENT_BYTES + CHECKPOINT_BYTES_MAX as u64,
        "the reserve has room for a segment and a checkpoint"
    );
    assert!(
        PROPOSALS.inflight_bytes_max + ENTRY_BYTES_MAX <= PEER_FRAME_BYTES_MAX,
        "the longest command can be sent to another member"
    );
    assert!(WATCH_TURNS_OF_TOKEN <= WATCH_TURNS);
    assert!(10 * GUESS_WAIT_MS_MAX <= LOGINS_FORGOTTEN_MS);
    assert!(PEER_READ_BYTES <= PEER_BACKLOG_BYTES && PEER_FRAME_BYTES <= PEER_OUTBOX_BYTES);
    assert!(
        RAFT_MESSAGES_INFLIGHT_MAX as u64 * RAFT_MESSAGE_BYTES_MAX <= PEER_OUTBOX_BYTES as u64 / 2,
        "a follower that catches up still hears heartbeats"
    );
    assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
    assert!(HEADER_LIST_BYTES_MAX <= HEADER_BLOCK_BYTES_MAX);
    assert!(RESETS_IN_FIRST_SECOND <= RESETS_PER_SECOND);
    assert!(TURN_MICROSECONDS_MIN <= TURN_MICROSECONDS && TURN_MICROSECONDS <= BATCH_MICROSECONDS);
    assert!(BATCH_MICROSECONDS <= ROUND_MICROSECONDS);
    assert!(COPY_BYTES_MAX <= STREAM_CHUNK_BYTES && STREAM_CHUNK_BYTES <= STREAM_BYTES_MAX);
    assert!(SEND_BUFFER_BYTES <= REPLY_BYTES_PER_CONNECTION);
    assert!(TAKEN_BYTES_MIN <= TAKEN_BYTES_ENOUGH);
    assert!(STREAM_KEYS_FIRST <= STREAM_KEYS_MAX);
    assert!(REQUEST_TIMEOUT.as_millis() <= DRAIN_DEADLINE.as_millis());
    assert!(UNAPPLIED_ENTRIES_MAX <= UNAPPLIED_ENTRIES_REVOKE_MAX);
    assert!(GRPC_OVERHEAD_BYTES < STREAM_WINDOW_BYTES as usize);
};
