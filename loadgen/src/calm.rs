//! Calls outside the stalls of the disk: a server that keeps writes can answer none while its disk
//! stands still, and a raw fdatasync beside it tells when that was.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::record::OpRecord;

/// From so many microseconds on a raw fdatasync shows that the disk stands still.
pub const STALL: f64 = 20_000.0;

/// The calls of one kind that ended in seconds without a stall of the disk. Times are microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CalmResult {
    /// So many seconds.
    pub seconds: usize,
    /// 999 of 1000 were faster.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

impl CalmResult {
    /// Of a record beside the slowest raw fdatasync of each of its seconds; none where nothing is
    /// known of the disk, or no call ended in such a second.
    ///
    /// # Panics
    /// Never: a histogram that grows takes everything.
    #[must_use]
    pub fn of(record: &OpRecord, probe: &[f64]) -> Option<Self> {
        if probe.is_empty() {
            return None;
        }
        let calm = || record.seconds.iter().enumerate().filter(|(second, _)| is_calm(probe, *second));
        let first = record.seconds.first()?;
        let mut all: Histogram<u32> = Histogram::new(first.latency.sigfig()).expect("it was allowed before");
        calm().for_each(|(_, second)| all.add(&second.latency).expect("it grows"));
        if all.is_empty() {
            return None;
        }
        // Seconds keep a digit less than the whole run.
        let us = |nanos: u64| nanos.min(record.latency.max()) as f64 / 1e3;
        Some(Self { seconds: calm().count(), p999: us(all.value_at_percentile(99.9)), max: us(all.max()) })
    }
}

/// Whether neither this second nor the one before has a stall of the disk: after one, calls that
/// have waited are answered for a while.
fn is_calm(probe: &[f64], second: usize) -> bool {
    let is_quick = |at: usize| probe.get(at).is_some_and(|slowest| *slowest < STALL);
    is_quick(second) && (second == 0 || is_quick(second - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND;

    #[test]
    fn seconds_of_a_stall_and_the_one_behind_it_are_left_out() {
        let mut record = OpRecord::new("put");
        for (second, slowest) in (0..).zip([1_000_000, 900_000_000, 800_000_000, 42_000_000, 700_000_000]) {
            (0..5_000).for_each(|_| record.add(1_000, 1_000, second * SECOND));
            (0..6).for_each(|_| record.add(slowest, slowest, second * SECOND));
        }
        // Of the last second nothing is known of the disk.
        let calm = CalmResult::of(&record, &[500.0, 850_000.0, 600.0, 700.0]).unwrap();
        assert_eq!(calm.seconds, 2, "the first one and the fourth");
        assert!((41_000.0..=42_500.0).contains(&calm.max), "{calm:?}");
        // Six in five thousand are more than one in a thousand of one second, and less of two.
        assert!((1_000.0..1_100.0).contains(&calm.p999), "{calm:?}");
        assert_eq!(CalmResult::of(&record, &[]), None);
        assert_eq!(CalmResult::of(&record, &[850_000.0]), None);
    }
}
