//! Every bound of the server. Hitting one gives etcd's error for it and touches nobody else.

use std::time::Duration;

/// Bounds of what one edge may have in flight.
#[derive(Debug, Clone, Copy)]
pub struct ProposalLimits {
    /// Commands without an outcome; the next one is refused with `too many requests`.
    pub inflight_max: usize,
    /// Payload bytes of those commands.
    pub inflight_bytes_max: usize,
    /// Keepalives without an outcome, beside those; a stream that has another one waits.
    pub keepalives_max: usize,
    /// Alarms being raised or cleared, beside those.
    pub alarms_max: usize,
    /// What the member has to do by itself, beside those.
    pub chores_max: usize,
}

/// What one edge may have on its way through the log. etcd refuses at 5000 unapplied entries.
pub const PROPOSALS: ProposalLimits = ProposalLimits {
    inflight_max: 20_000,
    inflight_bytes_max: 256 * 1024 * 1024,
    keepalives_max: 100_000,
    alarms_max: 100,
    chores_max: 100,
};
/// How often an edge looks for calls that have waited too long ...
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// ... and after how many looks a call is given up: 7 s, as etcd (5 s and two election timeouts).
pub const REQUEST_SWEEPS_MAX: u64 = 14;

/// Bytes that the connections of one core may hold; `budget` says how they share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Requests, unpacked, from their first byte until they are handled.
    pub requests: usize,
    /// Replies that are made or were not taken yet.
    pub replies: usize,
    /// What watch streams have yet to take.
    pub watches: usize,
}

impl MemoryLimits {
    /// The parts of one of `edges` cores on a machine with so much memory: half of it is for the store.
    #[must_use]
    pub fn new(memory_bytes: u64, edges: usize) -> Self {
        let eighth = usize::try_from(memory_bytes / 8).unwrap_or(usize::MAX / 8) / edges.max(1);
        Self {
            requests: eighth.min(REQUEST_BYTES_PER_CORE_MAX),
            replies: (2 * eighth).min(REPLY_BYTES_PER_CORE_MAX),
            watches: eighth.min(WATCH_BYTES_PER_CORE_MAX),
        }
    }
}

/// Messages in a mailbox between two cores.
pub const MAILBOX_MESSAGES_MAX: usize = 128;
/// Command bytes in one raft entry; a command that is larger has an entry of its own.
pub const ENTRY_BYTES_MAX: usize = 1024 * 1024;
/// Entries proposed before the frame that holds them is written.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Memory that the kernel keeps at hand for the log's writes; a frame that finds no room there is written from other memory.
pub const LOG_IO_BYTES: usize = 4 * 1024 * 1024;
/// The same of cores that write no log.
pub const IO_BYTES: usize = 64 * 1024;

/// A checkpoint starts this long after state changed ...
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);
/// ... this long while a compaction has more to free ...
pub const COMPACT_INTERVAL: Duration = Duration::from_millis(50);
/// Keys that forget compacted revisions before others get their turn.
pub const FORGET_KEYS_PER_TURN: usize = 250;
/// ... or sooner, when this many bytes of records wait.
pub const CHECKPOINT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// With this many bytes of records waiting, applying waits for the checkpoint: the disk sets the pace.
pub const UNSAVED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes of a log segment.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of a segment that is made on a full disk.
pub const SEGMENT_BYTES_MIN: u64 = 512 * 1024;

/// Bytes of the reserve: a segment, and a checkpoint of `CHECKPOINT_BYTES_MAX`.
pub const RESERVE_BYTES: u64 = 32 * 1024 * 1024;
/// On a full disk, how often a write or a checkpoint is tried again ...
pub const NO_SPACE_INTERVAL: Duration = Duration::from_millis(250);
/// ... and how often whether there is room for the reserve again.
pub const RESERVE_INTERVAL: Duration = Duration::from_secs(5);

/// How often a core gives memory back that it does not use.
pub const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// What so many Views have left behind waits to be freed by the thread that is there for it; whoever leaves more frees it.
pub const GARBAGE_MAX: usize = 4_096;

/// A turn of a loop that takes this long is complained of in the log ...
pub const TURN_FAR_TOO_LONG_MICROSECONDS: u64 = 100_000;
/// ... at most this often.
pub const TURN_WARNING_MILLISECONDS: u64 = 10_000;

