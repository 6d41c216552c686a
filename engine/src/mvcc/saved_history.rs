//! A key's history in the file.
//!
//! A short one is one value. Of a long one only the newest changes are in that value; the others
//! are in rows of their own, each with so many changes, which are written once and removed when a
//! compaction has left nothing of them:
//!
//! ```text
//! value     history | varint 0, id main, id sub, last main, last sub, history behind that change
//! table 5   id main, id sub, first main, first sub (u64, big-endian) -> history of these changes
//! ```
//!
//! The id is the revision of the first change that ever lay in such a row of the key: no other key
//! has it. So a key that was changed a million times costs a save what has changed since the last
//! one. Rows may begin with changes that a compaction has dropped; opening a store drops them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::layout::HISTORIES;
use crate::mvcc::revision::Revision;
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result, varint};

/// Bytes of a row's key, and of the part of it that all rows of one history have.
const ROW_KEY: usize = 32;
const ID: usize = 16;

/// The rows that hold the older changes of a key.
#[derive(Debug, Clone, Copy)]
struct OlderRows {
    id: Revision,
    /// The last change in them.
    last: Revision,
}

/// How histories are saved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HistoryRule {
    /// The compaction that they are saved after.
    pub(crate) compact: i64,
    /// Changes in a row; a history of twice as many is divided.
    pub(crate) row_changes: usize,
}

/// A history that was saved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SavedHistory {
    /// There is something left of it; else its key's row goes.
    pub(crate) is_kept: bool,
    /// It is in rows, which earlier versions do not know.
    pub(crate) is_divided: bool,
    /// Bytes of rows that were written, and of pages that removed ones had, one for each.
    pub(crate) bytes: usize,
}

/// Saves what the compaction leaves of a history: the value for its key goes to `out`, and rows of
/// older changes to the file. `saved` is the value there is in `base`.
pub(crate) fn save(
    txn: &mut WriteTxn<'_>,
    base: &Snapshot,
    saved: Option<&[u8]>,
    history: Option<&KeyHistory>,
    rule: HistoryRule,
    out: &mut Vec<u8>,
) -> Result<SavedHistory> {
    out.clear();
    let mut rows = match saved {
        Some(saved) => split(saved).ok_or_else(malformed)?.0,
        None => None,
    };
    let divided_from = 2 * rule.row_changes;
    if rows.is_none() && history.is_none_or(|history| history.len() < divided_from as u64) {
        let is_kept = history.is_some_and(|history| history.encode_compacted(rule.compact, out));
        return Ok(SavedHistory { is_kept, is_divided: false, bytes: 0 });
    }
    let Some(kept) = history.and_then(|history| history.compacted(rule.compact)) else {
        let removed = rows.map_or(Ok(0), |rows| remove_before(txn, base, rows, None))?;
        let bytes = removed * base.page_bytes() as usize;
        return Ok(SavedHistory { is_kept: false, is_divided: false, bytes });
    };
    let (oldest, mut bytes) = (kept.oldest().revision, 0);
    if let Some(older) = rows {
        let is_needed = older.last >= oldest;
        let removed = remove_before(txn, base, older, is_needed.then_some(oldest))?;
        bytes += removed * base.page_bytes() as usize;
        rows = rows.filter(|_| is_needed);
    }
    let before_all = Revision { main: -1, sub: 0 };
    let mut behind = Vec::new();
    for change in kept.changes_after(rows.map_or(before_all, |rows| rows.last)) {
        behind.push(change); // there may be millions: no more of them than two rows at a time
        if behind.len() < divided_from {
            continue;
        }
        let row = &behind[..rule.row_changes];
        let id = rows.map_or(row[0].revision, |rows| rows.id);
        out.clear();
        KeyHistory::encode_changes(row.len() as u64, row.iter().copied(), out);
        txn.put(HISTORIES, &row_key(id, row[0].revision), out)?;
        bytes += out.len();
        rows = Some(OlderRows { id, last: row[row.len() - 1].revision });
        behind.drain(..rule.row_changes);
    }
    out.clear();
    if let Some(OlderRows { id, last }) = rows {
        out.push(0);
        [id.main, id.sub, last.main, last.sub].iter().for_each(|word| varint::put(out, word.cast_unsigned()));
    }
    KeyHistory::encode_changes(behind.len() as u64, behind.iter().copied(), out);
    Ok(SavedHistory { is_kept: true, is_divided: rows.is_some(), bytes })
}

/// Reads histories back.
#[derive(Debug)]
pub(crate) struct HistoryReader<'t> {
    tree: &'t Snapshot,
    /// Rows that no key has named yet: a forged file cannot have one read twice.
    rows_left: AtomicU64,
}

impl<'t> HistoryReader<'t> {
    pub(crate) fn new(tree: &'t Snapshot) -> Self {
        Self { tree, rows_left: AtomicU64::new(tree.len(HISTORIES)) }
    }

