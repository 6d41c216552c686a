//! Frames on their way to the disk, and the messages that wait for them.

use std::collections::VecDeque;

use raft::eraftpb::{Entry, Message, MessageType, SnapshotMetadata};

use crate::limits;
use crate::mutants::{self, Mutant};
use crate::raft::convert::from_raft;
use crate::raft::message::RaftMessage;
use crate::wal::{FrameContent, HardState, LogEntry, LogRestart};

/// A frame and what follows it.
#[derive(Debug, Default)]
pub(super) struct PendingFrame {
    pub(super) content: FrameContent,
    /// Bytes of the entries.
    pub(super) bytes: usize,
    /// The last `Ready` in it; raft is told its number once it is durable. None: it is empty.
    pub(super) ready: Option<u64>,
    /// Messages that promise what the frame makes durable.
    pub(super) messages: Vec<RaftMessage>,
    /// The term that it makes durable, once its content is being written.
    pub(super) term: u64,
    /// The log begins again behind this entry.
    pub(super) restart: Option<u64>,
    /// Committed entries, of which the first changes members: the frame makes durable that they
    /// are committed. A member that has forgotten that would count votes as before, and those that
    /// were removed may be gone.
    pub(super) committed: Vec<Entry>,
}

impl PendingFrame {
    /// The frame that stands for these, which follow each other.
    pub(super) fn joined(frames: impl Iterator<Item = Self>) -> Self {
        let mut one = Self::default();
        for mut frame in frames {
            one.bytes += frame.bytes;
            one.replace_from(frame.content.entries);
            one.content.hard_state = frame.content.hard_state.or(one.content.hard_state);
            one.content.restart = frame.content.restart.or(one.content.restart);
            one.restart = frame.restart.or(one.restart);
            one.ready = frame.ready;
            one.messages.append(&mut frame.messages);
            one.committed.append(&mut frame.committed);
        }
        one
    }

    /// Adds entries; the first replaces those from its index on.
    fn replace_from(&mut self, entries: Vec<LogEntry>) {
        if let Some(first) = entries.first() {
            let keep = self.content.entries.partition_point(|entry| entry.index < first.index);
            self.content.entries.truncate(keep);
        }
        self.content.entries.extend(entries);
    }

    /// The log begins again: entries that were to be written before do not count any more.
    pub(super) fn begin_again(&mut self, behind: &SnapshotMetadata) {
        self.content.entries.clear();
        self.bytes = 0;
        self.content.restart = Some(LogRestart { index: behind.index, term: behind.term });
        self.restart = Some(behind.index);
        self.forget_promises(behind.index);
    }

    /// Entries above this one will not be there when the log has begun again; committed ones are
    /// all in the state.
    pub(super) fn forget_promises(&mut self, above: u64) {
        if mutants::is(Mutant::PromisesOfReplacedLog) {
            return;
        }
        self.committed.clear();
        self.messages.retain(|RaftMessage(message)| {
            message.get_msg_type() != MessageType::MsgAppendResponse || message.index <= above
        });
    }

    /// Adds messages that wait for it. Of those of a kind to one member only the one that says most
    /// counts, of refusals the last: while the disk is full, others ask again and again.
    pub(super) fn promise(&mut self, messages: impl Iterator<Item = RaftMessage>) {
        for RaftMessage(message) in messages {
            let kind = message.get_msg_type();
            let is_alike = |RaftMessage(earlier): &RaftMessage| {
                let is_same = (earlier.to, earlier.reject) == (message.to, message.reject);
                is_same && earlier.get_msg_type() == kind && may_stand_alone(kind)
            };
            let says = |message: &Message| (message.term, message.index);
            let says_more =
                |RaftMessage(earlier): &RaftMessage| !message.reject && says(earlier) > says(&message);
            if !self.messages.iter().any(|earlier| is_alike(earlier) && says_more(earlier)) {
                self.messages.retain(|earlier| !is_alike(earlier));
                self.messages.push(RaftMessage(message));
            }
        }
    }

    /// Adds what a `Ready` has to write; entries replace those from the first one on.
    fn add(&mut self, hard_state: HardState, entries: Vec<Entry>) {
        // The commit index travels with whatever else has to be written.
        let vote = if mutants::is(Mutant::VoteNotSaved) { 0 } else { hard_state.vote };
        self.content.hard_state = Some(HardState { vote, ..hard_state });
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.replace_from(entries.into_iter().map(from_raft).collect());
    }
}

