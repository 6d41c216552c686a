//! The hub of watches against a model, in one thread: every kind of watcher, stalled streams,
//! checkpoints, compactions. And the checker itself against spoiled transcripts.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use prost::Message as _;
use revd_checker::{Changes, Transcript, mutants};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Store, View};
use revd_engine::random::Random;
use revd_member::budget::{Budget, Hold, Share};
use revd_member::limits::WATCH_STEP_WORK;
use revd_member::watch::{Content, Hub, HubLimits, Reply, StreamId};
use revd_proto::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

const KEYS: u64 = 12;

/// A stream and its watchers' transcripts, by id.
struct Client {
    stream: StreamId,
    watching: BTreeMap<i64, Transcript>,
    /// Requests whose answer has not been taken yet.
    asked: Vec<WatchCreateRequest>,
    /// Replies that were taken and have not left the member yet.
    way: Hold,
}

/// The task that takes the hub's steps was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Sim {
    random: Random,
    /// Whether the hub's core stands still now and then, while the store goes on, and for how many
    /// more steps it does.
    stalls: bool,
    stalled: u64,
    /// The work that a step of the hub may do.
    step_work: usize,
    /// Memory of connections: each has some of the clients.
    budget: Budget,
    shares: Vec<Share>,
    /// Most streams that were starved at a time.
    starved: usize,
    store: Store,
    /// The newest View that may be told of, while watchers are judged anew.
    told_of: Option<View>,
    hub: Hub,
    history: Changes,
    clients: Vec<Client>,
    /// Watchers that are over.
    over: Vec<Transcript>,
    tick: u64,
}

fn key(number: u64) -> Vec<u8> {
    vec![b'a' + u8::try_from(number / 4).unwrap(), b'0' + u8::try_from(number % 4).unwrap()]
}

impl Sim {
    fn new(seed: u64, step_work: usize, memory: usize) -> Self {
        let budget = Budget::new(memory);
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        Self {
            random: Random::new(seed),
            stalls: false,
            step_work,
            stalled: 0,
            shares: (0..3).map(|_| budget.share()).collect(),
            budget,
            starved: 0,
            store,
            told_of: None,
            hub: Hub::new(HubLimits { fragment_bytes: 300_000, step_work }),
            history: Changes::default(),
            clients: Vec::new(),
            over: Vec::new(),
            tick: 0,
        }
    }

