//! The list of unused pages on disk: a full list, and behind it a chain of changes.
//!
//! A commit writes what it has changed, and a reference to the part before; now and then it writes
//! the full list again, and frees the parts. So a commit writes for the list as much as it has
//! changed, however many free pages there are; and the changes never take more pages than the full
//! list. docs/FORMAT.md draws the parts.

use crate::limits::SPACE_PARTS_MAX;
use crate::mutants::{self, Mutant};
use crate::page::{PageId, PageKind, PageRef, encode_extent, extent_pages, read_le};
use crate::space::part::{Change, ListPart, ListRules, PlacedList};
use crate::space::{Extent, Space};

/// Bytes of one extent.
const EXTENT_BYTES: usize = 16;
/// Bytes before the changes: the part before, and how many there are.
const CHANGES_HEAD: usize = 16;
/// The bit of a first page that says: these pages leave the list.
const IS_TAKEN: u64 = 1 << 63;
/// Entries that placing the list may add: it takes pages, and free ones at the end may be cut off.
const OWN_CHANGES: usize = 2;

impl Space {
    /// The space of a file with this many used pages, whose list was read from the newest part to
    /// the full one.
    ///
    /// # Errors
    /// When the list is damaged, and how.
    pub fn decode(end: u64, first: u64, newest_first: &[(ListPart, &[u8])]) -> Result<Self, String> {
        let mut space = Self { end, ..Self::default() };
        for (at, (part, content)) in newest_first.iter().rev().enumerate() {
            let entries = content.get(if at == 0 { 0 } else { CHANGES_HEAD }..).unwrap_or_default();
            space.apply(first, entries)?;
            space.list.push(*part);
        }
        if let Some(Extent { start, pages }) = space.free.last().filter(|last| last.stop() > end) {
            return Err(format!("holds the impossible extent of {pages} pages at {}", start.0));
        }
        match space.list.iter().find(|part| !space.is_taken(part.extent)) {
            Some(_) => Err("names its own pages, or ends behind the file".to_owned()),
            None => Ok(space),
        }
    }

    fn apply(&mut self, first: u64, entries: &[u8]) -> Result<(), String> {
        for entry in entries.chunks(EXTENT_BYTES) {
            let (Some(start), Some(pages)) = (read_le!(entry, 0, u64), read_le!(entry, 8, u64)) else {
                return Err("holds part of an extent".to_owned());
            };
            let (start, is_taken) = (start & !IS_TAKEN, start & IS_TAKEN != 0);
            let stop = start.checked_add(pages).filter(|_| pages > 0 && start >= first);
            if stop.is_none() {
                return Err(format!("holds the impossible extent of {pages} pages at {start}"));
            }
            let extent = Extent { start: PageId(start), pages };
            if is_taken && !self.free.take(extent) {
                return Err(format!("takes {pages} pages at {start}, which are not free"));
            }
            if !is_taken && !self.free.add(extent) {
                return Err(format!("holds page {start} twice"));
            }
        }
        Ok(())
    }

    /// Places and lays out the list of all that is unused after a commit that frees `freed`; parts
    /// that are not needed any more join `freed`.
    #[must_use]
    pub fn place_list(&mut self, freed: &mut Vec<Extent>, page_bytes: u32, rules: ListRules) -> PlacedList {
        // Taking pages shortens a free extent or uses one up: the full list only gets shorter.
        let runs = self.free.len() + self.waiting.len();
        let full = (runs + freed.len() + self.list.len()) * EXTENT_BYTES;
        let changed = CHANGES_HEAD + (self.changes.len() + OWN_CHANGES + freed.len()) * EXTENT_BYTES;
        let since_full: u64 = self.list.iter().skip(1).map(|part| part.extent.pages).sum();
        let (changed_pages, full_pages) = (extent_pages(changed, page_bytes), extent_pages(full, page_bytes));
        let is_shorter = changed_pages < full_pages && since_full + changed_pages <= full_pages;
        let has_room = !self.list.is_empty() && self.list.len() < SPACE_PARTS_MAX;
        let wants_chain = !rules.is_shrinking && has_room && !self.forgot_changes && is_shorter;
        let is_full = !wants_chain || !rules.may_chain;
        if is_full && mutants::is(Mutant::ListPartsFreeAtOnce) {
            for part in std::mem::take(&mut self.list) {
                self.release(part.extent);
            }
        } else if is_full {
            freed.extend(self.list.iter().map(|part| part.extent));
        }
        let planned = if is_full { full } else { changed };
        let pages = extent_pages(planned, page_bytes);
        let id = if rules.is_shrinking { self.allocate_low(pages) } else { self.allocate(pages) };
        if rules.is_shrinking {
            self.trim();
        }
        let content = if is_full { self.encode_full(freed) } else { self.encode_changes(freed) };
        assert!(content.len() <= planned, "the list has {} bytes, {planned} were planned", content.len());
        let kind = if is_full { PageKind::FreeList } else { PageKind::FreeListChanges };
        let (bytes, crc) = encode_extent(kind, id, &content, pages, page_bytes);
        let extent = Extent { start: id, pages };
        assert!(self.is_taken(extent), "the list is written to {extent:?}, which is free");
        PlacedList { part: ListPart { extent, at: PageRef { id, crc } }, bytes, is_full, wants_chain }
    }

    fn encode_full(&self, freed: &[Extent]) -> Vec<u8> {
        let mut out = Vec::new();
        for extent in self.unused().chain(freed.iter().copied()) {
            put_entry(&mut out, Change { extent, is_taken: false });
        }
        out
    }

    fn encode_changes(&self, freed: &[Extent]) -> Vec<u8> {
        let before = self.list.last().expect("changes are those of a list");
        let parts = u32::try_from(self.list.len()).expect("parts are bounded");
        let mut out = before.at.id.0.to_le_bytes().to_vec();
        out.extend_from_slice(&before.at.crc.to_le_bytes());
        out.extend_from_slice(&parts.to_le_bytes());
        self.changes.iter().for_each(|change| put_entry(&mut out, *change));
        freed.iter().for_each(|extent| put_entry(&mut out, Change { extent: *extent, is_taken: false }));
        out
    }

    /// A list is durable.
    pub(super) fn set_list(&mut self, list: &PlacedList) {
        if list.is_full {
            self.list.clear();
        }
        self.list.push(list.part);
    }

    /// Where the list is, from the full one to the newest changes.
    #[must_use]
    pub fn list(&self) -> &[ListPart] {
        &self.list
    }
}

fn put_entry(out: &mut Vec<u8>, change: Change) {
    let Extent { start, pages } = change.extent;
    let start = start.0 | if change.is_taken { IS_TAKEN } else { 0 };
    out.extend_from_slice(&start.to_le_bytes());
    out.extend_from_slice(&pages.to_le_bytes());
}
