//! Waiting until there is room in a budget.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::budget::{NoRoom, Share, Waiter};
use crate::limits;

/// Ready when there is room.
#[derive(Debug)]
#[must_use = "waits only when polled"]
pub struct Room {
    share: Share,
    bytes: usize,
    is_patient: bool,
    /// Its place among those who wait.
    ticket: Option<u64>,
}

impl Room {
    pub(super) fn new(share: Share, bytes: usize, is_patient: bool) -> Self {
        Self { share, bytes, is_patient, ticket: None }
    }

    /// No longer waits; true if there was room for it that others may have now.
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
                waiting.offer(budget.free()); // somebody else took what was there, and there may be less for others
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
        let left = (!self.is_patient).then_some(limits::PATIENCE_TICKS);
        let (share, waker) = (self.share.clone(), context.waker().clone());
        waiting.rooms.insert(ticket, Waiter { share, bytes: self.bytes, waker, is_woken: false, left });
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
