//! Putting a key: copy the path, change the leaf, divide what has become too large.

use crate::Result;
use crate::btree::{Edit, Tree, TreeNode};
use crate::limits::DEPTH_MAX;
use crate::page::{PageKind, PageRef, branch_cell};

/// Puts a leaf cell under `key`, replacing the one that is there; true if the key is new.
///
/// # Errors
/// When a page on the way is damaged; the transaction must be given up then.
pub fn insert(tree: &mut Tree, edit: &mut Edit<'_>, key: &[u8], cell: &[u8]) -> Result<bool> {
    let mut root = tree.open(edit)?;
    let (new, right) = insert_below(&mut root, edit, key, cell, tree.stored.depth, tree.are_leaves_sharing)?;
    if let Some((separator, right)) = right {
        if tree.stored.depth as usize >= DEPTH_MAX {
            return Err(crate::Error::corrupt("a tree is deeper than any tree can be"));
        }
        let mut above = Box::new(TreeNode::branch());
        above.push_child(&[], root);
        above.push_child(&separator, right);
        root = above;
        tree.stored.depth += 1;
    }
    tree.stored.len += u64::from(new);
    assert!(!root.cells.is_empty() && tree.stored.depth > 0, "a key was put, but its tree is empty");
    tree.root = Some(root);
    Ok(new)
}

/// A node's new right neighbour and the smallest key in it.
type Split = Option<(Vec<u8>, Box<TreeNode>)>;

fn insert_below(
    node: &mut TreeNode,
    edit: &mut Edit<'_>,
    key: &[u8],
    cell: &[u8],
    levels: u32,
    shares: bool,
) -> Result<(bool, Split)> {
    let (at, equal) = node.find(key).ok_or_else(|| edit.malformed())?;
    if node.kind == PageKind::Leaf {
        if equal {
            edit.free_value(node.cells.cell(at))?;
            node.cells.replace(at, cell);
        } else {
            node.cells.insert(at, cell);
        }
        if shares {
            node.cells.share();
        }
        let split = divide(node, edit, at);
        return Ok((!equal, split));
    }
    if levels <= 1 {
        return Err(crate::Error::corrupt("a tree is deeper than its meta slot says"));
    }
    let mut child = node.take_child(at, edit)?;
    let (new, right) = insert_below(&mut child, edit, key, cell, levels - 1, shares)?;
    node.children[at] = Some(child);
    let Some((separator, right)) = right else { return Ok((new, None)) };
    let is_behind = at == 0 || node.key(at).is_some_and(|before| before < &*separator);
    let next = (at + 1 < node.cells.len()).then(|| node.key(at + 1));
    if !is_behind || next.is_some_and(|next| next.is_none_or(|next| next <= &*separator)) {
        return Err(edit.misplaced());
    }
    node.cells.insert(at + 1, &branch_cell(&separator, PageRef::default()));
    node.children.insert(at + 1, Some(right));
    let split = divide(node, edit, at + 1);
    Ok((new, split))
}

/// Divides a node that is too large for a page; `changed` is the cell that has made it so.
fn divide(node: &mut TreeNode, edit: &Edit<'_>, changed: usize) -> Split {
    if node.cells.page_bytes() <= edit.page_bytes() {
        return None;
    }
    // Growing at the right end means keys come in order: leave the left node full rather than half
    // empty.
    let last = node.cells.len() - 1;
    let at = match changed {
        at if at == last => last,
        // The others fit by themselves, and take much more room with this key among them.
        0 if node.kind == PageKind::Leaf && node.cells.first_breaks_begin() => 1,
        _ => node.cells.middle(),
    };
    let cells = node.cells.split_off(at);
    let children = if node.kind == PageKind::Branch { node.children.split_off(at) } else { Vec::new() };
    let right = Box::new(TreeNode { kind: node.kind, cells, children });
    let (left_bytes, right_bytes) = (node.cells.page_bytes(), right.cells.page_bytes());
    assert!(
        left_bytes.max(right_bytes) <= edit.page_bytes(),
        "a page was divided into {left_bytes} and {right_bytes} bytes: one is too large still"
    );
    let separator = right.key(0).expect("a cell of our own").to_vec();
    Some((separator, right))
}
