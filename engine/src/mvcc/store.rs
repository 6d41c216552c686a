//! The store: the state being changed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::db::{Db, Sizes};
use crate::limits::{
    DEFRAGMENT_REFUSALS_MAX, FORGET_BYTES_PER_TURN, FORGET_PARTS, FORGET_TIMES_MAX, FREED_NODES_PER_SHARE,
};
use crate::mvcc::compaction::{CompactionPass, CompactionRule};
use crate::mvcc::compaction_hash::{CompactionHash, CompactionHashes};
use crate::mvcc::defragment::Defragmentation;
use crate::mvcc::garbage::{Collector, Garbage, Kind, Replaced};
use crate::mvcc::index_pace::{IndexPace, IndexRoom};
use crate::mvcc::key_index::KeyIndex;
use crate::mvcc::layout::{Applied, RECORDS, SMALL, StoreMeta};
use crate::mvcc::long_keys::WaitingKeys;
use crate::mvcc::reader::{Reader, TailRef};
use crate::mvcc::record_counts::RecordCounts;
use crate::mvcc::saved_index::IndexSweep;
use crate::mvcc::saved_ranges::SavedRanges;
use crate::mvcc::state_hash::StateHash;
use crate::mvcc::tables::{SmallTable, TableChanges, Tables, row_key};
use crate::mvcc::tail::Tail;
use crate::mvcc::view::View;
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// A defragmentation that has not begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedDefragmentation {
    /// It begins when the dead records of compactions up to this revision are gone.
    asked_at: i64,
    /// Checkpoints that found no room meanwhile.
    refused: u32,
}

/// State core view: the only writer.
#[derive(Debug)]
pub struct Store {
    pub(crate) index: KeyIndex,
    pub(crate) tail: Tail,
    pub(crate) tables: Tables,
    pub(crate) table_changes: TableChanges,
    /// How far the store has come.
    pub(crate) meta: StoreMeta,
    /// How far it had come at the newest finished checkpoint: what `tree` holds.
    pub(crate) saved: StoreMeta,
    pub(crate) tree: Snapshot,
    /// Compactions have removed records up to here from `tree`, or may have; or the index forgets
    /// what was before those that are left.
    pub(crate) trimmed: i64,
    /// The file; away while a checkpoint is being written.
    pub(crate) db: Option<Db>,
    pub(crate) sizes: Sizes,
    pub(crate) defragmentation: Option<Defragmentation>,
    pub(crate) defragments_next: Option<WantedDefragmentation>,
    /// The saved index is being made smaller after a compaction.
    pub(crate) sweep: Option<IndexSweep>,
    /// Keys of which a compaction has dropped records: the index has yet to forget them.
    pub(crate) to_compact: VecDeque<Vec<u8>>,
    /// The compaction that frees space.
    pub(crate) pass: Option<CompactionPass>,
    /// The next pass leaves no dead record that it may drop.
    pub(crate) wants_thorough: bool,
    /// No dead record that compactions up to here may drop is left.
    pub(crate) cleaned: i64,
    /// But for tombstones up to here, until all of the index is saved behind them; 0 without any.
    pub(crate) left_for_index: i64,
    /// Records in `tree` of the revisions above `uncounted`.
    pub(crate) records: Arc<RecordCounts>,
    /// Records up to this revision are not counted yet; 0 once they are.
    pub(crate) uncounted: i64,
    pub(crate) compaction_rule: CompactionRule,
    /// Hashes of compactions that are done.
    pub(crate) hashes: CompactionHashes,
    /// Up to which revision each range of the saved index is complete.
    pub(crate) ranges: SavedRanges,
    pub(crate) index_pace: IndexPace,
    /// Records that have earned the saving of a part of the index.
    pub(crate) records_since_index: u64,
    /// Whether the disk may have room for more than has to be saved.
    pub(crate) index_room: IndexRoom,
    /// Keys too long for a page that have changed since they were saved.
    pub(crate) unsaved_long: WaitingKeys,
    /// Keys longer than that are too long for a page.
    pub(crate) key_bytes_max: usize,
    /// Bytes of records that no finished checkpoint holds.
    pub(crate) unsaved_bytes: usize,
    pub(crate) replaced: Replaced,
    pub(crate) collector: Arc<Collector>,
}

