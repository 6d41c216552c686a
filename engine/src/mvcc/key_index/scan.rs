//! Walking the index in key order, either way.

use crate::mvcc::key_history::KeyMeta;
use crate::mvcc::key_index::Direction;
use crate::mvcc::key_index::node::{Child, Entry, Node};
use crate::mvcc::key_range::KeyRange;

/// The keys of a range that exist at one revision.
#[derive(Debug)]
pub struct Scan<'i> {
    range: KeyRange<'i>,
    at: i64,
    direction: Direction,
    /// Branches from the root down, each with the part the walk is in.
    path: Vec<(&'i [Child], usize)>,
    entries: &'i [Entry],
    /// Entries of the leaf still to come: `[low, high)`.
    low: usize,
    high: usize,
}

impl<'i> Scan<'i> {
    pub(super) fn new(root: &'i Node, range: KeyRange<'i>, at: i64, direction: Direction) -> Self {
        let mut scan = Self { range, at, direction, path: Vec::new(), entries: &[], low: 0, high: 0 };
        if range.is_empty() {
            return scan;
        }
        match (direction, range) {
            (Direction::Forward, _) => {
                scan.descend_to(root, range.start());
                scan.low = scan.entries.partition_point(|entry| &*entry.key < range.start());
            }
            (Direction::Reverse, KeyRange::From(_)) => scan.descend(root),
            (Direction::Reverse, KeyRange::One(end) | KeyRange::Span { end, .. }) => {
                scan.descend_to(root, end);
                scan.high = scan.entries.partition_point(|entry| range.ends_after(&entry.key));
            }
        }
        scan
    }

    /// Down to the leaf that covers `key`.
    fn descend_to(&mut self, mut node: &'i Node, key: &[u8]) {
        loop {
            match node {
                Node::Branch(children) => {
                    let at = Node::covering(children, key);
                    self.path.push((children, at));
                    node = &children[at].node;
                }
                Node::Leaf(entries) => return self.enter(entries),
            }
        }
    }

    /// Down along the near side.
    fn descend(&mut self, mut node: &'i Node) {
        loop {
            match node {
                Node::Branch(children) => {
                    let at = if self.direction == Direction::Forward { 0 } else { children.len() - 1 };
                    self.path.push((children, at));
                    node = &children[at].node;
                }
                Node::Leaf(entries) => return self.enter(entries),
            }
        }
    }

    fn enter(&mut self, entries: &'i [Entry]) {
        (self.entries, self.low, self.high) = (entries, 0, entries.len());
    }

    /// To the next leaf; false at the end.
    fn next_leaf(&mut self) -> bool {
        while let Some((children, at)) = self.path.pop() {
            let next = match self.direction {
                Direction::Forward => Some(at + 1).filter(|next| *next < children.len()),
                Direction::Reverse => at.checked_sub(1),
            };
            if let Some(next) = next {
                self.path.push((children, next));
                self.descend(&children[next].node);
                return true;
            }
        }
        false
    }
}

impl<'i> Iterator for Scan<'i> {
    type Item = (&'i [u8], KeyMeta);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.low >= self.high {
                if !self.next_leaf() {
                    return None;
                }
                continue;
            }
            let entry = if self.direction == Direction::Forward {
                self.low += 1;
                &self.entries[self.low - 1]
            } else {
                self.high -= 1;
                &self.entries[self.high]
            };
            let inside = match self.direction {
                Direction::Forward => self.range.ends_after(&entry.key),
                Direction::Reverse => &*entry.key >= self.range.start(),
            };
            if !inside {
                self.path.clear();
                self.high = self.low;
                return None;
            }
            if let Some(meta) = entry.history.at(self.at) {
                return Some((&entry.key, meta));
            }
        }
    }
}
