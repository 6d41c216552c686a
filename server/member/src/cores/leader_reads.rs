//! Read indexes that a leader gives to members whose reads wait.
//!
//! A read index is the commit index of a member that leads at some moment after the read began, and
//! that has committed an entry of its term. A member still leads if a quorum of voters is in its
//! term: a later leader would need the vote of one of them, and with the vote its later term. So
//! the leader asks the voters for their term, in a round for all reads that wait. A voter that asks
//! for a read index says its term in doing so, after its reads began: where it and the leader are a
//! quorum, as in clusters of three, no other member is asked. Of the others as many are asked as
//! make a quorum, those that confirmed first when all were asked: now and then, when an answer is
//! late, and when a connection breaks.
//!
//! Nothing here relies on clocks, and nothing on raft-rs, which serves reads from old answers if
//! names of rounds are used twice (etcd #20418).

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::mutants::{self, Mutant};
use crate::peer::ReadContext;

/// Log core view.
#[derive(Debug, Default)]
pub(super) struct LeaderReads {
    /// By member: the last attempt, if it is not in a round yet.
    waiting: BTreeMap<u64, ReadContext>,
    round: Option<ConfirmRound>,
    /// Rounds that have begun, up to this one.
    rounds: u64,
    /// Members that confirmed the last round, in the order of their answers.
    quick: Vec<u64>,
    doubt: Option<Doubt>,
    /// The tick in which this term's leader was known, and those in which other members of the
    /// term were heard last.
    since: u64,
    pub(super) heard: BTreeMap<u64, u64>,
}

/// This member may lead no more, for all that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// A round that begins from now on says whether it does.
    Open,
    /// The round under way does.
    InRound,
}

/// A round that voters are to be asked to confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) round: u64,
    /// All voters, not only as many as make a quorum.
    pub(super) of_all: bool,
}

#[derive(Debug)]
struct ConfirmRound {
    /// The answer to all attempts in it.
    index: u64,
    attempts: BTreeMap<u64, ReadContext>,
    /// Members that were in the leader's term after the round had begun, this one and others in
    /// the order of their answers.
    confirmed: Vec<u64>,
    /// The tick in which the others are asked again.
    next: u64,
}

/// A read index for a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReadIndex {
    pub(super) to: u64,
    pub(super) context: ReadContext,
    pub(super) index: u64,
}

impl LeaderReads {
    /// A member asks; its earlier attempts need no answer.
    pub(super) fn ask(&mut self, from: u64, context: ReadContext) {
        if mutants::is(Mutant::ReadRoundTakesLatecomers)
            && let Some(round) = &mut self.round
        {
            round.attempts.insert(from, context);
            return;
        }
        self.waiting.insert(from, context);
    }

    /// The round that voters are to be asked for now, if any: a new one from this commit index, or
    /// the last one again.
    pub(super) fn round(&mut self, own: u64, index: u64, now: u64) -> Option<Asking> {
        let next = now + limits::READ_ROUND_TICKS;
        if let Some(round) = &mut self.round {
            if now < round.next {
                return None;
            }
            round.next = next;
            return Some(Asking { round: self.rounds, of_all: true });
        }
        if self.waiting.is_empty() && self.doubt.is_none() {
            return None;
        }
        self.doubt = self.doubt.map(|_| Doubt::InRound);
        let attempts = std::mem::take(&mut self.waiting);
        self.round = Some(ConfirmRound { index, attempts, confirmed: vec![own], next });
        self.rounds += 1;
        let of_all = self.rounds % limits::READ_ROUNDS_OF_ALL == 1;
        Some(Asking { round: self.rounds, of_all })
    }

    /// As many of the other voters as make a quorum with this member, quick ones first.
    pub(super) fn few(
        &self,
        own: u64,
        mut others: Vec<u64>,
        is_quorum: impl Fn(&BTreeSet<u64>) -> bool,
    ) -> Vec<u64> {
        let place = |member: &u64| self.quick.iter().position(|quick| quick == member);
        others.sort_by_key(|member| place(member).unwrap_or(usize::MAX));
        let mut members = BTreeSet::from([own]);
        let missing = others.iter().take_while(|member| {
            let is_missing = !is_quorum(&members);
            members.insert(**member);
            is_missing
        });
        let count = missing.count();
        others.truncate(count);
        others
    }

    /// The connection to a member broke: a round that waits for it asks the others now.
    pub(super) fn connection_lost(&mut self, now: u64) {
        if let Some(round) = &mut self.round {
            round.next = now;
        }
    }

    /// This member was in the leader's term after this round had begun.
    pub(super) fn confirmed(&mut self, from: u64, number: u64) {
        if (number == self.rounds || mutants::is(Mutant::LateConfirmationCounts))
            && let Some(round) = &mut self.round
            && !round.confirmed.contains(&from)
        {
            round.confirmed.push(from);
        }
    }

