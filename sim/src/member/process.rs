//! A process while it runs: which part takes an event.

use std::time::Duration;

use revd_engine::mvcc::View;
use revd_member::cluster::Identity;
use revd_member::cluster::membership::Membership;
use revd_member::cores::edge::EdgeEvent;
use revd_member::cores::effects::StateEvent;
use revd_member::cores::log_events::LogEvent;
use revd_member::schema;
use revd_proto::etcdserverpb::Member as MemberRow;

use crate::calls::{CallId, Request, StreamId};
use crate::disk::Ticket;
use crate::marks::Mark;
use crate::member::common::{Common, End, JobEnd, StateInput, StateJob};
use crate::member::edge::{EdgePart, LEASE_INTERVAL, SWEEP_INTERVAL, StreamRequest};
use crate::member::log::LogPart;
use crate::member::peers::PULSE_INTERVAL;
use crate::member::state::StatePart;
use crate::network::{Arrival, Side};
use crate::outside::{Outside, Part, Timer};
use crate::time::Micros;

/// Something for a task on the thread of the log core: it waits for the thread's next turn.
pub(super) enum ForLog {
    Arrival(Arrival),
    Timer(Timer),
    Job(StateJob),
    /// A call on the disk is over.
    Disk,
}

/// Something for a task on the thread of the edge: it waits for the thread's next turn.
pub(super) enum ForEdge {
    Call(CallId, Request),
    GiveUp(CallId),
    Open(StreamId),
    Stream(StreamId, StreamRequest),
    Timer(Timer),
}

/// A process that runs.
pub struct Process {
    pub(super) common: Common,
    pub(super) log: LogPart,
    pub(super) state: StatePart,
    pub(super) edge: EdgePart,
    pub(super) for_log: Vec<ForLog>,
    pub(super) for_edge: Vec<ForEdge>,
    pub(super) began: Micros,
    pub(super) is_stopping: bool,
}

