//! A member: the shipped log core and machine, a log and a tree file that outlive crashes, and its
//! clients.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, SavedState, SmallTable, Store, StoreBuilder};
use revd_engine::random::Random;
use revd_member::apply::command::{Command, CommandId, Kind, Origin};
use revd_member::apply::local::Submitted;
use revd_member::apply::outcome::Effect;
use revd_member::apply::received::ReceivedState;
use revd_member::apply::state_hashes::HashAsks;
use revd_member::apply::{CommittedEntry, DurableIndex, Lost, Machine, MachineConfig, ReadReady, Work};
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::error::Error;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::raft::node::{LogRetention, RaftConfig, RaftNode};
use revd_member::schema;
use revd_member::wal::birth::{BIRTH, empty_log};
use revd_member::wal::reader::RecoveredLog;
use revd_member::wal::{FrameContent, LogEntry, LogRestart};
use revd_proto::etcdserverpb::PutRequest;

use crate::history::History;

/// Effects of a log core, on their way.
#[derive(Default)]
pub(crate) struct FromLog {
    pub(crate) frame: Option<FrameContent>,
    pub(crate) release: Option<u64>,
    pub(crate) work: VecDeque<Work>,
    pub(crate) messages: Vec<(u64, PeerMessage)>,
    fetches: Vec<LogFetch>,
    /// The state that was received last is in its place, or was of no use; the latter with its
    /// file.
    may_receive: bool,
    has_discarded: bool,
}

impl LogEffects for FromLog {
    fn append(&mut self, frame: FrameContent) {
        assert!(self.frame.replace(frame).is_none(), "one frame at a time");
    }

    fn release(&mut self, index: u64) {
        self.release = Some(index);
    }

    fn work(&mut self, work: Work) {
        self.work.push_back(work);
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.push((to, message));
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.fetches.push(fetch);
    }

    fn set_peers(&mut self, _peers: Vec<Peer>) {}

    fn discard(&mut self, _state: Box<ReceivedState>) {
        (self.may_receive, self.has_discarded) = (true, true);
    }

    fn installed(&mut self) {
        self.may_receive = true;
    }
}

/// A call of a client of this member, with the revision that it must not fall behind.
#[derive(Clone, Copy)]
struct Call {
    number: u64,
    floor: i64,
}

/// A member that runs.
struct Running {
    log: LogCore,
    machine: Machine,
    from_log: FromLog,
    events: VecDeque<LogEvent>,
    puts: BTreeMap<CommandId, Call>,
    /// By ticket: the floors of reads that wait.
    reads: BTreeMap<u64, i64>,
    /// Reads up to this ticket are served once this index is applied.
    ready: VecDeque<(u64, u64)>,
    submitted: u64,
    tickets: u64,
    leads: Option<u64>,
    is_receiving: bool,
    hash_asks: HashAsks,
    sending: Vec<(u64, u64, SimDisk)>,
    /// Entries on their way from the log's segments.
    fetching: Vec<(LogFetch, Option<Vec<LogEntry>>)>,
}

/// Whether members ask before an election whether it can be won (`--pre-vote`).
#[derive(Clone, Copy)]
pub(crate) enum PreVotes {
    On,
    Off,
    /// By each start of each member.
    Toggled,
}

pub(crate) struct Member {
    pub(crate) id: u64,
    members: u64,
    boot: u64,
    pre_votes: PreVotes,
    disk: SimDisk,
    /// A state that another member has sent, whole.
    received: Option<SimDisk>,
    durable: RecoveredLog,
    /// Its state is not what the log has made it.
    pub(crate) is_forged: bool,
    running: Option<Running>,
}

impl Member {
    pub(crate) fn new(id: u64, members: u64, pre_votes: PreVotes) -> Self {
        let disk = SimDisk::new();
        let mut store = Self::open(&disk);
        schema::put_conf_state(&mut store, &ConfState::of_voters((1..=members).collect()));
        store.set_applied(BIRTH);
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        store.finish_checkpoint(written);
        let durable = empty_log(Identity { cluster: 1, member: id });
        let mut member = Self {
            id,
            members,
            boot: 0,
            pre_votes,
            disk,
            received: None,
            durable,
            is_forged: false,
            running: None,
        };
        member.start(id);
        member
    }