    /// The answers of the round, once a quorum has confirmed it.
    pub(super) fn answers(&mut self, is_quorum: impl Fn(&BTreeSet<u64>) -> bool) -> Vec<ReadIndex> {
        let is_confirmed = |round: &mut ConfirmRound| {
            is_quorum(&round.confirmed.iter().copied().collect())
                || mutants::is(Mutant::LeaderReadsWithoutQuorum)
        };
        let round = self.round.take_if(is_confirmed);
        let Some(ConfirmRound { index, attempts, confirmed, .. }) = round else { return Vec::new() };
        self.doubt.take_if(|doubt| *doubt == Doubt::InRound);
        self.quick = confirmed;
        attempts.into_iter().map(|(to, context)| ReadIndex { to, context, index }).collect()
    }

    /// This member stood still, and others may have elected a leader.
    pub(super) fn doubt(&mut self) {
        self.doubt = Some(Doubt::Open);
    }

    /// A member of this term has sent something.
    pub(super) fn heard(&mut self, from: u64, now: u64) {
        self.heard.insert(from, now);
    }

    /// A step of the leader's clock. Without a word of a quorum for the time of an election the
    /// others may have elected another leader, and this one does not know yet: raft looks once in
    /// such a time whether a quorum is there.
    pub(super) fn tick(
        &mut self,
        own: u64,
        now: u64,
        election_ticks: u64,
        is_quorum: impl Fn(&BTreeSet<u64>) -> bool,
    ) {
        let is_near = |tick: u64| tick + election_ticks >= now;
        let near = self.heard.iter().filter(|(_, tick)| is_near(**tick)).map(|(member, _)| *member);
        if !is_near(self.since) && !is_quorum(&near.chain([own]).collect()) {
            self.doubt();
        }
    }

    /// It has not made sure since then that it leads.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// This member leads no more, or in another term: members that wait ask again.
    pub(super) fn clear(&mut self, now: u64) {
        (self.doubt, self.since) = (None, now);
        self.heard.clear();
        self.waiting.clear();
        self.round = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::Origin;

    fn context(member: u64, attempt: u64) -> ReadContext {
        ReadContext { origin: Origin { member, boot: 9 }, attempt }
    }

    /// Of five members.
    fn is_quorum(members: &BTreeSet<u64>) -> bool {
        members.len() >= 3
    }

    #[test]
    fn a_round_serves_those_that_asked_before_it_began() {
        let mut reads = LeaderReads::default();
        assert_eq!(reads.round(1, 7, 0), None, "nobody asks");
        reads.ask(2, context(2, 1));
        reads.ask(2, context(2, 2));
        reads.ask(1, context(1, 4));
        assert_eq!(reads.round(1, 7, 0), Some(Asking { round: 1, of_all: true }));
        reads.ask(3, context(3, 1));
        reads.confirmed(4, 1);
        reads.confirmed(4, 1);
        assert_eq!(reads.answers(is_quorum), [], "one member counts once");
        assert_eq!(reads.round(1, 9, 1), None, "one round at a time");
        reads.confirmed(5, 1);
        let answer =
            |member, attempt, index| ReadIndex { to: member, context: context(member, attempt), index };
        assert_eq!(reads.answers(is_quorum), [answer(1, 4, 7), answer(2, 2, 7)]);
        assert_eq!(reads.answers(is_quorum), []);
        assert_eq!(reads.few(1, vec![2, 3, 4, 5], is_quorum), [4, 5], "those that confirmed first");
        assert_eq!(reads.round(1, 9, 1), Some(Asking { round: 2, of_all: false }));
        reads.confirmed(4, 1);
        reads.confirmed(5, 1);
        assert_eq!(reads.answers(is_quorum), [], "late words about the round before");
        reads.confirmed(4, 2);
        reads.confirmed(5, 2);
        assert_eq!(reads.answers(is_quorum), [answer(3, 1, 9)]);
    }

    #[test]
    fn a_round_without_a_quorum_is_asked_for_again() {
        let mut reads = LeaderReads::default();
        reads.ask(1, context(1, 1));
        let asked: Vec<_> = (0..6).filter_map(|now| reads.round(1, 7, now)).collect();
        assert_eq!(asked, [Asking { round: 1, of_all: true }; 3]);
        reads.clear(0);
        reads.confirmed(2, 1);
        reads.confirmed(3, 1);
        assert_eq!(reads.answers(is_quorum), []);
        reads.ask(1, context(1, 2));
        assert_eq!(reads.round(1, 8, 6), Some(Asking { round: 2, of_all: false }), "numbers go on");
        assert_eq!(reads.round(1, 8, 7), None);
        reads.connection_lost(7);
        assert_eq!(reads.round(1, 8, 7), Some(Asking { round: 2, of_all: true }), "another member may do");
    }
}
