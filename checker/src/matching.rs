//! Each cause has one effect: a call without an answer was carried out once at most, and a lease
//! ends once each time it is granted. Which of several causes that may have done the same did it is
//! not known, so every effect is given one such that all effects have theirs, if that is possible
//! (a matching that grows by augmenting paths).

use std::collections::{BTreeMap, BTreeSet};

/// A cause that may have had an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Maker {
    /// The call of this number in the history.
    Call(usize),
    /// A lease, and which of its ends.
    Lease(i64, usize),
}

/// Effects, by their order, and their causes.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    /// The causes that each effect may have.
    makers: Vec<Vec<Maker>>,
    /// The effect that each cause has.
    effects: BTreeMap<Maker, usize>,
}

impl Matching {
    /// Another effect, which one of these has had. Whether all effects can have a cause of their
    /// own still; if not, it is not counted.
    pub(crate) fn add(&mut self, makers: Vec<Maker>) -> bool {
        let effect = self.makers.len();
        self.makers.push(makers);
        // Without recursion, whatever the history is: each cause is reached from one effect.
        let mut reached: BTreeMap<Maker, usize> = BTreeMap::new();
        let mut waiting = BTreeSet::from([effect]);
        while let Some(from) = waiting.pop_first() {
            for maker in self.makers[from].clone() {
                if reached.contains_key(&maker) {
                    continue;
                }
                reached.insert(maker, from);
                match self.effects.get(&maker) {
                    Some(other) => _ = waiting.insert(*other),
                    None => {
                        self.give(maker, &reached);
                        return true;
                    }
                }
            }
        }
        self.makers.pop();
        false
    }

    /// A free cause goes to the effect that it was reached from, whose own goes to the one before.
    fn give(&mut self, free: Maker, reached: &BTreeMap<Maker, usize>) {
        let mut maker = free;
        loop {
            let effect = reached[&maker];
            let before = self.effects.iter().find(|(_, its)| **its == effect).map(|(its, _)| *its);
            self.effects.insert(maker, effect);
            match before {
                Some(before) => maker = before,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_given_so_that_all_effects_have_one() {
        let [a, b, c] = [Maker::Call(1), Maker::Call(2), Maker::Lease(7, 0)];
        let mut matching = Matching::default();
        assert!(matching.add(vec![a, b]));
        assert!(matching.add(vec![a, c]));
        assert!(matching.add(vec![a]));
        assert_eq!(matching.effects, BTreeMap::from([(b, 0), (c, 1), (a, 2)]));
        assert!(!matching.add(vec![a, b, c]));
        assert!(matching.add(vec![Maker::Lease(7, 1), a]));
        assert!(!matching.add(vec![]));
    }
}
