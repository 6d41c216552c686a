//! Runs the scripts in `tests/scripts/cluster`: three log cores, what happens to them, and what
//! they want then. `UPDATE_GOLDENFILES=1 cargo test -p revd-member --test cluster_scripts` writes
//! what they want now; read the difference.
//!
//! ```text
//! connect [FROM TO]       connections, of all or one way between two     lose FROM TO
//! deliver [FROM TO [N]]   messages, until there are none                 drop FROM TO [N]
//! tick M [N]    put M [N]    read M    ask M    written M    close M     events of member M
//! written                 of all members, and messages, until nothing is left
//! stall M                 its disk takes long: such a line leaves it out
//! memory BYTES            members anew, with so much of what is applied in memory
//! applied M INDEX         it has applied entries up to there
//! durable M INDEX         a checkpoint holds them
//! room M BYTES            its disk has room for so many bytes beside the log
//! fetched M    unread M   entries that it was to read are there, or cannot be read
//! released M              its log has let go of them
//! status M
//! without-pre-vote    hasten      new members: without `--pre-vote`, with
//!                                 `--initial-election-tick-advance`; the others are without that
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use goldenscript::{Command as Line, Context, Runner};
use revd_engine::mvcc::{Applied, Durable, StateHash};
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::local::{DeadlineRequest, LocalRequest, Submitted};
use revd_member::apply::received::ReceivedState;
use revd_member::apply::state_hashes::{HashAsk, HashPoint};
use revd_member::apply::{DurableIndex, Lost, ReadReady, Work};
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::limits;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::{LogFetch, Unread};
use revd_member::raft::node::{LogRetention, RaftConfig, RaftNode};
use revd_member::wal::birth::empty_log;
use revd_member::wal::{FrameContent, LogEntry};

use golden::{run_all, words_of};

/// Members of the cluster.
const MEMBERS: u64 = 3;

/// Effects of one member's turn, in words, and its messages.
struct Words {
    member: u64,
    text: String,
    messages: Vec<(u64, PeerMessage)>,
    has_frame: bool,
    /// The entries of that frame.
    entries: Vec<LogEntry>,
    fetches: Vec<LogFetch>,
}

impl Words {
    fn say(&mut self, text: &str) {
        writeln!(self.text, "{}: {text}", self.member).unwrap();
    }
}

impl LogEffects for Words {
    fn append(&mut self, frame: FrameContent) {
        self.has_frame = true;
        let state = frame.hard_state.map(|state| format!("term {}, vote for {}", state.term, state.vote));
        let entries = frame.entries.iter().map(|entry| match command::decode(entry.data.clone()) {
            Ok(batch) => {
                format!("entry {} ({} of member {})", entry.index, batch.commands.len(), batch.origin.member)
            }
            Err(_) => format!("entry {} (empty)", entry.index),
        });
        let parts: Vec<String> = state.into_iter().chain(entries).collect();
        self.say(&format!("write {}", parts.join("; ")));
        self.entries = frame.entries;
    }

    fn release(&mut self, index: u64) {
        self.say(&format!("release up to {index}"));
    }

    fn work(&mut self, work: Work) {
        let text = match work {
            Work::Entry(entry) => format!("apply entry {} of term {}", entry.index, entry.term),
            Work::Local(LocalRequest { kind, from, .. }) => format!("local {kind:?}, asked by {from:?}"),
            Work::Answer(id, outcome) => {
                format!("answer {}: {:?}", id.0, outcome.result.map(|_| "ok").map_err(|why| why.to_string()))
            }
            Work::Read(ReadReady { ticket, index: Ok(index), .. }) => {
                format!("reads up to {ticket} see entry {index}")
            }
            Work::Read(ReadReady { ticket, index: Err(why), .. }) => {
                format!("reads up to {ticket} are refused: {why}")
            }
            Work::Lost(Lost { numbers, why }) => format!("lost up to {numbers:?}: {why}"),
            Work::Leads(Some(term)) => format!("lead in term {term}"),
            Work::Hash(HashAsk { to, index: 0 }) => format!("newest hash, for {to}"),
            Work::Hash(HashAsk { to, index }) => format!("hash behind {index}, for {to}"),
            Work::Leads(None) => "lead no more".to_owned(),
            other => format!("{other:?}"),
        };
        self.say(&text);
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.push((to, message));
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.say(&format!("read entries {}..{} for member {}", fetch.low, fetch.high, fetch.to));
        self.fetches.push(fetch);
    }

    fn set_peers(&mut self, _peers: Vec<Peer>) {}

    fn discard(&mut self, _state: Box<ReceivedState>) {
        unreachable!("no member is sent a state");
    }

    fn installed(&mut self) {
        unreachable!("no member is sent a state");
    }
}

