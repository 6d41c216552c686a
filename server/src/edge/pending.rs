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
//!
//! A command whose outcome will not come, as far as the log core knows, is lost: its caller gets
//! the cause, and its slot is free. An outcome that comes all the same names an earlier generation
//! of the slot, and is ignored.

pub mod keepalive_stream;
mod table;
pub mod user_shares;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::local::{LocalKind, LocalRequest, Submitted};
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;

use crate::edge::change_line::{self, ChangeLine};
use crate::edge::pending::table::{Caller, Entry, PendingTable, Waiter};
use crate::edge::pending::user_shares::{Part, UserNumber};
use crate::edge::reads::WaitingRead;
use crate::edge::slots::SlotClass;
use crate::limits::{ProposalLimits, RequestSweeps};
use crate::observe::counters::Counters;

/// Edge view: the proposals of one edge core.
#[derive(Debug)]
pub struct Proposals {
    edge: u16,
    limits: ProposalLimits,
    table: RefCell<PendingTable>,
}

impl Proposals {
    /// No proposals yet.
    #[must_use]
    pub fn new(edge: u16, limits: ProposalLimits) -> Rc<Self> {
        Rc::new(Self { edge, limits, table: RefCell::default() })
    }

    /// Has their numbers published from now on.
    pub fn count_in(&self, counters: &Arc<Counters>) {
        self.table.borrow_mut().numbers.counters = Some((Arc::clone(counters), self.edge));
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
        self.submit_as((SlotClass::of(kind), None), kind, payload, patient)
    }

    /// The same on a slot of this class, where the kind does not tell, and in the part of a user.
    ///
    /// # Errors
    /// As [`Proposals::submit`].
    pub fn submit_as(
        self: &Rc<Self>,
        of: (SlotClass, Option<UserNumber>),
        kind: Kind,
        payload: Bytes,
        patient: bool,
    ) -> Result<Proposal, Error> {
        let entry = Entry::of_command(of, kind, payload.len(), patient);
        self.enter(entry, |batch, id| batch.commands.push(Command { id, kind, payload }))
    }

    /// The same of a change whose end is told by a line, whether or not its caller waits for it.
    /// The line waits as long as the change, and counts like the change's own bytes.
    ///
    /// # Errors
    /// As [`Proposals::submit`].
    pub fn submit_told(
        self: &Rc<Self>,
        of: (SlotClass, Option<UserNumber>),
        kind: Kind,
        payload: Bytes,
        line: ChangeLine,
    ) -> Result<Proposal, Error> {
        let mut entry = Entry::of_command(of, kind, payload.len() + ChangeLine::BYTES, false);
        entry.line = Some(Box::new(line));
        self.enter(entry, |batch, id| batch.commands.push(Command { id, kind, payload }))
    }

    /// Adds a request to this member alone, in the part of a user; what an operator asks for counts
    /// in none, or applications in root's name could keep it out. A patient caller is never
    /// answered with a timeout.
    ///
    /// # Errors
    /// As [`Proposals::submit`].
    pub fn submit_local(
        self: &Rc<Self>,
        user: Option<UserNumber>,
        kind: LocalKind,
        patient: bool,
    ) -> Result<Proposal, Error> {
        let class = SlotClass::of_local(&kind);
        let is_operators =
            matches!(kind, LocalKind::Defragment | LocalKind::MoveLeader { .. } | LocalKind::MayChange(_));
        let user = user.filter(|_| class == SlotClass::Calls && !is_operators);
        let (is_command, changes_members, line) = (false, false, None);
        let entry = Entry { class, bytes: 0, user, is_command, changes_members, patient, line };
        self.enter(entry, |batch, id| batch.local.push(LocalRequest { id, kind, from: None }))
    }

