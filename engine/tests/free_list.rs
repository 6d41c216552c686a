//! The list of free pages as a chain of changes: crashes at any write, formats, and what a commit
//! writes for it.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::meta::{Meta, SLOT_BYTES, SLOT_OFFSETS, Table};
use revd_engine::random::Random;
use revd_engine::{Error, Result};

const TABLE: Table = Table(0);
const PAGE: u32 = 256;
const KEYS: u64 = 1_500;

fn open(disk: &SimDisk) -> Result<Db> {
    Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: PAGE })
}

fn key(number: u64) -> String {
    format!("key {number:05}")
}

/// Puts keys anywhere: a commit frees pages all over the file.
fn change(db: &mut Db, random: &mut Random, keys: u64) {
    let mut txn = db.begin().unwrap();
    for _ in 0..keys {
        let value = vec![random.byte(); 90];
        txn.put(TABLE, key(random.below(KEYS)).as_bytes(), &value).unwrap();
    }
    txn.commit().unwrap();
}

/// A file with so many runs of free pages that a commit of a few keys writes changes.
fn scattered(disk: &SimDisk, random: &mut Random) -> Db {
    let mut db = open(disk).unwrap();
    let mut txn = db.begin().unwrap();
    for number in 0..KEYS {
        txn.put(TABLE, key(number).as_bytes(), &[0; 90]).unwrap();
    }
    txn.commit().unwrap();
    for _ in 0..40 {
        change(&mut db, random, 40);
    }
    db
}

fn content(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(TABLE);
    cursor.seek(b"").unwrap();
    std::iter::from_fn(|| cursor.next().unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()))).collect()
}

/// The slots that the calls have written.
fn slots(calls: &[Recorded]) -> impl Iterator<Item = Meta> {
    calls.iter().filter_map(|call| match call {
        Recorded::Write { offset, bytes } if SLOT_OFFSETS.contains(offset) => Meta::decode(bytes),
        _ => None,
    })
}

#[test]
fn a_crash_at_any_write_leaves_a_list_that_opens() {
    let mut random = Random::new(11);
    let disk = SimDisk::new();
    let mut db = scattered(&disk, &mut random);
    let begun = disk.recorded().len();
    let mut contents = vec![content(&db)];
    let first = db.snapshot().txn();
    for round in 0..30 {
        if round % 7 == 6 {
            // A transaction that is dropped; its long value has a place already.
            let mut txn = db.begin().unwrap();
            txn.put(TABLE, b"dropped", &[7; 700]).unwrap();
        }
        change(&mut db, &mut random, 1 + round % 3);
        contents.push(content(&db));
    }
    let calls = disk.recorded();
    let chained = slots(&calls[begun..]).filter(|meta| !meta.free_is_whole).count();
    assert!((15..29).contains(&chained), "{chained} of 30 commits wrote changes");
    for crashed in begun..=calls.len() {
        for kept in 0..3 {
            let image = SimDisk::image(&calls[..crashed], |_, _| kept == 1 || kept == 2 && random.one_in(2));
            let mut db = open(&SimDisk::from_bytes(image)).unwrap();
            let at = |db: &Db| usize::try_from(db.snapshot().txn() - first).unwrap();
            check(&db).unwrap_or_else(|error| panic!("crash at {crashed}, {kept}: {error}"));
            assert!(content(&db) == contents[at(&db)], "crash at {crashed}, {kept}");
            change(&mut db, &mut random, 2);
            check(&db).unwrap_or_else(|error| panic!("a commit after a crash at {crashed}, {kept}: {error}"));
        }
    }
}

#[test]
fn a_commit_writes_what_it_has_changed_of_the_list() {
    let mut random = Random::new(12);
    let disk = SimDisk::new();
    let mut db = scattered(&disk, &mut random);
    let begun = disk.recorded().len();
    let (commits, mut full) = (200, 0);
    for _ in 0..commits {
        change(&mut db, &mut random, 1);
        full = full.max(check(&db).unwrap().unused * 16);
    }
    let calls = disk.recorded();
    let whole = slots(&calls[begun..]).filter(|meta| meta.free_is_whole).count();
    let written: usize = calls[begun..]
        .iter()
        .map(|call| if let Recorded::Write { bytes, .. } = call { bytes.len() } else { 0 })
        .sum();
    // A key's commit writes a leaf, its branches and a part of the list.
    let each = written / commits;
    assert!(whole * 5 < commits && each < 12 * PAGE as usize, "{whole} full lists, {each} bytes a commit");
}

#[test]
fn a_file_without_a_chain_is_one_of_the_first_format() {
    let disk = SimDisk::new();
    let mut db = Db::open(Arc::new(disk.clone()), DbOptions::default()).unwrap();
    for _ in 0..100 {
        change(&mut db, &mut Random::new(15), 20);
    }
    assert!(slots(&disk.recorded()).all(|meta| meta.format == 1 && meta.free_is_whole));
    // Once it may have had one, no earlier revd may open it, whichever slot it would take.
    let disk = SimDisk::new();
    let mut db = scattered(&disk, &mut Random::new(13));
    for seed in 0..9 {
        change(&mut db, &mut Random::new(seed), 1);
    }
    let formats: Vec<u32> = slots(&disk.recorded()).map(|meta| meta.format).collect();
    assert!(formats.is_sorted() && formats.last() == Some(&2), "{formats:?}");
    assert!(slots(&disk.recorded()).all(|meta| meta.free_is_whole || meta.format == 2));
    assert!(slots(&disk.recorded()).any(|meta| !meta.free_is_whole), "no commit wrote changes");
}

#[test]
fn a_slot_of_a_later_format_is_not_passed_over() {
    let disk = SimDisk::new();
    drop(scattered(&disk, &mut Random::new(14)));
    for slot in SLOT_OFFSETS.map(|offset| usize::try_from(offset).unwrap()) {
        let mut bytes = disk.bytes();
        bytes[slot + 8..slot + 12].copy_from_slice(&6_u32.to_le_bytes());
        let crc = crc32fast::hash(&bytes[slot..slot + SLOT_BYTES - 4]);
        bytes[slot + SLOT_BYTES - 4..slot + SLOT_BYTES].copy_from_slice(&crc.to_le_bytes());
        let error = open(&SimDisk::from_bytes(bytes)).unwrap_err();
        assert!(matches!(error, Error::Newer { format: 6, known: 5 }), "{error}");
    }
}
