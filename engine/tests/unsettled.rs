//! The process before died between the write of its last meta slot and the sync: the kernel's cache
//! has the slot, the disk may not. The state that is said to be durable must be on the disk all the
//! same.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::mvcc::{Applied, CheckpointKind, Durable, Store};

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
}

fn change(store: &mut Store, index: u64, bytes: usize) -> Durable {
    let mut txn = store.begin();
    txn.put(b"key", &vec![7; bytes], 0);
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
    let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
    store.finish_checkpoint(written)
}

/// The file that a process left after so many checkpoints: in the cache, and on the disk.
fn dead_process(checkpoints: u64) -> (SimDisk, Vec<u8>) {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    for index in 1..=checkpoints {
        assert_eq!(change(&mut store, index, 500).applied.index, index);
    }
    let calls = disk.recorded();
    let [synced @ .., Recorded::Write { .. }, Recorded::Sync] = &calls[..] else { panic!("no slot") };
    (SimDisk::from_bytes(disk.bytes()), SimDisk::image(synced, |_, _| true))
}

/// The power goes: the index that is applied in what is on the disk then.
fn applied_on_disk(disk: &SimDisk, mut on_disk: Vec<u8>) -> u64 {
    let calls = disk.recorded();
    let over = calls.iter().rposition(|call| *call == Recorded::Sync).map_or(0, |at| at + 1);
    for call in &calls[..over] {
        let Recorded::Write { offset, bytes } = call else { continue };
        let at = usize::try_from(*offset).unwrap();
        on_disk[at..at + bytes.len()].copy_from_slice(bytes);
    }
    open(&SimDisk::from_bytes(on_disk)).applied().index
}

/// The log lets go of it, also when the checkpoint found no room.
#[test]
fn a_checkpoint_without_room_leaves_the_state_it_reports_on_the_disk() {
    let (disk, on_disk) = dead_process(5);
    let mut store = open(&disk);
    disk.limit(Some(disk.bytes().len() as u64));
    let durable = change(&mut store, 6, 4 << 20);
    assert!(durable.no_space.is_some());
    assert_eq!((durable.applied.index, applied_on_disk(&disk, on_disk)), (5, 5));
}

/// A new member's log begins on it.
#[test]
fn a_store_that_was_just_made_can_be_made_durable() {
    let (disk, on_disk) = dead_process(1);
    assert_eq!(applied_on_disk(&disk, on_disk.clone()), 0);
    open(&disk).make_durable().unwrap();
    assert_eq!(applied_on_disk(&disk, on_disk), 1);
}
