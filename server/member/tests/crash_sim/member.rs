//! A member that runs in parts: clients, the log core, the writer of the log and what removes its
//! segments, the state core, the helper thread of its checkpoints, a clock, readers, and the tree
//! file's disk, which in some runs is full for a while. Each part goes on by itself, in small
//! steps; between any two of them it may stand still, as a core or a thread does from which the
//! system has taken the time, while the others go on. The log core and the state core are the
//! shipped ones (`revd_member::cores`); their effects are carried out one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::WrittenCheckpoint;
use revd_engine::random::Random;
use revd_member::apply::Work;
use revd_member::apply::command::{self, Command, CommandId, Kind};
use revd_member::apply::local::{LocalKind, LocalRequest, Submitted};
use revd_member::apply::outcome::Outcome;
use revd_member::cores::effects::{Standpoint, StateEvent};
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::LogEvent;
use revd_member::cores::state::StateCore;
use revd_member::error::Error;
use revd_member::limits::CHECKPOINT_PUT_OFFS_MAX;
use revd_member::wal::layout::{LogStep, ReleasedSegment};
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest,
};

use crate::effects::{Effect, FromLog, FromState, Shown, WalJob};
use crate::start::Sim;
use crate::{
    Acknowledged, FRAMES, Files, FullDisk, ORIGIN, OWNER, Run, WalFiles, WalOp, fills_disk, hash_of,
};

/// Commands of clients that wait for their answers.
const OUTSTANDING_MAX: usize = 24;
/// Steps in which a member without clients comes to rest, many times over.
const REST_STEPS_MAX: usize = 20_000;

/// Bytes that a disk with room has beyond the tree file, and of its reserve: so few that the file
/// grows by what it needs.
const FREE_BYTES: u64 = 16 * 1024;
const RESERVE_BYTES: u64 = 4 * 1024;

/// A part of the simulation that goes on by itself.
#[derive(Debug, Clone, Copy)]
enum Part {
    Clients,
    Log,
    Writer,
    Remover,
    State,
    Checkpoint,
    Clock,
    Reader,
    Disk,
}

impl Part {
    const ALL: [Self; 9] = [
        Self::Clients,
        Self::Log,
        Self::Writer,
        Self::Remover,
        Self::State,
        Self::Checkpoint,
        Self::Clock,
        Self::Reader,
        Self::Disk,
    ];
}

/// A call whose client waits.
struct Call {
    is_local: bool,
    /// It is told when the space of a compaction at this revision is free.
    compaction: Option<i64>,
    /// The entry that holds its command, once that is committed.
    index: u64,
}

/// The disk of the tree file.
struct Space {
    /// It is full now and then.
    fills: bool,
    /// It stays so when the member stops.
    stays_full: bool,
    /// For so many more turns it is full.
    full_for: u64,
    has_reserve: bool,
    is_alarm_raised: bool,
    seen: FullDisk,
}

pub(crate) struct Member {
    files: Files,
    space: Space,
    log: LogCore,
    state: StateCore,
    random: Random,
    /// A part stands still after one in so many of its steps, and for how many of its turns each
    /// still does.
    stalls_one_in: u64,
    still: [u64; Part::ALL.len()],
    has_clients: bool,
    calls: BTreeMap<usize, Call>,
    next_slot: usize,
    to_log: VecDeque<LogEvent>,
    from_log: FromLog,
    /// The steps that are left of the frame that is being written.
    steps: VecDeque<LogStep>,
    frames: usize,
    removals: VecDeque<ReleasedSegment>,
    to_state: VecDeque<StateEvent>,
    from_state: FromState,
    /// The checkpoint that is being written.
    writing: Option<Box<WrittenCheckpoint>>,
    reminders: usize,
    shown: Shown,
    /// The last entry that is whole in it.
    applied: u64,
    held: Vec<Shown>,
    /// The newest revision that a client knows of.
    answered: i64,
    acknowledged: Vec<Acknowledged>,
}

