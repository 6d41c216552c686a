//! Every bound of the member. Reaching one gives etcd's error for it and affects no other client.
//!
//! Bounds of sockets, connections and queues are in the server's own `limits.rs`, those of the
//! engine in the engine's.

use std::time::Duration;

// Users and roles.

/// Bytes of the name of a user or a role: it is the key of a row.
pub const AUTH_NAME_BYTES_MAX: usize = 512;

// The log.

/// Command bytes in one raft entry; a larger command has an entry of its own.
pub const ENTRY_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of entries proposed before the frame that holds them is written.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a log segment.
pub const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of the first log segment of a process.
pub const FIRST_SEGMENT_BYTES: u64 = 1024 * 1024;
/// Bytes of a log segment that is made on a full disk.
pub const SEGMENT_BYTES_MIN: u64 = 512 * 1024;
/// Bytes of entries in one raft message, as in etcd.
pub const RAFT_MESSAGE_BYTES_MAX: u64 = 1024 * 1024;
/// Raft messages with entries on their way to one member: together they leave room for heartbeats
/// in what may wait to be sent.
pub const RAFT_MESSAGES_INFLIGHT_MAX: usize = 32;
/// Bytes of entries that a leader proposes before a quorum has them.
pub const UNCOMMITTED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of applied entries that stay in memory for followers that are a moment behind.
pub const LOG_TAIL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes on disk of the log that is kept for slow followers although its effects are durable.
pub const LOG_KEPT_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// So many times these bytes while a state is on its way to a member, which needs the entries
/// behind it: a state may take minutes.
pub const LOG_KEPT_FOR_STATE: u64 = 8;
/// The part of the room on its disk that such a log may take: one in so many bytes.
pub const LOG_KEPT_ROOM_PART: u64 = 4;
/// Room on the disk of the log below which nothing is kept for slow followers.
pub const LOG_ROOM_BYTES_MIN: u64 = 128 * 1024 * 1024;
/// Bytes of entries in memory above which a member takes in no more: those that are not applied,
/// and those that stay.
pub const LOG_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Reads of entries for another member that fail in a row before the log lets go of them, and that
/// member is sent a state.
pub const LOG_FETCHES_FAILED_MAX: u32 = 5;
/// Time between two segments of the log that go: hundreds may, when it was kept for another member.
pub const SEGMENT_REMOVAL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of frames whose place in a segment is remembered together.
pub const LOG_PLACE_BYTES: u64 = 64 * 1024;
/// Bytes that are read from segments at a time for a member that lags behind; a longer frame is
/// read whole.
pub const LOG_FETCH_BYTES: u64 = 1024 * 1024;
/// Bytes that were read for a member and that it has not confirmed.
pub const LOG_FEED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Ticks after which such bytes are taken for lost.
pub const LOG_FEED_TICKS: u64 = 5;
/// Ticks after which a ReadIndex round without an answer is tried again.
pub const READ_ROUND_TICKS: u64 = 2;
/// One round in so many asks all voters, so that slow ones do not stay those that are asked.
pub const READ_ROUNDS_OF_ALL: u64 = 16;
/// Ticks since raft's clock was last served beyond which a leader makes sure that it still leads,
/// before it answers for leases; as etcd's.
pub const LEADER_SURE_TICKS: u32 = 3;
/// Ticks after which a request that the leader has not answered is sent again.
pub const ASK_AGAIN_TICKS: u64 = 5;
/// Attempts of one ReadIndex round whose answers still count.
pub const READ_ATTEMPTS_MAX: usize = 16;
/// Bytes of commands that other members have forwarded and that are not proposed yet, each member
/// at most as much as is free; one batch of each finds room beside that.
pub const FORWARDED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Changes of members that wait in a log core.
pub const MEMBER_CHANGES_MAX: usize = 64;
/// Time after which a connection with another member is relied on, as in etcd.
pub const STEADY_CONNECTION: Duration = Duration::from_secs(5);
/// Time after the start in which other members that are found hasten the first election, as in
/// etcd.
pub const FIRST_ELECTION_TIME: Duration = Duration::from_secs(5);
/// Time that a command waits for a leader, beside two election timeouts; as in etcd.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

// State hashes.

/// Newest entries whose state hashes a member knows: far more than another one applies while it is
/// asked.
pub const STATE_HASHES_KEPT: usize = 10_000;
/// Ticks between comparisons of state hashes: half a second with etcd's ticks.
pub const HASH_ROUND_TICKS: u64 = 5;
/// Ticks that members are waited for which could say which of different hashes is right.
pub const HASH_PATIENCE_TICKS: u64 = 20;
/// Ticks after which a member that owes a hash is asked for another one.
pub const HASH_ANSWER_TICKS: u64 = 300;
/// Ticks after which a finding that has had no effect is proposed again.
pub const HASH_FINDING_TICKS: u64 = 20;

