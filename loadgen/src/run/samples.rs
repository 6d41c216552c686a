//! Samples of the servers while they are measured, from outside: about one each second.

use crate::clock::SECOND;
use crate::cost::{CostSource, ProcessUsage};
use crate::disk::DiskRoom;
use crate::result::ServerSample;

/// More than a week; longer runs have no samples from then on.
const SAMPLES_MAX: usize = 1_000_000;

/// Takes them.
pub(super) struct Sampler {
    /// The end of the warm-up.
    from: u64,
    /// The usage then.
    before: ProcessUsage,
    /// The last sample, and when it was taken.
    last: (ProcessUsage, u64),
    /// When the next is due.
    due: u64,
    samples: Vec<ServerSample>,
}

impl Sampler {
    /// From the end of the warm-up on.
    pub(super) fn new(from: u64, now: u64, before: ProcessUsage) -> Self {
        Self { from, before, last: (before, now), due: from + SECOND, samples: Vec::new() }
    }

    /// Takes a sample, if one is due.
    pub(super) fn turn(&mut self, now: u64, source: &CostSource) {
        if now < self.due || source.pids.is_empty() || self.samples.len() >= SAMPLES_MAX {
            return;
        }
        let usage = ProcessUsage::of(&source.pids);
        let room = source.data_folder.as_deref().map(DiskRoom::below);
        let (last, then) = self.last;
        self.samples.push(ServerSample {
            at: now.saturating_sub(self.from) as f64 / 1e9,
            cores: usage.cpu.saturating_sub(last.cpu) as f64 / now.saturating_sub(then).max(1) as f64,
            memory_bytes: usage.memory,
            written_bytes: usage.written.saturating_sub(self.before.written),
            data_bytes: room.map(|room| room.allocated),
            longest_file_bytes: room.map(|room| room.longest_file),
        });
        self.last = (usage, now);
        // Late samples do not make later ones late.
        self.due += (now.saturating_sub(self.due) / SECOND + 1) * SECOND;
    }

    pub(super) fn into_samples(self) -> Vec<ServerSample> {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_each_second_of_the_clock_and_tell_the_room_of_the_data() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("db"), [1; 9_000]).unwrap();
        let pids = vec![std::process::id()];
        let source = CostSource { pids, data_folder: Some(folder.path().to_owned()) };
        let from = 100 * SECOND;
        let mut sampler = Sampler::new(from, from, ProcessUsage::default());
        // The fourth comes late, and the one after it in time.
        for tenth in [5, 10, 15, 21, 30, 57, 60, 61] {
            sampler.turn(from + tenth * SECOND / 10, &source);
        }
        sampler.turn(from + 70 * SECOND / 10, &CostSource::default());
        let samples = sampler.into_samples();
        let times: Vec<f64> = samples.iter().map(|sample| sample.at).collect();
        assert_eq!(times, [1.0, 2.1, 3.0, 5.7, 6.0]);
        assert!(samples.iter().all(|sample| sample.memory_bytes > 0));
        assert!(samples.iter().all(|sample| sample.longest_file_bytes == Some(9_000)));
        assert!(samples.iter().all(|sample| sample.data_bytes.is_some_and(|bytes| bytes >= 9_000)));
    }
}
