//! Reading a tree: one key, or keys in order.

use std::ops::ControlFlow;

use crate::Result;
use crate::btree::read_ahead::ReadAhead;
use crate::key_parts::KeyParts;
use crate::meta::TableRoot;
use crate::page::{LeafCell, PageId, PageKind, PageRef, PageView, Pages, StoredValue, extent_pages};
use crate::space::Extent;

/// The pages of a leaf that have to be written again so that the file can end before them.
#[derive(Debug)]
pub(crate) struct LeafBehind<'p> {
    /// Its first key.
    pub(crate) first: KeyParts<'p>,
    /// The pages on the way to it, and its own.
    pub(crate) levels: u64,
    /// How many of them have to be written again, from the root down.
    pub(crate) levels_behind: u64,
    /// The keys of long values that lie behind, and where.
    pub(crate) values: Vec<(KeyParts<'p>, Extent)>,
}

/// The value of a key.
///
/// # Errors
/// When a page on the way is damaged.
pub fn get<'p>(pages: &'p Pages, table: &TableRoot, key: &[u8]) -> Result<Option<&'p [u8]>> {
    let Some(mut at) = table.root else { return Ok(None) };
    for _ in 0..table.depth.max(1) {
        let page = pages.tree_page(at)?;
        let malformed = || pages.damage(at.id, "cannot be searched");
        let (cell, is_found) = page.search(key).ok_or_else(malformed)?;
        if page.kind() == PageKind::Leaf {
            let found = is_found.then(|| page.leaf_cell(cell).ok_or_else(malformed)).transpose()?;
            if let Some(LeafCell { value: StoredValue::Extent { at, len }, .. }) = found {
                // A large value is not in memory for long where the file is not; it is one request.
                pages.will_need_extent(at.id, len);
            }
            return found.map(|found| value(pages, found.value)).transpose();
        }
        at = page.branch_cell(cell).ok_or_else(malformed)?.child;
    }
    Err(pages.damage(at.id, "lies deeper than the meta slot says"))
}

/// At most `parts - 1` keys of branches, in their order, that divide a table into parts of about as
/// many pages.
///
/// # Errors
/// When a page on the way is damaged.
pub fn dividing_keys<'p>(pages: &'p Pages, table: &TableRoot, parts: usize) -> Result<Vec<&'p [u8]>> {
    /// Pages of one level for each part: the level above has too few to make parts alike.
    const PAGES_PER_PART: usize = 4;
    let mut level: Vec<(&[u8], PageRef)> = table.root.map(|root| (&[][..], root)).into_iter().collect();
    for _ in 1..table.depth {
        if parts < 2 || level.len() >= parts * PAGES_PER_PART {
            break;
        }
        let mut below = Vec::new();
        for (first, at) in level {
            let page = pages.tree_page(at)?;
            if page.kind() != PageKind::Branch {
                return Err(pages.damage(at.id, "is no branch"));
            }
            for number in 0..page.len() {
                let cell = page.branch_cell(number);
                let cell = cell.ok_or_else(|| pages.damage(at.id, "has a cell that cannot be read"))?;
                // The first key that a branch says is no bound: that of the branch itself is.
                below.push((if number == 0 { first } else { cell.key }, cell.child));
            }
        }
        level = below;
    }
    let parts = parts.clamp(1, level.len().max(1));
    let mut keys: Vec<&[u8]> = (1..parts).map(|part| level[part * level.len() / parts].0).collect();
    let is_sorted =
        keys.is_sorted_by(|one, next| one < next) && keys.first().is_none_or(|key| !key.is_empty());
    if !is_sorted {
        keys.clear(); // a damaged table: whoever reads it finds that
    }
    Ok(keys)
}

/// A place between two keys.
#[derive(Debug)]
pub struct Cursor<'p> {
    pages: &'p Pages,
    table: TableRoot,
    /// From the root down: a page and the cell in it.
    path: Vec<(PageView<'p>, usize)>,
    ahead: ReadAhead,
    /// An error ends the cursor: going on would skip keys silently.
    failed: Option<crate::Error>,
}

impl<'p> Cursor<'p> {
    /// Before the first key.
    #[must_use]
    pub fn new(pages: &'p Pages, table: TableRoot) -> Self {
        Self { pages, table, path: Vec::new(), ahead: ReadAhead::default(), failed: None }
    }

