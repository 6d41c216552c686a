//! The table of an edge's pending requests: their slots, and the batch of the turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use revd_member::apply::command::{CommandId, Kind};
use revd_member::apply::local::Submitted;
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;
use slab::Slab;

use crate::edge::change_line::ChangeLine;
use crate::edge::leader_history::LeaderHistory;
use crate::edge::pending::user_shares::{UserNumber, UserShares};
use crate::edge::reads::Reads;
use crate::edge::slots::SlotClass;
use crate::observe::counters::{Counters, ProposalCounters};

/// Edge view: the requests without an answer, by slot, and those that have not left.
#[derive(Debug, Default)]
pub(super) struct PendingTable {
    pub(super) waiters: Slab<Waiter>,
    /// How often each slot was taken.
    pub(super) generations: Vec<u32>,
    pub(super) batch: Submitted,
    pub(super) reads: Reads,
    pub(super) leaders: LeaderHistory,
    /// Submissions since the start, and how many of them have left with a batch.
    pub(super) submitted: u64,
    pub(super) carried: u64,
    /// Requests of the batch whose callers are gone.
    pub(super) withdrawn: usize,
    /// Slots taken of each class.
    pub(super) taken: [usize; SlotClass::COUNT],
    pub(super) inflight_bytes: usize,
    pub(super) users: UserShares,
    /// Keepalive streams that wait for a slot, in the order in which they came.
    pub(super) queue: BTreeMap<u64, Waker>,
    pub(super) queued: u64,
    /// Keepalive streams that may hold back requests: they wait for a slot, or for
    /// the answers of earlier requests.
    pub(super) held_back: usize,
    /// The loop that carries batches to the log core, while it has nothing to do.
    pub(super) carrier: Option<Waker>,
    /// Sweeps since the start.
    pub(super) sweeps: u64,
    pub(super) closed: bool,
    pub(super) numbers: Numbers,
}

/// The commands as operators see them.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Where it is published, and the edge that it is of.
    pub(super) counters: Option<(Arc<Counters>, u16)>,
    pending: u64,
}

impl Numbers {
    fn published(&self) -> Option<&ProposalCounters> {
        self.counters.as_ref().map(|(counters, edge)| counters.proposals_of(*edge))
    }

    fn begun(&mut self) {
        self.pending += 1;
        self.publish();
    }

    fn ended(&mut self) {
        self.pending -= 1;
        self.publish();
    }

    fn publish(&self) {
        if let Some(published) = self.published() {
            published.pending.set(self.pending);
        }
    }

    /// A caller was told that its command came to nothing, as far as this member knows.
    pub(super) fn failed(&self) {
        if let Some(published) = self.published() {
            published.failed.set(published.failed.get() + 1);
        }
    }
}

/// A request in its slot.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: CommandId,
    pub(super) class: SlotClass,
    pub(super) bytes: usize,
    /// In whose part it counts.
    pub(super) user: Option<UserNumber>,
    /// It goes through the log.
    pub(super) is_command: bool,
    /// That one changes the members.
    pub(super) changes_members: bool,
    /// The value of `PendingTable::submitted` after it.
    pub(super) number: u64,
    /// The outcome has arrived: nothing more will come for the slot.
    pub(super) settled: bool,
    /// The value of `PendingTable::sweeps` at submission; none for a patient caller.
    pub(super) since: Option<u64>,
    /// Tells of its end, also where the caller is gone.
    pub(super) line: Option<Box<ChangeLine>>,
    pub(super) caller: Caller,
}

/// The needs of a request.
pub(super) struct Entry {
    pub(super) class: SlotClass,
    /// Counted among those in flight.
    pub(super) bytes: usize,
    pub(super) user: Option<UserNumber>,
    pub(super) is_command: bool,
    pub(super) changes_members: bool,
    pub(super) patient: bool,
    /// Counted among its bytes.
    pub(super) line: Option<Box<ChangeLine>>,
}

