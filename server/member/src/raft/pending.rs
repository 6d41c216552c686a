//! Frames on their way to the disk, and the messages that wait for them.

use raft::eraftpb::{Entry, MessageType, SnapshotMetadata};

use crate::raft::convert::from_raft;
use crate::raft::message::RaftMessage;
use crate::wal::{FrameContent, HardState, LogRestart};

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
    /// The log begins again behind this entry.
    pub(super) restart: Option<u64>,
}

impl PendingFrame {
    /// The frame that stands for these, which follow each other, but for their entries.
    pub(super) fn of(frames: impl Iterator<Item = Self>) -> Self {
        let mut one = Self::default();
        for mut frame in frames {
            one.content.hard_state = frame.content.hard_state.or(one.content.hard_state);
            one.ready = frame.ready;
            one.messages.append(&mut frame.messages);
        }
        one
    }

    /// The log begins again: entries that were to be written before do not count any more.
    pub(super) fn begin_again(&mut self, behind: &SnapshotMetadata) {
        self.content.entries.clear();
        self.bytes = 0;
        self.content.restart = Some(LogRestart { index: behind.index, term: behind.term });
        self.restart = Some(behind.index);
        self.forget_promises(behind.index);
    }

    /// Entries above this one will not be there when the log has begun again.
    pub(super) fn forget_promises(&mut self, above: u64) {
        self.messages.retain(|RaftMessage(message)| {
            message.get_msg_type() != MessageType::MsgAppendResponse || message.index <= above
        });
    }

    /// Adds what a `Ready` has to write; entries replace those from the first one on.
    pub(super) fn add(&mut self, hard_state: HardState, entries: Vec<Entry>) {
        // The commit index travels with whatever else has to be written.
        self.content.hard_state = Some(hard_state);
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        if let Some(first) = entries.first() {
            let keep = self.content.entries.partition_point(|entry| entry.index < first.index);
            self.content.entries.truncate(keep);
        }
        self.content.entries.extend(entries.into_iter().map(from_raft));
    }
}

/// Messages that stay true if their sender forgets what it has not written. An answer to a
/// heartbeat says that its sender followed this leader when it was sent, and so had voted for no
/// later one; it names no entry.
pub(super) fn promises_nothing(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::MsgHeartbeatResponse
            | MessageType::MsgReadIndex
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
    )
}
