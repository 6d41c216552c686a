//! How much of its input a connection deals with in one turn.

use crate::limits;

/// The work of a turn on the input that was read. The clock is asked only once in some steps:
/// asking behind each frame would take much of the time that is measured.
#[derive(Debug, Default)]
pub(super) struct InputBatch {
    steps: u32,
    /// Bytes of replies that waited to be sent when the clock was last asked.
    backlog: usize,
    /// Calls with wrong tokens.
    strange: u32,
    is_over: bool,
}

impl InputBatch {
    /// Counts a call that was refused for its token. A client that guesses tokens has many of them,
    /// and short turns: others of the core do not wait for a millisecond of refusals.
    pub(super) fn strange(&mut self) {
        self.strange += 1;
        self.is_over |= self.strange >= limits::STRANGE_CALLS_PER_TURN;
    }

    /// Counts a frame that was processed or a call that was begun, after which `backlog` bytes of
    /// replies wait; whether the turn, which has `lasted` for so many microseconds of `most`, is
    /// over. Large replies take as long as many small ones, so that the clock is asked sooner
    /// behind them.
    pub(super) fn step(&mut self, backlog: usize, most: u64, lasted: impl FnOnce() -> u64) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(limits::BATCH_STEPS) || backlog > self.backlog + limits::BATCH_BYTES {
            self.backlog = backlog;
            self.is_over |= lasted() >= most;
        }
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frames, of `frames` that take `microseconds` and make `bytes` of replies each, that one
    /// turn processes, and the time it takes.
    fn turn(frames: u64, microseconds: u64, bytes: usize) -> (u64, u64) {
        let (mut batch, mut done, mut backlog) = (InputBatch::default(), 0, 0);
        while done < frames {
            done += 1;
            backlog += bytes;
            if batch.step(backlog, limits::BATCH_MICROSECONDS, || done * microseconds) {
                assert!(batch.step(backlog, limits::BATCH_MICROSECONDS, || 0), "it stays over");
                break;
            }
        }
        (done, done * microseconds)
    }

    #[test]
    fn a_turn_is_over_behind_a_few_calls_with_wrong_tokens() {
        let mut batch = InputBatch::default();
        let mut step = |is_strange: bool| {
            if is_strange {
                batch.strange();
            }
            batch.step(0, limits::BATCH_MICROSECONDS, || 0)
        };
        for call in 1..limits::STRANGE_CALLS_PER_TURN {
            assert!(!step(true) && !step(false), "{call}");
        }
        assert!(step(true) && step(false), "it stays over");
    }

    #[test]
    fn a_turn_is_over_after_its_time_whatever_input_is_left() {
        let look = u64::from(limits::BATCH_STEPS);
        assert_eq!(
            turn(limits::BATCH_MICROSECONDS - 1, 1, 100).0,
            limits::BATCH_MICROSECONDS - 1,
            "cheap calls stay together"
        );
        for microseconds in [1, 20, 100, 500] {
            let (_, lasted) = turn(1_000_000, microseconds, 100);
            assert!(lasted >= limits::BATCH_MICROSECONDS);
            assert!(
                lasted <= limits::BATCH_MICROSECONDS + look * microseconds,
                "{lasted} of {microseconds} each"
            );
            let (_, lasted) = turn(1_000_000, microseconds, limits::BATCH_BYTES + 1);
            assert!(lasted < limits::BATCH_MICROSECONDS + microseconds, "{lasted} of large replies");
        }
    }
}
