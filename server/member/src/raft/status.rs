//! Raft status: where consensus stands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Term, leader and indexes of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftStatus {
    /// Current term.
    pub term: u64,
    /// The leader's id, 0 while there is none.
    pub leader: u64,
    /// Index of the last entry.
    pub last_index: u64,
    /// Index of the last committed entry.
    pub committed: u64,
    /// Whether this member leads.
    pub is_leader: bool,
    /// Whether this member has the only vote.
    pub is_sole_voter: bool,
    /// Whether the newest View of this member is linearizable: it leads, nobody else has a vote,
    /// and it has applied what was committed before that was so.
    pub reads_alone: bool,
    /// Whether this member follows without a vote.
    pub is_learner: bool,
}

/// Node view: raft status, and how many leases there are, written by the log and state cores and
/// read by every edge without a lock. Each number is current for itself; no two of them are
/// promised to be of the same moment.
#[derive(Debug, Default)]
pub struct MemberStatus {
    /// Current raft term.
    pub term: Gauge,
    /// Member id of the leader, 0 while there is none.
    pub leader: Gauge,
    /// How often a leader was found that was not the one known before.
    pub leader_changes: Gauge,
    /// Index of the last entry in the log.
    pub last_index: Gauge,
    /// Index of the last committed entry.
    pub committed: Gauge,
    /// Index of the last applied entry.
    pub applied: Gauge,
    /// How many leases there are.
    pub leases: Gauge,
    /// No other member has a vote.
    pub is_sole_voter: Flag,
    /// The newest View is linearizable. Cleared before a second vote counts.
    pub reads_alone: Flag,
    /// This member follows without a vote.
    pub is_learner: Flag,
    /// Requests need rights; set before the first View in which they do.
    pub needs_rights: Flag,
    /// The state of this member is not that of the others, as its alarm says.
    pub is_corrupt: Flag,
}

/// One number.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The current value.
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces the value.
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// A yes or no.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// The current value.
    pub fn load(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces the value.
    pub fn store(&self, value: bool) {
        self.0.store(value, Ordering::Release);
    }
}
