//! A tree file whose checksums are all right and whose content is not: no checksum finds that.
//! Every operation ends well or with a named error; an assertion is for mistakes of ours, not for
//! bytes.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::SimDisk;
use revd_engine::limits::VERSION_MAX;
use revd_engine::meta::{Meta, SLOT_BYTES, SLOT_OFFSETS, Table, TableRoot};
use revd_engine::mvcc::key_history::KeyHistory;
use revd_engine::mvcc::record::encode_tombstone;
use revd_engine::mvcc::revision::{RecordKey, RecordKind};
use revd_engine::mvcc::{Applied, CheckpointKind, Direction, KeyMeta, KeyRange, Revision, Store};
use revd_engine::page::{PageId, PageKind, PageRef, PageView, StoredValue, extent_content};
use revd_engine::random::Random;
use revd_engine::{Error, Result};

const PAGE: usize = 512;
const OPTIONS: DbOptions = DbOptions { page_bytes_if_new: 512 };

/// A file with several levels, long values and keys, old revisions, and so many free pages at its
/// front that a defragmentation has pages to move there.
fn file() -> Vec<u8> {
    let disk = SimDisk::new();
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    for round in 0..40_u64 {
        let mut txn = store.begin();
        if round == 0 {
            txn.put(b"replaced", &[b'v'; 100_000], 0);
        } else if round == 1 {
            txn.put(b"replaced", b"", 0);
        }
        for key in 0..8 {
            let len = if key == 3 { 1_500 } else { 20 };
            let name =
                format!("key {:0>width$}", (round * 3 + key) % 90, width = if key == 5 { 90 } else { 3 });
            txn.put(name.as_bytes(), &vec![b'v'; len], 0);
        }
        txn.commit();
        store.set_applied(Applied { index: round + 1, term: 1 });
        save(&mut store).unwrap();
    }
    store.compact(5).unwrap();
    while store.compaction_pending() || store.is_sweeping() {
        save(&mut store).unwrap();
    }
    disk.bytes()
}

fn save(store: &mut Store) -> Result<()> {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::WithIndex) {
        store.finish_checkpoint(checkpoint.write()?);
    }
    Ok(())
}

/// Gives every page that the newest state reaches the checksum of what it holds.
struct Sealer {
    bytes: Vec<u8>,
    reached: BTreeSet<u64>,
}

impl Sealer {
    fn newest(&self) -> (usize, Meta) {
        let slots = SLOT_OFFSETS.map(|offset| usize::try_from(offset).unwrap());
        let read = |at: usize| Some((at, Meta::decode(&self.bytes[at..at + SLOT_BYTES])?));
        slots.into_iter().filter_map(read).max_by_key(|(_, meta)| meta.txn).unwrap()
    }

    fn seal(&mut self) {
        let (at, mut meta) = self.newest();
        for table in &mut meta.tables {
            if let Some(root) = &mut table.root {
                root.crc = self.page(root.id);
            }
        }
        if let Some(free) = &mut meta.free {
            free.crc = self.free_list(*free, meta.free_is_whole);
        }
        self.bytes[at..at + SLOT_BYTES].copy_from_slice(&meta.encode());
    }

