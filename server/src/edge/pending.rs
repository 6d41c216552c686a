//! An edge's pending requests: commands that it has submitted for the log, local requests, and the
//! callers that wait for the outcomes.
//!
//! Owned by one edge core. Requests of one loop turn gather in a batch that the edge's loop
//! hands to the log core as one message; outcomes come back as one message and wake their
//! callers. A caller that goes away (cancelled call) leaves its slot until the outcome arrives,
//! so that a slot is never reused for a command that is still in the log; a command that has not
//! left the edge by then never does.
//!
//! Requests take slots of their own class, so that writes never take those
//! of requests that must not wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::local::{LocalKind, LocalRequest, Submitted};
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;
use slab::Slab;

use crate::edge::slots::SlotClass;
use crate::limits::ProposalLimits;

/// Edge view: the proposals of one edge core.
#[derive(Debug)]
pub struct Proposals {
    edge: u16,
    limits: ProposalLimits,
    table: RefCell<PendingTable>,
}

#[derive(Debug, Default)]
struct PendingTable {
    waiters: Slab<Waiter>,
    generation: u32,
    batch: Submitted,
    /// Submissions since the start, and how many of them have left with a batch.
    submitted: u64,
    carried: u64,
    /// Requests of the batch whose callers are gone.
    withdrawn: usize,
    /// Slots taken of each class.
    taken: [usize; SlotClass::COUNT],
    inflight_bytes: usize,
    /// Keepalive streams that wait for a slot, in the order in which they came.
    queue: BTreeMap<u64, Waker>,
    queued: u64,
    /// Keepalive streams that may hold back requests: they wait for a slot, or for
    /// the answers of earlier requests.
    held_back: usize,
    /// The loop that carries batches to the log core, while it has nothing to do.
    carrier: Option<Waker>,
    /// Sweeps since the start; see [`Proposals::sweep`].
    sweeps: u64,
    closed: bool,
}

#[derive(Debug)]
struct Waiter {
    id: CommandId,
    class: SlotClass,
    bytes: usize,
    /// The value of `PendingTable::submitted` after it.
    number: u64,
    /// The outcome has arrived: nothing more will come for the slot.
    settled: bool,
    /// The value of `PendingTable::sweeps` at submission; none for a patient caller.
    since: Option<u64>,
    caller: Caller,
}

/// How it stands with the caller of a request.
#[derive(Debug)]
enum Caller {
    Waiting(Option<Waker>),
    Done(Result<Outcome, Error>),
    /// The caller is gone; the slot waits for the outcome.
    Abandoned,
    /// The caller is gone, and the request leaves the batch before that is sent.
    Withdrawn,
}

impl Proposals {
    /// No proposals yet.
    #[must_use]
    pub fn new(edge: u16, limits: ProposalLimits) -> Rc<Self> {
        Rc::new(Self { edge, limits, table: RefCell::default() })
    }

    /// The edge they are of.
    #[must_use]
    pub fn edge(&self) -> u16 {
        self.edge
    }

    /// Adds a command to the batch of this turn. A patient caller is never answered with a timeout.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when a bound is reached,
    /// [`Error::Stopped`] after [`Proposals::close`].
    pub fn submit(self: &Rc<Self>, kind: Kind, payload: Bytes, patient: bool) -> Result<Proposal, Error> {
        let class = SlotClass::of(kind);
        // Payloads of the other classes are small and few: their slots bound them.
        let bytes = if class == SlotClass::Calls { payload.len() } else { 0 };
        self.enter(class, bytes, patient, |batch, id| batch.commands.push(Command { id, kind, payload }))
    }

    /// Adds a request to this member alone. A patient caller is never answered with a timeout.
    ///
    /// # Errors
    /// As [`Proposals::submit`].
    pub fn submit_local(self: &Rc<Self>, kind: LocalKind, patient: bool) -> Result<Proposal, Error> {
        let class = SlotClass::of_local(kind);
        self.enter(class, 0, patient, |batch, id| {
            batch.local.push(LocalRequest { id, kind, from: None });
        })
    }

