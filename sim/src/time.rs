//! Virtual time, and the heap of what will happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds since the run began. Each member's clock runs apart from it, by its own drift.
pub type Micros = u64;

/// A millisecond.
pub const MILLISECOND: Micros = 1_000;
/// A second.
pub const SECOND: Micros = 1_000_000;

/// Steps of raft's clock until a member asks for votes.
pub(crate) const ELECTION_TICKS: u64 = 10;

/// The time of an election, by a clock of raft with such steps.
pub(crate) const fn election_time(tick: Micros) -> Micros {
    ELECTION_TICKS * tick
}

/// The events to come, by time; those of the same time in the order in which they were planned.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Micros,
    planned: u64,
    /// Time, order, and the place of the event: events are large, and a heap moves what it has.
    heap: BinaryHeap<Reverse<(Micros, u64, usize)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: 0, planned: 0, heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new() }
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
        let place = self.free.pop().unwrap_or(self.events.len());
        if place == self.events.len() {
            self.events.push(Some(event));
        } else {
            self.events[place] = Some(event);
        }
        self.heap.push(Reverse((self.now + after, self.planned, place)));
        self.planned += 1;
    }

    /// The next event; its time is now.
    pub fn take(&mut self) -> Option<E> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.now = at;
        self.free.push(place);
        self.events[place].take()
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
