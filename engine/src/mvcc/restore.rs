//! Opening a store: load the saved index, then the records above it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::db::{Db, DbOptions};
use crate::disk::Disk;
use crate::limits;
use crate::mvcc::compaction::CompactionPass;
use crate::mvcc::compaction_hash::CompactionHashes;
use crate::mvcc::garbage::Replaced;
use crate::mvcc::index_pace::IndexPace;
use crate::mvcc::key_history::KeyMeta;
use crate::mvcc::key_index::KeyIndex;
use crate::mvcc::layout::{INDEX, RECORDS, SMALL, StoreMeta};
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::saved_index::{self, IndexSweep, Opening};
use crate::mvcc::saved_ranges::SavedRanges;
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
        let ranges = SavedRanges::load(&tree, &meta)?;
        let index = saved_index::load(&tree, meta, tell)?;
        let mut replay =
            Replay { tree: &tree, index, meta, ranges: &ranges, records: 0, long: BTreeSet::new() };
        replay.run(tell)?;
        let Replay { index, records: records_since_index, long: unsaved_long, .. } = replay;
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
        // How much a large index would gain is not known.
        let is_small = IndexPace::default().is_small(index.root().len().max(tree.len(INDEX)));
        let is_swept_again = is_small && meta.swept < meta.compacted;
        let key_bytes_max = limits::key_bytes_max(tree.page_bytes());
        Ok(Self {
            key_bytes_max,
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
            sweep: is_swept_again.then(|| IndexSweep::new(meta.compacted)),
            to_compact: std::collections::VecDeque::new(),
            db: Some(db),
            // Without a hash: as in etcd, a compaction that was interrupted leaves none.
            pass: (meta.compacted < meta.compact_revision)
                .then(|| CompactionPass::new(meta.compact_revision, meta.compact_cursor, None)),
            hashes: CompactionHashes::default(),
            ranges,
            index_pace: IndexPace::default(),
            records_since_index,
            dropped_since_sweep: 0,
            unsaved_long,
            unsaved_bytes: 0,
            replaced: Replaced::default(),
            collector: Arc::default(),
        })
    }
}

/// Reading the records that the saved index does not have.
struct Replay<'r> {
    tree: &'r Snapshot,
    index: KeyIndex,
    meta: StoreMeta,
    ranges: &'r SavedRanges,
    /// Records that were not in it.
    records: u64,
    /// Keys too long for a page that they have changed.
    long: BTreeSet<Vec<u8>>,
}

impl Replay<'_> {
    fn run(&mut self, tell: &mut dyn FnMut(Opening)) -> Result<()> {
        let (tree, meta) = (self.tree, self.meta);
        let mut cursor = tree.cursor(RECORDS);
        let after = Revision { main: meta.index_revision, sub: i64::MAX };
        cursor.seek(&RecordKey { revision: after, kind: RecordKind::Tombstone }.encode())?;
        let mut read = 0_u64;
        while let Some((key, record)) = cursor.next()? {
            let key =
                RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?;
            let record =
                StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
            if key.revision.main > meta.revision {
                return Err(Error::corrupt(format!(
                    "there is a record of revision {}, but the store is at {}",
                    key.revision.main, meta.revision
                )));
            }
            read += 1;
            if read.is_multiple_of(limits::RESTORED_PER_REPORT) {
                tell(Opening::Records(read));
            }
            self.take(key, &record)?;
        }
        Ok(())
    }

    fn take(&mut self, key: RecordKey, record: &StoredRecord<'_>) -> Result<()> {
        let is_long = record.key.len() > limits::key_bytes_max(self.tree.page_bytes());
        let StoreMeta { long_revision, index_revision, .. } = self.meta;
        let saved = if is_long { long_revision.max(index_revision) } else { self.ranges.at(record.key) };
        if key.revision.main <= saved {
            return Ok(());
        }
        self.records += 1;
        if is_long {
            self.long.insert(record.key.to_vec());
        }
        // Some versions have saved some keys ahead of the rest of their range.
        let known = self.index.root().change_at(record.key, i64::MAX);
        if known.is_some_and(|known| known.revision >= key.revision) {
            return Ok(());
        }
        let is_compacted = key.revision.main <= self.meta.compact_revision;
        match key.kind {
            // A compaction may have dropped the change before it.
            RecordKind::Put if is_compacted => {
                let (create_revision, version) = (record.stamp.create_revision, record.stamp.version);
                let is_possible =
                    (1..i64::MAX).contains(&version) && (0..=key.revision.main).contains(&create_revision);
                if !is_possible {
                    return Err(self.contradiction(key, record, 0));
                }
                let put = KeyMeta { create_revision, modified: key.revision, version };
                self.index.put_as_recorded(record.key, put);
            }
            RecordKind::Put => {
                let put = self.index.put(record.key, key.revision);
                if put.meta.version != record.stamp.version {
                    return Err(self.contradiction(key, record, put.meta.version));
                }
            }
            RecordKind::Tombstone => {
                self.index.tombstone(record.key, key.revision);
            }
        }
        if is_compacted {
            self.index.compact_key(record.key, self.meta.compact_revision);
        }
        Ok(())
    }

    fn contradiction(&self, key: RecordKey, record: &StoredRecord<'_>, version: i64) -> Error {
        Error::corrupt(format!(
            "record {}.{} says version {} of its key, the index says {version}",
            key.revision.main, key.revision.sub, record.stamp.version
        ))
    }
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
