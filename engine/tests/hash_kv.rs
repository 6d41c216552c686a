//! HashKV of revisions that were compacted.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::limits::COMPACT_BYTES_PER_STEP;
use revd_engine::mvcc::{Applied, CheckpointKind, HashKv, KeyRange, Store};

enum Do {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteAll,
    Compact(i64),
}

fn open(disk: &SimDisk) -> Store {
    Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
}

fn apply(store: &mut Store, what: Do, index: u64) {
    match what {
        Do::Compact(at) => store.compact(at).unwrap(),
        Do::Put(key, value) => {
            let mut txn = store.begin();
            txn.put(&key, &value, 0);
            txn.commit();
        }
        Do::Delete(key) => {
            let mut txn = store.begin();
            txn.delete_range(KeyRange::One(&key));
            txn.commit();
        }
        Do::DeleteAll => {
            let mut txn = store.begin();
            txn.delete_range(KeyRange::ALL);
            txn.commit();
        }
    }
    store.set_applied(Applied { index, term: 1 });
}

fn checkpoint(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
}

fn hash(store: &mut Store, at: i64) -> revd_engine::Result<revd_engine::mvcc::Hashed> {
    let mut hash = HashKv::new(store.view(), at)?;
    loop {
        if let Some(hashed) = hash.step(100)? {
            return Ok(hashed);
        }
    }
}

/// Also one of many steps, with writes in between, and where the compaction leaves nothing but a
/// tombstone of its revision.
#[test]
fn hash_kv_of_a_compaction_is_what_it_was_before() {
    let mut store = open(&SimDisk::new());
    let mut index = 0;
    let mut write = |store: &mut Store, what: Do| {
        index += 1;
        apply(store, what, index);
    };
    let key = |number: i64| format!("key/{number:04}").into_bytes();
    let mut before = Vec::new();
    for round in 0..13_i64 {
        // More than a step of a compaction in one round, and few in the others.
        let writes = if round == 2 { 25_000 } else { 40 };
        for number in 0..writes {
            write(&mut store, Do::Put(key(number % 3_000), round.to_be_bytes().to_vec()));
        }
        write(&mut store, Do::Delete(key(5)));
        let at = store.revision();
        before.push(hash(&mut store, at).unwrap());
        write(&mut store, Do::Compact(at));
        let mut steps = 0;
        while store.compaction_pending() {
            write(&mut store, Do::Put(key(7), vec![1]));
            checkpoint(&mut store);
            while store.forget_compacted(100) {}
            steps += 1;
        }
        assert!(round != 2 || steps > 2, "{steps} steps");
        let anew = hash(&mut store, 0).unwrap();
        assert_eq!((anew.revision, anew.compact_revision), (store.revision(), at));
    }
    // The ten newest are kept, those of older compactions are gone.
    for (round, before) in before.iter().enumerate() {
        match hash(&mut store, before.revision) {
            Ok(hashed) => assert!(round >= 3 && hashed == *before, "{round}: {hashed:?}, not {before:?}"),
            Err(error) => assert!(round < 3, "{round}: {error}"),
        }
    }
    assert!(matches!(hash(&mut store, before[12].revision - 1), Err(revd_engine::Error::Compacted { .. })));
}

/// One at the newest revision after every step of the one before: each that runs comes to its end,
/// and the hash of the first is there.
#[test]
fn compactions_end_although_others_are_asked_for_meanwhile() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let mut index = 0;
    let mut write = |store: &mut Store, what: Do| {
        index += 1;
        apply(store, what, index);
    };
    let key = |number: i64| format!("key/{number:05}").into_bytes();
    for number in 0..30_000 {
        write(&mut store, Do::Put(key(number % 100), vec![1]));
    }
    let first = store.revision();
    let before = hash(&mut store, first).unwrap();
    write(&mut store, Do::Compact(first));
    let (mut ends, mut compacted) = (Vec::new(), -1);
    for step in 0..12 {
        write(&mut store, Do::Delete(key(step)));
        let newest = store.revision();
        write(&mut store, Do::Compact(newest));
        let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
        let durable = store.finish_checkpoint(checkpoint.write().unwrap());
        while store.forget_compacted(1_000) {}
        assert!(durable.compaction_pending && durable.compacted < newest);
        if durable.compacted > compacted {
            compacted = durable.compacted;
            ends.push((step, compacted));
        }
    }
    assert!(ends.len() > 3 && ends[0] == (3, first), "{ends:?}");
    assert_eq!(hash(&mut store, first).unwrap(), before);
    // A restart goes on with the newest.
    let newest = store.compact_revision();
    drop(store);
    let mut store = open(&disk);
    while store.compaction_pending() {
        checkpoint(&mut store);
    }
    revd_engine::mvcc::verify::verify(&store).unwrap();
    let mut records = 0;
    let view = store.view();
    let count = |_, _: &[u8]| {
        records += 1;
        Ok(true)
    };
    view.reader().each_record_after(revd_engine::mvcc::Revision::default(), count).unwrap();
    assert_eq!(records, 88 + 1, "a record for each key, and the tombstone at {newest}");
}

