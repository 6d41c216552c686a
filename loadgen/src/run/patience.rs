//! How long a thread waits for what is on its way when its traffic is over.

use crate::clock::SECOND;

/// Replies and events may take this long after the last call, or after the event before.
const DRAIN: u64 = 10 * SECOND;

/// The patience of one thread.
#[derive(Debug)]
pub(super) struct Patience {
    give_up: u64,
    delivered: u64,
}

impl Patience {
    /// From now on, when so many events have come; the longest lease that should end yet lives for
    /// so many nanoseconds.
    pub(super) fn new(now: u64, delivered: u64, longest_lease: u64) -> Self {
        Self { give_up: now + DRAIN + longest_lease, delivered }
    }

    /// Nothing more is waited for.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.give_up
    }

    /// So many events have come by now, and this thread does, or does not, wait for replies of
    /// others: events of those are yet to come, if slowly.
    pub(super) fn note(&mut self, now: u64, delivered: u64, waits_for_others: bool) {
        if waits_for_others || delivered > self.delivered {
            self.give_up = self.give_up.max(now + DRAIN);
        }
        self.delivered = delivered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_over_some_time_behind_the_last_event() {
        let mut patience = Patience::new(SECOND, 7, 5 * SECOND);
        assert!(!patience.is_over(16 * SECOND - 1) && patience.is_over(16 * SECOND));
        patience.note(2 * SECOND, 8, false);
        assert!(patience.is_over(16 * SECOND), "it is no shorter for that, and no longer");
        patience.note(9 * SECOND, 9, false);
        patience.note(10 * SECOND, 9, false);
        assert!(!patience.is_over(19 * SECOND - 1) && patience.is_over(19 * SECOND));
    }

    /// Calls of other threads time out after 30 s: until then their writes may be confirmed.
    #[test]
    fn a_thread_has_patience_while_others_have_replies_to_come() {
        let mut patience = Patience::new(0, 0, 0);
        for second in 1..30 {
            patience.note(second * SECOND, 0, true);
        }
        patience.note(30 * SECOND, 0, false);
        assert!(!patience.is_over(39 * SECOND - 1) && patience.is_over(39 * SECOND));
    }
}
