//! Log lines that whoever reaches a port can cause: one in an interval, which says how many were
//! not written.

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

#[cfg(test)]
mod tests {
    use super::*;

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
