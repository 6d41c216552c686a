//! The key index in the tree file: how it is written, range by range.
//!
//! A step of saving walks a range of keys in memory and in the file side by side, and writes what
//! differs. So the file's rows of a range become those of the moment, whatever has happened since
//! they were written: changes, deletions, and what compactions have made shorter.
//!
//! Keys too long for a page lie in a table of their own, in no order of keys. The walk passes over
//! them, as many at once as have their first bytes in common, and those of the range that have
//! changed are saved with it. If many wait for their range they are saved before it: that they are
//! ahead of it does no harm to a start.

use std::collections::BTreeSet;

use crate::limits::{INDEX_STEP_BYTES, SWEEP_LONG_ROWS_PER_STEP, key_bytes_max};
use crate::meta::FORMAT_DIVIDED;
use crate::mutants::{self, Mutant};
use crate::mvcc::index_pace::IndexShare;
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::{IndexRoot, Key};
use crate::mvcc::layout::{INDEX, INDEX_LONG, StoreMeta};
use crate::mvcc::long_keys::{self, WaitingKeys};
use crate::mvcc::saved_history::{self, HistoryRule};
use crate::mvcc::saved_ranges::{SavedRanges, boundary};
use crate::snapshot::Snapshot;
use crate::txn::{SortedPuts, WriteTxn};
use crate::{Error, Result};

/// A checkpoint's view of the index: what is in memory goes to the file.
struct IndexWriter<'w, 'd> {
    txn: &'w mut WriteTxn<'d>,
    base: &'w Snapshot,
    /// As of `revision`.
    index: &'w IndexRoot,
    revision: i64,
    rule: HistoryRule,
    /// Long keys that have changed since they were saved.
    waiting: WaitingKeys,
    /// Those of them that were saved.
    saved_long: Vec<Key>,
    /// Rows of an earlier version that were divided.
    divided: BTreeSet<Vec<u8>>,
}

/// The work of a checkpoint for the saved index.
#[derive(Debug)]
pub(crate) struct IndexWork {
    /// How much of it is saved, if any is due, and how many bytes.
    pub(crate) share: Option<IndexShare>,
    pub(crate) bytes_max: usize,
    pub(crate) sweep: Option<IndexSweep>,
    /// Keys of a step of it.
    pub(crate) sweep_keys: u64,
    /// Keys too long for a page that have changed since they were saved; all are saved now if that
    /// says so.
    pub(crate) long_keys: WaitingKeys,
    pub(crate) saves_long: bool,
    /// Older changes of a key in one row.
    pub(crate) row_changes: usize,
    /// Bytes of a step of the sweep.
    pub(crate) step_bytes: usize,
}

/// The work that is done.
#[derive(Debug)]
pub(crate) struct IndexWorkDone {
    /// Keys of the share that were looked at; no end of them if all of the index is saved.
    pub(crate) keys: u64,
    pub(crate) sweep: Option<IndexSweep>,
    /// Long keys that still wait.
    pub(crate) long_keys: WaitingKeys,
    saved_long: Vec<Key>,
}

impl IndexWork {
    pub(crate) fn write(
        self,
        txn: &mut WriteTxn<'_>,
        base: &Snapshot,
        index: &IndexRoot,
        ranges: &mut SavedRanges,
        to: &mut StoreMeta,
    ) -> Result<IndexWorkDone> {
        let rule = HistoryRule { compact: to.compact_revision, row_changes: self.row_changes };
        let mut writer = IndexWriter::new(txn, base, index, to.revision, rule, self.long_keys);
        let sweep = match self.sweep {
            Some(sweep) => sweep.step(&mut writer, ranges, to, (self.sweep_keys, self.step_bytes))?,
            None => None,
        };
        if self.saves_long {
            writer.save_waiting(&[], None)?;
        }
        let keys = match self.share {
            Some(share) => writer.save(ranges, share.keys(), self.bytes_max)?,
            None => 0,
        };
        // All of it may be few steps, if many keys begin alike.
        let keys = if ranges.oldest() == to.revision { u64::MAX } else { keys };
        let IndexWriter { waiting: long_keys, saved_long, .. } = writer;
        Ok(IndexWorkDone { keys, sweep, long_keys, saved_long })
    }
}

