//! Compaction, a bounded step with each checkpoint.
//!
//! First the records go, in revision order: whole leaves at a time, and little has to be written.
//! When all are gone, the saved index is swept in key order: histories that have become shorter are
//! written again, each leaf once. Until then the saved index may name records that are gone;
//! opening a store drops those names. A sweep that a crash interrupts begins again.
//!
//! A start adds the records that the saved index does not have. It does without those that were
//! superseded, since the others say themselves which version of their key they are. But a key whose
//! tombstone is missing would come to life again: a tombstone stays until all of the index is saved
//! behind it, and goes with the next compaction.

use std::collections::BTreeSet;

use crate::limits::{COMPACT_BYTES_PER_STEP, COMPACT_LOOKS_PER_STEP, COMPACT_RECORDS_PER_STEP};
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction_hash::CompactionHash;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::layout::RECORDS;
use crate::mvcc::record::key_of;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// A compaction that frees space, as far as it has come. One runs to its end, whatever is compacted
/// meanwhile; then the newest one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactionPass {
    /// The revision it compacts at.
    pub(crate) at: i64,
    /// It has looked at every record before this one.
    pub(crate) cursor: Revision,
    /// The hash that it computes, if it can.
    pub(crate) hash: Option<CompactionHash>,
    /// It has looked at every record that it may drop.
    pub(crate) is_done: bool,
}

impl CompactionPass {
    /// A pass from the first record on, or from where one was interrupted.
    #[must_use]
    pub(crate) fn new(at: i64, cursor: Revision, hash: Option<CompactionHash>) -> Self {
        Self { at, cursor, hash, is_done: false }
    }

    /// The place to go on from after a restart, which goes on with the newest compaction: the first
    /// record if that is another one.
    #[must_use]
    pub(crate) fn saved_cursor(&self, newest: i64) -> Revision {
        if self.is_done || self.at != newest { Revision::default() } else { self.cursor }
    }

    /// Removes a bounded number of records that the compaction drops, and adds all it looks at to
    /// the hash; returns their keys. Only looks at records that were in the tree before this
    /// checkpoint; `tree_revision` says up to where those go, and `index_revision` up to where all
    /// of the index is saved.
    pub(crate) fn step(
        &mut self,
        txn: &mut WriteTxn<'_>,
        base: &Snapshot,
        index: &IndexRoot,
        tree_revision: i64,
        index_revision: i64,
    ) -> Result<BTreeSet<Vec<u8>>> {
        assert!(!self.is_done, "the compaction at {} goes on, but it is done", self.at);
        if let Some(hash) = &mut self.hash {
            hash.begin(index);
        }
        let (mut dropped, mut dropped_keys, mut hashed_bytes) = (0, BTreeSet::new(), 0);
        let mut cursor = base.cursor(RECORDS);
        cursor.seek(&RecordKey { revision: self.cursor, kind: RecordKind::Put }.encode())?;
        for _ in 0..COMPACT_LOOKS_PER_STEP {
            let next = cursor.next()?;
            let key = match next {
                Some((key, _)) => {
                    RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?
                }
                None => RecordKey { revision: Revision { main: i64::MAX, sub: 0 }, kind: RecordKind::Put },
            };
            if key.revision.main > self.at {
                // Everything up to `at` has been looked at, provided all of it was in the tree.
                self.is_done = tree_revision >= self.at;
                break;
            }
            let record = next.expect("a record was found").1;
            let user_key = key_of(record)?;
            if let Some(hash) = &mut self.hash {
                hash.add(index, user_key, key, record);
                hashed_bytes += record.len();
            }
            let is_needed = key.kind == RecordKind::Tombstone
                && key.revision.main > index_revision
                && !mutants::is(Mutant::CompactionBeforeIndexSaved);
            if !kept(index, user_key, key, self.at) && !is_needed {
                if !txn.remove(RECORDS, &key.encode())? {
                    let Revision { main, sub } = key.revision;
                    return Err(Error::corrupt_or_bug(format!(
                        "the record {main}.{sub} lies where it is not looked for"
                    )));
                }
                dropped_keys.insert(user_key.to_vec());
                dropped += 1;
            }
            let sub = key.revision.sub.checked_add(1);
            let sub = sub.ok_or_else(|| Error::corrupt("a revision has more changes than there can be"))?;
            self.cursor = Revision { main: key.revision.main, sub };
            if dropped >= COMPACT_RECORDS_PER_STEP || hashed_bytes >= COMPACT_BYTES_PER_STEP {
                break;
            }
        }
        Ok(dropped_keys)
    }
}

/// Whether a record at or below `at` stays: it is its key's newest change up to there, and a put or
/// a tombstone of exactly that revision (a watch that starts at `at` must still see it).
fn kept(index: &IndexRoot, user_key: &[u8], record: RecordKey, at: i64) -> bool {
    let newest = index.change_at(user_key, at).map(|change| change.revision);
    match record.kind {
        RecordKind::Put if mutants::is(Mutant::CompactedPutRemoved) && record.revision.main == at => false,
        RecordKind::Put => newest == Some(record.revision),
        RecordKind::Tombstone if mutants::is(Mutant::CompactedDeletionRemoved) => false,
        RecordKind::Tombstone => {
            record.revision.main == at && newest.is_none_or(|newest| newest <= record.revision)
        }
    }
}
