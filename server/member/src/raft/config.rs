//! The settings raft starts with, and why it may not.

use crate::cluster::conf_state::ConfState;
use crate::limits;

/// The member and its cluster, as raft starts with them.
#[derive(Debug)]
pub struct RaftConfig {
    /// Own member id.
    pub id: u64,
    /// The members' votes as of `applied`.
    pub conf_state: ConfState,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Ticks without a leader before an election.
    pub election_ticks: usize,
    /// Everything up to here is in the state already.
    pub applied: u64,
    /// Of the election timeouts. Members of a cluster need different ones: with equal timeouts
    /// their votes split for ever.
    pub seed: u64,
    /// How much of the log stays for slow followers.
    pub retention: LogRetention,
    /// Ask before an election whether it can be won.
    pub pre_vote: bool,
    /// Do not wait a whole election timeout for a leader at the start.
    pub advances_election: bool,
}

/// How much of the log stays for followers that lag behind: by etcd's rule, on disk, and as far as
/// there is room there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRetention {
    /// When more entries than this are durable elsewhere, some are let go of.
    pub snapshot_count: u64,
    /// So many of them stay.
    pub catchup_entries: u64,
    /// Bytes on disk that they may take; more while a state is on its way.
    pub disk_bytes_max: u64,
    /// Bytes of applied entries that stay in memory. Others are read again when they are needed.
    pub memory_bytes_max: usize,
}

impl Default for LogRetention {
    /// etcd's defaults, and the bounds in bytes.
    fn default() -> Self {
        Self {
            snapshot_count: 10_000,
            catchup_entries: 5_000,
            disk_bytes_max: limits::LOG_KEPT_BYTES_MAX,
            memory_bytes_max: limits::LOG_TAIL_BYTES_MAX,
        }
    }
}

impl RaftConfig {
    /// The only voter of its cluster, with etcd's ticks; it wins every election, so that its seed
    /// has no effect.
    #[must_use]
    pub fn alone(id: u64, applied: u64) -> Self {
        Self {
            id,
            conf_state: ConfState::of_voters(vec![id]),
            heartbeat_ticks: 1,
            election_ticks: 10,
            applied,
            seed: 0,
            retention: LogRetention::default(),
            pre_vote: true,
            advances_election: false,
        }
    }
}

/// Why raft cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    /// The log begins too late.
    #[error(
        "the log begins behind entry {base} but the tree file holds only what was applied up to entry {applied}: one of \
         them is from another time; restore this member from a snapshot or add it again empty"
    )]
    MissingEntries {
        /// The entry before the log's first.
        base: u64,
        /// The tree file's applied index.
        applied: u64,
    },
    /// The log ends too early.
    #[error(
        "the tree file holds what was applied up to entry {applied} but the log ends with entry {last}: acknowledged \
         entries are missing; restore this member from a snapshot or add it again empty"
    )]
    ShortLog {
        /// The log's last entry.
        last: u64,
        /// The tree file's applied index.
        applied: u64,
    },
    /// Two configurations at once: this version makes none, and cannot leave one.
    #[error(
        "the tree file holds a change of several members that is not over: start the version that has begun it"
    )]
    Joint,
    /// raft-rs refused.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}
