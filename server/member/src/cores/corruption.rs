//! The leader compares the state hashes of all members, and names those whose state differs.
//!
//! ```text
//! every few ticks: own newest hash, behind entry i -- "yours behind i?" --> every member that is
//!   connected and owes no answer                   <-- once it has applied i --
//! all equal                               nothing; the members agree up to i
//! a majority of all members has one hash  the others are named
//! no majority has one                     all members that are connected are asked behind i; if
//!                                         they do not make a majority, member 0 is named: the
//!                                         whole cluster, as etcd does
//! ```
//!
//! A member that lags behind owes its answer until it has applied that entry, and is compared then
//! with what the others had there. Hashes that began with different entries cannot be compared: the
//! leader has them begin anew together, once every member has shown that it knows of hashes.

use std::collections::{BTreeMap, BTreeSet};

use revd_engine::mvcc::StateHash;

use crate::apply::state_hashes::HashPoint;
use crate::limits;

/// The member that is named when it is not known which one is right: no member has this id.
pub(super) const UNKNOWN_MEMBER: u64 = 0;

/// A proposal of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finding {
    /// The state of this member differs.
    Corrupt(u64),
    /// Hashes cannot be compared: they are to begin anew.
    BeginAnew,
}

/// Log core view.
#[derive(Debug)]
pub(super) struct Comparison {
    own: u64,
    /// Comparisons under way, by entry. Each but the newest has a member that owes an answer.
    rounds: BTreeMap<u64, Round>,
    /// Members that owe an answer: of which entry, since which tick.
    owing: BTreeMap<u64, (u64, u64)>,
    /// Up to which entry members are known to agree with this one.
    agreed: BTreeMap<u64, u64>,
    /// Members whose alarm is raised.
    raised: BTreeSet<u64>,
    /// Findings, and when each was said the last time.
    said: BTreeMap<Finding, u64>,
}

/// A comparison behind one entry.
#[derive(Debug)]
struct Round {
    /// The tick since which it is not known which of different hashes is right.
    undecided_since: Option<u64>,
    /// By member.
    hashes: BTreeMap<u64, StateHash>,
    owing: BTreeSet<u64>,
}

impl Comparison {
    pub(super) fn new(own: u64) -> Self {
        Self {
            own,
            rounds: BTreeMap::new(),
            owing: BTreeMap::new(),
            agreed: BTreeMap::new(),
            raised: BTreeSet::new(),
            said: BTreeMap::new(),
        }
    }

    /// This member does not lead: another one compares.
    pub(super) fn clear(&mut self) {
        if !self.agreed.is_empty() || !self.rounds.is_empty() {
            *self = Self::new(self.own);
        }
    }

    /// The alarm of this member is raised.
    pub(super) fn is_raised(&self, member: u64) -> bool {
        self.raised.contains(&member)
    }

    /// A step of the clock; true if a comparison is to begin with this member's own hash.
    pub(super) fn tick(&mut self, now: u64) -> bool {
        let oldest = now.saturating_sub(limits::HASH_ANSWER_TICKS);
        let late: Vec<u64> =
            self.owing.iter().filter(|(_, (_, since))| *since < oldest).map(|(id, _)| *id).collect();
        late.into_iter().for_each(|member| self.forgive(member));
        now.is_multiple_of(limits::HASH_ROUND_TICKS)
    }

    /// An answer that was on its way may be lost, and the member may not be what it was.
    pub(super) fn lost(&mut self, member: u64) {
        self.forgive(member);
        self.agreed.remove(&member);
    }

    fn forgive(&mut self, member: u64) {
        if let Some((index, _)) = self.owing.remove(&member)
            && let Some(round) = self.rounds.get_mut(&index)
        {
            round.owing.remove(&member);
        }
    }

    /// Begins a comparison behind an entry that this member has applied; `members` are connected.
    /// Returns those to ask.
    pub(super) fn begin(
        &mut self,
        own: HashPoint,
        corrupt: Vec<u64>,
        members: Vec<u64>,
        now: u64,
    ) -> Vec<u64> {
        self.raised = corrupt.into_iter().collect();
        if own.hash.since == 0 {
            return Vec::new(); // nothing was applied since this member knows of hashes
        }
        let is_asked = |member: &u64| {
            *member != self.own
                && !self.owing.contains_key(member)
                && self.agreed.get(member).is_none_or(|agreed| *agreed < own.index)
        };
        let asked: Vec<u64> = members.into_iter().filter(is_asked).collect();
        if asked.is_empty() {
            return asked;
        }
        let round = self.rounds.entry(own.index).or_insert_with(|| Round {
            undecided_since: None,
            hashes: BTreeMap::from([(self.own, own.hash)]),
            owing: BTreeSet::new(),
        });
        round.owing.extend(&asked);
        self.owing.extend(asked.iter().map(|member| (*member, (own.index, now))));
        asked
    }

