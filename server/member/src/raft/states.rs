//! States that members send to those that lag behind the log: raft's part in it.

use std::cmp::Ordering;

use raft::eraftpb::{Message, MessageType};
use raft::{INVALID_ID, SnapshotStatus};
use revd_engine::mvcc::Applied;

use crate::cluster::conf_state::ConfState;
use crate::raft::admission::may_restore;
use crate::raft::convert::conf_state_to_raft;
use crate::raft::node::RaftNode;

/// Raft's word about a state that another member has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// The log is to begin again behind it, and the member is to go on from it then
    /// ([`RaftEffects::is_restarted`](crate::raft::node::RaftEffects::is_restarted)).
    Taken,
    /// The leader is not known at this moment: it is to be offered again.
    Early,
    /// The log has no use for it.
    Unwanted,
}

impl RaftNode {
    /// Another member has sent a state in the name of the leader of a term.
    ///
    /// A state holds what is committed, and the log of every later leader holds that too: a state
    /// of an earlier leader is taken in the name of the one that this member follows now.
    pub fn offer(&mut self, from: u64, term: u64, at: Applied, conf_state: &ConfState) -> Offered {
        let raft = &self.raw.raft;
        let (from, term) = match (term.cmp(&raft.term), raft.leader_id) {
            (Ordering::Greater, _) | (Ordering::Equal, INVALID_ID) => (from, term),
            (_, leader) if leader == raft.id => return Offered::Unwanted,
            (Ordering::Less, _) if at.index <= raft.raft_log.committed => return Offered::Unwanted,
            (Ordering::Less, INVALID_ID) => return Offered::Early,
            (_, leader) => (leader, raft.term),
        };
        let mut message = Message { from, to: raft.id, term, ..Message::default() };
        message.set_msg_type(MessageType::MsgSnapshot);
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (at.index, at.term);
        metadata.set_conf_state(conf_state_to_raft(conf_state));
        let is_busy = self.is_restarting() || self.raw.raft.raft_log.unstable_snapshot().is_some();
        if is_busy || !may_restore(&self.raw.raft, &message) {
            return Offered::Unwanted;
        }
        let _ = self.raw.step(message);
        let pending = self.raw.raft.raft_log.unstable_snapshot().as_ref();
        let is_taken = pending.is_some_and(|snapshot| snapshot.get_metadata().index == at.index);
        if is_taken { Offered::Taken } else { Offered::Unwanted }
    }

    /// The state that a member needed is with it, or could not be sent.
    pub fn streamed(&mut self, to: u64, is_there: bool) {
        let status = if is_there { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to, status);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cluster::Identity;
    use crate::raft::conf_change::{VoteChange, entry_of};
    use crate::raft::message::RaftMessage;
    use crate::raft::node::RaftConfig;
    use crate::wal::LogRestart;
    use crate::wal::birth::empty_log;

    fn member_7(votes: &ConfState) -> RaftNode {
        let config = RaftConfig { conf_state: votes.clone(), ..RaftConfig::alone(7, 1) };
        let log = empty_log(Identity { cluster: 1, member: 7 });
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        RaftNode::start(&config, &log, &logger).unwrap()
    }

    /// raft-rs stops the process at an election that looks for entries which the state holds.
    #[test]
    fn no_election_begins_before_the_log_has_begun_again() {
        let votes = ConfState::of_voters(vec![1, 2, 7]);
        let mut node = member_7(&votes);
        let at = Applied { index: 50, term: 4 };
        let (taken, unwanted) = (Offered::Taken, Offered::Unwanted);
        assert_eq!(node.offer(1, 3, at, &votes), unwanted, "of a later term than its leader's");
        assert_eq!(node.offer(1, 1 << 40, at, &votes), unwanted, "no cluster has had so many terms");
        assert_eq!(node.offer(1, 5, at, &ConfState::of_voters(vec![1, 1])), unwanted, "one votes twice");
        assert_eq!(node.offer(1, 5, at, &ConfState::of_voters(vec![1, 2])), unwanted, "not for it");
        assert_eq!(node.offer(1, 5, at, &votes), taken);
        assert_eq!(node.offer(1, 5, Applied { index: 60, term: 4 }, &votes), unwanted, "one at a time");
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
        assert_eq!(node.offer(1, 5, at, &votes), unwanted, "it has that already");
    }

    /// A change of leaders does not waste a state that is on its way.
    #[test]
    fn a_state_of_an_earlier_leader_is_taken_in_the_name_of_the_present_one() {
        let votes = ConfState::of_voters(vec![1, 2, 7]);
        let mut node = member_7(&votes);
        let at = Applied { index: 50, term: 4 };
        node.raw.raft.become_follower(6, INVALID_ID);
        assert_eq!(node.offer(1, 5, at, &votes), Offered::Early, "nobody leads");
        let old = Applied { index: 1, term: 1 };
        assert_eq!(node.offer(1, 5, old, &votes), Offered::Unwanted, "it has that already");
        node.raw.raft.become_follower(6, 2);
        assert_eq!(node.offer(1, 5, at, &votes), Offered::Taken);
        drop(node.effects());
        node.written();
        let answers = node.effects().messages;
        let heard: Vec<_> =
            answers.iter().map(|RaftMessage(sent)| (sent.to, sent.term, sent.index)).collect();
        assert_eq!(heard, [(2, 6, 50)], "the one that leads hears of it");
    }

    /// Its votes are raft's from then on, and hold those changes.
    #[test]
    fn changes_of_members_that_a_state_holds_are_not_made_again() {
        let mut node = member_7(&ConfState::of_voters(vec![1, 2, 7]));
        let mut append = Message { from: 1, to: 7, term: 5, ..Message::default() };
        append.set_msg_type(MessageType::MsgAppend);
        (append.index, append.log_term, append.commit) = (1, 1, 2);
        let mut entry = entry_of(VoteChange::Gone(2), Bytes::new());
        (entry.index, entry.term) = (2, 5);
        append.set_entries(vec![entry].into());
        node.step(RaftMessage(append));
        for _ in ["the entry", "that it is committed"] {
            assert!(node.effects().committed.is_empty());
            node.written();
        }
        let at = Applied { index: 50, term: 5 };
        assert_eq!(node.offer(1, 5, at, &ConfState::of_voters(vec![1, 7])), Offered::Taken);
        let effects = node.effects();
        assert_eq!((effects.committed.len(), effects.changes), (0, vec![]));
        node.written();
        assert!(node.effects().is_restarted);
    }
}
