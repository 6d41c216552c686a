//! Paths of the store: put, get, count, range, checkpoint, restart, publishing a View. Fixed keys,
//! in memory.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets the unexpected should stop there")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use revd_bench::{all_keys, key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Direction, KeyRange, Store};

const KEYS: u64 = 100_000;

fn put(store: &mut Store, number: u64) {
    let index = store.applied().index + 1;
    let mut txn = store.begin();
    txn.put(&key(number % KEYS), &value(256, number), 0);
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
}

fn checkpoint(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
}

/// A store with all keys in its file.
fn filled() -> Store {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    (0..KEYS).for_each(|number| put(&mut store, number));
    checkpoint(&mut store);
    store
}

fn paths(criterion: &mut Criterion) {
    let mut store = filled();
    let mut number = 0;
    criterion.bench_function("put 256 B", |bencher| {
        bencher.iter(|| {
            number += 7919;
            put(&mut store, number);
        });
    });
    criterion.bench_function("publish a view", |bencher| bencher.iter(|| black_box(store.view())));
    checkpoint(&mut store);
    let view = store.view();
    let reader = view.reader();
    criterion.bench_function("get from the file", |bencher| {
        bencher.iter(|| {
            number += 7919;
            let meta = reader.get(&key(number % KEYS), i64::MAX).unwrap();
            black_box(reader.record(meta.modified).unwrap().len())
        });
    });
    let (first, end) = all_keys();
    let all = KeyRange::from_wire(&first, &end);
    criterion.bench_function("count 100,000 keys", |bencher| {
        bencher.iter(|| black_box(reader.count(all, reader.revision())));
    });
    let old = reader.revision() - 1_000;
    criterion.bench_function("count 100,000 keys 1,000 changes ago", |bencher| {
        bencher.iter(|| black_box(reader.count(all, old)));
    });
    criterion.bench_function("scan 1,000 keys", |bencher| {
        bencher.iter(|| reader.scan(all, i64::MAX, Direction::Forward).take(1_000).count());
    });
    criterion.bench_function("restart with 100,000 keys", |bencher| {
        let disk = SimDisk::new();
        let mut store = Store::open(Arc::new(disk.clone()), DbOptions::default()).unwrap();
        (0..KEYS).for_each(|number| put(&mut store, number));
        let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
        store.finish_checkpoint(written);
        let bytes = disk.bytes();
        let open = |bytes| Store::open(Arc::new(SimDisk::from_bytes(bytes)), DbOptions::default()).unwrap();
        bencher.iter_batched(|| bytes.clone(), open, BatchSize::LargeInput);
    });
    criterion.bench_function("checkpoint of 1,000 puts", |bencher| {
        let prepare = || {
            let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
            (0..1_000).for_each(|at| put(&mut store, at));
            store
        };
        bencher.iter_batched(prepare, |mut store| checkpoint(&mut store), BatchSize::LargeInput);
    });
}

criterion_group!(benches, paths);
criterion_main!(benches);
