//! The member that receives a state and crashes: the shipped log core and state core, whose effects
//! are carried out one at a time on a recorded directory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use revd_engine::mvcc::{Checkpoint, SavedState, StoreBuilder, View, WrittenCheckpoint};
use revd_engine::random::Random;
use revd_engine::transfer::StateStream;
use revd_member::apply::command::CommandId;
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::{ReceivedState, ReplacedState};
use revd_member::apply::state_hashes::HashPoint;
use revd_member::apply::{DurableIndex, Lost, Machine};
use revd_member::boot::recovery::Recovery;
use revd_member::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::LogEvent;
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::cores::state::StateCore;
use revd_member::error::Error;
use revd_member::peer::PeerMessage;
use revd_member::wal::BLOCK;
use revd_member::wal::layout::{Layout, LayoutConfig, LogStep, ReleasedSegment};

use crate::directory::{Directory, Name, Op};
use crate::others::{FromLog, TICK};
use crate::start::{forget, open};

const LAYOUT: LayoutConfig = LayoutConfig { segment_bytes: 6 * BLOCK as u64, secret: 0x5EED };

/// A promise to other members, which a crash must not break.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Promise {
    pub(crate) term: u64,
    /// Entries up to here are durable.
    pub(crate) index: u64,
}

/// A state that comes, chunk by chunk.
struct Coming {
    from: u64,
    term: u64,
    stream: StateStream,
    builder: StoreBuilder,
}

pub(crate) struct Receiver {
    pub(crate) id: u64,
    pub(crate) directory: Directory,
    layout: Layout,
    log: LogCore,
    from_log: FromLog,
    events: VecDeque<LogEvent>,
    /// The steps that are left of the frame that is being written.
    steps: VecDeque<LogStep>,
    removals: VecDeque<ReleasedSegment>,
    state: StateCore,
    from_state: FromState,
    to_state: VecDeque<StateEvent>,
    coming: Option<Coming>,
    /// A state has come, or is on its way into its place.
    is_place_taken: bool,
    /// The end of a state's way: its sender is told.
    taken: Vec<u64>,
    /// By ops done: the promises made until then.
    pub(crate) promises: Vec<(usize, Promise)>,
    pub(crate) installed: u64,
}

/// Effects of the state core, and what is under way elsewhere.
#[derive(Default)]
struct FromState {
    microseconds: Cell<u64>,
    writing: Option<Box<WrittenCheckpoint>>,
    reminders: u64,
    is_naming: bool,
    durable: Vec<DurableIndex>,
    applied: Vec<u64>,
    last: Option<View>,
}

impl StateEffects for FromState {
    fn microseconds(&self) -> u64 {
        self.microseconds.set(self.microseconds.get() + 100);
        self.microseconds.get()
    }

    fn last_index(&self) -> u64 {
        unreachable!("there are no leases")
    }

    fn counted(&mut self, _counts: LeaseCounts) {}

    fn publish(&mut self, view: View, applied: u64, _leases: usize) {
        let before = self.last.as_ref().map_or(0, View::revision);
        assert!(view.revision() >= before, "Views go on: {before}");
        self.last = Some(view);
        self.applied.push(applied);
    }

    fn answer(&mut self, id: CommandId, _outcome: Outcome) {
        unreachable!("nobody calls: {id:?}");
    }

    fn answer_member(&mut self, member: u64, _id: CommandId, _outcome: Outcome) {
        unreachable!("member {member} asks nothing");
    }

    fn end_reads(&mut self, _edge: u16, ticket: u64, _result: Result<(), Error>) {
        unreachable!("nobody waits to read with ticket {ticket}");
    }

    fn lost(&mut self, _lost: Lost) {}

    fn hear(&mut self, _question: u64) {
        unreachable!("there are no leases");
    }

    fn tell_of_view(&mut self) {}

    fn write(&mut self, checkpoint: Checkpoint, _is_light: bool) {
        self.writing = Some(Box::new(checkpoint.write().unwrap()));
    }

    fn remind(&mut self, _after: Duration) {
        self.reminders += 1;
    }

    fn durable(&mut self, index: DurableIndex) {
        self.durable.push(index);
    }

    fn run(&mut self, _command: LongCommand) {
        unreachable!("nothing takes long");
    }

    fn encode(&mut self, _list: LongList) {
        unreachable!("there are no leases");
    }

    fn install(&mut self) {
        self.is_naming = true;
    }

    fn discard(&mut self, state: ReplacedState) {
        drop(state);
    }

    fn stream(&mut self, to: u64, _term: u64, _state: Option<SavedState>) {
        unreachable!("member {to} does not lag behind");
    }

    fn hashed(&mut self, _to: u64, _point: HashPoint, _corrupt: &[u64]) {}

    fn corrupt(&mut self, is_corrupt: bool) {
        assert!(!is_corrupt, "its state differs from that of the others");
    }

    fn note(&mut self, note: Note) {
        unreachable!("{note:?}");
    }
}

impl Receiver {
    pub(crate) fn new(recovery: Recovery, directory: Directory) -> Self {
        let Recovery { identity, origin, machine, node, log: found, .. } = recovery;
        let mut from_log = FromLog::default();
        let mut log = LogCore::new(node, LogConfig { origin, edges: 1, tick: TICK });
        log.start(&mut from_log).unwrap();
        Self {
            id: identity.member,
            directory,
            layout: Layout::new(LAYOUT, &found),
            log,
            from_log,
            events: VecDeque::new(),
            steps: VecDeque::new(),
            removals: VecDeque::new(),
            state: StateCore::new(machine, 1),
            from_state: FromState::default(),
            to_state: VecDeque::new(),
            coming: None,
            is_place_taken: false,
            taken: Vec::new(),
            promises: vec![(0, Promise::default())],
            installed: 0,
        }
    }

