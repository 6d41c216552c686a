//! The key index in the tree file: how it is written, range by range, and read back.
//!
//! A step of saving walks a range of keys in memory and in the file side by side, and writes what
//! differs. So the file's rows of a range become those of the moment, whatever has happened since
//! they were written: changes, deletions, and what compactions have made shorter. Keys that fit a
//! page are rows of their own. Longer ones share the row of their CRC-32C; they are rare, and each
//! checkpoint saves those that have changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{self, INDEX_STEP_BYTES, SWEEP_KEYS_PER_STEP, SWEEP_LONG_ROWS_PER_STEP, key_bytes_max};
use crate::mutants::{self, Mutant};
use crate::mvcc::key_history::KeyHistory;
use crate::mvcc::key_index::{IndexRoot, Key, KeyIndex};
use crate::mvcc::layout::{INDEX, INDEX_LONG, StoreMeta};
use crate::mvcc::saved_ranges::{SavedRanges, boundary};
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

/// A checkpoint's view of the index: what is in memory goes to the file.
pub(crate) struct IndexWriter<'w, 'd> {
    pub(crate) txn: &'w mut WriteTxn<'d>,
    pub(crate) base: &'w Snapshot,
    /// As of `revision`.
    pub(crate) index: &'w IndexRoot,
    pub(crate) revision: i64,
    /// The compaction that histories are saved after.
    pub(crate) compact: i64,
}

/// A step of saving.
struct SavedRange {
    /// Keys that were looked at.
    keys: u64,
    /// Where it ended; none at the end of all keys.
    end: Option<Vec<u8>>,
}

impl IndexWriter<'_, '_> {
    /// Saves about so many keys of the ranges that were saved longest ago; returns how many.
    pub(crate) fn save(&mut self, ranges: &mut SavedRanges, keys_max: u64) -> Result<u64> {
        let mut keys = 0;
        while keys < keys_max && ranges.oldest() < self.revision {
            let from = ranges.oldest_start();
            let range = self.save_range(&from, keys_max - keys)?;
            ranges.saved(&from, range.end.as_deref(), self.revision);
            keys += range.keys;
        }
        Ok(keys)
    }

    /// Saves the keys from `from` on, at most `keys_max` and not much more than
    /// `INDEX_STEP_BYTES`.
    fn save_range(&mut self, from: &[u8], keys_max: u64) -> Result<SavedRange> {
        let key_max = key_bytes_max(self.base.page_bytes());
        let mut rows = self.base.cursor(INDEX);
        rows.seek(from)?;
        let mut row = rows.next()?;
        let mut entries = self.index.entries_from(from).peekable();
        let (mut keys, mut bytes, mut last, mut history) = (0, 0, Vec::new(), Vec::new());
        loop {
            let entry = entries.peek().copied();
            let of_row = row.filter(|(key, _)| entry.is_none_or(|(other, _)| *key <= other));
            let of_entry = entry.filter(|(key, _)| row.is_none_or(|(other, _)| *key <= other));
            let Some(key) = of_row.map(|(key, _)| key).or(of_entry.map(|(key, _)| key)) else {
                return Ok(SavedRange { keys, end: None });
            };
            if key < from || (keys > 0 && key <= &last[..]) {
                return Err(Error::corrupt("the keys of the saved index are out of order"));
            }
            if keys > 0 {
                // A range starts with a key that is the key of a row.
                let end = boundary(&last, key);
                if (keys >= keys_max || bytes >= INDEX_STEP_BYTES) && end.len() <= key_max {
                    return Ok(SavedRange { keys, end: Some(end.to_vec()) });
                }
            }
            history.clear();
            let newest = of_entry.map(|(_, history)| history.newest());
            let is_kept =
                of_entry.is_some_and(|(_, entry)| entry.encode_compacted(self.compact, &mut history));
            let is_missed = mutants::is(Mutant::SavedIndexMissesDeletions)
                && newest.is_none_or(|newest| newest.live().is_none());
            let saved = of_row.map(|(_, saved)| saved);
            if key.len() <= key_max && !is_missed && saved != is_kept.then_some(&history[..]) {
                if is_kept {
                    debug_assert!(KeyHistory::decode(&history).is_some(), "a history cannot be read back");
                    self.txn.put(INDEX, key, &history)?;
                } else {
                    self.txn.remove(INDEX, key)?;
                }
            }
            keys += 1;
            bytes += key.len() + history.len().max(saved.map_or(0, <[u8]>::len));
            last.clear();
            last.extend_from_slice(key);
            if of_row.is_some() {
                row = rows.next()?;
            }
            if of_entry.is_some() {
                entries.next();
            }
        }
    }

    /// Saves keys too long for a page: the rows that they are in are written anew.
    pub(crate) fn save_long(&mut self, keys: &BTreeSet<Vec<u8>>) -> Result<()> {
        let mut buckets: BTreeMap<u32, BTreeSet<&[u8]>> = BTreeMap::new();
        for key in keys {
            buckets.entry(crc32c::crc32c(key)).or_default().insert(key);
        }
        for (bucket, mut keys) in buckets {
            let bucket = bucket.to_be_bytes();
            let saved = self.base.get(INDEX_LONG, &bucket)?.unwrap_or_default();
            for (key, _) in long_keys(saved)? {
                keys.insert(key);
            }
            self.write_long(&bucket, saved, &keys)?;
        }
        Ok(())
    }

