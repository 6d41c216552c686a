//! Pages: the meaning of the file's bytes.
//!
//! All integers little-endian. A tree page (leaf or branch) of the file's page size:
//!
//! ```text
//!  0  u8   kind: 1 leaf, 2 branch, 6 leaf whose keys share their beginning
//!  1  u8   0
//!  2  u16  number of cells, n
//!  4  u32  bytes of all cells
//!  8  u64  this page's own number (a page written to the wrong place names itself)
//! 16  u16  end of cell 0, counted from the first cell's start
//!     ...  n of them, ascending
//! 16+2n    the cells, in key order; zeros up to the page's end
//!
//! leaf cell:   u16 key length | u32 value length, top bit: value stored elsewhere | key | value
//!              a value stored elsewhere is u64 page | u32 checksum
//! a leaf of kind 6 has behind its ends: u16 length of what all of its keys begin with, and that;
//!              keys in its cells are without it
//! branch cell: u16 key length | u64 child page | u32 child checksum | key
//!              the key is the smallest one below the child; the first cell's key is empty
//! ```
//!
//! An extent (long value, list of free pages) takes whole pages in a row:
//!
//! ```text
//!  0  u8   kind: 3 value, 4 full free list, 5 changes of it
//!  1  3 x 0
//!  4  u32  pages in the extent
//!  8  u64  number of its first page
//! 16  u64  bytes of content
//! 24       content
//! ```
//!
//! A checksum is the CRC-32 of a whole tree page, or of an extent's header and content. It stands
//! with the reference to the page: in a branch cell, a leaf cell, or the meta slot. So a page that
//! is intact but not the one that was meant is found too.

use crate::limits::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};

mod cell;
mod cells;
mod pages;
mod view;
mod writer;

pub use cell::{BranchCell, LeafCell, StoredValue};
pub(crate) use cell::{
    branch_cell, cell_key, leaf_cell_bytes, leaf_cell_bytes_max, leaf_cell_elsewhere, leaf_cell_head,
    parse_branch_cell, parse_leaf_cell, stored_cell_bytes,
};
pub use cells::Cells;
pub use pages::{Pages, Verified};
pub(crate) use view::search;
pub use view::{PageView, extent_content};
pub use writer::PageWriter;

/// A page's position in the file, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageId(pub u64);

/// A reference to a page: its place, and the checksum that it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageRef {
    /// First (or only) page.
    pub id: PageId,
    /// Its checksum.
    pub crc: u32,
}

/// The kind of a page: its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Keys and values.
    Leaf = 1,
    /// Keys and children.
    Branch = 2,
    /// A long value.
    Value = 3,
    /// Free pages.
    FreeList = 4,
    /// Changes of the list of free extents, and where the list before is.
    FreeListChanges = 5,
}

impl PageKind {
    /// Of a page of a tree.
    pub(crate) fn of_tree_page(byte: u8) -> Option<Self> {
        match byte {
            1 | SHARING_LEAF => Some(Self::Leaf),
            2 => Some(Self::Branch),
            _ => None,
        }
    }
}

/// The first byte of a leaf that has once what all of its keys begin with.
pub(crate) const SHARING_LEAF: u8 = 6;
/// Bytes of the length of such a beginning.
pub(crate) const BEGIN_LEN: usize = 2;
/// A shorter beginning is not worth it (and see [`Cells::middle`]).
pub(crate) const BEGIN_MIN: usize = 4;
/// Bytes of a beginning that are shared at most. A leaf that is changed has whole keys in memory:
/// with this one it is up to ten times as long there.
pub(crate) const BEGIN_MAX: usize = 128;

/// Bytes before the slots of a tree page.
pub const HEADER: usize = 16;
/// Bytes before an extent's content.
pub const EXTENT_HEADER: usize = 24;
/// Bytes a cell takes besides itself.
pub const SLOT: usize = 2;

const _: () = {
    // One cell at least fits the smallest page, and an extent's header its first.
    assert!(HEADER + SLOT < PAGE_BYTES_MIN as usize);
    assert!(EXTENT_HEADER < PAGE_BYTES_MIN as usize);
    assert!(PAGE_BYTES_MAX as usize - HEADER <= u16::MAX as usize, "the end of a cell is 16 bits wide");
};

/// Pages an extent with this much content takes.
#[must_use]
pub fn extent_pages(content: usize, page_bytes: u32) -> u64 {
    ((content + EXTENT_HEADER) as u64).div_ceil(u64::from(page_bytes))
}

/// Lays out an extent over `pages` pages, at least as many as the content needs.
#[must_use]
pub fn encode_extent(
    kind: PageKind,
    id: PageId,
    content: &[u8],
    pages: u64,
    page_bytes: u32,
) -> (Vec<u8>, u32) {
    assert!(pages >= extent_pages(content.len(), page_bytes), "{} bytes in {pages} pages", content.len());
    assert!(id.0 > 0, "an extent of {pages} pages has no place");
    let len = usize::try_from(pages * u64::from(page_bytes)).expect("an extent fits memory");
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&[kind as u8, 0, 0, 0]);
    out.extend_from_slice(&u32::try_from(pages).expect("an extent is bounded").to_le_bytes());
    out.extend_from_slice(&id.0.to_le_bytes());
    out.extend_from_slice(&(content.len() as u64).to_le_bytes());
    out.extend_from_slice(content);
    let crc = crc32fast::hash(&out);
    out.resize(len, 0);
    (out, crc)
}

/// Reads a little-endian integer at `at`, if the bytes are there.
macro_rules! read_le {
    ($bytes:expr, $at:expr, $kind:ty) => {
        $bytes
            .get($at..$at + size_of::<$kind>())
            .map(|part| <$kind>::from_le_bytes(part.try_into().expect("the length was asked for")))
    };
}
pub(crate) use read_le;