impl Member {
    pub(crate) fn new(sim: Sim, seed: u64) -> Self {
        let Sim { node, mut machine, files, .. } = sim;
        let view = machine.store_mut().view();
        let hash = hash_of(view.clone());
        let from_state = FromState {
            effects: VecDeque::new(),
            random: std::cell::RefCell::new(Random::new(seed ^ 0x71E5)),
            microseconds: std::cell::Cell::new(0),
            truth: vec![(0, 0), (view.revision(), hash)],
            is_unsaved: false,
        };
        let fills = fills_disk(seed);
        let space = Space {
            fills,
            stays_full: fills && seed.is_multiple_of(4),
            full_for: 0,
            has_reserve: true,
            is_alarm_raised: false,
            seen: FullDisk::default(),
        };
        let mut from_log = FromLog::default();
        let mut log =
            LogCore::new(node, LogConfig { origin: ORIGIN, edges: 1, tick: Duration::from_millis(100) });
        log.start(&mut from_log).unwrap();
        let mut state = StateCore::new(machine, 1);
        state.put_off_checkpoints(if seed % 4 == 3 { CHECKPOINT_PUT_OFFS_MAX } else { 0 });
        Self {
            files,
            space,
            log,
            state,
            random: Random::new(seed),
            stalls_one_in: [u64::MAX, 40, 12, 12][usize::try_from(seed % 4).unwrap()],
            still: [0; Part::ALL.len()],
            has_clients: true,
            calls: BTreeMap::new(),
            next_slot: 0,
            to_log: VecDeque::new(),
            from_log,
            steps: VecDeque::new(),
            frames: 0,
            removals: VecDeque::new(),
            to_state: VecDeque::new(),
            from_state,
            writing: None,
            reminders: 0,
            shown: Shown { view, hash },
            applied: 0,
            held: Vec::new(),
            answered: 0,
            acknowledged: Vec::new(),
        }
    }

    /// Lets it run for a while, come to rest, and stop.
    pub(crate) fn run(mut self) -> Run {
        while self.frames < FRAMES {
            let part = self.random.pick(&Part::ALL);
            self.go_on(part);
        }
        self.has_clients = false;
        self.stalls_one_in = u64::MAX;
        self.end_of_space();
        self.go_on_until(if self.space.stays_full { Self::is_served } else { Self::is_at_rest });
        assert!(self.is_served(), "a client is never answered");
        self.to_log.push_back(LogEvent::EdgeClosed);
        self.go_on_until(|member| member.log.is_over());
        self.to_state.push_back(StateEvent::LogClosed);
        self.go_on_until(|member| member.state.is_over(&mut member.from_state));
        let mut files = WalFiles::default();
        self.files.wal.iter().for_each(|op| files.apply(op, &mut |_| true));
        let is_kept = self.from_state.is_unsaved;
        assert!(files.segments.len() <= 2 || is_kept, "the log keeps {} segments", files.segments.len());
        self.space.seen.stopped_unsaved += u64::from(is_kept);
        let Self { files: Files { disk, wal, tree_calls, .. }, from_state, mut acknowledged, space, .. } =
            self;
        acknowledged.resize(wal.len() + 1, acknowledged.last().copied().unwrap_or_default());
        let full_disk = space.seen;
        Run { calls: disk.recorded(), wal, tree_calls, truth: from_state.truth, acknowledged, full_disk }
    }

    fn go_on_until(&mut self, is_there: impl Fn(&mut Self) -> bool) {
        for step in 0.. {
            assert!(step < REST_STEPS_MAX, "the member does not come to rest: {}", self.unrest());
            self.go_on(Part::ALL[step % Part::ALL.len()]);
            if step % Part::ALL.len() == 0 && is_there(self) {
                return;
            }
        }
    }

