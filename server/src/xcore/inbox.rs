//! The events of one core, in the order in which its loop handles them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A queue inside one core: many tasks push, one loop takes everything at once.
///
/// It has no bound of its own: what is pushed is bounded where it comes from (see the rules in `xcore`).
#[derive(Debug)]
pub struct Inbox<E> {
    state: RefCell<State<E>>,
}

#[derive(Debug)]
struct State<E> {
    events: VecDeque<E>,
    reader: Option<Waker>,
    closed: bool,
}

impl<E> Inbox<E> {
    /// An empty inbox.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { state: RefCell::new(State { events: VecDeque::new(), reader: None, closed: false }) })
    }

    /// Adds an event and wakes the loop.
    pub fn push(&self, event: E) {
        let mut state = self.state.borrow_mut();
        state.events.push_back(event);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Nothing waits inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.borrow().events.is_empty()
    }

    /// No more events will come; those inside are still taken.
    pub fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Takes what is there, without waiting.
    pub fn take_now(&self) -> VecDeque<E> {
        std::mem::take(&mut self.state.borrow_mut().events)
    }

    /// Waits for at least one event and takes all there are; none once closed and empty.
    pub async fn take(&self) -> Option<VecDeque<E>> {
        std::future::poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.events.is_empty() {
                if state.closed {
                    return Poll::Ready(None);
                }
                state.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Some(std::mem::take(&mut state.events)))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn takes_all_events_in_order_waits_for_more_and_ends() {
        let inbox = Inbox::new();
        inbox.push(1);
        inbox.push(2);
        assert_eq!(block_on(inbox.take()).unwrap(), [1, 2]);
        let mut next = Box::pin(inbox.take());
        assert_eq!(block_on(poll_once(&mut next)), None);
        inbox.push(3);
        assert_eq!(block_on(next).unwrap(), [3]);
        inbox.push(4);
        inbox.close();
        assert_eq!(block_on(inbox.take()).unwrap(), [4]);
        assert_eq!(block_on(inbox.take()), None);
    }
}
