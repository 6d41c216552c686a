//! The one write transaction.
//!
//! ```text
//! Db::begin -> WriteTxn: put, remove -> commit: pages, sync, meta slot, sync -> Snapshot
//!                             '-- dropped: nothing has happened
//! ```

use crate::btree::cursor::LeafBehind;
use crate::btree::{self, Edit, PlacedValues, Tree};
use crate::db::Db;
use crate::key_parts::KeyParts;
use crate::limits::{
    SORTED_PUTS_BYTES, SORTED_PUTS_MAX, TABLES_MAX, USER_BYTES, VALUE_BYTES_MAX, key_bytes_max,
};
use crate::meta::{Table, first_page};
use crate::page::{
    Cells, PageId, PageKind, PageRef, encode_extent, extent_pages, leaf_cell_bytes, leaf_cell_bytes_max,
    leaf_cell_elsewhere, leaf_cell_head,
};
use crate::pauses::Pauses;
use crate::snapshot::Snapshot;
use crate::space::Extent;

use crate::{Error, Result};

/// Changes that become one commit, or nothing.
#[derive(Debug)]
pub struct WriteTxn<'d> {
    pub(crate) db: &'d mut Db,
    pub(crate) base: Snapshot,
    pub(crate) trees: [Tree; TABLES_MAX],
    pub(crate) freed: Vec<Extent>,
    /// Long values, placed already; given back if the transaction is dropped.
    pub(crate) values: PlacedValues,
    /// Pages ever used by what is committed: those from here on are new.
    pub(crate) end: u64,
    pub(crate) user: [u8; USER_BYTES],
    /// The file gets at least this format.
    pub(crate) format_min: u32,
    /// Whether the commit cuts free pages off the file's end.
    pub(crate) shrinking: bool,
    /// A page could not be read: the nodes are incomplete.
    pub(crate) failed: bool,
    /// Pauses in the work on its changes.
    pub(crate) pauses: Pauses,
}

/// Bounds of [`WriteTxn::move_down`] in a transaction, and its findings.
#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// Leaves to look at.
    pub leaves: usize,
    /// Bytes of values to write again, the last of which may go beyond.
    pub bytes: usize,
    /// Long values to look at, and lengths of free extents on the way to a place for one; the last
    /// value may go beyond.
    pub looks: usize,
    /// Where room is short because readers hold it, the next transaction is waited for.
    pub may_wait: bool,
    /// Nothing has moved, and there may be room later.
    pub(crate) waits: bool,
    /// Pages that stay where they are: there is no place for them below.
    pub(crate) stayed: u64,
    has_moved: bool,
    /// Free pages before the limit that nothing has taken, nor will when the commit writes trees.
    room: Option<u64>,
    /// No free row of at least so many pages begins before that page: one was looked for in vain.
    none_before: Option<Extent>,
}

impl Moves {
    /// Nothing has moved yet; no room is waited for.
    #[must_use]
    pub fn new(leaves: usize, bytes: usize, looks: usize) -> Self {
        Self { leaves, bytes, looks, ..Self::default() }
    }

    /// Pages before the limit have gone to something that moves.
    fn take(&mut self, pages: u64) {
        self.has_moved = true;
        self.room = self.room.map(|room| room.saturating_sub(pages));
    }

    /// Whether to go on in a later transaction, which has room in what this one has moved away
    /// from, or readers have left.
    fn wait(&mut self) -> bool {
        self.waits = self.may_wait && !self.has_moved;
        self.waits || self.has_moved
    }
}

impl Db {
    /// Starts a transaction.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed commit.
    pub fn begin(&mut self) -> Result<WriteTxn<'_>> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        // Readers may have gone since the last commit; on a full disk their pages are all the room
        // that there is, and no commit comes before they are used.
        self.release_unread();
        let base = self.current.clone();
        Ok(WriteTxn::new(self, base))
    }
}

