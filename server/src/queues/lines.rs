//! Lines by what those in them have in common: the first of each has its turn, until it leaves.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use crate::queues::latch::Latch;

/// Core view: the lines in which there is somebody: one has its turn, and others wait behind it.
/// Nothing here bounds how many: each that waits has a place elsewhere.
#[derive(Debug, Default)]
pub struct Lines(RefCell<BTreeMap<u128, VecDeque<Latch>>>);

impl Lines {
    /// Resolves to the turn when those that were in this line before have left. One that is dropped
    /// before has left.
    pub async fn turn(&self, line: u128) -> Turn<'_> {
        let called = self.stand(line);
        // It leaves by being dropped, also while it waits.
        let turn = Turn { lines: self, line, called };
        if let Some(called) = &turn.called {
            called.wait().await;
        }
        turn
    }

    /// Joins a line; what it is called by, if it is not the first.
    fn stand(&self, line: u128) -> Option<Latch> {
        let mut lines = self.0.borrow_mut();
        let Some(waiting) = lines.get_mut(&line) else {
            lines.insert(line, VecDeque::new());
            return None;
        };
        let called = Latch::default();
        waiting.push_back(called.clone());
        Some(called)
    }

    /// All lines are empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// How many wait in a line.
    #[cfg(test)]
    pub(crate) fn waiting(&self, line: u128) -> usize {
        self.0.borrow().get(&line).map_or(0, VecDeque::len)
    }
}

/// A turn, or a place in a line. It ends by being dropped.
#[derive(Debug)]
pub struct Turn<'l> {
    lines: &'l Lines,
    line: u128,
    called: Option<Latch>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.0.borrow_mut();
        let Some(waiting) = lines.get_mut(&self.line) else { return };
        match &self.called {
            // Given up before it was its turn. Those that give up are the oldest, as a rule.
            Some(called) if !called.is_set() => {
                if let Some(at) = waiting.iter().position(|waiting| waiting.is(called)) {
                    waiting.remove(at);
                }
            }
            _ => match waiting.pop_front() {
                Some(next) => next.set(),
                None => drop(lines.remove(&self.line)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn one_of_a_line_has_its_turn_and_one_that_gives_up_is_passed_over() {
        let lines = Lines::default();
        let first = block_on(lines.turn(7));
        let mut other = Box::pin(lines.turn(8));
        assert!(block_on(poll_once(&mut other)).is_some(), "of another line");
        let [mut second, mut third, mut fourth] = [(); 3].map(|()| Box::pin(lines.turn(7)));
        block_on(async {
            for waiting in [&mut second, &mut third, &mut fourth] {
                assert!(poll_once(waiting).await.is_none());
            }
            drop(second);
            drop(first);
            let third = poll_once(&mut third).await.expect("it is its turn");
            assert!(poll_once(&mut fourth).await.is_none());
            drop(third);
            assert!(poll_once(&mut fourth).await.is_some());
        });
        drop((fourth, other));
        assert!(lines.is_empty());
    }

    #[test]
    fn one_that_is_called_and_gives_up_calls_the_next() {
        let lines = Lines::default();
        let first = block_on(lines.turn(7));
        let [mut second, mut third] = [(); 2].map(|()| Box::pin(lines.turn(7)));
        block_on(async {
            assert!(poll_once(&mut second).await.is_none() && poll_once(&mut third).await.is_none());
            drop(first);
            drop(second); // called, and dropped before it was polled
            assert!(poll_once(&mut third).await.is_some());
        });
    }

    /// More come than have a turn, and give up: what waits is those that are still there.
    #[test]
    fn those_that_give_up_are_not_kept() {
        let lines = Lines::default();
        let first = block_on(lines.turn(0));
        let mut last = Box::pin(lines.turn(0));
        assert!(block_on(poll_once(&mut last)).is_none());
        for _ in 0..100_000 {
            let mut given_up = Box::pin(lines.turn(0));
            assert!(block_on(poll_once(&mut given_up)).is_none());
        }
        assert_eq!(lines.waiting(0), 1);
        drop(first);
        assert!(block_on(poll_once(&mut last)).is_some());
    }
}