/// Adds what a `Ready` has to write to the frames that come next.
///
/// Entries that replace some of an earlier frame leave all in one: if a later leader restores the
/// first ones, raft would take them for durable with the earlier frame, while the one in between
/// has yet to overwrite them on disk.
pub(super) fn gather(frames: &mut VecDeque<PendingFrame>, hard_state: HardState, entries: Vec<Entry>) {
    let first = entries.first().map_or(u64::MAX, |entry| entry.index);
    let replaces =
        |frame: &PendingFrame| frame.content.entries.last().is_some_and(|last| last.index >= first);
    if frames.iter().rev().skip(1).any(replaces) && !mutants::is(Mutant::ReplacedEntriesApart) {
        let one = PendingFrame::joined(frames.drain(..));
        frames.push_back(one);
    }
    let is_full = |frame: &PendingFrame| frame.bytes >= limits::FRAME_BYTES_MAX && !replaces(frame);
    if frames.back().is_none_or(is_full) {
        frames.push_back(PendingFrame::default());
    }
    frames.back_mut().expect("it was just made").add(hard_state, entries);
}

/// Messages that stay true if their sender forgets what it has not written. An answer to a
/// heartbeat says that its sender followed this leader when it was sent, and so had voted for no
/// later one; it names no entry.
pub(super) fn promises_nothing(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
    ) || mutants::is(Mutant::AppendAcknowledgedUnwritten) && kind == MessageType::MsgAppendResponse
        || mutants::is(Mutant::VoteNotDurable) && kind == MessageType::MsgRequestVoteResponse
}

/// Answers, requests for votes, and heartbeats: a later one of a kind says all that an earlier one
/// did.
fn may_stand_alone(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::MsgAppendResponse
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestVote
            | MessageType::MsgHeartbeat
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(term: u64, indexes: std::ops::RangeInclusive<u64>, bytes: usize) -> Vec<Entry> {
        let entry = |index| Entry { index, term, data: vec![7; bytes].into(), ..Entry::default() };
        indexes.map(entry).collect()
    }

    fn shape(frames: &VecDeque<PendingFrame>) -> Vec<Vec<(u64, u64)>> {
        let of = |frame: &PendingFrame| {
            frame.content.entries.iter().map(|entry| (entry.index, entry.term)).collect()
        };
        frames.iter().map(of).collect()
    }

    /// A disk that stays full for days, and a leader that asks ten times a second.
    #[test]
    fn acknowledgements_that_wait_for_the_disk_do_not_pile_up() {
        let mut frame = PendingFrame::default();
        let answer = |to, term, index, reject| {
            let mut answer = Message { to, term, index, reject, ..Message::default() };
            answer.set_msg_type(MessageType::MsgAppendResponse);
            RaftMessage(answer)
        };
        let mut vote = Message { to: 2, term: 3, ..Message::default() };
        vote.set_msg_type(MessageType::MsgRequestVoteResponse);
        frame.promise(std::iter::once(RaftMessage(vote)));
        for index in [7, 9, 9, 8, 9] {
            frame.promise([answer(1, 3, index, false), answer(1, 3, index + 90, true)].into_iter());
        }
        frame.promise(std::iter::once(answer(2, 4, 5, false)));
        let left: Vec<_> =
            frame.messages.iter().map(|RaftMessage(left)| (left.to, left.index, left.reject)).collect();
        assert_eq!(left, [(2, 0, false), (1, 9, false), (1, 99, true), (2, 5, false)]);
    }

    /// A leader would count entries that are gone; a vote is still one.
    #[test]
    fn a_log_that_begins_again_acknowledges_none_of_the_entries_it_has_lost() {
        let message = |kind, index| {
            let mut message = Message { to: 1, term: 3, index, ..Message::default() };
            message.set_msg_type(kind);
            RaftMessage(message)
        };
        for (index, is_there) in [(40, true), (41, false)] {
            let mut frame = PendingFrame { committed: entries(3, 38..=39, 1), ..PendingFrame::default() };
            frame.add(HardState::default(), entries(3, 38..=index, 1));
            let promises = [MessageType::MsgRequestVoteResponse, MessageType::MsgAppendResponse];
            frame.promise(promises.map(|kind| message(kind, index)).into_iter());
            frame.begin_again(&SnapshotMetadata { index: 40, term: 3, ..SnapshotMetadata::default() });
            assert_eq!((frame.messages.len(), frame.committed.len()), (1 + usize::from(is_there), 0));
            assert_eq!(frame.content.restart, Some(LogRestart { index: 40, term: 3 }));
            assert!(frame.content.entries.is_empty());
        }
    }

    #[test]
    fn entries_that_replace_others_go_into_their_frame() {
        let (mut frames, much) = (VecDeque::new(), limits::FRAME_BYTES_MAX);
        let mut gather = |term, indexes, bytes| {
            let state = HardState { term, ..HardState::default() };
            gather(&mut frames, state, entries(term, indexes, bytes));
            shape(&frames)
        };
        gather(2, 5..=5, much);
        assert_eq!(gather(2, 6..=7, much), [vec![(5, 2)], vec![(6, 2), (7, 2)]]);
        assert_eq!(gather(3, 6..=6, 1), [vec![(5, 2)], vec![(6, 3)]], "of the last frame");
        assert_eq!(gather(4, 5..=6, 1), [[(5, 4), (6, 4)]], "of one before it");
    }
}
