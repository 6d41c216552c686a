//! One member's raft, as a state machine: events in, effects out.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::apply::CommittedEntry;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::raft::admission::{last_of_term, may_step};
use crate::raft::conf_change;
pub use crate::raft::config::{LogRetention, RaftConfig, RaftError};
use crate::raft::convert::conf_state_to_raft;
use crate::raft::feed::LogFetch;
use crate::raft::log_sizes::LogSizes;
use crate::raft::lost::LostEntries;
use crate::raft::message::RaftMessage;
use crate::raft::pending::{self, PendingFrame, promises_nothing};
use crate::raft::status::RaftStatus;
use crate::raft::storage::RaftEntries;
use crate::raft::timeouts::ElectionTimeouts;
use crate::wal::frame::encoded_len;
use crate::wal::reader::RecoveredLog;
use crate::wal::{FrameContent, HardState};

#[cfg(test)]
mod tests;

/// The work a `Ready` asks for. Entries are committed *and* durable here when they are handed out.
#[derive(Debug, Default)]
#[must_use]
pub struct RaftEffects {
    /// Write and sync this, then call [`RaftNode::written`]. Never more than one at a time.
    pub append: Option<FrameContent>,
    /// Send these, in order; none promises anything that is not durable.
    pub messages: Vec<RaftMessage>,
    /// Apply these, in order.
    pub committed: Vec<CommittedEntry>,
    /// Indexes of those that change members; nothing has changed yet.
    pub changes: Vec<u64>,
    /// Members that lag behind the log and need a state; [`RaftNode::streamed`] follows for each.
    pub behind: Vec<u64>,
    /// Read these; [`RaftNode::fetched`] follows for each.
    pub fetches: Vec<LogFetch>,
    /// The log begins again behind the state that was received, durably: go on from it, before the
    /// committed entries.
    pub is_restarted: bool,
}

fn changes_members(entry: &Entry) -> bool {
    entry.entry_type != EntryType::EntryNormal
}

impl RaftEffects {
    fn hand_out(&mut self, committed: Vec<Entry>) {
        for entry in committed {
            let is_change = changes_members(&entry);
            let Entry { index, term, data, entry_type, .. } = entry;
            let data = if is_change { conf_change::batch_of(entry_type, data) } else { data };
            self.committed.push(CommittedEntry { index, term, data, change: None });
            self.changes.extend(is_change.then_some(index));
        }
    }
}

/// Log core view: raft and what is on its way to disk.
pub struct RaftNode {
    pub(super) raw: RawNode<RaftEntries>,
    timeouts: ElectionTimeouts,
    pub(super) retention: LogRetention,
    pub(super) sizes: LogSizes,
    /// Bytes that the disk of the log has room for.
    pub(super) room: u64,
    /// The first election is to come soon.
    advances_election: bool,
    /// The frames that come next, each of whole `Ready`s. A follower that is sent much while it
    /// writes would make one of them that takes long; the turns of its core are short.
    gathered: VecDeque<PendingFrame>,
    /// The frame being written.
    writing: Option<PendingFrame>,
    hard_state: HardState,
    /// The last term that is durable.
    durable_term: u64,
    /// Messages that were waiting for a frame which is durable by now.
    promised: Vec<RaftMessage>,
    /// Committed entries, likewise.
    confirmed: Vec<Entry>,
    /// The frame that begins the log again is durable.
    is_restarted: bool,
    lost: LostEntries,
    /// The leader, its term, and the index that it was told last to be in this log.
    acknowledged: (u64, u64, u64),
}

