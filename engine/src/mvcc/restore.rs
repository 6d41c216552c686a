//! Opening a store: load the saved index, then the records above it.

use std::sync::Arc;

use crate::db::{Db, DbOptions};
use crate::disk::Disk;
use crate::limits;
use crate::mvcc::compaction::{CompactionPass, CompactionRule};
use crate::mvcc::compaction_hash::CompactionHashes;
use crate::mvcc::garbage::Replaced;
use crate::mvcc::index_pace::{IndexPace, IndexRoom};
use crate::mvcc::layout::{INDEX, SMALL, StoreMeta};
use crate::mvcc::loading::{LoadedIndex, Loading, Opening};
use crate::mvcc::saved_index::IndexSweep;
use crate::mvcc::saved_ranges::SavedRanges;
use crate::mvcc::store::Store;
use crate::mvcc::tables::{SmallTable, Tables};
use crate::mvcc::tail::Tail;
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
        let LoadedIndex { index, unswept, records: records_since_index, long: unsaved_long } =
            Loading { tree: &tree, meta, ranges: &ranges }.run(tell)?;
        let newest = index.root().newest_change();
        assert!(newest <= meta.revision, "the index is at {newest}, the store at {}", meta.revision);
        let mut tables = Tables::default();
        let mut cursor = tree.cursor(SMALL);
        cursor.seek(&[])?;
        while let Some((key, row)) = cursor.next()? {
            let number =
                key.first().ok_or_else(|| Error::corrupt("a row of the small tables has no table"))?;
            if SmallTable::is_shared_number(*number) {
                tables.set(key, Some(row));
            }
        }
        // How much a large index would gain is not known.
        let is_small = IndexPace::default().is_small(
            index.root().len().max(tree.len(INDEX)),
            (meta.revision - meta.compact_revision).cast_unsigned(),
        );
        let saved = meta;
        // Earlier versions went on with a compaction where it was interrupted. One that begins
        // again counts no keys that have lost records: the index in memory is without them.
        let (compact_cursor, unswept) = (crate::mvcc::Revision::default(), meta.unswept.max(unswept));
        let meta = StoreMeta { compact_cursor, unswept, ..meta };
        let is_swept_again = is_small && meta.swept < meta.compacted;
        let key_bytes_max = limits::key_bytes_max(tree.page_bytes());
        Ok(Self {
            key_bytes_max,
            index,
            tail: Tail::default(),
            tables,
            table_changes: std::collections::BTreeMap::new(),
            meta,
            saved,
            tree,
            trimmed: meta.compact_revision,
            sizes: db.sizes(),
            defragmentation: None,
            defragments_next: None,
            sweep: is_swept_again.then(|| IndexSweep::new(&meta)),
            to_compact: std::collections::VecDeque::new(),
            db: Some(db),
            // Without a hash: as in etcd, a compaction that was interrupted leaves none.
            pass: (meta.compacted < meta.compact_revision)
                .then(|| CompactionPass::new(meta.compact_revision, None, false, meta.revision)),
            wants_thorough: false,
            cleaned: 0, // passes may have left dead records before
            left_for_index: 0,
            records: Arc::default(),
            uncounted: meta.revision,
            compaction_rule: CompactionRule::default(),
            hashes: CompactionHashes::default(),
            ranges,
            index_pace: IndexPace::default(),
            records_since_index,
            index_room: IndexRoom::default(),
            unsaved_long,
            unsaved_bytes: 0,
            replaced: Replaced::default(),
            collector: Arc::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;
    use crate::mvcc::key_history::KeyHistory;
    use crate::mvcc::layout::RECORDS;
    use crate::mvcc::revision::{RecordKey, RecordKind, Revision};

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
