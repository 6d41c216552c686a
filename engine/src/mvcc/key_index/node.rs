//! Nodes of the key index: search, change, divide, join.

use crate::key_parts::KeyParts;
use crate::limits::LOOK_BACK_STEPS;
use crate::mvcc::key_history::{KeyChange, KeyHistory};
use crate::mvcc::key_index::keys::{Key, KeyRef, between};
use crate::mvcc::key_index::node_box::{self, Node};
use crate::mvcc::key_index::row::{Item, Row, SpareRows};
use crate::mvcc::key_index::shares;
use crate::mvcc::key_index::totals::{KeyUpdate, Totals};
use crate::mvcc::key_range::KeyRange;
use crate::pauses::Pauses;
use crate::prefetch::prefetch;

/// Entries of a full leaf and children of a full branch. Copying a leaf copies this many histories
/// of 24 B: small enough that a change after each publication costs about a microsecond.
pub(super) const FANOUT: usize = 32;
/// A node with fewer entries or children is joined with a neighbour.
const THIN: usize = FANOUT / 4;

/// A leaf or a branch.
#[derive(Debug)]
pub(super) enum IndexNode {
    Leaf(Row<KeyHistory>),
    Branch(Row<Child>),
}

/// There is one for each 22 keys or so; with its number it is one and a half lines of the caches.
const _: () = assert!(size_of::<IndexNode>() == 80);

/// The owner of a node.
pub(super) type NodeBox = node_box::NodeBox<IndexNode>;
pub(super) type Shares = shares::Shares<IndexNode>;

/// A key and its history, as a leaf holds them.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexEntry<'i> {
    pub(super) key: KeyParts<'i>,
    pub(super) history: &'i KeyHistory,
}

/// A child of a branch. Its key in the branch is one that no key below is smaller than, and all
/// keys before are; that of the first child says nothing. A branch is copied for each change below
/// it, so that of the child's totals only the number that counts add up is there: the others lie in
/// the child.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) node: NodeBox,
    /// Live keys below.
    pub(super) live: u64,
}

/// A node that becomes the child of a branch, behind others.
#[derive(Debug)]
pub(super) struct NewChild {
    /// Its key in the branch.
    pub(super) first: Key,
    pub(super) node: NodeBox,
    /// As they are in the node: known without a look at it.
    pub(super) totals: Totals,
}

/// A subtree, of which a range may cover all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subtree<'i> {
    pub(super) node: &'i IndexNode,
    /// The range may begin inside of it, and may end inside of it.
    begins: bool,
    ends: bool,
}

/// Frees a node and those below it.
pub(super) fn free(node: NodeBox, pauses: &mut Pauses) {
    pauses.count(1);
    node.into_inner().take_off_children(|child| free(child, pauses), None);
}

// SAFETY: the children are those of the row, which has no other owners of nodes.
unsafe impl Node for IndexNode {
    type SpareRows = (SpareRows<KeyHistory>, SpareRows<Child>);

    fn copy(&self, second: impl Fn(&NodeBox) -> NodeBox, (leaves, branches): &mut Self::SpareRows) -> Self {
        match self {
            Self::Leaf(entries) => Self::Leaf(entries.copy(KeyHistory::add_copies, leaves)),
            Self::Branch(children) => {
                let copy = |child: &Child| Child { node: second(&child.node), live: child.live };
                Self::Branch(children.copy(|from, to| to.extend(from.iter().map(copy)), branches))
            }
        }
    }

    /// Neither the row of a branch nor its children: the end of a branch reads none of them.
    fn prefetch_parts(&self) {
        match self {
            Self::Leaf(entries) => {
                prefetch(entries.as_ptr(), entries.len());
                entries.prefetch_owners();
            }
            Self::Branch(children) => children.prefetch_owners(),
        }
    }

    fn take_off_children(self, mut take: impl FnMut(NodeBox), spare: Option<&mut Self::SpareRows>) {
        match (self, spare) {
            (Self::Leaf(entries), Some((leaves, _))) => leaves.keep(entries.into_items()),
            (Self::Leaf(_), None) => {}
            (Self::Branch(children), spare) => {
                let mut children = children.into_items();
                children.drain(..).for_each(|child| take(child.node));
                if let Some((_, branches)) = spare {
                    branches.keep(children);
                }
            }
        }
    }
}

impl Default for IndexNode {
    fn default() -> Self {
        Self::Leaf(Row::default())
    }
}

impl Child {
    pub(super) fn of(node: NodeBox) -> Self {
        Self { live: node.totals().live, node }
    }

