//! A damaged tree file: every answer is the right one or a named error with its place, never a
//! wrong one, never a panic.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Direction, KeyRange, Store};
use revd_engine::{Error, Result};

const PAGE: usize = 512;
/// The two meta slots lie below this.
const META_BYTES: usize = 8192;
const OPTIONS: DbOptions = DbOptions { page_bytes_if_new: 512 };

/// A file with several levels, long values, old revisions and free pages.
fn file() -> Vec<u8> {
    let disk = SimDisk::new();
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    for round in 0..30_u64 {
        let mut txn = store.begin();
        for key in 0..8 {
            let len = if key == 3 { 1_500 } else { 20 };
            txn.put(format!("key {}", (round * 3 + key) % 40).as_bytes(), &vec![b'v'; len], 0);
        }
        txn.commit();
        store.set_applied(Applied { index: round + 1, term: 1 });
        let checkpoint = store.checkpoint(CheckpointKind::WithIndex).unwrap();
        let written = checkpoint.write().unwrap();
        store.finish_checkpoint(written);
    }
    disk.bytes()
}

/// (revision, key, record)
type Answers = Vec<(i64, Vec<u8>, Vec<u8>)>;

/// Everything a store can be asked, at every revision.
fn read_all(store: &mut Store) -> Result<Answers> {
    let view = store.view();
    let reader = view.reader();
    let mut all = Vec::new();
    for at in 1..=reader.revision() {
        for (key, meta) in reader.scan(KeyRange::ALL, at, Direction::Forward) {
            all.push((at, key.to_vec(), reader.record(meta.modified)?.to_vec()));
        }
    }
    Ok(all)
}

fn open(bytes: Vec<u8>) -> Result<Store> {
    Store::open(Arc::new(SimDisk::from_bytes(bytes)), OPTIONS)
}

/// True if the damage was noticed; answers must be one of `truths`.
fn try_with(bytes: Vec<u8>, truths: &[&Answers], what: &str) -> bool {
    let mut store = match open(bytes) {
        Ok(store) => store,
        Err(Error::Corrupt(text)) => {
            assert!(text.contains("restore it from a snapshot"), "{text}");
            return true;
        }
        Err(other) => panic!("{what}: {other}"),
    };
    let checked = check(store.db().unwrap());
    match read_all(&mut store) {
        Ok(all) => {
            assert!(truths.iter().any(|truth| all == **truth), "{what}: a wrong answer");
            checked.is_err()
        }
        Err(Error::Corrupt(text)) => {
            assert!(text.contains("offset"), "{what}: {text} does not say where");
            assert!(checked.is_err(), "{what}: the check did not see it");
            true
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn flipped_zeroed_and_swapped_pages_are_found() {
    let good = file();
    let truth = read_all(&mut open(good.clone()).unwrap()).unwrap();
    assert!(truth.len() > 500);
    // A damaged meta slot looks like one whose writing was cut short: the state before counts then,
    // and the log has what is missing. 30 checkpoints: the newest is in slot 0.
    let mut without_newest = good.clone();
    without_newest[..PAGE].fill(0);
    let before = read_all(&mut open(without_newest).unwrap()).unwrap();
    assert!(before.len() < truth.len());
    let pages = good.len() / PAGE;
    let mut found = 0;
    for page in 0..pages {
        let at = page * PAGE;
        let truths: &[&Answers] = if at < META_BYTES { &[&truth, &before] } else { &[&truth] };
        let in_use = good[at..at + PAGE].iter().any(|byte| *byte != 0);
        for offset in [0, 2, 9, 17, 40, 200, 511] {
            let mut bad = good.clone();
            bad[at + offset] ^= 0x41;
            found += usize::from(try_with(bad, truths, &format!("page {page}, byte {offset} flipped")));
        }
        if in_use {
            let mut bad = good.clone();
            bad[at..at + PAGE].fill(0);
            found += usize::from(try_with(bad, truths, &format!("page {page} zeroed")));
            let other = (page + 7) % pages * PAGE;
            let mut bad = good.clone();
            bad.copy_within(other..other + PAGE, at);
            found += usize::from(try_with(bad, truths, &format!("page {page} replaced by another")));
        }
    }
    println!("{found} damages were found in {pages} pages");
    assert!(found > pages / 4, "the file is mostly free, nothing is shown");
}

#[test]
fn a_file_cut_short_is_found() {
    let good = file();
    let truth = read_all(&mut open(good.clone()).unwrap()).unwrap();
    for pages in (0..good.len() / PAGE).step_by(3) {
        let cut = good[..pages * PAGE].to_vec();
        match open(cut.clone()) {
            // An empty file is a new one: the server refuses it because there is a log.
            Ok(store) if pages == 0 => assert_eq!(store.revision(), 1),
            _ => drop(try_with(cut, &[&truth], &format!("cut to {pages} pages"))),
        }
    }
}
