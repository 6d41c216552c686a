//! The index as a whole: the writer changes it, and readers hold shares of it.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::key_parts::KeyParts;
use crate::mvcc::key_history::{KeyChange, KeyHistory, KeyMeta};
use crate::mvcc::key_index::build::IndexBuilder;
use crate::mvcc::key_index::gone_list::GoneList;
use crate::mvcc::key_index::keys::Key;
use crate::mvcc::key_index::node::{self, IndexNode, NodeBox, Shares};
use crate::mvcc::key_index::shares::Share;
use crate::mvcc::key_index::{Counting, Created, CreatedSearch, Direction, Scan};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::revision::Revision;
use crate::pauses::Pauses;

/// A key as a put has left it, and as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutResult {
    /// The key now.
    pub meta: KeyMeta,
    /// The key before, if it existed.
    pub previous: Option<KeyMeta>,
}

/// State core view: the index being changed.
#[derive(Debug, Default)]
pub struct KeyIndex {
    root: IndexRoot,
    shares: Shares,
    /// A change of a key forgets what a compaction up to here drops, if that lies in its node.
    forgotten: i64,
}

/// The index as it is read: by its writer, or shared.
#[derive(Debug, Default)]
pub struct IndexRoot {
    node: NodeBox,
}

/// The index at one moment. Clones share it.
#[derive(Debug)]
pub struct SharedIndex {
    /// An alias of the root that the share has.
    root: ManuallyDrop<IndexRoot>,
    share: Share<IndexNode>,
}

/// Nodes that nothing needs any more: to drop them frees them.
#[derive(Debug, Default)]
pub struct UnneededNodes(GoneList<IndexNode>);

