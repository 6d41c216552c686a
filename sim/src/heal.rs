//! After the storm: everything is mended, and the cluster must serve again within a bound.

use std::collections::BTreeSet;

use crate::calls::Door as _;
use crate::cluster::Slot;
use crate::disk::Trouble;
use crate::time::{Micros, SECOND};
use crate::truth::hash_of;
use crate::world::World;

/// Virtual time within which a healed cluster serves on every member.
const BOUND: Micros = 90 * SECOND;

fn sound(hash: revd_engine::Result<u32>) -> u32 {
    hash.expect("the store is whole, and nothing is compacted that is asked for")
}

impl World {
    /// Everything is mended.
    fn mend(&mut self) {
        for number in self.undos.keys().copied().collect::<Vec<u64>>() {
            if !matches!(self.undos.get(&number), Some(crate::faults::Undo::KillAgain(..))) {
                self.undo(number);
            }
        }
        self.undos.clear();
        self.to_kill_again.clear();
        for link in self.cluster.out.network.cuts() {
            self.cluster.cut(link, false);
        }
        for member in 0..self.cluster.slots.len() {
            self.cluster.set_trouble(member, Trouble::default());
            self.cluster.plan_start(member, SECOND);
        }
    }

    /// Mends everything, and waits until every member serves.
    ///
    /// # Panics
    /// When that does not come to be within its bound.
    pub fn heal(&mut self) {
        self.mend();
        self.clients_calm();
        self.probe.calm();
        self.wait_until_whole();
        self.probe_rests();
        self.wait_for_rest();
        if self.look_for_rot() {
            self.probe_again();
            self.wait_until_whole();
            self.probe_rests();
            self.wait_for_rest();
        }
        self.compare();
    }

    /// An operator who waits for long looks for damage: a leader whose file has some cannot bring
    /// up a member that needs its state, and says so in its log.
    fn wait_until_whole(&mut self) {
        let (mut until, mut looks_at) = (self.now() + BOUND, self.now() + BOUND / 2);
        while !self.is_whole() || self.replacing.is_some() {
            let leader = self.cluster.leader();
            let leads_rotten = leader.is_some_and(|leader| self.cluster.slots[leader].is_rotten);
            if leads_rotten && self.now() >= looks_at && self.replacing.is_none() {
                looks_at = self.now() + SECOND;
                if self.look_for_rot() {
                    (until, looks_at) = (self.now() + BOUND, Micros::MAX);
                }
            }
            assert!(
                self.now() < until,
                "no progress after everything was mended: {}\n{}",
                self.standings(),
                self.clients_standing()
            );
            self.run_for(SECOND / 10);
        }
    }

    fn wait_for_rest(&mut self) {
        let until = self.now() + 30 * SECOND;
        while self.cluster.open_calls() > 0 || !self.is_at_rest() || !self.clients_are_done() {
            assert!(self.now() < until, "a call does not end: {}", self.standings());
            self.run_for(SECOND / 10);
        }
    }

    /// The members, by their places.
    fn members(&self) -> Vec<usize> {
        let known = self.cluster.out.truth.cluster().expect("it begins with one");
        let is_member = |member: &usize| {
            self.cluster.slots[*member].id.is_some_and(|id| known.membership.member(id).is_some())
        };
        self.cluster.members().into_iter().filter(is_member).collect()
    }

    fn is_voter(&self, member: usize) -> bool {
        let known = self.cluster.out.truth.cluster().expect("it begins with one");
        self.cluster.slots[member].id.is_some_and(|id| known.votes.voters.contains(&id))
    }

    /// Every member runs and serves, and clients are done.
    fn is_whole(&self) -> bool {
        let members = self.members();
        let voters: Vec<usize> = members.iter().copied().filter(|member| self.is_voter(*member)).collect();
        let runs = |member: &usize| self.cluster.slots[*member].process.is_some();
        let known = self.cluster.out.truth.cluster().expect("it begins with one");
        let all_are_there = members.len() == known.membership.members().count();
        let has_ended =
            |slot: &Slot| slot.process.is_none() || slot.id.is_none_or(|id| !known.membership.is_removed(id));
        let former_ones_ended = self.cluster.slots.iter().all(has_ended);
        all_are_there
            && former_ones_ended
            && members.iter().all(runs)
            && self.probe.is_served_by(&voters)
            && self.clients_are_done()
    }

    /// Every member has applied what is committed, and follows the same leader.
    fn is_at_rest(&self) -> bool {
        let standings: BTreeSet<(u64, u64, u64)> = self
            .members()
            .iter()
            .filter_map(|it| Some(self.cluster.slots[*it].process.as_ref()?.standing()))
            .collect();
        standings.len() == 1
            && standings.iter().all(|(leader, committed, applied)| *leader != 0 && committed == applied)
    }

    /// Members hold the same keys; the history has what it takes to say whether the right ones.
    fn compare(&mut self) {
        let mut hashes = Vec::new();
        for member in self.members() {
            let process = self.cluster.slots[member].process.as_ref().expect("it rests");
            let view = process.view();
            hashes.push((view.revision(), view.compact_revision(), sound(hash_of(view.clone(), 0))));
            let audited = self.audited();
            if audited >= view.compact_revision() {
                let id = self.cluster.slots[member].id.expect("it is a member");
                let compacted = view.compact_revision();
                self.hashed(id, sound(hash_of(view, audited)), audited, compacted);
            }
        }
        let is_same = hashes
            .windows(2)
            .all(|pair| pair[0].0 == pair[1].0 && (pair[0].1 != pair[1].1 || pair[0] == pair[1]));
        assert!(is_same, "members differ: {hashes:?}");
    }

    fn standings(&self) -> String {
        let slots = self.cluster.slots.iter().enumerate();
        let lines = slots.map(|(at, slot)| match &slot.process {
            Some(process) => format!(
                "m{at} {:x?}: leader, committed, applied {:x?}, ready {}, {}",
                slot.id,
                process.standing(),
                process.is_ready(),
                process.inside(),
            ),
            None => format!("m{at} {:x?}: down, gone {}", slot.id, slot.is_gone),
        });
        let lines: Vec<String> = lines.collect();
        format!("{} open calls, {:?}\n{}", self.cluster.open_calls(), self.probe_counts(), lines.join("\n"))
    }
}
