//! How much of the log stays for members that lag behind, and how much memory it may take.

use raft::eraftpb::Message;

use crate::limits;
use crate::raft::node::{LogRetention, RaftNode};

impl RaftNode {
    /// State up to here is durable elsewhere. The segments may let go of everything up to the index
    /// that is returned. It need not be news: segments that were begun since may hold nothing above
    /// it either. Entries stay while some are read for another member: it would not reach the end
    /// of a log that runs away from it. `keeps_all`: a member is about to need what follows a
    /// state.
    pub fn release(&mut self, durable: u64, keeps_all: bool) -> u64 {
        self.applied(durable);
        let (others, is_fed) = (self.has_others(), self.is_feeding());
        let LogRetention { snapshot_count, catchup_entries, .. } = self.retention;
        let kept_bytes = self.kept_bytes(keeps_all);
        let entries = self.raw.mut_store();
        entries.durable = entries.durable.max(durable);
        entries.settled = entries.settled.max(durable);
        let durable = entries.settled;
        let before = entries.released();
        let mut to = durable;
        if others {
            let is_much = !keeps_all && !is_fed && durable.saturating_sub(before) > snapshot_count;
            to = if is_much { durable.saturating_sub(catchup_entries) } else { before };
            to = to.max(self.sizes.index_below(kept_bytes)).min(durable);
        }
        if kept_bytes > 0 {
            entries.drop_to(to); // by the rule, also in memory
        }
        entries.release(to);
        // A read that failed has let go of more: its member is sent a state, the segments stay.
        let released = entries.released().min(entries.settled);
        self.sizes.release(released);
        released
    }

    /// The disk of the log has room for so many bytes beside it. When it is short of it, nothing
    /// but what is not durable elsewhere stays there, from the next [`RaftNode::release`] on.
    pub fn has_disk_room(&mut self, room: u64) {
        self.room = room;
    }

    /// Bytes on disk that the log may take: a part of the room that there would be without it.
    fn kept_bytes(&self, keeps_all: bool) -> u64 {
        if self.room < limits::LOG_ROOM_BYTES_MIN {
            return 0;
        }
        let most = self.retention.disk_bytes_max.saturating_mul(if keeps_all {
            limits::LOG_KEPT_FOR_STATE
        } else {
            1
        });
        most.min(self.room.saturating_add(self.sizes.bytes()) / limits::LOG_KEPT_ROOM_PART)
    }

    /// There is memory for more entries.
    pub(super) fn has_room(&self) -> bool {
        self.raw.store().bytes() < limits::LOG_MEMORY_BYTES_MAX
    }