impl Store {
    /// How far the log has been applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.meta.applied
    }

    /// An entry has been applied; must follow its changes before anything is published or saved.
    pub fn set_applied(&mut self, applied: Applied) {
        let before = self.meta.applied;
        assert!(applied.index >= before.index, "{applied:?} is applied after {before:?}");
        self.meta.applied = applied;
        self.meta.hash.applied(applied.index, applied.term);
    }

    /// One number for everything that the log has changed, behind the last entry that is applied.
    #[must_use]
    pub fn state_hash(&self) -> StateHash {
        self.meta.hash
    }

    /// The state hash begins with the entry that is being applied.
    pub fn begin_state_hash(&mut self) {
        self.meta.hash = StateHash::default();
    }

    /// Newest revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.meta.revision
    }

    /// Reads the current state.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader {
            index: self.index.root(),
            tail: TailRef::Writer(&self.tail),
            tree: &self.tree,
            tree_revision: self.saved.revision,
            revision: self.meta.revision,
            compact_revision: self.meta.compact_revision,
            trimmed: self.trimmed,
        }
    }

    /// Oldest readable revision, -1 before the first compaction.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.meta.compact_revision
    }

    /// Makes everything below `revision` unreadable; its space is freed by later checkpoints.
    ///
    /// # Errors
    /// [`Error::Compacted`] when that has happened already, [`Error::FutureRevision`]; when the
    /// tree file is damaged.
    pub fn compact(&mut self, revision: i64) -> Result<()> {
        if revision <= self.meta.compact_revision {
            return Err(Error::Compacted { compact_revision: self.meta.compact_revision });
        }
        if revision > self.meta.revision {
            return Err(Error::FutureRevision { current: self.meta.revision });
        }
        // As in etcd, not for want of what the one before is to leave.
        let is_hashed = self.pass.is_none() && self.tree.len(RECORDS) <= self.compaction_rule.hashed_max;
        let hash = is_hashed.then(|| CompactionHash::new(&self.reader(), revision)).transpose()?;
        let (saved, done) = (self.saved.compact_revision, self.meta.compacted);
        assert!(saved < revision && done < revision, "{saved} and {done} are compacted, {revision} is not");
        self.meta.hash.compaction(revision);
        self.meta.compact_revision = revision;
        self.begin_pass(hash);
        Ok(())
    }

    /// Begins to free the space of the newest compaction, unless an earlier one is still at it; or
    /// what that has left, if it is wanted.
    pub(crate) fn begin_pass(&mut self, hash: Option<CompactionHash>) {
        if self.pass.is_some() {
            return;
        }
        let is_thorough = std::mem::take(&mut self.wants_thorough);
        let at = self.meta.compact_revision;
        if self.meta.compacted < at || (is_thorough && self.cleaned < at) {
            self.pass = Some(CompactionPass::new(at, hash, is_thorough, self.uncounted));
        }
    }

    /// A caller waits for the space of the newest compaction: all that it drops goes with it. In a
    /// large store, what is scattered among many other records would wait for more.
    pub fn free_all_compacted(&mut self) {
        match &mut self.pass {
            Some(pass) if pass.at == self.meta.compact_revision && (pass.is_thorough || pass.is_open()) => {
                pass.is_thorough = true;
            }
            _ => {
                self.wants_thorough = true;
                self.begin_pass(None);
            }
        }
    }

    /// Space that a compaction frees is not all free yet.
    #[must_use]
    pub fn compaction_pending(&self) -> bool {
        self.saved.compacted < self.meta.compact_revision || self.pass.is_some()
    }

    /// The saved index still has to be made smaller.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Has `keys` keys, more where very many wait, and a bounded number of their bytes, forget
    /// revisions that are gone; true if there are more of them.
    pub fn forget_compacted(&mut self, keys: usize) -> bool {
        // The compaction under way may still need what a later one has made unreadable.
        let at = self.pass.as_ref().map_or(i64::MAX, |pass| pass.at).min(self.saved.compact_revision);
        // Readers that are behind are told first that something is missing.
        self.index.forget(at.min(self.trimmed));
        // A key is found by comparing it, and one that is forgotten may be freed with a View.
        let mut bytes = 0;
        for _ in 0..forgetting(keys, self.to_compact.len()) {
            if bytes >= FORGET_BYTES_PER_TURN {
                break;
            }
            let Some(key) = self.to_compact.pop_front() else { return false };
            self.index.compact_key(&key, at);
            bytes += key.len();
        }
        !self.to_compact.is_empty()
    }

    /// Begins a defragmentation, unless one is under way.
    ///
    /// # Errors
    /// [`Error::Poisoned`] while a checkpoint is being written: ask again after it.
    pub fn defragment(&mut self) -> Result<()> {
        if self.db.is_none() {
            return Err(Error::Poisoned);
        }
        if !self.is_defragmenting() {
            let asked_at = self.meta.compact_revision;
            self.defragments_next = Some(WantedDefragmentation { asked_at, refused: 0 });
            self.free_all_compacted();
            self.begin_defragmentation();
        }
        Ok(())
    }

    /// A caller waits for the space of a compaction, the one under way or one behind it.
    pub(crate) fn is_space_awaited(&self) -> bool {
        self.wants_thorough || self.pass.as_ref().is_some_and(|pass| pass.is_thorough)
    }

    /// Begins the defragmentation that is wanted, if what compactions have left is gone.
    pub(crate) fn begin_defragmentation(&mut self) {
        let Some(WantedDefragmentation { asked_at, .. }) = self.defragments_next else { return };
        let is_thorough = self.is_space_awaited();
        // Later compactions are not waited for: there may always be one.
        let waits = is_thorough && self.cleaned < asked_at;
        if let Some(db) = self.db.as_ref().filter(|_| !waits) {
            self.defragmentation = Some(Defragmentation::new(db));
            self.defragments_next = None;
        }
    }

    /// A checkpoint found no room: what goes on in them is not tried for ever.
    pub(crate) fn defragment_without_room(&mut self) {
        let base_txn = self.tree.txn();
        self.defragmentation = self.defragmentation.take().map(|it| it.without_room(base_txn));
        if let Some(wanted) = &mut self.defragments_next {
            wanted.refused += 1;
            if wanted.refused >= DEFRAGMENT_REFUSALS_MAX {
                self.defragments_next = None;
                self.defragmentation = Some(Defragmentation::refused());
            }
        }
    }

    /// A defragmentation is under way.
    #[must_use]
    pub fn is_defragmenting(&self) -> bool {
        self.defragmentation.as_ref().is_some_and(|it| !it.is_over()) || self.defragments_next.is_some()
    }

    /// Why the last defragmentation left the file longer than it could be, and what to do; none if
    /// it did not, or one is under way.
    #[must_use]
    pub fn defragmentation_left(&self) -> Option<&'static str> {
        self.defragmentation.as_ref().filter(|_| !self.is_defragmenting())?.left()
    }

    /// Sets a row of a small table.
    pub fn table_put(&mut self, table: SmallTable, key: &[u8], row: &[u8]) {
        self.table_set(table, key, Some(row.to_vec()));
    }

    /// Removes a row of a small table.
    pub fn table_remove(&mut self, table: SmallTable, key: &[u8]) {
        self.table_set(table, key, None);
    }

    fn table_set(&mut self, table: SmallTable, key: &[u8], row: Option<Vec<u8>>) {
        let key = row_key(table, key);
        self.meta.hash.row(&key, row.as_deref());
        if table.is_shared() {
            self.tables.set(&key, row.as_deref());
        }
        self.table_changes.insert(key, row);
    }

    /// The rows of a table as the newest finished checkpoint has them: for the owner of a table
    /// that is not in Views, after opening the store.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn saved_rows(&self, table: SmallTable) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        rows_of(&self.tree, table)
    }

    /// The small tables.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Shares the current state.
    #[must_use]
    pub fn view(&mut self) -> View {
        self.view_at(self.meta.revision)
    }

    /// Shares the current state, in which changes up to `revision` were made.
    pub(crate) fn view_at(&mut self, revision: i64) -> View {
        let saved = self.saved.revision;
        assert!(saved <= revision, "a View at {revision} of a store that is saved up to {saved}");
        let newest = || self.index.root().newest_change();
        debug_assert!(newest() <= revision, "a View at {revision} of an index at {}", newest());
        self.collector.made(self.replaced);
        let index = self.index.share();
        self.free_index_nodes();
        View::new(crate::mvcc::view::ViewParts {
            index,
            tail: self.tail.publish(),
            tree: self.tree.clone(),
            tree_revision: self.saved.revision,
            meta: StoreMeta { revision, ..self.meta },
            trimmed: self.trimmed,
            tables: self.tables.clone(),
            sizes: self.sizes,
            hashes: self.hashes.clone(),
            replaced: self.replaced,
            collector: Arc::clone(&self.collector),
        })
    }

    /// Frees nodes of the index that nothing needs since Views have ended; the collector does it if
    /// they are many. [`Store::view`] does so too: for times without changes.
    pub fn free_unneeded(&mut self) {
        self.index.look_for_unneeded();
        self.free_index_nodes();
    }

    /// [`Self::free_unneeded`] will have something to do, if there are no changes meanwhile.
    #[must_use]
    pub fn may_have_unneeded(&self) -> bool {
        self.index.may_have_unneeded()
    }

    fn free_index_nodes(&mut self) {
        match self.collector.get() {
            None => self.index.free_unneeded(usize::MAX),
            Some(collect) if self.index.are_many_unneeded() => {
                collect(Garbage(Kind::Nodes(self.index.take_unneeded())));
            }
            Some(_) => self.index.free_unneeded(FREED_NODES_PER_SHARE),
        }
    }

    /// Sets the collector of garbage: the drop of a View calls it with what the View leaves behind,
    /// if very much of that was replaced. The collector drops it where no request waits. The first
    /// collector stays.
    pub fn collect_garbage(&self, collect: impl Fn(Garbage) + Send + Sync + 'static) {
        self.collector.set(collect);
    }

    /// Takes the place of another store: what its Views leave behind goes to its collector.
    pub fn take_place_of(&mut self, before: &Self) {
        self.collector = Arc::clone(&before.collector);
        self.replaced = before.replaced;
        self.replaced.count_much();
    }

    /// Something was applied that no finished checkpoint holds.
    #[must_use]
    pub fn has_unsaved(&self) -> bool {
        self.meta.applied != self.saved.applied
    }

    /// Bytes of records that no finished checkpoint holds.
    #[must_use]
    pub fn unsaved_bytes(&self) -> usize {
        self.unsaved_bytes
    }

    /// Bytes of the tree file.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Saves the index in steps of so few keys: for tests, in which few keys are a large store.
    #[cfg(feature = "sim")]
    pub fn save_index_in_steps_of(&mut self, keys: u64) {
        self.index_pace = IndexPace::in_steps_of(keys);
    }

    /// Compactions of more records than `small` leave dead ones, those of more than `hashed_max`
    /// compute no hash: for tests, in which few records are a large store.
    #[cfg(feature = "sim")]
    pub fn compact_as_large(&mut self, small: u64, hashed_max: u64) {
        self.compaction_rule = CompactionRule { small, hashed_max, ..self.compaction_rule };
    }

    /// The same, and of so few bytes.
    #[cfg(feature = "sim")]
    pub fn save_index_in_small_steps_of(&mut self, keys: u64, bytes: usize) {
        self.save_index_in_steps_of(keys);
        self.index_pace = self.index_pace.with_bytes(bytes);
    }

    /// Makes the state that the file was opened with durable, if it is in the kernel's cache only.
    ///
    /// # Errors
    /// When the system refuses; the store must not go on then.
    pub fn make_durable(&mut self) -> Result<()> {
        self.db.as_mut().map_or(Ok(()), Db::settle)
    }

    /// The file, for checks; none while a checkpoint is being written.
    #[must_use]
    pub fn db(&self) -> Option<&Db> {
        self.db.as_ref()
    }
}

/// The rows of a small table in a state of the file.
pub(crate) fn rows_of(tree: &Snapshot, table: SmallTable) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = Vec::new();
    let mut cursor = tree.cursor(SMALL);
    cursor.seek(&row_key(table, &[]))?;
    while let Some((key, row)) = cursor.next()?
        && key.first() == Some(&(table as u8))
    {
        rows.push((key[1..].to_vec(), row.to_vec()));
    }
    Ok(rows)
}

/// Keys that forget revisions in a turn that is asked for `keys`, of so many that wait: a
/// busy store may list more with each turn of puts and deletes than a short turn has forget, and
/// nothing else bounds the list.
fn forgetting(keys: usize, waiting: usize) -> usize {
    (waiting / FORGET_PARTS).clamp(keys, keys * FORGET_TIMES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_keys_forget_in_a_turn_where_very_many_wait() {
        assert_eq!([0, 64, 16_000].map(|waiting| forgetting(64, waiting)), [64; 3]);
        assert_eq!([32_000, 100_000, 1_000_000].map(|waiting| forgetting(64, waiting)), [125, 390, 512]);
        assert_eq!(forgetting(0, 1_000_000), 0);
    }
}
