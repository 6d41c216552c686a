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

/// Nothing mends what stands still: it does for no longer than this.
const STILL_MAX: Micros = 8 * SECOND;

impl World {
    /// The fault happens, if there is something that it can happen to; whether it has.
    pub(crate) fn fail(&mut self, fault: Fault) -> bool {
        let mut random = Random::new(fault.seed);
        let running = self.cluster.running();
        if running.is_empty() {
            return false;
        }
        let member = random.pick(&running);
        let time = 1 + random.below(random.clone().pick(&self.pace.lengths()));
        let part = random.pick(&[Part::Log, Part::State, Part::Edge]);
        match fault.kind {
            FaultKind::Kill => self.cluster.kill(member),
            FaultKind::KillLeader => {
                let Some(leader) = self.cluster.leader() else { return false };
                self.cluster.kill(leader);
            }
            FaultKind::KillTwice => {
                self.cluster.kill(member);
                self.to_kill_again.insert(member, random.below(SECOND));
            }
            FaultKind::KillAll => running.into_iter().for_each(|member| self.cluster.kill(member)),
            FaultKind::Stop => return self.cluster.stop(member),
            FaultKind::PausePart => {
                self.cluster.stand_still(member, part, time.min(STILL_MAX));
                self.calm.not_before(self.now() + STILL_MAX);
            }
            FaultKind::SlowPart => {
                self.cluster.slow_part(member, part, MILLISECOND + random.below(50 * MILLISECOND));
                self.undo_after(time, Undo::FastPart(member, part));
            }
            FaultKind::PauseProcess => return self.cluster.pause(member, time.min(STILL_MAX)),
            FaultKind::ClockJump => self.jump(member, MILLISECOND + random.below(20 * SECOND)),
            FaultKind::Change => return self.change_members(&mut random),
            FaultKind::LoseDisk => return self.lose_disk(member),
            FaultKind::Rot => return self.rot(member, &mut random),
            FaultKind::Defragment | FaultKind::MoveLeader | FaultKind::Compact => {
                return self.ask(fault.kind, member, &mut random);
            }
            FaultKind::DiskFull | FaultKind::DiskSlow | FaultKind::DiskStuck | FaultKind::DiskFails => {
                self.trouble(fault.kind, member, &mut random);
                self.undo_after(time, Undo::Mend(member));
            }
            _ if running.len() < 2 => return false,
            FaultKind::SlowLink => {
                let by = MILLISECOND + random.below(300 * MILLISECOND);
                self.cluster.out.network.set_slow(member, by);
                self.undo_after(time, Undo::FastLink(member));
            }
            FaultKind::Flips => {
                self.cluster.out.network.flip_bits(20 + random.below(200));
                self.undo_after(time, Undo::NoFlips);
            }
            FaultKind::FullOutbox => {
                self.cluster.out.full_outbox_one_in = 1 + random.below(20);
                self.undo_after(time, Undo::Outbox);
            }
            FaultKind::Break => {
                let whole = self.cluster.out.network.whole();
                if whole.is_empty() {
                    return false;
                }
                self.cluster.break_off(random.pick(&whole));
            }
            FaultKind::CutOneWay
            | FaultKind::Isolate
            | FaultKind::IsolateLeader
            | FaultKind::Split
            | FaultKind::Bridge => return self.cut_links(fault.kind, member, time, &mut random),
        }
        true
    }

