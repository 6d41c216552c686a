//! Loading the index when a store is opened: what is saved of it, then the records above that.
//!
//! The keys are divided into parts, one for each thread. A thread loads the saved index of its
//! keys, and reads all records above it for those that are of its keys: reading one is little
//! beside what a change of the index costs. No part needs another one, and their order is that of
//! their keys, so the trees of all become one whatever the threads do when.

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;

use crate::limits;
use crate::mvcc::index_part::IndexPart;
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::{IndexBuilder, Key, KeyIndex};
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

/// The index as of the state's revision, or some of its keys.
pub(crate) struct LoadedIndex {
    pub(crate) index: KeyIndex,
    /// Keys that have lost changes to compactions since they were saved.
    pub(crate) unswept: u64,
    /// Records that were not in the saved one.
    pub(crate) records: u64,
    /// Keys too long for a page that they have changed.
    pub(crate) long: WaitingKeys,
}

/// The saved index, or a part of it, without what compactions have dropped.
struct LoadedRows {
    index: KeyIndex,
    /// Rows of keys that fit a page, and how many of them say more than that.
    rows: u64,
    unswept: u64,
    /// Longer keys whose rows say more, and are to be saved again.
    long: WaitingKeys,
}

/// Word from a thread.
enum Progress {
    /// So many more keys are loaded.
    Keys(u64),
    /// The first of the threads has read so many records: the others read the same.
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
        self.run_in_parts(&IndexPart::divide(self.tree, threads)?, tell)
    }

    fn run_in_parts(self, parts: &[IndexPart], tell: &mut dyn FnMut(Opening)) -> Result<LoadedIndex> {
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
        let results = match parts {
            [all] => vec![self.load(all, true, &mut tell)],
            parts => self.load_all(parts, &mut tell),
        };
        let (mut indexes, mut rows, mut long) = (Vec::new(), 0, WaitingKeys::default());
        let (mut records, mut unswept) = (0, 0);
        for result in results {
            let (part, part_rows) = result?;
            indexes.push(part.index);
            long.merge(part.long);
            rows += part_rows;
            records += part.records;
            unswept += part.unswept;
        }
        if rows != of {
            return Err(Error::corrupt(format!("the saved index has {rows} keys instead of {of}")));
        }
        let index = match indexes.len() {
            1 => indexes.pop(),
            _ => KeyIndex::concatenated(indexes),
        };
        let index = index.ok_or_else(out_of_order)?;
        Ok(LoadedIndex { index, unswept, records, long })
    }

    /// Loads parts side by side.
    fn load_all(
        self,
        parts: &[IndexPart],
        tell: &mut dyn FnMut(Progress),
    ) -> Vec<Result<(LoadedIndex, u64)>> {
        thread::scope(|scope| {
            let (sender, progress) = mpsc::channel();
            let begin = |(at, part)| {
                let sender = sender.clone();
                // If nobody hears it, the thread that would is unwinding.
                let work = move || self.load(part, at == 0, &mut |news| drop(sender.send(news)));
                thread::Builder::new().name("index".to_owned()).spawn_scoped(scope, work).ok()
            };
            let threads: Vec<_> = parts.iter().enumerate().map(begin).collect();
            drop(sender);
            progress.into_iter().for_each(&mut *tell);
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let results =
                threads.into_iter().zip(parts).enumerate().map(|(at, (thread, part))| match thread {
                    Some(thread) => join(thread),
                    // The system has no more threads: the part has to wait for this one.
                    None => self.load(part, at == 0, tell),
                });
            results.collect()
        })
    }

    /// Loads a part, and says how many rows of the saved index are its.
    fn load(
        self,
        part: &IndexPart,
        is_first: bool,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<(LoadedIndex, u64)> {
        let Self { tree, meta, ranges } = self;
        let mut some = || tell(Progress::Keys(limits::RESTORED_PER_REPORT));
        let LoadedRows { index, rows, unswept, long } = load(tree, meta, part, &mut some)?;
        let mut replay = Replay::new(tree, meta, ranges, index, long);
        replay.run(part, &mut |read| {
            if is_first {
                tell(Progress::Records(read));
            }
        })?;
        let Replayed { index, records, long } = replay.end()?;
        Ok((LoadedIndex { index, unswept, records, long }, rows))
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

/// Loads a part of the saved index, and compacts it: steps of a compaction that happened after it
/// was saved are not in it. `tell` is called for some of the keys.
fn load(tree: &Snapshot, meta: StoreMeta, part: &IndexPart, tell: &mut dyn FnMut()) -> Result<LoadedRows> {
    let saved = Rows { reader: HistoryReader::new(tree), meta };
    let (mut rows, mut unswept, mut loaded) = (0_u64, 0_u64, IndexBuilder::default());
    let mut cursor = tree.cursor(INDEX);
    cursor.seek(&part.from)?;
    cursor.for_each(|key, encoded| {
        if part.end.as_deref().is_some_and(|end| key >= *end) {
            return Ok(ControlFlow::Break(()));
        }
        rows += 1;
        if rows > tree.len(INDEX) {
            return Err(Error::corrupt(format!("the saved index has more than {} keys", tree.len(INDEX))));
        }
        if rows.is_multiple_of(limits::RESTORED_PER_REPORT) {
            tell();
        }
        let mut history = Some(saved.read(encoded)?);
        if let Some(saved) = history.as_ref().filter(|saved| saved.loses(meta.compact_revision)) {
            unswept += 1;
            history = saved.compacted(meta.compact_revision);
        }
        if let Some(history) = history {
            loaded.push(key, history).ok_or_else(out_of_order)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut index = KeyIndex::built(loaded).ok_or_else(out_of_order)?;
    let long = load_long(tree, &saved, part, &mut index)?;
    Ok(LoadedRows { index, rows, unswept, long })
}

/// Loads the keys of a part that are too long for a page; those that are to be saved again.
fn load_long(
    tree: &Snapshot,
    saved: &Rows<'_>,
    part: &IndexPart,
    index: &mut KeyIndex,
) -> Result<WaitingKeys> {
    let (mut cursor, mut waiting) = (tree.cursor(INDEX_LONG), WaitingKeys::default());
    cursor.seek(&[])?;
    while let Some((_, row)) = cursor.next()? {
        for (key, history) in long_keys::decode(row)?.into_iter().filter(|(key, _)| part.has(key)) {
            let history = saved.read(history)?;
            // The row was to be saved anew when the process ended.
            if history.loses(saved.meta.compact_revision) {
                waiting.insert(Key::from(key));
            }
            if let Some(history) = history.compacted(saved.meta.compact_revision) {
                index.set(key, history);
            }
        }
    }
    Ok(waiting)
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
            let mut load = |parts| {
                let parts = IndexPart::divide(&store.tree, parts).unwrap();
                (parts.len(), loading.run_in_parts(&parts, &mut |step| told.push(step)).unwrap())
            };
            let (_, whole) = load(1);
            assert!(whole.records > 0, "records above the saved index");
            let all = entries(&whole);
            assert_eq!(all.len() as u64, store.index.root().len());
            for wanted in 2..8 {
                let (parts, loaded) = load(wanted);
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
            loading.run_in_parts(&parts, &mut |_| {}).unwrap().long
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
        let load = |parts: &[IndexPart]| loading.run_in_parts(parts, &mut |_| {}).map(|_| ());
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
