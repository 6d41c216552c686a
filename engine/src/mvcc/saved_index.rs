//! The key index in the tree file: how it is written, made smaller after a compaction, and read
//! back.
//!
//! A checkpoint saves the keys that have changed since the index was saved last. Keys that fit a
//! page are rows of their own; longer ones share the row of their CRC-32C. After a compaction the
//! sweep goes through all of it, a bounded step with each checkpoint, and writes again what has
//! become shorter.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{self, SWEEP_KEYS_PER_STEP, SWEEP_WRITES_PER_STEP, key_bytes_max};
use crate::mutants::{self, Mutant};
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::{IndexRoot, Key, KeyIndex};
use crate::mvcc::layout::{INDEX, INDEX_LONG, RECORDS, StoreMeta};
use crate::mvcc::record::key_of;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::tail::TailView;
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// How far opening a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The saved index is being loaded.
    Keys {
        /// Keys that are loaded.
        loaded: u64,
        /// Keys of the saved index.
        of: u64,
    },
    /// The records above it are being read; so many have been.
    Records(u64),
}

/// Keys with records above revision `after`.
pub(crate) fn changed_keys(base: &Snapshot, tail: &TailView, after: i64) -> Result<BTreeSet<Vec<u8>>> {
    let after = Revision { main: after, sub: i64::MAX };
    let mut keys = BTreeSet::new();
    let mut cursor = base.cursor(RECORDS);
    cursor.seek(&RecordKey { revision: after, kind: RecordKind::Tombstone }.encode())?;
    while let Some((_, record)) = cursor.next()? {
        keys.insert(key_of(record)?.to_vec());
    }
    for (key, record) in tail.after(after) {
        if mutants::is(Mutant::SavedIndexMissesDeletions) && key.kind == RecordKind::Tombstone {
            continue;
        }
        keys.insert(key_of(record)?.to_vec());
    }
    Ok(keys)
}

/// Writes the histories of these keys into the index tables, as they are after the compaction at
/// `compact`.
pub(crate) fn save_keys(
    txn: &mut WriteTxn<'_>,
    base: &Snapshot,
    index: &IndexRoot,
    keys: BTreeSet<Vec<u8>>,
    compact: i64,
) -> Result<()> {
    let key_max = key_bytes_max(base.page_bytes());
    let mut history = Vec::new();
    let mut buckets = BTreeSet::new();
    for key in keys {
        if key.len() > key_max {
            buckets.insert(crc32c::crc32c(&key));
            continue;
        }
        history.clear();
        match index.history(&key).and_then(|history| history.compacted(compact)) {
            Some(kept) => {
                kept.encode(&mut history);
                debug_assert!(KeyHistory::decode(&history).is_some(), "a saved history cannot be read back");
                txn.put(INDEX, &key, &history)?;
            }
            None => {
                txn.remove(INDEX, &key)?;
            }
        }
    }
    if !buckets.is_empty() {
        save_long_keys(txn, index, key_max, &buckets, compact)?;
    }
    Ok(())
}

/// Keys too long for a page are rare: each of their buckets is written anew from the index.
fn save_long_keys(
    txn: &mut WriteTxn<'_>,
    index: &IndexRoot,
    key_max: usize,
    buckets: &BTreeSet<u32>,
    compact: i64,
) -> Result<()> {
    let mut rows: BTreeMap<u32, Vec<u8>> = buckets.iter().map(|bucket| (*bucket, Vec::new())).collect();
    for (key, history) in index.entries() {
        if key.len() <= key_max {
            continue;
        }
        let Some(row) = rows.get_mut(&crc32c::crc32c(key)) else { continue };
        let Some(history) = history.compacted(compact) else { continue };
        let mut encoded = Vec::new();
        history.encode(&mut encoded);
        for part in [key, &encoded] {
            row.extend_from_slice(
                &u32::try_from(part.len()).expect("keys and histories are bounded").to_le_bytes(),
            );
            row.extend_from_slice(part);
        }
    }
    for (bucket, row) in rows {
        if row.is_empty() {
            txn.remove(INDEX_LONG, &bucket.to_be_bytes())?;
        } else {
            txn.put(INDEX_LONG, &bucket.to_be_bytes(), &row)?;
        }
    }
    Ok(())
}

/// How far a sweep of the saved index has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexSweep {
    /// The compaction it follows.
    compacted: i64,
    /// The next key.
    from: Vec<u8>,
}

impl IndexSweep {
    /// A sweep from the first key on.
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
        to: &mut StoreMeta,
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

/// Sweeps all long keys at once: they are rare.
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

/// Loads the saved index, and compacts it: steps of a compaction that happened after it was saved
/// are not in it.
pub(crate) fn load(tree: &Snapshot, meta: StoreMeta, tell: &mut dyn FnMut(Opening)) -> Result<KeyIndex> {
    let malformed = || Error::corrupt("a key's saved history cannot be read");
    let compact = meta.compact_revision;
    let decode = |encoded: &[u8]| {
        KeyHistory::decode(encoded).filter(|history| history.newest().revision.main <= meta.revision)
    };
    let mut failure = None;
    let (mut loaded, of, mut before) = (0_u64, tree.len(INDEX), None);
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
            if before.is_some_and(|before: &[u8]| before >= key) {
                failure = Some(Error::corrupt("the keys of the saved index are out of order"));
                return None;
            }
            before = Some(key);
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
