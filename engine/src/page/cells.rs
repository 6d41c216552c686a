//! The cells of a page being changed: owned, in key order, ready to be laid out.

use std::ops::Range;

use crate::key_parts::KeyParts;
use crate::page::cell::{LEAF_HEAD, cell_key, whole_cell_head};
use crate::page::{
    BEGIN_LEN, BEGIN_MAX, BEGIN_MIN, HEADER, PageId, PageKind, PageRef, PageView, SHARING_LEAF, SLOT,
};

/// Bytes that the cells of a page may grow by before they move to other memory.
const ROOM: usize = 256;

/// Cells of one leaf or branch, packed one after the other, with whole keys.
#[derive(Debug, Clone, Default)]
pub struct Cells {
    data: Vec<u8>,
    ends: Vec<u32>,
    /// They are those of a leaf that has once what all of its keys begin with, where that is
    /// shorter.
    are_sharing: bool,
}

impl Cells {
    /// Copies the cells of a page.
    pub(crate) fn from_page(page: &PageView<'_>) -> Option<Self> {
        let (begin, len) = (page.begin(), page.len());
        let mut cells = Self::default();
        // With room for a cell that grows or comes: most pages are read to be changed.
        cells.data.reserve(page.cells_bytes() + len * begin.len() + ROOM);
        cells.ends.reserve(len);
        for at in 0..page.len() {
            let cell = page.cell(at)?;
            if begin.is_empty() {
                cells.push(&[cell]);
            } else {
                let head = whole_cell_head(cell, begin.len())?;
                cells.push(&[&head, begin, &cell[head.len()..]]);
            }
        }
        cells.are_sharing = !begin.is_empty();
        Some(cells)
    }

    /// From now on the leaf has once what all of its keys begin with.
    pub(crate) fn share(&mut self) {
        self.are_sharing = true;
    }

