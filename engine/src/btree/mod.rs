//! B+trees of pages, changed by copying.
//!
//! A page in the file is never changed. A transaction decodes the pages on the way to a key into [`TreeNode`]s, changes
//! those, and the commit writes them to other pages; what they replace is freed. Everything untouched is shared
//! between the states before and after.

pub mod cursor;
mod insert;
mod remove;

pub use insert::insert;
pub use remove::remove;

use crate::Result;
use crate::meta::TableRoot;
use crate::page::extent_pages;
use crate::page::{
    Cells, PageId, PageKind, PageRef, PageWriter, Pages, StoredValue, branch_cell, parse_branch_cell,
    parse_leaf_cell, search,
};
use crate::space::Extent;

/// A decoded page that is being changed.
#[derive(Debug)]
pub struct TreeNode {
    pub(crate) kind: PageKind,
    pub(crate) cells: Cells,
    /// Of a branch, one per cell: the child, where it is decoded too; its cell's reference is stale then.
    pub(crate) children: Vec<Option<Box<TreeNode>>>,
}

/// A table while a transaction changes it.
#[derive(Debug)]
pub struct Tree {
    /// The state in the file it starts from; `len` and `depth` are kept current.
    pub stored: TableRoot,
    /// The root, once something changed.
    pub root: Option<Box<TreeNode>>,
    /// Something changed.
    pub dirty: bool,
}

/// What changing a tree needs and leaves behind.
#[derive(Debug)]
pub struct Edit<'t> {
    /// The pages of the state before.
    pub base: &'t Pages,
    /// Pages that the state after does not hold any more.
    pub freed: &'t mut Vec<Extent>,
    /// Long values placed by this transaction, not yet written.
    pub values: &'t mut Vec<(PageId, Vec<u8>)>,
    /// Places of such values that were replaced or removed again: nobody has ever read them.
    pub unplaced: &'t mut Vec<Extent>,
}

impl Edit<'_> {
    /// Decodes a page; the page itself is free once the transaction is durable.
    pub(crate) fn decode(&mut self, at: PageRef) -> Result<Box<TreeNode>> {
        let page = self.base.tree_page(at)?;
        let cells =
            Cells::from_page(&page).ok_or_else(|| self.base.damage(at.id, "has a cell out of bounds"))?;
        self.freed.push(Extent { start: at.id, pages: 1 });
        let children = match page.kind() {
            PageKind::Branch => std::iter::repeat_with(|| None).take(cells.len()).collect(),
            _ => Vec::new(),
        };
        Ok(Box::new(TreeNode { kind: page.kind(), cells, children }))
    }

    /// Frees the extent of a value that is replaced or removed.
    pub(crate) fn free_value(&mut self, cell: &[u8]) -> Result<()> {
        let Some(leaf) = parse_leaf_cell(cell) else { return Err(self.malformed()) };
        if let StoredValue::Extent { at, len } = leaf.value {
            let extent = Extent { start: at.id, pages: extent_pages(len, self.base.page_bytes) };
            match self.values.iter().rposition(|(id, _)| *id == at.id) {
                Some(own) => {
                    self.values.swap_remove(own);
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

    fn page_bytes(&self) -> usize {
        self.base.page_bytes as usize
    }
}

impl Tree {
    /// A table as it is in the file.
    #[must_use]
    pub fn new(stored: TableRoot) -> Self {
        Self { stored, root: None, dirty: false }
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
        match self.kind {
            PageKind::Leaf => parse_leaf_cell(self.cells.cell(at)).map(|cell| cell.key),
            _ => parse_branch_cell(self.cells.cell(at)).map(|cell| cell.key),
        }
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
        self.cells.push(&[&branch_cell(key, PageRef::default())]);
        self.children.push(Some(child));
    }

    /// Decoded nodes from here down.
    #[must_use]
    pub fn count(&self) -> u64 {
        1 + self.children.iter().flatten().map(|child| child.count()).sum::<u64>()
    }

    /// A page that is written wrongly would be found by nobody before it is read: its checksum is right.
    fn assert_whole(&self) {
        let is_branch = self.kind == PageKind::Branch;
        assert!(!self.cells.is_empty(), "no page is empty");
        assert_eq!(self.children.len(), if is_branch { self.cells.len() } else { 0 }, "children of a node");
        // The first key of a branch is never looked at.
        let mut before = None;
        for at in usize::from(is_branch)..self.cells.len() {
            let key = self.key(at).expect("a cell of our own");
            assert!(before.is_none_or(|before| before < key), "the keys of a page are in order");
            before = Some(key);
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
        self.assert_whole();
        for at in 0..self.children.len() {
            if let Some(mut child) = self.children[at].take() {
                let child = child.write(ids, out)?;
                let key = self.key(at).expect("a cell of our own").to_vec();
                self.cells.replace(at, &branch_cell(&key, child));
            }
        }
        let id = ids.next().expect("a page was allocated for each node");
        out.write_page(id, |page_bytes, buffer| self.cells.encode(self.kind, id, page_bytes, buffer))
    }
}
