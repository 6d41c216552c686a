//! Reading the key space at one moment: shared by Views and by transactions that see their own
//! writes.

use crate::mvcc::key_history::KeyMeta;
use crate::mvcc::key_index::{Counting, Created, CreatedSearch, Direction, IndexRoot, Scan};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::layout::RECORDS;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::tail::{Tail, TailRecord, TailView};
use crate::snapshot::Snapshot;
use crate::{Error, Result};

/// The records that are not in the tree file yet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TailRef<'r> {
    Shared(&'r TailView),
    Writer(&'r Tail),
}

/// A consistent state to read from.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'r> {
    pub(crate) index: &'r IndexRoot,
    pub(crate) tail: TailRef<'r>,
    pub(crate) tree: &'r Snapshot,
    /// The tree holds the records up to this revision, the tail those above.
    pub(crate) tree_revision: i64,
    pub(crate) revision: i64,
    pub(crate) compact_revision: i64,
    /// Compactions have removed records up to here, or may have.
    pub(crate) trimmed: i64,
}

impl<'r> Reader<'r> {
    /// Newest revision; inside a transaction that has changed something, its own.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Oldest readable revision, -1 before the first compaction.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    /// Whether every record above `after` is still there. A compaction removes records some time
    /// after the revision from which on everything is readable has moved; what is there at that
    /// revision itself stays.
    #[must_use]
    pub fn is_whole_after(&self, after: i64) -> bool {
        after + 1 >= self.compact_revision || after >= self.trimmed
    }

    /// The revision a request means: 0 or less is the newest.
    ///
    /// # Errors
    /// [`Error::FutureRevision`] and [`Error::Compacted`].
    pub fn resolve(&self, requested: i64) -> Result<i64> {
        if requested > self.revision {
            return Err(Error::FutureRevision { current: self.revision });
        }
        if requested <= 0 {
            return Ok(self.revision);
        }
        if requested < self.compact_revision {
            return Err(Error::Compacted { compact_revision: self.compact_revision });
        }
        Ok(requested)
    }

    /// A key at a revision.
    #[must_use]
    pub fn get(&self, key: &[u8], at: i64) -> Option<KeyMeta> {
        self.index.get(key, at)
    }

    /// Keys of a range at a revision, in order.
    #[must_use]
    pub fn scan(&self, range: KeyRange<'r>, at: i64, direction: Direction) -> Scan<'r> {
        self.index.scan(range, at, direction)
    }

    /// Searches a range for a key by when it was created, step by step.
    #[must_use]
    pub fn created(&self, range: KeyRange<'r>, wanted: Created) -> CreatedSearch<'r> {
        self.index.created(range, wanted)
    }

    /// How many keys of a range exist at a revision, to be found out step by step: at once where
    /// nothing in it has changed since.
    #[must_use]
    pub fn counting(&self, range: KeyRange<'r>, at: i64) -> Counting<'r> {
        self.index.counting(range, at)
    }

    /// How many keys of a range exist at a revision; for those who may take as long as that takes.
    #[must_use]
    pub fn count(&self, range: KeyRange<'r>, at: i64) -> u64 {
        let mut counting = self.counting(range, at);
        loop {
            let mut steps = usize::MAX;
            if let Some(count) = counting.step(&mut steps) {
                return count;
            }
        }
    }

    /// The encoded `mvccpb.KeyValue` of a put at this revision.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is not there although the index names it.
    pub fn record(&self, revision: Revision) -> Result<&'r [u8]> {
        let found = if revision.main > self.tree_revision {
            match self.tail {
                TailRef::Shared(tail) => tail.get(revision),
                TailRef::Writer(tail) => tail.get(revision),
            }
            .map(|(_, bytes)| bytes)
        } else {
            self.tree.get(RECORDS, &RecordKey { revision, kind: RecordKind::Put }.encode())?
        };
        found.ok_or_else(|| {
            Error::corrupt(format!(
                "the index names the record {}.{}, which is gone",
                revision.main, revision.sub
            ))
        })
    }

    /// Shows every record above `after` in revision order until the visitor says false.
    ///
    /// # Errors
    /// When the tree file is damaged, or what the visitor returns.
    pub fn each_record_after(
        &self,
        after: Revision,
        mut visit: impl FnMut(RecordKey, &'r [u8]) -> Result<bool>,
    ) -> Result<()> {
        if after.main <= self.tree_revision {
            let mut cursor = self.tree.cursor(RECORDS);
            // Behind any kind of record of that very revision.
            let first = Revision { main: after.main, sub: after.sub.saturating_add(1) };
            cursor.seek(&RecordKey { revision: first, kind: RecordKind::Put }.encode())?;
            while let Some((key, bytes)) = cursor.next()? {
                let key =
                    RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?;
                if key.revision.main > self.tree_revision {
                    break;
                }
                if key.revision > after && !visit(key, bytes)? {
                    return Ok(());
                }
            }
        }
        let after = after.max(Revision { main: self.tree_revision, sub: i64::MAX });
        let mut visit_all = |records: &mut dyn Iterator<Item = TailRecord<'r>>| -> Result<()> {
            for (key, bytes) in records {
                if !visit(key, bytes)? {
                    break;
                }
            }
            Ok(())
        };
        match self.tail {
            TailRef::Shared(tail) => visit_all(&mut tail.after(after)),
            TailRef::Writer(tail) => visit_all(&mut tail.after(after)),
        }
    }
}
