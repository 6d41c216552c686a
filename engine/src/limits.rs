//! Bounds of the engine, and what must hold between them.

use std::time::Duration;

/// Bytes of a page when a file is made. Measured in docs/decisions/0002-page-size.md.
pub const PAGE_BYTES_DEFAULT: u32 = 8 * 1024;
/// Smallest page, for tests that want deep trees from few keys.
pub const PAGE_BYTES_MIN: u32 = 256;
/// Largest page: offsets inside a page are 16 bits wide.
pub const PAGE_BYTES_MAX: u32 = 32 * 1024;

/// Tables in one file.
pub const TABLES_MAX: usize = 8;
/// Bytes the owner of a file keeps in the meta slot.
pub const USER_BYTES: usize = 128;
/// Levels of a tree; 2^64 keys in pages of two would not need more.
pub const DEPTH_MAX: usize = 64;

/// Largest value: the length has one bit for "stored elsewhere".
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 1;

/// Neighbouring pages are written together, up to about this many bytes in one call.
pub const WRITE_BYTES_MAX: usize = 256 * 1024;

/// A file that is made in one go is written in parts of about this many bytes, past the page cache.
pub const BULK_WRITE_BYTES: usize = 1024 * 1024;
/// A write past the page cache begins and ends at multiples of this, on disk and in memory.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// The file grows by at least this much at a time, so that commits rarely change its length.
pub const GROW_BYTES_MIN: u64 = 1024 * 1024;

/// The file grows by at most this much at a time.
pub const GROW_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Addresses for a file: at least so many bytes, and so many times its length, so that a file that
/// grows is hardly ever mapped anew: the core that drops the last View of the map before takes
/// 40 ms to unmap 4 GiB of it, and all readers fault again. Addresses take no memory, and of the
/// 128 TiB that a process has these are a small part.
pub const MAP_BYTES_MIN: u64 = 128 << 30;
/// The same where a process has fewer addresses.
pub const MAP_BYTES_MIN_SHORT: u64 = 1 << 30;
/// A process whose addresses are limited (`ulimit -v`) takes one of so many for a file, or hardly
/// more than the file has: the others are for memory, and for a second file that comes from another
/// member.
pub const MAP_LIMIT_PART: u64 = 4;
/// See [`MAP_BYTES_MIN`].
pub const MAP_GROWTH: u64 = 4;

/// A file that is larger than one such part of memory may not stay in it: the index, calls under
/// way and other processes take memory too.
pub const RESIDENT_PART: u64 = 4;
/// Bytes that the system is asked to fetch at a time: of more it may leave out the end (Linux reads
/// no more than the device takes in one request).
pub const FETCH_BYTES_MAX: usize = 128 * 1024;

/// Leaves that a reader in order has fetched ahead: so many at first, when it comes to its second
/// leaf, then twice as many each time.
pub const LEAVES_AHEAD_MIN: usize = 4;
/// See [`LEAVES_AHEAD_MIN`]; at most so many, which are 256 KiB.
pub const LEAVES_AHEAD_MAX: usize = 32;
/// Requests for them in one turn, where they do not lie beside each other: each is a call to the
/// kernel.
pub const LEAVES_AHEAD_REQUESTS_MAX: usize = 8;

/// Parts of the list of unused pages: a full list and changes of it. Opening a file reads all.
pub const SPACE_PARTS_MAX: usize = 256;
/// Changes of that list that are kept until a commit writes them; the next list is a full one if
/// there were more.
pub const SPACE_CHANGES_MAX: usize = 64 * 1024;

/// Bytes of one chunk of a state that is streamed: what a sender reads at a time, and what a
/// receiver must have room for.
pub const TRANSFER_CHUNK_BYTES: usize = 128 * 1024;

/// Leaves a defragmentation looks at in one checkpoint.
pub const DEFRAGMENT_LEAVES_PER_STEP: usize = 1_000;
/// Bytes of values behind which such a look ends; one longer value is moved whole.
pub const DEFRAGMENT_BYTES_PER_STEP: usize = 8 << 20;
/// Long values such a step looks at, and lengths of free rows on the way to places for them: a step
/// in which none finds one is bounded too.
pub const DEFRAGMENT_LOOKS_PER_STEP: usize = 100_000;
/// Checkpoints that find no room until a defragmentation moves nothing more, and then until it is
/// over. Some seconds each, as a member makes them.
pub const DEFRAGMENT_REFUSALS_MAX: u32 = 20;
/// Commits a defragmentation waits for readers of old pages: before it moves anything, for what
/// lies low is theirs, and at its end, before it cuts. Some seconds; a reader may hold them longer.
pub const DEFRAGMENT_WAITS_MAX: u32 = 100;

