//! Readers that stand still while the store goes on, on a real file: a map shows what is in the
//! file now, and so a page that is used again too early.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Direction, KeyRange, Store, View};

/// Puts some keys as the next entry, and saves that.
fn entry(store: &mut Store, index: u64, value: u8) {
    for key in 0..40 {
        let mut txn = store.begin();
        txn.put(format!("key {key}").as_bytes(), &[value; 60], 0);
        txn.commit();
    }
    store.set_applied(Applied { index, term: 1 });
    let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
    store.finish_checkpoint(written);
}

/// Everything that a View holds.
fn content(view: &View) -> Vec<Vec<u8>> {
    let reader = view.reader();
    let keys = reader.scan(KeyRange::From(b""), view.revision(), Direction::Forward);
    keys.map(|(_, meta)| reader.record(meta.modified).unwrap().to_vec()).collect()
}

#[test]
fn a_view_shows_the_same_however_many_checkpoints_follow() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = MmapDisk::open(&dir.path().join("tree")).unwrap();
    let mut store = Store::open(Arc::new(disk), DbOptions { page_bytes_if_new: 512 }).unwrap();
    let mut views = Vec::new();
    for index in 1..=30 {
        entry(&mut store, index, u8::try_from(index).unwrap());
        // Records that were replaced are compacted: their pages are free but for readers.
        store.compact(store.revision()).unwrap();
        let view = store.view();
        views.push((content(&view), view));
        if views.len() > 5 {
            views.remove(usize::try_from(index % 5).unwrap());
        }
        for (before, view) in &views {
            assert_eq!(before.len(), 40);
            assert_eq!(content(view), *before, "behind entry {index}, at revision {}", view.revision());
        }
    }
}
