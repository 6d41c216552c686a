//! The space map: which pages hold data, which are free, and which are free once no reader needs
//! them any more.
//!
//! Pages freed by transaction n still belong to the state before n. They become free when n is
//! durable and no snapshot older than n is alive; until then they are *pending*. On disk there is
//! no difference between the two: after a restart there are no readers. How the list lies on disk
//! is in `list.rs`.

mod extents;
mod list;
mod part;

use std::collections::VecDeque;

use crate::limits::SPACE_CHANGES_MAX;
use crate::mutants::{self, Mutant};
use crate::page::PageId;
pub use crate::space::extents::Extent;
use crate::space::extents::Extents;
use crate::space::part::Change;
pub use crate::space::part::{ListPart, ListRules, PlacedList};

/// The space map of one file, owned by the one writer.
#[derive(Debug, Clone, Default)]
pub struct Space {
    free: Extents,
    pending: VecDeque<(u64, Vec<Extent>)>,
    /// All that is pending.
    waiting: Extents,
    /// Where the list on disk is, as of the newest commit: a full list, then changes of it.
    list: Vec<ListPart>,
    /// How `free` differs from the list on disk, apart from pending pages, which are on it; in the
    /// order in which it happened.
    changes: Vec<Change>,
    /// There were more of them than are kept: the next list is a full one.
    forgot_changes: bool,
    /// Pages ever used; a page from here on has never been written.
    end: u64,
}

/// A state of the space map to which a commit that finds no room goes back.
#[derive(Debug, Clone, Copy)]
pub struct SpaceMark {
    changes: usize,
    end: u64,
}

impl Space {
    /// Pages ever used.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Pages that hold no data of the newest state.
    #[must_use]
    pub fn unused_pages(&self) -> u64 {
        self.free.pages() + self.waiting.pages()
    }

    /// Takes a row of pages: the shortest free one that is long enough, else new ones at the end.
    pub fn allocate(&mut self, pages: u64) -> PageId {
        assert!(pages > 0, "no pages are asked for");
        match self.free.best_fit(pages) {
            Some(found) => self.take(Extent { start: found.start, pages }),
            None => {
                self.end += pages;
                PageId(self.end - pages)
            }
        }
    }

    /// Takes a row of pages: the lowest free one that is long enough, else new ones at the end.
    pub fn allocate_low(&mut self, pages: u64) -> PageId {
        match self.free.lowest_fit(pages, &mut 0) {
            Some(found) => self.take(Extent { start: found.start, pages }),
            None => self.allocate(pages),
        }
    }

    /// Takes single pages: one row if there is one, else whatever is free, lowest first, else new
    /// ones.
    pub fn allocate_pages(&mut self, pages: u64) -> Vec<PageId> {
        if pages == 0 {
            return Vec::new();
        }
        if self.free.pages() < pages || self.free.best_fit(pages).is_some() {
            let start = self.allocate(pages).0;
            return (start..start + pages).map(PageId).collect();
        }
        self.allocate_lowest(pages)
    }

    /// Takes single pages, lowest first, however scattered.
    pub fn allocate_lowest(&mut self, pages: u64) -> Vec<PageId> {
        let mut ids = Vec::new();
        let mut left = pages;
        while left > 0 {
            let taken = if let Some(first) = self.free.first() {
                let taken = Extent { start: first.start, pages: first.pages.min(left) };
                self.take(taken);
                taken
            } else {
                Extent { start: self.allocate(left), pages: left }
            };
            ids.extend((taken.start.0..taken.stop()).map(PageId));
            left -= taken.pages;
        }
        ids
    }

    /// Gives pages back that a dropped transaction has taken; the last ones that it has taken come
    /// first. Those from page `end` on were new: the file may have no room for them.
    pub fn give_back(&mut self, extent: Extent, end: u64) {
        self.cut_new(end);
        if extent.stop() == self.end && extent.start.0 >= end {
            self.end = extent.start.0;
        } else {
            self.release(extent);
        }
    }

    /// Gives up the free pages at the end that lie behind page `end`: a dropped transaction has
    /// taken them, and has replaced what it had placed there.
    pub fn cut_new(&mut self, end: u64) {
        let Some(last) = self.free.last().filter(|last| last.stop() == self.end && self.end > end) else {
            return;
        };
        let start = last.start.0.max(end);
        let new = Extent { start: PageId(start), pages: self.end - start };
        self.take(new);
        self.end = start;
        let undone = [Change { extent: new, is_taken: false }, Change { extent: new, is_taken: true }];
        if self.changes.ends_with(&undone) {
            self.changes.truncate(self.changes.len() - undone.len());
        }
    }