    /// The next step of a part, unless it stands still.
    fn go_on(&mut self, part: Part) {
        let still = &mut self.still[part as usize];
        if *still > 0 && self.has_clients {
            *still -= 1;
            return;
        }
        match part {
            Part::Clients => self.ask(),
            Part::Log => self.drive_raft(),
            Part::Writer => self.write_log(),
            Part::Remover => {
                if let Some(released) = self.removals.pop_front() {
                    self.files.record(WalOp::Remove(released));
                }
            }
            Part::State => self.drive_state(),
            Part::Checkpoint => {
                if let Some(written) = self.writing.take() {
                    self.files.calls_over = self.files.disk.recorded().len();
                    let made_room = written.has_no_room() && self.finds_no_room();
                    self.to_state.push_back(StateEvent::Written { written, made_room });
                }
            }
            Part::Clock => {
                if self.reminders > 0 {
                    self.reminders -= 1;
                    self.to_state.push_back(StateEvent::CheckpointDue);
                } else if self.random.one_in(8) && self.to_log.is_empty() {
                    self.to_log.push_back(LogEvent::Tick);
                }
            }
            Part::Reader => self.read(),
            Part::Disk => self.change_space(),
        }
        if self.random.one_in(self.stalls_one_in) {
            self.still[part as usize] = 1 + self.random.below(40);
        }
    }

    /// Every client is answered, but for those that wait for space on a disk that stays full.
    fn is_served(&mut self) -> bool {
        let waits_for_space = |call: &Call| call.compaction.is_some() || call.is_local;
        self.calls.values().all(|call| self.space.stays_full && waits_for_space(call))
    }

    fn is_at_rest(&mut self) -> bool {
        let Some(machine) = self.state.machine() else { return false };
        let store = machine.store();
        let log = self.log.is_at_rest() && self.to_log.is_empty() && self.from_log.jobs.is_empty();
        let files = self.steps.is_empty() && self.removals.is_empty();
        let work = self.from_log.work.is_empty() && self.to_state.is_empty();
        let state = self.from_state.effects.is_empty() && !self.state.can_go_on();
        let has_chores = store.has_chores();
        let saved = self.writing.is_none() && self.reminders == 0 && !store.has_unsaved() && !has_chores;
        log && files && work && state && saved
    }

    /// The work that keeps it from coming to rest.
    fn unrest(&self) -> String {
        let store = self.state.machine().map(|machine| {
            let store = machine.store();
            let chores = [
                store.compaction_pending(),
                store.is_sweeping(),
                store.is_defragmenting(),
                store.has_unsaved(),
            ];
            format!("compacting, sweeping, defragmenting, unsaved {chores:?}")
        });
        format!(
            "{} calls, log at rest {}, to log {}, steps {}, removals {}, to state {}, effects {}, goes on {}, writing {}, \
             reminders {}, {store:?}, stays full {}",
            self.calls.len(),
            self.log.is_at_rest(),
            self.to_log.len(),
            self.steps.len(),
            self.removals.len(),
            self.to_state.len(),
            self.from_state.effects.len(),
            self.state.can_go_on(),
            self.writing.is_some(),
            self.reminders,
            self.space.stays_full,
        )
    }

    /// The disk is full for a while, in some runs; then its owner makes room and clears the alarm.
    fn change_space(&mut self) {
        if !self.space.fills || !self.has_clients {
            return;
        }
        if self.space.full_for == 0 {
            if self.random.one_in(25) {
                self.space.full_for = 1 + self.random.below(60);
                self.limit(0);
            }
            return;
        }
        self.space.full_for -= 1;
        if self.space.full_for == 0 {
            self.make_room();
        }
    }

    /// Before the member stops: it has room, or has none.
    fn end_of_space(&mut self) {
        match (self.space.fills, self.space.stays_full) {
            (true, true) => self.limit(0),
            (true, false) => {
                self.make_room();
                self.files.disk.limit(None);
            }
            (false, _) => {}
        }
    }

    fn make_room(&mut self) {
        self.limit(FREE_BYTES);
        self.space.has_reserve = true;
        if std::mem::take(&mut self.space.is_alarm_raised) {
            self.alarm(AlarmAction::Deactivate);
        }
    }

    /// The tree file may grow by so much.
    fn limit(&mut self, bytes: u64) {
        self.files.disk.limit(Some(self.files.disk.bytes().len() as u64 + bytes));
    }

