//! Checkpoints that find no room while the store goes on: rows that changed meanwhile are newer
//! than the rows that such a checkpoint brings back.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{Applied, CheckpointKind, SmallTable, Store};
use revd_engine::random::Random;

const TABLE: SmallTable = SmallTable::Leases;

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
}

/// Changes a few rows, and a key.
fn change(store: &mut Store, rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, index: u64, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let key = vec![u8::try_from(random.below(12)).unwrap()];
        if random.below(3) == 0 {
            store.table_remove(TABLE, &key);
            rows.remove(&key);
        } else {
            let row = format!("{index}, {}", random.below(1_000)).into_bytes();
            store.table_put(TABLE, &key, &row);
            rows.insert(key, row);
        }
    }
    let mut txn = store.begin();
    txn.put(b"key", &vec![b'v'; usize::try_from(random.below(90_000)).unwrap()], 0);
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
}

#[test]
fn rows_that_changed_while_a_checkpoint_found_no_room_stay_as_they_are() {
    let mut compared = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new();
        let mut store = open(&disk);
        let mut rows = BTreeMap::new();
        let (mut index, mut was_refused) = (0, false);
        for _ in 0..120 {
            index += 1;
            change(&mut store, &mut rows, index, &mut random);
            let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
            let saved = rows.clone();
            let now = disk.bytes().len() as u64;
            disk.limit((random.below(2) == 0).then_some(now));
            let written = checkpoint.write().unwrap();
            // The store has gone on meanwhile.
            for _ in 0..random.below(3) {
                index += 1;
                change(&mut store, &mut rows, index, &mut random);
            }
            let has_no_room = written.has_no_room();
            let is_refused = store.finish_checkpoint(written).no_space.is_some();
            assert_eq!(is_refused, has_no_room, "it says so before the store hears of it");
            // A file that is just made has no more than the meta slots.
            let len = (disk.bytes().len() as u64).max(2 * 4096);
            assert!(store.sizes().file <= len, "seed {seed}, entry {index}: {:?}", store.sizes());
            if was_refused && !is_refused {
                let again = open(&SimDisk::from_bytes(disk.bytes()));
                check(again.db().unwrap()).unwrap();
                verify(&again).unwrap();
                assert!(again.saved_rows(TABLE).unwrap().into_iter().eq(saved), "seed {seed}, entry {index}");
                compared += 1;
            }
            was_refused = is_refused;
        }
    }
    assert!(compared > 30, "only {compared} checkpoints after one that found no room");
}

/// A reader holds an old state while a long row is replaced, until the disk is full of such rows.
/// Once the reader is gone their pages are used again: the file need not grow.
#[test]
fn pages_of_a_reader_that_is_gone_are_room_on_a_full_disk() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let mut index = 0;
    let mut replace = |store: &mut Store| {
        index += 1;
        store.table_put(TABLE, b"row", &vec![u8::try_from(index % 251).unwrap(); 200_000]);
        store.set_applied(Applied { index, term: 1 });
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        store.finish_checkpoint(written).no_space.is_none()
    };
    assert!(replace(&mut store));
    let reader = store.view();
    disk.limit(Some(4_000_000));
    let replaced = (0..100).take_while(|_| replace(&mut store)).count();
    assert!((5..30).contains(&replaced), "{replaced} rows of 200 kB fill 4 MB");
    for _ in 0..10 {
        assert!(!replace(&mut store), "the reader is still there");
        let (sizes, len) = (store.sizes(), disk.bytes().len() as u64);
        assert!(sizes.file <= len, "{sizes:?} of a file of {len} bytes");
    }
    drop(reader);
    drop(store.view());
    assert!(replace(&mut store), "{:?}", store.sizes());
    check(store.db().unwrap()).unwrap();
    let again = open(&SimDisk::from_bytes(disk.bytes()));
    check(again.db().unwrap()).unwrap();
    verify(&again).unwrap();
}