#[test]
fn a_compaction_that_a_restart_interrupts_leaves_no_hash() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    for index in 1..=25_000 {
        apply(&mut store, Do::Put(format!("{}", index % 100).into_bytes(), vec![]), index);
    }
    let at = store.revision();
    let before = hash(&mut store, at).unwrap();
    apply(&mut store, Do::Compact(at), 25_001);
    for _ in 0..2 {
        checkpoint(&mut store);
    }
    assert!(store.compaction_pending());
    let mut store = open(&disk);
    while store.compaction_pending() {
        checkpoint(&mut store);
    }
    let after = hash(&mut store, at).unwrap();
    assert_eq!((before.compact_revision, after.compact_revision), (-1, at));
    assert_ne!(before.hash, after.hash);
}

/// Puts records of which a step of a compaction looks at a part; how many.
fn put_long(store: &mut Store) -> u64 {
    let mut value = vec![7; 256 * 1024];
    let count = u64::try_from(2 * COMPACT_BYTES_PER_STEP / value.len()).unwrap() + 1;
    let mut txn = store.begin();
    for number in 0..count {
        value[..8].copy_from_slice(&number.to_be_bytes());
        txn.put(&number.to_be_bytes(), &value, 0);
    }
    txn.commit();
    // The records of its very revision are looked at when a compaction is asked for.
    apply(store, Do::Put(vec![b'k'], vec![]), 1);
    let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
    store.finish_checkpoint(written);
    count
}

/// The hash needs whole records, also large ones of which nothing is dropped, and a compaction
/// without a hash their keys: a step is bounded by their bytes.
#[test]
fn a_step_of_a_compaction_hashes_bounded_bytes() {
    for has_hash in [true, false] {
        let mut store = open(&SimDisk::new());
        if !has_hash {
            store.compact_as_large(100, 100);
        }
        put_long(&mut store);
        let at = store.revision();
        let before = hash(&mut store, at).unwrap();
        apply(&mut store, Do::Compact(at), 2);
        let mut steps = 0;
        while store.compaction_pending() {
            checkpoint(&mut store);
            steps += 1;
        }
        assert!(steps >= 3, "{steps} steps");
        let after = hash(&mut store, at).unwrap();
        assert_eq!((after.hash, after.compact_revision == -1), (before.hash, has_hash));
    }
}

/// Behind a start the records are counted first. None is read for that: a damaged one is found when
/// the hash comes to it.
#[test]
fn a_step_of_a_compaction_behind_a_start_reads_bounded_bytes() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let number = put_long(&mut store) * 3 / 4;
    drop(store);
    let sought = [&number.to_be_bytes()[..], &[7; 8]].concat();
    let mut bytes = disk.bytes();
    let at = bytes.windows(sought.len()).position(|window| window == sought).unwrap();
    bytes[at + 100_000] ^= 1;
    let mut store = open(&SimDisk::from_bytes(bytes));
    let at = store.revision();
    apply(&mut store, Do::Compact(at), 2);
    checkpoint(&mut store);
    assert!(store.compaction_pending());
    let second = store.checkpoint(CheckpointKind::Auto).unwrap().write();
    assert!(matches!(second, Err(revd_engine::Error::Corrupt { .. })), "{second:?}");
}

/// Keeps the hash of each compaction that a member knows, and asserts that all know the same;
/// counts those that are compared.
fn compare_compactions(known: &mut BTreeMap<i64, (usize, u32)>, member: usize, store: &mut Store) -> usize {
    let mut compared = 0;
    for hashed in store.view().compaction_hashes() {
        let (first, hash) = *known.entry(hashed.revision).or_insert((member, hashed.hash));
        let at = hashed.revision;
        assert_eq!(
            hashed.hash, hash,
            "members {member} and {first} have other hashes of the compaction at {at}"
        );
        compared += usize::from(first != member);
    }
    compared
}