    /// A checkpoint has found no room: the reserve is given up, if that has not happened, and an
    /// edge raises the alarm.
    fn finds_no_room(&mut self) -> bool {
        self.space.seen.no_room += 1;
        if self.has_clients && !std::mem::replace(&mut self.space.is_alarm_raised, true) {
            self.alarm(AlarmAction::Activate);
        }
        let made_room = std::mem::take(&mut self.space.has_reserve);
        if made_room {
            self.space.seen.reserves_given_up += 1;
            // A checkpoint from before the end may find its room only now: the limit is gone then.
            if self.has_clients || self.space.stays_full {
                self.limit(RESERVE_BYTES);
            }
        }
        made_room
    }

    fn alarm(&mut self, action: AlarmAction) {
        let alarm = AlarmType::Nospace as i32;
        let request = AlarmRequest { action: action as i32, member_id: OWNER.member, alarm };
        let command = self.command(Kind::Alarm, request.encode_to_vec().into());
        self.to_log.push_back(LogEvent::Submitted {
            edge: 0,
            submitted: Submitted { commands: vec![command], ..Submitted::default() },
        });
    }

    /// A command whose client waits for its answer.
    fn command(&mut self, kind: Kind, payload: Bytes) -> Command {
        let request = (kind == Kind::Compact).then(|| CompactionRequest::decode(payload.clone()).unwrap());
        let compaction = request.filter(|request| request.physical).map(|request| request.revision);
        Command { id: self.call(false, compaction), kind, payload }
    }

    /// A client that waits for an answer.
    fn call(&mut self, is_local: bool, compaction: Option<i64>) -> CommandId {
        self.calls.insert(self.next_slot, Call { is_local, compaction, index: 0 });
        self.next_slot += 1;
        CommandId::new(0, self.next_slot - 1, 0)
    }

    fn ask(&mut self) {
        if !self.has_clients || self.calls.len() >= OUTSTANDING_MAX {
            return;
        }
        let mut submitted = Submitted::default();
        for _ in 0..=self.random.below(4) {
            if self.random.one_in(60) {
                let id = self.call(true, None);
                submitted.local.push(LocalRequest { id, kind: LocalKind::Defragment, from: None });
            } else {
                let (kind, payload) = random_command(&mut self.random, self.shown.view.revision());
                submitted.commands.push(self.command(kind, payload));
            }
        }
        self.to_log.push_back(LogEvent::Submitted { edge: 0, submitted });
    }

    /// Some events of the log core, and what raft wants done then; what was committed before
    /// reaches the state core.
    fn drive_raft(&mut self) {
        if let Some(work) = self.from_log.work.pop_front() {
            if let Work::Entry(entry) = &work
                && !entry.data.is_empty()
            {
                for command in command::decode(entry.data.clone()).unwrap().commands {
                    self.calls.get_mut(&command.id.slot()).unwrap().index = entry.index;
                }
            }
            return self.to_state.push_back(StateEvent::Work(vec![work]));
        }
        let count = self.to_log.len().min(1 + usize::try_from(self.random.below(3)).unwrap());
        if count > 0 {
            for event in self.to_log.drain(..count) {
                self.log.receive(event, &mut self.from_log);
            }
            // The log core knows in each turn which View is published.
            self.log.receive(LogEvent::Applied(self.applied), &mut self.from_log);
            self.log.advance(&mut self.from_log).unwrap();
        }
    }

    /// One step of the frame under way is durable, or the next job begins.
    fn write_log(&mut self) {
        if let Some(step) = self.steps.pop_front() {
            self.files.record(WalOp::Step(step));
            if self.steps.is_empty() {
                self.frames += 1;
                self.to_log.push_back(LogEvent::Written);
            }
            return;
        }
        match self.from_log.jobs.pop_front() {
            Some(WalJob::Append(frame)) => self.steps.extend(self.files.layout.append(&frame)),
            Some(WalJob::Release(index)) => {
                self.removals.extend(self.files.layout.release(index, false));
            }
            None => {}
        }
    }

