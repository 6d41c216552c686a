//! How much work the hub of watches does: counted in its steps, each of which is bounded, or held
//! against a smaller hub.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;
use revd_member::budget::{Budget, Share};
use revd_member::limits::{WATCH_ANSWERS_MAX, WATCH_ANSWERS_MIN, WATCH_STEP_WORK, WATCH_STREAM_BYTES};
use revd_member::watch::{Content, Hub, HubLimits, StreamId};
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};

struct Edge {
    store: Store,
    hub: Hub,
}

fn name(number: usize) -> Vec<u8> {
    format!("/registry/{number:08}").into_bytes()
}

impl Edge {
    fn new() -> Self {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let limits = HubLimits { fragment_bytes: 1 << 20, step_work: WATCH_STEP_WORK };
        Self { store, hub: Hub::new(limits) }
    }

    /// A stream on a connection of its own, with all the memory there is.
    fn open(&mut self) -> StreamId {
        self.hub.open(&Share::new(usize::MAX))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> i64 {
        let mut txn = self.store.begin();
        txn.put(key, value, 0);
        txn.commit();
        self.store.revision()
    }

    fn create(&mut self, stream: StreamId, key: &[u8], end: &[u8], start_revision: i64) {
        let (key, range_end) = (key.to_vec().into(), end.to_vec().into());
        let request = WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
        self.hub.create(stream, &request, &self.store.view());
        if start_revision == 0 {
            self.hub.take(stream).unwrap();
        }
    }

    fn step(&mut self) -> bool {
        self.hub.step(&self.store.view()).unwrap()
    }

    /// Steps until nothing is left to do, taking what there is; how many, and the events' replies.
    fn settle(&mut self, streams: &[StreamId]) -> (usize, usize) {
        let (mut steps, mut replies, mut quiet) = (0, 0, 0);
        while quiet < 2 {
            let more = self.step();
            steps += 1;
            let taken: Vec<Content> = streams
                .iter()
                .flat_map(|stream| std::iter::from_fn(|| self.hub.take(*stream)).collect::<Vec<_>>())
                .map(|reply| reply.content)
                .collect();
            quiet = if more || !taken.is_empty() { 0 } else { quiet + 1 };
            replies += taken.iter().filter(|content| matches!(content, Content::Events { .. })).count();
        }
        (steps, replies)
    }
}

/// Issue 14, number 16: records were tested against every watcher of the stream.
#[test]
fn one_pass_reads_history_for_all_watchers_of_an_edge() {
    const WATCHERS: usize = 20_000;
    const RECORDS: usize = 5_000;
    let mut edge = Edge::new();
    for number in 0..RECORDS {
        edge.put(&name(number), b"v");
    }
    let streams: Vec<StreamId> = (0..2).map(|_| edge.open()).collect();
    for number in 0..WATCHERS {
        // Half of them watch one key, half a range of their own around it.
        let (key, stream) = (name(number % RECORDS), streams[number % 2]);
        let end =
            if number % 4 < 2 { Vec::new() } else { [&key[..], &(number as u64).to_be_bytes()].concat() };
        edge.create(stream, &key, &end, 1);
    }
    let (steps, told) = edge.settle(&streams);
    assert_eq!(edge.hub.counts().unsynced, 0);
    assert_eq!(told, WATCHERS, "each was told of its key");
    let work = 12 * (WATCHERS + RECORDS);
    println!("{steps} steps of {WATCH_STEP_WORK} for {WATCHERS} watchers and {RECORDS} records");
    assert!(steps < 10 + work / WATCH_STEP_WORK, "{steps} steps");
}

/// A stream without room waits alone.
#[test]
fn a_stream_that_is_not_read_holds_no_other_back() {
    let mut edge = Edge::new();
    for _ in 0..600 {
        edge.put(b"/k", &[0; 10_000]);
    }
    let (stuck, read) = (edge.open(), edge.open());
    for _ in 0..50 {
        edge.create(stuck, b"/", b"0", 1);
    }
    edge.create(read, b"/", b"0", 1);
    let (steps, _) = edge.settle(&[read]);
    assert_eq!(edge.hub.counts().unsynced, 50, "only those of the other");
    assert!(steps < 3_000, "{steps} steps");
    let held: usize = std::iter::from_fn(|| edge.hub.take(stuck))
        .map(|reply| if let Content::Events { events, .. } = reply.content { events.len() } else { 0 })
        .sum();
    assert!(held < 2 * WATCH_STREAM_BYTES, "{held} bytes waited");
    let (_, told) = edge.settle(&[read, stuck]);
    assert_eq!((edge.hub.counts().unsynced, told > 50), (0, true));
}

/// One event for very many synced watchers takes steps, no watcher hears of it
/// twice, and progress comes behind it.
#[test]
fn an_event_for_many_watchers_takes_bounded_steps() {
    const WATCHERS: usize = 40_000;
    let mut edge = Edge::new();
    let streams: Vec<StreamId> = (0..100).map(|_| edge.open()).collect();
    for number in 0..WATCHERS {
        edge.create(streams[number % 100], b"/", b"0", 0);
    }
    let at = edge.put(b"/k", b"v");
    assert!(edge.step(), "there is more to do");
    let events = edge.hub.counts().events;
    assert!(events > 0 && events <= WATCH_STEP_WORK as u64, "{events} in one step");
    let view = edge.store.view();
    edge.hub.request_progress(streams[0], &view);
    // Some leave, and some come, in the middle.
    for watch_id in 0..100 {
        edge.hub.cancel(streams[1], watch_id * 4, &view);
    }
    edge.create(streams[2], b"/", b"0", at + 1);
    let mut replies = Vec::new();
    while edge.step() {}
    while let Some(reply) = edge.hub.take(streams[0]) {
        replies.push(reply);
    }
    let progress = replies.pop().unwrap();
    assert_eq!((progress.watch_id, progress.revision, progress.content), (-1, at, Content::Progress));
    let mut told: Vec<i64> = replies.iter().map(|reply| reply.watch_id).collect();
    told.sort_unstable();
    assert_eq!(told, (0..400).collect::<Vec<_>>());
    let total = edge.hub.counts().events;
    assert!((39_900..=40_000).contains(&total), "{total}: once each, but for those that were canceled first");
    let next = edge.put(b"/k", b"v");
    edge.settle(&streams);
    assert_eq!(edge.hub.counts().events, total + 39_901, "at {next}");
}

/// Issue 14, number 17: a cancel waited for all history.
#[test]
fn a_watcher_is_canceled_while_it_reads_history() {
    let mut edge = Edge::new();
    for _ in 0..20_000 {
        edge.put(b"/k", &[0; 1_000]);
    }
    let stream = edge.open();
    edge.create(stream, b"/k", b"", 1);
    edge.step();
    assert_eq!(edge.hub.counts().unsynced, 1, "20 MB take more than a step, and more room");
    let view = edge.store.view();
    edge.hub.cancel(stream, 0, &view);
    let replies: Vec<_> = std::iter::from_fn(|| edge.hub.take(stream)).collect();
    assert_eq!(replies.last().unwrap().content, Content::Canceled);
    assert_eq!(edge.settle(&[stream]).1, 0, "nothing comes behind it");
}

/// Issue 14, number 15: each request for progress looked at every watcher of its stream.
#[test]
fn a_request_for_progress_costs_the_same_however_many_watch() {
    let time = |watchers: usize| {
        let mut edge = Edge::new();
        let stream = edge.open();
        for number in 0..watchers {
            edge.create(stream, &name(number), b"", if number == 7 { 1_000_000 } else { 0 });
        }
        while edge.hub.take(stream).is_some() {}
        let view = edge.store.view();
        let times = (0..5).map(|_| {
            #[expect(clippy::disallowed_methods, reason = "held against a smaller hub")]
            let start = std::time::Instant::now();
            (0..4_000).for_each(|_| edge.hub.request_progress(stream, &view));
            start.elapsed()
        });
        let fastest = times.min().unwrap();
        assert!(edge.hub.take(stream).is_none(), "one watcher has not begun");
        fastest
    };
    let (few, many) = (time(50), time(50_000));
    println!("4,000 requests: {few:?} with 50 watchers, {many:?} with 50,000");
    assert!(many < few * 100, "{few:?}, then {many:?}");
}

/// Answers are bounded too: with many that wait, no request is read.
#[test]
fn requests_are_not_read_while_their_answers_wait() {
    let mut edge = Edge::new();
    let stream = edge.open();
    let view = edge.store.view();
    edge.create(stream, b"/", b"0", 0);
    for _ in 0..WATCH_ANSWERS_MAX {
        assert!(edge.hub.takes_requests(stream));
        edge.hub.request_progress(stream, &view);
    }
    assert!(!edge.hub.takes_requests(stream));
    assert!(edge.hub.has_replies(stream, &Context::from_waker(Waker::noop())));
    edge.hub.take(stream).unwrap();
    assert!(edge.hub.takes_requests(stream));
}

/// The end of a call with many watchers takes steps.
#[test]
fn a_stream_of_many_watchers_is_closed_in_steps() {
    let mut edge = Edge::new();
    let (stream, other) = (edge.open(), edge.open());
    for number in 0..20_000 {
        edge.create(stream, &name(number), b"", if number % 2 == 0 { 0 } else { 1 });
    }
    edge.create(other, b"/", b"0", 0);
    edge.hub.close(stream);
    assert!(edge.hub.counts().watchers > 10_000, "a part of them is gone");
    edge.put(&name(19_998), b"v");
    assert_eq!(edge.settle(&[other]).1, 1);
    assert_eq!((edge.hub.counts().watchers, edge.hub.counts().streams), (1, 1));
}

/// A request for progress is answered although events never cease to come, and not before those
/// that it knew of were told.
#[test]
fn progress_is_told_while_events_never_cease() {
    let mut edge = Edge::new();
    let (busy, stream) = (edge.open(), edge.open());
    for _ in 0..20_000 {
        edge.create(busy, b"/", b"0", 0);
    }
    edge.create(stream, b"/", b"0", 0);
    let mut asked = 0;
    for round in 0..200 {
        let at = edge.put(b"/k", b"v");
        edge.step();
        if round == 3 {
            asked = at;
            let view = edge.store.view();
            edge.hub.request_progress(stream, &view);
        }
        while edge.hub.take(busy).is_some() {}
        let mut events = 0;
        while let Some(reply) = edge.hub.take(stream) {
            if reply.content == Content::Progress {
                assert!(reply.revision >= asked && asked > 0, "{} for {asked}", reply.revision);
                return;
            }
            events += 1;
        }
        assert!(events < 2, "one at a time");
    }
    panic!("not answered");
}

/// Watchers that wait for their stream to have room are taken along by more and more when it has.
#[test]
fn a_stream_that_has_room_again_has_all_its_watchers_soon() {
    const RECORDS: usize = 10_000;
    let mut edge = Edge::new();
    for number in 0..RECORDS {
        edge.put(&name(number), if number < 20 { &[0; 100_000] } else { b"v" });
    }
    let stream = edge.open();
    edge.create(stream, b"/", b"0", 1);
    edge.step();
    edge.step();
    for number in 0..900 {
        edge.create(stream, &[b"none", &name(number)[..]].concat(), b"", 1);
    }
    let (steps, _) = edge.settle(&[stream]);
    assert_eq!(edge.hub.counts().unsynced, 0);
    println!("{steps} steps");
    assert!(steps < 80, "{steps} steps: history was read too often");
}

fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// A large event in very many ranges, each of which is watched, is in memory once; many ranges take
/// steps.
#[test]
fn an_event_in_many_ranges_is_there_once() {
    const RANGES: usize = 20_000;
    let mut edge = Edge::new();
    let streams: Vec<StreamId> = (0..100).map(|_| edge.open()).collect();
    for number in 0..RANGES {
        edge.create(streams[number % 100], &name(number), b"0", 0);
    }
    let before = peak_bytes();
    edge.put(b"/z", &[1; 50_000]);
    assert!(edge.step());
    assert_eq!(edge.hub.counts().events, 0, "not all ranges were looked at in one step");
    // One of those that were, and one of those that were not, leaves; no watcher is told twice.
    let view = edge.store.view();
    edge.hub.cancel(streams[0], 0, &view);
    edge.hub.cancel(streams[99], 199, &view);
    let (_, told) = edge.settle(&streams);
    assert_eq!(told, RANGES - 2);
    // The kernel's figure is a sum of parts that it brings together now and then: it may go back.
    let grown = peak_bytes().saturating_sub(before);
    println!("{grown} bytes");
    assert!(grown < 300 << 20, "{grown} bytes");
}

/// The task that takes the hub's steps was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two connections with 3 MB between them: five streams of one and the first of the other take
/// nothing and hold that, so that the last has nothing to send and finds no room.
struct Starved {
    edge: Edge,
    others: Vec<StreamId>,
    first: StreamId,
    last: StreamId,
    woken: Arc<Woken>,
}

fn starved() -> Starved {
    let (mut edge, budget) = (Edge::new(), Budget::new(3_000_000));
    let (share, own) = (budget.share(), budget.share());
    let mut open = |share: &Share, puts: usize| {
        let stream = edge.hub.open(share);
        edge.create(stream, b"/", b"0", 0);
        for number in 0..puts {
            edge.put(&name(number), &[0; 550_000]);
        }
        while edge.step() {}
        stream
    };
    let first = open(&own, 2);
    let others = [0, 0, 0, 0, 1].map(|puts| open(&share, puts)).to_vec();
    let last = open(&own, 1);
    assert!(budget.used() <= 3_000_000 && budget.take_refused() > 0, "{budget:?}");
    assert!(edge.hub.take(last).is_none(), "there is no room for it");
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(edge.hub.poll_steps(&Context::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed), "nothing was let go of");
    Starved { edge, others, first, last, woken }
}

#[test]
fn a_stream_without_memory_goes_on_when_another_is_read() {
    let Starved { mut edge, mut others, first, last, woken } = starved();
    let before = edge.hub.counts();
    while edge.hub.take(first).is_some() {}
    assert!(woken.0.load(Ordering::Relaxed), "a stream can go on");
    while edge.step() {}
    assert!(edge.hub.counts().events > before.events);
    others.extend([first, last]);
    edge.settle(&others);
    assert_eq!((edge.hub.counts().unsynced, edge.hub.counts().starved), (0, 0));
    assert_eq!(edge.hub.counts().events, 4 + 5 * 2 + 1, "each was told of everything once");
}

#[test]
fn a_stream_without_memory_goes_on_when_the_connection_of_others_ends() {
    let Starved { mut edge, others, last, woken, .. } = starved();
    others.into_iter().for_each(|stream| edge.hub.close(stream));
    assert!(woken.0.load(Ordering::Relaxed), "a stream can go on");
    while edge.step() {}
    assert!(matches!(edge.hub.take(last).unwrap().content, Content::Events { .. }));
    assert_eq!(edge.hub.counts().starved, 0);
}

#[test]
fn few_answers_wait_while_the_share_is_full() {
    let Starved { mut edge, last, .. } = starved();
    for _ in 0..WATCH_ANSWERS_MIN {
        assert!(edge.hub.takes_requests(last));
        edge.create(last, b"/", b"0", -1);
    }
    assert!(!edge.hub.takes_requests(last));
    assert!(edge.hub.take(last).is_some() && edge.hub.takes_requests(last));
}

/// No stream is starved by others of its own connection while a quarter of the memory is
/// free, nor by others while any is.
#[test]
fn a_stream_that_is_read_goes_on_beside_those_that_are_not() {
    let (mut edge, budget) = (Edge::new(), Budget::new(10_000_000));
    let (share, other) = (budget.share(), budget.share());
    let open = |edge: &mut Edge, share: &Share| {
        let stream = edge.hub.open(share);
        edge.create(stream, b"/", b"0", 0);
        stream
    };
    for _ in 0..6 {
        open(&mut edge, &share);
    }
    let (near, far) = (open(&mut edge, &share), open(&mut edge, &other));
    for number in 0..100 {
        edge.put(&name(number), &[0; 100_000]);
        edge.settle(&[near, far]);
    }
    assert_eq!(edge.hub.counts().unsynced, 6, "only those that are not read");
    assert!(budget.used() > 4_500_000 && budget.used() < 7_500_000, "{budget:?}");
}

/// Each connection that holds nothing yet is one more: what the core has is for all of them.
#[test]
fn many_connections_hold_no_more_than_there_is() {
    let (mut edge, budget) = (Edge::new(), Budget::new(3_000_000));
    let streams: Vec<StreamId> = (0..100)
        .map(|number| {
            let stream = edge.hub.open(&budget.share());
            edge.create(stream, &name(number), b"", 0);
            stream
        })
        .collect();
    for number in 0..100 {
        edge.put(&name(number), &[0; 200_000]);
        while edge.step() {}
    }
    assert!(budget.used() < 3_000_000 + 250_000, "{budget:?}");
    assert!(edge.hub.counts().starved > 0);
    // A stream that is read makes room for another one.
    edge.settle(&streams);
    assert_eq!((edge.hub.counts().unsynced, edge.hub.counts().starved), (0, 0));
    assert_eq!(edge.hub.counts().events, 100);
}

/// Looking at streams that wait for memory does not take the time of those that read history.
#[test]
fn many_streams_without_memory_hold_no_other_back() {
    let steps = |starved: usize| {
        let (mut edge, budget) = (Edge::new(), Budget::new(10_000_000));
        for number in 0..30_000 {
            edge.put(&name(number), b"v");
        }
        let (share, own) = (budget.share(), budget.share());
        let mut others = [share.hold(), budget.share().hold()];
        others.iter_mut().for_each(|hold| hold.add(4_500_000));
        for _ in 0..starved {
            let stream = edge.hub.open(&share);
            edge.create(stream, b"/", b"0", 1);
            edge.hub.take(stream).unwrap();
        }
        assert_eq!(edge.hub.counts().starved, starved);
        while edge.step() {}
        let honest = edge.hub.open(&own);
        edge.create(honest, b"none", b"", 1);
        for step in 1.. {
            others[1].release(1); // clients take replies all the time
            edge.step();
            while edge.hub.take(honest).is_some() {}
            if edge.hub.counts().unsynced == starved {
                return step;
            }
        }
        unreachable!()
    };
    let (alone, beside) = (steps(0), steps(30_000));
    assert!(beside <= 3 * alone, "{beside} steps, {alone} without them");
}

/// Seed 10010009 of the simulator: a compaction came while a batch of the past was handed out, and
/// watchers that had been told all of it were canceled.
#[test]
fn a_compaction_cancels_no_watcher_that_was_told_what_it_takes() {
    const WATCHERS: usize = 20_000;
    let mut edge = Edge::new();
    for number in 0..20 {
        edge.put(b"/k", &[number]);
    }
    let streams: Vec<StreamId> = (0..100).map(|_| edge.open()).collect();
    for number in 0..WATCHERS {
        edge.create(streams[number % 100], b"/", b"0", 1);
        edge.hub.take(streams[number % 100]).unwrap();
    }
    while edge.hub.counts().events == 0 {
        assert!(edge.step(), "there is more to do");
    }
    assert!(edge.hub.counts().events < WATCHERS as u64, "it is under way");
    edge.store.compact(3).unwrap(); // what comes behind the first event stays
    while edge.step() {}
    let (mut told, mut canceled) = (0, 0);
    for stream in streams {
        while let Some(reply) = edge.hub.take(stream) {
            match reply.content {
                Content::Events { events, .. } => told += WatchResponse::decode(events).unwrap().events.len(),
                Content::Compacted(_) => canceled += 1,
                _ => {}
            }
            while edge.step() {}
        }
    }
    assert_eq!((told, canceled), (20 * WATCHERS, 0));
}
