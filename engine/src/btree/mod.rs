//! B+trees of pages, changed by copying.
//!
//! A page in the file is never changed. A transaction decodes the pages on the way to a key into
//! [`TreeNode`]s, changes those, and the commit writes them to other pages; what they replace is
//! freed. Everything untouched is shared between the states before and after.

pub mod cursor;
mod insert;
mod pack;
mod placed_values;
mod read_ahead;
mod remove;

pub use insert::insert;
pub use pack::pack;
pub use placed_values::PlacedValues;
pub use remove::remove;

use crate::Result;
use crate::key_parts::KeyParts;
use crate::limits::key_bytes_max;
use crate::meta::TableRoot;
use crate::page::{
    Cells, PageId, PageKind, PageRef, PageView, PageWriter, Pages, StoredValue, branch_cell, cell_key,
    extent_pages, leaf_cell_bytes_max, parse_branch_cell, parse_leaf_cell, search,
};
use crate::space::Extent;

/// A decoded page that is being changed.
#[derive(Debug)]
pub struct TreeNode {
    pub(crate) kind: PageKind,
    pub(crate) cells: Cells,
    /// Of a branch, one per cell: the child, where it is decoded too; its cell's reference is stale
    /// then.
    pub(crate) children: Vec<Option<Box<TreeNode>>>,
}

/// A table while a transaction changes it.
#[derive(Debug)]
pub struct Tree {
    /// The state in the file it starts from; `len` and `depth` are kept current.
    pub stored: TableRoot,
    /// The decoded root, once something changed.
    pub root: Option<Box<TreeNode>>,
    /// Whether the commit has to write the table.
    pub dirty: bool,
    /// Leaves that are written have once what all of their keys begin with.
    pub are_leaves_sharing: bool,
}

/// The pages that changing a tree needs, and those that it leaves behind.
#[derive(Debug)]
pub struct Edit<'t> {
    /// The pages of the state before.
    pub base: &'t Pages,
    /// Pages that the state after does not hold any more.
    pub freed: &'t mut Vec<Extent>,
    /// Long values placed by this transaction, not yet written.
    pub values: &'t mut PlacedValues,
    /// Places of such values that were replaced or removed again: no reader has ever seen them.
    pub unplaced: &'t mut Vec<Extent>,
}

impl Edit<'_> {
    /// Decodes a page; the page itself is free once the transaction is durable.
    pub(crate) fn decode(&mut self, at: PageRef) -> Result<Box<TreeNode>> {
        let page = self.base.tree_page(at)?;
        let cells =
            Cells::from_page(&page).ok_or_else(|| self.base.damage(at.id, "has a cell out of bounds"))?;
        if let Err(what) = check_cells(&page, self.base.page_bytes) {
            return Err(self.base.damage(at.id, what));
        }
        self.freed.push(Extent { start: at.id, pages: 1 });
        let children = match page.kind() {
            PageKind::Branch => std::iter::repeat_with(|| None).take(cells.len()).collect(),
            _ => Vec::new(),
        };
        Ok(Box::new(TreeNode { kind: page.kind(), cells, children }))
    }

    /// Frees the extent of a value that is replaced or removed.
    pub(crate) fn free_value(&mut self, cell: &[u8]) -> Result<()> {
        let Some(leaf) = parse_leaf_cell(&[], cell) else { return Err(self.malformed()) };
        if let StoredValue::Extent { at, len } = leaf.value {
            let extent = Extent { start: at.id, pages: extent_pages(len, self.base.page_bytes) };
            match self.values.len_at(at.id) {
                Some(len) if len as u64 != extent.pages * u64::from(self.base.page_bytes) => {
                    return Err(self.base.damage(at.id, "is named by two values of different lengths"));
                }
                Some(_) => {
                    self.values.remove(at.id);
                    self.unplaced.push(extent);
                }
                None => self.freed.push(extent),
            }
        }
        Ok(())
    }

    pub(crate) fn malformed(&self) -> crate::Error {
        crate::Error::corrupt("a cell of the tree cannot be read although its page's checksum is right")
    }

    /// The error of a page whose keys lie where their branch does not look for them.
    fn misplaced(&self) -> crate::Error {
        crate::Error::corrupt("a page of the tree has keys that belong below another one")
    }

    fn page_bytes(&self) -> usize {
        self.base.page_bytes as usize
    }
}

/// Says what is wrong with a page that is about to be changed. Its checksum is right; but if it was
/// written wrongly, the pages that come of it must not be written too.
fn check_cells(page: &PageView<'_>, page_bytes: u32) -> std::result::Result<(), String> {
    let is_branch = page.kind() == PageKind::Branch;
    if page.is_empty() {
        return Err("has no cells".to_owned());
    }
    let mut before: Option<KeyParts<'_>> = None;
    for at in 0..page.len() {
        // With its whole key, as it is in memory.
        let len = page.cell(at).map_or(0, <[u8]>::len) + page.begin().len();
        let key = page.key(at).filter(|key| key.len() <= key_bytes_max(page_bytes));
        let Some(key) = key.filter(|_| len <= leaf_cell_bytes_max(page_bytes)) else {
            return Err(format!("has a cell of {len} bytes that no page of this size takes"));
        };
        if is_branch && page.branch_cell(at).is_none_or(|cell| cell.child.id.0 == 0) {
            return Err(format!("refers to no page at cell {at}"));
        }
        // The first key of a branch is never looked at.
        if is_branch && at == 0 {
            continue;
        }
        if before.is_some_and(|before| before >= key) {
            return Err(format!("has keys out of order at cell {at}"));
        }
        before = Some(key);
    }
    Ok(())
}

