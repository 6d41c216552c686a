//! Changes of members as raft has them: entries of a kind of their own, each with one change of a
//! vote and a batch of one command.
//!
//! Bytes that came from another member are decoded here, never by raft-rs's own decoder. The vote
//! that changes is not even taken from them: the log core knows it from the command.

use bytes::Bytes;
use prost::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, Entry, EntryType};

/// The change of one member's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteChange {
    /// It votes.
    Voter(u64),
    /// It learns.
    Learner(u64),
    /// It is gone.
    Gone(u64),
}

/// `eraftpb.ConfChange`, the data of such an entry.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfChangeData {
    #[prost(int32, tag = "2")]
    change_type: i32,
    #[prost(uint64, tag = "3")]
    member: u64,
    #[prost(bytes = "bytes", tag = "4")]
    batch: Bytes,
}

impl VoteChange {
    fn parts(self) -> (ConfChangeType, u64) {
        match self {
            Self::Voter(id) => (ConfChangeType::AddNode, id),
            Self::Learner(id) => (ConfChangeType::AddLearnerNode, id),
            Self::Gone(id) => (ConfChangeType::RemoveNode, id),
        }
    }

    pub(super) fn to_raft(self) -> ConfChange {
        let (kind, member) = self.parts();
        let mut change = ConfChange { node_id: member, ..ConfChange::default() };
        change.set_change_type(kind);
        change
    }
}

/// An entry that is to change a vote.
pub(crate) fn entry_of(change: VoteChange, batch: Bytes) -> Entry {
    let (kind, member) = change.parts();
    let data = ConfChangeData { change_type: kind as i32, member, batch }.encode_to_vec();
    let mut entry = Entry { data: data.into(), ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChange);
    entry
}

/// The batch of commands in an entry that is to change votes. One that is to change several at once
/// holds nothing for this version: revd proposes none.
pub(crate) fn batch_of(kind: EntryType, data: Bytes) -> Bytes {
    if kind == EntryType::EntryConfChange { batch_in(data) } else { Bytes::new() }
}

