//! Checkpoints: from memory to the tree file.
//!
//! A checkpoint takes what was applied up to a moment and makes it durable as one commit: new
//! records (they lie at the right edge of their table), changed rows of small tables, now and then
//! a part of the key index, a step of compaction, and the store meta that says up to which log
//! entry all this is true. Preparing it is a few reference counts; everything else happens in
//! [`Checkpoint::write`], on any thread, while the store goes on.
//!
//! The steps of a compaction are in `compaction.rs`. One may remove a tombstone at R only if all of
//! the index is saved at a revision of R or above, in an earlier commit or the same one. (After a
//! restart the index is rebuilt from what was saved plus the records above; a removed tombstone
//! that it does not know would revive its key.)

use std::sync::Arc;

use crate::db::Db;
use crate::limits::{
    PAUSES_UNSAVED_BYTES_MAX, SWEEP_KEYS_BESIDE_RECORDS, SWEEP_KEYS_PER_STEP, SWEEP_PART, SWEEP_RECORD_BYTES,
};
use crate::meta::FORMAT_RANGED;
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction::{CompactionDone, CompactionPass, CompactionRule, CompactionWork};
use crate::mvcc::defragment::Defragmentation;
use crate::mvcc::garbage::{Garbage, Kind};
use crate::mvcc::index_pace::{IndexShare, QuietTime};
use crate::mvcc::key_index::{Key, SharedIndex};
use crate::mvcc::layout::{Applied, HISTORIES, INDEX, RECORDS, SMALL, StoreMeta};
use crate::mvcc::long_keys::WaitingKeys;
use crate::mvcc::record_counts::RecordCounts;
use crate::mvcc::revision::Revision;
use crate::mvcc::saved_index::{IndexSweep, IndexWork};
use crate::mvcc::saved_ranges::SavedRanges;
use crate::mvcc::store::Store;
use crate::mvcc::tables::TableChanges;
use crate::mvcc::tail::TailView;
use crate::pauses::Pauses;
use crate::snapshot::Snapshot;
use crate::txn::{SortedPuts, WriteTxn};
use crate::{Error, Result};

/// Whether a checkpoint saves the key index too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointKind {
    /// As much of the index is saved as changes have earned, or a compaction waits for.
    Auto,
    /// The same, or some of the index that nothing has earned, if a start would read many records
    /// for want of it: for a time in which nothing else is to be saved.
    Quiet(QuietTime),
    /// The index is saved: the next start needs no catching up.
    WithIndex,
    /// Only a small index, if a compaction waits for it, and steps of a sweep: for a stop, and for
    /// a disk with little room.
    WithoutIndex,
}

/// A checkpoint to be written.
#[derive(Debug)]
pub struct Checkpoint {
    db: Db,
    from: StoreMeta,
    to: StoreMeta,
    tail: TailView,
    tables: TableChanges,
    index: SharedIndex,
    index_work: IndexWork,
    ranges: SavedRanges,
    defragmentation: Option<Defragmentation>,
    pass: Option<CompactionPass>,
    records: Arc<RecordCounts>,
    compaction_rule: CompactionRule,
    unsaved_bytes: usize,
    records_since_index: u64,
    /// Index and nothing else: nothing is lost if it finds no room.
    is_spare: bool,
    makes_pauses: bool,
}

/// A checkpoint that was written, or found no room.
#[derive(Debug)]
pub struct WrittenCheckpoint {
    db: Db,
    result: std::result::Result<Committed, DiskFull>,
    is_spare: bool,
}

impl WrittenCheckpoint {
    /// The disk is full: nothing of the checkpoint is durable, and something has to be.
    #[must_use]
    pub fn has_no_room(&self) -> bool {
        self.result.is_err() && !self.is_spare
    }
}

/// A checkpoint's commit: parts of the store's next state that are durable now.
#[derive(Debug)]
struct Committed {
    tree: Snapshot,
    meta: StoreMeta,
    ranges: SavedRanges,
    /// Long keys that still wait.
    long_keys: WaitingKeys,
    /// Keys that have something to forget, by the compaction.
    compacted_keys: Vec<Vec<u8>>,
    /// How many records there are more, or fewer.
    counted: RecordCounts,
    sweep: Option<IndexSweep>,
    /// The compaction, if there was one to go on with.
    pass: Option<CompactionPass>,
    defragmentation: Option<Defragmentation>,
    unsaved_bytes: usize,
    /// Records that have earned what was saved of the index.
    index_records: u64,
}

/// Changes that go back into the store because the disk is full.
#[derive(Debug)]
struct DiskFull {
    tables: TableChanges,
    long_keys: WaitingKeys,
    error: Error,
}