    /// A member has answered.
    pub(super) fn answered(&mut self, from: u64, point: HashPoint) {
        let HashPoint { index, hash } = point;
        if self.owing.get(&from).is_none_or(|(owed, _)| *owed != index) {
            return;
        }
        self.forgive(from);
        let Some(round) = self.rounds.get_mut(&index) else { return };
        round.hashes.insert(from, hash);
        if round.hashes.get(&self.own) == Some(&hash) {
            self.agreed.insert(from, index);
        }
    }

    /// Where hashes differ and it is not known which one is right, all members that are connected
    /// are asked, whatever else they owe. Returns those to ask, and the entry.
    pub(super) fn inquire(&mut self, members: &[u64], connected: &[u64], now: u64) -> Vec<(u64, u64)> {
        let Some(index) = self.undecided(members.len()) else { return Vec::new() };
        let Some(round) = self.rounds.get_mut(&index).filter(|round| !round.is_given_up(now)) else {
            return Vec::new();
        };
        round.undecided_since.get_or_insert(now);
        let round = &*round;
        let is_new = |member: &&u64| !round.hashes.contains_key(member) && !round.owing.contains(member);
        let asked: Vec<u64> = connected.iter().filter(is_new).copied().collect();
        for member in &asked {
            self.forgive(*member);
            self.owing.insert(*member, (index, now));
        }
        if let Some(round) = self.rounds.get_mut(&index) {
            round.owing.extend(&asked);
        }
        asked.into_iter().map(|member| (member, index)).collect()
    }

    /// The first entry behind which hashes differ and none is that of a majority.
    fn undecided(&self, members: usize) -> Option<u64> {
        let is_undecided = |round: &Round| {
            let by_hash = round.by_hash(self.own);
            by_hash.len() > 1 && majority(&by_hash, members).is_none()
        };
        self.rounds.iter().find(|(_, round)| is_undecided(round)).map(|(index, _)| *index)
    }

    /// The findings by now, of all these members; each one once in a while until it takes
    /// effect.
    pub(super) fn findings(&mut self, members: &[u64], now: u64) -> Vec<Finding> {
        let mut found = BTreeSet::new();
        let (own, undecided) = (self.own, self.undecided(members.len()));
        self.rounds.retain(|index, round| {
            found.extend(round.findings(own, members));
            if undecided == Some(*index) {
                round.undecided_since.get_or_insert(now);
                if round.owing.is_empty() || round.is_given_up(now) {
                    found.insert(Finding::Corrupt(UNKNOWN_MEMBER));
                }
            }
            !round.owing.is_empty()
        });
        found.retain(|finding| match finding {
            Finding::Corrupt(member) => !self.raised.contains(member),
            Finding::BeginAnew => true,
        });
        self.said.retain(|_, said| now < *said + limits::HASH_FINDING_TICKS);
        let new: Vec<Finding> =
            found.into_iter().filter(|finding| !self.said.contains_key(finding)).collect();
        self.said.extend(new.iter().map(|finding| (*finding, now)));
        new
    }
}

impl Round {
    /// Members that could say which hash is right were waited for long enough. A member that lags
    /// far behind may answer long after the round began: the others are asked only then.
    fn is_given_up(&self, now: u64) -> bool {
        self.undecided_since.is_some_and(|since| now >= since + limits::HASH_PATIENCE_TICKS)
    }

    /// Members by their hashes, where these can be compared with that of this member.
    fn by_hash(&self, own: u64) -> BTreeMap<u64, Vec<u64>> {
        let since = self.hashes[&own].since;
        let mut by_hash: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (member, hash) in self.hashes.iter().filter(|(_, hash)| hash.since == since) {
            by_hash.entry(hash.value).or_default().push(*member);
        }
        by_hash
    }

    /// Findings that are sure.
    fn findings(&self, own: u64, members: &[u64]) -> Vec<Finding> {
        let by_hash = self.by_hash(own);
        if by_hash.len() > 1 {
            let Some(right) = majority(&by_hash, members.len()) else { return Vec::new() };
            let wrong = by_hash.iter().filter(|(hash, _)| **hash != right);
            return wrong.flat_map(|(_, members)| members).map(|member| Finding::Corrupt(*member)).collect();
        }
        let since = self.hashes[&own].since;
        let knows = |member: &u64| self.hashes.get(member).is_some_and(|hash| hash.since != 0);
        let began_apart = self.hashes.values().any(|hash| hash.since != 0 && hash.since != since);
        let is_sure = began_apart && members.iter().all(knows);
        is_sure.then_some(Finding::BeginAnew).into_iter().collect()
    }
}