    /// Behind a change of the child.
    fn note_live(&mut self) {
        self.live = self.totals().live;
    }

    pub(super) fn totals(&self) -> &Totals {
        self.node.totals()
    }
}

impl NewChild {
    /// A node that shares with this number or a higher one may have, with its key.
    pub(super) fn of(first: Key, node: IndexNode, born: u64) -> Self {
        Self { first, totals: *node.totals(), node: NodeBox::new(node, born) }
    }
}

impl<'i> Subtree<'i> {
    pub(super) fn root(node: &'i IndexNode, range: KeyRange<'_>) -> Self {
        Self { node, begins: true, ends: !matches!(range, KeyRange::From(_)) }
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.begins && !self.ends
    }

    /// Entries of its leaf that are in the range.
    pub(super) fn entries(
        self,
        entries: &'i Row<KeyHistory>,
        range: KeyRange<'i>,
    ) -> impl Iterator<Item = IndexEntry<'i>> + use<'i> {
        let from = if self.begins { entries.not_below(range.start()) } else { 0 };
        let rest = (from..entries.len()).map(|at| entries.entry(at));
        rest.take_while(move |entry| range.ends_after_parts(entry.key))
    }

    /// The parts of a branch of which something may be in the range.
    pub(super) fn children(
        self,
        range: KeyRange<'_>,
    ) -> impl Iterator<Item = (&'i Child, Subtree<'i>)> + use<'i> {
        let branch = if let IndexNode::Branch(children) = self.node { Some(children) } else { None };
        let children: &[Child] = branch.map_or(&[], |children| children);
        let covering = |key| branch.map_or(0, |children| IndexNode::covering(children, key));
        let first = if self.begins { covering(range.start()) } else { 0 };
        let last = match range {
            KeyRange::One(end) | KeyRange::Span { end, .. } if self.ends => covering(end),
            _ => children.len().saturating_sub(1),
        };
        children.iter().enumerate().take(last + 1).skip(first).map(move |(at, child)| {
            let (begins, ends) = (self.begins && at == first, self.ends && at == last);
            (child, Subtree { node: &child.node, begins, ends })
        })
    }
}

impl Item for KeyHistory {
    const UNSEARCHED: usize = 0;

    fn add_to(&self, totals: &mut Totals) {
        totals.add(self);
    }
}

impl Item for Child {
    const UNSEARCHED: usize = 1;

    fn add_to(&self, totals: &mut Totals) {
        debug_assert_eq!(self.live, self.totals().live, "a branch and its child have other numbers");
        totals.add_all(*self.totals());
    }
}

impl Row<KeyHistory> {
    pub(super) fn entry(&self, at: usize) -> IndexEntry<'_> {
        IndexEntry { key: self.key(at), history: &self[at] }
    }

    /// Where a key is.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let at = self.not_below(key);
        (at < self.len() && self.key(at) == *key).then_some(at)
    }
}

impl IndexEntry<'_> {
    /// Steps that it costs to find the change that was newest at a revision.
    pub(super) fn steps_at(&self, at: i64) -> usize {
        let looks_back = self.history.newest().revision.main > at && self.history.lies_apart();
        if looks_back { LOOK_BACK_STEPS } else { 1 }
    }
}

impl IndexNode {
    pub(super) fn above(left: NodeBox, right: NewChild) -> Self {
        debug_assert!(
            left.last_key().is_none_or(|last| last.key() < right.first[..]),
            "the halves of a root are out of order"
        );
        let keys = [KeyRef::bytes(&[]), KeyRef::Own(&right.first)];
        Self::Branch(Row::new(vec![Child::of(left), Child::of(right.node)], keys.into_iter()))
    }

    pub(super) fn branches_above_leaves(&self) -> usize {
        let (mut node, mut branches) = (self, 0);
        while let Self::Branch(children) = node {
            (node, branches) = (&children[0].node, branches + 1);
        }
        branches
    }

