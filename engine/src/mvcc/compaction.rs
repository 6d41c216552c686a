//! Compaction, a bounded step with each checkpoint.
//!
//! First the records go, in revision order: whole leaves at a time, and little has to be written.
//! When all are gone, the saved index is swept in key order: histories that have become shorter are
//! written again, each leaf once. Until then the saved index may name records that are gone;
//! opening a store drops those names. A sweep that a crash interrupts begins again.

use std::collections::BTreeSet;

use crate::limits::{COMPACT_BYTES_PER_STEP, COMPACT_RECORDS_PER_STEP};
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction_hash::CompactionHash;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::layout::{RECORDS, StoreMeta};
use crate::mvcc::record::key_of;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// Removes a bounded number of records that the compaction drops, and adds all it looks at to the
/// hash. Only looks at records that were in the tree before this checkpoint; `tree_revision` says
/// up to where those go.
pub(crate) fn compact_step(
    txn: &mut WriteTxn<'_>,
    base: &Snapshot,
    index: &IndexRoot,
    tree_revision: i64,
    to: &mut StoreMeta,
    hashing: &mut Option<CompactionHash>,
) -> Result<BTreeSet<Vec<u8>>> {
    let at = to.compact_revision;
    let (saved, done) = (to.index_revision, to.compacted);
    let is_saved = saved >= at || mutants::is(Mutant::CompactionBeforeIndexSaved);
    assert!(is_saved, "records up to {at} leave the tree, the saved index needs those above {saved}");
    assert!(done < at, "the compaction at {at} goes on, {done} is done");
    if let Some(hash) = hashing {
        hash.begin(index);
    }
    let (mut dropped_keys, mut hashed_bytes) = (BTreeSet::new(), 0);
    let mut cursor = base.cursor(RECORDS);
    cursor.seek(&RecordKey { revision: to.compact_cursor, kind: RecordKind::Put }.encode())?;
    for _ in 0..COMPACT_RECORDS_PER_STEP {
        let next = cursor.next()?;
        let key = match next {
            Some((key, _)) => {
                RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?
            }
            None => RecordKey { revision: Revision { main: i64::MAX, sub: 0 }, kind: RecordKind::Put },
        };
        if key.revision.main > at {
            // Everything up to `at` has been looked at, provided all of it was in the tree.
            if tree_revision >= at {
                to.compacted = at;
                to.compact_cursor = Revision::default();
            }
            return Ok(dropped_keys);
        }
        let record = next.expect("a record was found").1;
        let user_key = key_of(record)?;
        if let Some(hash) = hashing {
            hash.add(index, user_key, key, record);
            hashed_bytes += record.len();
        }
        if !kept(index, user_key, key, at) {
            if !txn.remove(RECORDS, &key.encode())? {
                let Revision { main, sub } = key.revision;
                return Err(Error::corrupt_or_bug(format!(
                    "the record {main}.{sub} lies where it is not looked for"
                )));
            }
            dropped_keys.insert(user_key.to_vec());
        }
        let sub = key.revision.sub.checked_add(1);
        let sub = sub.ok_or_else(|| Error::corrupt("a revision has more changes than there can be"))?;
        to.compact_cursor = Revision { main: key.revision.main, sub };
        if hashed_bytes >= COMPACT_BYTES_PER_STEP {
            break;
        }
    }
    Ok(dropped_keys)
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
