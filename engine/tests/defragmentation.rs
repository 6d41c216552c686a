//! Defragmentation while others stand still.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::meta::Table;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Store};
use revd_engine::page::PageId;
use revd_engine::txn::Moves;

fn checkpoint(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
}

/// Readers whose core stands still for a while hold what was before the compaction, then what was
/// moved, and the store grows meanwhile: the space is given back all the same.
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
    let mut made = 0;
    let mut stand_still = |view, puts: u64| {
        for _ in 0..20 {
            for _ in 0..puts {
                let mut txn = store.begin();
                made += 1;
                txn.put(format!("more{made:06}").as_bytes(), &[b'v'; 300], 0);
                txn.commit();
            }
            checkpoint(&mut store);
        }
        drop(view);
        let view = store.view();
        checkpoint(&mut store);
        view
    };
    let while_moving = stand_still(before, 20);
    drop(stand_still(while_moving, 0));
    while store.is_defragmenting() {
        checkpoint(&mut store);
    }
    let sizes = store.sizes();
    assert!((sizes.file - sizes.in_use) * 8 < full, "{full} bytes became {sizes:?}");
}

/// A store of `count` values of `bytes` each, behind as many that a compaction has taken.
fn behind_free_space(disk: &SimDisk, count: u64, bytes: usize) -> Store {
    behind_holes(disk, count, bytes, false)
}

