//! Reading a page. The bytes come from a file: nothing about them is taken for granted.

use std::cmp::Ordering;

use crate::key_parts::KeyParts;
use crate::page::cell::{BranchCell, LeafCell, cell_key, parse_branch_cell, parse_leaf_cell};
use crate::page::{
    BEGIN_LEN, BEGIN_MAX, BEGIN_MIN, EXTENT_HEADER, HEADER, PageId, PageKind, SHARING_LEAF, SLOT, read_le,
};

/// A tree page.
#[derive(Debug, Clone, Copy)]
pub struct PageView<'m> {
    id: PageId,
    kind: PageKind,
    len: usize,
    slots: &'m [u8],
    /// The bytes that all keys of a leaf begin with, which are not in its cells.
    begin: &'m [u8],
    cells: &'m [u8],
}

impl<'m> PageView<'m> {
    /// Interprets a page that should be a leaf or a branch numbered `id`; says what is wrong if it
    /// is not.
    ///
    /// # Errors
    /// A sentence without its subject, which is the page.
    pub fn parse(bytes: &'m [u8], id: PageId) -> std::result::Result<Self, String> {
        let kind = bytes.first().and_then(|byte| PageKind::of_tree_page(*byte));
        let (Some(kind), Some(own), Some(len)) = (kind, read_le!(bytes, 8, u64), read_le!(bytes, 2, u16))
        else {
            return Err("is neither leaf nor branch".to_owned());
        };
        if own != id.0 {
            return Err(format!("says it is page {own}"));
        }
        let len = usize::from(len);
        let Some((slots, rest)) = bytes.get(HEADER..).and_then(|rest| rest.split_at_checked(len * SLOT))
        else {
            return Err(format!("cannot hold {len} cells"));
        };
        let (mut begin, mut cells): (&[u8], _) = (&[], rest);
        if bytes[0] == SHARING_LEAF {
            let begin_len = read_le!(rest, 0, u16).map_or(0, usize::from);
            let shared = rest.get(BEGIN_LEN..).and_then(|rest| rest.split_at_checked(begin_len));
            let is_sound = (BEGIN_MIN..=BEGIN_MAX).contains(&begin_len);
            let Some(shared) = shared.filter(|_| is_sound) else {
                return Err(format!("has keys that share {begin_len} bytes"));
            };
            (begin, cells) = shared;
        }
        Ok(Self { id, kind, len, slots, begin, cells })
    }

    /// The page's number.
    #[must_use]
    pub fn id(&self) -> PageId {
        self.id
    }

    /// Leaf or branch.
    #[must_use]
    pub fn kind(&self) -> PageKind {
        self.kind
    }

    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that all keys of a leaf begin with, which are not in its cells; mostly none.
    #[must_use]
    pub fn begin(&self) -> &'m [u8] {
        self.begin
    }

    /// Bytes behind the ends of the cells, which are in them.
    pub(crate) fn cells_bytes(&self) -> usize {
        self.cells.len()
    }

    /// One cell's bytes; none if the page is inconsistent.
    #[must_use]
    pub fn cell(&self, at: usize) -> Option<&'m [u8]> {
        let start = if at == 0 { 0 } else { usize::from(read_le!(self.slots, (at - 1) * SLOT, u16)?) };
        let end = usize::from(read_le!(self.slots, at * SLOT, u16)?);
        self.cells.get(start..end)
    }

    /// A cell of a leaf.
    #[must_use]
    pub fn leaf_cell(&self, at: usize) -> Option<LeafCell<'m>> {
        parse_leaf_cell(self.begin, self.cell(at)?)
    }

    /// A cell of a branch.
    #[must_use]
    pub fn branch_cell(&self, at: usize) -> Option<BranchCell<'m>> {
        parse_branch_cell(self.cell(at)?)
    }

    /// The key of any cell.
    #[must_use]
    pub fn key(&self, at: usize) -> Option<KeyParts<'m>> {
        Some(KeyParts::new(self.begin, self.own_key(at)?))
    }

    /// The key of any cell behind what the page's keys begin with.
    fn own_key(&self, at: usize) -> Option<&'m [u8]> {
        cell_key(self.kind, self.cell(at)?)
    }

    /// In a leaf: the first cell with a key not below `key`, and whether it is equal.
    /// In a branch: the child that covers `key`.
    pub(crate) fn search(&self, key: &[u8]) -> Option<(usize, bool)> {
        let (front, rest) = key.split_at(key.len().min(self.begin.len()));
        match front.cmp(self.begin) {
            Ordering::Less => Some((0, false)),
            Ordering::Greater => Some((self.len, false)),
            Ordering::Equal => search(self.kind, self.len, |at| self.own_key(at), rest),
        }
    }
}

/// Binary search shared by pages and nodes; see [`PageView::search`].
pub(crate) fn search<'k>(
    kind: PageKind,
    len: usize,
    key_at: impl Fn(usize) -> Option<&'k [u8]>,
    key: &[u8],
) -> Option<(usize, bool)> {
    // A branch's first key counts as smaller than everything, whatever it says.
    let mut low = usize::from(kind == PageKind::Branch);
    let mut high = len;
    while low < high {
        let middle = low.midpoint(high);
        match key_at(middle)?.cmp(key) {
            Ordering::Less => low = middle + 1,
            Ordering::Equal => return Some((middle, true)),
            Ordering::Greater => high = middle,
        }
    }
    if kind == PageKind::Branch { Some((low - 1, false)) } else { Some((low, false)) }
}

/// The content of an extent of the given kind that starts at page `id`, with its checksum still to
/// be compared: (pages, content, checksummed bytes).
pub fn extent_content(bytes: &[u8], kind: PageKind, id: PageId) -> Result<(u64, &[u8], &[u8]), String> {
    let (Some(pages), Some(own), Some(len)) =
        (read_le!(bytes, 4, u32), read_le!(bytes, 8, u64), read_le!(bytes, 16, u64))
    else {
        return Err("is cut short".to_owned());
    };
    if bytes[0] != kind as u8 {
        return Err(format!("is of kind {}, not {}", bytes[0], kind as u8));
    }
    if own != id.0 {
        return Err(format!("says it is page {own}"));
    }
    let end = usize::try_from(len).ok().and_then(|len| len.checked_add(EXTENT_HEADER));
    match end.and_then(|end| bytes.get(..end)) {
        Some(summed) => Ok((u64::from(pages), &summed[EXTENT_HEADER..], summed)),
        None => Err(format!("claims {len} bytes of content")),
    }
}