    /// The history of a value, as it was saved: it may begin with changes that a compaction has
    /// dropped since.
    ///
    /// # Errors
    /// When the file is damaged.
    #[inline]
    pub(crate) fn read(&self, value: &[u8]) -> Result<KeyHistory> {
        KeyHistory::decode_one(value).map_or_else(|| self.read_any(value), Ok)
    }

    fn read_any(&self, value: &[u8]) -> Result<KeyHistory> {
        let (rows, behind) = split(value).ok_or_else(malformed)?;
        let older = rows.map(|rows| self.older(rows)).transpose()?;
        KeyHistory::decode_behind(older, behind).ok_or_else(malformed)
    }

    /// Rows that no value that was read has named.
    pub(crate) fn rows_left(&self) -> u64 {
        self.rows_left.load(Relaxed)
    }

    fn older(&self, rows: OlderRows) -> Result<KeyHistory> {
        let mut history: Option<KeyHistory> = None;
        let mut cursor = self.tree.cursor(HISTORIES);
        cursor.seek(&row_key(rows.id, Revision::default()))?;
        while let Some((key, row)) = cursor.next()? {
            if first_of(key, rows.id)?.is_none() {
                break;
            }
            let left = self.rows_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            left.map_err(|_| malformed())?;
            history = Some(KeyHistory::decode_behind(history, row).ok_or_else(malformed)?);
        }
        let whole = history.filter(|history| history.newest().revision == rows.last);
        whole.ok_or_else(|| Error::corrupt("older changes of a key are not all there"))
    }
}

/// Removes the rows of which nothing is behind or at `oldest`, or all of them; how many. Their
/// changes are not read.
fn remove_before(
    txn: &mut WriteTxn<'_>,
    base: &Snapshot,
    rows: OlderRows,
    oldest: Option<Revision>,
) -> Result<usize> {
    let mut cursor = base.cursor(HISTORIES);
    cursor.seek(&row_key(rows.id, Revision::default()))?;
    let (mut before, mut removed): (Option<&[u8]>, usize) = (None, 0);
    while let Some(key) = cursor.next_key()? {
        let Some(first) = first_of(key, rows.id)? else { break };
        if oldest.is_some_and(|oldest| first > oldest) {
            return Ok(removed);
        }
        // All changes of the row before are before this row's first one.
        if let Some(before) = before.replace(key) {
            removed += usize::from(txn.remove(HISTORIES, before)?);
        }
    }
    if let Some(last) = before.filter(|_| oldest.is_none()) {
        removed += usize::from(txn.remove(HISTORIES, last)?);
    }
    Ok(removed)
}

fn row_key(id: Revision, first: Revision) -> [u8; ROW_KEY] {
    let mut key = [0; ROW_KEY];
    for (word, part) in [id.main, id.sub, first.main, first.sub].iter().zip(key.chunks_exact_mut(8)) {
        part.copy_from_slice(&word.to_be_bytes());
    }
    key
}

/// The first change in a row of this id; none if it is one of another.
fn first_of(key: &[u8], id: Revision) -> Result<Option<Revision>> {
    let key: &[u8; ROW_KEY] = key.try_into().map_err(|_| malformed())?;
    if key[..ID] != row_key(id, id)[..ID] {
        return Ok(None);
    }
    let word = |at: usize| i64::from_be_bytes(key[at..at + 8].try_into().expect("eight bytes"));
    Ok(Some(Revision { main: word(ID), sub: word(ID + 8) }))
}

fn split(mut value: &[u8]) -> Option<(Option<OlderRows>, &[u8])> {
    if value.first() != Some(&0) {
        return Some((None, value));
    }
    value = &value[1..];
    let mut word = || varint::take(&mut value).and_then(|word| i64::try_from(word).ok());
    let id = Revision { main: word()?, sub: word()? };
    let last = Revision { main: word()?, sub: word()? };
    Some((Some(OlderRows { id, last }), value))
}

