//! The changes of one key in order, as a tree that is only added to on the right and cut on the
//! left.
//!
//! Chunks of changes hang below branches; both know the revision they begin with, so a change is
//! found by binary search. A copy shares everything; adding a change copies the nodes on the way to
//! the last chunk, and cutting those on the way to the first change that stays. So a key that was
//! changed a million times costs little more to change, to look back at and to compact than one
//! that was changed once.

use std::sync::Arc;

use crate::mvcc::key_change::{KeptChange, KeyChange};
use crate::mvcc::revision::Revision;

/// Changes of a full chunk.
pub(super) const CHUNK: usize = 32;
/// Parts of a full branch.
const FANOUT: usize = 16;

/// A chunk or a branch; never empty.
#[derive(Debug)]
pub(super) enum Changes {
    Chunk(Vec<KeptChange>),
    Branch(Vec<Part>),
}

/// A part of a branch.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Revision of its first change.
    first: Revision,
    /// Changes in it.
    len: u64,
    node: Arc<Changes>,
}

/// Changes in order, from some place on.
pub(super) struct ChangesFrom<'c> {
    /// Parts that are still to come, the next ones last.
    parts: Vec<&'c [Part]>,
    chunk: &'c [KeptChange],
}

impl Clone for Changes {
    /// With room for the change or part that it is copied for.
    fn clone(&self) -> Self {
        fn with_room<T: Clone>(all: &[T]) -> Vec<T> {
            let mut copy = Vec::with_capacity(all.len() + 1);
            copy.extend_from_slice(all);
            copy
        }
        match self {
            Self::Chunk(changes) => Self::Chunk(with_room(changes)),
            Self::Branch(parts) => Self::Branch(with_room(parts)),
        }
    }
}

impl Part {
    fn of(node: Arc<Changes>) -> Self {
        Self { first: node.first().revision, len: node.len(), node }
    }
}

impl Changes {
    pub(super) fn one(change: KeyChange) -> Arc<Self> {
        Arc::new(Self::Chunk(vec![change.into()]))
    }

    /// Adds a change that is later than all others.
    pub(super) fn push(root: &mut Arc<Self>, change: KeyChange) {
        if let Some(right) = Self::push_below(root, change) {
            let parts = vec![Part::of(Arc::clone(root)), Part::of(right)];
            *root = Arc::new(Self::Branch(parts));
        }
    }

