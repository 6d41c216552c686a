//! An edge's open proposals: what it has asked the log for and who waits for the outcome.
//!
//! Owned by one edge core. Requests of one loop turn gather in a batch that the edge's loop hands to the log
//! core as one message; outcomes come back as one message and wake their callers. A caller that goes away
//! (cancelled call) leaves its slot until the outcome arrives, so that a slot is never reused for a command that
//! is still in the log.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use slab::Slab;

use crate::apply::command::{Command, CommandId, Kind};
use crate::apply::outcome::Outcome;
use crate::error::Error;
use crate::limits::ProposalLimits;

/// Edge view: the proposals of one edge core.
#[derive(Debug)]
pub struct Proposals {
    edge: u16,
    limits: ProposalLimits,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    waiters: Slab<Waiter>,
    generation: u32,
    batch: Vec<Command>,
    inflight_bytes: usize,
    /// The loop that carries batches to the log core, while it has nothing to do.
    carrier: Option<Waker>,
    /// Sweeps since the start; see [`Proposals::sweep`].
    sweeps: u64,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    id: CommandId,
    bytes: usize,
    /// The log core is through with this command: nothing more will come for the slot.
    settled: bool,
    /// The value of `State::sweeps` at submission; none for a patient caller.
    since: Option<u64>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Waiting(Option<Waker>),
    Done(Result<Outcome, Error>),
    /// The caller is gone; the slot waits for the outcome.
    Abandoned,
}

impl Proposals {
    /// No proposals yet.
    #[must_use]
    pub fn new(edge: u16, limits: ProposalLimits) -> Rc<Self> {
        Rc::new(Self { edge, limits, state: RefCell::default() })
    }

    /// The edge they are of.
    #[must_use]
    pub fn edge(&self) -> u16 {
        self.edge
    }

