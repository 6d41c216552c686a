//! Counts calls and connections of one core, tells them to end, and waits until they have.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Core view: what has to end before the core may.
#[derive(Debug, Clone, Default)]
pub struct Gate(Rc<RefCell<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    passes: Slab<Option<Waker>>,
    closed: bool,
    drained: Option<Waker>,
}

/// One call or connection inside; it leaves by being dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Gate,
    slot: usize,
}

impl Gate {
    /// Lets one in, if fewer than `inside_max` are in and the gate is open.
    #[must_use]
    pub fn enter(&self, inside_max: usize) -> Option<Pass> {
        let mut inside = self.0.borrow_mut();
        if inside.closed || inside.passes.len() >= inside_max {
            return None;
        }
        let slot = inside.passes.insert(None);
        Some(Pass { gate: self.clone(), slot })
    }

    /// Lets nothing more in, and tells everything inside to end.
    pub fn close(&self) {
        let mut inside = self.0.borrow_mut();
        inside.closed = true;
        for (_, waker) in &mut inside.passes {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// It lets nothing in.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Waits until nothing is inside.
    pub async fn drained(&self) {
        std::future::poll_fn(|context| {
            let mut inside = self.0.borrow_mut();
            if inside.passes.is_empty() {
                return Poll::Ready(());
            }
            inside.drained = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Pass {
    /// Ready once the gate is closed; until then the task of `context` is woken when that happens.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.gate.0.borrow_mut();
        if inside.closed {
            return Poll::Ready(());
        }
        let waker = &mut inside.passes[self.slot];
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.gate.0.borrow_mut();
        inside.passes.remove(self.slot);
        if inside.passes.is_empty()
            && let Some(waker) = inside.drained.take()
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
