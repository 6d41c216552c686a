//! A whole index at once: of keys in their order, or of the leaves of others whose keys follow each
//! other.

use crate::key_parts::KeyParts;
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::keys::{Key, KeyRef, between};
use crate::mvcc::key_index::node::{Child, FANOUT, IndexNode, NewChild, NodeBox};
use crate::mvcc::key_index::node_box::FIRST_SHARE;
use crate::mvcc::key_index::row::Row;
use crate::mvcc::key_index::totals::Totals;

/// An index that is built of keys in order, from the leaves up.
#[derive(Debug, Default)]
pub struct IndexBuilder<'k> {
    /// Leaves that are full.
    leaves: Vec<NewChild>,
    /// The next one.
    keys: Vec<KeyParts<'k>>,
    histories: Vec<KeyHistory>,
}

impl<'k> IndexBuilder<'k> {
    /// Adds a key; none if some keys were out of order.
    #[inline]
    #[must_use]
    pub fn push(&mut self, key: KeyParts<'k>, history: KeyHistory) -> Option<()> {
        if self.keys.len() == FANOUT {
            self.end_leaf()?;
        }
        self.keys.push(key);
        self.histories.push(history);
        Some(())
    }

    fn end_leaf(&mut self) -> Option<()> {
        let histories = std::mem::replace(&mut self.histories, Vec::with_capacity(FANOUT));
        let is_sorted = self.keys.is_sorted_by(|one, next| one < next);
        let leaf = is_sorted.then(|| Row::new(histories, self.keys.iter().map(|key| KeyRef::Parts(*key))));
        self.keys.clear();
        let leaf = leaf?;
        let first = key_behind(&self.leaves, leaf.key_ref(0))?;
        self.leaves.push(NewChild::of(first, IndexNode::Leaf(leaf), FIRST_SHARE));
        Some(())
    }

    /// The tree of these keys; none if some were out of order.
    pub(super) fn finish(self) -> Option<IndexNode> {
        self.leaves().map(above_all)
    }

    /// Their leaves; the key of the first one says nothing.
    pub(super) fn leaves(mut self) -> Option<Vec<NewChild>> {
        if !self.keys.is_empty() {
            self.end_leaf()?;
        }
        Some(self.leaves)
    }
}

/// The key in a branch of a node that begins with this one and comes behind a level of nodes; none
/// if it does not follow their keys.
fn key_behind(level: &[NewChild], begin: KeyRef<'_>) -> Option<Key> {
    let Some(before) = level.last() else { return Some(Key::default()) };
    let last = before.node.last_key()?;
    (last.key() < begin.key()).then(|| between(last.key(), begin))
}

/// The tree of these nodes of one level.
pub(super) fn above_all(mut level: Vec<NewChild>) -> IndexNode {
    while level.len() > 1 {
        let mut parts = level.into_iter();
        level = Vec::new();
        loop {
            let (mut keys, mut children) = (Vec::new(), Vec::with_capacity(FANOUT));
            let mut totals = Totals::default();
            for part in parts.by_ref().take(FANOUT) {
                totals.add_all(part.totals);
                keys.push(part.first);
                children.push(Child { node: part.node, live: part.totals.live });
            }
            let Some(first) = keys.first().cloned() else { break };
            let branch = Row::with_totals(children, keys.iter().map(KeyRef::Own), totals);
            level.push(NewChild::of(first, IndexNode::Branch(branch), FIRST_SHARE));
        }
    }
    match level.pop() {
        Some(root) => root.node.into_inner(),
        None => IndexNode::default(),
    }
}

/// Adds the leaves of a tree behind others; none if its keys do not follow theirs.
pub(super) fn add_tree(tree: NodeBox, leaves: &mut Vec<NewChild>) -> Option<()> {
    if tree.len() > 0 {
        let first = key_behind(leaves, tree.first_key()?)?;
        let branches = tree.branches_above_leaves();
        take_leaves(NewChild { first, totals: *tree.totals(), node: tree }, branches, leaves);
    }
    Some(())
}

/// Adds leaves that follow each other behind others; none if their keys do not follow theirs.
pub(super) fn add_leaves(mut more: Vec<NewChild>, leaves: &mut Vec<NewChild>) -> Option<()> {
    if let Some(first) = more.first_mut() {
        first.first = key_behind(leaves, first.node.first_key()?)?;
    }
    leaves.append(&mut more);
    Some(())
}

/// Adds the leaves of a tree that lie below so many branches, with the keys and totals that they
/// have; only the totals of each are looked at: leaves are most of the memory of an index. Those
/// that have lost all of their keys are left out: a branch that has others too would have them at
/// its end, where nothing tells what comes behind.
fn take_leaves(tree: NewChild, branches: usize, leaves: &mut Vec<NewChild>) {
    if tree.totals.len == 0 {
        return;
    }
    if branches == 0 {
        return leaves.push(tree);
    }
    let NewChild { first, node, .. } = tree;
    let IndexNode::Branch(children) = node.into_inner() else {
        unreachable!("all leaves of a tree lie below as many branches");
    };
    // The first key of a branch says nothing; that of the branch itself does.
    let others: Vec<Key> = (1..children.len()).map(|at| children.key_ref(at).to_key()).collect();
    for (first, Child { node, .. }) in std::iter::once(first).chain(others).zip(children.into_items()) {
        take_leaves(NewChild { first, totals: *node.totals(), node }, branches - 1, leaves);
    }
}
