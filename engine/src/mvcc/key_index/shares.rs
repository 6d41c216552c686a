//! Shares of an index, and nodes of it that nothing needs any more.
//!
//! Shares are numbered. A node knows the first that could have it, and the writer notes each node
//! that its tree has no more with the share behind the last that may have it: a list of what the
//! share before it has and it has not. When a share ends, the nodes of the next one's list that are
//! younger than the share before were its alone; the others the share before has too, and what it
//! had not itself the next one has not either.
//!
//! ```text
//! shares:                3          5          6         (the tree as it is now)
//! lists:                 -     [a born 2]  [b born 4]     [c born 1, d born 6]
//! share 5 ends:          3                     6
//!                        -             [a born 2]         [c born 1, d born 6]     b is free
//! ```
//!
//! Only the writer looks for shares that have ended, and so nothing that a reader does costs more
//! than the end of one counter.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use crate::limits::{FREED_AT_ONCE_CHANGES, FREED_NODES_MAX, SHARES_LOOKED_AT, SWEPT_NODES_MAX};
use crate::mvcc::key_index::gone_list::GoneList;
use crate::mvcc::key_index::node_box::{FIRST_SHARE, Gone, Node, NodeBox, Spare};

/// Nodes whose memory is asked for together: so few that what came first is still in the caches
/// when it is used.
const FREED_TOGETHER: usize = 8;

/// A tree at one moment, which is not changed or freed as long as it is held. Clones share it.
#[derive(Debug)]
pub(super) struct Share<N: Node>(Arc<ShareParts<N>>);

#[derive(Debug)]
struct ShareParts<N: Node> {
    /// An alias of the root that the writer has or had.
    root: ManuallyDrop<NodeBox<N>>,
    estate: Arc<Estate<N>>,
}

/// The nodes of a writer that has ended: freed with the last share.
#[derive(Debug)]
struct Estate<N: Node>(OnceLock<Remains<N>>);

/// The tree of a writer that has ended, and the nodes that shares may have had beside it.
pub(super) type Remains<N> = (NodeBox<N>, GoneList<N>);

/// State core view: the shares that there are, as far as is known.
#[derive(Debug)]
pub(super) struct Shares<N: Node> {
    /// In the order of their numbers.
    open: VecDeque<OpenShare<N>>,
    /// The number of the next one.
    next: u64,
    /// The newest of those that have not ended, or 0: nodes that are younger only the tree has.
    newest: u64,
    /// Nodes that the last of the open ones has, and the tree has not.
    gone: GoneList<N>,
    /// Nodes that nothing needs.
    unneeded: GoneList<N>,
    spare: Spare<N>,
    /// The tree has changed since the last one.
    has_changed: bool,
    /// Which open share is looked at next.
    look_at: usize,
    /// Pieces of histories that the tree has lost since the last share.
    lost_pieces: u64,
    /// Shares up to this one may hold histories that take long to free, and one of these has ended.
    heavy_until: u64,
    is_heavy: bool,
    estate: Arc<Estate<N>>,
}

/// A share that has not ended, or of which nodes have not been looked through.
#[derive(Debug)]
struct OpenShare<N: Node> {
    share: Arc<ShareParts<N>>,
    number: u64,
    has_ended: bool,
    /// Nodes that the one before it has, and it has not.
    gone: GoneList<N>,
}

impl<N: Node> Clone for Share<N> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<N: Node> Share<N> {
    pub(super) fn root(&self) -> &NodeBox<N> {
        &self.0.root
    }

    /// Ends it. If it is the last one of a writer that has ended, all nodes of that are left.
    pub(super) fn end(self) -> Option<Remains<N>> {
        Arc::into_inner(Arc::into_inner(self.0)?.estate)?.0.into_inner()
    }

    #[cfg(test)]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<N: Node> Default for Estate<N> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<N: Node> Default for Shares<N> {
    fn default() -> Self {
        Self {
            open: VecDeque::new(),
            next: FIRST_SHARE,
            newest: 0,
            gone: GoneList::default(),
            unneeded: GoneList::default(),
            spare: Spare::default(),
            has_changed: true,
            look_at: 0,
            lost_pieces: 0,
            heavy_until: 0,
            is_heavy: false,
            estate: Arc::default(),
        }
    }
}

impl<N: Node> Shares<N> {
    /// Shares the tree of this root.
    pub(super) fn share(&mut self, root: &NodeBox<N>) -> Share<N> {
        self.look();
        let is_last = |open: &&OpenShare<N>| open.number + 1 == self.next && !open.has_ended;
        if let Some(last) = self.open.back().filter(is_last).filter(|_| !self.has_changed) {
            return Share(Arc::clone(&last.share));
        }
        // SAFETY: all that it reaches was born up to its number. Until `look` sees by its counter
        // that it has ended, such nodes are not changed; those that the tree has no more lie in one
        // list each, and `end` frees none of them that an older share has too.
        let root = unsafe { root.alias() };
        let share = Arc::new(ShareParts { root, estate: Arc::clone(&self.estate) });
        let gone = std::mem::take(&mut self.gone);
        let number = self.next;
        self.open.push_back(OpenShare { share: Arc::clone(&share), number, has_ended: false, gone });
        (self.newest, self.next, self.has_changed) = (number, number + 1, false);
        self.lost_pieces = 0;
        Share(share)
    }

