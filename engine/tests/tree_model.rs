//! Random transactions against `BTreeMap`, on tiny pages, with a whole-file check after each
//! commit.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::SimDisk;
use revd_engine::meta::Table;
use revd_engine::random::Random;
use revd_engine::snapshot::Snapshot;

type Twin = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

fn read_all(snapshot: &Snapshot, table: Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut cursor = snapshot.cursor(table);
    cursor.seek(&[]).unwrap();
    let mut all = BTreeMap::new();
    while let Some((key, value)) = cursor.next().unwrap() {
        assert!(all.insert(key.to_vec(), value.to_vec()).is_none(), "a key twice");
    }
    assert_eq!(all.len() as u64, snapshot.len(table));
    all
}

fn assert_equal(snapshot: &Snapshot, twin: &Twin) {
    for (table, twin) in twin.iter().enumerate() {
        assert_eq!(&read_all(snapshot, Table(u8::try_from(table).unwrap())), twin, "table {table}");
    }
}

fn open(disk: &SimDisk) -> Db {
    Db::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 256 }).unwrap()
}

fn change(db: &mut Db, twin: &mut Twin, random: &mut Random) {
    let mut txn = db.begin().unwrap();
    let deleting = random.below(3) == 0;
    for _ in 0..random.below(60) {
        let table = random.below(2);
        let key = format!("{:0width$}", random.below(400), width = 3 + usize::try_from(table).unwrap() * 20);
        let map = &mut twin[usize::try_from(table).unwrap()];
        let table = Table(u8::try_from(table).unwrap());
        if random.below(4) == 0 || (deleting && random.below(4) != 0) {
            assert_eq!(txn.remove(table, key.as_bytes()).unwrap(), map.remove(key.as_bytes()).is_some());
        } else {
            let len = [0, 5, 20, 32, 33, 300, 2000][usize::try_from(random.below(7)).unwrap()];
            let value = vec![u8::try_from(random.below(256)).unwrap(); len];
            assert_eq!(txn.put(table, key.as_bytes(), &value).unwrap(), !map.contains_key(key.as_bytes()));
            map.insert(key.into_bytes(), value);
        }
    }
    txn.commit().unwrap();
}

#[test]
fn random_transactions_equal_a_btreemap_and_old_snapshots_stay() {
    for seed in 1..=6 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new();
        let mut db = open(&disk);
        let mut twin = Twin::default();
        let mut held: Vec<(Snapshot, Twin)> = Vec::new();
        for round in 0..150 {
            if random.below(10) == 0 {
                let (mut dropped, mut scratch) = (db.begin().unwrap(), Random::new(round + 1));
                for _ in 0..10 {
                    let key = scratch.below(400).to_string();
                    dropped.put(Table(0), key.as_bytes(), &[7; 500]).unwrap();
                }
            } else {
                change(&mut db, &mut twin, &mut random);
            }
            check(&db).unwrap();
            assert_equal(&db.snapshot(), &twin);
            if random.below(5) == 0 {
                held.push((db.snapshot(), twin.clone()));
            }
            if held.len() > 4 {
                let (snapshot, twin) = held.remove(usize::try_from(random.below(4)).unwrap());
                assert_equal(&snapshot, &twin);
            }
            if random.below(12) == 0 {
                held.clear();
                drop(db);
                db = open(&disk);
                check(&db).unwrap();
            }
        }
    }
}

#[test]
fn space_is_reused_and_not_grown_by_churn() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    let mut size = 0;
    for round in 0..200_u32 {
        let mut txn = db.begin().unwrap();
        for key in 0..50_u32 {
            txn.put(Table(0), &key.to_be_bytes(), &[u8::try_from(round % 256).unwrap(); 100]).unwrap();
        }
        txn.commit().unwrap();
        if round == 20 {
            size = db.sizes().in_use;
        }
    }
    check(&db).unwrap();
    assert!(db.sizes().in_use <= size * 2, "{size} bytes grew to {}", db.sizes().in_use);
    assert!(db.sizes().file <= 2 * 1024 * 1024, "the file has {} bytes", db.sizes().file);
}

#[test]
fn deleting_everything_gives_all_pages_back() {
    let disk = SimDisk::new();
    let mut db = open(&disk);
    for from in [0_u32, 500] {
        let mut txn = db.begin().unwrap();
        for key in from..from + 500 {
            txn.put(Table(3), &key.to_be_bytes(), &[1; 40]).unwrap();
        }
        txn.commit().unwrap();
    }
    for from in (0..1000_u32).step_by(10) {
        let mut txn = db.begin().unwrap();
        for key in from..from + 10 {
            assert!(txn.remove(Table(3), &key.to_be_bytes()).unwrap());
        }
        txn.commit().unwrap();
        check(&db).unwrap();
    }
    assert_eq!(db.snapshot().len(Table(3)), 0);
    let report = check(&db).unwrap();
    assert!(report.reachable <= 4, "{report:?} after everything was deleted");
}
