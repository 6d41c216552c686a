//! HashKV: one number for all records up to a revision, the same on every member and the same as etcd's.
//!
//! CRC-32C over the text `key`, then for each record in revision order its key in etcd's form and its value. Of
//! the records at or below the compact revision only those count that are still what their key holds at the hashed
//! revision, whether or not the space of the others is freed already. If no key is left at the hashed revision, etcd
//! counts every record that a compaction leaves in its file; then those count that their key held at the compact
//! revision.
//!
//! A compaction at R reads every record up to R, and computes on the way what HashKV of R was before it: a
//! `CompactionHash`. HashKV of R answers with that from then on, until the tenth newer one or the next start, as etcd
//! does. There is no other way to it: what the compaction drops is a part of that hash.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits;
use crate::mvcc::key_index::{Direction, IndexRoot, Sought};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::reader::Reader;
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::view::View;
use crate::{Error, Result};

/// A hash being computed, step by step.
#[derive(Debug)]
pub struct HashKv {
    view: View,
    revision: i64,
    phase: Phase,
    /// The last record that was looked at.
    last: Revision,
    crc: u32,
}

#[derive(Debug)]
enum Phase {
    /// A compaction has computed it.
    Known(Hashed),
    /// Is there any key at the revision? The next one to look at.
    Looking(Vec<u8>),
    /// Where a record at or below the compact revision must still be its key's newest.
    Hashing { kept_at: i64 },
}

/// A computed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    /// The CRC-32C.
    pub hash: u32,
    /// Up to which revision.
    pub revision: i64,
    /// The compaction it took into account.
    pub compact_revision: i64,
}

/// The hash of the revision that a compaction is at, as it was before; computed while the compaction goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactionHash {
    crc: u32,
    revision: i64,
    /// The compaction before.
    compact_revision: i64,
    /// All that the compaction before has dropped is gone from the tree.
    is_clean: bool,
    /// The compaction keeps something: a tombstone of its very revision, or a key; that is known when it has begun.
    keeps_any: Option<bool>,
}

/// Hashes of the newest compactions, by revision. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompactionHashes(Arc<VecDeque<Hashed>>);

fn begun() -> u32 {
    crc32c::crc32c(b"key")
}

fn with_record(crc: u32, key: RecordKey, bytes: &[u8]) -> u32 {
    let (etcd_key, len) = key.etcd_form();
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &etcd_key[..len]), bytes)
}

/// A record is what its key holds at a revision.
fn is_newest(index: &IndexRoot, key: &[u8], record: Revision, at: i64) -> bool {
    let newest = index.change_at(key, at).and_then(|change| change.live());
    newest.is_some_and(|newest| newest.modified == record)
}

impl CompactionHashes {
    pub(crate) fn get(&self, revision: i64) -> Option<Hashed> {
        self.0.iter().find(|hashed| hashed.revision == revision).copied()
    }

    pub(crate) fn add(&mut self, hashed: Hashed) {
        let hashes = Arc::make_mut(&mut self.0);
        hashes.push_back(hashed);
        if hashes.len() > limits::COMPACTION_HASHES_MAX {
            hashes.pop_front();
        }
    }
}

impl CompactionHash {
    /// Of a compaction at `revision` that is about to begin in the state `reader` reads; `is_clean`: the one before has
    /// dropped all it had to.
    ///
    /// # Errors
    /// When the tree file is damaged.
    pub(crate) fn new(reader: &Reader<'_>, revision: i64, is_clean: bool) -> Result<Self> {
        let mut keeps_tombstone = false;
        // Any tombstone will do, and there are as many puts in a revision as a transaction may have.
        reader.each_record_after(Revision { main: revision - 1, sub: i64::MAX }, |key, record| {
            let record =
                StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
            keeps_tombstone = key.revision.main == revision
                && key.kind == RecordKind::Tombstone
                && reader.index.change_at(record.key, revision).is_some_and(|last| last.live().is_none());
            Ok(key.revision.main == revision && !keeps_tombstone)
        })?;
        let (keeps_any, compact_revision) = (keeps_tombstone.then_some(true), reader.compact_revision);
        Ok(Self { crc: begun(), revision, compact_revision, is_clean, keeps_any })
    }

