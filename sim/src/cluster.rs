//! All members of a run: their directories, which outlive their processes, and the processes.

mod starting;

use std::collections::BTreeMap;

use revd_engine::random::Random;
use revd_member::raft::node::LogRetention;
use revd_proto::etcdserverpb::watch_request::RequestUnion;

use crate::calls::{CallId, Door, Reply, Request, StreamId};
use crate::disk::{Directory, DiskFaults, Ticket, Trouble};
use crate::marks::{Mark, Marks};
use crate::member::{End, Process, StreamRequest};
use crate::network::{Arrival, ConnectionId, Links, Network, Side};
use crate::outside::{Event, Outside, Part};
use crate::time::{Agenda, MILLISECOND, Micros, SECOND};
use crate::truth::Truth;

/// A place for a member: its machine.
pub struct Slot {
    pub(crate) directory: Directory,
    pub(crate) process: Option<Box<Process>>,
    /// Member id, once it has started.
    pub(crate) id: Option<u64>,
    /// It begins the cluster, or joins it.
    begins_cluster: bool,
    /// It was removed, and is started no more.
    pub(crate) is_gone: bool,
    /// A bit of its files has flipped.
    pub(crate) is_rotten: bool,
    /// Microseconds that its clock shows in a true second.
    pub(crate) rate: u64,
    retention: LogRetention,
    segment_bytes: u64,
    pub(crate) trouble: Trouble,
    /// The disk has had a trouble since the process began.
    had_trouble: bool,
    pub(crate) disk_faults: DiskFaults,
    /// Events that come while the process stands still.
    paused: Option<Vec<Paused>>,
    /// Calls that end when the disk is no more stuck.
    stuck: Vec<Event>,
    plans_start: bool,
}

/// An event that has come to a process that stands still.
enum Paused {
    Event(Event),
    Arrived(Arrival),
}

/// The properties that all members of a run share.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// A step of raft's clock.
    pub tick: Micros,
    /// Ask before an election whether it can be won.
    pub pre_vote: bool,
    /// Checkpoints of little are put off so often.
    pub put_offs_max: u32,
    /// Work of a step of the watch hub.
    pub step_work: usize,
    /// A start after a kill comes within this time.
    pub restart_max: Micros,
}

/// All members of a run.
pub struct Cluster {
    pub(crate) out: Outside,
    pub(crate) slots: Vec<Slot>,
    /// A member has just found that its files are damaged.
    pub(crate) found_rotten: Option<usize>,
    habits: Habits,
    boots: u64,
    calls: BTreeMap<CallId, usize>,
    called: u64,
    streams: BTreeMap<StreamId, usize>,
    opened: u64,
}

impl Cluster {
    /// So many members of a new cluster, which start soon.
    #[must_use]
    pub fn new(mut random: Random, members: usize, habits: Habits, links: Links) -> Self {
        let out = Outside {
            agenda: Agenda::default(),
            network: Network::new(links),
            random: Random::new(random.number()),
            truth: Truth::default(),
            marks: Marks::default(),
            full_outbox_one_in: 0,
        };
        let mut cluster = Self {
            out,
            slots: Vec::new(),
            found_rotten: None,
            habits,
            boots: 0,
            calls: BTreeMap::new(),
            called: 0,
            streams: BTreeMap::new(),
            opened: 0,
        };
        for member in 0..members {
            cluster.add_slot(true, &mut random);
            cluster.plan_start(member, 100 * MILLISECOND);
        }
        cluster
    }

    /// A machine for another member.
    pub(crate) fn add_slot(&mut self, begins_cluster: bool, random: &mut Random) -> usize {
        let retention = match random.below(3) {
            0 => LogRetention::default(),
            1 => LogRetention { snapshot_count: 20, catchup_entries: 10, ..LogRetention::default() },
            _ => LogRetention {
                snapshot_count: 60,
                catchup_entries: 30,
                memory_bytes_max: 2_000,
                ..LogRetention::default()
            },
        };
        let directory = Directory::new(Random::new(random.number()));
        directory.compare_seldom();
        self.slots.push(Slot {
            directory,
            process: None,
            id: None,
            begins_cluster,
            is_gone: false,
            is_rotten: false,
            rate: 950_000 + random.below(100_000),
            retention,
            segment_bytes: if random.one_in(2) { 512 * 1024 } else { 64 * 1024 },
            trouble: Trouble::default(),
            had_trouble: false,
            disk_faults: DiskFaults::default(),
            paused: None,
            stuck: Vec::new(),
            plans_start: false,
        });
        self.slots.len() - 1
    }

