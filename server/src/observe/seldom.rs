//! Log lines that anybody who reaches a port can cause: one in an interval, or some in a second,
//! which say how many were not written.

use std::cell::Cell;
use std::time::Duration;

/// Core view: when the last line was written, and how many were not since.
#[derive(Debug, Default)]
pub struct Seldom {
    told: Cell<Option<u64>>,
    untold: Cell<u64>,
}

impl Seldom {
    /// Whether a line may be written now, in milliseconds of the core's clock, and how many were
    /// not since the last one.
    pub fn may_tell(&self, now: u64, interval: Duration) -> Option<u64> {
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        if self.told.get().is_some_and(|told| now.saturating_sub(told) < interval) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.told.set(Some(now));
        Some(self.untold.take())
    }
}

/// Core view: the lines of this second, and those that were not written since the last one.
#[derive(Debug, Default)]
pub struct SomeASecond {
    second: Cell<u64>,
    lines: Cell<u32>,
    untold: Cell<u64>,
}

impl SomeASecond {
    /// Whether a line may be written in this second, which has so many at most, and how many were
    /// not since the last one.
    pub fn may_tell(&self, second: u64, lines_max: u32) -> Option<u64> {
        if self.second.replace(second) != second {
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
        let pace = SomeASecond::default();
        assert_eq!((0..27).filter(|_| pace.may_tell(5, 20).is_some()).count(), 20);
        assert_eq!((pace.may_tell(6, 20), pace.may_tell(6, 20)), (Some(7), Some(0)));
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
