//! The promises of a cluster beyond those that every one makes.

use bytes::Bytes;

use crate::history::Time;

/// The clock of some member has jumped forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    /// When.
    pub at: Time,
    /// The time that it has left out.
    pub by: Time,
}

/// The promises of a cluster beyond those that every one makes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// A member that is started again goes on at the newest revision that it has shown, or waits.
    pub goes_on: bool,
    /// A revision that a watcher was told of is shown by its member's reads too.
    pub watches_show: bool,
    /// Clients that are not in the history write keys that begin so.
    pub others: Option<Bytes>,
    /// They compact too.
    pub others_compact: bool,
    /// No watcher and no reader need have seen what they write.
    pub others_unseen: bool,
    /// The errors that clients may meet; none: any.
    pub errors: Option<Vec<String>>,
    /// The members' clocks go wrong by so many parts in a million.
    pub drift: u64,
    /// And some have jumped, in this order.
    pub jumps: Vec<Jump>,
    /// Since then there are no faults.
    pub calm_since: Option<Time>,
    /// Nor are there between these times, from and to.
    pub calm: Vec<(Time, Time)>,
    /// A lease ends so much later than its time to live at most, while there are no faults.
    pub lease_slack: Time,
}

impl Rules {
    /// The earliest end, by any member's clock, of something that begins at a time and lasts so
    /// long: nobody knows which member counts it, so each jump in between may be of its clock.
    pub(crate) fn earliest_end(&self, began: Time, lasts: Time) -> Time {
        let drift = self.drift.min(1_000_000);
        let end = began + lasts - lasts / 1_000_000 * drift;
        self.jumps.iter().filter(|jump| jump.at >= began).fold(end, |end, Jump { at, by }| {
            if *at < end { end.saturating_sub(by + by / 1_000_000 * drift).max(*at) } else { end }
        })
    }

    /// The beginning of the calm time in which this moment is.
    pub(crate) fn calm_at(&self, time: Time) -> Option<Time> {
        let is_within = |(from, to): &&(Time, Time)| (*from..*to).contains(&time);
        let since = self.calm_since.filter(|since| *since <= time);
        since.or_else(|| self.calm.iter().find(is_within).map(|(from, _)| *from))
    }

    /// The most time.
    pub(crate) fn longest(&self, time: Time) -> Time {
        time + time / 1_000_000 * self.drift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_shortens_what_is_under_way_and_nothing_else() {
        let jumps = vec![Jump { at: 100, by: 30 }, Jump { at: 150, by: 500 }];
        let rules = Rules { jumps, ..Rules::default() };
        assert_eq!(rules.earliest_end(0, 90), 90, "it has ended by then");
        assert_eq!(rules.earliest_end(50, 70), 100, "it ends in the jump");
        assert_eq!(rules.earliest_end(50, 90), 110);
        assert_eq!(rules.earliest_end(50, 150), 150, "the second one comes before its end too");
        assert_eq!(rules.earliest_end(120, 20), 140, "between them");
        assert_eq!(rules.earliest_end(160, 1_000), 1_160);
    }
}
