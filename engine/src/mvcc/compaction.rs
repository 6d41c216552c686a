//! Compaction, a bounded step with each checkpoint.
//!
//! ```text
//! Counting --all of the file--> Walking --all keys--> Cleaning --all that pays--> Done
//!    '-- only behind a start
//! ```
//!
//! The records lie in revision order, and what a compaction drops lies all over them. A walk over
//! the index counts what is still needed in each bucket of revisions; the rest of a bucket's
//! records are dead. In a large store the buckets with the largest part of dead records are
//! cleaned, until few enough are left of all: to rewrite a bucket for a handful of records costs
//! more than they take. The others are dead for every reader all the same, and go when
//! their bucket pays. A small store, a defragmentation, and whoever waits for the space have all of
//! it cleaned.
//!
//! Where some may stay, the walk also notes the puts that are needed, and cleaning looks at these
//! notes in place of the index (`kept_puts.rs`).
//!
//! Meanwhile the walk has said which keys have forgotten something. A put before a key's newest one
//! that takes no memory of its own stays in its node until the key changes again: to look for it
//! would copy the nodes above it. When the records are gone, the saved index is swept in key order:
//! histories that have become shorter are written again, each leaf once. Until then the saved index
//! may name records that are gone; opening a store drops those names. A compaction that a crash
//! interrupts begins again, as does a sweep.
//!
//! A start adds the records that the saved index does not have. It does without those that were
//! superseded, since the others say themselves which version of their key they are. But a key whose
//! tombstone is missing would come to life again: a tombstone stays until all of the index is saved
//! behind it. The puts before it may stay longer, as no start reads those. One that cleans all
//! comes back for the tombstones it has left, when the index is saved that far.

use std::sync::Arc;

use crate::btree::cursor::Cursor;
use crate::limits::{
    COMPACT_BYTES_PER_STEP, COMPACT_COUNTED_PER_STEP, COMPACT_DEAD_PART, COMPACT_HASHED_RECORDS_MAX,
    COMPACT_LOOKS_PER_RECORD, COMPACT_RECORDS_PER_OWN, COMPACT_RECORDS_PER_STEP,
    COMPACT_RECORDS_PER_STEP_MAX, COMPACT_REWRITTEN_BYTES_PER_STEP, COMPACT_REWRITTEN_PER_RECORD_BYTE,
    COMPACT_SMALL_RECORDS, COUNTED_PER_STEP, key_bytes_max,
};
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction_hash::CompactionHash;
use crate::mvcc::compaction_walk::{LostByKeys, Walk, Walked, walk_keys_max};
use crate::mvcc::kept_puts::KeptPuts;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::layout::RECORDS;
use crate::mvcc::record::key_of;
use crate::mvcc::record_counts::RecordCounts;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::page::stored_cell_bytes;
use crate::pauses::Pauses;
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// A compaction that frees space, as far as it has come. One runs to its end, whatever is compacted
/// meanwhile; then the newest one begins.
#[derive(Debug, Clone)]
pub(crate) struct CompactionPass {
    /// The revision it compacts at.
    pub(crate) at: i64,
    /// The hash that it computes, if it can; it reads every record for that.
    pub(crate) hash: Option<CompactionHash>,
    /// It leaves no dead record that it may drop.
    pub(crate) is_thorough: bool,
    /// It has left some, or may have.
    pub(crate) leaves_dead: bool,
    /// Tombstones up to this revision would be gone if all of the index was saved behind them; 0 if
    /// there are none.
    pub(crate) left_for_index: i64,
    stage: Stage,
    /// Where dead records may stay: the puts that are needed, as its walk notes them. Others go.
    pub(crate) kept: Option<Arc<KeptPuts>>,
}

/// How a compaction depends on the number of records, and on those who wait for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactionRule {
    /// Of at most so many all dead ones go.
    pub(crate) small: u64,
    /// One of more computes no hash.
    pub(crate) hashed_max: u64,
    /// A caller waits for the space of this one, or of one behind it.
    pub(crate) is_awaited: bool,
}

