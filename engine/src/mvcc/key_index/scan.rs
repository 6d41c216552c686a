//! Walking the index in key order, either way.
//!
//! Keys that do not exist at the revision of the walk are passed by whole subtrees, where no key
//! below exists now and none has changed since that revision. Elsewhere each is looked at, and so a
//! walk can be told how many steps it may take: a range of dead keys is as much work as one of
//! living keys.

use crate::key_parts::KeyParts;
use crate::mvcc::key_history::{KeyHistory, KeyMeta};
use crate::mvcc::key_index::node::{Child, IndexNode};
use crate::mvcc::key_index::row::Row;
use crate::mvcc::key_range::KeyRange;

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// The keys of a range that exist at one revision.
#[derive(Debug)]
pub struct Scan<'i> {
    range: KeyRange<'i>,
    at: i64,
    direction: Direction,
    /// Branches from the root down, each with its parts that are still to come: `[low, high)`.
    path: Vec<(&'i [Child], usize, usize)>,
    leaf: Option<&'i Row<KeyHistory>>,
    /// Entries of the leaf still to come: `[low, high)`.
    low: usize,
    high: usize,
    passed: Option<KeyParts<'i>>,
}

/// The result of a walk of some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought<'i> {
    /// The next key of the range.
    Key(KeyParts<'i>, KeyMeta),
    /// Nothing within these steps; there may be more.
    Later,
    /// The range has no more keys.
    End,
}

impl<'i> Scan<'i> {
    pub(super) fn new(root: &'i IndexNode, range: KeyRange<'i>, at: i64, direction: Direction) -> Self {
        let path = Vec::new();
        let mut scan = Self { range, at, direction, path, leaf: None, low: 0, high: 0, passed: None };
        if range.is_empty() {
            return scan;
        }
        let from = match (direction, range) {
            (Direction::Forward, _) => Some(range.start()),
            (Direction::Reverse, KeyRange::One(end) | KeyRange::Span { end, .. }) => Some(end),
            (Direction::Reverse, KeyRange::From(_)) => None,
        };
        let leaf = scan.descend_to(root, from);
        match direction {
            Direction::Forward => scan.low = leaf.not_below(range.start()),
            Direction::Reverse => {
                scan.high = match range {
                    KeyRange::One(last) => leaf.above(last),
                    KeyRange::Span { end, .. } => leaf.not_below(end),
                    KeyRange::From(_) => leaf.len(),
                }
            }
        }
        scan
    }

    /// Down to the leaf that covers `key`, or to the last one.
    fn descend_to(&mut self, mut node: &'i IndexNode, key: Option<&[u8]>) -> &'i Row<KeyHistory> {
        loop {
            match node {
                IndexNode::Branch(children) => {
                    let at = key.map_or(children.len() - 1, |key| IndexNode::covering(children, key));
                    self.path.push(match self.direction {
                        Direction::Forward => (children, at + 1, children.len()),
                        Direction::Reverse => (children, 0, at),
                    });
                    node = &children[at].node;
                }
                IndexNode::Leaf(entries) => {
                    (self.leaf, self.low, self.high) = (Some(entries), 0, entries.len());
                    return entries;
                }
            }
        }
    }

    /// To the next leaf that may have a key for us; none at the end, false when the steps are used
    /// up.
    fn next_leaf(&mut self, steps: &mut usize) -> Option<bool> {
        while let Some((children, low, high)) = self.path.last_mut() {
            if *steps == 0 {
                return Some(false);
            }
            *steps -= 1;
            if low == high {
                self.path.pop();
                continue;
            }
            let child = if self.direction == Direction::Forward {
                *low += 1;
                &children[*low - 1]
            } else {
                *high -= 1;
                &children[*high]
            };
            match &*child.node {
                _ if child.totals().have_nothing_at(self.at) => {}
                IndexNode::Branch(children) => self.path.push((children, 0, children.len())),
                IndexNode::Leaf(entries) => {
                    (self.leaf, self.low, self.high) = (Some(entries), 0, entries.len());
                    return Some(true);
                }
            }
        }
        None
    }

    /// The last key that was looked at, dead or alive, inside of the range.
    #[must_use]
    pub fn passed(&self) -> Option<KeyParts<'i>> {
        self.passed
    }

    /// The next key, if there is one within so many steps; takes off those it has used.
    pub fn next_within(&mut self, steps: &mut usize) -> Sought<'i> {
        loop {
            if self.low >= self.high {
                match self.next_leaf(steps) {
                    None => return Sought::End,
                    Some(false) => return Sought::Later,
                    Some(true) => continue,
                }
            }
            if *steps == 0 {
                return Sought::Later;
            }
            let at = if self.direction == Direction::Forward {
                self.low += 1;
                self.low - 1
            } else {
                self.high -= 1;
                self.high
            };
            let entry = self.leaf.expect("a leaf with entries to come").entry(at);
            let inside = match self.direction {
                Direction::Forward => self.range.ends_after_parts(entry.key),
                Direction::Reverse => entry.key >= *self.range.start(),
            };
            if !inside {
                self.path.clear();
                self.high = self.low;
                return Sought::End;
            }
            *steps = steps.saturating_sub(entry.steps_at(self.at));
            self.passed = Some(entry.key);
            if let Some(meta) = entry.history.at(self.at) {
                return Sought::Key(entry.key, meta);
            }
        }
    }
}

impl<'i> Iterator for Scan<'i> {
    type Item = (KeyParts<'i>, KeyMeta);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut steps = usize::MAX;
            match self.next_within(&mut steps) {
                Sought::Key(key, meta) => return Some((key, meta)),
                Sought::Later => {}
                Sought::End => return None,
            }
        }
    }
}