impl KeyIndex {
    /// An index without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An index from its keys in ascending order; none if they are in another.
    #[must_use]
    pub fn from_sorted<'k>(keys: impl IntoIterator<Item = (KeyParts<'k>, KeyHistory)>) -> Option<Self> {
        let mut builder = IndexBuilder::default();
        for (key, history) in keys {
            builder.push(key, history)?;
        }
        builder.finish().map(Self::of)
    }

    pub(super) fn of(root: IndexNode) -> Self {
        let shares = Shares::default();
        Self { root: IndexRoot { node: NodeBox::new(root, shares.next()) }, shares, forgotten: 0 }
    }

    /// The tree of an index that was never shared.
    pub(super) fn into_tree(mut self) -> NodeBox {
        assert!(self.shares.is_unshared(), "an index that was shared is part of another");
        std::mem::take(&mut self.root.node)
    }

    /// The index as it is now.
    #[must_use]
    pub fn root(&self) -> &IndexRoot {
        &self.root
    }

    /// Shares the index as it is now.
    #[must_use]
    pub fn share(&mut self) -> SharedIndex {
        SharedIndex::of(self.shares.share(&self.root.node))
    }

    /// Looks for nodes that only shares had which have ended since.
    pub(crate) fn look_for_unneeded(&mut self) {
        self.shares.look();
    }

    /// Frees some of the nodes that were found; see [`Self::share`], which looks too.
    pub(crate) fn free_unneeded(&mut self, nodes_max: usize) {
        self.shares.free(nodes_max);
    }

    /// It takes long to free the nodes that were found.
    pub(crate) fn are_many_unneeded(&self) -> bool {
        self.shares.are_many_unneeded()
    }

    /// Nodes will be found, or have been, if nothing changes any more.
    pub(crate) fn may_have_unneeded(&self) -> bool {
        self.shares.may_have_unneeded()
    }

    /// Takes the nodes that were found: to drop them frees them.
    #[must_use]
    pub fn take_unneeded(&mut self) -> UnneededNodes {
        UnneededNodes(self.shares.take_unneeded())
    }

    /// Shares that have not ended, as far as is known.
    #[cfg(test)]
    pub(super) fn open_shares(&self) -> usize {
        self.shares.open()
    }

    /// From now on changes of keys forget what a compaction at `at` drops: nothing reads it any
    /// more.
    pub fn forget(&mut self, at: i64) {
        self.forgotten = at;
    }

    /// Up to which compaction changes of keys forget what it drops; 0 at first.
    pub(crate) fn forgotten(&self) -> i64 {
        self.forgotten
    }

    /// A put of `key` at `revision`, which must be above all others of that key.
    pub fn put(&mut self, key: &[u8], revision: Revision) -> PutResult {
        let (mut previous, mut current, forgotten) = (None, None, self.forgotten);
        self.update(key, |history| {
            let history = match history {
                Some(history) => {
                    previous = history.newest().live();
                    history.forget_within(forgotten);
                    history.put(revision);
                    current = history.newest().live();
                    return None;
                }
                None => KeyHistory::created(revision),
            };
            current = history.newest().live();
            Some(history)
        });
        let meta = current.expect("a put key is live");
        PutResult { meta, previous }
    }

    /// A put as its record describes it, where the change before it may be gone; it must be above
    /// all others of that key.
    pub fn put_as_recorded(&mut self, key: &[u8], put: KeyMeta) {
        self.update(key, |history| match history {
            Some(history) => {
                history.put_as_recorded(put);
                None
            }
            None => Some(KeyHistory::recorded(put)),
        });
    }

    /// A delete of `key` at `revision`; the key before, or none if it did not exist and nothing
    /// happened.
    pub fn tombstone(&mut self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        let previous = self.root.get(key, i64::MAX)?; // no copying for a key that is not there
        let forgotten = self.forgotten;
        self.update(key, |history| {
            let history = history.expect("the key was found");
            history.forget_within(forgotten);
            let deleted = history.delete(revision);
            assert!(deleted, "a key that is live, {previous:?}, cannot be deleted");
            None
        });
        Some(previous)
    }

    /// Drops the changes of one key that a compaction at `at` makes unreadable.
    pub fn compact_key(&mut self, key: &[u8], at: i64) {
        let Some(history) = self.root.history(key) else { return };
        if history.oldest().revision.main > at
            || history.change_at(at) == Some(history.oldest()) && history.at(at).is_some()
        {
            return; // the oldest change is the one to keep
        }
        let (pieces, compacted) = (history.pieces(), history.compacted(at));
        let left = compacted.as_ref().map_or(0, KeyHistory::pieces);
        self.replace(key, compacted);
        self.shares.lost(pieces - left);
    }

    /// Gives a key this history in place of its own, or none, as to take back its changes.
    pub fn replace(&mut self, key: &[u8], history: Option<KeyHistory>) {
        match history {
            Some(history) => self.set(key, history),
            None => {
                node::remove(&mut self.shares, &mut self.root.node, key);
                self.shrink();
            }
        }
    }

    /// Sets a key's whole history, as when the index is loaded.
    pub fn set(&mut self, key: &[u8], history: KeyHistory) {
        self.update(key, |old| match old {
            Some(old) => {
                *old = history.clone();
                None
            }
            None => Some(history.clone()),
        });
    }

    /// Has `change` change a key's history, or make one where it has none.
    fn update(&mut self, key: &[u8], mut change: impl FnMut(Option<&mut KeyHistory>) -> Option<KeyHistory>) {
        let split = node::update(&mut self.shares, &mut self.root.node, key, &mut change);
        self.grow(split);
    }

    fn grow(&mut self, split: Option<node::NewChild>) {
        if let Some(right) = split {
            let left = std::mem::take(&mut self.root.node);
            self.root.node = NodeBox::new(IndexNode::above(left, right), self.shares.next());
        }
    }

    fn shrink(&mut self) {
        while self.root.node.has_only_child() {
            let root = std::mem::take(&mut self.root.node);
            if let IndexNode::Branch(children) = self.shares.take(root) {
                self.root.node = children.into_items().remove(0).node;
            }
        }
    }
}

impl Drop for KeyIndex {
    fn drop(&mut self) {
        self.shares.leave(std::mem::take(&mut self.root.node));
    }
}

impl Deref for SharedIndex {
    type Target = IndexRoot;

    fn deref(&self) -> &IndexRoot {
        &self.root
    }
}

impl Clone for SharedIndex {
    fn clone(&self) -> Self {
        Self::of(self.share.clone())
    }
}

impl Default for SharedIndex {
    fn default() -> Self {
        KeyIndex::new().share()
    }
}