    /// Leaves out entries of a message that there is no memory for; false if none is left. Those
    /// that take the place of others stay: the others may never be committed.
    pub(super) fn has_room_for(&self, message: &mut Message) -> bool {
        if message.entries.is_empty() || self.has_room() {
            return true;
        }
        let there = self.raw.raft.raft_log.last_index().saturating_sub(message.index);
        message.entries.truncate(usize::try_from(there).unwrap_or(usize::MAX));
        !message.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft::eraftpb::{Entry, MessageType};

    use super::*;
    use crate::cluster::Identity;
    use crate::cluster::conf_state::ConfState;
    use crate::raft::convert::{bytes_of, to_raft};
    use crate::raft::message::RaftMessage;
    use crate::raft::node::RaftConfig;
    use crate::wal::LogEntry;
    use crate::wal::birth::empty_log;
    use crate::wal::reader::{RecoveredLog, SegmentInfo};

    /// A member of a cluster of two whose other member is away, with committed entries up to 40.
    fn node(log: &RecoveredLog, retention: LogRetention) -> RaftNode {
        let conf_state = ConfState::of_voters(vec![7, 8]);
        let config = RaftConfig { conf_state, retention, ..RaftConfig::alone(7, 2) };
        RaftNode::start(&config, log, &slog::Logger::root(slog::Discard, slog::o!())).unwrap()
    }

    /// Ten entries a segment.
    fn log() -> RecoveredLog {
        let mut log = empty_log(Identity { cluster: 1, member: 7 });
        log.hard_state.commit = 40;
        let entry = |index| LogEntry { index, term: 1, kind: 0, data: vec![0; 9].into() };
        log.entries.extend((2..=40).map(entry));
        let segment = |number: u64| SegmentInfo { number, last_index: number * 10, bytes: 1 << 20 };
        log.segments.extend((1..=4).map(segment));
        log
    }

    #[test]
    fn entries_for_slow_followers_are_bounded_in_number_and_bytes() {
        let retention = LogRetention { snapshot_count: 20, catchup_entries: 5, ..LogRetention::default() };
        let mut by_number = node(&log(), retention);
        assert_eq!(by_number.release(21, false), 1);
        assert_eq!(by_number.release(22, true), 1, "a member is about to need them");
        assert_eq!(by_number.release(22, false), 17, "of more than 20 entries the last five stay");
        assert_eq!(by_number.release(37, false), 17);
        assert_eq!(by_number.release(38, false), 33);
        let retention = LogRetention { snapshot_count: 1_000, disk_bytes_max: 2 << 20, ..retention };
        let mut by_bytes = node(&log(), retention);
        assert_eq!(by_bytes.release(15, false), 15, "more is too large, but only this is durable");
        assert_eq!(by_bytes.release(40, true), 15, "more while a state is on its way");
        assert_eq!(by_bytes.release(40, false), 20);
        let mut of_room = node(&log(), LogRetention { disk_bytes_max: 1 << 40, ..retention });
        of_room.has_disk_room(limits::LOG_ROOM_BYTES_MIN);
        assert_eq!(of_room.release(40, false), 1);
        of_room.has_disk_room(limits::LOG_ROOM_BYTES_MIN - 1);
        assert_eq!(of_room.release(0, false), 40, "the disk is short of room");
        assert_eq!(of_room.release(0, false), 40, "segments without entries may have been begun since");
    }

    /// Seed 5217 of the simulator has lost entries: a process died before the sync of a checkpoint,
    /// the next one released the log up to there, and the power failed.
    #[test]
    fn the_state_that_a_start_finds_releases_nothing_before_a_checkpoint() {
        let config = RaftConfig { applied: 30, ..RaftConfig::alone(7, 2) };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut node = RaftNode::start(&config, &log(), &logger).unwrap();
        node.has_disk_room(0);
        assert_eq!(node.release(0, false), 1, "the tree file may be in the cache alone");
        assert_eq!(node.release(30, false), 30);
    }

    /// Entries that the disk does not give are not sent any more; they may be durable here alone.
    #[test]
    fn entries_that_cannot_be_read_stay_on_disk_until_a_checkpoint() {
        let mut node = node(&log(), LogRetention::default());
        node.release(10, false);
        node.raw.mut_store().release(20);
        assert_eq!(node.raw.store().released(), 20);
        assert_eq!(node.release(0, false), 10);
        assert_eq!(node.release(30, false), 20);
    }

    /// A short hiccup of a member costs no state, however little room the disk has.
    #[test]
    fn entries_in_memory_stay_when_the_segments_go() {
        let tail_bytes = 9 * bytes_of(&to_raft(&log().entries[0]));
        let retention = LogRetention { memory_bytes_max: tail_bytes, ..LogRetention::default() };
        let mut node = node(&log(), retention);
        node.has_disk_room(0);
        assert_eq!(node.release(30, false), 30);
        let store = node.raw.store();
        assert_eq!((store.base(), store.memory_base()), (30, 30), "what is not applied, and no more");
        assert_eq!(node.release(40, false), 40);
        assert_eq!((node.raw.store().base(), node.raw.store().memory_base()), (31, 31));
        node.raw.mut_store().forget(40, 0);
        assert_eq!(node.raw.store().base(), 40, "they are nowhere any more");
    }

    /// Entries of a leader that is gone would stay for ever else: they are never committed.
    #[test]
    fn a_full_memory_takes_in_no_more_entries_but_others_in_their_place() {
        let mut log = log();
        (log.base, log.hard_state.commit) = ((2, 1), 2);
        log.entries.clear();
        let mut node = node(&log, LogRetention::default());
        let large = Bytes::from(vec![0; limits::LOG_MEMORY_BYTES_MAX / 4]);
        let append = |from, (index, log_term), entries: &[(u64, &Bytes)], term| {
            let mut message = Message { from, to: 7, term, index, log_term, ..Message::default() };
            message.set_msg_type(MessageType::MsgAppend);
            let entry = |(at, (term, data)): (u64, &(u64, &Bytes))| Entry {
                index: at,
                term: *term,
                data: Bytes::clone(data),
                ..Entry::default()
            };
            let entries: Vec<_> = (index + 1..).zip(entries).map(entry).collect();
            message.set_entries(entries.into());
            RaftMessage(message)
        };
        let take = |node: &mut RaftNode, message| {
            node.step(message);
            while {
                drop(node.effects());
                node.is_writing()
            } {
                node.written();
            }
            node.status().last_index
        };
        assert_eq!(take(&mut node, append(8, (2, 1), &[(2, &large); 4], 2)), 6);
        assert_eq!(take(&mut node, append(8, (6, 2), &[(2, &large)], 2)), 6, "no room");
        let none = Bytes::new();
        assert_eq!(take(&mut node, append(9, (5, 2), &[(3, &none); 3], 3)), 6, "one for one");
        assert_eq!(take(&mut node, append(9, (6, 3), &[(3, &none); 2], 3)), 8, "there is room again");
    }
}
