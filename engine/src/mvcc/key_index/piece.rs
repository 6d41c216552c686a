//! Parts of an index that become one.

use crate::mvcc::key_index::build::{self, IndexBuilder};
use crate::mvcc::key_index::index::KeyIndex;
use crate::mvcc::key_index::node::NewChild;

/// A part of an index, which becomes one with others: it has branches only if it changes before.
#[derive(Debug)]
pub struct IndexPiece(Piece);

#[derive(Debug)]
enum Piece {
    Leaves(Vec<NewChild>),
    Tree(Box<KeyIndex>),
}

impl IndexPiece {
    /// A piece of the keys of a builder; none if some were out of order.
    #[must_use]
    pub fn built(keys: IndexBuilder<'_>) -> Option<Self> {
        Some(Self(Piece::Leaves(keys.leaves()?)))
    }

    /// How many keys it has, dead ones included.
    #[must_use]
    pub fn keys(&self) -> u64 {
        match &self.0 {
            Piece::Leaves(leaves) => leaves.iter().map(|leaf| leaf.totals.len).sum(),
            Piece::Tree(index) => index.root().len(),
        }
    }

    /// The piece as an index of its own, which may change.
    pub fn index(&mut self) -> &mut KeyIndex {
        if let Piece::Leaves(leaves) = &mut self.0 {
            let index = KeyIndex::of(build::above_all(std::mem::take(leaves)));
            self.0 = Piece::Tree(Box::new(index));
        }
        match &mut self.0 {
            Piece::Tree(index) => index,
            Piece::Leaves(_) => unreachable!("it has just become a tree"),
        }
    }

    /// One index of several pieces; none if the keys of each do not follow those of the one before.
    #[must_use]
    pub fn join(pieces: impl IntoIterator<Item = Self>) -> Option<KeyIndex> {
        let mut leaves = Vec::new();
        for Self(piece) in pieces {
            match piece {
                Piece::Leaves(more) => build::add_leaves(more, &mut leaves)?,
                Piece::Tree(index) => build::add_tree(index.into_tree(), &mut leaves)?,
            }
        }
        Some(KeyIndex::of(build::above_all(leaves)))
    }
}

impl From<KeyIndex> for IndexPiece {
    fn from(index: KeyIndex) -> Self {
        Self(Piece::Tree(Box::new(index)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::*;
    use crate::key_parts::KeyParts;
    use crate::mvcc::key_history::KeyHistory;
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

    fn join(parts: impl IntoIterator<Item = KeyIndex>) -> Option<KeyIndex> {
        IndexPiece::join(parts.into_iter().map(IndexPiece::from))
    }

    /// An index of these parts is as if their keys had come one by one, and takes more of them.
    fn check_joined(parts: Vec<KeyIndex>) {
        let there = |number: usize| parts.iter().find_map(|part| part.root().get(&key(number), i64::MAX));
        let expected: Vec<_> = (0..4_500).map(there).collect();
        let len = parts.iter().map(|part| part.root().len()).sum::<u64>();
        let mut joined = join(parts).unwrap();
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
        let mut joined = join([part(0..900, &[]), part(950..2_998, &deleted)]).unwrap();
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
            let index = join(parts.into_iter().map(|twin| twin.index)).unwrap();
            let mut joined = Twin { index, numbers, revision };
            joined.check(0..end);
            for _ in 0..4 {
                joined.change(0..end, &mut random);
                joined.check(0..end);
            }
        }
    }

    /// Pieces that are leaves still, and pieces that have changed since, or have no keys.
    #[test]
    fn leaves_and_trees_are_joined_alike() {
        let leaves = |numbers: Range<usize>| {
            let mut builder = IndexBuilder::default();
            let keys: Vec<_> = numbers.map(key).collect();
            let history = || KeyHistory::created(Revision { main: 1, sub: 0 });
            keys.iter().for_each(|key| builder.push(KeyParts::from(&key[..]), history()).unwrap());
            IndexPiece::built(builder).unwrap()
        };
        let bounds = [0, 1, 33, 1_100, 1_100, 2_500, 2_532, 4_500];
        for changed in 0..1 << (bounds.len() - 1) {
            let mut pieces: Vec<_> = bounds.windows(2).map(|pair| leaves(pair[0]..pair[1])).collect();
            let mut twin = Twin { index: KeyIndex::new(), numbers: (0..4_500).collect(), revision: 9 };
            for (at, piece) in pieces.iter_mut().enumerate().filter(|(at, _)| changed >> at & 1 == 1) {
                let numbers = bounds[at]..bounds[at + 1];
                assert_eq!(piece.keys(), numbers.len() as u64);
                // The first key of the piece goes.
                if piece.index().tombstone(&key(numbers.start), Revision { main: 2, sub: 0 }).is_some() {
                    piece.index().compact_key(&key(numbers.start), 2);
                    twin.numbers.remove(&numbers.start);
                }
            }
            twin.index = IndexPiece::join(pieces).unwrap();
            assert_eq!(twin.index.root().len(), twin.numbers.len() as u64);
            twin.check(0..4_500);
            if changed % 16 == 5 {
                twin.change(0..4_500, &mut Random::new(changed));
                twin.check(0..4_500);
            }
        }
        for (one, other) in [(0..40, 39..50), (0..40, 0..1), (5..40, 0..5)] {
            assert!(IndexPiece::join([leaves(one), leaves(other)]).is_none());
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
        assert!(join(parts()).is_none());
        let [one, other] = parts();
        assert!(join([other, one]).is_none());
        for keys in [["000003", "000005", "000004"], ["aaaa1", "b", "aaaa2"], ["aa", "", "ab"]] {
            let history = KeyHistory::created(Revision { main: 1, sub: 0 });
            let entries = keys.iter().map(|key| (KeyParts::from(key.as_bytes()), history.clone()));
            assert!(KeyIndex::from_sorted(entries).is_none(), "{keys:?}");
        }
    }
}