    fn open(disk: &SimDisk) -> Store {
        Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts from what is durable.
    pub(crate) fn start(&mut self, seed: u64) {
        self.boot += 1;
        let own = Origin { member: self.id, boot: self.boot };
        let mut store = Self::open(&self.disk);
        let received = self.received.take();
        if self.durable.base.0 > store.applied().index {
            // As recovery does.
            self.disk = received.expect("the log begins again behind a state that is there");
            store = Self::open(&self.disk);
            let Applied { index, term } = store.applied();
            assert_eq!((index, term), self.durable.base);
        }
        // Some keep so little of the log that others need a state, some so little of it in memory
        // that they read all the time.
        let (snapshot_count, catchup_entries) =
            [(1 << 40, 0), (6, 3), (30, 20)][usize::try_from(seed % 3).unwrap()];
        let disk_bytes_max = if seed.is_multiple_of(5) { 20 * 4096 } else { 1 << 40 };
        let memory_bytes_max = if seed.is_multiple_of(4) { 1 << 20 } else { 300 };
        let config = RaftConfig {
            conf_state: ConfState::of_voters((1..=self.members).collect()),
            seed: seed ^ self.id << 32,
            retention: LogRetention { snapshot_count, catchup_entries, disk_bytes_max, memory_bytes_max },
            pre_vote: match self.pre_votes {
                PreVotes::On => true,
                PreVotes::Off => false,
                PreVotes::Toggled => seed.is_multiple_of(2),
            },
            advances_election: seed.is_multiple_of(5),
            ..RaftConfig::alone(self.id, store.applied().index)
        };
        let machine = Machine::new(store, MachineConfig { own, quota_bytes: 0, lease_extension: 0 }).unwrap();
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut found = self.durable.clone();
        found.forget_applied(config.applied);
        let node = RaftNode::start(&config, &found, &logger).unwrap();
        let tick = Duration::from_millis(100);
        let mut log = LogCore::new(node, LogConfig { origin: own, edges: 1, tick });
        let mut from_log = FromLog::default();
        log.start(&mut from_log).unwrap();
        self.running = Some(Running {
            log,
            machine,
            from_log,
            events: VecDeque::new(),
            puts: BTreeMap::new(),
            reads: BTreeMap::new(),
            ready: VecDeque::new(),
            submitted: 0,
            tickets: 0,
            leads: None,
            is_receiving: false,
            hash_asks: HashAsks::default(),
            sending: Vec::new(),
            fetching: Vec::new(),
        });
    }

    /// States that are to be sent: to which member, in which term, and the file it makes of them.
    pub(crate) fn sending(&mut self) -> Vec<(u64, u64, SimDisk)> {
        self.running.as_mut().map_or_else(Vec::new, |running| std::mem::take(&mut running.sending))
    }

    /// A state has come, whole; false if another one is on its way into its place.
    pub(crate) fn receive(&mut self, from: u64, term: u64, disk: SimDisk) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| !running.is_receiving) else {
            return false;
        };
        running.is_receiving = true;
        let state = Box::new(ReceivedState::load(Self::open(&disk)).unwrap());
        running.events.push_back(LogEvent::StateReceived { from, term, state });
        self.received = Some(disk);
        true
    }

    /// Everything in memory is gone. The frame that was being written may be durable all the same.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let Some(running) = self.running.take() else { return };
        if let Some(frame) = running.from_log.frame
            && random.one_in(2)
        {
            self.write(frame);
        }
    }

    /// The frame replaces entries of the log from its first one on.
    fn write(&mut self, frame: FrameContent) {
        let FrameContent { restart, hard_state, entries } = frame;
        if let Some(LogRestart { index, term }) = restart {
            self.durable.entries.clear();
            self.durable.base = (index, term);
        }
        if let Some(state) = hard_state {
            self.durable.hard_state = state;
        }
        if let Some(first) = entries.first() {
            self.durable.entries.retain(|entry| entry.index < first.index);
            let last = self.durable.entries.back().map_or(self.durable.base.0, |entry| entry.index);
            assert_eq!(last + 1, first.index, "a gap in the log of member {}", self.id);
        }
        self.durable.entries.extend(entries);
    }

    pub(crate) fn event(&mut self, event: LogEvent) {
        if let Some(running) = &mut self.running {
            running.events.push_back(event);
        }
    }

    /// A turn of the log core: messages to send.
    pub(crate) fn turn(&mut self, history: &mut History) -> Vec<(u64, PeerMessage)> {
        let Some(running) = &mut self.running else { return Vec::new() };
        for event in running.events.drain(..) {
            running.log.receive(event, &mut running.from_log);
        }
        running.log.advance(&mut running.from_log).unwrap();
        let status = running.log.status();
        let leads = status.is_leader.then_some(status.term);
        if running.leads != leads {
            running.leads = leads;
            leads.inspect(|term| history.leads(self.id, *term));
        }
        if std::mem::take(&mut running.from_log.may_receive) {
            running.is_receiving = false;
        }
        if std::mem::take(&mut running.from_log.has_discarded) {
            self.received = None;
        }
        for fetch in std::mem::take(&mut running.from_log.fetches) {
            running.fetching.push((fetch, entries_of(&self.durable, fetch)));
        }
        let messages = std::mem::take(&mut running.from_log.messages);
        let is_forward = |message: &PeerMessage| matches!(message, PeerMessage::Forward(_));
        let is_hash = |message: &PeerMessage| matches!(message, PeerMessage::Hash(_));
        history.seen.hashes += messages.iter().filter(|(_, message)| is_hash(message)).count() as u64;
        history.seen.forwards += messages.iter().filter(|(_, message)| is_forward(message)).count() as u64;
        if let Some(index) = running.from_log.release.take() {
            while self.durable.entries.front().is_some_and(|entry| entry.index <= index) {
                let entry = self.durable.entries.pop_front().unwrap();
                self.durable.base = (entry.index, entry.term);
            }
        }
        messages
    }

    /// Entries that were to be read are there, or cannot be read. The segment that held them may be
    /// another one by now.
    pub(crate) fn fetched(&mut self, random: &mut Random, is_wild: bool, history: &mut History) {
        let Some(running) = &mut self.running else { return };
        let Some((fetch, entries)) = running.fetching.pop() else { return };
        let entries = match random.below(if is_wild { 8 } else { 1 }) {
            1 => None,
            2 => Some(Vec::new()),
            // Of another index, or of another time.
            3 => entries_of(&self.durable, LogFetch { low: fetch.low + 1, ..fetch }),
            4 => entries.map(|mut entries| {
                entries.iter_mut().for_each(|entry| entry.term += random.below(2));
                entries
            }),
            _ => entries,
        };
        history.seen.fetches += 1;
        history.seen.unread += u64::from(entries.as_ref().is_none_or(Vec::is_empty));
        running.events.push_back(LogEvent::Fetched(fetch, entries));
    }

    /// The frame under way is durable.
    pub(crate) fn written(&mut self) {
        let Some(frame) = self.running.as_mut().and_then(|running| running.from_log.frame.take()) else {
            return;
        };
        self.write(frame);
        self.event(LogEvent::Written);
    }

    pub(crate) fn leads(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.log.status().is_leader)
    }

    pub(crate) fn term(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.log.status().term)
    }

    pub(crate) fn applied(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.machine.store().applied().index)
    }

    pub(crate) fn machine(&mut self) -> Option<&mut Machine> {
        self.running.as_mut().map(|running| &mut running.machine)
    }

    /// Calls without an end, and what else goes on.
    pub(crate) fn open_calls(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.puts.len() + running.reads.len())
    }

    /// Clients call: some put, some read.
    pub(crate) fn call(&mut self, random: &mut Random, history: &History) {
        let Some(running) = &mut self.running else { return };
        if running.puts.len() + running.reads.len() > 12 || running.log.is_stopping() {
            return;
        }
        let floor = history.called();
        let mut submitted = Submitted::default();
        for _ in 0..random.below(4) {
            running.submitted += 1;
            let id = CommandId(running.submitted);
            let key = format!("key {}", random.below(20)).into_bytes().into();
            let value = vec![random.byte(); usize::try_from(random.below(60)).unwrap()].into();
            let payload = PutRequest { key, value, ..PutRequest::default() }.encode_to_vec().into();
            submitted.commands.push(Command { id, kind: Kind::Put, payload });
            running.puts.insert(id, Call { number: running.submitted, floor });
        }
        submitted.number = running.submitted;
        if random.one_in(2) {
            running.tickets += 1;
            running.reads.insert(running.tickets, floor);
            submitted.read = Some(running.tickets);
        }
        running.events.push_back(LogEvent::Submitted { edge: 0, submitted });
    }

    /// Some of the work of the state core.
    pub(crate) fn work(&mut self, random: &mut Random, history: &mut History) {
        let Some(running) = &mut self.running else { return };
        for _ in 0..=random.below(3) {
            let Some(work) = running.from_log.work.pop_front() else { break };
            match work {
                Work::Entry(entry) => running.apply(&entry, history, self.is_forged),
                Work::Hash(ask) => running.hash_asks.add(ask),
                Work::Lost(Lost { numbers, .. }) => {
                    let before = running.puts.len();
                    running.puts.retain(|_, call| call.number > numbers[0]);
                    history.seen.lost += (before - running.puts.len()) as u64;
                }
                Work::Read(ReadReady { ticket, index: Ok(index), .. }) => {
                    running.ready.push_back((ticket, index));
                }
                Work::Read(ReadReady { ticket, .. }) => {
                    let later = running.reads.split_off(&(ticket + 1));
                    history.seen.refused_reads += running.reads.len() as u64;
                    running.reads = later;
                }
                Work::Answer(id, outcome) => {
                    assert!(outcome.result.is_err(), "there are no leases");
                    running.puts.remove(&id);
                }
                Work::Leads(_) => {}
                Work::Stream { to, term } => {
                    let state = running.machine.store().saved_state().unwrap();
                    running.sending.push((to, term, copy(&state)));
                }
                Work::Install(state) => {
                    self.disk = self.received.take().unwrap();
                    let mut effects = Vec::new();
                    drop(running.machine.replace_state(*state, 0, &mut effects).unwrap());
                    assert!(effects.is_empty(), "there are no leases");
                    let index = running.machine.store().applied().index;
                    let durable = DurableIndex::of_installed(&running.machine);
                    running.events.extend([LogEvent::Applied(index), LogEvent::Durable(durable)]);
                    history.seen.states += 1;
                }
                Work::Local(request) => unreachable!("{request:?} without a reason"),
            }
        }
        running.serve_reads(history, self.is_forged);
        running.tell_hashes();
    }

    /// Something writes into the state that is not in the log.
    pub(crate) fn forge(&mut self) {
        self.is_forged = true;
        let store = self.running.as_mut().unwrap().machine.store_mut();
        store.table_put(SmallTable::Cluster, b"forged", b"");
    }

    /// A checkpoint of what is applied.
    pub(crate) fn save(&mut self) {
        let Some(running) = &mut self.running else { return };
        let store = running.machine.store_mut();
        let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) else { return };
        let written = checkpoint.write().unwrap();
        let durable = DurableIndex::of(&store.finish_checkpoint(written));
        running.events.push_back(LogEvent::Durable(durable));
    }

    /// The member is asked to stop.
    pub(crate) fn stop(&mut self) {
        if let Some(running) = &mut self.running
            && !running.log.is_stopping()
        {
            running.puts.clear();
            running.reads.clear();
            running.events.push_back(LogEvent::EdgeClosed);
        }
    }

    /// It was asked to, and is done.
    pub(crate) fn is_over(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.log.is_over())
    }
}

