//! Shared by honest clients: how a call may end, and what was written.
//!
//! A call may fail where the server was killed while it was under way, and only as a lost
//! connection or as Unavailable. Any other failure is a finding. No write is made again: its
//! outcome is then unknown, and both are right.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};
use tonic::{Code, Response, Status};

use crate::harness::{Client, connect};

/// No caller waits longer for a reply of a server that is up.
const PATIENCE: Duration = Duration::from_secs(30);
/// A connection that was lost with the server may be found lost so long after the next start.
const GRACE: Duration = Duration::from_secs(2);
pub const WRITERS: u64 = 4;

#[expect(clippy::disallowed_methods, reason = "a soak is about time")]
pub fn now() -> Instant {
    Instant::now()
}

/// State of the server as all clients see it.
pub struct Shared {
    pub endpoint: String,
    pub kills: Cell<u64>,
    pub is_down: Cell<bool>,
    /// When it was ready last.
    pub ready_at: Cell<Instant>,
    pub over: Cell<bool>,
    /// No client calls any more: the auditor's history is complete then.
    pub is_quiet: Cell<bool>,
    /// Attacks under way.
    pub attack: RefCell<String>,
    pub findings: RefCell<Vec<String>>,
    /// The newest revision that anybody was told of.
    pub revision: Cell<i64>,
    pub slowest: Cell<Duration>,
    pub calls: Cell<u64>,
}

impl Shared {
    pub fn new(endpoint: String) -> Rc<Self> {
        Rc::new(Self {
            endpoint,
            kills: Cell::new(0),
            is_down: Cell::new(false),
            ready_at: Cell::new(now()),
            over: Cell::new(false),
            is_quiet: Cell::new(false),
            attack: RefCell::default(),
            findings: RefCell::default(),
            revision: Cell::new(1),
            slowest: Cell::default(),
            calls: Cell::default(),
        })
    }

    pub fn find(&self, what: &str) {
        let finding = format!("during {:?}, after {} kills: {what}", self.attack.borrow(), self.kills.get());
        eprintln!("{finding}");
        self.findings.borrow_mut().push(finding);
    }

    pub fn saw(&self, revision: i64) {
        self.revision.set(self.revision.get().max(revision));
    }

    /// Whether the server was killed since then, or its loss is only found now.
    pub fn was_killed_since(&self, kills: u64) -> bool {
        self.is_down.get() || self.kills.get() != kills || self.ready_at.get().elapsed() < GRACE
    }

    /// An error that the server's death explains.
    pub fn excuses(&self, kills: u64, status: &Status) -> bool {
        self.was_killed_since(kills) && (status.code() == Code::Unavailable || status.source().is_some())
    }

    /// Makes a call; none if its outcome is not known.
    pub async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Option<T> {
        let (kills, began) = (self.kills.get(), now());
        let outcome = tokio::time::timeout(PATIENCE, call).await;
        self.calls.set(self.calls.get() + 1);
        match outcome {
            Ok(Ok(reply)) => {
                if !self.was_killed_since(kills) {
                    self.slowest.set(self.slowest.get().max(began.elapsed()));
                }
                return Some(reply.into_inner());
            }
            Ok(Err(status)) if self.excuses(kills, &status) => {}
            Ok(Err(status)) => self.find(&format!("{what}: {:?} {}", status.code(), status.message())),
            Err(_) if self.was_killed_since(kills) => {}
            Err(_) => self.find(&format!("{what}: no answer in {PATIENCE:?}")),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        None
    }
}

/// Replies to writers.
#[derive(Default)]
pub struct Written {
    sent: BTreeMap<u64, u64>,
    /// The last acknowledged number of each, with its revision.
    acknowledged: BTreeMap<u64, (u64, i64)>,
    /// All of them, for the watch: key, value, revision.
    pub all: Vec<(String, String, i64)>,
}

pub fn key(writer: u64, number: u64) -> String {
    // Some keys are written again and again, others now and then.
    format!("soak/{writer}/{}", if number.is_multiple_of(3) { 0 } else { number % 50 })
}

/// Puts number after number, with the last one under a key of its own, until it is over.
pub async fn write(shared: Rc<Shared>, written: Rc<RefCell<Written>>, writer: u64) {
    let mut kv = connect(&shared.endpoint).await.kv;
    while !shared.over.get() {
        let number = {
            let mut written = written.borrow_mut();
            let sent = written.sent.entry(writer).or_insert(0);
            *sent += 1;
            *sent
        };
        let (key, value) = (key(writer, number), number.to_string());
        let put =
            PutRequest { key: key.clone().into(), value: value.clone().into(), ..PutRequest::default() };
        if let Some(reply) = shared.call("put", kv.put(put)).await {
            let revision = reply.header.unwrap().revision;
            shared.saw(revision);
            let mut written = written.borrow_mut();
            written.acknowledged.insert(writer, (number, revision));
            written.all.push((key, value, revision));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Compares what the server has with what writers were told; they may go on meanwhile.
pub async fn check(shared: &Shared, client: &Client, written: &RefCell<Written>) {
    for writer in 0..WRITERS {
        let Some((number, revision)) = written.borrow().acknowledged.get(&writer).copied() else { continue };
        let key = key(writer, number);
        let request = RangeRequest { key: key.clone().into(), ..RangeRequest::default() };
        let Some(reply) = shared.call("read back", client.kv.clone().range(request)).await else { continue };
        let at = reply.header.unwrap().revision;
        let found = reply
            .kvs
            .first()
            .and_then(|kv| Some((std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok()?, kv)));
        let Some((value, kv)) = found else {
            shared.find(&format!("{key} is gone: {number} was acknowledged at {revision}"));
            continue;
        };
        let sent = written.borrow().sent[&writer];
        if at < revision || value < number || value > sent || kv.mod_revision < revision {
            let told = format!("told {number} at {revision}, sent {sent}");
            shared.find(&format!("{key}: {told}, found {value} at {} of {at}", kv.mod_revision));
        }
    }
}