/// What takes long says this often how far it is.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// gRPC accepts this much more than `--max-request-bytes`, so that the proper error can be sent.
pub const GRPC_OVERHEAD_BYTES: usize = 512 * 1024;
/// Nested transactions: more is refused before it is decoded. No valid request is deeper than `--max-txn-ops`.
pub const TXN_DEPTH_MAX: usize = 512;
/// A command that visits more keys than this is carried out beside the state core, which goes on meanwhile with what does
/// not need the keys.
pub const KEYS_PER_COMMAND: u64 = 500;
/// Microseconds after which the state core lets others of its core go on.
pub const APPLY_MICROSECONDS: u64 = 1_000;
/// Orders about leases that the state core carries out before it looks at the log again.
pub const ORDERS_PER_TURN: usize = 1_000;
/// Keys, and comparisons, that a logged transaction may look at to decide what to do: it is done where everything is applied.
/// The same on every member, like the next one: whether a command is carried out depends on it.
pub const TXN_COMPARED_KEYS_MAX: usize = 200_000;
/// ... where so many bytes of values count as one more.
pub const COMPARED_BYTES_PER_KEY: usize = STEPS_PER_KEY * BYTES_PER_STEP;
/// Ranges, and changes that say what was before, of a logged transaction.
pub const TXN_READS_MAX: usize = 10_000;
/// ... where a range behind a change counts as so many: it shares a state of its own, which keeps what changes next in two forms.
pub const READS_PER_STATE: usize = 10;
/// With so many of them, those of one key are read where the transaction is applied; the rest is left to the edge ...
pub const TXN_READS_AT_ONCE: usize = 16;
/// ... but for records of so many bytes: to share the state for them costs more than to copy them.
pub const READ_AT_ONCE_BYTES: usize = 4 * 1024;
/// Bytes that a write may have to read for its reply; more is refused before it is proposed.
pub const WRITE_REPLY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// ... unless it reads no more keys than this.
pub const WRITE_READS_UNCHECKED: usize = 64;
/// Parts of a reply that are put together before others have their turn.
pub const REPLY_PARTS_PER_TURN: usize = 256;
/// Keys a range handles before it lets other requests of its core go on.
pub const RANGE_KEYS_PER_TURN: usize = 2_000;
/// Steps of that work that a key answered stands for: one is a look at a key of the index, living or dead ...
pub const STEPS_PER_KEY: usize = 16;
/// ... or as many bytes copied or compared ...
pub const BYTES_PER_STEP: usize = 256;
/// ... and of these, a turn has at least so many: enough to get past dead keys that are passed in one go.
pub const STEPS_PER_TURN_MIN: usize = 4_000;
/// Steps that sorting a key costs.
pub const SORT_STEPS_PER_KEY: usize = 8;
/// Keys that are sorted in one go, to be merged with others later ...
pub const SORT_RUN_KEYS: usize = 1_024;
/// ... or fewer, when they have so many bytes of values to sort by.
pub const SORT_RUN_BYTES: usize = 256 * 1024;
/// With a limit up to this, only as many keys are kept while a range is sorted; else all of them are.
pub const SORT_HEAP_KEYS_MAX: usize = 10_000;
/// Bytes that one range takes to sort its keys.
pub const SORT_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Bytes of a reply's chunk.
pub const REPLY_CHUNK_BYTES: usize = 256 * 1024;
/// Bytes of replies that one core is making or sending, however much memory there is; see [`MemoryLimits`].
pub const REPLY_BYTES_PER_CORE_MAX: usize = 2 * 1024 * 1024 * 1024;
/// How often a range whose reply found no room is begun again, each time when there is room for twice as much.
pub const REPLY_ATTEMPTS_MAX: u32 = 16;
/// Records HashKV looks at before it lets others go on.
pub const HASH_RECORDS_PER_TURN: usize = 2_000;
/// Keys in the first chunk of a range stream.
pub const STREAM_KEYS_FIRST: usize = 10;
/// Keys in any chunk of a range stream: one is walked without letting others of the core go on.
pub const STREAM_KEYS_MAX: usize = RANGE_KEYS_PER_TURN;

