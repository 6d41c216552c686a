//! Committing a transaction to its file.
//!
//! The durability protocol: write every new page to places that no state anyone can still see uses;
//! sync; write the other meta slot; sync. A crash before the slot is whole leaves the state before,
//! after it the state after. The first commit after a file was opened makes sure that the state it
//! was opened with is durable.
//!
//! A full disk shows before anything is written: room for all pages is made first, and if there is
//! none the transaction is undone and may be tried again. Any other failure is final.

use std::sync::Arc;

use crate::btree::TreeNode;
use crate::db::slot_offset;
use crate::meta::{FORMAT_CHAINED, FORMAT_FIRST, FORMAT_SHARING, Meta, TableRoot, first_page};
use crate::mutants::{self, Mutant};
use crate::page::{PageId, PageWriter, Pages, Verified};
use crate::snapshot::Snapshot;
use crate::space::{Extent, ListRules, PlacedList};
use crate::txn::WriteTxn;
use crate::{Error, Result};

impl WriteTxn<'_> {
    /// Makes all changes durable, or none. Blocks for the disk.
    ///
    /// # Errors
    /// After a failed write or sync the file is poisoned: only opening it again tells what is in
    /// it.
    pub fn commit(mut self) -> Result<Snapshot> {
        if self.failed {
            return Err(Error::Poisoned);
        }
        commit(&mut self)
    }
}

/// A transaction with a place for everything: nothing is written yet.
struct Placed {
    nodes: Vec<PageId>,
    list: PlacedList,
    freed: Vec<Extent>,
}

fn commit(txn: &mut WriteTxn<'_>) -> Result<Snapshot> {
    let page_bytes = txn.base.parts().meta.page_bytes;
    let (base, current) = (txn.base.txn(), txn.db.current.txn());
    assert_eq!(base, current, "a transaction on state {base} is committed to state {current}");
    txn.db.poisoned = true; // until everything below has succeeded
    // Also if there is no room: the caller that is told so takes the state before for durable.
    txn.db.settle()?;
    let before = txn.db.space.mark();
    let placed = place(txn, page_bytes);
    check_placed(txn, &placed)?;
    if let Err(error) = txn.db.grow(page_bytes) {
        txn.db.space.undo(before);
        txn.db.poisoned = !error.is_no_space();
        return Err(error);
    }
    let (verified, meta) = write(txn, &placed)?;
    let db = &mut *txn.db;
    assert_eq!(meta.txn, current + 1, "transaction {} follows {current}", meta.txn);
    assert_eq!(meta.pages, db.space.end(), "the file ends elsewhere than its space");
    let (new, old) = (slot_offset(&meta), slot_offset(&db.current.parts().meta));
    assert_ne!(new, old, "transaction {} would overwrite the slot of the state before", meta.txn);
    if !mutants::is(Mutant::MetaSlotBeforeSync) {
        db.disk.sync()?;
    }
    db.disk.write_at(new, &meta.encode())?;
    if !mutants::is(Mutant::MetaSlotUnsynced) {
        db.disk.sync()?;
    }
    if txn.shrinking {
        db.cut(page_bytes)?;
    }
    db.poisoned = false;
    db.space.committed(meta.txn, placed.freed, &placed.list);
    let snapshot = Snapshot::new(Pages { map: db.disk.map()?, page_bytes, verified }, meta);
    db.watch(&snapshot);
    db.current = snapshot.clone();
    txn.base = snapshot.clone(); // the old state must not look read because of this transaction
    txn.end = db.space.end(); // nothing is given back
    db.release_unread();
    Ok(snapshot)
}