impl Process {
    /// Which start of the member it is.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.common.boot
    }

    /// The member and its cluster.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.common.identity
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Micros {
        self.began
    }

    /// The members, as its newest View has them.
    #[must_use]
    pub fn membership(&self) -> Membership {
        schema::membership(self.common.views.load().tables())
    }

    /// The rows of all members, for one that joins; none if this one is not among them.
    #[must_use]
    pub fn rows(&self) -> Option<Vec<MemberRow>> {
        let rows: Vec<MemberRow> = schema::members(self.common.views.load().tables()).collect();
        rows.iter().any(|row| row.id == self.common.identity.member).then_some(rows)
    }

    /// Whether it leads, as its status says.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.common.status.leader.load() == self.common.identity.member
    }

    /// Leader, committed and applied index, as its status says.
    #[must_use]
    pub fn standing(&self) -> (u64, u64, u64) {
        let status = &self.common.status;
        (status.leader.load(), status.committed.load(), status.applied.load())
    }

    /// How it is inside, for a failure's message.
    #[must_use]
    pub fn inside(&self) -> String {
        format!(
            "term {}, waiting {}, {}, log over {}, writing {}, receiving a state {}, state over {}, backlog {}, {}",
            self.common.status.term.load(),
            self.common.inside(),
            self.log.writer.inside(),
            self.log.is_over,
            self.log.writer.is_writing(),
            self.log.states.is_receiving(),
            self.state.is_over,
            self.state.core.backlog(),
            self.log.peers.inside(),
        )
    }

    /// It lets clients in.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.edge.is_ready
    }

    /// The work under way, as far as a kill in it is of interest.
    #[must_use]
    pub fn under_way(&self) -> Vec<Mark> {
        let marks = [
            (self.log.writer.is_writing(), Mark::KilledInFrame),
            (self.common.writes_checkpoint(), Mark::KilledInCheckpoint),
            (self.log.states.is_receiving(), Mark::KilledReceiving),
        ];
        marks.into_iter().filter_map(|(is_so, mark)| is_so.then_some(mark)).collect()
    }

    /// The process is killed: the frame under way may be on the disk or not.
    pub fn leave(&mut self, out: &mut Outside) {
        out.truth.log(self.common.identity.member).leave_open(self.log.writer.take_frame());
    }

    /// The newest View, for those who compare members.
    #[must_use]
    pub fn view(&self) -> View {
        self.common.views.load()
    }

    /// The calls and streams that end with the process.
    #[must_use]
    pub fn open(&self) -> (Vec<CallId>, Vec<StreamId>) {
        let (mut calls, mut streams) = (self.edge.open_calls(), self.edge.open_streams());
        for input in &self.for_edge {
            match input {
                ForEdge::Call(call, _) => calls.push(*call),
                ForEdge::Open(stream) => streams.push(*stream),
                ForEdge::GiveUp(_) | ForEdge::Stream(..) | ForEdge::Timer(_) => {}
            }
        }
        (calls, streams)
    }

    /// A part stands still for a while.
    pub fn stand_still(&mut self, part: Part, time: Micros, out: &Outside) {
        self.common.stand_still(part, time, out);
    }

    /// Each turn of a part takes so much longer from now on.
    pub fn slow(&mut self, part: Part, by: Micros) {
        self.common.slow(part, by);
    }

    /// Its clock jumps forward.
    pub fn jump(&mut self, by: Micros) {
        self.common.clock.jump(by);
    }

    /// Its disk is no more slow.
    pub fn hurry(&self, out: &mut Outside) {
        self.common.hurry(out);
    }

    /// It is asked to stop; whether that is news to it.
    pub fn stop(&mut self, out: &mut Outside) -> bool {
        let is_news = self.edge.is_ready && !std::mem::replace(&mut self.is_stopping, true);
        if is_news {
            self.edge.event(EdgeEvent::Drained, &mut self.common, out);
        }
        is_news
    }

    /// A part takes its turn: the tasks on its thread, then its core.
    ///
    /// # Errors
    /// How the process has ended.
    pub fn turn(&mut self, part: Part, out: &mut Outside) -> Result<(), End> {
        if !self.common.may_turn(part, out) {
            return Ok(());
        }
        match part {
            Part::Log => {
                for input in std::mem::take(&mut self.for_log) {
                    self.log_task(input, out);
                }
            }
            Part::State => {}
            Part::Edge => {
                for input in std::mem::take(&mut self.for_edge) {
                    self.edge_task(input, out);
                }
            }
        }
        self.common.begin_turn(part);
        let Self { common, log, state, edge, .. } = self;
        match part {
            Part::Log => log.turn(common, out),
            Part::State => state.turn(edge.is_ready, common, out),
            Part::Edge => edge.turn(state.is_over, common, out),
        }
    }

    fn for_log(&mut self, input: ForLog, out: &mut Outside) {
        self.for_log.push(input);
        self.common.wake(Part::Log, out);
    }

    fn for_edge(&mut self, input: ForEdge, out: &mut Outside) {
        self.for_edge.push(input);
        self.common.wake(Part::Edge, out);
    }

    /// A time is over. A thread that stands still finds each of its times over once, as in
    /// production: the next one begins when it has seen this one.
    pub fn timer(&mut self, timer: Timer, out: &mut Outside) {
        match timer {
            Timer::Tick
            | Timer::Pulse
            | Timer::Dial(..)
            | Timer::Late(_)
            | Timer::Room
            | Timer::Resend(_) => self.for_log(ForLog::Timer(timer), out),
            Timer::Remind => self.common.state_input(StateInput::Core(StateEvent::CheckpointDue), out),
            Timer::Sweep
            | Timer::Leases
            | Timer::Progress
            | Timer::Overdue
            | Timer::Publish
            | Timer::Waited(_) => self.for_edge(ForEdge::Timer(timer), out),
        }
    }

    /// A call on the disk is over.
    pub fn disk(&mut self, ticket: Ticket, out: &mut Outside) {
        if self.common.end(ticket) {
            self.for_log(ForLog::Disk, out);
        }
    }

    /// A helper is done.
    pub fn job(&mut self, ticket: Ticket, out: &mut Outside) {
        let Some(end) = self.common.take_job(ticket) else { return };
        let input = match end {
            JobEnd::Written(written) => StateInput::Written(written),
            JobEnd::Finished(command) => StateInput::Core(StateEvent::Finished(*command)),
            JobEnd::Listed(outcome) => StateInput::Core(StateEvent::Listed(outcome)),
            JobEnd::Installed(renamed) => StateInput::Installed(renamed),
            JobEnd::State(job) => return self.for_log(ForLog::Job(job), out),
        };
        self.common.state_input(input, out);
    }

    /// Something arrives on a connection.
    pub fn arrive(&mut self, arrival: Arrival, out: &mut Outside) {
        self.for_log(ForLog::Arrival(arrival), out);
    }

    /// A client calls.
    pub(crate) fn call(&mut self, call: CallId, request: Request, out: &mut Outside) {
        self.for_edge(ForEdge::Call(call, request), out);
    }

    /// A client gives a call up.
    pub(crate) fn give_up(&mut self, call: CallId, out: &mut Outside) {
        self.for_edge(ForEdge::GiveUp(call), out);
    }

    /// A client opens a watch stream.
    pub(crate) fn open_stream(&mut self, id: StreamId, out: &mut Outside) {
        self.for_edge(ForEdge::Open(id), out);
    }

    /// A client has something for its stream, or takes no messages, or closes it.
    pub(crate) fn with_stream(&mut self, id: StreamId, request: StreamRequest, out: &mut Outside) {
        self.for_edge(ForEdge::Stream(id, request), out);
    }

    fn log_task(&mut self, input: ForLog, out: &mut Outside) {
        let Self { common, log, .. } = self;
        match input {
            ForLog::Arrival(arrival) => self.arrived(arrival, out),
            ForLog::Timer(timer) => self.log_timer(timer, out),
            ForLog::Job(job) => log.states.done(job, common, out),
            ForLog::Disk => log.writer.run(common, out),
        }
    }

    fn log_timer(&mut self, timer: Timer, out: &mut Outside) {
        let Self { common, log, .. } = self;
        match timer {
            Timer::Tick => {
                common.log_event(LogEvent::Tick, out);
                common.timer(Duration::from_micros(common.tick), Timer::Tick, out);
            }
            Timer::Pulse => {
                log.peers.pulse(common, out);
                log.states.pulse(common, out);
                common.timer(PULSE_INTERVAL, Timer::Pulse, out);
            }
            Timer::Dial(id, attempt) => log.peers.dial(id, attempt, common, out),
            Timer::Late(connection) => {
                log.peers.late(connection, common, out);
                log.states.late(connection, common, out);
            }
            Timer::Room => log.writer.try_again(common, out),
            Timer::Resend(to) => common.log_event(LogEvent::StateSent { to, is_there: false }, out),
            timer => unreachable!("{timer:?} is not of the log core's thread"),
        }
    }

    fn arrived(&mut self, arrival: Arrival, out: &mut Outside) {
        let Arrival { connection, at, bytes } = arrival;
        let (bytes, Self { common, log, .. }) = (bytes.as_deref(), self);
        if log.is_over {
            return;
        }
        match at {
            Side::Dialer => {
                let _ = log.peers.heard_back(connection, bytes, common, out)
                    || log.states.heard_back(connection, bytes, common, out);
            }
            Side::Listener => {
                if log.states.heard(connection, bytes, common, out) {
                    return;
                }
                if let Some((from, rest)) = log.peers.heard(connection, bytes, common, out) {
                    log.states.accept(connection, from, &rest, common, out);
                }
            }
        }
    }

    fn edge_task(&mut self, input: ForEdge, out: &mut Outside) {
        let Self { common, edge, .. } = self;
        match input {
            ForEdge::Call(call, request) => edge.call(call, request, common, out),
            ForEdge::GiveUp(call) => edge.give_up(call),
            ForEdge::Open(stream) => edge.open_stream(stream),
            ForEdge::Stream(stream, request) => edge.with_stream(stream, request, common, out),
            ForEdge::Timer(timer) => self.edge_timer(timer, out),
        }
    }

    fn edge_timer(&mut self, timer: Timer, out: &mut Outside) {
        let Self { common, edge, .. } = self;
        match timer {
            Timer::Sweep => {
                edge.sweep(common, out);
                common.timer(SWEEP_INTERVAL, Timer::Sweep, out);
            }
            Timer::Leases => {
                edge.look_for_expired(common, out);
                common.timer(LEASE_INTERVAL, Timer::Leases, out);
            }
            Timer::Progress => {
                edge.tick_hub(common, out);
                common.timer(Duration::from_secs(2), Timer::Progress, out);
            }
            Timer::Overdue => edge.event(EdgeEvent::Overdue, common, out),
            Timer::Publish => edge.publish_again(common, out),
            Timer::Waited(question) => edge.event(EdgeEvent::Waited(question), common, out),
            timer => unreachable!("{timer:?} is not of the edge's thread"),
        }
    }
}
