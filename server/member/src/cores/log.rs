//! The log core: what is proposed when, and what raft's word about it leads to.
//!
//! Group commit clocks itself: while one frame is being written and synced, commands gather; when
//! it is durable they all go into the next one. There is no timer and no batch size to tune.
//!
//! A follower hands its commands to the leader, once a turn, as one batch that the leader proposes
//! as it is. Commands that have left when the leader changes, or the connection to it breaks, are
//! lost as far as this member knows: their callers are told at once, and nothing is sent twice.

use std::time::Duration;

use bytes::Bytes;

use crate::apply::command::{Command, CommandId, Origin};
use crate::apply::local::{LocalKind, Submitted};
use crate::apply::outcome::{Outcome, Rest};
use crate::apply::{Lost, Work};
use crate::cluster::membership::Membership;
use crate::cores::corruption::Comparison;
use crate::cores::forwards::Forwards;
use crate::cores::leader_moves::LeaderMoves;
use crate::cores::leader_reads::{Asking, LeaderReads, ReadIndex};
use crate::cores::lease_asks::LeaseAsks;
use crate::cores::log_events::{LogEffects, LogEvent};
use crate::cores::member_changes::{ChangeRules, MemberChanges};
use crate::cores::peer_versions::PeerVersions;
use crate::cores::read_rounds::ReadRounds;
use crate::cores::submissions::Submissions;
use crate::cores::transfers::{Sending, StateTransfers};
use crate::error::Error;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::peer::PeerMessage;
use crate::raft::node::{RaftEffects, RaftError, RaftNode};
use crate::raft::status::RaftStatus;
use crate::schema;

#[cfg(test)]
mod tests;

/// The settings of a log core.
#[derive(Debug, Clone, Copy)]
pub struct LogConfig {
    /// Stamped on every entry.
    pub origin: Origin,
    /// How many edges submit requests.
    pub edges: usize,
    /// Raft's clock step.
    pub tick: Duration,
}

/// Log core view: raft, and the requests that wait for it.
pub struct LogCore {
    pub(super) node: RaftNode,
    pub(super) origin: Origin,
    pub(super) edges_open: usize,
    /// Ticks since the start, and how many of them a request may take.
    pub(super) now: u64,
    pub(super) request_ticks: u64,
    pub(super) submissions: Submissions,
    pub(super) forwards: Forwards,
    pub(super) reads: ReadRounds,
    /// Members whose reads wait for this leader.
    pub(super) leader_reads: LeaderReads,
    /// Requests about leases that the leader has yet to answer.
    pub(super) asks: LeaseAsks,
    pub(super) changes: MemberChanges,
    versions: PeerVersions,
    pub(super) leader_moves: LeaderMoves,
    /// Microseconds at which this turn began, and at which a tick was taken last.
    turn_began: u64,
    ticked: Option<u64>,
    /// Longest time between ticks that no leader was elected in for certain.
    sure_microseconds: u64,
    /// Ticks since the frame that is being written was handed out.
    pub(super) frame_ticks: u64,
    pub(super) transfers: StateTransfers,
    /// Term and leader, as everything that waits for the leader knows them.
    pub(super) led_by: (u64, u64),
    /// The term in which this member leads, as the state core was told.
    pub(super) leads_in: Option<u64>,
    /// The tick in which this member ceased to be one.
    pub(super) left_since: Option<u64>,
    /// The tick until which other members that are found hasten the first election.
    first_election_until: u64,
    /// Another member has said so, by whose word it may end.
    pub(super) is_sent_away: bool,
    /// At a stop, the tick until which another member may take over.
    pub(super) handing_over: Option<u64>,
    /// Applied up to here.
    pub(super) applied: u64,
    /// Something of the log is durable. A member that joins is not known by its name before: if it
    /// lost its log then, it would be taken for one that was started with another directory.
    pub(super) is_in_log: bool,
    /// The commit index at which this member was the only one and led: another member may have
    /// answered for what was committed before.
    pub(super) alone_from: Option<u64>,
    /// Work for the state core behind the entries of this turn.
    pub(super) behind: Vec<Work>,
    /// State hashes of all members, on the leader.
    pub(super) comparison: Comparison,
    /// Commands of this member that nobody waits for, until it may propose them.
    pub(super) unattended: Vec<Command>,
}