impl SharedIndex {
    fn of(share: Share<IndexNode>) -> Self {
        // SAFETY: it lies beside the share, which keeps all of the tree as it is.
        let node = unsafe { share.root().alias() };
        Self { root: ManuallyDrop::new(IndexRoot { node: ManuallyDrop::into_inner(node) }), share }
    }

    #[cfg(test)]
    pub(super) fn is(&self, other: &Self) -> bool {
        self.share.is(&other.share)
    }

    /// Ends it; frees the index, with pauses, if nothing else has it.
    pub(crate) fn free(self, pauses: &mut Pauses) {
        if let Some((root, gone)) = self.share.end() {
            node::free(root, pauses);
            UnneededNodes(gone).free(pauses);
        }
    }
}

impl UnneededNodes {
    /// Frees them, with pauses.
    pub(crate) fn free(self, pauses: &mut Pauses) {
        for node in self.0 {
            drop(node);
            pauses.count(1);
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl IndexRoot {
    /// How many nodes it has.
    #[cfg(test)]
    pub(super) fn nodes(&self) -> usize {
        self.node.nodes()
    }

    /// A key's history.
    #[must_use]
    pub fn history(&self, key: &[u8]) -> Option<&KeyHistory> {
        self.node.find(key)
    }

    /// The key, if the index has it: one that has memory of its own there is shared, not copied.
    #[must_use]
    pub fn shared_key(&self, key: &[u8]) -> Option<Key> {
        self.node.shared_key(key)
    }

    /// The key as of revision `at`; `i64::MAX` means now.
    #[must_use]
    pub fn get(&self, key: &[u8], at: i64) -> Option<KeyMeta> {
        self.history(key)?.at(at)
    }

    /// The newest change of `key` at or before `at`, tombstones included.
    #[must_use]
    pub fn change_at(&self, key: &[u8], at: i64) -> Option<KeyChange> {
        self.history(key)?.change_at(at)
    }

    /// Keys of the range that exist now.
    #[must_use]
    pub fn live_count(&self, range: KeyRange<'_>) -> u64 {
        match range {
            KeyRange::One(key) => u64::from(self.get(key, i64::MAX).is_some()),
            KeyRange::From(start) => self.node.live() - self.node.live_before(start),
            KeyRange::Span { start, end } if start < end => {
                self.node.live_before(end) - self.node.live_before(start)
            }
            KeyRange::Span { .. } => 0,
        }
    }

    /// Counts the keys of the range that exist at revision `at`.
    #[must_use]
    pub fn counting<'i>(&'i self, range: KeyRange<'i>, at: i64) -> Counting<'i> {
        if at >= self.newest_change() || matches!(range, KeyRange::One(_)) {
            return Counting::known(match range {
                KeyRange::One(key) => u64::from(self.get(key, at).is_some()),
                range => self.live_count(range),
            });
        }
        Counting::new(&self.node, range, at)
    }

    /// Searches the range for a key by when it was created.
    #[must_use]
    pub fn created<'i>(&'i self, range: KeyRange<'i>, wanted: Created) -> CreatedSearch<'i> {
        CreatedSearch::new(&self.node, range, wanted)
    }

    /// Keys of the range that exist at revision `at`.
    #[must_use]
    pub fn scan<'i>(&'i self, range: KeyRange<'i>, at: i64, direction: Direction) -> Scan<'i> {
        Scan::new(&self.node, range, at, direction)
    }

    /// All keys with their histories, dead ones included, in order.
    pub fn entries(&self) -> impl Iterator<Item = (KeyParts<'_>, &KeyHistory)> {
        node::IndexEntries::new(&self.node).map(|entry| (entry.key, entry.history))
    }

    /// All keys from `key` on with their histories, dead ones included, in order.
    pub fn entries_from(&self, key: &[u8]) -> impl Iterator<Item = (KeyParts<'_>, &KeyHistory)> + use<'_> {
        node::IndexEntries::from(&self.node, key).map(|entry| (entry.key, entry.history))
    }

    /// Revision of the last change of any key; 0 if there is none.
    #[must_use]
    pub fn newest_change(&self) -> i64 {
        self.node.totals().newest
    }

    /// Keys, dead ones included.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.node.len()
    }

    /// No keys, not even dead ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
