//! A set of pages as extents, found by place and by length.
//!
//! Neighbours are always joined, so that a page is in one extent at most and two extents never
//! touch.

use std::collections::{BTreeMap, BTreeSet};

use crate::page::PageId;

/// A row of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First page.
    pub start: PageId,
    /// Number of pages.
    pub pages: u64,
}

impl Extent {
    /// The page behind it.
    #[must_use]
    pub fn stop(self) -> u64 {
        self.start.0.saturating_add(self.pages)
    }
}

/// Pages, in rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extents {
    /// First page -> pages.
    by_start: BTreeMap<u64, u64>,
    /// (pages, first page): the shortest that is long enough is found in O(log n).
    by_len: BTreeSet<(u64, u64)>,
    pages: u64,
}

impl Extents {
    /// Pages in all extents.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of extents.
    pub(super) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// All extents, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Extent> {
        self.by_start.iter().map(|(start, pages)| Extent { start: PageId(*start), pages: *pages })
    }

    /// No page of `extent` is in the set.
    pub(super) fn is_free_of(&self, extent: Extent) -> bool {
        let stop = extent.start.0.saturating_add(extent.pages);
        let before = self.by_start.range(..stop).next_back();
        before.is_none_or(|(start, pages)| start + pages <= extent.start.0)
    }

    /// The extent that holds all of `extent`.
    fn around(&self, extent: Extent) -> Option<(u64, u64)> {
        let (start, pages) = self.by_start.range(..=extent.start.0).next_back()?;
        (extent.stop() <= start + pages).then_some((*start, *pages))
    }

    /// The last extent.
    pub(super) fn last(&self) -> Option<Extent> {
        self.by_start.last_key_value().map(|(start, pages)| Extent { start: PageId(*start), pages: *pages })
    }

    /// The lowest extent.
    pub(super) fn first(&self) -> Option<Extent> {
        self.iter().next()
    }

    /// Pages in all extents before page `limit`. Looks at each of these.
    pub(super) fn pages_before(&self, limit: PageId) -> u64 {
        let before = self.by_start.range(..limit.0);
        before.map(|(start, pages)| (*pages).min(limit.0 - start)).sum()
    }

    /// The shortest extent of at least so many pages, the lowest of that length.
    pub(super) fn best_fit(&self, pages: u64) -> Option<Extent> {
        self.by_len.range((pages, 0)..).next().map(|(len, at)| Extent { start: PageId(*at), pages: *len })
    }

    /// The lowest extent of at least so many pages. Asks for the lowest of each length that there
    /// is, and counts these in `looks`: extents of very many lengths take very many pages.
    pub(super) fn lowest_fit(&self, pages: u64, looks: &mut usize) -> Option<Extent> {
        if let Some(first) = self.first().filter(|first| first.pages >= pages) {
            return Some(first);
        }
        let (mut lowest, mut len_min) = (None::<Extent>, pages);
        while let Some(fit) = self.best_fit(len_min) {
            lowest = Some(lowest.map_or(fit, |lowest| if fit.start < lowest.start { fit } else { lowest }));
            len_min = fit.pages + 1;
            *looks += 1;
        }
        lowest
    }

    /// Adds pages, none of which may be in the set: false if one is, and nothing has changed then.
    #[must_use]
    pub(super) fn add(&mut self, extent: Extent) -> bool {
        if !self.is_free_of(extent) {
            return false;
        }
        let (mut start, mut pages) = (extent.start.0, extent.pages);
        let before = self.by_start.range(..start).next_back().map(|(at, len)| (*at, *len));
        if let Some((before, len)) = before.filter(|(at, len)| at + len == start) {
            self.forget(before, len);
            (start, pages) = (before, pages + len);
        }
        if let Some(len) = self.by_start.get(&(start + pages)).copied() {
            self.forget(start + pages, len);
            pages += len;
        }
        self.keep(start, pages);
        true
    }

    /// Takes pages out, all of which must be in the set: false if one is not, and nothing has
    /// changed then.
    #[must_use]
    pub(super) fn take(&mut self, extent: Extent) -> bool {
        let Some((start, pages)) = self.around(extent) else { return false };
        self.forget(start, pages);
        if extent.start.0 > start {
            self.keep(start, extent.start.0 - start);
        }
        if start + pages > extent.stop() {
            self.keep(extent.stop(), start + pages - extent.stop());
        }
        true
    }

    fn keep(&mut self, start: u64, pages: u64) {
        self.by_start.insert(start, pages);
        self.by_len.insert((pages, start));
        self.pages += pages;
    }

    fn forget(&mut self, start: u64, pages: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(pages, start));
        assert!(self.pages >= pages, "{} pages are counted, {pages} leave", self.pages);
        self.pages -= pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn extent(start: u64, pages: u64) -> Extent {
        Extent { start: PageId(start), pages }
    }

    /// Random adds and takes, against one flag for each page.
    #[test]
    fn extents_are_those_of_a_set_of_pages() {
        let (mut random, mut extents, mut model) = (Random::new(7), Extents::default(), [false; 200]);
        for _ in 0..20_000 {
            let start = random.below(190);
            let piece = extent(start, 1 + random.below(9));
            let pages = usize::try_from(start).unwrap()..usize::try_from(piece.stop()).unwrap();
            let is_add = random.below(2) == 0;
            let can = model[pages.clone()].iter().all(|is_in| *is_in != is_add);
            assert_eq!(extents.is_free_of(piece), model[pages.clone()].iter().all(|is_in| !is_in));
            assert_eq!(if is_add { extents.add(piece) } else { extents.take(piece) }, can, "{piece:?}");
            if can {
                model[pages].fill(is_add);
            }
            let count = model.iter().filter(|is_in| **is_in).count() as u64;
            assert_eq!((extents.pages(), extents.by_len.len()), (count, extents.len()));
            assert_eq!(extents.iter().map(|extent| extent.pages).sum::<u64>(), count);
            let longest = extents.iter().map(|extent| extent.pages).max().unwrap_or(0);
            assert_eq!(extents.best_fit(longest + 1), None);
            let fit = extents.iter().filter(|extent| extent.pages >= 3);
            assert_eq!(extents.best_fit(3), fit.min_by_key(|extent| (extent.pages, extent.start.0)));
            for pages in [1, 3] {
                let (mut looks, lowest) = (0, extents.iter().find(|extent| extent.pages >= pages));
                assert_eq!(extents.lowest_fit(pages, &mut looks), lowest);
                assert!(looks <= extents.len(), "{looks} lengths of {} extents", extents.len());
            }
        }
    }
}
