//! An edge's open proposals: what it has asked the log for and who waits for the outcome.
//!
//! Owned by one edge core. Requests of one loop turn gather in a batch that the edge's loop hands to the log
//! core as one message; outcomes come back as one message and wake their callers. A caller that goes away
//! (cancelled call) leaves its slot until the outcome arrives, so that a slot is never reused for a command that
//! is still in the log; a command that has not left the edge by then never does.
//!
//! Commands take up slots of the `Room` of their kind, so that writes never take those of what must not wait.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;
use slab::Slab;

use crate::limits::ProposalLimits;

/// Whose slots a command takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// What clients ask for, in slots and bytes.
    Calls,
    /// Keepalives, and the notes that some of them need first. Who finds no room here waits for it.
    Keepalives,
    Alarms,
    /// What a member does by itself, a few at a time: nothing a client does gets here.
    Chores,
}

impl Room {
    const COUNT: usize = 4;

    fn of(kind: Kind) -> Self {
        match kind {
            Kind::LeaseKeepAlive | Kind::LeaseNote => Self::Keepalives,
            Kind::Alarm => Self::Alarms,
            Kind::LeaseExpire
            | Kind::LeaseDue
            | Kind::LeaseHeard
            | Kind::LeaseLeft
            | Kind::MemberAttributes
            | Kind::ClusterVersion => Self::Chores,
            _ => Self::Calls,
        }
    }
}

impl ProposalLimits {
    fn slots(self, room: Room) -> usize {
        match room {
            Room::Calls => self.inflight_max,
            Room::Keepalives => self.keepalives_max,
            Room::Alarms => self.alarms_max,
            Room::Chores => self.chores_max,
        }
    }
}

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
    /// Submissions since the start, and how many of them have left with a batch.
    submitted: u64,
    carried: u64,
    /// Commands of the batch whose callers are gone.
    withdrawn: usize,
    /// Slots taken in each room.
    taken: [usize; Room::COUNT],
    inflight_bytes: usize,
    /// Keepalive streams that wait for a slot, in the order in which they came.
    queue: BTreeMap<u64, Waker>,
    queued: u64,
    /// Keepalive streams that may hold back requests: they wait for a slot, or for the answers of earlier requests.
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
    room: Room,
    bytes: usize,
    /// The value of `State::submitted` after it.
    number: u64,
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
    /// The caller is gone and the command still in the batch, which it leaves.
    Withdrawn,
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
        let room = Room::of(kind);
        // Of what is not a call there is so little that only its slots count.
        let bytes = if room == Room::Calls { payload.len() } else { 0 };
        if state.taken[room as usize] >= self.limits.slots(room)
            || state.inflight_bytes.saturating_add(bytes) > self.limits.inflight_bytes_max
        {
            return Err(Error::TooManyRequests);
        }
        state.generation = state.generation.wrapping_add(1);
        let id = CommandId::new(self.edge, state.waiters.vacant_key(), state.generation);
        let since = (!patient).then_some(state.sweeps);
        state.submitted += 1;
        let number = state.submitted;
        let phase = Phase::Waiting(None);
        state.waiters.insert(Waiter { id, room, bytes, number, settled: false, since, phase });
        state.taken[room as usize] += 1;
        state.inflight_bytes += bytes;
        state.batch.push(Command { id, kind, payload });
        if let Some(carrier) = state.carrier.take() {
            carrier.wake();
        }
        drop(state);
        Ok(Proposal { proposals: Rc::clone(self), id, is_wanted: false })
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
        let state = &mut *self.state.borrow_mut();
        let mut batch = std::mem::take(&mut state.batch);
        state.carried = state.submitted;
        if std::mem::take(&mut state.withdrawn) > 0 {
            batch.retain(|command| {
                let slot = command.id.slot();
                let Some(waiter) = state.waiters.get(slot) else { return true };
                let is_withdrawn = matches!(waiter.phase, Phase::Withdrawn);
                if is_withdrawn {
                    state.inflight_bytes -= waiter.bytes;
                    state.remove(slot);
                }
                !is_withdrawn
            });
        }
        batch
    }

    /// Ready when a keepalive that is submitted now finds a slot.
    fn poll_keepalive_slot(&self, place: &mut Option<u64>, context: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.state.borrow_mut();
        if state.closed || state.taken[Room::Keepalives as usize] < self.limits.keepalives_max {
            if let Some(place) = place.take() {
                state.queue.remove(&place);
            }
            return Poll::Ready(());
        }
        let place = *place.get_or_insert_with(|| {
            state.queued += 1;
            state.queued
        });
        state.queue.insert(place, context.waker().clone());
        Poll::Pending
    }

    /// Whether some keepalive that has arrived here may not have been submitted.
    #[must_use]
    pub fn holds_keepalives_back(&self) -> bool {
        self.state.borrow().held_back > 0
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
            Phase::Abandoned | Phase::Withdrawn => state.remove(id.slot()),
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
        std::mem::take(&mut state.queue).into_values().for_each(Waker::wake);
    }
}

impl State {
    /// Frees a slot, for the stream that has waited longest for one of its room.
    fn remove(&mut self, slot: usize) {
        let waiter = self.waiters.remove(slot);
        self.taken[waiter.room as usize] -= 1;
        if waiter.room == Room::Keepalives
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
            let held_back = &mut self.proposals.state.borrow_mut().held_back;
            *held_back = if holds_back { *held_back + 1 } else { *held_back - 1 };
        }
    }
}

