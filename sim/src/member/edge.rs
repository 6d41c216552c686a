//! The edge: the shipped edge core and watch hub, the calls of clients, and the member's duties,
//! as `server/src/{cores/edge.rs,edge/,duties/}` have them in production. Of `edge/pending.rs` only
//! the rules are here: its table is of the server.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::lease_reports::{ExpiredLeases, LOOK_AGAIN};
use revd_member::apply::local::{Heard, LeaseRequest, LocalKind, LocalRequest, Submitted};
use revd_member::apply::outcome::Outcome;
use revd_member::budget::Share;
use revd_member::cores::edge::{EdgeCore, EdgeEffects, EdgeEvent};
use revd_member::cores::log_events::LogEvent;
use revd_member::error::Error;
use revd_member::limits;
use revd_member::read::range;
use revd_member::watch::{Content, Hub, HubLimits, StreamId as HubStream};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{Member as MemberRow, RangeRequest, RangeResponse};

use crate::calls::{CallId, Reply, Request, StreamId, WatchMessage};
use crate::marks::Mark;
use crate::member::common::{Common, End};
use crate::outside::{Event, Outside, Part, Timer};
use crate::time::{Micros, SECOND, election_time};

const PUBLICATION_INTERVAL: Duration = Duration::from_millis(200);
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const LEASE_INTERVAL: Duration = Duration::from_millis(250);
/// A call may wait so long and two times of an election, by the process's clock.
const CALL_TIME_MAX: Micros = 5 * SECOND;

/// The caller of a command or a local request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    Client(CallId),
    Publication,
    Expired,
    Expiry,
    /// No answer is waited for.
    None,
}

#[derive(Debug)]
struct Waiting {
    caller: Caller,
    /// The number of the request among those of this edge, if the log has it.
    number: u64,
    is_command: bool,
    since: Micros,
}

/// A range that waits for its ticket.
#[derive(Debug)]
struct WaitingRead {
    call: CallId,
    ticket: u64,
    request: RangeRequest,
    since: Micros,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    hub: HubStream,
    requests: VecDeque<RequestUnion>,
    is_stalled: bool,
    /// When its newest message arrives: messages of a stream stay in order.
    arrives: Micros,
}

/// The edge.
pub(super) struct EdgePart {
    pub(super) core: EdgeCore,
    name: String,
    pub(super) is_ready: bool,
    waiting: BTreeMap<CommandId, Waiting>,
    reads: Vec<WaitingRead>,
    /// Requests of the turn that gathers.
    batch: Submitted,
    has_read: bool,
    slots: usize,
    submitted: u64,
    tickets: u64,
    hub: Hub,
    streams: Vec<Stream>,
    share: Share,
    is_looking_for_expired: bool,
    is_closed: bool,
    arrivals: u64,
    events: Vec<EdgeEvent>,
    progress: u64,
    /// A page that watchers needed is damaged.
    damage: Option<revd_engine::Error>,
}

impl EdgePart {
    pub(super) fn new(member: usize, step_work: usize) -> Self {
        Self {
            core: EdgeCore::new(true),
            name: format!("m{member}"),
            is_ready: false,
            waiting: BTreeMap::new(),
            reads: Vec::new(),
            batch: Submitted::default(),
            has_read: false,
            slots: 0,
            submitted: 0,
            tickets: 0,
            hub: Hub::new(HubLimits { fragment_bytes: 1 << 20, step_work }),
            streams: Vec::new(),
            share: Share::new(usize::MAX),
            is_looking_for_expired: false,
            is_closed: false,
            arrivals: 0,
            events: Vec::new(),
            progress: 0,
            damage: None,
        }
    }

    fn enter(&mut self, caller: Caller, is_command: bool, now: Micros) -> CommandId {
        let id = CommandId::new(0, self.slots, 0);
        self.slots += 1;
        self.submitted += 1;
        self.waiting.insert(id, Waiting { caller, number: self.submitted, is_command, since: now });
        id
    }

