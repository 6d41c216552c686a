//! One cell of a leaf or branch: how a key and what belongs to it are laid out, and read back.
//!
//! The layout is drawn in the text of [`crate::page`]. The bytes that are read come from a file:
//! nothing about them is taken for granted.

use crate::key_parts::KeyParts;
use crate::limits::{PAGE_BYTES_MIN, VALUE_BYTES_MAX, key_bytes_max};
use crate::page::{HEADER, PageId, PageKind, PageRef, SLOT, read_le};

/// Top bit of a leaf cell's value length: the value is stored elsewhere.
pub(crate) const ELSEWHERE: u32 = 1 << 31;

/// Bytes of a leaf cell before its key.
pub(crate) const LEAF_HEAD: usize = 6;
/// Bytes of a branch cell before its key.
const BRANCH_HEAD: usize = 14;
/// Bytes of a reference to a value that is stored elsewhere.
const REFERENCE: usize = 12;

const _: () = {
    assert!(VALUE_BYTES_MAX < ELSEWHERE as usize, "a length leaves the top bit free");
    // With the longest key, the reference to a value fits a leaf, and two separators fit a branch.
    let key_max = key_bytes_max(PAGE_BYTES_MIN);
    assert!(LEAF_HEAD + key_max + REFERENCE <= leaf_cell_bytes_max(PAGE_BYTES_MIN));
    assert!(BRANCH_HEAD + key_max <= leaf_cell_bytes_max(PAGE_BYTES_MIN));
};

/// A cell of a leaf.
#[derive(Debug, Clone, Copy)]
pub struct LeafCell<'m> {
    /// The key.
    pub key: KeyParts<'m>,
    /// The value, or the place where it is stored.
    pub value: StoredValue<'m>,
}

/// A value as a leaf holds it.
#[derive(Debug, Clone, Copy)]
pub enum StoredValue<'m> {
    /// The value stands in the leaf.
    Inline(&'m [u8]),
    /// The value has an extent of its own.
    Extent {
        /// Its first page.
        at: PageRef,
        /// Bytes of the value.
        len: usize,
    },
}

/// A cell of a branch.
#[derive(Debug, Clone, Copy)]
pub struct BranchCell<'m> {
    /// Smallest key below the child.
    pub key: &'m [u8],
    /// The child.
    pub child: PageRef,
}

/// Longest cell of a leaf: two fit any page. Values that would make a longer one get pages of their
/// own.
#[must_use]
pub(crate) const fn leaf_cell_bytes_max(page_bytes: u32) -> usize {
    (page_bytes as usize - HEADER) / 2 - SLOT
}

/// Length of a leaf cell with its value inside.
pub(crate) fn leaf_cell_bytes(key: &[u8], value: &[u8]) -> usize {
    LEAF_HEAD + key.len() + value.len()
}

/// Length of the leaf cell that a key and its value get: a long value lies elsewhere.
pub(crate) fn stored_cell_bytes(key: &[u8], value: &[u8], page_bytes: u32) -> usize {
    let inside = leaf_cell_bytes(key, value);
    if inside <= leaf_cell_bytes_max(page_bytes) { inside } else { LEAF_HEAD + key.len() + REFERENCE }
}

/// The bytes before key and value in a leaf cell with its value inside.
pub(crate) fn leaf_cell_head(key: &[u8], value: &[u8]) -> [u8; LEAF_HEAD] {
    leaf_head(key, u32::try_from(value.len()).expect("a checked length"))
}

fn leaf_head(key: &[u8], value_len: u32) -> [u8; LEAF_HEAD] {
    let mut head = [0; LEAF_HEAD];
    head[..2].copy_from_slice(&u16::try_from(key.len()).expect("a checked length").to_le_bytes());
    head[2..].copy_from_slice(&value_len.to_le_bytes());
    head
}

/// A leaf cell whose value of `len` bytes is the extent at `at`.
pub(crate) fn leaf_cell_elsewhere(key: &[u8], len: usize, at: PageRef) -> Vec<u8> {
    assert!(at.id.0 > 0 && len <= VALUE_BYTES_MAX, "a value of {len} bytes at page {}", at.id.0);
    let mut cell = Vec::with_capacity(LEAF_HEAD + key.len() + REFERENCE);
    cell.extend_from_slice(&leaf_head(key, u32::try_from(len).expect("a checked length") | ELSEWHERE));
    cell.extend_from_slice(key);
    cell.extend_from_slice(&at.id.0.to_le_bytes());
    cell.extend_from_slice(&at.crc.to_le_bytes());
    cell
}

/// A branch cell.
pub(crate) fn branch_cell(key: &[u8], child: PageRef) -> Vec<u8> {
    let mut cell = Vec::with_capacity(BRANCH_HEAD + key.len());
    cell.extend_from_slice(&u16::try_from(key.len()).expect("a checked length").to_le_bytes());
    cell.extend_from_slice(&child.id.0.to_le_bytes());
    cell.extend_from_slice(&child.crc.to_le_bytes());
    cell.extend_from_slice(key);
    cell
}

pub(crate) fn cell_key(kind: PageKind, cell: &[u8]) -> Option<&[u8]> {
    let len = usize::from(read_le!(cell, 0, u16)?);
    let start = if kind == PageKind::Leaf { LEAF_HEAD } else { BRANCH_HEAD };
    cell.get(start..start + len)
}

/// The head of a leaf cell whose key begins with so many bytes that are not in it.
pub(crate) fn whole_cell_head(cell: &[u8], begin: usize) -> Option<[u8; LEAF_HEAD]> {
    let mut head: [u8; LEAF_HEAD] = *cell.first_chunk()?;
    let len = u16::try_from(usize::from(read_le!(cell, 0, u16)?) + begin).ok()?;
    head[..2].copy_from_slice(&len.to_le_bytes());
    Some(head)
}

/// A cell of a leaf whose keys all begin with `begin`, which is not in it.
pub(crate) fn parse_leaf_cell<'m>(begin: &'m [u8], cell: &'m [u8]) -> Option<LeafCell<'m>> {
    let key = cell_key(PageKind::Leaf, cell)?;
    let word = read_le!(cell, 2, u32)?;
    let rest = cell.get(LEAF_HEAD + key.len()..)?;
    let len = (word & !ELSEWHERE) as usize;
    let value = if word & ELSEWHERE == 0 {
        StoredValue::Inline(rest.get(..len)?)
    } else {
        let at = PageRef { id: PageId(read_le!(rest, 0, u64)?), crc: read_le!(rest, 8, u32)? };
        StoredValue::Extent { at, len }
    };
    Some(LeafCell { key: KeyParts::new(begin, key), value })
}

pub(crate) fn parse_branch_cell(cell: &[u8]) -> Option<BranchCell<'_>> {
    let key = cell_key(PageKind::Branch, cell)?;
    let child = PageRef { id: PageId(read_le!(cell, 2, u64)?), crc: read_le!(cell, 10, u32)? };
    Some(BranchCell { key, child })
}