impl<'d> WriteTxn<'d> {
    pub(crate) fn new(db: &'d mut Db, base: Snapshot) -> Self {
        let meta = &base.parts().meta;
        let (trees, user) = (meta.tables.map(Tree::new), meta.user);
        let (freed, values, format_min) = (Vec::new(), PlacedValues::default(), meta.format);
        let end = db.space.end();
        let (shrinking, failed, pauses) = (false, false, Pauses::default());
        Self { db, base, trees, freed, values, end, user, format_min, shrinking, failed, pauses }
    }

    /// Sets a key; true if it is new.
    ///
    /// # Errors
    /// When a page on the way is damaged: drop the transaction then.
    ///
    /// # Panics
    /// If the key is longer than `limits::key_bytes_max` or the value than
    /// `limits::VALUE_BYTES_MAX`: the owner of the table bounds both.
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut cells = Cells::default();
        self.push_cell(&mut cells, table, key, value);
        Ok(self.change(table, |tree, edit| btree::insert(tree, edit, &cells))? == 1)
    }

    /// Adds the cell that a key and its value get in a leaf. A long value is placed.
    fn push_cell(&mut self, cells: &mut Cells, table: Table, key: &[u8], value: &[u8]) {
        self.pauses.count_bytes(value.len());
        let page_bytes = self.base.parts().meta.page_bytes;
        let is_table = table.index() < TABLES_MAX;
        assert!(is_table, "table {} is none of {TABLES_MAX}", table.0);
        assert!(key.len() <= key_bytes_max(page_bytes), "a key of {} bytes does not fit a page", key.len());
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is too long", value.len());
        if leaf_cell_bytes(key, value) <= leaf_cell_bytes_max(page_bytes) {
            return cells.push(&[&leaf_cell_head(key, value), key, value]);
        }
        let pages = extent_pages(value.len(), page_bytes);
        let space = &mut self.db.space;
        let id = if self.shrinking { space.allocate_low(pages) } else { space.allocate(pages) };
        assert!(id.0 >= first_page(page_bytes), "a value is placed over the meta slots, at page {}", id.0);
        let (bytes, crc) = encode_extent(PageKind::Value, id, value, pages, page_bytes);
        self.values.place(id, bytes);
        cells.push(&[&leaf_cell_elsewhere(key, value.len(), PageRef { id, crc })]);
    }

    /// Removes a key; true if it was there.
    ///
    /// # Errors
    /// When a page on the way is damaged: drop the transaction then.
    pub fn remove(&mut self, table: Table, key: &[u8]) -> Result<bool> {
        self.change(table, |tree, edit| btree::remove(tree, edit, key))
    }

    /// Has leaves that this transaction writes take no more pages than they need, in a table whose
    /// keys are all of one length.
    ///
    /// # Errors
    /// When they cannot be leaves of such a table: drop the transaction then.
    pub(crate) fn pack(&mut self, table: Table) -> Result<()> {
        self.change(table, |tree, edit| btree::pack(tree, edit))
    }

    fn change<T>(
        &mut self,
        table: Table,
        change: impl FnOnce(&mut Tree, &mut Edit<'_>) -> Result<T>,
    ) -> Result<T> {
        if self.failed {
            return Err(Error::Poisoned);
        }
        self.pauses.count(1);
        let mut unplaced = Vec::new();
        let mut edit = Edit {
            base: &self.base.parts().pages,
            freed: &mut self.freed,
            values: &mut self.values,
            unplaced: &mut unplaced,
        };
        let result = change(&mut self.trees[table.index()], &mut edit);
        self.failed = result.is_err();
        unplaced.into_iter().for_each(|extent| self.db.space.release(extent));
        result
    }

    /// Leaves of a table that this transaction writes have once what all of their keys begin with.
    /// The table is read with [`crate::btree::cursor::Cursor::next_parts`] then.
    pub fn share_beginnings(&mut self, table: Table) {
        self.trees[table.index()].are_leaves_sharing = true;
    }

    /// Has pages at or behind page `limit` written again, to lower places: those of a table from
    /// key `start` on, as far as `moves` reaches. Pages that find no lower place stay, so that the
    /// file gets no longer for them. Returns the key to go on from, or none at the table's end.
    /// Must come before other changes, and after [`WriteTxn::shrink`].
    ///
    /// # Errors
    /// When a page is damaged: drop the transaction then.
    pub fn move_down(
        &mut self,
        table: Table,
        start: &[u8],
        limit: PageId,
        moves: &mut Moves,
    ) -> Result<Option<Vec<u8>>> {
        assert!(self.shrinking, "pages are moved down by a commit that takes any free pages");
        let base = self.base.clone();
        let mut cursor = base.cursor(table);
        cursor.seek(start)?;
        while moves.leaves > 0 {
            let Some(leaf) = cursor.leaf_behind(limit)? else { return Ok(None) };
            let next = self.move_leaf(table, start, limit, &leaf, moves)?;
            if next.is_some() {
                return Ok(next);
            }
            moves.leaves -= 1;
            if cursor.next_leaf()?.is_none() {
                return Ok(None);
            }
        }
        Ok(cursor.next_key_parts()?.map(|key| key.to_vec()))
    }

    /// Moves what of a leaf lies behind `limit`, its values from key `start` on. Returns the key to
    /// go on from, if it was not all looked at.
    fn move_leaf(
        &mut self,
        table: Table,
        start: &[u8],
        limit: PageId,
        leaf: &LeafBehind<'_>,
        moves: &mut Moves,
    ) -> Result<Option<Vec<u8>>> {
        if leaf.levels_behind > 0 {
            if self.has_room(leaf.levels_behind, limit, moves) {
                let before = self.freed.len();
                self.change(table, |tree, edit| {
                    btree::rewrite(tree, edit, &leaf.first.to_vec(), leaf.levels_behind)
                })?;
                moves.take((self.freed.len() - before) as u64);
            } else if moves.wait() {
                return Ok(Some(leaf.first.max(KeyParts::from(start)).to_vec()));
            } else {
                moves.stayed += 1;
            }
        }
        // Those before `start` are of a step before, which has found no lower place for them.
        for (key, value) in leaf.values.iter().filter(|(key, _)| *key >= *start) {
            if moves.bytes == 0 || moves.looks == 0 {
                return Ok(Some(key.to_vec()));
            }
            let Some(place) = self.lower_place(*value, moves) else {
                moves.stayed += value.pages;
                continue;
            };
            let pages_before = place.stop().min(limit.0).saturating_sub(place.start.0);
            if self.has_room(leaf.levels + pages_before, limit, moves) {
                self.move_value(table, &key.to_vec(), pages_before, moves)?;
            } else if moves.wait() {
                return Ok(Some(key.to_vec()));
            } else {
                moves.stayed += value.pages;
            }
        }
        Ok(None)
    }

    /// Puts a value again, `pages_before` of whose pages come to lie before the file's end to be.
    fn move_value(&mut self, table: Table, key: &[u8], pages_before: u64, moves: &mut Moves) -> Result<()> {
        let base = self.base.clone();
        let misplaced = || Error::corrupt("a key of the tree lies where it is not looked for");
        let value = base.get(table, key)?.ok_or_else(misplaced)?;
        let before = self.freed.len();
        self.put(table, key, value)?;
        // One of what is freed is the value itself, the others are pages of its way.
        let way = (self.freed.len() - before).saturating_sub(1) as u64;
        moves.take(way + pages_before);
        moves.bytes = moves.bytes.saturating_sub(value.len());
        Ok(())
    }

    /// Where a value comes to lie if it is put again, if that is before its place.
    fn lower_place(&self, value: Extent, moves: &mut Moves) -> Option<Extent> {
        let mut looks = 1;
        // Free rows only become fewer and shorter while a transaction moves.
        let is_known = |none: Extent| value.pages >= none.pages && value.start <= none.start;
        if moves.none_before.is_some_and(is_known) {
            moves.looks = moves.looks.saturating_sub(looks);
            return None;
        }
        let found = self.db.space.lowest_free(value.pages, &mut looks);
        moves.looks = moves.looks.saturating_sub(looks);
        let start = found.map_or(PageId(u64::MAX), |found| found.start);
        let place = Extent { start, pages: value.pages };
        if start >= value.start {
            moves.none_before = Some(place);
            return None;
        }
        Some(place)
    }

    /// So many pages more find room before page `limit`, in pages of no reader.
    fn has_room(&self, pages: u64, limit: PageId, moves: &mut Moves) -> bool {
        *moves.room.get_or_insert_with(|| self.db.space.free_before(limit)) >= pages
    }

    /// Makes this commit use the lowest free pages, however scattered, and cut free ones off the
    /// file's end.
    pub fn shrink(&mut self) {
        self.shrinking = true;
    }

    /// The length in pages that the file could have: what holds data, that of readers too, and some
    /// room to move in.
    #[must_use]
    pub(crate) fn shortest(&self) -> PageId {
        let held = self.db.space.held_pages();
        assert!(held > 0, "a file in which nothing is in use has no meta slots either");
        PageId(held + held / 16 + 64)
    }

    /// Pages that transaction `txn` or an earlier one has freed still wait for readers.
    #[must_use]
    pub fn waits_for_readers(&self, txn: u64) -> bool {
        self.db.space.waits_for_readers(txn)
    }

    /// The transaction this one changes the state of; its own number is the next one.
    #[must_use]
    pub fn base_txn(&self) -> u64 {
        self.base.txn()
    }

    /// The owner writes what must not be read by a version that knows only earlier formats.
    pub(crate) fn need_format(&mut self, format: u32) {
        self.format_min = self.format_min.max(format);
    }

    /// The owner's bytes in the meta slot.
    pub fn set_user(&mut self, user: &[u8; USER_BYTES]) {
        self.user = *user;
    }
}

