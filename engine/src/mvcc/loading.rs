//! Loading the index when a store is opened: what is saved of it, then the records above that.
//!
//! The keys are divided into parts, some for each thread. A thread loads the saved index of its
//! keys, and reads all records above it for those that are of its keys: reading one is little
//! beside what a change of the index costs. No part needs another one, and their order is that of
//! their keys, so the trees of all become one whatever the threads do when. A thread takes one part
//! after the other: one that has less of its CPU takes fewer. And its parts lie all over the keys:
//! the records that the saved index does not know are most often those of one stretch of them, the
//! one that was to be saved next.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::limits;
use crate::mvcc::index_part::{IndexPart, LoadedPart, part_of};
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::{IndexBuilder, IndexPiece, Key, KeyIndex};
use crate::mvcc::layout::{INDEX, INDEX_LONG, StoreMeta};
use crate::mvcc::long_keys::{self, WaitingKeys};
use crate::mvcc::replay::{Replay, Replayed};
use crate::mvcc::saved_history::{self, HistoryReader};
use crate::mvcc::saved_ranges::SavedRanges;
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// How far opening a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The saved index is being loaded.
    Keys {
        /// Keys that are loaded.
        loaded: u64,
        /// Keys of the saved index.
        of: u64,
    },
    /// The records above it are being read; so many have been.
    Records(u64),
}

/// The state whose index is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Loading<'l> {
    pub(crate) tree: &'l Snapshot,
    pub(crate) meta: StoreMeta,
    pub(crate) ranges: &'l SavedRanges,
}

/// The index as of the state's revision.
pub(crate) struct LoadedIndex {
    pub(crate) index: KeyIndex,
    /// Keys that have lost changes to compactions since they were saved.
    pub(crate) unswept: u64,
    /// Records that were not in the saved one.
    pub(crate) records: u64,
    /// Keys too long for a page that they have changed.
    pub(crate) long: WaitingKeys,
}

/// Parts of the index, as one thread has loaded them.
struct LoadedParts {
    /// With the places that they have among all parts.
    pieces: Vec<(usize, IndexPiece)>,
    /// Rows of keys that fit a page.
    rows: u64,
    /// These are as in [`LoadedIndex`].
    unswept: u64,
    records: u64,
    long: WaitingKeys,
}

/// Parts of the saved index, without what compactions have dropped.
struct LoadedRows<'p> {
    parts: Vec<LoadedPart<'p>>,
    /// Rows of keys that fit a page, and how many of them say more than that.
    rows: u64,
    unswept: u64,
    /// Longer keys whose rows say more, and are to be saved again.
    long: WaitingKeys,
}

/// The parts, and how many of them have been taken.
struct NextPart<'p> {
    parts: &'p [IndexPart],
    taken: AtomicUsize,
}

impl<'p> NextPart<'p> {
    /// One that no thread has taken, and its place.
    fn take(&self) -> Option<(usize, &'p IndexPart)> {
        let at = self.taken.fetch_add(1, Ordering::Relaxed);
        Some((at, self.parts.get(at)?))
    }
}

/// Word from a thread.
enum Progress {
    /// So many more keys are loaded.
    Keys(u64),
    /// The thread that has the first part has read so many records: the others read the same.
    Records(u64),
}

