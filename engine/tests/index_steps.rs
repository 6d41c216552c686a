//! A large index is saved a range at a time: what a checkpoint writes, what a start needs, formats,
//! tombstones, and keys too long for a page. Crashes at any write are in `store_model.rs`.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::limits::SWEEP_KEYS_PER_STEP;
use revd_engine::meta::{Meta, SLOT_OFFSETS, Table};
use revd_engine::mvcc::revision::RecordKind;
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Revision, SavedState, Store, StoreBuilder};
use revd_engine::random::Random;

const OPTIONS: DbOptions = DbOptions { page_bytes_if_new: 512 };
const KEYS: u64 = 3_000;
const STEP: u64 = 100;

fn open(disk: &SimDisk) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    store.save_index_in_steps_of(STEP);
    store
}

fn applied(store: &mut Store) {
    let index = store.applied().index + 1;
    store.set_applied(Applied { index, term: 1 });
}

fn put(store: &mut Store, key: &[u8]) {
    let mut txn = store.begin();
    txn.put(key, &[7; 40], 0);
    txn.commit();
    applied(store);
}

fn delete(store: &mut Store, key: &[u8]) {
    let mut txn = store.begin();
    assert_eq!(txn.delete_range(KeyRange::One(key)).len(), 1);
    txn.commit();
    applied(store);
}

/// Keys beside each other have little in common: no leaf shares it, which would be a format of its
/// own.
fn key(number: u64) -> Vec<u8> {
    format!("{:05}/key", number * 48_271 % 99_991).into_bytes()
}

fn save(store: &mut Store, kind: CheckpointKind) {
    if let Some(checkpoint) = store.checkpoint(kind) {
        store.finish_checkpoint(checkpoint.write().unwrap());
    }
}

/// A store with all keys, and its index saved in many ranges of different revisions.
fn ranged(disk: &SimDisk) -> Store {
    let mut store = open(disk);
    (0..KEYS).for_each(|number| put(&mut store, &key(number)));
    save(&mut store, CheckpointKind::WithIndex);
    let mut random = Random::new(5);
    for _ in 0..40 {
        (0..20).for_each(|_| put(&mut store, &key(random.below(KEYS))));
        save(&mut store, CheckpointKind::Auto);
    }
    store
}

fn formats(disk: &SimDisk) -> Vec<u32> {
    let calls = disk.recorded();
    let slot = |call: &Recorded| match call {
        Recorded::Write { offset, bytes } if SLOT_OFFSETS.contains(offset) => Meta::decode(bytes),
        _ => None,
    };
    calls.iter().filter_map(slot).map(|meta| meta.format).collect()
}

fn tombstones(store: &mut Store) -> usize {
    let (view, mut count) = (store.view(), 0);
    let each = view.reader().each_record_after(Revision::default(), |key, _| {
        count += usize::from(key.kind == RecordKind::Tombstone);
        Ok(true)
    });
    each.unwrap();
    count
}

fn verified(disk: &SimDisk) -> Store {
    let store = open(disk);
    check(store.db().unwrap()).unwrap();
    verify(&store).unwrap();
    store
}

#[test]
fn a_checkpoint_writes_a_part_of_the_index() {
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    let whole = usize::try_from(store.sizes().in_use).unwrap();
    let mut random = Random::new(6);
    let (mut most, mut all) = (0, 0);
    for _ in 0..300 {
        let before = disk.recorded().len();
        (0..20).for_each(|_| put(&mut store, &key(random.below(KEYS))));
        save(&mut store, CheckpointKind::Auto);
        let calls = disk.recorded();
        let bytes = |call: &Recorded| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 };
        let written: usize = calls[before..].iter().map(bytes).sum();
        (most, all) = (most.max(written), all + written);
    }
    assert!(most < whole / 10, "{most} bytes in one checkpoint of a store of {whole}");
    assert_eq!(verified(&disk).revision(), store.revision());
    // 6,000 records are four rounds; the records alone are some 90 bytes each.
    assert!(all < 6_000 * 600, "{all} bytes for 6,000 puts");
}

