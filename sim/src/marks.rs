//! Interesting places of a run, as they are seen from outside, and how often each was reached.

use std::collections::BTreeMap;

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
    /// A member was elected while the members change.
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
    /// A process was killed while it received a state.
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
    /// A start found its files damaged.
    FoundDamaged,
    /// A connection was dialed while an earlier one was open.
    DialedAgain,
    /// A connection ended for bytes that no member sends.
    BadBytes,
    /// A peer was silent for too long.
    Silent,
    /// Another member has refused a connection.
    Refused,
    /// Entries were read again from the segments for another member.
    Fetched,
    /// Commands were lost, as far as their member knows.
    Lost,
    /// A read was refused.
    ReadRefused,
    /// A command was too long for a turn.
    LongCommand,
    /// Leases expired.
    LeasesExpired,
    /// A member was added.
    MemberAdded,
    /// A learner was promoted.
    Promoted,
    /// A member was removed.
    MemberRemoved,
    /// A leader was removed.
    LeaderRemoved,
    /// A member with a new disk has joined in the place of another one.
    Joined,
    /// A member handed its leadership over when it was asked to stop.
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

/// How often each place was reached.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Marks(BTreeMap<Mark, u64>);

impl Marks {
    /// It was reached.
    pub fn reach(&mut self, mark: Mark) {
        *self.0.entry(mark).or_default() += 1;
    }

    /// How often it was reached.
    #[must_use]
    pub fn count(&self, mark: Mark) -> u64 {
        self.0.get(&mark).copied().unwrap_or(0)
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (mark, count) in &other.0 {
            *self.0.entry(*mark).or_default() += count;
        }
    }

    /// Places that were never reached.
    #[must_use]
    pub fn missing(&self) -> Vec<Mark> {
        Mark::ALL.iter().copied().filter(|mark| self.count(*mark) == 0).collect()
    }
}