/// The store's durable state after a checkpoint.
#[derive(Debug, Clone)]
pub struct Durable {
    /// The entry up to which the log may forget everything.
    pub applied: Applied,
    /// Compactions up to this revision are done; of large stores they may have left dead records.
    pub compacted: i64,
    /// The next checkpoint has more to compact.
    pub compaction_pending: bool,
    /// The next checkpoint has more pages to move.
    pub defragmenting: bool,
    /// The error, if the disk is full: nothing of this checkpoint is durable then, and everything
    /// is still there for the next one.
    pub no_space: Option<Error>,
}

impl Store {
    /// Prepares a checkpoint of everything applied so far; none if there is nothing to do, or one
    /// is being written.
    pub fn checkpoint(&mut self, kind: CheckpointKind) -> Option<Checkpoint> {
        let index_share = self.index_share(kind);
        let has_chores = self.has_chores();
        if !self.has_unsaved() && !has_chores && index_share.is_none() {
            return None;
        }
        let db = self.db.take()?;
        let is_busy = self.unsaved_bytes >= SWEEP_RECORD_BYTES;
        let (tree, file) = (self.tree.txn(), db.current.txn());
        assert_eq!(tree, file, "the store reads state {tree} of a file that is at {file}");
        Some(Checkpoint {
            db,
            from: self.saved,
            to: self.meta,
            tail: self.tail.publish(),
            tables: std::mem::take(&mut self.table_changes),
            index: self.index.share(),
            index_work: IndexWork {
                share: index_share,
                bytes_max: self.index_pace.bytes_max(index_share, self.unsaved_bytes),
                sweep: self.sweep.clone(),
                sweep_keys: if is_busy { SWEEP_KEYS_BESIDE_RECORDS } else { SWEEP_KEYS_PER_STEP },
                saves_long: self.saves_more(kind) && self.unsaved_long.bytes() > self.index_pace.long_bytes,
                long_keys: std::mem::take(&mut self.unsaved_long),
                row_changes: self.index_pace.row_changes,
                step_bytes: self.index_pace.step_bytes,
            },
            ranges: self.ranges.clone(),
            defragmentation: self.defragmentation.clone(),
            pass: self.pass.clone(),
            records: Arc::clone(&self.records),
            compaction_rule: CompactionRule { is_awaited: self.is_space_awaited(), ..self.compaction_rule },
            unsaved_bytes: self.unsaved_bytes,
            records_since_index: self.records_since_index,
            is_spare: kind != CheckpointKind::WithIndex && !self.has_unsaved() && !has_chores,
            makes_pauses: false,
        })
    }

    /// Chores that go on with each checkpoint: a compaction, a sweep behind one, a defragmentation.
    #[must_use]
    pub fn has_chores(&self) -> bool {
        self.compaction_pending() || self.is_sweeping() || self.is_defragmenting()
    }

    /// Whether such a checkpoint saves index that nothing waits for.
    fn saves_more(&self, kind: CheckpointKind) -> bool {
        match kind {
            CheckpointKind::Auto | CheckpointKind::Quiet(_) => self.index_room.may_be(),
            CheckpointKind::WithIndex => true,
            CheckpointKind::WithoutIndex => false,
        }
    }

    /// How much of the index the next checkpoint saves.
    fn index_share(&self, kind: CheckpointKind) -> Option<IndexShare> {
        if self.meta.revision <= self.saved.index_revision {
            return None;
        }
        let (keys, kept) = (self.index_keys(), self.index_changes());
        // A small index costs little; a large one is not waited for.
        let for_compaction = self.pass.as_ref().is_some_and(|pass| self.saved.index_revision < pass.at)
            && self.index_pace.is_small(keys, kept)
            && !mutants::is(Mutant::CompactionBeforeIndexSaved);
        if kind == CheckpointKind::WithIndex || for_compaction {
            return Some(IndexShare::Whole);
        }
        if !self.saves_more(kind) {
            return None;
        }
        let own = self.tail.records_after(Revision { main: self.saved.revision, sub: i64::MAX });
        let earned = self.index_pace.earned(self.records_since_index, own, keys, kept);
        match kind {
            CheckpointKind::Quiet(quiet) => {
                earned.or_else(|| self.index_pace.unearned(quiet, self.records_ahead_of_index(), keys, kept))
            }
            _ => earned,
        }
    }

    /// A checkpoint would save some of the index, if nothing else: records have come so fast that
    /// those before have not saved all that was earned.
    #[must_use]
    pub fn is_index_behind(&self) -> bool {
        self.index_share(CheckpointKind::Auto).is_some()
    }

