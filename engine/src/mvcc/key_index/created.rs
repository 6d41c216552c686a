//! The key of a range that was created first, or last before a revision.
//!
//! Keys lie in the order of their bytes, so these could be anywhere. But each node knows
//! when the oldest of its living keys was created and when any of its keys changed last: no key in
//! it was created before the one or after the other. The child that may hold the best key is looked
//! into first, and when no other may hold a better one than was found, the rest is left alone. A
//! search for the last of all, or for a key that does not exist, looks into a few nodes.

use std::collections::BinaryHeap;

use crate::key_parts::KeyParts;
use crate::mvcc::key_history::KeyMeta;
use crate::mvcc::key_index::node::{IndexNode, Subtree};
use crate::mvcc::key_index::totals::Totals;
use crate::mvcc::key_range::KeyRange;

/// The key that is wanted, of those that exist now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The one created first; of several, the smallest.
    First,
    /// Of those created before this revision, the one created last; of several, any.
    LastBefore(i64),
}

/// A search under way, as many steps at a time as the caller likes.
#[derive(Debug)]
pub struct CreatedSearch<'i> {
    range: KeyRange<'i>,
    wanted: Created,
    parts: Vec<Subtree<'i>>,
    /// Subtrees that are to be looked into, by the best rank that a key in them may have.
    open: BinaryHeap<(i64, usize)>,
    best: Option<(i64, KeyParts<'i>, KeyMeta)>,
}

impl Created {
    /// The rank of a key by when it was created: the key with the highest is wanted, one without a
    /// rank is not.
    fn rank(self, created: i64) -> Option<i64> {
        match self {
            Self::First => Some(-created),
            Self::LastBefore(revision) => (created < revision).then_some(created),
        }
    }

    /// The bound of the ranks of all keys with these totals, if any of them may have one.
    fn rank_below(self, totals: &Totals) -> Option<i64> {
        let oldest = totals.oldest()?;
        match self {
            Self::First => Some(-oldest),
            Self::LastBefore(revision) => (oldest < revision).then_some(totals.newest.min(revision - 1)),
        }
    }
}

impl<'i> CreatedSearch<'i> {
    pub(super) fn new(root: &'i IndexNode, range: KeyRange<'i>, wanted: Created) -> Self {
        let mut search = Self { range, wanted, parts: Vec::new(), open: BinaryHeap::new(), best: None };
        if !range.is_empty() {
            search.open(i64::MAX, Subtree::root(root, range));
        }
        search
    }

    fn open(&mut self, rank: i64, part: Subtree<'i>) {
        self.open.push((rank, self.parts.len()));
        self.parts.push(part);
    }

    /// Goes on for about so many steps, which are taken off; the key when it is found, or that
    /// there is none.
    pub fn step(&mut self, steps: &mut usize) -> Option<Option<(KeyParts<'i>, KeyMeta)>> {
        while let Some((rank, at)) = self.open.peek().copied() {
            let has_ties = self.wanted == Created::First;
            if self.best.is_some_and(|(best, ..)| rank < best || (rank == best && !has_ties)) {
                break;
            }
            if *steps == 0 {
                return None;
            }
            self.open.pop();
            *steps = steps.saturating_sub(self.look_into(self.parts[at]) + 1);
        }
        Some(self.best.map(|(_, key, meta)| (key, meta)))
    }

    /// Looks at the keys or children of a part; returns how many they were.
    fn look_into(&mut self, part: Subtree<'i>) -> usize {
        let IndexNode::Leaf(entries) = part.node else {
            let mut children = 0;
            for (child, part) in part.children(self.range) {
                children += 1;
                if let Some(rank) = self.wanted.rank_below(child.totals()) {
                    self.open(rank, part);
                }
            }
            return children;
        };
        for entry in part.entries(entries, self.range) {
            let Some(meta) = entry.history.newest().live() else { continue };
            if let Some(rank) = self.wanted.rank(meta.create_revision)
                && self.best.is_none_or(|(best, key, _)| rank > best || (rank == best && entry.key < key))
            {
                self.best = Some((rank, entry.key, meta));
            }
        }
        entries.len()
    }
}
