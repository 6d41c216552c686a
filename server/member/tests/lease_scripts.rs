//! Runs the scripts in `tests/scripts/lease`: commands about leases and the clock in, what the
//! machine answers out. `UPDATE_GOLDENFILES=1 cargo test -p revd-member --test lease_scripts`
//! writes what it answers now; read the difference.
//!
//! ```text
//! edges N                      before the first lease expires, so many pass on their keepalives
//! at SECONDS                   the clock; fractions are milliseconds
//! lead TERM    follow          this member's part, until it knows all leases
//! grant ID TTL    revoke ID    put KEY [LEASE]    del KEY        commands in the log
//! keepalive ID    ttl ID [keys]    keys ID    list    due       requests to this member alone
//! passed QUESTION [not-all]    an edge has passed on the keepalives it had
//! left                         what leases have left that need a lease checkpoint
//! expire                       proposes what the last `due` was answered
//! checkpoint ID SECONDS        proposes a lease checkpoint
//! restart                      saves, and goes on with what is in the store
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use goldenscript::{Argument, Command as Line, Context, Runner};
use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{CheckpointKind, Store};
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::lease_reports::{CHECKPOINT_FIRST, ExpiredLeases, RemainingTtls};
use revd_member::apply::local::{DeadlineRequest, Heard, LeaseRequest};
use revd_member::apply::outcome::{Effect, Outcome};
use revd_member::apply::{CommittedEntry, Machine, MachineConfig};
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseTimeToLiveResponse, PutRequest,
};

use golden::run_all;

const OWN: Origin = Origin { member: 1, boot: 1 };
/// The time that a new leader adds to every TTL.
const EXTENSION_MILLISECONDS: u64 = 1_000;

fn machine(store: Store) -> Machine {
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: EXTENSION_MILLISECONDS };
    Machine::new(store, config).unwrap()
}

#[derive(Clone, Copy)]
enum Asked {
    Command,
    Local(LeaseRequest),
}

struct LeaseRunner {
    disk: SimDisk,
    machine: Machine,
    edges: usize,
    milliseconds: u64,
    term: u64,
    /// Requests that wait for their answers, by slot.
    asked: Vec<(Asked, String)>,
    /// The answer to the last question for expired leases.
    due: Bytes,
}

impl LeaseRunner {
    fn new() -> Self {
        let disk = SimDisk::new();
        let store = Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        Self {
            disk,
            machine: machine(store),
            edges: 0,
            milliseconds: 0,
            term: 1,
            asked: Vec::new(),
            due: Bytes::new(),
        }
    }

    fn caller(&mut self, asked: Asked, line: &Line) -> CommandId {
        self.asked.push((asked, line.to_string()));
        CommandId::new(0, self.asked.len() - 1, 0)
    }

    /// Through the log.
    fn propose(&mut self, kind: Kind, payload: Vec<u8>, line: &Line) -> Result<String, Box<dyn Error>> {
        let command = Command { id: self.caller(Asked::Command, line), kind, payload: payload.into() };
        let index = self.machine.store().applied().index + 1;
        let data = command::encode(OWN, &[command]).into();
        let mut effects = Vec::new();
        let entry = CommittedEntry { index, term: self.term, data, change: None };
        self.machine.apply(&entry, self.milliseconds, &mut effects)?;
        Ok(self.shown_or_waits(effects, line))
    }

    /// To this member alone.
    fn ask(&mut self, request: LeaseRequest, line: &Line) -> String {
        let caller = self.caller(Asked::Local(request), line);
        let mut effects = Vec::new();
        self.machine.lease_request(caller, request, self.milliseconds, &mut effects);
        while self.machine.is_listing_keys() {
            self.machine.list_keys(self.milliseconds, &mut effects);
        }
        self.shown_or_waits(effects, line)
    }

    fn ask_deadlines(&mut self, request: DeadlineRequest, line: &Line) -> String {
        self.ask(LeaseRequest::Deadline(request), line)
    }

