//! Waiting until there is room in a budget.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::budget::share::{NoRoom, Patience, RoomWaiter, Share};

/// Ready when there is room.
#[derive(Debug)]
#[must_use = "waits only when polled"]
pub struct Room {
    share: Share,
    bytes: usize,
    patience: Patience,
    /// Its place in the line of waiters.
    ticket: Option<u64>,
}

impl Share {
    /// Waits until so many bytes fit, as long as `patience` says. The room is not held for the
    /// caller: the first that asks gets it.
    pub fn room(&self, bytes: usize, patience: Patience) -> Room {
        Room { share: self.clone(), bytes, patience, ticket: None }
    }
}

impl Room {
    /// Leaves the line; whether room was promised to it, which others may have now.
    fn leave(&mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let mut waiting = self.share.budget().0.waiting.borrow_mut();
        let promised = waiting.promised;
        waiting.takes_up(ticket);
        waiting.rooms.remove(&ticket);
        waiting.promised < promised
    }
}

impl Future for Room {
    type Output = Result<(), NoRoom>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.share.fits(self.bytes) {
            self.leave();
            return Poll::Ready(Ok(()));
        }
        let budget = self.share.budget().clone();
        let mut waiting = budget.0.waiting.borrow_mut();
        let promised = waiting.promised;
        if let Some(waiter) = self.ticket.and_then(|ticket| waiting.takes_up(ticket)) {
            let gives_up = waiter.left == Some(0);
            waiter.waker.clone_from(context.waker());
            if waiting.promised < promised {
                waiting.offer(budget.free()); // another caller took the room, so less may be left
            }
            drop(waiting);
            if gives_up {
                self.leave();
                return Poll::Ready(Err(NoRoom));
            }
            return Poll::Pending;
        }
        let ticket = waiting.next;
        waiting.next += 1;
        let (patience, left) = (self.patience, self.patience.ticks());
        let (share, waker) = (self.share.clone(), context.waker().clone());
        let waiter = RoomWaiter { share, bytes: self.bytes, waker, is_woken: false, patience, left };
        waiting.rooms.insert(ticket, waiter);
        budget.0.is_awaited.set(true);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.leave() {
            self.share.budget().offer();
        }
    }
}
