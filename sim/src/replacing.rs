//! Members that are lost for good: a disk is gone, or what it holds is damaged. The operator has
//! the others remove such a member, adds another one on another machine, and waits until that one
//! serves; nothing else may be lost before, so that a quorum stays whole.

use revd_engine::random::Random;

use crate::disk::DiskFaults;
use crate::faults::Replacing;
use crate::marks::Mark;
use crate::operator::{SLOTS_MAX, add, promote, remove};
use crate::outside::Event;
use crate::time::{MILLISECOND, Micros, SECOND};
use crate::truth::hash_of;
use crate::world::World;

impl World {
    /// A member may be lost: the others are enough without it, and none of them is about to be
    /// lost.
    fn may_lose(&self, member: usize) -> bool {
        let slots = &self.cluster.slots;
        let truth = &self.cluster.out.truth;
        let Some((known, id)) = truth.cluster().zip(slots[member].id) else { return false };
        let is_voter = known.votes.voters.contains(&id);
        let is_learner = known.votes.learners.contains(&id);
        self.replacing.is_none()
            && slots.len() < SLOTS_MAX
            && !slots.iter().any(|slot| slot.is_rotten)
            && truth.latest_leader().is_some()
            && (is_learner || is_voter && known.votes.voters.len() >= 3)
    }

    /// A member loses its disk; whether it may.
    pub(crate) fn lose_disk(&mut self, member: usize) -> bool {
        let may_be_lost = self.may_lose(member);
        if may_be_lost {
            self.cluster.lose_disk(member);
            self.begin_replacing(member);
        }
        may_be_lost
    }

    /// A bit of a member's files flips while its machine is off; whether it does.
    pub(crate) fn rot(&mut self, member: usize, random: &mut Random) -> bool {
        self.may_lose(member) && self.cluster.rot(member, random)
    }

    /// The operator replaces a member whose machine is gone.
    pub(crate) fn begin_replacing(&mut self, member: usize) {
        assert!(self.replacing.is_none(), "one member is lost at a time");
        let lost = self.cluster.slots[member].id.expect("it has been a member");
        self.replacing = Some(Replacing { lost, instead: None });
        self.look_again(3 * SECOND);
    }

    fn look_again(&mut self, within: Micros) {
        let after = 100 * MILLISECOND + self.random.below(within);
        self.cluster.out.agenda.plan(after, Event::Replace);
    }

    /// The operator looks how far the replacement is, and asks some member for what is next.
    pub(crate) fn replace(&mut self) {
        let Some(mut replacing) = self.replacing else { return };
        if self.is_replaced(replacing) {
            self.cluster.out.marks.reach(Mark::Replaced);
            self.replacing = None;
            return;
        }
        self.ask_for_next(&mut replacing);
        self.replacing = Some(replacing);
        self.look_again(SECOND);
    }

    /// The new member serves, and has a vote.
    fn is_replaced(&self, replacing: Replacing) -> bool {
        let Some((id, slot)) = replacing.instead else { return false };
        let known = self.cluster.out.truth.cluster();
        let process = self.cluster.slots[slot].process.as_ref();
        process.is_some_and(|process| process.is_ready())
            && known.is_some_and(|known| known.votes.voters.contains(&id))
    }

    fn ask_for_next(&mut self, replacing: &mut Replacing) {
        let running = self.cluster.running();
        if running.is_empty() {
            return;
        }
        let at = self.random.pick(&running);
        let process = self.cluster.slots[at].process.as_ref().expect("it runs");
        let known = process.membership();
        if known.member(replacing.lost).is_some() {
            self.ask_for_change(at, remove(replacing.lost), &known);
            return;
        }
        if !known.is_removed(replacing.lost) {
            return; // it does not know of the others yet
        }
        let (id, slot) = match replacing.instead {
            Some(instead) => instead,
            None => {
                let (id, mut random) = (self.random.number() | 1 << 63, Random::new(self.random.number()));
                let slot = self.cluster.add_slot(false, &mut random);
                self.cluster.slots[slot].disk_faults = DiskFaults::draw(&mut random);
                self.cluster.plan_start(slot, 3 * SECOND);
                *replacing.instead.insert((id, slot))
            }
        };
        let is_learner = id & 1 == 0;
        let asked = match known.member(id) {
            None => add(id, slot, is_learner),
            Some(member) if member.is_learner => promote(id),
            Some(_) => return,
        };
        self.ask_for_change(at, asked, &known);
    }

    /// Reads all that a damaged member holds; whether it has found the damage only now.
    pub(crate) fn look_for_rot(&mut self) -> bool {
        let Some(member) = self.cluster.slots.iter().position(|slot| slot.is_rotten) else { return false };
        let Some(process) = &self.cluster.slots[member].process else { return false };
        if hash_of(process.view(), 0).is_ok() {
            return false;
        }
        self.cluster.out.marks.reach(Mark::RotFound);
        self.lose_disk_now(member);
        true
    }

    fn lose_disk_now(&mut self, member: usize) {
        self.cluster.lose_disk(member);
        self.begin_replacing(member);
    }
}
