//! Entries that a member has acknowledged and has no more: its disk forgot them, or an older copy
//! of its files was put back.
//!
//! A leader names no commit index to a follower that the follower has not acknowledged, and a
//! follower whose log is shorter than that says so when it is sent what follows. So both can know.
//! The member must not help to elect a leader without the entries that it had promised to keep, nor
//! lead; it takes them again from the leader that has them.
//!
//! Other entries may have come back in the place of those that are lost: the end of an older log.
//! By the commit index of a heartbeat only entries are committed that are the leader's for certain:
//! the entry at that index is of its own term, or the leader has sent it, or what follows it, to
//! this process. Else the leader's word is about what an earlier process had acknowledged; until
//! the leader has shown its entries, they count as lost.

use std::collections::BTreeMap;

use raft::eraftpb::{Message, MessageType};
use raft::{INVALID_ID, ProgressState, Raft, StateRole, Storage};

use crate::mutants::{self, Mutant};

/// Log core view: what is known of lost entries.
#[derive(Debug)]
pub(super) struct LostEntries {
    logger: slog::Logger,
    /// This member has acknowledged entries up to here, by the word of the leader of a term, and
    /// does not have them for certain.
    own: Option<Promise>,
    /// In this term the log is the leader's up to this entry.
    confirmed: (u64, u64),
    /// Other members that have lost some, and the term in which that was told.
    told: BTreeMap<u64, u64>,
}

/// Entries up to this one were committed in this term, if its leader has said so.
#[derive(Debug, Clone, Copy)]
struct Promise {
    term: u64,
    until: u64,
    /// The log is shorter. Else it may be the same: a process has just begun.
    is_lost: bool,
}

impl LostEntries {
    /// Nothing is known yet.
    pub(super) fn new(logger: &slog::Logger) -> Self {
        Self { logger: logger.clone(), own: None, confirmed: (0, 0), told: BTreeMap::new() }
    }

    /// Looks at a message before raft does; false if raft must not see it.
    pub(super) fn look_at<S: Storage>(&mut self, raft: &mut Raft<S>, message: &mut Message) -> bool {
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if message.commit > raft.raft_log.last_index() => {
                if may_lead(raft, message) {
                    self.lost_own(raft, message);
                }
                // raft-rs ends the process at a commit index behind the log's end, and compares no
                // terms: the end of the log may be of an earlier leader, and never committed.
                message.commit = raft.raft_log.committed;
            }
            MessageType::MsgHeartbeat if !self.is_confirmed(raft, message) => {
                if may_lead(raft, message) {
                    self.ask_for_proof(raft, message);
                }
                message.commit = raft.raft_log.committed;
            }
            MessageType::MsgAppendResponse if message.reject && message.term == raft.term => {
                self.lost_of(raft, message);
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote | MessageType::MsgTimeoutNow => {
                let may_stand = !self.is_short(raft) || self.is_kept_by(message);
                return may_stand || mutants::is(Mutant::LostEntriesVote);
            }
            _ => {}
        }
        true
    }

    /// raft is about to see this message. An append that it takes makes the log the leader's up to
    /// the append's end.
    pub(super) fn hear_append<S: Storage>(&mut self, raft: &Raft<S>, append: &Message) {
        let log = &raft.raft_log;
        let is_append = append.get_msg_type() == MessageType::MsgAppend;
        let is_taken =
            is_append && append.index >= log.committed && log.match_term(append.index, append.log_term);
        if is_taken && may_lead(raft, append) {
            let last = append.index + append.entries.len() as u64;
            self.confirmed = self.confirmed.max((append.term, last));
        }
    }

    /// The log is the leader's up to the commit index of its heartbeat, or that commits nothing.
    fn is_confirmed<S: Storage>(&self, raft: &Raft<S>, heartbeat: &Message) -> bool {
        let ((term, index), log, commit) = (self.confirmed, &raft.raft_log, heartbeat.commit);
        let is_sent = term == heartbeat.term && commit <= index;
        // Only the leader itself makes entries of its term: what is before one is as in its log.
        commit <= log.committed || is_sent || log.term(commit) == Ok(heartbeat.term)
    }

    /// A process before this one has acknowledged what the leader has committed: the leader is to
    /// send some of it again. Without new entries it would send nothing.
    fn ask_for_proof<S: Storage>(&mut self, raft: &mut Raft<S>, heartbeat: &Message) {
        self.promise(heartbeat, false);
        reject(raft, heartbeat, heartbeat.commit);
    }

