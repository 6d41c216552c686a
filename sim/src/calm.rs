//! Times in a storm without a fault: leases end there as they should.

use crate::time::{Micros, SECOND};

/// A cluster that is whole again has a leader, and all members know it, so much later and two
/// times of an election.
const RECOVERY: Micros = 18 * SECOND;

/// The calm times of a run.
#[derive(Debug)]
pub(crate) struct Calm {
    recovery: Micros,
    /// Since then nothing is wrong.
    since: Option<Micros>,
    /// Something that nobody ends stands still until then.
    not_before: Micros,
    times: Vec<(Micros, Micros)>,
}

impl Calm {
    /// Of a cluster in which an election takes so long.
    pub(crate) fn new(election: Micros) -> Self {
        Self { recovery: RECOVERY + 2 * election, since: None, not_before: 0, times: Vec::new() }
    }

    /// Nothing is calm until then.
    pub(crate) fn not_before(&mut self, time: Micros) {
        self.not_before = self.not_before.max(time);
    }

    /// Whether anything is wrong now.
    pub(crate) fn see(&mut self, now: Micros, is_whole: bool) {
        if is_whole {
            self.since.get_or_insert(now);
            return;
        }
        if let Some(since) = self.since.take() {
            let from = since.max(self.not_before) + self.recovery;
            if from < now {
                self.times.push((from, now));
            }
        }
    }

    /// How much there was.
    pub(crate) fn sum(&self) -> Micros {
        self.times.iter().map(|(from, to)| to - from).sum()
    }

    /// All of them.
    pub(crate) fn into_times(self) -> Vec<(Micros, Micros)> {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_calm_when_a_whole_cluster_has_recovered() {
        let mut calm = Calm::new(SECOND);
        calm.see(SECOND, true);
        calm.see(60 * SECOND, true);
        calm.see(70 * SECOND, false);
        calm.see(80 * SECOND, true);
        calm.see(90 * SECOND, false);
        calm.see(100 * SECOND, true);
        calm.not_before(150 * SECOND);
        calm.see(200 * SECOND, false);
        calm.see(210 * SECOND, false);
        let seconds = [(21, 70), (170, 200)];
        assert_eq!(calm.into_times(), seconds.map(|(from, to)| (from * SECOND, to * SECOND)));
    }
}