impl LogCore {
    /// Goes on with a recovered raft.
    #[must_use]
    pub fn new(node: RaftNode, config: LogConfig) -> Self {
        let LogConfig { origin, edges, tick } = config;
        let ticks = |time: Duration| {
            let ticks = time.as_nanos().div_ceil(tick.as_nanos().max(1));
            u64::try_from(ticks).unwrap_or(u64::MAX / 2)
        };
        Self {
            now: 0,
            request_ticks: ticks(limits::REQUEST_TIMEOUT) + 2 * node.election_ticks(),
            first_election_until: ticks(limits::FIRST_ELECTION_TIME),
            is_in_log: node.applied_index() > 0,
            node,
            origin,
            edges_open: edges,
            submissions: Submissions::new(edges),
            forwards: Forwards::default(),
            reads: ReadRounds::new(origin, edges),
            leader_reads: LeaderReads::default(),
            asks: LeaseAsks::default(),
            leader_moves: LeaderMoves::default(),
            transfers: StateTransfers::default(),
            changes: MemberChanges::new(origin, ChangeRules::new(tick, true), Membership::default(), 0),
            versions: PeerVersions::default(),
            turn_began: 0,
            ticked: None,
            sure_microseconds: microseconds(tick * limits::LEADER_SURE_TICKS),
            frame_ticks: 0,
            led_by: (0, 0),
            leads_in: None,
            left_since: None,
            is_sent_away: false,
            handing_over: None,
            applied: 0,
            alone_from: None,
            behind: Vec::new(),
            comparison: Comparison::new(origin.member),
            unattended: Vec::new(),
        }
    }

    /// Goes on with these members, which change by these rules.
    #[must_use]
    pub fn with_members(mut self, membership: Membership, rules: ChangeRules) -> Self {
        let applied = self.node.applied_index();
        self.changes = MemberChanges::new(self.origin, rules, membership, applied);
        self.left_since = self.changes.is_removed().then_some(self.now);
        self
    }

    /// Begins; a sole voter stands for election at once.
    ///
    /// # Errors
    /// When raft refuses; the member must stop.
    pub fn start(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        if self.node.status().is_sole_voter {
            self.node.campaign()?;
        }
        self.advance(effects)
    }

    /// Takes an event in; [`LogCore::advance`] follows the last one of a turn.
    pub fn receive(&mut self, event: LogEvent, effects: &mut impl LogEffects) {
        match event {
            LogEvent::Turn(began) => self.look_at_clock(began),
            LogEvent::Submitted { edge, submitted } => self.submitted(edge, submitted, effects),
            LogEvent::Written => {
                self.frame_ticks = 0;
                self.is_in_log = true;
                self.node.written();
            }
            LogEvent::Tick => self.tick(effects),
            LogEvent::Durable(index) => {
                self.release(index.get(), effects);
                if self.transfers.durable(index.get()) {
                    effects.release(index.get()); // the log of before
                    effects.installed();
                }
            }
            LogEvent::Applied(index) => {
                if mutants::is(Mutant::LogReleasedByApplied) {
                    self.release(index, effects);
                }
                self.applied = index;
                self.node.applied(index);
            }
            LogEvent::EdgeClosed => self.edges_open -= 1,
            LogEvent::Peer { from, message } => self.heard(from, message, effects),
            LogEvent::PeerVersion(member, version) => self.versions.heard(member, version),
            LogEvent::PeerConnected(member) => {
                self.changes.connected(member, self.now);
                if self.now <= self.first_election_until && self.changes.connected_members() > 1 {
                    self.node.advance_election();
                }
                if member == self.led_by.1 {
                    self.reads.hurry(self.now);
                }
            }
            LogEvent::PeerLost(member) => {
                // Once for a connection: questions without one are lost at once, and would be asked
                // again at once, for ever.
                if self.changes.is_connected(member) {
                    self.leader_reads.connection_lost(self.now);
                }
                self.changes.disconnected(member);
                self.comparison.lost(member);
                self.node.connection_lost(member);
                if member == self.led_by.1 {
                    self.lose(&Error::TimeoutConnectionLost);
                }
            }
            LogEvent::Unsent(batch) => self.unsent(&batch, effects),
            LogEvent::SentAway { by } => self.is_sent_away |= self.changes.is_sent_away(by),
            LogEvent::Answer { to, id, outcome } => {
                effects.send(to, PeerMessage::LeaseAnswer { id, outcome });
            }
            LogEvent::Hash { to, point, corrupt } => self.hashed(to, point, corrupt, effects),
            LogEvent::StateReceived { from, term, state } => {
                let unwanted = self.transfers.receive(from, term, state);
                unwanted.into_iter().for_each(|state| effects.discard(state));
            }
            LogEvent::StateSent { to, is_there } => {
                self.transfers.sent(to, is_there, self.now);
                self.node.streamed(to, is_there);
            }
            LogEvent::Fetched(fetch, entries) => self.node.fetched(fetch, entries),
            LogEvent::DiskRoom(bytes) => {
                self.node.has_disk_room(bytes);
                self.release(0, effects);
            }
        }
    }

