//! Log lines about connections that others open, which whoever reaches the port can cause.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::limits;
use crate::observe::log;

/// Log core view: when the last line was written, and how many were not since.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    told: Cell<Option<u64>>,
    untold: Cell<u64>,
}

impl Complaints {
    /// Logs that a connection is of no use, unless a line was written in the last second.
    pub(super) fn refused(&self, now: u64, from: &str, why: &str) {
        if let Some(untold) = self.may_tell(now) {
            log::warn("refused a connection to the peer port", fields(from, why, untold));
        }
    }

    /// Logs that a state of another member does not come, unless a line was written in the last
    /// second.
    pub(super) fn given_up(&self, now: u64, from: &str, why: &str) {
        if let Some(untold) = self.may_tell(now) {
            let fields = json!({"peer-id": from, "error": why, "others-since-the-last-line": untold});
            log::warn("a state that another member was sending is given up", fields);
        }
    }

    /// Whether a line may be written now, and how many were not since the last one.
    fn may_tell(&self, now: u64) -> Option<u64> {
        let interval = u64::try_from(limits::PEER_COMPLAINT_INTERVAL.as_millis()).unwrap_or(u64::MAX);
        if self.told.get().is_some_and(|told| now.saturating_sub(told) < interval) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.told.set(Some(now));
        Some(self.untold.take())
    }
}

fn fields(from: &str, why: &str, untold: u64) -> Value {
    json!({"remote-addr": from, "error": why, "others-since-the-last-line": untold})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_there_were() {
        let complaints = Complaints::default();
        assert_eq!(complaints.may_tell(5_000), Some(0));
        assert_eq!(complaints.may_tell(5_001), None);
        assert_eq!(complaints.may_tell(5_999), None);
        assert_eq!(complaints.may_tell(6_000), Some(2));
        assert_eq!(complaints.may_tell(9_000), Some(0));
    }
}
