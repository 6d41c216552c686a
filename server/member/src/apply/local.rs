//! Requests to this member's state alone: they go from an edge to the state core on the
//! way of commands, but beside the log, and are answered from this member's state.
//! Nothing here is written to disk.

use std::sync::Arc;

use crate::apply::command::{Command, CommandId};
use crate::auth::Caller;
use crate::cluster::membership::MemberChange;

/// A request to this member alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRequest {
    /// The caller to answer.
    pub id: CommandId,
    /// The kind of the request.
    pub kind: LocalKind,
    /// Another member that asks, and is to be answered; none for an edge of this one.
    pub from: Option<u64>,
}

/// The kind of a local request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalKind {
    /// Give space back to the file system.
    Defragment,
    /// Another member is to lead; this one does. Answered by the log core.
    MoveLeader {
        /// That member.
        to: u64,
    },
    /// Which versions do the other members have, as far as they can be reached
    /// (`cluster::version::decode`)? Answered by the log core.
    PeerVersions,
    /// Would a change of members wait for a leader that cannot come, and be refused by it? Answered
    /// by the log core.
    MayChange(Arc<MemberChange>),
    /// Something about leases; it overtakes entries that wait to be applied.
    Lease(LeaseRequest),
    /// May a caller do what depends on the keys of leases, as this member knows them? It overtakes
    /// entries, too.
    MayCaller(Arc<LeaseRights>),
}

/// A caller, and what it wants of the keys that are attached to leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRights {
    /// The caller.
    pub caller: Caller,
    /// The right that it needs.
    pub right: LeaseRight,
}

/// The right to keys that are attached to leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRight {
    /// To write those of this lease.
    Write(i64),
    /// To read those of this lease.
    Read(i64),
    /// To read those of any lease.
    ReadAll,
}

/// A local request about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRequest {
    /// One that needs no state but deadlines.
    Deadline(DeadlineRequest),
    /// Which keys are attached to a lease, as this member knows it.
    Keys {
        /// Its id.
        lease: i64,
    },
    /// The most bytes that a reply with those keys has, as a `u64` in little-endian order.
    KeyBytes {
        /// Its id.
        lease: i64,
    },
    /// The TTL of a lease, and which keys are attached to it.
    TimeToLive {
        /// Its id.
        lease: i64,
        /// Its keys are asked for too.
        keys: bool,
    },
    /// Which leases have expired?
    Expired,
    /// An edge has passed on its keepalives.
    Heard(Heard),
}

impl LeaseRequest {
    /// Only the leader's deadlines answer it, whichever member it comes to. Keys are not asked for
    /// there: every member knows them, and they may be more than a message may have.
    #[must_use]
    pub fn is_for_leader(self) -> bool {
        matches!(
            self,
            Self::Deadline(DeadlineRequest::KeepAlive { .. }) | Self::TimeToLive { keys: false, .. }
        )
    }
}

/// A local request that deadlines alone answer, so that it is answered also
/// while a long command has the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineRequest {
    /// A lease lives on.
    KeepAlive {
        /// Its id.
        lease: i64,
    },
    /// The remaining TTL of long leases, some at a time, for a lease checkpoint.
    Remaining {
        /// Leases from this id on.
        from: i64,
    },
    /// Every lease.
    List,
}

/// The report of an edge that was asked to pass on its keepalives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The number of the question.
    pub question: u64,
    /// No stream held any back.
    pub is_all: bool,
}

/// The requests that an edge submits in one turn.
#[derive(Debug, Default)]
pub struct Submitted {
    /// For the log.
    pub commands: Vec<Command>,
    /// For this member's state.
    pub local: Vec<LocalRequest>,
    /// How many requests this edge has submitted, up to and with these.
    pub number: u64,
    /// Linearizable reads up to this ticket wait for the word that they may be served; tickets
    /// count up.
    pub read: Option<u64>,
}

impl Submitted {
    /// There is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.local.is_empty() && self.read.is_none()
    }
}

impl From<DeadlineRequest> for LocalKind {
    fn from(request: DeadlineRequest) -> Self {
        Self::Lease(LeaseRequest::Deadline(request))
    }
}

impl From<LeaseRequest> for LocalKind {
    fn from(request: LeaseRequest) -> Self {
        Self::Lease(request)
    }
}