impl IndexWorkDone {
    /// All long keys that waited before: nothing of the work is durable.
    pub(crate) fn all_long_keys(mut self) -> WaitingKeys {
        self.saved_long.into_iter().for_each(|key| self.long_keys.insert(key));
        self.long_keys
    }
}

/// A step of saving.
struct SavedRange {
    /// Keys that were looked at, and bytes of their rows.
    keys: u64,
    bytes: usize,
    /// Where it ended; none at the end of all keys.
    end: Option<Vec<u8>>,
}

impl<'w, 'd> IndexWriter<'w, 'd> {
    fn new(
        txn: &'w mut WriteTxn<'d>,
        base: &'w Snapshot,
        index: &'w IndexRoot,
        revision: i64,
        rule: HistoryRule,
        waiting: WaitingKeys,
    ) -> Self {
        let (saved_long, divided) = (Vec::new(), BTreeSet::new());
        Self { txn, base, index, revision, rule, waiting, saved_long, divided }
    }

    /// Saves about so many keys and bytes of the ranges that were saved longest ago; returns how
    /// many keys.
    fn save(&mut self, ranges: &mut SavedRanges, keys_max: u64, bytes_max: usize) -> Result<u64> {
        let (mut keys, mut bytes) = (0, 0);
        while keys < keys_max && bytes < bytes_max && ranges.oldest() < self.revision {
            let from = ranges.oldest_start();
            let range = self.save_range(&from, keys_max - keys, bytes_max - bytes)?;
            ranges.saved(&from, range.end.as_deref(), self.revision);
            (keys, bytes) = (keys + range.keys, bytes + range.bytes);
        }
        Ok(keys)
    }

    /// Saves the keys from `from` on, at most `keys_max` and not much more than `bytes_max` or
    /// `INDEX_STEP_BYTES`, and the long keys between.
    fn save_range(&mut self, from: &[u8], keys_max: u64, bytes_max: usize) -> Result<SavedRange> {
        let range = self.save_short(from, keys_max, bytes_max.min(INDEX_STEP_BYTES))?;
        self.save_waiting(from, range.end.as_deref())?;
        Ok(range)
    }

    fn save_short(&mut self, from: &[u8], keys_max: u64, bytes_max: usize) -> Result<SavedRange> {
        let (base, index, key_max) = (self.base, self.index, key_bytes_max(self.base.page_bytes()));
        let mut rows = base.cursor(INDEX);
        rows.seek(from)?;
        let mut row = rows.next_parts()?;
        let mut entries = index.entries_from(from);
        let mut entry = entries.next();
        let (mut keys, mut bytes) = (0, 0);
        let (mut now, mut last, mut history) = (Vec::new(), Vec::new(), Vec::new());
        let mut puts = SortedPuts::new(INDEX);
        let end = loop {
            let of_row = row.filter(|(key, _)| entry.is_none_or(|(other, _)| other >= *key));
            let of_entry = entry.filter(|(key, _)| row.is_none_or(|(other, _)| *key <= other));
            let Some(key) = of_row.map(|(key, _)| key).or(of_entry.map(|(key, _)| key)) else { break None };
            key.write_to(&mut now);
            let key = &now[..];
            if key < from || (keys > 0 && key <= &last[..]) {
                return Err(Error::corrupt("the keys of the saved index are out of order"));
            }
            if keys > 0 {
                // A range starts with a key that is the key of a row.
                let end = boundary(&last, key);
                if (keys >= keys_max || bytes >= bytes_max) && end.len() <= key_max {
                    break Some(end.to_vec());
                }
            }
            if key.len() > key_max {
                // All that begin like this one: no range ends among them.
                bytes += key_max;
                match behind_prefix(&key[..key_max]) {
                    Some(next) => {
                        entries = index.entries_from(&next);
                        entry = entries.next();
                    }
                    None => entry = None,
                }
            } else {
                let saved = of_row.map(|(_, saved)| saved);
                let current = of_entry.map(|(_, history)| history);
                let written = self.save_key(key, saved, current, &mut history, &mut puts)?;
                bytes += key.len() + written + history.len().max(saved.map_or(0, <[u8]>::len));
                if of_entry.is_some() {
                    entry = entries.next();
                }
            }
            keys += 1;
            self.txn.pauses.count(1);
            std::mem::swap(&mut now, &mut last);
            if of_row.is_some() {
                row = rows.next_parts()?;
            }
        };
        puts.finish(self.txn)?;
        Ok(SavedRange { keys, bytes, end })
    }