/// Work that a compaction is at.
#[derive(Debug, Clone)]
enum Stage {
    /// Records up to `through`, which the file had when it was opened, are counted; those before
    /// `from` are.
    Counting { from: Revision, through: i64 },
    /// Records that keys need are counted.
    Walking(Walked),
    /// The runs before `run` are clean, and this one before `from`.
    Cleaning { runs: Arc<[Run]>, run: usize, from: Revision },
    /// All that it drops is gone.
    Done,
}

/// Revisions whose records are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: i64,
    last: i64,
}

/// The checkpoint that a step is a part of.
pub(crate) struct CompactionWork<'w, 'd> {
    pub(crate) txn: &'w mut WriteTxn<'d>,
    /// The tree before it: no other records are looked at. They go up to `tree_revision`.
    pub(crate) base: &'w Snapshot,
    pub(crate) tree_revision: i64,
    pub(crate) index: &'w IndexRoot,
    /// All of the index is saved up to here.
    pub(crate) index_revision: i64,
    /// Records of the tree before it; all of them but those that are yet to be counted.
    pub(crate) counts: &'w RecordCounts,
    pub(crate) rule: CompactionRule,
    /// So many records are removed, or keys forget something.
    pub(crate) records_max: usize,
    /// About so many bytes of records are written again.
    pub(crate) rewritten_max: usize,
}

/// Results of a step.
#[derive(Debug, Default)]
pub(crate) struct CompactionDone {
    /// Keys that have lost something.
    pub(crate) lost: LostByKeys,
    /// How the records in the tree have become fewer, or known.
    pub(crate) counted: RecordCounts,
}

impl Default for CompactionRule {
    fn default() -> Self {
        Self { small: COMPACT_SMALL_RECORDS, hashed_max: COMPACT_HASHED_RECORDS_MAX, is_awaited: false }
    }
}

impl CompactionRule {
    /// Records that a step removes, with a checkpoint that brings so many: it keeps up with
    /// whatever makes records dead, as far as one checkpoint may go.
    pub(crate) fn records_max(own: u64) -> usize {
        let own = usize::try_from(own).unwrap_or(usize::MAX).saturating_mul(COMPACT_RECORDS_PER_OWN);
        own.clamp(COMPACT_RECORDS_PER_STEP, COMPACT_RECORDS_PER_STEP_MAX)
    }

    /// Bytes of records that a step writes again, with a checkpoint of so many bytes of records.
    pub(crate) fn rewritten_max(records: usize) -> usize {
        COMPACT_REWRITTEN_BYTES_PER_STEP.max(records.saturating_mul(COMPACT_REWRITTEN_PER_RECORD_BYTE))
    }
}

impl CompactionPass {
    /// A pass from the first record on; those up to `uncounted` have to be counted first.
    #[must_use]
    pub(crate) fn new(at: i64, hash: Option<CompactionHash>, is_thorough: bool, uncounted: i64) -> Self {
        let stage = Stage::Counting { from: Revision::default(), through: uncounted };
        Self { at, hash, is_thorough, leaves_dead: false, left_for_index: 0, stage, kept: None }
    }

    /// Every record that it drops is gone.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// All records that the file had when it was opened are counted.
    #[must_use]
    pub(crate) fn has_counted(&self) -> bool {
        !matches!(self.stage, Stage::Counting { .. })
    }

