//! The store against a naive twin that keeps every record of every revision, through checkpoints,
//! compactions, reverted transactions, reopening, and crashes at any write.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "store_model/twin.rs"]
mod twin;

use std::collections::BTreeMap;
use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{
    Applied, CheckpointKind, Direction, HashKv, KeyRange, Revision, Store, StoredRecord, View,
};
use revd_engine::random::Random;

use twin::{ModelEntry, Op, Twin, encode};

fn key(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        // Longer than a key of a 512-byte page may be.
        0 => vec![b'x'; 70 + usize::try_from(random.below(3)).unwrap()],
        n => format!("k{}", n * 3 + random.below(3)).into_bytes(),
    }
}

fn entry(random: &mut Random, revision: i64) -> ModelEntry {
    let ops = |random: &mut Random, count: u64| {
        (0..count)
            .map(|_| match random.below(5) {
                0 => Op::Delete(
                    key(random),
                    [vec![], vec![0], b"k3".to_vec()][usize::try_from(random.below(3)).unwrap()].clone(),
                ),
                n => {
                    let len = [0, 3, 30, 63, 64, 900][usize::try_from(random.below(6)).unwrap()];
                    Op::Put(key(random), vec![u8::try_from(n).unwrap(); len])
                }
            })
            .collect::<Vec<_>>()
    };
    match random.below(20) {
        0 => ModelEntry::Compact(revision - i64::try_from(random.below(6)).unwrap()),
        1 => ModelEntry::Reverted(ops(random, 3)),
        2 => ModelEntry::Table(u8::try_from(random.below(5)).unwrap()),
        n => {
            let count = 1 + random.below(if n < 6 { 6 } else { 2 });
            ModelEntry::Txn(ops(random, count))
        }
    }
}

fn apply(store: &mut Store, entry: &ModelEntry, index: u64) {
    use revd_engine::mvcc::SmallTable;
    let run = |txn: &mut revd_engine::mvcc::Txn<'_>, ops: &[Op]| {
        for op in ops {
            match op {
                Op::Put(key, value) => drop(txn.put(key, value, 0)),
                Op::Delete(key, end) => drop(txn.delete_range(KeyRange::from_wire(key, end))),
            }
        }
    };
    match entry {
        ModelEntry::Txn(ops) => {
            let mut txn = store.begin();
            run(&mut txn, ops);
            txn.commit();
        }
        ModelEntry::Reverted(ops) => {
            let mut txn = store.begin_revertible();
            run(&mut txn, ops);
            txn.revert();
        }
        ModelEntry::Compact(at) => drop(store.compact(*at)),
        ModelEntry::Table(row) => store.table_put(SmallTable::Members, &[*row], &index.to_le_bytes()),
    }
    store.set_applied(Applied { index, term: 1 });
}

fn assert_view(view: &View, twin: &Twin, random: &mut Random) {
    let reader = view.reader();
    assert_eq!(reader.revision(), twin.revision());
    assert_eq!(reader.compact_revision(), twin.compact);
    let oldest = twin.compact.max(1);
    for at in [oldest, oldest + 1, twin.revision() - 1, twin.revision()] {
        let at = at.clamp(oldest, twin.revision());
        let state = &twin.states[usize::try_from(at).unwrap()];
        let (from, end) =
            (key(random), [vec![], vec![0], key(random)][usize::try_from(random.below(3)).unwrap()].clone());
        for range in [KeyRange::ALL, KeyRange::from_wire(&from, &end)] {
            let expected: Vec<_> = state.iter().filter(|(key, _)| range.contains(key)).collect();
            let mut found: Vec<_> = reader.scan(range, at, Direction::Forward).collect();
            assert_eq!(reader.count(range, at), expected.len() as u64, "count at {at}");
            assert_eq!(found.len(), expected.len(), "at {at}");
            for ((key, meta), (twin_key, kv)) in found.iter().zip(&expected) {
                assert_eq!(&key.to_vec(), *twin_key);
                let record = reader.record(meta.modified).unwrap();
                assert_eq!(record, encode(twin_key, Some(kv)), "record at {at}");
                assert_eq!(StoredRecord::parse(record).unwrap().value, kv.value);
                assert_eq!((meta.create_revision, meta.version), (kv.create, kv.version));
            }
            found.reverse();
            assert_eq!(reader.scan(range, at, Direction::Reverse).collect::<Vec<_>>(), found);
        }
        let mut hash = HashKv::new(view.clone(), at).unwrap();
        let hashed = std::iter::repeat_with(|| hash.step(7).unwrap()).flatten().next().unwrap();
        // That of a compaction is from before it: `hash_kv.rs`.
        if hashed.compact_revision == twin.compact {
            assert_eq!(hashed.hash, twin.hash(at), "hash at {at}, compacted at {}", twin.compact);
        } else {
            assert_eq!(at, twin.compact);
        }
    }
    if twin.compact > 1 {
        assert!(reader.resolve(twin.compact - 1).is_err());
    }
    assert!(reader.resolve(twin.revision() + 1).is_err());
    assert_history(view, twin);
}

