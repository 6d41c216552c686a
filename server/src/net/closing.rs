//! Sockets of clients that are to be closed. The kernel takes tens of microseconds for each, and
//! thousands of clients may go away at once: they are closed in turns, and each keeps its permit
//! until it is. HTTP/2, and HTTP/1 that is not late, end their sending side before that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::clock::Ticker;
use crate::limits;
use crate::queues::turn::{SideWork, time_given_way};

/// Core view, for the addresses of one purpose: the sockets that wait to be closed, in order. Their
/// permits bound them.
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

    /// Drops each that comes, in turns, for as long as the core lives.
    pub(super) async fn run(self: Rc<Self>, clock: Ticker) {
        let mut work = SideWork::default();
        loop {
            self.wait().await;
            if work.is_used_up() {
                work.gave_way(time_given_way(clock).await);
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
        let mut inside = self.0.borrow_mut();
        let first = inside.waiting.pop_front();
        if inside.waiting.is_empty() {
            inside.waiting.shrink_to(limits::CLOSING_KEPT);
        }
        drop(inside);
        first.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Wake};

    use futures_lite::future::or;

    use super::*;
    use crate::queues::sleep::on_a_core;
    use crate::queues::turn::give_way;

    /// Counts those that are closed.
    struct Closed(Rc<Cell<usize>>);

    impl Drop for Closed {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_that_comes_wakes_the_closer() {
        let (line, closed, woken) = (ClosingLine::new(), Rc::new(Cell::new(0)), Arc::<Woken>::default());
        let mut running = pin!(Rc::clone(&line).run(Ticker::new()));
        let waker = Arc::clone(&woken).into();
        for round in 0..2 {
            assert!(running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!((closed.get(), woken.0.load(Ordering::Relaxed)), (round, round as u64));
            line.push(Closed(Rc::clone(&closed)));
            assert_eq!(closed.get(), round, "not by the one that leaves it");
        }
        assert!(line.close_one() && !line.close_one());
        assert_eq!((closed.get(), woken.0.load(Ordering::Relaxed)), (2, 2));
    }

    #[test]
    fn those_that_are_closed_at_once_are_closed_in_turns() {
        const CLOSED: usize = 200;
        let (line, closed) = (ClosingLine::new(), Rc::new(Cell::new(0)));
        let closing = Rc::clone(&line).run(Ticker::new());
        let watching = async {
            (0..CLOSED).for_each(|_| line.push(Closed(Rc::clone(&closed))));
            let mut turns = 0;
            while closed.get() < CLOSED {
                give_way().await;
                turns += 1;
            }
            turns
        };
        let turns = on_a_core(or(watching, async {
            closing.await;
            0
        }));
        assert!(line.0.borrow().waiting.capacity() <= 2 * limits::CLOSING_KEPT);
        // Two in each; on a machine that is busy otherwise a turn may be longer.
        assert!(turns >= CLOSED / 40, "others had their turn {turns} times");
    }
}
