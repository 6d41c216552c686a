//! The parts of the list of unused pages, and what they are made of.

use crate::limits::SPACE_PARTS_MAX;
use crate::page::{PageId, PageRef, read_le};
use crate::space::extents::Extent;

/// One change of the list on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) extent: Extent,
    /// The pages leave the list, else they join it.
    pub(super) is_taken: bool,
}

/// Where a part of the list is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPart {
    /// Its pages.
    pub extent: Extent,
    /// The reference to it.
    pub at: PageRef,
}

/// A list with a place, to be written.
#[derive(Debug)]
pub struct PlacedList {
    pub(super) part: ListPart,
    /// The pages.
    pub bytes: Vec<u8>,
    /// It is a full list, else changes of the list before.
    pub is_full: bool,
    /// Changes would have been shorter.
    pub wants_chain: bool,
}

/// How a list is placed.
#[derive(Debug, Clone, Copy)]
pub struct ListRules {
    /// The file's format has chains of changes.
    pub may_chain: bool,
    /// Low pages are taken, and free ones are cut off the file's end.
    pub is_shrinking: bool,
}

impl PlacedList {
    /// The reference to it.
    #[must_use]
    pub fn at(&self) -> PageRef {
        self.part.at
    }

    #[cfg(test)]
    pub(super) fn part(&self) -> ListPart {
        self.part
    }
}

impl ListPart {
    /// A part that was read.
    #[must_use]
    pub fn new(at: PageRef, pages: u64) -> Self {
        Self { extent: Extent { start: at.id, pages }, at }
    }

    /// The part before, of changes; and how many parts stand before them.
    ///
    /// # Errors
    /// When the content is damaged, and how.
    pub fn before(content: &[u8]) -> Result<(PageRef, usize), String> {
        let (id, crc) = (read_le!(content, 0, u64), read_le!(content, 8, u32));
        let parts = read_le!(content, 12, u32).map(|parts| parts as usize);
        let parts = parts.filter(|parts| (1..SPACE_PARTS_MAX).contains(parts));
        match (id, crc, parts) {
            (Some(id), Some(crc), Some(parts)) => Ok((PageRef { id: PageId(id), crc }, parts)),
            _ => Err("names no part before it".to_owned()),
        }
    }
}
