//! Runs the scripts in `tests/scripts/recovery`, `lifecycle` and `edge_core`: how a member starts,
//! serves and stops, in the effects that are wanted then. `UPDATE_GOLDENFILES=1 cargo test -p
//! revd-member --test start_scripts` writes what is wanted now; read the difference.
//!
//! ```text
//! recovery:   start [existing [NAME]|as NAME|forced]    others [NAME ...]    removed    log LAST
//!             discovered OWN NAME ...           the settings name no members
//!             later NAME ...                    they answer when this member has waited
//!             version VERSION                   of the cluster, or of the others if there are some
//!             strangers [NAME ...]              another cluster answers instead
//!             apply INDEX    lose tree|log    foreign    etcd    disk full|roomy
//! lifecycle:  listens    quiet    signal N    ended
//! edge core:  start    start second    published    [peers] overdue    ready
//!             notify answer view hearing-N
//!             notify read-TICKET refused-TICKET lost-NUMBER
//!             waited HEARING [TIMES]    behind    read    full    free    drained    closed
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goldenscript::{Command as Line, Context, Runner};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Store};
use revd_member::apply::command::CommandId;
use revd_member::apply::local::Heard;
use revd_member::apply::outcome::{Outcome, Rest};
use revd_member::boot::lifecycle::{Lifecycle, ProcessEvent};
use revd_member::boot::recovery::{RecoveryConfig, RecoveryEffects, Refusal, recover};
use revd_member::cluster::Identity;
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::membership::Member;
use revd_member::cluster::version::ClusterVersion;
use revd_member::cores::edge::{EdgeCore, EdgeEffects, EdgeEvent, Notification};
use revd_member::error::Error as Refused;
use revd_member::raft::node::LogRetention;
use revd_member::schema;
use revd_member::wal::LogEntry;
use revd_member::wal::birth::empty_log;
use revd_member::wal::reader::{LogEnd, RecoveredLog};

use golden::{run_all, words_of};

/// The ids of a member with etcd's default flags.
const OWNER: Identity = Identity { cluster: 0xcdf8_1819_4e3a_8c32, member: 0x8e9e_05c5_2164_694d };

/// A disk that takes an empty tree file and nothing else.
const FULL_DISK_BYTES: u64 = 20_000;

/// A member's files, and what was done to them in words.
#[derive(Default)]
struct Files {
    text: String,
    tree: SimDisk,
    /// A state that another member has sent.
    received: Option<SimDisk>,
    log: Option<RecoveredLog>,
    is_of_etcd: bool,
    /// The members that are found by discovery, this one first.
    discovered: Vec<String>,
    /// The answer of the other members.
    remote: Option<RemoteCluster>,
    /// Their answer to a member that has waited.
    later: Option<RemoteCluster>,
}

impl Files {
    fn say(&mut self, line: &str) {
        writeln!(self.text, "{line}").unwrap();
    }
}

impl Files {
    /// The cluster goes on without this member.
    /// The next entry is applied, and saved.
    fn write(&mut self, change: impl FnOnce(&mut Store)) -> revd_engine::Result<()> {
        let mut store = Store::open(Arc::new(self.tree.clone()), DbOptions::default())?;
        change(&mut store);
        let index = store.applied().index + 1;
        store.set_applied(Applied { index, term: 1 });
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write()?;
        store.finish_checkpoint(written);
        Ok(())
    }
}

/// That of the program.
const VERSION: ClusterVersion = ClusterVersion { major: 3, minor: 7 };

/// A cluster of these members; those with a name in capitals are started.
fn remote(names: &[&str]) -> RemoteCluster {
    let member = |(id, name): (u64, &&str)| Member {
        id,
        name: if name.to_lowercase() == **name { String::new() } else { (*name).to_owned() },
        peer_ur_ls: vec![format!("http://{}:2380", name.to_lowercase())],
        ..Member::default()
    };
    let versions = vec![VERSION, ClusterVersion::MIN];
    RemoteCluster { id: 9, members: (1..).zip(names).map(member).collect(), versions }
}

impl RecoveryEffects for Files {
    type Error = Refusal;

    fn lock(&mut self) -> Result<(), Refusal> {
        self.say("lock the data directory");
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        self.is_of_etcd
    }

    fn make_directories(&mut self) -> Result<(), Refusal> {
        self.say("make directories");
        Ok(())
    }

    fn open_store(&mut self) -> Result<Store, Refusal> {
        let store = Store::open(Arc::new(self.tree.clone()), DbOptions::default()).map_err(Refusal::Store)?;
        writeln!(self.text, "open the tree file: entry {} is applied", store.applied().index).unwrap();
        Ok(store)
    }

