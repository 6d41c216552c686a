//! The state hashes behind the newest entries, which members compare: members that have applied
//! the same log to the same state have the same hash behind the same entry.

use std::collections::{BTreeMap, VecDeque};

use revd_engine::mvcc::StateHash;

use crate::limits;
use crate::mutants::{self, Mutant};

/// The state hash of a member behind an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashPoint {
    /// That entry.
    pub index: u64,
    /// The hash; one that has not begun if the member does not know it.
    pub hash: StateHash,
}

/// A member wants to know the state hash of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashAsk {
    /// That member.
    pub to: u64,
    /// Behind this entry, which may be applied later; 0 for the newest.
    pub index: u64,
}

/// State core view: the hashes behind the newest entries.
#[derive(Debug)]
pub struct StateHashes {
    /// The last entry.
    last: u64,
    /// Up to that of the last entry, one for each.
    hashes: VecDeque<StateHash>,
}

impl StateHashes {
    /// Begins with this one.
    #[must_use]
    pub fn new(last: u64, hash: StateHash) -> Self {
        Self { last, hashes: VecDeque::from([hash]) }
    }

    /// The next entry is applied.
    pub fn push(&mut self, hash: StateHash) {
        let hash = if mutants::is(Mutant::StateHashesSkipped) { StateHash::default() } else { hash };
        self.last += 1;
        self.hashes.push_back(hash);
        if self.hashes.len() > limits::STATE_HASHES_KEPT {
            self.hashes.pop_front();
        }
    }

    /// The newest one.
    #[must_use]
    pub fn newest(&self) -> HashPoint {
        self.at(self.last)
    }

    /// The one behind an entry that is applied.
    #[must_use]
    pub fn at(&self, index: u64) -> HashPoint {
        let back = usize::try_from(self.last - index).unwrap_or(usize::MAX);
        let at = self.hashes.len().checked_sub(1).and_then(|last| last.checked_sub(back));
        let hash = at.map_or_else(StateHash::default, |at| self.hashes[at]);
        HashPoint { index, hash }
    }

    /// The last entry.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }
}

/// State core view: members that want to know a hash, each one at a time.
#[derive(Debug, Default)]
pub struct HashAsks {
    /// By member: the entry.
    waiting: BTreeMap<u64, u64>,
}

impl HashAsks {
    /// A member asks; what it has asked before is of no use to it any more.
    pub fn add(&mut self, ask: HashAsk) {
        self.waiting.insert(ask.to, ask.index);
    }

    /// The answers that are known by now.
    pub fn answers(&mut self, hashes: &StateHashes) -> Vec<(u64, HashPoint)> {
        if self.waiting.is_empty() {
            return Vec::new(); // nearly always
        }
        let is_known = |_: &u64, index: &mut u64| *index <= hashes.last();
        let known = self.waiting.extract_if(.., is_known);
        let point = |index| if index == 0 { hashes.newest() } else { hashes.at(index) };
        known.map(|(to, index)| (to, point(index))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(value: u64) -> StateHash {
        StateHash { value, since: 1 }
    }

    #[test]
    fn the_newest_hashes_are_known() {
        let mut hashes = StateHashes::new(5, hash(50));
        let kept = limits::STATE_HASHES_KEPT as u64;
        for index in 6..=5 + kept {
            hashes.push(hash(10 * index));
        }
        assert_eq!(hashes.newest(), HashPoint { index: 5 + kept, hash: hash(10 * (5 + kept)) });
        assert_eq!(hashes.at(6).hash, hash(60));
        for gone in [1, 5] {
            assert_eq!(hashes.at(gone), HashPoint { index: gone, hash: StateHash::default() });
        }
    }

    #[test]
    fn a_member_is_answered_once_the_entry_is_applied() {
        let (mut hashes, mut asks) = (StateHashes::new(5, hash(50)), HashAsks::default());
        asks.add(HashAsk { to: 2, index: 9 });
        asks.add(HashAsk { to: 2, index: 6 });
        asks.add(HashAsk { to: 1, index: 0 });
        assert_eq!(asks.answers(&hashes), [(1, HashPoint { index: 5, hash: hash(50) })]);
        assert_eq!(asks.answers(&hashes), []);
        hashes.push(hash(60));
        hashes.push(hash(70));
        assert_eq!(asks.answers(&hashes), [(2, HashPoint { index: 6, hash: hash(60) })]);
        assert_eq!(asks.answers(&hashes), []);
    }
}
