//! One tree file: opening it and committing to it.
//!
//! The durability protocol (`commit`): write every new page to places that no state anyone can still see uses;
//! sync; write the other meta slot; sync. A crash before the slot is whole leaves the state before, after it the
//! state after. Nothing has to be repaired when a file is opened; the first commit after that makes sure that the state
//! it was opened with is durable.
//!
//! A full disk shows before anything is written: room for all pages is made first, and if there is none the
//! transaction is undone and may be tried again. Any other failure is final.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::btree::Node;
use crate::disk::Disk;
use crate::limits::{GROW_BYTES_MAX, GROW_BYTES_MIN, PAGE_BYTES_DEFAULT};
use crate::meta::{Meta, SLOT_BYTES, SLOT_OFFSETS, TableRoot, first_page};
use crate::page::{PageId, PageKind, PageRef, PageWriter, Pages, Verified, encode_run, run_pages};
use crate::space::{Run, Space};
use crate::txn::{Snapshot, WriteTxn};
use crate::{Error, Result};

/// How a file is made.
#[derive(Debug, Clone, Copy)]
pub struct DbOptions {
    /// Bytes of a page, if the file is new; a power of two within `limits`.
    pub page_bytes_if_new: u32,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self { page_bytes_if_new: PAGE_BYTES_DEFAULT }
    }
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// All that were ever used. Its length may be more: it grows ahead of what is written.
    pub file: u64,
    /// Of these, the ones that hold data of the newest state.
    pub in_use: u64,
}

/// An open file; the only one who writes to it.
pub struct Db {
    disk: Arc<dyn Disk>,
    pub(crate) space: Space,
    current: Snapshot,
    /// Snapshots that may still be read, oldest first.
    live: VecDeque<(u64, Weak<crate::txn::SnapshotInner>)>,
    file_len: u64,
    /// The newest state is durable: this process has committed it.
    is_settled: bool,
    poisoned: bool,
    /// Pages on their way to the file; kept because new memory costs more than what is done with it.
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Db {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Db(transaction {})", self.current.txn())
    }
}

impl Db {
    /// Opens a file; an empty one is made.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is no tree file or its state cannot be found.
    pub fn open(disk: Arc<dyn Disk>, options: DbOptions) -> Result<Self> {
        let map = disk.map()?;
        let bytes = map.bytes();
        let slots = SLOT_OFFSETS.map(|offset| {
            let start = usize::try_from(offset).expect("a small constant");
            bytes.get(start..start + SLOT_BYTES)
        });
        let newest = slots.iter().flatten().filter_map(|slot| Meta::decode(slot)).max_by_key(|meta| meta.txn);
        let meta = match newest {
            Some(meta) => meta,
            // Nothing was ever committed: a new file, or one whose making was cut short.
            None if bytes.iter().take(2 * 4096).all(|byte| *byte == 0) => {
                Meta::empty(options.page_bytes_if_new)
            }
            None => return Err(Error::corrupt("neither meta slot can be read")),
        };
        let file_len = bytes.len() as u64;
        if meta.txn > 0 && meta.pages * u64::from(meta.page_bytes) > file_len {
            return Err(Error::corrupt(format!("the file has {file_len} bytes but {} pages", meta.pages)));
        }
        let verified = Arc::new(Verified::default().resized(meta.pages));
        let pages = Pages { map, page_bytes: meta.page_bytes, verified };
        let space = read_space(&pages, &meta)?;
        let current = Snapshot::new(pages, meta);
        let mut db = Self {
            disk,
            space,
            current: current.clone(),
            live: VecDeque::new(),
            file_len,
            is_settled: current.txn() == 0,
            poisoned: false,
            buffer: Vec::new(),
        };
        db.watch(&current);
        Ok(db)
    }

    /// The newest committed state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.current.clone()
    }

    /// Starts a transaction.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failed commit.
    pub fn begin(&mut self) -> Result<WriteTxn<'_>> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        let base = self.current.clone();
        Ok(WriteTxn::new(self, base))
    }

    /// Bytes of the file and in it.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let page_bytes = u64::from(self.current.inner().meta.page_bytes);
        let end = self.space.end();
        Sizes { file: end * page_bytes, in_use: (end - self.space.unused_pages()) * page_bytes }
    }

    fn watch(&mut self, snapshot: &Snapshot) {
        self.live.push_back((snapshot.txn(), Arc::downgrade(snapshot.inner())));
    }

    /// Frees what no living snapshot holds any more.
    fn release_unread(&mut self) {
        while self.live.len() > 1 && self.live[0].1.strong_count() == 0 {
            self.live.pop_front();
        }
        let oldest = self.live.front().map_or(self.current.txn(), |(txn, _)| *txn);
        self.space.no_reader_before(oldest);
    }

    /// Makes room for pages up to the space's end, in steps so large that commits seldom change the length; if the disk
    /// has no room for a step, just as much as is needed.
    fn grow(&mut self, page_bytes: u32) -> Result<()> {
        let needed = self.space.end() * u64::from(page_bytes);
        if needed <= self.file_len {
            return Ok(());
        }
        let step = (self.file_len / 8).clamp(GROW_BYTES_MIN, GROW_BYTES_MAX);
        let step = step.next_multiple_of(u64::from(page_bytes));
        let mut len = needed.max(self.file_len + step);
        if let Err(error) = self.disk.set_len(len) {
            if !error.is_no_space() || len == needed {
                return Err(error);
            }
            len = needed;
            self.disk.set_len(len)?;
        }
        self.file_len = len;
        Ok(())
    }

    /// The state the file was opened with may be in the kernel's cache only: its slot was written by a process that ended
    /// before the sync, or because of it (and after a failed sync the kernel takes what it holds for clean). Its pages were
    /// synced before the slot was written. But the next commit writes to pages of the state before it, which would then
    /// still be the one on the disk. So the slot is written and synced again first.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if !self.is_settled {
            let meta = &self.current.inner().meta;
            self.disk.write_at(slot_offset(meta), &meta.encode())?;
            self.disk.sync()?;
            self.is_settled = true;
        }
        Ok(())
    }

    /// Cuts off what lies behind the last page in use. Nobody reads there any more: those pages were free, not
    /// just freed, and the state that no longer names them is durable.
    fn cut(&mut self, page_bytes: u32) -> Result<()> {
        let needed = self.space.end() * u64::from(page_bytes);
        if needed < self.file_len {
            self.disk.set_len(needed)?;
            self.file_len = needed;
        }
        Ok(())
    }
}

