//! Records that compactions clean, and those that they leave: a large store has dead records here
//! and there, and neither its file nor the work of a compaction grows for that.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::limits::COMPACT_DEAD_PART;
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{Applied, CheckpointKind, HashKv, Reader, Revision, Store, StoredRecord};
use revd_engine::random::Random;

const OPTIONS: DbOptions = DbOptions { page_bytes_if_new: 512 };
const KEYS: u64 = 3_000;

fn open(disk: &SimDisk) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    store.save_index_in_steps_of(100); // so few are small
    store.compact_as_large(100, 100);
    store
}

fn put(store: &mut Store, number: u64) {
    let mut txn = store.begin();
    txn.put(format!("key/{number:05}").as_bytes(), &[7; 40], 0);
    txn.commit();
    applied(store);
}

fn applied(store: &mut Store) {
    let index = store.applied().index + 1;
    store.set_applied(Applied { index, term: 1 });
}

fn save(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        store.finish_checkpoint(checkpoint.write().unwrap());
    }
    while store.forget_compacted(1_000) {}
}

fn load(store: &mut Store) {
    for number in 0..KEYS {
        put(store, number * 7 % KEYS);
        if number % 100 == 0 {
            save(store);
        }
    }
    save(store);
}

/// Puts, and a compaction of what was before them beside them.
fn round(store: &mut Store, random: &mut Random, puts: u64) {
    store.compact(store.revision()).unwrap();
    applied(store);
    for number in 0..puts {
        put(store, random.below(KEYS));
        if number % 20 == 0 {
            save(store);
        }
    }
    while store.compaction_pending() {
        save(store);
    }
}

fn records(store: &mut Store) -> u64 {
    let (view, mut count) = (store.view(), 0);
    let each = view.reader().each_record_after(Revision::default(), |_, _| {
        count += 1;
        Ok(true)
    });
    each.unwrap();
    count
}

fn written(disk: &SimDisk, from: usize) -> usize {
    let bytes = |call: &Recorded| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 };
    disk.recorded()[from..].iter().map(bytes).sum()
}

fn hash(store: &mut Store) -> u32 {
    let mut hash = HashKv::new(store.view(), 0).unwrap();
    loop {
        if let Some(hashed) = hash.step(1_000).unwrap() {
            return hashed.hash;
        }
    }
}

/// Keys are overwritten uniformly, and what was overwritten is compacted: the file grows to some
/// size and no further, although few records go with each compaction; a restart changes nothing.
#[test]
fn a_store_that_is_overwritten_evenly_does_not_grow() {
    let disk = SimDisk::new();
    let (mut store, mut random) = (open(&disk), Random::new(3));
    load(&mut store);
    let (mut sizes, mut most_dead) = (Vec::new(), 0);
    let from = disk.recorded().len();
    for number in 0..24 {
        if number == 12 {
            drop(store);
            store = open(&disk);
        }
        round(&mut store, &mut random, KEYS / 5);
        sizes.push(store.sizes().in_use);
        // A compaction is one round behind.
        let dead = records(&mut store) - KEYS - KEYS / 5;
        most_dead = most_dead.max(dead);
    }
    // Five records fill a page of these: some more are half full in the end.
    assert!(sizes.iter().all(|size| *size <= sizes[2] * 6 / 5), "{sizes:?}");
    assert!(sizes[12..].iter().all(|size| *size <= sizes[11] * 21 / 20), "{sizes:?}");
    // Nothing dead would mean that each compaction wrote all leaves.
    let may_be_dead = (KEYS + KEYS / 5) / (COMPACT_DEAD_PART - 1) + KEYS / 5;
    assert!(most_dead > KEYS / 8 && most_dead <= may_be_dead, "{most_dead} dead records");
    let (puts, bytes) = (24 * KEYS / 5, written(&disk, from) as u64);
    assert!(bytes / puts < 1_500, "{} bytes for each put", bytes / puts);
    check(store.db().unwrap()).unwrap();
    verify(&store).unwrap();
}

