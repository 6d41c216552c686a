//! The bytes that one connection has received and the log core has not taken yet.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::limits;

/// Log core view: bytes of a connection, or of several, that wait for the log core. Their readers
/// read no more while there are too many.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Cell<usize>,
    readers: RefCell<Vec<Waker>>,
}

/// Bytes in a backlog, until it is dropped.
#[derive(Debug)]
pub struct Room {
    backlog: Rc<Backlog>,
    bytes: usize,
}

impl Backlog {
    /// Takes bytes in; the last ones may exceed the bound.
    pub(super) fn enter(self: &Rc<Self>, bytes: usize) -> Room {
        self.bytes.set(self.bytes.get() + bytes);
        Room { backlog: Rc::clone(self), bytes }
    }

    /// Waits until there is room for more.
    pub(super) async fn has_room(&self) {
        std::future::poll_fn(|context| {
            if self.bytes.get() < limits::PEER_BACKLOG_BYTES {
                return Poll::Ready(());
            }
            self.readers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.backlog.bytes.set(self.backlog.bytes.get() - self.bytes);
        self.backlog.readers.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn a_full_backlog_is_waited_for() {
        let backlog = Rc::new(Backlog::default());
        let small = backlog.enter(1);
        block_on(backlog.has_room());
        let large = backlog.enter(limits::PEER_BACKLOG_BYTES);
        let mut waiting = Box::pin(backlog.has_room());
        assert!(block_on(poll_once(&mut waiting)).is_none());
        drop(small);
        assert!(block_on(poll_once(&mut waiting)).is_none());
        drop(large);
        block_on(waiting);
    }
}