/// The same, with a short value behind each that a compaction has taken, if they `are_apart`.
fn behind_holes(disk: &SimDisk, count: u64, bytes: usize, are_apart: bool) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 4096 }).unwrap();
    let mut index = 0;
    for name in ["gone", "kept"] {
        for number in 0..count {
            let mut txn = store.begin();
            txn.put(format!("{name}{number:06}").as_bytes(), &vec![b'v'; bytes], 0);
            if are_apart {
                txn.put(format!("low{name}{number:06}").as_bytes(), &[b'l'; 5_000], 0);
            }
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
/// the file longer. Others move.
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
    (0..50).for_each(|number| {
        txn.put(format!("short{number}").as_bytes(), &[b'v'; 15_000], 0);
    });
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
    assert!(store.sizes().file + 40 * 15_000 < full, "{full} bytes became {:?}", store.sizes());
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

const LOW: Table = Table(0);
const OTHER: Table = Table(1);

fn commit(db: &mut Db, change: impl FnOnce(&mut revd_engine::txn::WriteTxn<'_>)) {
    let mut txn = db.begin().unwrap();
    change(&mut txn);
    txn.commit().unwrap();
}

/// Bytes written so far.
fn written(disk: &SimDisk) -> usize {
    let bytes = |call: &Recorded| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 };
    disk.recorded().iter().map(bytes).sum()
}

/// A leaf that lies behind the place where the file is to end, and names a value that lies before
/// it, is written again without the value: whether there is a lower place for that or none.
#[test]
fn a_leaf_is_moved_without_the_value_that_lies_low() {
    for hole in [0, 20] {
        let disk = SimDisk::new();
        let mut db = Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        commit(&mut db, |txn| {
            txn.put(OTHER, b"hole", &vec![b'h'; hole * 500]).unwrap();
        });
        commit(&mut db, |txn| {
            txn.put(LOW, b"a", &[b'a'; 8_000]).unwrap();
        });
        commit(&mut db, |txn| {
            txn.put(OTHER, b"pad", &vec![b'p'; 400 * 500]).unwrap();
            txn.put(LOW, b"b", b"v").unwrap();
        });
        commit(&mut db, |txn| {
            txn.remove(OTHER, b"pad").unwrap();
            txn.remove(OTHER, b"hole").unwrap();
        });
        commit(&mut db, |_| {});
        let before = written(&disk);
        for _ in 0..3 {
            commit(&mut db, |txn| {
                txn.shrink();
                let mut moves = Moves::new(1_000, 8 << 20, 1_000);
                assert_eq!(txn.move_down(LOW, b"", PageId(64), &mut moves).unwrap(), None);
            });
        }
        assert!(db.sizes().file < 100 * 512, "hole {hole}: {:?}", db.sizes());
        let moved = written(&disk) - before;
        assert!(moved < 8_000, "hole {hole}: {moved} bytes were written for a leaf");
        revd_engine::check::check(&db).unwrap();
    }
}

/// A branch that lies behind the place where the file is to end is written again without the leaves
/// below it that lie before: those of the root are all leaves of the table.
#[test]
fn a_branch_is_moved_without_the_leaves_that_lie_low() {
    let disk = SimDisk::new();
    let mut db = Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    commit(&mut db, |txn| {
        for number in 0..200 {
            txn.put(LOW, format!("key{number:03}").as_bytes(), &[b'v'; 100]).unwrap();
        }
    });
    commit(&mut db, |txn| {
        txn.put(OTHER, b"pad", &vec![b'p'; 400 * 500]).unwrap();
        txn.put(LOW, b"key100", &[b'w'; 100]).unwrap();
    });
    commit(&mut db, |txn| {
        txn.remove(OTHER, b"pad").unwrap();
    });
    commit(&mut db, |_| {});
    let before = written(&disk);
    for _ in 0..3 {
        commit(&mut db, |txn| {
            txn.shrink();
            assert_eq!(txn.move_down(LOW, b"", PageId(128), &mut Moves::new(1_000, 1, 1)).unwrap(), None);
        });
    }
    assert!(db.sizes().file < 160 * 512, "{:?}", db.sizes());
    let moved = written(&disk) - before;
    assert!(moved < 12_000, "{moved} bytes were written for a leaf and its branches");
    revd_engine::check::check(&db).unwrap();
}

/// A step that ends in the middle of a leaf goes on there, also where values before were passed
/// over: each that has a lower place is moved, once.
#[test]
fn a_step_goes_on_in_the_middle_of_a_leaf() {
    const PAIRS: usize = 12;
    const HOLES: usize = PAIRS * 6;
    let disk = SimDisk::new();
    let mut db = Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 4096 }).unwrap();
    for number in 0..HOLES {
        // Three pages, then one that stays: holes that take short values only.
        commit(&mut db, |txn| {
            txn.put(OTHER, format!("gone{number:02}").as_bytes(), &[b'g'; 12_000]).unwrap();
            txn.put(OTHER, format!("kept{number:02}").as_bytes(), &[b'k'; 4_000]).unwrap();
        });
    }
    commit(&mut db, |txn| {
        for number in 0..PAIRS {
            txn.put(LOW, format!("{number:02}long").as_bytes(), &[b'l'; 160_000]).unwrap();
            txn.put(LOW, format!("{number:02}short").as_bytes(), &[b's'; 12_000]).unwrap();
        }
    });
    commit(&mut db, |txn| {
        for number in 0..HOLES {
            txn.remove(OTHER, format!("gone{number:02}").as_bytes()).unwrap();
        }
    });
    commit(&mut db, |_| {});
    let (before, limit) = (written(&disk), PageId(HOLES as u64 * 4));
    let (mut from, mut steps) = (Some(Vec::new()), 0);
    while let Some(start) = from.take() {
        commit(&mut db, |txn| {
            txn.shrink();
            let mut moves = Moves::new(1_000, 1, 1_000);
            from = txn.move_down(LOW, &start, limit, &mut moves).unwrap();
            assert!(from.as_ref().is_none_or(|from| *from > start), "{from:?} behind {start:?}");
        });
        steps += 1;
    }
    assert_eq!(steps, PAIRS, "one value a step");
    let moved = written(&disk) - before;
    // A value, a leaf, its table's other pages, the list and the slot.
    assert!((PAIRS * 12_288..PAIRS * 40_000).contains(&moved), "{moved} bytes were written");
    revd_engine::check::check(&db).unwrap();
}