/// Records that are dead lie at any distance from those of keys that never change: none of them
/// stays for good.
#[test]
fn records_beside_keys_that_never_change_go_too() {
    const CHANGING: u64 = 30;
    let mut store = open(&SimDisk::new());
    (0..300).for_each(|number| put(&mut store, number));
    for number in 0..16_000 {
        put(&mut store, number % CHANGING);
        if number % 400 == 0 {
            store.compact(store.revision()).unwrap();
            applied(&mut store);
        }
        if number % 20 == 0 {
            save(&mut store);
        }
    }
    while store.compaction_pending() {
        save(&mut store);
    }
    let all = records(&mut store);
    assert!(all < 300 + 400 + 300 / (COMPACT_DEAD_PART - 1) + 300, "{all} records of 300 keys");
    verify(&store).unwrap();
}

/// However many records each checkpoint brings: a compaction that removes fewer with each than they
/// make dead never ends, and the file grows for ever.
#[test]
fn a_compaction_keeps_up_with_checkpoints_that_bring_many_records() {
    const MANY: u64 = 16_000; // more than a step removes of those that bring few
    let mut store = open(&SimDisk::new());
    let mut most = [0; 2];
    for round in 0..24 {
        for batch in 0..MANY / 1_000 {
            let mut txn = store.begin();
            let keys = (0..1_000).map(|number| format!("key/{:05}", batch * 1_000 + number));
            for key in keys {
                txn.put(key.as_bytes(), &[7; 40], 0);
            }
            txn.commit();
            applied(&mut store);
        }
        store.compact(store.revision()).unwrap();
        applied(&mut store);
        save(&mut store);
        let half = &mut most[round / 12];
        *half = records(&mut store).max(*half);
    }
    assert!(most[1] <= most[0], "{most:?} records in the first rounds and the later ones");
}

/// One who waits for the space has all of it freed, also what earlier compactions have left, and
/// also behind a restart; and so has a defragmentation.
#[test]
fn whoever_waits_for_the_space_has_all_of_it_freed() {
    for waiter in 0..4 {
        let disk = SimDisk::new();
        let (mut store, mut random) = (open(&disk), Random::new(4));
        load(&mut store);
        for _ in 0..3 {
            round(&mut store, &mut random, KEYS / 10);
        }
        assert!(records(&mut store) > KEYS + KEYS / 5, "compactions have left nothing");
        let before = hash(&mut store);
        if waiter % 2 == 1 {
            drop(store);
            store = open(&disk);
        }
        match waiter / 2 {
            0 => {
                store.compact(store.revision()).unwrap();
                applied(&mut store);
                store.free_all_compacted();
            }
            _ => {
                store.compact(store.revision()).unwrap();
                applied(&mut store);
                while store.compaction_pending() {
                    save(&mut store);
                }
                assert!(records(&mut store) > KEYS + KEYS / 10);
                store.defragment().unwrap();
                assert!(store.is_defragmenting());
            }
        }
        while store.has_unsaved() || store.compaction_pending() || store.is_defragmenting() {
            save(&mut store);
        }
        assert_eq!(records(&mut store), KEYS, "waiter {waiter}");
        assert!(store.sizes().in_use < KEYS * 180, "{:?}", store.sizes());
        verify(&store).unwrap();
        let same = hash(&mut store);
        assert_eq!(hash(&mut open(&disk)), same);
        assert!(before != same, "the compaction is at another revision");
    }
}

/// Where all that is overwritten is young, the old part of the file is not touched.
#[test]
fn a_compaction_passes_over_what_has_nothing_to_drop() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    load(&mut store);
    let compact = |store: &mut Store| {
        store.compact(store.revision()).unwrap();
        store.free_all_compacted();
        applied(store);
        while store.compaction_pending() {
            save(store);
        }
    };
    let put_some = |store: &mut Store| (0..200).for_each(|number| put(store, number));
    put_some(&mut store);
    compact(&mut store);
    (0..10).for_each(|_| put_some(&mut store));
    save(&mut store);
    assert_eq!(records(&mut store), KEYS + 2_000);
    let from = disk.recorded().len();
    compact(&mut store);
    assert_eq!(records(&mut store), KEYS);
    let (whole, bytes) = (store.sizes().in_use, written(&disk, from) as u64);
    assert!(bytes < whole / 4, "{bytes} bytes in a store of {whole}");
}