    /// Takes a slot for a request, and has it added to the batch.
    fn enter(
        self: &Rc<Self>,
        class: SlotClass,
        bytes: usize,
        patient: bool,
        add: impl FnOnce(&mut Submitted, CommandId),
    ) -> Result<Proposal, Error> {
        let mut table = self.table.borrow_mut();
        if table.closed {
            return Err(Error::Stopped);
        }
        if table.taken[class as usize] >= self.limits.slots(class)
            || table.inflight_bytes.saturating_add(bytes) > self.limits.inflight_bytes_max
        {
            return Err(Error::TooManyRequests);
        }
        table.generation = table.generation.wrapping_add(1);
        let id = CommandId::new(self.edge, table.waiters.vacant_key(), table.generation);
        let since = (!patient).then_some(table.sweeps);
        table.submitted += 1;
        let number = table.submitted;
        let caller = Caller::Waiting(None);
        table.waiters.insert(Waiter { id, class, bytes, number, settled: false, since, caller });
        table.taken[class as usize] += 1;
        table.inflight_bytes += bytes;
        add(&mut table.batch, id);
        if let Some(carrier) = table.carrier.take() {
            carrier.wake();
        }
        drop(table);
        Ok(Proposal { proposals: Rc::clone(self), id, is_wanted: false })
    }