/// Steps that a key counts for which has changed since the revision that is read, and of which
/// older changes lie elsewhere in memory.
pub const LOOK_BACK_STEPS: usize = 4;

/// Changes made since a View, up to which its last holder frees by itself what they have replaced:
/// a microsecond each, and two where they lie far apart. Also pieces of the memory of histories
/// that keys of the index lose between two shares, up to which its writer frees them.
pub const FREED_AT_ONCE_CHANGES: u64 = 500;
/// Bytes that take as long to free as what one change replaces.
pub const FREED_BYTES_PER_CHANGE: usize = 4 * 1024;

/// Shares of the index that its writer looks at to find those that have ended, when it shares it
/// again: usually there are three or four.
pub(crate) const SHARES_LOOKED_AT: usize = if cfg!(test) { 3 } else { 64 };
/// Nodes that shares which have ended may have had alone, and that are looked through then: some
/// nanoseconds each.
pub(crate) const SWEPT_NODES_MAX: usize = if cfg!(test) { 64 } else { 8 * 1024 };
/// Nodes that the writer frees when it shares the index, a tenth of a microsecond to one each: more
/// than it replaces between two shares at 50,000 puts a second.
pub(crate) const FREED_NODES_PER_SHARE: usize = if cfg!(test) { 100 } else { 512 };
/// Nodes to be freed, from which on another thread does it.
pub(crate) const FREED_NODES_MAX: usize = if cfg!(test) { 1_000 } else { 16 * 1024 };
/// Boxes of freed nodes that the writer keeps for copies, 88 B each.
pub(crate) const SPARE_NODES_MAX: usize = if cfg!(test) { 8 } else { 1_024 };
/// Rows of freed leaves of each length that it keeps, and rows of branches: less than a mebibyte
/// where they are of all lengths.
pub(crate) const SPARE_ROWS_MAX: usize = if cfg!(test) { 2 } else { 32 };

/// Steps of work beside the cores between two pauses: 0.2 to 2 ms together.
pub(crate) const WORK_BETWEEN_PAUSES: u32 = 1_000;
/// Such a pause.
pub(crate) const PAUSE: Duration = Duration::from_micros(200);
/// Keys of the index that a compaction looks at in the time of a step.
pub(crate) const WALKED_KEYS_PER_STEP: usize = 2;
/// Records that are counted, of which the key is read alone, in the time of a step.
pub(crate) const COUNTED_PER_STEP: usize = 8;
/// Bytes that are laid out, checksummed and given to the disk in the time of a step.
pub(crate) const BYTES_PER_STEP: usize = 2 * 1024;
/// Unsaved bytes above which a checkpoint makes no pauses: it is behind, and calls wait when it
/// falls back further.
pub(crate) const PAUSES_UNSAVED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A turn has one of so many keys that wait to forget revisions forget them where that is more than
/// it is asked for.
pub const FORGET_PARTS: usize = 256;
/// And so many times as many as it is asked for at most.
pub const FORGET_TIMES_MAX: usize = 8;
/// Bytes of keys that forget revisions in one turn, or one key: each is compared to be found.
pub const FORGET_BYTES_PER_TURN: usize = 256 * 1024;