    fn write_long(&mut self, bucket: &[u8], saved: &[u8], keys: &BTreeSet<&[u8]>) -> Result<()> {
        let (mut row, mut encoded) = (Vec::new(), Vec::new());
        for key in keys {
            encoded.clear();
            let Some(history) = self.index.history(key) else { continue };
            if !history.encode_compacted(self.compact, &mut encoded) {
                continue;
            }
            for part in [key, &encoded[..]] {
                let len = u32::try_from(part.len()).expect("keys and histories are bounded");
                row.extend_from_slice(&len.to_le_bytes());
                row.extend_from_slice(part);
            }
        }
        match row.is_empty() {
            _ if row == saved => {}
            true => drop(self.txn.remove(INDEX_LONG, bucket)?),
            false => drop(self.txn.put(INDEX_LONG, bucket, &row)?),
        }
        Ok(())
    }

    /// Looks at a bounded number of rows of long keys, from `from` on; the row to go on from.
    fn sweep_long(&mut self, from: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut rows = self.base.cursor(INDEX_LONG);
        rows.seek(from)?;
        let mut bytes = 0;
        for at in 0.. {
            let Some((bucket, saved)) = rows.next()? else { break };
            if at >= SWEEP_LONG_ROWS_PER_STEP || bytes >= INDEX_STEP_BYTES {
                return Ok(Some(bucket.to_vec()));
            }
            if bucket.len() != size_of::<u32>() {
                return Err(Error::corrupt("a row of long keys has no checksum for its key"));
            }
            bytes += saved.len();
            let keys = long_keys(saved)?.into_iter().map(|(key, _)| key).collect();
            self.write_long(bucket, saved, &keys)?;
        }
        Ok(None)
    }
}

/// How far a sweep of the saved index has come: after a compaction all of it is saved anew, a step
/// with each checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexSweep {
    /// The compaction it follows.
    compacted: i64,
    /// The next key; none when only long keys are left.
    from: Option<Vec<u8>>,
    /// The next row of long keys.
    from_long: Vec<u8>,
}

impl IndexSweep {
    /// A sweep from the first key on.
    #[must_use]
    pub(crate) fn new(compacted: i64) -> Self {
        Self { compacted, from: Some(Vec::new()), from_long: Vec::new() }
    }

    /// Saves a bounded number of keys; none when all are done.
    pub(crate) fn step(
        mut self,
        writer: &mut IndexWriter<'_, '_>,
        ranges: &mut SavedRanges,
        to: &mut StoreMeta,
    ) -> Result<Option<Self>> {
        if let Some(from) = &self.from {
            let range = writer.save_range(from, SWEEP_KEYS_PER_STEP)?;
            ranges.saved(from, range.end.as_deref(), writer.revision);
            self.from = range.end;
        }
        if self.from.is_some() {
            return Ok(Some(self));
        }
        match writer.sweep_long(&self.from_long)? {
            Some(next) => Ok(Some(Self { from_long: next, ..self })),
            None => {
                to.swept = self.compacted;
                Ok(None)
            }
        }
    }
}

/// Keys of the index, from one on and below another, or all behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexPart {
    pub(crate) from: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

impl IndexPart {
    /// Parts that hold about as much of the saved index each, in their order; fewer if the index is
    /// small.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn divide(tree: &Snapshot, parts: usize) -> Result<Vec<Self>> {
        let mut starts = vec![Vec::new()];
        starts.extend(tree.dividing_keys(INDEX, parts)?.into_iter().map(<[u8]>::to_vec));
        let ends = starts.iter().skip(1).cloned().map(Some).chain([None]);
        Ok(starts.clone().into_iter().zip(ends).map(|(from, end)| Self { from, end }).collect())
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.end.as_deref().is_none_or(|end| key < end)
    }
}

/// Loads a part of the saved index, and compacts it: steps of a compaction that happened after it
/// was saved are not in it. Returns with it how many keys that fit a page it has read; `tell` is
/// called for some of them.
pub(crate) fn load(
    tree: &Snapshot,
    meta: StoreMeta,
    part: &IndexPart,
    tell: &mut dyn FnMut(),
) -> Result<(KeyIndex, u64)> {
    let compact = meta.compact_revision;
    let decode = |encoded: &[u8]| {
        KeyHistory::decode(encoded).filter(|history| history.newest().revision.main <= meta.revision)
    };
    let mut failure = None;
    let (mut loaded, mut before) = (0_u64, None);
    let mut cursor = tree.cursor(INDEX);
    cursor.seek(&part.from)?;
    let keys = std::iter::from_fn(|| {
        loop {
            let (key, encoded) = match cursor.next() {
                Ok(next) => next.filter(|(key, _)| part.end.as_deref().is_none_or(|end| *key < end))?,
                Err(error) => {
                    failure = Some(error);
                    return None;
                }
            };
            loaded += 1;
            if loaded.is_multiple_of(limits::RESTORED_PER_REPORT) {
                tell();
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
    while let Some((_, row)) = cursor.next()? {
        for (key, history) in long_keys(row)?.into_iter().filter(|(key, _)| part.has(key)) {
            let history = decode(history).ok_or_else(malformed)?;
            if let Some(history) = history.compacted(compact) {
                index.set(key, history);
            }
        }
    }
    Ok((index, loaded))
}

fn malformed() -> Error {
    Error::corrupt("a key's saved history cannot be read")
}

/// The keys of a row of long keys, with their encoded histories.
fn long_keys(mut row: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut keys = Vec::new();
    while !row.is_empty() {
        let key = take_part(&mut row).ok_or_else(malformed)?;
        keys.push((key, take_part(&mut row).ok_or_else(malformed)?));
    }
    Ok(keys)
}

fn take_part<'r>(row: &mut &'r [u8]) -> Option<&'r [u8]> {
    let (len, rest) = row.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *row = rest;
    Some(part)
}