    /// Waits until the batch holds something; false once closed. For the
    /// one loop that carries batches.
    pub async fn wait_for_batch(&self) -> bool {
        std::future::poll_fn(|context| {
            let mut table = self.table.borrow_mut();
            if !table.batch.is_empty() {
                return Poll::Ready(true);
            }
            if table.closed {
                return Poll::Ready(false);
            }
            table.carrier = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Everything submitted since the last call, in order.
    #[must_use]
    pub fn take_batch(&self) -> Submitted {
        let table = &mut *self.table.borrow_mut();
        let mut batch = std::mem::take(&mut table.batch);
        table.carried = table.submitted;
        batch.number = table.carried;
        if std::mem::take(&mut table.withdrawn) > 0 {
            batch.commands.retain(|command| !table.remove_if_withdrawn(command.id));
            batch.local.retain(|request| !table.remove_if_withdrawn(request.id));
        }
        batch
    }

    /// Ready when a keepalive that is submitted now finds a slot.
    fn poll_keepalive_slot(&self, place: &mut Option<u64>, context: &mut Context<'_>) -> Poll<()> {
        let table = &mut *self.table.borrow_mut();
        if table.closed || table.taken[SlotClass::Keepalives as usize] < self.limits.keepalives_max {
            if let Some(place) = place.take() {
                table.queue.remove(&place);
            }
            return Poll::Ready(());
        }
        let place = *place.get_or_insert_with(|| {
            table.queued += 1;
            table.queued
        });
        table.queue.insert(place, context.waker().clone());
        Poll::Pending
    }

    /// Whether some keepalive that has arrived here may not have been submitted.
    #[must_use]
    pub fn holds_keepalives_back(&self) -> bool {
        self.table.borrow().held_back > 0
    }

    /// Hands an outcome to its caller, if that one still waits.
    pub fn resolve(&self, id: CommandId, outcome: Outcome) {
        self.finish(id, Ok(outcome));
    }

    fn finish(&self, id: CommandId, result: Result<Outcome, Error>) {
        let table = &mut *self.table.borrow_mut();
        let Some(waiter) = table.waiters.get_mut(id.slot()).filter(|waiter| waiter.id == id) else {
            return;
        };
        if std::mem::replace(&mut waiter.settled, true) {
            return;
        }
        table.inflight_bytes -= waiter.bytes;
        match &mut waiter.caller {
            Caller::Waiting(waker) => {
                let waker = waker.take();
                waiter.caller = Caller::Done(result);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Caller::Abandoned | Caller::Withdrawn => table.remove(id.slot()),
            Caller::Done(_) => {} // timed out before: the caller has its answer
        }
    }

    /// Called at a steady pace: callers that have waited for `sweeps_max` calls get
    /// [`Error::Timeout`]. Their commands may still be applied, as with any timed-out write.
    pub fn sweep(&self, sweeps_max: u64) {
        let table = &mut *self.table.borrow_mut();
        table.sweeps += 1;
        let now = table.sweeps;
        for (_, waiter) in &mut table.waiters {
            if waiter.since.is_none_or(|since| now - since <= sweeps_max) {
                continue;
            }
            if let Caller::Waiting(waker) = &mut waiter.caller {
                let waker = waker.take();
                waiter.caller = Caller::Done(Err(Error::Timeout));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// Commands without an outcome.
    #[must_use]
    pub fn inflight(&self) -> usize {
        self.table.borrow().waiters.len()
    }

    /// Refuses everything from now on; callers that wait get [`Error::Stopped`].
    pub fn close(&self) {
        let table = &mut *self.table.borrow_mut();
        table.closed = true;
        for (_, waiter) in &mut table.waiters {
            if let Caller::Waiting(waker) = &mut waiter.caller {
                let waker = waker.take();
                waiter.caller = Caller::Done(Err(Error::Stopped));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        if let Some(carrier) = table.carrier.take() {
            carrier.wake();
        }
        std::mem::take(&mut table.queue).into_values().for_each(Waker::wake);
    }
}

impl PendingTable {
    /// Whether the caller is gone, and the request with it; its slot is free then.
    fn remove_if_withdrawn(&mut self, id: CommandId) -> bool {
        let slot = id.slot();
        let Some(waiter) = self.waiters.get(slot) else { return false };
        let is_withdrawn = matches!(waiter.caller, Caller::Withdrawn);
        if is_withdrawn {
            self.inflight_bytes -= waiter.bytes;
            self.remove(slot);
        }
        is_withdrawn
    }

    /// Frees a slot; one for keepalives goes to the stream that has waited longest.
    fn remove(&mut self, slot: usize) {
        let waiter = self.waiters.remove(slot);
        self.taken[waiter.class as usize] -= 1;
        if waiter.class == SlotClass::Keepalives
            && let Some((_, stream)) = self.queue.pop_first()
        {
            stream.wake();
        }
    }
}

/// A keepalive stream's place in the queue for slots, and whether it holds requests back.
#[derive(Debug)]
pub struct KeepaliveStream {
    proposals: Rc<Proposals>,
    place: Option<u64>,
    holds_back: bool,
}

impl KeepaliveStream {
    /// A stream that waits for nothing.
    #[must_use]
    pub fn new(proposals: &Rc<Proposals>) -> Self {
        Self { proposals: Rc::clone(proposals), place: None, holds_back: false }
    }

    /// Ready when a keepalive that is submitted now finds a slot.
    pub fn poll_slot(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.proposals.poll_keepalive_slot(&mut self.place, context)
    }

    /// The stream does, or does not, leave requests where they are for now.
    pub fn hold_back(&mut self, holds_back: bool) {
        if self.holds_back != holds_back {
            self.holds_back = holds_back;
            let held_back = &mut self.proposals.table.borrow_mut().held_back;
            *held_back = if holds_back { *held_back + 1 } else { *held_back - 1 };
        }
    }
}

impl Drop for KeepaliveStream {
    fn drop(&mut self) {
        self.hold_back(false);
        let table = &mut *self.proposals.table.borrow_mut();
        // If its turn had come, it is the next one's.
        if let Some(place) = self.place
            && table.queue.remove(&place).is_none()
            && let Some((_, stream)) = table.queue.pop_first()
        {
            stream.wake();
        }
    }
}

/// A submitted request; resolves to its outcome. Dropping it forgets the outcome, and the
/// request if that is still here.
#[derive(Debug)]
#[must_use = "a proposal does nothing unless awaited"]
pub struct Proposal {
    proposals: Rc<Proposals>,
    id: CommandId,
    /// The request is carried out also if its caller goes away.
    is_wanted: bool,
}

impl Proposal {
    /// Has the request carried out without a caller that waits.
    pub fn detach(self) {
        drop(self.kept());
    }

    /// Has the request carried out also if its caller goes away.
    pub fn kept(mut self) -> Self {
        self.is_wanted = true;
        self
    }
}

impl Future for Proposal {
    type Output = Result<Outcome, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let table = &mut *self.proposals.table.borrow_mut();
        let waiter = &mut table.waiters[self.id.slot()];
        assert!(waiter.id == self.id, "a slot was reused while its caller waits");
        match &mut waiter.caller {
            Caller::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Caller::Done(result) => Poll::Ready(result.clone()),
            Caller::Abandoned | Caller::Withdrawn => unreachable!("only a dropped proposal is abandoned"),
        }
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        let table = &mut *self.proposals.table.borrow_mut();
        let slot = self.id.slot();
        let waiter = &mut table.waiters[slot];
        if waiter.settled || table.closed {
            table.remove(slot);
        } else if waiter.number > table.carried && !self.is_wanted {
            waiter.caller = Caller::Withdrawn;
            table.withdrawn += 1;
        } else {
            waiter.caller = Caller::Abandoned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use revd_member::apply::local::{DeadlineRequest, LeaseRequest};
    use revd_member::apply::outcome::Rest;

    const LIMITS: ProposalLimits = ProposalLimits {
        inflight_max: 2,
        inflight_bytes_max: 100,
        keepalives_max: 2,
        alarms_max: 1,
        chores_max: 1,
    };

    const KEEP_ALIVE: DeadlineRequest = DeadlineRequest::KeepAlive { lease: 7 };

    fn outcome(revision: i64) -> Outcome {
        Outcome { revision, result: Ok(Bytes::new()), rest: Rest::NONE }
    }

    fn put(proposals: &Rc<Proposals>, bytes: usize) -> Result<Proposal, Error> {
        proposals.submit(Kind::Put, Bytes::from(vec![0; bytes]), false)
    }

    #[test]
    fn outcomes_reach_their_callers_in_any_order() {
        let proposals = Proposals::new(1, LIMITS);
        let (first, second) = (put(&proposals, 1).unwrap(), put(&proposals, 1).unwrap());
        let batch = proposals.take_batch();
        proposals.resolve(batch.commands[1].id, outcome(2));
        proposals.resolve(batch.commands[0].id, outcome(1));
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
        for command in proposals.take_batch().commands {
            proposals.resolve(command.id, outcome(1));
        }
        drop((first, second));
        assert!(put(&proposals, 100).is_ok());
    }

    #[test]
    fn an_abandoned_slot_is_not_reused_before_its_outcome() {
        let proposals = Proposals::new(0, LIMITS);
        let first = put(&proposals, 1).unwrap();
        let second = put(&proposals, 1).unwrap();
        let batch = proposals.take_batch();
        drop(first);
        assert!(put(&proposals, 1).is_err(), "the abandoned command still counts");
        proposals.resolve(batch.commands[0].id, outcome(1));
        assert_eq!(block_on(poll_once(second)), None);
        assert!(put(&proposals, 1).is_ok());
    }

    /// A call whose deadline has passed, or that its client has cancelled, changes
    /// nothing if its command is still here.
    #[test]
    fn a_command_whose_caller_is_gone_does_not_leave_the_edge() {
        let proposals = Proposals::new(0, LIMITS);
        drop(put(&proposals, 60).unwrap());
        put(&proposals, 1).unwrap().detach();
        let batch = proposals.take_batch();
        assert_eq!(batch.commands.iter().map(|command| command.payload.len()).collect::<Vec<_>>(), [1]);
        assert_eq!(proposals.inflight(), 1);
        let third = put(&proposals, 99).unwrap();
        proposals.close();
        drop(third);
        assert_eq!(proposals.take_batch().commands.len(), 1, "after the end requests are sent as they are");
    }

    #[test]
    fn writes_take_no_slot_of_requests_that_must_not_wait() {
        let proposals = Proposals::new(0, LIMITS);
        let submit = |kind| proposals.submit(kind, Bytes::from_static(b"payload"), false);
        let ask = |kind: LocalKind| proposals.submit_local(kind, false);
        let writes = [submit(Kind::Put).unwrap(), submit(Kind::LeaseGrant).unwrap()];
        for kind in [Kind::Put, Kind::Txn, Kind::LeaseRevoke] {
            assert_eq!(submit(kind).unwrap_err(), Error::TooManyRequests, "{kind:?}");
        }
        for kind in [DeadlineRequest::List.into(), LeaseRequest::TimeToLive { lease: 7, keys: true }.into()] {
            assert_eq!(ask(kind).unwrap_err(), Error::TooManyRequests, "{kind:?}");
        }
        let keepalives = [ask(KEEP_ALIVE.into()).unwrap(), submit(Kind::LeaseCheckpoint).unwrap()];
        assert_eq!(ask(KEEP_ALIVE.into()).unwrap_err(), Error::TooManyRequests);
        let others = [submit(Kind::Alarm).unwrap(), ask(LeaseRequest::Expired.into()).unwrap()];
        assert_eq!(submit(Kind::Alarm).unwrap_err(), Error::TooManyRequests);
        let Submitted { commands, local, .. } = proposals.take_batch();
        let ids = commands.iter().map(|command| command.id).chain(local.iter().map(|request| request.id));
        ids.for_each(|id| proposals.resolve(id, outcome(1)));
        drop((writes, keepalives, others));
        assert!(submit(Kind::LeaseExpire).is_ok());
    }

    #[test]
    fn keepalive_streams_wait_for_slots_in_their_order() {
        let proposals = Proposals::new(0, LIMITS);
        let keep_alive = || proposals.submit_local(KEEP_ALIVE.into(), true);
        let mut under_way = vec![keep_alive().unwrap(), keep_alive().unwrap()];
        let mut streams: Vec<_> = (0..3).map(|_| KeepaliveStream::new(&proposals)).collect();
        let poll = |stream: &mut KeepaliveStream| {
            block_on(poll_once(std::future::poll_fn(|context| stream.poll_slot(context)))).is_some()
        };
        assert!(streams.iter_mut().all(|stream| !poll(stream)));
        streams[0].hold_back(true);
        streams[0].hold_back(true);
        assert!(proposals.holds_keepalives_back());
        let batch = proposals.take_batch();
        proposals.resolve(batch.local[0].id, outcome(1));
        drop(under_way.remove(0));
        let waiting =
            |proposals: &Proposals| proposals.table.borrow().queue.keys().copied().collect::<Vec<_>>();
        assert_eq!(waiting(&proposals), [2, 3], "the first was woken");
        // It goes away without taking the slot: the next one is woken.
        streams.remove(0);
        assert!(!proposals.holds_keepalives_back());
        assert_eq!(waiting(&proposals), [3]);
        assert!(poll(&mut streams[0]));
        under_way.push(keep_alive().unwrap());
        assert!(!poll(&mut streams[1]));
        proposals.close();
        assert!(poll(&mut streams[1]), "no stream waits after the end");
    }

    #[test]
    fn a_late_outcome_after_a_timeout_frees_the_slot_once() {
        let proposals = Proposals::new(0, LIMITS);
        let first = put(&proposals, 1).unwrap();
        let id = proposals.take_batch().commands[0].id;
        proposals.sweep(1);
        proposals.sweep(1);
        assert_eq!(block_on(first), Err(Error::Timeout));
        assert_eq!(proposals.inflight(), 1);
        proposals.resolve(id, outcome(1));
        proposals.resolve(id, outcome(1));
        assert_eq!(proposals.inflight(), 0);
        let second = put(&proposals, 1).unwrap();
        let id = proposals.take_batch().commands[0].id;
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