/// Nothing is written over a page that a reader can still see, and nothing is freed that is free:
/// both would be found long after they have become durable. The freed pages are those that pages of
/// the file have named: if one cannot be freed, the file is damaged.
///
/// # Errors
/// When a page is freed that cannot be.
fn check_placed(txn: &WriteTxn<'_>, placed: &Placed) -> Result<()> {
    let (space, base) = (&txn.db.space, txn.base.parts());
    let page_bytes = u64::from(base.meta.page_bytes);
    let extent = |start: PageId, bytes: &[u8]| Extent { start, pages: bytes.len() as u64 / page_bytes };
    let single = placed.nodes.iter().map(|page| Extent { start: *page, pages: 1 });
    let values = txn.values.iter().map(|(start, bytes)| extent(start, bytes));
    let list = std::iter::once(extent(placed.list.at().id, &placed.list.bytes));
    let written = single.chain(values).chain(list).map(|extent| (extent, false));
    let mut all: Vec<(Extent, bool)> =
        written.chain(placed.freed.iter().map(|extent| (*extent, true))).collect();
    all.sort_unstable_by_key(|(extent, _)| extent.start.0);
    let (mut reached, mut before_is_freed) = (first_page(base.meta.page_bytes), false);
    for (extent, is_freed) in all {
        let Extent { start, pages } = extent;
        let is_sound = start.0 >= reached && space.is_taken(extent);
        if !is_sound && (is_freed || before_is_freed) {
            let what = "is freed by the tree, but free or in use elsewhere";
            return Err(base.pages.damage_or_bug(start, what));
        }
        assert!(is_sound, "{pages} pages from {} on are written, but free or written already", start.0);
        (reached, before_is_freed) = (start.0 + pages, is_freed);
    }
    let (unused, end) = (space.unused_pages(), space.end());
    assert!(reached <= end && unused < end, "{unused} of {end} pages are free, {reached} are in use");
    Ok(())
}

fn place(txn: &mut WriteTxn<'_>, page_bytes: u32) -> Placed {
    let nodes = txn.trees.iter().filter_map(|tree| tree.root.as_deref()).map(TreeNode::count).sum();
    let space = &mut txn.db.space;
    let nodes = if txn.shrinking { space.allocate_lowest(nodes) } else { space.allocate_pages(nodes) };
    let mut freed = std::mem::take(&mut txn.freed);
    let may_chain = txn.base.parts().meta.format >= FORMAT_CHAINED;
    let list = space.place_list(&mut freed, page_bytes, ListRules { may_chain, is_shrinking: txn.shrinking });
    Placed { nodes, list, freed }
}

/// Writes every page, and says what the meta slot has to say.
fn write(txn: &mut WriteTxn<'_>, placed: &Placed) -> Result<(Arc<Verified>, Meta)> {
    let base = txn.base.parts();
    let mut tables = base.meta.tables;
    let (page_bytes, pages) = (base.meta.page_bytes, txn.db.space.end());
    let old = &base.pages.verified;
    let verified = if old.capacity() >= pages { Arc::clone(old) } else { Arc::new(old.resized(pages * 2)) };
    let (pauses, buffer) = (std::mem::take(&mut txn.pauses), &mut txn.db.buffer);
    let mut out = PageWriter::new(&*txn.db.disk, &verified, page_bytes, buffer).with_pauses(pauses);
    for (start, bytes) in txn.values.take_in_order() {
        out.write_extent(start, &bytes)?;
    }
    let mut ids = placed.nodes.iter().copied();
    for (table, tree) in tables.iter_mut().zip(&mut txn.trees) {
        if tree.dirty {
            let depth = tree.stored.depth;
            assert_eq!(depth > 0, tree.root.is_some(), "a table of {depth} levels and its root disagree");
            let root = match tree.root.take() {
                Some(mut root) => Some(root.write(&mut ids, &mut out)?),
                None => None,
            };
            *table = TableRoot { root, ..tree.stored };
        }
    }
    let left = ids.count();
    assert_eq!(left, 0, "{left} of {} pages were allocated for no node", placed.nodes.len());
    out.flush()?;
    out.write_extent(placed.list.at().id, &placed.list.bytes)?;
    let of_list = if placed.list.wants_chain { FORMAT_CHAINED } else { FORMAT_FIRST };
    let of_leaves = if out.has_sharing_leaf() { FORMAT_SHARING } else { FORMAT_FIRST };
    let meta = Meta {
        format: txn.format_min.max(of_list).max(of_leaves),
        page_bytes,
        txn: base.meta.txn + 1,
        pages,
        free: Some(placed.list.at()),
        free_is_whole: placed.list.is_full,
        tables,
        user: txn.user,
    };
    Ok((verified, meta))
}
