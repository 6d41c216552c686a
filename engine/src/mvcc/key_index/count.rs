//! Counting the keys of a range at a revision.

use crate::mvcc::key_index::node::Node;
use crate::mvcc::key_range::KeyRange;

/// A count under way: subtrees that have not changed since the revision are counted whole, the others are walked, as many
/// steps at a time as its owner likes.
#[derive(Debug)]
pub struct Counting<'i> {
    range: KeyRange<'i>,
    at: i64,
    /// What is still to be counted.
    parts: Vec<Part<'i>>,
    count: u64,
}

/// A subtree.
#[derive(Debug, Clone, Copy)]
struct Part<'i> {
    node: &'i Node,
    /// The range may begin inside of it, and may end inside of it.
    begins: bool,
    ends: bool,
}

impl<'i> Counting<'i> {
    pub(super) fn new(root: &'i Node, range: KeyRange<'i>, at: i64) -> Self {
        let ends = !matches!(range, KeyRange::From(_));
        let parts = if range.is_empty() { vec![] } else { vec![Part { node: root, begins: true, ends }] };
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
                Node::Leaf(entries) => {
                    let from =
                        entries.partition_point(|entry| part.begins && &*entry.key < self.range.start());
                    let inside = entries[from..].iter().take_while(|entry| self.range.ends_after(&entry.key));
                    inside.fold(0, |steps, entry| {
                        self.count += u64::from(entry.history.at(self.at).is_some());
                        steps + entry.steps_at(self.at)
                    })
                }
                Node::Branch(_) => self.enter(part),
            };
            *steps = steps.saturating_sub(looked_at + 1);
        }
        Some(self.count)
    }

    /// Counts the unchanged parts of a branch and notes the others; how many there are.
    fn enter(&mut self, part: Part<'i>) -> usize {
        let Node::Branch(children) = part.node else { return 0 };
        let first = if part.begins { Node::covering(children, self.range.start()) } else { 0 };
        let last = match self.range {
            KeyRange::One(end) | KeyRange::Span { end, .. } if part.ends => Node::covering(children, end),
            _ => children.len() - 1,
        };
        for (at, child) in children.iter().enumerate().take(last + 1).skip(first) {
            let (begins, ends) = (part.begins && at == first, part.ends && at == last);
            match child.count_at(self.at).filter(|_| !begins && !ends) {
                Some(live) => self.count += live,
                None => self.parts.push(Part { node: &child.node, begins, ends }),
            }
        }
        last + 1 - first
    }
}