// Peers.

/// Payload bytes of a frame to another member behind which the next one begins; a longer message
/// has a frame of its own.
pub const PEER_FRAME_BYTES: usize = 2 * 1024 * 1024;
/// Payload bytes of the longest frame: an entry with a command as long as commands may be.
pub const PEER_FRAME_BYTES_MAX: usize = 260 * 1024 * 1024;
/// Bytes that the entries of one message may take in memory beside their data, unless the message
/// itself is longer: small ones take many times their length.
pub const PEER_ENTRIES_BYTES: usize = 64 * 1024 * 1024;

// Checkpoints.

/// States that are sent at a time: each holds pages of the tree file, and takes bandwidth.
pub const STATES_SENT_MAX: usize = 2;
/// Ticks for which the log keeps what follows a state that was sent, or what a member that pauses
/// was being fed: half a minute with etcd's ticks, as in etcd.
pub const STATE_SENT_TICKS: u64 = 300;
/// Time from a change of the state to the checkpoint that saves it.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);
/// So long without a change is a quiet time, in which more of the index is saved.
pub const QUIET_TIME: Duration = Duration::from_secs(2);
/// A quiet time is a long one then, in which still more of it is; it begins where a short one has
/// saved enough.
pub const LONG_QUIET_TIME: Duration = Duration::from_secs(30);
/// A checkpoint of fewer unsaved bytes of records than these is put off: what it writes beside
/// them, some pages and a sync or two, is as much however few they are.
pub const CHECKPOINT_BYTES_MIN: usize = 1024 * 1024;
/// So many times the interval above, and then it is written. Not where `--snapshot-count` asks for
/// a shorter log than by default.
pub const CHECKPOINT_PUT_OFFS_MAX: u32 = 4;
/// Time between checkpoints while a compaction has more to free.
pub const COMPACT_INTERVAL: Duration = Duration::from_millis(50);
/// Time between attempts at a write or a checkpoint on a full disk.
pub const NO_SPACE_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes of unsaved records that start a checkpoint before its time.
pub const CHECKPOINT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of unsaved records at which applying waits for the checkpoint: the disk sets the pace.
pub const UNSAVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Keys that forget compacted revisions in one turn of the state core, 2 to 10 us each where they
/// have few; more where very many wait.
pub const FORGET_KEYS_PER_TURN: usize = 64;

// Apply.

/// Microseconds of one turn of the state core.
pub const APPLY_MICROSECONDS: u64 = 1_000;
/// Keys above which a command is carried out on a helper thread, while the state core serves
/// requests that need no keys.
pub const KEYS_PER_COMMAND: u64 = 500;
/// Lease requests that the state core carries out before it looks at the log again.
pub const LEASE_REQUESTS_PER_TURN: usize = 1_000;
/// Nesting of transactions; a deeper request is refused before it is decoded. A `--max-txn-ops` of
/// at most this (128 by default) allows no valid request that is deeper; with more, this bound
/// comes first.
pub const TXN_DEPTH_MAX: usize = 512;
/// Keys and comparisons that a logged transaction may look at to choose its branch. Whether a
/// command is carried out depends on it, so it is the same on every member.
pub const TXN_COMPARED_KEYS_MAX: usize = 200_000;
/// Bytes of compared values that count as one key of `TXN_COMPARED_KEYS_MAX`. The same on every
/// member.
pub const COMPARED_BYTES_PER_KEY: usize = STEPS_PER_KEY * BYTES_PER_STEP;
/// Ranges, and changes with `prev_kv`, in a logged transaction. The same on every member.
pub const TXN_READS_MAX: usize = 10_000;
/// Reads of `TXN_READS_MAX` that a range behind a change counts as: it shares a state of its own,
/// so that the next change is kept in two forms.
pub const READS_PER_STATE: usize = 10;
/// Reads of a logged transaction up to which those of one key are done at once where it is applied.
/// With more reads, a record of at most `READ_AT_ONCE_BYTES` is; the edge does the others.
pub const TXN_READS_AT_ONCE: usize = 16;
/// Bytes of a record up to which it is always read at once: to share the state for it would cost
/// more than the copy.
pub const READ_AT_ONCE_BYTES: usize = 4 * 1024;
/// Keys read by a write whose reply is not measured before it is proposed.
pub const WRITE_READS_UNCHECKED: usize = 64;
/// Bytes that a write may have to read for its reply; a larger one is refused before it is
/// proposed.
pub const WRITE_REPLY_BYTES_MAX: usize = 256 * 1024 * 1024;

// Reads.

