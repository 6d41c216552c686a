//! Compaction, a bounded step with each checkpoint.
//!
//! First the records go, in revision order: whole leaves at a time, and little has to be written. When all are gone, the
//! saved index is swept in key order: histories that have become shorter are written again, each leaf once. Until then
//! the saved index may name records that are gone; opening a store drops those names. A sweep that a crash interrupts
//! begins again.

use std::collections::BTreeSet;

use crate::limits::{
    COMPACT_BYTES_PER_STEP, COMPACT_RECORDS_PER_STEP, SWEEP_KEYS_PER_STEP, SWEEP_WRITES_PER_STEP,
    key_bytes_max,
};
use crate::mvcc::checkpoint::{key_of, save_keys, save_long_keys};
use crate::mvcc::hash::CompactionHash;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::layout::{INDEX, INDEX_LONG, RECORDS, Standing};
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::store::Store;
use crate::txn::{Snapshot, WriteTxn};
use crate::{Error, Result};

/// Where the sweep of the saved index is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexSweep {
    /// The compaction it follows.
    compacted: i64,
    /// The next key.
    from: Vec<u8>,
}

impl Store {
    /// Space that a compaction frees is not all free yet.
    #[must_use]
    pub fn compaction_pending(&self) -> bool {
        self.saved.compacted < self.standing.compact_revision
    }

    /// The saved index still has to be made smaller.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// Has at most `keys_max` keys forget revisions that are gone; true if there are more of them.
    pub fn forget_compacted(&mut self, keys_max: usize) -> bool {
        let at = self.saved.compact_revision;
        for _ in 0..keys_max {
            let Some(key) = self.to_compact.pop_front() else { return false };
            let forgotten = self.index.compact_key(&key, at);
            self.replaced.count_many(forgotten);
        }
        !self.to_compact.is_empty()
    }
}

/// Removes a bounded number of records that the compaction drops, and adds all it looks at to the hash. Only looks at
/// records that were in the tree before this checkpoint; `tree_revision` says up to where those go.
pub(crate) fn compact_step(
    txn: &mut WriteTxn<'_>,
    base: &Snapshot,
    index: &IndexRoot,
    tree_revision: i64,
    to: &mut Standing,
    hashing: &mut Option<CompactionHash>,
) -> Result<BTreeSet<Vec<u8>>> {
    let at = to.compact_revision;
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
            txn.remove(RECORDS, &key.encode())?;
            dropped_keys.insert(user_key.to_vec());
        }
        to.compact_cursor = Revision { main: key.revision.main, sub: key.revision.sub + 1 };
        if hashed_bytes >= COMPACT_BYTES_PER_STEP {
            break;
        }
    }
    Ok(dropped_keys)
}

/// Whether a record at or below `at` stays: it is its key's newest change up to there, and a put or a tombstone of
/// exactly that revision (a watch that starts at `at` must still see it).
fn kept(index: &IndexRoot, user_key: &[u8], record: RecordKey, at: i64) -> bool {
    let newest = index.change_at(user_key, at).map(|change| change.revision);
    match record.kind {
        RecordKind::Put => newest == Some(record.revision),
        RecordKind::Tombstone => {
            record.revision.main == at && newest.is_none_or(|newest| newest <= record.revision)
        }
    }
}

impl IndexSweep {
    /// From the first key on.
    #[must_use]
    pub(crate) fn new(compacted: i64) -> Self {
        Self { compacted, from: Vec::new() }
    }

    /// Looks at a bounded number of keys; none when all are done.
    pub(crate) fn step(
        mut self,
        txn: &mut WriteTxn<'_>,
        base: &Snapshot,
        index: &IndexRoot,
        to: &mut Standing,
    ) -> Result<Option<Self>> {
        let mut shorter = BTreeSet::new();
        let mut history = Vec::new();
        let mut cursor = base.cursor(INDEX);
        cursor.seek(&self.from)?;
        for _ in 0..SWEEP_KEYS_PER_STEP {
            let next = cursor.next()?;
            let Some((key, saved)) = next.filter(|_| shorter.len() < SWEEP_WRITES_PER_STEP) else {
                self.from = next.map(|(key, _)| key.to_vec()).unwrap_or_default();
                break;
            };
            history.clear();
            if let Some(kept) = index.history(key).and_then(|history| history.compacted(to.compact_revision))
            {
                kept.encode(&mut history);
            }
            if history.len() < saved.len() {
                shorter.insert(key.to_vec());
            }
            self.from = [key, &[0]].concat();
        }
        let at_end = cursor.next()?.is_none() && shorter.len() < SWEEP_WRITES_PER_STEP;
        save_keys(txn, base, index, shorter, to.compact_revision)?;
        if !at_end {
            return Ok(Some(self));
        }
        sweep_long_keys(txn, base, index, to.compact_revision)?;
        to.swept = self.compacted;
        Ok(None)
    }
}

/// They are rare: all at once.
fn sweep_long_keys(txn: &mut WriteTxn<'_>, base: &Snapshot, index: &IndexRoot, compact: i64) -> Result<()> {
    let mut buckets = BTreeSet::new();
    let mut cursor = base.cursor(INDEX_LONG);
    cursor.seek(&[])?;
    while let Some((bucket, _)) = cursor.next()? {
        let bucket = bucket.try_into().map_err(|_| Error::corrupt("a bucket of long keys cannot be read"))?;
        buckets.insert(u32::from_be_bytes(bucket));
    }
    if buckets.is_empty() {
        return Ok(());
    }
    save_long_keys(txn, index, key_bytes_max(base.page_bytes()), &buckets, compact)
}