fn shown(message: &PeerMessage) -> String {
    match message {
        PeerMessage::Raft(message) => message.to_string(),
        PeerMessage::Forward(batch) => {
            format!("forward of {} commands", command::decode(batch.clone()).unwrap().commands.len())
        }
        PeerMessage::Refused { ids, why } => format!("{} commands refused: {why}", ids.len()),
        PeerMessage::ReadAsk { term, context } => {
            format!("read index of term {term}? attempt {}", context.attempt)
        }
        PeerMessage::ReadAnswer { context, index } => {
            format!("attempt {} sees entry {index}", context.attempt)
        }
        PeerMessage::Confirm { term, round } => format!("still in term {term}? round {round}"),
        PeerMessage::Confirmed { term, round } => format!("still in term {term}, round {round}"),
        other => format!("{other:?}"),
    }
}

struct ClusterRunner {
    cores: Vec<LogCore>,
    /// Members with a frame under way.
    writing: Vec<bool>,
    /// A member whose frame is written by name alone.
    stalled: u64,
    submitted: u64,
    /// By member: the entries that were written, and those that are to be read.
    logs: BTreeMap<u64, Vec<LogEntry>>,
    fetches: BTreeMap<u64, VecDeque<LogFetch>>,
    links: BTreeMap<(u64, u64), VecDeque<PeerMessage>>,
}

/// How members elect, as the flags of the same names say, and how much of the log stays in memory.
#[derive(Clone, Copy)]
struct Flags {
    pre_vote: bool,
    advances_election: bool,
    memory_bytes: usize,
}

fn core(id: u64, Flags { pre_vote, advances_election, memory_bytes }: Flags) -> LogCore {
    let config = RaftConfig {
        pre_vote,
        advances_election,
        conf_state: ConfState::of_voters((1..=MEMBERS).collect()),
        seed: id,
        retention: LogRetention { memory_bytes_max: memory_bytes, ..LogRetention::default() },
        ..RaftConfig::alone(id, 1)
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let node = RaftNode::start(&config, &empty_log(Identity { cluster: 1, member: id }), &logger).unwrap();
    let origin = Origin { member: id, boot: 1 };
    LogCore::new(node, LogConfig { origin, edges: 1, tick: Duration::from_millis(100) })
}

impl ClusterRunner {
    const FLAGS: Flags =
        Flags { pre_vote: true, advances_election: false, memory_bytes: limits::LOG_TAIL_BYTES_MAX };

    fn new() -> Self {
        Self::with(Self::FLAGS)
    }

    fn with(flags: Flags) -> Self {
        let cores = (1..=MEMBERS).map(|id| core(id, flags)).collect();
        Self {
            cores,
            writing: vec![false; Self::at(MEMBERS) + 1],
            stalled: 0,
            submitted: 0,
            logs: BTreeMap::new(),
            fetches: BTreeMap::new(),
            links: BTreeMap::new(),
        }
    }

    fn at(member: u64) -> usize {
        usize::try_from(member).unwrap() - 1
    }

    /// Events of one turn of a member; what it wants then.
    fn turn(&mut self, member: u64, events: Vec<LogEvent>) -> Result<String, Box<dyn Error>> {
        let at = Self::at(member);
        let mut words = Words {
            member,
            text: String::new(),
            messages: Vec::new(),
            has_frame: false,
            entries: Vec::new(),
            fetches: Vec::new(),
        };
        for event in events {
            self.cores[at].receive(event, &mut words);
        }
        self.cores[at].advance(&mut words)?;
        self.writing[at] |= words.has_frame;
        let Words { mut text, messages, entries, fetches, .. } = words;
        self.logs.entry(member).or_default().extend(entries);
        self.fetches.entry(member).or_default().extend(fetches);
        for (to, message) in messages {
            let lost = if self.links.contains_key(&(member, to)) { "" } else { " (lost)" };
            writeln!(text, "{member} to {to}: {}{lost}", shown(&message))?;
            if let Some(link) = self.links.get_mut(&(member, to)) {
                link.push_back(message);
            }
        }
        if self.cores[at].is_over() {
            writeln!(text, "{member}: over")?;
        }
        Ok(text)
    }

    fn deliver(&mut self, link: (u64, u64), mut count: usize) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        while count > 0
            && let Some(message) = self.links.get_mut(&link).and_then(VecDeque::pop_front)
        {
            count -= 1;
            text += &self.turn(link.1, vec![LogEvent::Peer { from: link.0, message }])?;
        }
        Ok(text)
    }

    fn deliver_all(&mut self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        while let Some(link) = self.links.iter().find(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends) {
            text += &self.deliver(link, usize::MAX)?;
        }
        Ok(text)
    }

    fn written(&mut self, member: u64) -> Result<String, Box<dyn Error>> {
        if !std::mem::take(&mut self.writing[Self::at(member)]) {
            return Err("nothing is being written".into());
        }
        self.turn(member, vec![LogEvent::Written])
    }

    /// A read is over.
    fn fetched(&mut self, member: u64, unread: Option<Unread>) -> Result<String, Box<dyn Error>> {
        let fetch = self.fetches.get_mut(&member).and_then(VecDeque::pop_front);
        let fetch = fetch.ok_or("nothing is being read")?;
        let log = self.logs.get(&member).into_iter().flatten();
        let entries = log.filter(|entry| (fetch.low..fetch.high).contains(&entry.index)).cloned();
        let entries = unread.map_or_else(|| Ok(entries.collect()), Err);
        self.turn(member, vec![LogEvent::Fetched(fetch, entries)])
    }

    /// Until no frame is under way and no message.
    fn settle(&mut self) -> Result<String, Box<dyn Error>> {
        let mut text = self.deliver_all()?;
        let next = |runner: &Self| {
            let mut members = (1..=MEMBERS).filter(|member| *member != runner.stalled);
            members.find(|member| runner.writing[Self::at(*member)])
        };
        while let Some(member) = next(self) {
            text += &self.written(member)?;
            text += &self.deliver_all()?;
        }
        Ok(text)
    }

    fn submit(&mut self, member: u64, name: &str, count: u64) -> Result<String, Box<dyn Error>> {
        let mut submitted = Submitted::default();
        for _ in 0..count {
            self.submitted += 1;
            let id = CommandId(self.submitted);
            match name {
                "put" => {
                    submitted.commands.push(Command { id, kind: Kind::Put, payload: "put".into() });
                }
                "ask" => {
                    let kind = DeadlineRequest::KeepAlive { lease: 7 }.into();
                    submitted.local.push(LocalRequest { id, kind, from: None });
                }
                _ => submitted.read = Some(self.submitted),
            }
        }
        submitted.number = self.submitted;
        self.turn(member, vec![LogEvent::Submitted { edge: 0, submitted }])
    }

    fn connect(&mut self, from: u64, to: u64) -> Result<String, Box<dyn Error>> {
        self.links.insert((from, to), VecDeque::new());
        self.turn(from, vec![LogEvent::PeerConnected(to)])
    }
}

