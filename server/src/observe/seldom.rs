//! Log lines that anybody who reaches a port can cause: one in an interval, or some in a second,
//! which say how many were not written.

use std::cell::Cell;
use std::time::Duration;

/// Core view: when the first line of the interval was written, how many were since, and how many
/// were not.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Cell<Option<u64>>,
    lines: Cell<u32>,
    untold: Cell<u64>,
}

impl Seldom {
    /// Whether a line may be written now, in milliseconds of the core's clock, and how many were
    /// not since the last one.
    pub fn may_tell(&self, now: u64, interval: Duration) -> Option<u64> {
        self.may_tell_some(now, interval, 1)
    }

    /// The same of an interval that has so many lines.
    pub fn may_tell_some(&self, now: u64, interval: Duration, lines_max: u32) -> Option<u64> {
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        if self.told.get().is_none_or(|told| now.saturating_sub(told) >= interval) {
            self.told.set(Some(now));
            self.lines.set(0);
        }
        if self.lines.get() >= lines_max {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.lines.set(self.lines.get() + 1);
        Some(self.untold.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_are_written_in_a_second_and_the_next_one_says_how_many_were_not() {
        let seldom = Seldom::default();
        let may_tell = |now| seldom.may_tell_some(now, Duration::from_secs(1), 20);
        assert_eq!((0..27).filter(|at| may_tell(5_000 + at).is_some()).count(), 20);
        assert_eq!((may_tell(6_000), may_tell(6_001)), (Some(7), Some(0)));
    }

    #[test]
    fn one_line_a_second_says_how_many_there_were() {
        let seldom = Seldom::default();
        let may_tell = |now| seldom.may_tell(now, Duration::from_secs(1));
        assert_eq!(may_tell(5_000), Some(0));
        assert_eq!(may_tell(5_001), None);
        assert_eq!(may_tell(5_999), None);
        assert_eq!(may_tell(6_000), Some(2));
        assert_eq!(may_tell(9_000), Some(0));
    }
}