/// A kept record whose value lies elsewhere costs its cell only: the value stays where it is.
#[test]
fn records_with_long_values_are_looked_at_by_the_thousand() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let put_all = |store: &mut Store, keys: std::ops::Range<u64>| {
        let mut txn = store.begin();
        for key in keys {
            txn.put(&key.to_be_bytes(), &[7; 600], 0);
        }
        txn.commit();
        applied(store);
    };
    put_all(&mut store, 0..10_000);
    put_all(&mut store, 0..20);
    save(&mut store);
    store.compact(store.revision()).unwrap();
    applied(&mut store);
    let mut steps = 0;
    while store.compaction_pending() {
        save(&mut store);
        steps += 1;
    }
    let (left, may_look_kept) = (records(&mut store) - 10_000, 6);
    assert!(left < may_look_kept && steps == 1, "{left} dead records are left by {steps} steps");
}

/// Compactions of which all space is wanted come one after the other: a defragmentation waits for
/// none that was asked for after it.
#[test]
fn a_defragmentation_begins_although_compactions_go_on() {
    let disk = SimDisk::new();
    let (mut store, mut random) = (open(&disk), Random::new(5));
    load(&mut store);
    (0..3).for_each(|_| round(&mut store, &mut random, KEYS / 10));
    let before = records(&mut store);
    let mut compact = |store: &mut Store| {
        put(store, random.below(KEYS));
        store.compact(store.revision()).unwrap();
        store.free_all_compacted();
        applied(store);
    };
    compact(&mut store);
    store.defragment().unwrap();
    let mut steps = 0;
    while store.is_defragmenting() {
        compact(&mut store);
        save(&mut store);
        assert!(store.compaction_pending());
        steps += 1;
        assert!(steps < 300, "the defragmentation waits");
    }
    let after = records(&mut store);
    assert!(after < KEYS + 10 && before > KEYS + KEYS / 10, "{before} records, {after} behind it");
    verify(&store).unwrap();
}

/// A watcher that is behind the compaction goes on while all is there that it needs: the records
/// behind its revision, and, for events with previous values, what was before each of them. The
/// index forgets that before the first record is gone: by and by, and with changes of the keys.
#[test]
fn what_is_whole_behind_a_revision_has_what_was_before_it_too() {
    for versions in [2, 3] {
        let disk = SimDisk::new();
        let mut store = open(&disk);
        let put_100 = |store: &mut Store, number: u64| {
            let mut txn = store.begin();
            for key in 0..100 {
                txn.put(&(number * 100 + key).to_be_bytes(), b"", 0);
            }
            txn.commit();
            applied(store);
        };
        (0..600).for_each(|number| put_100(&mut store, number % (600 / versions)));
        save(&mut store);
        put_100(&mut store, 599); // not in the tree yet: the pass waits for it
        let mut all = records(&mut store);
        store.compact(store.revision()).unwrap();
        applied(&mut store);
        let (mut whole, mut forgotten, mut round) = (0, 0, 0);
        while store.compaction_pending() {
            let view = store.view();
            let reader = view.reader();
            let whole_after = |after: &i64| reader.is_whole_after(*after);
            for after in [2, 200, 301, 400].into_iter().filter(whole_after) {
                whole += 1;
                has_what_was_before(&reader, after);
            }
            forgotten += usize::from(!reader.is_whole_after(2) && records(&mut store) == all);
            let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
            store.finish_checkpoint(checkpoint.write().unwrap());
            store.forget_compacted(5_000);
            // Those of which nothing is gone yet are changed again.
            put_100(&mut store, round);
            (round, all) = (round + 1, all + 100);
        }
        assert!(
            whole >= 4 && (forgotten > 0 || versions == 2),
            "{versions} versions: {whole} times whole, {forgotten} times forgotten before it was gone"
        );
        verify(&store).unwrap();
    }
}

fn has_what_was_before(reader: &Reader<'_>, after: i64) {
    let each = reader.each_record_after(Revision { main: after, sub: i64::MAX }, |key, record| {
        let record = StoredRecord::parse(record).unwrap();
        let before = reader.get(record.key, key.revision.main - 1);
        let version = before.map_or(0, |before| before.version);
        assert_eq!(version + 1, record.stamp.version, "{key:?} behind {after}");
        Ok(true)
    });
    each.unwrap();
}
