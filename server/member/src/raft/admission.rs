//! Messages of other members that raft-rs may be given.
//!
//! raft-rs ends the process when a message contradicts what must be true among members that keep
//! their promises. A member that has lost its disk, or a program that only says that it is one,
//! must not have that power: such messages are left out.

use std::collections::BTreeSet;

use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{INVALID_ID, Raft, Storage};

use crate::mutants::{self, Mutant};

/// Terms and indexes above this are of no cluster: a term every microsecond takes 100,000 years to
/// get there.
const NUMBER_MAX: u64 = 1 << 61;

/// A member that was away for long has missed fewer terms: a higher one would leave too few for
/// later elections.
const TERMS_AHEAD_MAX: u64 = 1 << 32;

/// Whether raft may be given this message of another member.
pub(super) fn may_step<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let numbers = [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ];
    let is_for_us = message.to == raft.id || mutants::is(Mutant::MessageForAnotherTaken);
    let is_ours = is_for_us && message.from != INVALID_ID && message.from != raft.id;
    if !is_ours || is_far_ahead(raft, message) || numbers.iter().any(|number| *number > NUMBER_MAX) {
        return false;
    }
    match message.get_msg_type() {
        // raft-rs takes every index above its log's end for one of term 0.
        MessageType::MsgAppend => {
            let names_an_entry = message.log_term != 0 || message.index == 0;
            names_an_entry && is_next_part(message) && !contradicts_commits(raft, message)
        }
        MessageType::MsgAppendResponse => {
            let last = raft.raft_log.last_index();
            message.index <= last && message.reject_hint <= last && message.request_snapshot == 0
        }
        // A member that is alone has nobody to take over from.
        MessageType::MsgTimeoutNow => !raft.prs().is_singleton(),
        MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse => true,
        // Commands come as forwards, and a transfer is asked of the leader itself. States come on
        // connections of their own.
        _ => false,
    }
}

/// The highest index up to this one whose term is no higher, or that before the log.
///
/// raft-rs looks for it index by index, in all of the log if another member says so. Terms never
/// fall, so that it need not.
pub(super) fn last_of_term<S: Storage>(raft: &Raft<S>, index: u64, term: u64) -> u64 {
    let log = &raft.raft_log;
    let (mut low, mut high) = (log.first_index().saturating_sub(1), index);
    while low < high {
        let middle = high - (high - low) / 2;
        if log.term(middle).is_ok_and(|found| found <= term) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low.min(index)
}

/// Whether raft may be offered this state of another member.
pub(super) fn may_restore<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let metadata = message.get_snapshot().get_metadata();
    let is_in_range =
        [metadata.index, metadata.term, message.term].iter().all(|number| *number <= NUMBER_MAX);
    let is_of_term = metadata.term > 0 && metadata.term <= message.term;
    let is_ours = message.from != INVALID_ID && message.from != raft.id;
    // Every state holds the entries that are committed here.
    let log = &raft.raft_log;
    let is_of_log = metadata.index != log.committed || log.match_term(metadata.index, metadata.term);
    let is_sound = metadata.index > 0 && is_sound(metadata.get_conf_state());
    is_ours && is_in_range && is_of_term && is_of_log && is_sound && !is_far_ahead(raft, message)
}

/// No member has missed so many terms.
fn is_far_ahead<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    message.term > raft.term.saturating_add(TERMS_AHEAD_MAX)
}

/// Votes that raft-rs can restore: every member has one part, and somebody votes. revd changes one
/// member at a time: there is no joint configuration.
fn is_sound(conf: &ConfState) -> bool {
    let distinct: BTreeSet<u64> = conf.voters.iter().chain(&conf.learners).copied().collect();
    let is_joint = !conf.voters_outgoing.is_empty() || !conf.learners_next.is_empty() || conf.auto_leave;
    distinct.len() == conf.voters.len() + conf.learners.len()
        && !distinct.contains(&INVALID_ID)
        && !conf.voters.is_empty()
        && !is_joint
}