/// Records a compaction removes in one checkpoint, or keys that forget something: bounds what a
/// step writes, and its memory.
pub const COMPACT_RECORDS_PER_STEP: usize = 10_000;
/// So many times the checkpoint's own records, if that is more: each of them makes one dead at
/// most, and a compaction meets it twice, as a key that forgets it and as a record.
pub const COMPACT_RECORDS_PER_OWN: usize = 3;
/// But no more than these: a checkpoint that takes longer for it brings more of its own.
pub const COMPACT_RECORDS_PER_STEP_MAX: usize = 60_000;
/// Records that it looks at for each that it may remove: where it finds little to remove it only
/// reads.
pub const COMPACT_LOOKS_PER_RECORD: usize = 4;
/// Records of a file that was opened which are counted in one checkpoint.
pub const COMPACT_COUNTED_PER_STEP: usize = 40_000;
/// Bytes of records that a compaction reads in one checkpoint: those that it looks at are read
/// whole, for their keys and perhaps their hash.
pub const COMPACT_BYTES_PER_STEP: usize = 32 * 1024 * 1024;
/// Keys of the index that a compaction walks over in one checkpoint: their histories are read, and
/// nothing is written. Puts beside it are slower: their nodes leave the processor's caches.
pub const COMPACT_WALK_KEYS_PER_STEP: usize = 40_000;
/// Of more keys so many more that the walk has about so many steps (a quarter of a minute of
/// checkpoints), as far as one checkpoint may go, which is as far as it goes where a caller waits.
pub const COMPACT_WALK_STEPS: usize = 250;
/// See [`COMPACT_WALK_STEPS`].
pub const COMPACT_WALK_KEYS_PER_STEP_MAX: usize = 160_000;
/// Bits for each key in which a walk notes the puts that stay, or up to twice as many: in each
/// compaction about one of eight to sixteen dead records looks as if it stayed.
pub const KEPT_PUTS_BITS_PER_KEY: u64 = 8;
/// Newest buckets of revisions of which a walk has a table: 256 kB.
pub const TALLY_BUCKETS_MAX: usize = 64 * 1024;
/// Bytes of records that a compaction writes again in one checkpoint, or so many times the bytes of
/// the checkpoint's own records, if that is more: it keeps up with whatever makes records dead, and
/// its writes are no wall before those of the log.
pub const COMPACT_REWRITTEN_BYTES_PER_STEP: usize = 2 * 1024 * 1024;
/// See [`COMPACT_REWRITTEN_BYTES_PER_STEP`].
pub const COMPACT_REWRITTEN_PER_RECORD_BYTE: usize = 2;
/// Revisions whose records are counted together. Few in builds with a simulated disk, so that small
/// stores of tests have many such buckets.
pub const RECORD_BUCKET_REVISIONS: i64 = if cfg!(feature = "sim") { 64 } else { 4096 };
/// Such buckets of a store: where more have records, each counts twice the revisions. Copying and
/// dropping their counts is a part of a turn.
pub const RECORD_BUCKETS_MAX: usize = if cfg!(feature = "sim") { 128 } else { 16 * 1024 };
/// One record of so many may stay although it is dead: to clean a bucket of which the half is dead
/// writes a record for each that goes, and the fewer may stay the more has to be written.
pub const COMPACT_DEAD_PART: u64 = 4;
/// Of at most so many records all dead ones go with each compaction.
pub const COMPACT_SMALL_RECORDS: u64 = 256 * 1024;
/// A compaction of more records than these computes no hash: that takes a look at each of them.
pub const COMPACT_HASHED_RECORDS_MAX: u64 = 1024 * 1024;
/// Hashes of compactions that are kept, as many as in etcd.
pub const COMPACTION_HASHES_MAX: usize = 10;
/// Steps that looking for a key to hash has at least: enough to pass a run of dead keys.
pub const HASH_LOOK_STEPS_MIN: usize = 4_000;
/// Steps of the index that count as much work of a hash as one record.
pub const HASH_STEPS_PER_RECORD: usize = 16;
/// Bytes of records that count as much work of a hash as one record.
pub const HASH_BYTES_PER_RECORD: usize = 4 * 1024;
/// Keys of the saved index that are saved anew in one checkpoint after a compaction.
pub const SWEEP_KEYS_PER_STEP: u64 = 10_000;
/// But so many with a checkpoint of many records: the leaves that a sweep writes take time from the
/// puts beside it, and nobody waits for its end.
pub const SWEEP_KEYS_BESIDE_RECORDS: u64 = 2_500;
/// From so many bytes of them on.
pub const SWEEP_RECORD_BYTES: usize = 256 * 1024;
/// Rows of long keys that are looked at in one checkpoint after a compaction.
pub const SWEEP_LONG_ROWS_PER_STEP: usize = 1_000;
/// The saved index is swept when compactions have dropped one record for this many keys, in a large
/// store: what is swept has to be worth writing the index.
pub const SWEEP_PART: u64 = 2;

