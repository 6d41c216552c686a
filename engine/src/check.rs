//! Proof that a file is whole: every page is reachable or free, never both; every checksum is
//! right; keys are in order and where their branches say; counts and depths are true.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::db::{Db, read_space};
use crate::key_parts::KeyParts;
use crate::meta::{FORMAT_SHARING, TableRoot, first_page};
use crate::page::{PageKind, PageRef, Pages, StoredValue, Verified};
use crate::space::Extent;
use crate::{Error, Result};

/// Pages and keys that a check has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileReport {
    /// Pages of trees and values.
    pub reachable: u64,
    /// Pages free or to be free.
    pub unused: u64,
    /// Keys in all tables.
    pub keys: u64,
}

/// Pages that are checked after each commit, on average.
#[cfg(feature = "verify")]
const VERIFIED_PAGES: u64 = 256;

#[cfg(feature = "verify")]
thread_local! {
    static EXPECTS_DAMAGE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a simulation on this thread damages files: commits are not checked then (feature
/// `verify`), for it is the store that is to find the damage.
pub fn expect_damage(is_expected: bool) {
    #[cfg(feature = "verify")]
    EXPECTS_DAMAGE.set(is_expected);
    #[cfg(not(feature = "verify"))]
    let _ = is_expected;
}

/// Checks what a commit has left; a large file so seldom that it costs as much as if it was small.
///
/// # Panics
/// If the file is damaged.
#[cfg(feature = "verify")]
pub fn verify_commit(db: &Db) {
    let every = (db.space.end() / VERIFIED_PAGES).max(1);
    let txn = db.snapshot().txn();
    if txn.is_multiple_of(every)
        && !EXPECTS_DAMAGE.get()
        && let Err(error) = check(db)
    {
        panic!("transaction {txn} has left a damaged file: {error}");
    }
}

struct PageWalk<'p> {
    pages: Pages,
    original: &'p Pages,
    seen: BTreeSet<u64>,
    /// Pages of the file.
    end: u64,
    format: u32,
    keys: u64,
}

/// Checks the newest committed state.
///
/// # Errors
/// [`Error::Corrupt`] naming the first thing that is wrong.
pub fn check(db: &Db) -> Result<FileReport> {
    let snapshot = db.snapshot();
    let inner = snapshot.parts();
    // Verify every checksum again, whatever was verified before.
    let pages = Pages { verified: Arc::new(Verified::default()), ..inner.pages.clone() };
    let format = inner.meta.format;
    let mut walk = PageWalk {
        pages,
        original: &inner.pages,
        seen: BTreeSet::new(),
        end: db.space.end(),
        format,
        keys: 0,
    };
    for table in &inner.meta.tables {
        walk.table(table)?;
    }
    for part in db.space.list() {
        walk.mark(part.extent)?;
    }
    let reachable = walk.seen.len() as u64;
    let mut unused = 0;
    for extent in db.space.unused() {
        walk.mark(extent)?;
        unused += extent.pages;
    }
    if db.space.is_as_listed() && !read_space(&walk.pages, &inner.meta)?.is_equal(&db.space) {
        return Err(Error::corrupt("the list of free pages is not the one that this process goes by"));
    }
    let known = reachable + unused + first_page(inner.meta.page_bytes);
    if known != db.space.end() {
        return Err(Error::corrupt(format!(
            "{} pages are neither used nor free",
            db.space.end().abs_diff(known)
        )));
    }
    Ok(FileReport { reachable, unused, keys: walk.keys })
}

impl PageWalk<'_> {
    fn mark(&mut self, extent: Extent) -> Result<()> {
        if extent.stop() > self.end {
            let what = format!("begins {} pages in a file of {}", extent.pages, self.end);
            return Err(self.original.damage(extent.start, what));
        }
        for page in extent.start.0..extent.stop() {
            if !self.seen.insert(page) {
                return Err(self.original.damage(crate::page::PageId(page), "is used twice"));
            }
        }
        Ok(())
    }

    fn table(&mut self, table: &TableRoot) -> Result<()> {
        let before = self.keys;
        match table.root {
            Some(root) => self.tree(root, table.depth, None, None)?,
            None if table.len == 0 => {}
            None => return Err(Error::corrupt(format!("a table of {} keys has no root", table.len))),
        }
        if self.keys - before != table.len {
            return Err(Error::corrupt(format!(
                "a table holds {} keys, not {}",
                self.keys - before,
                table.len
            )));
        }
        Ok(())
    }

    /// Checks the pages from `at` down, whose keys must lie in `[low, high)`.
    fn tree(
        &mut self,
        at: PageRef,
        levels: u32,
        low: Option<KeyParts<'_>>,
        high: Option<KeyParts<'_>>,
    ) -> Result<()> {
        self.mark(Extent { start: at.id, pages: 1 })?;
        let pages = self.pages.clone();
        let page = pages.tree_page(at)?;
        let leaf = page.kind() == PageKind::Leaf;
        if !page.begin().is_empty() && self.format < FORMAT_SHARING {
            let what = format!("shares a beginning of keys in a file of format {}", self.format);
            return Err(pages.damage(at.id, what));
        }
        if page.is_empty() || leaf != (levels == 1) {
            return Err(pages.damage(at.id, format!("is empty or not {levels} levels above the leaves' end")));
        }
        for cell in 0..page.len() {
            let key = page.key(cell).ok_or_else(|| pages.damage(at.id, "has an unreadable key"))?;
            let next = if cell + 1 < page.len() { page.key(cell + 1) } else { high };
            // The first key that a branch says is no bound: that of the branch itself is.
            let from = if !leaf && cell == 0 { low } else { Some(key) };
            let in_order = next.is_none_or(|next| from.is_none_or(|from| from < next));
            if !in_order || (cell == 0 && leaf && low.is_some_and(|low| key < low)) {
                return Err(pages.damage(at.id, format!("has keys out of order at cell {cell}")));
            }
            if leaf {
                self.leaf_cell(&pages, at, page.leaf_cell(cell))?;
            } else {
                let child =
                    page.branch_cell(cell).ok_or_else(|| pages.damage(at.id, "has an unreadable cell"))?;
                self.tree(child.child, levels - 1, from, next)?;
            }
        }
        Ok(())
    }

    fn leaf_cell(
        &mut self,
        pages: &Pages,
        at: PageRef,
        cell: Option<crate::page::LeafCell<'_>>,
    ) -> Result<()> {
        self.keys += 1;
        let cell = cell.ok_or_else(|| pages.damage(at.id, "has an unreadable cell"))?;
        if let StoredValue::Extent { at, .. } = cell.value {
            let (count, _) = pages.extent(PageKind::Value, at)?;
            self.mark(Extent { start: at.id, pages: count })?;
        }
        Ok(())
    }
}