    fn remove_leftovers(&mut self) -> Result<(), Refusal> {
        self.say("remove leftovers");
        Ok(())
    }

    fn read_log(&mut self, _applied: u64) -> Result<Option<RecoveredLog>, Refusal> {
        let log = self.log.clone();
        self.say(if log.is_some() { "read the log" } else { "there is no log" });
        Ok(log)
    }

    fn open_received(&mut self) -> Result<Option<Store>, Refusal> {
        let Some(received) = self.received.clone() else {
            self.say("no state was received");
            return Ok(None);
        };
        let store = Store::open(Arc::new(received), DbOptions::default()).map_err(Refusal::Store)?;
        writeln!(self.text, "open the received state of entry {}", store.applied().index).unwrap();
        Ok(Some(store))
    }

    fn install_received(&mut self) -> Result<(), Refusal> {
        self.say("make the received state the tree file");
        self.tree = self.received.take().unwrap();
        Ok(())
    }

    fn forget_received(&mut self) -> Result<(), Refusal> {
        if self.received.take().is_some() {
            self.say("remove the received state");
        }
        Ok(())
    }

    fn discover(&mut self, named: &InitialCluster) -> Result<Option<InitialCluster>, Refusal> {
        let Some(own) = self.discovered.first().cloned() else { return Ok(None) };
        self.say("discover the members");
        let name = |at: usize| if at == 0 { own.clone() } else { at.to_string() };
        let members = self.discovered.iter().enumerate();
        let members = members.map(|(at, host)| (name(at), vec![format!("http://{host}:2380")])).collect();
        Ok(Some(InitialCluster { members, names_are_made_up: true, ..named.clone() }))
    }

    fn ask_others(&mut self, _initial: &InitialCluster) -> Option<RemoteCluster> {
        self.say("ask the other members");
        self.remote.clone()
    }

    fn wait_for_others(&mut self) {
        self.say("wait for the others");
        self.remote = Some(self.later.take().expect("one that waits for ever"));
    }

    fn resolve(&mut self, host: &str) -> Option<String> {
        writeln!(self.text, "resolve {host}").unwrap();
        None
    }

    fn sync_tree(&mut self, store: &mut Store) -> Result<(), Refusal> {
        writeln!(self.text, "sync the tree file with entry {}", store.applied().index).unwrap();
        store.make_durable().map_err(Refusal::Store)
    }

    fn give_back_unused(&mut self, end: &LogEnd) -> Result<(), Refusal> {
        writeln!(self.text, "give back what is unused behind segment {}", end.segment).unwrap();
        Ok(())
    }

    fn fill_reserve(&mut self) {
        self.say("fill the reserve");
    }

    fn refused(&self, refusal: Refusal) -> Refusal {
        refusal
    }
}

/// Entries up to this index are applied in a tree file.
fn apply(tree: &SimDisk, index: u64) -> Result<(), Box<dyn Error>> {
    let mut store = Store::open(Arc::new(tree.clone()), DbOptions::default())?;
    store.set_applied(Applied { index, term: 1 });
    let written = store.checkpoint(CheckpointKind::Auto).unwrap().write()?;
    store.finish_checkpoint(written);
    Ok(())
}

/// One of three members that begin a cluster.
fn one_of_three(name: &str) -> InitialCluster {
    let url = |name: &str| vec![format!("http://{name}:2380")];
    InitialCluster {
        name: name.to_owned(),
        members: ["a", "b", "c"].iter().map(|name| ((*name).to_owned(), url(name))).collect(),
        advertised: url(name),
        token: "etcd-cluster".to_owned(),
        names_are_made_up: false,
    }
}

/// Settings of a start.
fn settings(how: &[&str]) -> RecoveryConfig {
    RecoveryConfig {
        begins_cluster: !matches!(how, ["existing", ..]),
        forces_new: how == ["forced"],
        initial: match how {
            ["as", name] | ["existing", name] => one_of_three(name),
            _ => InitialCluster::alone("default", "http://localhost:2380", "etcd-cluster"),
        },
        version: VERSION,
        pre_vote: true,
        advances_election: true,
        boot: 7,
        election_ticks: 10,
        election_seed: 0,
        log_retention: LogRetention::default(),
        quota_bytes: 0,
        lease_extension: 0,
    }
}