    /// The next effect of the state core's turn, or its next turn.
    fn drive_state(&mut self) {
        if let Some(effect) = self.from_state.effects.pop_front() {
            return self.carry_out(effect);
        }
        let count = self.to_state.len().min(usize::try_from(self.random.below(4)).unwrap());
        if count == 0 && !self.state.can_go_on() && (self.has_clients || self.to_state.is_empty()) {
            return;
        }
        let count = if self.has_clients { count } else { self.to_state.len() };
        for event in self.to_state.drain(..count) {
            self.state.receive(event, &mut self.from_state).unwrap();
        }
        self.state.turn(Standpoint { is_ready: true }, &mut self.from_state).unwrap();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Publish(view, applied) => {
                self.applied = applied;
                assert!(view.revision() >= self.shown.view.revision(), "Views go on");
                let hash = hash_of(view.clone());
                self.shown = Shown { view, hash };
            }
            Effect::Answer(id, outcome) => self.answer(id, &outcome),
            Effect::Write(checkpoint) => {
                assert!(self.writing.is_none(), "one checkpoint at a time");
                // Its calls happen from now on until the helper is done.
                self.writing = Some(Box::new(checkpoint.write().unwrap()));
            }
            Effect::Remind => self.reminders += 1,
            Effect::Durable(index) => self.to_log.push_back(LogEvent::Durable(index)),
            Effect::Run(command) => self.to_state.push_back(StateEvent::Finished(command.run())),
        }
    }

    /// A client has its answer, and reads what it has written.
    fn answer(&mut self, id: CommandId, outcome: &Outcome) {
        let shown = &self.shown.view;
        let revision = shown.revision();
        assert!(
            outcome.revision <= revision,
            "an answer of revision {} overtakes {revision}",
            outcome.revision
        );
        self.answered = self.answered.max(outcome.revision);
        let Call { is_local, compaction, index } = self.calls.remove(&id.slot()).expect("one answer a call");
        assert!(index > 0 || is_local, "an answer overtakes its entry");
        self.space.seen.refused += u64::from(outcome.result == Err(Error::NoSpace));
        let compacted = compaction.filter(|_| outcome.result.is_ok()).unwrap_or(0);
        self.acknowledge(Acknowledged { index, compacted });
    }

    /// Also a crash in what is under way now must not take it back.
    fn acknowledge(&mut self, what: Acknowledged) {
        let last = self.acknowledged.last().copied().unwrap_or_default();
        self.acknowledged.resize(self.files.wal.len() + 1, last);
        self.acknowledged.last_mut().unwrap().add(what);
    }

    /// A reader takes the newest View, or is done with an old one, which has not changed.
    fn read(&mut self) {
        if self.held.len() < 3 && self.random.one_in(2) {
            assert!(self.shown.view.revision() >= self.answered, "what was answered is read");
            self.held.push(self.shown.clone());
        } else if !self.held.is_empty() && self.random.one_in(4) {
            let at = usize::try_from(self.random.below(self.held.len() as u64)).unwrap();
            let Shown { view, hash } = self.held.swap_remove(at);
            assert_eq!(hash_of(view), hash, "a View changes under its reader");
        }
    }
}

fn random_command(random: &mut Random, revision: i64) -> (Kind, Bytes) {
    let key = |random: &mut Random| Bytes::from(format!("key/{}", random.below(30)));
    let put = |random: &mut Random| PutRequest {
        key: key(random),
        value: vec![random.byte(); usize::try_from(random.below(900)).unwrap()].into(),
        ..PutRequest::default()
    };
    match random.below(12) {
        0 => {
            let request = DeleteRangeRequest { key: key(random), range_end: key(random), prev_kv: false };
            (Kind::DeleteRange, request.encode_to_vec().into())
        }
        1 => {
            let success =
                (0..4).map(|_| RequestOp { request: Some(Request::RequestPut(put(random))) }).collect();
            (Kind::Txn, TxnRequest { success, ..TxnRequest::default() }.encode_to_vec().into())
        }
        2 => {
            // A kept hash of revision 0 would be that of the newest one from then on, as in etcd.
            let revision = (revision - i64::try_from(random.below(10)).unwrap()).max(1);
            let request = CompactionRequest { revision, physical: random.one_in(2) };
            (Kind::Compact, request.encode_to_vec().into())
        }
        _ => (Kind::Put, put(random).encode_to_vec().into()),
    }
}