/// All of the index is saved once while this many records are added, or more if it is large
/// (below).
pub const INDEX_ROUND_RECORDS_MIN: u64 = 64 * 1024;
/// All of the index is saved once while one record for this many of all keys and kept revisions is
/// added, if that is more than the number above: saving a key writes its whole history, so what is
/// written for the index stays in proportion to the records. A start reads as many records.
pub const INDEX_ROUND_PART: u64 = 2;
/// Checkpoints in a row without index that nothing waits for, behind one that found no room.
pub const INDEX_WITHOUT_ROOM_MAX: u32 = 64;
/// When nothing else is to be saved the index is, until a start reads one record for this many
/// keys, or as many as in the smallest round: a quiet time behind a load makes starts short, and
/// has at most so many rows written for each record.
pub const INDEX_QUIET_PART: u64 = 8;
/// The same, when nothing has changed for longer: until a start reads one record for this many
/// keys, or a part of those of the smallest round.
pub const INDEX_LONG_QUIET_PART: u64 = 32;
/// An index of at most so many keys is saved at once, and before a compaction.
pub const INDEX_SMALL_KEYS: u64 = 64 * 1024;
/// And of at most so many revisions that are kept for each of these keys: a history takes some
/// bytes for each of its changes. No more of them, for each of these keys or of those that there
/// are, make a round longer: what a save of a long history writes is what has come since the one
/// before.
pub const INDEX_SMALL_CHANGES_PER_KEY: u64 = 16;
/// Keys of a larger index that are saved at a time, or more if more records were added.
pub const INDEX_STEP_KEYS: u64 = 16 * 1024;
/// Keys of it that one checkpoint saves at most.
pub const INDEX_CHECKPOINT_KEYS_MAX: u64 = 128 * 1024;
/// Or so many for each record that the checkpoint itself saves, if that is more: a record earns
/// two, and what earlier checkpoints have left is made up for.
pub const INDEX_KEYS_PER_OWN: u64 = 3;
/// But no more than these: their leaves are in memory until the commit, and one that takes longer
/// for them has more records of its own.
pub const INDEX_CHECKPOINT_KEYS_OF_OWN_MAX: u64 = 1024 * 1024;
/// Bytes of rows after which a step of saving ends, and what one checkpoint saves of a large index;
/// or so many times the bytes of its records, if that is more: an index is written once in a round
/// of half as many records.
pub const INDEX_STEP_BYTES: usize = 8 * 1024 * 1024;
/// See [`INDEX_STEP_BYTES`].
pub const INDEX_BYTES_PER_RECORD_BYTE: usize = 4;
/// Bytes of keys too long for a page that wait for their range to be saved; if there are more, the
/// next checkpoint saves all that wait.
pub const LONG_KEYS_WAITING_BYTES: usize = 8 * 1024 * 1024;
/// Older changes of a key that are saved together, in a row of about one page, and once.
pub const HISTORY_ROW_CHANGES: usize = 768;
/// Highest version of a key that is taken from a file: no store comes to it, and every put behind
/// it can still be counted.
pub const VERSION_MAX: i64 = i64::MAX / 2;
/// Keys or records restored between two reports of progress.
pub const RESTORED_PER_REPORT: u64 = 16 * 1024;

/// Threads that load the index when a store is opened, at most: each reads all records that the
/// saved index does not have.
pub const INDEX_LOAD_THREADS_MAX: usize = 8;
/// Parts of the index for each of these threads: so many stretches of keys that the records behind
/// the saved index are shared out between the threads, although most are of neighbouring keys.
pub const INDEX_LOAD_PARTS_PER_THREAD: usize = 8;
/// Keys of the saved index for which one more thread is worth its while. Few in builds with a
/// simulated disk, so that small stores of tests are loaded side by side too.
pub const INDEX_LOAD_KEYS_MIN: u64 = if cfg!(feature = "sim") { 32 } else { 16 * 1024 };

/// Records that a start gathers before it takes those that the saved index does not know into it,
/// in the order of their keys: as many as a part of the keys that are there, so that a node of the
/// index is come to some times. At
/// the most 100 MB of memory for each thread. Few in builds with a simulated disk, so that small
/// stores of tests gather more than once.
pub const REPLAY_GATHERED_PART: u64 = 4;
/// See [`REPLAY_GATHERED_PART`].
pub const REPLAY_GATHERED_MIN: u64 = if cfg!(feature = "sim") { 16 } else { 64 * 1024 };
/// See [`REPLAY_GATHERED_PART`].
pub const REPLAY_GATHERED_MAX: u64 = 1024 * 1024;

