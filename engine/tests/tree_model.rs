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
use revd_engine::txn::WriteTxn;

type Twin = [BTreeMap<Vec<u8>, Vec<u8>>; 3];

/// The table whose leaves have once what all of their keys begin with.
const SHARING: Table = Table(2);

fn read_all(snapshot: &Snapshot, table: Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut cursor = snapshot.cursor(table);
    cursor.seek(&[]).unwrap();
    let mut all = BTreeMap::new();
    let mut next = || match table {
        SHARING => cursor.next_parts().unwrap().map(|(key, value)| (key.to_vec(), value)),
        _ => cursor.next().unwrap().map(|(key, value)| (key.to_vec(), value)),
    };
    while let Some((key, value)) = next() {
        assert_eq!(snapshot.get(table, &key).unwrap(), Some(value), "{}", key.escape_ascii());
        assert!(all.insert(key, value.to_vec()).is_none(), "a key twice");
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

/// How many keys a table can have.
const NUMBERS: u64 = 600;

/// The first table has keys of one length; in the second short ones lie between long ones, in the
/// third keys that begin alike, in several ways.
fn key(table: u64, number: u64) -> String {
    if table == 2 {
        let prefix = ["", "/pods/", "/pods/default/", "/registry/services/endpoints/", "/registry/"];
        let at = (number / 7 * 11 % 17) as usize % prefix.len();
        return format!("{}{number:03}", prefix[at]);
    }
    let width = if table == 1 && number.is_multiple_of(3) { 31 } else { 3 };
    format!("{:-<width$}", format!("{number:03}"))
}

/// Puts or removes neighbours: branches become full, empty or thin.
fn change_range(txn: &mut WriteTxn<'_>, twin: &mut Twin, random: &mut Random) {
    let (table, start, putting) = (random.below(3), random.below(NUMBERS), random.one_in(2));
    let map = &mut twin[usize::try_from(table).unwrap()];
    for number in start..NUMBERS.min(start + random.below(40)) {
        let key = key(table, number).into_bytes();
        let table = Table(u8::try_from(table).unwrap());
        if putting {
            let value = vec![7; 80];
            assert_eq!(txn.put(table, &key, &value).unwrap(), map.insert(key, value).is_none());
        } else {
            assert_eq!(txn.remove(table, &key).unwrap(), map.remove(&key).is_some());
        }
    }
}

fn change(db: &mut Db, twin: &mut Twin, random: &mut Random) {
    let mut txn = db.begin().unwrap();
    // A leaf stays one that shares beginnings whoever changes it.
    if !random.one_in(4) {
        txn.share_beginnings(SHARING);
    }
    let deleting = random.below(3) == 0;
    for _ in 0..random.below(8) {
        change_range(&mut txn, twin, random);
    }
    for _ in 0..random.below(20) {
        let table = random.below(3);
        let key = key(table, random.below(NUMBERS));
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
    for seed in 1..=10 {
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

/// Puts or removes keys with values so long that a leaf takes two of them, and commits.
fn change_keys(db: &mut Db, putting: bool, keys: &[String]) {
    let mut txn = db.begin().unwrap();
    for key in keys {
        let key = key.as_bytes();
        let changed = if putting {
            txn.put(Table(0), key, &vec![7; 112 - key.len()]).unwrap()
        } else {
            txn.remove(Table(0), key).unwrap()
        };
        assert!(changed, "{} is not there, or is there already", key.escape_ascii());
    }
    txn.commit().unwrap();
    check(db).unwrap();
}

/// A branch that has lost its first leaf begins with a key that may be shorter than the separator
/// above it. Joined with its left neighbour it would need room for the longer one.
#[test]
fn branches_that_do_not_fit_together_stay_as_they_are() {
    let mut db = open(&SimDisk::new());
    let long = |number: usize| format!("a{number:0>31}");
    let short = |number: usize| format!("b{}", char::from(b'A' + u8::try_from(number).unwrap()));
    // Five leaves fill the left branch; the sixth, with keys 10 and 11, begins the right one.
    change_keys(&mut db, true, &(0..12).map(long).collect::<Vec<_>>());
    change_keys(&mut db, true, &(0..12).map(short).collect::<Vec<_>>());
    change_keys(&mut db, false, &(10..12).map(long).collect::<Vec<_>>());
    // 13 keys of two bytes leave 6 bytes of the right branch free.
    change_keys(&mut db, true, &(12..26).map(short).collect::<Vec<_>>());
    // The left branch keeps one leaf.
    change_keys(&mut db, false, &(2..10).map(long).collect::<Vec<_>>());
    let left: Vec<_> = read_all(&db.snapshot(), Table(0)).into_keys().collect();
    let expected: Vec<_> = (0..2).map(long).chain((0..26).map(short)).map(String::into_bytes).collect();
    assert_eq!(left, expected);
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

/// Leaves of keys that begin alike take as many pages as their ends and values need, in whatever
/// order the keys come.
#[test]
fn what_keys_begin_with_is_there_once() {
    let key = |number: u32| format!("/registry/namespace/{number:05}");
    let in_order: Vec<u32> = (0..4_000).collect();
    let mut shuffled = in_order.clone();
    let mut random = Random::new(3);
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
    }
    for (name, numbers) in [("in order", &in_order), ("shuffled", &shuffled)] {
        let pages = [true, false].map(|is_sharing| {
            let mut db = open(&SimDisk::new());
            for some in numbers.chunks(100) {
                let mut txn = db.begin().unwrap();
                if is_sharing {
                    txn.share_beginnings(SHARING);
                }
                for number in some {
                    txn.put(SHARING, key(*number).as_bytes(), b"12345678").unwrap();
                }
                txn.commit().unwrap();
            }
            check(&db).unwrap().reachable
        });
        let [shared, whole] = pages;
        // 41 B a key without, 17 to 20 B with it.
        assert!(shared * 2 < whole + whole / 10, "{name}: {shared} pages, {whole} with whole keys");
    }
}

/// A leaf of many short cells, some of which become as long as can be, is divided where both parts
/// fit a page by what they take there: their whole keys say nothing of that.
#[test]
fn a_leaf_of_short_and_long_cells_is_divided_where_both_parts_fit() {
    // Two that a division by whole keys made too long.
    grow(512, 60, 20, 2, &[(0, 176), (1, 176)]);
    grow(8_192, 40, 202, 6, &[(0, 4_036), (1, 4_036)]);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let page_bytes: u32 = if random.one_in(3) { 8_192 } else { 512 };
        let most = (page_bytes as usize - 16) / 2 - 2;
        let same = usize::try_from(random.below(u64::from(page_bytes) / 8 - 4)).unwrap();
        let (len, tiny) = (u64::from(page_bytes) / 30 + random.below(40), random.below(8));
        let run = random.below(len);
        let longest = most - 6 - same - 4;
        let grown: Vec<_> = (0..random.below(30))
            .map(|_| {
                let at = if random.one_in(4) { random.below(len) } else { (run + random.below(4)) % len };
                let value = if random.one_in(4) { random.below(longest as u64 + 1) } else { longest as u64 };
                (at, usize::try_from(value).unwrap())
            })
            .collect();
        grow(page_bytes, same, len, usize::try_from(tiny).unwrap(), &grown);
    }
}

/// Puts so many keys that begin with so many bytes, with short values, and then longer ones to some
/// of them.
fn grow(page_bytes_if_new: u32, same: usize, len: u64, value: usize, grown: &[(u64, usize)]) {
    let mut db = Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new }).unwrap();
    let key = |number: u64| match u64::MAX - number {
        0 => format!("{}!", "k".repeat(same.saturating_sub(1))).into_bytes(),
        1 => b"a".to_vec(),
        _ => format!("{}{number:04}", "k".repeat(same)).into_bytes(),
    };
    let mut model = BTreeMap::new();
    let puts = (0..len).map(|number| (number, value)).collect::<Vec<_>>();
    // Two that come first, and share less or nothing with the others.
    let firsts = [(u64::MAX, value), (u64::MAX - 1, value)];
    for some in puts.chunks(50).chain(grown.chunks(3)).chain(firsts.chunks(1)) {
        let mut txn = db.begin().unwrap();
        txn.share_beginnings(SHARING);
        for (number, bytes) in some {
            txn.put(SHARING, &key(*number), &vec![7; *bytes]).unwrap();
            model.insert(key(*number), vec![7; *bytes]);
        }
        txn.commit().unwrap();
        check(&db).unwrap();
    }
    assert_eq!(read_all(&db.snapshot(), SHARING), model);
}