    /// Members that run.
    #[must_use]
    pub fn running(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|member| self.slots[*member].process.is_some()).collect()
    }

    /// All members of the cluster run, and none stands still. A machine whose member was not
    /// admitted is none of them.
    #[must_use]
    pub(crate) fn all_run(&self) -> bool {
        let Some(known) = self.out.truth.cluster() else { return false };
        let runs = |slot: &Slot| slot.process.is_some() && slot.paused.is_none();
        let is_there = |id| self.slots.iter().any(|slot| slot.id == Some(id) && runs(slot));
        known.membership.members().all(|row| is_there(row.id))
    }

    /// The member with this id.
    #[must_use]
    pub fn slot_of(&self, id: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.id == Some(id))
    }

    /// The member that leads, as it says itself.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let leads = |member: &usize| self.slots[*member].process.as_ref().is_some_and(|it| it.leads());
        self.running().into_iter().rfind(leads)
    }

    /// A member starts within this time.
    pub(crate) fn plan_start(&mut self, member: usize, within: Micros) {
        if !std::mem::replace(&mut self.slots[member].plans_start, true) {
            let after = 1 + self.out.random.below(within);
            self.out.agenda.plan(after, Event::Start(member));
        }
    }

    /// Does something with a process, unless it is gone or stands still.
    pub(crate) fn with(
        &mut self,
        member: usize,
        boot: u64,
        event: impl FnOnce() -> Event,
        act: impl FnOnce(&mut Process, &mut Outside) -> Result<(), End>,
    ) {
        let slot = &mut self.slots[member];
        let Some(process) = slot.process.as_mut().filter(|process| process.boot() == boot) else { return };
        if let Some(paused) = &mut slot.paused {
            return paused.push(Paused::Event(event()));
        }
        if let Err(end) = act(process, &mut self.out) {
            self.ended(member, end);
        }
    }

    /// An event of a process.
    pub(crate) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Turn(member, boot, part) => {
                self.with(member, boot, || event, |process, out| process.turn(part, out));
            }
            Event::Timer(member, boot, timer) => self.with(
                member,
                boot,
                || event,
                |process, out| {
                    process.timer(timer, out);
                    Ok(())
                },
            ),
            Event::Disk(member, boot, ticket) => self.disk_event(event, member, boot, ticket, false),
            Event::Job(member, boot, ticket) => self.disk_event(event, member, boot, ticket, true),
            Event::Arrival(arrival) => {
                let (network, random) = (&mut self.out.network, &mut self.out.random);
                if let Some(arrival) = network.arrive(arrival, random) {
                    self.arrived(arrival);
                }
            }
            event => unreachable!("{event:?} is not of a process"),
        }
    }

    fn disk_event(&mut self, event: Event, member: usize, boot: u64, ticket: Ticket, is_job: bool) {
        let slot = &mut self.slots[member];
        if slot.process.as_ref().is_none_or(|process| process.boot() != boot) {
            return;
        }
        if slot.trouble.is_stuck {
            return slot.stuck.push(event);
        }
        self.with(
            member,
            boot,
            || event,
            |process, out| {
                if is_job {
                    process.job(ticket, out)
                } else {
                    process.disk(ticket, out)
                }
                Ok(())
            },
        );
    }

    fn arrived(&mut self, arrival: Arrival) {
        let (connection, at) = (arrival.connection, arrival.at);
        let Some((member, boot)) = self.out.network.owner(connection, at) else { return };
        let running = self.slots.get(member).and_then(|slot| slot.process.as_ref()).map(|it| it.boot());
        match (boot, running) {
            (None, None) => return self.out.close(connection, Side::Listener),
            (None, Some(boot)) => self.out.network.accept(connection, boot),
            (Some(boot), running) if running != Some(boot) => return,
            (Some(_), _) => {}
        }
        if let Some(paused) = &mut self.slots[member].paused {
            return paused.push(Paused::Arrived(arrival));
        }
        let process = self.slots[member].process.as_mut().expect("it runs");
        process.arrive(arrival, &mut self.out);
    }

    /// A member does not go on with the damage in its files.
    fn rot_found(&mut self, member: usize, how: Mark) {
        self.out.marks.reach(how);
        self.lose_disk(member);
        self.found_rotten = Some(member);
    }

    /// The machine of a member is lost, with its disk.
    pub(crate) fn lose_disk(&mut self, member: usize) {
        self.kill(member);
        let slot = &mut self.slots[member];
        (slot.is_gone, slot.is_rotten) = (true, false);
        slot.directory = Directory::new(Random::new(self.out.random.number()));
        slot.directory.compare_seldom();
    }

    /// A machine loses power, and its disk has changed a bit by the next start; whether it has.
    pub(crate) fn rot(&mut self, member: usize, random: &mut Random) -> bool {
        self.kill(member);
        let slot = &mut self.slots[member];
        slot.is_rotten = slot.directory.rot(random).is_some();
        if slot.is_rotten {
            revd_engine::check::expect_damage(true);
        }
        slot.is_rotten
    }

    /// A process has ended by itself.
    fn ended(&mut self, member: usize, end: End) {
        match end {
            End::DiskFailed(_) | End::Failed(_) if self.slots[member].is_rotten => {
                return self.rot_found(member, Mark::RotFound);
            }
            End::Removed => self.slots[member].is_gone = true,
            End::Stopped => self.out.marks.reach(Mark::Stopped),
            End::DiskFailed(why) => {
                assert!(self.slots[member].had_trouble, "member {member}: its disk is in order: {why}");
                self.out.marks.reach(Mark::DiskFailed);
            }
            End::Failed(why) => panic!("member {member} has ended: {why}"),
        }
        let is_machine = false;
        self.bury(member, is_machine);
        self.plan_start(member, self.habits.restart_max);
    }

    /// A process is killed, or its machine loses power.
    pub(crate) fn kill(&mut self, member: usize) {
        let Some(process) = &self.slots[member].process else { return };
        process.under_way().into_iter().for_each(|mark| self.out.marks.reach(mark));
        if self.out.now() - process.began() < SECOND {
            self.out.marks.reach(Mark::KilledEarly);
        }
        if process.leads() {
            self.out.marks.reach(Mark::LeaderKilled);
        }
        self.bury(member, true);
        self.plan_start(member, self.habits.restart_max);
    }

    /// The rest of a process that is gone.
    fn bury(&mut self, member: usize, is_machine: bool) {
        let slot = &mut self.slots[member];
        if let Some(mut process) = slot.process.take() {
            process.leave(&mut self.out);
            let (calls, streams) = process.open();
            for call in calls {
                self.out.reply(1_000, Event::Answered(call, Reply::Broken));
            }
            for stream in streams {
                self.out.reply(1_000, Event::StreamEnded(stream));
            }
        }
        (slot.paused, slot.stuck) = (None, Vec::new());
        slot.had_trouble = slot.trouble != Trouble::default();
        let faults = match is_machine {
            true => slot.disk_faults,
            false => DiskFaults { only_process: 1_000, ..slot.disk_faults },
        };
        slot.directory.crash(&mut self.out.random, &faults);
        let Outside { network, random, agenda, .. } = &mut self.out;
        network.process_ended(member, random, agenda);
        network.tidy();
    }

    /// A process stands still, unless it does already.
    pub(crate) fn pause(&mut self, member: usize, time: Micros) -> bool {
        let slot = &mut self.slots[member];
        let Some(process) = slot.process.as_ref().filter(|_| slot.paused.is_none()) else { return false };
        self.out.agenda.plan(time, Event::GoOn(member, process.boot()));
        slot.paused = Some(Vec::new());
        self.out.marks.reach(Mark::ProcessStoodStill);
        true
    }

    /// A process that stands still goes on.
    pub(crate) fn go_on(&mut self, member: usize, boot: u64) {
        let slot = &mut self.slots[member];
        if slot.process.as_ref().is_none_or(|process| process.boot() != boot) {
            return;
        }
        for paused in slot.paused.take().unwrap_or_default() {
            match paused {
                Paused::Event(event) => self.dispatch(event),
                Paused::Arrived(arrival) => self.arrived(arrival),
            }
        }
    }

    /// A member is asked to stop, unless it was already; it is started again.
    pub(crate) fn stop(&mut self, member: usize) -> bool {
        self.slots[member].process.as_mut().is_some_and(|process| process.stop(&mut self.out))
    }

    /// The clock of a member jumps forward.
    pub(crate) fn jump(&mut self, member: usize, by: Micros) {
        if let Some(process) = &mut self.slots[member].process {
            process.jump(by);
            self.out.marks.reach(Mark::ClockJumped);
        }
    }

    /// Each turn of a part takes so much longer from now on.
    pub(crate) fn slow_part(&mut self, member: usize, part: Part, by: Micros) {
        if let Some(process) = &mut self.slots[member].process {
            process.slow(part, by);
        }
    }

    /// Nothing gets through from one member to another, or everything does again.
    pub(crate) fn cut(&mut self, link: (usize, usize), is_cut: bool) {
        self.out.network.cut(link, is_cut, &mut self.out.agenda);
    }

    /// A connection breaks.
    pub(crate) fn break_off(&mut self, connection: ConnectionId) {
        let Outside { network, random, agenda, .. } = &mut self.out;
        network.break_off(connection, random, agenda);
    }

    /// A part of a process stands still.
    pub(crate) fn stand_still(&mut self, member: usize, part: Part, time: Micros) {
        if let Some(process) = &mut self.slots[member].process {
            process.stand_still(part, time, &self.out);
            self.out.marks.reach(Mark::PartStoodStill);
        }
    }

    /// The disk of a member has this trouble from now on, or none.
    pub(crate) fn set_trouble(&mut self, member: usize, trouble: Trouble) {
        let slot = &mut self.slots[member];
        slot.directory.set_trouble(trouble);
        if let Some(process) = slot.process.as_ref().filter(|_| trouble.slow < slot.trouble.slow) {
            process.hurry(&mut self.out);
        }
        slot.trouble = trouble;
        slot.had_trouble |= trouble != Trouble::default();
        if !trouble.is_stuck {
            for event in std::mem::take(&mut slot.stuck) {
                self.out.agenda.plan(1, event);
            }
        }
    }

    /// A call is answered: it is open no more.
    pub(crate) fn close_call(&mut self, call: CallId) -> bool {
        self.calls.remove(&call).is_some()
    }

    /// Calls that have no answer yet.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a stream is open.
    #[must_use]
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// A stream has ended with its member.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) -> bool {
        self.streams.remove(&stream).is_some()
    }

    fn with_stream(&mut self, stream: StreamId, request: StreamRequest) {
        let Some(member) = self.streams.get(&stream) else { return };
        if let Some(process) = &mut self.slots[*member].process {
            process.with_stream(stream, request, &mut self.out);
        }
    }
}