    /// State up to here, if not more, is durable elsewhere.
    fn release(&mut self, durable: u64, effects: &mut impl LogEffects) {
        let keeps_log = self.transfers.keeps_log(self.now, |member| self.node.feeds(member));
        let index = self.node.release(durable, keeps_log);
        // The log begins behind a received state by now, which is not in its place yet.
        if !self.transfers.is_installing() || mutants::is(Mutant::LogReleasedBeforeInstall) {
            effects.release(index);
        }
    }

    /// Requests of an edge. The leader alone knows how long leases live.
    fn submitted(&mut self, edge: u16, mut submitted: Submitted, effects: &mut impl LogEffects) {
        let (leader, own) = (self.led_by.1, self.origin.member);
        for request in std::mem::take(&mut submitted.local) {
            match request.kind {
                LocalKind::Lease(lease)
                    if lease.is_for_leader() && (leader != own || self.leader_reads.is_in_doubt()) =>
                {
                    self.asks.add(request.id, lease, self.now);
                }
                LocalKind::MoveLeader { to } => {
                    if let Err(why) = self.move_leader(request.id, to) {
                        effects.work(answer(request.id, Err(why)));
                    }
                }
                LocalKind::PeerVersions => {
                    effects.work(answer(request.id, Ok(self.versions.report(&self.changes))));
                }
                LocalKind::MayChange(change) => {
                    let may = self.changes.may_wait(&change, self.now);
                    effects.work(answer(request.id, may.map(|()| Bytes::new())));
                }
                _ => effects.work(Work::Local(request)),
            }
        }
        if let Some(ticket) = submitted.read {
            self.reads.wait(edge, ticket);
        }
        for (id, why) in self.changes.submit(&mut submitted.commands, self.now) {
            effects.work(answer(id, Err(why)));
        }
        self.submissions.push(edge, submitted, self.now);
    }

    /// Another voter is to lead.
    fn move_leader(&mut self, caller: CommandId, to: u64) -> Result<(), Error> {
        if !self.node.status().is_leader {
            return Err(Error::NotLeader);
        }
        let member = self.changes.membership().member(to);
        if member.is_none_or(|member| member.is_learner) {
            return Err(Error::BadLeaderTransferee);
        }
        self.node.transfer(to);
        self.leader_moves.wait(caller, to, self.now + self.request_ticks);
        Ok(())
    }

    /// A thread that stood still finds requests before it hears of the next leader. This member
    /// does not answer for leases then until it has made sure that it leads.
    fn look_at_clock(&mut self, began: u64) {
        self.turn_began = began;
        let since = began.saturating_sub(*self.ticked.get_or_insert(began));
        if since > self.sure_microseconds && self.node.status().is_leader {
            self.leader_reads.doubt();
        }
    }

    fn tick(&mut self, effects: &mut impl LogEffects) {
        self.now += 1;
        self.ticked = Some(self.turn_began);
        if self.node.status().is_leader {
            let (own, election_ticks) = (self.origin.member, self.node.election_ticks());
            self.leader_reads.tick(own, self.now, election_ticks, |members| self.node.is_quorum(members));
        }
        // Before raft begins to count anew which members are there.
        self.watch_disk();
        self.compare_states(effects);
        self.node.tick();
        let oldest = self.now.checked_sub(self.request_ticks);
        if let Some(oldest) = oldest {
            if let Some(numbers) = self.submissions.expire(oldest) {
                self.behind.push(Work::Lost(Lost { numbers, why: self.why_here() }));
            }
            for (from, id) in self.changes.expire(oldest) {
                self.refuse_change(from, id, Error::Timeout, effects);
            }
        }
        let why = if self.led_by.1 == 0 { Error::NoLeader } else { Error::Timeout };
        let given_up = self.asks.tick(oldest);
        self.behind.extend(given_up.into_iter().map(|id| answer(id, Err(why.clone()))));
    }