/// A small store stays what every revd can read, and a large one is refused by those that cannot;
/// as a stream too.
#[test]
fn only_a_file_with_ranges_has_a_new_format() {
    let disk = SimDisk::new();
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    for number in 0..KEYS {
        put(&mut store, &key(number % 500));
        if number % 100 == 0 {
            save(&mut store, CheckpointKind::Auto);
        }
    }
    store.compact(store.revision() - 10).unwrap();
    applied(&mut store);
    while store.compaction_pending() || store.is_sweeping() {
        save(&mut store, CheckpointKind::Auto);
    }
    assert!(formats(&disk).iter().all(|format| *format < 3));
    assert_eq!(streamed(&store.saved_state().unwrap()).0, 1);
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    save(&mut store, CheckpointKind::WithIndex);
    let found = formats(&disk);
    assert!(found.is_sorted() && found.last() == Some(&3), "{found:?}");
    let mut store = ranged(&SimDisk::new());
    let state = store.saved_state().unwrap();
    let (version, copy) = streamed(&state);
    assert_eq!((version, formats(&copy)), (2, vec![3]));
    let mut copy = verified(&copy);
    assert_eq!(copy.view().reader().count(KeyRange::ALL, i64::MAX), KEYS);
    assert_eq!(copy.revision(), store.view().revision());
}

/// One that was written before there were ranges; the e2e test of formats reads what is in it.
#[test]
fn a_file_of_the_first_format_goes_on_in_ranges() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/format/v1/tree.revd");
    let mut bytes = std::fs::read(file).unwrap();
    bytes.resize(1 << 20, 0); // zeros at its end are left out
    let disk = SimDisk::from_bytes(bytes);
    let mut store = open(&disk);
    verify(&store).unwrap();
    let (revision, keys) = (store.revision(), store.reader().count(KeyRange::ALL, i64::MAX));
    assert_eq!((revision, store.compact_revision()), (11, 3));
    store.save_index_in_steps_of(1);
    for number in 0..5 {
        put(&mut store, &key(number));
        save(&mut store, CheckpointKind::Auto);
        let again = verified(&disk);
        assert_eq!(again.reader().count(KeyRange::ALL, i64::MAX), keys + number + 1);
    }
    // Its long key has got a row of its own.
    assert_eq!(formats(&disk).last(), Some(&4));
}

/// The version of a state's stream, and the file that comes of it.
fn streamed(state: &SavedState) -> (u32, SimDisk) {
    let disk = SimDisk::new();
    let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
    let (mut stream, mut chunk, mut version) = (state.stream(), Vec::new(), None);
    while stream.next_chunk(&mut chunk).unwrap() {
        version.get_or_insert(u32::from_le_bytes(chunk[4..8].try_into().unwrap()));
        builder.add(&chunk).unwrap();
    }
    builder.finish().unwrap();
    (version.unwrap(), disk)
}

/// The compaction does not wait for the index, and a start does not revive what was deleted.
#[test]
fn a_tombstone_stays_until_all_of_the_index_is_saved_behind_it() {
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    for number in 0..KEYS / 10 {
        delete(&mut store, &key(number * 10));
    }
    let deleted = usize::try_from(KEYS / 10).unwrap();
    let at = store.revision();
    put(&mut store, &key(0));
    store.compact(at).unwrap();
    applied(&mut store);
    let mut steps = 0;
    while store.compaction_pending() {
        save(&mut store, CheckpointKind::Auto);
        steps += 1;
        let again = verified(&SimDisk::from_bytes(disk.bytes()));
        assert_eq!(again.reader().count(KeyRange::ALL, i64::MAX), KEYS - KEYS / 10 + 1);
    }
    assert!(steps < 5, "the compaction took {steps} steps");
    while store.forget_compacted(1_000) {}
    assert_eq!(tombstones(&mut store), deleted);
    // When the index has been saved behind them they go, without another compaction.
    put(&mut store, &key(0));
    save(&mut store, CheckpointKind::WithIndex);
    assert!(store.compaction_pending());
    while store.compaction_pending() {
        save(&mut store, CheckpointKind::Auto);
    }
    assert_eq!(tombstones(&mut store), 1, "that of the compaction's own revision");
    // That was all there was to come back for.
    put(&mut store, &key(0));
    save(&mut store, CheckpointKind::WithIndex);
    assert!(!store.compaction_pending());
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), KEYS - KEYS / 10 + 1);
}

