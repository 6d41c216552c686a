//! Pauses in work that no core waits for.
//!
//! A checkpoint and the freeing of memory run beside the cores, on the same CPUs. A kernel that
//! looks at its threads at each tick leaves such work the CPU for milliseconds once it has it,
//! while a core is ready to go on (decision 0037). In a pause the core has it.

use crate::limits::{BYTES_PER_STEP, PAUSE, WORK_BETWEEN_PAUSES};

/// Work since the last pause, in steps of about a microsecond; without pauses by default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pauses {
    steps: u32,
    are_wanted: bool,
}

impl Pauses {
    /// Pauses that are made: for work on a thread that no core waits for.
    pub(crate) fn wanted() -> Self {
        Self { steps: 0, are_wanted: true }
    }

    /// Counts so many steps that were done, and makes a pause if it is time for one, which blocks.
    #[expect(clippy::disallowed_methods, reason = "no core waits for a thread that wants pauses")]
    pub(crate) fn count(&mut self, steps: u32) {
        if self.is_due(steps) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Counts work on so many bytes.
    pub(crate) fn count_bytes(&mut self, bytes: usize) {
        self.count(u32::try_from(bytes / BYTES_PER_STEP).unwrap_or(u32::MAX));
    }

    fn is_due(&mut self, steps: u32) -> bool {
        self.steps = self.steps.saturating_add(steps);
        let is_due = self.steps >= WORK_BETWEEN_PAUSES;
        if is_due {
            self.steps = 0;
        }
        is_due && self.are_wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_comes_with_each_so_many_steps_and_never_two_at_once() {
        let mut pauses = Pauses::wanted();
        let due: Vec<bool> = (0..2 * WORK_BETWEEN_PAUSES).map(|_| pauses.is_due(1)).collect();
        let at: Vec<usize> = (0..due.len()).filter(|at| due[*at]).collect();
        let steps = WORK_BETWEEN_PAUSES as usize;
        assert_eq!(at, [steps - 1, 2 * steps - 1]);
        assert!(pauses.is_due(u32::MAX) && !pauses.is_due(1));
        assert!(!Pauses::default().is_due(u32::MAX), "none unless they are wanted");
    }
}