/// Values that no hole takes cost a look at each length of holes: a step looks at a bounded number
/// of both, and at no length again for a value that is as long.
#[test]
fn a_step_passes_over_a_bounded_number_of_values() {
    for (are_alike, steps_expected) in [(true, 1), (false, 10)] {
        let mut db = Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let of_pages = |pages: usize| vec![b'v'; pages * 512 - 100];
        commit(&mut db, |txn| {
            for number in 0..30 {
                let pages = if are_alike { 40 } else { 40 - number };
                txn.put(LOW, format!("{number:02}").as_bytes(), &of_pages(pages)).unwrap();
            }
        });
        commit(&mut db, |txn| {
            for pages in std::iter::once(10).chain(41..61) {
                txn.put(OTHER, format!("gone{pages}").as_bytes(), &of_pages(pages)).unwrap();
                txn.put(OTHER, format!("kept{pages}").as_bytes(), &of_pages(1)).unwrap();
            }
            txn.put(OTHER, b"last", &of_pages(100)).unwrap();
        });
        commit(&mut db, |txn| {
            for pages in std::iter::once(10).chain(41..61) {
                txn.remove(OTHER, format!("gone{pages}").as_bytes()).unwrap();
            }
        });
        commit(&mut db, |_| {});
        let (mut from, mut steps) = (Some(Vec::new()), 0);
        while let Some(start) = from.take() {
            commit(&mut db, |txn| {
                txn.shrink();
                let mut moves = Moves::new(1_000, 8 << 20, 3 * 21);
                from = txn.move_down(LOW, &start, PageId(8), &mut moves).unwrap();
            });
            steps += 1;
        }
        assert_eq!(steps, steps_expected, "values of one length: {are_alike}");
    }
}

/// A compaction comes first, which finds no room either: its defragmentation never began, and never
/// ended.
#[test]
fn a_defragmentation_that_cannot_begin_ends() {
    let disk = SimDisk::new();
    let mut store = behind_free_space(&disk, 16, 1 << 20);
    let mut txn = store.begin();
    txn.delete_range(KeyRange::from_wire(b"kept", b"kepu"));
    txn.commit();
    store.compact(store.revision()).unwrap();
    for number in 0..40_u64 {
        let mut txn = store.begin();
        txn.put(format!("more{number}").as_bytes(), &vec![b'v'; 1 << 20], 0);
        txn.commit();
        store.set_applied(Applied { index: 1_000 + number, term: 1 });
    }
    disk.limit(Some(disk.bytes().len() as u64));
    store.defragment().unwrap();
    let mut refused = 0;
    while store.is_defragmenting() {
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        refused += usize::from(store.finish_checkpoint(written).no_space.is_some());
        assert!(refused < 200, "{:?}", store.sizes());
    }
    assert!(refused > 0, "the disk had room");
    disk.limit(None);
    while store.has_unsaved() || store.compaction_pending() || store.is_sweeping() {
        checkpoint(&mut store);
    }
    let full = store.sizes().file;
    store.defragment().unwrap();
    while store.is_defragmenting() {
        checkpoint(&mut store);
    }
    assert!(store.sizes().file < full, "{full} bytes became {:?}", store.sizes());
    revd_engine::check::check(store.db().unwrap()).unwrap();
}

/// A checkpoint in the middle finds no room, the next one does: what lies high is moved all the
/// same.
#[test]
fn a_defragmentation_goes_on_once_there_is_room() {
    let disk = SimDisk::new();
    let mut store = behind_holes(&disk, 24, 1 << 20, true);
    let full = store.sizes().file;
    store.defragment().unwrap();
    checkpoint(&mut store);
    let mut txn = store.begin();
    txn.put(b"more", &vec![b'm'; 12 << 20], 0); // longer than any hole
    txn.commit();
    store.set_applied(Applied { index: 1_000, term: 1 });
    disk.limit(Some(disk.bytes().len() as u64));
    let mut refused = 0;
    while store.has_unsaved() {
        let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
        refused += usize::from(store.finish_checkpoint(written).no_space.is_some());
        disk.limit(None);
    }
    assert_eq!(refused, 1, "the disk had room, or has none now");
    while store.is_defragmenting() {
        checkpoint(&mut store);
    }
    let sizes = store.sizes();
    assert!((sizes.file - sizes.in_use) * 8 < full, "{full} bytes became {sizes:?}");
    revd_engine::check::check(store.db().unwrap()).unwrap();
}
