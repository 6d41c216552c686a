//! Writing a tree from its rows in key order: each page once, from the front of the file to its
//! end.
//!
//! Pages that are laid out are written by whoever takes them, so that the next ones can be laid out
//! meanwhile.
//!
//! On every level one page is open. When it is full it is written, and a reference to it goes to
//! the page above; so a page's children stand before it. Pages are left full: rows that come later
//! lie behind, or divide the page that they hit.

use std::sync::Arc;

use crate::Result;
use crate::disk::Disk;
use crate::limits::{BULK_WRITE_BYTES, DIRECT_ALIGNMENT, GROW_BYTES_MAX};
use crate::meta::{TableRoot, first_page};
use crate::page::{
    Cells, PageId, PageKind, PageRef, SHARING_LEAF, branch_cell, encode_extent, extent_pages,
    leaf_cell_bytes, leaf_cell_bytes_max, leaf_cell_elsewhere, leaf_cell_head,
};

/// The pages of a new file, laid out in their order.
pub(super) struct PageRow {
    disk: Arc<dyn Disk>,
    page_bytes: u32,
    /// The next page.
    next: u64,
    /// The last ones before `next`.
    buffer: PageBuffer,
    /// The next pages are not read soon.
    are_cold: bool,
    laid_out: Vec<LaidOutPart>,
    file_len: u64,
    /// One of them is a leaf that has once what all of its keys begin with.
    has_sharing_leaf: bool,
}

/// Pages that begin where a direct write may begin.
struct PageBuffer {
    bytes: Vec<u8>,
    /// So many bytes lie before the first page.
    lead: usize,
}

struct LaidOutPart {
    offset: u64,
    pages: PageBuffer,
    are_cold: bool,
}

/// Pages that are laid out and not written.
pub struct LaidOut {
    disk: Arc<dyn Disk>,
    parts: Vec<LaidOutPart>,
}

/// A table being written.
#[derive(Default)]
pub(super) struct TableLoad {
    /// The open pages, leaf first.
    levels: Vec<OpenPage>,
    rows: u64,
    /// Its leaves have once what all of their keys begin with.
    are_leaves_sharing: bool,
}

/// A page that is not full yet.
#[derive(Default)]
struct OpenPage {
    cells: Cells,
    /// The smallest key in it or below.
    first: Vec<u8>,
}

impl PageBuffer {
    /// With room for what is written in one go.
    fn new(page_bytes: u32) -> Self {
        let mut bytes: Vec<u8> =
            Vec::with_capacity(DIRECT_ALIGNMENT + BULK_WRITE_BYTES + page_bytes as usize);
        let lead = bytes.as_ptr().addr().wrapping_neg() % DIRECT_ALIGNMENT;
        bytes.resize(lead, 0);
        Self { bytes, lead }
    }

    fn pages(&self) -> &[u8] {
        &self.bytes[self.lead..]
    }
}

