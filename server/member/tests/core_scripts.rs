//! Runs the scripts in `tests/scripts/log_core` and `state_core`: events in, the effects the cores
//! want in their order. `UPDATE_GOLDENFILES=1 cargo test -p revd-member --test core_scripts` writes
//! what they want now; read the difference.
//!
//! ```text
//! log core:    start    propose put put keepalive    written    durable INDEX    tick    close
//!              clock MILLISECONDS                the time of this turn and of those behind it
//!              three    connected MEMBER    disconnected MEMBER    heartbeat MEMBER TERM
//!              would-vote MEMBER TERM    votes MEMBER TERM    has MEMBER TERM INDEX
//!              confirmed MEMBER TERM ROUND       that member was in this term in the round
//!              ticks N    applied INDEX    reads    asked MEMBER SLOT keepalive
//!              answered MEMBER SLOT [refused]    removes MEMBER SLOT     itself, as it asks
//! state core:  entry put put    local defragment    due    written    close    turn
//!              lead TERM    follow    ask MEMBER SLOT keepalive    answer SLOT
//!              read EDGE TICKET INDEX    read EDGE TICKET refused    lost NUMBER
//!              install INDEX    named    stream    patient N     little is saved N times later
//!              log INDEX    term TERM            the last entry of the log; of entries from now on
//!              hold ...    slow MICROSECONDS     work that comes with the next; the clock
//!              disk full [reserve]    disk free         the tree file cannot grow; by the reserve
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::cell::Cell;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goldenscript::{Command as Line, Context, Runner};
use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, Checkpoint, CheckpointKind, SavedState, Store, View, WrittenCheckpoint};
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::local::{DeadlineRequest, LocalKind, LocalRequest, Submitted};
use revd_member::apply::outcome::{Outcome, Rest};
use revd_member::apply::received::{ReceivedState, ReplacedState};
use revd_member::apply::state_hashes::{HashAsk, HashPoint};
use revd_member::apply::users::Login;
use revd_member::apply::{CommittedEntry, DurableIndex, Lost, Machine, MachineConfig, ReadReady, Work};
use revd_member::auth::rules::TokenChange;
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::cores::state::StateCore;
use revd_member::error::Error as Refused;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::raft::message::RaftMessage;
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::wal::FrameContent;
use revd_member::wal::birth::empty_log;
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, MemberRemoveRequest,
    PutRequest,
};

use golden::{run_all, words_of};

const OWNER: Identity = Identity { cluster: 1, member: 2 };
const ORIGIN: Origin = Origin { member: 2, boot: 1 };

fn command(slot: usize, name: &str) -> Command {
    let (kind, payload) = match name {
        "put" => (Kind::Put, PutRequest { key: "k".into(), ..PutRequest::default() }.encode_to_vec()),
        "put-long" | "miss-long" => {
            let (key, value) = ("k".into(), vec![b'v'; 5_000_000].into());
            let ignore_lease = name == "miss-long"; // there is no such key
            (Kind::Put, PutRequest { key, value, ignore_lease, ..Default::default() }.encode_to_vec())
        }
        "del" => {
            (Kind::DeleteRange, DeleteRangeRequest { key: "k".into(), ..<_>::default() }.encode_to_vec())
        }
        "alarm" | "disarm" | "corrupt" | "healed" => {
            let (is_raised, is_of_room) = (matches!(name, "alarm" | "corrupt"), name.ends_with("arm"));
            let action = if is_raised { AlarmAction::Activate } else { AlarmAction::Deactivate };
            let alarm = if is_of_room { AlarmType::Nospace } else { AlarmType::Corrupt };
            let (action, alarm, member_id) = (action as i32, alarm as i32, OWNER.member);
            let kind = if name == "corrupt" { Kind::Corrupt } else { Kind::Alarm };
            (kind, AlarmRequest { action, member_id, alarm }.encode_to_vec())
        }
        // Fields 1 and 2 are texts.
        "root" => (Kind::UserAdd, b"\x0a\x04root".to_vec()),
        "root-role" => (Kind::UserGrantRole, b"\x0a\x04root\x12\x04root".to_vec()),
        "enable-auth" => (Kind::AuthEnable, Vec::new()),
        "login" => (Kind::Authenticate, Login { name: "root".into(), digest: Some([7; 32]) }.encode().into()),
        "grant" => (Kind::LeaseGrant, LeaseGrantRequest { id: 7, ttl: 60 }.encode_to_vec()),
        // Lease 7, by the word of the leader of term 1.
        "expire" => (Kind::LeaseExpire, [1_u64, 7].map(u64::to_le_bytes).concat()),
        "compact" => (Kind::Compact, CompactionRequest { revision: 1, physical: true }.encode_to_vec()),
        _ => panic!("no command is called {name}"),
    };
    Command { id: CommandId::new(0, slot, 0), kind, payload: payload.into() }
}

