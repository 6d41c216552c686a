//! Opening a store: load the saved index, then the records above it.

use std::sync::Arc;

use crate::db::{Db, DbOptions};
use crate::disk::Disk;
use crate::limits;
use crate::mvcc::compaction::CompactionPass;
use crate::mvcc::compaction_hash::CompactionHashes;
use crate::mvcc::garbage::Replaced;
use crate::mvcc::key_index::KeyIndex;
use crate::mvcc::layout::{RECORDS, SMALL, StoreMeta};
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::saved_index::{self, IndexSweep, Opening};
use crate::mvcc::store::Store;
use crate::mvcc::tables::{SmallTable, Tables};
use crate::mvcc::tail::Tail;
use crate::snapshot::Snapshot;
use crate::{Error, Result};

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
        let meta = if tree.txn() == 0 { StoreMeta::default() } else { StoreMeta::decode(tree.user()) };
        if !meta.is_sound() {
            return Err(Error::corrupt(format!("the store meta cannot be true: {meta:?}")));
        }
        let mut index = saved_index::load(&tree, meta, tell)?;
        let records_since_index = replay_records(&tree, &mut index, meta, tell)?;
        let newest = index.root().newest_change();
        assert!(newest <= meta.revision, "the index is at {newest}, the store at {}", meta.revision);
        let mut tables = Tables::default();
        let mut cursor = tree.cursor(SMALL);
        cursor.seek(&[])?;
        while let Some((key, row)) = cursor.next()? {
            let number =
                key.first().ok_or_else(|| Error::corrupt("a row of the small tables has no table"))?;
            if SmallTable::is_shared_number(*number) {
                tables.set(key.to_vec(), Some(row.to_vec()));
            }
        }
        Ok(Self {
            index,
            tail: Tail::default(),
            tables,
            table_changes: std::collections::BTreeMap::new(),
            meta,
            saved: meta,
            tree,
            trimmed: meta.compact_revision,
            sizes: db.sizes(),
            defragmentation: None,
            sweep: (meta.swept < meta.compacted).then(|| IndexSweep::new(meta.compacted)),
            to_compact: std::collections::VecDeque::new(),
            db: Some(db),
            // Without a hash: as in etcd, a compaction that was interrupted leaves none.
            pass: (meta.compacted < meta.compact_revision)
                .then(|| CompactionPass::new(meta.compact_revision, meta.compact_cursor, None)),
            hashes: CompactionHashes::default(),
            records_since_index,
            unsaved_bytes: 0,
            replaced: Replaced::default(),
            collector: Arc::default(),
        })
    }
}

fn replay_records(
    tree: &Snapshot,
    index: &mut KeyIndex,
    meta: StoreMeta,
    tell: &mut dyn FnMut(Opening),
) -> Result<usize> {
    let mut cursor = tree.cursor(RECORDS);
    let after = Revision { main: meta.index_revision, sub: i64::MAX };
    cursor.seek(&RecordKey { revision: after, kind: RecordKind::Tombstone }.encode())?;
    let mut records = 0;
    while let Some((key, record)) = cursor.next()? {
        let key = RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?;
        let record = StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
        if key.revision.main > meta.revision {
            return Err(Error::corrupt(format!(
                "there is a record of revision {}, but the store is at {}",
                key.revision.main, meta.revision
            )));
        }
        records += 1;
        if (records as u64).is_multiple_of(limits::RESTORED_PER_REPORT) {
            tell(Opening::Records(records as u64));
        }
        // A step of compaction saves the keys it has touched as they are then: ahead of the rest of
        // the index.
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
    use crate::mvcc::key_history::KeyHistory;
    use crate::mvcc::layout::INDEX;

    /// Only a damaged or forged file can hold changes above the store's revision: they would break
    /// the order of changes that the index relies on.
    #[test]
    fn changes_above_the_store_revision_are_damage() {
        let newer = Revision { main: 9, sub: 0 };
        let mut history = Vec::new();
        KeyHistory::created(newer).encode(&mut history);
        let record = RecordKey { revision: newer, kind: RecordKind::Tombstone }.encode();
        let rows = [(INDEX, b"k".as_slice(), history.as_slice()), (RECORDS, &record, b"\x0a\x01k")];
        for (table, key, value) in rows {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
            let mut store = Store::open(Arc::clone(&disk), DbOptions::default()).unwrap();
            let mut db = store.db.take().unwrap();
            let mut txn = db.begin().unwrap();
            txn.put(table, key, value).unwrap();
            txn.set_user(&StoreMeta { revision: 5, ..StoreMeta::default() }.encode());
            txn.commit().unwrap();
            drop((db, store));
            let opened = Store::open(Arc::clone(&disk), DbOptions::default());
            assert!(matches!(opened, Err(Error::Corrupt { .. })), "table {table:?}: {opened:?}");
        }
    }
}
