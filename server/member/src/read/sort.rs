//! Sorting the keys of a range, a bounded part at a time.
//!
//! With a small limit, only as many keys are kept, in a heap. With a larger one or none, keys are
//! sorted in short runs as they come, and the runs are merged as the keys are answered: there is no
//! moment at which all of them have to be sorted, or copied to a larger place.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use revd_engine::key_parts::KeyParts;
use revd_engine::mvcc::KeyMeta;

use crate::error::Error;
use crate::limits;

/// The order of keys in the answer: the first one has the smallest rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank<'a> {
    /// A version or a revision; its negative for descending order.
    Number(i64),
    Value(&'a [u8]),
    ValueFromLast(Reverse<&'a [u8]>),
}

/// A key to be sorted. Of equal rank, the smaller key comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct SortEntry<'a> {
    pub(super) rank: Rank<'a>,
    pub(super) key: KeyParts<'a>,
    pub(super) meta: KeyMeta,
}

/// Keys that are being gathered.
#[derive(Debug)]
pub(super) struct Sorter<'a> {
    limit: usize,
    bytes_max: usize,
    /// Keys added.
    added: usize,
    /// With a small limit: the first ones so far, the last of them on top.
    first: BinaryHeap<SortEntry<'a>>,
    /// Otherwise: those that are sorted, and how many keys they have room for.
    runs: Vec<Vec<SortEntry<'a>>>,
    runs_room: usize,
    run: Vec<SortEntry<'a>>,
    run_bytes: usize,
}

/// Keys in order.
#[derive(Debug)]
pub(super) enum Sorted<'a> {
    /// Being taken out of the heap, last key first.
    Emptying(BinaryHeap<SortEntry<'a>>, Vec<SortEntry<'a>>),
    /// The heads of all runs, and how many keys are still wanted.
    Merging(BinaryHeap<Reverse<SortedRun<'a>>>, usize),
}

/// A sorted run that is being merged; never empty.
#[derive(Debug)]
pub(super) struct SortedRun<'a> {
    head: SortEntry<'a>,
    rest: std::vec::IntoIter<SortEntry<'a>>,
}

impl Rank<'_> {
    /// Steps that comparing it may cost.
    fn steps(&self) -> usize {
        match self {
            Self::Number(_) => 0,
            Self::Value(value) | Self::ValueFromLast(Reverse(value)) => value.len() / limits::BYTES_PER_STEP,
        }
    }
}

impl PartialEq for SortEntry<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SortEntry<'_> {}

impl PartialOrd for SortEntry<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortEntry<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| self.key.cmp(&other.key))
    }
}

impl PartialEq for SortedRun<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.head == other.head
    }
}

impl Eq for SortedRun<'_> {}

impl PartialOrd for SortedRun<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortedRun<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head)
    }
}

impl<'a> Sorter<'a> {
    /// Of which only the first `limit` are wanted.
    pub(super) fn new(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let (first, runs, run) = (BinaryHeap::new(), Vec::new(), Vec::new());
        let bytes_max = limits::SORT_BYTES_MAX;
        Self { limit, bytes_max, added: 0, first, runs, runs_room: 0, run, run_bytes: 0 }
    }

    fn keeps_all(&self) -> bool {
        self.limit > limits::SORT_HEAP_KEYS_MAX
    }

    /// Adds a key; the steps that took.
    ///
    /// # Errors
    /// [`Error::SortTooLarge`]
    pub(super) fn add(&mut self, entry: SortEntry<'a>) -> Result<usize, Error> {
        let steps = limits::SORT_STEPS_PER_KEY * (1 + entry.rank.steps());
        self.added += 1;
        if self.keeps_all() {
            self.run_bytes += entry.rank.steps() * limits::BYTES_PER_STEP;
            self.run.push(entry);
            if self.run.len() >= limits::SORT_RUN_KEYS || self.run_bytes >= limits::SORT_RUN_BYTES {
                self.end_run();
            }
        } else if self.first.len() < self.limit {
            self.first.push(entry);
        } else if let Some(mut last) = self.first.peek_mut().filter(|last| entry < **last) {
            *last = entry;
        }
        if self.bytes() > self.bytes_max {
            return Err(Error::SortTooLarge { bytes_max: self.bytes_max });
        }
        Ok(steps)
    }

    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        run.sort_unstable();
        self.runs_room += run.capacity();
        self.runs.push(run);
        self.run_bytes = 0;
    }

    /// Bytes it takes for the keys it holds.
    pub(super) fn bytes(&self) -> usize {
        (self.first.capacity() + self.runs_room + self.run.capacity()) * size_of::<SortEntry<'_>>()
            + self.runs.capacity() * size_of::<Vec<SortEntry<'_>>>()
    }

    /// All keys are added: in order, and whether there were more than wanted.
    pub(super) fn sorted(mut self) -> (Sorted<'a>, bool) {
        let cut = self.added > self.limit;
        if !self.keeps_all() {
            return (Sorted::Emptying(self.first, Vec::new()), cut);
        }
        self.end_run();
        let heads = self.runs.into_iter().filter_map(|run| {
            let mut rest = run.into_iter();
            Some(Reverse(SortedRun { head: rest.next()?, rest }))
        });
        (Sorted::Merging(heads.collect(), self.added.min(self.limit)), cut)
    }
}

