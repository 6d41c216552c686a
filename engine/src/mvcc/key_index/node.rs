//! Nodes of the key index: search, change, divide, join.

use std::sync::Arc;

use crate::limits::LOOK_BACK_STEPS;
use crate::mvcc::key_history::{KeyChange, KeyHistory, KeyMeta};
use crate::mvcc::key_index::row::{Key, Row, Tagged};
use crate::mvcc::key_range::KeyRange;

/// Entries of a full leaf and children of a full branch. Copying a node copies this many
/// references: small enough that a change after each publication costs about a microsecond.
const FANOUT: usize = 32;
/// A node with fewer entries or children is joined with a neighbour.
const THIN: usize = FANOUT / 4;

/// A leaf or a branch.
#[derive(Debug, Clone)]
pub(super) enum IndexNode {
    Leaf(Row<IndexEntry>),
    Branch(Row<Child>),
}

/// A key and its history.
#[derive(Debug, Clone)]
pub(super) struct IndexEntry {
    pub(super) key: Key,
    tag: u64,
    pub(super) history: KeyHistory,
}

/// A child of a branch, with the totals of all keys below it.
#[derive(Debug, Clone)]
pub(super) struct Child {
    /// A key that no key below is smaller than; that of the first child is not looked at.
    first: Key,
    tag: u64,
    pub(super) node: Arc<IndexNode>,
    totals: Totals,
}

/// Counts and revisions over all keys below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    /// Live keys.
    pub(super) live: u64,
    /// Keys, dead ones included.
    pub(super) len: u64,
    /// Revision of the last change.
    pub(super) newest: i64,
    /// When the first of its live keys was created.
    oldest: i64,
}

impl Default for Totals {
    fn default() -> Self {
        Self { live: 0, len: 0, newest: 0, oldest: i64::MAX }
    }
}

/// The last change of a key, before and after it was updated; none before if the key is new.
#[derive(Debug, Clone, Copy)]
struct KeyUpdate {
    before: Option<KeyChange>,
    after: KeyChange,
}

/// A subtree, of which a range may cover all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subtree<'i> {
    pub(super) node: &'i IndexNode,
    /// The range may begin inside of it, and may end inside of it.
    begins: bool,
    ends: bool,
}

impl Totals {
    /// Follows the update of a key without a look at the others; false where that would not do, and
    /// nothing is changed.
    fn follow(&mut self, update: KeyUpdate) -> bool {
        let KeyUpdate { before, after } = update;
        let (was, is) = (before.and_then(|before| before.live()), after.live());
        let created = |meta: Option<KeyMeta>| meta.map(|meta| meta.create_revision);
        // The oldest key may have gone, or the newest change.
        let is_oldest = was.is_some_and(|was| was.create_revision <= self.oldest);
        if is_oldest && created(was) != created(is)
            || before.is_some_and(|before| after.revision.main < before.revision.main)
        {
            return false;
        }
        self.live = self.live + u64::from(is.is_some()) - u64::from(was.is_some());
        self.len += u64::from(before.is_none());
        self.newest = self.newest.max(after.revision.main);
        self.oldest = self.oldest.min(created(is).unwrap_or(i64::MAX));
        true
    }
}

impl Default for IndexNode {
    fn default() -> Self {
        Self::Leaf(Row::default())
    }
}

impl Child {
    fn of(node: IndexNode) -> Self {
        Self { first: node.first_key(), tag: 0, totals: node.totals(), node: Arc::new(node) }
    }

    fn recount(&mut self) {
        self.totals = self.node.totals();
    }

    /// Counts the update of a key below: a look at all of a node's items for each would be most of
    /// what it costs.
    fn count(&mut self, update: Option<KeyUpdate>) {
        if update.is_none_or(|update| !self.totals.follow(update)) {
            self.recount();
        }
        debug_assert_eq!(self.totals, self.node.totals(), "the totals do not follow {update:?}");
    }

    /// How many of its keys exist at a revision, if that can be said without a look at them.
    pub(super) fn count_at(&self, at: i64) -> Option<u64> {
        (self.totals.newest <= at).then_some(self.totals.live)
    }

