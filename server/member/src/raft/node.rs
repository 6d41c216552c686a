//! One member's raft, as a state machine: events in, effects out.

use raft::eraftpb::{self, Entry, EntryType};
use raft::{RawNode, StateRole};

use crate::apply::CommittedEntry;
use crate::cluster::conf_state::ConfState;
use crate::limits;
use crate::raft::status::RaftStatus;
use crate::raft::storage::RaftEntries;
use crate::raft::timeouts::ElectionTimeouts;
use crate::wal::reader::RecoveredLog;
use crate::wal::{FrameContent, HardState, LogEntry};

/// The member and its cluster, as raft starts with them.
#[derive(Debug)]
pub struct RaftConfig {
    /// Own member id.
    pub id: u64,
    /// The members' votes as of `applied`.
    pub conf_state: ConfState,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Ticks without a leader before an election.
    pub election_ticks: usize,
    /// Everything up to here is in the state already.
    pub applied: u64,
    /// Of the election timeouts. Members of a cluster need different ones: with equal timeouts
    /// their votes split for ever.
    pub seed: u64,
}

impl RaftConfig {
    /// The only voter of its cluster, with etcd's ticks; it wins every election, so that its seed
    /// has no effect.
    #[must_use]
    pub fn alone(id: u64, applied: u64) -> Self {
        let conf_state = ConfState::of_voters(vec![id]);
        Self { id, conf_state, heartbeat_ticks: 1, election_ticks: 10, applied, seed: 0 }
    }
}

/// The work a `Ready` asks for. Entries are committed *and* durable here when they are handed out.
#[derive(Debug, Default)]
#[must_use]
pub struct RaftEffects {
    /// Write and sync this, then call [`RaftNode::written`]. Never more than one at a time.
    pub append: Option<FrameContent>,
    /// Apply these, in order.
    pub committed: Vec<CommittedEntry>,
}

/// Why raft cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    /// The log begins too late.
    #[error(
        "the log begins behind entry {base} but the tree file holds only what was applied up to entry {applied}: one of \
         them is from another time; restore this member from a snapshot or add it again empty"
    )]
    MissingEntries {
        /// The entry before the log's first.
        base: u64,
        /// The tree file's applied index.
        applied: u64,
    },
    /// The log ends too early.
    #[error(
        "the tree file holds what was applied up to entry {applied} but the log ends with entry {last}: acknowledged \
         entries are missing; restore this member from a snapshot or add it again empty"
    )]
    ShortLog {
        /// The log's last entry.
        last: u64,
        /// The tree file's applied index.
        applied: u64,
    },
    /// raft-rs refused.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
}

/// Log core view: raft and what is on its way to disk.
pub struct RaftNode {
    raw: RawNode<RaftEntries>,
    timeouts: ElectionTimeouts,
    /// The content of the next frame.
    gathered: FrameContent,
    /// The last `Ready` in `gathered`, if any; raft is told its number once it is durable.
    gathered_ready: Option<u64>,
    /// The last `Ready` in the frame being written.
    writing: Option<u64>,
    hard_state: HardState,
}

