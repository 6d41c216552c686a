//! A message of raft, on its way between members.

use raft::eraftpb::Message;

/// A message of raft. raft-rs's own type stays inside this folder.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftMessage(pub(super) Message);

impl RaftMessage {
    /// The member it is for.
    #[must_use]
    pub fn to(&self) -> u64 {
        self.0.to
    }

    /// The member that has sent it.
    #[must_use]
    pub fn from(&self) -> u64 {
        self.0.from
    }
}