/// An index is as large as its rows in the file: few keys in memory do not make it one that is
/// saved at once.
#[test]
fn rows_of_keys_that_are_gone_are_removed_a_step_at_a_time() {
    const MANY: u64 = 3 * SWEEP_KEYS_PER_STEP;
    let disk = SimDisk::new();
    let mut store = open(&disk);
    (0..MANY).for_each(|number| put(&mut store, &key(number)));
    save(&mut store, CheckpointKind::WithIndex);
    let mut txn = store.begin();
    assert_eq!(txn.delete_range(KeyRange::ALL).len() as u64, MANY);
    txn.commit();
    applied(&mut store);
    let rows = |store: &Store| store.db().unwrap().snapshot().len(Table(1));
    // The tombstones are in the file then, and what the deletion has earned is used up.
    save(&mut store, CheckpointKind::WithIndex);
    assert_eq!(rows(&store), MANY);
    let (mut most, mut steps) = (0, 0);
    for _ in 0..4 {
        put(&mut store, &key(0));
        store.compact(store.revision()).unwrap();
        applied(&mut store);
        while store.compaction_pending() || store.is_sweeping() {
            let before = rows(&store);
            save(&mut store, CheckpointKind::Auto);
            while store.forget_compacted(1_000) {}
            most = most.max(before.saturating_sub(rows(&store)));
            steps += 1;
        }
    }
    assert!(most <= SWEEP_KEYS_PER_STEP + 2 * STEP, "{most} rows removed in one of {steps} checkpoints");
    assert_eq!(rows(&store), 1);
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), 1);
}

/// Each is saved with the checkpoint that follows its change, also if the rest of the index is not,
/// and what a compaction leaves nothing of is swept away.
#[test]
fn long_keys_are_saved_one_by_one() {
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    let long = |number: u64| [key(number), vec![b'x'; 200]].concat();
    (0..300).for_each(|number| put(&mut store, &long(number)));
    save(&mut store, CheckpointKind::Auto);
    for number in 0..300 {
        if number % 3 == 0 {
            delete(&mut store, &long(number));
        } else {
            put(&mut store, &long(number));
        }
        if number % 7 == 0 {
            save(&mut store, CheckpointKind::Auto);
            let mut again = verified(&SimDisk::from_bytes(disk.bytes()));
            assert_eq!(again.view().revision(), store.revision());
        }
    }
    save(&mut store, CheckpointKind::Auto);
    let before = disk.recorded().len();
    put(&mut store, &long(1));
    save(&mut store, CheckpointKind::Auto);
    let bytes = |call: &Recorded| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 };
    let written: usize = disk.recorded()[before..].iter().map(bytes).sum();
    assert!(written < 20_000, "{written} bytes for a change of one long key");
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap(); // small: always swept
    store.compact(store.revision()).unwrap();
    applied(&mut store);
    while store.compaction_pending() || store.is_sweeping() {
        save(&mut store, CheckpointKind::Auto);
        while store.forget_compacted(1_000) {}
    }
    let again = verified(&disk);
    assert_eq!(again.reader().count(KeyRange::ALL, i64::MAX), KEYS + 200);
    let rows = again.db().unwrap().snapshot().len(Table(2));
    assert_eq!(rows, 200, "rows of long keys");
}

/// A sweep of a large index is far away, and the walk over it passes rows of long keys by: what a
/// compaction leaves nothing of must not keep its row.
#[test]
fn rows_of_long_keys_that_are_gone_do_not_wait_for_a_sweep() {
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    let long = |number: u64| [key(number), vec![b'x'; 200]].concat();
    for number in 0..3 {
        put(&mut store, &long(number));
        put(&mut store, &long(number));
    }
    (0..2).for_each(|number| delete(&mut store, &long(number)));
    save(&mut store, CheckpointKind::WithIndex);
    let rows = |store: &Store| store.db().unwrap().snapshot().len(Table(2));
    assert_eq!(rows(&store), 3);
    store.compact(store.revision()).unwrap();
    applied(&mut store);
    while store.compaction_pending() {
        save(&mut store, CheckpointKind::Auto);
        while store.forget_compacted(1_000) {}
    }
    assert!(!store.is_sweeping() && rows(&store) == 3, "no sweep is begun");
    put(&mut store, &key(1));
    save(&mut store, CheckpointKind::WithIndex);
    assert_eq!(rows(&store), 1);
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), KEYS + 1);
}