/// Leases revoked by one command ...
pub const LEASES_PER_REVOKE: usize = 1_000;
/// ... and their keys, unless the first lease has more.
pub const KEYS_PER_REVOKE: usize = 1_000;
/// Leases looked at, to find those that are due or have to be noted, before others get their turn.
pub const LEASES_PER_LOOK: usize = 2_000;
/// Leases that a new leader gives their time, that are listed, or that a leader of the past forgets, before others get their
/// turn.
pub const LEASES_PER_TURN: usize = 1_000;
/// Keys of a lease that are listed before others get their turn ...
pub const LEASE_KEYS_PER_TURN: usize = 2_000;
/// ... or fewer, with so many bytes ...
pub const LEASE_KEY_BYTES_PER_TURN: usize = 256 * 1024;
/// ... in so many parts of one lease or of several. All who ask for a lease that has more than one part get one list.
pub const LEASE_PARTS_PER_TURN: usize = 16;
/// Before an edge says that it has passed keepalives on, it waits this long, twice, for what lies in its sockets ...
pub const HEARING_INTERVAL: Duration = Duration::from_millis(1);
/// ... and so often again for streams with more of them than they may have under way, no more ...
pub const HEARING_WAITS_MAX: usize = 500;
/// ... and so often for connections with more to read than a turn reads ...
pub const HEARING_READS_MAX: usize = 5_000;
/// ... or until a connection has read so many bytes since: more than flow control lets a client have on its way, with what
/// stands around them.
pub const HEARING_BYTES_MAX: usize = 2 * CONNECTION_WINDOW_BYTES as usize;
/// How often all edges are asked at most while long commands keep such streams waiting.
pub const HEARINGS_MAX: usize = 10;
/// How often the leader looks for leases that are due.
pub const LEASE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is noted in the log what leases of a longer time have left; etcd's interval.
pub const LEASE_NOTE_INTERVAL: Duration = Duration::from_secs(300);
/// Notes in one command, as in etcd.
pub const LEASE_NOTES_MAX: usize = 1000;
/// Keepalives of one stream that are on their way at a time.
pub const KEEPALIVES_PER_STREAM: usize = 1_000;

/// Watchers of one core.
pub const WATCHERS_PER_CORE_MAX: usize = 10_000_000;
/// Replies waiting on one watch stream before its watchers fall behind, unless there is no room for them in the share of its
/// connection; see [`MemoryLimits`].
pub const WATCH_STREAM_BYTES: usize = 1024 * 1024;
/// Records, matches, deliveries and the like of one step of a hub, about a third of a microsecond each ...
pub const WATCH_STEP_WORK: usize = 3_000;
/// ... and bytes of replies it makes, before others of the core go on.
pub const WATCH_STEP_BYTES: usize = 256 * 1024;
/// Watchers no more revisions behind than this are told of them apart from those who have all history before them.
pub const WATCH_NEAR_REVISIONS: i64 = 10_000;
/// Watchers of a stream that try again when it has room, unless more were told of something the last time.
pub const WATCH_ADMITTED_MIN: usize = 16;
/// Requests and replies of a watch stream handled before others of the connection go on.
pub const WATCH_TURNS: u64 = 512;
/// Replies without events that wait on one watch stream before its next request is read, while its connection's share is full ...
pub const WATCH_ANSWERS_MIN: usize = 16;
/// ... and while it is not.
pub const WATCH_ANSWERS_MAX: usize = 1_000;
/// Steps of the clock for progress replies in one interval.
pub const PROGRESS_TICKS: u64 = 10;

