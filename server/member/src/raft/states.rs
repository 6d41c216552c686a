//! States that members send to those that lag behind the log: raft's part in it.

use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType};
use revd_engine::mvcc::Applied;

use crate::cluster::conf_state::ConfState;
use crate::raft::admission::may_restore;
use crate::raft::convert::conf_state_to_raft;
use crate::raft::node::RaftNode;

impl RaftNode {
    /// Another member has sent a state in the name of the leader of a term; true if the log is to
    /// begin again behind it, and the member is to go on from it then
    /// ([`RaftEffects::is_restarted`](crate::raft::node::RaftEffects::is_restarted)).
    pub fn offer(&mut self, from: u64, term: u64, at: Applied, conf_state: &ConfState) -> bool {
        let mut message = Message { from, to: self.raw.raft.id, term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (at.index, at.term);
        metadata.set_conf_state(conf_state_to_raft(conf_state));
        if self.is_restarting() || !may_restore(&self.raw.raft, &message) {
            return false;
        }
        let _ = self.raw.step(message);
        let pending = self.raw.raft.raft_log.unstable_snapshot().as_ref();
        pending.is_some_and(|snapshot| snapshot.get_metadata().index == at.index)
    }

    /// The state that a member needed is with it, or could not be sent.
    pub fn streamed(&mut self, to: u64, is_there: bool) {
        let status = if is_there { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to, status);
    }
}
