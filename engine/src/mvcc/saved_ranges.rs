//! Up to which revision each range of the saved index is complete.
//!
//! The index is saved a range at a time, from the range that was saved longest ago on. A range ends
//! where a step of saving ended. All of the index is saved up to the oldest of these revisions: a
//! start reads the records above it, and passes over those that the range of their key has.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use crate::mvcc::layout::{INDEX_RANGES, StoreMeta};
use crate::snapshot::Snapshot;
use crate::txn::WriteTxn;
use crate::{Error, Result};

/// Start of the first range in the file: no key of a user is smaller.
const FIRST: &[u8] = &[0];

/// Ranges that cover all keys. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedRanges {
    /// Start -> revision; the first one starts with the empty key. Neighbours differ.
    starts: Arc<BTreeMap<Vec<u8>, i64>>,
}

impl SavedRanges {
    /// One range, of all keys.
    #[must_use]
    pub(crate) fn whole(revision: i64) -> Self {
        Self { starts: Arc::new(BTreeMap::from([(Vec::new(), revision)])) }
    }

    /// Reads them; a file whose index is one range has no rows for it.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn load(tree: &Snapshot, meta: &StoreMeta) -> Result<Self> {
        let mut starts = BTreeMap::new();
        let mut cursor = tree.cursor(INDEX_RANGES);
        cursor.seek(&[])?;
        while let Some((start, row)) = cursor.next()? {
            let revision = row.try_into().ok().map(i64::from_le_bytes);
            let revision =
                revision.filter(|revision| (meta.index_revision..=meta.revision).contains(revision));
            let revision =
                revision.ok_or_else(|| Error::corrupt("a range of the saved index cannot be read"))?;
            starts.insert(if start == FIRST { Vec::new() } else { start.to_vec() }, revision);
        }
        if starts.is_empty() {
            return Ok(Self::whole(meta.index_revision));
        }
        let ranges = Self { starts: Arc::new(starts) };
        if !ranges.starts.contains_key(&[][..]) || ranges.oldest() != meta.index_revision {
            return Err(Error::corrupt("the ranges of the saved index are not all there"));
        }
        Ok(ranges)
    }

    /// The index is one range.
    #[must_use]
    pub(crate) fn is_whole(&self) -> bool {
        self.starts.len() == 1
    }

    /// All of the index is saved up to here.
    #[must_use]
    pub(crate) fn oldest(&self) -> i64 {
        self.starts.values().copied().min().expect("there is a first range")
    }

    /// Start of the range that was saved longest ago; the first of several.
    #[must_use]
    pub(crate) fn oldest_start(&self) -> Vec<u8> {
        let oldest = self.starts.iter().min_by_key(|(_, revision)| **revision);
        oldest.expect("there is a first range").0.clone()
    }

    /// The revision up to which the range of a key is saved.
    #[must_use]
    pub(crate) fn at(&self, key: &[u8]) -> i64 {
        let range = self.starts.range::<[u8], _>((Unbounded, Included(key))).next_back();
        *range.expect("the first range starts before all keys").1
    }

    /// For keys that are asked for in ascending order: a look at few ranges for each.
    pub(crate) fn walk(&self) -> RangesWalk<'_> {
        let mut ranges = self.starts.iter();
        let (_, revision) = ranges.next().expect("there is a first range");
        let next = ranges.next();
        RangesWalk { ranges, next, revision: *revision }
    }

    /// Keys from `from` on and below `end`, or all of them, are saved up to `revision`.
    pub(crate) fn saved(&mut self, from: &[u8], end: Option<&[u8]>, revision: i64) {
        assert!(end.is_none_or(|end| from < end), "a range ends before it begins");
        let behind = end.map(|end| (end, self.at(end)));
        let before = self.starts.range::<[u8], _>((Unbounded, Excluded(from))).next_back();
        let before = before.map(|(_, revision)| *revision);
        let starts = Arc::make_mut(&mut self.starts);
        let is_inside = |start: &[u8]| start >= from && behind.is_none_or(|(end, _)| start <= end);
        let behind_from = starts.range::<[u8], _>((Included(from), Unbounded)).map(|(start, _)| start);
        let inside: Vec<Vec<u8>> = behind_from.take_while(|start| is_inside(start)).cloned().collect();
        inside.iter().for_each(|start| assert!(starts.remove(start).is_some(), "a start was found"));
        if before != Some(revision) {
            starts.insert(from.to_vec(), revision);
        }
        if let Some((end, behind)) = behind.filter(|(_, behind)| *behind != revision) {
            starts.insert(end.to_vec(), behind);
        }
    }

    /// Rows of this state that differ from those of the state before.
    pub(crate) fn write(&self, txn: &mut WriteTxn<'_>, before: &Self) -> Result<()> {
        let rows = |ranges: &Self| if ranges.is_whole() { BTreeMap::new() } else { (*ranges.starts).clone() };
        let (old, new) = (rows(before), rows(self));
        let row_key = |start: &[u8]| if start.is_empty() { FIRST.to_vec() } else { start.to_vec() };
        for start in old.keys().filter(|start| !new.contains_key(*start)) {
            txn.remove(INDEX_RANGES, &row_key(start))?;
        }
        for (start, revision) in new.iter().filter(|(start, revision)| old.get(*start) != Some(revision)) {
            txn.put(INDEX_RANGES, &row_key(start), &revision.to_le_bytes())?;
        }
        Ok(())
    }
}