/// Puts of a table whose keys ascend, gathered so that those of one leaf change it together. They
/// are not in the transaction before [`Self::finish`]: one that goes on without them has lost them.
#[derive(Debug)]
#[must_use = "puts that are not finished are lost"]
pub(crate) struct SortedPuts {
    table: Table,
    gathered: Cells,
    /// The key of the last one.
    last: Vec<u8>,
    /// New keys among those that are in the transaction.
    new: u64,
}

impl SortedPuts {
    pub(crate) fn new(table: Table) -> Self {
        Self { table, gathered: Cells::default(), last: Vec::new(), new: 0 }
    }

    /// Sets a key, which is above all others, as [`WriteTxn::put`] does.
    pub(crate) fn put(&mut self, txn: &mut WriteTxn<'_>, key: &[u8], value: &[u8]) -> Result<()> {
        let is_first = self.gathered.is_empty() && self.last.is_empty();
        assert!(is_first || self.last[..] < *key, "puts that are sorted are out of order");
        self.last.clear();
        self.last.extend_from_slice(key);
        txn.push_cell(&mut self.gathered, self.table, key, value);
        if self.gathered.bytes() >= SORTED_PUTS_BYTES || self.gathered.len() >= SORTED_PUTS_MAX {
            self.put_gathered(txn)?;
        }
        Ok(())
    }

    /// How many of the keys are new.
    pub(crate) fn finish(mut self, txn: &mut WriteTxn<'_>) -> Result<u64> {
        self.put_gathered(txn)?;
        Ok(self.new)
    }

    fn put_gathered(&mut self, txn: &mut WriteTxn<'_>) -> Result<()> {
        let puts = &self.gathered;
        self.new += txn.change(self.table, |tree, edit| btree::insert(tree, edit, puts))?;
        txn.pauses.count(u32::try_from(2 * puts.len()).expect("few are gathered"));
        self.gathered.clear();
        Ok(())
    }
}

impl Drop for WriteTxn<'_> {
    fn drop(&mut self) {
        let page_bytes = u64::from(self.base.parts().meta.page_bytes);
        // In the order that undoes it, so that nothing of it is left to write.
        for (start, bytes) in self.values.take_in_order().rev() {
            self.db.space.give_back(Extent { start, pages: bytes.len() as u64 / page_bytes }, self.end);
        }
        self.db.space.cut_new(self.end);
    }
}