    /// The first key of all; none if there are none.
    pub(super) fn first_key(&self) -> Option<KeyRef<'_>> {
        let mut node = self;
        while let Self::Branch(children) = node {
            node = &children.iter().find(|child| child.totals().len > 0)?.node;
        }
        let Self::Leaf(entries) = node else { return None };
        (!entries.is_empty()).then(|| entries.key_ref(0))
    }

    pub(super) fn last_key(&self) -> Option<KeyRef<'_>> {
        let mut node = self;
        while let Self::Branch(children) = node {
            node = &children.last()?.node;
        }
        let Self::Leaf(entries) = node else { return None };
        Some(entries.key_ref(entries.len().checked_sub(1)?))
    }

    /// The part of a branch that covers `key`.
    pub(super) fn covering(children: &Row<Child>, key: &[u8]) -> usize {
        children.above(key) - 1
    }

    /// The leaf that covers `key`.
    fn leaf(&self, key: &[u8]) -> &Row<KeyHistory> {
        let mut node = self;
        loop {
            match node {
                Self::Branch(children) => node = &children[Self::covering(children, key)].node,
                Self::Leaf(entries) => return entries,
            }
        }
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<&KeyHistory> {
        let leaf = self.leaf(key);
        Some(&leaf[leaf.find(key)?])
    }

    /// A key of the index with memory of its own.
    pub(super) fn shared_key(&self, key: &[u8]) -> Option<Key> {
        let leaf = self.leaf(key);
        Some(leaf.key_ref(leaf.find(key)?).to_key())
    }

    pub(super) fn live(&self) -> u64 {
        self.totals().live
    }

    pub(super) fn len(&self) -> u64 {
        self.totals().len
    }

    pub(super) fn totals(&self) -> &Totals {
        match self {
            Self::Leaf(entries) => entries.totals(),
            Self::Branch(children) => children.totals(),
        }
    }

    /// Live keys below `key`.
    pub(super) fn live_before(&self, key: &[u8]) -> u64 {
        let mut before = 0;
        let mut node = self;
        loop {
            match node {
                Self::Branch(children) => {
                    let at = Self::covering(children, key);
                    before += children[..at].iter().map(|child| child.live).sum::<u64>();
                    node = &children[at].node;
                }
                Self::Leaf(entries) => {
                    let smaller = &entries[..entries.not_below(key)];
                    let is_live = |history: &KeyHistory| u64::from(history.newest().live().is_some());
                    return before + smaller.iter().map(is_live).sum::<u64>();
                }
            }
        }
    }

    /// It is a branch with one child.
    pub(super) fn has_only_child(&self) -> bool {
        matches!(self, Self::Branch(children) if children.len() == 1)
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        let Self::Branch(children) = self else { return 1 };
        1 + children.iter().map(|child| child.node.nodes()).sum::<usize>()
    }

    fn width(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Branch(children) => children.len(),
        }
    }

    /// Divides a node that is over-full after a change at `changed`.
    fn divide(&mut self, changed: usize, born: u64) -> Option<NewChild> {
        let width = self.width();
        if width <= FANOUT {
            return None;
        }
        // Growing at the right end means keys come in order: leave the left node full.
        let at = if changed == width - 1 { width - 1 } else { width / 2 };
        assert!(at > 0 && width - at <= FANOUT, "a node of {width} is divided at {at}");
        let first = match self {
            Self::Leaf(entries) => between(entries.key(at - 1), entries.key_ref(at)),
            Self::Branch(children) => children.key_ref(at).to_key(),
        };
        let right = match self {
            Self::Leaf(entries) => Self::Leaf(entries.split(at)),
            Self::Branch(children) => Self::Branch(children.split(at)),
        };
        Some(NewChild::of(first, right, born))
    }
}

/// Calls `change` with a key's history; without one if the key has none, and then adds the history
/// that `change` returns. Returns the node's new right neighbour, if it had to be divided.
pub(super) fn update(
    shares: &mut Shares,
    node: &mut NodeBox,
    key: &[u8],
    change: &mut dyn FnMut(Option<&mut KeyHistory>) -> Option<KeyHistory>,
) -> Option<NewChild> {
    update_below(shares, node, key, change, &mut None)
}