    /// The leaf may have once what its keys begin with.
    pub(crate) fn are_sharing(&self) -> bool {
        self.are_sharing
    }

    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes a page with these cells needs.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes_of(0..self.len())
    }

    /// Bytes a page with these cells and those of another leaf behind them needs.
    pub(crate) fn page_bytes_with(&self, behind: &Self) -> usize {
        let begin = match (self.keys().0, behind.keys().1) {
            (Some(first), Some(last)) if self.are_sharing || behind.are_sharing => shared_len(first, last),
            _ => 0,
        };
        laid_out_bytes(self.len() + behind.len(), self.data.len() + behind.data.len(), begin)
    }

    /// Bytes a page with these cells and another one behind them, of so many bytes, needs.
    pub(crate) fn page_bytes_with_cell(&self, key: &[u8], bytes: usize) -> usize {
        let begin = match self.keys().0 {
            Some(first) if self.are_sharing => shared_len(first, key),
            _ => 0,
        };
        laid_out_bytes(self.len() + 1, self.data.len() + bytes, begin)
    }

    /// The first key of a leaf and the last one.
    fn keys(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        let key = |at: usize| cell_key(PageKind::Leaf, self.cell(at));
        if self.is_empty() { (None, None) } else { (key(0), key(self.len() - 1)) }
    }

    /// Bytes that all keys begin with and that the page has once.
    fn begin_len(&self) -> usize {
        self.begin_len_of(0..self.len())
    }

    /// The same for a page with some neighbours.
    fn begin_len_of(&self, some: Range<usize>) -> usize {
        if !self.are_sharing || some.len() < 2 {
            return 0;
        }
        let key = |at: usize| cell_key(PageKind::Leaf, self.cell(at));
        match (key(some.start), key(some.end - 1)) {
            (Some(first), Some(last)) => shared_len(first, last),
            _ => 0,
        }
    }

    /// The same, or 0 where that is no shorter.
    fn worthy_begin(&self) -> usize {
        let begin = self.begin_len();
        if is_worth(begin, self.len()) { begin } else { 0 }
    }

    /// The other keys begin with more bytes alike than all of them with the first one.
    pub(crate) fn first_breaks_begin(&self) -> bool {
        let second = (self.len() > 1).then(|| cell_key(PageKind::Leaf, self.cell(1))).flatten();
        match (self.keys(), second) {
            ((Some(first), Some(last)), Some(second)) if self.are_sharing => {
                shared_len(first, last) < shared_len(second, last)
            }
            _ => false,
        }
    }

    fn bounds(&self, at: usize) -> (usize, usize) {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        (start, self.ends[at] as usize)
    }

    /// One cell's bytes.
    #[must_use]
    pub fn cell(&self, at: usize) -> &[u8] {
        let (start, end) = self.bounds(at);
        &self.data[start..end]
    }

    /// Bytes of all cells.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Forgets all cells, and keeps their memory for others.
    pub(crate) fn clear(&mut self) {
        self.data.clear();
        self.ends.clear();
    }

    /// Adds a cell, given in parts, behind the last one.
    pub fn push(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.data.extend_from_slice(part);
        }
        self.ends.push(position(self.data.len()));
    }

    /// No cells yet, with room for about as much as these are.
    pub(crate) fn like(other: &Self) -> Self {
        let (data, ends) = (Vec::with_capacity(other.data.len() + ROOM), Vec::with_capacity(other.len() + 1));
        Self { data, ends, are_sharing: other.are_sharing }
    }

    /// Some neighbours, in memory of their own.
    fn part(&self, some: Range<usize>) -> Self {
        let (data, ends) =
            (Vec::with_capacity(self.span(some.clone()).len()), Vec::with_capacity(some.len()));
        let mut part = Self { data, ends, are_sharing: self.are_sharing };
        part.push_all(self, some);
        part
    }

    /// Where the bytes of some neighbours are.
    fn span(&self, some: Range<usize>) -> Range<usize> {
        let end_of = |cells: usize| cells.checked_sub(1).map_or(0, |last| self.ends[last] as usize);
        end_of(some.start)..end_of(some.end)
    }

    /// Adds some neighbours of `other` behind the last one.
    pub(crate) fn push_all(&mut self, other: &Self, some: Range<usize>) {
        let span = other.span(some.clone());
        let (to, from) = (position(self.data.len()), position(span.start));
        self.data.extend_from_slice(&other.data[span]);
        self.ends.extend(other.ends[some].iter().map(|end| end - from + to));
    }

    /// Bytes that a page with some neighbours needs.
    fn page_bytes_of(&self, some: Range<usize>) -> usize {
        let begin = self.begin_len_of(some.clone());
        laid_out_bytes(some.len(), self.span(some).len(), begin)
    }

    /// Where the first pages end that are filled with cells from `from` on, as long as more than
    /// one page is left; one cell always fits.
    fn full_pages(&self, from: usize, page_bytes: usize) -> Vec<usize> {
        let (mut ends, mut start) = (Vec::new(), from);
        while self.page_bytes_of(start..self.len()) > page_bytes {
            let (mut low, mut high) = (start + 1, self.len() - 1);
            // A page with one more cell is no shorter: it takes more than what it no longer shares.
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if self.page_bytes_of(start..middle) <= page_bytes {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            ends.push(low);
            start = low;
        }
        ends
    }

    /// Divides cells that are too many for a page, so that each part fits one: those of the first
    /// stay, the others are returned. `leaves_full` has all pages but the last one as full as can
    /// be; two are about as full else. `first_apart` has the first cell in a page of its own.
    pub(crate) fn divide(&mut self, page_bytes: usize, leaves_full: bool, first_apart: bool) -> Vec<Self> {
        let mut ends = self.full_pages(usize::from(first_apart), page_bytes);
        if first_apart {
            ends.insert(0, 1);
        } else if !leaves_full && ends.len() == 1 {
            let middle = self.middle();
            let fits = |some| self.page_bytes_of(some) <= page_bytes;
            if fits(0..middle) && fits(middle..self.len()) {
                ends[0] = middle;
            }
        }
        let stops = ends.iter().skip(1).copied().chain([self.len()]);
        let rest = ends.iter().zip(stops).map(|(start, stop)| self.part(*start..stop)).collect();
        *self = self.part(0..ends[0]);
        rest
    }

    /// Puts bytes in the place of those from `start` to `end`: one move of what lies behind, where
    /// that is another number of them.
    fn splice(&mut self, start: usize, end: usize, bytes: &[u8]) {
        let (len, behind) = (self.data.len(), start + bytes.len());
        if behind > end {
            self.data.resize(len + behind - end, 0);
        }
        self.data.copy_within(end..len, behind);
        self.data.truncate(len - (end - start) + bytes.len());
        self.data[start..behind].copy_from_slice(bytes);
    }

    /// Puts a cell before the one at `at`, or behind the last.
    pub fn insert(&mut self, at: usize, cell: &[u8]) {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        self.splice(start, start, cell);
        self.ends.insert(at, position(start));
        for end in &mut self.ends[at..] {
            *end += position(cell.len());
        }
    }

    /// Replaces a cell.
    pub fn replace(&mut self, at: usize, cell: &[u8]) {
        let (start, end) = self.bounds(at);
        self.splice(start, end, cell);
        if cell.len() != end - start {
            for later in &mut self.ends[at..] {
                *later = *later + position(cell.len()) - position(end - start);
            }
        }
    }

    /// Removes a cell.
    pub fn remove(&mut self, at: usize) {
        let (start, end) = self.bounds(at);
        self.data.drain(start..end);
        self.ends.remove(at);
        for later in &mut self.ends[at..] {
            *later -= position(end - start);
        }
    }

    /// Cuts off everything from `at` on and returns it.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(0 < at && at < self.len(), "{} cells divided at {at} leave an empty page", self.len());
        let start = self.ends[at - 1];
        let data = self.data.split_off(start as usize);
        let ends = self.ends.split_off(at).into_iter().map(|end| end - start).collect();
        Self { data, ends, are_sharing: self.are_sharing }
    }

    /// Adds all cells of `other` behind the last one.
    pub fn extend(&mut self, other: &Self) {
        self.push_all(other, 0..other.len());
        self.are_sharing |= other.are_sharing;
    }

    /// Where to divide: the cell that begins the second part, so that the larger part is as small
    /// as can be. As no cell takes more than half a page, both parts of a page with one cell too
    /// many fit a page.
    ///
    /// So they do in a leaf whose keys share a beginning of B bytes, behind a change that leaves B
    /// as it was (`divide` sees whether others do). Of the C bytes behind a page's header, a cell
    /// takes C / 2 at most with its whole key and its slot, C / 2 - B without the beginning. Before
    /// the change the leaf fitted: its cells, each without it, take no more than
    /// C - (B + 2) + (C / 2 - B) now. The larger part has at most half of that and half of a cell,
    /// C - 1.5 B - 1, and with the beginning, B + 2, it has C - B / 2 + 1: no more than C, for B is
    /// at least `BEGIN_MIN`. The keys of one part may share more, which makes the part shorter.
    #[must_use]
    pub fn middle(&self) -> usize {
        assert!(self.len() > 1, "{} cells cannot be divided", self.len());
        let begin = self.worthy_begin();
        let before =
            |at: usize| if at == 0 { 0 } else { self.ends[at - 1] as usize + at * SLOT - at * begin };
        let all = before(self.len());
        let (mut low, mut high) = (1, self.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            if before(middle) * 2 < all {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // The cell that crosses the middle goes to the side that it makes less full.
        let larger = |at: usize| before(at).max(all - before(at));
        if low > 1 && larger(low - 1) < larger(low) { low - 1 } else { low }
    }

    /// The bytes behind the ends of a leaf that has once what its keys begin with.
    fn encode_sharing(&self, begin: usize, out: &mut Vec<u8>) {
        let first = self.keys().0.expect("a cell of our own");
        out.extend_from_slice(&u16::try_from(begin).expect("a key is short").to_le_bytes());
        out.extend_from_slice(&first[..begin]);
        for at in 0..self.len() {
            let cell = self.cell(at);
            let key = cell_key(PageKind::Leaf, cell).expect("a cell of our own");
            let own = u16::try_from(key.len() - begin).expect("a key is short");
            out.extend_from_slice(&own.to_le_bytes());
            out.extend_from_slice(&cell[2..LEAF_HEAD]);
            out.extend_from_slice(&cell[LEAF_HEAD + begin..]);
        }
    }

    /// Lays the page out behind what `out` holds and returns its checksum.
    ///
    /// # Panics
    /// If the cells do not fit (a page that is too full is divided before), or the page reads
    /// otherwise than its cells.
    pub fn encode(&self, kind: PageKind, id: PageId, page_bytes: u32, out: &mut Vec<u8>) -> PageRef {
        let page = page_bytes as usize;
        assert!(self.page_bytes() <= page, "page {} overflows: {} bytes", id.0, self.page_bytes());
        let ends_at = self.ends.last().map_or(0, |end| *end as usize);
        assert_eq!(ends_at, self.data.len(), "the cells of page {} end elsewhere than their bytes", id.0);
        let start = out.len();
        let begin = self.worthy_begin();
        out.push(if begin > 0 { SHARING_LEAF } else { kind as u8 });
        out.push(0);
        out.extend_from_slice(&u16::try_from(self.len()).expect("cells of a page").to_le_bytes());
        out.extend_from_slice(&position(self.data.len() - self.len() * begin).to_le_bytes());
        out.extend_from_slice(&id.0.to_le_bytes());
        for (at, end) in self.ends.iter().enumerate() {
            let end = *end as usize - (at + 1) * begin;
            out.extend_from_slice(&u16::try_from(end).expect("offset in a page").to_le_bytes());
        }
        if begin > 0 {
            self.encode_sharing(begin, out);
        } else {
            out.extend_from_slice(&self.data);
        }
        out.resize(start + page, 0);
        let read_back = PageView::parse(&out[start..], id).map(|view| (view.kind(), view.len()));
        assert_eq!(read_back, Ok((kind, self.len())), "page {} reads otherwise than it was written", id.0);
        PageRef { id, crc: crc32fast::hash(&out[start..]) }
    }
}

/// Bytes of a page with so many cells of so many bytes, whose keys begin with so many bytes alike.
fn laid_out_bytes(cells: usize, bytes: usize, begin: usize) -> usize {
    let whole = HEADER + cells * SLOT + bytes;
    if is_worth(begin, cells) { whole + BEGIN_LEN + begin - cells * begin } else { whole }
}

/// A page with so many cells is shorter if it has a beginning of so many bytes once.
fn is_worth(begin: usize, cells: usize) -> bool {
    begin >= BEGIN_MIN && (cells - 1) * begin > BEGIN_LEN
}

/// Bytes that the first key and the last one begin with alike, and so all between.
fn shared_len(first: &[u8], last: &[u8]) -> usize {
    KeyParts::from(first).common(KeyParts::from(last)).min(BEGIN_MAX)
}

/// Positions inside one node; a node is split long before it has 4 GiB.
fn position(at: usize) -> u32 {
    u32::try_from(at).expect("a node is smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::cell::leaf_cell_bytes_max;

    fn text(cells: &Cells) -> Vec<String> {
        (0..cells.len()).map(|at| String::from_utf8(cells.cell(at).to_vec()).unwrap()).collect()
    }

    #[test]
    fn cells_keep_their_order_through_every_change() {
        let mut cells = Cells::default();
        cells.push(&[b"b", b"b"]);
        cells.push(&[b"d"]);
        cells.insert(0, b"a");
        cells.insert(2, b"cc");
        assert_eq!(text(&cells), ["a", "bb", "cc", "d"]);
        cells.replace(1, b"BBB");
        cells.remove(3);
        assert_eq!(text(&cells), ["a", "BBB", "cc"]);
        let rest = cells.split_off(1);
        assert_eq!((text(&cells), text(&rest)), (vec!["a".into()], vec!["BBB".into(), "cc".into()]));
        cells.extend(&rest);
        assert_eq!(text(&cells), ["a", "BBB", "cc"]);
        assert_eq!(cells.middle(), 2);
    }

    #[test]
    fn dividing_a_page_with_one_cell_too_many_leaves_two_that_fit() {
        let page_bytes = 256;
        let longest = leaf_cell_bytes_max(page_bytes);
        let mut random = crate::random::Random::new(5);
        for _ in 0..20_000 {
            let mut cells = Cells::default();
            while cells.page_bytes() <= page_bytes as usize {
                let len = usize::try_from(random.below(longest as u64 + 1)).unwrap();
                let at = usize::try_from(random.below(cells.len() as u64 + 1)).unwrap();
                cells.insert(at, &vec![0; if random.below(3) == 0 { longest } else { len }]);
            }
            let right = cells.split_off(cells.middle());
            assert!(!cells.is_empty() && !right.is_empty());
            assert!(cells.page_bytes().max(right.page_bytes()) <= page_bytes as usize);
        }
    }
}