impl<'a> Sorted<'a> {
    /// The next key, if it is found within so many steps; takes off those it has used. None when
    /// there is none yet.
    pub(super) fn next_within(&mut self, steps: &mut usize) -> Option<SortEntry<'a>> {
        match self {
            Self::Emptying(heap, sorted) => {
                while *steps > 0
                    && let Some(last) = heap.pop()
                {
                    *steps = steps.saturating_sub(limits::SORT_STEPS_PER_KEY * (1 + last.rank.steps()));
                    sorted.push(last);
                }
                if heap.is_empty() { sorted.pop() } else { None }
            }
            Self::Merging(runs, wanted) => {
                *wanted = wanted.checked_sub(1)?;
                let mut first = runs.peek_mut()?;
                let entry = first.0.head;
                *steps = steps.saturating_sub(limits::SORT_STEPS_PER_KEY * (1 + entry.rank.steps()));
                match first.0.rest.next() {
                    Some(next) => first.0.head = next,
                    None => drop(PeekMut::pop(first)),
                }
                Some(entry)
            }
        }
    }

    /// Every key was taken.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Emptying(heap, sorted) => heap.is_empty() && sorted.is_empty(),
            Self::Merging(_, wanted) => *wanted == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use revd_engine::mvcc::Revision;
    use revd_engine::random::Random;

    use super::*;

    fn entry<'a>(rank: Rank<'a>, key: &'a [u8]) -> SortEntry<'a> {
        let meta = KeyMeta { create_revision: 1, modified: Revision { main: 1, sub: 0 }, version: 1 };
        SortEntry { rank, key: key.into(), meta }
    }

    fn keys(number: usize) -> Vec<Vec<u8>> {
        (0..number).map(|at| format!("{at:06}").into_bytes()).collect()
    }

    /// Every limit gives what sorting all at once gives, equal ranks in the order of keys, whatever
    /// the steps.
    #[test]
    fn runs_and_heaps_sort_alike() {
        let keys = keys(25_000);
        let mut random = Random::new(1);
        for different in [1, 5, 1_000_000] {
            let all: Vec<_> =
                keys.iter().map(|key| (random.below(different).cast_signed(), &key[..])).collect();
            let mut expected = all.clone();
            expected.sort_unstable();
            for limit in [None, Some(1), Some(1_024), Some(10_000), Some(10_001), Some(24_999), Some(25_000)]
            {
                let mut sorter = Sorter::new(limit);
                for (rank, key) in &all {
                    sorter.add(entry(Rank::Number(*rank), key)).unwrap();
                }
                let (mut sorted, cut) = sorter.sorted();
                let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap();
                assert_eq!(cut, all.len() > limit);
                let mut found = Vec::new();
                while !sorted.is_empty() {
                    let mut steps = usize::try_from(random.below(100)).unwrap() + 1;
                    found.extend(sorted.next_within(&mut steps).map(|entry| entry.key));
                }
                assert!(
                    found.iter().eq(expected
                        .iter()
                        .map(|(_, key)| *key)
                        .take(limit)
                        .map(KeyParts::from)
                        .collect::<Vec<_>>()
                        .iter()),
                    "{limit} of {different}"
                );
            }
        }
    }

    /// A heap of millions takes longer for each key than it is said to, and is copied whole when it
    /// grows.
    #[test]
    fn only_a_small_limit_has_a_heap() {
        let (keys, is_heap) = (keys(20_000), |sorted| matches!(sorted, Sorted::Emptying(..)));
        for (limit, expected) in
            [(Some(10_000), true), (Some(10_001), false), (Some(1 << 60), false), (None, false)]
        {
            let mut sorter = Sorter::new(limit);
            for key in &keys {
                sorter.add(entry(Rank::Number(0), key)).unwrap();
            }
            assert_eq!(is_heap(sorter.sorted().0), expected, "{limit:?}");
        }
    }

    /// `SORT_BYTES_MAX`, at a smaller bound: neither fewer keys nor more than take so much.
    #[test]
    fn sorting_is_bounded_by_the_memory_it_takes() {
        let (keys, bytes_max) = (keys(20_000), 1_000_000);
        let long = vec![0; 2 * limits::SORT_RUN_BYTES];
        let held = |limit, rank: Rank<'static>| {
            let mut sorter = Sorter { bytes_max, ..Sorter::new(limit) };
            let refused = keys.iter().position(|key| {
                let added = sorter.add(entry(rank, key));
                assert!(added.is_ok() || added == Err(Error::SortTooLarge { bytes_max }));
                added.is_err()
            });
            refused.unwrap_or(keys.len()) * size_of::<SortEntry<'_>>()
        };
        assert!((bytes_max / 2..=bytes_max).contains(&held(None, Rank::Number(1))));
        assert!((bytes_max / 2..=bytes_max).contains(&held(Some(15_000), Rank::Number(1))));
        // A run for each key takes some room more, but no more than a few keys'.
        assert!((bytes_max / 8..=bytes_max).contains(&held(None, Rank::Value(long.leak()))));
        assert!(held(Some(1_000), Rank::Number(1)) > bytes_max, "no more than the limit is kept");
    }
}