impl Drop for KeepaliveStream {
    fn drop(&mut self) {
        self.hold_back(false);
        let state = &mut *self.proposals.state.borrow_mut();
        // If its turn had come, it is the next one's.
        if let Some(place) = self.place
            && state.queue.remove(&place).is_none()
            && let Some((_, stream)) = state.queue.pop_first()
        {
            stream.wake();
        }
    }
}

/// A submitted command; resolves to its outcome. Dropping it forgets the outcome, and the command if that is still here.
#[derive(Debug)]
#[must_use = "a proposal does nothing unless awaited"]
pub struct Proposal {
    proposals: Rc<Proposals>,
    id: CommandId,
    /// The command is carried out whoever waits.
    is_wanted: bool,
}

impl Proposal {
    /// Lets the command be carried out, and nobody wait for it.
    pub fn detach(self) {
        drop(self.kept());
    }

    /// Has the command carried out also if nobody waits for it any more.
    pub fn kept(mut self) -> Self {
        self.is_wanted = true;
        self
    }
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
            Phase::Abandoned | Phase::Withdrawn => unreachable!("only a dropped proposal is abandoned"),
        }
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        let state = &mut *self.proposals.state.borrow_mut();
        let slot = self.id.slot();
        let waiter = &mut state.waiters[slot];
        if waiter.settled || state.closed {
            state.remove(slot);
        } else if waiter.number > state.carried && !self.is_wanted {
            waiter.phase = Phase::Withdrawn;
            state.withdrawn += 1;
        } else {
            waiter.phase = Phase::Abandoned;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use revd_member::apply::outcome::Rest;

    const LIMITS: ProposalLimits = ProposalLimits {
        inflight_max: 2,
        inflight_bytes_max: 100,
        keepalives_max: 2,
        alarms_max: 1,
        chores_max: 1,
    };

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
        let first = put(&proposals, 1).unwrap();
        let second = put(&proposals, 1).unwrap();
        let batch = proposals.take_batch();
        drop(first);
        assert!(put(&proposals, 1).is_err(), "the abandoned command still counts");
        proposals.resolve(batch[0].id, outcome(1));
        assert_eq!(block_on(poll_once(second)), None);
        assert!(put(&proposals, 1).is_ok());
    }

    /// A call that has ended, because its time was over or its client gave it up, changes nothing if it can be helped.
    #[test]
    fn a_command_whose_caller_is_gone_does_not_leave_the_edge() {
        let proposals = Proposals::new(0, LIMITS);
        drop(put(&proposals, 60).unwrap());
        put(&proposals, 1).unwrap().detach();
        let batch = proposals.take_batch();
        assert_eq!(batch.iter().map(|command| command.payload.len()).collect::<Vec<_>>(), [1]);
        assert_eq!(proposals.inflight(), 1);
        let third = put(&proposals, 99).unwrap();
        proposals.close();
        drop(third);
        assert_eq!(proposals.take_batch().len(), 1, "after the end nobody is told apart");
    }

    #[test]
    fn writes_take_no_slot_of_what_must_not_wait() {
        let proposals = Proposals::new(0, LIMITS);
        let submit = |kind| proposals.submit(kind, Bytes::from_static(b"payload"), false);
        let writes = [submit(Kind::Put).unwrap(), submit(Kind::LeaseGrant).unwrap()];
        for kind in [Kind::Put, Kind::Txn, Kind::LeaseRevoke, Kind::LeaseLeases, Kind::LeaseTimeToLive] {
            assert_eq!(submit(kind).unwrap_err(), Error::TooManyRequests, "{kind:?}");
        }
        let keepalives = [submit(Kind::LeaseKeepAlive).unwrap(), submit(Kind::LeaseKeepAlive).unwrap()];
        assert_eq!(submit(Kind::LeaseKeepAlive).unwrap_err(), Error::TooManyRequests);
        let others = [submit(Kind::Alarm).unwrap(), submit(Kind::LeaseDue).unwrap()];
        assert_eq!(submit(Kind::Alarm).unwrap_err(), Error::TooManyRequests);
        for command in proposals.take_batch() {
            proposals.resolve(command.id, outcome(1));
        }
        drop((writes, keepalives, others));
        assert!(submit(Kind::LeaseExpire).is_ok());
    }

    #[test]
    fn keepalive_streams_wait_for_slots_in_their_order() {
        let proposals = Proposals::new(0, LIMITS);
        let keep_alive = || proposals.submit(Kind::LeaseKeepAlive, Bytes::new(), true);
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
        proposals.resolve(batch[0].id, outcome(1));
        drop(under_way.remove(0));
        let waiting =
            |proposals: &Proposals| proposals.state.borrow().queue.keys().copied().collect::<Vec<_>>();
        assert_eq!(waiting(&proposals), [2, 3], "the first was woken");
        // It goes away without taking the slot: the next one is woken.
        streams.remove(0);
        assert!(!proposals.holds_keepalives_back());
        assert_eq!(waiting(&proposals), [3]);
        assert!(poll(&mut streams[0]));
        under_way.push(keep_alive().unwrap());
        assert!(!poll(&mut streams[1]));
        proposals.close();
        assert!(poll(&mut streams[1]), "nobody waits after the end");
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