    fn command(&mut self, caller: Caller, kind: Kind, payload: Bytes, now: Micros) {
        if self.is_closed {
            return;
        }
        let id = self.enter(caller, true, now);
        self.batch.commands.push(Command { id, kind, payload });
    }

    fn local(&mut self, caller: Caller, kind: LocalKind, now: Micros) {
        if self.is_closed {
            return;
        }
        let id = self.enter(caller, false, now);
        self.batch.local.push(LocalRequest { id, kind, from: None });
    }

    fn publish(&mut self, id: u64, now: Micros) {
        let client_ur_ls = vec![format!("http://{}:2379", self.name)];
        let row = MemberRow { id, name: self.name.clone(), client_ur_ls, ..MemberRow::default() };
        self.command(Caller::Publication, Kind::MemberAttributes, row.encode_to_vec().into(), now);
    }

    /// The watch streams whose client's process is gone with this one's.
    pub(super) fn open_streams(&self) -> Vec<StreamId> {
        self.streams.iter().map(|stream| stream.id).collect()
    }

    /// The calls that are not answered.
    pub(super) fn open_calls(&self) -> Vec<CallId> {
        let waiting = self.waiting.values().filter_map(|waiting| match waiting.caller {
            Caller::Client(call) => Some(call),
            _ => None,
        });
        waiting.chain(self.reads.iter().map(|read| read.call)).collect()
    }
}

struct EdgeDriver<'p> {
    edge: &'p mut EdgePart,
    common: &'p mut Common,
    now: Micros,
    out: &'p mut Outside,
}

impl EdgePart {
    /// A turn: what has come, a step of the hub, and one message to the log core.
    pub(super) fn turn(
        &mut self,
        state_is_over: bool,
        common: &mut Common,
        out: &mut Outside,
    ) -> Result<(), End> {
        let notifications = std::mem::take(&mut common.to_edge);
        let mut events = std::mem::take(&mut self.events);
        if !notifications.is_empty() {
            events.push(EdgeEvent::Notifications(notifications));
        }
        if state_is_over {
            events.push(EdgeEvent::StateClosed);
        }
        let now = common.clock.at(out.now());
        let mut core = std::mem::replace(&mut self.core, EdgeCore::new(false));
        let mut driver = EdgeDriver { edge: self, common, now, out };
        events.into_iter().for_each(|event| core.receive(event, &mut driver));
        self.core = core;
        if self.core.is_over() {
            return Err(End::Stopped);
        }
        if self.damage.is_none() {
            self.step_hub(common, out);
        }
        self.submit(common, out);
        self.damage.take().map_or(Ok(()), |error| Err(End::Failed(format!("watches: {error}"))))
    }

    /// Begins.
    pub(super) fn start(&mut self, common: &mut Common, out: &mut Outside) {
        let now = common.clock.at(out.now());
        let mut core = std::mem::replace(&mut self.core, EdgeCore::new(false));
        core.start(&mut EdgeDriver { edge: self, common, now, out });
        self.core = core;
        common.wake(Part::Edge, out);
    }

    /// An event of the edge core comes with its next turn.
    pub(super) fn event(&mut self, event: EdgeEvent, common: &mut Common, out: &mut Outside) {
        self.events.push(event);
        common.wake(Part::Edge, out);
    }

    /// The requests of the turn go to the log core as one message.
    fn submit(&mut self, common: &mut Common, out: &mut Outside) {
        let edge = &mut *self;
        let mut batch = std::mem::take(&mut edge.batch);
        if std::mem::take(&mut edge.has_read) {
            batch.read = Some(edge.tickets);
        }
        if batch.is_empty() || edge.is_closed {
            return;
        }
        batch.number = edge.submitted;
        common.log_event(LogEvent::Submitted { edge: 0, submitted: batch }, out);
    }