/// The batch in the data of such an entry; nothing, if it is damaged.
pub(crate) fn batch_in(data: Bytes) -> Bytes {
    ConfChangeData::decode(data).map(|change| change.batch).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Identity;
    use crate::cluster::conf_state::ConfState;
    use crate::raft::message::RaftMessage;
    use crate::raft::node::{RaftConfig, RaftError, RaftNode};
    use crate::raft::states::Offered;
    use crate::wal::LogEntry;
    use crate::wal::birth::empty_log;
    use raft::eraftpb::{Message, MessageType};
    use revd_engine::mvcc::Applied;

    /// Writes what is to be written until there is nothing more; returns the committed changes.
    fn settle(node: &mut RaftNode) -> Vec<Bytes> {
        let mut changes = Vec::new();
        loop {
            let effects = node.effects();
            let committed = effects.committed.iter();
            let of_members = committed.filter(|entry| effects.changes.contains(&entry.index));
            changes.extend(of_members.map(|entry| entry.data.clone()));
            if effects.append.is_none() {
                return changes;
            }
            node.written();
        }
    }

    /// raft-rs reads such entries where it proposes them.
    #[test]
    fn a_vote_changes_when_its_entry_is_committed() {
        let log = empty_log(Identity { cluster: 1, member: 7 });
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RaftNode::start(&RaftConfig::alone(7, 1), &log, &logger).unwrap();
        node.campaign().unwrap();
        settle(&mut node);
        node.applied(2);
        assert!(node.may_change());
        node.propose_change(VoteChange::Learner(9), Bytes::from_static(b"batch")).unwrap();
        assert!(!node.may_change(), "one at a time");
        assert_eq!(settle(&mut node), [&b"batch"[..]]);
        assert_eq!(node.votes().learners, [0; 0]);
        let votes = node.set_vote(VoteChange::Learner(9)).unwrap();
        assert_eq!((&votes.voters[..], &votes.learners[..]), (&[7][..], &[9][..]));
        assert_eq!(votes, node.votes());
        node.applied(3);
        assert!(node.may_change() && node.status().is_sole_voter);
        assert!(node.set_vote(VoteChange::Gone(7)).is_err(), "nobody would be left");
    }

    /// The other of two voters says so to member 7.
    fn said_by_the_other(kind: MessageType, index: u64) -> RaftMessage {
        let mut message = Message { from: 9, to: 7, term: 2, index, ..Message::default() };
        message.set_msg_type(kind);
        RaftMessage(message)
    }

    /// raft-rs leaves a leader that is no member in its place, and looks for it when the next entry
    /// is durable or acknowledged.
    #[test]
    fn a_leader_that_is_removed_leads_no_more() {
        let log = empty_log(Identity { cluster: 1, member: 7 });
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let conf_state = ConfState::of_voters(vec![7, 9]);
        let config = RaftConfig { conf_state, ..RaftConfig::alone(7, 1) };
        let mut node = RaftNode::start(&config, &log, &logger).unwrap();
        node.campaign().unwrap();
        settle(&mut node);
        for (kind, index) in [
            (MessageType::MsgRequestPreVoteResponse, 0),
            (MessageType::MsgRequestVoteResponse, 0),
            (MessageType::MsgAppendResponse, 2),
        ] {
            node.step(said_by_the_other(kind, index));
            settle(&mut node);
        }
        node.applied(2);
        node.propose_change(VoteChange::Gone(7), Bytes::from_static(b"batch")).unwrap();
        settle(&mut node);
        node.step(said_by_the_other(MessageType::MsgAppendResponse, 3));
        let effects = node.effects();
        assert_eq!(effects.changes, [0; 0], "it is not durable yet that it is committed");
        assert_eq!(effects.append.unwrap().hard_state.unwrap().commit, 3);
        node.written();
        assert_eq!(node.effects().changes, [3]);
        node.propose(Bytes::from_static(b"behind")).unwrap();
        node.set_vote(VoteChange::Gone(7)).unwrap();
        assert!(!node.status().is_leader);
        settle(&mut node);
        node.step(said_by_the_other(MessageType::MsgAppendResponse, 4));
        settle(&mut node);
    }

    #[test]
    fn damaged_entries_hold_nothing() {
        let data = entry_of(VoteChange::Gone(7), Bytes::from_static(b"batch")).data;
        assert_eq!(batch_in(data.clone()), &b"batch"[..]);
        for len in 0..data.len() {
            assert_eq!(batch_in(data.slice(..len)), &b""[..], "cut at {len}");
        }
    }

    /// Row 50 (etcd #11003, #12137): an entry of another program, an empty one as raft-rs itself
    /// would propose to leave a joint configuration, and states and tree files with joint votes.
    #[test]
    fn bug_050_joint_changes_and_joint_states_are_refused() {
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut log = empty_log(Identity { cluster: 1, member: 7 });
        let data = entry_of(VoteChange::Voter(9), Bytes::from_static(b"batch")).data;
        let entry = |(index, data)| LogEntry { index, term: 1, kind: 2, data };
        log.entries = (2..).zip([data, Bytes::new()]).map(entry).collect();
        let mut node = RaftNode::start(&RaftConfig::alone(7, 1), &log, &logger).unwrap();
        node.campaign().unwrap();
        assert_eq!(settle(&mut node), [&b""[..], b""], "nothing that could be judged well");
        node.applied(4);
        assert!(node.status().is_leader && node.may_change());
        let joint = ConfState { voters_outgoing: vec![7], ..ConfState::of_voters(vec![7, 9]) };
        let mut follower = RaftNode::start(
            &RaftConfig { conf_state: ConfState::of_voters(vec![7, 9]), ..RaftConfig::alone(7, 1) },
            &empty_log(Identity { cluster: 1, member: 7 }),
            &logger,
        )
        .unwrap();
        let at = Applied { index: 50, term: 4 };
        assert_eq!(follower.offer(9, 5, at, &joint), Offered::Unwanted);
        assert_eq!(follower.offer(9, 5, at, &ConfState::of_voters(vec![7, 9])), Offered::Taken);
        let config = RaftConfig { conf_state: joint, ..RaftConfig::alone(7, 1) };
        assert!(matches!(RaftNode::start(&config, &log, &logger), Err(RaftError::Joint)));
    }
}
