//! The state after one transaction, for reading.

use std::sync::Arc;

use crate::Result;
use crate::btree::cursor::{self, Cursor};
use crate::limits::USER_BYTES;
use crate::meta::{Meta, Table};
use crate::page::Pages;

/// An immutable state of the file. Clones share it; as long as one lives, none of its pages are
/// used again, so a snapshot held for long makes the file grow by what is written meanwhile.
#[derive(Debug, Clone)]
pub struct Snapshot {
    parts: Arc<SnapshotParts>,
}

/// The shared part of a snapshot: while it lives, none of its pages are used again.
#[derive(Debug)]
pub(crate) struct SnapshotParts {
    pub(crate) pages: Pages,
    pub(crate) meta: Meta,
}

impl Snapshot {
    pub(crate) fn new(pages: Pages, meta: Meta) -> Self {
        Self { parts: Arc::new(SnapshotParts { pages, meta }) }
    }

    pub(crate) fn parts(&self) -> &Arc<SnapshotParts> {
        &self.parts
    }

    /// Both are read through the same map of the file.
    pub(crate) fn has_map_of(&self, other: &Self) -> bool {
        let start = |snapshot: &Self| snapshot.parts.pages.map.bytes().as_ptr();
        start(self) == start(other)
    }

    /// A key's value.
    ///
    /// # Errors
    /// When a page on the way is damaged.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<&[u8]>> {
        cursor::get(&self.parts.pages, &self.parts.meta.tables[table.index()], key)
    }

    /// Reads a table in key order; seek before the first `next`.
    #[must_use]
    pub fn cursor(&self, table: Table) -> Cursor<'_> {
        Cursor::new(&self.parts.pages, self.parts.meta.tables[table.index()])
    }

    /// At most `parts - 1` keys that divide a table into parts of about as many pages; none for a
    /// table of one page. Few pages are read for it.
    ///
    /// # Errors
    /// When a page is damaged.
    pub(crate) fn dividing_keys(&self, table: Table, parts: usize) -> Result<Vec<&[u8]>> {
        cursor::dividing_keys(&self.parts.pages, &self.parts.meta.tables[table.index()], parts)
    }

    /// Keys in a table.
    #[must_use]
    pub fn len(&self, table: Table) -> u64 {
        self.parts.meta.tables[table.index()].len
    }

    /// The owner's bytes, as of this transaction.
    #[must_use]
    pub fn user(&self) -> &[u8; USER_BYTES] {
        &self.parts.meta.user
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.parts.meta.page_bytes
    }

    /// The transaction's number.
    #[must_use]
    pub fn txn(&self) -> u64 {
        self.parts.meta.txn
    }
}
