//! Proof that a store agrees with itself: each record that the index names is there and says what
//! the index says of it, the index names all records above the compaction, and no revision of those
//! is missing. Below it there may be dead records too. Together with [`crate::check`], which proves
//! the same of pages.

use crate::mvcc::layout::{INDEX, INDEX_LONG};
use crate::mvcc::long_keys;
use crate::mvcc::revision::{RecordKind, Revision};
use crate::mvcc::saved_history::HistoryReader;
use crate::mvcc::store::Store;
use crate::mvcc::{Reader, StoredRecord};
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// Records and keys that a check has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Puts and tombstones.
    pub records: u64,
    /// Keys with any history, deleted ones included.
    pub keys: u64,
    /// Keys that exist now.
    pub live_keys: u64,
}

/// Verifies a store that was opened.
///
/// # Errors
/// [`Error::Corrupt`] naming the first thing that is wrong.
pub fn verify(store: &Store) -> Result<Summary> {
    let reader = store.reader();
    let (records, above) = dense_records(&reader)?;
    let mut summary = Summary { records, ..Summary::default() };
    let mut changes_above = 0;
    for (key, history) in reader.index.entries() {
        // A dropped put that goes with its key's next change; a store just opened has none.
        let mut history = history.clone();
        history.forget_within(store.index.forgotten());
        summary.keys += 1;
        summary.live_keys += u64::from(history.newest().live().is_some());
        for change in history.changes() {
            changes_above += u64::from(change.revision.main > reader.compact_revision());
            let Some(meta) = change.live() else { continue };
            let record = StoredRecord::parse(reader.record(meta.modified)?)
                .filter(|record| key == *record.key)
                .filter(|record| record.stamp.mod_revision == meta.modified.main)
                .filter(|record| record.stamp.create_revision == meta.create_revision)
                .filter(|record| record.stamp.version == meta.version);
            if record.is_none() {
                let Revision { main, sub } = meta.modified;
                return Err(Error::corrupt(format!(
                    "the record {main}.{sub} is not what the index says of it"
                )));
            }
        }
    }
    if changes_above != above {
        return Err(Error::corrupt(format!(
            "the index knows {changes_above} changes above the compaction, there are {above} records"
        )));
    }
    check_histories(&store.tree)?;
    Ok(summary)
}

/// Every row of older changes belongs to one key: one that none names would stay for ever.
fn check_histories(tree: &Snapshot) -> Result<()> {
    let reader = HistoryReader::new(tree);
    let mut cursor = tree.cursor(INDEX);
    cursor.seek(&[])?;
    while let Some((_, history)) = cursor.next_parts()? {
        reader.read(history)?;
    }
    let mut cursor = tree.cursor(INDEX_LONG);
    cursor.seek(&[])?;
    while let Some((_, row)) = cursor.next()? {
        for (_, history) in long_keys::decode(row)? {
            reader.read(history)?;
        }
    }
    match reader.rows_left() {
        0 => Ok(()),
        left => Err(Error::corrupt(format!("{left} rows of older changes are of no key"))),
    }
}

/// Counts all records, and those above the compaction, which must follow each other without gaps.
fn dense_records(reader: &Reader<'_>) -> Result<(u64, u64)> {
    let compact = reader.compact_revision();
    let (mut records, mut above) = (0, 0);
    let mut last = Revision { main: compact.max(1), sub: 0 };
    reader.each_record_after(Revision::default(), |key, bytes| {
        records += 1;
        let revision = key.revision;
        if revision.main > compact {
            above += 1;
            // Of this revision, because the last one may be the highest there can be.
            let before = |revision: i64| revision.checked_sub(1);
            let is_next = revision.sub == 0 && before(revision.main) == Some(last.main);
            let is_next_sub = revision.main == last.main && before(revision.sub) == Some(last.sub);
            if !is_next && (!is_next_sub || last.main <= compact.max(1)) {
                return Err(Error::corrupt(format!(
                    "the record {}.{} follows {}.{}",
                    revision.main, revision.sub, last.main, last.sub
                )));
            }
            last = revision;
        }
        match StoredRecord::parse(bytes) {
            Some(record) if key.kind == RecordKind::Put && record.stamp.version < 1 => {
                Err(Error::corrupt(format!("the put {}.{} has no version", revision.main, revision.sub)))
            }
            Some(_) => Ok(true),
            None => {
                Err(Error::corrupt(format!("the record {}.{} cannot be read", revision.main, revision.sub)))
            }
        }
    })?;
    if last.main != reader.revision() {
        return Err(Error::corrupt(format!(
            "the newest record is of revision {}, the store is at {}",
            last.main,
            reader.revision()
        )));
    }
    Ok((records, above))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::DbOptions;
    use crate::disk::{Disk, SimDisk};
    use crate::mvcc::layout::{HISTORIES, RECORDS};
    use crate::mvcc::revision::RecordKey;
    use crate::mvcc::{Applied, CheckpointKind};

    #[test]
    fn a_row_of_older_changes_that_no_key_names_is_damage() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let open = || Store::open(Arc::clone(&disk), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let mut store = open();
        store.save_index_in_steps_of(10); // in rows of four changes
        for index in 1..=50 {
            let mut txn = store.begin();
            txn.put(b"hot", b"", 0);
            txn.commit();
            store.set_applied(Applied { index, term: 1 });
        }
        let checkpoint = store.checkpoint(CheckpointKind::WithIndex).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
        assert!(store.tree.len(HISTORIES) > 5);
        verify(&open()).unwrap();
        let mut db = store.db.take().unwrap();
        let mut txn = db.begin().unwrap();
        txn.put(HISTORIES, &[1; 32], b"\x01\x01\x00\x00\x01").unwrap();
        txn.commit().unwrap();
        let error = verify(&open()).unwrap_err().to_string();
        assert!(error.contains("1 rows of older changes are of no key"), "{error}");
    }

    /// Each transaction has two puts; the index goes on to name what is taken out of the file.
    #[test]
    fn records_that_are_missing_above_the_compaction_are_damage() {
        let lost = |revisions: &[(i64, i64)]| {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
            let open = || Store::open(Arc::clone(&disk), DbOptions { page_bytes_if_new: 512 }).unwrap();
            let mut store = open();
            for index in 1..=5 {
                let mut txn = store.begin();
                txn.put(b"one", b"", 0);
                txn.put(b"other", b"", 0);
                txn.commit();
                store.set_applied(Applied { index, term: 1 });
            }
            let checkpoint = store.checkpoint(CheckpointKind::WithIndex).unwrap();
            store.finish_checkpoint(checkpoint.write().unwrap());
            let mut db = store.db.take().unwrap();
            let mut txn = db.begin().unwrap();
            for (main, sub) in revisions {
                let key = RecordKey { revision: Revision { main: *main, sub: *sub }, kind: RecordKind::Put };
                assert!(txn.remove(RECORDS, &key.encode()).unwrap());
            }
            txn.commit().unwrap();
            verify(&open()).map_err(|error| error.to_string())
        };
        assert_eq!(lost(&[]).map(|summary| summary.records), Ok(10));
        for (revisions, text) in [
            (&[(4, 0)][..], "the record 4.1 follows 3.1"),
            (&[(4, 0), (4, 1)], "the record 5.0 follows 3.1"),
            (&[(2, 0)], "the record 2.1 follows 1.0"),
            (&[(6, 0), (6, 1)], "the newest record is of revision 5, the store is at 6"),
        ] {
            let error = lost(revisions).unwrap_err();
            assert!(error.contains(text), "{revisions:?}: {error}");
        }
    }
}
