//! Virtual time, and the heap of what will happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds since the run began. Each member's clock runs apart from it, by its own drift.
pub type Micros = u64;

/// A millisecond.
pub const MILLISECOND: Micros = 1_000;
/// A second.
pub const SECOND: Micros = 1_000_000;

/// The events to come, by time; those of the same time in the order in which they were planned.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Micros,
    planned: u64,
    heap: BinaryHeap<Reverse<Planned<E>>>,
}

#[derive(Debug)]
struct Planned<E> {
    at: (Micros, u64),
    event: E,
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: 0, planned: 0, heap: BinaryHeap::new() }
    }
}

impl<E> Agenda<E> {
    /// The time of the event that was taken last.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Plans an event in so many microseconds.
    pub fn plan(&mut self, after: Micros, event: E) {
        let at = (self.now + after, self.planned);
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, event }));
    }

    /// The next event; its time is now.
    pub fn take(&mut self) -> Option<E> {
        let Reverse(Planned { at, event }) = self.heap.pop()?;
        self.now = at.0;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_their_order() {
        let mut agenda = Agenda::default();
        for (after, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            agenda.plan(after, event);
        }
        let taken: String = std::iter::from_fn(|| agenda.take()).collect();
        assert_eq!((taken.as_str(), agenda.now()), ("abcd", 5));
        agenda.plan(0, 'e');
        assert_eq!(agenda.take(), Some('e'));
    }
}
