//! Checkpoints: from memory to the tree file.
//!
//! A checkpoint takes what was applied up to a moment and makes it durable as one commit: new
//! records (they lie at the right edge of their table), changed rows of small tables, now and then
//! the changed part of the key index, a step of compaction, and the store meta that says up to
//! which log entry all this is true. Preparing it is a few reference counts; everything else
//! happens in [`Checkpoint::write`], on any thread, while the store goes on.
//!
//! The steps of a compaction are in `compaction.rs`. One may remove a record at R only if the
//! saved index does not need it any more: the index must be saved at a revision of R or above, in
//! an earlier commit or the same one. (After a restart the index is rebuilt from what was saved
//! plus the records above; a removed tombstone that it does not know would revive its key.)

use std::collections::BTreeSet;

use crate::db::Db;
use crate::limits::{INDEX_CHECKPOINT_PART, INDEX_CHECKPOINT_RECORDS_MIN};
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction::CompactionPass;
use crate::mvcc::defragment::Defragmentation;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::layout::{Applied, RECORDS, SMALL, StoreMeta};
use crate::mvcc::revision::Revision;
use crate::mvcc::saved_index::{IndexSweep, changed_keys, save_keys};
use crate::mvcc::store::Store;
use crate::mvcc::tables::TableChanges;
use crate::mvcc::tail::TailView;
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// Whether a checkpoint saves the key index too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointKind {
    /// The index is saved when enough has changed, or a compaction waits for it.
    Auto,
    /// The index is saved: the next start needs no catching up.
    WithIndex,
}

/// A checkpoint to be written.
#[derive(Debug)]
pub struct Checkpoint {
    db: Db,
    from: StoreMeta,
    to: StoreMeta,
    tail: TailView,
    tables: TableChanges,
    index: IndexRoot,
    save_index: bool,
    defragmentation: Option<Defragmentation>,
    sweep: Option<IndexSweep>,
    pass: Option<CompactionPass>,
    unsaved_bytes: usize,
    records_since_index: usize,
}

/// A checkpoint that was written, or found no room.
#[derive(Debug)]
pub struct WrittenCheckpoint {
    db: Db,
    result: std::result::Result<Committed, DiskFull>,
}

impl WrittenCheckpoint {
    /// The disk is full: nothing of the checkpoint is durable.
    #[must_use]
    pub fn has_no_room(&self) -> bool {
        self.result.is_err()
    }
}

/// A checkpoint's commit: parts of the store's next state that are durable now.
#[derive(Debug)]
struct Committed {
    tree: Snapshot,
    meta: StoreMeta,
    saved_index: bool,
    /// Keys of which the compaction has dropped records.
    compacted_keys: BTreeSet<Vec<u8>>,
    sweep: Option<IndexSweep>,
    /// The compaction, if there was one to go on with.
    pass: Option<CompactionPass>,
    defragmentation: Option<Defragmentation>,
    unsaved_bytes: usize,
    records_since_index: usize,
}

/// Rows that go back into the store because the disk is full.
#[derive(Debug)]
struct DiskFull {
    tables: TableChanges,
    error: Error,
}

/// The store's durable state after a checkpoint.
#[derive(Debug, Clone)]
pub struct Durable {
    /// The entry up to which the log may forget everything.
    pub applied: Applied,
    /// The space of compactions up to this revision is free.
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
        let index_is_old = self.meta.revision > self.saved.index_revision;
        let kept = self.meta.revision - self.meta.compact_revision;
        let all = self.index.root().len().max(kept.cast_unsigned());
        let much = INDEX_CHECKPOINT_RECORDS_MIN
            .max(usize::try_from(all).unwrap_or(usize::MAX) / INDEX_CHECKPOINT_PART);
        // Also for one that waits: the sweep takes keys away that it leaves nothing of.
        let for_compaction = self.compaction_pending()
            && self.saved.index_revision < self.meta.compact_revision
            && !mutants::is(Mutant::CompactionBeforeIndexSaved);
        let save_index = index_is_old
            && (kind == CheckpointKind::WithIndex || self.records_since_index >= much || for_compaction);
        let has_chores = self.compaction_pending() || self.is_sweeping() || self.is_defragmenting();
        if !self.has_unsaved() && !has_chores && !save_index {
            return None;
        }
        let db = self.db.take()?;
        let (tree, file) = (self.tree.txn(), db.current.txn());
        assert_eq!(tree, file, "the store reads state {tree} of a file that is at {file}");
        Some(Checkpoint {
            db,
            from: self.saved,
            to: self.meta,
            tail: self.tail.publish().clone(),
            tables: std::mem::take(&mut self.table_changes),
            index: self.index.root().clone(),
            save_index,
            defragmentation: self.defragmentation.clone(),
            sweep: self.sweep.clone(),
            pass: self.pass,
            unsaved_bytes: self.unsaved_bytes,
            records_since_index: self.records_since_index,
        })
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
                self.take_in(saved);
                None
            }
            Err(DiskFull { tables, error }) => {
                for (key, row) in tables.into_iter().filter(|_| !mutants::is(Mutant::RowsLostOnFullDisk)) {
                    self.table_changes.entry(key).or_insert(row); // what came later is newer
                }
                Some(error)
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
        let (unknown, records) = (self.records_since_index, saved.records_since_index);
        assert!(unknown >= records, "a checkpoint holds {records} records of {unknown} that the index lacks");
        if saved.saved_index {
            self.records_since_index -= records;
        }
        self.meta.compacted = self.saved.compacted;
        self.meta.compact_cursor = self.saved.compact_cursor;
        self.take_pass(saved.pass);
        self.to_compact.extend(saved.compacted_keys);
        self.sweep = saved.sweep;
        if self.sweep.is_none() && self.saved.swept < self.saved.compacted {
            self.sweep = Some(IndexSweep::new(self.saved.compacted));
        }
        self.meta.swept = self.saved.swept;
    }
}

