//! The space map: which pages hold data, which are free, and which are free once no reader needs
//! them any more.
//!
//! Pages freed by transaction n still belong to the state before n. They become free when n is
//! durable and no snapshot older than n is alive; until then they are *pending*. On disk there is
//! one list of both: after a restart there are no readers.

use std::collections::{BTreeMap, VecDeque};

use crate::page::{PageId, read_le};

/// A row of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First page.
    pub start: PageId,
    /// Number of pages.
    pub pages: u64,
}

/// Bytes of one extent in the list on disk.
pub const EXTENT_BYTES: usize = 16;

/// The space map of one file, owned by the one writer.
#[derive(Debug, Clone, Default)]
pub struct Space {
    /// Free extents by first page; neighbours are joined.
    free: BTreeMap<u64, u64>,
    free_pages: u64,
    pending: VecDeque<(u64, Vec<Extent>)>,
    pending_pages: u64,
    /// Where the list itself is, as of the newest commit.
    list: Option<Extent>,
    /// Pages ever used; a page from here on has never been written.
    end: u64,
}

impl Space {
    /// The space of a file with this many used pages, of which `free` (see [`Space::encode`]) are
    /// free.
    ///
    /// # Errors
    /// When the list is damaged, and how.
    pub fn decode(end: u64, first: u64, free: &[u8]) -> Result<Self, String> {
        let mut space = Self { end, ..Self::default() };
        for entry in free.chunks(EXTENT_BYTES) {
            let (Some(start), Some(pages)) = (read_le!(entry, 0, u64), read_le!(entry, 8, u64)) else {
                return Err("holds part of an extent".to_owned());
            };
            let stop = start.checked_add(pages).filter(|stop| pages > 0 && start >= first && *stop <= end);
            let Some(stop) = stop else {
                return Err(format!("holds the impossible extent of {pages} pages at {start}"));
            };
            let before = space.free.range(..stop).next_back();
            if before.is_some_and(|(before, pages)| before + pages > start) {
                return Err(format!("holds page {start} twice"));
            }
            space.release(Extent { start: PageId(start), pages });
        }
        Ok(space)
    }

    /// Everything that is free once a commit that frees `freed` is durable.
    #[must_use]
    pub fn encode(&self, freed: &[Extent]) -> Vec<u8> {
        let free = self.free.iter().map(|(start, pages)| Extent { start: PageId(*start), pages: *pages });
        let pending = self.pending.iter().flat_map(|(_, extents)| extents.iter().copied());
        let mut out = Vec::with_capacity(self.encoded_len(freed.len()));
        for extent in free.chain(pending).chain(freed.iter().copied()) {
            out.extend_from_slice(&extent.start.0.to_le_bytes());
            out.extend_from_slice(&extent.pages.to_le_bytes());
        }
        assert_eq!(out.len(), self.encoded_len(freed.len()), "the list has another length than was planned");
        out
    }

    /// As many bytes as [`Space::encode`] returns with this many freed extents.
    #[must_use]
    pub fn encoded_len(&self, freed: usize) -> usize {
        let pending: usize = self.pending.iter().map(|(_, extents)| extents.len()).sum();
        (self.free.len() + pending + freed) * EXTENT_BYTES
    }

    /// Pages ever used.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Pages that hold no data of the newest state.
    #[must_use]
    pub fn unused_pages(&self) -> u64 {
        self.free_pages + self.pending_pages
    }

    /// Takes a row of pages: the lowest free one that is long enough, else new ones at the end.
    pub fn allocate(&mut self, pages: u64) -> PageId {
        assert!(pages > 0, "no pages are asked for");
        let found = self.free.iter().find(|(_, len)| **len >= pages).map(|(start, len)| (*start, *len));
        let Some((start, len)) = found else {
            let start = self.end;
            self.end += pages;
            return PageId(start);
        };
        self.free.remove(&start);
        if len > pages {
            self.free.insert(start + pages, len - pages);
        }
        assert!(self.free_pages >= pages, "{} pages are counted free, {pages} were found", self.free_pages);
        self.free_pages -= pages;
        PageId(start)
    }

    /// Takes single pages: one row if there is one, else whatever is free, lowest first, else new
    /// ones.
    pub fn allocate_pages(&mut self, pages: u64) -> Vec<PageId> {
        if pages == 0 {
            return Vec::new();
        }
        if self.free_pages < pages || self.free.values().any(|len| *len >= pages) {
            let start = self.allocate(pages).0;
            return (start..start + pages).map(PageId).collect();
        }
        (0..pages).map(|_| self.allocate(1)).collect()
    }

    /// Takes single pages, lowest first, however scattered.
    pub fn allocate_lowest(&mut self, pages: u64) -> Vec<PageId> {
        (0..pages).map(|_| self.allocate(1)).collect()
    }

    /// Gives up the free pages at the end.
    pub fn trim(&mut self) {
        if let Some((start, pages)) = self.free.last_key_value().map(|(start, pages)| (*start, *pages))
            && start + pages == self.end
        {
            assert!(self.free_pages >= pages, "{} pages are counted free, {pages} are cut", self.free_pages);
            self.free.remove(&start);
            self.free_pages -= pages;
            self.end = start;
        }
    }

    /// Some pages that transaction `txn` or an earlier one has freed still wait for readers.
    #[must_use]
    pub fn waits_for_readers(&self, txn: u64) -> bool {
        self.pending.front().is_some_and(|(freed_by, _)| *freed_by <= txn)
    }

    /// Notes where the list is written.
    pub fn set_list(&mut self, extent: Extent) {
        assert!(self.is_taken(extent), "the list is written to {extent:?}, which is free");
        self.list = Some(extent);
    }

