//! Requests leave the log core: the leader proposes them, a follower sends them to the leader.

use bytes::Bytes;

use crate::apply::Work;
use crate::apply::command::{self, CommandId, Origin};
use crate::apply::local::{LocalKind, LocalRequest};
use crate::cores::log::{LogCore, answer};
use crate::cores::log_events::LogEffects;
use crate::cores::member_changes::Leaving;
use crate::error::Error;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::peer::PeerMessage;
use crate::raft::node::RaftError;

impl LogCore {
    /// The leader proposes what has gathered, its own commands and those of others in turn, unless
    /// a write is in flight; a follower sends it to the leader.
    pub(super) fn hand_out(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        let mut frame_bytes = 0;
        while !self.changes.is_forcing()
            && !self.node.is_writing()
            && self.node.may_propose()
            && frame_bytes < limits::FRAME_BYTES_MAX
        {
            let before = frame_bytes;
            let own = self.next_batch();
            for batch in [own, self.forwards.pop()].into_iter().flatten() {
                frame_bytes += batch.len();
                self.node.propose(batch)?;
            }
            if frame_bytes == before {
                break;
            }
        }
        let leader = self.led_by.1;
        if leader == self.origin.member {
            self.hand_down_asks(effects);
        } else if self.is_in_log && self.changes.is_connected(leader) {
            while let Some(batch) = self.next_batch() {
                if mutants::is(Mutant::ForwardDoubled) {
                    effects.send(leader, PeerMessage::Forward(batch.clone()));
                }
                effects.send(leader, PeerMessage::Forward(batch));
            }
            while let Some((id, request)) = self.asks.send_next() {
                effects.send(leader, PeerMessage::LeaseAsk { id, request });
            }
        }
        Ok(())
    }

    /// The leader's own state answers for leases, while the leader is sure that it leads.
    pub(super) fn hand_down_asks(&mut self, effects: &mut impl LogEffects) {
        while !self.leader_reads.is_in_doubt()
            && let Some((id, request)) = self.asks.take_next()
        {
            let kind = LocalKind::Lease(request);
            effects.work(Work::Local(LocalRequest { id, kind, from: None }));
        }
    }

    /// The leader proposes commands that nobody waits for, before all others.
    pub(super) fn hand_out_unattended(&mut self) -> Result<(), RaftError> {
        if self.unattended.is_empty() || self.node.is_writing() || !self.node.may_propose() {
            return Ok(());
        }
        let commands = std::mem::take(&mut self.unattended);
        self.node.propose(command::encode(Origin::unattended(self.origin.member), &commands).into())
    }

    /// Changes of members leave one at a time: the next one when the last one is applied.
    pub(super) fn hand_out_changes(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        let (leader, own) = (self.led_by.1, self.origin.member);
        if leader != own && self.changes.is_connected(leader) {
            for batch in self.changes.leave() {
                effects.send(leader, PeerMessage::Forward(batch));
            }
        }
        let (now, patience) = (self.now, self.node.election_ticks());
        while !self.node.is_writing()
            && self.node.may_change()
            && let Some(leaving) = self.changes.next(now, patience, |member| self.node.matched(member))
        {
            match leaving {
                Leaving::Propose(change, batch) => self.node.propose_change(change, batch)?,
                Leaving::Refuse(from, id, why) => self.refuse_change(from, id, why, effects),
            }
        }
        Ok(())
    }

    /// A change of members that this caller of a member asked for has not left.
    pub(super) fn refuse_change(&self, from: u64, id: CommandId, why: Error, effects: &mut impl LogEffects) {
        if from == self.origin.member {
            effects.work(answer(id, Err(why)));
        } else {
            effects.send(from, PeerMessage::Refused { ids: vec![id], why });
        }
    }

    /// Encodes waiting commands as one entry, bounded in bytes.
    fn next_batch(&mut self) -> Option<Bytes> {
        let commands = self.submissions.leave();
        (!commands.is_empty()).then(|| command::encode(self.origin, &commands).into())
    }

    /// A leader that stops hands leadership on when it has nothing more to propose, so that others
    /// need not wait for an election.
    pub(super) fn hand_over(&mut self) {
        let status = self.node.status();
        let may_begin = self.is_stopping() && self.is_at_rest() && self.handing_over.is_none();
        if !may_begin {
            return;
        }
        let successor = self.node.successor().filter(|_| status.is_leader && !status.is_sole_voter);
        let wait_ticks = successor.map_or(0, |_| self.node.election_ticks());
        self.handing_over = Some(self.now + wait_ticks);
        if let Some(successor) = successor {
            self.node.transfer(successor);
        }
    }
}
