//! How many records there are in each bucket of revisions.
//!
//! A store counts what its tree file holds, and a compaction what its keys still need of it: so it
//! knows where records are dead without a look at them. The counts are in memory only; the first
//! compaction behind a start reads what the file had then once.

use std::collections::BTreeMap;

use crate::limits::RECORD_BUCKET_REVISIONS;

/// Records by bucket, or how their number changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecordCounts {
    /// Number of the bucket -> records; none is 0.
    buckets: BTreeMap<i64, i64>,
}

impl RecordCounts {
    /// The bucket of a revision.
    #[must_use]
    pub(crate) fn bucket(main: i64) -> i64 {
        main.div_euclid(RECORD_BUCKET_REVISIONS)
    }

    /// The last revision of a bucket.
    #[must_use]
    pub(crate) fn last_of(bucket: i64) -> i64 {
        (bucket + 1).saturating_mul(RECORD_BUCKET_REVISIONS).saturating_sub(1)
    }

    /// There are so many more records of a revision.
    pub(crate) fn add(&mut self, main: i64, records: i64) {
        self.add_to(Self::bucket(main), records);
    }

    fn add_to(&mut self, bucket: i64, records: i64) {
        let count = self.buckets.entry(bucket).or_default();
        *count += records;
        if *count == 0 {
            self.buckets.remove(&bucket);
        }
    }

    /// Adds all of these.
    pub(crate) fn merge(&mut self, others: &Self) {
        others.buckets.iter().for_each(|(bucket, records)| self.add_to(*bucket, *records));
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

    /// Records of all buckets.
    #[must_use]
    pub(crate) fn all(&self) -> u64 {
        self.buckets().map(|(_, records)| records).sum()
    }
}
