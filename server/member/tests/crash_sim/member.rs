//! A member that runs in parts: clients, the log core, what writes the log and what removes its segments, the state core,
//! the helper thread of its checkpoints, and readers. Each part goes on by itself, in small steps; between any two of them
//! it may stand still, as a core or a thread does from which the system has taken the time, while the others go on. The
//! loops of `cores/log.rs` and `cores/state.rs` are drawn here in their order; what they carry out is the real thing.

use std::collections::VecDeque;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{CheckpointKind, Durable, View, Written};
use revd_engine::random::Random;
use revd_member::apply::command::{self, Command, CommandId, Kind};
use revd_member::apply::outcome::{Effect, Outcome};
use revd_member::apply::{CommittedEntry, DurableIndex, Next};
use revd_member::raft::node::Effects;
use revd_member::wal::FrameContent;
use revd_member::wal::layout::{Released, Step};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};

use crate::{Acknowledged, FRAMES, ORIGIN, Run, Sim, WalFiles, WalOp, hash_of};

/// Commands of clients that wait for their answers.
const OUTSTANDING_MAX: usize = 24;
/// Steps in which a member without clients comes to rest, many times over.
const REST_STEPS_MAX: usize = 20_000;

/// What goes on by itself.
#[derive(Debug, Clone, Copy)]
enum Part {
    Clients,
    Log,
    Writer,
    Remover,
    State,
    Checkpoint,
    Reader,
}

impl Part {
    const ALL: [Self; 7] =
        [Self::Clients, Self::Log, Self::Writer, Self::Remover, Self::State, Self::Checkpoint, Self::Reader];
}

/// What the log core hears of.
enum LogEvent {
    Written,
    Durable(DurableIndex),
}

/// What the log's writer is given to do.
enum WalJob {
    Append(FrameContent),
    Release(u64),
}

/// What comes next in the state core's turn.
enum Turn {
    TakeIn,
    Tell(Durable),
    Apply,
    Publish,
    Answer,
    Save,
}

/// A View, and its hash when it was published.
#[derive(Clone)]
struct Shown {
    view: View,
    hash: u32,
}

pub(crate) struct Member {
    sim: Sim,
    random: Random,
    /// A part stands still after one in so many of its steps, and for how many of its turns each still does.
    stalls_one_in: u64,
    still: [u64; Part::ALL.len()],
    has_clients: bool,
    queue: VecDeque<Command>,
    outstanding: usize,
    to_log: VecDeque<LogEvent>,
    jobs: VecDeque<WalJob>,
    /// What is left to do of the frame that is being written.
    steps: VecDeque<Step>,
    frames: usize,
    removals: VecDeque<Released>,
    work: VecDeque<CommittedEntry>,
    turn: Turn,
    /// The entry that is being applied, or was last.
    index: u64,
    /// What is to be answered, with its entry; and what waits for a compaction.
    effects: Vec<(u64, Effect)>,
    compacting: Vec<(u64, Outcome)>,
    /// The checkpoint that is being written, and the one that was.
    writing: Option<Written>,
    written: Option<Written>,
    shown: Shown,
    held: Vec<Shown>,
    /// The newest revision that a client knows of.
    answered: i64,
    truth: Vec<(i64, u32)>,
    acknowledged: Vec<Acknowledged>,
}

impl Member {
    pub(crate) fn new(mut sim: Sim, seed: u64) -> Self {
        let view = sim.machine.store_mut().view();
        let hash = hash_of(view.clone());
        let birth = (view.revision(), hash);
        Self {
            random: Random::new(seed),
            stalls_one_in: [u64::MAX, 40, 12, 12][usize::try_from(seed % 4).unwrap()],
            still: [0; Part::ALL.len()],
            has_clients: true,
            queue: VecDeque::new(),
            outstanding: 0,
            to_log: VecDeque::new(),
            jobs: VecDeque::new(),
            steps: VecDeque::new(),
            frames: 0,
            removals: VecDeque::new(),
            work: VecDeque::new(),
            turn: Turn::TakeIn,
            index: sim.machine.store().applied().index,
            effects: Vec::new(),
            compacting: Vec::new(),
            writing: None,
            written: None,
            shown: Shown { view, hash },
            held: Vec::new(),
            answered: 0,
            truth: vec![(0, 0), birth],
            acknowledged: Vec::new(),
            sim,
        }
    }

