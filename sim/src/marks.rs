//! Interesting places of a run, as they are seen from outside, and how often each was reached.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! marks {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// An interesting place.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mark {
            $($(#[doc = $doc])* $name,)*
        }

        impl Mark {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

marks! {
    /// A member was elected.
    Elected,
    /// A member was elected while a voter had yet to apply the last change of voters.
    ElectedDuringChange,
    /// An entry was handed out as committed for the first time.
    Committed,
    /// A member went on from the state of another one.
    StateInstalled,
    /// A state was sent and did not get there whole.
    StateCutShort,
    /// A process was killed while it wrote a frame of the log.
    KilledInFrame,
    /// A process was killed while it wrote a checkpoint.
    KilledInCheckpoint,
    /// A process was killed while parts of a state were still to come.
    KilledReceiving,
    /// A process was killed within a second of its start.
    KilledEarly,
    /// A leader was killed.
    LeaderKilled,
    /// A member started again from its files.
    Restarted,
    /// A frame found no room on the disk.
    NoRoom,
    /// A process ended for its disk had failed.
    DiskFailed,
    /// A connection was dialed while an earlier one was open.
    DialedAgain,
    /// A connection ended for bytes that no member sends.
    BadBytes,
    /// A peer was silent for too long.
    Silent,
    /// Another member has refused a connection.
    Refused,
    /// A member that was not known was dialed back.
    GuestDialed,
    /// Entries were read again from the segments for another member, whole.
    Fetched,
    /// Commands were lost, as far as their member knows.
    Lost,
    /// A read was refused.
    ReadRefused,
    /// A command was too long for a turn.
    LongCommand,
    /// Leases were removed, for they had expired.
    LeasesExpired,
    /// A member was added.
    MemberAdded,
    /// A learner was promoted.
    Promoted,
    /// A member was removed.
    MemberRemoved,
    /// A leader was removed.
    LeaderRemoved,
    /// A member that was added has begun.
    Joined,
    /// A member that was lost for good was replaced by another one that serves.
    Replaced,
    /// A member has found that a bit of its files had flipped, and did not go on.
    RotFound,
    /// The end of a log was damaged, which looks like a frame that a crash has cut off.
    RotLooksTorn,
    /// A process ended as it was asked to.
    Stopped,
    /// A part stood still while the others went on.
    PartStoodStill,
    /// A whole process stood still.
    ProcessStoodStill,
    /// The clock of a member jumped.
    ClockJumped,
    /// A watch stream was told that a compaction took what it should have been told.
    WatchCompacted,
}

impl Mark {
    /// Places that a long form may miss: fewer than ten of a thousand runs reach them. At dd05138
    /// one of the first 1,000 runs had a damaged end of a log; the next ones are `LeaderRemoved`
    /// (12 runs), `GuestDialed` (15), `KilledReceiving` (17), `RotFound` (47) and
    /// `ElectedDuringChange` (82).
    pub const MAY_BE_MISSED: &[Self] = &[Self::RotLooksTorn];
}

/// How often a place was reached.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// All times.
    pub times: u64,
    /// Runs in which it was. Ledgers of before this was counted have none.
    pub runs: u64,
}

impl fmt::Display for Reached {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} in {} runs", self.times, self.runs)
    }
}

impl Reached {
    /// As it was written.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let Some((times, runs)) = text.split_once(" in ") else {
            return Some(Self { times: text.parse().ok()?, runs: 0 });
        };
        Some(Self { times: times.parse().ok()?, runs: runs.strip_suffix(" runs")?.parse().ok()? })
    }
}

/// How often each place was reached, in a run or in many.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Marks(BTreeMap<Mark, Reached>);

impl Marks {
    /// It was reached in this run.
    pub fn reach(&mut self, mark: Mark) {
        let reached = self.0.entry(mark).or_default();
        (reached.times, reached.runs) = (reached.times + 1, 1);
    }

    /// It was reached so often in other runs.
    pub fn reach_often(&mut self, mark: Mark, more: Reached) {
        if more.times > 0 {
            let reached = self.0.entry(mark).or_default();
            (reached.times, reached.runs) = (reached.times + more.times, reached.runs + more.runs);
        }
    }

    /// How often it was reached.
    #[must_use]
    pub fn count(&self, mark: Mark) -> Reached {
        self.0.get(&mark).copied().unwrap_or_default()
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(mark, more)| self.reach_often(*mark, *more));
    }

    /// Places that were never reached, and that many runs must reach.
    #[must_use]
    pub fn missing(&self) -> Vec<Mark> {
        let is_missing = |mark: &Mark| self.count(*mark).times == 0 && !Mark::MAY_BE_MISSED.contains(mark);
        Mark::ALL.iter().copied().filter(is_missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_never_reached_is_missing() {
        let mut marks = Marks::default();
        Mark::ALL.iter().for_each(|mark| marks.reach(*mark));
        assert_eq!(marks.missing(), []);
        marks.0.remove(&Mark::Silent);
        assert_eq!(marks.missing(), [Mark::Silent]);
    }
}