impl Door for Cluster {
    fn now(&self) -> Micros {
        self.out.now()
    }

    fn members(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|member| !self.slots[*member].is_gone).collect()
    }

    fn member_id(&self, member: usize) -> u64 {
        self.slots[member].id.unwrap_or(0)
    }

    fn life(&self, member: usize) -> u64 {
        self.slots[member].process.as_ref().map_or(0, |process| process.boot())
    }

    fn call(&mut self, member: usize, request: Request) -> Option<CallId> {
        let process = self.slots[member].process.as_mut().filter(|process| process.is_ready())?;
        self.called += 1;
        let call = CallId(self.called);
        self.calls.insert(call, member);
        process.call(call, request, &mut self.out);
        Some(call)
    }

    fn give_up(&mut self, call: CallId) {
        if let Some(member) = self.calls.remove(&call)
            && let Some(process) = &mut self.slots[member].process
        {
            process.give_up(call, &mut self.out);
        }
    }

    fn open_stream(&mut self, member: usize) -> Option<StreamId> {
        let process = self.slots[member].process.as_mut().filter(|process| process.is_ready())?;
        self.opened += 1;
        let stream = StreamId(self.opened);
        self.streams.insert(stream, member);
        process.open_stream(stream, &mut self.out);
        Some(stream)
    }

    fn request_watch(&mut self, stream: StreamId, request: RequestUnion) {
        self.with_stream(stream, StreamRequest::Watch(request));
    }

    fn stall(&mut self, stream: StreamId, is_stalled: bool) {
        self.with_stream(stream, StreamRequest::Stall(is_stalled));
    }

    fn close_stream(&mut self, stream: StreamId) {
        self.with_stream(stream, StreamRequest::Close);
        self.streams.remove(&stream);
    }

    fn wake_after(&mut self, after: Micros, number: u64) {
        self.out.agenda.plan(after, Event::Wake(number));
    }
}