    /// Lets it run for a while, and then come to rest.
    pub(crate) fn run(mut self) -> Run {
        while self.frames < FRAMES {
            let part = self.random.pick(&Part::ALL);
            self.go_on(part);
        }
        self.has_clients = false;
        self.stalls_one_in = u64::MAX;
        for step in 0.. {
            assert!(step < REST_STEPS_MAX, "the member does not come to rest");
            self.go_on(Part::ALL[step % Part::ALL.len()]);
            if step % Part::ALL.len() == 0 && self.is_at_rest() {
                break;
            }
        }
        assert_eq!((self.outstanding, self.compacting.len()), (0, 0), "somebody is never answered");
        let mut files = WalFiles::default();
        self.sim.wal.iter().for_each(|op| files.apply(op, &mut |_| true));
        assert!(files.segments.len() <= 2, "the log keeps {} segments", files.segments.len());
        let Self { sim, truth, mut acknowledged, .. } = self;
        acknowledged.resize(sim.wal.len() + 1, acknowledged.last().copied().unwrap_or_default());
        Run { calls: sim.disk.recorded(), wal: sim.wal, tree_calls: sim.tree_calls, truth, acknowledged }
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
                    self.sim.record(WalOp::Remove(released));
                }
            }
            Part::State => self.take_turn(),
            Part::Checkpoint => {
                if let Some(written) = self.writing.take() {
                    self.sim.calls_over = self.sim.disk.recorded().len();
                    self.written = Some(written);
                }
            }
            Part::Reader => self.read(),
        }
        if self.random.one_in(self.stalls_one_in) {
            self.still[part as usize] = 1 + self.random.below(40);
        }
    }

    fn is_at_rest(&self) -> bool {
        let store = self.sim.machine.store();
        let log = self.queue.is_empty() && self.to_log.is_empty() && self.jobs.is_empty();
        let files = self.steps.is_empty() && self.removals.is_empty() && !self.sim.node.is_writing();
        let applied = self.work.is_empty() && self.effects.is_empty() && !self.sim.machine.is_within_entry();
        let has_chores = store.compaction_pending() || store.is_sweeping() || store.is_defragmenting();
        let saved = self.writing.is_none() && self.written.is_none() && !store.has_unsaved() && !has_chores;
        log && files && applied && saved && matches!(self.turn, Turn::TakeIn)
    }

    fn ask(&mut self) {
        if !self.has_clients || self.outstanding >= OUTSTANDING_MAX {
            return;
        }
        for _ in 0..=self.random.below(4) {
            let (kind, payload) = random_command(&mut self.random, self.shown.view.revision());
            self.queue.push_back(Command { id: CommandId::new(0, 0, 0), kind, payload });
            self.outstanding += 1;
        }
    }

    /// One event of the log core, and what raft wants done then.
    fn drive_raft(&mut self) {
        match self.to_log.pop_front() {
            Some(LogEvent::Written) => self.sim.node.written(),
            Some(LogEvent::Durable(index)) => {
                self.sim.node.release(index.get());
                self.jobs.push_back(WalJob::Release(index.get()));
            }
            None => {}
        }
        if !self.sim.node.is_writing() && self.sim.node.standing().is_leader {
            while !self.queue.is_empty() {
                let count = self.queue.len().min(1 + usize::try_from(self.random.below(5)).unwrap());
                let commands: Vec<Command> = self.queue.drain(..count).collect();
                self.sim.node.propose(command::encode(ORIGIN, &commands)).unwrap();
            }
        }
        let Effects { append, committed } = self.sim.node.effects();
        self.jobs.extend(append.map(WalJob::Append));
        self.work.extend(committed);
    }

    /// One step of the frame under way is durable, or the next job begins.
    fn write_log(&mut self) {
        if let Some(step) = self.steps.pop_front() {
            self.sim.record(WalOp::Step(step));
            if self.steps.is_empty() {
                self.frames += 1;
                self.to_log.push_back(LogEvent::Written);
            }
            return;
        }
        match self.jobs.pop_front() {
            Some(WalJob::Append(frame)) => self.steps.extend(self.sim.layout.append(&frame)),
            Some(WalJob::Release(index)) => self.removals.extend(self.sim.layout.release(index, false)),
            None => {}
        }
    }

    /// One step of the state core's turn.
    fn take_turn(&mut self) {
        self.turn = match std::mem::replace(&mut self.turn, Turn::TakeIn) {
            Turn::TakeIn => match self.written.take() {
                Some(written) => {
                    let durable = self.sim.machine.store_mut().finish_checkpoint(written);
                    self.show();
                    if !durable.compaction_pending {
                        for (index, outcome) in std::mem::take(&mut self.compacting) {
                            self.answer(index, &outcome);
                            let compacted = self.shown.view.compact_revision();
                            self.acknowledge(Acknowledged { index, compacted });
                        }
                    }
                    Turn::Tell(durable)
                }
                None => Turn::Apply,
            },
            Turn::Tell(durable) => {
                self.to_log.push_back(LogEvent::Durable(DurableIndex::of(&durable)));
                Turn::Apply
            }
            Turn::Apply => {
                if self.apply() {
                    Turn::Publish
                } else {
                    Turn::Save
                }
            }
            Turn::Publish => {
                self.show();
                Turn::Answer
            }
            Turn::Answer => {
                for (index, effect) in std::mem::take(&mut self.effects) {
                    match effect {
                        Effect::Reply(_, outcome) => self.answer(index, &outcome),
                        Effect::ReplyWhenCompacted(_, outcome) => self.compacting.push((index, outcome)),
                        Effect::Hear(_) => unreachable!("there are no leases"),
                    }
                }
                Turn::Save
            }
            Turn::Save => {
                self.save();
                Turn::TakeIn
            }
        };
    }

    /// A few commands; a turn may end within an entry.
    fn apply(&mut self) -> bool {
        let mut has_news = false;
        for _ in 0..=self.random.below(6) {
            let machine = &mut self.sim.machine;
            let mut effects = Vec::new();
            if machine.next() == Next::Nothing {
                let Some(entry) = self.work.pop_front() else { break };
                self.index = entry.index;
                machine.begin(&entry).unwrap();
            } else {
                machine.step(0, &mut effects).unwrap();
            }
            has_news = true;
            self.effects.extend(effects.into_iter().map(|effect| (self.index, effect)));
            if !machine.is_within_entry() {
                let view = machine.store_mut().view();
                self.truth.push((view.revision(), hash_of(view)));
                assert_eq!(self.truth.len() as u64 - 1, self.index);
            }
        }
        has_news
    }

    fn show(&mut self) {
        let view = self.sim.machine.store_mut().view();
        assert!(view.revision() >= self.shown.view.revision(), "Views go on");
        let hash = hash_of(view.clone());
        self.shown = Shown { view, hash };
    }

    /// A client has its answer, and reads what it has written.
    fn answer(&mut self, index: u64, outcome: &Outcome) {
        let shown = self.shown.view.revision();
        assert!(outcome.revision <= shown, "an answer of revision {} overtakes {shown}", outcome.revision);
        self.answered = self.answered.max(outcome.revision);
        self.outstanding -= 1;
        self.acknowledge(Acknowledged { index, compacted: 0 });
    }

    /// Also a crash in what is under way now must not take it back.
    fn acknowledge(&mut self, what: Acknowledged) {
        let last = self.acknowledged.last().copied().unwrap_or_default();
        self.acknowledged.resize(self.sim.wal.len() + 1, last);
        self.acknowledged.last_mut().unwrap().add(what);
    }

    fn save(&mut self) {
        let store = self.sim.machine.store_mut();
        store.forget_compacted(1 + usize::try_from(self.random.below(8)).unwrap());
        let is_away = self.writing.is_some() || self.written.is_some();
        if is_away || self.sim.machine.is_within_entry() || (self.has_clients && self.random.below(3) > 0) {
            return;
        }
        let store = self.sim.machine.store_mut();
        if self.has_clients && self.random.one_in(10) {
            store.defragment().unwrap();
        }
        let kind = if self.random.one_in(4) { CheckpointKind::WithIndex } else { CheckpointKind::Auto };
        // Its calls happen from now on until the helper is done.
        self.writing = store.checkpoint(kind).map(|checkpoint| checkpoint.write().unwrap());
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