    /// It has yet to decide what it cleans.
    #[must_use]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Counting { .. } | Stage::Walking(_))
    }

    /// Does a bounded amount of work; the pass before was one at `before`.
    pub(crate) fn step(&mut self, work: &mut CompactionWork<'_, '_>, before: i64) -> Result<CompactionDone> {
        assert!(!self.is_done(), "the compaction at {} goes on, but it is done", self.at);
        let mut done = CompactionDone::default();
        // Until all that it looks at is in the tree.
        if work.tree_revision < self.at {
            return Ok(done);
        }
        if let Stage::Counting { from, through } = self.stage {
            self.stage = count(work.base, (from, through), &mut done.counted, &mut work.txn.pauses)?;
        }
        if matches!(&self.stage, Stage::Walking(walked) if walked.begins())
            && self.may_leave_dead(work.counts, work.rule)
        {
            self.kept = Some(Arc::new(KeptPuts::of(work.index.len(), self.at, &mut work.txn.pauses)));
        }
        if let Stage::Walking(walked) = &mut self.stage
            && work.walk(self.at, before, self.kept.as_deref()).step(
                walked,
                &mut done.lost,
                &mut work.txn.pauses,
            )
        {
            let mut needed = Arc::unwrap_or_clone(std::mem::take(&mut walked.needed));
            // Those that were counted in this step are not among the counts yet.
            let mut counts = work.counts.clone();
            counts.merge(&done.counted);
            counts.align(&mut needed);
            let runs = self.plan(&counts, &needed, work.rule);
            let from = Revision { main: runs.first().map_or(0, |run| run.first), sub: 0 };
            self.kept = self.kept.take().filter(|_| self.may_leave_dead(&counts, work.rule));
            self.leaves_dead |= self.kept.is_some();
            self.stage = Stage::Cleaning { runs, run: 0, from };
        }
        if matches!(self.stage, Stage::Cleaning { .. }) {
            self.clean(work, &mut done.counted)?;
        }
        Ok(done)
    }

    /// Of so many records some dead ones may stay.
    fn may_leave_dead(&self, counts: &RecordCounts, rule: CompactionRule) -> bool {
        self.hash.is_none() && !self.is_thorough && counts.all() > rule.small
    }

    /// Decides what is looked at: where the largest parts of the records are dead, and the last
    /// bucket, of which only a part is at or below the compaction.
    fn plan(&mut self, counts: &RecordCounts, needed: &RecordCounts, rule: CompactionRule) -> Arc<[Run]> {
        if self.hash.is_some() {
            return Arc::new([Run { first: 0, last: self.at }]);
        }
        let last = counts.bucket(self.at);
        let mut dead: Vec<(i64, u64, u64)> = counts
            .buckets()
            .take_while(|(bucket, _)| *bucket < last)
            .map(|(bucket, records)| (bucket, records, records.saturating_sub(needed.of(bucket))))
            .filter(|(.., dead)| *dead > 0)
            .collect();
        let all = counts.all();
        let may_stay = if self.may_leave_dead(counts, rule) { all / COMPACT_DEAD_PART } else { 0 };
        let mut left: u64 = dead.iter().map(|(.., dead)| *dead).sum();
        // The largest part of dead ones first; the oldest of those that are alike.
        let times = |dead: u64, records: u64| u128::from(dead) * u128::from(records);
        dead.sort_by(|one, other| times(other.2, one.1).cmp(&times(one.2, other.1)));
        let pays = |(_, _, dead): &&(i64, u64, u64)| {
            let is_too_much = left > may_stay;
            left -= if is_too_much { *dead } else { 0 };
            is_too_much
        };
        let mut buckets: Vec<i64> = dead.iter().take_while(pays).map(|(bucket, ..)| *bucket).collect();
        self.leaves_dead = left > 0;
        buckets.push(last);
        buckets.sort_unstable();
        let run = |of: &[i64]| Run {
            first: counts.first_of(of[0]),
            last: counts.last_of(of[of.len() - 1]).min(self.at),
        };
        buckets.chunk_by(|one, next| one + 1 == *next).map(run).collect()
    }

    /// Removes a bounded number of the records that the compaction drops, and adds all it looks at
    /// to the hash.
    fn clean(&mut self, work: &mut CompactionWork<'_, '_>, counted: &mut RecordCounts) -> Result<()> {
        let Stage::Cleaning { runs, run, from } = &mut self.stage else { return Ok(()) };
        if let Some(hash) = &mut self.hash {
            hash.begin(work.index);
        }
        let (mut dropped, mut read, mut rewritten) = (0, 0, 0);
        let mut cursor = work.base.cursor(RECORDS);
        seek(&mut cursor, *from)?;
        for _ in 0..work.records_max * COMPACT_LOOKS_PER_RECORD {
            let Some(part) = runs.get(*run) else { break };
            work.txn.pauses.count(1);
            let next = match cursor.next()? {
                Some((key, record)) => Some((key, record_key(key)?, record)),
                None => None,
            };
            let Some((stored, key, record)) = next.filter(|(_, key, _)| key.revision.main <= part.last)
            else {
                *run += 1;
                if let Some(next) = runs.get(*run) {
                    *from = Revision { main: next.first, sub: 0 };
                    seek(&mut cursor, *from)?;
                }
                continue;
            };
            let user_key = key_of(record)?;
            if let Some(hash) = &mut self.hash {
                hash.add(work.index, user_key, key, record);
            }
            read += record.len();
            let is_needed = key.kind == RecordKind::Tombstone
                && key.revision.main > work.index_revision
                && !mutants::is(Mutant::CompactionBeforeIndexSaved);
            let is_kept = match &self.kept {
                Some(puts) if key.kind == RecordKind::Put && !mutants::is(Mutant::CompactedPutRemoved) => {
                    puts.may_have(key.revision)
                }
                _ => stays(work.index, user_key, key, self.at),
            };
            if is_needed && !is_kept {
                self.left_for_index = key.revision.main;
            }
            if is_kept || is_needed {
                rewritten += stored_cell_bytes(stored, record, work.base.page_bytes());
            } else {
                remove(work.txn, key)?;
                counted.add(key.revision.main, -1);
                dropped += 1;
            }
            let sub = key.revision.sub.checked_add(1);
            let sub = sub.ok_or_else(|| Error::corrupt("a revision has more changes than there can be"))?;
            *from = Revision { main: key.revision.main, sub };
            let is_enough = dropped >= work.records_max || read >= COMPACT_BYTES_PER_STEP;
            // One that reads everything for its hash writes only a part of that.
            if is_enough || (self.hash.is_none() && rewritten >= work.rewritten_max) {
                break;
            }
        }
        work.txn.pack(RECORDS)?;
        if *run == runs.len() {
            self.stage = Stage::Done;
            self.kept = None;
        }
        Ok(())
    }
}