    fn list(&mut self, line: &Line) -> String {
        let mut said = self.ask_deadlines(DeadlineRequest::List, line);
        let revision = self.machine.store().revision();
        while self.machine.lessor().is_listing() {
            if let Some(listed) = self.machine.list_leases(revision) {
                let body = listed.list.encode();
                let leases = LeaseLeasesResponse::decode(body).unwrap().leases;
                said = format!("{line}: {:?}\n", leases.iter().map(|lease| lease.id).collect::<Vec<_>>());
            }
        }
        said
    }

    /// Leads or follows, and learns or forgets all leases.
    fn set_term(&mut self, term: Option<u64>, line: &Line) -> String {
        let mut effects = Vec::new();
        self.machine.serve(self.edges);
        let mut has_changed = false;
        while {
            has_changed |= self.machine.set_leadership(term, self.milliseconds, &mut effects);
            self.machine.lessor().is_changing()
        } {}
        let said = if has_changed { format!("{line}: lease TTLs reset\n") } else { String::new() };
        said + &self.shown(effects)
    }

    fn restart(&mut self) {
        if let Some(checkpoint) = self.machine.store_mut().checkpoint(CheckpointKind::Auto) {
            let written = checkpoint.write().unwrap();
            self.machine.store_mut().finish_checkpoint(written);
        }
        let store = Store::open(Arc::new(SimDisk::from_bytes(self.disk.bytes())), DbOptions::default());
        self.machine = machine(store.unwrap());
    }

    fn shown_or_waits(&mut self, effects: Vec<Effect>, line: &Line) -> String {
        let said = self.shown(effects);
        let is_answered = said.lines().any(|said| said.starts_with(&format!("{line}: ")));
        if is_answered { said } else { said + &format!("{line}: waits\n") }
    }

    /// Effects in words; an answer is behind the line that asked.
    fn shown(&mut self, effects: Vec<Effect>) -> String {
        let mut said = String::new();
        for effect in effects {
            let (id, outcome) = match effect {
                Effect::Reply(id, outcome) | Effect::ReplyWhenCompacted(id, outcome, _) => (id, outcome),
                Effect::Tokens(_) => panic!("nobody logs in"),
                Effect::Hear(question) => {
                    writeln!(said, "question {question} to every edge: pass on the keepalives you have")
                        .unwrap();
                    continue;
                }
            };
            let (asked, line) = self.asked[id.slot()].clone();
            writeln!(said, "{line}: {}", self.answer(asked, outcome)).unwrap();
        }
        said
    }

    fn answer(&mut self, asked: Asked, outcome: Outcome) -> String {
        let body = match outcome.result {
            Ok(body) => body,
            Err(error) => return format!("Error: {error}"),
        };
        let Asked::Local(request) = asked else { return format!("revision {}", outcome.revision) };
        match request {
            LeaseRequest::Deadline(DeadlineRequest::KeepAlive { .. }) if body == CHECKPOINT_FIRST => {
                "its lease checkpoint has to be taken back first".into()
            }
            LeaseRequest::Deadline(DeadlineRequest::KeepAlive { .. }) => match body.clone().get_i64_le() {
                0 => "no such lease".to_owned(),
                seconds => format!("renewed for {seconds} s"),
            },
            LeaseRequest::TimeToLive { .. } => {
                let response = LeaseTimeToLiveResponse::decode(body).unwrap();
                let keys: Vec<String> =
                    response.keys.iter().map(|key| key.escape_ascii().to_string()).collect();
                format!("{} of {} s left, keys {keys:?}", response.ttl, response.granted_ttl)
            }
            LeaseRequest::Keys { .. } => {
                let keys = LeaseTimeToLiveResponse::decode(body).unwrap().keys;
                format!("{:?}", keys.iter().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>())
            }
            LeaseRequest::KeyBytes { .. } => format!("at most {} bytes", body.clone().get_u64_le()),
            LeaseRequest::Expired => {
                self.due = body.clone();
                let due = ExpiredLeases::decode(body).unwrap();
                format!("expired in term {}: {:?}", due.term, due.leases)
            }
            LeaseRequest::Deadline(DeadlineRequest::Remaining { .. }) => {
                let left = RemainingTtls::decode(body.clone()).unwrap();
                let checkpoints = left.checkpoint.checkpoints.iter();
                let left: Vec<String> =
                    checkpoints.map(|left| format!("{} has {} s", left.id, left.remaining_ttl)).collect();
                format!("{left:?}")
            }
            LeaseRequest::Heard(_) | LeaseRequest::Deadline(DeadlineRequest::List) => {
                format!("revision {}", outcome.revision)
            }
        }
    }
}

