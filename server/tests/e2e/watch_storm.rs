//! Many watchers of every kind, that cancel, stall, go away and come back at old and future
//! revisions, while writers write, compactions run close behind, and the server is killed and
//! started again. The replies to each are held against the history.
//!
//! The history is that of one more watcher, the auditor: of all keys, from the beginning.
//! It is not believed either: its revisions must be dense, versions and create revisions must
//! follow from each other, and every acknowledged write must be there with its value.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest, WatchCancelRequest,
    WatchCreateRequest, WatchProgressRequest, WatchResponse,
};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};
use tokio::task::{LocalSet, spawn_local};

use crate::harness::{Client, Random, Server, TempDir, WatchStream, connect, from_env, run};
use revd_checker::{Changes, Transcript};

const KEYS: u64 = 200;
const WRITERS: u64 = 4;
const CONNECTIONS: u64 = 10;

/// Shared by everybody in a storm.
struct Storm {
    endpoint: String,
    /// The newest revision anybody was told of.
    revision: Cell<i64>,
    /// The auditor has been told of everything up to here.
    audited: Cell<i64>,
    compacted: Cell<i64>,
    over: Cell<bool>,
    transcripts: RefCell<Vec<Transcript>>,
    acknowledged: RefCell<Vec<Written>>,
}

/// A write that was acknowledged: its revision, key and value; no value for a deletion.
type Written = (i64, Vec<u8>, Option<Vec<u8>>);

fn key(random: &mut Random) -> Vec<u8> {
    format!("storm/{:03}", random.below(KEYS)).into_bytes()
}

impl Storm {
    fn saw(&self, revision: i64) {
        self.revision.set(self.revision.get().max(revision));
    }

    async fn write(self: Rc<Self>, writer: u64) {
        let mut random = Random::new(writer);
        let mut kv = connect(&self.endpoint).await.kv;
        for number in 0_u64.. {
            if self.over.get() {
                return;
            }
            let size = if random.one_in(20) { 30_000 } else { 20 };
            let value = format!("{writer}-{number}-{}", "x".repeat(size)).into_bytes();
            let (first, second) = (key(&mut random), key(&mut random));
            let put = |key: &[u8]| PutRequest {
                key: key.to_vec().into(),
                value: value.clone().into(),
                ..PutRequest::default()
            };
            let (result, written) = match random.below(6) {
                0 => {
                    let delete =
                        DeleteRangeRequest { key: first.clone().into(), ..DeleteRangeRequest::default() };
                    let reply = kv.delete_range(delete).await.map(tonic::Response::into_inner);
                    let gone = reply.as_ref().is_ok_and(|reply| reply.deleted > 0);
                    (reply.map(|reply| reply.header), if gone { vec![(first, None)] } else { vec![] })
                }
                1 if first != second => {
                    let op = |key: &[u8]| RequestOp { request: Some(Request::RequestPut(put(key))) };
                    let txn = TxnRequest { success: vec![op(&first), op(&second)], ..TxnRequest::default() };
                    let reply = kv.txn(txn).await.map(|reply| reply.into_inner().header);
                    (reply, vec![(first, Some(value.clone())), (second, Some(value.clone()))])
                }
                _ => {
                    let reply = kv.put(put(&first)).await.map(|reply| reply.into_inner().header);
                    (reply, vec![(first, Some(value.clone()))])
                }
            };
            match result {
                Ok(header) => {
                    let revision = header.unwrap().revision;
                    self.saw(revision);
                    let written = written.into_iter().map(|(key, value)| (revision, key, value));
                    self.acknowledged.borrow_mut().extend(written);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await, // killed: who knows
            }
        }
    }

    /// Compacts now and then: up to the newest revision the auditor knows.
    async fn compact(self: Rc<Self>) {
        let mut random = Random::new(99);
        let mut kv = connect(&self.endpoint).await.kv;
        while !self.over.get() {
            tokio::time::sleep(Duration::from_millis(50 + random.below(200))).await;
            let behind = if random.one_in(2) { 0 } else { i64::try_from(random.below(200)).unwrap() };
            let revision = self.audited.get() - behind;
            // Counts before it is acknowledged: a killed server may have done it.
            self.compacted.set(self.compacted.get().max(revision));
            let _ = kv.compact(CompactionRequest { revision, physical: random.one_in(4) }).await;
        }
    }

    fn request(&self, random: &mut Random) -> WatchCreateRequest {
        let now = self.revision.get();
        let near = i64::try_from(random.below(50)).unwrap();
        let end = match random.below(4) {
            0 => Vec::new(),
            1 => vec![0],
            2 => b"storm/1".to_vec(),
            _ => b"storm0".to_vec(),
        };
        WatchCreateRequest {
            key: key(random).into(),
            range_end: end.into(),
            start_revision: match random.below(6) {
                0..=2 => 0,
                3 => now + near,
                4 => (self.compacted.get() + near - 10).max(0),
                _ => (now - 20 * near).max(0),
            },
            filters: (0..2).filter(|_| random.one_in(6)).collect(),
            prev_kv: random.one_in(3),
            fragment: random.one_in(4),
            progress_notify: random.one_in(2),
            watch_id: 0,
        }
    }

    /// A client that watches, in one call after the other.
    async fn watch(self: Rc<Self>, client: Client, seed: u64) {
        let mut random = Random::new(seed);
        while !self.over.get() {
            let mut call = Call::new(client.open_watch());
            let mut turns = 1 + random.below(200);
            while !self.over.get() && turns > 0 && call.is_open {
                turns -= 1;
                match random.below(12) {
                    0..=2 if call.watching.len() + call.asked.len() < 5 => {
                        let request = self.request(&mut random);
                        call.stream.ask(RequestUnion::CreateRequest(request.clone()));
                        call.asked.push(request);
                    }
                    3 => {
                        let ids: Vec<i64> = call.watching.keys().copied().collect();
                        if !ids.is_empty() {
                            let watch_id = random.pick(&ids);
                            call.stream.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
                        }
                    }
                    4 => call.stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {})),
                    5 if random.one_in(10) => {
                        call.stream.pause(true);
                        tokio::time::sleep(Duration::from_millis(500 + random.below(2_000))).await;
                        call.stream.pause(false);
                    }
                    _ => call.hear(&self, Duration::from_millis(30)).await,
                }
            }
            if self.over.get() && call.is_open {
                call.hear_all(&self).await;
            }
            self.transcripts.borrow_mut().extend(call.end());
        }
    }

    /// Watches everything from the beginning, through restarts.
    async fn audit(self: Rc<Self>, client: Client) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let mut stream = client.open_watch();
            let request = WatchCreateRequest {
                key: "\0".into(),
                range_end: "\0".into(),
                start_revision: self.audited.get() + 1,
                ..WatchCreateRequest::default()
            };
            stream.ask(RequestUnion::CreateRequest(request));
            while let Some(response) = stream.next_within(Duration::from_millis(300)).await {
                let Ok(response) = response else { break };
                assert_eq!(response.compact_revision, 0, "nobody compacts what the auditor does not know");
                for event in response.events {
                    self.audited.set(event.kv.as_ref().unwrap().mod_revision);
                    events.push(event);
                }
                self.saw(self.audited.get());
            }
            if self.over.get() && self.audited.get() >= self.revision.get() {
                return events;
            }
        }
    }
}