impl Loading<'_> {
    /// Loads it with as many threads as there are CPUs, or fewer if it is small.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn run(self, tell: &mut dyn FnMut(Opening)) -> Result<LoadedIndex> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let worth = self.tree.len(INDEX) / limits::INDEX_LOAD_KEYS_MIN;
        // Tests divide the index on one CPU too.
        let cpus = if cfg!(feature = "sim") { cpus.max(2) } else { cpus };
        let threads = cpus.min(limits::INDEX_LOAD_THREADS_MAX).min(usize::try_from(worth).unwrap_or(1));
        let parts = if threads > 1 { threads * limits::INDEX_LOAD_PARTS_PER_THREAD } else { 1 };
        self.run_in_parts(&IndexPart::divide(self.tree, parts)?, threads, tell)
    }

    fn run_in_parts(
        self,
        parts: &[IndexPart],
        threads: usize,
        tell: &mut dyn FnMut(Opening),
    ) -> Result<LoadedIndex> {
        let of = self.tree.len(INDEX);
        let mut loaded = 0;
        let mut tell = |progress| {
            tell(match progress {
                Progress::Keys(more) => {
                    loaded += more;
                    Opening::Keys { loaded, of }
                }
                Progress::Records(read) => Opening::Records(read),
            });
        };
        let next = NextPart { parts, taken: AtomicUsize::new(0) };
        let results = match threads.min(parts.len()) {
            0 | 1 => vec![self.load(&next, &mut tell)],
            threads => self.load_side_by_side(&next, threads, &mut tell),
        };
        let (mut pieces, mut rows, mut long) = (Vec::new(), 0, WaitingKeys::default());
        let (mut records, mut unswept) = (0, 0);
        for result in results {
            let share = result?;
            pieces.extend(share.pieces);
            long.merge(share.long);
            rows += share.rows;
            records += share.records;
            unswept += share.unswept;
        }
        if rows != of {
            return Err(Error::corrupt(format!("the saved index has {rows} keys instead of {of}")));
        }
        pieces.sort_unstable_by_key(|(at, _)| *at);
        let index = IndexPiece::join(pieces.into_iter().map(|(_, piece)| piece)).ok_or_else(out_of_order)?;
        Ok(LoadedIndex { index, unswept, records, long })
    }

    /// Loads the parts with several threads, or with fewer if the system has no more.
    fn load_side_by_side(
        self,
        next: &NextPart<'_>,
        threads: usize,
        tell: &mut dyn FnMut(Progress),
    ) -> Vec<Result<LoadedParts>> {
        thread::scope(|scope| {
            let (sender, progress) = mpsc::channel();
            let begin = |_| {
                let sender = sender.clone();
                // If nobody hears it, the thread that would is unwinding.
                let work = move || self.load(next, &mut |news| drop(sender.send(news)));
                thread::Builder::new().name("index".to_owned()).spawn_scoped(scope, work).ok()
            };
            let threads: Vec<_> = (0..threads).filter_map(begin).collect();
            drop(sender);
            progress.into_iter().for_each(&mut *tell);
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let mut results: Vec<_> = threads.into_iter().map(join).collect();
            if results.is_empty() {
                results.push(self.load(next, tell));
            }
            results
        })
    }

    /// Loads parts until all are taken.
    fn load(self, next: &NextPart<'_>, tell: &mut dyn FnMut(Progress)) -> Result<LoadedParts> {
        let Self { tree, meta, ranges } = self;
        let mut some = || tell(Progress::Keys(limits::RESTORED_PER_REPORT));
        let LoadedRows { parts, rows, unswept, long } = load(tree, meta, next, &mut some)?;
        if parts.is_empty() {
            return Ok(LoadedParts { pieces: Vec::new(), rows, unswept, records: 0, long });
        }
        let is_first = parts.first().is_some_and(|first| first.at == 0);
        let mut replay = Replay::new(tree, meta, ranges, parts, long);
        replay.run(&mut |read| {
            if is_first {
                tell(Progress::Records(read));
            }
        })?;
        let Replayed { parts, records, long } = replay.end()?;
        let pieces = parts.into_iter().map(|part| (part.at, part.piece)).collect();
        Ok(LoadedParts { pieces, rows, unswept, records, long })
    }
}

fn out_of_order() -> Error {
    Error::corrupt("the keys of the saved index are out of order")
}

/// Reads the history of a row.
struct Rows<'t> {
    reader: HistoryReader<'t>,
    meta: StoreMeta,
}

impl Rows<'_> {
    #[inline]
    fn read(&self, encoded: &[u8]) -> Result<KeyHistory> {
        match self.reader.read(encoded) {
            Ok(history) if history.newest().revision.main > self.meta.revision => {
                Err(saved_history::malformed())
            }
            history => history,
        }
    }
}

/// Loads parts of the saved index, and compacts them: steps of a compaction that happened after
/// they were saved are not in them. `tell` is called for some of the keys.
fn load<'p>(
    tree: &Snapshot,
    meta: StoreMeta,
    next: &NextPart<'p>,
    tell: &mut dyn FnMut(),
) -> Result<LoadedRows<'p>> {
    let saved = Rows { reader: HistoryReader::new(tree), meta };
    let mut loaded = LoadedRows { parts: Vec::new(), rows: 0, unswept: 0, long: WaitingKeys::default() };
    while let Some((at, part)) = next.take() {
        let piece = load_part(tree, &saved, part, &mut loaded, tell)?;
        loaded.parts.push(LoadedPart { at, part, piece });
    }
    load_long(tree, &saved, &mut loaded)?;
    Ok(loaded)
}