/// Connections of one core.
pub const CONNECTIONS_PER_CORE_MAX: usize = 20_000;
/// Open files kept from clients for the member itself: the log's segments and its directory, the tree, the reserve ...
pub const FILES_RESERVED: u64 = 32;
/// ... and for each core: its rings, what wakes it, and connections that are accepted to be closed.
pub const FILES_PER_CORE: u64 = 8;
/// How often it is said that connections are refused.
pub const REFUSED_INTERVAL: Duration = Duration::from_secs(10);
/// Connections accepted before others of the core have their turn.
pub const ACCEPTS_PER_TURN: usize = 16;
/// HTTP/2 streams a connection may have open, unless `--max-concurrent-streams` says less.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 10_000;
/// Bytes of a request's headers: one that has more is refused ...
pub const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// ... unless they take more than this on the wire: nothing behind them could be understood, so the connection ends.
pub const HEADER_BLOCK_BYTES_MAX: u32 = 128 * 1024;
/// Bytes a client may send on one stream, and on one connection, before it must wait.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// See above.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Streams a client may reset in a second ...
pub const RESETS_PER_SECOND: u32 = 5_000;
/// ... in the first second of a connection so many ...
pub const RESETS_IN_FIRST_SECOND: u32 = 500;
/// ... and frames without content it may send in that time: pings, priorities, empty data ...
pub const IDLE_FRAMES_PER_SECOND: u32 = 10_000;
/// ... and settings: each may let all streams send. A client that measures sends one each time that it doubles its windows.
pub const SETTINGS_PER_SECOND: u32 = 100;
/// Connections that have more to do share this many microseconds: their turns are as much shorter ...
pub const ROUND_MICROSECONDS: u64 = 10_000;
/// ... but not shorter than this.
pub const TURN_MICROSECONDS_MIN: u64 = 100;
/// Microseconds after which a connection leaves the rest of what it has read, and short calls that had to wait, to its next turn ...
pub const BATCH_MICROSECONDS: u64 = 1_000;
/// ... and how many frames or calls it deals with before it looks at the clock ...
pub const BATCH_STEPS: u32 = 16;
/// ... or fewer, when more bytes of replies have come of them.
pub const BATCH_BYTES: usize = 64 * 1024;
/// Bytes waiting to be sent on one connection before its calls wait.
pub const SEND_BUFFER_BYTES: usize = 1024 * 1024;
/// With this many bytes of replies to be sent on a connection, its next calls wait ...
pub const REPLY_BYTES_PER_CONNECTION: usize = 16 * 1024 * 1024;
/// Ranges of many keys that are made at a time for one connection: each holds what it has made so far, and all take turns on
/// the core. More have to wait, which costs nothing: the core does not become faster.
pub const LONG_CALLS_PER_CONNECTION: usize = 8;
/// Microseconds after which a connection does no more of them and sends no more, until others of the core had their turn.
pub const TURN_MICROSECONDS: u64 = 500;
/// ... up to this many bytes of them ...
pub const WAITING_CALL_BYTES_MAX: usize = 16 * 1024 * 1024;
/// ... and a client that takes none of a large reply for this long is gone.
pub const STALL_DEADLINE: Duration = Duration::from_secs(30);
/// Milliseconds after which it is looked at whether those who hold much of a core's memory get on with it ...
pub const PACE_INTERVAL: u64 = 2_000;
/// ... who have at least so many bytes of replies to take. While others need that memory, they have to take in that time ...
pub const PACE_BYTES_MIN: usize = 256 * 1024;
/// ... this part of it ...
pub const TAKEN_PART: usize = 16;
/// ... at least so many bytes (64 KiB a second) ...
pub const TAKEN_BYTES_MIN: usize = 128 * 1024;
/// ... but never more than so many (a megabyte a second).
pub const TAKEN_BYTES_ENOUGH: usize = 2 * 1024 * 1024;
/// After so many looks at which they did not, their connections are ended.
pub const SLOW_LOOKS: u32 = 2;
/// The same for requests that were begun and are not ended: while others need their memory, they are refused.
pub const UNFINISHED_LOOKS: u32 = 3;
/// Bytes of messages that are unpacked in one turn, with which one more is.
pub const UNPACKED_BYTES_PER_TURN: usize = 256 * 1024;
/// Bytes of requests on one core from their first byte until they are handled, however much memory there is; see
/// [`MemoryLimits`].
pub const REQUEST_BYTES_PER_CORE_MAX: usize = 512 * 1024 * 1024;
/// The same of what watch streams have yet to take.
pub const WATCH_BYTES_PER_CORE_MAX: usize = 512 * 1024 * 1024;
/// An HTTP/1 connection without a new request for this long is closed, also in the middle of one.
pub const HTTP1_DEADLINE: Duration = Duration::from_secs(30);
/// A silent connection is probed after this time ...
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// ... this often ...
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// ... and closed after so many probes without an answer.
pub const KEEPALIVE_PROBES: u32 = 6;
/// A connection must say what it is within this time ...
pub const FIRST_BYTES_DEADLINE: Duration = Duration::from_secs(10);
/// ... in HTTP/2 its settings in this time, and all of a header block, which nothing may interrupt; see `UNFINISHED_LOOKS` too.
pub const HTTP2_DEADLINE: Duration = Duration::from_secs(30);
/// After a request to stop, clients have this long to hear of it; what they begin until then is taken.
pub const LAST_CALL_DEADLINE: Duration = Duration::from_secs(1);
/// Open calls have this long: as in etcd, and no write takes longer. Calls without an end are ended at once.
pub const DRAIN_DEADLINE: Duration = Duration::from_secs(7);
/// A client that was told everything has this long to close its side.
pub const LINGER_DEADLINE: Duration = Duration::from_secs(1);
/// Messages in flight between a streaming call and the transport ...
pub const STREAM_MESSAGES_MAX: usize = 256;
/// ... and their bytes, with which one more is let in.
pub const STREAM_BYTES_MAX: usize = 256 * 1024;
/// A message of at most so many bytes is copied behind its prefix and its header, so that it leaves as one piece.
pub const COPY_BYTES_MAX: usize = 4096;
/// Small messages of a stream are sent together, up to this many bytes.
pub const STREAM_CHUNK_BYTES: usize = 64 * 1024;

const _: () = {
    assert!(ENTRY_BYTES_MAX <= FRAME_BYTES_MAX);
    assert!(CHECKPOINT_BYTES_MAX < UNSAVED_BYTES_MAX);
    assert!(STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
    assert!(HEARING_WAITS_MAX <= HEARING_READS_MAX);
};