/// Bytes that the calls from `before` on have written.
fn written(disk: &SimDisk, before: usize) -> usize {
    let bytes = |call: &Recorded| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 };
    disk.recorded()[before..].iter().map(bytes).sum()
}

/// Long keys whose CRC-32C is one: whatever comes first, four bytes behind it make it that.
fn of_one_checksum(number: u64) -> Vec<u8> {
    let mut key = [key(number), vec![b'x'; 200]].concat();
    let rest = !crc32c::crc32c(&key);
    key.extend_from_slice(&rest.to_le_bytes());
    key
}

/// They would make one row of any size, which is written whole for a change of one.
#[test]
fn long_keys_of_one_checksum_have_rows_of_their_own() {
    assert_eq!(crc32c::crc32c(&of_one_checksum(1)), crc32c::crc32c(&of_one_checksum(2)));
    let disk = SimDisk::new();
    let mut store = open(&disk);
    (0..500).for_each(|number| put(&mut store, &of_one_checksum(number)));
    save(&mut store, CheckpointKind::WithIndex);
    assert_eq!(store.db().unwrap().snapshot().len(Table(2)), 500);
    put(&mut store, &of_one_checksum(7));
    let before = disk.recorded().len();
    save(&mut store, CheckpointKind::WithIndex);
    let bytes = written(&disk, before);
    assert!(bytes < 20_000, "{bytes} bytes for one of the keys");
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), 500);
    assert_eq!(formats(&disk).last(), Some(&4), "an earlier revd would give a key a second row");
}

/// One that changes all the time is saved as seldom as others, and with a crash between the change
/// is in its record.
#[test]
fn a_hot_long_key_is_not_saved_by_each_checkpoint() {
    let disk = SimDisk::new();
    let mut store = ranged(&disk);
    let hot = [key(5), vec![b'x'; 300]].concat();
    let row = |store: &Store| {
        let (tree, mut rows) = (store.db().unwrap().snapshot(), Vec::new());
        let mut cursor = tree.cursor(Table(2));
        cursor.seek(&[]).unwrap();
        while let Some((_, row)) = cursor.next().unwrap() {
            rows.push(row.to_vec());
        }
        rows
    };
    let (mut saved, mut before) = (0, row(&store));
    for round in 0..400 {
        put(&mut store, &hot);
        (0..9).for_each(|number| put(&mut store, &key(number * 300)));
        save(&mut store, CheckpointKind::Auto);
        let now = row(&store);
        saved += usize::from(now != before);
        before = now;
        if round % 50 == 0 {
            let again = verified(&SimDisk::from_bytes(disk.bytes()));
            assert_eq!(again.reader().get(&hot, i64::MAX), store.reader().get(&hot, i64::MAX));
        }
    }
    // 4,000 records are less than three rounds of an index of 3,001 keys.
    assert!((1..=4).contains(&saved), "saved {saved} times by 400 checkpoints");
}

/// Those that wait for their range are bounded.
#[test]
fn many_long_keys_do_not_wait() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    store.save_index_in_small_steps_of(STEP * 100, 10_000);
    for number in 0..400 {
        put(&mut store, &of_one_checksum(number));
        save(&mut store, CheckpointKind::Auto);
    }
    let rows = store.db().unwrap().snapshot().len(Table(2));
    assert!((300..400).contains(&rows), "{rows} of 400 long keys are saved");
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), 400);
}