    fn step_hub(&mut self, common: &mut Common, out: &mut Outside) {
        let edge = &mut *self;
        for stream in &mut edge.streams {
            while edge.hub.takes_requests(stream.hub)
                && let Some(request) = stream.requests.pop_front()
            {
                common.views.follow(0, true);
                let view = common.views.load();
                match request {
                    RequestUnion::CreateRequest(create) => edge.hub.create(stream.hub, &create, &view),
                    RequestUnion::CancelRequest(cancel) => {
                        edge.hub.cancel(stream.hub, cancel.watch_id, &view)
                    }
                    RequestUnion::ProgressRequest(_) => edge.hub.request_progress(stream.hub, &view),
                }
            }
        }
        if edge.hub.is_watching() || edge.hub.has_steps() {
            edge.damage = edge.hub.step(&common.views.load()).err();
        }
        common.views.follow(0, edge.hub.is_watching());
        for stream in edge.streams.iter_mut().filter(|stream| !stream.is_stalled) {
            while let Some(reply) = edge.hub.take(stream.hub) {
                if matches!(reply.content, Content::Compacted(_)) {
                    out.marks.reach(Mark::WatchCompacted);
                }
                let after = 50 + out.random.below(300);
                stream.arrives = stream.arrives.max(out.now() + after);
                out.reply(stream.arrives - out.now(), Event::Watched(stream.id, WatchMessage { reply }));
            }
        }
        if edge.hub.has_steps() {
            common.wake(Part::Edge, out);
        }
    }

    /// A client calls.
    pub(super) fn call(&mut self, call: CallId, request: Request, common: &mut Common, out: &mut Outside) {
        let now = common.clock.at(out.now());
        let status = &common.status;
        self.arrivals += 1;
        let refusal = if self.is_closed {
            Some(Error::Stopped)
        } else if status.is_corrupt.load() {
            Some(Error::CorruptMember)
        } else if status.is_learner.load() && !matches!(&request, Request::Range(range) if range.serializable)
        {
            Some(Error::NotForLearners)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return out.reply(100, Event::Answered(call, Reply::Failed(refusal)));
        }
        let caller = Caller::Client(call);
        match request {
            Request::Command { kind, payload } => self.command(caller, kind, payload, now),
            Request::Lease(request) => self.local(caller, request.into(), now),
            Request::Defragment => self.local(caller, LocalKind::Defragment, now),
            Request::MoveLeader { to } => self.local(caller, LocalKind::MoveLeader { to }, now),
            Request::Range(request) if request.serializable || status.reads_alone.load() => {
                answer_read(call, &request, common, &self.share, out);
            }
            Request::Range(_) if status.is_sole_voter.load() && status.leader.load() == 0 => {
                out.reply(100, Event::Answered(call, Reply::Failed(Error::NoLeader)));
            }
            Request::Range(request) => {
                if !std::mem::replace(&mut self.has_read, true) {
                    self.tickets += 1;
                }
                let ticket = self.tickets;
                self.reads.push(WaitingRead { call, ticket, request, since: now });
            }
        }
        common.wake(Part::Edge, out);
    }

    /// A client gives a call up.
    pub(super) fn give_up(&mut self, call: CallId) {
        for waiting in self.waiting.values_mut() {
            if waiting.caller == Caller::Client(call) {
                waiting.caller = Caller::None;
            }
        }
        self.reads.retain(|read| read.call != call);
    }

    /// A client opens a watch stream.
    pub(super) fn open_stream(&mut self, id: StreamId) {
        let hub = self.hub.open(&self.share);
        self.streams.push(Stream { id, hub, requests: VecDeque::new(), is_stalled: false, arrives: 0 });
    }