/// Has so many pages on the way to a key written again as they are, from the root down: the commit
/// gives them other places. Long values stay where they are.
///
/// # Errors
/// When a page on the way is damaged; the transaction must be given up then.
pub fn rewrite(tree: &mut Tree, edit: &mut Edit<'_>, key: &[u8], levels: u64) -> Result<()> {
    assert!(tree.stored.root.is_some() || tree.root.is_some(), "a table without a key has no way to it");
    let mut root = tree.open(edit)?;
    let mut node: &mut TreeNode = &mut root;
    for _ in 1..levels {
        if node.kind != PageKind::Branch {
            return Err(edit.misplaced());
        }
        let (at, _) = node.find(key).ok_or_else(|| edit.malformed())?;
        let child = node.take_child(at, edit)?;
        node = node.children[at].insert(child);
    }
    tree.root = Some(root);
    Ok(())
}

impl Tree {
    /// A table as it is in the file.
    #[must_use]
    pub fn new(stored: TableRoot) -> Self {
        Self { stored, root: None, dirty: false, are_leaves_sharing: false }
    }

    /// Decodes the root; an empty table gets an empty leaf.
    fn open(&mut self, edit: &mut Edit<'_>) -> Result<Box<TreeNode>> {
        self.dirty = true;
        if let Some(root) = self.root.take() {
            return Ok(root);
        }
        match self.stored.root {
            Some(root) => edit.decode(root),
            None => {
                self.stored.depth = 1;
                Ok(Box::new(TreeNode::leaf(Cells::default())))
            }
        }
    }
}

impl TreeNode {
    fn leaf(cells: Cells) -> Self {
        Self { kind: PageKind::Leaf, cells, children: Vec::new() }
    }

    fn branch() -> Self {
        Self { kind: PageKind::Branch, cells: Cells::default(), children: Vec::new() }
    }

    /// See [`crate::page::PageView::search`].
    fn find(&self, key: &[u8]) -> Option<(usize, bool)> {
        search(self.kind, self.cells.len(), |at| self.key(at), key)
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        cell_key(self.kind, self.cells.cell(at))
    }

    /// Takes the child at `at` out for changing.
    fn take_child(&mut self, at: usize, edit: &mut Edit<'_>) -> Result<Box<TreeNode>> {
        if let Some(child) = self.children[at].take() {
            return Ok(child);
        }
        let cell = parse_branch_cell(self.cells.cell(at)).ok_or_else(|| edit.malformed())?;
        edit.decode(cell.child)
    }

    /// Adds a decoded child behind the last.
    fn push_child(&mut self, key: &[u8], child: Box<TreeNode>) {
        assert_eq!(self.kind, PageKind::Branch, "only a branch has children");
        self.cells.push(&[&branch_cell(key, PageRef::default())]);
        self.children.push(Some(child));
    }

    /// Number of decoded nodes from here down: pages that the commit has to write.
    #[must_use]
    pub fn count(&self) -> u64 {
        1 + self.children.iter().flatten().map(|child| child.count()).sum::<u64>()
    }

    /// Asserts that the page is sound before it is written: its checksum will be right, so a
    /// mistake would be found only when the page is read. Damage in the file has ended the
    /// transaction before: see `check_cells`.
    fn assert_whole(&self, id: PageId) {
        let is_branch = self.kind == PageKind::Branch;
        let (cells, children) = (self.cells.len(), self.children.len());
        assert!(cells > 0, "page {} is empty", id.0);
        assert_eq!(
            children,
            if is_branch { cells } else { 0 },
            "page {} has other children than cells",
            id.0
        );
        assert!(self.children.iter().all(Option::is_none), "a child of page {} is not written yet", id.0);
        let mut before: Option<&[u8]> = None;
        for at in 0..cells {
            let key = self.key(at).expect("a cell of our own");
            if is_branch {
                let child = parse_branch_cell(self.cells.cell(at)).expect("a cell of our own").child;
                assert!(child.id.0 > 0, "cell {at} of page {} refers to a page without a place", id.0);
            }
            // The first key of a branch is never looked at.
            if !is_branch || at > 0 {
                assert!(
                    before.is_none_or(|before| before < key),
                    "keys of page {} out of order at {at}",
                    id.0
                );
                before = Some(key);
            }
        }
    }

    /// Writes this node and the decoded ones below, children first, to pages taken from `ids`.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(
        &mut self,
        ids: &mut impl Iterator<Item = PageId>,
        out: &mut PageWriter<'_>,
    ) -> Result<PageRef> {
        for at in 0..self.children.len() {
            if let Some(mut child) = self.children[at].take() {
                let child = child.write(ids, out)?;
                let key = self.key(at).expect("a cell of our own").to_vec();
                self.cells.replace(at, &branch_cell(&key, child));
            }
        }
        let id = ids.next().expect("a page was allocated for each node");
        self.assert_whole(id);
        out.write_page(id, |page_bytes, buffer| self.cells.encode(self.kind, id, page_bytes, buffer))
    }
}