fn local_kind(name: &str) -> Option<LocalKind> {
    match name {
        "keepalive" => Some(DeadlineRequest::KeepAlive { lease: 7 }.into()),
        "defragment" => Some(LocalKind::Defragment),
        _ => None,
    }
}

/// Requests of these names, in slots from the next one on.
fn submitted(slot: &mut usize, names: &[&str]) -> Submitted {
    let mut submitted = Submitted::default();
    for name in names {
        *slot += 1;
        match local_kind(name) {
            Some(kind) => {
                submitted.local.push(LocalRequest { id: CommandId::new(0, *slot, 0), kind, from: None });
            }
            None => submitted.commands.push(command(*slot, name)),
        }
    }
    submitted.number = *slot as u64;
    submitted
}

fn store(disk: &SimDisk) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), DbOptions::default()).unwrap();
    store.set_applied(Applied { index: 1, term: 1 });
    let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
    store.finish_checkpoint(written);
    store
}

/// The saved state of this disk, with a change more, as another member sends it at an index.
fn received(disk: &SimDisk, index: u64) -> ReceivedState {
    let mut store = Store::open(Arc::new(SimDisk::from_bytes(disk.bytes())), DbOptions::default()).unwrap();
    let mut txn = store.begin();
    txn.put(b"received", b"", 0);
    txn.commit();
    store.set_applied(Applied { index, term: 2 });
    let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
    store.finish_checkpoint(written);
    ReceivedState::load(store).unwrap()
}

/// Effects of the log core, in words.
#[derive(Default)]
struct LogWords(String);

impl LogEffects for LogWords {
    fn append(&mut self, frame: FrameContent) {
        let FrameContent { restart: _, hard_state, entries } = frame;
        let state = hard_state.map(|state| format!(", term {} commit {}", state.term, state.commit));
        let entries = entries.iter().map(|entry| match command::decode(entry.data.clone()) {
            Ok(batch) => format!("entry {} of {} commands", entry.index, batch.commands.len()),
            Err(_) => format!("entry {} of a new leader", entry.index),
        });
        let entries: Vec<String> = entries.collect();
        writeln!(self.0, "append {}{}", entries.join(", "), state.unwrap_or_default()).unwrap();
    }

    fn release(&mut self, index: u64) {
        writeln!(self.0, "release up to {index}").unwrap();
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Entry(entry) => writeln!(self.0, "apply entry {}", entry.index).unwrap(),
            Work::Local(LocalRequest { kind: LocalKind::Defragment, .. }) => {
                self.0.push_str("local defragment\n")
            }
            Work::Local(LocalRequest { kind: LocalKind::Lease(request), .. }) => {
                writeln!(self.0, "local {request:?}").unwrap();
            }
            Work::Leads(Some(term)) => writeln!(self.0, "lead in term {term}").unwrap(),
            Work::Leads(None) => self.0 += "lead no more\n",
            other => writeln!(self.0, "{other:?}").unwrap(),
        }
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        match message {
            PeerMessage::Raft(_) => {} // these are in the scripts of raft
            PeerMessage::LeaseAsk { id, request } => {
                writeln!(self.0, "send to {to}: caller {} asks {request:?}", id.slot()).unwrap();
            }
            other => writeln!(self.0, "send to {to}: {other:?}").unwrap(),
        }
    }

    fn fetch(&mut self, fetch: LogFetch) {
        let LogFetch { to, low, high, bytes_max: _ } = fetch;
        writeln!(self.0, "read entries {low}..{high} for member {to}").unwrap();
    }

    fn set_peers(&mut self, peers: Vec<Peer>) {
        writeln!(self.0, "peers {peers:?}").unwrap();
    }

    fn discard(&mut self, state: Box<ReceivedState>) {
        writeln!(self.0, "discard the received state of entry {}", state.applied().index).unwrap();
    }

    fn installed(&mut self) {
        self.0 += "another state may be received\n";
    }
}