/// A watch may begin at the compacted revision: what happened to each key then is still there, its
/// deletion too, and everything since.
fn assert_history(view: &View, twin: &Twin) {
    let before = Revision { main: (twin.compact - 1).max(0), sub: i64::MAX };
    let mut found = BTreeMap::new();
    let reader = view.reader();
    let reading = reader.each_record_after(before, |key, record| {
        found.insert((key.revision.main, key.revision.sub), record.to_vec());
        Ok(true)
    });
    reading.unwrap();
    for (at, (main, sub, key, kv)) in twin.records.iter().enumerate() {
        let is_replaced = || twin.records[at + 1..].iter().any(|(later, _, k, _)| later == main && k == key);
        if *main < twin.compact || *main == twin.compact && is_replaced() {
            continue;
        }
        let expected = encode(key, kv.as_ref());
        assert_eq!(found.get(&(*main, *sub)), Some(&expected), "{main}.{sub}, compacted at {}", twin.compact);
    }
}

fn open(disk: &SimDisk) -> Store {
    let store = Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    check(store.db().unwrap()).unwrap();
    verify(&store).unwrap();
    store
}

/// Opens a store whose index is a large one, saved a few keys at a time, if the seed is even.
/// Another bit of it says whether compactions leave dead records, and another one whether they
/// compute hashes all the same.
fn open_for(disk: &SimDisk, seed: u64) -> Store {
    let mut store = open(disk);
    if seed.is_multiple_of(2) {
        store.save_index_in_steps_of(1 + seed % 5);
    }
    if seed % 4 < 2 {
        store.compact_as_large(1 + seed % 5, if seed % 8 < 4 { 60 } else { 1 + seed % 5 });
    }
    store
}

fn checkpoint(store: &mut Store, kind: CheckpointKind) {
    if let Some(checkpoint) = store.checkpoint(kind) {
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
}

#[test]
fn the_store_equals_its_twin() {
    for seed in 1..=8_u64 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new();
        let mut store = open_for(&disk, seed);
        let mut twin = Twin::new();
        let mut log = Vec::new();
        let mut held: Vec<(View, Twin)> = Vec::new();
        let mut in_flight = None;
        for _ in 0..400 {
            let entry = entry(&mut random, twin.revision());
            twin.apply(&entry);
            log.push(entry.clone());
            apply(&mut store, &entry, log.len() as u64);
            match random.below(12) {
                0 | 1 => checkpoint(&mut store, CheckpointKind::Auto),
                2 => checkpoint(&mut store, CheckpointKind::WithIndex),
                // Changes go on while a checkpoint is being written.
                3 if in_flight.is_none() => in_flight = store.checkpoint(CheckpointKind::Auto),
                4 | 5 => {
                    if let Some(checkpoint) = in_flight.take() {
                        let written = checkpoint.write().unwrap();
                        store.finish_checkpoint(written);
                    }
                }
                6 => held.push((store.view(), twin.clone())),
                10 => drop(store.forget_compacted(usize::try_from(random.below(4)).unwrap())),
                7 if held.len() > 3 => held.clear(),
                9 if in_flight.is_none() => store.defragment().unwrap(),
                8 if in_flight.is_none() && random.below(3) == 0 => {
                    store = open_for(&disk, seed);
                    let from = usize::try_from(store.applied().index).unwrap();
                    for (at, entry) in log.iter().enumerate().skip(from) {
                        apply(&mut store, entry, at as u64 + 1);
                    }
                }
                _ => {}
            }
            assert_view(&store.view(), &twin, &mut random);
            for (view, twin) in &held {
                assert_view(view, twin, &mut random);
            }
        }
        if let Some(db) = store.db() {
            check(db).unwrap();
        }
    }
}