    /// A new right neighbour as high as the node, if that is full.
    fn push_below(node: &mut Arc<Self>, change: KeyChange) -> Option<Arc<Self>> {
        if matches!(&**node, Self::Chunk(changes) if changes.len() >= CHUNK) {
            return Some(Self::one(change));
        }
        match Arc::make_mut(node) {
            Self::Chunk(changes) => changes.push(change.into()),
            Self::Branch(parts) => {
                let last = parts.last_mut().expect("a branch has parts");
                let right = Self::push_below(&mut last.node, change);
                if right.is_none() {
                    last.len += 1;
                }
                let right = Part::of(right?);
                if parts.len() >= FANOUT {
                    return Some(Arc::new(Self::Branch(vec![right])));
                }
                parts.push(right);
            }
        }
        None
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Chunk(changes) => changes.len() as u64,
            Self::Branch(parts) => parts.iter().map(|part| part.len).sum(),
        }
    }

    /// The change, if there is only one.
    pub(super) fn only(&self) -> Option<KeyChange> {
        match self {
            Self::Chunk(changes) if changes.len() == 1 => Some(changes[0].get()),
            _ => None,
        }
    }

    pub(super) fn first(&self) -> KeyChange {
        let mut node = self;
        loop {
            match node {
                Self::Chunk(changes) => return changes[0].get(),
                Self::Branch(parts) => node = &parts[0].node,
            }
        }
    }

    /// The newest change of revision `at` or before.
    pub(super) fn change_at(&self, at: i64) -> Option<KeyChange> {
        let mut node = self;
        loop {
            match node {
                Self::Chunk(changes) => {
                    let behind = changes.partition_point(|change| change.revision().main <= at);
                    return Some(changes[behind.checked_sub(1)?].get());
                }
                Self::Branch(parts) => {
                    let behind = parts.partition_point(|part| part.first.main <= at);
                    node = &parts[behind.checked_sub(1)?].node;
                }
            }
        }
    }

    /// The changes from the first one on that is not gone; none if all are. Those that are gone are
    /// the first ones.
    pub(super) fn cut(root: &Arc<Self>, is_gone: &dyn Fn(Revision) -> bool) -> Option<Arc<Self>> {
        let mut cut = Self::cut_below(root, is_gone)?;
        // A root of one part is none: it was full when the branch beside it began.
        while let Self::Branch(parts) = &*cut
            && let [only] = &parts[..]
        {
            cut = Arc::clone(&only.node);
        }
        Some(cut)
    }

    fn cut_below(root: &Arc<Self>, is_gone: &dyn Fn(Revision) -> bool) -> Option<Arc<Self>> {
        if !is_gone(root.first().revision) {
            return Some(Arc::clone(root));
        }
        match &**root {
            Self::Chunk(changes) => {
                let left = &changes[changes.partition_point(|change| is_gone(change.revision()))..];
                (!left.is_empty()).then(|| Arc::new(Self::Chunk(left.to_vec())))
            }
            Self::Branch(parts) => {
                let at = parts.partition_point(|part| is_gone(part.first)) - 1;
                let (cut, rest) = (Self::cut_below(&parts[at].node, is_gone), &parts[at + 1..]);
                let parts: Vec<_> = cut.map(Part::of).into_iter().chain(rest.iter().cloned()).collect();
                (!parts.is_empty()).then(|| Arc::new(Self::Branch(parts)))
            }
        }
    }

    /// All changes behind a revision, in order.
    pub(super) fn after(&self, revision: Revision) -> ChangesFrom<'_> {
        let mut from = ChangesFrom { parts: Vec::new(), chunk: &[] };
        let mut node = self;
        loop {
            match node {
                Self::Chunk(changes) => {
                    let behind = changes.partition_point(|change| change.revision() <= revision);
                    from.chunk = &changes[behind..];
                    return from;
                }
                Self::Branch(parts) => {
                    let at = parts.partition_point(|part| part.first <= revision).saturating_sub(1);
                    from.parts.push(&parts[at + 1..]);
                    node = &parts[at].node;
                }
            }
        }
    }
}