impl Store {
    /// Goes on with the compaction; when it is done, keeps its hash and begins with the next one.
    fn take_pass(&mut self, saved: Option<CompactionPass>) {
        let Some(pass) = saved else { return };
        let at = self.pass.map(|pass| pass.at);
        assert_eq!(at, Some(pass.at), "a checkpoint has compacted at {}", pass.at);
        self.trimmed = self.trimmed.max(self.saved.compacted).max(pass.cursor.main.min(pass.at));
        self.pass = Some(pass).filter(|pass| !pass.is_done);
        if pass.is_done {
            if let Some(hash) = pass.hash {
                self.hashes.add(hash.finish());
            }
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

    /// Writes and syncs. Blocks; may run on any thread.
    ///
    /// # Errors
    /// After any error the store must not go on: only opening it again tells what is on the disk.
    pub fn write(self) -> Result<WrittenCheckpoint> {
        self.assert_follows();
        let Self { mut db, from, mut to, tail, tables, index, save_index, .. } = self;
        let base = db.snapshot();
        let mut txn = db.begin()?;
        let defragmentation = match self.defragmentation {
            Some(defragmentation) => defragmentation.step(&mut txn)?,
            None => None,
        };
        put_records(&mut txn, &tail, from.revision, to.revision)?;
        for (key, row) in &tables {
            match row {
                Some(row) => txn.put(SMALL, key, row)?,
                None => txn.remove(SMALL, key)?,
            };
        }
        if save_index {
            let changed = changed_keys(&base, &tail, from.index_revision)?;
            save_keys(&mut txn, &base, &index, changed, to.compact_revision)?;
            to.index_revision = to.revision;
        } else {
            to.index_revision = from.index_revision;
        }
        let (mut compacted_keys, mut pass) = (BTreeSet::new(), self.pass);
        if let Some(pass) = &mut pass {
            let is_saved = to.index_revision >= pass.at || mutants::is(Mutant::CompactionBeforeIndexSaved);
            assert!(is_saved, "records up to {} go, the saved index is at {}", pass.at, to.index_revision);
            compacted_keys = pass.step(&mut txn, &base, &index, from.revision)?;
            to.compacted = if pass.is_done { pass.at } else { to.compacted };
            to.compact_cursor = pass.saved_cursor(to.compact_revision);
        }
        let sweep = match self.sweep {
            Some(sweep) => sweep.step(&mut txn, &base, &index, &mut to)?,
            None => None,
        };
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
                saved_index: save_index,
                compacted_keys,
                sweep,
                pass,
                defragmentation,
                unsaved_bytes: self.unsaved_bytes,
                records_since_index: self.records_since_index,
            }),
            Err(error) if error.is_no_space() => Err(DiskFull { tables, error }),
            Err(error) => return Err(error),
        };
        Ok(WrittenCheckpoint { db, result })
    }
}

/// Puts the records of the revisions above `from` and up to `to`: all that the tail has above
/// `from`.
fn put_records(txn: &mut WriteTxn<'_>, tail: &TailView, from: i64, to: i64) -> Result<()> {
    let mut last = Revision { main: from, sub: i64::MAX };
    for (key, record) in tail.after(last) {
        let Revision { main, sub } = key.revision;
        let follows = last < key.revision && main <= to;
        assert!(follows, "the record {main}.{sub} follows {last:?} in a checkpoint of {from} to {to}");
        last = key.revision;
        if !txn.put(RECORDS, &key.encode(), record)? {
            return Err(Error::corrupt_or_bug(format!(
                "there is a record {main}.{sub} already, above revision {from}"
            )));
        }
    }
    Ok(())
}