    /// A transaction of a few changes.
    fn write(&mut self) {
        let index = self.store.applied().index + 1;
        let mut txn = self.store.begin();
        let main = txn.revision() + 1;
        let mut events = Vec::new();
        for _ in 0..=self.random.below(3) {
            let key = key(self.random.below(KEYS));
            if self.random.one_in(4) {
                let deleted = txn.delete_range(KeyRange::One(&key));
                events.extend(deleted.into_iter().map(|(key, _)| Event {
                    r#type: EventType::Delete as i32,
                    kv: Some(KeyValue { key: key.into(), mod_revision: main, ..KeyValue::default() }),
                    prev_kv: None,
                }));
                continue;
            }
            let len = if self.random.one_in(3) { 150_000 } else { self.random.below(40) };
            let value = vec![self.random.byte(); usize::try_from(len).unwrap()];
            let meta = txn.put(&key, &value, 0).meta;
            let kv = KeyValue {
                key: key.into(),
                create_revision: meta.create_revision,
                mod_revision: main,
                version: meta.version,
                value: value.into(),
                lease: 0,
            };
            events.push(Event { r#type: EventType::Put as i32, kv: Some(kv), prev_kv: None });
        }
        txn.commit();
        self.store.set_applied(Applied { index, term: 1 });
        events.into_iter().for_each(|event| self.history.push(event));
    }

    /// A change that the history does not hear of.
    fn put(&mut self, key: &[u8]) {
        let mut txn = self.store.begin();
        txn.put(key, b"", 0);
        txn.commit();
    }

    fn request(&mut self) -> WatchCreateRequest {
        let start = key(self.random.below(KEYS));
        let end = key(self.random.below(KEYS));
        let now = self.store.revision();
        let some =
            |random: &mut Random, below: i64| i64::try_from(random.below(below.unsigned_abs())).unwrap();
        WatchCreateRequest {
            range_end: match self.random.below(4) {
                0 => Vec::new(),
                1 => vec![0],
                2 => vec![start[0] + 1],
                _ => end,
            }
            .into(),
            key: start.into(),
            start_revision: match self.random.below(5) {
                0 | 1 => 0,
                2 => now + 1 + some(&mut self.random, 20),
                3 => self.history.compacted + some(&mut self.random, 3) - 1,
                _ => 1 + some(&mut self.random, now),
            },
            filters: (0..2).filter(|_| self.random.one_in(5)).collect(),
            prev_kv: self.random.one_in(2),
            fragment: self.random.one_in(3),
            progress_notify: self.random.one_in(3),
            watch_id: if self.random.one_in(4) { some(&mut self.random, 20) } else { 0 },
        }
    }

    fn checkpoint(&mut self) {
        if let Some(checkpoint) = self.store.checkpoint(CheckpointKind::Auto) {
            let written = checkpoint.write().unwrap();
            self.store.finish_checkpoint(written);
        }
    }

    fn compact(&mut self, revision: i64) {
        if self.store.compact(revision).is_ok() {
            self.history.compacted = revision;
        }
    }

    /// A step of the store while the hub's core stands still.
    fn step_of_others(&mut self) {
        match self.random.below(8) {
            0 | 1 => self.checkpoint(),
            2 if self.random.one_in(2) => self.compact(self.store.revision()),
            _ => self.write(),
        }
    }

    fn step(&mut self) {
        self.starved = self.starved.max(self.hub.counts().starved);
        if self.stalls && self.stalled == 0 && self.random.one_in(60) {
            self.stalled = 1 + self.random.below(20);
        }
        if self.stalled > 0 {
            self.stalled -= 1;
            return self.step_of_others();
        }
        if self.clients.len() < 6 || self.random.one_in(400) {
            let share = &self.shares[usize::try_from(self.random.below(3)).unwrap()];
            let (stream, way) = (self.hub.open(share), share.hold());
            self.clients.push(Client { stream, watching: BTreeMap::new(), asked: Vec::new(), way });
        }
        let client = usize::try_from(self.random.below(self.clients.len() as u64)).unwrap();
        let stream = self.clients[client].stream;
        match self.random.below(20) {
            0..=6 => self.write(),
            7 | 8 if self.step_work == WATCH_STEP_WORK => self.hub.advance(&self.store.view()).unwrap(),
            9 => {
                let request = self.request();
                self.clients[client].asked.push(request.clone());
                self.hub.create(stream, &request, &self.store.view());
            }
            10 if !self.clients[client].watching.is_empty() => {
                let ids: Vec<i64> = self.clients[client].watching.keys().copied().collect();
                let id = self.random.pick(&ids);
                self.hub.cancel(stream, id, &self.store.view());
            }
            11 => self.hub.request_progress(stream, &self.store.view()),
            12 => {
                self.tick += 1;
                self.hub.tick(self.tick, &self.store.view());
            }
            13..=15 => {
                self.clients[client].way.set(0);
                self.read(client);
            }
            7 | 8 | 16 | 17 => {
                let view = self.told_of.clone().unwrap_or_else(|| self.store.view());
                self.hub.step(&view).unwrap();
                if self.random.one_in(4) {
                    self.told_of = self.random.one_in(4).then(|| self.store.view());
                }
            }
            18 if self.random.one_in(3) => self.checkpoint(),
            19 if self.random.one_in(15) => {
                let span = (self.store.revision() - self.history.compacted).unsigned_abs();
                let revision = self.history.compacted + i64::try_from(self.random.below(span + 1)).unwrap();
                self.compact(revision);
            }
            _ if self.random.one_in(100) => {
                let client = self.clients.swap_remove(client);
                self.over.extend(client.watching.into_values());
                self.hub.close(client.stream);
            }
            _ => {}
        }
    }

    /// Takes what waits for a client; how much it was.
    fn read(&mut self, client: usize) -> usize {
        let mut taken = 0;
        let client = &mut self.clients[client];
        while let Some(reply) = self.hub.take(client.stream) {
            let (watch_id, response) = decoded(&reply);
            client.way.add(response.encoded_len());
            taken += 1;
            if response.created {
                let mut transcript = Transcript::new(client.asked.remove(0));
                transcript.responses.push(response);
                if matches!(reply.content, Content::Refused(_)) {
                    self.over.push(transcript);
                } else {
                    client.watching.insert(watch_id, transcript);
                }
            } else if watch_id == -1 {
                client.watching.values_mut().for_each(|watcher| watcher.responses.push(response.clone()));
            } else if let Some(watcher) = client.watching.get_mut(&watch_id) {
                let ends = response.canceled;
                watcher.responses.push(response);
                if ends {
                    self.over.extend(client.watching.remove(&watch_id));
                }
            }
        }
        taken
    }

    /// Lets all clients read to the end; all transcripts.
    fn finish(&mut self) -> (Changes, Vec<Transcript>) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        self.hub.step(&self.store.view()).unwrap();
        let mut quiet = 0;
        for round in 0.. {
            assert!(round < 1_000_000, "a watcher does not get anywhere");
            self.clients.iter_mut().for_each(|client| client.way.set(0));
            let taken: usize = (0..self.clients.len()).map(|client| self.read(client)).sum();
            // No step is taken unless the hub asks for it.
            let is_woken = woken.0.swap(false, Ordering::Relaxed);
            if is_woken && self.hub.poll_steps(&Context::from_waker(&waker)).is_ready() {
                self.hub.step(&self.store.view()).unwrap();
                woken.0.store(true, Ordering::Relaxed);
            }
            quiet = if taken > 0 || is_woken { 0 } else { quiet + 1 };
            if quiet > 1 {
                break; // nothing to do, also after all was read
            }
        }
        assert_eq!(self.hub.counts().unsynced, 0);
        let end = self.store.revision();
        for client in std::mem::take(&mut self.clients) {
            self.over.extend(client.watching.into_values().map(|mut watcher| {
                watcher.complete_to = Some(end);
                watcher
            }));
            self.hub.close(client.stream);
        }
        while self.hub.step(&self.store.view()).unwrap() {}
        assert_eq!((self.hub.counts().watchers, self.hub.counts().streams), (0, 0), "nothing is left behind");
        assert_eq!((self.hub.counts().starved, self.budget.used()), (0, 0));
        (std::mem::take(&mut self.history), std::mem::take(&mut self.over))
    }
}

fn decoded(reply: &Reply) -> (i64, WatchResponse) {
    let mut response = WatchResponse::default();
    match &reply.content {
        Content::Created => response.created = true,
        Content::Refused(reason) => {
            (response.created, response.canceled) = (true, true);
            response.cancel_reason = (*reason).to_owned();
        }
        Content::Revoked(_) | Content::Canceled => response.canceled = true,
        Content::Compacted(revision) => {
            (response.canceled, response.compact_revision) = (true, *revision);
        }
        Content::Progress => {}
        Content::Events { events, fragment } => {
            response = WatchResponse::decode(Bytes::clone(events)).unwrap();
            response.fragment = *fragment;
        }
    }
    response.watch_id = reply.watch_id;
    response.header = Some(ResponseHeader { revision: reply.revision, ..ResponseHeader::default() });
    (reply.watch_id, response)
}

#[test]
fn watchers_are_told_of_everything_once_and_in_order() {
    run_seeds(12, |_| WATCH_STEP_WORK, false, usize::MAX);
}

/// The core of a hub stands still: the hub does not see Views for a while, and compactions pass it.
#[test]
fn watchers_of_a_hub_that_stalls_are_told_of_everything_or_ended() {
    run_seeds(6, |_| WATCH_STEP_WORK, true, usize::MAX);
}

/// Steps so small that they stop anywhere: between the records of a revision, and between the
/// watchers of a record.
#[test]
fn watchers_of_a_hub_that_stops_anywhere_are_told_of_everything_or_ended() {
    run_seeds(6, |seed| 1 + 3 * seed, true, usize::MAX);
}

/// Memory so short that streams wait for what others hold.
#[test]
fn watchers_without_memory_are_told_of_everything_once_there_is_some() {
    run_seeds(8, |seed| if seed % 2 == 0 { WATCH_STEP_WORK } else { 20 * seed }, true, 1_000_000);
}

fn run_seeds(seeds: u64, step_work: impl Fn(usize) -> usize, stalls: bool, memory: usize) {
    let seeds = std::env::var("REVD_WATCH_SEEDS").map_or(seeds, |text| text.parse().unwrap());
    let (mut told, mut ends, mut starved) = (0, BTreeMap::<&str, usize>::new(), 0);
    for seed in 0..seeds {
        let mut sim = Sim::new(seed, step_work(usize::try_from(seed).unwrap()), memory);
        sim.stalls = stalls;
        for _ in 0..6_000 {
            sim.step();
        }
        let (history, transcripts) = sim.finish();
        starved = starved.max(sim.starved);
        for transcript in &transcripts {
            told += transcript.check(&history).unwrap_or_else(|problem| {
                panic!("seed {seed}, {:?}: {problem:.2000}", transcript.request);
            });
            let last = transcript.responses.last();
            *ends
                .entry(match last {
                    Some(last) if last.created && last.canceled => "refused",
                    Some(last) if last.compact_revision != 0 => "compacted",
                    Some(last) if last.canceled => "canceled",
                    _ => "alive",
                })
                .or_default() += 1;
        }
    }
    println!("{seeds} seeds, {told} events told, {starved} starved at most, watchers by their end: {ends:?}");
    assert_eq!(starved > 0, memory < usize::MAX, "{starved} streams starved");
    assert!(told > 1_000 && ends.len() == 4, "too little happened");
}

/// A hub with live watchers of `k`: one of now, one of the future behind what comes, and one that
/// begins before it; and a store in which, while the hub stands still, k comes and goes and j
/// comes.
fn stalled_hub() -> (Sim, StreamId) {
    let mut sim = Sim::new(1, WATCH_STEP_WORK, usize::MAX);
    sim.write();
    let stream = sim.hub.open(&sim.shares[0]);
    let now = sim.store.revision();
    for start_revision in [0, now + 4, now + 2] {
        let (key, range_end) = (Bytes::from_static(b"k"), Bytes::from_static(b"l"));
        let request = WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
        sim.hub.create(stream, &request, &sim.store.view());
        assert_eq!(sim.hub.take(stream).unwrap().content, Content::Created);
    }
    sim.put(b"k");
    sim.checkpoint();
    let mut txn = sim.store.begin();
    txn.delete_range(KeyRange::One(b"k"));
    txn.commit();
    sim.put(b"j");
    (sim, stream)
}

/// All that waits on a stream: watcher, and what it is.
fn told(sim: &mut Sim, stream: StreamId) -> Vec<(i64, Content)> {
    std::iter::from_fn(|| sim.hub.take(stream)).map(|reply| (reply.watch_id, reply.content)).collect()
}

#[test]
fn a_watcher_is_canceled_when_a_compaction_took_events_that_its_stalled_hub_did_not_see() {
    let (mut sim, stream) = stalled_hub();
    let head = sim.store.revision();
    sim.compact(head);
    sim.checkpoint();
    sim.checkpoint();
    sim.hub.advance(&sim.store.view()).unwrap();
    let mut ended = told(&mut sim, stream);
    ended.sort_by_key(|(watcher, _)| *watcher);
    assert_eq!(ended, [(0, Content::Compacted(head)), (2, Content::Compacted(head))]);
    sim.put(b"k");
    sim.hub.advance(&sim.store.view()).unwrap();
    let rest = told(&mut sim, stream);
    assert!(matches!(&rest[..], [(1, Content::Events { .. })]), "the one of the future goes on: {rest:?}");
}

#[test]
fn a_compaction_that_has_removed_nothing_yet_ends_no_live_watcher() {
    let (mut sim, stream) = stalled_hub();
    sim.compact(sim.store.revision());
    sim.hub.advance(&sim.store.view()).unwrap();
    let told = told(&mut sim, stream);
    let count = |watcher: i64| told.iter().filter(|(id, _)| *id == watcher).count();
    assert!(told.iter().all(|(_, content)| matches!(content, Content::Events { .. })), "{told:?}");
    assert_eq!([count(0), count(1), count(2)], [2, 0, 1], "as if it had come a moment later: {told:?}");
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let mut sim = Sim::new(77, WATCH_STEP_WORK, usize::MAX);
    for _ in 0..6_000 {
        sim.step();
    }
    let (history, transcripts) = sim.finish();
    let mut found = BTreeMap::<&str, usize>::new();
    for transcript in transcripts.iter().filter(|transcript| transcript.complete_to.is_some()) {
        for (name, mutant) in mutants(transcript, history.revision()) {
            assert!(mutant.check(&history).is_err(), "{name}: not found in {:?}", transcript.request);
            *found.entry(name).or_default() += 1;
        }
    }
    println!("spoiled and found: {found:?}");
    assert_eq!(found.len(), 6, "every kind of mutant: {found:?}");
}