    /// This member has acknowledged all that the heartbeat commits.
    fn promise(&mut self, heartbeat: &Message, is_lost: bool) {
        let until = self.own.map_or(heartbeat.commit, |own| own.until.max(heartbeat.commit));
        let is_lost = is_lost || self.own.is_some_and(|own| own.is_lost);
        self.own = Some(Promise { term: heartbeat.term, until, is_lost });
    }

    /// The candidate has all that this member has acknowledged: its log ends there or
    /// behind, with an entry of the leader that has said so, or of a later one.
    fn is_kept_by(&self, message: &Message) -> bool {
        let is_asking = message.get_msg_type() != MessageType::MsgTimeoutNow;
        let has_all = |own: Promise| message.log_term >= own.term && message.index >= own.until;
        is_asking && self.own.is_some_and(has_all)
    }

    /// This member's log lacks entries that it has acknowledged, or may lack them.
    pub(super) fn is_short<S: Storage>(&mut self, raft: &Raft<S>) -> bool {
        let (log, confirmed) = (&raft.raft_log, self.confirmed);
        let (last, term) = (log.last_index(), log.term(log.committed).unwrap_or(0));
        // With an entry of a later leader come all that were committed before it. The word of a
        // program that only says that it leads is over then, too.
        let is_over = |own: &mut Promise| {
            let is_sent = own.term <= confirmed.0 && own.until <= confirmed.1.min(last);
            is_sent || own.until <= log.committed || own.term < term
        };
        if self.own.take_if(is_over).is_some_and(|own| own.is_lost) {
            slog::warn!(self.logger, "the lost entries are there again, up to {last}");
        }
        self.own.is_some()
    }

    /// The leader says that this member has acknowledged more than its log has.
    fn lost_own<S: Storage>(&mut self, raft: &mut Raft<S>, message: &Message) {
        let (last, acknowledged) = (raft.raft_log.last_index(), message.commit);
        if !self.own.is_some_and(|own| own.is_lost) {
            slog::error!(
                self.logger,
                "this member has acknowledged entry {acknowledged} and has none behind {last}: its disk has lost \
                 entries, or an older copy of its data was put back; it neither votes nor leads until it has \
                 them again from the leader"
            );
        }
        self.promise(message, true);
        // Without new entries the leader would send nothing, and so hear nothing of it.
        reject(raft, message, last);
    }

    /// Another member refuses entries. If it has acknowledged them, the leader goes back to the end
    /// of its log, or to what is before them: raft-rs takes such an answer for one that comes late.
    fn lost_of<S: Storage>(&mut self, raft: &mut Raft<S>, message: &Message) {
        let (is_leader, committed) = (raft.state == StateRole::Leader, raft.raft_log.committed);
        let Some(progress) = raft.mut_prs().get_mut(message.from) else { return };
        let matched = progress.matched;
        if !is_leader || message.index > matched && message.reject_hint >= matched {
            return;
        }
        if progress.state != ProgressState::Snapshot {
            // Committed entries stay acknowledged: each heartbeat tells the member so. Others must
            // not count.
            progress.matched = matched.min(committed);
            progress.become_probe();
            progress.next_idx = message.index + 1;
        }
        if message.reject_hint < matched.min(message.index) {
            self.tell_lost_of(message, matched);
        }
    }