impl RaftNode {
    /// Starts from what was durable.
    ///
    /// # Errors
    /// [`RaftError`], when log and applied index do not meet.
    pub fn start(config: &RaftConfig, log: &RecoveredLog, logger: &slog::Logger) -> Result<Self, RaftError> {
        let last = log.entries.back().map_or(log.base.0, |entry| entry.index);
        if config.applied < log.base.0 {
            return Err(RaftError::MissingEntries { base: log.base.0, applied: config.applied });
        }
        if last < config.applied {
            return Err(RaftError::ShortLog { last, applied: config.applied });
        }
        let mut hard_state = eraftpb::HardState::default();
        hard_state.term = log.hard_state.term;
        hard_state.vote = log.hard_state.vote;
        // The commit index is written along with other things, never on its own: it may lag behind
        // what was applied.
        hard_state.commit = log.hard_state.commit.max(config.applied).min(last);
        let entries = log.entries.iter().map(to_raft).collect();
        let conf_state = conf_state_to_raft(&config.conf_state);
        let storage = RaftEntries { base: log.base, entries, hard_state, conf_state };
        let raft_config = raft::Config {
            id: config.id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: config.applied,
            max_size_per_msg: limits::RAFT_MESSAGE_BYTES_MAX,
            max_inflight_msgs: limits::RAFT_MESSAGES_INFLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let raw = RawNode::new(&raft_config, storage, logger)?;
        Ok(Self {
            raw,
            timeouts: ElectionTimeouts::new(config.seed),
            gathered: FrameContent::default(),
            gathered_ready: None,
            writing: None,
            hard_state: log.hard_state,
        })
    }

    /// Stands for election at once; a single voter wins it by itself.
    ///
    /// # Errors
    /// When raft refuses.
    pub fn campaign(&mut self) -> Result<(), RaftError> {
        Ok(self.raw.campaign()?)
    }

    /// A step of raft's clock.
    pub fn tick(&mut self) {
        self.timeouts.before_tick(&mut self.raw.raft);
        self.raw.tick();
    }

    /// Proposes an entry.
    ///
    /// # Errors
    /// When this member does not lead.
    pub fn propose(&mut self, data: Vec<u8>) -> Result<(), RaftError> {
        Ok(self.raw.propose(Vec::new(), data)?)
    }

    /// A frame is being written; its end is [`RaftNode::written`].
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The frame handed out last is durable.
    ///
    /// # Panics
    /// If none was handed out.
    pub fn written(&mut self) {
        let ready = self.writing.take().expect("a frame was being written");
        self.raw.on_persist_ready(ready);
    }

    /// Everything raft wants done now.
    pub fn effects(&mut self) -> RaftEffects {
        let mut effects = RaftEffects::default();
        while self.raw.has_ready() {
            self.take_ready(&mut effects);
        }
        let nothing_to_write = self.gathered.entries.is_empty() && self.gathered.hard_state.is_none();
        if self.writing.is_none()
            && !nothing_to_write
            && let Some(ready) = self.gathered_ready.take()
        {
            self.writing = Some(ready);
            effects.append = Some(std::mem::take(&mut self.gathered));
        }
        effects
    }

    fn take_ready(&mut self, effects: &mut RaftEffects) {
        let mut ready = self.raw.ready();
        let entries = ready.take_entries();
        self.raw.mut_store().append(&entries);
        let must_sync = ready.must_sync();
        if let Some(state) = ready.hs() {
            self.hard_state = HardState { term: state.term, vote: state.vote, commit: state.commit };
            self.raw.mut_store().hard_state = state.clone();
        }
        if must_sync {
            // The commit index travels with whatever else has to be written.
            self.gathered.hard_state = Some(self.hard_state);
        }
        self.gathered.entries.extend(entries.into_iter().map(from_raft));
        let committed = ready.take_committed_entries();
        let number = ready.number();
        self.raw.advance_append_async(ready);
        if let Some(last) = committed.last() {
            self.raw.advance_apply_to(last.index);
        }
        effects.committed.extend(committed.into_iter().map(|entry| {
            assert!(
                entry.get_entry_type() == EntryType::EntryNormal,
                "entry {} changes members",
                entry.index
            );
            CommittedEntry { index: entry.index, term: entry.term, data: entry.data, change: None }
        }));
        if must_sync || self.gathered_ready.is_some() {
            self.gathered_ready = Some(number);
        } else if let Some(writing) = &mut self.writing {
            *writing = number; // nothing of its own to write: durable when what came before it is
        } else {
            self.raw.on_persist_ready(number);
        }
    }

    /// Everything up to `index` is durable elsewhere.
    pub fn release(&mut self, index: u64) {
        self.raw.mut_store().release(index);
    }

    /// Term, leader and indexes now.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let raft = &self.raw.raft;
        RaftStatus {
            term: raft.term,
            leader: raft.leader_id,
            last_index: raft.raft_log.last_index(),
            committed: raft.raft_log.committed,
            is_leader: raft.state == StateRole::Leader,
            is_sole_voter: raft.promotable() && raft.prs().is_singleton(),
        }
    }
}

fn conf_state_to_raft(state: &ConfState) -> eraftpb::ConfState {
    let mut out = eraftpb::ConfState { auto_leave: state.auto_leave, ..eraftpb::ConfState::default() };
    out.voters.clone_from(&state.voters);
    out.learners.clone_from(&state.learners);
    out.voters_outgoing.clone_from(&state.voters_outgoing);
    out.learners_next.clone_from(&state.learners_next);
    out
}

