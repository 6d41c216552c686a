//! One open tree file: how it is found when it is opened, its length, and the states that are still
//! read.
//!
//! Nothing has to be repaired when a file is opened: the newest meta slot that is whole names its
//! state. How a state comes to be is in `commit.rs`.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::disk::Disk;
use crate::limits::{
    GROW_BYTES_MAX, GROW_BYTES_MIN, PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX, PAGE_BYTES_MIN, SPACE_PARTS_MAX,
};
use crate::meta::{FORMAT_NEWEST, Meta, SLOT_BYTES, SLOT_OFFSETS, first_page};
use crate::mutants::{self, Mutant};
use crate::page::{PageKind, Pages, Verified};
use crate::snapshot::{Snapshot, SnapshotParts};
use crate::space::{ListPart, Space};
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

/// Bytes of a tree file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// All that were ever used. Its length may be more: it grows ahead of what is written.
    pub file: u64,
    /// Of these, the ones that hold data of the newest state.
    pub in_use: u64,
}

/// An open file; the only one who writes to it.
pub struct Db {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) space: Space,
    pub(crate) current: Snapshot,
    /// Snapshots that may still be read, oldest first.
    live: VecDeque<(u64, Weak<SnapshotParts>)>,
    file_len: u64,
    /// The newest state is durable: this process has committed it.
    is_settled: bool,
    /// A commit has failed, or is under way: what is in the file is unknown.
    pub(crate) poisoned: bool,
    /// Pages on their way to the file; kept because new memory costs more than what is done with
    /// it.
    pub(crate) buffer: Vec<u8>,
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
    ///
    /// # Panics
    /// If the options are none that a file can have.
    pub fn open(disk: Arc<dyn Disk>, options: DbOptions) -> Result<Self> {
        let DbOptions { page_bytes_if_new } = options;
        let is_possible = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes_if_new);
        assert!(is_possible && page_bytes_if_new.is_power_of_two(), "pages of {page_bytes_if_new} bytes");
        let map = disk.map()?;
        let bytes = map.bytes();
        let slots = SLOT_OFFSETS.map(|offset| {
            let start = usize::try_from(offset).expect("a small constant");
            bytes.get(start..start + SLOT_BYTES)
        });
        if let Some(format) = slots.iter().flatten().filter_map(|slot| Meta::format_of(slot)).max()
            && format > FORMAT_NEWEST
        {
            return Err(Error::Newer { format, known: FORMAT_NEWEST });
        }
        let newest = slots.iter().flatten().filter_map(|slot| Meta::decode(slot)).max_by_key(|meta| meta.txn);
        let meta = match newest {
            Some(meta) => meta,
            // Nothing was ever committed: a new file, or one whose making was cut short.
            None if bytes.iter().take(2 * 4096).all(|byte| *byte == 0) => Meta::empty(page_bytes_if_new),
            None => return Err(Error::corrupt("neither meta slot can be read")),
        };
        let file_len = bytes.len() as u64;
        if meta.txn > 0 && meta.pages > file_len / u64::from(meta.page_bytes) {
            return Err(Error::corrupt(format!("the file has {file_len} bytes but {} pages", meta.pages)));
        }
        let verified = Arc::new(Verified::default().resized(meta.pages));
        let pages = Pages { map, page_bytes: meta.page_bytes, verified };
        let space = read_space(&pages, &meta)?;
        assert_eq!(space.end(), meta.pages, "the space ends elsewhere than the file");
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

    /// Bytes of the file and in it.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let page_bytes = u64::from(self.current.parts().meta.page_bytes);
        let end = self.space.end();
        Sizes { file: end * page_bytes, in_use: (end - self.space.unused_pages()) * page_bytes }
    }

    pub(crate) fn watch(&mut self, snapshot: &Snapshot) {
        let last = self.live.back().map(|(txn, _)| *txn);
        assert!(last < Some(snapshot.txn()), "state {} is published after {last:?}", snapshot.txn());
        self.live.push_back((snapshot.txn(), Arc::downgrade(snapshot.parts())));
    }

    /// Frees what no living snapshot holds any more.
    pub(crate) fn release_unread(&mut self) {
        while self.live.len() > 1 && self.live[0].1.strong_count() == 0 {
            self.live.pop_front();
        }
        let is_read = self.live.front().filter(|_| !mutants::is(Mutant::FreedPageReusedUnderReader));
        let oldest = is_read.map_or(self.current.txn(), |(txn, _)| *txn);
        assert!(
            oldest <= self.current.txn(),
            "state {oldest} is read, but {} is the newest",
            self.current.txn()
        );
        self.space.no_reader_before(oldest);
    }

    /// Makes room for pages up to the space's end, in steps so large that commits seldom change the
    /// length; if the disk has no room for a step, just as much as is needed.
    pub(crate) fn grow(&mut self, page_bytes: u32) -> Result<()> {
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
        assert!(len >= needed, "the file was given {len} bytes, {needed} are needed");
        self.file_len = len;
        Ok(())
    }

    /// Makes the state that the file was opened with durable. It may be in the kernel's cache only:
    /// its slot was written by a process that ended before the sync, or because of it (and after a
    /// failed sync the kernel takes what it holds for clean). Its pages were synced before the slot
    /// was written. But the next commit writes to pages of the state before it, which would then
    /// still be the one on the disk. So the slot is written and synced again first.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if !self.is_settled && !mutants::is(Mutant::OpenedStateUnsettled) {
            let meta = &self.current.parts().meta;
            self.disk.write_at(slot_offset(meta), &meta.encode())?;
            self.disk.sync()?;
            self.is_settled = true;
        }
        Ok(())
    }

    /// Cuts off what lies behind the last page in use. No reader looks there any more: those pages
    /// were free, not just freed, and the state that no longer names them is durable.
    pub(crate) fn cut(&mut self, page_bytes: u32) -> Result<()> {
        let needed = self.space.end() * u64::from(page_bytes);
        assert!(
            needed >= first_page(page_bytes) * u64::from(page_bytes),
            "{needed} bytes hold no meta slots"
        );
        if needed < self.file_len {
            self.disk.set_len(needed)?;
            self.file_len = needed;
        }
        Ok(())
    }
}

/// Reads the list of unused pages, from its newest part to the full list.
pub(crate) fn read_space(pages: &Pages, meta: &Meta) -> Result<Space> {
    let mut parts = Vec::new();
    let mut next = meta.free.map(|at| (at, meta.free_is_whole, SPACE_PARTS_MAX));
    while let Some((at, is_full, place)) = next {
        let kind = if is_full { PageKind::FreeList } else { PageKind::FreeListChanges };
        let (extent, content) = pages.extent(kind, at)?;
        parts.push((ListPart::new(at, extent), content));
        next = None;
        if !is_full {
            let damage = |what: &str| pages.damage(at.id, format!("(the free list) {what}"));
            let (before, parts_before) = ListPart::before(content).map_err(|what| damage(&what))?;
            if parts_before >= place {
                return Err(damage("is a chain that does not end"));
            }
            next = Some((before, parts_before == 1, parts_before));
        }
    }
    let newest = meta.free.unwrap_or_default().id;
    Space::decode(meta.pages, first_page(meta.page_bytes), &parts)
        .map_err(|what| pages.damage(newest, format!("(the free list) {what}")))
}

pub(crate) fn slot_offset(meta: &Meta) -> u64 {
    SLOT_OFFSETS[usize::from(meta.txn % 2 == 1)]
}
