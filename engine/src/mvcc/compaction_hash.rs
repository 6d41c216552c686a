//! The hash that a compaction computes on its way, and the hashes of compactions that are done.
//!
//! [`crate::mvcc::hash`] says what is hashed. A compaction at R reads every record up to R, and
//! computes what HashKV of R was before it. HashKV of R answers with that from then on, until the
//! tenth newer one or the next start, as etcd does. There is no other way to that hash:
//! records that the compaction drops are a part of it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits;
use crate::mvcc::key_index::{Direction, IndexRoot};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::reader::Reader;
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::{Error, Result};

/// A computed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    /// The CRC-32C.
    pub hash: u32,
    /// The revision up to which records were hashed.
    pub revision: i64,
    /// The compaction it took into account.
    pub compact_revision: i64,
}

/// The hash of the revision that a compaction is at, as it was before; computed while the
/// compaction goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactionHash {
    crc: u32,
    revision: i64,
    /// The compaction before.
    compact_revision: i64,
    /// The compaction keeps something: a tombstone of its very revision, or a key; that is known
    /// when it has begun.
    keeps_any: Option<bool>,
}

/// Hashes of the newest compactions, by revision. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompactionHashes(Arc<VecDeque<Hashed>>);

pub(crate) fn begun() -> u32 {
    crc32c::crc32c(b"key")
}

pub(crate) fn with_record(crc: u32, key: RecordKey, bytes: &[u8]) -> u32 {
    let (etcd_key, len) = key.etcd_form();
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &etcd_key[..len]), bytes)
}

/// Whether a record is its key's newest at a revision, and no tombstone.
pub(crate) fn is_newest(index: &IndexRoot, key: &[u8], record: Revision, at: i64) -> bool {
    let newest = index.change_at(key, at).and_then(|change| change.live());
    newest.is_some_and(|newest| newest.modified == record)
}

impl CompactionHashes {
    pub(crate) fn get(&self, revision: i64) -> Option<Hashed> {
        self.0.iter().find(|hashed| hashed.revision == revision).copied()
    }

    pub(crate) fn newest_first(&self) -> impl Iterator<Item = Hashed> {
        self.0.iter().rev().copied()
    }

    pub(crate) fn add(&mut self, hashed: Hashed) {
        let hashes = Arc::make_mut(&mut self.0);
        let last = hashes.back().map(|last| last.revision);
        assert!(last < Some(hashed.revision), "the hash of {} comes after that of {last:?}", hashed.revision);
        hashes.push_back(hashed);
        if hashes.len() > limits::COMPACTION_HASHES_MAX {
            hashes.pop_front();
        }
    }
}

impl CompactionHash {
    /// The hash of a compaction at `revision` that is about to begin in the state `reader` reads.
    /// The one before has come to its end; what it has left dead is no part of the hash.
    ///
    /// # Errors
    /// When the tree file is damaged.
    pub(crate) fn new(reader: &Reader<'_>, revision: i64) -> Result<Self> {
        let mut keeps_tombstone = false;
        // Any tombstone will do, and there are as many puts in a revision as a transaction may
        // have.
        reader.each_record_after(Revision { main: revision - 1, sub: i64::MAX }, |key, record| {
            let record =
                StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
            keeps_tombstone = key.revision.main == revision
                && key.kind == RecordKind::Tombstone
                && reader.index.change_at(record.key, revision).is_some_and(|last| last.live().is_none());
            Ok(key.revision.main == revision && !keeps_tombstone)
        })?;
        let (keeps_any, compact_revision) = (keeps_tombstone.then_some(true), reader.compact_revision);
        Ok(Self { crc: begun(), revision, compact_revision, keeps_any })
    }

    /// Adds a record, before it is dropped. All records up to the revision must come, in order.
    pub(crate) fn add(&mut self, index: &IndexRoot, user_key: &[u8], key: RecordKey, bytes: &[u8]) {
        let (main, at) = (key.revision.main, self.revision);
        assert!(main <= at, "a record of revision {main} comes to the hash of {at}");
        if main <= self.compact_revision {
            // A tombstone that the compaction before has kept is not part of any hash.
            let counts = match self.keeps_any {
                Some(false) => key.kind == RecordKind::Put,
                _ => is_newest(index, user_key, key.revision, self.revision),
            };
            if !counts {
                return;
            }
        }
        self.crc = with_record(self.crc, key, bytes);
    }

    /// Finds out whether anything is kept: before the first record, on a thread where that may take
    /// long.
    pub(crate) fn begin(&mut self, index: &IndexRoot) {
        self.keeps_any.get_or_insert_with(|| {
            index.scan(KeyRange::ALL, self.revision, Direction::Forward).next().is_some()
        });
    }

    /// The hash, when all records were added.
    pub(crate) fn finish(self) -> Hashed {
        let Self { crc: hash, revision, compact_revision, .. } = self;
        Hashed { hash, revision, compact_revision }
    }
}
