//! Messages of other members, as the log core takes them.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::apply::Work;
use crate::apply::command::CommandId;
use crate::apply::local::{LocalKind, LocalRequest};
use crate::apply::outcome::{Outcome, Rest};
use crate::apply::state_hashes::HashAsk;
use crate::cores::forwards::ids_of;
use crate::cores::log::{LogCore, answer};
use crate::cores::log_events::LogEffects;
use crate::error::Error;
use crate::mutants::{self, Mutant};
use crate::peer::{PeerMessage, ReadContext};

impl LogCore {
    /// A message of another member.
    pub(super) fn heard(&mut self, from: u64, message: PeerMessage, effects: &mut impl LogEffects) {
        let is_of_leader = from == self.led_by.1;
        let is_of_raft = matches!(message, PeerMessage::Raft(_));
        // Raft alone may hear of members before their change is committed here, or after.
        if !is_of_raft && !is_of_leader && self.node.matched(from).is_none() {
            return;
        }
        match message {
            // A member that stops takes no more of the log: it would wait for the disk anew.
            PeerMessage::Raft(message) if message.from() == from && !self.has_handed_over() => {
                // Any number of senders may say that they are members.
                if message.term() == self.led_by.0 && self.node.matched(from).is_some() {
                    self.leader_reads.heard(from, self.now);
                }
                self.node.step(message);
            }
            PeerMessage::Raft(_) => {}
            PeerMessage::Forward(batch) => {
                let refused = if self.node.status().is_leader && !self.is_stopping() {
                    match self.changes.forwarded(from, &batch, self.now) {
                        Some(taken) => taken.err().map(|(id, why)| (vec![id], why)),
                        None => {
                            self.forwards.push(from, batch).err().map(|ids| (ids, Error::TooManyRequests))
                        }
                    }
                } else {
                    ids_of(from, &batch).map(|ids| (ids, Error::TimeoutLeaderFailed))
                };
                if let Some((ids, why)) = refused {
                    effects.send(from, PeerMessage::Refused { ids, why });
                }
            }
            // Commands that have left for a former leader are lost already.
            PeerMessage::Refused { ids, why } if is_of_leader => {
                self.refused(ids, &why, effects);
            }
            PeerMessage::ReadAsk { term, context } => self.heard_read_ask(from, term, context, effects),
            PeerMessage::ReadAnswer { context, index } if is_of_leader => {
                let ready = self.reads.answered(context, index);
                self.behind.extend(ready.into_iter().map(Work::Read));
            }
            PeerMessage::Confirm { term, round } => {
                if self.node.status().term == term || mutants::is(Mutant::ConfirmationTermIgnored) {
                    effects.send(from, PeerMessage::Confirmed { term, round });
                }
            }
            PeerMessage::Confirmed { term, round } => {
                if self.node.status().term == term {
                    self.leader_reads.confirmed(from, round);
                }
            }
            // The member asks again, whoever leads then.
            PeerMessage::LeaseAsk { id, .. } if self.leader_reads.is_in_doubt() => {
                let outcome = Outcome { revision: 0, result: Err(Error::NotLeader), rest: Rest::NONE };
                effects.send(from, PeerMessage::LeaseAnswer { id, outcome });
            }
            PeerMessage::LeaseAsk { id, request } if request.is_for_leader() => {
                let kind = LocalKind::Lease(request);
                effects.work(Work::Local(LocalRequest { id, kind, from: Some(from) }));
            }
            PeerMessage::LeaseAsk { .. } | PeerMessage::Refused { .. } | PeerMessage::ReadAnswer { .. } => {}
            PeerMessage::HashAsk(index) => effects.work(Work::Hash(HashAsk { to: from, index })),
            PeerMessage::Hash(point) => {
                self.comparison.answered(from, point);
                self.take_findings(effects);
            }
            PeerMessage::LeaseAnswer { id, outcome } => {
                if is_of_leader && self.asks.is_answered(id, &outcome) {
                    effects.work(Work::Answer(id, outcome));
                }
            }
        }
    }

    /// A batch for the leader found no room on the way out: its commands will not be proposed.
    /// Nothing else is lost.
    pub(super) fn unsent(&mut self, batch: &Bytes, effects: &mut impl LogEffects) {
        let ids = ids_of(self.origin.member, batch).unwrap_or_default();
        self.refused(ids, &Error::TooManyRequests, effects);
    }

    /// Commands of this member will not be proposed.
    fn refused(&mut self, ids: Vec<CommandId>, why: &Error, effects: &mut impl LogEffects) {
        for id in ids {
            self.changes.refused(id);
            effects.work(answer(id, Err(why.clone())));
        }
    }

    /// Reads of a member wait, which was in this term after they had begun.
    fn heard_read_ask(&mut self, from: u64, term: u64, context: ReadContext, effects: &mut impl LogEffects) {
        let status = self.node.status();
        let is_of_term = status.term == term || mutants::is(Mutant::ReadTermIgnored);
        if !status.is_leader || !is_of_term {
            return; // it hears of another leader, and asks again
        }
        let both = BTreeSet::from([from, self.origin.member]);
        let is_quorum = self.node.is_quorum(&both) || mutants::is(Mutant::LeaderReadsWithoutQuorum);
        if self.node.may_read() && is_quorum {
            effects.send(from, PeerMessage::ReadAnswer { context, index: status.committed });
        } else {
            self.leader_reads.ask(from, context);
        }
    }
}