impl Runner for ClusterRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let numbers: Vec<u64> = words_of(line).iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
        let most = |at: usize| numbers.get(at).map_or(usize::MAX, |count| usize::try_from(*count).unwrap());
        let count = numbers.get(1).copied().unwrap_or(1);
        match (line.name.as_str(), &numbers[..]) {
            ("connect", []) => {
                let all = (1..=MEMBERS).flat_map(|from| (1..=MEMBERS).map(move |to| (from, to)));
                all.filter(|(from, to)| from != to).map(|(from, to)| self.connect(from, to)).collect()
            }
            ("connect", [from, to]) => self.connect(*from, *to),
            ("lose", [from, to]) => {
                self.links.remove(&(*from, *to));
                self.turn(*from, vec![LogEvent::PeerLost(*to)])
            }
            ("deliver", []) => self.deliver_all(),
            ("deliver", [from, to, ..]) => self.deliver((*from, *to), most(2)),
            ("drop", [from, to, ..]) => {
                let link = self.links.get_mut(&(*from, *to)).ok_or("no connection")?;
                link.drain(..most(2).min(link.len()));
                Ok(String::new())
            }
            (name @ ("without-pre-vote" | "hasten"), []) => {
                let hastens = name == "hasten";
                *self = Self::with(Flags { pre_vote: hastens, advances_election: hastens, ..Self::FLAGS });
                Ok(String::new())
            }
            ("memory", [bytes]) => {
                *self = Self::with(Flags { memory_bytes: usize::try_from(*bytes)?, ..Self::FLAGS });
                Ok(String::new())
            }
            ("applied", [member, index]) => self.turn(*member, vec![LogEvent::Applied(*index)]),
            ("durable", [member, index]) => {
                let applied = Applied { index: *index, term: 2 };
                let checkpoint = Durable {
                    applied,
                    compacted: -1,
                    compaction_pending: false,
                    defragmenting: false,
                    no_space: None,
                };
                self.turn(*member, vec![LogEvent::Durable(DurableIndex::of(&checkpoint))])
            }
            ("room", [member, bytes]) => self.turn(*member, vec![LogEvent::DiskRoom(*bytes)]),
            ("fetched", [member]) => self.fetched(*member, None),
            ("unread", [member]) => self.fetched(*member, Some(Unread::Failed)),
            ("released", [member]) => self.fetched(*member, Some(Unread::Released)),
            ("stall", [member]) => {
                self.stalled = *member;
                Ok(String::new())
            }
            ("written", []) => self.settle(),
            ("written", [member]) => self.written(*member),
            ("tick", [member, ..]) => (0..count).map(|_| self.turn(*member, vec![LogEvent::Tick])).collect(),
            ("close", [member]) => self.turn(*member, vec![LogEvent::EdgeClosed]),
            ("status", [member]) => {
                let status = self.cores[Self::at(*member)].status();
                Ok(format!(
                    "term {}, leader {}, committed to {}",
                    status.term, status.leader, status.committed
                ))
            }
            ("hash", [member, to, index, value, corrupt @ ..]) => {
                let hash = StateHash { value: *value, since: 1 };
                let point = HashPoint { index: *index, hash };
                self.turn(*member, vec![LogEvent::Hash { to: *to, point, corrupt: corrupt.to_vec() }])
            }
            ("put" | "read" | "ask", [member, ..]) => self.submit(*member, &line.name, count),
            (name, _) => Err(format!("no event is called {name}, with these numbers").into()),
        }
    }
}

#[test]
fn cluster() {
    run_all("cluster", ClusterRunner::new);
}