struct LogRunner {
    core: LogCore,
    slot: usize,
}

impl LogRunner {
    fn new() -> Self {
        Self { core: Self::core(ConfState::of_voters(vec![OWNER.member])), slot: 0 }
    }

    /// A core that begins with these votes.
    fn core(conf_state: ConfState) -> LogCore {
        let config = RaftConfig { conf_state, ..RaftConfig::alone(OWNER.member, 1) };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RaftNode::start(&config, &empty_log(OWNER), &logger).unwrap();
        LogCore::new(node, LogConfig { origin: ORIGIN, edges: 1, tick: Duration::from_millis(100) })
    }
}

/// A message of raft, of a kind by its number on the wire, as it comes from the network.
fn raft(kind: u8, from: u64, term: u64, index: u64) -> PeerMessage {
    let mut bytes = vec![kind, 0];
    for field in [OWNER.member, from, term, 0, index, 0, 0, 0, 0, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend([0; 8]); // neither context nor entries
    PeerMessage::Raft(RaftMessage::decode(bytes.into()).unwrap())
}

impl LogRunner {
    /// An event of a member among three.
    fn peer_event(&mut self, name: &str, words: &[&str]) -> Result<Option<LogEvent>, Box<dyn Error>> {
        Ok(Some(match (name, words) {
            ("three", []) => {
                self.core = Self::core(ConfState::of_voters(vec![2, 3, 4]));
                return Ok(None);
            }
            ("learners", []) => {
                let alone = ConfState::of_voters(vec![OWNER.member]);
                self.core = Self::core(ConfState { learners: vec![3, 4], ..alone });
                return Ok(None);
            }
            ("ticks", [count]) => {
                for _ in 1..count.parse::<u64>()? {
                    self.core.receive(LogEvent::Tick, &mut LogWords::default());
                }
                LogEvent::Tick
            }
            ("connected", [member]) => LogEvent::PeerConnected(member.parse()?),
            ("confirmed", [member, term, round]) => {
                let (term, round) = (term.parse()?, round.parse()?);
                LogEvent::Peer { from: member.parse()?, message: PeerMessage::Confirmed { term, round } }
            }
            ("disconnected", [member]) => LogEvent::PeerLost(member.parse()?),
            ("heartbeat", [member, term]) => {
                let from = member.parse()?;
                LogEvent::Peer { from, message: raft(7, from, term.parse()?, 0) }
            }
            ("would-vote" | "votes" | "has", [member, term, index @ ..]) => {
                let kind = match name {
                    "would-vote" => 6,
                    "votes" => 4,
                    _ => 2,
                };
                let index = index.first().map_or(Ok(0), |index| index.parse())?;
                let from = member.parse()?;
                LogEvent::Peer { from, message: raft(kind, from, term.parse()?, index) }
            }
            ("asked", [member, slot, name]) => {
                let Some(LocalKind::Lease(request)) = local_kind(name) else {
                    return Err("asks what?".into());
                };
                let id = CommandId::new(0, slot.parse()?, 0);
                LogEvent::Peer { from: member.parse()?, message: PeerMessage::LeaseAsk { id, request } }
            }
            ("removes", [member, slot]) => {
                let (id, from) = (CommandId::new(0, slot.parse()?, 0), member.parse()?);
                let payload = MemberRemoveRequest { id: from }.encode_to_vec().into();
                let command = Command { id, kind: Kind::MemberRemove, payload };
                let batch = command::encode(Origin { member: from, boot: 1 }, &[command]).into();
                LogEvent::Peer { from, message: PeerMessage::Forward(batch) }
            }
            ("answered", [member, slot, rest @ ..]) => {
                let result = if rest.is_empty() { Ok(Bytes::new()) } else { Err(Refused::NotLeader) };
                let outcome = Outcome { revision: 9, result, rest: Rest::NONE };
                let id = CommandId::new(0, slot.parse()?, 0);
                LogEvent::Peer { from: member.parse()?, message: PeerMessage::LeaseAnswer { id, outcome } }
            }
            _ => return Err(format!("no event is called {name}").into()),
        }))
    }
}

impl Runner for LogRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut words = LogWords::default();
        let event = match line.name.as_str() {
            "start" => {
                self.core.start(&mut words)?;
                None
            }
            "propose" => {
                Some(LogEvent::Submitted { edge: 0, submitted: submitted(&mut self.slot, &words_of(line)) })
            }
            "written" => Some(LogEvent::Written),
            "durable" => {
                // Only a finished checkpoint makes such an index.
                let mut store = store(&SimDisk::new());
                store.set_applied(Applied { index: words_of(line)[0].parse()?, term: 1 });
                let written = store.checkpoint(CheckpointKind::Auto).unwrap().write()?;
                Some(LogEvent::Durable(DurableIndex::of(&store.finish_checkpoint(written))))
            }
            "tick" => Some(LogEvent::Tick),
            "clock" => Some(LogEvent::Turn(words_of(line)[0].parse::<u64>()? * 1_000)),
            "applied" => Some(LogEvent::Applied(words_of(line)[0].parse()?)),
            "reads" => {
                let reads_alone = self.core.status().reads_alone;
                writeln!(words.0, "reads {} other members", if reads_alone { "without" } else { "ask" })?;
                None
            }
            "close" => Some(LogEvent::EdgeClosed),
            name => self.peer_event(name, &words_of(line))?,
        };
        if let Some(event) = event {
            self.core.receive(event, &mut words);
            self.core.advance(&mut words)?;
        }
        if self.core.is_over() {
            words.0 += "over\n";
        }
        Ok(words.0)
    }
}