/// One watch call of a client, and what its watchers were told.
struct Call {
    stream: WatchStream,
    watching: BTreeMap<i64, Transcript>,
    /// Requests whose answer has not come yet.
    asked: Vec<WatchCreateRequest>,
    over: Vec<Transcript>,
    /// Watchers that a compaction has ended.
    compacted: Vec<i64>,
    is_open: bool,
    progress: i64,
}

impl Call {
    fn new(stream: WatchStream) -> Self {
        Self {
            stream,
            watching: BTreeMap::new(),
            asked: Vec::new(),
            over: Vec::new(),
            compacted: Vec::new(),
            is_open: true,
            progress: 0,
        }
    }

    async fn hear(&mut self, storm: &Storm, wait: Duration) {
        match self.stream.next_within(wait).await {
            Some(Ok(response)) => self.heard(storm, response),
            Some(Err(_)) => self.is_open = false,
            None => {}
        }
    }

    fn heard(&mut self, storm: &Storm, response: WatchResponse) {
        storm.saw(response.header.as_ref().unwrap().revision);
        let id = response.watch_id;
        if response.created {
            let mut transcript = Transcript::new(self.asked.remove(0));
            let refused = response.canceled;
            transcript.responses.push(response);
            if refused { self.over.push(transcript) } else { drop(self.watching.insert(id, transcript)) }
        } else if id == -1 {
            self.progress = response.header.as_ref().unwrap().revision;
            self.watching.values_mut().for_each(|watcher| watcher.responses.push(response.clone()));
        } else if let Some(watcher) = self.watching.get_mut(&id) {
            let (ends, compacted) = (response.canceled, response.compact_revision > 0);
            watcher.responses.push(response);
            if ends {
                self.over.extend(self.watching.remove(&id));
            }
            if compacted {
                self.compacted.push(id);
            }
        }
    }