    /// A client has something for its stream, or takes no messages, or closes it.
    pub(super) fn with_stream(
        &mut self,
        id: StreamId,
        request: StreamRequest,
        common: &mut Common,
        out: &mut Outside,
    ) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        match request {
            StreamRequest::Watch(request) => self.streams[at].requests.push_back(request),
            StreamRequest::Stall(is_stalled) => self.streams[at].is_stalled = is_stalled,
            StreamRequest::Close => {
                let stream = self.streams.remove(at);
                self.hub.close(stream.hub);
            }
        }
        common.wake(Part::Edge, out);
    }

    /// Calls that have waited too long are answered.
    pub(super) fn sweep(&mut self, common: &mut Common, out: &mut Outside) {
        let now = common.clock.at(out.now());
        let longest = CALL_TIME_MAX + 2 * election_time(common.tick);
        let is_late = |since: Micros| now.saturating_sub(since) > longest;
        for waiting in self.waiting.values_mut() {
            if let Caller::Client(call) = waiting.caller
                && is_late(waiting.since)
            {
                waiting.caller = Caller::None; // its slot stays until the outcome comes
                out.reply(50, Event::Answered(call, Reply::Failed(Error::Timeout)));
            }
        }
        self.reads.retain(|read| {
            let late = is_late(read.since);
            if late {
                out.reply(50, Event::Answered(read.call, Reply::Failed(Error::Timeout)));
            }
            !late
        });
    }

    /// Expired leases are looked for, on the leader.
    pub(super) fn look_for_expired(&mut self, common: &mut Common, out: &mut Outside) {
        let status = &common.status;
        let leads = status.leases.load() > 0 && status.leader.load() == common.identity.member;
        if leads && !std::mem::replace(&mut self.is_looking_for_expired, true) {
            let now = common.clock.at(out.now());
            self.local(Caller::Expired, LeaseRequest::Expired.into(), now);
            common.wake(Part::Edge, out);
        }
    }

    /// The member's name is published once more.
    pub(super) fn publish_again(&mut self, common: &mut Common, out: &mut Outside) {
        let now = common.clock.at(out.now());
        self.publish(common.identity.member, now);
        common.wake(Part::Edge, out);
    }

    /// A step of the clock of progress notifications.
    pub(super) fn tick_hub(&mut self, common: &mut Common, out: &mut Outside) {
        self.progress += 1;
        self.hub.tick(self.progress, &common.views.load());
        common.wake(Part::Edge, out);
    }
}

/// Something that a client does with its stream.
#[derive(Debug)]
pub(crate) enum StreamRequest {
    Watch(RequestUnion),
    Stall(bool),
    Close,
}

fn answer_read(call: CallId, request: &RangeRequest, common: &Common, share: &Share, out: &mut Outside) {
    let view = common.views.load();
    let reply = match range::answer(request, view.reader(), share) {
        Ok(body) => {
            let bytes = body.concat();
            let mut response = RangeResponse::decode(&*bytes).expect("it was just encoded");
            let header = response.header.get_or_insert_default();
            header.revision = view.revision();
            (header.member_id, header.raft_term) = (common.identity.member, common.status.term.load());
            Reply::Range(Box::new(response))
        }
        Err(error) => Reply::Failed(error),
    };
    out.reply(100, Event::Answered(call, reply));
}

impl EdgeDriver<'_> {
    /// The end of a call of the edge itself, or of a client.
    fn end(&mut self, waiting: &Waiting, result: Result<Outcome, Error>) {
        let (now, id) = (self.now, self.common.identity.member);
        match waiting.caller {
            Caller::None => {}
            Caller::Client(call) => {
                let reply = match result {
                    Ok(outcome) => Reply::Outcome(outcome),
                    Err(error) => Reply::Failed(error),
                };
                let after = 50 + self.out.random.below(200);
                self.out.reply(after, Event::Answered(call, reply));
            }
            Caller::Publication => match result.and_then(|outcome| outcome.result) {
                Ok(_) => {
                    self.edge.events.push(EdgeEvent::Published);
                    self.common.wake(Part::Edge, self.out);
                }
                Err(_) => self.common.timer(PUBLICATION_INTERVAL, Timer::Publish, self.out),
            },
            Caller::Expired => match result.and_then(|outcome| outcome.result) {
                Ok(again) if again == LOOK_AGAIN => {
                    self.edge.local(Caller::Expired, LeaseRequest::Expired.into(), now);
                    self.common.wake(Part::Edge, self.out);
                }
                Ok(expired) => {
                    let leases = ExpiredLeases::decode(expired.clone()).map(|it| it.leases.len());
                    if leases.is_ok_and(|leases| leases > 0) {
                        self.edge.command(Caller::Expiry, Kind::LeaseExpire, expired, now);
                        self.common.wake(Part::Edge, self.out);
                    } else {
                        self.edge.is_looking_for_expired = false;
                    }
                }
                Err(_) => self.edge.is_looking_for_expired = false,
            },
            Caller::Expiry => {
                if result.is_ok_and(|outcome| outcome.result.is_ok()) {
                    self.out.marks.reach(Mark::LeasesExpired);
                }
                self.edge.is_looking_for_expired = false;
            }
        }
        let _ = id;
    }
}