/// Effects of the state core, in words; what comes back later waits here.
#[derive(Default)]
struct StateWords {
    text: String,
    last_index: u64,
    checkpoint: Option<WrittenCheckpoint>,
    back: Option<LongCommand>,
    clock: (Cell<u64>, u64), // the time, and how much a look at it takes
}

impl StateEffects for StateWords {
    fn microseconds(&self) -> u64 {
        self.clock.0.replace(self.clock.0.get() + self.clock.1)
    }

    fn last_index(&self) -> u64 {
        self.last_index
    }

    fn counted(&mut self, _counts: LeaseCounts) {}

    fn publish(&mut self, view: View, applied: u64, leases: usize) {
        let revision = view.revision();
        writeln!(self.text, "publish revision {revision}, entry {applied}, {leases} leases").unwrap();
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        let result = outcome.result.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        writeln!(self.text, "answer {} at revision {}: {result}", id.slot(), outcome.revision).unwrap();
    }

    fn answer_member(&mut self, member: u64, id: CommandId, outcome: Outcome) {
        let result = outcome.result.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        writeln!(self.text, "answer {} of member {member}: {result}", id.slot()).unwrap();
    }

    fn end_reads(&mut self, edge: u16, ticket: u64, result: Result<(), Refused>) {
        let result = result.map_or_else(|why| why.to_string(), |()| "served".to_owned());
        writeln!(self.text, "reads of edge {edge} up to {ticket}: {result}").unwrap();
    }