/// Keys that a range answers in one turn.
pub const RANGE_KEYS_PER_TURN: usize = 2_000;
/// Steps of work that answering one key stands for. A step is a look at one key of the index,
/// living or dead.
pub const STEPS_PER_KEY: usize = 16;
/// Bytes copied or compared that count as one step.
pub const BYTES_PER_STEP: usize = 256;
/// Steps that every turn has: enough to pass a run of dead keys.
pub const STEPS_PER_TURN_MIN: usize = 4_000;
/// Steps that sorting a key costs.
pub const SORT_STEPS_PER_KEY: usize = 8;
/// Keys that are sorted in one run; runs are merged while the keys are answered.
pub const SORT_RUN_KEYS: usize = 1_024;
/// Bytes of values to sort by that end a run before it has `SORT_RUN_KEYS`.
pub const SORT_RUN_BYTES: usize = 256 * 1024;
/// Largest limit of a sorted range for which only as many keys are kept as it asks for; above it
/// all keys are kept.
pub const SORT_HEAP_KEYS_MAX: usize = 10_000;
/// Bytes that one range takes to sort its keys.
pub const SORT_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Bytes of one chunk of a reply.
pub const REPLY_CHUNK_BYTES: usize = 256 * 1024;
/// Parts of a reply that are put together in one turn.
pub const REPLY_PARTS_PER_TURN: usize = 256;
/// Records that HashKV looks at in one turn.
pub const HASH_RECORDS_PER_TURN: usize = 2_000;
/// Ticks (half seconds) that a caller that holds nothing waits for room in a budget before it is
/// refused. Slow clients in line before it are ended after some 4 s each, a few at a time, so that
/// a dozen of them do not use the ticks up.
pub const PATIENCE_TICKS: u32 = 120;
/// Ticks that a caller waits that holds some of the budget: others may wait for what it holds.
pub const HOLDING_PATIENCE_TICKS: u32 = 30;
/// Waiters that a release of a budget looks at from the front, and again from where the last one
/// stopped; a tick looks at all.
pub const LOOKS_PER_RELEASE: usize = 16;

// The cluster.

/// Time after which a member lets clients in whose cluster has not taken it up: etcd's
/// `--wait-cluster-ready-timeout`.
pub const CLUSTER_READY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two looks at a discovery service while members of the cluster are not there.
pub const REGISTRY_INTERVAL: Duration = Duration::from_secs(1);
/// A discovery service that does not answer is asked again after two seconds, then four: twice as
/// long so many times. With etcd it is four minutes in the end.
pub const REGISTRY_DOUBLINGS_MAX: u32 = 4;

// Leases.

/// Leases revoked by one command of the leader.
pub const LEASES_PER_REVOKE: usize = 1_000;
/// Keys of those leases, unless the first lease alone has more.
pub const KEYS_PER_REVOKE: usize = 1_000;
/// Leases looked at in one turn to find those that have expired or need a lease checkpoint.
pub const LEASES_PER_LOOK: usize = 2_000;
/// Leases that are loaded by a new leader, listed, or forgotten by a former leader, in one turn.
pub const LEASES_PER_TURN: usize = 1_000;
/// Keys of leases that are listed in one turn.
pub const LEASE_KEYS_PER_TURN: usize = 2_000;
/// Bytes of keys of leases that are listed in one turn.
pub const LEASE_KEY_BYTES_PER_TURN: usize = 256 * 1024;
/// Parts of such lists, of one lease or of several, in one turn. Callers that ask for the same
/// lease share one list if it has more than one part.
pub const LEASE_PARTS_PER_TURN: usize = 16;
/// Callers at other members whose requests about leases the leader has not answered; further ones
/// are refused, and ask again.
pub const MEMBER_CALLERS_MAX: usize = 1_000_000;
/// Rounds in which all edges pass on their keepalives before leases expire, while long commands
/// keep keepalive streams waiting.
pub const HEARINGS_MAX: usize = 10;
/// Time that an edge waits, twice, for bytes that lie in its sockets, before it says that it has
/// passed on its keepalives.
pub const HEARING_INTERVAL: Duration = Duration::from_millis(1);
/// Such waits for streams that have more keepalives than they may have on their way.
pub const HEARING_WAITS_MAX: usize = 500;
/// Such waits for connections that have more to read than a turn reads.
pub const HEARING_READS_MAX: usize = 5_000;
/// Time between lease checkpoints of a lease with a longer TTL; etcd's interval.
pub const LEASE_NOTE_INTERVAL: Duration = Duration::from_secs(300);
/// Lease checkpoints in one command, as in etcd.
pub const LEASE_NOTES_MAX: usize = 1000;

// Watches.