/// Loads one of the parts, and counts its rows.
fn load_part(
    tree: &Snapshot,
    saved: &Rows<'_>,
    part: &IndexPart,
    counted: &mut LoadedRows<'_>,
    tell: &mut dyn FnMut(),
) -> Result<IndexPiece> {
    let LoadedRows { rows, unswept, .. } = counted;
    let compacted_to = saved.meta.compact_revision;
    let mut index = IndexBuilder::default();
    let mut cursor = tree.cursor(INDEX);
    cursor.seek(&part.from)?;
    cursor.for_each(|key, encoded| {
        if part.end.as_deref().is_some_and(|end| key >= *end) {
            return Ok(ControlFlow::Break(()));
        }
        *rows += 1;
        if *rows > tree.len(INDEX) {
            return Err(Error::corrupt(format!("the saved index has more than {} keys", tree.len(INDEX))));
        }
        if rows.is_multiple_of(limits::RESTORED_PER_REPORT) {
            tell();
        }
        let mut history = Some(saved.read(encoded)?);
        if let Some(saved) = history.as_ref().filter(|saved| saved.loses(compacted_to)) {
            *unswept += 1;
            history = saved.compacted(compacted_to);
        }
        if let Some(history) = history {
            index.push(key, history).ok_or_else(out_of_order)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    IndexPiece::built(index).ok_or_else(out_of_order)
}

/// Loads the keys of the parts that are too long for a page.
fn load_long(tree: &Snapshot, saved: &Rows<'_>, loaded: &mut LoadedRows<'_>) -> Result<()> {
    let compacted_to = saved.meta.compact_revision;
    let mut cursor = tree.cursor(INDEX_LONG);
    cursor.seek(&[])?;
    while let Some((_, row)) = cursor.next()? {
        for (key, history) in long_keys::decode(row)? {
            let Some(at) = part_of(&loaded.parts, key) else { continue };
            let history = saved.read(history)?;
            // The row was to be saved anew when the process ended.
            if history.loses(compacted_to) {
                loaded.long.insert(Key::from(key));
            }
            if let Some(history) = history.compacted(compacted_to) {
                loaded.parts[at].piece.index().set(key, history);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::DbOptions;
    use crate::disk::{Disk, SimDisk};
    use crate::mvcc::{CheckpointKind, Store};
    use crate::random::Random;

    /// A store whose saved index is behind its records, ranges of which are saved later than
    /// others, with keys too long for a page, and tombstones.
    fn store(seed: u64) -> Store {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let mut store = Store::open(disk, DbOptions { page_bytes_if_new: 512 }).unwrap();
        store.save_index_in_steps_of(40);
        let mut random = Random::new(seed);
        for _ in 0..2_000 {
            let number = random.below(400);
            let long = if number.is_multiple_of(50) { "x".repeat(70) } else { String::new() };
            let key = format!("{:03}{long}", number * 7 % 400);
            let mut txn = store.begin();
            match random.below(4) {
                0 => drop(txn.delete_range(crate::mvcc::KeyRange::One(key.as_bytes()))),
                _ => drop(txn.put(key.as_bytes(), b"value", 0)),
            }
            txn.commit();
            let applied = store.applied();
            store.set_applied(crate::mvcc::Applied { index: applied.index + 1, term: 1 });
            if random.below(60) == 0 {
                let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
                store.finish_checkpoint(checkpoint.write().unwrap());
            }
        }
        let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
        store
    }

    fn entries(loaded: &LoadedIndex) -> Vec<(Vec<u8>, Vec<crate::mvcc::key_history::KeyChange>)> {
        let entries = loaded.index.root().entries();
        entries.map(|(key, history)| (key.to_vec(), history.changes())).collect()
    }

    #[test]
    fn an_index_is_the_same_however_many_parts_it_is_loaded_in() {
        for seed in 1..6 {
            let store = store(seed);
            let ranges = SavedRanges::load(&store.tree, &store.saved).unwrap();
            let loading = Loading { tree: &store.tree, meta: store.saved, ranges: &ranges };
            let mut told = Vec::new();
            let mut load = |parts, threads| {
                let parts = IndexPart::divide(&store.tree, parts).unwrap();
                let loaded = loading.run_in_parts(&parts, threads, &mut |step| told.push(step)).unwrap();
                (parts.len(), loaded)
            };
            let (_, whole) = load(1, 1);
            assert!(whole.records > 0, "records above the saved index");
            let all = entries(&whole);
            assert_eq!(all.len() as u64, store.index.root().len());
            for (wanted, threads) in (2..8).flat_map(|parts| (1..10).map(move |threads| (parts, threads))) {
                let (parts, loaded) = load(wanted, threads);
                assert_eq!(parts, wanted, "the table has leaves enough");
                assert_eq!(entries(&loaded), all);
                assert_eq!((loaded.records, &loaded.long), (whole.records, &whole.long));
                assert_eq!(loaded.unswept, whole.unswept);
                assert_eq!(loaded.index.root().newest_change(), whole.index.root().newest_change());
                let live = |index: &KeyIndex| index.root().live_count(crate::mvcc::KeyRange::From(b"1"));
                assert_eq!(live(&loaded.index), live(&whole.index));
            }
        }
    }

    /// Records of keys before, between and behind the parts that a thread has.
    #[test]
    fn threads_have_parts_with_others_between_them() {
        for seed in 1..4 {
            let store = store(seed);
            let ranges = SavedRanges::load(&store.tree, &store.saved).unwrap();
            let loading = Loading { tree: &store.tree, meta: store.saved, ranges: &ranges };
            let parts = IndexPart::divide(&store.tree, 6).unwrap();
            assert_eq!(parts.len(), 6);
            let whole = loading.run_in_parts(&parts, 1, &mut |_| {}).unwrap();
            for others in 0_u32..1 << parts.len() {
                let is_others = |at: &usize| others >> at & 1 == 1;
                let (theirs, own): (Vec<_>, Vec<_>) = (0..parts.len()).partition(is_others);
                let (mut pieces, mut records, mut rows) = (Vec::new(), 0, 0);
                for places in [theirs, own] {
                    let of_thread: Vec<_> = places.iter().map(|at| parts[*at].clone()).collect();
                    let next = NextPart { parts: &of_thread, taken: AtomicUsize::new(0) };
                    let loaded = loading.load(&next, &mut |_| {}).unwrap();
                    (records, rows) = (records + loaded.records, rows + loaded.rows);
                    pieces.extend(loaded.pieces.into_iter().map(|(at, piece)| (places[at], piece)));
                }
                pieces.sort_unstable_by_key(|(at, _)| *at);
                let index = IndexPiece::join(pieces.into_iter().map(|(_, piece)| piece)).unwrap();
                let joined = LoadedIndex { index, unswept: 0, records, long: WaitingKeys::default() };
                assert_eq!(entries(&joined), entries(&whole));
                assert_eq!((records, rows), (whole.records, store.tree.len(INDEX)));
            }
        }
    }

    /// Their rows were to be saved again when the process ended, and no walk comes by them.
    #[test]
    fn long_keys_with_compacted_changes_wait_to_be_saved() {
        let mut store = store(3);
        let save = |store: &mut Store, kind| {
            let checkpoint = store.checkpoint(kind).unwrap();
            store.finish_checkpoint(checkpoint.write().unwrap());
        };
        let long = |store: &Store| {
            let ranges = SavedRanges::load(&store.tree, &store.saved).unwrap();
            let loading = Loading { tree: &store.tree, meta: store.saved, ranges: &ranges };
            let parts = IndexPart::divide(&store.tree, 3).unwrap();
            loading.run_in_parts(&parts, 2, &mut |_| {}).unwrap().long
        };
        save(&mut store, CheckpointKind::WithIndex);
        assert_eq!(long(&store), WaitingKeys::default(), "all is saved as it is");
        store.compact(store.meta.revision).unwrap();
        while store.compaction_pending() {
            save(&mut store, CheckpointKind::Auto);
        }
        let waiting = long(&store);
        assert_eq!((waiting.bytes() > 0, &waiting), (true, &store.unsaved_long));
    }

    /// Keys that fall between two parts, or are in both, are seen.
    #[test]
    fn parts_that_are_not_all_of_the_index_are_damage() {
        let store = store(9);
        let ranges = SavedRanges::load(&store.tree, &store.saved).unwrap();
        let loading = Loading { tree: &store.tree, meta: store.saved, ranges: &ranges };
        let part = |from: &str, end: Option<&str>| IndexPart {
            from: from.as_bytes().to_vec(),
            end: end.map(|end| end.as_bytes().to_vec()),
        };
        let load = |parts: &[IndexPart]| loading.run_in_parts(parts, 2, &mut |_| {}).map(|_| ());
        assert!(load(&[part("", Some("2")), part("2", None)]).is_ok());
        for parts in [
            [part("", Some("2")), part("3", None)],
            [part("", Some("3")), part("2", None)],
            [part("2", None), part("", Some("2"))],
        ] {
            assert!(matches!(load(&parts), Err(Error::Corrupt { .. })), "{parts:?}");
        }
    }
}