impl<'w> CompactionWork<'w, '_> {
    fn walk<'k>(&self, at: i64, before: i64, kept: Option<&'k KeptPuts>) -> Walk<'k>
    where
        'w: 'k,
    {
        Walk {
            index: self.index,
            kept,
            at,
            before,
            forgetting_max: self.records_max,
            keys_max: walk_keys_max(self.index.len(), self.rule.is_awaited),
            key_bytes_max: key_bytes_max(self.base.page_bytes()),
        }
    }
}

/// To the first record at or behind a revision.
fn seek(cursor: &mut Cursor<'_>, from: Revision) -> Result<()> {
    cursor.seek(&RecordKey { revision: from, kind: RecordKind::Put }.encode())
}

fn record_key(key: &[u8]) -> Result<RecordKey> {
    RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))
}

fn remove(txn: &mut WriteTxn<'_>, key: RecordKey) -> Result<()> {
    if txn.remove(RECORDS, &key.encode())? {
        return Ok(());
    }
    let Revision { main, sub } = key.revision;
    Err(Error::corrupt_or_bug(format!("the record {main}.{sub} lies where it is not looked for")))
}

/// Counts a bounded number of records, from one on; what is next. It reads keys only: records may
/// be long.
fn count(
    base: &Snapshot,
    (from, through): (Revision, i64),
    counted: &mut RecordCounts,
    pauses: &mut Pauses,
) -> Result<Stage> {
    let mut cursor = base.cursor(RECORDS);
    seek(&mut cursor, from)?;
    for number in 0..COMPACT_COUNTED_PER_STEP {
        let Some(key) = cursor.next_key()? else { return Ok(walking()) };
        pauses.count(u32::from(number.is_multiple_of(COUNTED_PER_STEP)));
        let revision = record_key(key)?.revision;
        if revision.main > through {
            return Ok(walking());
        }
        counted.add(revision.main, 1);
    }
    Ok(match cursor.next_key()? {
        Some(key) => Stage::Counting { from: record_key(key)?.revision, through },
        None => walking(),
    })
}

fn walking() -> Stage {
    Stage::Walking(Walked::default())
}

