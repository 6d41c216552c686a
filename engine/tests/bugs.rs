//! Bugs that other copy-on-write engines had, one test each; the numbers are those of the project's
//! list of known bugs.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::meta::Table;
use revd_engine::random::Random;

const PAGE: u32 = 512;
const TABLE: Table = Table(0);

fn open(disk: &SimDisk) -> Db {
    Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: PAGE }).unwrap()
}

fn value(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.byte()).collect()
}

/// bbolt 823: pages an aborted transaction had taken stayed taken.
#[test]
fn bug_029_an_aborted_transaction_gives_its_pages_back() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut random = Random::new(29);
    for round in 0..200_u64 {
        let before = db.sizes();
        let mut txn = db.begin().unwrap();
        for _ in 0..5 {
            let key = format!("key{}", random.below(50));
            let len = usize::try_from(random.below(3_000)).unwrap();
            txn.put(TABLE, key.as_bytes(), &value(&mut random, len)).unwrap();
        }
        if round.is_multiple_of(3) {
            drop(txn);
            assert_eq!(db.sizes().in_use, before.in_use);
        } else {
            txn.commit().unwrap();
        }
        check(&db).unwrap();
    }
}

/// bbolt 978: values of some sizes, and huge ones, could not be stored.
#[test]
fn bug_033_values_of_every_awkward_size() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut random = Random::new(33);
    let page = PAGE as usize;
    // Around what fits a leaf, around one and two pages with and without their headers, and beyond
    // etcd's limit.
    let borders = [0, page / 2 - 20, page - 24, page, 2 * page - 24, 2 * page, 1_572_864];
    let sizes: Vec<usize> = borders.iter().flat_map(|at| at.saturating_sub(2)..=at + 2).collect();
    let values: Vec<Vec<u8>> = sizes.iter().map(|len| value(&mut random, *len)).collect();
    for (number, value) in values.iter().enumerate() {
        let mut txn = db.begin().unwrap();
        txn.put(TABLE, format!("{number:04}").as_bytes(), value).unwrap();
        txn.commit().unwrap();
    }
    let db = open(&disk);
    check(&db).unwrap();
    let snapshot = db.snapshot();
    for (number, value) in values.iter().enumerate() {
        assert_eq!(snapshot.get(TABLE, format!("{number:04}").as_bytes()).unwrap(), Some(&value[..]));
    }
}

/// ReOpenLDAP 42, libmdbx 121: writing the list of free pages needed pages itself, until nothing
/// fitted any more.
#[test]
fn bug_036_filling_and_emptying_again_and_again_does_not_grow_the_file() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut random = Random::new(36);
    let mut lengths = Vec::new();
    for _ in 0..40 {
        for from in (0..300).step_by(30) {
            let mut txn = db.begin().unwrap();
            for key in from..from + 30 {
                let len = usize::try_from(random.below(1_500)).unwrap();
                txn.put(TABLE, format!("key{key:04}").as_bytes(), &value(&mut random, len)).unwrap();
            }
            txn.commit().unwrap();
        }
        for from in (0..300).step_by(100) {
            let mut txn = db.begin().unwrap();
            for key in from..from + 100 {
                assert!(txn.remove(TABLE, format!("key{key:04}").as_bytes()).unwrap());
            }
            txn.commit().unwrap();
        }
        check(&db).unwrap();
        lengths.push(db.sizes().file);
    }
    assert_eq!(db.snapshot().len(TABLE), 0);
    let (early, late) = (lengths[5], lengths[39]);
    assert!(late <= early + early / 4, "the file grew from {early} to {late} bytes");
}

/// redb 4.3: an iterator that had met an error went on behind it and skipped data.
#[test]
fn bug_039_a_cursor_that_met_damage_does_not_go_on() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut txn = db.begin().unwrap();
    for key in 0..500 {
        txn.put(TABLE, format!("key{key:04}").as_bytes(), b"0123456789").unwrap();
    }
    txn.commit().unwrap();
    let mut met_damage = 0;
    for page in 16..60 {
        disk.damage(|bytes| bytes[page * PAGE as usize + 100] ^= 1);
        let damaged = open(&SimDisk::from_bytes(disk.bytes()));
        disk.damage(|bytes| bytes[page * PAGE as usize + 100] ^= 1);
        let snapshot = damaged.snapshot();
        let mut cursor = snapshot.cursor(TABLE);
        let mut failed = cursor.seek(b"").is_err();
        let mut keys = 0;
        for _ in 0..600 {
            match cursor.next() {
                Ok(Some(_)) => {
                    assert!(!failed, "page {page}: it went on behind an error");
                    keys += 1;
                }
                Ok(None) => assert!(!failed && keys == 500, "page {page}: it ended early without an error"),
                Err(_) => failed = true,
            }
        }
        met_damage += u32::from(failed);
    }
    assert!(met_damage > 10, "{met_damage} pages mattered");
}