    fn tell_lost_of(&mut self, message: &Message, matched: u64) {
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

/// Refuses what the leader's heartbeat says that this member has: its log is like the leader's up
/// to `hint` at most.
fn reject<S: Storage>(raft: &mut Raft<S>, heartbeat: &Message, hint: u64) {
    let mut answer =
        Message { to: heartbeat.from, from: raft.id, term: heartbeat.term, ..Message::default() };
    answer.set_msg_type(MessageType::MsgAppendResponse);
    (answer.reject, answer.index) = (true, heartbeat.commit);
    (answer.reject_hint, answer.log_term) = (hint, raft.raft_log.term(hint).unwrap_or(0));
    answer.commit = raft.raft_log.committed;
    raft.msgs.push(answer);
}

/// The sender of a message may lead: it does as far as this member knows, or there is no other
/// leader of its term.
fn may_lead<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let is_leader = raft.leader_id == message.from || raft.leader_id == INVALID_ID;
    message.term > raft.term || message.term == raft.term && is_leader
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft::eraftpb::Entry;

    use crate::cluster::Identity;
    use crate::cluster::conf_state::ConfState;
    use crate::raft::message::RaftMessage;
    use crate::raft::node::{RaftConfig, RaftNode};
    use crate::wal::LogEntry;
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

    /// Member `id` of three, with this log behind entry 1 of term 1.
    fn node(id: u64, entries: &[(u64, u64)]) -> RaftNode {
        let conf_state = ConfState::of_voters(vec![1, 2, 7]);
        let config = RaftConfig { conf_state, ..RaftConfig::alone(id, 1) };
        let mut log = empty_log(Identity { cluster: 1, member: id });
        let entry = |&(index, term): &(u64, u64)| LogEntry { index, term, kind: 0, data: Bytes::new() };
        log.entries = entries.iter().map(entry).collect();
        log.hard_state.term = entries.last().map_or(1, |(_, term)| *term);
        RaftNode::start(&config, &log, &slog::Logger::root(slog::Discard, slog::o!())).unwrap()
    }

    fn heartbeat(from: u64, term: u64, commit: u64) -> RaftMessage {
        message(MessageType::MsgHeartbeat, term, |beat| (beat.from, beat.commit) = (from, commit))
    }

    /// A request for a vote of one whose log ends there, which even a member with a leader answers.
    fn vote(term: u64, index: u64, log_term: u64) -> RaftMessage {
        message(MessageType::MsgRequestVote, term, |vote| {
            (vote.from, vote.index, vote.log_term) = (2, index, log_term);
            vote.context = b"CampaignTransfer".to_vec().into();
        })
    }

    /// Row 17 (FAST 2018) and 54: a log that was cut off behind what its member had acknowledged.
    #[test]
    fn bug_017_a_member_that_has_lost_entries_takes_them_again_and_does_not_vote_before() {
        let mut node = node(7, &[]);
        node.step(heartbeat(1, 3, 3));
        let both = [MessageType::MsgHeartbeatResponse, MessageType::MsgAppendResponse];
        assert_eq!(said(&mut node), both, "the leader goes on with it");
        node.step(vote(4, 1, 1));
        (0..60).for_each(|_| node.tick());
        assert_eq!(said(&mut node), [], "it votes for nobody, also not for itself");
        let entry = |index| Entry { index, term: 2, ..Entry::default() };
        node.step(message(MessageType::MsgAppend, 3, |append| {
            (append.index, append.log_term) = (1, 1);
            append.set_entries(vec![entry(2), entry(3)].into());
        }));
        assert_eq!(said(&mut node), [MessageType::MsgAppendResponse]);
        node.step(vote(4, 3, 2));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse]);
    }

    /// Entries that a leader of an earlier term has left at the end of the log are not those that
    /// were acknowledged.
    #[test]
    fn bug_017_no_entry_of_an_earlier_leader_is_committed_by_a_heartbeat_that_names_a_later_one() {
        let mut node = node(7, &[(2, 2), (3, 2)]);
        node.step(heartbeat(1, 3, 5));
        assert_eq!(node.status().committed, 1);
        assert!(node.effects().committed.is_empty());
    }

    /// The entries that it had acknowledged are lost, and those that they took the place of are
    /// back: the leader has as many.
    #[test]
    fn bug_017_no_entry_of_an_earlier_leader_is_committed_in_the_place_of_one_that_is_lost() {
        let mut node = node(7, &[(2, 2), (3, 2)]);
        node.step(heartbeat(1, 3, 3));
        assert_eq!(node.status().committed, 1);
        let both = [MessageType::MsgHeartbeatResponse, MessageType::MsgAppendResponse];
        assert_eq!(said(&mut node), both, "the leader is to show its entries");
        node.step(vote(4, 3, 2));
        (0..60).for_each(|_| node.tick());
        assert_eq!(said(&mut node), [], "it votes for nobody that may not have them, also not for itself");
        node.step(message(MessageType::MsgAppend, 3, |append| {
            (append.index, append.log_term) = (2, 2);
            append.set_entries(vec![Entry { index: 3, term: 3, ..Entry::default() }].into());
        }));
        assert_eq!(said(&mut node), [MessageType::MsgAppendResponse]);
        node.step(heartbeat(1, 3, 3));
        assert_eq!((node.status().committed, node.raw.raft.raft_log.term(3).unwrap()), (3, 3));
        assert_eq!(said(&mut node), [MessageType::MsgHeartbeatResponse]);
    }

    /// A plain start looks like a loss, while the log ends with entries of earlier leaders. The
    /// others need its vote if the leader dies then.
    #[test]
    fn a_member_that_may_have_lost_entries_votes_for_one_that_has_them() {
        let mut node = node(7, &[(2, 2), (3, 2)]);
        node.step(heartbeat(1, 3, 3));
        drop(said(&mut node));
        for (index, log_term) in [(3, 2), (2, 3)] {
            node.step(vote(4, index, log_term));
            assert_eq!(said(&mut node), [], "{index} of {log_term}");
        }
        node.step(vote(4, 4, 3));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse]);
    }

    /// The leader's log may begin there: it could show what is before only by a whole state.
    #[test]
    fn a_member_that_was_started_again_asks_for_nothing_if_its_log_is_the_leaders() {
        let mut node = node(7, &[(2, 2), (3, 3)]);
        node.step(heartbeat(1, 3, 3));
        assert_eq!(node.status().committed, 3);
        assert_eq!(said(&mut node), [MessageType::MsgHeartbeatResponse]);
        node.step(vote(4, 3, 3));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse]);
    }

    /// Anything that speaks the protocol can say that it leads.
    #[test]
    fn only_the_leader_is_believed_and_no_longer_than_another_one_commits() {
        let mut node = node(7, &[]);
        node.step(heartbeat(2, 3, 0));
        node.step(heartbeat(1, 3, 900));
        drop(said(&mut node));
        node.step(vote(4, 1, 1));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse], "another one leads in that term");
        node.step(heartbeat(1, 5, 900));
        drop(said(&mut node));
        node.step(vote(6, 1, 1));
        assert_eq!(said(&mut node), [], "it may have the entries that it was told of");
        node.step(message(MessageType::MsgAppend, 7, |append| {
            (append.from, append.index, append.log_term, append.commit) = (2, 1, 1, 2);
            append.set_entries(vec![Entry { index: 2, term: 7, ..Entry::default() }].into());
        }));
        assert_eq!(said(&mut node), [MessageType::MsgAppendResponse]);
        node.step(vote(8, 2, 7));
        assert_eq!(said(&mut node), [MessageType::MsgRequestVoteResponse], "a later leader has none of them");
    }

    /// Takes messages to and fro until nobody has any, everything being durable.
    fn talk(nodes: &mut [RaftNode]) {
        loop {
            let mut sent = Vec::new();
            for node in nodes.iter_mut() {
                loop {
                    let effects = node.effects();
                    sent.extend(effects.messages);
                    if effects.append.is_none() {
                        break;
                    }
                    node.written();
                }
            }
            if sent.is_empty() {
                return;
            }
            for message in sent {
                let to = nodes.iter_mut().find(|node| node.raw.raft.id == message.to());
                to.into_iter().for_each(|node| node.step(message.clone()));
            }
        }
    }

    /// The leader has nothing new to send, and takes every state of what it knows of the member.
    #[test]
    fn bug_017_a_leader_without_anything_to_send_feeds_a_member_that_has_lost_entries() {
        for is_noticed in [true, false] {
            let mut nodes = [node(1, &[]), node(2, &[]), node(7, &[])];
            nodes[0].campaign().unwrap();
            talk(&mut nodes);
            for _ in 0..5 {
                nodes[0].propose(vec![7; 1024 * 1024].into()).unwrap();
                talk(&mut nodes);
            }
            assert_eq!((nodes[0].status().committed, nodes[2].status().last_index), (7, 7));
            // It comes back with a file of before, and entries that no leader has.
            for last in [2, 6, 7, 8] {
                let entries: Vec<(u64, u64)> = (2..=last).map(|index| (index, 1)).collect();
                nodes[2] = node(7, &entries);
                if is_noticed {
                    nodes[0].connection_lost(7);
                }
                for _ in 0..40 {
                    nodes[0].tick();
                    talk(&mut nodes);
                }
                let (status, log) = (nodes[2].status(), &nodes[2].raw.raft.raft_log);
                assert_eq!((status.last_index, status.committed), (7, 7), "{last}, {is_noticed}");
                assert!((2..=7).all(|index| log.term(index).unwrap() == 2), "{last}, {is_noticed}");
            }
            nodes[2].step(vote(9, 7, 2));
            assert_eq!(said(&mut nodes[2]), [MessageType::MsgRequestVoteResponse]);
        }
    }
}