fn to_raft(entry: &LogEntry) -> Entry {
    let mut out = Entry { index: entry.index, term: entry.term, ..Entry::default() };
    out.set_entry_type(match entry.kind {
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => EntryType::EntryNormal,
    });
    out.data = entry.data.clone();
    out
}

fn from_raft(entry: Entry) -> LogEntry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    };
    LogEntry { index: entry.index, term: entry.term, kind, data: entry.data }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_log() -> RecoveredLog {
        RecoveredLog {
            owner: crate::cluster::Identity { cluster: 1, member: 7 },
            hard_state: HardState { term: 1, vote: 0, commit: 1 },
            base: (1, 1),
            entries: std::collections::VecDeque::new(),
            segments: std::collections::VecDeque::new(),
            end: crate::wal::reader::LogEnd { segment: 1, life: 0, offset: 4096, frame: 2 },
        }
    }

    fn node(log: &RecoveredLog, applied: u64) -> Result<RaftNode, RaftError> {
        RaftNode::start(&RaftConfig::alone(7, applied), log, &slog::Logger::root(slog::Discard, slog::o!()))
    }

    fn committed(effects: &RaftEffects) -> Vec<(u64, &[u8])> {
        effects.committed.iter().map(|entry| (entry.index, &entry.data[..])).collect()
    }

    /// Writes what is to be written until there is nothing more; returns what was committed.
    fn settle(node: &mut RaftNode, log: &mut RecoveredLog) -> Vec<u64> {
        let mut indexes = Vec::new();
        loop {
            let effects = node.effects();
            indexes.extend(effects.committed.iter().map(|entry| entry.index));
            let Some(frame) = effects.append else { return indexes };
            if let Some(state) = frame.hard_state {
                log.hard_state = state;
            }
            log.entries.extend(frame.entries);
            node.written();
        }
    }

    #[test]
    fn nothing_is_committed_before_it_is_written() {
        let mut log = empty_log();
        let mut node = node(&log, 1).unwrap();
        node.campaign().unwrap();
        assert_eq!(settle(&mut node, &mut log), [2]);
        assert!(node.status().is_leader);
        assert_eq!(node.status().term, 2);
        node.propose(b"a".to_vec()).unwrap();
        node.propose(b"b".to_vec()).unwrap();
        let effects = node.effects();
        assert!(effects.committed.is_empty());
        assert_eq!(effects.append.unwrap().entries.len(), 2);
        node.propose(b"c".to_vec()).unwrap();
        let meanwhile = node.effects();
        assert!(meanwhile.append.is_none() && meanwhile.committed.is_empty(), "one frame at a time");
        node.written();
        let effects = node.effects();
        assert_eq!(committed(&effects), [(3, &b"a"[..]), (4, b"b")]);
        assert_eq!(effects.append.unwrap().entries.len(), 1);
        node.written();
        assert_eq!(committed(&node.effects()), [(5, &b"c"[..])]);
    }

    #[test]
    fn a_restart_hands_out_what_was_not_applied() {
        let mut log = empty_log();
        let mut first = node(&log, 1).unwrap();
        first.campaign().unwrap();
        settle(&mut first, &mut log);
        for data in [b"a", b"b", b"c"] {
            first.propose(data.to_vec()).unwrap();
            settle(&mut first, &mut log);
        }
        let mut again = node(&log, 3).unwrap();
        again.campaign().unwrap();
        assert_eq!(settle(&mut again, &mut log), [4, 5, 6]);
        assert_eq!(again.status().term, 3);
    }

    #[test]
    fn a_log_that_does_not_meet_the_state_is_refused() {
        let mut log = empty_log();
        assert!(matches!(node(&log, 0), Err(RaftError::MissingEntries { base: 1, applied: 0 })));
        assert!(matches!(node(&log, 9), Err(RaftError::ShortLog { last: 1, applied: 9 })));
        log.base = (9, 1);
        log.hard_state.commit = 9;
        assert!(node(&log, 9).is_ok());
    }

    #[test]
    fn released_entries_are_gone_and_the_rest_stays() {
        let mut log = empty_log();
        let mut node = node(&log, 1).unwrap();
        node.campaign().unwrap();
        settle(&mut node, &mut log);
        for _ in 0..10 {
            node.propose(b"x".to_vec()).unwrap();
            settle(&mut node, &mut log);
        }
        node.release(8);
        node.propose(b"y".to_vec()).unwrap();
        assert_eq!(settle(&mut node, &mut log), [13]);
    }
}
