//! Sockets of clients that are to be closed. The kernel takes tens of microseconds for each, and
//! thousands of clients may go away at once: they are closed in turns, and each keeps its place and
//! its permit until it is. HTTP ends its sending side by itself before that, as far as a client
//! waits for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::clock::Ticker;
use crate::limits;
use crate::queues::turn::{SideWork, give_way};

/// Core view: what waits to be closed, in order. No more come where `CLOSING_MAX` wait; those that
/// are there bound it.
#[derive(Debug)]
pub(super) struct ClosingLine<T>(RefCell<Inside<T>>);

#[derive(Debug)]
struct Inside<T> {
    waiting: VecDeque<T>,
    closer: Option<Waker>,
}

impl<T> ClosingLine<T> {
    /// Nothing waits.
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::new(Inside { waiting: VecDeque::new(), closer: None })))
    }

    /// Has this one dropped in its turn.
    pub(super) fn push(&self, closing: T) {
        let mut inside = self.0.borrow_mut();
        inside.waiting.push_back(closing);
        if let Some(closer) = inside.closer.take() {
            closer.wake();
        }
    }

    /// Drops what comes, in turns, for as long as the core lives.
    pub(super) async fn run(self: Rc<Self>, work: SideWork, clock: Ticker) {
        loop {
            self.wait().await;
            if work.is_used_up() {
                work.give_way(clock).await;
            }
            let began = clock.microseconds();
            self.close_one();
            let took = clock.microseconds().saturating_sub(began);
            work.took(took.max(limits::CLOSE_MICROSECONDS_MIN));
        }
    }

    /// Waits for something to drop.
    async fn wait(&self) {
        std::future::poll_fn(|context| {
            let mut inside = self.0.borrow_mut();
            if !inside.waiting.is_empty() {
                return Poll::Ready(());
            }
            inside.closer = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Drops the first one that waits, before its turn; whether there was one.
    pub(super) fn close_one(&self) -> bool {
        let first = self.0.borrow_mut().waiting.pop_front();
        first.is_some()
    }

    /// Waits until there are not too many.
    pub(super) async fn room(&self) {
        while self.0.borrow().waiting.len() >= limits::CLOSING_MAX {
            give_way().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use futures_lite::future::or;

    use super::*;
    use crate::queues::sleep::{on_a_core, sleep};

    /// Counts those that are closed.
    struct Closed(Rc<Cell<usize>>);

    impl Drop for Closed {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn what_is_closed_at_once_is_closed_in_turns() {
        const CLOSED: usize = 200;
        let (line, closed) = (ClosingLine::new(), Rc::new(Cell::new(0)));
        let closing = Rc::clone(&line).run(SideWork::default(), Ticker::new());
        let watching = async {
            let mut turns = Vec::new();
            // Again, behind a time in which nothing was to be closed.
            for round in 1..=2 {
                (0..CLOSED).for_each(|_| line.push(Closed(Rc::clone(&closed))));
                assert_eq!(closed.get(), (round - 1) * CLOSED, "not by the one that leaves it");
                turns.push(0);
                while closed.get() < round * CLOSED {
                    give_way().await;
                    turns[round - 1] += 1;
                }
            }
            assert!(!line.close_one());
            turns
        };
        // Two in each; on a machine that is busy otherwise a turn may be longer.
        let turns = on_a_core(or(watching, async {
            closing.await;
            Vec::new()
        }));
        assert!(turns.iter().all(|turns| *turns >= CLOSED / 40), "others had their turn {turns:?} times");
    }

    #[test]
    fn no_more_come_where_many_wait() {
        on_a_core(async {
            let line = ClosingLine::new();
            line.room().await;
            (0..limits::CLOSING_MAX).for_each(|at| line.push(at));
            let entering = async {
                line.room().await;
                "there is room"
            };
            let waiting = async {
                sleep(Duration::from_millis(5)).await;
                "it waits"
            };
            assert_eq!(or(entering, waiting).await, "it waits");
            assert!(line.close_one());
            line.room().await;
        });
    }
}
