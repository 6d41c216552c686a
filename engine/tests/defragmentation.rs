//! Defragmentation while others stand still.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Store};

fn checkpoint(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
}

/// Readers whose core stands still for a while hold what was before the compaction, then what was
/// moved: the space is given back all the same.
#[test]
fn a_defragmentation_waits_for_readers_that_stand_still() {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    for number in 0..2_000_u64 {
        let mut txn = store.begin();
        txn.put(format!("key{number:06}").as_bytes(), &[b'v'; 300], 0);
        txn.commit();
        store.set_applied(Applied { index: 1 + number, term: 1 });
    }
    checkpoint(&mut store);
    let before = store.view();
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"key000000", b"key001900"));
    txn.commit();
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: 2_001, term: 1 });
    while store.has_unsaved() || store.compaction_pending() || store.is_sweeping() {
        checkpoint(&mut store);
    }
    let full = store.sizes().file;
    store.defragment().unwrap();
    let mut stand_still = |view| {
        for _ in 0..20 {
            checkpoint(&mut store);
        }
        drop(view);
        let view = store.view();
        checkpoint(&mut store);
        view
    };
    let while_moving = stand_still(before);
    drop(stand_still(while_moving));
    while store.is_defragmenting() {
        checkpoint(&mut store);
    }
    assert!(store.sizes().file * 4 < full, "{full} bytes became {:?}", store.sizes());
}

/// A store of `count` values of `bytes` each, behind as many that a compaction has taken.
fn behind_free_space(disk: &SimDisk, count: u64, bytes: usize) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 4096 }).unwrap();
    let mut index = 0;
    for name in ["gone", "kept"] {
        for number in 0..count {
            let mut txn = store.begin();
            txn.put(format!("{name}{number:06}").as_bytes(), &vec![b'v'; bytes], 0);
            txn.commit();
            index += 1;
            store.set_applied(Applied { index, term: 1 });
            checkpoint(&mut store);
        }
    }
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"gone", b"gonf"));
    txn.commit();
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: index + 1, term: 1 });
    while store.has_unsaved() || store.compaction_pending() || store.is_sweeping() {
        checkpoint(&mut store);
    }
    store
}

/// A checkpoint that moved a thousand leaves moved all their values, gigabytes of them perhaps.
#[test]
fn long_values_are_moved_a_few_at_a_time() {
    let disk = SimDisk::new();
    let mut store = behind_free_space(&disk, 64, 1 << 20);
    let full = store.sizes().file;
    store.defragment().unwrap();
    let mut checkpoints = 0;
    while store.is_defragmenting() {
        checkpoint(&mut store);
        checkpoints += 1;
    }
    assert!((64 / 8..100).contains(&checkpoints), "{checkpoints} checkpoints for 64 MiB");
    assert!(store.sizes().file * 5 < full * 3, "{full} bytes became {:?}", store.sizes());
    revd_engine::check::check(store.db().unwrap()).unwrap();
}

/// A reader that stays holds the free pages: to move would only make the file longer.
#[test]
fn a_defragmentation_whose_readers_stay_makes_the_file_no_longer() {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    for number in 0..2_000_u64 {
        let mut txn = store.begin();
        txn.put(format!("key{number:06}").as_bytes(), &[b'v'; 300], 0);
        txn.commit();
        store.set_applied(Applied { index: 1 + number, term: 1 });
    }
    checkpoint(&mut store);
    let stays = store.view();
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"key000000", b"key001000"));
    txn.commit();
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: 2_001, term: 1 });
    while store.has_unsaved() || store.compaction_pending() || store.is_sweeping() {
        checkpoint(&mut store);
    }
    let full = store.sizes().file;
    store.defragment().unwrap();
    while store.is_defragmenting() {
        checkpoint(&mut store);
        // Each commit that waits writes a list of free pages and a few others.
        assert!(store.sizes().file <= full + full / 8, "{full} bytes became {:?}", store.sizes());
    }
    drop(stays);
    drop(store.view());
    checkpoint(&mut store);
    store.defragment().unwrap();
    while store.is_defragmenting() {
        checkpoint(&mut store);
    }
    assert!(store.sizes().file * 4 < full * 3, "{full} bytes became {:?}", store.sizes());
}

/// Where values are longer than any hole, they stay where they are: at the end they would only make
/// the file longer.
#[test]
fn values_that_no_hole_takes_stay() {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 4096 }).unwrap();
    for number in 0..400_u64 {
        let mut txn = store.begin();
        let (name, bytes) = if number % 2 == 0 { ("gone", 20_000) } else { ("kept", 40_000) };
        txn.put(format!("{name}{number:06}").as_bytes(), &vec![b'v'; bytes], 0);
        txn.commit();
        store.set_applied(Applied { index: 1 + number, term: 1 });
        checkpoint(&mut store);
    }
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"gone", b"gonf"));
    txn.commit();
    store.compact(store.revision()).unwrap();
    store.set_applied(Applied { index: 401, term: 1 });
    while store.has_unsaved() || store.compaction_pending() || store.is_sweeping() {
        checkpoint(&mut store);
    }
    let full = store.sizes().file;
    store.defragment().unwrap();
    while store.is_defragmenting() {
        checkpoint(&mut store);
        assert!(store.sizes().file <= full + 16 * 4096, "{full} bytes became {:?}", store.sizes());
    }
    revd_engine::check::check(store.db().unwrap()).unwrap();
}

/// While no checkpoint found room, each made the same step again, for ever.
#[test]
fn a_defragmentation_that_finds_no_room_ends() {
    let disk = SimDisk::new();
    let mut store = behind_free_space(&disk, 16, 1 << 20);
    store.defragment().unwrap();
    checkpoint(&mut store);
    // More than what is free.
    for number in 0..40_u64 {
        let mut txn = store.begin();
        txn.put(format!("more{number}").as_bytes(), &vec![b'v'; 1 << 20], 0);
        txn.commit();
        store.set_applied(Applied { index: 1_000 + number, term: 1 });
    }
    disk.limit(Some(disk.bytes().len() as u64));
    let mut refused = 0;
    while store.is_defragmenting() {
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        refused += usize::from(store.finish_checkpoint(written).no_space.is_some());
        assert!(refused < 200, "{:?}", store.sizes());
    }
    assert!(refused > 0, "the disk had room");
    disk.limit(None);
    checkpoint(&mut store);
    revd_engine::check::check(store.db().unwrap()).unwrap();
    let again = Store::open(Arc::new(SimDisk::from_bytes(disk.bytes())), DbOptions::default()).unwrap();
    assert_eq!(again.revision(), store.revision());
}