    /// When the first of its live keys was created, if there are any.
    pub(super) fn oldest(&self) -> Option<i64> {
        (self.totals.live > 0).then_some(self.totals.oldest)
    }

    /// When any of its keys changed last.
    pub(super) fn newest(&self) -> i64 {
        self.totals.newest
    }

    /// None of its keys exists at a revision, as far as can be said without a look at them.
    pub(super) fn has_nothing_at(&self, at: i64) -> bool {
        self.totals.live == 0 && self.totals.newest <= at
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
        entries: &'i Row<IndexEntry>,
        range: KeyRange<'i>,
    ) -> impl Iterator<Item = &'i IndexEntry> + use<'i> {
        let from = if self.begins { entries.not_below(range.start()) } else { 0 };
        entries[from..].iter().take_while(move |entry| range.ends_after(&entry.key))
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

impl Tagged for IndexEntry {
    const UNSEARCHED: usize = 0;

    fn key(&self) -> &Key {
        &self.key
    }

    fn tag(&self) -> u64 {
        self.tag
    }

    fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }
}

impl Tagged for Child {
    const UNSEARCHED: usize = 1;

    fn key(&self) -> &Key {
        &self.first
    }

    fn tag(&self) -> u64 {
        self.tag
    }

    fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }
}

impl IndexEntry {
    pub(super) fn new(key: Key, history: KeyHistory) -> Self {
        Self { key, tag: 0, history }
    }

    fn is_live(&self) -> bool {
        self.history.newest().live().is_some()
    }

    /// Steps that it costs to find the change that was newest at a revision.
    pub(super) fn steps_at(&self, at: i64) -> usize {
        if self.history.newest().revision.main <= at { 1 } else { LOOK_BACK_STEPS }
    }
}

impl IndexNode {
    pub(super) fn above(left: Arc<Self>, right: Child) -> Self {
        // The bound of a first child is no bound: smaller keys go into it without changing it.
        debug_assert!(left.last_key() < Some(&right.first), "the halves of a root are out of order");
        let left = Child { first: left.first_key(), tag: 0, totals: left.totals(), node: left };
        Self::Branch(Row::new(vec![left, right]))
    }

    fn first_key(&self) -> Key {
        match self {
            Self::Leaf(entries) => {
                entries.first().map_or_else(|| Key::from(&[][..]), |entry| Arc::clone(&entry.key))
            }
            Self::Branch(children) => Arc::clone(&children[0].first),
        }
    }

    fn last_key(&self) -> Option<&Key> {
        let mut node = self;
        while let Self::Branch(children) = node {
            node = &children.last()?.node;
        }
        let Self::Leaf(entries) = node else { return None };
        entries.last().map(|entry| &entry.key)
    }

    /// The part of a branch that covers `key`.
    pub(super) fn covering(children: &Row<Child>, key: &[u8]) -> usize {
        children.above(key) - 1
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<&KeyHistory> {
        let mut node = self;
        loop {
            match node {
                Self::Branch(children) => node = &children[Self::covering(children, key)].node,
                Self::Leaf(entries) => {
                    let entry = entries.get(entries.not_below(key))?;
                    return (*entry.key == *key).then_some(&entry.history);
                }
            }
        }
    }

    pub(super) fn live(&self) -> u64 {
        self.totals().live
    }

    pub(super) fn len(&self) -> u64 {
        self.totals().len
    }

    pub(super) fn totals(&self) -> Totals {
        let mut all = Totals::default();
        match self {
            Self::Leaf(entries) => {
                for entry in entries.iter() {
                    let newest = entry.history.newest();
                    if let Some(meta) = newest.live() {
                        all.live += 1;
                        all.oldest = all.oldest.min(meta.create_revision);
                    }
                    all.newest = all.newest.max(newest.revision.main);
                }
                all.len = entries.len() as u64;
            }
            Self::Branch(children) => {
                for Child { totals, .. } in children.iter() {
                    all.live += totals.live;
                    all.len += totals.len;
                    all.newest = all.newest.max(totals.newest);
                    all.oldest = all.oldest.min(totals.oldest);
                }
            }
        }
        debug_assert!(all.live <= all.len, "{} of {} keys are live", all.live, all.len);
        all
    }

    /// Live keys below `key`.
    pub(super) fn live_before(&self, key: &[u8]) -> u64 {
        let mut before = 0;
        let mut node = self;
        loop {
            match node {
                Self::Branch(children) => {
                    let at = Self::covering(children, key);
                    before += children[..at].iter().map(|child| child.totals.live).sum::<u64>();
                    node = &children[at].node;
                }
                Self::Leaf(entries) => {
                    let smaller = &entries[..entries.not_below(key)];
                    return before + smaller.iter().map(|entry| u64::from(entry.is_live())).sum::<u64>();
                }
            }
        }
    }

    pub(super) fn only_child(&self) -> Option<Arc<Self>> {
        match self {
            Self::Branch(children) if children.len() == 1 => Some(Arc::clone(&children[0].node)),
            _ => None,
        }
    }

    fn width(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Branch(children) => children.len(),
        }
    }

