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
