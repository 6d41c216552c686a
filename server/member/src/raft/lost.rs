//! Entries that a member has acknowledged and has no more: its disk forgot them, or an older copy
//! of its files was put back.
//!
//! A leader names no commit index to a follower that the follower has not acknowledged, and a
//! follower whose log is shorter than that says so when it is sent what follows. So both can know.
//! The member must not help to elect a leader without the entries that it had promised to keep, nor
//! lead; it takes them again from the leader that has them.

use std::collections::BTreeMap;

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, Storage};

/// Log core view: what is known of lost entries.
#[derive(Debug)]
pub(super) struct LostEntries {
    logger: slog::Logger,
    /// This member has acknowledged entries up to here, and has not got them again yet.
    own: Option<u64>,
    /// Other members that have lost some, and the term in which that was told.
    told: BTreeMap<u64, u64>,
}

impl LostEntries {
    /// Nothing is known yet.
    pub(super) fn new(logger: &slog::Logger) -> Self {
        Self { logger: logger.clone(), own: None, told: BTreeMap::new() }
    }

    /// Looks at a message before raft does; false if raft must not see it.
    pub(super) fn look_at<S: Storage>(&mut self, raft: &Raft<S>, message: &mut Message) -> bool {
        let last = raft.raft_log.last_index();
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if message.commit > last => {
                if message.term >= raft.term {
                    self.lost_own(last, message.commit);
                }
                // raft-rs ends the process at a commit index behind the log's end. With this one
                // the leader hears an answer, and sends what is missing.
                message.commit = last;
            }
            MessageType::MsgAppendResponse if message.reject && message.term == raft.term => {
                let matched = raft.prs().get(message.from).map_or(0, |progress| progress.matched);
                if message.reject_hint < matched {
                    self.lost_of(message, matched);
                }
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote | MessageType::MsgTimeoutNow => {
                return !self.is_short(last);
            }
            _ => {}
        }
        true
    }

    /// This member's log, which ends here, lacks entries that it has acknowledged.
    pub(super) fn is_short(&mut self, last: u64) -> bool {
        if self.own.take_if(|until| *until <= last).is_some() {
            slog::warn!(self.logger, "the lost entries are there again, up to {last}");
        }
        self.own.is_some()
    }

    fn lost_own(&mut self, last: u64, acknowledged: u64) {
        if self.own.is_none() {
            slog::error!(
                self.logger,
                "this member has acknowledged entry {acknowledged} and has none behind {last}: its disk has lost \
                 entries, or an older copy of its data was put back; it neither votes nor leads until it has \
                 them again from the leader"
            );
        }
        self.own = self.own.max(Some(acknowledged));
    }

    fn lost_of(&mut self, message: &Message, matched: u64) {
        if self.told.insert(message.from, message.term) != Some(message.term) {
            slog::error!(
                self.logger,
                "member {:x} has acknowledged entry {matched} and has none behind {} any more: its disk has lost \
                 entries, or an older copy of its data was put back",
                message.from,
                message.reject_hint
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;

    use crate::cluster::Identity;
    use crate::cluster::conf_state::ConfState;
    use crate::raft::message::RaftMessage;
    use crate::raft::node::{RaftConfig, RaftNode};
    use crate::wal::birth::empty_log;

    use super::*;

    fn message(kind: MessageType, term: u64, change: impl FnOnce(&mut Message)) -> RaftMessage {
        let mut message = Message { from: 1, to: 7, term, ..Message::default() };
        message.set_msg_type(kind);
        change(&mut message);
        RaftMessage(message)
    }

    /// Its messages by now, everything being durable.
    fn said(node: &mut RaftNode) -> Vec<MessageType> {
        let mut said = Vec::new();
        loop {
            let effects = node.effects();
            said.extend(effects.messages.iter().map(|RaftMessage(message)| message.get_msg_type()));
            if effects.append.is_none() {
                return said;
            }
            node.written();
        }
    }

    /// Row 17 (FAST 2018) and 54: a log that was cut off behind what its member had acknowledged.
    #[test]
    fn bug_017_a_member_that_has_lost_entries_takes_them_again_and_does_not_vote_before() {
        let conf_state = ConfState::of_voters(vec![1, 2, 7]);
        let config = RaftConfig { conf_state, ..RaftConfig::alone(7, 1) };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let log = empty_log(Identity { cluster: 1, member: 7 });
        let mut node = RaftNode::start(&config, &log, &logger).unwrap();
        let vote = |term| {
            message(MessageType::MsgRequestVote, term, |vote| {
                (vote.from, vote.index, vote.log_term) = (2, 1, 1);
                vote.context = b"CampaignTransfer".to_vec().into();
            })
        };
        node.step(message(MessageType::MsgHeartbeat, 3, |beat| beat.commit = 3));
        assert_eq!(said(&mut node), [MessageType::MsgHeartbeatResponse], "the leader goes on with it");
        node.step(vote(4));
        (0..60).for_each(|_| node.tick());
        assert_eq!(said(&mut node), [], "it votes for nobody, also not for itself");
        let entry = |index| Entry { index, term: 2, ..Entry::default() };
        node.step(message(MessageType::MsgAppend, 3, |append| {
            (append.index, append.log_term) = (1, 1);
            append.set_entries(vec![entry(2), entry(3)].into());
        }));
        assert_eq!(said(&mut node), [MessageType::MsgAppendResponse]);
        node.step(message(MessageType::MsgRequestVote, 4, |vote| {
            (vote.from, vote.index, vote.log_term) = (2, 3, 2);
            vote.context = b"CampaignTransfer".to_vec().into();
        }));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse]);
    }
}