    /// Why commands that have waited too long have not left.
    fn why_here(&self) -> Error {
        match self.led_by.1 {
            0 => Error::NeverProposed,
            leader if leader == self.origin.member => Error::Timeout,
            _ => Error::TimeoutConnectionLost,
        }
    }

    /// A leader whose disk takes an election time for one frame gives its place to another member,
    /// and tries again as long as it leads.
    fn watch_disk(&mut self) {
        if !self.node.is_writing() {
            self.frame_ticks = 0;
            return;
        }
        self.frame_ticks += 1;
        if self.frame_ticks.is_multiple_of(self.node.election_ticks())
            && self.node.status().is_leader
            && let Some(successor) = self.node.successor()
        {
            self.node.transfer(successor);
        }
    }

    /// Proposes what has gathered, unless a write is in flight, and does what raft asks for.
    ///
    /// # Errors
    /// When raft refuses; the member must stop.
    pub fn advance(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        self.look_at_leader();
        self.transfers.offer(&mut self.node).into_iter().for_each(|state| effects.discard(state));
        self.hand_out_unattended()?;
        self.hand_out(effects)?;
        self.hand_out_changes(effects)?;
        self.ask_for_reads(effects);
        self.answer_reads(effects);
        self.hand_over();
        let RaftEffects { append, messages, mut committed, changes, behind, fetches, is_restarted } =
            self.node.effects();
        fetches.into_iter().for_each(|fetch| effects.fetch(fetch));
        if let Some(frame) = append {
            effects.append(frame);
        }
        for message in messages {
            effects.send(message.to(), PeerMessage::Raft(message));
        }
        let status = self.node.status();
        let leads_in = status.is_leader.then_some(status.term);
        if self.leads_in != leads_in {
            self.leads_in = leads_in;
            effects.work(Work::Leads(leads_in));
        }
        if is_restarted {
            self.restart(effects);
        }
        if mutants::is(Mutant::EntriesAppliedBackwards) {
            committed.reverse();
        }
        if mutants::is(Mutant::EntryAppliedTwice) {
            committed.extend(committed.last().cloned());
        }
        for mut entry in committed {
            if changes.contains(&entry.index) {
                let (votes, node) = (self.node.votes(), &mut self.node);
                self.changes.committed(&mut entry, votes, |change| node.set_vote(change))?;
                effects.set_peers(self.changes.peers());
                self.left_since = self.left_since.or(self.changes.is_removed().then_some(self.now));
            }
            self.changes.handed_out(entry.index, self.now);
            effects.work(Work::Entry(entry));
        }
        self.stream(behind, status.term, effects);
        self.look_at_votes();
        self.behind.drain(..).for_each(|work| effects.work(work));
        for (caller, result) in self.leader_moves.over(status.leader, self.now) {
            let result = result.map(|()| Bytes::new());
            effects.work(Work::Answer(caller, Outcome { revision: 0, result, rest: Rest::NONE }));
        }
        // Other votes may commit more at once, and there may be others to send to.
        if changes.is_empty() { Ok(()) } else { self.advance(effects) }
    }

    /// The log begins again, durably, behind the state that was received: this member goes on from
    /// it.
    fn restart(&mut self, effects: &mut impl LogEffects) {
        let state = self.transfers.install();
        if !mutants::is(Mutant::MembersOfBeforeState) {
            self.changes.begin_again(schema::membership(state.tables()), state.applied().index);
        }
        effects.set_peers(self.changes.peers());
        self.left_since = self.left_since.or(self.changes.is_removed().then_some(self.now));
        effects.work(Work::Install(state));
        self.lose(&Error::TimeoutLeaderFailed); // their entries may be among those it holds
    }

    /// Has these members sent the state.
    fn stream(&mut self, behind: Vec<u64>, term: u64, effects: &mut impl LogEffects) {
        for to in behind {
            match self.transfers.send(to) {
                Sending::Begins => effects.work(Work::Stream { to, term }),
                Sending::UnderWay => {}
                Sending::Later => self.node.streamed(to, false),
            }
        }
    }

    /// Whether reads need no other member from now on. A learner is one: it may have applied, and
    /// shown, what this member has committed and not applied yet.
    fn look_at_votes(&mut self) {
        let RaftStatus { committed, is_leader, is_sole_voter, .. } = self.node.status();
        let is_alone = is_leader && is_sole_voter && !self.node.has_others() && self.node.may_read();
        self.alone_from = is_alone.then(|| self.alone_from.unwrap_or(committed));
    }

