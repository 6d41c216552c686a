//! Opening a store: load the saved index, then the records above it.

use std::sync::Arc;

use crate::db::{Db, DbOptions};
use crate::disk::Disk;
use crate::limits;
use crate::mvcc::compaction::IndexSweep;
use crate::mvcc::garbage::Replaced;
use crate::mvcc::hash::CompactionHashes;
use crate::mvcc::key_history::History;
use crate::mvcc::key_index::{Key, KeyIndex};
use crate::mvcc::layout::{INDEX, INDEX_LONG, RECORDS, SMALL, Standing};
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::store::Store;
use crate::mvcc::tables::{SmallTable, Tables};
use crate::mvcc::tail::Tail;
use crate::txn::Snapshot;
use crate::{Error, Result};

/// How far opening a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// So many keys of the saved index are loaded.
    Keys {
        /// Loaded.
        loaded: u64,
        /// There are so many.
        of: u64,
    },
    /// So many records that the saved index does not know are read.
    Records(u64),
}

impl Store {
    /// Opens a store; an empty disk becomes a new one, at revision 1 with nothing applied.
    ///
    /// # Errors
    /// When the disk holds something else or is damaged.
    pub fn open(disk: Arc<dyn Disk>, options: DbOptions) -> Result<Self> {
        Self::open_telling(disk, options, &mut |_| {})
    }

    /// As [`Store::open`], and says now and then how far it has come.
    ///
    /// # Errors
    /// When the disk holds something else or is damaged.
    pub fn open_telling(
        disk: Arc<dyn Disk>,
        options: DbOptions,
        tell: &mut dyn FnMut(Opening),
    ) -> Result<Self> {
        let db = Db::open(disk, options)?;
        let tree = db.snapshot();
        let standing = if tree.txn() == 0 { Standing::default() } else { Standing::decode(tree.user()) };
        let mut index = load_index(&tree, standing, tell)?;
        let records_since_index = replay_records(&tree, &mut index, standing, tell)?;
        let mut tables = Tables::default();
        let mut cursor = tree.cursor(SMALL);
        cursor.seek(&[])?;
        while let Some((key, row)) = cursor.next()? {
            if SmallTable::is_shared_number(key[0]) {
                tables.set(key.to_vec(), Some(row.to_vec()));
            }
        }
        Ok(Self {
            index,
            tail: Tail::default(),
            tables,
            table_changes: std::collections::BTreeMap::new(),
            standing,
            saved: standing,
            tree,
            trimmed: standing.compact_revision,
            sizes: db.sizes(),
            defragmentation: None,
            sweep: (standing.swept < standing.compacted).then(|| IndexSweep::new(standing.compacted)),
            to_compact: std::collections::VecDeque::new(),
            db: Some(db),
            hashing: None, // not from the middle: as in etcd, a compaction that was interrupted leaves no hash
            hashes: CompactionHashes::default(),
            records_since_index,
            unsaved_bytes: 0,
            replaced: Replaced::default(),
            collector: Arc::default(),
        })
    }
}

/// The saved index, compacted: steps of a compaction that happened after it was saved are not in it.
fn load_index(tree: &Snapshot, standing: Standing, tell: &mut dyn FnMut(Opening)) -> Result<KeyIndex> {
    let malformed = || Error::corrupt("a key's saved history cannot be read");
    let compact = standing.compact_revision;
    let decode = |encoded: &[u8]| {
        History::decode(encoded).filter(|history| history.newest().revision.main <= standing.revision)
    };
    let mut failure = None;
    let (mut loaded, of) = (0_u64, tree.len(INDEX));
    let mut cursor = tree.cursor(INDEX);
    cursor.seek(&[])?;
    let keys = std::iter::from_fn(|| {
        loop {
            let (key, encoded) = match cursor.next() {
                Ok(next) => next?,
                Err(error) => {
                    failure = Some(error);
                    return None;
                }
            };
            loaded += 1;
            if loaded.is_multiple_of(limits::RESTORED_PER_REPORT) {
                tell(Opening::Keys { loaded, of });
            }
            let Some(history) = decode(encoded) else {
                failure = Some(malformed());
                return None;
            };
            if let Some(history) = history.compacted(compact) {
                return Some((Key::from(key), history));
            }
        }
    });
    let mut index = KeyIndex::from_sorted(keys);
    if let Some(error) = failure {
        return Err(error);
    }
    let mut cursor = tree.cursor(INDEX_LONG);
    cursor.seek(&[])?;
    while let Some((_, mut row)) = cursor.next()? {
        while !row.is_empty() {
            let key = take_part(&mut row).ok_or_else(malformed)?;
            let history = take_part(&mut row).and_then(decode).ok_or_else(malformed)?;
            if let Some(history) = history.compacted(compact) {
                index.set(key, history);
            }
        }
    }
    Ok(index)
}

fn take_part<'r>(row: &mut &'r [u8]) -> Option<&'r [u8]> {
    let (len, rest) = row.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *row = rest;
    Some(part)
}

fn replay_records(
    tree: &Snapshot,
    index: &mut KeyIndex,
    standing: Standing,
    tell: &mut dyn FnMut(Opening),
) -> Result<usize> {
    let mut cursor = tree.cursor(RECORDS);
    let after = Revision { main: standing.index_revision, sub: i64::MAX };
    cursor.seek(&RecordKey { revision: after, kind: RecordKind::Tombstone }.encode())?;
    let mut records = 0;
    while let Some((key, record)) = cursor.next()? {
        let key = RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?;
        let record = StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
        if key.revision.main > standing.revision {
            return Err(Error::corrupt(format!(
                "there is a record of revision {}, but the store is at {}",
                key.revision.main, standing.revision
            )));
        }
        records += 1;
        if (records as u64).is_multiple_of(limits::RESTORED_PER_REPORT) {
            tell(Opening::Records(records as u64));
        }
        // A step of compaction saves the keys it has touched as they are then: ahead of the rest of the index.
        let known = index.root().change_at(record.key, i64::MAX);
        if known.is_some_and(|known| known.revision >= key.revision) {
            continue;
        }
        match key.kind {
            RecordKind::Put => {
                let put = index.put(record.key, key.revision);
                if put.meta.version != record.stamp.version {
                    return Err(Error::corrupt(format!(
                        "record {}.{} says version {} of its key, the index says {}",
                        key.revision.main, key.revision.sub, record.stamp.version, put.meta.version
                    )));
                }
            }
            RecordKind::Tombstone => {
                index.tombstone(record.key, key.revision);
            }
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    /// What only a damaged or forged file can hold would break the order of changes that the index relies on.
    #[test]
    fn what_is_newer_than_the_store_is_damage() {
        let newer = Revision { main: 9, sub: 0 };
        let mut history = Vec::new();
        History::created(newer).encode(&mut history);
        let record = RecordKey { revision: newer, kind: RecordKind::Tombstone }.encode();
        let rows = [(INDEX, b"k".as_slice(), history.as_slice()), (RECORDS, &record, b"\x0a\x01k")];
        for (table, key, value) in rows {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
            let mut store = Store::open(Arc::clone(&disk), DbOptions::default()).unwrap();
            let mut db = store.db.take().unwrap();
            let mut txn = db.begin().unwrap();
            txn.put(table, key, value).unwrap();
            txn.set_user(&Standing { revision: 5, ..Standing::default() }.encode());
            txn.commit().unwrap();
            drop((db, store));
            let opened = Store::open(Arc::clone(&disk), DbOptions::default());
            assert!(matches!(opened, Err(Error::Corrupt { .. })), "table {table:?}: {opened:?}");
        }
    }
}