    /// Gives up the free pages at the end.
    pub fn trim(&mut self) {
        if let Some(last) = self.free.last().filter(|last| last.stop() == self.end) {
            self.take(last);
            self.end = last.start.0;
        }
    }

    /// Some pages that transaction `txn` or an earlier one has freed still wait for readers.
    #[must_use]
    pub fn waits_for_readers(&self, txn: u64) -> bool {
        self.pending.front().is_some_and(|(freed_by, _)| *freed_by <= txn)
    }

    /// The lowest free row of at least so many pages; adds the lengths that it has looked at to
    /// `looks`.
    #[must_use]
    pub fn lowest_free(&self, pages: u64, looks: &mut usize) -> Option<Extent> {
        self.free.lowest_fit(pages, looks)
    }

    /// Free pages, of no reader, before page `limit`. Looks at every free extent there.
    #[must_use]
    pub fn free_before(&self, limit: PageId) -> u64 {
        self.free.pages_before(limit)
    }

    /// Pages that hold data of the newest state, or of one that may be read.
    #[must_use]
    pub fn held_pages(&self) -> u64 {
        self.end - self.free.pages()
    }

    /// Takes free pages.
    fn take(&mut self, extent: Extent) -> PageId {
        assert!(self.free.take(extent), "{extent:?} is taken, but not free");
        self.changes.push(Change { extent, is_taken: true });
        extent.start
    }

    /// Gives pages back at once: no reader has ever seen them.
    pub fn release(&mut self, extent: Extent) {
        self.free_again(extent);
        if mutants::is(Mutant::ReleaseNotNoted) {
            return;
        }
        if self.changes.last() == Some(&Change { extent, is_taken: true }) {
            self.changes.pop();
            return;
        }
        // Many transactions may be undone before one is committed: while the disk is full.
        if self.changes.len() >= SPACE_CHANGES_MAX {
            self.changes.clear();
            self.forgot_changes = true;
        }
        self.changes.push(Change { extent, is_taken: false });
    }

    fn free_again(&mut self, extent: Extent) {
        let is_inside = extent.pages > 0 && extent.stop() <= self.end;
        assert!(is_inside, "{extent:?} is freed in a file of {} pages", self.end);
        assert!(self.free.add(extent), "a page of {extent:?} is freed twice");
    }

    /// None of these pages is free or pending.
    #[must_use]
    pub fn is_taken(&self, extent: Extent) -> bool {
        let has_none = |extents: &Extents| extents.is_free_of(extent);
        extent.stop() <= self.end && has_none(&self.free) && has_none(&self.waiting)
    }

    /// The list on disk names exactly the pages that are unused: no transaction has changed
    /// anything since.
    #[must_use]
    pub fn is_as_listed(&self) -> bool {
        self.changes.is_empty() && !self.forgot_changes
    }

    /// The state to go back to if a commit finds no room.
    #[must_use]
    pub fn mark(&self) -> SpaceMark {
        SpaceMark { changes: self.changes.len(), end: self.end }
    }

    /// Goes back: gives what was taken since.
    ///
    /// # Panics
    /// If pages were released since.
    pub fn undo(&mut self, mark: SpaceMark) {
        self.end = mark.end;
        for change in self.changes.split_off(mark.changes).into_iter().rev() {
            assert!(change.is_taken, "{:?} was released by a commit that is undone", change.extent);
            self.free_again(change.extent);
        }
    }

    /// Transaction `txn` is durable, with its list, and has freed these.
    pub fn committed(&mut self, txn: u64, freed: Vec<Extent>, list: &PlacedList) {
        let last = self.pending.back().map(|(last, _)| *last);
        assert!(last.is_none_or(|last| last < txn), "transaction {txn} frees pages after {last:?}");
        let outside = freed.iter().find(|extent| extent.stop() > self.end);
        assert!(outside.is_none(), "{outside:?} is freed in a file of {} pages", self.end);
        for extent in &freed {
            assert!(self.waiting.add(*extent), "a page of {extent:?} is freed twice");
        }
        self.pending.push_back((txn, freed));
        self.changes.clear();
        self.forgot_changes = false;
        self.set_list(list);
    }

