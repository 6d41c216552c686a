//! How many records there are in each bucket of revisions.
//!
//! A store counts what its tree file holds, and a compaction what its keys still need of it: so it
//! knows where records are dead without a look at them. The counts are in memory only; the first
//! compaction behind a start reads what the file had then once.
//!
//! Old keys may have one record among very many revisions: the more buckets have records, the more
//! revisions become one.

use std::collections::BTreeMap;

use crate::limits::{RECORD_BUCKET_REVISIONS, RECORD_BUCKETS_MAX, TALLY_BUCKETS_MAX};

/// Records by bucket, or how their number changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordCounts {
    /// Revisions of a bucket.
    width: i64,
    /// Number of the bucket -> records; none is 0.
    buckets: BTreeMap<i64, i64>,
}

impl Default for RecordCounts {
    fn default() -> Self {
        Self { width: RECORD_BUCKET_REVISIONS, buckets: BTreeMap::new() }
    }
}

impl RecordCounts {
    /// The bucket of a revision.
    #[must_use]
    pub(crate) fn bucket(&self, main: i64) -> i64 {
        main.div_euclid(self.width)
    }

    /// The first revision of a bucket.
    #[must_use]
    pub(crate) fn first_of(&self, bucket: i64) -> i64 {
        bucket.saturating_mul(self.width)
    }

    /// The last revision of a bucket.
    #[must_use]
    pub(crate) fn last_of(&self, bucket: i64) -> i64 {
        (bucket + 1).saturating_mul(self.width).saturating_sub(1)
    }

    /// There are so many more records of a revision.
    pub(crate) fn add(&mut self, main: i64, records: i64) {
        let bucket = self.bucket(main);
        let count = self.buckets.entry(bucket).or_default();
        *count += records;
        if *count == 0 {
            self.buckets.remove(&bucket);
        }
        while self.buckets.len() > RECORD_BUCKETS_MAX {
            self.widen(self.width * 2);
        }
    }

    /// Makes one bucket of several.
    fn widen(&mut self, width: i64) {
        let narrow = std::mem::replace(self, Self { width, buckets: BTreeMap::new() });
        self.merge(&narrow);
    }

    /// Adds all of these.
    pub(crate) fn merge(&mut self, others: &Self) {
        if self.width < others.width {
            self.widen(others.width);
        }
        others.buckets.iter().for_each(|(bucket, records)| self.add(others.first_of(*bucket), *records));
    }

    /// Makes the buckets of both the same.
    pub(crate) fn align(&mut self, other: &mut Self) {
        let width = self.width.max(other.width);
        [self, other]
            .into_iter()
            .filter(|counts| counts.width < width)
            .for_each(|counts| counts.widen(width));
    }

    /// Records of a bucket.
    #[must_use]
    pub(crate) fn of(&self, bucket: i64) -> u64 {
        u64::try_from(self.buckets.get(&bucket).copied().unwrap_or(0)).unwrap_or(0)
    }

    /// Buckets with their records, in order.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (i64, u64)> {
        self.buckets.keys().map(|bucket| (*bucket, self.of(*bucket)))
    }

    /// About how many records have revisions behind this one, the newest of all being `newest`:
    /// those of its bucket are taken to be spread evenly. A bucket may have any number of records,
    /// since one revision may have.
    #[must_use]
    pub(crate) fn after(&self, main: i64, newest: i64) -> u64 {
        let bucket = self.bucket(main);
        let behind = self.buckets.range(bucket.saturating_add(1)..);
        let behind: u64 = behind.map(|(_, records)| u64::try_from(*records).unwrap_or(0)).sum();
        let (first, last) = (self.first_of(bucket), self.last_of(bucket).min(newest));
        let part = u128::from((last - main).max(0).unsigned_abs());
        let whole = u128::from((last - first).max(0).unsigned_abs()) + 1;
        let beside = u128::from(self.of(bucket)) * part / whole;
        behind.saturating_add(u64::try_from(beside).unwrap_or(u64::MAX))
    }

    /// Records of all buckets.
    #[must_use]
    pub(crate) fn all(&self) -> u64 {
        self.buckets().map(|(_, records)| records).sum()
    }
}

/// Records that are counted one by one, in any order of their revisions: a table of the newest
/// buckets is quicker than looking for the bucket of each.
#[derive(Debug)]
pub(crate) struct Tally<'c> {
    counts: &'c mut RecordCounts,
    /// Revisions of a bucket of the table.
    width: i64,
    /// Records by bucket, from the `first` one on; others are added to the counts.
    table: Vec<u32>,
    first: i64,
}

impl<'c> Tally<'c> {
    /// Of revisions up to `newest`, to be added to these counts.
    pub(crate) fn of(counts: &'c mut RecordCounts, newest: i64) -> Self {
        let end = counts.bucket(newest) + 1;
        let first = end.saturating_sub_unsigned(TALLY_BUCKETS_MAX as u64).max(0);
        let table = vec![0; usize::try_from(end - first).unwrap_or(0)];
        Self { width: counts.width, counts, table, first }
    }

