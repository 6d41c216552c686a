//! The parts of a process that its cores share: queues between them, their paces, the clock, jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use revd_engine::mvcc::{SavedState, StoreBuilder, WrittenCheckpoint};
use revd_engine::transfer::StateStream;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::ReceivedState;
use revd_member::cluster::Identity;
use revd_member::cores::edge::Notification;
use revd_member::cores::effects::StateEvent;
use revd_member::cores::log_events::LogEvent;
use revd_member::cores::long::FinishedCommand;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;

use crate::disk::{Begun, Directory, Ticket};
use crate::network::ConnectionId;
use crate::outside::{Event, Outside, Part, Timer};
use crate::time::Micros;

/// How a process has ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Its member was removed.
    Removed,
    /// It was asked to stop.
    Stopped,
    /// Its disk has failed.
    DiskFailed(String),
    /// Something that must not happen.
    Failed(String),
}

/// An event of the log core, or of those beside it.
#[derive(Debug)]
pub(super) enum LogInput {
    Core(LogEvent),
    /// Send this state to that member, in the name of the leader of that term.
    Send(u64, u64, Option<SavedState>),
    WriteFailed(String),
}

/// An event of the state core, or the end of a helper's job.
#[derive(Debug)]
pub(super) enum StateInput {
    Core(StateEvent),
    Written(revd_engine::Result<Box<WrittenCheckpoint>>),
    Installed(Result<(), String>),
}

/// The result of a helper's job, until the job is over.
pub(super) enum JobEnd {
    Written(revd_engine::Result<Box<WrittenCheckpoint>>),
    Finished(Box<FinishedCommand>),
    Listed(Outcome),
    Installed(Result<(), String>),
    State(StateJob),
}

/// The ends of jobs on states.
pub(super) enum StateJob {
    /// None when a page is damaged.
    Read(ConnectionId, Option<Box<(StateStream, Vec<u8>)>>),
    Begun(ConnectionId, Result<Box<StoreBuilder>, String>),
    Added(ConnectionId, Result<Box<StoreBuilder>, String>),
    Finished(ConnectionId, Result<Box<ReceivedState>, String>),
}

/// The clock of a process: it begins with the process, goes at the pace of its machine, and never
/// goes back.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Micros,
    shown: Micros,
    /// Microseconds that it shows in a true second.
    rate: u64,
}

impl Clock {
    /// It begins now.
    #[must_use]
    pub fn new(now: Micros, rate: u64) -> Self {
        Self { began: now, shown: 0, rate }
    }

    /// Microseconds that it shows.
    #[must_use]
    pub fn at(&self, now: Micros) -> Micros {
        self.shown + (now - self.began) * self.rate / 1_000_000
    }

    /// The true time that passes until it shows so much more.
    #[must_use]
    pub fn until(&self, shown: Micros) -> Micros {
        shown * 1_000_000 / self.rate
    }

    /// It jumps forward.
    pub fn jump(&mut self, by: Micros) {
        self.shown += by;
    }
}

/// The event at the end of something that the disk does.
type EndEvent = fn(usize, u64, Ticket) -> Event;

/// The pace of a part.
#[derive(Debug, Default, Clone, Copy)]
struct Pace {
    is_planned: bool,
    /// It stands still until then.
    still_until: Micros,
    /// Each turn takes so much longer.
    slow: Micros,
}

/// The shared parts of a process.
pub(super) struct Common {
    pub(super) member: usize,
    pub(super) boot: u64,
    pub(super) identity: Identity,
    pub(super) status: MemberStatus,
    pub(super) views: ViewSlot,
    pub(super) clock: Clock,
    /// A step of raft's clock.
    pub(super) tick: Micros,
    pub(super) directory: Directory,
    pub(super) to_log: Vec<LogInput>,
    pub(super) to_state: Vec<StateInput>,
    pub(super) to_edge: Vec<Notification>,
    jobs: BTreeMap<Ticket, JobEnd>,
    /// Calls of the disk: how long each would take without trouble, and its end.
    under_way: BTreeMap<Ticket, (Micros, EndEvent)>,
    paces: [Pace; 3],
}

impl Common {
    pub(super) fn new(
        (member, boot): (usize, u64),
        identity: Identity,
        views: ViewSlot,
        (clock, tick): (Clock, Micros),
        directory: Directory,
    ) -> Self {
        Self {
            member,
            boot,
            identity,
            status: MemberStatus::default(),
            views,
            clock,
            tick,
            directory,
            to_log: Vec::new(),
            to_state: Vec::new(),
            to_edge: Vec::new(),
            jobs: BTreeMap::new(),
            under_way: BTreeMap::new(),
            paces: [Pace::default(); 3],
        }
    }