/// Members save their indexes at other times, leave other dead records, and restart: what
/// compactions have left in their files differs, and their hashes do not.
#[test]
fn members_that_differ_in_what_they_have_saved_have_one_hash() {
    const STEPS: [u64; 5] = [u64::MAX, 7, 40, 300, u64::MAX];
    /// Records of which all dead ones go, and of which hashes are computed.
    const LARGE: [(u64, u64); 5] = [(u64::MAX, u64::MAX), (7, u64::MAX), (40, 40), (100, 600), (10, 500)];
    let disks: Vec<SimDisk> = STEPS.iter().map(|_| SimDisk::new()).collect();
    let open = |member: usize| {
        let mut store = open(&disks[member]);
        if STEPS[member] < u64::MAX {
            store.save_index_in_steps_of(STEPS[member]);
        }
        let (small, hashed_max) = LARGE[member];
        store.compact_as_large(small, hashed_max);
        store
    };
    let mut members: Vec<Store> = (0..STEPS.len()).map(open).collect();
    let mut random = revd_engine::random::Random::new(18);
    let long = |number: u64| format!("{number}{}", "x".repeat(100)).into_bytes();
    let (mut compared, mut differences) = (0, 0);
    let (mut compactions, mut compactions_compared) = (BTreeMap::new(), 0);
    for index in 1..2_500_u64 {
        let number = random.below(400);
        let key = if number.is_multiple_of(10) { long(number) } else { number.to_string().into_bytes() };
        let drawn = (random.below(100), random.below(20), random.below(200));
        for store in &mut members {
            let what = match drawn {
                (_, _, 0) => Do::DeleteAll,
                (0, back, _) => {
                    let at = store.revision() - i64::try_from(back / 3).unwrap();
                    if at > store.compact_revision() { Do::Compact(at) } else { Do::Delete(key.clone()) }
                }
                (1..30, ..) => Do::Delete(key.clone()),
                _ => Do::Put(key.clone(), index.to_be_bytes().to_vec()),
            };
            apply(store, what, index);
        }
        let member = usize::try_from(random.below(STEPS.len() as u64)).unwrap();
        match random.below(60) {
            // One that restarts loses nothing: its log is what it saves last.
            0 => {
                let written = members[member].checkpoint(CheckpointKind::Auto);
                if let Some(written) = written {
                    members[member].finish_checkpoint(written.write().unwrap());
                }
                members[member] = open(member);
            }
            1..20 => checkpoint(&mut members[member]),
            20..30 => drop(members[member].forget_compacted(5)),
            _ => {}
        }
        compactions_compared += compare_compactions(&mut compactions, member, &mut members[member]);
        if index % 50 == 0 {
            let compact = members[0].compact_revision();
            for at in [0, compact.max(1) + 1, (compact + members[0].revision()) / 2] {
                if at <= compact.max(1) && at > 0 || at > members[0].revision() {
                    continue;
                }
                let hashes: Vec<_> = members.iter_mut().map(|store| hash(store, at).unwrap()).collect();
                assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?} at {index}");
                compared += 1;
            }
            let states =
                members.iter().map(|store| store.db().unwrap().snapshot().len(revd_engine::meta::Table(0)));
            let states: BTreeSet<u64> = states.collect();
            differences += usize::from(states.len() > 1);
        }
    }
    assert!(compactions_compared > 50, "{compactions_compared} hashes of compactions compared");
    assert!(compared > 60 && differences > 20, "{compared} hashes compared, {differences} differed in rows");
}

/// A compaction that computes a hash comes behind one that has left dead records, and none of the
/// keys that they were of is left.
#[test]
fn a_compaction_does_not_hash_what_was_dead_before() {
    let mut known = BTreeMap::new();
    let mut compared = 0;
    for (member, small) in [u64::MAX, 10].into_iter().enumerate() {
        let mut store = open(&SimDisk::new());
        store.compact_as_large(small, u64::MAX);
        let mut index = 0;
        let mut write = |store: &mut Store, what: Do| {
            index += 1;
            apply(store, what, index);
        };
        for number in 0..1_000_i64 {
            let key = if number % 10 == 9 { number - 1 } else { number };
            write(&mut store, Do::Put(key.to_be_bytes().to_vec(), vec![1]));
        }
        // The second one begins behind the first, and computes no hash.
        for at in [2, store.revision()] {
            write(&mut store, Do::Compact(at));
        }
        while store.compaction_pending() {
            checkpoint(&mut store);
            while store.forget_compacted(1_000) {}
        }
        let records = store.db().unwrap().snapshot().len(revd_engine::meta::Table(0));
        assert_eq!(records > 900, small == 10, "{records} records");
        write(&mut store, Do::DeleteAll);
        write(&mut store, Do::Put(b"later".to_vec(), vec![1]));
        let at = store.revision() - 1;
        write(&mut store, Do::Compact(at));
        while store.compaction_pending() {
            checkpoint(&mut store);
            while store.forget_compacted(1_000) {}
        }
        compared += compare_compactions(&mut known, member, &mut store);
    }
    assert!(compared > 0, "{known:?}");
}