impl Iterator for ChangesFrom<'_> {
    type Item = KeyChange;

    fn next(&mut self) -> Option<KeyChange> {
        while self.chunk.is_empty() {
            let parts = self.parts.last_mut()?;
            let Some((next, rest)) = parts.split_first() else {
                self.parts.pop();
                continue;
            };
            *parts = rest;
            match &*next.node {
                Changes::Chunk(changes) => self.chunk = changes,
                Changes::Branch(parts) => self.parts.push(parts),
            }
        }
        let (next, rest) = self.chunk.split_first()?;
        self.chunk = rest;
        Some(next.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn change(main: i64, sub: i64) -> KeyChange {
        KeyChange { revision: Revision { main, sub }, create_revision: 1, version: main }
    }

    fn check(tree: &Changes, model: &[KeyChange], random: &mut Random) {
        assert_eq!((tree.len(), tree.first()), (model.len() as u64, model[0]));
        let first = model[0].revision.main - 1;
        let at = first + i64::try_from(random.below(model.len() as u64 + 9)).unwrap();
        let expected = model.iter().rev().find(|change| change.revision.main <= at);
        assert_eq!(tree.change_at(at), expected.copied(), "at {at}");
        let from = Revision { main: at, sub: i64::try_from(random.below(3)).unwrap() };
        let after = model.iter().skip_while(|change| change.revision <= from);
        assert!(tree.after(from).eq(after.copied()), "after {from:?}");
    }

    /// Added to and cut at random, beside a list; older copies stay what they were.
    #[test]
    fn it_is_the_list_that_it_stands_for() {
        let mut random = Random::new(11);
        for _ in 0..40 {
            let mut model = vec![change(1, 0)];
            let (mut tree, mut copies) = (Changes::one(model[0]), Vec::new());
            let (mut last, most) = (1, 1 + random.below(3_000));
            for _ in 0..most * 2 {
                last += i64::from(random.below(3) > 0);
                let before = model[model.len() - 1].revision;
                let sub = if before.main == last { before.sub + 1 } else { 0 };
                Changes::push(&mut tree, change(last, sub));
                model.push(change(last, sub));
                if random.below(most) < 5 {
                    let before = 1 + i64::try_from(random.below(most)).unwrap();
                    let gone = Revision { main: last - before, sub: 0 };
                    let left = model.iter().filter(|change| change.revision > gone).copied().collect();
                    copies.push((Arc::clone(&tree), std::mem::replace(&mut model, left)));
                    tree = Changes::cut(&tree, &|revision| revision <= gone).unwrap();
                    assert!(Changes::cut(&tree, &|_| true).is_none());
                }
                if random.below(20) == 0 {
                    check(&tree, &model, &mut random);
                }
            }
            copies.push((tree, model));
            copies.iter().for_each(|(tree, model)| check(tree, model, &mut random));
        }
    }

    /// A cut makes a node of each level anew, wherever it cuts, and its root has several parts.
    #[test]
    fn a_cut_shares_what_it_leaves() {
        fn own(node: &Arc<Changes>) -> usize {
            match &**node {
                _ if Arc::strong_count(node) > 1 => 0,
                Changes::Chunk(_) => 1,
                Changes::Branch(parts) => 1 + parts.iter().map(|part| own(&part.node)).sum::<usize>(),
            }
        }
        let mut tree = Changes::one(change(1, 0));
        (2..=100_000).for_each(|main| Changes::push(&mut tree, change(main, 0)));
        for gone in (0..100_000).step_by(331).chain([16_383, 16_384, 32_768, 98_303, 98_304, 99_999]) {
            let cut = Changes::cut(&tree, &|revision| revision.main <= gone).unwrap();
            assert!(own(&cut) <= 5, "{} nodes are made anew for a cut at {gone}", own(&cut));
            assert!(!matches!(&*cut, Changes::Branch(parts) if parts.len() == 1), "cut at {gone}");
            assert_eq!(cut.len(), 100_000 - u64::try_from(gone).unwrap());
        }
    }

    /// A change, a look back and a cut copy or look at a node of each level.
    #[test]
    fn a_million_changes_are_five_levels() {
        fn levels(node: &Changes) -> usize {
            match node {
                Changes::Chunk(changes) => {
                    assert!(changes.len() <= CHUNK && changes.capacity() <= 2 * CHUNK);
                    1
                }
                Changes::Branch(parts) => {
                    assert!(parts.len() <= FANOUT);
                    1 + parts.iter().map(|part| levels(&part.node)).max().unwrap()
                }
            }
        }
        let mut tree = Changes::one(change(1, 0));
        (2..=1_000_000).for_each(|main| Changes::push(&mut tree, change(main, 0)));
        assert_eq!((levels(&tree), tree.len()), (5, 1_000_000));
        // A window that goes on and on does not become deeper.
        for main in 1_000_001..1_200_000 {
            Changes::push(&mut tree, change(main, 0));
            if main % 100 == 0 {
                tree = Changes::cut(&tree, &|revision| revision.main < main - 500).unwrap();
                assert!(levels(&tree) <= 5);
            }
        }
        assert!(levels(&tree) <= 3, "{} levels for {} changes", levels(&tree), tree.len());
    }
}