pub(crate) fn malformed() -> Error {
    Error::corrupt("a key's saved history cannot be read")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::{Db, DbOptions};
    use crate::disk::SimDisk;

    const RULE: HistoryRule = HistoryRule { compact: -1, row_changes: 5 };

    fn db() -> Db {
        Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap()
    }

    /// A history of so many puts, and a file that holds it; its value.
    fn saved(puts: i64) -> (Db, KeyHistory, Vec<u8>) {
        let (mut db, mut value) = (db(), Vec::new());
        let mut history = KeyHistory::created(Revision { main: 2, sub: 3 });
        (3..puts + 2).for_each(|main| history.put(Revision { main, sub: main % 4 }));
        let base = db.snapshot();
        let mut txn = db.begin().unwrap();
        save(&mut txn, &base, None, Some(&history), RULE, &mut value).unwrap();
        txn.commit().unwrap();
        (db, history, value)
    }

    #[test]
    fn histories_of_any_length_are_read_as_they_were_saved() {
        for puts in 1..40 {
            let (db, history, value) = saved(puts);
            let tree = db.snapshot();
            let rows = u64::try_from((puts - 5) / 5).unwrap_or(0);
            assert_eq!(tree.len(HISTORIES), if puts < 10 { 0 } else { rows }, "{puts} puts");
            let reader = HistoryReader::new(&tree);
            assert_eq!(reader.read(&value).unwrap().changes(), history.changes());
            // Another key that names them too would have them in memory twice.
            assert_eq!(reader.read(&value).is_err(), puts >= 10);
        }
    }

    /// A history of one change is read by a shorter way.
    #[test]
    fn one_change_is_read_as_any_number_of_them() {
        let (db, _, _) = saved(1);
        let tree = db.snapshot();
        let mut deleted = KeyHistory::created(Revision { main: 70_000, sub: 3 });
        deleted.delete(Revision { main: 1 << 40, sub: 0 });
        let put = KeyHistory::created(Revision { main: 2, sub: 300 });
        for history in [put, deleted.compacted((1 << 40) - 1).unwrap(), deleted.compacted(5).unwrap()] {
            let mut value = Vec::new();
            history.encode(&mut value);
            let mut noise: Vec<Vec<u8>> = (0..=value.len()).map(|at| value[..at].to_vec()).collect();
            noise.extend([0, 1, 0x80, 0xff].map(|byte| [&value[..], &[byte]].concat()));
            for (at, bit) in (0..value.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut bad = value.clone();
                bad[at] ^= 1 << bit;
                noise.push(bad);
            }
            for value in noise.into_iter().filter(|value| value.first() != Some(&0)) {
                let read = HistoryReader::new(&tree).read(&value).ok().map(|read| read.changes());
                let decoded = KeyHistory::decode(&value).map(|decoded| decoded.changes());
                assert_eq!(read, decoded, "{value:?}");
            }
        }
    }

    #[test]
    fn rows_that_are_not_there_and_noise_are_damage() {
        let (mut db, _, value) = saved(23);
        let tree = db.snapshot();
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut bad = value.clone();
                bad[at] ^= 1 << bit;
                let _ = HistoryReader::new(&tree).read(&bad); // must not panic
            }
            assert!(HistoryReader::new(&tree).read(&value[..at]).is_err());
        }
        let id = Revision { main: 2, sub: 3 };
        // The last of three rows.
        let first = Revision { main: 12, sub: 0 };
        let mut txn = db.begin().unwrap();
        assert!(txn.remove(HISTORIES, &row_key(id, first)).unwrap());
        txn.put(HISTORIES, b"of another length", b"").unwrap();
        txn.commit().unwrap();
        assert!(HistoryReader::new(&db.snapshot()).read(&value).is_err());
    }

    /// A row may be of several pages, which a compaction that removes it would wait for: here they
    /// are damaged, and nothing notices.
    #[test]
    fn rows_that_are_removed_are_not_read_and_are_counted() {
        const LONG: HistoryRule = HistoryRule { compact: -1, row_changes: 300 };
        let (disk, mut value, mut row) = (SimDisk::new(), Vec::new(), Vec::new());
        let options = DbOptions { page_bytes_if_new: 512 };
        let mut db = Db::open(Arc::new(disk.clone()), options).unwrap();
        let mut history = KeyHistory::created(Revision { main: 2, sub: 0 });
        (3..=1_501).for_each(|main| history.put(Revision { main, sub: 0 }));
        let base = db.snapshot();
        let mut txn = db.begin().unwrap();
        let done = save(&mut txn, &base, None, Some(&history), LONG, &mut value).unwrap();
        let tree = txn.commit().unwrap();
        assert!(tree.len(HISTORIES) == 4 && done.bytes > 4 * 512, "{done:?}");
        KeyHistory::encode_changes(300, history.changes().into_iter().take(300), &mut row);
        let mut bytes = disk.bytes();
        let at = bytes.windows(row.len()).position(|found| *found == row).unwrap();
        bytes[at + 5] ^= 1;
        for (compact, is_deleted, removed) in [(700, false, 2), (1_400, false, 4), (1_501, true, 4)] {
            let mut db = Db::open(Arc::new(SimDisk::from_bytes(bytes.clone())), options).unwrap();
            let base = db.snapshot();
            assert!(HistoryReader::new(&base).read(&value).is_err());
            let (mut txn, mut out) = (db.begin().unwrap(), Vec::new());
            let history = Some(&history).filter(|_| !is_deleted);
            let rule = HistoryRule { compact, ..LONG };
            let done = save(&mut txn, &base, Some(&value), history, rule, &mut out).unwrap();
            assert_eq!((done.is_kept, done.bytes), (!is_deleted, removed * 512), "{compact}");
        }
    }
}