/// Deleting and compacting most of a store, then defragmenting it, gives the space back, while a
/// reader holds an old state and writes go on; the rest of the store is unchanged.
#[test]
fn defragmenting_gives_space_back_while_others_read_and_write() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let mut index = 0;
    let mut write = |store: &mut Store, keys: std::ops::Range<u64>, len: usize| {
        for key in keys {
            let mut txn = store.begin();
            txn.put(format!("key{key:06}").as_bytes(), &vec![b'v'; len], 0);
            txn.commit();
            index += 1;
            store.set_applied(Applied { index, term: 1 });
        }
        checkpoint(store, CheckpointKind::Auto);
    };
    for round in 0..10 {
        write(&mut store, round * 200..(round + 1) * 200, if round % 3 == 0 { 900 } else { 60 });
    }
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"key000100", b"key001900"));
    txn.commit();
    store.set_applied(Applied { index: 2_001, term: 1 });
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: 2_002, term: 1 });
    while store.has_unsaved() || store.compaction_pending() {
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    let before = store.sizes();
    let old = store.view();
    let count = old.reader().count(KeyRange::ALL, old.revision());
    store.defragment().unwrap();
    let mut steps = 0;
    let mut put = 0;
    while store.is_defragmenting() {
        let mut txn = store.begin();
        txn.put(b"meanwhile", format!("{put}").as_bytes(), 0);
        txn.commit();
        put += 1;
        store.set_applied(Applied { index: 2_002 + put, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
        check(store.db().unwrap()).unwrap();
        assert_eq!(old.reader().scan(KeyRange::ALL, i64::MAX, Direction::Forward).count() as u64, count);
        steps += 1;
        assert!(steps < 300, "it does not end");
    }
    drop(old);
    store.defragment().unwrap();
    while store.is_defragmenting() {
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    let after = store.sizes();
    assert!(after.file * 2 < before.file, "{before:?} became {after:?}");
    assert!(after.file < after.in_use * 3 / 2 + 100 * 512, "{after:?}");
    assert_eq!(disk.bytes().len() as u64, after.file);
    let again = open(&disk);
    let reader = again.reader();
    assert_eq!(reader.count(KeyRange::ALL, reader.revision()), count + 1);
    for (_, meta) in reader.scan(KeyRange::ALL, i64::MAX, Direction::Forward) {
        reader.record(meta.modified).unwrap();
    }
}

/// Compaction ends, frees what it should, and a restart in the middle of it changes nothing.
#[test]
fn compaction_leaves_one_record_per_live_key() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    for round in 0..50_u64 {
        let mut txn = store.begin();
        for key in 0..20_u64 {
            txn.put(format!("key{key}").as_bytes(), &[1; 100], 0);
        }
        txn.commit();
        store.set_applied(Applied { index: round + 1, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    let full = store.sizes().in_use;
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: 51, term: 1 });
    for _ in 0..5 {
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    assert!(!store.compaction_pending());
    let view = store.view();
    let mut records = 0;
    view.reader()
        .each_record_after(revd_engine::mvcc::Revision::default(), |_, _| {
            records += 1;
            Ok(true)
        })
        .unwrap();
    assert_eq!(records, 20);
    drop(view);
    for index in 52..55 {
        store.set_applied(Applied { index, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    assert!(store.sizes().in_use * 4 < full, "{full} bytes became {}", store.sizes().in_use);
    check(store.db().unwrap()).unwrap();
}

/// After a compaction the saved index shrinks too, in steps, and a sweep that was interrupted is
/// taken up again.
#[test]
fn the_saved_index_forgets_compacted_revisions() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let mut index = 0;
    for round in 0..6_u64 {
        let mut txn = store.begin();
        for key in 0..12_000_u64 {
            if round < 3 || key % 2 == 0 {
                txn.put(format!("key{key:05}").as_bytes(), b"v", 0);
            }
        }
        if round == 3 {
            txn.delete_range(KeyRange::from_wire(b"key00100", b"key00200"));
            txn.put(&[b'k'; 100], b"a key too long for a page of 512 bytes", 0);
        }
        txn.commit();
        index += 1;
        store.set_applied(Applied { index, term: 1 });
    }
    checkpoint(&mut store, CheckpointKind::WithIndex);
    let full = store.sizes().in_use;
    store.compact(store.revision()).unwrap();
    let mut sweeps = 0;
    while sweeps < 1 {
        index += 1;
        store.set_applied(Applied { index, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
        sweeps += u32::from(store.is_sweeping());
        assert!(store.compaction_pending() || store.is_sweeping(), "swept in one step");
    }
    store = open(&SimDisk::from_bytes(disk.bytes()));
    assert!(store.is_sweeping(), "it begins again");
    while store.compaction_pending() || store.is_sweeping() {
        index += 1;
        store.set_applied(Applied { index, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    while store.forget_compacted(100) {}
    verify(&store).unwrap();
    check(store.db().unwrap()).unwrap();
    for _ in 0..4 {
        index += 1;
        store.set_applied(Applied { index, term: 1 });
        checkpoint(&mut store, CheckpointKind::Auto);
    }
    assert!(store.sizes().in_use * 2 < full, "{full} bytes became {}", store.sizes().in_use);
}

/// Every prefix of the write stream, with random sectors of the writes that were not synced: the
/// reopened store equals the log up to the applied index it reports, and that index is never below
/// the one that a finished checkpoint had promised.
#[test]
fn a_crash_at_any_write_leaves_a_prefix_of_the_log() {
    let mut images = 0;
    for seed in 1..=4_u64 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new();
        let mut store = open_for(&disk, seed);
        let mut log = Vec::new();
        let mut twins = vec![Twin::new()];
        let mut promised = vec![(0, 0)]; // (calls recorded, applied index durable by then)
        for _ in 0..120 {
            let entry = entry(&mut random, twins.last().unwrap().revision());
            let mut twin = twins.last().unwrap().clone();
            twin.apply(&entry);
            twins.push(twin);
            log.push(entry.clone());
            apply(&mut store, &entry, log.len() as u64);
            if random.below(12) == 0 {
                store.defragment().unwrap();
            }
            if random.below(4) == 0 {
                checkpoint(
                    &mut store,
                    if random.below(4) == 0 { CheckpointKind::WithIndex } else { CheckpointKind::Auto },
                );
                promised.push((disk.recorded().len(), store.applied().index));
            }
        }
        let calls = disk.recorded();
        for cut in 0..=calls.len() {
            for variant in 0..3 {
                let bytes = match variant {
                    0 => SimDisk::image(&calls[..cut], |_, _| true),
                    1 => SimDisk::image(&calls[..cut], |_, _| false),
                    _ => SimDisk::image(&calls[..cut], |_, _| random.below(2) == 0),
                };
                let mut store = open(&SimDisk::from_bytes(bytes));
                let applied = store.applied().index;
                let floor = promised.iter().rfind(|(at, _)| *at <= cut).map_or(0, |(_, index)| *index);
                assert!(applied >= floor, "cut {cut}: {applied} applied, {floor} promised");
                assert_view(&store.view(), &twins[usize::try_from(applied).unwrap()], &mut random);
                images += 1;
            }
        }
    }
    println!("{images} crash images reopened");
    assert!(images > 300);
}

/// A write, resize or sync that fails ends the store: nothing is retried, and what is on disk is
/// still a prefix.
#[test]
fn a_failed_write_is_final_at_every_place() {
    for fail_after in 0..60 {
        let disk = SimDisk::new();
        disk.fail_after(fail_after);
        let mut store = open(&disk);
        let mut twins = vec![Twin::new()];
        let mut random = Random::new(99);
        let mut failed = false;
        for index in 1..60 {
            let entry = entry(&mut random, twins.last().unwrap().revision());
            let mut twin = twins.last().unwrap().clone();
            twin.apply(&entry);
            twins.push(twin);
            apply(&mut store, &entry, index);
            let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) else { continue };
            match checkpoint.write() {
                Ok(written) => drop(store.finish_checkpoint(written)),
                Err(error) => {
                    assert!(error.is_fatal());
                    failed = true;
                    break;
                }
            }
        }
        let planned =
            u64::try_from(disk.recorded().iter().filter(|call| !matches!(call, Recorded::Sync)).count())
                .unwrap();
        assert!(failed || planned < fail_after + 60);
        let mut again = open(&SimDisk::from_bytes(disk.bytes()));
        let applied = usize::try_from(again.applied().index).unwrap();
        assert_view(&again.view(), &twins[applied], &mut random);
    }
}

/// A full disk changes nothing: checkpoints that find no room are tried again, reads and writes go
/// on, and when there is room everything that was written is there.
#[test]
fn a_full_disk_is_waited_for() {
    let mut refused = 0;
    for seed in 0..30 {
        let disk = SimDisk::new();
        let mut store = open_for(&disk, seed);
        let mut twin = Twin::new();
        let mut random = Random::new(seed);
        for index in 1..120 {
            if random.below(8) == 0 {
                let now = disk.bytes().len() as u64;
                disk.limit((random.below(2) == 0).then_some(now));
            }
            let entry = entry(&mut random, twin.revision());
            twin.apply(&entry);
            apply(&mut store, &entry, index);
            if random.below(20) == 0 {
                store.defragment().unwrap();
            }
            let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) else { continue };
            let durable = store.finish_checkpoint(checkpoint.write().unwrap());
            refused += usize::from(durable.no_space.is_some());
            assert_eq!(durable.no_space.is_none(), durable.applied.index == index);
            assert_view(&store.view(), &twin, &mut random);
        }
        disk.limit(None);
        while let Some(checkpoint) = store.checkpoint(CheckpointKind::WithIndex) {
            assert!(store.finish_checkpoint(checkpoint.write().unwrap()).no_space.is_none());
        }
        check(store.db().unwrap()).unwrap();
        let mut again = open(&SimDisk::from_bytes(disk.bytes()));
        assert_view(&again.view(), &twin, &mut random);
        verify(&again).unwrap();
    }
    println!("{refused} checkpoints found no room");
    assert!(refused > 50, "only {refused} checkpoints found no room");
}
