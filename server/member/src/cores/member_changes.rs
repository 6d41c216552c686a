//! Changes of members on their way through the log core: asked for here or by another member, then
//! one at a time through the log, then in effect. [`crate::cluster::membership`] has the rules.
//!
//! ```text
//! own edge -- is the cluster healthy? --> waiting -- leader: is the learner ready, --> proposed
//!                                            |      is a quorum connected behind it?      |
//! follower -------------- Forward -----------'     committed: judged by the log, everywhere
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::{MemberPromoteRequest, MemberRemoveRequest};

use crate::apply::CommittedEntry;
use crate::apply::command::{self, Command, CommandId, Kind, Origin};
use crate::apply::members::JudgedChange;
use crate::cluster::conf_state::ConfState;
use crate::cluster::membership::{Connection, MemberChange, Membership, may_promote};
use crate::error::Error;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::peer::Peer;
use crate::raft::conf_change::VoteChange;

/// How changes are admitted.
#[derive(Debug, Clone, Copy)]
pub struct ChangeRules {
    /// `--strict-reconfig-check`
    pub is_strict: bool,
    /// Ticks after which a connection is relied on.
    pub steady_ticks: u64,
    /// `--force-new-cluster`: this member alone votes. Changes up to this entry, which was the last
    /// one at the start, change rows and no votes; then all other members are removed.
    pub forced_until: Option<u64>,
}

/// The sender of changes that nobody waits for; no member has this id.
const NOBODY: u64 = 0;

/// Stamped on the changes that leave a member alone in a forced cluster; no run of a member has
/// this number: nobody is answered.
pub(crate) const FORCED_BOOT: u64 = 0;

impl ChangeRules {
    /// With this step of raft's clock.
    #[must_use]
    pub fn new(tick: Duration, is_strict: bool) -> Self {
        let ticks = limits::STEADY_CONNECTION.as_nanos().div_ceil(tick.as_nanos().max(1));
        Self { is_strict, steady_ticks: u64::try_from(ticks).unwrap_or(u64::MAX), forced_until: None }
    }
}

/// Log core view: the members, and changes that wait.
#[derive(Debug)]
pub(super) struct MemberChanges {
    own: Origin,
    rules: ChangeRules,
    /// `--force-new-cluster` was given at this start, and members of the lost cluster are left.
    is_forced: bool,
    membership: Membership,
    /// The index of the last change, as far as this member has handed it out; of those before its
    /// start, or in a state that was received, the last one possible.
    last_change: u64,
    /// The tick since which there is a connection, by member.
    connected: BTreeMap<u64, u64>,
    waiting: VecDeque<Waiting>,
    /// Own callers whose change has left and is not committed.
    left: BTreeSet<CommandId>,
}

/// A change that has not left.
#[derive(Debug)]
struct Waiting {
    /// The tick at which it came.
    since: u64,
    /// The tick since which it is first, and lacks connected voters at this leader.
    lacks_since: Option<u64>,
    /// The member that sent it.
    from: u64,
    id: CommandId,
    batch: Bytes,
    change: MemberChange,
}

/// A change that leaves.
#[derive(Debug)]
pub(super) enum Leaving {
    /// Propose it.
    Propose(VoteChange, Bytes),
    /// Its caller, at this member, is refused.
    Refuse(u64, CommandId, Error),
}

impl MemberChanges {
    /// With the members as of this entry.
    pub(super) fn new(own: Origin, rules: ChangeRules, membership: Membership, applied: u64) -> Self {
        Self {
            is_forced: rules.forced_until.is_some(),
            own,
            rules,
            membership,
            last_change: applied,
            connected: BTreeMap::new(),
            waiting: VecDeque::new(),
            left: BTreeSet::new(),
        }
    }

    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The members are these: the changes that led to them are in a state that was received, which
    /// is behind this entry.
    pub(super) fn begin_again(&mut self, membership: Membership, applied: u64) {
        self.membership = membership;
        self.last_change = applied;
    }

