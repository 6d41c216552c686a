//! The world: one heap of events, the cluster, its clients. One step is the next event.

use std::collections::{BTreeMap, BTreeSet};

use revd_checker::{Jump, LeasesJudged};
use revd_engine::random::Random;
use revd_member::limits::CHECKPOINT_PUT_OFFS_MAX;
use revd_proto::etcdserverpb::CompactionRequest;

use crate::calls::{CallId, Door as _, Reply};
use crate::calm::Calm;
use crate::clients::{Clients, Clocks};
use crate::cluster::{Cluster, Habits};
use crate::disk::Trouble;
use crate::faults::{self, Fault, FaultKind, Pace, Replacing, Undo};
use crate::ledger::Ledger;
use crate::marks::Marks;
use crate::network::Links;
use crate::outside::Event;
use crate::probe::Probe;
use crate::time::{MILLISECOND, Micros, SECOND, election_time};

/// The number by which the probe is woken; those of clients are smaller.
const PROBE: u64 = u64::MAX;

/// All that there is.
pub struct World {
    pub(crate) cluster: Cluster,
    clients: Clients,
    pub(crate) probe: Probe,
    pub(crate) random: Random,
    events: u64,
    probe_pause: Micros,
    probe_rests: bool,
    /// Faults to come, by time, and the kinds that those come of that come instead.
    storm: Vec<Fault>,
    kinds: Vec<FaultKind>,
    /// By kind: faults that were drawn, and those that have happened.
    drawn: BTreeMap<FaultKind, u64>,
    faults: BTreeMap<FaultKind, u64>,
    /// Members that are to be killed so long after their next start.
    pub(crate) to_kill_again: BTreeMap<usize, Micros>,
    pub(crate) undos: BTreeMap<u64, Undo>,
    pub(crate) undone: u64,
    pub(crate) replacing: Option<Replacing>,
    /// Of clocks.
    jumps: Vec<Jump>,
    pub(crate) pace: Pace,
    pub(crate) calm: Calm,
}

impl World {
    /// As the seed draws it.
    #[must_use]
    pub fn new(seed: u64, pace: Pace) -> Self {
        revd_engine::check::expect_damage(false);
        let mut random = Random::new(seed ^ 0x51D0_0D1E);
        let members = [1, 3, 3, 3, 5][usize::try_from(random.below(5)).expect("one of five")];
        let habits = Habits {
            tick: pace.tick(&mut random),
            pre_vote: !random.one_in(4),
            put_offs_max: if random.one_in(4) { 0 } else { CHECKPOINT_PUT_OFFS_MAX },
            step_work: if random.one_in(2) { 3_000 } else { 20 },
            restart_max: [SECOND / 2, 3 * SECOND][usize::try_from(random.below(2)).expect("one of two")],
        };
        let links = Links {
            delay: 50 + random.below(2_000),
            jitter: random.below(3_000),
            late_one_in: [0, 300][usize::try_from(random.below(2)).expect("one of two")],
            flip_one_in: 0,
        };
        let cluster = Cluster::new(Random::new(random.number()), members, habits, links);
        let election = election_time(habits.tick);
        let waits = pace.waits(election);
        let clients = Clients::new(Random::new(random.number()), waits);
        let probe = Probe::new(Random::new(random.number()));
        let probe_pause = [3, 10, 40][usize::try_from(random.below(3)).expect("one of three")] * MILLISECOND;
        let probe_pause = probe_pause.max(waits.pause_min) * waits.patience;
        let mut world = Self {
            cluster,
            clients,
            probe,
            random,
            events: 0,
            probe_pause,
            probe_rests: false,
            storm: Vec::new(),
            kinds: faults::kinds(seed),
            drawn: BTreeMap::new(),
            faults: BTreeMap::new(),
            to_kill_again: BTreeMap::new(),
            undos: BTreeMap::new(),
            undone: 0,
            replacing: None,
            jumps: Vec::new(),
            pace,
            calm: Calm::new(election),
        };
        for member in 0..members {
            world.cluster.slots[member].disk_faults = faults::disk_faults(&mut world.random);
        }
        world.clients.start(&mut world.cluster);
        world.cluster.wake_after(SECOND, PROBE);
        world
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.cluster.out.now()
    }