    /// Links are cut, if any of them was whole between members that run; whether that is so.
    fn cut_links(&mut self, kind: FaultKind, member: usize, time: Micros, random: &mut Random) -> bool {
        let all: Vec<usize> = (0..self.cluster.slots.len()).collect();
        let others: Vec<usize> =
            self.cluster.running().into_iter().filter(|other| *other != member).collect();
        let pairs = |between: &dyn Fn(usize, usize) -> bool| -> Vec<(usize, usize)> {
            let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to)));
            pairs.filter(|(from, to)| from != to && between(*from, *to)).collect()
        };
        let side = random.number();
        let is_left = |member: usize| side >> member & 1 == 0;
        let links = match kind {
            FaultKind::CutOneWay => vec![(member, random.pick(&others))],
            FaultKind::Isolate => pairs(&|from, to| from == member || to == member),
            FaultKind::IsolateLeader => {
                let Some(leader) = self.cluster.leader() else { return false };
                pairs(&|from, to| from == leader || to == leader)
            }
            FaultKind::Split => pairs(&|from, to| is_left(from) != is_left(to)),
            FaultKind::Bridge => {
                pairs(&|from, to| from != member && to != member && is_left(from) != is_left(to))
            }
            kind => unreachable!("{kind:?} cuts no links"),
        };
        let runs = |member: usize| self.cluster.slots[member].process.is_some();
        let is_whole = |(from, to): &(usize, usize)| {
            runs(*from) && runs(*to) && !self.cluster.out.network.has_cut(*from, *to)
        };
        let happens = links.iter().any(is_whole);
        if happens {
            links.iter().for_each(|link| self.cluster.cut(*link, true));
            self.undo_after(time, Undo::Uncut(links));
        }
        happens
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

    /// A member is asked for something that it can do; whether it is, and lets clients in.
    fn ask(&mut self, kind: FaultKind, member: usize, random: &mut Random) -> bool {
        let (at, request) = match kind {
            FaultKind::Defragment => (member, Request::Defragment),
            FaultKind::MoveLeader => {
                let Some(leader) = self.cluster.leader() else { return false };
                let has_id = |to: &usize| *to != leader && self.cluster.member_id(*to) != 0;
                let others: Vec<usize> = self.cluster.running().into_iter().filter(has_id).collect();
                if others.is_empty() {
                    return false;
                }
                (leader, Request::MoveLeader { to: self.cluster.member_id(random.pick(&others)) })
            }
            _ => {
                let Some(view) = self.cluster.slots[member].process.as_ref().map(|it| it.view()) else {
                    return false;
                };
                // Clients have recorded everything up to there.
                let behind = i64::try_from(random.below(100)).expect("small");
                let revision = (view.revision() - behind).min(self.audited());
                if revision <= view.compact_revision().max(0) {
                    return false;
                }
                let request = CompactionRequest { revision, physical: random.one_in(2) };
                self.others_compact(&request);
                let payload = request.encode_to_vec().into();
                (member, Request::Command { kind: Kind::Compact, payload })
            }
        };
        // Its answer is of no interest.
        self.cluster.call(at, request).is_some()
    }

    /// A member has been started: it may have to be killed again.
    pub(crate) fn has_started(&mut self, member: usize) {
        let boot = self.cluster.slots[member].process.as_ref().map(|process| process.boot());
        if let Some(boot) = boot
            && let Some(after) = self.to_kill_again.remove(&member)
        {
            self.undo_after(after, Undo::KillAgain(member, boot));
        }
    }

    fn undo_after(&mut self, time: Micros, undo: Undo) {
        let number = self.undone;
        self.undone += 1;
        self.undos.insert(number, undo);
        self.cluster.out.agenda.plan(time, Event::Over(number));
    }

    /// A fault is over, unless one of the same kind at the same place is not.
    pub(crate) fn undo(&mut self, number: u64) {
        let Some(undo) = self.undos.remove(&number) else { return };
        if self.undos.values().any(|other| *other == undo) {
            return;
        }
        match undo {
            Undo::Uncut(links) => {
                for link in links {
                    let still_cuts = |other: &Undo| matches!(other, Undo::Uncut(it) if it.contains(&link));
                    if !self.undos.values().any(still_cuts) {
                        self.cluster.cut(link, false);
                    }
                }
            }
            Undo::FastLink(member) => self.cluster.out.network.set_slow(member, 0),
            Undo::Mend(member) => self.cluster.set_trouble(member, Trouble::default()),
            Undo::FastPart(member, part) => self.cluster.slow_part(member, part, 0),
            Undo::NoFlips => self.cluster.out.network.flip_bits(0),
            Undo::Outbox => self.cluster.out.full_outbox_one_in = 0,
            Undo::KillAgain(member, boot) => {
                let process = self.cluster.slots[member].process.as_ref();
                if process.is_some_and(|process| process.boot() == boot) {
                    self.cluster.kill(member);
                }
            }
        }
    }
}