    /// Adds a command to the batch of this turn. A patient caller is never answered with a timeout.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when a bound is reached, [`Error::Stopped`] after [`Proposals::close`].
    pub fn submit(self: &Rc<Self>, kind: Kind, payload: Bytes, patient: bool) -> Result<Proposal, Error> {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return Err(Error::Stopped);
        }
        let bytes = payload.len();
        if state.waiters.len() >= self.limits.inflight_max
            || state.inflight_bytes.saturating_add(bytes) > self.limits.inflight_bytes_max
        {
            return Err(Error::TooManyRequests);
        }
        state.generation = state.generation.wrapping_add(1);
        let id = CommandId::new(self.edge, state.waiters.vacant_key(), state.generation);
        let since = (!patient).then_some(state.sweeps);
        state.waiters.insert(Waiter { id, bytes, settled: false, since, phase: Phase::Waiting(None) });
        state.inflight_bytes += bytes;
        state.batch.push(Command { id, kind, payload });
        if let Some(carrier) = state.carrier.take() {
            carrier.wake();
        }
        drop(state);
        Ok(Proposal { proposals: Rc::clone(self), id })
    }

    /// Waits until the batch holds something; false once closed. For the one loop that carries batches.
    pub async fn wait_for_batch(&self) -> bool {
        std::future::poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if !state.batch.is_empty() {
                return Poll::Ready(true);
            }
            if state.closed {
                return Poll::Ready(false);
            }
            state.carrier = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Everything submitted since the last call, in order.
    #[must_use]
    pub fn take_batch(&self) -> Vec<Command> {
        std::mem::take(&mut self.state.borrow_mut().batch)
    }

    /// Hands an outcome to its caller, if that one still waits.
    pub fn resolve(&self, id: CommandId, outcome: Outcome) {
        self.finish(id, Ok(outcome));
    }

    fn finish(&self, id: CommandId, result: Result<Outcome, Error>) {
        let state = &mut *self.state.borrow_mut();
        let Some(waiter) = state.waiters.get_mut(id.slot()).filter(|waiter| waiter.id == id) else {
            return;
        };
        if std::mem::replace(&mut waiter.settled, true) {
            return;
        }
        state.inflight_bytes -= waiter.bytes;
        match &mut waiter.phase {
            Phase::Waiting(waker) => {
                let waker = waker.take();
                waiter.phase = Phase::Done(result);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Phase::Abandoned => {
                state.waiters.remove(id.slot());
            }
            Phase::Done(_) => {} // timed out before: the caller has its answer
        }
    }

    /// Called at a steady pace: callers that have waited for `sweeps_max` calls get [`Error::Timeout`]. Their
    /// commands may still be applied, as with any timed-out write.
    pub fn sweep(&self, sweeps_max: u64) {
        let state = &mut *self.state.borrow_mut();
        state.sweeps += 1;
        let now = state.sweeps;
        for (_, waiter) in &mut state.waiters {
            if waiter.since.is_none_or(|since| now - since <= sweeps_max) {
                continue;
            }
            if let Phase::Waiting(waker) = &mut waiter.phase {
                let waker = waker.take();
                waiter.phase = Phase::Done(Err(Error::Timeout));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// Commands without an outcome.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.state.borrow().waiters.len()
    }

    /// Refuses everything from now on; whoever waits gets [`Error::Stopped`].
    pub fn close(&self) {
        let state = &mut *self.state.borrow_mut();
        state.closed = true;
        for (_, waiter) in &mut state.waiters {
            if let Phase::Waiting(waker) = &mut waiter.phase {
                let waker = waker.take();
                waiter.phase = Phase::Done(Err(Error::Stopped));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        if let Some(carrier) = state.carrier.take() {
            carrier.wake();
        }
    }
}

/// A submitted command; resolves to its outcome. Dropping it forgets the outcome, not the command.
#[derive(Debug)]
#[must_use = "a proposal does nothing unless awaited"]
pub struct Proposal {
    proposals: Rc<Proposals>,
    id: CommandId,
}

impl Future for Proposal {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut *self.proposals.state.borrow_mut();
        let waiter = &mut state.waiters[self.id.slot()];
        assert!(waiter.id == self.id, "a slot was reused while its caller waits");
        match &mut waiter.phase {
            Phase::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Done(result) => Poll::Ready(result.clone()),
            Phase::Abandoned => unreachable!("only a dropped proposal is abandoned"),
        }
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        let state = &mut *self.proposals.state.borrow_mut();
        let slot = self.id.slot();
        let waiter = &mut state.waiters[slot];
        if waiter.settled || state.closed {
            state.waiters.remove(slot);
        } else {
            waiter.phase = Phase::Abandoned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    const LIMITS: ProposalLimits = ProposalLimits { inflight_max: 2, inflight_bytes_max: 100 };

    fn outcome(revision: i64) -> Outcome {
        Outcome { revision, result: Ok(Bytes::new()) }
    }

    fn put(proposals: &Rc<Proposals>, bytes: usize) -> Result<Proposal, Error> {
        proposals.submit(Kind::Put, Bytes::from(vec![0; bytes]), false)
    }

    #[test]
    fn outcomes_reach_their_callers_in_any_order() {
        let proposals = Proposals::new(1, LIMITS);
        let (first, second) = (put(&proposals, 1).unwrap(), put(&proposals, 1).unwrap());
        let batch = proposals.take_batch();
        proposals.resolve(batch[1].id, outcome(2));
        proposals.resolve(batch[0].id, outcome(1));
        assert_eq!(block_on(first).unwrap().revision, 1);
        assert_eq!(block_on(second).unwrap().revision, 2);
        assert_eq!(proposals.inflight(), 0);
    }

    #[test]
    fn bounds_refuse_and_recover() {
        let proposals = Proposals::new(0, LIMITS);
        let first = put(&proposals, 60).unwrap();
        assert_eq!(put(&proposals, 60).unwrap_err(), Error::TooManyRequests);
        let second = put(&proposals, 40).unwrap();
        assert_eq!(put(&proposals, 0).unwrap_err(), Error::TooManyRequests);
        for command in proposals.take_batch() {
            proposals.resolve(command.id, outcome(1));
        }
        drop((first, second));
        assert!(put(&proposals, 100).is_ok());
    }

    #[test]
    fn an_abandoned_slot_is_not_reused_before_its_outcome() {
        let proposals = Proposals::new(0, LIMITS);
        drop(put(&proposals, 1).unwrap());
        let second = put(&proposals, 1).unwrap();
        assert!(put(&proposals, 1).is_err(), "the abandoned command still counts");
        let batch = proposals.take_batch();
        proposals.resolve(batch[0].id, outcome(1));
        assert_eq!(block_on(poll_once(second)), None);
        assert!(put(&proposals, 1).is_ok());
    }

    #[test]
    fn a_late_outcome_after_a_timeout_frees_the_slot_once() {
        let proposals = Proposals::new(0, LIMITS);
        let first = put(&proposals, 1).unwrap();
        let id = proposals.take_batch()[0].id;
        proposals.sweep(1);
        proposals.sweep(1);
        assert_eq!(block_on(first), Err(Error::Timeout));
        assert_eq!(proposals.inflight(), 1);
        proposals.resolve(id, outcome(1));
        proposals.resolve(id, outcome(1));
        assert_eq!(proposals.inflight(), 0);
        let second = put(&proposals, 1).unwrap();
        let id = proposals.take_batch()[0].id;
        proposals.sweep(0);
        proposals.resolve(id, outcome(1));
        assert_eq!(block_on(second), Err(Error::Timeout));
        assert_eq!(proposals.inflight(), 0);
    }

    #[test]
    fn close_answers_everyone() {
        let proposals = Proposals::new(0, LIMITS);
        let first = put(&proposals, 1).unwrap();
        proposals.close();
        assert_eq!(block_on(first), Err(Error::Stopped));
        assert_eq!(put(&proposals, 1).unwrap_err(), Error::Stopped);
    }
}