    fn lost(&mut self, lost: Lost) {
        writeln!(self.text, "lost up to {:?}: {}", lost.numbers, lost.why).unwrap();
    }

    fn hear(&mut self, question: u64) {
        writeln!(self.text, "hear {question}").unwrap();
    }

    fn tell_of_view(&mut self) {
        self.text += "tell of the View\n";
    }

    fn write(&mut self, checkpoint: Checkpoint, _is_light: bool) {
        self.checkpoint = Some(checkpoint.write().unwrap());
        self.text += "write a checkpoint\n";
    }

    fn remind(&mut self, after: Duration) {
        writeln!(self.text, "remind in {after:?}").unwrap();
    }

    fn durable(&mut self, index: DurableIndex) {
        writeln!(self.text, "the log may let go of entry {}", index.get()).unwrap();
    }

    fn run(&mut self, command: LongCommand) {
        self.back = Some(command);
        self.text += "run a long command\n";
    }

    fn encode(&mut self, _list: LongList) {
        self.text += "encode a list\n";
    }

    fn install(&mut self) {
        self.text += "make the received state the tree file\n";
    }

    fn discard(&mut self, _state: ReplacedState) {
        self.text += "discard the state before\n";
    }

    fn tokens(&mut self, change: TokenChange) {
        if let TokenChange::Made { user, index, .. } = change {
            writeln!(self.text, "a token of {user}, by entry {index}").unwrap();
        }
    }

    fn stream(&mut self, to: u64, term: u64, state: Option<SavedState>) {
        let applied = state.unwrap().applied().index;
        writeln!(self.text, "stream the state of entry {applied} to {to} in term {term}").unwrap();
    }

    fn hashed(&mut self, to: u64, point: HashPoint, corrupt: &[u64]) {
        let HashPoint { index, hash } = point;
        let since = hash.since;
        writeln!(self.text, "hash behind {index} since {since} for {to}, corrupt {corrupt:?}").unwrap();
    }

    fn corrupt(&mut self, is_corrupt: bool) {
        self.text += if is_corrupt { "serve no more\n" } else { "serve again\n" };
    }

    fn note(&mut self, note: Note) {
        writeln!(self.text, "note {note:?}").unwrap();
    }
}

struct StateRunner {
    core: StateCore,
    disk: SimDisk,
    /// Given up when a checkpoint finds no room.
    has_reserve: bool,
    words: StateWords,
    /// Work that comes with the next.
    held: Vec<Work>,
    index: u64,
    /// Of entries.
    term: u64,
    slot: usize,
}

impl StateRunner {
    fn new() -> Self {
        let config = MachineConfig { own: ORIGIN, quota_bytes: 0, lease_extension: 0 };
        let disk = SimDisk::new();
        let machine = Machine::new(store(&disk), config).unwrap();
        let (mut core, mut words) = (StateCore::new(machine, 1), StateWords::default());
        core.receive(StateEvent::Work(vec![Work::Leads(Some(1))]), &mut words).unwrap();
        Self { core, disk, has_reserve: false, words, held: Vec::new(), index: 1, term: 1, slot: 0 }
    }

    /// The end of a checkpoint: as in the server, one that found no room makes some if there is a
    /// reserve.
    fn written(&mut self) -> Result<StateEvent, Box<dyn Error>> {
        let written = self.words.checkpoint.take().ok_or("no checkpoint is being written")?;
        let made_room = written.has_no_room() && std::mem::take(&mut self.has_reserve);
        if written.has_no_room() {
            self.words.text += if made_room { "no room: the reserve is given up\n" } else { "no room\n" };
        }
        if made_room {
            self.disk.limit(None);
        }
        Ok(StateEvent::Written { written: Box::new(written), made_room })
    }

    fn entry(&mut self, names: &[&str]) -> Work {
        let commands = names.iter().map(|name| {
            self.slot += 1;
            command(self.slot, name)
        });
        let commands: Vec<Command> = commands.collect();
        self.index += 1;
        let data = if commands.is_empty() { Bytes::new() } else { command::encode(ORIGIN, &commands).into() };
        Work::Entry(CommittedEntry { index: self.index, term: self.term, data, change: None })
    }