    /// There is one more record of a revision.
    pub(crate) fn add(&mut self, main: i64) {
        let bucket = usize::try_from(main.div_euclid(self.width) - self.first).unwrap_or(usize::MAX);
        match self.table.get_mut(bucket) {
            Some(records) => *records += 1,
            None => self.counts.add(main, 1),
        }
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        for (bucket, records) in (self.first..).zip(&self.table).filter(|(_, records)| **records > 0) {
            self.counts.add(bucket * self.width, i64::from(*records));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Revisions before the table and behind its end; the counts become wider while they are added.
    #[test]
    fn a_tally_counts_as_one_by_one() {
        let random = &mut Random::new(7);
        let table = RECORD_BUCKET_REVISIONS * TALLY_BUCKETS_MAX as i64;
        for (newest, records) in
            [(100, 1_000), (5 * RECORD_BUCKET_REVISIONS, 1_000), (table, 1_000), (4 * table, 50_000)]
        {
            let (mut expected, mut counts) = (RecordCounts::default(), RecordCounts::default());
            for counts in [&mut expected, &mut counts] {
                counts.add(3, 5);
                counts.widen(2 * RECORD_BUCKET_REVISIONS);
            }
            let mut tally = Tally::of(&mut counts, newest);
            for _ in 0..records {
                let main = i64::try_from(random.below(2 * newest.unsigned_abs())).unwrap();
                expected.add(main, 1);
                tally.add(main);
            }
            drop(tally);
            assert_eq!(counts, expected);
            let is_wider = counts.width > 2 * RECORD_BUCKET_REVISIONS;
            assert!(is_wider || records < 50_000, "there are too many buckets");
        }
        assert!(Tally::of(&mut RecordCounts::default(), -1).table.is_empty());
        assert_eq!(Tally::of(&mut RecordCounts::default(), i64::MAX).table.len(), TALLY_BUCKETS_MAX);
    }

    /// Revisions of many records each: one bucket has as many as make a start long.
    #[test]
    fn records_behind_a_revision_are_counted_within_its_bucket() {
        let (mut counts, newest) = (RecordCounts::default(), 5 * RECORD_BUCKET_REVISIONS / 2);
        assert_eq!(counts.after(0, 0), 0);
        (0..=newest).for_each(|main| counts.add(main, 100));
        for main in (0..=newest).step_by(7).chain([newest]) {
            let (about, exactly) = (counts.after(main, newest), 100 * (newest - main).unsigned_abs());
            assert!(about.abs_diff(exactly) <= 1, "behind {main}: {about}, not {exactly}");
        }
        assert_eq!(counts.after(newest + 1, newest), 0);
        // None of the first half of a bucket, as behind a start.
        let mut later = RecordCounts::default();
        let middle = RECORD_BUCKET_REVISIONS / 2;
        (middle..newest).for_each(|main| later.add(main, 1));
        let exactly = (newest - middle).unsigned_abs();
        assert!((exactly / 2..=exactly).contains(&later.after(middle - 1, newest)));
    }

    /// A record now and then among very many revisions: few buckets know all of them, and what was
    /// counted before they became wider is taken off again.
    #[test]
    fn the_sparser_records_are_the_wider_are_their_buckets() {
        let mut random = Random::new(1);
        let (mut counts, mut needed) = (RecordCounts::default(), RecordCounts::default());
        let far = 1_000 * RECORD_BUCKET_REVISIONS.unsigned_abs() * RECORD_BUCKETS_MAX as u64;
        let revisions: Vec<i64> =
            (0..10 * RECORD_BUCKETS_MAX).map(|_| random.below(far).cast_signed()).collect();
        let mut most = 0;
        for main in &revisions {
            counts.add(*main, 1);
            most = most.max(counts.buckets.len());
        }
        assert!((RECORD_BUCKETS_MAX / 4..=RECORD_BUCKETS_MAX).contains(&counts.buckets.len()));
        assert_eq!((most, counts.all()), (RECORD_BUCKETS_MAX, revisions.len() as u64));
        // Few are needed, in buckets that are narrow still.
        let (some, gone) = revisions.split_at(RECORD_BUCKETS_MAX / 2);
        some.iter().for_each(|main| needed.add(*main, 1));
        assert!(needed.width < counts.width);
        let mut fewer = RecordCounts::default();
        gone.iter().for_each(|main| fewer.add(*main, -1));
        counts.merge(&fewer);
        counts.align(&mut needed);
        assert_eq!(counts, needed);
        for main in some {
            let bucket = counts.bucket(*main);
            assert!((counts.first_of(bucket)..=counts.last_of(bucket)).contains(main));
            assert!(counts.of(bucket) > 0);
        }
        counts.merge(&needed);
        assert_eq!(counts.all(), 2 * some.len() as u64);
    }
}
