//! Counting the keys of a range at a revision.

use crate::mvcc::key_index::node::{IndexNode, Subtree};
use crate::mvcc::key_range::KeyRange;

/// A count under way: subtrees that have not changed since the revision are counted whole, the
/// others are walked, as many steps at a time as the caller likes.
#[derive(Debug)]
pub struct Counting<'i> {
    range: KeyRange<'i>,
    at: i64,
    /// Subtrees that are still to be counted.
    parts: Vec<Subtree<'i>>,
    count: u64,
}

impl<'i> Counting<'i> {
    pub(super) fn new(root: &'i IndexNode, range: KeyRange<'i>, at: i64) -> Self {
        let parts = if range.is_empty() { vec![] } else { vec![Subtree::root(root, range)] };
        Self { range, at, parts, count: 0 }
    }

    pub(super) fn known(count: u64) -> Self {
        Self { range: KeyRange::ALL, at: 0, parts: Vec::new(), count }
    }

    /// Goes on for about so many steps, which are taken off; the count when it is done.
    pub fn step(&mut self, steps: &mut usize) -> Option<u64> {
        while let Some(part) = self.parts.pop() {
            if *steps == 0 {
                self.parts.push(part);
                return None;
            }
            let looked_at = match part.node {
                IndexNode::Leaf(entries) => part.entries(entries, self.range).fold(0, |steps, entry| {
                    self.count += u64::from(entry.history.at(self.at).is_some());
                    steps + entry.steps_at(self.at)
                }),
                IndexNode::Branch(_) => self.enter(part),
            };
            *steps = steps.saturating_sub(looked_at + 1);
        }
        Some(self.count)
    }

    /// Counts the unchanged parts of a branch and notes the others; how many there are.
    fn enter(&mut self, part: Subtree<'i>) -> usize {
        let mut looked_at = 0;
        for (child, part) in part.children(self.range) {
            looked_at += 1;
            match child.totals().count_at(self.at).filter(|_| part.is_whole()) {
                Some(live) => self.count += live,
                None => self.parts.push(part),
            }
        }
        looked_at
    }
}