    /// A start would read so many records that it is worth saving some of the index in such a time
    /// although no record has earned that: see [`CheckpointKind::Quiet`]. Walks over counts of
    /// records.
    #[must_use]
    pub fn is_worth_quiet_time(&self, quiet: QuietTime) -> bool {
        self.index_share(CheckpointKind::Quiet(quiet)).is_some()
    }

    /// Records in the file that a start would read, because the saved index does not know them in
    /// all of its ranges; as far as they were counted: those of an earlier process have earned the
    /// saving of what does not know them.
    fn records_ahead_of_index(&self) -> u64 {
        self.records.after(self.saved.index_revision, self.meta.revision)
    }

    /// Keys that saving all of the index looks at: those in memory, or the rows of the file, which
    /// are more when a compaction has dropped keys that are not swept yet.
    fn index_keys(&self) -> u64 {
        self.index.root().len().max(self.tree.len(INDEX))
    }

    /// Revisions that are kept once the compaction that was asked for last is done.
    fn kept_revisions(&self) -> u64 {
        (self.meta.revision - self.meta.compact_revision).cast_unsigned()
    }

    /// About as many changes as saving all of the index may have to write or remove: a compaction
    /// counts as done when it is asked for, and its rows of older changes are in the file until
    /// their keys are saved.
    fn index_changes(&self) -> u64 {
        let in_rows = self.tree.len(HISTORIES).saturating_mul(self.index_pace.row_changes as u64);
        self.kept_revisions().max(in_rows)
    }

    /// Takes a written checkpoint in: the records it holds leave memory. One that found no room
    /// leaves everything as it was.
    ///
    /// # Panics
    /// If it is not the one that was prepared last.
    pub fn finish_checkpoint(&mut self, written: WrittenCheckpoint) -> Durable {
        assert!(self.db.is_none(), "a checkpoint comes back to a store that has given none away");
        self.sizes = written.db.sizes();
        self.db = Some(written.db);
        let no_space = match written.result {
            Ok(saved) => {
                self.index_room.found();
                self.take_in(saved);
                self.begin_defragmentation();
                None
            }
            Err(DiskFull { tables, long_keys, error }) => {
                self.index_room.not_found();
                self.unsaved_long.merge(long_keys);
                if !written.is_spare {
                    self.defragment_without_room();
                }
                for (key, row) in tables.into_iter().filter(|_| !mutants::is(Mutant::RowsLostOnFullDisk)) {
                    self.table_changes.entry(key).or_insert(row); // what came later is newer
                }
                (!written.is_spare).then_some(error)
            }
        };
        Durable {
            applied: self.saved.applied,
            compacted: self.saved.compacted,
            compaction_pending: self.compaction_pending(),
            defragmenting: self.is_defragmenting(),
            no_space,
        }
    }

    fn take_in(&mut self, saved: Committed) {
        let (before, after) = (self.saved, saved.meta);
        let goes_on = before.applied.index <= after.applied.index && before.revision <= after.revision;
        assert!(goes_on, "a checkpoint leads back from {before:?} to {after:?}");
        let is_known = after.applied.index <= self.meta.applied.index && after.revision <= self.meta.revision;
        assert!(is_known, "a checkpoint holds {after:?}, the store has come to {:?} only", self.meta);
        let (old, new) = (self.tree.txn(), saved.tree.txn());
        assert_eq!(new, old + 1, "a checkpoint has made state {new} of {old}");
        self.defragmentation = saved.defragmentation;
        self.replaced.count(saved.unsaved_bytes);
        if !saved.tree.has_map_of(&self.tree) {
            self.replaced.count_much();
        }
        self.tree = saved.tree;
        self.saved = saved.meta;
        self.tail.drop_through(self.saved.revision);
        let (unsaved, bytes) = (self.unsaved_bytes, saved.unsaved_bytes);
        assert!(unsaved >= bytes, "a checkpoint holds {bytes} unsaved bytes of {unsaved}");
        self.unsaved_bytes -= bytes;
        let (earned, records) = (self.records_since_index, saved.index_records);
        assert!(earned >= records, "a checkpoint has used up {records} records of {earned}");
        self.records_since_index -= records;
        self.ranges = saved.ranges;
        self.unsaved_long.merge(saved.long_keys);
        self.meta.compacted = self.saved.compacted;
        Arc::make_mut(&mut self.records).merge(&saved.counted);
        self.take_pass(saved.pass);
        self.clean_for_saved_index();
        self.meta.unswept = self.saved.unswept;
        // The walk over the saved index does not look at rows of long keys; the sweep that does may
        // be far away.
        let long = saved.compacted_keys.iter().filter(|key| key.len() > self.key_bytes_max);
        long.for_each(|key| self.unsaved_long.insert(Key::from(&key[..])));
        self.to_compact.extend(saved.compacted_keys);
        self.sweep = saved.sweep;
        let keys = self.index_keys();
        // A sweep is bounded itself: only the revisions that it leaves count.
        let is_small = self.index_pace.is_small(keys, self.kept_revisions());
        let is_worth_it = is_small || self.meta.unswept >= keys / SWEEP_PART;
        if self.sweep.is_none() && self.saved.swept < self.saved.compacted && is_worth_it {
            self.sweep = Some(IndexSweep::new(&self.saved));
        }
        self.meta.swept = self.saved.swept;
    }
}

