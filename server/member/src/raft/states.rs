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
        let is_busy = self.is_restarting() || self.raw.raft.raft_log.unstable_snapshot().is_some();
        if is_busy || !may_restore(&self.raw.raft, &message) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Identity;
    use crate::raft::node::RaftConfig;
    use crate::wal::LogRestart;
    use crate::wal::birth::empty_log;

    /// raft-rs stops the process at an election that looks for entries which the state holds.
    #[test]
    fn no_election_begins_before_the_log_has_begun_again() {
        let votes = ConfState::of_voters(vec![1, 2, 7]);
        let config = RaftConfig { conf_state: votes.clone(), ..RaftConfig::alone(7, 1) };
        let log = empty_log(Identity { cluster: 1, member: 7 });
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RaftNode::start(&config, &log, &logger).unwrap();
        let at = Applied { index: 50, term: 4 };
        assert!(!node.offer(1, 3, at, &votes), "of a later term than its leader's");
        assert!(!node.offer(1, 5, at, &ConfState::of_voters(vec![1, 1])), "a member votes twice");
        assert!(!node.offer(1, 5, at, &ConfState::of_voters(vec![1, 2])), "not for this member");
        assert!(node.offer(1, 5, at, &votes));
        assert!(!node.offer(1, 5, Applied { index: 60, term: 4 }, &votes), "one at a time");
        let frame = node.effects().append.unwrap();
        assert_eq!(frame.restart, Some(LogRestart { index: 50, term: 4 }));
        assert_eq!(frame.hard_state.unwrap().commit, 50);
        (0..40).for_each(|_| node.tick());
        assert!(node.effects().messages.is_empty(), "a promise or a campaign before the frame is durable");
        node.written();
        let effects = node.effects();
        assert!(effects.is_restarted && !effects.messages.is_empty(), "the leader hears of it");
        (0..40).for_each(|_| node.tick());
        assert!(!node.effects().messages.is_empty(), "it stands for election");
        assert!(!node.offer(1, 5, at, &votes), "it has that already");
    }
}