impl Entry {
    /// Those of a command that takes so many bytes while it waits.
    pub(super) fn of_command(
        (class, user): (SlotClass, Option<UserNumber>),
        kind: Kind,
        bytes: usize,
        patient: bool,
    ) -> Self {
        let is_call = class == SlotClass::Calls;
        // Payloads of the other classes are small and few: their slots bound them.
        let (user, bytes) = (user.filter(|_| is_call), if is_call { bytes } else { 0 });
        let changes_members = kind.changes_members();
        Self { class, bytes, user, is_command: true, changes_members, patient, line: None }
    }
}

/// How it stands with the caller of a request.
#[derive(Debug)]
pub(super) enum Caller {
    Waiting(Option<Waker>),
    Done(Result<Outcome, Error>),
    /// The caller is gone; the slot waits for the outcome.
    Abandoned,
    /// The caller is gone, and the request leaves the batch before that is sent.
    Withdrawn,
}

impl Waiter {
    /// Tells the caller, if it waits.
    pub(super) fn answer(&mut self, result: impl FnOnce() -> Result<Outcome, Error>) {
        if let Caller::Waiting(waker) = &mut self.caller {
            let waker = waker.take();
            self.caller = Caller::Done(result());
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// The line for the end of the request; none of one that leaves with its caller, and is never
    /// made.
    pub(super) fn take_line(&mut self) -> Option<Box<ChangeLine>> {
        self.line.take().filter(|_| !matches!(self.caller, Caller::Withdrawn))
    }
}

impl PendingTable {
    /// The id of the next request: its slot, in a new generation.
    pub(super) fn next_id(&mut self, edge: u16) -> CommandId {
        let slot = self.waiters.vacant_key();
        if slot >= self.generations.len() {
            self.generations.resize(slot + 1, 0);
        }
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        CommandId::new(edge, slot, self.generations[slot])
    }

    /// Puts a request into its slot.
    pub(super) fn insert(&mut self, waiter: Waiter) {
        if waiter.is_command {
            self.numbers.begun();
        }
        if let Some(user) = waiter.user {
            self.users.take(user, waiter.bytes);
        }
        self.taken[waiter.class as usize] += 1;
        self.inflight_bytes += waiter.bytes;
        self.waiters.insert(waiter);
    }

    pub(super) fn call_carrier(&mut self) {
        if let Some(carrier) = self.carrier.take() {
            carrier.wake();
        }
    }

    /// Nothing more will come for a slot: it is free once its caller has its answer.
    pub(super) fn settle(&mut self, slot: usize, result: Result<Outcome, Error>) {
        let waiter = &mut self.waiters[slot];
        if std::mem::replace(&mut waiter.settled, true) {
            return;
        }
        if let Some(line) = waiter.take_line() {
            line.end(&result);
        }
        self.inflight_bytes -= waiter.bytes;
        if waiter.is_command {
            self.numbers.ended();
        }
        match &waiter.caller {
            Caller::Waiting(_) => {
                if waiter.is_command && result.is_err() {
                    self.numbers.failed();
                }
                waiter.answer(|| result);
            }
            Caller::Abandoned | Caller::Withdrawn => self.remove(slot),
            Caller::Done(_) => {} // timed out before: the caller has its answer
        }
    }

    /// Whether the caller is gone, and the request with it; its slot is free then.
    pub(super) fn remove_if_withdrawn(&mut self, id: CommandId) -> bool {
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
    pub(super) fn remove(&mut self, slot: usize) {
        let waiter = self.waiters.remove(slot);
        if waiter.is_command && !waiter.settled {
            self.numbers.ended();
        }
        if let Some(user) = waiter.user {
            self.users.give(user, waiter.bytes);
        }
        self.taken[waiter.class as usize] -= 1;
        if waiter.class == SlotClass::Keepalives
            && let Some((_, stream)) = self.queue.pop_first()
        {
            stream.wake();
        }
    }
}
