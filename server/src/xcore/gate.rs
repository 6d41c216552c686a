//! Counting what is in flight on one core, telling it to end, and waiting until it has.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Core view: everything that is to end before the core may.
#[derive(Debug, Clone, Default)]
pub struct Gate(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    inside: Slab<Option<Waker>>,
    closed: bool,
    drained: Option<Waker>,
}

/// Something in flight; leaving is dropping it.
#[derive(Debug)]
pub struct Pass {
    gate: Gate,
    slot: usize,
}

impl Gate {
    /// Lets something in, if fewer than `inside_max` are in and the gate is open.
    #[must_use]
    pub fn enter(&self, inside_max: usize) -> Option<Pass> {
        let mut state = self.0.borrow_mut();
        if state.closed || state.inside.len() >= inside_max {
            return None;
        }
        let slot = state.inside.insert(None);
        Some(Pass { gate: self.clone(), slot })
    }

    /// Lets nothing more in and tells everything inside to end.
    pub fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.closed = true;
        for (_, waker) in &mut state.inside {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// How much is inside.
    #[must_use]
    pub fn inside(&self) -> usize {
        self.0.borrow().inside.len()
    }

    /// Waits until nothing is inside.
    pub async fn drained(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.inside.is_empty() {
                return Poll::Ready(());
            }
            state.drained = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Pass {
    /// Ready once the gate is closed; until then the task of `context` is woken when that happens.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.gate.0.borrow_mut();
        if state.closed {
            return Poll::Ready(());
        }
        let waker = &mut state.inside[self.slot];
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.0.borrow_mut();
        state.inside.remove(self.slot);
        if state.inside.is_empty()
            && let Some(waker) = state.drained.take()
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_fn, poll_once};

    #[test]
    fn closing_tells_those_inside_and_waits_for_them() {
        let gate = Gate::default();
        let (first, second) = (gate.enter(2).unwrap(), gate.enter(2).unwrap());
        assert!(gate.enter(2).is_none(), "full");
        let mut told = Box::pin(poll_fn(|context| first.poll_closed(context)));
        assert!(block_on(poll_once(&mut told)).is_none());
        gate.close();
        block_on(told);
        assert!(gate.enter(9).is_none(), "closed");
        let mut drained = Box::pin(gate.drained());
        assert!(block_on(poll_once(&mut drained)).is_none());
        drop(second);
        assert!(block_on(poll_once(&mut drained)).is_none());
        drop(first);
        block_on(drained);
    }
}