    /// Takes a slot for a request, and has it added to the batch. But for calls, nothing counts but
    /// slots: whoever waits for one is called when one is free, and would be called without an end
    /// if there were no room all the same.
    fn enter(
        self: &Rc<Self>,
        entry: Entry,
        add: impl FnOnce(&mut Submitted, CommandId),
    ) -> Result<Proposal, Error> {
        let Entry { class, bytes, user, is_command, changes_members, patient, line } = entry;
        let mut table = self.table.borrow_mut();
        if table.closed {
            return Err(Error::Stopped);
        }
        let free = Part {
            slots: self.limits.slots(class) - table.taken[class as usize],
            bytes: self.limits.inflight_bytes_max - table.inflight_bytes,
        };
        if free.slots == 0 || class == SlotClass::Calls && bytes > free.bytes {
            return Err(Error::TooManyRequests);
        }
        if user.is_some_and(|user| !table.users.fits(user, bytes, free)) {
            return Err(Error::TooManyRequests);
        }
        let id = table.next_id(self.edge);
        let since = (!patient).then_some(table.sweeps);
        table.submitted += 1;
        let number = table.submitted;
        let caller = Caller::Waiting(None);
        table.insert(Waiter {
            id,
            class,
            bytes,
            user,
            is_command,
            changes_members,
            number,
            settled: false,
            since,
            line,
            caller,
        });
        add(&mut table.batch, id);
        table.call_carrier();
        drop(table);
        Ok(Proposal { proposals: Rc::clone(self), id, is_wanted: false })
    }

    /// Adds a linearizable read to those of this turn; see `reads.rs`.
    ///
    /// # Errors
    /// As [`Proposals::submit`].
    pub fn read(&self) -> Result<WaitingRead, Error> {
        let table = &mut *self.table.borrow_mut();
        if table.closed {
            return Err(Error::Stopped);
        }
        let read = table.reads.begin(self.limits.reads_max)?;
        table.call_carrier();
        Ok(read)
    }

    /// Reads up to this ticket may be served from the newest View, or are refused.
    pub fn end_reads(&self, ticket: u64, result: &Result<(), Error>) {
        self.table.borrow_mut().reads.end(ticket, result);
    }

    /// Waits until the batch holds something; false once closed. For the
    /// one loop that carries batches.
    pub async fn wait_for_batch(&self) -> bool {
        std::future::poll_fn(|context| {
            let mut table = self.table.borrow_mut();
            if !table.batch.is_empty() || table.reads.is_gathering() {
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
        (batch.number, batch.read) = (table.carried, table.reads.take_ticket(table.sweeps));
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
        if table.waiters.get(id.slot()).is_some_and(|waiter| waiter.id == id) {
            table.settle(id.slot(), result);
        }
    }

    /// Commands that were submitted up to this number and have no outcome will not get one, as far
    /// as this member knows. Some of them may still be applied, as with any timed-out write.
    /// Changes of members wait on a way of their own, and are answered one by one.
    pub fn lost(&self, number: u64, why: &Error) {
        let table = &mut *self.table.borrow_mut();
        let number = number.min(table.carried);
        let lost = |waiter: &Waiter| waiter.is_command && !waiter.changes_members && waiter.number <= number;
        let lost = table.waiters.iter().filter(|(_, waiter)| lost(waiter)).map(|(slot, _)| slot);
        let lost: Vec<usize> = lost.collect();
        change_line::lost(lost.iter().filter_map(|slot| table.waiters[*slot].take_line()), why);
        for slot in lost {
            table.settle(slot, Err(why.clone()));
        }
    }

    /// Called at a steady pace, with the id of the cluster's leader or 0: callers that have waited
    /// for so many calls are told that their time is over, and why it may be. Their commands
    /// may still be applied, as with any timed-out write.
    pub fn sweep(&self, leader: u64, limits: RequestSweeps) {
        let RequestSweeps { request_max, leader_lost } = limits;
        let table = &mut *self.table.borrow_mut();
        table.sweeps += 1;
        let PendingTable { sweeps, reads, leaders, waiters, numbers, .. } = table;
        leaders.look(*sweeps, leader);
        reads.sweep(*sweeps, request_max);
        for (_, waiter) in waiters {
            let Some(since) = waiter.since.filter(|since| *sweeps - since > request_max) else { continue };
            let is_command = waiter.is_command;
            waiter.answer(|| {
                if is_command {
                    numbers.failed();
                }
                Err(leaders.cause(since, is_command, leader_lost))
            });
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
        let lines = table.waiters.iter_mut().filter_map(|(_, waiter)| waiter.take_line());
        change_line::lost(lines, &Error::Stopped);
        for (_, waiter) in &mut table.waiters {
            waiter.answer(|| Err(Error::Stopped));
        }
        table.reads.close();
        table.call_carrier();
        std::mem::take(&mut table.queue).into_values().for_each(Waker::wake);
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
mod tests;
