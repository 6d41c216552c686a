//! Paths of the tree file: searching a page, appending, looking up, walking; and of the key index.
//! In memory.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets the unexpected should stop there")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use revd_bench::{all_keys, key, value};
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::SimDisk;
use revd_engine::meta::Table;
use revd_engine::mvcc::key_index::KeyIndex;
use revd_engine::mvcc::{Direction, KeyRange, Revision};

const KEYS: u64 = 100_000;
const TABLE: Table = Table(0);

fn db() -> Db {
    Db::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap()
}

/// Appends keys in order, as records are.
fn append(db: &mut Db, first: u64, count: u64) {
    let mut txn = db.begin().unwrap();
    for number in first..first + count {
        txn.put(TABLE, &number.to_be_bytes(), &value(256, number)).unwrap();
    }
    txn.commit().unwrap();
}

fn tree(criterion: &mut Criterion) {
    let mut one_page = db();
    append(&mut one_page, 0, 20);
    let snapshot = one_page.snapshot();
    let mut number = 0_u64;
    criterion.bench_function("search a page of 20 records", |bencher| {
        bencher.iter(|| {
            number = (number + 7) % 20;
            black_box(snapshot.get(TABLE, &number.to_be_bytes()).unwrap().unwrap().len())
        });
    });
    criterion.bench_function("append and commit 1,000 records", |bencher| {
        bencher.iter_batched(db, |mut db| append(&mut db, 0, 1_000), BatchSize::LargeInput);
    });
    let mut large = db();
    append(&mut large, 0, KEYS);
    let snapshot = large.snapshot();
    criterion.bench_function("look up one of 100,000 records", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % KEYS;
            black_box(snapshot.get(TABLE, &number.to_be_bytes()).unwrap().unwrap().len())
        });
    });
    criterion.bench_function("walk over 1,000 records", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % (KEYS - 1_000);
            let mut cursor = snapshot.cursor(TABLE);
            cursor.seek(&number.to_be_bytes()).unwrap();
            (0..1_000).map(|_| cursor.next().unwrap().unwrap().1.len()).sum::<usize>()
        });
    });
}

fn index(criterion: &mut Criterion) {
    let mut index = KeyIndex::new();
    let mut main = 1;
    let mut revision = || {
        main += 1;
        Revision { main, sub: 0 }
    };
    for number in 0..KEYS {
        index.put(&key(number), revision());
    }
    let mut number = 0;
    criterion.bench_function("index: update one of 100,000 keys", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % KEYS;
            index.put(&key(number), revision()).meta
        });
    });
    criterion.bench_function("index: update after the root was shared", |bencher| {
        bencher.iter(|| {
            let shared = index.share();
            number = (number + 7919) % KEYS;
            index.put(&key(number), revision());
            drop(index.take_unneeded());
            shared
        });
    });
    let (first, end) = all_keys();
    let all = KeyRange::from_wire(&first, &end);
    criterion.bench_function("index: get", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % KEYS;
            index.root().get(&key(number), i64::MAX)
        });
    });
    criterion.bench_function("index: count", |bencher| bencher.iter(|| index.root().live_count(all)));
    criterion.bench_function("index: scan 1,000 keys, backwards", |bencher| {
        bencher.iter(|| index.root().scan(all, i64::MAX, Direction::Reverse).take(1_000).count());
    });
}

criterion_group!(benches, tree, index);
criterion_main!(benches);