/// A save of a hot key writes the changes since the one before, and a compaction leaves nothing
/// behind.
#[test]
fn the_past_of_a_hot_key_is_saved_once() {
    let disk = SimDisk::new();
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    let long = [key(5), vec![b'x'; 300]].concat();
    for _ in 0..10_000 {
        put(&mut store, b"hot");
        put(&mut store, &long);
    }
    save(&mut store, CheckpointKind::WithIndex);
    let older = |store: &Store| store.db().unwrap().snapshot().len(Table(5));
    assert_eq!((older(&store), formats(&disk).last()), (2 * 12, Some(&4)));
    for _ in 0..3 {
        [&b"hot"[..], &long].iter().for_each(|key| put(&mut store, key));
        let before = disk.recorded().len();
        save(&mut store, CheckpointKind::WithIndex);
        let bytes = written(&disk, before);
        assert!(bytes < 50_000, "{bytes} bytes for two changes");
    }
    let copy = streamed(&store.saved_state().unwrap());
    assert_eq!((copy.0, formats(&copy.1)), (3, vec![4]));
    let again = verified(&copy.1);
    for at in (2..store.revision()).step_by(97) {
        assert_eq!(again.reader().get(b"hot", at), store.reader().get(b"hot", at));
        assert_eq!(again.reader().get(&long, at), store.reader().get(&long, at));
    }
    let compact = |store: &mut Store, at: i64| {
        store.compact(at).unwrap();
        applied(store);
        while store.compaction_pending() || store.is_sweeping() {
            save(store, CheckpointKind::Auto);
            while store.forget_compacted(1_000) {}
        }
    };
    compact(&mut store, 10_000);
    assert_eq!(older(&store), 2 * 6);
    assert_eq!(verified(&disk).revision(), store.revision());
    let last = store.revision();
    compact(&mut store, last);
    assert_eq!(older(&store), 0);
    (0..2_000).for_each(|_| put(&mut store, b"hot"));
    save(&mut store, CheckpointKind::WithIndex);
    assert_eq!((older(&store), verified(&disk).revision()), (1, store.revision()));
    delete(&mut store, b"hot");
    let last = store.revision();
    compact(&mut store, last);
    assert_eq!(older(&store), 0);
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), 1);
}

/// One key is a small index whatever its past is: what waits to be saved does not become more with
/// the changes that it has, and neither does what a checkpoint writes.
#[test]
fn a_key_with_very_many_changes_is_saved_as_often_as_one_with_few() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let rows = |store: &Store| store.db().unwrap().snapshot().len(Table(5));
    let mut most = 0;
    for number in 1..=20_000 {
        put(&mut store, b"hot");
        if number % 100 == 0 {
            let before = rows(&store);
            save(&mut store, CheckpointKind::Auto);
            most = most.max(rows(&store) - before);
        }
    }
    // A round is of 400 records, and a row of four changes.
    assert!(most <= 2 * 400 / 4, "{most} rows of older changes in one checkpoint");
    let all = rows(&store);
    assert!(all >= (20_000 - 1_000) / 4, "{all} rows are saved");
    assert_eq!(verified(&disk).revision(), store.revision());
}

/// A compaction leaves little of them; what it removes counts as what is written does.
#[test]
fn rows_of_older_changes_are_removed_a_step_at_a_time() {
    const HOT: u64 = 20;
    let disk = SimDisk::new();
    let mut store = open(&disk);
    store.save_index_in_small_steps_of(STEP, 40 * 512);
    let long = |number: u64| [key(number), vec![b'x'; 200]].concat();
    for _ in 0..200 {
        (0..HOT).for_each(|number| put(&mut store, &key(number)));
        (0..HOT).for_each(|number| put(&mut store, &long(number)));
    }
    save(&mut store, CheckpointKind::WithIndex);
    let rows = |store: &Store| store.db().unwrap().snapshot().len(Table(5));
    let all = rows(&store);
    assert!(all > 2 * HOT * 45, "{all} rows");
    put(&mut store, b"another");
    store.compact(store.revision()).unwrap();
    applied(&mut store);
    let (mut most, mut steps) = (0, 0);
    while store.compaction_pending() || store.is_sweeping() {
        let before = rows(&store);
        save(&mut store, CheckpointKind::Auto);
        while store.forget_compacted(1_000) {}
        most = most.max(before - rows(&store));
        steps += 1;
    }
    assert_eq!(rows(&store), 0);
    assert!(most < 200, "{most} of {all} rows were removed by one of {steps} checkpoints");
    assert_eq!(verified(&disk).reader().count(KeyRange::ALL, i64::MAX), 2 * HOT + 1);
}
