//! The long values that a transaction has placed and that are not yet written.

use std::collections::BTreeMap;

use crate::page::PageId;

/// Values by their first page. A transaction may place thousands and replace each of them again, so
/// that none is looked for one after the other.
#[derive(Debug, Default)]
pub struct PlacedValues {
    by_page: BTreeMap<PageId, Placed>,
    /// How many were placed, those that were removed again too.
    placed: u64,
}

#[derive(Debug)]
struct Placed {
    /// How many were placed before this one.
    number: u64,
    /// Whole pages, as they go to the file.
    bytes: Vec<u8>,
}

impl PlacedValues {
    /// A value lies at free pages from this one on.
    pub(crate) fn place(&mut self, at: PageId, bytes: Vec<u8>) {
        let before = self.by_page.insert(at, Placed { number: self.placed, bytes });
        assert!(before.is_none(), "two values are placed at page {}", at.0);
        self.placed += 1;
    }

    /// How many bytes the value at a page takes, in whole pages, if this transaction has placed it.
    pub(crate) fn len_at(&self, at: PageId) -> Option<usize> {
        self.by_page.get(&at).map(|value| value.bytes.len())
    }

    /// Forgets the value at a page.
    pub(crate) fn remove(&mut self, at: PageId) {
        self.by_page.remove(&at);
    }

    /// All values, lowest page first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &[u8])> {
        self.by_page.iter().map(|(at, value)| (*at, &*value.bytes))
    }

    /// Takes all values out, in the order in which they were placed.
    pub(crate) fn take_in_order(&mut self) -> impl DoubleEndedIterator<Item = (PageId, Vec<u8>)> + use<> {
        let mut values: Vec<(PageId, Placed)> = std::mem::take(&mut self.by_page).into_iter().collect();
        values.sort_unstable_by_key(|(_, value)| value.number);
        values.into_iter().map(|(at, value)| (at, value.bytes))
    }
}
