//! Paths of the server that need no core: log frames, applying a batch, telling watchers.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets the unexpected should stop there")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use prost::Message as _;
use revd_bench::{key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::{CommittedEntry, Machine, MachineConfig};
use revd_member::budget::Share;
use revd_member::wal::frame::{self, FrameId};
use revd_member::wal::{FrameContent, LogEntry};
use revd_member::watch::{Hub, HubLimits, StreamId};
use revd_proto::etcdserverpb::{PutRequest, WatchCreateRequest};

const OWN: Origin = Origin { member: 1, boot: 2 };

fn store() -> Store {
    Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap()
}

/// An entry of 100 puts.
fn entry(index: u64) -> CommittedEntry {
    let command = |number| {
        let put = PutRequest { key: key(number), value: value(256, number), ..PutRequest::default() };
        let payload = put.encode_to_vec().into();
        Command { id: CommandId::new(0, 1, 2), kind: Kind::Put, payload }
    };
    let commands: Vec<Command> = (0..100).map(command).collect();
    CommittedEntry { index, term: 1, data: command::encode(OWN, &commands).into(), change: None }
}

fn log(criterion: &mut Criterion) {
    let id = FrameId { life: 1, segment: 1, frame: 2 };
    let data = entry(2).data;
    let content = FrameContent {
        entries: vec![LogEntry { index: 2, term: 1, kind: 0, data }],
        ..FrameContent::default()
    };
    criterion.bench_function("log: encode a frame of 100 puts", |bencher| {
        bencher.iter(|| frame::encode(id, &content));
    });
    let encoded = Bytes::from(frame::encode(id, &content));
    criterion.bench_function("log: decode it", |bencher| bencher.iter(|| frame::decode(&encoded).unwrap()));
}

fn apply(criterion: &mut Criterion) {
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
    criterion.bench_function("apply an entry of 100 puts", |bencher| {
        let machine = || (Machine::new(store(), config).unwrap(), entry(1));
        let run = |(mut machine, entry): (Machine, CommittedEntry)| {
            let mut effects = Vec::new();
            machine.apply(&entry, 0, &mut effects).unwrap();
            (machine, effects)
        };
        bencher.iter_batched(machine, run, BatchSize::LargeInput);
    });
}

/// A hub with so many streams of so many watchers each.
fn hub(
    streams: usize,
    watchers: usize,
    store: &mut Store,
    range: impl Fn(usize) -> Bytes,
) -> (Hub, Vec<StreamId>) {
    let mut hub =
        Hub::new(HubLimits { fragment_bytes: 1 << 20, step_work: revd_member::limits::WATCH_STEP_WORK });
    let mut ids = Vec::new();
    for stream in 0..streams {
        let id = hub.open(&Share::new(usize::MAX));
        for watcher in 0..watchers {
            let key = range(stream * watchers + watcher);
            let range_end = [&key[..], b"~"].concat().into();
            let request = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
            hub.create(id, &request, &store.view());
        }
        ids.push(id);
    }
    (hub, ids)
}

fn watch(criterion: &mut Criterion) {
    for (name, streams, watchers, distinct) in [
        ("watch: an event to 1,000 watchers of one range", 20, 50, false),
        ("watch: an event to one of 10,000 ranges", 100, 100, true),
    ] {
        let mut store = store();
        let range =
            |number: usize| if distinct { key(number as u64) } else { Bytes::from_static(b"/registry/") };
        let (mut hub, ids) = hub(streams, watchers, &mut store, range);
        let mut number = 0;
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                number = (number + 7919) % 10_000;
                let mut txn = store.begin();
                txn.put(&key(number), b"value", 0);
                txn.commit();
                hub.advance(&store.view()).unwrap();
                for id in &ids {
                    while let Some(reply) = hub.take(*id) {
                        black_box(reply);
                    }
                }
            });
        });
    }
    let mut store = store();
    for number in 0..10_000 {
        let mut txn = store.begin();
        txn.put(&key(number % 100), &value(256, number), 0);
        txn.commit();
    }
    let view = store.view();
    criterion.bench_function("watch: catch up over 10,000 revisions", |bencher| {
        bencher.iter(|| {
            let mut hub = Hub::new(HubLimits {
                fragment_bytes: 1 << 20,
                step_work: revd_member::limits::WATCH_STEP_WORK,
            });
            let id = hub.open(&Share::new(usize::MAX));
            let (key, range_end) = (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
            let request =
                WatchCreateRequest { key, range_end, start_revision: 2, ..WatchCreateRequest::default() };
            hub.create(id, &request, &view);
            while hub.counts().unsynced > 0 {
                hub.step(&view).unwrap();
                while hub.take(id).is_some() {}
            }
        });
    });
}

criterion_group!(benches, log, apply, watch);
criterion_main!(benches);