impl LaidOut {
    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes them. Blocks for the disk.
    ///
    /// # Errors
    /// When the disk refuses. The file must be thrown away then.
    pub fn write(self) -> Result<()> {
        for LaidOutPart { offset, pages, are_cold } in &self.parts {
            match are_cold {
                true => self.disk.write_past_cache(*offset, pages.pages())?,
                false => self.disk.write_at(*offset, pages.pages())?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for LaidOut {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "LaidOut({} parts)", self.parts.len())
    }
}

impl PageRow {
    /// Pages behind the meta slots of an empty disk.
    pub(super) fn new(disk: Arc<dyn Disk>, page_bytes: u32) -> Self {
        let (next, buffer) = (first_page(page_bytes), PageBuffer::new(page_bytes));
        let laid_out = Vec::new();
        Self {
            disk,
            page_bytes,
            next,
            buffer,
            are_cold: false,
            laid_out,
            file_len: 0,
            has_sharing_leaf: false,
        }
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Pages of the file, those of the meta slots included.
    pub(super) fn pages(&self) -> u64 {
        self.next
    }

    /// Whether a page is a leaf that has once what all of its keys begin with.
    pub(super) fn has_sharing_leaf(&self) -> bool {
        self.has_sharing_leaf
    }

    /// Whether nobody reads the next pages soon.
    pub(super) fn set_cold(&mut self, are_cold: bool) -> Result<()> {
        if self.are_cold != are_cold {
            self.end_part()?;
            self.are_cold = are_cold;
        }
        Ok(())
    }

    fn page(&mut self, kind: PageKind, cells: &Cells) -> Result<PageRef> {
        let (id, start) = (PageId(self.next), self.buffer.bytes.len());
        let at = cells.encode(kind, id, self.page_bytes, &mut self.buffer.bytes);
        self.has_sharing_leaf |= self.buffer.bytes[start] == SHARING_LEAF;
        self.next += 1;
        self.end_part_if_full()?;
        Ok(at)
    }

    fn value(&mut self, value: &[u8]) -> Result<PageRef> {
        let id = PageId(self.next);
        let pages = extent_pages(value.len(), self.page_bytes);
        let (bytes, crc) = encode_extent(PageKind::Value, id, value, pages, self.page_bytes);
        self.buffer.bytes.extend_from_slice(&bytes);
        self.next += pages;
        self.end_part_if_full()?;
        Ok(PageRef { id, crc })
    }

    fn end_part_if_full(&mut self) -> Result<()> {
        if self.buffer.pages().len() < BULK_WRITE_BYTES { Ok(()) } else { self.end_part() }
    }

    /// The pages that are not taken yet can be taken, and have room in the file.
    fn end_part(&mut self) -> Result<()> {
        let end = self.next * u64::from(self.page_bytes);
        if end > self.file_len {
            // If there is no room for a large step, an exact one may find some.
            let step = end.next_multiple_of(GROW_BYTES_MAX);
            self.file_len = match self.disk.set_len(step) {
                Err(error) if error.is_no_space() => self.disk.set_len(end).map(|()| end)?,
                grown => grown.map(|()| step)?,
            };
        }
        let pages = std::mem::replace(&mut self.buffer, PageBuffer::new(self.page_bytes));
        let offset = end - pages.pages().len() as u64;
        self.laid_out.push(LaidOutPart { offset, pages, are_cold: self.are_cold });
        Ok(())
    }

    /// The pages that are enough for a write.
    pub(super) fn take_laid_out(&mut self) -> LaidOut {
        LaidOut { disk: Arc::clone(&self.disk), parts: std::mem::take(&mut self.laid_out) }
    }

    /// Writes all pages that were not taken, and cuts off the room behind the last one.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.end_part()?;
        self.take_laid_out().write()?;
        self.disk.set_len(self.next * u64::from(self.page_bytes))
    }
}

impl TableLoad {
    /// A table without rows.
    pub(super) fn new(are_leaves_sharing: bool) -> Self {
        Self { are_leaves_sharing, ..Self::default() }
    }

    /// Adds the next row; its key must be above those of all rows before.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], out: &mut PageRow) -> Result<()> {
        self.rows += 1;
        if leaf_cell_bytes(key, value) <= leaf_cell_bytes_max(out.page_bytes) {
            return self.add(0, key, &[&leaf_cell_head(key, value), key, value], out);
        }
        let cell = leaf_cell_elsewhere(key, value.len(), out.value(value)?);
        self.add(0, key, &[&cell], out)
    }

    /// Adds a cell, given in parts, to the open page of a level.
    fn add(&mut self, level: usize, key: &[u8], cell: &[&[u8]], out: &mut PageRow) -> Result<()> {
        if self.levels.len() == level {
            self.levels.push(OpenPage::default());
        }
        let cells = &mut self.levels[level].cells;
        if level == 0 && self.are_leaves_sharing && cells.is_empty() {
            cells.share();
        }
        let cell_bytes: usize = cell.iter().map(|part| part.len()).sum();
        if !cells.is_empty() && cells.page_bytes_with_cell(key, cell_bytes) > out.page_bytes as usize {
            self.close(level, out)?;
        }
        let page = &mut self.levels[level];
        if page.cells.is_empty() {
            page.first.clear();
            page.first.extend_from_slice(key);
        }
        page.cells.push(cell);
        Ok(())
    }

    /// Writes the open page of a level, and refers to it from the level above.
    fn close(&mut self, level: usize, out: &mut PageRow) -> Result<()> {
        let mut page = std::mem::take(&mut self.levels[level]);
        let at = out.page(kind(level), &page.cells)?;
        self.add(level + 1, &page.first, &[&branch_cell(&page.first, at)], out)?;
        page.cells.clear();
        self.levels[level] = page; // the next page needs as much memory
        Ok(())
    }

    /// Writes the pages that are open, and says where the table begins.
    pub(super) fn finish(mut self, out: &mut PageRow) -> Result<TableRoot> {
        let mut level = 0;
        while level < self.levels.len() {
            if level + 1 == self.levels.len() {
                let root = out.page(kind(level), &self.levels[level].cells)?;
                let depth = u32::try_from(level + 1).expect("a few levels");
                return Ok(TableRoot { root: Some(root), depth, len: self.rows });
            }
            self.close(level, out)?;
            level += 1;
        }
        Ok(TableRoot::default())
    }
}

fn kind(level: usize) -> PageKind {
    if level == 0 { PageKind::Leaf } else { PageKind::Branch }
}