    pub(crate) fn event(&mut self, event: LogEvent) {
        self.events.push_back(event);
    }

    /// A member begins to send its state; false if another one comes.
    pub(crate) fn begin(&mut self, from: u64, term: u64, state: &SavedState) -> bool {
        if std::mem::replace(&mut self.is_place_taken, true) {
            return false;
        }
        forget(&self.directory);
        let builder = StoreBuilder::new(self.directory.open(Name::Receiving)).unwrap();
        self.coming = Some(Coming { from, term, stream: state.stream(), builder });
        true
    }

    /// Senders whose states are whole here.
    pub(crate) fn taken(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.taken)
    }

    /// Some part of it goes on by a step; what it says to others.
    pub(crate) fn step(&mut self, random: &mut Random) -> Vec<(u64, PeerMessage)> {
        match random.below(7) {
            0 | 1 => self.turn_log(),
            2 => self.write_log(),
            3 => {
                if let Some(released) = self.removals.pop_front() {
                    self.directory.change(Op::RemoveSegment(released.segment));
                }
            }
            4 => self.turn_state(),
            5 => self.receive(),
            _ => self.end_jobs(random),
        }
        let said: Vec<_> = self.from_log.messages.drain(..).collect();
        said.iter().for_each(|(_, message)| self.promise(message));
        said
    }

    fn turn_log(&mut self) {
        for event in self.events.drain(..) {
            self.log.receive(event, &mut self.from_log);
        }
        self.log.advance(&mut self.from_log).unwrap();
        if std::mem::take(&mut self.from_log.has_discarded) {
            forget(&self.directory);
            self.is_place_taken = false;
        }
        if std::mem::take(&mut self.from_log.is_installed) {
            self.is_place_taken = false;
        }
        let work: Vec<_> = self.from_log.work.drain(..).collect();
        if !work.is_empty() {
            self.to_state.push_back(StateEvent::Work(work));
        }
    }

    /// One step of the frame under way is durable, or the next job of the writer begins.
    fn write_log(&mut self) {
        if let Some(step) = self.steps.pop_front() {
            self.directory.change(Op::Log(step));
            if self.steps.is_empty() {
                self.events.push_back(LogEvent::Written);
            }
        } else if let Some(index) = self.from_log.release.take() {
            self.removals.extend(self.layout.release(index, false));
        } else if let Some(frame) = self.from_log.frame.take() {
            self.steps.extend(self.layout.append(&frame));
        }
    }

    fn turn_state(&mut self) {
        if self.to_state.is_empty() && !self.state.can_go_on() {
            return;
        }
        for event in self.to_state.drain(..) {
            self.state.receive(event, &mut self.from_state).unwrap();
        }
        self.state.turn(Standpoint { is_ready: true }, &mut self.from_state).unwrap();
        for applied in self.from_state.applied.drain(..) {
            self.events.push_back(LogEvent::Applied(applied));
        }
        for durable in self.from_state.durable.drain(..) {
            self.events.push_back(LogEvent::Durable(durable));
        }
    }

    /// The next chunk of the state that comes; when it is whole, what `receiving.rs` of the server
    /// does.
    fn receive(&mut self) {
        let Some(mut coming) = self.coming.take() else { return };
        let mut chunk = Vec::new();
        if coming.stream.next_chunk(&mut chunk).unwrap() {
            coming.builder.add(&Bytes::from(chunk)).unwrap();
            self.coming = Some(coming);
            return;
        }
        coming.builder.finish().unwrap();
        self.directory.change(Op::Rename(Name::Receiving, Name::Received));
        self.directory.change(Op::SyncNames);
        let store = open(self.directory.open(Name::Received));
        let state = Box::new(ReceivedState::load(store).unwrap());
        self.taken.push(coming.from);
        self.events.push_back(LogEvent::StateReceived { from: coming.from, term: coming.term, state });
    }

    /// The end of what goes on elsewhere.
    fn end_jobs(&mut self, random: &mut Random) {
        if let Some(written) = self.from_state.writing.take() {
            self.to_state.push_back(StateEvent::Written { written, made_room: false });
        } else if std::mem::take(&mut self.from_state.is_naming) {
            self.installed += 1;
            self.directory.change(Op::Rename(Name::Received, Name::Tree));
            self.directory.change(Op::SyncNames);
            self.to_state.push_back(StateEvent::Installed);
        } else if self.from_state.reminders > 0 && random.one_in(4) {
            self.from_state.reminders -= 1;
            self.to_state.push_back(StateEvent::CheckpointDue);
        }
    }

    /// Remembers a promise: a crash from now on must not break it.
    fn promise(&mut self, message: &PeerMessage) {
        let PeerMessage::Raft(message) = message else { return };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (kind, is_rejected) = (bytes[0], bytes[1] & 1 == 1);
        let mut promise = self.promises.last().unwrap().1;
        match kind {
            2 if !is_rejected => promise.index = promise.index.max(number(34)),
            2 | 4 => {}
            _ => return,
        }
        promise.term = promise.term.max(number(18));
        self.promises.push((self.directory.ops_done(), promise));
    }

    /// The View that it serves, if that is all that it has applied.
    pub(crate) fn view(&self) -> Option<&View> {
        let machine: &Machine = self.state.machine()?;
        let index = machine.store().applied().index;
        self.from_state.last.as_ref().filter(|view| view.applied().index == index)
    }
}