    /// Changes a byte of the newest meta slot, behind its head.
    fn forge_slot(&mut self, random: &mut Random) {
        let (at, _) = self.newest();
        let offset = 16 + usize::try_from(random.below(310)).unwrap();
        self.bytes[at + offset] = if random.one_in(2) { random.byte() } else { 0xff };
        let crc = crc32fast::hash(&self.bytes[at..at + SLOT_BYTES - 4]);
        self.bytes[at + SLOT_BYTES - 4..at + SLOT_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    /// The checksum of a page, after those of everything below it were set.
    fn page(&mut self, id: PageId) -> u32 {
        let Some(start) = usize::try_from(id.0).ok().and_then(|id| id.checked_mul(PAGE)) else { return 0 };
        if start + PAGE > self.bytes.len() {
            return 0;
        }
        if self.reached.insert(id.0) {
            for (at, crc) in self.references(start, id) {
                self.bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        crc32fast::hash(&self.bytes[start..start + PAGE])
    }

    /// Where the page keeps checksums, and those that it should keep.
    fn references(&mut self, start: usize, id: PageId) -> Vec<(usize, u32)> {
        let page = self.bytes[start..start + PAGE].to_vec();
        let Ok(view) = PageView::parse(&page, id) else { return Vec::new() };
        let mut found = Vec::new();
        for at in 0..view.len() {
            let Some(cell) = view.cell(at) else { continue };
            let place = start + cell.as_ptr() as usize - page.as_ptr() as usize;
            match view.kind() {
                PageKind::Branch => {
                    if let Some(branch) = view.branch_cell(at) {
                        found.push((place + 10, self.page(branch.child.id)));
                    }
                }
                _ => {
                    if let Some(leaf) = view.leaf_cell(at)
                        && let StoredValue::Extent { at: first, .. } = leaf.value
                    {
                        found.push((
                            place + 6 + leaf.key.parts()[1].len() + 8,
                            self.extent(PageKind::Value, first),
                        ));
                    }
                }
            }
        }
        found
    }

    /// The checksum of a part of the free list, after those of the parts before it were set.
    fn free_list(&mut self, at: PageRef, is_whole: bool) -> u32 {
        let head = usize::try_from(at.id.0).ok().and_then(|id| id.checked_mul(PAGE)?.checked_add(24));
        let head = head.filter(|head| !is_whole && head + 16 <= self.bytes.len());
        if let Some(head) = head
            && self.reached.insert(at.id.0)
        {
            let before = u64::from_le_bytes(self.bytes[head..head + 8].try_into().unwrap());
            let is_whole = self.bytes[head + 12..head + 16] == 1_u32.to_le_bytes();
            let crc = self.free_list(PageRef { id: PageId(before), crc: 0 }, is_whole);
            self.bytes[head + 8..head + 12].copy_from_slice(&crc.to_le_bytes());
        }
        self.extent(if is_whole { PageKind::FreeList } else { PageKind::FreeListChanges }, at)
    }

    fn extent(&mut self, kind: PageKind, at: PageRef) -> u32 {
        let start = usize::try_from(at.id.0).ok().and_then(|id| id.checked_mul(PAGE));
        let bytes = start.and_then(|start| self.bytes.get(start..)).unwrap_or_default();
        let sum = extent_content(bytes, kind, at.id).map(|(_, _, summed)| crc32fast::hash(summed));
        if sum.is_ok() {
            self.reached.insert(at.id.0);
        }
        sum.unwrap_or(0)
    }
}

/// Everything that reads and writes the pages of a store. Some seeds move pages before the check
/// that follows every commit has seen the file, some hold a View meanwhile.
fn exercise(bytes: Vec<u8>, seed: u64) -> Result<()> {
    let (holds_view, moves_at) = (seed.is_multiple_of(2), if seed % 4 < 2 { 0 } else { 5 });
    let disk = SimDisk::from_bytes(bytes);
    let mut store = Store::open(Arc::new(disk.clone()), OPTIONS)?;
    let view = store.view();
    let reader = view.reader();
    for (_, meta) in reader.scan(KeyRange::ALL, reader.revision(), Direction::Forward) {
        reader.record(meta.modified)?;
    }
    let view = holds_view.then_some(view);
    for round in 0..12_u64 {
        let mut txn = store.begin();
        for key in 0..12 {
            txn.put(format!("key {:0>3}", round * 15 + key).as_bytes(), &[b'w'; 60], 0);
        }
        txn.delete_range(KeyRange::Span { start: b"key 03", end: b"key 05" });
        txn.commit();
        if round == moves_at {
            store.defragment()?;
        }
        store.set_applied(Applied { index: store.applied().index + 1, term: 1 });
        save(&mut store)?;
        if round == 2 {
            store.compact(store.revision() - 1)?;
        }
        store.forget_compacted(1_000);
    }
    drop((view, store));
    Store::open(Arc::new(disk), OPTIONS).map(drop)
}

/// The message of a panic or an unexpected error; none if there was neither, or if it was the check
/// that follows every commit in tests: the file is damaged indeed.
fn panic_in(work: impl FnOnce() -> Result<()>) -> Option<String> {
    let payload = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(()) | Err(Error::Corrupt(_) | Error::Compacted { .. })) => return None,
        Ok(Err(other)) => return Some(other.to_string()),
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.filter(|text| !text.contains("has left a damaged file"))
}

#[test]
fn forged_pages_are_errors_and_no_panics() {
    let seeds = std::env::var("REVD_FORGED_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let mut whole = Sealer { bytes: file(), reached: BTreeSet::new() };
    let before = whole.bytes.clone();
    whole.seal();
    assert!(whole.bytes == before, "the checksums of a good file are as they should be");
    exercise(before, 0).unwrap();
    let pages: Vec<u64> = whole.reached.iter().copied().collect();
    let mut panics = Vec::new();
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut forged = Sealer { bytes: whole.bytes.clone(), reached: BTreeSet::new() };
        for _ in 0..=random.below(2) {
            let page = usize::try_from(random.pick(&pages)).unwrap() * PAGE;
            let offset = usize::try_from(random.below(PAGE as u64)).unwrap();
            forged.bytes[page + offset] = random.byte();
        }
        forged.seal();
        if random.one_in(4) {
            forged.forge_slot(&mut random);
        }
        if let Some(text) = panic_in(|| exercise(forged.bytes, seed)) {
            panics.push(format!("seed {seed}: {text}"));
        }
    }
    assert!(panics.is_empty(), "{} of {seeds} forged files: {}", panics.len(), panics.join("\n"));
}

/// Where the cells of a leaf of records begin and end: its first and last key, by the place of the
/// byte of each that is the lowest of its revision.
fn ends_of_record_leaves(whole: &Sealer) -> Vec<usize> {
    let (_, meta) = whole.newest();
    let (mut below, mut ends) = (vec![meta.tables[0].root.unwrap().id], Vec::new());
    while let Some(id) = below.pop() {
        let start = usize::try_from(id.0).unwrap() * PAGE;
        let page = &whole.bytes[start..start + PAGE];
        let view = PageView::parse(page, id).unwrap();
        match view.kind() {
            PageKind::Branch => {
                below.extend((0..view.len()).map(|at| view.branch_cell(at).unwrap().child.id))
            }
            _ => ends.extend([0, view.len() - 1].map(|at| {
                let key = view.leaf_cell(at).unwrap().key;
                start + key.sole().unwrap().as_ptr() as usize - page.as_ptr() as usize + 7
            })),
        }
    }
    ends
}

/// Leaves that a compaction packs have keys that lie below their neighbour's.
#[test]
fn leaves_whose_keys_do_not_follow_each_other_are_errors_and_no_panics() {
    let mut whole = Sealer { bytes: file(), reached: BTreeSet::new() };
    whole.seal();
    let compact = |bytes: Vec<u8>| -> Result<()> {
        let mut store = Store::open(Arc::new(SimDisk::from_bytes(bytes)), OPTIONS)?;
        store.compact(store.revision())?;
        store.set_applied(Applied { index: store.applied().index + 1, term: 1 });
        store.free_all_compacted();
        while store.compaction_pending() {
            save(&mut store)?;
        }
        Ok(())
    };
    compact(whole.bytes.clone()).unwrap();
    let (mut panics, mut files, mut errors) = (Vec::new(), 0, BTreeSet::new());
    for place in ends_of_record_leaves(&whole) {
        for delta in [1, 2, 255, 254] {
            let mut forged = Sealer { bytes: whole.bytes.clone(), reached: BTreeSet::new() };
            forged.bytes[place] = forged.bytes[place].wrapping_add(delta);
            forged.seal();
            let noted = || {
                compact(forged.bytes).inspect_err(|error| {
                    errors.insert(error.to_string());
                })
            };
            match panic_in(noted) {
                Some(text) => panics.push(format!("byte {place}, {delta} more: {text}")),
                None => files += 1,
            }
        }
    }
    assert!(panics.is_empty() && files > 100, "{}", panics.join("\n"));
    // Packing itself has found some: the others are found on the way there.
    assert!(errors.iter().any(|error| error.contains("leaves that are packed")), "{errors:?}");
}

/// A search for such a key ends in the leaf before: it would be there and not be found.
#[test]
fn a_key_below_the_bound_of_its_leaf_is_damage() {
    let mut whole = Sealer { bytes: file(), reached: BTreeSet::new() };
    whole.seal();
    let checked = |bytes: Vec<u8>| {
        let db = Db::open(Arc::new(SimDisk::from_bytes(bytes)), OPTIONS).unwrap();
        check(&db).map(drop)
    };
    checked(whole.bytes.clone()).unwrap();
    // From the last leaf to the first one, which has no bound.
    let firsts: Vec<usize> = ends_of_record_leaves(&whole).chunks(2).map(|ends| ends[0]).collect();
    let (_, bounded) = firsts.split_last().unwrap();
    assert!(bounded.len() > 20, "{bounded:?}");
    for place in bounded {
        let mut forged = Sealer { bytes: whole.bytes.clone(), reached: BTreeSet::new() };
        forged.bytes[*place] -= 1;
        forged.seal();
        let error = checked(forged.bytes).unwrap_err().to_string();
        assert!(error.contains("has keys out of order at cell 0"), "{error}");
    }
}

/// A table that a meta slot describes wrongly, with all checksums right.
#[test]
fn each_lie_about_a_table_is_named() {
    type Lie = fn(&mut Meta);
    let mut whole = Sealer { bytes: file(), reached: BTreeSet::new() };
    whole.seal();
    let lies: [(&str, Lie); 5] = [
        ("keys, not", |meta| meta.tables[0].len += 1),
        ("is used twice", |meta| meta.tables[1] = meta.tables[0]),
        ("above the leaves' end", |meta| meta.tables[0].depth += 1),
        ("above the leaves' end", |meta| meta.tables[0].depth -= 1),
        ("pages are neither used nor free", |meta| meta.tables[0] = TableRoot::default()),
    ];
    for (text, lie) in lies {
        let mut bytes = whole.bytes.clone();
        let (at, mut meta) = whole.newest();
        assert!(meta.tables[0].depth > 1 && meta.tables[1].root.is_some(), "{meta:?}");
        lie(&mut meta);
        bytes[at..at + SLOT_BYTES].copy_from_slice(&meta.encode());
        let db = Db::open(Arc::new(SimDisk::from_bytes(bytes)), OPTIONS).unwrap();
        let error = check(&db).unwrap_err().to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
}

/// The next put of the key, or the one after it, would be one that cannot be counted.
#[test]
fn a_saved_version_that_no_put_can_follow_is_an_error() {
    for version in [VERSION_MAX, VERSION_MAX + 1, i64::MAX - 1] {
        let disk = SimDisk::from_bytes(file());
        let mut db = Db::open(Arc::new(disk.clone()), OPTIONS).unwrap();
        let put = KeyMeta { create_revision: 2, modified: Revision { main: 3, sub: 0 }, version };
        let mut history = Vec::new();
        KeyHistory::recorded(put).encode(&mut history);
        let mut txn = db.begin().unwrap();
        assert!(!txn.put(Table(1), b"replaced", &history).unwrap(), "the key is there");
        txn.commit().unwrap();
        drop(db);
        let opened = Store::open(Arc::new(disk), OPTIONS);
        if version > VERSION_MAX {
            assert!(matches!(opened, Err(Error::Corrupt(_))), "{version}: {opened:?}");
            continue;
        }
        let (mut store, mut last) = (opened.unwrap(), 0);
        for _ in 0..3 {
            let mut txn = store.begin();
            last = txn.put(b"replaced", b"", 0).meta.version;
            txn.commit();
        }
        assert_eq!(last, version + 3);
    }
}

/// A compaction goes on behind the record that it looked at last: there is nothing behind the last
/// change that a revision can have.
#[test]
fn a_compaction_that_meets_the_last_change_of_all_ends_with_an_error() {
    let disk = SimDisk::from_bytes(file());
    let mut db = Db::open(Arc::new(disk.clone()), OPTIONS).unwrap();
    let last = RecordKey { revision: Revision { main: 10, sub: i64::MAX }, kind: RecordKind::Tombstone };
    let record = encode_tombstone(b"key", |parts| parts.concat());
    let mut txn = db.begin().unwrap();
    assert!(txn.put(Table(0), &last.encode(), &record).unwrap());
    txn.commit().unwrap();
    drop(db);
    let mut store = Store::open(Arc::new(disk), OPTIONS).unwrap();
    store.compact(20).unwrap();
    let error = save(&mut store).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}