impl EdgeEffects for EdgeDriver<'_> {
    fn open_metrics(&mut self) {}

    fn publish(&mut self) {
        self.edge.publish(self.common.identity.member, self.now);
    }

    fn wait_for_cluster(&mut self) {
        self.common.timer(limits::CLUSTER_READY_TIMEOUT, Timer::Overdue, self.out);
    }

    fn is_sole_voter(&self) -> bool {
        self.common.status.is_sole_voter.load()
    }

    fn set_ready(&mut self) {
        if !std::mem::replace(&mut self.edge.is_ready, true) {
            self.edge.events.push(EdgeEvent::Ready);
            self.common.wake(Part::Edge, self.out);
            self.common.wake(Part::State, self.out);
        }
    }

    fn begin_duties(&mut self, _of_member: bool) {
        self.common.timer(SWEEP_INTERVAL, Timer::Sweep, self.out);
        self.common.timer(LEASE_INTERVAL, Timer::Leases, self.out);
        self.common.timer(Duration::from_secs(2), Timer::Progress, self.out);
    }

    fn serve(&mut self) {}

    fn end_duties(&mut self) {}

    fn close_proposals(&mut self) {
        self.edge.is_closed = true;
        for call in self.edge.open_calls() {
            self.out.reply(50, Event::Answered(call, Reply::Failed(Error::Stopped)));
        }
        self.edge.waiting.clear();
        self.edge.reads.clear();
        let mut batch = std::mem::take(&mut self.edge.batch);
        batch.number = self.edge.submitted;
        if !batch.is_empty() {
            self.common.log_event(LogEvent::Submitted { edge: 0, submitted: batch }, self.out);
        }
        self.common.log_event(LogEvent::EdgeClosed, self.out);
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        let Some(waiting) = self.edge.waiting.remove(&id) else { return };
        self.end(&waiting, Ok(outcome));
    }

    fn end_reads(&mut self, ticket: u64, result: Result<(), Error>) {
        let (ended, left) =
            std::mem::take(&mut self.edge.reads).into_iter().partition(|read| read.ticket <= ticket);
        self.edge.reads = left;
        let ended: Vec<WaitingRead> = ended;
        for read in ended {
            match &result {
                Ok(()) => answer_read(read.call, &read.request, self.common, &self.edge.share, self.out),
                Err(why) => {
                    self.out.reply(50, Event::Answered(read.call, Reply::Failed(why.clone())));
                }
            }
        }
    }

    fn lost(&mut self, number: u64, why: Error) {
        let is_lost = |waiting: &Waiting| waiting.is_command && waiting.number <= number;
        let lost: Vec<CommandId> =
            self.edge.waiting.iter().filter(|(_, it)| is_lost(it)).map(|(id, _)| *id).collect();
        for id in lost {
            let waiting = self.edge.waiting.remove(&id).expect("it was just there");
            self.end(&waiting, Err(why.clone()));
        }
    }

    fn step_watches(&mut self) {
        if self.edge.hub.is_watching() {
            self.edge.damage = self.edge.hub.step(&self.common.views.load()).err();
        }
    }

    fn wait(&mut self, hearing: u64, time: Duration) {
        self.common.timer(time, Timer::Waited(hearing), self.out);
    }

    fn mark_arrivals(&mut self) -> u64 {
        self.edge.arrivals
    }

    fn is_read_up_to(&self, mark: u64) -> bool {
        self.edge.arrivals >= mark
    }

    fn holds_keepalives_back(&self) -> bool {
        false
    }

    fn gave_up_reading(&mut self) {}

    fn heard(&mut self, heard: Heard) {
        self.edge.local(Caller::None, LeaseRequest::Heard(heard).into(), self.now);
    }
}