    /// Divides a node that is over-full after a change at `changed`.
    fn divide(&mut self, changed: usize) -> Option<Child> {
        let width = self.width();
        if width <= FANOUT {
            return None;
        }
        // Growing at the right end means keys come in order: leave the left node full.
        let at = if changed == width - 1 { width - 1 } else { width / 2 };
        assert!(at > 0 && width - at <= FANOUT, "a node of {width} is divided at {at}");
        Some(Child::of(match self {
            Self::Leaf(entries) => Self::Leaf(entries.split(at)),
            Self::Branch(children) => Self::Branch(children.split(at)),
        }))
    }
}

/// Calls `change` with a key's history; without one if the key has none, and then adds the history
/// that `change` returns. Returns the node's new right neighbour, if it had to be divided.
pub(super) fn update(
    node: &mut IndexNode,
    key: &[u8],
    change: &mut dyn FnMut(Option<&mut KeyHistory>) -> Option<KeyHistory>,
) -> Option<Child> {
    update_below(node, key, change, &mut None)
}

/// The same; says what the update was.
fn update_below(
    node: &mut IndexNode,
    key: &[u8],
    change: &mut dyn FnMut(Option<&mut KeyHistory>) -> Option<KeyHistory>,
    done: &mut Option<KeyUpdate>,
) -> Option<Child> {
    match node {
        IndexNode::Leaf(entries) => {
            let at = entries.not_below(key);
            if let Some(entry) = entries.get_mut(at).filter(|entry| *entry.key == *key) {
                let before = Some(entry.history.newest());
                let added = change(Some(&mut entry.history));
                *done = Some(KeyUpdate { before, after: entry.history.newest() });
                assert!(added.is_none(), "a second history for a key of {} bytes", key.len());
                return None;
            }
            let history = change(None)?;
            *done = Some(KeyUpdate { before: None, after: history.newest() });
            entries.insert(at, IndexEntry::new(Key::from(key), history));
            node.divide(at)
        }
        IndexNode::Branch(children) => {
            let at = IndexNode::covering(children, key);
            let child = &mut children[at];
            let right = update_below(Arc::make_mut(&mut child.node), key, change, done);
            // A node that was divided is another one.
            child.count(done.filter(|_| right.is_none()));
            children.insert(at + 1, right?);
            node.divide(at + 1)
        }
    }
}

/// A tree of entries that come in key order, built from the leaves up.
pub(super) fn build(mut entries: impl Iterator<Item = IndexEntry>) -> IndexNode {
    let (mut level, mut last) = (Vec::new(), None);
    loop {
        let leaf: Vec<_> = entries.by_ref().take(FANOUT).collect();
        if leaf.is_empty() {
            break;
        }
        let follows = last.is_none_or(|last: Key| last < leaf[0].key);
        let is_sorted = follows && leaf.is_sorted_by(|one, next| one.key < next.key);
        assert!(is_sorted, "leaf {} of an index is built from keys out of order", level.len());
        last = leaf.last().map(|entry| Arc::clone(&entry.key));
        level.push(Child::of(IndexNode::Leaf(Row::new(leaf))));
    }
    above_all(level)
}