/// The outage of Roblox in 2021: after much was deleted, every small commit wrote a huge list of
/// free pages.
#[test]
fn bug_040_a_commit_after_a_great_deletion_is_small() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut random = Random::new(40);
    for from in (0..6_000).step_by(500) {
        let mut txn = db.begin().unwrap();
        for key in from..from + 500 {
            txn.put(TABLE, format!("key{key:05}").as_bytes(), &value(&mut random, 400)).unwrap();
        }
        txn.commit().unwrap();
    }
    let mut txn = db.begin().unwrap();
    for key in 0..5_990 {
        txn.remove(TABLE, format!("key{key:05}").as_bytes()).unwrap();
    }
    txn.commit().unwrap();
    for _ in 0..5 {
        let before = disk.recorded().len();
        let mut txn = db.begin().unwrap();
        txn.put(TABLE, b"one more", b"").unwrap();
        txn.commit().unwrap();
        let calls = disk.recorded();
        let written = calls[before..].iter().map(|call| match call {
            Recorded::Write { bytes, .. } => bytes.len(),
            _ => 0,
        });
        let written: usize = written.sum();
        assert!(written < 64 * PAGE as usize, "a commit of one key wrote {written} bytes");
    }
}

/// The content after some of a file's calls, on top of what was durable before: of those after the
/// last sync, `keep` says which sectors have reached the disk.
fn disk_after(
    mut bytes: Vec<u8>,
    calls: &[Recorded],
    synced: usize,
    keep: &mut dyn FnMut() -> bool,
) -> Vec<u8> {
    for (at, call) in calls.iter().enumerate() {
        match call {
            Recorded::SetLen(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            Recorded::Write { offset, bytes: new } => {
                let start = usize::try_from(*offset).unwrap();
                bytes.resize(bytes.len().max(start + new.len()), 0);
                for (sector, part) in new.chunks(512).enumerate() {
                    if at < synced || keep() {
                        bytes[start + sector * 512..][..part.len()].copy_from_slice(part);
                    }
                }
            }
            Recorded::Sync => {}
        }
    }
    bytes
}

fn last_sync(calls: &[Recorded]) -> usize {
    calls.iter().rposition(|call| *call == Recorded::Sync).map_or(0, |at| at + 1)
}

fn content(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = db.snapshot();
    let mut cursor = snapshot.cursor(TABLE);
    cursor.seek(b"").unwrap();
    let mut all = Vec::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        all.push((key.to_vec(), value.to_vec()));
    }
    all
}

fn change(db: &mut Db, random: &mut Random) {
    let mut txn = db.begin().unwrap();
    for _ in 0..6 {
        let key = format!("key{}", random.below(40));
        let len = usize::try_from(random.below(700)).unwrap();
        txn.put(TABLE, key.as_bytes(), &value(random, len)).unwrap();
    }
    txn.commit().unwrap();
}

/// fsyncgate: after a failed sync the kernel takes pages for clean that are not on the disk. A
/// process that finds them in the cache works on, and then the power goes.
#[test]
fn bug_025_what_the_cache_holds_after_a_failed_sync_is_made_durable_before_it_is_built_upon() {
    let mut random = Random::new(25);
    let first = SimDisk::new();
    let mut db = open(&first);
    let mut contents = vec![content(&db)];
    for _ in 0..12 {
        change(&mut db, &mut random);
        contents.push(content(&db));
    }
    let calls = first.recorded();
    let mut images = 0;
    for died in calls.len() - 20..=calls.len() {
        let calls = &calls[..died];
        // The last sync failed, or was never begun: all is in the cache, some of it on the disk,
        // and nothing is dirty.
        let synced = last_sync(&calls[..died - usize::from(calls.last() == Some(&Recorded::Sync))]);
        let cache = disk_after(Vec::new(), calls, died, &mut || true);
        for on_disk in 0..3 {
            let durable = disk_after(Vec::new(), calls, synced, &mut || match on_disk {
                0 => false,
                1 => true,
                _ => random.below(2) == 0,
            });
            let second = SimDisk::from_bytes(cache.clone());
            let mut db = open(&second);
            let mut contents = contents[..=usize::try_from(db.snapshot().txn()).unwrap()].to_vec();
            for _ in 0..3 {
                change(&mut db, &mut random);
                contents.push(content(&db));
            }
            let calls = second.recorded();
            for crashed in 0..=calls.len() {
                let calls = &calls[..crashed];
                for kept in 0..3 {
                    let mut keep = || kept == 1 || kept == 2 && random.below(2) == 0;
                    let bytes = disk_after(durable.clone(), calls, last_sync(calls), &mut keep);
                    let db = open(&SimDisk::from_bytes(bytes));
                    check(&db).unwrap_or_else(|error| panic!("died at {died}, crash at {crashed}: {error}"));
                    let txn = usize::try_from(db.snapshot().txn()).unwrap();
                    assert_eq!(content(&db), contents[txn], "died at {died}, crash at {crashed}");
                    images += 1;
                }
            }
        }
    }
    println!("{images} images");
}