    /// This member belongs to the cluster no more.
    pub(super) fn is_removed(&self) -> bool {
        self.membership.is_removed(self.own.member)
    }

    /// The only other member with a vote, if there is one only. If it does not know that this one
    /// was removed, it needs this one's vote to get there.
    pub(super) fn only_other_voter(&self) -> Option<u64> {
        self.membership.only_other_voter(self.own.member)
    }

    /// Whether it is over for this member when this other one says that it was removed. A forced
    /// one goes on alone by its operator's word, whatever members of the lost cluster say: they are
    /// removed by now, or will be.
    pub(super) fn is_sent_away(&self, by: u64) -> bool {
        let is_of_lost_cluster = self.is_forced || self.membership.is_removed(by);
        !is_of_lost_cluster && self.only_other_voter().is_none_or(|voter| voter == by)
    }

    fn has_others(&self) -> bool {
        self.membership.members().any(|member| member.id != self.own.member)
    }

    /// There is a connection to this member.
    pub(super) fn connected_members(&self) -> usize {
        self.connected.len()
    }

    pub(super) fn is_connected(&self, member: u64) -> bool {
        self.connected.contains_key(&member)
    }

    /// The other members.
    pub(super) fn peers(&self) -> Vec<Peer> {
        let others = self.membership.members().filter(|member| member.id != self.own.member);
        others.map(|member| Peer { id: member.id, urls: member.peer_ur_ls.clone() }).collect()
    }

    pub(super) fn connected(&mut self, member: u64, now: u64) {
        self.connected.entry(member).or_insert(now);
    }

    /// Its changes that wait here are lost, and it knows: after a start it has other callers by the
    /// same ids.
    pub(super) fn disconnected(&mut self, member: u64) {
        self.connected.remove(&member);
        self.waiting.retain(|waiting| waiting.from != member);
    }

    /// Takes changes of members out of an edge's commands; returns those that are refused.
    pub(super) fn submit(&mut self, commands: &mut Vec<Command>, now: u64) -> Vec<(CommandId, Error)> {
        if !commands.iter().any(|command| command.kind.changes_members()) {
            return Vec::new();
        }
        let (changes, others) = commands.drain(..).partition(|command| command.kind.changes_members());
        *commands = others;
        let changes: Vec<Command> = changes;
        let refused = changes.into_iter().filter_map(|command| {
            let id = command.id;
            self.admit(command, now).err().map(|why| (id, why))
        });
        refused.collect()
    }

    fn admit(&mut self, command: Command, now: u64) -> Result<(), Error> {
        let change = command.member_change().unwrap_or(Err(Error::Malformed("no change of members")))?;
        self.may(&change, now)?;
        let (id, batch) = (command.id, command::encode(self.own, &[command]).into());
        self.wait(Waiting { since: now, lacks_since: None, from: self.own.member, id, batch, change })
    }

    /// The same for a change that has yet to wait until a leader tells whether its caller may ask
    /// for it: here only a member that no leader can reach refuses it.
    pub(super) fn may_wait(&self, change: &MemberChange, now: u64) -> Result<(), Error> {
        let may_be_led = self.membership.has_quorum(|id| self.connection(id, now) != Connection::None);
        if may_be_led { Ok(()) } else { self.may(change, now) }
    }

    /// Whether enough members are connected for a change, if the operator wants that.
    fn may(&self, change: &MemberChange, now: u64) -> Result<(), Error> {
        if !self.rules.is_strict {
            return Ok(());
        }
        self.membership.stays_healthy(change, |id| self.connection(id, now))
    }

    /// Takes a batch that another member sent, if it is a change of members.
    pub(super) fn forwarded(
        &mut self,
        from: u64,
        batch: &Bytes,
        now: u64,
    ) -> Option<Result<(), (CommandId, Error)>> {
        let (origin, command) = command::decode_member_change(batch)?;
        let id = command.id;
        if origin.member != from {
            return Some(Err((id, Error::Malformed("a change of members of another member"))));
        }
        let taken = match command.member_change() {
            Some(Ok(change)) => {
                self.wait(Waiting { since: now, lacks_since: None, from, id, batch: batch.clone(), change })
            }
            _ => Err(Error::Malformed("no change of members")),
        };
        Some(taken.map_err(|why| (id, why)))
    }

