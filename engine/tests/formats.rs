//! Tree files of all formats, written by commits of that time (`formats/write.sh` says how): this
//! version reads, changes and compacts them. All were made by one script, so all have the same
//! contents; the oldest commit has told them (`formats/contents`), and the others told the same.
//!
//! The name of a file is its format and its commit: the last one with formats 1 to 3, of format 4
//! the first one and one that leaves dead records, and one that writes as this version does.
//!
//! | file | holds |
//! |---|---|
//! | all | long keys, three of them with one CRC-32C; long values; a compaction under way |
//! | from 2 on | a free list that is a chain |
//! | from 3 on | ranges of the index that are saved up to different revisions |
//! | from 4 on | a row for each long key, rows of the older changes of a hot one |
//! | from the second of 4 on | dead records that a compaction has left |
//! | of 5 | leaves that have once what all of their keys begin with |

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "formats/contents.rs"]
mod contents;
#[path = "formats/script.rs"]
mod script;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::limits::GROW_BYTES_MIN;
use revd_engine::meta::{Meta, SLOT_OFFSETS, Table, first_page};
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{Store, StoreBuilder};

use contents::contents;
use script::{Knobs, Session};

const SCRIPT: &str = include_str!("formats/script");
const THEN: &str = include_str!("formats/then");
const CONTENTS: &str = include_str!("formats/contents");

const FILES: [&str; 7] =
    ["1-c53701c", "2-1e0a3a5", "3-f1e8dd6", "4-f50ae16", "4-5b34122", "5-2167f1c", "5-384890f"];
/// The one that this version would write.
const NEWEST: &str = FILES[6];

const KNOBS: Knobs = Knobs {
    steps: |store, keys| store.save_index_in_steps_of(keys),
    large: |store, records| store.compact_as_large(records, records),
};

fn frozen(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let mut bytes = std::fs::read(folder.join(name).with_extension("revd")).unwrap();
    bytes.resize(usize::try_from(GROW_BYTES_MIN).unwrap(), 0); // zeros at its end are left out
    bytes
}

fn open_copy(bytes: Vec<u8>, folder: &Path) -> Session {
    let path = folder.join("tree.revd");
    std::fs::write(&path, bytes).unwrap();
    Session::open(path, KNOBS)
}

fn open_in_memory(bytes: Vec<u8>) -> revd_engine::Result<Store> {
    Store::open(Arc::new(SimDisk::from_bytes(bytes)), DbOptions::default())
}

/// The file that the script becomes today.
fn written(folder: &Path) -> (Session, PathBuf) {
    let path = folder.join("new.revd");
    let mut session = Session::open(path.clone(), KNOBS);
    session.run(SCRIPT, &mut |_| {});
    (session, path)
}

fn newest_slot(bytes: &[u8]) -> Meta {
    let slots = SLOT_OFFSETS.map(|at| Meta::decode(&bytes[usize::try_from(at).unwrap()..]));
    slots.into_iter().flatten().max_by_key(|meta| meta.txn).unwrap()
}

fn assert_whole(store: &Store) {
    check(store.db().unwrap()).unwrap();
    verify(store).unwrap();
}

#[test]
fn files_of_all_formats_have_what_was_written() {
    for name in FILES {
        let folder = tempfile::tempdir().unwrap();
        let mut session = open_copy(frozen(name), folder.path());
        assert_whole(session.store());
        assert_eq!(contents(session.store()), CONTENTS, "{name}");
    }
}

/// Written to, compacted and defragmented, they cannot be told from a new one.
#[test]
fn files_of_all_formats_go_on_as_one_that_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    written(folder.path()).0.run(THEN, &mut |store| expected.push(contents(store)));
    assert_eq!(expected.len(), THEN.lines().filter(|line| *line == "reopen").count());
    // The first checkpoint goes on with chores of the file, or saves all of the index before.
    let all_at_once = THEN.replacen("\nsave\n", "\nsave all\n", 1);
    for (name, then) in FILES.iter().flat_map(|name| [(name, THEN), (name, &all_at_once)]) {
        let mut session = open_copy(frozen(name), folder.path());
        let mut seen = 0;
        session.run(then, &mut |store| {
            assert_whole(store);
            assert_eq!(contents(store), expected[seen], "{name}, when it is opened again, number {seen}");
            seen += 1;
        });
        let newest = newest_slot(&std::fs::read(folder.path().join("tree.revd")).unwrap());
        assert_eq!(newest.format, newest_slot(&frozen(NEWEST)).format, "{name}");
    }
}

