//! A whole index at once: of keys in their order, or of other indexes whose keys follow each other.

use std::sync::Arc;

use crate::key_parts::KeyParts;
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::keys::{Key, KeyRef, between};
use crate::mvcc::key_index::node::{Child, FANOUT, IndexNode, NewChild};
use crate::mvcc::key_index::row::Row;

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
        self.leaves.push(NewChild { first, child: Child::of(IndexNode::Leaf(leaf)) });
        Some(())
    }

    /// The tree of these keys; none if some were out of order.
    pub(super) fn finish(mut self) -> Option<IndexNode> {
        if !self.keys.is_empty() {
            self.end_leaf()?;
        }
        Some(above_all(self.leaves))
    }
}

/// The key in a branch of a node that begins with this one and comes behind a level of nodes; none
/// if it does not follow their keys.
fn key_behind(level: &[NewChild], begin: KeyRef<'_>) -> Option<Key> {
    let Some(before) = level.last() else { return Some(Key::default()) };
    let last = before.child.node.last_key()?;
    (last.key() < begin.key()).then(|| between(last.key(), begin))
}

/// The tree of these nodes of one level.
fn above_all(mut level: Vec<NewChild>) -> IndexNode {
    while level.len() > 1 {
        let mut parts = level.into_iter();
        level = Vec::new();
        loop {
            let (mut keys, mut children) = (Vec::new(), Vec::with_capacity(FANOUT));
            for NewChild { first, child } in parts.by_ref().take(FANOUT) {
                keys.push(first);
                children.push(child);
            }
            let Some(first) = keys.first().cloned() else { break };
            let branch = Row::new(children, keys.iter().map(KeyRef::Own));
            level.push(NewChild { first, child: Child::of(IndexNode::Branch(branch)) });
        }
    }
    match level.pop() {
        Some(root) => Arc::unwrap_or_clone(root.child.node),
        None => IndexNode::default(),
    }
}

/// One tree of several, whose leaves become its leaves; none if their keys do not follow each
/// other.
pub(super) fn concatenate(trees: impl IntoIterator<Item = IndexNode>) -> Option<IndexNode> {
    let mut leaves: Vec<NewChild> = Vec::new();
    for tree in trees.into_iter().filter(|tree| tree.len() > 0) {
        let first = key_behind(&leaves, tree.first_key()?)?;
        let branches = tree.branches_above_leaves();
        take_leaves(NewChild { first, child: Child::of(tree) }, branches, &mut leaves);
    }
    Some(above_all(leaves))
}

