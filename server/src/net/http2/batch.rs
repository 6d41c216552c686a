//! How much of its input a connection deals with in one turn.

use crate::limits;

/// What a turn does of what was read: as much as it has time for. Much of that time would go into asking for it, if it was
/// asked for behind each frame.
#[derive(Debug, Default)]
pub(super) struct Batch {
    steps: u32,
    /// Bytes of replies that waited to be sent when the clock was last asked.
    backlog: usize,
    is_over: bool,
}

impl Batch {
    /// A frame was dealt with, or a call begun, and so many bytes of replies wait now; whether that is enough for this turn, which
    /// has lasted for so many microseconds of `most`. Large replies take as long as many small ones.
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

    /// Frames that one turn deals with, of so many that take so many microseconds each, and the time that this takes.
    fn turn(frames: u64, microseconds: u64, bytes: usize) -> (u64, u64) {
        let (mut batch, mut done, mut backlog) = (Batch::default(), 0, 0);
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
    fn a_turn_is_over_when_it_has_lasted_long_enough_whatever_is_left_to_do() {
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
