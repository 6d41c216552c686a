//! Measurements: latencies in histograms, seconds one by one, errors by kind.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::clock::SECOND;

/// Digits that the whole run keeps; a second keeps one less.
const DIGITS: u8 = 3;
const SECOND_DIGITS: u8 = 2;
/// Kinds of errors that are told apart.
const ERROR_KINDS_MAX: usize = 50;
const OTHER_ERRORS: &str = "other errors";

/// One kind of operation. All times are nanoseconds.
#[derive(Debug, Clone)]
pub struct OpRecord {
    /// The name of the operation.
    pub name: String,
    /// From when it was meant to begin.
    pub latency: Histogram<u64>,
    /// From when it was sent; the same in a closed loop.
    pub service: Histogram<u64>,
    /// Second by second, from the end of the warm-up.
    pub seconds: Vec<SecondRecord>,
    /// Failures by error message.
    pub errors: BTreeMap<String, u64>,
    /// Compare and swap conflicts, tried again.
    pub conflicts: u64,
}

/// Calls that ended in one second.
#[derive(Debug, Clone)]
pub struct SecondRecord {
    /// Latencies.
    pub latency: Histogram<u32>,
    /// Failures.
    pub errors: u64,
}

impl SecondRecord {
    fn new() -> Self {
        Self { latency: Histogram::new(SECOND_DIGITS).expect("two digits are allowed"), errors: 0 }
    }
}

/// An empty histogram that grows as it has to.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new(DIGITS).expect("three digits are allowed")
}

impl OpRecord {
    /// Nothing yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            latency: histogram(),
            service: histogram(),
            seconds: Vec::new(),
            errors: BTreeMap::new(),
            conflicts: 0,
        }
    }

    /// Something took so long and ended `at` after the end of the warm-up.
    pub fn add(&mut self, latency: u64, service: u64, at: u64) {
        // Zero has no place in these histograms.
        self.latency += latency.max(1);
        self.service += service.max(1);
        self.second(at).latency += latency.max(1);
    }

    /// Something failed.
    pub fn fail(&mut self, what: &str, at: u64) {
        self.second(at).errors += 1;
        self.note(what, 1);
    }

    fn note(&mut self, what: &str, times: u64) {
        let is_known = self.errors.contains_key(what) || self.errors.len() < ERROR_KINDS_MAX;
        *self.errors.entry(if is_known { what } else { OTHER_ERRORS }.to_owned()).or_default() += times;
    }

    fn second(&mut self, at: u64) -> &mut SecondRecord {
        /// Longer runs have their last second here.
        const SECONDS_MAX: u64 = 1_000_000;
        let number = usize::try_from((at / SECOND).min(SECONDS_MAX)).unwrap_or(0);
        while self.seconds.len() <= number {
            self.seconds.push(SecondRecord::new());
        }
        &mut self.seconds[number]
    }

    /// Adds another thread's measurements.
    ///
    /// # Panics
    /// Never: histograms that grow take everything.
    pub fn merge(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("it grows");
        self.service.add(&other.service).expect("it grows");
        self.conflicts += other.conflicts;
        while self.seconds.len() < other.seconds.len() {
            self.seconds.push(SecondRecord::new());
        }
        for (own, others) in self.seconds.iter_mut().zip(&other.seconds) {
            own.latency.add(&others.latency).expect("it grows");
            own.errors += others.errors;
        }
        other.errors.iter().for_each(|(what, times)| self.note(what, *times));
    }

    /// How many failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};

    /// Percentiles are those of the sorted samples, to three digits, however they were spread over
    /// threads.
    #[test]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times and ranks")]
    fn percentiles_are_those_of_a_sorted_list() {
        let mut random = SmallRng::seed_from_u64(5);
        let mut samples = Vec::new();
        let mut records = vec![OpRecord::new("a"), OpRecord::new("a"), OpRecord::new("a")];
        for at in 0..100_000_u64 {
            let sample = 10_f64.powf(random.random_range(3.0..10.0)) as u64;
            samples.push(sample);
            records[usize::try_from(at % 3).unwrap()].add(sample, sample, at * 1_000_000);
        }
        samples.sort_unstable();
        let mut all = records.remove(0);
        records.iter().for_each(|record| all.merge(record));
        assert_eq!(all.latency.len(), 100_000);
        assert_eq!(all.seconds.len(), 100);
        assert_eq!(all.seconds.iter().map(|second| second.latency.len()).sum::<u64>(), 100_000);
        for percentile in [0.1, 1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
            let rank = ((percentile / 100.0 * 100_000.0_f64).ceil() as usize).max(1);
            let (exact, shown) = (samples[rank - 1], all.latency.value_at_percentile(percentile));
            let error = shown.abs_diff(exact) as f64 / exact as f64;
            assert!(error <= 0.001, "p{percentile}: {shown} instead of {exact}");
        }
        let mean = samples.iter().map(|sample| *sample as f64).sum::<f64>() / 100_000.0;
        assert!((all.latency.mean() / mean - 1.0).abs() < 0.001);
    }

    #[test]
    fn errors_are_counted_by_kind_within_a_bound() {
        let mut record = OpRecord::new("a");
        for number in 0..1000 {
            record.fail(&format!("error {number}"), 0);
            record.fail("the same", 0);
        }
        assert_eq!(record.failed(), 2000);
        assert!(record.errors.len() <= ERROR_KINDS_MAX + 1);
        assert_eq!(record.errors["the same"], 1000);
    }
}