    fn wait(&mut self, waiting: Waiting) -> Result<(), Error> {
        if self.waiting.len() >= limits::MEMBER_CHANGES_MAX {
            return Err(Error::TooManyRequests);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    fn connection(&self, id: u64, now: u64) -> Connection {
        if id == self.own.member {
            return Connection::Steady;
        }
        match self.connected.get(&id) {
            Some(since) if now - since >= self.rules.steady_ticks => Connection::Steady,
            Some(_) => Connection::Recent,
            None => Connection::None,
        }
    }

    /// On the leader: the next change that may be proposed. `matched` is the last entry that a
    /// member is known to have. A voter may be new, or this leader: a change waits for so many
    /// ticks until enough voters are connected.
    pub(super) fn next(
        &mut self,
        now: u64,
        patience: u64,
        matched: impl Fn(u64) -> Option<u64>,
    ) -> Option<Leaving> {
        let Waiting { from, id, change, .. } = self.waiting.front()?;
        let (from, id, own) = (*from, *id, self.own.member);
        let mut refusal = match change {
            MemberChange::Promote { .. } if mutants::is(Mutant::LaggingLearnerPromoted) => None,
            MemberChange::Promote { id: learner } => may_promote(*learner, own, &matched).err(),
            _ => None,
        };
        if refusal.is_none() && self.rules.is_strict && from != NOBODY {
            // One that has not got the last change may not even know the others that are left then.
            let knows_members = |member| matched(member).is_some_and(|index| index >= self.last_change);
            let is_connected = |member| member == own || self.is_connected(member) && knows_members(member);
            refusal = self.membership.leaves_quorum(change, is_connected).err();
            refusal = refusal.filter(|_| !mutants::is(Mutant::ChangeWithoutQuorum));
            if refusal.is_some() {
                let first = self.waiting.front_mut()?;
                if now - *first.lacks_since.get_or_insert(now) < patience {
                    return None;
                }
            }
        }
        let Waiting { batch, change, .. } = self.waiting.pop_front()?;
        if let Some(why) = refusal {
            return Some(Leaving::Refuse(from, id, why));
        }
        if from == own {
            self.left.insert(id);
        }
        Some(Leaving::Propose(self.vote_change(&change), batch))
    }

    /// On a follower: own changes, for the leader.
    pub(super) fn leave(&mut self) -> Vec<Bytes> {
        let mut leaving = Vec::new();
        for waiting in self.waiting.drain(..) {
            if waiting.from == self.own.member {
                self.left.insert(waiting.id);
                leaving.push(waiting.batch);
            }
        }
        leaving
    }

    /// The leader has changed or is gone: own callers whose change has left; those of others know
    /// by themselves.
    pub(super) fn lose(&mut self) -> Vec<CommandId> {
        self.waiting.retain(|waiting| [self.own.member, NOBODY].contains(&waiting.from));
        self.waiting.iter_mut().for_each(|waiting| waiting.lacks_since = None);
        std::mem::take(&mut self.left).into_iter().collect()
    }

    /// The leader has refused what this caller asked for.
    pub(super) fn refused(&mut self, caller: CommandId) {
        self.left.remove(&caller);
    }

    /// Nothing waits to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets changes that nobody waits for.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Callers that have waited since this tick, and the members that they are at. A change that
    /// nobody waits for is never given up.
    pub(super) fn expire(&mut self, oldest: u64) -> Vec<(u64, CommandId)> {
        let is_over = |waiting: &Waiting| waiting.from != NOBODY && waiting.since <= oldest;
        let expired: Vec<_> = self
            .waiting
            .iter()
            .filter(|waiting| is_over(waiting))
            .map(|waiting| (waiting.from, waiting.id))
            .collect();
        if !expired.is_empty() {
            self.waiting.retain(|waiting| !is_over(waiting));
        }
        expired
    }

    /// The vote that a change gives to its member.
    fn vote_change(&self, change: &MemberChange) -> VoteChange {
        let is_learner = match change {
            MemberChange::Remove { id } => return VoteChange::Gone(*id),
            MemberChange::Add { member, .. } => member.is_learner,
            MemberChange::Promote { .. } => false,
            // The vote that it has.
            MemberChange::Update { id, .. } => {
                let is_learner = self.membership.member(*id).is_some_and(|member| member.is_learner);
                is_learner && !mutants::is(Mutant::UpdatePromotes)
            }
        };
        if is_learner { VoteChange::Learner(change.id()) } else { VoteChange::Voter(change.id()) }
    }

    /// The members of a cluster that is lost are still to be removed: nothing else is proposed
    /// before, so that clients find this member alone.
    pub(super) fn is_forcing(&self) -> bool {
        self.rules.forced_until.is_some() || self.waiting.iter().any(|waiting| waiting.from == NOBODY)
    }

    /// Entries up to this one are handed out. Once these are all of a cluster that is lost, its
    /// other members are removed, and this one votes.
    pub(super) fn handed_out(&mut self, index: u64, now: u64) {
        if self.rules.forced_until.is_none_or(|until| index <= until) {
            return;
        }
        self.rules.forced_until = None;
        self.is_forced = self.has_others();
        let own = self.own.member;
        let mut commands = Vec::new();
        // First: the last voter is never removed.
        if self.membership.member(own).is_some_and(|member| member.is_learner) {
            commands.push((Kind::MemberPromote, MemberPromoteRequest { id: own }.encode_to_vec()));
        }
        let others = self.membership.members().filter(|member| member.id != own);
        commands.extend(
            others.map(|member| (Kind::MemberRemove, MemberRemoveRequest { id: member.id }.encode_to_vec())),
        );
        for (kind, payload) in commands {
            let id = CommandId::new(0, 0, 0);
            let command = Command { id, kind, payload: payload.into() };
            let Some(Ok(change)) = command.member_change() else { continue };
            let forced = Origin { member: own, boot: FORCED_BOOT };
            let batch = command::encode(forced, &[command]).into();
            self.waiting.push_back(Waiting {
                since: now,
                lacks_since: None,
                from: NOBODY,
                id,
                batch,
                change,
            });
        }
    }

    /// A change is committed: judges it, and carries it out. `set_vote` tells raft, and returns
    /// the votes; `votes` are those so far.
    ///
    /// # Errors
    /// That of `set_vote`.
    pub(super) fn committed<E>(
        &mut self,
        entry: &mut CommittedEntry,
        votes: ConfState,
        set_vote: impl FnOnce(VoteChange) -> Result<ConfState, E>,
    ) -> Result<(), E> {
        let found = command::decode_member_change(&entry.data);
        if let Some((origin, command)) = &found
            && *origin == self.own
        {
            self.left.remove(&command.id);
        }
        if found.is_none() {
            entry.data = Bytes::new(); // the machine, too, finds no commands in it
        }
        let change = found.and_then(|(_, command)| command.member_change());
        let change = change.unwrap_or(Err(Error::Malformed("no change of members")));
        let verdict = change.as_ref().map_err(Clone::clone).and_then(|change| self.membership.judge(change));
        let mut conf_state = votes;
        if let (Ok(change), Ok(())) = (change, &verdict) {
            if self.rules.forced_until.is_none_or(|until| entry.index > until) {
                let changed = set_vote(self.vote_change(&change))?;
                if !mutants::is(Mutant::ConfStateOfWrongIndex) {
                    conf_state = changed;
                }
            }
            self.membership.apply(change);
            self.last_change = entry.index;
            self.is_forced &= self.rules.forced_until.is_some() || self.has_others();
        }
        entry.change = Some(Box::new(JudgedChange { verdict, conf_state }));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