    /// Takes the place where the list was written last: writing the list anew frees it.
    pub fn take_list(&mut self) -> Option<Extent> {
        self.list.take()
    }

    /// Where the list is.
    #[must_use]
    pub fn list(&self) -> Option<Extent> {
        self.list
    }

    /// Gives pages back at once: no reader has ever seen them.
    pub fn release(&mut self, extent: Extent) {
        let (mut start, mut pages) = (extent.start.0, extent.pages);
        let is_inside = pages > 0 && start + pages <= self.end;
        assert!(is_inside, "{pages} pages from {start} on are freed in a file of {}", self.end);
        self.free_pages += pages;
        if let Some((before, len)) = self.free.range(..start).next_back().map(|(at, len)| (*at, *len)) {
            assert!(before + len <= start, "page {start} is freed twice");
            if before + len == start {
                self.free.remove(&before);
                (start, pages) = (before, pages + len);
            }
        }
        if let Some((next, len)) = self.free.range(start..).next().map(|(at, len)| (*at, *len)) {
            assert!(start + pages <= next, "page {next} is freed twice");
            if start + pages == next {
                self.free.remove(&next);
                pages += len;
            }
        }
        self.free.insert(start, pages);
    }

    /// None of these pages is free.
    #[must_use]
    pub fn is_taken(&self, extent: Extent) -> bool {
        let stop = extent.start.0.saturating_add(extent.pages);
        let before = self.free.range(..stop).next_back();
        stop <= self.end && before.is_none_or(|(start, pages)| start + pages <= extent.start.0)
    }

    /// Transaction `txn` is durable and has freed these.
    pub fn freed_by(&mut self, txn: u64, extents: Vec<Extent>) {
        let last = self.pending.back().map(|(last, _)| *last);
        assert!(last.is_none_or(|last| last < txn), "transaction {txn} frees pages after {last:?}");
        let outside = extents.iter().find(|extent| extent.start.0 + extent.pages > self.end);
        assert!(outside.is_none(), "{outside:?} is freed in a file of {} pages", self.end);
        self.pending_pages += extents.iter().map(|extent| extent.pages).sum::<u64>();
        self.pending.push_back((txn, extents));
    }

    /// No snapshot older than `txn` is alive.
    pub fn no_reader_before(&mut self, txn: u64) {
        while self.pending.front().is_some_and(|(freed_by, _)| *freed_by <= txn) {
            let (_, extents) = self.pending.pop_front().expect("there is a front");
            for extent in extents {
                let (waiting, pages) = (self.pending_pages, extent.pages);
                assert!(waiting >= pages, "{waiting} pages are counted as waiting, {pages} are released");
                self.pending_pages -= extent.pages;
                self.release(extent);
            }
        }
    }

    /// All unused extents, for checks.
    pub fn unused(&self) -> impl Iterator<Item = Extent> {
        let pending = self.pending.iter().flat_map(|(_, extents)| extents.iter().copied());
        self.free.iter().map(|(start, pages)| Extent { start: PageId(*start), pages: *pages }).chain(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, pages: u64) -> Extent {
        Extent { start: PageId(start), pages }
    }

    #[test]
    fn neighbours_join_and_the_lowest_fit_is_taken() {
        let mut space = Space { end: 100, ..Space::default() };
        for piece in [extent(10, 2), extent(14, 2), extent(12, 2), extent(30, 1)] {
            space.release(piece);
        }
        assert_eq!(space.free, BTreeMap::from([(10, 6), (30, 1)]));
        assert_eq!(space.allocate(4), PageId(10));
        assert_eq!(space.allocate(4), PageId(100));
        assert_eq!(space.allocate_pages(3), [PageId(14), PageId(15), PageId(30)]);
        assert_eq!(space.unused_pages(), 0);
    }

    #[test]
    fn trimming_cuts_free_pages_off_the_end_only() {
        let mut space = Space { end: 100, ..Space::default() };
        space.release(extent(10, 2));
        space.release(extent(90, 10));
        space.trim();
        assert_eq!((space.end(), space.unused_pages()), (90, 2));
        space.trim();
        assert_eq!(space.end(), 90);
        assert_eq!(space.allocate_lowest(3), [PageId(10), PageId(11), PageId(90)]);
    }

    #[test]
    fn pending_pages_wait_for_readers_and_are_on_the_list() {
        let mut space = Space { end: 100, ..Space::default() };
        space.freed_by(5, vec![extent(20, 1)]);
        space.freed_by(6, vec![extent(22, 1)]);
        space.no_reader_before(5);
        assert_eq!(space.allocate(1), PageId(20));
        assert_eq!(space.allocate(1), PageId(100));
        let list = space.encode(&[extent(50, 3)]);
        let again = Space::decode(101, 8, &list).unwrap();
        assert_eq!(again.free, BTreeMap::from([(22, 1), (50, 3)]));
    }

    #[test]
    fn a_damaged_list_is_named() {
        let list = |extents: &[Extent]| Space::default().encode(extents);
        assert!(Space::decode(100, 8, &list(&[extent(10, 5), extent(12, 1)])).unwrap_err().contains("twice"));
        assert!(Space::decode(100, 8, &list(&[extent(99, 2)])).unwrap_err().contains("impossible"));
        assert!(Space::decode(100, 8, &list(&[extent(7, 1)])).unwrap_err().contains("impossible"));
        assert!(Space::decode(100, 8, &list(&[extent(10, u64::MAX)])).unwrap_err().contains("impossible"));
        assert!(Space::decode(100, 8, &[0; 15]).unwrap_err().contains("part"));
    }
}