    /// Hears until every watcher that has begun knows everything, and says so in the transcripts.
    async fn hear_all(&mut self, storm: &Storm) {
        let end = storm.revision.get();
        for _ in 0..3_000 {
            if !self.is_open || (self.watching.is_empty() && self.asked.is_empty()) || self.progress >= end {
                break;
            }
            // Those that begin later, or were ended by a compaction, keep
            // the call from being up to date.
            let late = self.watching.iter().filter(|(_, watcher)| watcher.request.start_revision > end);
            let late: Vec<i64> = late.map(|(id, _)| *id).chain(self.compacted.drain(..)).collect();
            for watch_id in late {
                self.stream.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
            }
            self.stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
            self.hear(storm, Duration::from_millis(10)).await;
        }
        if self.is_open && self.progress >= end {
            self.watching.values_mut().for_each(|watcher| watcher.complete_to = Some(end));
        }
    }

    fn end(self) -> impl Iterator<Item = Transcript> {
        self.over.into_iter().chain(self.watching.into_values())
    }
}

/// Holds the auditor's events against themselves and against what was acknowledged.
fn audited(events: Vec<Event>, storm: &Storm) -> Changes {
    let mut history = Changes::default();
    history.compacted = storm.compacted.get();
    let mut state: BTreeMap<Vec<u8>, KeyValue> = BTreeMap::new();
    let mut at: BTreeMap<(i64, Vec<u8>), Option<Vec<u8>>> = BTreeMap::new();
    let mut revision = 1;
    for event in events {
        let kv = event.kv.clone().unwrap();
        assert!(
            kv.mod_revision == revision || kv.mod_revision == revision + 1,
            "a gap: {revision}, then {kv:?}"
        );
        revision = kv.mod_revision;
        let key = kv.key.to_vec();
        if event.r#type == EventType::Put as i32 {
            let (created, version) =
                state.get(&key).map_or((revision, 1), |before| (before.create_revision, before.version + 1));
            assert_eq!((kv.create_revision, kv.version), (created, version), "{kv:?}");
            at.insert((revision, key.clone()), Some(kv.value.to_vec()));
            state.insert(key, kv);
        } else {
            assert!(state.remove(&key).is_some(), "a deletion of nothing: {kv:?}");
            at.insert((revision, key), None);
        }
        history.push(event);
    }
    let acknowledged = storm.acknowledged.borrow();
    for (revision, key, value) in &*acknowledged {
        assert_eq!(at.get(&(*revision, key.clone())), Some(value), "acknowledged at {revision}");
    }
    println!("{} acknowledged changes, {} events", acknowledged.len(), at.len());
    history
}

#[test]
fn a_storm_of_watchers_hears_everything() {
    run(LocalSet::new().run_until(async {
        let seconds = from_env("REVD_STORM_SECONDS", 12);
        let watchers = from_env("REVD_STORM_WATCHERS", 60);
        let dir = TempDir::new();
        let flags = ["--watch-progress-notify-interval", "200ms"];
        let mut server = Server::revd(&dir.path().join("data"), &flags);
        let storm = Rc::new(Storm {
            endpoint: server.endpoint(),
            revision: Cell::new(1),
            audited: Cell::new(1),
            compacted: Cell::new(0),
            over: Cell::new(false),
            transcripts: RefCell::default(),
            acknowledged: RefCell::default(),
        });
        let auditor = spawn_local(Rc::clone(&storm).audit(connect(&storm.endpoint).await));
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = connect(&storm.endpoint).await;
            for seed in 0..watchers / CONNECTIONS {
                let seed = seed * CONNECTIONS + tasks.len() as u64;
                tasks.push(spawn_local(Rc::clone(&storm).watch(client.clone(), seed)));
            }
        }
        tasks.push(spawn_local(Rc::clone(&storm).compact()));
        tasks.extend((0..WRITERS).map(|writer| spawn_local(Rc::clone(&storm).write(writer))));
        for _ in 0..seconds / 3 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            server.kill();
            server.start_again();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        storm.over.set(true);
        for task in tasks {
            task.await.unwrap();
        }
        let history = audited(auditor.await.unwrap(), &storm);
        let transcripts = storm.transcripts.take();
        let (mut told, mut complete) = (0, 0);
        for transcript in &transcripts {
            told += transcript.check(&history).unwrap_or_else(|problem| {
                panic!("{:?}: {problem:.3000}", transcript.request);
            });
            complete += usize::from(transcript.complete_to.is_some());
        }
        println!("{} watchers, {complete} to the end, told of {told} events", transcripts.len());
        assert!(told > 1_000 && complete > 0, "too little happened");
    }));
}