/// Their states reach other members.
#[test]
fn files_of_all_formats_can_be_sent() {
    for name in FILES {
        let store = open_in_memory(frozen(name)).unwrap();
        let disk = SimDisk::new();
        let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
        let (mut stream, mut chunk) = (store.saved_state().unwrap().stream(), Vec::new());
        while stream.next_chunk(&mut chunk).unwrap() {
            builder.add(&chunk).unwrap();
        }
        builder.finish().unwrap();
        let mut copy = Store::open(Arc::new(disk), DbOptions::default()).unwrap();
        assert_whole(&copy);
        assert_eq!(contents(&mut copy), CONTENTS, "{name}");
    }
}

/// Each byte, for nothing that is written depends on clocks, threads or chance. A change of what is
/// written is either a mistake or meant: then its file joins the others, which stay.
#[test]
fn this_version_writes_the_newest_file() {
    let folder = tempfile::tempdir().unwrap();
    let (session, path) = written(folder.path());
    drop(session);
    let (new, old) = (std::fs::read(path).unwrap(), frozen(NEWEST));
    assert_eq!(new.len(), old.len());
    let differing = new.iter().zip(&old).position(|(new, old)| new != old);
    assert_eq!(differing, None, "the first byte that differs from {NEWEST}.revd");
}

/// So that a file which was made anew does not lose what it is there for.
#[test]
fn files_hold_what_their_formats_have_brought() {
    for name in FILES {
        let newest = newest_slot(&frozen(name));
        assert_eq!(name.split_once('-').unwrap().0, newest.format.to_string());
        let rows = |table: usize| newest.tables[table].len;
        let word = |at: usize| i64::from_le_bytes(newest.user[at..at + 8].try_into().unwrap());
        // The compaction was under way: at a record, or it has left dead ones.
        let [compact_revision, compacted, cursor] = [word(24), word(40), word(48)];
        let leaves_dead = FILES[4..].contains(&name);
        assert_eq!(leaves_dead, compacted == compact_revision, "{name}");
        assert_eq!(leaves_dead, cursor == 0, "{name}");
        let sharing_leaves = frozen(name).chunks(256).filter(|page| page.starts_with(&[6, 0])).count();
        assert_eq!(
            newest.format >= 5,
            sharing_leaves > 3,
            "{name}: {sharing_leaves} leaves share beginnings"
        );
        assert_eq!(newest.format >= 3, rows(4) > 1, "{name}: ranges of the index");
        assert_eq!(newest.format >= 4, rows(5) > 1, "{name}: rows of older changes");
        // Three of the long keys had one row before; a fourth one is not saved everywhere.
        assert_eq!(newest.format >= 4, rows(2) > 3, "{name}: rows of long keys");
        let is_chain = |at| Meta::decode(&frozen(name)[at..]).is_some_and(|meta| !meta.free_is_whole);
        assert_eq!(newest.format >= 2, is_chain(0) || is_chain(4096), "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut session = open_copy(frozen(NEWEST), folder.path());
    let records = |session: &mut Session| session.store().db().unwrap().snapshot().len(Table(0));
    let with_dead = records(&mut session);
    session.store().free_all_compacted();
    session.run("settle", &mut |_| {});
    assert!(records(&mut session) < with_dead, "none of {with_dead} records was dead");
}

/// A byte that is another one in any page which is not free is found, by the time the file is
/// checked.
#[test]
fn a_page_that_is_damaged_is_found() {
    for name in FILES {
        let bytes = frozen(name);
        let newest = newest_slot(&bytes);
        let unused = check(open_in_memory(bytes.clone()).unwrap().db().unwrap()).unwrap().unused;
        let is_found = |page: &u64| {
            let mut bytes = bytes.clone();
            bytes[usize::try_from(page * u64::from(newest.page_bytes)).unwrap()] ^= 0x40;
            open_in_memory(bytes).and_then(|store| check(store.db().unwrap()).map(drop)).is_err()
        };
        let pages = first_page(newest.page_bytes)..newest.pages;
        let missed = pages.filter(|page| !is_found(page)).count() as u64;
        assert_eq!(missed, unused, "{name}: damaged pages that nobody has found");
    }
}