    /// The number of the first share that could have a node that is made now.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Puts a copy in the place of a node that a share may have: the tree is about to change there.
    fn own(&mut self, node: &mut NodeBox<N>) {
        self.has_changed = true;
        if node.born() <= self.newest {
            self.gone.push(node.replace(self.next, &mut self.spare));
        }
    }

    /// The node, or a copy in its place, to be changed.
    pub(super) fn make_mut<'n>(&mut self, node: &'n mut NodeBox<N>) -> &'n mut N {
        self.own(node);
        // SAFETY: it is younger than every share that has not ended.
        unsafe { node.as_mut() }
    }

    /// The node without its box.
    pub(super) fn take(&mut self, mut node: NodeBox<N>) -> N {
        self.own(&mut node);
        node.into_inner()
    }

    /// The tree has lost so many pieces of the memory of histories.
    pub(super) fn lost(&mut self, pieces: u64) {
        self.lost_pieces += pieces;
        if self.lost_pieces > FREED_AT_ONCE_CHANGES {
            self.heavy_until = self.next - 1;
        }
    }

    /// Looks for shares that have ended, and for nodes that only these had; at some of them, if
    /// there are many, so that it never takes long.
    pub(super) fn look(&mut self) {
        for _ in 0..self.open.len().min(SHARES_LOOKED_AT) {
            self.look_at = if self.look_at + 1 < self.open.len() { self.look_at + 1 } else { 0 };
            let open = &mut self.open[self.look_at];
            // Its other owners may have read the nodes until now: that it is the only one
            // happens behind that.
            open.has_ended |= Arc::get_mut(&mut open.share).is_some();
        }
        let newest = self.open.iter().rev().find(|open| !open.has_ended);
        self.newest = newest.map_or(0, |open| open.number);
        let Some(first) = self.open.iter().position(|open| open.has_ended) else { return };
        let (mut at, mut nodes) = (first, SWEPT_NODES_MAX);
        while at < self.open.len() && nodes > 0 {
            if !self.open[at].has_ended || !self.end(at, &mut nodes) {
                at += 1;
            }
        }
    }

    /// Ends a share, with a look at so many nodes at most; false if there are more.
    fn end(&mut self, at: usize, nodes: &mut usize) -> bool {
        self.is_heavy |= self.open[at].number <= self.heavy_until;
        let before = at.checked_sub(1).map(|before| self.open[before].number);
        let mut gone = std::mem::take(&mut self.open[at].gone);
        let next = self.open.get_mut(at + 1).map_or(&mut self.gone, |next| &mut next.gone);
        match before {
            None => {
                assert!(gone.is_empty(), "{} nodes are gone since a share that is not there", gone.len());
                self.unneeded.append(std::mem::take(next));
            }
            Some(before) => {
                while *nodes > 0
                    && let Some(node) = next.pop()
                {
                    *nodes -= 1;
                    let list = if node.born > before { &mut self.unneeded } else { &mut gone };
                    list.push(node);
                }
            }
        }
        if !next.is_empty() {
            self.open[at].gone = gone;
            return false;
        }
        *next = gone;
        self.open.remove(at);
        true
    }

    /// Frees so many nodes that nothing needs, or all, a few at a time: their memory, which has
    /// seldom stayed in the caches, is asked for side by side.
    pub(super) fn free(&mut self, nodes_max: usize) {
        let mut left = nodes_max;
        while left > 0 && !self.unneeded.is_empty() {
            let some = std::array::from_fn::<_, FREED_TOGETHER, _>(|_| {
                left = left.checked_sub(1)?;
                self.unneeded.pop()
            });
            some.iter().flatten().for_each(Gone::prefetch);
            some.iter().flatten().for_each(Gone::prefetch_parts);
            some.into_iter().flatten().for_each(|node| node.free(&mut self.spare));
        }
    }

    /// It takes long to free the nodes that nothing needs.
    pub(super) fn are_many_unneeded(&self) -> bool {
        self.is_heavy || self.unneeded.len() > FREED_NODES_MAX
    }

    /// Nodes will be found that nothing needs, or have been, if nothing changes any more.
    pub(super) fn may_have_unneeded(&self) -> bool {
        self.open.len() > 1 || !self.unneeded.is_empty()
    }

    /// Takes the nodes that nothing needs.
    pub(super) fn take_unneeded(&mut self) -> GoneList<N> {
        self.is_heavy = false;
        std::mem::take(&mut self.unneeded)
    }

    /// The tree has never been shared.
    pub(super) fn is_unshared(&self) -> bool {
        self.next == FIRST_SHARE
    }

    /// Ends the writer, which had this tree: it is freed with its last share.
    pub(super) fn leave(&mut self, root: NodeBox<N>) {
        let mut gone = std::mem::take(&mut self.gone);
        self.open.drain(..).for_each(|open| gone.append(open.gone));
        let is_first = self.estate.0.set((root, gone)).is_ok();
        assert!(is_first, "an index has ended twice");
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests;
