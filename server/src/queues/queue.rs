//! A queue inside one core: its events, or the jobs of one of its tasks, in the order in which they
//! came.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::queues::turn::give_way;

/// Core view: many tasks push, one loop takes everything at once.
///
/// It has no bound of its own: events are bounded where they come from (see the rules in `queues`).
#[derive(Debug)]
pub struct LocalQueue<E> {
    inner: RefCell<Inner<E>>,
}

#[derive(Debug)]
struct Inner<E> {
    events: VecDeque<E>,
    reader: Option<Waker>,
    closed: bool,
}

impl<E> LocalQueue<E> {
    /// An empty queue, open.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { inner: RefCell::new(Inner { events: VecDeque::new(), reader: None, closed: false }) })
    }

    /// Adds an event and wakes the loop.
    pub fn push(&self, event: E) {
        let mut inner = self.inner.borrow_mut();
        inner.events.push_back(event);
        if let Some(reader) = inner.reader.take() {
            reader.wake();
        }
    }

    /// Nothing waits inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.borrow().events.is_empty()
    }

    /// No more events will come; those inside are still taken.
    pub fn close(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.closed = true;
        if let Some(reader) = inner.reader.take() {
            reader.wake();
        }
    }

    /// Takes what is there, without waiting.
    pub fn take_now(&self) -> VecDeque<E> {
        std::mem::take(&mut self.inner.borrow_mut().events)
    }

    /// Waits for at least one event and takes all there are; none once closed and empty.
    pub async fn take(&self) -> Option<VecDeque<E>> {
        std::future::poll_fn(|context| {
            let mut inner = self.inner.borrow_mut();
            if inner.events.is_empty() {
                if inner.closed {
                    return Poll::Ready(None);
                }
                inner.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Some(std::mem::take(&mut inner.events)))
        })
        .await
    }

    /// As [`LocalQueue::take`], for a loop whose turns do not wait. Events that are inside
    /// already when its turn is over were pushed by the turn itself: everything else of the core
    /// goes first. A loop that always has news for itself would keep its thread for ever.
    pub async fn take_in_turn(&self) -> Option<VecDeque<E>> {
        if !self.is_empty() {
            give_way().await;
        }
        self.take().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn takes_all_events_in_order_waits_for_more_and_ends() {
        let queue = LocalQueue::new();
        queue.push(1);
        queue.push(2);
        assert_eq!(block_on(queue.take()).unwrap(), [1, 2]);
        let mut next = Box::pin(queue.take());
        assert_eq!(block_on(poll_once(&mut next)), None);
        queue.push(3);
        assert_eq!(block_on(next).unwrap(), [3]);
        queue.push(4);
        queue.close();
        assert_eq!(block_on(queue.take()).unwrap(), [4]);
        assert_eq!(block_on(queue.take()), None);
    }
}