    /// Saves a key that fits a page; bytes that were written besides its row.
    fn save_key(
        &mut self,
        key: &[u8],
        saved: Option<&[u8]>,
        history: Option<&KeyHistory>,
        out: &mut Vec<u8>,
        puts: &mut SortedPuts,
    ) -> Result<usize> {
        let newest = history.map(KeyHistory::newest);
        if mutants::is(Mutant::SavedIndexMissesDeletions)
            && newest.is_none_or(|newest| newest.live().is_none())
        {
            return Ok(0);
        }
        let done = saved_history::save(self.txn, self.base, saved, history, self.rule, out)?;
        if done.is_divided {
            self.txn.need_format(FORMAT_DIVIDED);
        }
        if saved != done.is_kept.then_some(&out[..]) {
            if done.is_kept {
                puts.put(self.txn, key, out)?;
            } else {
                self.txn.remove(INDEX, key)?;
            }
        }
        Ok(done.bytes)
    }

    /// Saves the long keys that wait, from `from` on and below `end`.
    fn save_waiting(&mut self, from: &[u8], end: Option<&[u8]>) -> Result<()> {
        for key in self.waiting.take_range(from, end) {
            let earlier = long_keys::earlier_row_key(&key);
            if let Some(row) = self.base.get(INDEX_LONG, &earlier)? {
                self.divide(&earlier, row)?;
            }
            self.save_long(&key)?;
            self.saved_long.push(key);
        }
        Ok(())
    }

    /// Saves a long key; bytes that were written besides its row.
    fn save_long(&mut self, key: &[u8]) -> Result<usize> {
        let row_key = long_keys::row_key(key);
        let saved = self.base.get(INDEX_LONG, &row_key)?;
        let (base, mut history) = (self.base, Vec::new());
        let saved_history = match saved.map(long_keys::sole).transpose()? {
            Some((other, _)) if other != key => return Err(saved_history::malformed()),
            other => other.map(|(_, history)| history),
        };
        let now = self.index.history(key);
        let done = saved_history::save(self.txn, base, saved_history, now, self.rule, &mut history)?;
        let row = done.is_kept.then(|| long_keys::encode(key, &history));
        if saved != row.as_deref() {
            self.txn.need_format(FORMAT_DIVIDED);
            match row {
                Some(row) => drop(self.txn.put(INDEX_LONG, &row_key, &row)?),
                None => drop(self.txn.remove(INDEX_LONG, &row_key)?),
            }
        }
        Ok(done.bytes)
    }

    /// Gives each key of a row that an earlier version has written its own.
    fn divide(&mut self, row_key: &[u8], row: &[u8]) -> Result<()> {
        if self.divided.insert(row_key.to_vec()) {
            for (key, _) in long_keys::decode(row)? {
                self.save_long(key)?;
            }
            self.txn.need_format(FORMAT_DIVIDED);
            self.txn.remove(INDEX_LONG, row_key)?;
        }
        Ok(())
    }

    /// Looks at a bounded number of rows of long keys, from `from` on, and of bytes; the row to go
    /// on from.
    fn sweep_long(&mut self, from: &[u8], bytes_max: usize) -> Result<Option<Vec<u8>>> {
        let mut rows = self.base.cursor(INDEX_LONG);
        rows.seek(from)?;
        let mut bytes = 0;
        for at in 0.. {
            let Some((row_key, row)) = rows.next()? else { break };
            if at >= SWEEP_LONG_ROWS_PER_STEP || bytes >= bytes_max {
                return Ok(Some(row_key.to_vec()));
            }
            bytes += row.len();
            match row_key.len() {
                long_keys::ROW_KEY => {
                    let (key, _) = long_keys::sole(row)?;
                    if long_keys::row_key(key) != row_key {
                        return Err(Error::corrupt("a row of a long key lies where it is not looked for"));
                    }
                    bytes += self.save_long(key)?;
                }
                long_keys::EARLIER_ROW_KEY => self.divide(row_key, row)?,
                _ => return Err(Error::corrupt("a row of long keys has no checksum for its key")),
            }
        }
        Ok(None)
    }
}

/// The shortest key behind all that begin so; none if there is none.
fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