/// Entries that a member reads for another one: no more than the fetch names, and often fewer.
fn entries_of(log: &RecoveredLog, fetch: LogFetch) -> Option<Vec<LogEntry>> {
    let wanted = log.entries.iter().filter(|entry| (fetch.low..fetch.high).contains(&entry.index));
    let entries: Vec<LogEntry> = wanted.take(usize::try_from(1 + fetch.low % 7).unwrap()).cloned().collect();
    entries.first().is_some_and(|first| first.index == fetch.low).then_some(entries)
}

/// The file that a receiver makes of a state.
fn copy(state: &SavedState) -> SimDisk {
    let disk = SimDisk::new();
    let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
    let (mut stream, mut chunk) = (state.stream(), Vec::new());
    while stream.next_chunk(&mut chunk).unwrap() {
        builder.add(&chunk).unwrap();
    }
    builder.finish().unwrap();
    disk
}

impl Running {
    fn tell_hashes(&mut self) {
        for (to, point) in self.hash_asks.answers(self.machine.hashes()) {
            let corrupt = self.machine.corrupt_members().to_vec();
            self.events.push_back(LogEvent::Hash { to, point, corrupt });
        }
    }

    fn apply(&mut self, entry: &CommittedEntry, history: &mut History, is_forged: bool) {
        let mut effects = Vec::new();
        self.machine.apply(entry, 0, &mut effects).unwrap();
        let Applied { index, .. } = self.machine.store().applied();
        assert_eq!(index, entry.index);
        if !is_forged {
            history.applied(entry, self.machine.store().revision(), self.machine.store().state_hash());
        }
        for effect in effects {
            let Effect::Reply(id, outcome) = effect else { panic!("{effect:?}") };
            // One that was lost may be applied all the same.
            if let Some(call) = self.puts.remove(&id) {
                if outcome.result == Err(Error::Corrupt) {
                    assert!(!self.machine.corrupt_members().is_empty());
                    continue;
                }
                outcome.result.unwrap();
                if !is_forged {
                    history.put(call.floor, outcome.revision);
                }
            }
        }
        self.events.push_back(LogEvent::Applied(index));
    }

    fn serve_reads(&mut self, history: &mut History, is_forged: bool) {
        let applied = self.machine.store().applied().index;
        let revision = self.machine.store().revision();
        while let Some((ticket, _)) = self.ready.pop_front_if(|(_, index)| *index <= applied) {
            let later = self.reads.split_off(&(ticket + 1));
            let served = std::mem::replace(&mut self.reads, later).into_values();
            served.filter(|_| !is_forged).for_each(|floor| history.read(floor, revision));
        }
    }
}