    /// Moves before the first key that is not below `key`.
    ///
    /// # Errors
    /// When a page on the way is damaged.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let result = self.descend(key);
        self.remember(result)
    }

    fn descend(&mut self, key: &[u8]) -> Result<()> {
        self.path.clear();
        self.ahead.begin();
        let Some(mut at) = self.table.root else { return Ok(()) };
        loop {
            let page = self.pages.tree_page(at)?;
            let malformed = || self.pages.damage(at.id, "cannot be searched");
            let (cell, _) = page.search(key).ok_or_else(malformed)?;
            self.path.push((page, cell));
            if page.kind() == PageKind::Leaf {
                return Ok(());
            }
            if self.path.len() >= self.table.depth as usize {
                return Err(self.pages.damage(at.id, "lies deeper than the meta slot says"));
            }
            at = page.branch_cell(cell).ok_or_else(malformed)?.child;
        }
    }

    /// The next key and its value, in a table whose leaves do not share beginnings of keys.
    ///
    /// # Errors
    /// When a page on the way is damaged; again at every later call.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would invite skipping errors")]
    pub fn next(&mut self) -> Result<Option<(&'p [u8], &'p [u8])>> {
        self.next_row(sole)
    }

    /// The next key, in parts, and its value, in any table.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    #[inline]
    pub fn next_parts(&mut self) -> Result<Option<(KeyParts<'p>, &'p [u8])>> {
        self.next_row(Ok)
    }

    /// Hands out the rows from here on, each key in parts, of any table, until there are no more or
    /// `row` wants none.
    ///
    /// # Errors
    /// When a page on the way is damaged, or as `row`.
    pub(crate) fn for_each(
        mut self,
        mut row: impl FnMut(KeyParts<'p>, &'p [u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        while let Some((key, found)) = self.next_parts()? {
            if row(key, found)?.is_break() {
                return Ok(());
            }
            // The others of its leaf: there is no need to look where it lies again.
            let Some((leaf, at)) = self.path.last_mut() else { continue };
            for at in std::mem::replace(at, leaf.len())..leaf.len() {
                let cell = leaf.leaf_cell(at).ok_or_else(unreadable_leaf_cell)?;
                if row(cell.key, value(self.pages, cell.value)?)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn next_row<K>(&mut self, key: impl FnOnce(KeyParts<'p>) -> Result<K>) -> Result<Option<(K, &'p [u8])>> {
        let result = self.advance().and_then(|cell| {
            let Some(cell) = cell else { return Ok(None) };
            Ok(Some((key(cell.key)?, value(self.pages, cell.value)?)))
        });
        self.remember(result)
    }

    /// The next key, in a table as for [`Cursor::next`]; its value is not read.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub fn next_key(&mut self) -> Result<Option<&'p [u8]>> {
        let result = self.advance().and_then(|cell| cell.map(|cell| sole(cell.key)).transpose());
        self.remember(result)
    }

    /// The next key, in parts, in any table; its value is not read.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub(crate) fn next_key_parts(&mut self) -> Result<Option<KeyParts<'p>>> {
        let result = self.advance().map(|cell| cell.map(|cell| cell.key));
        self.remember(result)
    }

    #[inline]
    fn remember<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// The pages of the leaf under the cursor, of the way to it and of its long values that lie at
    /// or behind page `limit`; none at the end of the table.
    ///
    /// # Errors
    /// When a page is damaged.
    pub(crate) fn leaf_behind(&self, limit: PageId) -> Result<Option<LeafBehind<'p>>> {
        let Some((leaf, _)) = self.path.last() else { return Ok(None) };
        let lowest = self.path.iter().rposition(|(page, _)| page.id() >= limit);
        let mut behind = LeafBehind {
            first: KeyParts::default(),
            levels: self.path.len() as u64,
            levels_behind: lowest.map_or(0, |at| at as u64 + 1),
            values: Vec::new(),
        };
        for at in 0..leaf.len() {
            let cell =
                leaf.leaf_cell(at).ok_or_else(|| self.pages.damage(leaf.id(), "has an unreadable cell"))?;
            if at == 0 {
                behind.first = cell.key;
            }
            if let StoredValue::Extent { at: value, len } = cell.value {
                let value = Extent { start: value.id, pages: extent_pages(len, self.pages.page_bytes) };
                if value.stop() > limit.0 {
                    behind.values.push((cell.key, value));
                }
            }
        }
        Ok(Some(behind))
    }

    /// Moves to the next leaf; its first key, or none at the end of the table.
    ///
    /// # Errors
    /// When a page is damaged.
    pub(crate) fn next_leaf(&mut self) -> Result<Option<KeyParts<'p>>> {
        if let Some((leaf, at)) = self.path.last_mut() {
            *at = leaf.len();
        }
        let first = self.next_key_parts()?;
        if let (Some(_), Some((_, at))) = (first, self.path.last_mut()) {
            *at = 0;
        }
        Ok(first)
    }

    #[inline]
    fn advance(&mut self) -> Result<Option<LeafCell<'p>>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            let depth = self.path.len();
            let Some((page, at)) = self.path.last_mut() else { return Ok(None) };
            if *at >= page.len() {
                self.path.pop();
                let Some((_, above)) = self.path.last_mut() else { return Ok(None) };
                *above += 1;
                continue;
            }
            if page.kind() == PageKind::Leaf {
                let cell = page.leaf_cell(*at);
                *at += 1;
                return cell.map(Some).ok_or_else(unreadable_leaf_cell);
            }
            let child =
                page.branch_cell(*at).ok_or_else(|| crate::Error::corrupt("a branch cell cannot be read"))?;
            if depth >= self.table.depth as usize {
                return Err(self.pages.damage(child.child.id, "lies deeper than the meta slot says"));
            }
            if depth + 1 == self.table.depth as usize {
                self.ahead.enter(self.pages, page, *at);
            }
            let page = self.pages.tree_page(child.child)?;
            self.path.push((page, 0));
        }
    }
}

fn unreadable_leaf_cell() -> crate::Error {
    crate::Error::corrupt("a leaf cell cannot be read")
}

/// The key of a table whose leaves do not share beginnings of keys.
#[inline]
fn sole(key: KeyParts<'_>) -> Result<&[u8]> {
    key.sole()
        .ok_or_else(|| crate::Error::corrupt("a leaf shares beginnings of keys in a table where none does"))
}

#[inline]
fn value<'p>(pages: &'p Pages, stored: StoredValue<'p>) -> Result<&'p [u8]> {
    match stored {
        StoredValue::Inline(value) => Ok(value),
        StoredValue::Extent { at, len } => value_elsewhere(pages, at, len),
    }
}

fn value_elsewhere(pages: &Pages, at: PageRef, len: usize) -> Result<&[u8]> {
    let (_, content) = pages.extent(PageKind::Value, at)?;
    if content.len() == len {
        Ok(content)
    } else {
        Err(pages.damage(at.id, format!("holds {} bytes instead of {len}", content.len())))
    }
}
