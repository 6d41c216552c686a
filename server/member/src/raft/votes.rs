//! The votes of members, and their changes.

use bytes::Bytes;
use raft::StateRole;

use crate::cluster::conf_state::ConfState;
use crate::mutants::{self, Mutant};
use crate::raft::conf_change::{self, VoteChange};
use crate::raft::convert::conf_state_from_raft;
use crate::raft::node::{RaftError, RaftNode};

impl RaftNode {
    /// The member that is to lead after this one: an active voter, of those the one that has most
    /// of the log.
    #[must_use]
    pub fn successor(&self) -> Option<u64> {
        self.successor_if(|_| true)
    }

    /// The same, of the members that may lead.
    #[must_use]
    pub fn successor_if(&self, may_lead: impl Fn(u64) -> bool) -> Option<u64> {
        let raft = &self.raw.raft;
        let voters = raft.prs().conf().voters();
        let others = raft.prs().iter().filter(|(id, progress)| {
            **id != raft.id && voters.contains(**id) && progress.recent_active && may_lead(**id)
        });
        others.max_by_key(|(id, progress)| (progress.matched, **id)).map(|(id, _)| *id)
    }

    /// Whether a change of members would be accepted now: this member leads, knows what a quorum
    /// has since an entry of its term is committed, and no other change is on its way.
    #[must_use]
    pub fn may_change(&self) -> bool {
        let is_free = !self.raw.raft.has_pending_conf() || mutants::is(Mutant::TwoChangesAtOnce);
        self.may_propose() && self.raw.raft.commit_to_current_term() && is_free
    }

    /// Proposes a change of members; it takes effect when [`RaftNode::set_vote`] says so.
    ///
    /// # Errors
    /// When this member does not lead.
    pub fn propose_change(&mut self, change: VoteChange, batch: Bytes) -> Result<(), RaftError> {
        self.propose_entry(conf_change::entry_of(change, batch))
    }

    /// A committed change takes effect; returns all votes.
    ///
    /// # Errors
    /// When raft refuses: no member would be left that votes.
    pub fn set_vote(&mut self, change: VoteChange) -> Result<ConfState, RaftError> {
        let conf_state = self.raw.apply_conf_change(&change.to_raft())?;
        self.raw.mut_store().conf_state = conf_state;
        let raft = &mut self.raw.raft;
        if raft.state == StateRole::Leader && raft.prs().get(raft.id).is_none() {
            // raft-rs would go on and look for its own place at the next entry that is durable.
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
        Ok(self.votes())
    }

    /// All members, with a vote or without.
    #[must_use]
    pub fn members(&self) -> Vec<u64> {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } = self.votes();
        let mut members = [voters, learners, voters_outgoing, learners_next].concat();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// The members' votes.
    #[must_use]
    pub fn votes(&self) -> ConfState {
        conf_state_from_raft(&self.raw.store().conf_state)
    }
}