impl Runner for Files {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let words = words_of(line);
        match (line.name.as_str(), &words[..]) {
            ("start", how) => {
                let config = settings(how);
                let logger = slog::Logger::root(slog::Discard, slog::o!());
                match recover(&config, &logger, self) {
                    Ok(recovery) => {
                        // Answers to what a former process asked are not for this one.
                        assert_eq!(recovery.origin.boot, config.boot);
                        let applied = recovery.machine.store().applied().index;
                        let last = recovery.log.entries.back().map_or(applied, |entry| entry.index);
                        let what = if recovery.is_new { "new" } else { "recovered" };
                        writeln!(
                            self.text,
                            "{what}: member {:x} of cluster {:x}, {} entries to apply",
                            recovery.identity.member,
                            recovery.identity.cluster,
                            last - applied
                        )?;
                        self.log.get_or_insert(recovery.log);
                    }
                    Err(refusal) => writeln!(self.text, "refused: {refusal:?}")?,
                }
            }
            ("log", [last]) => {
                let log = self.log.get_or_insert_with(|| empty_log(OWNER));
                let first = log.base.0 + 1;
                let entries = first..=last.parse()?;
                let entry = |index| LogEntry { index, term: 1, kind: 0, data: Bytes::new() };
                log.entries = entries.map(entry).collect();
                (log.hard_state.commit, log.end.segment) = (last.parse()?, 1);
            }
            ("apply", [index]) => apply(&self.tree, index.parse()?)?,
            ("receive", [index]) => {
                let received = SimDisk::from_bytes(self.tree.bytes());
                apply(&received, index.parse()?)?;
                self.received = Some(received);
            }
            ("restart", [index]) => {
                let log = self.log.as_mut().ok_or("there is no log")?;
                (log.base, log.entries) = ((index.parse()?, 1), std::collections::VecDeque::new());
                log.hard_state.commit = log.base.0;
            }
            ("lose", ["tree"]) => self.tree = SimDisk::new(),
            ("lose", ["log"]) => self.log = None,
            ("foreign", []) => self.log.as_mut().ok_or("there is no log")?.owner.member = 0xbad,
            ("discovered", names) => {
                self.discovered = names.iter().map(|name| (*name).to_owned()).collect();
            }
            ("others", names) => self.remote = (!names.is_empty()).then(|| remote(names)),
            ("later", names) => self.later = Some(remote(names)),
            ("strangers", names) => self.remote = Some(RemoteCluster { id: 8, ..remote(names) }),
            ("version", [version]) => {
                let version = ClusterVersion::parse(version).ok_or("a version has two numbers")?;
                match &mut self.remote {
                    Some(remote) => remote.versions = vec![version],
                    None => self.write(|store| schema::put_cluster_version(store, version))?,
                }
            }
            ("removed", []) => self.write(|store| schema::remove_member(store, OWNER.member))?,
            ("etcd", []) => self.is_of_etcd = true,
            ("disk", ["full"]) => self.tree.limit(Some(FULL_DISK_BYTES)),
            ("disk", ["roomy"]) => self.tree.limit(None),
            (name, words) => return Err(format!("no event is called {name} {words:?}").into()),
        }
        Ok(std::mem::take(&mut self.text))
    }
}

struct LifecycleRunner(Lifecycle);

impl Runner for LifecycleRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let event = match line.name.as_str() {
            "listens" => ProcessEvent::EdgeListens,
            "quiet" => ProcessEvent::Quiet,
            "signal" => ProcessEvent::Signal(words_of(line)[0].parse()?),
            "ended" => ProcessEvent::CoresEnded,
            name => return Err(format!("no event is called {name}").into()),
        };
        Ok(format!("{:?}\n", self.0.step(event)))
    }
}

/// Effects of an edge core, in words, and what it asks about.
#[derive(Default)]
struct EdgeWords {
    text: String,
    is_behind: bool,
    holds_back: bool,
    has_peers: bool,
}

impl EdgeEffects for EdgeWords {
    fn open_metrics(&mut self) {
        self.text += "open metrics\n";
    }

    fn publish(&mut self) {
        self.text += "publish\n";
    }

    fn wait_for_cluster(&mut self) {
        self.text += "wait for the cluster\n";
    }

    fn is_sole_voter(&self) -> bool {
        !self.has_peers
    }

    fn set_ready(&mut self) {
        self.text += "clients may come\n";
    }

    fn begin_duties(&mut self, of_member: bool) {
        self.text += if of_member { "begin duties, also the member's\n" } else { "begin duties\n" };
    }

    fn serve(&mut self) {
        self.text += "serve\n";
    }

    fn end_duties(&mut self) {
        self.text += "end duties\n";
    }

    fn close_proposals(&mut self) {
        self.text += "close proposals\n";
    }