/// Bytes of puts in the order of their keys that are gathered before they go into their leaves,
/// about eight pages.
pub(crate) const SORTED_PUTS_BYTES: usize = 64 * 1024;
/// Or so many of them: each may be the only one of its leaf, so that they take a millisecond or
/// two.
pub(crate) const SORTED_PUTS_MAX: usize = 256;

/// Bytes of a tail's chunk; a record of more than a quarter of it has one of its own, if it finds
/// no room. Records count as memory that waits for a checkpoint, and room that they leave does not.
pub const TAIL_CHUNK_BYTES: usize = 1024 * 1024;
/// Bytes of a chunk that follows none; each other one has twice as many as the one before it, up to
/// [`TAIL_CHUNK_BYTES`].
pub const TAIL_CHUNK_BYTES_MIN: usize = 4 * 1024;
/// A chunk has entries, of 24 B, for records as long as those of the one before are; for records of
/// so many bytes, where there is none.
pub const TAIL_RECORD_BYTES: usize = 64;
/// But for no shorter ones than these.
pub const TAIL_RECORD_BYTES_MIN: usize = 16;
/// And for no longer ones.
pub const TAIL_RECORD_BYTES_MAX: usize = 256;
/// When a transaction is undone, so many bytes of a chunk that readers share are copied at most,
/// and so many records: what is more stays where it is, as a chunk of its own.
pub const TAIL_COPIED_BYTES_MAX: usize = 64 * 1024;
/// See [`TAIL_COPIED_BYTES_MAX`].
pub const TAIL_COPIED_RECORDS_MAX: usize = 1024;

// Maps.

/// Maps of files whose pages are named when the disk does not give one; the tree file has one for
/// each time that it was mapped anew, as long as a reader still looks at it.
pub const MAPS_KNOWN_MAX: usize = 64;