    /// No snapshot older than `txn` is alive.
    pub fn no_reader_before(&mut self, txn: u64) {
        while self.pending.front().is_some_and(|(freed_by, _)| *freed_by <= txn) {
            let (_, extents) = self.pending.pop_front().expect("there is a front");
            for extent in extents {
                assert!(self.waiting.take(extent), "{extent:?} is released, but does not wait");
                self.free_again(extent);
            }
        }
    }

    /// All unused extents, for checks.
    pub fn unused(&self) -> impl Iterator<Item = Extent> {
        self.free.iter().chain(self.waiting.iter())
    }

    /// This space and another have the same pages unused, and their lists in the same places.
    #[must_use]
    pub fn is_equal(&self, other: &Self) -> bool {
        let unused = |space: &Self| {
            let mut all = space.free.clone();
            space.waiting.iter().for_each(|extent| assert!(all.add(extent), "{extent:?} is free and waits"));
            all
        };
        self.end == other.end && self.list == other.list && unused(self) == unused(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PageKind, extent_content};
    use crate::random::Random;

    const PAGE: u32 = 256;
    const RULES: ListRules = ListRules { may_chain: true, is_shrinking: false };

    fn extent(start: u64, pages: u64) -> Extent {
        Extent { start: PageId(start), pages }
    }

    fn space(end: u64, free: &[Extent]) -> Space {
        let mut space = Space { end, ..Space::default() };
        free.iter().for_each(|extent| space.release(*extent));
        space
    }

    fn free(space: &Space) -> Vec<(u64, u64)> {
        space.free.iter().map(|extent| (extent.start.0, extent.pages)).collect()
    }

    #[test]
    fn neighbours_join_and_the_best_fit_is_taken() {
        let mut space = space(100, &[extent(10, 2), extent(14, 2), extent(12, 2), extent(30, 1)]);
        assert_eq!(free(&space), [(10, 6), (30, 1)]);
        assert_eq!(space.allocate(1), PageId(30));
        assert_eq!(space.allocate(4), PageId(10));
        assert_eq!(space.allocate(4), PageId(100));
        space.release(extent(40, 1));
        assert_eq!(space.allocate_pages(3), [PageId(14), PageId(15), PageId(40)]);
        assert_eq!(space.unused_pages(), 0);
    }

    #[test]
    fn trimming_cuts_free_pages_off_the_end_only() {
        let mut space = space(100, &[extent(10, 2), extent(90, 10)]);
        space.trim();
        assert_eq!((space.end(), space.unused_pages()), (90, 2));
        space.trim();
        assert_eq!(space.end(), 90);
        assert_eq!(space.allocate_lowest(3), [PageId(10), PageId(11), PageId(90)]);
    }

    /// Also where a transaction has replaced values of its own.
    #[test]
    fn what_a_dropped_transaction_has_placed_at_the_end_is_not_in_the_file() {
        let mut space = space(100, &[extent(10, 2)]);
        let (before, listed) = (space.clone(), space.changes.len());
        for replaced in 0..4 {
            let placed = [3, 2, 4, 1].map(|pages| extent(space.allocate(pages).0, pages));
            assert_eq!((space.end(), placed[0].start), (108, PageId(100)), "two were free");
            space.release(placed[replaced]);
            for (_, kept) in placed.into_iter().enumerate().filter(|(at, _)| *at != replaced).rev() {
                space.give_back(kept, 100);
            }
            space.cut_new(100);
            assert!(space.is_equal(&before), "{space:?}");
            assert_eq!(space.changes.len(), listed, "nothing is left to write: {space:?}");
        }
    }

    #[test]
    fn pending_pages_wait_for_readers() {
        let mut space = space(100, &[]);
        for (txn, start) in [(5, 20), (6, 22)] {
            let list = space.place_list(&mut Vec::new(), PAGE, RULES);
            space.committed(txn, vec![extent(start, 1)], &list);
        }
        space.no_reader_before(5);
        assert_eq!(space.allocate(1), PageId(20));
        assert_eq!(space.unused_pages(), 1);
        space.no_reader_before(6);
        assert_eq!(space.allocate(1), PageId(22));
    }

    /// Opens what was written, newest part first.
    fn read(end: u64, parts: &[(ListPart, Vec<u8>, PageKind)]) -> Result<Space, String> {
        let content = |(part, bytes, kind): &(ListPart, Vec<u8>, PageKind)| {
            let (pages, content, _) = extent_content(bytes, *kind, part.at.id).unwrap();
            (ListPart::new(part.at, pages), content.to_vec())
        };
        let parts: Vec<_> = parts.iter().rev().map(content).collect();
        for (at, (_, content)) in parts.iter().enumerate().filter(|(at, _)| at + 1 < parts.len()) {
            let before = ListPart::before(content).unwrap();
            assert_eq!(before, (parts[at + 1].0.at, parts.len() - 1 - at));
        }
        let parts: Vec<_> = parts.iter().map(|(part, content)| (*part, content.as_slice())).collect();
        Space::decode(end, 8, &parts)
    }

    /// Commits of random size, some undone, some that shrink: after each, the list on disk says
    /// what is unused, and few bytes were written.
    #[test]
    fn the_list_on_disk_says_what_is_unused() {
        for seed in 0..4 {
            let mut random = Random::new(seed);
            let scattered: Vec<Extent> = (0..2_000).map(|at| extent(20 + 3 * at, 1)).collect();
            let mut space = space(8_000, &scattered);
            let (mut parts, mut used, mut written): (Vec<_>, Vec<Extent>, usize) =
                (Vec::new(), Vec::new(), 0);
            let mut fulls = 0;
            for txn in 1..=300 {
                let is_shrinking = random.one_in(50);
                let value = extent(space.allocate(2).0, 2);
                if random.one_in(3) {
                    space.release(value); // a transaction that was dropped
                } else {
                    used.push(value);
                }
                let mark = space.mark();
                let tries = 1 + u64::from(random.one_in(10));
                for attempt in 1..=tries {
                    let before = space.clone();
                    let nodes = space.allocate_pages(1 + random.below(20));
                    let mut freed: Vec<Extent> = Vec::new();
                    for _ in 0..random.below(15).min(used.len() as u64) {
                        freed.push(
                            used.swap_remove(usize::try_from(random.below(used.len() as u64)).unwrap()),
                        );
                    }
                    let kept = freed.clone();
                    let list = space.place_list(&mut freed, PAGE, ListRules { is_shrinking, ..RULES });
                    if attempt < tries {
                        space.undo(mark);
                        used.extend(kept);
                        assert!(space.is_equal(&before) && space.changes == before.changes);
                        continue;
                    }
                    used.extend(nodes.iter().map(|page| extent(page.0, 1)));
                    written += list.bytes.len();
                    fulls += usize::from(list.is_full);
                    if list.is_full {
                        parts.clear();
                    }
                    let kind = if list.is_full { PageKind::FreeList } else { PageKind::FreeListChanges };
                    parts.push((list.part(), list.bytes.clone(), kind));
                    space.committed(txn, freed, &list);
                    space.no_reader_before(txn.saturating_sub(random.below(4)));
                }
                if !random.one_in(16) {
                    continue;
                }
                let again = read(space.end(), &parts).unwrap();
                assert!(again.is_equal(&space) && space.is_as_listed(), "seed {seed} txn {txn}");
            }
            // The full list has some 30 kB: 300 of them would be 9 MB.
            assert!(written < 1_500_000, "{written} bytes were written, {fulls} full lists");
        }
    }

    #[test]
    fn a_damaged_list_is_named() {
        let entries = |extents: &[(u64, u64)]| -> Vec<u8> {
            extents
                .iter()
                .flat_map(|(start, pages)| [start.to_le_bytes(), pages.to_le_bytes()])
                .flatten()
                .collect()
        };
        let part = ListPart::new(crate::page::PageRef { id: PageId(9), crc: 0 }, 1);
        let error = |content: &[u8]| Space::decode(100, 8, &[(part, content)]).unwrap_err();
        assert!(error(&entries(&[(10, 5), (12, 1)])).contains("twice"));
        assert!(error(&entries(&[(99, 2)])).contains("impossible"));
        assert!(error(&entries(&[(7, 1)])).contains("impossible"));
        assert!(error(&entries(&[(10, u64::MAX)])).contains("impossible"));
        assert!(error(&entries(&[(10, 5), (1 << 63 | 14, 2)])).contains("not free"));
        assert!(error(&entries(&[(9, 1)])).contains("its own pages"));
        assert!(error(&[0; 15]).contains("part"));
    }
}
