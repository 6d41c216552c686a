//! Committing a transaction to its file.
//!
//! The durability protocol: write every new page to places that no state anyone can still see uses; sync; write
//! the other meta slot; sync. A crash before the slot is whole leaves the state before, after it the state after.
//! The first commit after a file was opened makes sure that the state it was opened with is durable.
//!
//! A full disk shows before anything is written: room for all pages is made first, and if there is none the
//! transaction is undone and may be tried again. Any other failure is final.

use std::sync::Arc;

use crate::btree::TreeNode;
use crate::db::slot_offset;
use crate::meta::{Meta, TableRoot, first_page};
use crate::page::{PageId, PageKind, PageRef, PageWriter, Pages, Verified, encode_extent, extent_pages};
use crate::snapshot::Snapshot;
use crate::space::{Extent, Space};
use crate::txn::WriteTxn;
use crate::{Error, Result};

impl WriteTxn<'_> {
    /// Makes all changes durable, or none. Blocks for the disk.
    ///
    /// # Errors
    /// After a failed write or sync the file is poisoned: only opening it again tells what is in it.
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
    free: PageRef,
    free_bytes: Vec<u8>,
    freed: Vec<Extent>,
}

fn commit(txn: &mut WriteTxn<'_>) -> Result<Snapshot> {
    let page_bytes = txn.base.parts().meta.page_bytes;
    txn.db.poisoned = true; // until everything below has succeeded
    // Also if there is no room: whoever hears of it takes the state before for durable.
    txn.db.settle()?;
    let before = txn.db.space.clone();
    let placed = place(txn, page_bytes);
    assert_placed(txn, &placed);
    if let Err(error) = txn.db.grow(page_bytes) {
        txn.db.space = before;
        txn.db.poisoned = !error.is_no_space();
        return Err(error);
    }
    let (verified, meta) = write(txn, &placed)?;
    let db = &mut *txn.db;
    assert_eq!(meta.txn, db.current.txn() + 1, "commits come one after the other");
    db.disk.sync()?;
    db.disk.write_at(slot_offset(&meta), &meta.encode())?;
    db.disk.sync()?;
    if txn.shrinking {
        db.cut(page_bytes)?;
    }
    db.poisoned = false;
    db.space.freed_by(meta.txn, placed.freed);
    let snapshot = Snapshot::new(Pages { map: db.disk.map()?, page_bytes, verified }, meta);
    db.watch(&snapshot);
    db.current = snapshot.clone();
    txn.base = snapshot.clone(); // the old state must not look read because of this transaction
    db.release_unread();
    Ok(snapshot)
}

/// Nothing is written over a page that anybody can still see, and nothing is freed that is free: both would be found long
/// after they have become durable.
fn assert_placed(txn: &WriteTxn<'_>, placed: &Placed) {
    let (space, first) = (&txn.db.space, first_page(txn.base.parts().meta.page_bytes));
    let single = placed.nodes.iter().map(|page| Extent { start: *page, pages: 1 });
    let page_bytes = u64::from(txn.base.parts().meta.page_bytes);
    let extent = |start: PageId, bytes: &[u8]| Extent { start, pages: bytes.len() as u64 / page_bytes };
    let values = txn.values.iter().map(|(start, bytes)| extent(*start, bytes));
    let mut taken: Vec<Extent> = single.chain(values).collect();
    taken.push(extent(placed.free.id, &placed.free_bytes));
    taken.extend(&placed.freed);
    taken.sort_unstable_by_key(|extent| extent.start.0);
    let mut reached = first;
    for Extent { start, pages } in taken {
        assert!(start.0 >= reached, "page {} is used or freed twice by one commit", start.0);
        reached = start.0 + pages;
        assert!(
            space.is_taken(Extent { start, pages }),
            "page {} is used or freed although it is free",
            start.0
        );
    }
    assert!(reached <= space.end(), "page {reached} lies behind the end of the file");
}

fn place(txn: &mut WriteTxn<'_>, page_bytes: u32) -> Placed {
    let nodes = txn.trees.iter().filter_map(|tree| tree.root.as_deref()).map(TreeNode::count).sum();
    let space = &mut txn.db.space;
    let nodes = if txn.shrinking { space.allocate_lowest(nodes) } else { space.allocate_pages(nodes) };
    let mut freed = std::mem::take(&mut txn.freed);
    freed.extend(space.take_list());
    let (free, free_bytes) = place_free_list(space, &freed, page_bytes, txn.shrinking);
    Placed { nodes, free, free_bytes, freed }
}

/// Writes every page, and says what the meta slot has to say.
fn write(txn: &mut WriteTxn<'_>, placed: &Placed) -> Result<(Arc<Verified>, Meta)> {
    let base = txn.base.parts();
    let mut tables = base.meta.tables;
    let (page_bytes, pages) = (base.meta.page_bytes, txn.db.space.end());
    let old = &base.pages.verified;
    let verified = if old.capacity() >= pages { Arc::clone(old) } else { Arc::new(old.resized(pages * 2)) };
    let mut out = PageWriter::new(&*txn.db.disk, &verified, page_bytes, &mut txn.db.buffer);
    for (start, bytes) in std::mem::take(&mut txn.values) {
        out.write_extent(start, &bytes)?;
    }
    let mut ids = placed.nodes.iter().copied();
    for (table, tree) in tables.iter_mut().zip(&mut txn.trees) {
        if tree.dirty {
            let root = match tree.root.take() {
                Some(mut root) => Some(root.write(&mut ids, &mut out)?),
                None => None,
            };
            *table = TableRoot { root, ..tree.stored };
        }
    }
    assert!(ids.next().is_none(), "a page was allocated for no node");
    out.flush()?;
    out.write_extent(placed.free.id, &placed.free_bytes)?;
    let meta =
        Meta { page_bytes, txn: base.meta.txn + 1, pages, free: Some(placed.free), tables, user: txn.user };
    Ok((verified, meta))
}

/// Places and lays out the list of everything that is free after this commit.
fn place_free_list(
    space: &mut Space,
    freed: &[Extent],
    page_bytes: u32,
    shrinking: bool,
) -> (PageRef, Vec<u8>) {
    // Taking pages shortens a free extent or uses one up: the list only gets shorter than what was asked for.
    let pages = extent_pages(space.encoded_len(freed.len()), page_bytes);
    let id = space.allocate(pages);
    if shrinking {
        space.trim();
    }
    let (bytes, crc) = encode_extent(PageKind::FreeList, id, &space.encode(freed), pages, page_bytes);
    space.set_list(Extent { start: id, pages });
    (PageRef { id, crc }, bytes)
}
