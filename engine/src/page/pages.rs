//! The pages of a mapped file, each verified when it is first read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::Map;
use crate::page::{PageId, PageKind, PageRef, PageView, extent_content};
use crate::{Error, Result};

/// Which pages have been verified since they were last written; shared by all snapshots of one
/// file.
#[derive(Debug, Default)]
pub struct Verified(Vec<AtomicU64>);

impl Verified {
    /// A copy with room for this many pages.
    #[must_use]
    pub fn resized(&self, pages: u64) -> Self {
        let words = usize::try_from(pages.div_ceil(64)).expect("a file's pages fit memory");
        let known = self.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed)));
        let words = words.max(self.0.len());
        let resized = Self(known.chain(std::iter::repeat_with(AtomicU64::default)).take(words).collect());
        assert!(resized.capacity() >= pages, "room for {} pages, not for {pages}", resized.capacity());
        resized
    }

    /// Pages it has room for.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.len() as u64 * 64
    }

    fn word(&self, page: PageId) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(usize::try_from(page.0 / 64).ok()?)?;
        Some((word, 1 << (page.0 % 64)))
    }

    fn contains(&self, page: PageId) -> bool {
        self.word(page).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn insert(&self, page: PageId) {
        if let Some((word, bit)) = self.word(page) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Forgets a page that is about to be written anew.
    pub fn remove(&self, page: PageId) {
        if let Some((word, bit)) = self.word(page) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The pages of a file as of one map of it.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The mapped file.
    pub map: Map,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages verified so far.
    pub verified: Arc<Verified>,
}

impl Pages {
    /// A leaf or branch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is not what `at` says.
    pub fn tree_page(&self, at: PageRef) -> Result<PageView<'_>> {
        let start = self.start(at.id)?;
        let page = self.page_bytes as usize;
        let bytes = self.map.bytes().get(start..start + page);
        let bytes = bytes.ok_or_else(|| self.damage(at.id, "lies behind the end of the file"))?;
        if self.verified.contains(at.id) {
            return PageView::parse(bytes, at.id).map_err(|what| self.damage(at.id, what));
        }
        // Perhaps not in memory: fetched whole, not by a fault for each 4 KiB of it.
        self.map.will_need(start..start + page);
        if crc32fast::hash(bytes) != at.crc {
            return Err(self.damage(at.id, "does not have the checksum its parent keeps"));
        }
        let view = PageView::parse(bytes, at.id).map_err(|what| self.damage(at.id, what))?;
        if (0..view.len()).any(|cell| view.key(cell).is_none()) {
            return Err(self.damage(at.id, "has a cell outside its bounds"));
        }
        self.verified.insert(at.id);
        Ok(view)
    }

    /// The content of an extent, and how many pages it takes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is not what `at` says.
    pub fn extent(&self, kind: PageKind, at: PageRef) -> Result<(u64, &[u8])> {
        let start = self.start(at.id)?;
        let bytes = self.map.bytes().get(start..).unwrap_or_default();
        let (pages, content, summed) =
            extent_content(bytes, kind, at.id).map_err(|what| self.damage(at.id, what))?;
        if !self.verified.contains(at.id) {
            // All of it is read now.
            self.map.will_need(start..start + summed.len());
            if crc32fast::hash(summed) != at.crc {
                return Err(self.damage(at.id, "does not have the checksum its owner keeps"));
            }
            if pages < crate::page::extent_pages(content.len(), self.page_bytes) {
                return Err(self.damage(at.id, format!("claims {pages} pages for {} bytes", content.len())));
            }
            self.verified.insert(at.id);
        }
        Ok((pages, content))
    }

    /// The content of an extent of so many bytes is read soon.
    pub(crate) fn will_need_extent(&self, first: PageId, len: usize) {
        if (self.page_bytes as usize..self.map.bytes().len()).contains(&len) {
            self.will_need(first, crate::page::extent_pages(len, self.page_bytes));
        }
    }

    /// These many pages from `first` on are read soon.
    pub(crate) fn will_need(&self, first: PageId, pages: u64) {
        let page_bytes = u64::from(self.page_bytes);
        let bounds = [Some(first.0), first.0.checked_add(pages)].map(|page| {
            page.and_then(|page| page.checked_mul(page_bytes)).and_then(|byte| usize::try_from(byte).ok())
        });
        if let [Some(start), Some(end)] = bounds {
            self.map.will_need(start..end);
        }
    }

    fn start(&self, id: PageId) -> Result<usize> {
        let start =
            id.0.checked_mul(u64::from(self.page_bytes)).and_then(|start| usize::try_from(start).ok());
        start
            .filter(|start| *start < self.map.bytes().len())
            .ok_or_else(|| self.damage(id, "lies behind the end of the file"))
    }

    /// Damage at a page, with its place in the file.
    #[must_use]
    pub fn damage(&self, id: PageId, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.at_page(id, what))
    }

    /// The error of a page that is damaged, or that a mistake of our own has come upon.
    #[must_use]
    pub(crate) fn damage_or_bug(&self, id: PageId, what: impl std::fmt::Display) -> Error {
        Error::corrupt_or_bug(self.at_page(id, what))
    }

    fn at_page(&self, id: PageId, what: impl std::fmt::Display) -> String {
        let offset = id.0.saturating_mul(u64::from(self.page_bytes));
        format!("page {} (offset {offset}) {what}", id.0)
    }
}