/// The tree of these nodes of one level.
fn above_all(mut level: Vec<Child>) -> IndexNode {
    while level.len() > 1 {
        let mut parts = level.into_iter();
        level = Vec::new();
        loop {
            let branch: Vec<_> = parts.by_ref().take(FANOUT).collect();
            if branch.is_empty() {
                break;
            }
            level.push(Child::of(IndexNode::Branch(Row::new(branch))));
        }
    }
    match level.pop() {
        Some(root) => Arc::unwrap_or_clone(root.node),
        None => IndexNode::default(),
    }
}

/// One tree of several, whose leaves become its leaves; none if their keys do not follow each
/// other.
pub(super) fn concatenate(trees: impl IntoIterator<Item = IndexNode>) -> Option<IndexNode> {
    let (mut leaves, mut last) = (Vec::new(), None);
    for tree in trees {
        let (from, behind) = (leaves.len(), tree.last_key().cloned());
        take_leaves(tree, &mut leaves);
        let first = leaves.get(from).map(|leaf: &Child| &leaf.first);
        if first.is_some_and(|first| last.as_ref().is_some_and(|last| last >= first)) {
            return None;
        }
        last = behind.or(last);
    }
    Some(above_all(leaves))
}

fn take_leaves(tree: IndexNode, leaves: &mut Vec<Child>) {
    match tree {
        IndexNode::Branch(children) => {
            children
                .into_items()
                .into_iter()
                .for_each(|child| take_leaves(Arc::unwrap_or_clone(child.node), leaves));
        }
        IndexNode::Leaf(entries) if entries.is_empty() => {}
        // The first key that a branch says is no bound of its first child: it is asked anew.
        leaf @ IndexNode::Leaf(_) => leaves.push(Child::of(leaf)),
    }
}

/// Removes a key with its history.
pub(super) fn remove(node: &mut IndexNode, key: &[u8]) {
    match node {
        IndexNode::Leaf(entries) => {
            let at = entries.not_below(key);
            if entries.get(at).is_some_and(|entry| *entry.key == *key) {
                entries.remove(at);
            }
        }
        IndexNode::Branch(children) => {
            let at = IndexNode::covering(children, key);
            let child = &mut children[at];
            remove(Arc::make_mut(&mut child.node), key);
            child.recount();
            if child.node.width() < THIN && children.len() > 1 {
                join(children, if at + 1 < children.len() { at } else { at - 1 });
            }
        }
    }
}

/// Joins the children at `at` and `at + 1` if the result is no wider than a node may be.
fn join(children: &mut Row<Child>, at: usize) {
    if children[at].node.width() + children[at + 1].node.width() > FANOUT {
        return;
    }
    let right = children.remove(at + 1);
    let left = &mut children[at];
    match (Arc::make_mut(&mut left.node), &*right.node) {
        (IndexNode::Leaf(entries), IndexNode::Leaf(more)) => entries.extend(more.iter().cloned()),
        (IndexNode::Branch(parts), IndexNode::Branch(more)) => {
            // The first key of a branch is never looked at; inside a longer one it is, so it must
            // be true there.
            let mut more = more.to_vec();
            more[0].first = right.first;
            parts.extend(more.into_iter());
        }
        _ => unreachable!("children of one branch are of one kind"),
    }
    left.recount();
    let width = left.node.width();
    assert!(width <= FANOUT, "two nodes were joined to one of {width}");
}

/// Every entry below a node, in order.
pub(super) struct IndexEntries<'n> {
    /// Nodes still to be walked, the next one last.
    nodes: Vec<&'n IndexNode>,
    leaf: std::slice::Iter<'n, IndexEntry>,
}

impl<'n> IndexEntries<'n> {
    pub(super) fn new(root: &'n IndexNode) -> Self {
        Self { nodes: vec![root], leaf: [].iter() }
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
                    let from = entries.not_below(key);
                    return Self { nodes, leaf: entries[from..].iter() };
                }
            }
        }
    }
}

impl<'n> Iterator for IndexEntries<'n> {
    type Item = &'n IndexEntry;

    fn next(&mut self) -> Option<&'n IndexEntry> {
        loop {
            if let Some(entry) = self.leaf.next() {
                return Some(entry);
            }
            match self.nodes.pop()? {
                IndexNode::Leaf(entries) => self.leaf = entries.iter(),
                IndexNode::Branch(children) => {
                    self.nodes.extend(children.iter().rev().map(|child| &*child.node))
                }
            }
        }
    }
}