fn read_space(pages: &Pages, meta: &Meta) -> Result<Space> {
    let first = first_page(meta.page_bytes);
    let Some(list) = meta.free else {
        return Ok(Space::decode(meta.pages, first, &[]).expect("an empty list"));
    };
    let (run, content) = pages.run(PageKind::FreeList, list)?;
    let mut space = Space::decode(meta.pages, first, content)
        .map_err(|what| pages.damage(list.id, format!("(the free list) {what}")))?;
    // The list's own pages are written anew by the next commit and free after it.
    space.set_list(Run { start: list.id, pages: run });
    Ok(space)
}

fn slot_offset(meta: &Meta) -> u64 {
    SLOT_OFFSETS[usize::from(meta.txn % 2 == 1)]
}

/// A transaction with a place for everything: nothing is written yet.
struct Placed {
    nodes: Vec<PageId>,
    free: PageRef,
    free_bytes: Vec<u8>,
    freed: Vec<Run>,
}

/// Writes a transaction; see the module's text.
pub(crate) fn commit(txn: &mut WriteTxn<'_>) -> Result<Snapshot> {
    let page_bytes = txn.base.inner().meta.page_bytes;
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
    let (space, first) = (&txn.db.space, first_page(txn.base.inner().meta.page_bytes));
    let single = placed.nodes.iter().map(|page| Run { start: *page, pages: 1 });
    let page_bytes = u64::from(txn.base.inner().meta.page_bytes);
    let run = |start: PageId, bytes: &[u8]| Run { start, pages: bytes.len() as u64 / page_bytes };
    let values = txn.values.iter().map(|(start, bytes)| run(*start, bytes));
    let mut taken: Vec<Run> = single.chain(values).collect();
    taken.push(run(placed.free.id, &placed.free_bytes));
    taken.extend(&placed.freed);
    taken.sort_unstable_by_key(|run| run.start.0);
    let mut reached = first;
    for Run { start, pages } in taken {
        assert!(start.0 >= reached, "page {} is used or freed twice by one commit", start.0);
        reached = start.0 + pages;
        assert!(
            space.is_taken(Run { start, pages }),
            "page {} is used or freed although it is free",
            start.0
        );
    }
    assert!(reached <= space.end(), "page {reached} lies behind the end of the file");
}

fn place(txn: &mut WriteTxn<'_>, page_bytes: u32) -> Placed {
    let nodes = txn.trees.iter().filter_map(|tree| tree.root.as_deref()).map(Node::count).sum();
    let space = &mut txn.db.space;
    let nodes = if txn.shrinking { space.allocate_lowest(nodes) } else { space.allocate_pages(nodes) };
    let mut freed = std::mem::take(&mut txn.freed);
    freed.extend(space.take_list());
    let (free, free_bytes) = place_free_list(space, &freed, page_bytes, txn.shrinking);
    Placed { nodes, free, free_bytes, freed }
}

/// Writes every page, and says what the meta slot has to say.
fn write(txn: &mut WriteTxn<'_>, placed: &Placed) -> Result<(Arc<Verified>, Meta)> {
    let base = txn.base.inner();
    let mut tables = base.meta.tables;
    let (page_bytes, pages) = (base.meta.page_bytes, txn.db.space.end());
    let old = &base.pages.verified;
    let verified = if old.capacity() >= pages { Arc::clone(old) } else { Arc::new(old.resized(pages * 2)) };
    let mut out = PageWriter::new(&*txn.db.disk, &verified, page_bytes, &mut txn.db.buffer);
    for (start, bytes) in std::mem::take(&mut txn.values) {
        out.write_run(start, &bytes)?;
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
    out.write_run(placed.free.id, &placed.free_bytes)?;
    let meta =
        Meta { page_bytes, txn: base.meta.txn + 1, pages, free: Some(placed.free), tables, user: txn.user };
    Ok((verified, meta))
}

/// Places and lays out the list of everything that is free after this commit.
fn place_free_list(space: &mut Space, freed: &[Run], page_bytes: u32, shrinking: bool) -> (PageRef, Vec<u8>) {
    // Taking pages shortens a free run or uses one up: the list only gets shorter than what was asked for.
    let pages = run_pages(space.encoded_len(freed.len()), page_bytes);
    let id = space.allocate(pages);
    if shrinking {
        space.trim();
    }
    let (bytes, crc) = encode_run(PageKind::FreeList, id, &space.encode(freed), pages, page_bytes);
    space.set_list(Run { start: id, pages });
    (PageRef { id, crc }, bytes)
}
