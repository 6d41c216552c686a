//! Faults that happen, and how they end.

use prost::Message as _;
use revd_engine::random::Random;
use revd_member::apply::command::Kind;
use revd_proto::etcdserverpb::CompactionRequest;

use crate::calls::{Door as _, Request};
use crate::disk::Trouble;
use crate::faults::{Fault, FaultKind, Undo};
use crate::outside::{Event, Part};
use crate::time::{MILLISECOND, Micros, SECOND};
use crate::world::World;

impl World {
    /// The fault happens, if it can.
    pub(crate) fn fail(&mut self, fault: Fault) {
        let mut random = Random::new(fault.seed);
        let running = self.cluster.running();
        if running.is_empty() {
            return;
        }
        let member = random.pick(&running);
        let leader = self.cluster.leader().unwrap_or(member);
        let time = [200 * MILLISECOND, 2 * SECOND, 8 * SECOND];
        let time = 1 + random.below(random.clone().pick(&time));
        *self.faults.entry(fault.kind).or_default() += 1;
        match fault.kind {
            FaultKind::Kill => self.cluster.kill(member),
            FaultKind::KillLeader => self.cluster.kill(leader),
            FaultKind::KillTwice => {
                self.cluster.kill(member);
                self.undo_after(random.below(2 * SECOND), Undo::KillAgain(member));
            }
            FaultKind::KillAll => running.into_iter().for_each(|member| self.cluster.kill(member)),
            FaultKind::Stop => self.cluster.stop(member),
            FaultKind::PausePart => {
                let part = random.pick(&[Part::Log, Part::State, Part::Edge]);
                self.cluster.stand_still(member, part, time);
            }
            FaultKind::SlowPart => {
                let part = random.pick(&[Part::Log, Part::State, Part::Edge]);
                self.cluster.slow_part(member, part, random.below(50 * MILLISECOND));
                self.undo_after(time, Undo::FastPart(member, part));
            }
            FaultKind::PauseProcess => self.cluster.pause(member, time),
            FaultKind::ClockJump => self.cluster.jump(member, random.below(20 * SECOND)),
            FaultKind::Change => self.change_members(&mut random),
            FaultKind::Defragment | FaultKind::MoveLeader | FaultKind::Compact => {
                self.ask(fault.kind, member, &mut random);
            }
            FaultKind::DiskFull | FaultKind::DiskSlow | FaultKind::DiskStuck | FaultKind::DiskFails => {
                self.trouble(fault.kind, member, &mut random);
                self.undo_after(time, Undo::Mend(member));
            }
            _ => self.disturb_links(fault.kind, (member, leader), time, &mut random),
        }
    }

    fn disturb_links(
        &mut self,
        kind: FaultKind,
        (member, leader): (usize, usize),
        time: Micros,
        random: &mut Random,
    ) {
        let all: Vec<usize> = (0..self.cluster.slots.len()).collect();
        let pairs = |between: &dyn Fn(usize, usize) -> bool| -> Vec<(usize, usize)> {
            let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to)));
            pairs.filter(|(from, to)| from != to && between(*from, *to)).collect()
        };
        let side = random.number();
        let is_left = |member: usize| side >> member & 1 == 0;
        let links = match kind {
            FaultKind::CutOneWay => vec![(member, random.pick(&all))],
            FaultKind::Isolate => pairs(&|from, to| from == member || to == member),
            FaultKind::IsolateLeader => pairs(&|from, to| from == leader || to == leader),
            FaultKind::Split => pairs(&|from, to| is_left(from) != is_left(to)),
            FaultKind::Bridge => {
                pairs(&|from, to| from != member && to != member && is_left(from) != is_left(to))
            }
            FaultKind::Break => {
                let open = self.cluster.out.network.open();
                if !open.is_empty() {
                    self.cluster.break_off(random.pick(&open));
                }
                return;
            }
            FaultKind::SlowLink => {
                self.cluster.out.network.set_slow(member, random.below(300 * MILLISECOND));
                return self.undo_after(time, Undo::FastLink(member));
            }
            FaultKind::Flips => {
                self.cluster.out.network.flip_bits(20 + random.below(200));
                return self.undo_after(time, Undo::NoFlips);
            }
            FaultKind::FullOutbox => {
                self.cluster.out.full_outbox_one_in = 1 + random.below(20);
                return self.undo_after(time, Undo::Outbox);
            }
            kind => unreachable!("{kind:?} is none of links"),
        };
        for link in &links {
            self.cluster.cut(*link, true);
        }
        self.undo_after(time, Undo::Uncut(links));
    }

    fn trouble(&mut self, kind: FaultKind, member: usize, random: &mut Random) {
        let none = Trouble::default();
        let trouble = match kind {
            FaultKind::DiskFull => Trouble { is_full: true, ..none },
            FaultKind::DiskSlow => Trouble { slow: random.below(200 * MILLISECOND), ..none },
            FaultKind::DiskStuck => Trouble { is_stuck: true, ..none },
            _ => {
                let calls = u32::try_from(random.below(30)).expect("a small number");
                Trouble { fails_after: Some(calls), ..none }
            }
        };
        self.cluster.set_trouble(member, trouble);
    }

    fn ask(&mut self, kind: FaultKind, member: usize, random: &mut Random) {
        let request = match kind {
            FaultKind::Defragment => Request::Defragment,
            FaultKind::MoveLeader => {
                let to = random.pick(&self.cluster.members());
                Request::MoveLeader { to: self.cluster.member_id(to) }
            }
            _ => {
                let newest = self.cluster.slots[member].process.as_ref().map_or(0, |it| it.view().revision());
                let revision = (newest - i64::try_from(random.below(100)).expect("small")).max(1);
                let request = CompactionRequest { revision, physical: random.one_in(2) };
                Request::Command { kind: Kind::Compact, payload: request.encode_to_vec().into() }
            }
        };
        // Its answer is of no interest.
        let _ = self.cluster.call(member, request);
    }

    fn undo_after(&mut self, time: Micros, undo: Undo) {
        let number = self.undone;
        self.undone += 1;
        self.undos.insert(number, undo);
        self.cluster.out.agenda.plan(time, Event::Over(number));
    }

    /// A fault is over.
    pub(crate) fn undo(&mut self, number: u64) {
        match self.undos.remove(&number) {
            None => {}
            Some(Undo::Uncut(links)) => links.into_iter().for_each(|link| self.cluster.cut(link, false)),
            Some(Undo::FastLink(member)) => self.cluster.out.network.set_slow(member, 0),
            Some(Undo::Mend(member)) => self.cluster.set_trouble(member, Trouble::default()),
            Some(Undo::FastPart(member, part)) => self.cluster.slow_part(member, part, 0),
            Some(Undo::NoFlips) => self.cluster.out.network.flip_bits(0),
            Some(Undo::Outbox) => self.cluster.out.full_outbox_one_in = 0,
            Some(Undo::KillAgain(member)) => self.cluster.kill(member),
        }
    }
}
