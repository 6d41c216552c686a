//! When a thread of an open loop may look at its clock and sockets again: the plan's `turn_every`.

use crate::clock;

/// Looks of one thread.
#[derive(Debug)]
pub(super) struct Looks {
    every: u64,
    last: u64,
    has_unread: bool,
}

impl Looks {
    /// So many seconds apart.
    pub(super) fn new(every: f64) -> Self {
        Self { every: clock::from_seconds(every), last: 0, has_unread: false }
    }

    /// The thread looks now, and may leave sockets unread that are ready.
    pub(super) fn note(&mut self, now: u64, has_unread: bool) {
        (self.last, self.has_unread) = (now, has_unread);
    }

    /// Nanoseconds to the next look. Bytes and events that the last one left are looked at at once:
    /// they have waited already. Calls that it made wait like all others, for their replies are not
    /// there yet: they are sent before the thread rests.
    pub(super) fn until_next(&self, now: u64) -> u64 {
        if self.has_unread { 0 } else { (self.last + self.every).saturating_sub(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_waits_for_its_time_unless_the_last_one_left_something() {
        let mut looks = Looks::new(0.001);
        looks.note(5_000_000, false);
        assert_eq!(looks.until_next(5_400_000), 600_000);
        assert_eq!(looks.until_next(6_000_001), 0);
        looks.note(7_000_000, true);
        assert_eq!(looks.until_next(7_000_001), 0, "the rest is read at once");
        looks.note(7_000_002, false);
        assert_eq!(looks.until_next(7_000_002), 1_000_000);
        assert_eq!(Looks::new(0.0).until_next(1), 0);
    }
}