/// Watchers of one core.
pub const WATCHERS_PER_CORE_MAX: usize = 10_000_000;
/// Bytes of replies that wait on one watch stream before its watchers become unsynced.
pub const WATCH_STREAM_BYTES: usize = 1024 * 1024;
/// Bytes, beside three times their own, that events of one delivery may keep alive by sharing the
/// batch they are a part of; beyond that they are copied.
pub const EVENT_SHARED_BYTES: usize = 4096;
/// Places for replies that an idle watch stream keeps.
pub const WATCH_PLACES_KEPT: usize = 8;
/// Records, matches and deliveries of one step of a hub: a third of a microsecond each.
pub const WATCH_STEP_WORK: usize = 3_000;
/// Bytes of replies that one step of a hub encodes; a step ends between revisions, so that the last
/// one may exceed it.
pub const WATCH_STEP_BYTES: usize = 256 * 1024;
/// Revisions up to which an unsynced watcher counts as near; those near are read for apart from
/// those with all history before them.
pub const WATCH_NEAR_REVISIONS: i64 = 10_000;
/// Watchers of a stream that are admitted again when it has room, unless twice as many as were
/// served the last time are more.
pub const WATCH_ADMITTED_MIN: usize = 16;
/// Replies without events that wait on a watch stream before its requests are left unread, while
/// its connection's share is full.
pub const WATCH_ANSWERS_MIN: usize = 16;
/// Replies without events that wait on a watch stream before its requests are left unread, while
/// its connection's share is not full.
pub const WATCH_ANSWERS_MAX: usize = 1_000;
/// Steps of the clock for progress replies in one interval.
pub const PROGRESS_TICKS: u64 = 10;

const _: () = {
    assert!(ENTRY_BYTES_MAX <= FRAME_BYTES_MAX, "an entry fits into a frame");
    assert!(SEGMENT_BYTES_MIN < FIRST_SEGMENT_BYTES && FIRST_SEGMENT_BYTES <= SEGMENT_BYTES);
    assert!(
        RAFT_MESSAGE_BYTES_MAX <= PEER_FRAME_BYTES as u64 && PEER_FRAME_BYTES <= PEER_FRAME_BYTES_MAX,
        "messages of raft go several to a frame"
    );
    assert!(
        RAFT_MESSAGES_INFLIGHT_MAX as u64 * RAFT_MESSAGE_BYTES_MAX + 2 * FRAME_BYTES_MAX as u64
            <= PEER_ENTRIES_BYTES as u64,
        "raft may put all that is on its way, and what was just proposed, into one message"
    );
    assert!(ENTRY_BYTES_MAX < PEER_FRAME_BYTES, "a batch of several commands is no long message");
    assert!(FRAME_BYTES_MAX as u64 <= SEGMENT_BYTES, "a segment holds the frames that gather");
    assert!(FRAME_BYTES_MAX <= UNCOMMITTED_BYTES_MAX, "a frame may be proposed at once");
    assert!(
        UNCOMMITTED_BYTES_MAX + LOG_TAIL_BYTES_MAX < LOG_MEMORY_BYTES_MAX,
        "entries that wait for the disk find room beside those that stay"
    );
    assert!(LOG_PLACE_BYTES <= LOG_FETCH_BYTES && LOG_FETCH_BYTES <= LOG_FEED_BYTES_MAX as u64);
    assert!(
        LOG_FETCH_BYTES <= RAFT_MESSAGE_BYTES_MAX && RAFT_MESSAGE_BYTES_MAX <= LOG_TAIL_BYTES_MAX as u64,
        "a member that lags behind is sent whole messages"
    );
    assert!(
        CHECKPOINT_BYTES_MIN < CHECKPOINT_BYTES_MAX && CHECKPOINT_BYTES_MAX < UNSAVED_BYTES_MAX,
        "a checkpoint begins before applying has to wait for it"
    );
    assert!(COMPACT_INTERVAL.as_millis() <= CHECKPOINT_INTERVAL.as_millis());
    assert!(READS_PER_STATE <= TXN_READS_AT_ONCE && TXN_READS_AT_ONCE <= TXN_READS_MAX);
    assert!(BYTES_PER_STEP <= REPLY_CHUNK_BYTES);
    assert!(SORT_RUN_KEYS <= SORT_HEAP_KEYS_MAX && SORT_RUN_BYTES < SORT_BYTES_MAX);
    assert!(LEASE_KEY_BYTES_PER_TURN <= WRITE_REPLY_BYTES_MAX);
    assert!(WATCH_STEP_BYTES <= WATCH_STREAM_BYTES, "a step of small revisions fits into an empty stream");
    assert!(WATCH_ANSWERS_MIN <= WATCH_ANSWERS_MAX);
    assert!(HEARING_WAITS_MAX <= HEARING_READS_MAX);
};