    /// Of which revision.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Adds a record, before it is dropped. All records up to the revision must come, in order.
    pub(crate) fn add(&mut self, index: &IndexRoot, user_key: &[u8], key: RecordKey, bytes: &[u8]) {
        if key.revision.main <= self.compact_revision {
            // What the compaction before keeps of a tombstone is not part of any hash.
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

    /// To be called before the first record, where it may take long.
    pub(crate) fn begin(&mut self, index: &IndexRoot) {
        self.keeps_any.get_or_insert_with(|| {
            index.scan(KeyRange::ALL, self.revision, Direction::Forward).next().is_some()
        });
    }

    /// The hash, when all records were added. None where records that the compaction before should have dropped may be part of
    /// it.
    pub(crate) fn finish(self) -> Option<Hashed> {
        let is_exact = self.is_clean || self.keeps_any == Some(true);
        let Self { crc: hash, revision, compact_revision, .. } = self;
        is_exact.then_some(Hashed { hash, revision, compact_revision })
    }
}

impl HashKv {
    /// Of everything up to `revision`; 0 is the newest, and below it there is nothing.
    ///
    /// # Errors
    /// [`Error::Compacted`] and [`Error::FutureRevision`].
    pub fn new(view: View, revision: i64) -> Result<Self> {
        let phase = match view.compaction_hash(revision) {
            Some(known) => Phase::Known(known),
            None => Phase::Looking(Vec::new()),
        };
        let is_known = matches!(phase, Phase::Known(_));
        let revision = if revision < 0 || is_known { revision } else { view.reader().resolve(revision)? };
        Ok(Self { view, revision, phase, last: Revision::default(), crc: begun() })
    }

    /// Does at most as much work as hashing so many small records is; the result when there are none left.
    ///
    /// # Errors
    /// When the tree file is damaged.
    pub fn step(&mut self, records: usize) -> Result<Option<Hashed>> {
        match &self.phase {
            Phase::Known(hashed) => Ok(Some(*hashed)),
            Phase::Looking(from) => {
                let from = from.clone();
                self.look(&from, records);
                Ok(None)
            }
            Phase::Hashing { kept_at } => self.hash(*kept_at, records),
        }
    }

    /// Looks for any key that exists at the revision.
    fn look(&mut self, from: &[u8], records: usize) {
        let mut steps =
            records.saturating_mul(limits::HASH_STEPS_PER_RECORD).max(limits::HASH_LOOK_STEPS_MIN);
        let reader = self.view.reader();
        let mut scan = reader.scan(KeyRange::From(from), self.revision, Direction::Forward);
        self.phase = match scan.next_within(&mut steps) {
            Sought::Key(..) => Phase::Hashing { kept_at: self.revision },
            Sought::End => Phase::Hashing { kept_at: reader.compact_revision() },
            Sought::Later => {
                let passed = scan.passed().unwrap_or(from);
                Phase::Looking([passed, &[0]].concat())
            }
        };
    }

    fn hash(&mut self, kept_at: i64, records: usize) -> Result<Option<Hashed>> {
        let reader = self.view.reader();
        let compact = reader.compact_revision();
        let (mut crc, mut last, mut left) = (self.crc, self.last, records);
        reader.each_record_after(self.last, |key, bytes| {
            if key.revision.main > self.revision || left == 0 {
                return Ok(false);
            }
            left = (left - 1).saturating_sub(bytes.len() / limits::HASH_BYTES_PER_RECORD);
            last = key.revision;
            if key.revision.main <= compact {
                let record =
                    StoredRecord::parse(bytes).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
                if !is_newest(reader.index, record.key, key.revision, kept_at) {
                    return Ok(true);
                }
            }
            crc = with_record(crc, key, bytes);
            Ok(true)
        })?;
        (self.crc, self.last) = (crc, last);
        let done = left > 0;
        Ok(done.then_some(Hashed { hash: crc, revision: self.revision, compact_revision: compact }))
    }
}