    /// Of everything that has happened.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut random = Random::new(self.cluster.out.truth.digest ^ self.events ^ self.now() << 20);
        random.number()
    }

    /// The next event happens.
    ///
    /// # Panics
    /// When something is not as it must be.
    pub fn step(&mut self) {
        let event = self.cluster.out.agenda.take().expect("clocks tick");
        self.events += 1;
        match event {
            Event::Wake(PROBE) if self.probe_rests => {}
            Event::Wake(PROBE) => {
                self.probe.act(&mut self.cluster);
                // After the storm it is to see that members serve, and no more.
                let pause = if self.probe.is_calm() { SECOND / 10 } else { self.probe_pause };
                let pause = 1 + self.random.below(2 * pause);
                self.cluster.wake_after(pause, PROBE);
            }
            Event::Wake(number) => self.clients.wake(number, &mut self.cluster),
            Event::Answered(call, reply) => {
                if self.cluster.close_call(call) {
                    self.answered(call, reply);
                }
            }
            Event::Watched(stream, message) => {
                if self.cluster.has_stream(stream) {
                    self.clients.watched(stream, message, &mut self.cluster);
                }
            }
            Event::StreamEnded(stream) => {
                if self.cluster.forget_stream(stream) {
                    self.clients.stream_ended(stream, &mut self.cluster);
                }
            }
            Event::Start(member) => {
                self.cluster.start(member);
                self.has_started(member);
            }
            Event::GoOn(member, boot) => self.cluster.go_on(member, boot),
            Event::Fault => {
                let fault = self.storm.remove(0);
                self.comes(fault);
            }
            Event::Over(number) => self.undo(number),
            Event::Replace => self.replace(),
            event => self.cluster.dispatch(event),
        }
        if let Some(member) = self.cluster.found_rotten.take() {
            self.begin_replacing(member);
        }
        if self.pace == Pace::Sparse {
            let is_whole = self.undos.is_empty() && self.replacing.is_none() && self.cluster.all_run();
            self.calm.see(self.now(), is_whole);
        }
    }

    fn answered(&mut self, call: CallId, reply: Reply) {
        if self.probe.answered(call, &reply, &self.cluster) {
            self.show_probed();
        } else {
            self.clients.answered(call, reply, &mut self.cluster);
        }
    }

    /// A fault comes, or another one instead if there is nothing for it. It waits for a member to
    /// run.
    fn comes(&mut self, fault: Fault) {
        let later = if self.cluster.running().is_empty() {
            fault.put_off()
        } else {
            *self.drawn.entry(fault.kind).or_default() += 1;
            self.calm.see(self.now(), false);
            if self.fail(fault) {
                *self.faults.entry(fault.kind).or_default() += 1;
                return;
            }
            fault.instead(&self.kinds)
        };
        if let Some(fault) = later {
            let at = self.storm.partition_point(|other| other.at <= fault.at);
            self.storm.insert(at, fault);
            self.cluster.out.agenda.plan(fault.at - self.now(), Event::Fault);
        }
    }

    /// These faults come.
    pub fn plan(&mut self, storm: Vec<Fault>) {
        for fault in &storm {
            self.cluster.out.agenda.plan(fault.at - self.now(), Event::Fault);
        }
        self.storm = storm;
    }

    /// The disks of all members lie from now on: a sync says that it is done, and is not.
    pub fn lie(&mut self) {
        for member in 0..self.cluster.slots.len() {
            self.cluster.set_trouble(member, Trouble { lies: true, ..Trouble::default() });
        }
    }

    /// Goes through the storm that is planned, and heals.
    ///
    /// # Panics
    /// When something is not as it must be.
    pub fn run(&mut self) {
        while !self.storm.is_empty() {
            self.step();
        }
        self.run_for(2 * SECOND);
        self.heal();
    }

    /// The ledger of all that has happened so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let truth = &self.cluster.out.truth;
        Ledger {
            seeds: 1,
            simulated: self.now(),
            events: self.events,
            fewest_faults: Some(self.faults.values().sum()),
            drawn: self.drawn.clone(),
            faults: self.faults.clone(),
            marks: self.cluster.out.marks.clone(),
            elections: truth.elections(),
            entries: truth.committed_index(),
            probes: self.probe_counts(),
            calm: self.calm.sum(),
            leases_ended: 0, // this one and the next are known when the history is judged
            lease_times: 0,
            failed: BTreeSet::new(),
        }
    }

    /// Judges the history of the clients. Says how much of leases was judged.
    ///
    /// # Panics
    /// When a check fails.
    pub fn judge(self) -> LeasesJudged {
        let (now, has_rotted) = (self.now(), self.faults.contains_key(&FaultKind::Rot));
        let drift = self.cluster.slots.iter().map(|slot| slot.rate.abs_diff(SECOND)).max();
        let calm = self.calm.into_times();
        let clocks = Clocks { drift: drift.unwrap_or(0), jumps: self.jumps, calm, has_rotted };
        self.clients.judge(self.probe.into_calls(now), now, clocks)
    }

    pub(crate) fn clients_calm(&mut self) {
        self.clients.calm(&mut self.cluster);
    }

    /// Everything up to this revision has been recorded: compactions may go so far.
    pub(crate) fn audited(&self) -> i64 {
        self.clients.audited()
    }

    /// The storm asks for this compaction: it belongs to the history, whatever comes of it.
    pub(crate) fn others_compact(&mut self, request: &CompactionRequest) {
        self.clients.others_compact(request, self.cluster.out.now());
    }

    /// A member holds keys of this hash.
    pub(crate) fn hashed(&mut self, member: u64, hash: u32, revision: i64, compacted: i64) {
        self.clients.hashed(member, hash, revision, compacted, self.cluster.out.now());
    }

    /// The clients that are not done.
    pub(crate) fn clients_standing(&self) -> String {
        self.clients.standing()
    }

    pub(crate) fn clients_are_done(&self) -> bool {
        self.clients.is_done()
    }

    pub(crate) fn probe_rests(&mut self) {
        self.probe_rests = true;
        self.show_probed();
    }

    /// Watchers are to know all that the probe was shown, once it asks no more.
    fn show_probed(&mut self) {
        if self.probe_rests {
            self.clients.probed(self.probe.shown());
        }
    }

    /// The clock of a member jumps.
    pub(crate) fn jump(&mut self, member: usize, by: Micros) {
        self.jumps.push(Jump { at: self.now(), by });
        self.cluster.jump(member, by);
    }

    pub(crate) fn probe_again(&mut self) {
        self.probe_rests = false;
        self.cluster.wake_after(SECOND, PROBE);
    }

    /// Faults that have happened, by kind.
    #[must_use]
    pub fn faults(&self) -> &BTreeMap<FaultKind, u64> {
        &self.faults
    }

    /// The places that were reached.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.cluster.out.marks
    }

    /// Puts and reads of the probe that were answered.
    #[must_use]
    pub fn probe_counts(&self) -> (u64, u64) {
        (self.probe.puts, self.probe.reads)
    }

    /// Runs for so long.
    pub fn run_for(&mut self, time: Micros) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of the probe are in the history of all.
    #[test]
    fn calls_of_the_probe_are_judged() {
        for is_spoilt in [false, true] {
            let mut world = World::new(3, Pace::Dense);
            world.run_for(5 * SECOND);
            world.heal();
            if is_spoilt {
                world.probe.spoil();
            }
            let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.judge()));
            assert_eq!(judged.is_err(), is_spoilt);
        }
    }

    /// A disk is slow as long as its trouble lasts. Seeds 1001655 and 1001870 have found leases
    /// that were over long ago: a checkpoint that had begun on a slow disk went on for a minute
    /// after everything was mended.
    #[test]
    fn what_a_slow_disk_does_ends_when_the_disk_is_mended() {
        for seed in 0..3 {
            let mut world = World::new(seed, Pace::Dense);
            world.run_for(4 * SECOND);
            let set = |world: &mut World, slow| {
                for member in 0..world.cluster.slots.len() {
                    world.cluster.set_trouble(member, Trouble { slow, ..Trouble::default() });
                }
            };
            set(&mut world, 100 * SECOND);
            world.run_for(SECOND);
            let stuck = world.probe_counts().0;
            world.run_for(3 * SECOND);
            assert_eq!(world.probe_counts().0, stuck, "seed {seed}: no put is durable");
            set(&mut world, 0);
            world.run_for(10 * SECOND);
            let puts = world.probe_counts().0 - stuck;
            assert!(puts > 10, "seed {seed}: {puts} puts since the disks are mended");
        }
    }
}
