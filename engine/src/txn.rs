//! The one write transaction.
//!
//! ```text
//! Db::begin -> WriteTxn: put, remove -> commit: pages, sync, meta slot, sync -> Snapshot
//!                             '-- dropped: nothing has happened
//! ```

use crate::btree::cursor::KeyBehind;
use crate::btree::{self, Edit, PlacedValues, Tree};
use crate::db::Db;
use crate::limits::{TABLES_MAX, USER_BYTES, VALUE_BYTES_MAX, key_bytes_max};
use crate::meta::{Table, first_page};
use crate::page::{
    PageId, PageKind, PageRef, encode_extent, extent_pages, leaf_cell, leaf_cell_bytes, leaf_cell_bytes_max,
    leaf_cell_elsewhere,
};
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
}

/// How much [`WriteTxn::move_down`] may still do in a transaction.
#[derive(Debug, Clone, Copy)]
pub struct MovesMax {
    /// Leaves to look at.
    pub leaves: usize,
    /// Bytes of values to write again, the last of which may go beyond.
    pub bytes: usize,
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
        Self { db, base, trees, freed, values, end, user, format_min, shrinking: false, failed: false }
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
        let page_bytes = self.base.parts().meta.page_bytes;
        let is_table = table.index() < TABLES_MAX;
        assert!(is_table, "table {} is none of {TABLES_MAX}", table.0);
        assert!(key.len() <= key_bytes_max(page_bytes), "a key of {} bytes does not fit a page", key.len());
        assert!(value.len() <= VALUE_BYTES_MAX, "a value of {} bytes is too long", value.len());
        let cell = if leaf_cell_bytes(key, value) <= leaf_cell_bytes_max(page_bytes) {
            leaf_cell(key, value)
        } else {
            let pages = extent_pages(value.len(), page_bytes);
            let space = &mut self.db.space;
            let id = if self.shrinking { space.allocate_low(pages) } else { space.allocate(pages) };
            assert!(
                id.0 >= first_page(page_bytes),
                "a value is placed over the meta slots, at page {}",
                id.0
            );
            let (bytes, crc) = encode_extent(PageKind::Value, id, value, pages, page_bytes);
            self.values.place(id, bytes);
            leaf_cell_elsewhere(key, value.len(), PageRef { id, crc })
        };
        self.change(table, |tree, edit| btree::insert(tree, edit, key, &cell))
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

    /// Has pages at or behind page `limit` written again, to lower places: those of a table from
    /// key `start` on, as far as `most` reaches. Returns the key to go on from, or none at the
    /// table's end. Must come before other changes, and after [`WriteTxn::shrink`].
    ///
    /// # Errors
    /// When a page is damaged: drop the transaction then.
    pub fn move_down(
        &mut self,
        table: Table,
        start: &[u8],
        limit: PageId,
        most: &mut MovesMax,
    ) -> Result<Option<Vec<u8>>> {
        assert!(self.shrinking, "pages are moved down by a commit that takes any free pages");
        let base = self.base.clone();
        let mut cursor = base.cursor(table);
        cursor.seek(start)?;
        while most.leaves > 0 {
            let Some(keys) = cursor.keys_behind(limit)? else { return Ok(None) };
            // Those before `start` are of a step before, which has found no lower place for them.
            // One key is moved in any case: the way to it may still lie behind.
            let moved_before =
                keys.partition_point(|behind| behind.key < start).min(keys.len().saturating_sub(1));
            for KeyBehind { key, value } in &keys[moved_before..] {
                if most.bytes == 0 {
                    return Ok(Some(key.to_vec()));
                }
                // No hole takes it: at the end it would only make the file longer.
                if value.is_some_and(|value| !self.db.space.has_lower(value)) {
                    continue;
                }
                let misplaced = || Error::corrupt("a key of the tree lies where it is not looked for");
                let value = base.get(table, key)?.ok_or_else(misplaced)?;
                self.put(table, key, value)?;
                most.bytes = most.bytes.saturating_sub(value.len());
            }
            most.leaves -= 1;
            if cursor.next_leaf()?.is_none() {
                return Ok(None);
            }
        }
        Ok(cursor.next()?.map(|(key, _)| key.to_vec()))
    }

    /// Makes this commit use the lowest free pages, however scattered, and cut free ones off the
    /// file's end.
    pub fn shrink(&mut self) {
        self.shrinking = true;
    }

    /// All content at or behind page `limit` finds room before it, in free pages of no reader.
    #[must_use]
    pub(crate) fn has_room_before(&self, limit: PageId) -> bool {
        self.db.space.has_room_before(limit)
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