    /// If term or leader have changed, what waits for the former leader waits in vain.
    fn look_at_leader(&mut self) {
        let RaftStatus { term, leader, is_leader, .. } = self.node.status();
        if self.led_by != (term, leader) {
            self.led_by = (term, leader);
            self.lose(&Error::TimeoutLeaderFailed);
            self.leader_reads.clear(self.now);
            if !is_leader {
                self.forwards.clear();
            }
        }
        if leader != 0 {
            self.behind.extend(self.reads.led_by(self.led_by).into_iter().map(Work::Read));
        }
        if self.is_stopping() && !is_leader {
            self.submissions.clear(); // their callers are gone
            self.changes.clear();
        }
    }

    /// Requests that have left for the leader may not be answered.
    fn lose(&mut self, why: &Error) {
        let lost = self.submissions.lose().filter(|_| !mutants::is(Mutant::LossNotTold));
        if let Some(numbers) = lost {
            self.behind.push(Work::Lost(Lost { numbers, why: why.clone() }));
        }
        let changes = self.changes.lose();
        self.behind.extend(changes.into_iter().map(|id| answer(id, Err(why.clone()))));
        self.asks.lose();
    }

    /// One attempt for all reads of this member that wait.
    fn ask_for_reads(&mut self, effects: &mut impl LogEffects) {
        // A state that has just come may name a leader that this turn began without.
        if !self.node.may_read() || self.led_by.1 == 0 {
            return;
        }
        let Some(context) = self.reads.attempt(self.led_by, self.now) else { return };
        let (term, leader) = self.led_by;
        if leader == self.origin.member {
            self.leader_reads.ask(leader, context);
        } else {
            effects.send(leader, PeerMessage::ReadAsk { term, context });
        }
    }

    /// The leader makes sure that it still leads, and answers members whose reads wait.
    fn answer_reads(&mut self, effects: &mut impl LogEffects) {
        let RaftStatus { term, committed, is_leader, .. } = self.node.status();
        let own = self.origin.member;
        if !is_leader || !self.node.may_read() {
            return;
        }
        let mut answers = self.leader_reads.answers(|members| self.node.is_quorum(members));
        if let Some(Asking { round, of_all }) = self.leader_reads.round(own, committed, self.now) {
            let mut others = self.node.other_voters();
            if !of_all {
                others = self.leader_reads.few(own, others, |members| self.node.is_quorum(members));
            }
            others.into_iter().for_each(|to| effects.send(to, PeerMessage::Confirm { term, round }));
            // Without other voters there is nothing to wait for.
            answers.extend(self.leader_reads.answers(|members| self.node.is_quorum(members)));
        }
        for ReadIndex { to, context, index } in answers {
            if to == own {
                let ready = self.reads.answered(context, index);
                self.behind.extend(ready.into_iter().map(Work::Read));
            } else {
                effects.send(to, PeerMessage::ReadAnswer { context, index });
            }
        }
        self.hand_down_asks(effects); // it may be sure again that it leads
    }

    /// The members, as of the entries that were handed out.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        self.changes.membership()
    }

    /// Where raft stands.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let reads_alone = self.alone_from.is_some_and(|from| self.applied >= from);
        RaftStatus { reads_alone, ..self.node.status() }
    }

    /// No caller waits for outcomes any more: a write that finds no room need not be tried again.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.edges_open == 0
    }

    /// Every edge is done, everything they proposed is durable, and another member leads if one
    /// can.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_stopping() && self.is_at_rest() && self.has_handed_over()
    }

    /// At a stop: this member does not lead any more, or no other has taken over in time.
    pub(super) fn has_handed_over(&self) -> bool {
        self.handing_over.is_some_and(|until| self.now >= until || !self.node.status().is_leader)
    }

    /// The cluster goes on without this member, and needs it no more: the others have had time to
    /// hear so, or have said so. The other one of two voters has to say so.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let has_waited = |since| self.now - since >= self.node.election_ticks();
        self.is_sent_away
            || self.left_since.is_some_and(has_waited) && self.changes.only_other_voter().is_none()
    }

    /// Nothing waits for a write.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        !self.node.is_writing()
            && self.submissions.is_empty()
            && self.forwards.is_empty()
            && self.changes.is_empty()
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A request that is answered without a state.
pub(super) fn answer(id: CommandId, result: Result<Bytes, Error>) -> Work {
    Work::Answer(id, Outcome { revision: 0, result, rest: Rest::NONE })
}