    /// Work that the log core hands down, if it is called that.
    fn work(&mut self, name: &str, words: &[&str]) -> Result<Option<Work>, Box<dyn Error>> {
        let request = |slot: usize, name: &str, from| {
            let kind = local_kind(name).ok_or("no such local request")?;
            Ok::<_, Box<dyn Error>>(Work::Local(LocalRequest { id: CommandId::new(0, slot, 0), kind, from }))
        };
        Ok(Some(match (name, words) {
            ("entry", names) => self.entry(names),
            ("local", [name]) => {
                self.slot += 1;
                request(self.slot, name, None)?
            }
            ("ask", [member, slot, name]) => request(slot.parse()?, name, Some(member.parse()?))?,
            ("answer", [slot]) => {
                let outcome = Outcome { revision: 99, result: Ok(Bytes::new()), rest: Rest::NONE };
                Work::Answer(CommandId::new(0, slot.parse()?, 0), outcome)
            }
            ("read", [edge, ticket, index]) => {
                let index = index.parse().map_err(|_| Refused::LeaderChanged);
                Work::Read(ReadReady { edge: edge.parse()?, ticket: ticket.parse()?, index })
            }
            ("lost", [number]) => {
                Work::Lost(Lost { numbers: vec![number.parse()?], why: Refused::TimeoutLeaderFailed })
            }
            ("lead", [term]) => Work::Leads(Some(term.parse()?)),
            ("follow", []) => Work::Leads(None),
            ("hash", [to, index]) => Work::Hash(HashAsk { to: to.parse()?, index: index.parse()? }),
            _ => return Ok(None),
        }))
    }
}

impl Runner for StateRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let names = words_of(line);
        let event = match line.name.as_str() {
            // It comes in one message with what follows.
            "hold" => {
                let work = self.work(names[0], &names[1..])?.ok_or("only work is held")?;
                self.held.push(work);
                return Ok(String::new());
            }
            "term" | "log" | "slow" | "patient" => {
                let number = names[0].parse()?;
                match line.name.as_str() {
                    "term" => self.term = number,
                    "patient" => self.core.put_off_checkpoints(u32::try_from(number)?),
                    "log" => self.words.last_index = number,
                    _ => self.words.clock.1 = number,
                }
                return Ok(String::new());
            }
            "due" => Some(StateEvent::CheckpointDue),
            "install" => {
                self.index = names[0].parse()?;
                Some(StateEvent::Work(vec![Work::Install(Box::new(received(&self.disk, self.index)))]))
            }
            "named" => Some(StateEvent::Installed),
            "stream" => Some(StateEvent::Work(vec![Work::Stream { to: 3, term: 5 }])),
            "written" => Some(self.written()?),
            "close" => Some(StateEvent::LogClosed),
            "disk" => {
                self.has_reserve = names.contains(&"reserve");
                self.disk.limit(names.contains(&"full").then(|| self.disk.bytes().len() as u64));
                return Ok(String::new());
            }
            "turn" => None,
            name => {
                let work = self.work(name, &names)?.ok_or_else(|| format!("no event is called {name}"))?;
                self.held.push(work);
                Some(StateEvent::Work(std::mem::take(&mut self.held)))
            }
        };
        if let Some(event) = event {
            self.core.receive(event, &mut self.words)?;
        }
        self.core.turn(Standpoint { is_ready: true }, &mut self.words)?;
        let is_over = self.core.is_over(&mut self.words);
        let goes_on = self.core.can_go_on();
        self.words.text += if is_over { "over\n" } else { ["", "can go on\n"][usize::from(goes_on)] };
        Ok(std::mem::take(&mut self.words.text))
    }
}

#[test]
fn log_core() {
    run_all("log_core", LogRunner::new);
}

#[test]
fn state_core() {
    run_all("state_core", StateRunner::new);
}
