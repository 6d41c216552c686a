//! Sorting the keys of a range, a bounded part at a time.
//!
//! With a limit, only as many keys are kept, in a heap. Without one, keys are sorted in short runs as they come, and the
//! runs are merged as the keys are answered: there is no moment at which all of them have to be sorted.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use revd_engine::mvcc::KeyMeta;

use crate::limits;

/// What a key is sorted by; what is to be answered first is the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank<'a> {
    /// A version or a revision; its negative for descending order.
    Number(i64),
    Value(&'a [u8]),
    ValueFromLast(Reverse<&'a [u8]>),
}

/// A key to be sorted. Of equal rank, the smaller key comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) rank: Rank<'a>,
    pub(super) key: &'a [u8],
    pub(super) meta: KeyMeta,
}

/// Keys that are being gathered.
#[derive(Debug)]
pub(super) struct Sorter<'a> {
    limit: usize,
    /// With a limit: the first ones so far, the last of them on top.
    first: BinaryHeap<Entry<'a>>,
    /// Without one.
    runs: Vec<Vec<Entry<'a>>>,
    run: Vec<Entry<'a>>,
    run_bytes: usize,
    /// The limit has cut keys off.
    cut: bool,
}

/// Keys in order.
#[derive(Debug)]
pub(super) enum Sorted<'a> {
    /// Being taken out of the heap, last key first.
    Emptying(BinaryHeap<Entry<'a>>, Vec<Entry<'a>>),
    /// The heads of all runs.
    Merging(BinaryHeap<Reverse<Run<'a>>>),
}

/// A sorted run that is being merged; never empty.
#[derive(Debug)]
pub(super) struct Run<'a> {
    head: Entry<'a>,
    rest: std::vec::IntoIter<Entry<'a>>,
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

impl PartialEq for Entry<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry<'_> {}

impl PartialOrd for Entry<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| self.key.cmp(other.key))
    }
}

impl PartialEq for Run<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.head == other.head
    }
}

impl Eq for Run<'_> {}

impl PartialOrd for Run<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Run<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head)
    }
}

impl<'a> Sorter<'a> {
    /// Of which only the first `limit` are wanted.
    pub(super) fn new(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let (first, runs, run) = (BinaryHeap::new(), Vec::new(), Vec::new());
        Self { limit, first, runs, run, run_bytes: 0, cut: false }
    }

    /// Adds a key; the steps that took.
    pub(super) fn add(&mut self, entry: Entry<'a>) -> usize {
        let steps = limits::SORT_STEPS_PER_KEY * (1 + entry.rank.steps());
        if self.limit == usize::MAX {
            self.run_bytes += entry.rank.steps() * limits::BYTES_PER_STEP;
            self.run.push(entry);
            if self.run.len() >= limits::SORT_RUN_KEYS || self.run_bytes >= limits::SORT_RUN_BYTES {
                self.end_run();
            }
        } else if self.first.len() < self.limit {
            self.first.push(entry);
        } else {
            self.cut = true;
            if let Some(mut last) = self.first.peek_mut().filter(|last| entry < **last) {
                *last = entry;
            }
        }
        steps
    }

    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.run);
        run.sort_unstable();
        self.runs.push(run);
        self.run_bytes = 0;
    }

    /// Bytes of the keys it holds.
    pub(super) fn bytes(&self) -> usize {
        (self.first.len() + self.runs.len() * limits::SORT_RUN_KEYS + self.run.len()) * size_of::<Entry<'_>>()
    }

    /// All keys are added: in order, and whether there were more than wanted.
    pub(super) fn sorted(mut self) -> (Sorted<'a>, bool) {
        if self.limit != usize::MAX {
            return (Sorted::Emptying(self.first, Vec::new()), self.cut);
        }
        self.end_run();
        let heads = self.runs.into_iter().filter_map(|run| {
            let mut rest = run.into_iter();
            Some(Reverse(Run { head: rest.next()?, rest }))
        });
        (Sorted::Merging(heads.collect()), false)
    }
}

impl<'a> Sorted<'a> {
    /// The next key, if it is found within so many steps; takes off those it has used. None when there is none yet.
    pub(super) fn next_within(&mut self, steps: &mut usize) -> Option<Entry<'a>> {
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
            Self::Merging(runs) => {
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
            Self::Merging(runs) => runs.is_empty(),
        }
    }
}
