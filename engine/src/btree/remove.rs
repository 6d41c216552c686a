//! Removing a key: copy the path, change the leaf, drop what is empty, join what has become thin.

use crate::Result;
use crate::btree::{Edit, Tree, TreeNode};
use crate::page::{PageKind, branch_cell, parse_branch_cell};

/// Removes a key; true if it was there.
///
/// # Errors
/// When a page on the way is damaged; the transaction must be given up then.
pub fn remove(tree: &mut Tree, edit: &mut Edit<'_>, key: &[u8]) -> Result<bool> {
    if tree.stored.len == 0 {
        return Ok(false);
    }
    let mut root = tree.open(edit)?;
    let removed = remove_below(&mut root, edit, key, tree.stored.depth)?;
    tree.stored.len -= u64::from(removed);
    while root.kind == PageKind::Branch && root.cells.len() == 1 {
        if tree.stored.depth <= 1 {
            return Err(crate::Error::corrupt("a tree is deeper than its meta slot says"));
        }
        root = root.take_child(0, edit)?;
        tree.stored.depth -= 1;
    }
    if root.cells.is_empty() {
        if tree.stored.len > 0 {
            let left = tree.stored.len;
            return Err(crate::Error::corrupt_or_bug(format!(
                "a tree is empty, but should have {left} keys still"
            )));
        }
        tree.stored.root = None;
        tree.stored.depth = 0;
        tree.root = None;
    } else {
        tree.root = Some(root);
    }
    Ok(removed)
}

fn remove_below(node: &mut TreeNode, edit: &mut Edit<'_>, key: &[u8], levels: u32) -> Result<bool> {
    let (at, equal) = node.find(key).ok_or_else(|| edit.malformed())?;
    if node.kind == PageKind::Leaf {
        if equal {
            edit.free_value(node.cells.cell(at))?;
            node.cells.remove(at);
        }
        return Ok(equal);
    }
    if levels <= 1 {
        return Err(crate::Error::corrupt("a tree is deeper than its meta slot says"));
    }
    let mut child = node.take_child(at, edit)?;
    let removed = remove_below(&mut child, edit, key, levels - 1)?;
    if child.cells.is_empty() {
        node.cells.remove(at);
        node.children.remove(at);
        return Ok(removed);
    }
    let thin = child.cells.page_bytes() < edit.page_bytes() / 4;
    node.children[at] = Some(child);
    if thin && removed && node.cells.len() > 1 {
        join(node, edit, if at + 1 < node.cells.len() { at } else { at - 1 })?;
    }
    Ok(removed)
}

/// Joins the children at `at` and `at + 1` if they fit one page.
fn join(node: &mut TreeNode, edit: &mut Edit<'_>, at: usize) -> Result<()> {
    let mut left = node.take_child(at, edit)?;
    let mut right = node.take_child(at + 1, edit)?;
    let separator = node.key(at + 1).ok_or_else(|| edit.malformed())?.to_vec();
    // The first key of a branch is never looked at, and may be an old one.
    let is_branch = right.kind == PageKind::Branch;
    let (first, last) = (usize::from(is_branch), left.cells.len() - 1);
    let left_fits = last < first || left.key(last).is_some_and(|key| key < &*separator);
    // The separator becomes the key of a branch's first cell, so the second one is above it.
    let follows = |key: &[u8]| if is_branch { key > &*separator } else { key >= &*separator };
    let right_fits = right.cells.len() <= first || right.key(first).is_some_and(follows);
    if left.kind != right.kind || !left_fits || !right_fits {
        return Err(edit.misplaced());
    }
    // Inside a longer branch the first key is looked at, so it must be true there. The separator
    // may be the longer one: a branch that is not joined may have no room for it.
    let first_cell = if is_branch {
        let first = parse_branch_cell(right.cells.cell(0)).ok_or_else(|| edit.malformed())?;
        branch_cell(&separator, first.child)
    } else {
        right.cells.cell(0).to_vec()
    };
    let together = if is_branch {
        let right_bytes = right.cells.page_bytes() - right.cells.cell(0).len() + first_cell.len();
        left.cells.page_bytes() + right_bytes - crate::page::HEADER
    } else {
        left.cells.page_bytes_with(&right.cells)
    };
    if together > edit.page_bytes() {
        node.children[at] = Some(left);
        node.children[at + 1] = Some(right);
        return Ok(());
    }
    right.cells.replace(0, &first_cell);
    left.cells.extend(&right.cells);
    left.children.append(&mut right.children);
    assert!(left.cells.page_bytes() <= edit.page_bytes(), "{together} bytes were joined in one page");
    node.children[at] = Some(left);
    node.cells.remove(at + 1);
    node.children.remove(at + 1);
    assert_eq!(node.cells.len(), node.children.len(), "a branch has other children than cells");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::btree::PlacedValues;
    use crate::db::{Db, DbOptions};
    use crate::disk::SimDisk;
    use crate::page::Cells;

    /// Joins two branches, the right one beginning at `m`, its second cell at `second`; true if
    /// they became one.
    fn join_branches(second: &[u8]) -> Result<bool> {
        let db = Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 256 })?;
        let snapshot = db.snapshot();
        let (freed, values, unplaced) = (&mut Vec::new(), &mut PlacedValues::default(), &mut Vec::new());
        let mut edit = Edit { base: &snapshot.parts().pages, freed, values, unplaced };
        let leaf = || Box::new(TreeNode::leaf(Cells::default()));
        let (mut left, mut right) = (Box::new(TreeNode::branch()), Box::new(TreeNode::branch()));
        left.push_child(b"", leaf());
        right.push_child(b"", leaf());
        right.push_child(second, leaf());
        let mut node = TreeNode::branch();
        node.push_child(b"", left);
        node.push_child(b"m", right);
        join(&mut node, &mut edit, 0)?;
        Ok(node.cells.len() == 1)
    }

    #[test]
    fn a_branch_is_not_joined_to_one_whose_keys_do_not_follow() {
        assert!(join_branches(b"n").unwrap());
        for second in [b"m", b"l"] {
            assert!(join_branches(second).is_err(), "{} does not follow m", second.escape_ascii());
        }
    }
}