impl RaftNode {
    /// Starts from what was durable.
    ///
    /// # Errors
    /// [`RaftError`], when log and applied index do not meet.
    pub fn start(config: &RaftConfig, log: &RecoveredLog, logger: &slog::Logger) -> Result<Self, RaftError> {
        if config.conf_state.is_joint() {
            return Err(RaftError::Joint);
        }
        let last = log.last();
        if config.applied < log.base.0 {
            return Err(RaftError::MissingEntries { base: log.base.0, applied: config.applied });
        }
        if last < config.applied {
            return Err(RaftError::ShortLog { last, applied: config.applied });
        }
        let mut hard_state = raft::eraftpb::HardState::default();
        hard_state.term = log.hard_state.term;
        hard_state.vote = log.hard_state.vote;
        // The commit index is written along with other things, never on its own: it may lag behind
        // what was applied.
        hard_state.commit = log.hard_state.commit.max(config.applied).min(last);
        let conf_state = conf_state_to_raft(&config.conf_state);
        let storage = RaftEntries::new(log, hard_state, conf_state);
        let mut sizes = LogSizes::new(config.retention.disk_bytes_max);
        log.segments.iter().for_each(|segment| sizes.add(segment.last_index, segment.bytes));
        let raft_config = raft::Config {
            id: config.id,
            election_tick: config.election_ticks,
            heartbeat_tick: config.heartbeat_ticks,
            applied: config.applied,
            max_size_per_msg: limits::RAFT_MESSAGE_BYTES_MAX,
            max_inflight_msgs: limits::RAFT_MESSAGES_INFLIGHT_MAX,
            check_quorum: true,
            pre_vote: config.pre_vote,
            // The entries of a turn go in one message; those in flight are bounded together.
            batch_append: true,
            // Not a bound that raft-rs is to keep, but then it counts what is not committed.
            max_uncommitted_size: raft::NO_LIMIT - 1,
            ..raft::Config::default()
        };
        let mut raw = RawNode::new(&raft_config, storage, logger)?;
        raw.mut_store().durable = config.applied;
        Ok(Self {
            raw,
            timeouts: ElectionTimeouts::new(config.seed),
            retention: config.retention,
            sizes,
            room: u64::MAX,
            advances_election: config.advances_election,
            gathered: VecDeque::new(),
            writing: None,
            hard_state: log.hard_state,
            durable_term: log.hard_state.term,
            promised: Vec::new(),
            confirmed: Vec::new(),
            is_restarted: false,
            lost: LostEntries::new(logger),
            acknowledged: (0, 0, 0),
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
        // An election looks at entries that are not applied, and raft does not know yet that a
        // received state holds them.
        if self.is_restarting() || self.lost.is_short(&self.raw.raft) {
            return;
        }
        // A voter that is alone elects itself at once; raft-rs takes its log for durable then.
        if self.has_unwritten() && self.raw.raft.prs().is_singleton() && !self.leads() {
            return;
        }
        self.timeouts.before_tick(&mut self.raw.raft);
        self.raw.tick();
        self.tick_feeds();
    }

    /// The other members have just been found at the start: if there is no leader by now, the first
    /// election comes soon. Once, and only if that is configured.
    pub fn advance_election(&mut self) {
        if std::mem::take(&mut self.advances_election) && !self.leads() {
            self.timeouts.advance(&mut self.raw.raft);
        }
    }

    /// Something of the log is not durable.
    fn has_unwritten(&self) -> bool {
        let is_in_raft = !self.raw.raft.raft_log.unstable_entries().is_empty();
        self.is_writing() || !self.gathered.is_empty() || is_in_raft
    }

    /// Takes in a message of another member, unless it makes no sense.
    pub fn step(&mut self, RaftMessage(mut message): RaftMessage) {
        if !may_step(&self.raw.raft, &message) || !self.lost.look_at(&mut self.raw.raft, &mut message) {
            return;
        }
        let kind = message.get_msg_type();
        if kind == MessageType::MsgTimeoutNow && self.is_restarting() {
            return;
        }
        if kind == MessageType::MsgRequestVoteResponse && self.has_unwritten() {
            return; // no member was asked for its vote yet
        }
        if kind == MessageType::MsgAppend && !self.has_room_for(&mut message) {
            return; // the leader sends it again
        }
        self.lost.hear_append(&self.raw.raft, &message);
        if kind == MessageType::MsgAppendResponse && message.reject && message.log_term > 0 {
            message.reject_hint = last_of_term(&self.raw.raft, message.reject_hint, message.log_term);
        }
        let says_commit_only = kind == MessageType::MsgAppend && message.entries.is_empty();
        let (committed, answers) = (self.raw.raft.raft_log.committed, self.raw.raft.msgs.len());
        let _ = self.raw.step(message); // it refuses answers of members that it does not know
        let is_news = says_commit_only && self.raw.raft.raft_log.committed > committed;
        self.leave_out_answer(answers, is_news);
    }

    /// The leader need not hear again what this member has acknowledged, when it only said what is
    /// committed: that would be a message for each frame. If the first answer is lost, the leader
    /// asks again after a heartbeat, with nothing new committed.
    fn leave_out_answer(&mut self, answers_before: usize, is_commit_alone: bool) {
        let Some(answer) = self.raw.raft.msgs.get(answers_before) else { return };
        if answer.get_msg_type() != MessageType::MsgAppendResponse || answer.reject {
            return;
        }
        let acknowledged = (answer.to, answer.term, answer.index);
        let (to, term, index) = self.acknowledged;
        if is_commit_alone && (to, term) == (answer.to, answer.term) && answer.index <= index {
            self.raw.raft.msgs.truncate(answers_before);
        } else {
            self.acknowledged = acknowledged;
        }
    }

    /// The connection to this member broke: messages to it may be lost, and its process may be
    /// gone.
    pub fn connection_lost(&mut self, member: u64) {
        self.acknowledged = (0, 0, 0);
        self.raw.report_unreachable(member);
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Follower && raft.leader_id == member {
            self.timeouts.leader_lost(raft);
        }
    }

    /// Whether a proposal would be accepted now.
    #[must_use]
    pub fn may_propose(&self) -> bool {
        let raft = &self.raw.raft;
        self.leads()
            && raft.lead_transferee.is_none()
            && raft.prs().get(raft.id).is_some()
            && raft.uncommitted_size() < limits::UNCOMMITTED_BYTES_MAX
            && self.has_room()
    }

    /// Proposes an entry.
    ///
    /// # Errors
    /// When this member does not lead.
    pub fn propose(&mut self, data: Bytes) -> Result<(), RaftError> {
        self.propose_entry(Entry { data, ..Entry::default() })
    }

    pub(super) fn propose_entry(&mut self, entry: Entry) -> Result<(), RaftError> {
        let mut message = Message { from: self.raw.raft.id, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        if !self.leads() {
            return Err(raft::Error::ProposalDropped.into());
        }
        Ok(self.raw.raft.step(message)?)
    }

    /// The last entry that is known to be applied.
    pub(crate) fn applied_index(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// The last entry that a member is known to have; none of a member that there is not.
    #[must_use]
    pub fn matched(&self, member: u64) -> Option<u64> {
        self.raw.raft.prs().get(member).map(|progress| progress.matched)
    }

    /// Whether a read index can be asked for: the leader is known, and if it is this member, it has
    /// committed an entry of its term, without which its commit index may lag behind.
    #[must_use]
    pub fn may_read(&self) -> bool {
        let raft = &self.raw.raft;
        let is_current = raft.commit_to_current_term() || mutants::is(Mutant::ReadAtCommitOfOldTerm);
        raft.leader_id != 0 && (!self.leads() || is_current)
    }

    /// Whether these members are a quorum of the voters.
    #[must_use]
    pub fn is_quorum(&self, members: &BTreeSet<u64>) -> bool {
        let members = members.iter().copied().collect();
        self.raw.raft.prs().has_quorum(&members)
    }

    /// The voters beside this member.
    #[must_use]
    pub fn other_voters(&self) -> Vec<u64> {
        let raft = &self.raw.raft;
        let voters = raft.prs().conf().voters();
        let others = raft.prs().iter().map(|(id, _)| *id);
        let mut others: Vec<u64> = others.filter(|id| *id != raft.id && voters.contains(*id)).collect();
        others.sort_unstable();
        others
    }

    /// Hands leadership to this member, if it catches up within an election time. No proposals are
    /// accepted meanwhile.
    pub fn transfer(&mut self, to: u64) {
        self.raw.transfer_leader(to);
    }

    /// Everything up to here is applied.
    pub fn applied(&mut self, index: u64) {
        if index > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(index);
            let tail_bytes = if self.has_others() { self.retention.memory_bytes_max } else { 0 };
            let applied = self.raw.raft.raft_log.applied;
            self.raw.mut_store().forget(applied, tail_bytes);
        }
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
        let frame = self.writing.take().expect("a frame was being written");
        self.durable_term = self.durable_term.max(frame.term);
        self.promised.extend(frame.messages);
        self.confirmed.extend(frame.committed);
        self.raw.on_persist_ready(frame.ready.expect("only a frame of some Ready is written"));
        if mutants::is(Mutant::CommitWithoutQuorum) && self.leads() {
            let own = self.raw.raft.raft_log.persisted;
            self.raw.raft.raft_log.commit_to(own);
        }
        if let Some(index) = frame.restart {
            self.applied(index);
            self.is_restarted = true;
        }
    }

    /// Everything raft wants done now.
    pub fn effects(&mut self) -> RaftEffects {
        let mut effects = RaftEffects::default();
        effects.messages.append(&mut self.promised);
        effects.hand_out(std::mem::take(&mut self.confirmed));
        effects.is_restarted = std::mem::take(&mut self.is_restarted);
        while self.raw.has_ready() {
            self.take_ready(&mut effects);
        }
        effects.fetches = self.fetches();
        if self.writing.is_none()
            && let Some(mut frame) = self.gathered.pop_front()
        {
            let is_restart = frame.restart.is_some() && mutants::is(Mutant::StateWithoutHardState);
            let _ = frame.content.hard_state.take_if(|_| is_restart);
            let last = frame.content.entries.last().map_or(0, |entry| entry.index);
            self.sizes.add(last, encoded_len(&frame.content) as u64);
            frame.term = frame.content.hard_state.map_or(0, |state| state.term);
            effects.append = Some(std::mem::take(&mut frame.content));
            self.writing = Some(frame);
        }
        effects
    }

    fn take_ready(&mut self, effects: &mut RaftEffects) {
        let mut ready = self.raw.ready();
        if !ready.snapshot().is_empty() {
            self.raw.mut_store().restart(ready.snapshot());
            self.sizes.clear();
            let metadata = ready.snapshot().get_metadata();
            let mut frame = PendingFrame::joined(self.gathered.drain(..));
            frame.begin_again(metadata);
            self.gathered.push_back(frame);
            if let Some(writing) = &mut self.writing {
                writing.forget_promises(metadata.index);
            }
            // The state holds these, and raft has its votes by now: no change is made twice.
            effects.committed.clear();
            effects.changes.clear();
        }
        let entries = ready.take_entries();
        self.raw.mut_store().append(&entries);
        let must_sync = ready.must_sync();
        if let Some(state) = ready.hs() {
            self.hard_state = HardState { term: state.term, vote: state.vote, commit: state.commit };
            self.raw.mut_store().hard_state = state.clone();
        }
        if must_sync {
            pending::gather(&mut self.gathered, self.hard_state, entries);
        }
        let (states, messages): (Vec<_>, Vec<_>) = ready
            .take_messages()
            .into_iter()
            .partition(|message| message.get_msg_type() == MessageType::MsgSnapshot);
        // A voter that is alone leads before its term is durable. If it forgot the term, it would
        // begin the same one again, and fill it with other entries.
        let may_leave = self.hard_state.term <= self.durable_term;
        let (messages, held) = if may_leave { (messages, Vec::new()) } else { (Vec::new(), messages) };
        effects.messages.extend(messages.into_iter().map(RaftMessage));
        // Such a message is only a wish: the state goes on a connection of its own.
        effects.behind.extend(states.into_iter().map(|message| message.to));
        let is_free = |message: &Message| promises_nothing(message.get_msg_type());
        let (free, promises): (Vec<_>, Vec<_>) =
            ready.take_persisted_messages().into_iter().partition(is_free);
        effects.messages.extend(free.into_iter().map(RaftMessage));
        let promises = held.into_iter().chain(promises).map(RaftMessage);
        let committed = ready.take_committed_entries();
        let number = ready.number();
        self.raw.advance_append_async(ready);
        if mutants::is(Mutant::LeaderCountsUnwritten) {
            self.raw.on_persist_ready(number);
        }
        let is_change = committed.iter().any(changes_members) && !mutants::is(Mutant::MemberChangeNotDurable);
        if is_change {
            pending::gather(&mut self.gathered, self.hard_state, Vec::new());
        }
        let mut frames = self.writing.iter().chain(&self.gathered);
        let waits = is_change || frames.any(|frame| !frame.committed.is_empty());
        match self.gathered.back_mut().or(self.writing.as_mut()) {
            Some(frame) if waits => frame.committed.extend(committed),
            _ => effects.hand_out(committed),
        }
        // Without anything of its own to write, it is durable when that is which came before it.
        if let Some(frame) = self.gathered.back_mut().or(self.writing.as_mut()) {
            frame.ready = Some(number);
            frame.promise(promises);
        } else {
            self.raw.on_persist_ready(number);
            effects.messages.extend(promises);
        }
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
            is_leader: self.leads(),
            is_sole_voter: raft.promotable() && raft.prs().is_singleton(),
            reads_alone: false, // the log core knows
            is_learner: raft.prs().conf().learners().contains(&raft.id),
        }
    }

    /// Ticks of the shortest election timeout.
    #[must_use]
    pub fn election_ticks(&self) -> u64 {
        self.raw.raft.election_timeout() as u64
    }

    fn leads(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// There are other members, with or without a vote.
    pub(crate) fn has_others(&self) -> bool {
        self.raw.raft.prs().iter().len() > 1
    }

    /// The frame that begins the log again is not durable yet.
    pub(super) fn is_restarting(&self) -> bool {
        self.gathered.iter().chain(&self.writing).any(|frame| frame.restart.is_some())
    }
}
