//! Writing a tree from its rows in key order: each page once, from the front of the file to its
//! end.
//!
//! On every level one page is open. When it is full it is written, and a reference to it goes to
//! the page above; so a page's children stand before it. Pages are left full: rows that come later
//! lie behind, or divide the page that they hit.

use std::sync::Arc;

use crate::Result;
use crate::disk::Disk;
use crate::limits::{GROW_BYTES_MAX, WRITE_BYTES_MAX};
use crate::meta::{TableRoot, first_page};
use crate::page::{
    Cells, PageId, PageKind, PageRef, SLOT, branch_cell, encode_extent, extent_pages, leaf_cell_bytes,
    leaf_cell_bytes_max, leaf_cell_elsewhere, leaf_cell_head,
};

/// The pages of a new file, written in their order.
pub(super) struct PageRow {
    disk: Arc<dyn Disk>,
    page_bytes: u32,
    /// The next page.
    next: u64,
    /// Pages that are not written yet: the last ones before `next`.
    buffer: Vec<u8>,
    file_len: u64,
}

/// A table being written.
#[derive(Default)]
pub(super) struct TableLoad {
    /// The open pages, leaf first.
    levels: Vec<OpenPage>,
    rows: u64,
}

/// A page that is not full yet.
#[derive(Default)]
struct OpenPage {
    cells: Cells,
    /// The smallest key in it or below.
    first: Vec<u8>,
}

impl PageRow {
    /// Pages behind the meta slots of an empty disk.
    pub(super) fn new(disk: Arc<dyn Disk>, page_bytes: u32) -> Self {
        Self { disk, page_bytes, next: first_page(page_bytes), buffer: Vec::new(), file_len: 0 }
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Pages of the file, those of the meta slots included.
    pub(super) fn pages(&self) -> u64 {
        self.next
    }

    fn page(&mut self, kind: PageKind, cells: &Cells) -> Result<PageRef> {
        let id = PageId(self.next);
        let at = cells.encode(kind, id, self.page_bytes, &mut self.buffer);
        self.next += 1;
        self.flush_if_full()?;
        Ok(at)
    }

    fn value(&mut self, value: &[u8]) -> Result<PageRef> {
        let id = PageId(self.next);
        let pages = extent_pages(value.len(), self.page_bytes);
        let (bytes, crc) = encode_extent(PageKind::Value, id, value, pages, self.page_bytes);
        self.buffer.extend_from_slice(&bytes);
        self.next += pages;
        self.flush_if_full()?;
        Ok(PageRef { id, crc })
    }

    fn flush_if_full(&mut self) -> Result<()> {
        if self.buffer.len() < WRITE_BYTES_MAX { Ok(()) } else { self.flush() }
    }

    /// Writes all pages that are not written yet.
    pub(super) fn flush(&mut self) -> Result<()> {
        let page = u64::from(self.page_bytes);
        let end = self.next * page;
        if end > self.file_len {
            // If there is no room for a large step, an exact one may find some.
            let step = end.next_multiple_of(GROW_BYTES_MAX);
            self.file_len = match self.disk.set_len(step) {
                Err(error) if error.is_no_space() => self.disk.set_len(end).map(|()| end)?,
                grown => grown.map(|()| step)?,
            };
        }
        self.disk.write_at(end - self.buffer.len() as u64, &self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Cuts off the room behind the last page.
    pub(super) fn cut(&mut self) -> Result<()> {
        self.disk.set_len(self.next * u64::from(self.page_bytes))
    }
}

impl TableLoad {
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
        let cells = &self.levels[level].cells;
        let cell_bytes: usize = cell.iter().map(|part| part.len()).sum();
        if !cells.is_empty() && cells.page_bytes() + SLOT + cell_bytes > out.page_bytes as usize {
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
