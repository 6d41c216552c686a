//! Pages on their way to the file: neighbours leave in one write, from a buffer that is used again.

use crate::Result;
use crate::disk::Disk;
use crate::limits::WRITE_BYTES_MAX;
use crate::page::{PageId, PageRef, SHARING_LEAF, Verified};
use crate::pauses::Pauses;

/// Writes pages. Nothing is durable before the disk is synced.
pub struct PageWriter<'d> {
    disk: &'d dyn Disk,
    verified: &'d Verified,
    page_bytes: u32,
    buffer: &'d mut Vec<u8>,
    /// Where the buffer's first page goes.
    first: PageId,
    /// A leaf has been written that has once what all of its keys begin with.
    has_sharing_leaf: bool,
    pauses: Pauses,
}

impl std::fmt::Debug for PageWriter<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PageWriter({} bytes from page {})", self.buffer.len(), self.first.0)
    }
}

impl<'d> PageWriter<'d> {
    /// Writes to `disk`; pages that are written are not verified any more.
    pub(crate) fn new(
        disk: &'d dyn Disk,
        verified: &'d Verified,
        page_bytes: u32,
        buffer: &'d mut Vec<u8>,
    ) -> Self {
        buffer.clear();
        let (first, pauses) = (PageId(0), Pauses::default());
        Self { disk, verified, page_bytes, buffer, first, has_sharing_leaf: false, pauses }
    }

    /// Goes on with these pauses.
    pub(crate) fn with_pauses(self, pauses: Pauses) -> Self {
        Self { pauses, ..self }
    }

    /// Writes one page, which `encode` lays out at the end of the buffer.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write_page(
        &mut self,
        id: PageId,
        encode: impl FnOnce(u32, &mut Vec<u8>) -> PageRef,
    ) -> Result<PageRef> {
        self.pauses.count_bytes(self.page_bytes as usize);
        let follows = self.first.0 + self.buffer.len() as u64 / u64::from(self.page_bytes) == id.0;
        if !follows || self.buffer.len() >= WRITE_BYTES_MAX {
            self.flush()?;
        }
        if self.buffer.is_empty() {
            self.first = id;
        }
        self.verified.remove(id);
        let start = self.buffer.len();
        let at = encode(self.page_bytes, self.buffer);
        assert_eq!(self.buffer.len() - start, self.page_bytes as usize, "page {} has another length", id.0);
        self.has_sharing_leaf |= self.buffer[start] == SHARING_LEAF;
        assert_eq!(at.id, id, "page {} is referred to as page {}", id.0, at.id.0);
        Ok(at)
    }

    /// Whether a leaf has been written that has once what all of its keys begin with.
    pub(crate) fn has_sharing_leaf(&self) -> bool {
        self.has_sharing_leaf
    }

    /// Writes pages in a row.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write_extent(&mut self, start: PageId, bytes: &[u8]) -> Result<()> {
        let pages = bytes.len() as u64 / u64::from(self.page_bytes);
        assert!(
            bytes.len().is_multiple_of(self.page_bytes as usize) && pages > 0,
            "an extent is whole pages"
        );
        self.pauses.count_bytes(bytes.len());
        (start.0..start.0 + pages).for_each(|page| self.verified.remove(PageId(page)));
        self.disk.write_at(start.0 * u64::from(self.page_bytes), bytes)
    }

    /// Writes the pages that are still in the buffer.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn flush(&mut self) -> Result<()> {
        let is_whole = self.buffer.len().is_multiple_of(self.page_bytes as usize);
        assert!(is_whole, "{} bytes from page {} on are no whole pages", self.buffer.len(), self.first.0);
        if !self.buffer.is_empty() {
            assert!(self.first.0 > 0, "pages over the first meta slot");
            self.disk.write_at(self.first.0 * u64::from(self.page_bytes), self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Recorded, SimDisk};

    const PAGE_BYTES: u32 = 4096;

    /// A call to the disk costs more than a page.
    #[test]
    fn neighbours_leave_in_one_write_up_to_its_bound() {
        let (disk, verified, mut buffer) = (SimDisk::new(), Verified::default(), Vec::new());
        let mut writer = PageWriter::new(&disk, &verified, PAGE_BYTES, &mut buffer);
        let in_a_write = (WRITE_BYTES_MAX / PAGE_BYTES as usize) as u64;
        let neighbours = 2..2 + 2 * in_a_write + 3;
        let apart = neighbours.end + 1;
        for page in neighbours.chain([apart, apart + 1]) {
            let id = PageId(page);
            let at = writer.write_page(id, |page_bytes, out| {
                out.resize(out.len() + page_bytes as usize, 7);
                PageRef { id, crc: 0 }
            });
            assert_eq!(at.unwrap().id, id);
        }
        writer.flush().unwrap();
        let writes: Vec<(u64, u64)> = disk
            .recorded()
            .iter()
            .filter_map(|call| match call {
                Recorded::Write { offset, bytes } => {
                    Some((offset / u64::from(PAGE_BYTES), bytes.len() as u64 / u64::from(PAGE_BYTES)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(
            writes,
            [(2, in_a_write), (2 + in_a_write, in_a_write), (2 + 2 * in_a_write, 3), (apart, 2)]
        );
    }
}