/// Whether a record at or below `at` stays: it is its key's newest change up to there, and a put or
/// a tombstone of exactly that revision (a watch that starts at `at` must still see it).
fn stays(index: &IndexRoot, user_key: &[u8], record: RecordKey, at: i64) -> bool {
    let newest = || index.change_at(user_key, at).map(|change| change.revision);
    match record.kind {
        RecordKind::Put if mutants::is(Mutant::CompactedPutRemoved) && record.revision.main == at => false,
        RecordKind::Put => newest() == Some(record.revision),
        RecordKind::Tombstone if mutants::is(Mutant::CompactedDeletionRemoved) => false,
        RecordKind::Tombstone => {
            record.revision.main == at && newest().is_none_or(|newest| newest <= record.revision)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbOptions;
    use crate::limits::RECORD_BUCKET_REVISIONS as WIDTH;
    use crate::mvcc::{CheckpointKind, Store};

    /// Records of each bucket and how many of them are needed; the compaction is in the sixth one.
    const BUCKETS: [(i64, i64); 7] =
        [(1_000, 100), (60, 40), (400, 200), (3_000, 2_000), (400, 400), (50, 10), (2_000, 2_000)];
    const AT: i64 = 5 * WIDTH + 5;

    fn planned(pass: &mut CompactionPass, rule: CompactionRule) -> Vec<Run> {
        let (mut counts, mut needed) = (RecordCounts::default(), RecordCounts::default());
        for (bucket, (records, kept)) in (0..).zip(BUCKETS) {
            counts.add(bucket * WIDTH, records);
            needed.add(bucket * WIDTH, kept);
        }
        pass.plan(&counts, &needed, rule).to_vec()
    }

    /// A bucket that has less of living records is no better than one that has more of dead ones
    /// among its own.
    #[test]
    fn buckets_with_the_largest_part_of_dead_records_are_cleaned_until_few_are_left() {
        let rule = CompactionRule { small: 0, hashed_max: 0, is_awaited: false };
        let last = Run { first: 5 * WIDTH, last: AT };
        let mut pass = CompactionPass::new(AT, None, false, 0);
        assert_eq!(planned(&mut pass, rule), [Run { first: 0, last: WIDTH - 1 }, last]);
        assert!(pass.leaves_dead, "a third and a half of others are dead, in one of them more records");
    }

    /// Neighbours are one run; a bucket without dead records is no part of any.
    #[test]
    fn all_dead_records_go_from_a_small_store_and_for_those_that_wait_for_the_space() {
        let all = BUCKETS.iter().map(|(records, _)| records.unsigned_abs()).sum();
        for (is_thorough, small) in [(true, 0), (false, all)] {
            let mut pass = CompactionPass::new(AT, None, is_thorough, 0);
            let runs = planned(&mut pass, CompactionRule { small, hashed_max: 0, is_awaited: is_thorough });
            assert_eq!(runs, [Run { first: 0, last: 4 * WIDTH - 1 }, Run { first: 5 * WIDTH, last: AT }]);
            assert!(!pass.leaves_dead);
        }
    }

    /// A store that has compacted away the first of two puts of a key.
    fn compacted() -> Store {
        let disk = Arc::new(crate::disk::SimDisk::new());
        let mut store = Store::open(disk, DbOptions { page_bytes_if_new: 512 }).unwrap();
        [b"1", b"2"].iter().for_each(|value| put(&mut store, *value));
        store.compact(3).unwrap();
        while store.compaction_pending() {
            let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
            store.finish_checkpoint(written);
        }
        assert!(!store.forget_compacted(1_000));
        store
    }

    fn put(store: &mut Store, value: &[u8]) {
        let mut txn = store.begin();
        txn.put(b"key", value, 0);
        txn.commit();
    }

    fn revisions(store: &Store) -> Vec<i64> {
        let history = store.index.root().history(b"key").unwrap();
        history.changes().iter().map(|change| change.revision.main).collect()
    }

    #[test]
    fn a_put_that_was_compacted_goes_with_the_next_change_of_its_key() {
        let mut store = compacted();
        assert_eq!(revisions(&store), [2, 3], "it is in nobody's way");
        let view = store.view();
        put(&mut store, b"3");
        assert_eq!(revisions(&store), [3, 4]);
        for view in [view, store.view()] {
            let found = view.reader().get(b"key", 3).unwrap();
            assert_eq!((found.modified.main, found.version), (3, 2));
        }
        crate::mvcc::verify::verify(&store).unwrap();

        let mut store = compacted();
        crate::mvcc::verify::verify(&store).unwrap();
        let mut txn = store.begin();
        txn.delete_range(crate::mvcc::KeyRange::One(b"key"));
        txn.commit();
        assert_eq!(revisions(&store), [3, 4]);
        assert_eq!(store.view().reader().get(b"key", 4), None);
    }
}
