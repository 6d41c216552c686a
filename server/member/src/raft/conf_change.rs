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

/// The batch of commands in the data of such an entry; nothing, if it is damaged.
pub(crate) fn batch_of(data: Bytes) -> Bytes {
    ConfChangeData::decode(data).map(|change| change.batch).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Identity;
    use crate::cluster::conf_state::ConfState;
    use crate::raft::message::RaftMessage;
    use crate::raft::node::{RaftConfig, RaftNode};
    use crate::wal::birth::empty_log;
    use raft::eraftpb::{Message, MessageType};

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
        assert_eq!(batch_of(data.clone()), &b"batch"[..]);
        for len in 0..data.len() {
            assert_eq!(batch_of(data.slice(..len)), &b""[..], "cut at {len}");
        }
    }
}