fn lease_checkpoint(id: i64, remaining_ttl: i64) -> Vec<u8> {
    LeaseCheckpointRequest { checkpoints: vec![LeaseCheckpoint { id, remaining_ttl }] }.encode_to_vec()
}

impl Runner for LeaseRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let words: Vec<&str> = line
            .args
            .iter()
            .map(|argument| match argument {
                Argument::Positional(word) => word.as_str(),
                other => panic!("{other} is not a plain argument"),
            })
            .collect();
        let number = |at: usize| words.get(at).map_or(0, |text: &&str| text.parse::<i64>().unwrap());
        Ok(match line.name.as_str() {
            "edges" => {
                self.edges = words[0].parse()?;
                String::new()
            }
            "at" => {
                let (seconds, rest) = words[0].split_once('.').unwrap_or((words[0], "0"));
                self.milliseconds = seconds.parse::<u64>()? * 1_000 + format!("{rest:0<3}").parse::<u64>()?;
                String::new()
            }
            "lead" => {
                self.term = words[0].parse()?;
                self.set_term(Some(self.term), line)
            }
            "follow" => self.set_term(None, line),
            "grant" => {
                let request = LeaseGrantRequest { id: number(0), ttl: number(1) };
                self.propose(Kind::LeaseGrant, request.encode_to_vec(), line)?
            }
            "revoke" => {
                let request = LeaseRevokeRequest { id: number(0) };
                self.propose(Kind::LeaseRevoke, request.encode_to_vec(), line)?
            }
            "put" => {
                let request =
                    PutRequest { key: words[0].to_owned().into(), lease: number(1), ..PutRequest::default() };
                self.propose(Kind::Put, request.encode_to_vec(), line)?
            }
            "del" => {
                let request =
                    DeleteRangeRequest { key: words[0].to_owned().into(), ..DeleteRangeRequest::default() };
                self.propose(Kind::DeleteRange, request.encode_to_vec(), line)?
            }
            "keepalive" => self.ask_deadlines(DeadlineRequest::KeepAlive { lease: number(0) }, line),
            "ttl" => {
                let keys = words.contains(&"keys");
                self.ask(LeaseRequest::TimeToLive { lease: number(0), keys }, line)
            }
            "keys" => self.ask(LeaseRequest::Keys { lease: number(0) }, line),
            "key-bytes" => self.ask(LeaseRequest::KeyBytes { lease: number(0) }, line),
            "list" => self.list(line),
            "due" => self.ask(LeaseRequest::Expired, line),
            "passed" => {
                let question = number(0).unsigned_abs();
                let heard = Heard { question, is_all: !words.contains(&"not-all") };
                self.ask(LeaseRequest::Heard(heard), line)
            }
            "expire" => self.propose(Kind::LeaseExpire, self.due.to_vec(), line)?,
            "left" => self.ask_deadlines(DeadlineRequest::Remaining { from: i64::MIN }, line),
            "checkpoint" => {
                self.propose(Kind::LeaseCheckpoint, lease_checkpoint(number(0), number(1)), line)?
            }
            "restart" => {
                self.restart();
                String::new()
            }
            name => return Err(format!("no command is called {name}").into()),
        })
    }
}

#[test]
fn lease() {
    run_all("lease", LeaseRunner::new);
}
