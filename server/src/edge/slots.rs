//! Classes of slots for pending requests: each has slots of its own, so that writes never take
//! those of requests that must not wait.

use revd_member::apply::command::Kind;
use revd_member::apply::local::{DeadlineRequest, LeaseRequest, LeaseRight, LocalKind};

use crate::limits::ProposalLimits;

/// Which slots a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotClass {
    /// Calls of clients, bounded in slots and bytes.
    Calls,
    /// Keepalives, and the lease checkpoints that some of them need first.
    /// Keepalive streams wait for these slots.
    Keepalives,
    /// Alarms that are raised or cleared.
    Alarms,
    /// Duties of the member itself, a few at a time: calls of clients never take these.
    Duties,
}

impl SlotClass {
    pub(super) const COUNT: usize = 4;

    /// Of a command of this kind.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Put
            | Kind::DeleteRange
            | Kind::Txn
            | Kind::Compact
            | Kind::LeaseGrant
            | Kind::LeaseRevoke
            | Kind::MemberAdd
            | Kind::MemberRemove
            | Kind::MemberUpdate
            | Kind::MemberPromote
            | Kind::Downgrade
            | Kind::Authorized
            | Kind::AuthEnable
            | Kind::AuthDisable
            | Kind::Authenticate
            | Kind::UserAdd
            | Kind::UserDelete
            | Kind::UserChangePassword
            | Kind::UserGrantRole
            | Kind::UserRevokeRole
            | Kind::RoleAdd
            | Kind::RoleDelete
            | Kind::RoleGrantPermission
            | Kind::RoleRevokePermission => Self::Calls,
            Kind::LeaseCheckpoint => Self::Keepalives,
            Kind::Alarm | Kind::Corrupt => Self::Alarms,
            Kind::LeaseExpire | Kind::MemberAttributes | Kind::ClusterVersion | Kind::BeginHash => {
                Self::Duties
            }
        }
    }

    pub(super) fn of_local(kind: &LocalKind) -> Self {
        match kind {
            LocalKind::MayCaller(rights) => match rights.right {
                LeaseRight::Write(_) => Self::Keepalives,
                LeaseRight::Read(_) | LeaseRight::ReadAll => Self::Calls,
            },
            LocalKind::Defragment | LocalKind::MoveLeader { .. } | LocalKind::MayChange(_) => Self::Calls,
            LocalKind::PeerVersions => Self::Duties,
            LocalKind::Lease(request) => match request {
                LeaseRequest::TimeToLive { .. }
                | LeaseRequest::Keys { .. }
                | LeaseRequest::KeyBytes { .. }
                | LeaseRequest::Deadline(DeadlineRequest::List) => Self::Calls,
                LeaseRequest::Deadline(DeadlineRequest::KeepAlive { .. }) => Self::Keepalives,
                LeaseRequest::Deadline(DeadlineRequest::Remaining { .. })
                | LeaseRequest::Expired
                | LeaseRequest::Heard(_) => Self::Duties,
            },
        }
    }
}

impl ProposalLimits {
    pub(super) fn slots(self, class: SlotClass) -> usize {
        match class {
            SlotClass::Calls => self.inflight_max,
            SlotClass::Keepalives => self.keepalives_max,
            SlotClass::Alarms => self.alarms_max,
            SlotClass::Duties => self.chores_max,
        }
    }
}