/// The same; says what the update was.
fn update_below(
    shares: &mut Shares,
    node: &mut NodeBox,
    key: &[u8],
    change: &mut dyn FnMut(Option<&mut KeyHistory>) -> Option<KeyHistory>,
    done: &mut Option<KeyUpdate>,
) -> Option<NewChild> {
    // The memory that is looked at next comes while the node is copied.
    let covering = match &**node {
        IndexNode::Leaf(entries) => {
            entries.prefetch_keys();
            0
        }
        IndexNode::Branch(children) => {
            let at = IndexNode::covering(children, key);
            children[at].node.prefetch();
            at
        }
    };
    let node = shares.make_mut(node);
    match node {
        IndexNode::Leaf(entries) => {
            let at = entries.not_below(key);
            let update = if at < entries.len() && entries.key(at) == *key {
                let history = &mut entries[at];
                let before = Some(history.newest());
                let added = change(Some(history));
                assert!(added.is_none(), "a second history for a key of {} bytes", key.len());
                KeyUpdate { before, after: history.newest() }
            } else {
                let history = change(None)?;
                let after = history.newest();
                entries.insert(at, KeyRef::bytes(key), history);
                KeyUpdate { before: None, after }
            };
            entries.count(update);
            *done = Some(update);
            node.divide(at, shares.next())
        }
        IndexNode::Branch(children) => {
            let child = &mut children[covering];
            let right = update_below(shares, &mut child.node, key, change, done);
            child.note_live();
            if let Some(NewChild { first, node: right, .. }) = right {
                children.insert(covering + 1, KeyRef::Own(&first), Child::of(right));
            }
            if let Some(update) = *done {
                children.count(update);
            }
            node.divide(covering + 1, shares.next())
        }
    }
}

/// Removes a key with its history; returns its last change, if it was there.
pub(super) fn remove(shares: &mut Shares, node: &mut NodeBox, key: &[u8]) -> Option<KeyChange> {
    match shares.make_mut(node) {
        IndexNode::Leaf(entries) => {
            let at = entries.find(key)?;
            let last = entries.remove(at).newest();
            entries.count_end(last);
            Some(last)
        }
        IndexNode::Branch(children) => {
            let at = IndexNode::covering(children, key);
            let child = &mut children[at];
            let last = remove(shares, &mut child.node, key)?;
            child.note_live();
            let is_thin = child.node.width() < THIN;
            children.count_end(last);
            if is_thin && children.len() > 1 {
                join(shares, children, if at + 1 < children.len() { at } else { at - 1 });
            }
            Some(last)
        }
    }
}

/// Joins the children at `at` and `at + 1` if the result is no wider than a node may be.
fn join(shares: &mut Shares, children: &mut Row<Child>, at: usize) {
    if children[at].node.width() + children[at + 1].node.width() > FANOUT {
        return;
    }
    let first = children.key_ref(at + 1).to_key();
    let right = shares.take(children.remove(at + 1).node);
    let left = &mut children[at];
    match (shares.make_mut(&mut left.node), right) {
        (IndexNode::Leaf(entries), IndexNode::Leaf(more)) => entries.extend(more, None),
        // The first key of a branch is never looked at; inside a longer one it is, so it must be
        // true there.
        (IndexNode::Branch(parts), IndexNode::Branch(more)) => parts.extend(more, Some(KeyRef::Own(&first))),
        _ => unreachable!("children of one branch are of one kind"),
    }
    left.note_live();
    let width = left.node.width();
    assert!(width <= FANOUT, "two nodes were joined to one of {width}");
}

/// Every entry below a node, in order.
pub(super) struct IndexEntries<'n> {
    /// Nodes still to be walked, the next one last.
    nodes: Vec<&'n IndexNode>,
    /// The leaf that is walked, and its next entry.
    leaf: Option<&'n Row<KeyHistory>>,
    at: usize,
}

impl<'n> IndexEntries<'n> {
    pub(super) fn new(root: &'n IndexNode) -> Self {
        Self { nodes: vec![root], leaf: None, at: 0 }
    }

    /// Those from `key` on.
    pub(super) fn from(root: &'n IndexNode, key: &[u8]) -> Self {
        let (mut nodes, mut node) = (Vec::new(), root);
        loop {
            match node {
                IndexNode::Branch(children) => {
                    let at = IndexNode::covering(children, key);
                    nodes.extend(children[at + 1..].iter().rev().map(|child| &*child.node));
                    node = &children[at].node;
                }
                IndexNode::Leaf(entries) => {
                    return Self { nodes, leaf: Some(entries), at: entries.not_below(key) };
                }
            }
        }
    }
}

impl<'n> Iterator for IndexEntries<'n> {
    type Item = IndexEntry<'n>;

    fn next(&mut self) -> Option<IndexEntry<'n>> {
        loop {
            if let Some(leaf) = self.leaf.filter(|leaf| self.at < leaf.len()) {
                self.at += 1;
                return Some(leaf.entry(self.at - 1));
            }
            match self.nodes.pop()? {
                IndexNode::Leaf(entries) => (self.leaf, self.at) = (Some(entries), 0),
                IndexNode::Branch(children) => {
                    self.nodes.extend(children.iter().rev().map(|child| &*child.node))
                }
            }
        }
    }
}