/// Entries follow the one that the message names, without a gap.
pub(super) fn is_next_part(message: &Message) -> bool {
    let mut before = (message.index, message.log_term);
    message.entries.iter().all(|entry| {
        let is_next = before.0.checked_add(1) == Some(entry.index);
        let is_of_term = entry.term >= before.1 && entry.term <= message.term;
        before = (entry.index, entry.term);
        is_next && is_of_term
    })
}

/// An entry would replace one that is committed here, or is behind one of an earlier term than the
/// last of those: a leader of this term has all that is committed, and terms never fall. raft-rs
/// looks index by index for the place where the logs part; so it need not look in front of that.
fn contradicts_commits<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let log = &raft.raft_log;
    let is_behind = message.index >= log.committed && message.term >= raft.term;
    if is_behind && log.term(log.committed).is_ok_and(|committed| message.log_term < committed) {
        return true;
    }
    log.match_term(message.index, message.log_term)
        && message
            .entries
            .iter()
            .take_while(|entry| entry.index <= log.committed)
            .any(|entry| entry.index >= log.first_index() && !log.match_term(entry.index, entry.term))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use raft::eraftpb::{ConfState, Entry, Snapshot};
    use raft::storage::MemStorage;
    use raft::{Config, GetEntriesContext, RaftState, RawNode};

    /// Member 1 of three follows member 2 in term 3; its log is that of term 1 up to entry 5, of
    /// which 4 are committed.
    fn follower() -> RawNode<MemStorage> {
        let storage = MemStorage::new_with_conf_state(ConfState::from((vec![1, 2, 3], vec![])));
        let config = Config { id: 1, election_tick: 10, heartbeat_tick: 1, ..Config::default() };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        storage.wl().append(&(1..=5).map(entry).collect::<Vec<_>>()).unwrap();
        let mut node = RawNode::new(&config, storage, &logger).unwrap();
        node.raft.become_follower(3, 2);
        node.raft.raft_log.commit_to(4);
        node
    }

    #[test]
    fn the_end_of_a_term_is_the_one_that_raft_finds() {
        let storage = MemStorage::new_with_conf_state(ConfState::from((vec![1, 2, 3], vec![])));
        let terms = [1, 1, 2, 2, 2, 5, 5, 7];
        let entries = (1..).zip(terms).map(|(index, term)| Entry { term, ..entry(index) });
        storage.wl().append(&entries.collect::<Vec<_>>()).unwrap();
        let config = Config { id: 1, election_tick: 10, heartbeat_tick: 1, ..Config::default() };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, storage, &logger).unwrap();
        for (index, term) in (0..=8).flat_map(|index| (0..9).map(move |term| (index, term))) {
            let (found, _) = node.raft.raft_log.find_conflict_by_term(index, term);
            assert_eq!(last_of_term(&node.raft, index, term), found, "term {term} up to {index}");
        }
    }

    /// A log that counts how often raft asks for a term.
    struct Counted(MemStorage, Cell<u64>);

    impl Storage for Counted {
        fn initial_state(&self) -> raft::Result<RaftState> {
            self.0.initial_state()
        }

        fn entries(
            &self,
            low: u64,
            high: u64,
            max_size: impl Into<Option<u64>>,
            context: GetEntriesContext,
        ) -> raft::Result<Vec<Entry>> {
            self.0.entries(low, high, max_size, context)
        }

        fn term(&self, index: u64) -> raft::Result<u64> {
            self.1.set(self.1.get() + 1);
            self.0.term(index)
        }

        fn first_index(&self) -> raft::Result<u64> {
            self.0.first_index()
        }

        fn last_index(&self) -> raft::Result<u64> {
            self.0.last_index()
        }

        fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
            self.0.snapshot(request_index, to)
        }
    }

    /// A follower that rejects entries looks for the place where the logs part, index by index.
    #[test]
    fn a_rejection_looks_at_no_entry_that_is_committed() {
        const LAST: u64 = 100_000;
        const UNCOMMITTED: u64 = 10;
        let storage = MemStorage::new_with_conf_state(ConfState::from((vec![1, 2, 3], vec![])));
        let term = |index| if index <= 50_000 { 2 } else { 5 };
        let entries = (1..=LAST).map(|index| Entry { term: term(index), ..entry(index) });
        storage.wl().append(&entries.collect::<Vec<_>>()).unwrap();
        let config = Config { id: 1, election_tick: 10, heartbeat_tick: 1, ..Config::default() };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RawNode::new(&config, Counted(storage, Cell::new(0)), &logger).unwrap();
        node.raft.become_follower(6, 2);
        node.raft.raft_log.commit_to(LAST - UNCOMMITTED);
        for (log_term, commits_hold) in [(1, false), (2, false), (4, false), (6, true)] {
            let mut message = append(LAST + 5, log_term, vec![]);
            message.term = 6;
            node.store().1.set(0);
            let is_let_in = may_step(&node.raft, &message);
            assert_eq!(is_let_in, commits_hold, "behind an entry of term {log_term}");
            if is_let_in {
                node.step(message).unwrap();
            }
            let asked = node.store().1.get();
            assert!(asked <= 3 * UNCOMMITTED, "{asked} terms for an entry of term {log_term}");
        }
        // A former leader is told of the later term, whatever its log is.
        assert!(may_step(&node.raft, &append(LAST, 1, vec![])));
    }

    fn entry(index: u64) -> Entry {
        Entry { index, term: 1, ..Entry::default() }
    }

    fn message(kind: MessageType, change: impl FnOnce(&mut Message)) -> Message {
        let mut message = Message { from: 2, to: 1, term: 3, ..Message::default() };
        message.set_msg_type(kind);
        change(&mut message);
        message
    }

    fn append(index: u64, log_term: u64, entries: Vec<Entry>) -> Message {
        message(MessageType::MsgAppend, |message| {
            (message.index, message.log_term) = (index, log_term);
            message.set_entries(entries.into());
        })
    }

    #[test]
    fn what_members_say_to_each_other_is_let_in() {
        let node = follower();
        for message in [
            append(5, 1, vec![entry(6), entry(7)]),
            append(3, 1, vec![entry(4), entry(5), entry(6)]),
            append(4, 1, vec![Entry { term: 3, ..entry(5) }]),
            append(900, 3, Vec::new()),
            message(MessageType::MsgHeartbeat, |message| message.commit = 5),
            message(MessageType::MsgRequestVote, |message| message.term = 4),
        ] {
            assert!(may_step(&node.raft, &message), "{message:?}");
        }
    }

    /// Rows 53 and 54 (etcd #17078, #3504), and bytes of whoever speaks the protocol.
    #[test]
    fn messages_that_would_end_the_process_are_left_out() {
        for message in [
            message(MessageType::MsgHeartbeat, |message| message.to = 9),
            message(MessageType::MsgHeartbeat, |message| message.from = 1),
            message(MessageType::MsgHeartbeat, |message| message.term = u64::MAX),
            message(MessageType::MsgRequestVote, |message| message.term = 1 << 61),
            // A committed entry is another one.
            append(3, 1, vec![Entry { term: 3, ..entry(4) }]),
            append(900, 0, Vec::new()),
            append(900, 0, vec![Entry { term: 3, ..entry(901) }]),
            append(5, 1, vec![entry(7)]),
            append(5, 1, vec![Entry { term: 9, ..entry(6) }]),
            message(MessageType::MsgAppendResponse, |message| message.index = 6),
            message(MessageType::MsgAppendResponse, |message| message.reject_hint = u64::MAX),
            // Read indexes are asked for without raft-rs.
            message(MessageType::MsgReadIndex, |_| {}),
            message(MessageType::MsgReadIndexResp, |_| {}),
            message(MessageType::MsgPropose, |_| {}),
            message(MessageType::MsgHup, |_| {}),
        ] {
            let node = follower();
            assert!(!may_step(&node.raft, &message), "{message:?}");
        }
    }
}