impl Store {
    /// Goes on with the compaction; when it is done, keeps its hash and begins with the next one.
    fn take_pass(&mut self, saved: Option<CompactionPass>) {
        let Some(mut pass) = saved else { return };
        let before = self.pass.take();
        let before = before.expect("a checkpoint has compacted, and there was a compaction");
        assert_eq!(before.at, pass.at, "a checkpoint has compacted at another revision");
        self.trimmed = self.trimmed.max(self.saved.compacted);
        // The index is about to forget, before records go.
        if pass.has_counted() {
            self.trimmed = self.trimmed.max(pass.at);
            self.uncounted = 0;
        }
        // It may have been asked for while the checkpoint was written.
        pass.is_thorough |= before.is_thorough && pass.is_open();
        self.wants_thorough |= before.is_thorough && !pass.is_thorough;
        // They are large, and nothing else has them any more.
        if pass.kept.is_none()
            && let Some((kept, collect)) = before.kept.zip(self.collector.get())
        {
            collect(Garbage(Kind::Notes(kept)));
        }
        if !pass.is_done() {
            self.pass = Some(pass);
            return;
        }
        self.left_for_index = 0;
        if !pass.leaves_dead {
            (self.cleaned, self.left_for_index) = (pass.at, pass.left_for_index);
        }
        if let Some(hash) = pass.hash {
            self.hashes.add(hash.finish());
        }
        self.begin_pass(None);
    }

    /// Comes back for the tombstones that the saved index needed, once it does not any more.
    fn clean_for_saved_index(&mut self) {
        if self.pass.is_none() && (1..=self.saved.index_revision).contains(&self.left_for_index) {
            self.left_for_index = 0;
            self.cleaned = 0;
            self.wants_thorough = true;
            self.begin_pass(None);
        }
    }
}

impl Checkpoint {
    /// Asserts that the checkpoint goes on from the state that the file holds.
    fn assert_follows(&self) {
        let base = self.db.snapshot();
        let held = if base.txn() == 0 { StoreMeta::default() } else { StoreMeta::decode(base.user()) };
        assert_eq!(held, self.from, "the file does not hold the state that a checkpoint goes on from");
        let (newest, revision) = (self.index.newest_change(), self.to.revision);
        assert!(newest <= revision, "the index is at {newest}, its checkpoint at {revision}");
    }

    /// Writing it makes pauses, unless much waits for it: for a thread beside cores that are at
    /// work.
    #[must_use]
    pub fn with_pauses(self) -> Self {
        Self { makes_pauses: true, ..self }
    }

    fn pauses(&self) -> Pauses {
        let are_made = self.makes_pauses && self.unsaved_bytes <= PAUSES_UNSAVED_BYTES_MAX;
        if are_made { Pauses::wanted() } else { Pauses::default() }
    }