    fn answer(&mut self, id: CommandId, _outcome: Outcome) {
        writeln!(self.text, "answer {}", id.slot()).unwrap();
    }

    fn end_reads(&mut self, ticket: u64, result: Result<(), Refused>) {
        let result = result.map_or_else(|why| why.to_string(), |()| "served".to_owned());
        writeln!(self.text, "reads up to {ticket}: {result}").unwrap();
    }

    fn lost(&mut self, number: u64, why: Refused) {
        writeln!(self.text, "lost up to {number}: {why}").unwrap();
    }

    fn step_watches(&mut self) {
        self.text += "step watches\n";
    }

    fn wait(&mut self, hearing: u64, time: Duration) {
        writeln!(self.text, "hearing {hearing} waits {time:?}").unwrap();
    }

    fn mark_arrivals(&mut self) -> u64 {
        self.text += "mark arrivals\n";
        1
    }

    fn is_read_up_to(&self, _mark: u64) -> bool {
        !self.is_behind
    }

    fn holds_keepalives_back(&self) -> bool {
        self.holds_back
    }

    fn gave_up_reading(&mut self) {
        self.text += "give up reading\n";
    }

    fn heard(&mut self, heard: Heard) {
        writeln!(self.text, "hearing {} is over, all: {}", heard.question, heard.is_all).unwrap();
    }
}

struct EdgeRunner {
    core: EdgeCore,
    words: EdgeWords,
    slot: usize,
}

impl EdgeRunner {
    fn new() -> Self {
        Self { core: EdgeCore::new(true), words: EdgeWords::default(), slot: 0 }
    }

    fn notification(&mut self, word: &str) -> Result<Notification, Box<dyn Error>> {
        Ok(match word {
            "answer" => {
                self.slot += 1;
                let outcome = Outcome { revision: 1, result: Ok(Bytes::new()), rest: Rest::NONE };
                Notification::Outcome(CommandId::new(0, self.slot, 0), outcome)
            }
            "view" => Notification::View,
            word if word.starts_with("read-") => Notification::Read(word[5..].parse()?),
            word if word.starts_with("refused-") => {
                Notification::ReadFailed(word[8..].parse()?, Refused::LeaderChanged)
            }
            word if word.starts_with("lost-") => {
                Notification::Lost(word[5..].parse()?, Refused::TimeoutLeaderFailed)
            }
            hearing => {
                let number = hearing.strip_prefix("hearing-").ok_or_else(|| format!("what is {hearing}?"))?;
                Notification::Hearing(number.parse()?)
            }
        })
    }
}

impl Runner for EdgeRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let words = words_of(line);
        let mut events = Vec::new();
        match (line.name.as_str(), &words[..]) {
            ("start", ["second"]) => self.core = EdgeCore::new(false),
            ("start", []) => self.core.start(&mut self.words),
            ("published", []) => events.push(EdgeEvent::Published),
            ("peers", []) => self.words.has_peers = true,
            ("overdue", []) => events.push(EdgeEvent::Overdue),
            ("ready", []) => events.push(EdgeEvent::Ready),
            ("notify", notifications) => {
                let notifications = notifications.iter().map(|word| self.notification(word));
                events.push(EdgeEvent::Notifications(notifications.collect::<Result<_, _>>()?));
            }
            ("waited", [hearing]) => events.push(EdgeEvent::Waited(hearing.parse()?)),
            ("waited", [hearing, times]) => {
                let hearing = hearing.parse()?;
                events.extend((0..times.parse()?).map(|_: u64| EdgeEvent::Waited(hearing)));
            }
            ("behind", []) => self.words.is_behind = true,
            ("read", []) => self.words.is_behind = false,
            ("full", []) => self.words.holds_back = true,
            ("free", []) => self.words.holds_back = false,
            ("drained", []) => events.push(EdgeEvent::Drained),
            ("closed", []) => events.push(EdgeEvent::StateClosed),
            (name, words) => return Err(format!("no event is called {name} {words:?}").into()),
        }
        for event in events {
            self.words.text.clear(); // of several, the last one shows
            self.core.receive(event, &mut self.words);
        }
        if self.core.is_over() {
            self.words.text += "over\n";
        }
        Ok(std::mem::take(&mut self.words.text))
    }
}

#[test]
fn recovery() {
    run_all("recovery", Files::default);
}

#[test]
fn lifecycle() {
    run_all("lifecycle", || LifecycleRunner(Lifecycle::new(2)));
}

#[test]
fn edge_core() {
    run_all("edge_core", EdgeRunner::new);
}