/// The hash that more than half of so many members have.
fn majority(by_hash: &BTreeMap<u64, Vec<u64>>, members: usize) -> Option<u64> {
    by_hash.iter().find(|(_, having)| having.len() > members / 2).map(|(hash, _)| *hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: [u64; 3] = [1, 2, 3];

    fn point(index: u64, value: u64) -> HashPoint {
        HashPoint { index, hash: StateHash { value, since: 1 } }
    }

    fn begun(own: HashPoint) -> Comparison {
        let mut comparison = Comparison::new(1);
        assert_eq!(comparison.begin(own, vec![], MEMBERS.to_vec(), 0), [2, 3]);
        comparison
    }

    #[test]
    fn members_that_agree_are_asked_once_an_entry() {
        let mut comparison = begun(point(7, 70));
        comparison.answered(2, point(7, 70));
        assert_eq!(comparison.begin(point(7, 70), vec![], MEMBERS.to_vec(), 5), [], "3 owes its answer");
        comparison.answered(3, point(7, 70));
        assert_eq!(comparison.findings(&MEMBERS, 6), []);
        assert!(comparison.rounds.is_empty() && comparison.owing.is_empty());
        assert_eq!(comparison.begin(point(7, 70), vec![], MEMBERS.to_vec(), 10), [], "an idle cluster");
        // A member that was away may come back with another file.
        comparison.lost(3);
        assert_eq!(comparison.begin(point(7, 70), vec![], MEMBERS.to_vec(), 15), [3]);
        comparison.answered(3, point(7, 71));
        assert_eq!(comparison.findings(&MEMBERS, 15), [Finding::Corrupt(UNKNOWN_MEMBER)]);
        comparison.answered(3, point(8, 70));
        assert!(comparison.rounds.is_empty(), "an answer to nothing");
    }

    #[test]
    fn the_minority_is_named_also_when_it_leads() {
        let mut comparison = begun(point(7, 70));
        comparison.answered(3, point(7, 71));
        assert_eq!(comparison.findings(&MEMBERS, 1), [], "2 has not answered");
        comparison.answered(2, point(7, 70));
        assert_eq!(comparison.findings(&MEMBERS, 1), [Finding::Corrupt(3)]);
        let mut comparison = begun(point(7, 70));
        comparison.answered(3, point(7, 71));
        comparison.answered(2, point(7, 71));
        assert_eq!(comparison.findings(&MEMBERS, 1), [Finding::Corrupt(1)]);
    }

    #[test]
    fn a_finding_is_said_again_until_the_alarm_is_raised() {
        let mut comparison = begun(point(7, 70));
        let differs = |comparison: &mut Comparison, index, now| {
            comparison.answered(2, point(index, 70));
            comparison.answered(3, point(index, 71));
            comparison.findings(&MEMBERS, now)
        };
        assert_eq!(differs(&mut comparison, 7, 1), [Finding::Corrupt(3)]);
        assert_eq!(comparison.begin(point(8, 70), vec![], MEMBERS.to_vec(), 5), [2, 3]);
        assert_eq!(differs(&mut comparison, 8, 5), []);
        let later = 1 + limits::HASH_FINDING_TICKS;
        assert_eq!(comparison.begin(point(9, 70), vec![], MEMBERS.to_vec(), later), [2, 3]);
        assert_eq!(differs(&mut comparison, 9, later), [Finding::Corrupt(3)]);
        assert_eq!(comparison.begin(point(10, 70), vec![3], MEMBERS.to_vec(), 2 * later), [2, 3]);
        assert!(comparison.is_raised(3));
        assert_eq!(differs(&mut comparison, 10, 2 * later), []);
        // The alarm was cleared, and the member is what it was.
        assert_eq!(comparison.begin(point(11, 70), vec![], MEMBERS.to_vec(), 3 * later), [2, 3]);
        assert_eq!(differs(&mut comparison, 11, 3 * later), [Finding::Corrupt(3)]);
    }

    #[test]
    fn without_a_majority_the_cluster_is_named_when_nobody_is_waited_for() {
        let mut comparison = begun(point(7, 70));
        comparison.answered(3, point(7, 71));
        assert_eq!(comparison.findings(&MEMBERS, 0), []);
        assert_eq!(comparison.findings(&MEMBERS, limits::HASH_PATIENCE_TICKS - 1), []);
        assert_eq!(
            comparison.findings(&MEMBERS, limits::HASH_PATIENCE_TICKS),
            [Finding::Corrupt(UNKNOWN_MEMBER)]
        );
        // The one that lagged behind says who is right.
        comparison.answered(2, point(7, 70));
        assert_eq!(comparison.findings(&MEMBERS, limits::HASH_PATIENCE_TICKS), [Finding::Corrupt(3)]);
        let mut pair = Comparison::new(1);
        assert_eq!(pair.begin(point(7, 70), vec![], vec![2], 0), [2]);
        pair.answered(2, point(7, 71));
        assert_eq!(pair.findings(&[1, 2], 0), [Finding::Corrupt(UNKNOWN_MEMBER)]);
    }

    /// The third member was not asked there, and is then.
    #[test]
    fn a_late_answer_that_differs_has_the_others_asked_before_the_cluster_is_named() {
        let mut comparison = Comparison::new(1);
        assert_eq!(comparison.begin(point(7, 70), vec![], vec![3], 0), [3]);
        let late = 10 * limits::HASH_PATIENCE_TICKS;
        comparison.answered(3, point(7, 71));
        assert_eq!(comparison.inquire(&MEMBERS, &MEMBERS[1..], late), [(2, 7)]);
        assert_eq!(comparison.findings(&MEMBERS, late), []);
        assert_eq!(comparison.findings(&MEMBERS, late + limits::HASH_PATIENCE_TICKS - 1), []);
        comparison.answered(2, point(7, 70));
        assert_eq!(comparison.findings(&MEMBERS, late + limits::HASH_PATIENCE_TICKS), [Finding::Corrupt(3)]);
    }

    /// Of five members some owe answers of different entries.
    #[test]
    fn all_are_asked_behind_the_entry_where_hashes_differ() {
        let all = [1, 2, 3, 4, 5];
        let mut comparison = Comparison::new(1);
        assert_eq!(comparison.begin(point(7, 70), vec![], vec![2, 3, 4], 0), [2, 3, 4]);
        assert_eq!(comparison.begin(point(8, 80), vec![], all.to_vec(), 1), [5]);
        comparison.answered(5, point(8, 81));
        assert_eq!(comparison.inquire(&all, &all[1..], 1), [(2, 8), (3, 8), (4, 8)]);
        assert_eq!(comparison.inquire(&all, &all[1..], 1), []);
        assert_eq!(comparison.findings(&all, 1), []);
        comparison.answered(2, point(7, 70));
        comparison.answered(2, point(8, 80));
        assert_eq!(comparison.findings(&all, 1), []);
        comparison.answered(4, point(8, 80));
        assert_eq!(comparison.findings(&all, 1), [Finding::Corrupt(5)]);
        assert_eq!(comparison.inquire(&all, &all[1..], 1), []);
    }

    /// However far a member lags behind, it is compared.
    #[test]
    fn a_member_that_lags_behind_is_compared_where_it_was_asked() {
        let mut comparison = begun(point(7, 70));
        comparison.answered(2, point(7, 70));
        for index in 8..100 {
            assert_eq!(comparison.begin(point(index, index), vec![], MEMBERS.to_vec(), 1), [2]);
            comparison.answered(2, point(index, index));
            assert_eq!(comparison.findings(&MEMBERS, 1), []);
            assert_eq!(comparison.rounds.len(), 1, "that of the member that owes an answer");
        }
        comparison.answered(3, point(7, 71));
        assert_eq!(comparison.findings(&MEMBERS, 1), [Finding::Corrupt(3)]);
        // One that never answers is asked again.
        assert_eq!(comparison.begin(point(100, 1), vec![], MEMBERS.to_vec(), 2), [2, 3]);
        comparison.answered(2, point(100, 1));
        assert!(comparison.tick(limits::HASH_ROUND_TICKS) && !comparison.tick(limits::HASH_ROUND_TICKS + 1));
        assert!(comparison.owing.contains_key(&3));
        comparison.tick(limits::HASH_ANSWER_TICKS + 3);
        assert!(comparison.owing.is_empty());
    }

    #[test]
    fn hashes_that_began_apart_begin_anew_once_all_members_know_of_them() {
        let mut comparison = begun(point(7, 70));
        let other = |since| HashPoint { index: 7, hash: StateHash { value: 1, since } };
        comparison.answered(2, other(5));
        assert_eq!(comparison.findings(&MEMBERS, 1), [], "3 may be of a version that knows none");
        comparison.answered(3, other(0));
        assert_eq!(comparison.findings(&MEMBERS, 1), []);
        let mut comparison = begun(point(7, 70));
        comparison.answered(2, other(5));
        comparison.answered(3, point(7, 70));
        assert_eq!(comparison.findings(&MEMBERS, 1), [Finding::BeginAnew]);
        assert_eq!(Comparison::new(1).begin(other(0), vec![], MEMBERS.to_vec(), 0), []);
    }
}