    /// Queues, jobs and paces, for a failure's message.
    pub(super) fn inside(&self) -> String {
        let queues = [self.to_log.len(), self.to_state.len(), self.to_edge.len()];
        format!("{queues:?}, {} jobs, {:?}", self.jobs.len(), self.paces)
    }

    /// The part has something to do.
    pub(super) fn wake(&mut self, part: Part, out: &mut Outside) {
        let pace = &mut self.paces[part as usize];
        if !std::mem::replace(&mut pace.is_planned, true) {
            let after = 5 + out.random.below(60) + pace.slow;
            let after = after.max(pace.still_until.saturating_sub(out.now()));
            out.agenda.plan(after, Event::Turn(self.member, self.boot, part));
        }
    }

    /// The part may take its turn; else it stands still, and comes again.
    pub(super) fn may_turn(&mut self, part: Part, out: &mut Outside) -> bool {
        if self.paces[part as usize].still_until > out.now() {
            self.begin_turn(part);
            self.wake(part, out);
            return false;
        }
        true
    }

    /// The part's core takes its turn: what comes from now on is for another one.
    pub(super) fn begin_turn(&mut self, part: Part) {
        self.paces[part as usize].is_planned = false;
    }

    /// The part stands still for so long.
    pub(super) fn stand_still(&mut self, part: Part, time: Micros, out: &Outside) {
        self.paces[part as usize].still_until = out.now() + time;
    }

    /// Each turn of a part takes so much longer.
    pub(super) fn slow(&mut self, part: Part, by: Micros) {
        self.paces[part as usize].slow = by;
    }

    pub(super) fn log_event(&mut self, event: LogEvent, out: &mut Outside) {
        self.to_log.push(LogInput::Core(event));
        self.wake(Part::Log, out);
    }

    pub(super) fn log_input(&mut self, input: LogInput, out: &mut Outside) {
        self.to_log.push(input);
        self.wake(Part::Log, out);
    }

    pub(super) fn state_input(&mut self, input: StateInput, out: &mut Outside) {
        self.to_state.push(input);
        self.wake(Part::State, out);
    }

    pub(super) fn notify(&mut self, notification: Notification, out: &mut Outside) {
        self.to_edge.push(notification);
        self.wake(Part::Edge, out);
    }

    /// A timer by the clock of the process.
    pub(super) fn timer(&self, after: Duration, timer: Timer, out: &mut Outside) {
        let shown = u64::try_from(after.as_micros()).expect("no timer is that long");
        let after = self.clock.until(shown);
        out.agenda.plan(after, Event::Timer(self.member, self.boot, timer));
    }

    /// A helper does this; its end is an event.
    pub(super) fn spawn(&mut self, job: impl FnOnce() -> JobEnd, out: &mut Outside) {
        let (end, mut begun) = self.directory.job(job);
        (begun.cost, begun.usual) = (begun.cost + 20, begun.usual + 20);
        self.jobs.insert(begun.ticket, end);
        self.plan_end(begun, Event::Job, out);
    }

    /// The job is over: its result.
    pub(super) fn take_job(&mut self, ticket: Ticket) -> Option<JobEnd> {
        let end = self.jobs.remove(&ticket)?;
        self.end(ticket);
        Some(end)
    }

    /// A checkpoint is being written.
    pub(super) fn writes_checkpoint(&self) -> bool {
        self.jobs.values().any(|job| matches!(job, JobEnd::Written(_)))
    }

    /// The calls on the disk that were begun end later.
    pub(super) fn plan_disk(&mut self, out: &mut Outside) {
        for begun in self.directory.take_begun() {
            self.plan_end(begun, Event::Disk, out);
        }
    }

    fn plan_end(&mut self, begun: Begun, event: EndEvent, out: &mut Outside) {
        let Begun { ticket, cost, usual } = begun;
        self.under_way.insert(ticket, (usual, event));
        out.agenda.plan(cost, event(self.member, self.boot, ticket));
    }

    /// The time of a call or job is over; false if it has ended before.
    pub(super) fn end(&mut self, ticket: Ticket) -> bool {
        let is_under_way = self.under_way.remove(&ticket).is_some();
        if is_under_way {
            self.directory.end(ticket);
        }
        is_under_way
    }

    /// The disk is no more slow: what is under way ends as soon as it would if it began now.
    pub(super) fn hurry(&self, out: &mut Outside) {
        for (ticket, (usual, event)) in &self.under_way {
            out.agenda.plan(*usual, event(self.member, self.boot, *ticket));
        }
    }
}
