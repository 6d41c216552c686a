//! Terms of entries that need not be in memory.

use std::collections::VecDeque;

/// The terms of a row of entries, none missing: raft asks for any of them at any time. Terms change
/// with leaders, so that the runs are few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TermRuns {
    /// Index and term of the entry before the first one.
    base: (u64, u64),
    /// First index and term of the entries of one term, ascending.
    runs: VecDeque<(u64, u64)>,
    last: u64,
}

impl TermRuns {
    /// No entries, behind this index and term.
    #[must_use]
    pub fn new(base: (u64, u64)) -> Self {
        Self { base, runs: VecDeque::new(), last: base.0 }
    }

    /// Index and term of the entry before the first one.
    #[must_use]
    pub fn base(&self) -> (u64, u64) {
        self.base
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The term of an entry, or of the one before the first.
    #[must_use]
    pub fn term(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        if index < self.base.0 || index > self.last {
            return None;
        }
        // Entries at the end are asked for most.
        let newest = self.runs.back().filter(|(first, _)| *first <= index);
        let run = newest.or_else(|| {
            let behind = self.runs.partition_point(|(first, _)| *first <= index);
            self.runs.get(behind - 1)
        });
        run.map(|(_, term)| *term)
    }

    /// Adds an entry; it replaces those from its index on.
    ///
    /// # Panics
    /// If it leaves a gap, or would replace what is not here.
    pub fn push(&mut self, index: u64, term: u64) {
        assert!(index > self.base.0 && index <= self.last + 1, "entry {index} behind {}", self.last);
        while self.runs.pop_back_if(|(first, _)| *first >= index).is_some() {}
        if self.runs.back().is_none_or(|(_, last)| *last != term) {
            self.runs.push_back((index, term));
        }
        self.last = index;
    }

    /// Lets go of entries up to this one.
    pub fn release(&mut self, index: u64) {
        let index = index.min(self.last);
        let Some(term) = self.term(index).filter(|_| index > self.base.0) else { return };
        self.base = (index, term);
        while self.runs.len() > 1 && self.runs[1].0 <= index + 1 {
            self.runs.pop_front();
        }
        if index == self.last {
            self.runs.clear();
        } else {
            self.runs[0].0 = self.runs[0].0.max(index + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use revd_engine::random::Random;

    use super::*;

    /// Against a list with a term for each entry.
    #[test]
    fn runs_are_like_a_list_of_terms() {
        let mut random = Random::new(7);
        let (mut runs, mut released, mut list) = (TermRuns::new((4, 2)), 4, vec![2_u64]);
        let mut most = 0;
        for _ in 0..5_000 {
            match random.below(10) {
                0 => {
                    let index = released + random.below(list.len() as u64);
                    runs.release(index);
                    list.drain(..usize::try_from(index - released).unwrap());
                    released = index;
                }
                1 if list.len() > 1 => {
                    // A new leader replaces the end.
                    let at = 1 + random.below(list.len() as u64 - 1);
                    list.truncate(usize::try_from(at).unwrap());
                    list.push(list.last().unwrap() + 1);
                    runs.push(released + at, *list.last().unwrap());
                }
                _ => {
                    let term = list.last().unwrap() + u64::from(random.one_in(20));
                    list.push(term);
                    runs.push(runs.last() + 1, term);
                }
            }
            assert_eq!(runs.last(), released + list.len() as u64 - 1);
            for index in released.saturating_sub(2)..runs.last() + 2 {
                let at = index.checked_sub(released).map(|at| usize::try_from(at).unwrap());
                assert_eq!(runs.term(index), at.and_then(|at| list.get(at).copied()), "entry {index}");
            }
            most = most.max(runs.runs.len());
            let terms = list[1..].chunk_by(|one, other| one == other).count();
            assert_eq!(runs.runs.len(), terms, "no run is kept for nothing");
        }
        assert!(most > 3);
    }
}