const _: () = {
    assert!(0 < TAIL_CHUNK_BYTES_MIN && TAIL_CHUNK_BYTES_MIN <= TAIL_CHUNK_BYTES);
    assert!(0 < TAIL_RECORD_BYTES_MIN && TAIL_RECORD_BYTES_MIN <= TAIL_RECORD_BYTES_MAX);
    assert!(TAIL_RECORD_BYTES_MAX <= TAIL_CHUNK_BYTES_MIN, "a chunk has an entry");
    assert!(PAGE_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two());
    assert!(PAGE_BYTES_DEFAULT.is_power_of_two());
    assert!(PAGE_BYTES_MIN <= PAGE_BYTES_DEFAULT && PAGE_BYTES_DEFAULT <= PAGE_BYTES_MAX);
    // Offsets in a page and lengths of keys are 16 bits wide.
    assert!(PAGE_BYTES_MAX <= 1 << 16);
    assert!(key_bytes_max(PAGE_BYTES_MAX) <= u16::MAX as usize);
    // Tables whose keys are numbers: a revision and a kind, a digest, or two revisions.
    assert!(key_bytes_max(PAGE_BYTES_MIN) >= 32);
    assert!(TABLES_MAX <= u8::MAX as usize, "a table's number is a byte");
    assert!(DEPTH_MAX < u32::MAX as usize);
    // Pages that are neighbours leave in one write, and the file grows by whole pages.
    assert!(WRITE_BYTES_MAX >= PAGE_BYTES_MAX as usize);
    assert!(BULK_WRITE_BYTES >= PAGE_BYTES_MAX as usize && BULK_WRITE_BYTES.is_multiple_of(DIRECT_ALIGNMENT));
    assert!(DIRECT_ALIGNMENT.is_power_of_two());
    assert!(GROW_BYTES_MIN <= GROW_BYTES_MAX && GROW_BYTES_MIN.is_multiple_of(PAGE_BYTES_MAX as u64));
    assert!(0 < LEAVES_AHEAD_MIN && LEAVES_AHEAD_MIN <= LEAVES_AHEAD_MAX);
    assert!(LEAVES_AHEAD_REQUESTS_MAX > 0);
    // The head of a stream fits its first chunk, beside the chunk's checksum.
    assert!(TRANSFER_CHUNK_BYTES > 4 + 8 + USER_BYTES + 8 * TABLES_MAX);
    // Every step of a chore goes on by something.
    assert!(COMPACT_RECORDS_PER_STEP > 0 && COMPACT_BYTES_PER_STEP > 0);
    assert!(COMPACT_RECORDS_PER_STEP <= COMPACT_RECORDS_PER_STEP_MAX && COMPACT_LOOKS_PER_RECORD > 0);
    assert!(COMPACT_RECORDS_PER_OWN > 2 && COMPACT_COUNTED_PER_STEP > 0 && COMPACT_WALK_KEYS_PER_STEP > 0);
    assert!(COMPACT_WALK_KEYS_PER_STEP <= COMPACT_WALK_KEYS_PER_STEP_MAX && COMPACT_WALK_STEPS > 0);
    assert!(COMPACT_REWRITTEN_BYTES_PER_STEP > 0 && RECORD_BUCKET_REVISIONS > 0 && COMPACT_DEAD_PART > 1);
    assert!(RECORD_BUCKETS_MAX > 1 && KEPT_PUTS_BITS_PER_KEY > 0);
    // Cleaning frees as much as it writes, or more, where a half is dead: each record earns enough
    // bytes for that.
    assert!(COMPACT_REWRITTEN_PER_RECORD_BYTE > 1 && COMPACT_SMALL_RECORDS <= COMPACT_HASHED_RECORDS_MAX);
    assert!(0 < SWEEP_KEYS_BESIDE_RECORDS && SWEEP_KEYS_BESIDE_RECORDS <= SWEEP_KEYS_PER_STEP);
    assert!(SWEEP_KEYS_PER_STEP > 0 && SWEEP_LONG_ROWS_PER_STEP > 0 && SWEEP_PART > 0);
    assert!(DEFRAGMENT_LEAVES_PER_STEP > 0 && DEFRAGMENT_BYTES_PER_STEP > 0 && DEFRAGMENT_WAITS_MAX > 1);
    assert!(DEFRAGMENT_LOOKS_PER_STEP > 0 && DEFRAGMENT_REFUSALS_MAX > 0);
    assert!(HASH_LOOK_STEPS_MIN > 0 && HASH_STEPS_PER_RECORD > 0 && HASH_BYTES_PER_RECORD > 0);
    assert!(COMPACTION_HASHES_MAX > 0 && LOOK_BACK_STEPS > 0);
    assert!(RESTORED_PER_REPORT > 0 && FREED_BYTES_PER_CHANGE > 0);
    // Saving the index keeps up with the records, whose round is half of it.
    assert!(REPLAY_GATHERED_MIN <= REPLAY_GATHERED_MAX && REPLAY_GATHERED_MAX < u32::MAX as u64);
    assert!(INDEX_LOAD_THREADS_MAX >= 2 && INDEX_LOAD_KEYS_MIN > 0 && INDEX_LOAD_PARTS_PER_THREAD > 0);
    assert!(INDEX_ROUND_PART > 0 && INDEX_ROUND_RECORDS_MIN > 0 && INDEX_STEP_BYTES > 0);
    assert!(INDEX_SMALL_KEYS > 0 && INDEX_SMALL_CHANGES_PER_KEY > 0);
    assert!(INDEX_BYTES_PER_RECORD_BYTE as u64 >= INDEX_ROUND_PART && HISTORY_ROW_CHANGES > 0);
    assert!(0 < INDEX_STEP_KEYS && INDEX_STEP_KEYS <= INDEX_CHECKPOINT_KEYS_MAX);
    assert!(INDEX_CHECKPOINT_KEYS_MAX <= INDEX_CHECKPOINT_KEYS_OF_OWN_MAX);
    assert!(INDEX_KEYS_PER_OWN > INDEX_ROUND_PART && INDEX_QUIET_PART > INDEX_ROUND_PART);
    assert!(INDEX_LONG_QUIET_PART > INDEX_QUIET_PART);
};

/// Longest key a page of this size takes: at least four cells fit any page, whatever their keys.
#[must_use]
pub const fn key_bytes_max(page_bytes: u32) -> usize {
    (page_bytes / 8) as usize
}