    /// Writes and syncs. Blocks; may run on any thread.
    ///
    /// # Errors
    /// After any error the store must not go on: only opening it again tells what is on the disk.
    pub fn write(self) -> Result<WrittenCheckpoint> {
        self.assert_follows();
        let pauses = self.pauses();
        let Self { mut db, from, mut to, tail, tables, index, index_work, .. } = self;
        let base = db.snapshot();
        let mut txn = db.begin()?;
        txn.pauses = pauses.clone();
        txn.share_beginnings(INDEX);
        let defragmentation = match self.defragmentation {
            Some(defragmentation) => Some(defragmentation.step(&mut txn)?),
            None => None,
        };
        let mut counted = put_records(&mut txn, &tail, from.revision, to.revision)?;
        put_tables(&mut txn, &tables)?;
        let mut ranges = self.ranges.clone();
        let share = index_work.share;
        let done = index_work.write(&mut txn, &base, &index, &mut ranges, &mut to)?;
        let index_records = share.map_or(0, |share| share.used(done.keys, self.records_since_index));
        ranges.write(&mut txn, &self.ranges)?;
        to.index_revision = ranges.oldest();
        let work = CompactionWork {
            txn: &mut txn,
            base: &base,
            tree_revision: from.revision,
            index: &index,
            index_revision: to.index_revision,
            counts: &self.records,
            rule: self.compaction_rule,
            records_max: CompactionRule::records_max(counted.all()),
            rewritten_max: CompactionRule::rewritten_max(self.unsaved_bytes),
        };
        let (compaction, pass) = compact(self.pass, work, &mut to)?;
        counted.merge(&compaction.counted);
        if !ranges.is_whole() || pass.as_ref().is_some_and(|pass| to.index_revision < pass.at) {
            txn.need_format(FORMAT_RANGED);
        }
        assert!(to.is_sound(), "a checkpoint from {from:?} leads to {to:?}");
        let mut saved = to;
        if mutants::is(Mutant::AppliedIndexAheadOfData) {
            saved.applied.index += 1;
        }
        if mutants::is(Mutant::AppliedIndexBehindData) {
            saved.applied = from.applied;
        }
        txn.set_user(&saved.encode());
        let committed = txn.commit();
        #[cfg(feature = "verify")]
        if committed.is_ok() {
            crate::check::verify_commit(&db);
        }
        let result = match committed {
            Ok(tree) => Ok(Committed {
                tree,
                meta: to,
                ranges,
                long_keys: done.long_keys,
                compacted_keys: compaction.lost.forgetting,
                counted,
                sweep: done.sweep,
                pass,
                defragmentation,
                unsaved_bytes: self.unsaved_bytes,
                index_records,
            }),
            Err(error) if error.is_no_space() => {
                Err(DiskFull { tables, long_keys: done.all_long_keys(), error })
            }
            Err(error) => return Err(error),
        };
        drop(index); // the store looks for what it alone had
        Ok(WrittenCheckpoint { db, result, is_spare: self.is_spare })
    }
}

fn put_tables(txn: &mut WriteTxn<'_>, tables: &TableChanges) -> Result<()> {
    for (key, row) in tables {
        match row {
            Some(row) => txn.put(SMALL, key, row)?,
            None => txn.remove(SMALL, key)?,
        };
    }
    Ok(())
}

/// Goes on with the compaction, if there is one.
fn compact(
    mut pass: Option<CompactionPass>,
    mut work: CompactionWork<'_, '_>,
    to: &mut StoreMeta,
) -> Result<(CompactionDone, Option<CompactionPass>)> {
    let mut done = CompactionDone::default();
    if let Some(pass) = &mut pass {
        done = pass.step(&mut work, to.compacted)?;
        to.compacted = if pass.is_done() { pass.at } else { to.compacted };
        to.unswept = to.unswept.saturating_add(done.lost.keys);
    }
    Ok((done, pass))
}

/// Puts the records of the revisions above `from` and up to `to`: all that the tail has above
/// `from`. Counts them.
fn put_records(txn: &mut WriteTxn<'_>, tail: &TailView, from: i64, to: i64) -> Result<RecordCounts> {
    let mut counted = RecordCounts::default();
    let (mut puts, mut records) = (SortedPuts::new(RECORDS), 0);
    let mut last = Revision { main: from, sub: i64::MAX };
    for (key, record) in tail.after(last) {
        let Revision { main, sub } = key.revision;
        let follows = last < key.revision && main <= to;
        assert!(follows, "the record {main}.{sub} follows {last:?} in a checkpoint of {from} to {to}");
        last = key.revision;
        counted.add(main, 1);
        puts.put(txn, &key.encode(), record)?;
        records += 1;
    }
    let new = puts.finish(txn)?;
    if new != records {
        return Err(Error::corrupt_or_bug(format!(
            "{} of {records} records above revision {from} are there already",
            records - new
        )));
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbOptions;
    use crate::disk::SimDisk;
    use crate::mvcc::revision::{RecordKey, RecordKind};
    use crate::mvcc::tail::Tail;

    #[test]
    fn a_record_that_is_there_already_is_an_error() {
        let mut db = Db::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let mut tail = Tail::default();
        let key = |main| RecordKey { revision: Revision { main, sub: 0 }, kind: RecordKind::Put };
        (1..=3).for_each(|main| drop(tail.push(key(main), &[b"record"]).to_vec()));
        let view = tail.publish();
        let mut txn = db.begin().unwrap();
        put_records(&mut txn, &view, 1, 3).unwrap();
        let error = put_records(&mut txn, &view, 0, 3).unwrap_err();
        assert!(error.to_string().contains("2 of 3 records above revision 0"), "{error}");
    }
}
