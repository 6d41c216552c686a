//! The member that receives a state and crashes: the shipped log core and state core, whose effects
//! are carried out one at a time on a recorded directory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
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
use revd_member::wal::WalError;
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::writer::{WalSeed, WalWriter};
use revd_sim::disk::{Directory, LogFiles, Ticket};

use crate::others::{FromLog, TICK};
use crate::start::open;

const LAYOUT: LayoutConfig =
    LayoutConfig { segment_bytes: 6 * BLOCK as u64, first_segment_bytes: 3 * BLOCK as u64, secret: 0x5EED };

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

type Writing = Pin<Box<dyn Future<Output = (WalWriter<LogFiles>, Result<(), WalError>)>>>;

pub(crate) struct Receiver {
    pub(crate) id: u64,
    pub(crate) directory: Directory,
    /// None while a frame is written.
    writer: Option<WalWriter<LogFiles>>,
    writing: Option<Writing>,
    /// Calls on the log's files that are under way.
    calls: Vec<Ticket>,
    log: LogCore,
    from_log: FromLog,
    events: VecDeque<LogEvent>,
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
struct FromState {
    directory: Directory,
    microseconds: Cell<u64>,
    writing: Option<(Box<WrittenCheckpoint>, Ticket)>,
    reminders: u64,
    naming: Option<Ticket>,
    durable: Vec<DurableIndex>,
    applied: Vec<u64>,
    last: Option<View>,
}

impl FromState {
    fn new(directory: Directory) -> Self {
        Self {
            directory,
            microseconds: Cell::default(),
            writing: None,
            reminders: 0,
            naming: None,
            durable: Vec::new(),
            applied: Vec::new(),
            last: None,
        }
    }
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
        let (written, begun) = self.directory.job(|| checkpoint.write().unwrap());
        self.writing = Some((Box::new(written), begun.ticket));
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
        let (renamed, begun) = self.directory.job(|| self.directory.install_received());
        renamed.unwrap();
        self.naming = Some(begun.ticket);
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
            writer: Some(WalWriter::new(WalSeed { disk: directory.log(), layout: LAYOUT, log: found })),
            writing: None,
            calls: Vec::new(),
            log,
            from_log,
            events: VecDeque::new(),
            state: StateCore::new(machine, 1),
            from_state: FromState::new(directory.clone()),
            directory,
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
        let builder = self.at_once(|directory| {
            StoreBuilder::new(directory.begin_receiving(state.bytes()).unwrap()).unwrap()
        });
        self.coming = Some(Coming { from, term, stream: state.stream(), builder });
        true
    }

    /// A helper's job that is over when it returns; a crash may come in the middle of it.
    fn at_once<T>(&self, job: impl FnOnce(&Directory) -> T) -> T {
        let (done, begun) = self.directory.job(|| job(&self.directory));
        self.directory.end(begun.ticket);
        done
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
                if !self.calls.is_empty() {
                    let at = usize::try_from(random.below(self.calls.len() as u64)).unwrap();
                    self.directory.end(self.calls.swap_remove(at));
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
            self.at_once(|directory| directory.forget_received().unwrap());
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

    /// The frame under way goes on, or the next job of the writer begins.
    fn write_log(&mut self) {
        if self.writing.is_none() {
            let mut writer = self.writer.take().expect("nothing is written");
            if let Some(index) = self.from_log.release.take() {
                writer.release(index);
            }
            match self.from_log.frame.take() {
                None => self.writer = Some(writer),
                Some(frame) => {
                    self.writing = Some(Box::pin(async move {
                        let result = writer.append(&frame).await;
                        (writer, result)
                    }));
                }
            }
        }
        let writing = self.writing.as_mut();
        let polled = writing.map(|it| it.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        if let Some(Poll::Ready((writer, written))) = polled {
            written.unwrap();
            (self.writer, self.writing) = (Some(writer), None);
            self.events.push_back(LogEvent::Written);
        }
        self.calls.extend(self.directory.take_begun().into_iter().map(|begun| begun.ticket));
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
            self.at_once(|_| coming.builder.add(&Bytes::from(chunk)).unwrap());
            self.coming = Some(coming);
            return;
        }
        self.at_once(|directory| {
            coming.builder.finish().unwrap();
            directory.keep_received().unwrap();
        });
        let store = open(self.directory.received().unwrap());
        let state = Box::new(ReceivedState::load(store).unwrap());
        self.taken.push(coming.from);
        self.events.push_back(LogEvent::StateReceived { from: coming.from, term: coming.term, state });
    }

    /// The end of what goes on elsewhere.
    fn end_jobs(&mut self, random: &mut Random) {
        if let Some((written, ticket)) = self.from_state.writing.take() {
            self.directory.end(ticket);
            self.to_state.push_back(StateEvent::Written { written, made_room: false });
        } else if let Some(ticket) = self.from_state.naming.take() {
            self.installed += 1;
            self.directory.end(ticket);
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
        self.promises.push((self.directory.steps(), promise));
    }

    /// The View that it serves, if that is all that it has applied.
    pub(crate) fn view(&self) -> Option<&View> {
        let machine: &Machine = self.state.machine()?;
        let index = machine.store().applied().index;
        self.from_state.last.as_ref().filter(|view| view.applied().index == index)
    }
}