/// Adds the leaves of a tree that lie below so many branches, with the keys and totals that they
/// have, and touches none of them: they are most of the memory of an index. Those that have lost
/// all of their keys are left out: a branch that has others too would have them at its end, where
/// nothing tells what comes behind.
fn take_leaves(tree: NewChild, branches: usize, leaves: &mut Vec<NewChild>) {
    if tree.child.totals.len == 0 {
        return;
    }
    if branches == 0 {
        return leaves.push(tree);
    }
    let NewChild { first, child } = tree;
    let IndexNode::Branch(children) = Arc::unwrap_or_clone(child.node) else {
        unreachable!("all leaves of a tree lie below as many branches");
    };
    // The first key of a branch says nothing; that of the branch itself does.
    let others: Vec<Key> = (1..children.len()).map(|at| children.key_ref(at).to_key()).collect();
    for (first, child) in std::iter::once(first).chain(others).zip(children.into_items()) {
        take_leaves(NewChild { first, child }, branches - 1, leaves);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::IndexBuilder;
    use crate::key_parts::KeyParts;
    use crate::mvcc::key_history::KeyHistory;
    use crate::mvcc::key_index::KeyIndex;
    use crate::mvcc::revision::Revision;
    use crate::random::Random;

    fn key(number: usize) -> Vec<u8> {
        format!("{number:06}").into_bytes()
    }

    /// Keys by number; some of them have been deleted since, and compacted.
    fn part(numbers: std::ops::Range<usize>, deleted: &[usize]) -> KeyIndex {
        let created = KeyHistory::created(Revision { main: 1, sub: 0 });
        let keys: Vec<_> = numbers.map(key).collect();
        let entries = keys.iter().map(|key| (KeyParts::from(&key[..]), created.clone()));
        let mut part = KeyIndex::from_sorted(entries).unwrap();
        for number in deleted {
            part.tombstone(&key(*number), Revision { main: 2, sub: 0 }).unwrap();
            part.compact_key(&key(*number), 2);
        }
        part
    }

    /// An index of these parts is as if their keys had come one by one, and takes more of them.
    fn check_joined(parts: Vec<KeyIndex>) {
        let there = |number: usize| parts.iter().find_map(|part| part.root().get(&key(number), i64::MAX));
        let expected: Vec<_> = (0..4_500).map(there).collect();
        let len = parts.iter().map(|part| part.root().len()).sum::<u64>();
        let mut joined = KeyIndex::concatenated(parts).unwrap();
        assert_eq!((joined.root().len(), joined.root().entries().count() as u64), (len, len));
        for (number, expected) in expected.into_iter().enumerate() {
            assert_eq!(joined.root().get(&key(number), i64::MAX), expected, "key {number}");
            joined.put(&key(number), Revision { main: 3, sub: number.try_into().unwrap() });
        }
        assert!(joined.root().entries().map(|(key, _)| key.to_vec()).eq((0..4_500).map(key)));
    }

    /// A leaf that is alone in its branch stays there when its last key goes, and a branch that is
    /// alone in its own: at the end of a part, at its front, and as all of it.
    #[test]
    fn parts_are_joined_whose_outer_leaves_have_lost_all_keys() {
        let all = |numbers: std::ops::Range<usize>| numbers.collect::<Vec<_>>();
        // The last leaf of the first part, of the second, of one between others, and of two: parts
        // behind it begin in the middle of a branch of the whole.
        check_joined(vec![part(0..1_025, &[1_024]), part(2_000..3_500, &[])]);
        check_joined(vec![part(0..1_500, &[]), part(2_000..3_025, &[3_024])]);
        check_joined(vec![part(0..40, &[]), part(1_000..2_025, &[2_024]), part(3_000..4_500, &[])]);
        check_joined(vec![
            part(0..1_025, &[1_024]),
            part(1_100..2_125, &[2_124]),
            part(3_000..4_500, &[]),
            KeyIndex::new(),
        ]);
        // The first branch of a part.
        for first in [part(0..40, &[]), part(0..1_025, &[1_024]), part(0..1_500, &[])] {
            let second = part(2_000..4_048, &all(2_000..3_024));
            check_joined(vec![first, second]);
        }
        check_joined(vec![part(2_000..4_048, &all(2_000..3_024)), part(4_100..4_200, &[])]);
        // All of a part.
        for emptied in [part(2_000..2_032, &all(2_000..2_032)), part(2_000..4_048, &all(2_000..4_048))] {
            assert_eq!(emptied.root().len(), 0);
            check_joined(vec![part(0..1_500, &[]), emptied, part(4_100..4_200, &[])]);
        }
        check_joined(vec![part(0..40, &all(0..40)), part(2_000..3_500, &[])]);
    }

    /// A branch that has lost almost all of its keys is joined with the one beside it, and keeps an
    /// empty leaf at its end or at its front.
    #[test]
    fn parts_are_joined_whose_outer_branches_end_in_an_empty_leaf() {
        let deleted: Vec<_> = (0..32).chain([1_024]).collect();
        check_joined(vec![part(0..1_025, &deleted), part(2_000..3_500, &[])]);
        let deleted: Vec<_> = (951..1_974).chain(2_966..2_998).chain(1_974..2_000).chain([950]).collect();
        let mut joined = KeyIndex::concatenated([part(0..900, &[]), part(950..2_998, &deleted)]).unwrap();
        joined.put(&key(1_980), Revision { main: 3, sub: 0 });
        for (sub, number) in (2_006..2_966).enumerate() {
            joined.tombstone(&key(number), Revision { main: 4, sub: sub.try_into().unwrap() }).unwrap();
            joined.compact_key(&key(number), 4);
        }
        let left: Vec<_> = (0..900).chain([1_980]).chain(2_000..2_006).map(key).collect();
        assert!(joined.root().entries().map(|(key, _)| key.to_vec()).eq(left.iter().cloned()));
        assert!(left.iter().all(|key| joined.root().get(key, i64::MAX).is_some()));
    }

    /// An index beside the numbers of its keys.
    struct Twin {
        index: KeyIndex,
        numbers: BTreeSet<usize>,
        revision: i64,
    }

    impl Twin {
        /// Deletes and compacts a stretch of the keys in some range, or puts some of them, often.
        fn change(&mut self, range: Range<usize>, random: &mut Random) {
            let below = |random: &mut Random, bound| usize::try_from(random.below(bound)).unwrap();
            for _ in 0..60 {
                let begin = range.start + below(random, range.len() as u64);
                let long = [40, 1_200][below(random, 2)];
                let stretch = begin..range.end.min(begin + 1 + below(random, long));
                let is_deleted = random.below(4) > 0;
                for number in stretch {
                    self.revision += 1;
                    let revision = Revision { main: self.revision, sub: 0 };
                    if is_deleted && self.numbers.remove(&number) {
                        self.index.tombstone(&key(number), revision).unwrap();
                        self.index.compact_key(&key(number), self.revision);
                    } else if !is_deleted && random.one_in(3) {
                        self.index.put(&key(number), revision);
                        self.numbers.insert(number);
                    }
                }
            }
        }

        fn check(&self, bounds: Range<usize>) {
            let root = self.index.root();
            assert!(root.entries().map(|(key, _)| key.to_vec()).eq(self.numbers.iter().copied().map(key)));
            for number in bounds {
                let is_there = root.get(&key(number), i64::MAX).is_some();
                assert_eq!(is_there, self.numbers.contains(&number), "key {number}");
            }
        }
    }

    /// Stretches of keys go and come before parts are joined, and behind that.
    #[test]
    fn joined_parts_go_on_as_any_index() {
        for seed in 1..9 {
            let mut random = Random::new(seed);
            let (mut parts, mut end) = (Vec::new(), 0);
            for _ in 0..3 {
                let range = end..end + 1 + usize::try_from(random.below(4_000)).unwrap();
                end = range.end;
                let mut twin =
                    Twin { index: part(range.clone(), &[]), numbers: range.clone().collect(), revision: 9 };
                twin.change(range.clone(), &mut random);
                twin.check(range);
                parts.push(twin);
            }
            let numbers = parts.iter().flat_map(|twin| &twin.numbers).copied().collect();
            let revision = parts.iter().map(|twin| twin.revision).max().unwrap();
            let index = KeyIndex::concatenated(parts.into_iter().map(|twin| twin.index)).unwrap();
            let mut joined = Twin { index, numbers, revision };
            joined.check(0..end);
            for _ in 0..4 {
                joined.change(0..end, &mut random);
                joined.check(0..end);
            }
        }
    }

    /// A builder that has refused keys goes on to refuse or to take others, and does not fall over.
    #[test]
    fn a_builder_that_has_refused_keys_can_be_used() {
        let mut builder = IndexBuilder::default();
        let keys: Vec<_> = (100..132).chain(0..64).map(key).collect();
        let history = || KeyHistory::created(Revision { main: 1, sub: 0 });
        let taken = keys.iter().map(|key| builder.push(KeyParts::from(&key[..]), history()).is_some());
        assert_eq!(taken.filter(|taken| !taken).count(), 1, "when the first that come too late are a leaf");
        drop(builder.finish());
    }

    #[test]
    fn parts_out_of_order_are_not_joined() {
        let parts = || [part(0..1_025, &[1_024]), part(1_020..1_500, &[])];
        assert!(KeyIndex::concatenated(parts()).is_none());
        let [one, other] = parts();
        assert!(KeyIndex::concatenated([other, one]).is_none());
        for keys in [["000003", "000005", "000004"], ["aaaa1", "b", "aaaa2"], ["aa", "", "ab"]] {
            let history = KeyHistory::created(Revision { main: 1, sub: 0 });
            let entries = keys.iter().map(|key| (KeyParts::from(key.as_bytes()), history.clone()));
            assert!(KeyIndex::from_sorted(entries).is_none(), "{keys:?}");
        }
    }
}