/// How far a sweep of the saved index has come: after a compaction all of it is saved anew, a step
/// with each checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexSweep {
    /// The compaction it follows.
    compacted: i64,
    /// Keys that had dropped records when it began.
    unswept: u64,
    /// The next key; none when only long keys are left.
    from: Option<Vec<u8>>,
    /// The next row of long keys.
    from_long: Vec<u8>,
}

impl IndexSweep {
    /// A sweep from the first key on.
    #[must_use]
    pub(crate) fn new(meta: &StoreMeta) -> Self {
        let StoreMeta { compacted, unswept, .. } = *meta;
        Self { compacted, unswept, from: Some(Vec::new()), from_long: Vec::new() }
    }

    /// Saves a bounded number of keys; none when all are done.
    fn step(
        mut self,
        writer: &mut IndexWriter<'_, '_>,
        ranges: &mut SavedRanges,
        to: &mut StoreMeta,
        (keys_max, bytes_max): (u64, usize),
    ) -> Result<Option<Self>> {
        if let Some(from) = &self.from {
            let range = writer.save_range(from, keys_max, bytes_max)?;
            ranges.saved(from, range.end.as_deref(), writer.revision);
            self.from = range.end;
        }
        if self.from.is_some() {
            return Ok(Some(self));
        }
        match writer.sweep_long(&self.from_long, bytes_max)? {
            Some(next) => Ok(Some(Self { from_long: next, ..self })),
            None => {
                to.swept = self.compacted;
                to.unswept = to.unswept.saturating_sub(self.unswept);
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::{Db, DbOptions};
    use crate::disk::SimDisk;
    use crate::mvcc::checkpoint::CheckpointKind;
    use crate::mvcc::key_index::KeyIndex;
    use crate::mvcc::layout::Applied;
    use crate::mvcc::revision::Revision;
    use crate::mvcc::store::Store;

    const KEY_MAX: usize = 64;

    /// Saves an index of these keys into an empty file, at most so many bytes; keys that were
    /// looked at, rows that were written, and whether that was all.
    fn save(names: &[Vec<u8>], bytes_max: usize) -> (u64, u64, bool) {
        let mut index = KeyIndex::new();
        let (mut revision, mut waiting) = (1, WaitingKeys::default());
        for name in names {
            revision += 1;
            index.put(name, Revision { main: revision, sub: 0 });
            if name.len() > KEY_MAX {
                waiting.insert(index.root().shared_key(name).unwrap());
            }
        }
        let mut db = Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let (base, mut ranges) = (db.snapshot(), SavedRanges::whole(1));
        let mut txn = db.begin().unwrap();
        let rule = HistoryRule { compact: -1, row_changes: 100 };
        let mut writer = IndexWriter::new(&mut txn, &base, index.root(), revision, rule, waiting);
        let keys = writer.save(&mut ranges, u64::MAX, bytes_max).unwrap();
        let IndexWriter { waiting: left, saved_long: saved, .. } = writer;
        assert_eq!(left.bytes() > 0, saved.len() < names.iter().filter(|name| name.len() > KEY_MAX).count());
        let tree = txn.commit().unwrap();
        (keys, tree.len(INDEX) + tree.len(INDEX_LONG), ranges.oldest() == revision)
    }

    /// The store on this disk, which saves its index in small steps and sweeps nothing yet.
    fn store_on(disk: &SimDisk) -> Store {
        let options = DbOptions { page_bytes_if_new: 512 };
        let mut store = Store::open(Arc::new(disk.clone()), options).unwrap();
        store.save_index_in_steps_of(10);
        store.sweep = None; // a large one does not begin at the start
        store
    }

    fn checkpoint(store: &mut Store, kind: CheckpointKind) {
        let checkpoint = store.checkpoint(kind).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
    }

    #[test]
    fn long_keys_that_begin_alike_are_passed_over_at_once() {
        let long = |byte: u8, number: u32| {
            let number = number.to_be_bytes();
            [&[byte; KEY_MAX][..], &number].concat()
        };
        let many = |byte: u8| (0..5_000).map(move |number| long(byte, number));
        let names: Vec<_> =
            many(b'a').chain(many(u8::MAX)).chain([vec![b'a'; KEY_MAX], vec![b'b'], vec![u8::MAX]]).collect();
        // Three short ones, and two beginnings.
        assert_eq!(save(&names, usize::MAX), (5, 10_003, true));
        assert_eq!(behind_prefix(&[b'a', 0xff, 0xff]), Some(vec![b'b']));
        assert_eq!(behind_prefix(&[0xff; 3]), None);
    }

    #[test]
    fn a_step_ends_after_so_many_bytes() {
        let names: Vec<_> = (0..2_000_u32).map(|number| format!("{number:050}").into_bytes()).collect();
        assert_eq!(save(&names, usize::MAX), (2_000, 2_000, true));
        let (keys, rows, is_all) = save(&names, 6_000);
        assert!((80..=120).contains(&keys) && rows == keys && !is_all, "{keys} keys in {rows} rows");
    }

    /// They count as one key for the step, but all of the index is saved then: what was earned is
    /// used up.
    #[test]
    fn keys_that_begin_alike_use_up_what_records_have_earned() {
        let options = DbOptions { page_bytes_if_new: 512 };
        let mut store = Store::open(Arc::new(SimDisk::new()), options).unwrap();
        store.save_index_in_steps_of(10);
        for number in 0..500_u32 {
            let mut txn = store.begin();
            txn.put(&[&[b'a'; KEY_MAX][..], &number.to_be_bytes()].concat(), b"", 0);
            txn.commit();
            store.set_applied(Applied { index: u64::from(number) + 1, term: 1 });
        }
        checkpoint(&mut store, CheckpointKind::Auto);
        assert_eq!((store.saved.index_revision, store.records_since_index), (store.meta.revision, 0));
    }

    /// How much a sweep of a large index would gain is not forgotten by a restart, and neither is
    /// that one was under way.
    #[test]
    fn a_sweep_that_is_due_comes_after_a_restart() {
        let disk = SimDisk::new();
        let open = || store_on(&disk);
        let save = |store: &mut Store| checkpoint(store, CheckpointKind::Auto);
        let mut store = open();
        let put_each = |store: &mut Store| {
            for number in 0..100 {
                let mut txn = store.begin();
                txn.put(format!("{number}").as_bytes(), b"", 0);
                txn.commit();
            }
            store.set_applied(Applied { index: store.applied().index + 1, term: 1 });
        };
        for part in [40, 80] {
            put_each(&mut store);
            save(&mut store);
            store.compact(i64::from(part) + if part == 80 { 101 } else { 1 }).unwrap();
            put_each(&mut store);
            while store.compaction_pending() {
                save(&mut store);
            }
            store.sweep = None;
            store = open();
        }
        assert!(store.meta.unswept >= 50, "{} keys have lost records", store.meta.unswept);
        put_each(&mut store);
        save(&mut store);
        assert!(store.is_sweeping());
        store = open();
        put_each(&mut store);
        save(&mut store);
        assert!(store.is_sweeping(), "the sweep was forgotten");
        while store.is_sweeping() {
            save(&mut store);
        }
        store = open();
        put_each(&mut store);
        save(&mut store);
        assert_eq!((store.is_sweeping(), store.meta.unswept), (false, 0));
    }

    /// A compaction that a crash interrupts begins again with an index that has nothing to forget
    /// any more; what the rows of the file have to is worth a sweep all the same.
    #[test]
    fn a_sweep_comes_after_a_compaction_that_was_interrupted() {
        let disk = SimDisk::new();
        let open = || store_on(&disk);
        let mut store = open();
        let put = |store: &mut Store, number: u32| {
            let mut txn = store.begin();
            txn.put(format!("{number}").as_bytes(), b"", 0);
            txn.commit();
            store.set_applied(Applied { index: store.applied().index + 1, term: 1 });
        };
        (0..200).for_each(|number| put(&mut store, number % 100));
        checkpoint(&mut store, CheckpointKind::WithIndex);
        put(&mut store, 100);
        store.compact(202).unwrap();
        // It begins when all that it looks at is in the file.
        checkpoint(&mut store, CheckpointKind::Auto);
        assert!(store.saved.compact_revision == 202 && store.compaction_pending());
        drop(store);
        let mut store = open();
        while store.compaction_pending() {
            checkpoint(&mut store, CheckpointKind::Auto);
        }
        assert!(store.is_sweeping(), "{} of 100 rows are too long", store.meta.unswept);
        while store.is_sweeping() {
            checkpoint(&mut store, CheckpointKind::Auto);
        }
        drop(store);
        assert_eq!(open().meta.unswept, 0);
    }
}