/// A walk over ranges, beside one over keys.
#[derive(Debug)]
pub(crate) struct RangesWalk<'r> {
    /// Behind the next one.
    ranges: btree_map::Iter<'r, Vec<u8>, i64>,
    next: Option<(&'r Vec<u8>, &'r i64)>,
    /// Of the range that the walk has come to.
    revision: i64,
}

impl RangesWalk<'_> {
    /// The revision up to which the range of a key is saved, which is not below those before.
    pub(crate) fn at(&mut self, key: &[u8]) -> i64 {
        while let Some((_, revision)) = self.next.filter(|(start, _)| ***start <= *key) {
            self.revision = *revision;
            self.next = self.ranges.next();
        }
        self.revision
    }
}

/// The shortest key that is above `before` and not above `key`.
#[must_use]
pub(crate) fn boundary<'k>(before: &[u8], key: &'k [u8]) -> &'k [u8] {
    let same = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    &key[..same + 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_boundary_lies_between_two_keys() {
        for (before, key, between) in
            [("abc", "abd", "abd"), ("ab", "abc", "abc"), ("ab", "bcd", "b"), ("", "xy", "x")]
        {
            assert_eq!(boundary(before.as_bytes(), key.as_bytes()), between.as_bytes());
        }
    }

    /// Random ranges, against one revision for each key of one letter.
    #[test]
    fn each_key_is_saved_up_to_the_last_revision_of_its_range() {
        let (mut random, mut ranges, mut model) = (Random::new(3), SavedRanges::whole(1), [1_i64; 26]);
        let key = |letter: usize| vec![b'a' + u8::try_from(letter).unwrap()];
        for revision in 2..3_000 {
            let from = usize::try_from(random.below(26)).unwrap();
            let end = from + 1 + usize::try_from(random.below(26)).unwrap();
            // Some steps of one commit have one revision.
            let revision = revision / 3;
            let start = if from == 0 { Vec::new() } else { key(from) };
            ranges.saved(&start, (end < 26).then(|| key(end)).as_deref(), revision);
            model[from..end.min(26)].fill(revision);
            let mut walk = ranges.walk();
            for (letter, revision) in model.iter().enumerate() {
                assert_eq!(ranges.at(&key(letter)), *revision);
                // Not all of them: a walk passes over ranges.
                assert!(letter % 3 == 1 || walk.at(&key(letter)) == *revision);
            }
            let runs = 1 + model.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(ranges.starts.len(), runs);
            assert_eq!(ranges.oldest(), *model.iter().min().unwrap());
            assert_eq!(ranges.at(&ranges.oldest_start()), ranges.oldest());
        }
    }
}
