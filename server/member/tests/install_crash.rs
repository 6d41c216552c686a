//! A member that was away is sent a state while the cluster goes on, and crashes anywhere in its
//! installation: at every change of its directory (`revd_sim::disk`) - chunks that come, syncs,
//! names, frames of the log, its release, the checkpoint after it - with none, all or random
//! sectors of what was not synced, and with a frame of the log cut short; or its process dies
//! alone. Then it crashes a second time, in the recovery. (Rows 2, 20 and 48 of the catalogue of
//! consensus bugs.)
//!
//! Each image must start, with the state before or after, in the words of the log that the others
//! have; it must hold every promise that the member had made; and some of them are brought back
//! into the cluster, until all are the same.
//!
//! `REVD_INSTALL_SEEDS` says how many runs are crashed; a failure names its seed.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "install_crash/others.rs"]
mod others;
#[path = "install_crash/receiver.rs"]
mod receiver;
#[path = "install_crash/start.rs"]
mod start;

use revd_engine::mvcc::{HashKv, View};
use revd_engine::random::Random;
use revd_member::cores::log_events::LogEvent;
use revd_member::limits;
use revd_member::peer::PeerMessage;
use revd_sim::disk::{Directory, DiskFaults, Recording};

use crate::others::{Kept, Other};
use crate::receiver::{Promise, Receiver};
use crate::start::{NAMES, start};

/// Steps in which a cluster comes to rest, many times over.
const STEPS_MAX: usize = 200_000;

pub(crate) fn hash_of(view: View) -> u32 {
    let mut run = HashKv::new(view, 0).unwrap();
    loop {
        if let Some(hashed) = run.step(usize::MAX).unwrap() {
            return hashed.hash;
        }
    }
}

/// Two members that stay, and one that is away now and then.
struct Cluster {
    others: Vec<Other>,
    receiver: Receiver,
    is_away: bool,
    random: Random,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let others = NAMES[..2].iter().map(|name| Other::new(start(name, &Directory::new(Random::new(0)))));
        let directory = Directory::new(Random::new(seed));
        directory.record();
        let receiver = Receiver::new(start(NAMES[2], &directory), directory);
        let (others, random) = (others.collect(), Random::new(seed));
        Self { others, receiver, is_away: false, random }
    }

    /// A step of the receiver, and now and then a tick of the others.
    fn step(&mut self) {
        for (to, message) in self.receiver.step(&mut self.random) {
            self.carry(self.receiver.id, to, message);
        }
        for to in self.receiver.taken() {
            let event = LogEvent::StateSent { to: self.receiver.id, is_there: true };
            if let Some(other) = self.others.iter_mut().find(|other| other.id == to) {
                other.event(event);
            }
        }
        if self.random.one_in(40) {
            self.others[0].event(LogEvent::Tick);
        }
        self.deliver();
    }

    fn carry(&mut self, from: u64, to: u64, message: PeerMessage) {
        let ends_away = from == self.receiver.id || to == self.receiver.id;
        if self.is_away && ends_away {
            return;
        }
        let event = LogEvent::Peer { from, message };
        match self.others.iter_mut().find(|other| other.id == to) {
            Some(other) => other.event(event),
            None => self.receiver.event(event),
        }
    }

    fn deliver(&mut self) {
        for at in 0..self.others.len() {
            let from = self.others[at].id;
            while let Some((to, message)) = self.others[at].from_log.messages.pop_front() {
                self.carry(from, to, message);
            }
            for (to, term, state) in std::mem::take(&mut self.others[at].sending) {
                let begins = !self.is_away && self.receiver.begin(from, term, &state);
                if !begins {
                    self.others[at].event(LogEvent::StateSent { to, is_there: false });
                }
            }
        }
    }

    fn elect(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.others[0].leads() {
                return;
            }
            self.others[0].event(LogEvent::Tick);
            self.deliver();
            self.step();
        }
        panic!("nobody leads");
    }

    fn puts(&mut self, puts: u64) {
        for _ in 0..puts {
            let (key, bytes) = (self.random.below(40), self.random.below(700));
            self.others[0].put(key, bytes);
            if self.random.one_in(3) {
                self.others.iter_mut().for_each(Other::save);
            }
            (0..self.random.below(30)).for_each(|_| self.step());
        }
    }

    /// Until the receiver has what the others have.
    fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            self.step();
            let last = self.others[0].machine.store().applied();
            if let Some(view) = self.receiver.view().filter(|view| view.applied() == last) {
                let state = (view.revision(), hash_of(view.clone()));
                assert_eq!(Some(&state), self.others[0].truth.last(), "the members differ");
                return;
            }
        }
        panic!("the receiver does not come back");
    }
}

/// A recorded run.
struct Run {
    recording: Recording,
    promises: Vec<(usize, Promise)>,
    /// Steps before the member was away for the first time.
    begins: usize,
    kept: Kept,
    ids: Vec<u64>,
    truth: Vec<(i64, u32)>,
}

/// The member is away twice, and the second state comes as soon as the first is in its place.
fn run(seed: u64) -> Run {
    let mut cluster = Cluster::new(seed);
    cluster.elect();
    cluster.puts(8);
    cluster.settle();
    let begins = cluster.receiver.directory.steps();
    for _ in 0..2 {
        cluster.is_away = true;
        // The log is kept for a while for a member that was sent a state.
        for _ in 0..=limits::STATE_SENT_TICKS {
            cluster.others[0].event(LogEvent::Tick);
            cluster.deliver();
        }
        cluster.puts(25);
        cluster.is_away = false;
        cluster.puts(6);
        cluster.settle();
    }
    let Cluster { mut others, receiver, .. } = cluster;
    assert!(receiver.installed >= 2, "seed {seed}: the log was enough");
    let ids = others.iter().map(|other| other.id).collect();
    let kept = others[0].keep();
    let truth = others[0].truth.clone();
    Run {
        recording: receiver.directory.recorded().unwrap(),
        promises: receiver.promises,
        begins,
        kept,
        ids,
        truth,
    }
}

/// Starts a member from what a crash has left; the changes that the start makes.
fn boot(directory: Directory, run: &Run, promise: Promise) -> Receiver {
    directory.record();
    let recovery = start(NAMES[2], &directory);
    let last = recovery.log.entries.back().map_or(recovery.log.base.0, |entry| entry.index);
    assert!(last >= promise.index, "entry {} was acknowledged, the log ends with {last}", promise.index);
    let term = recovery.log.hard_state.term;
    assert!(term >= promise.term, "it was in term {}, and is in {term}", promise.term);
    let mut recovery = recovery;
    let applied = usize::try_from(recovery.machine.store().applied().index).unwrap();
    let view = recovery.machine.store_mut().view();
    assert_eq!((view.revision(), hash_of(view)), run.truth[applied], "the state of entry {applied}");
    let is_received = |(path, _): &(String, usize)| path.ends_with("received.revd");
    let is_there = directory.listing().iter().any(is_received);
    assert!(!is_there, "a state that was received is installed or removed");
    Receiver::new(recovery, directory)
}

/// It comes back into the cluster, whose members were started anew too.
fn come_back(receiver: Receiver, run: &Run, seed: u64) {
    let others = run.ids.iter().map(|id| Other::go_on(*id, &run.kept, seed)).collect();
    let mut cluster = Cluster { others, receiver, is_away: false, random: Random::new(seed) };
    cluster.elect();
    cluster.puts(3);
    cluster.settle();
}

/// The machine ends, and keeps all, nothing or some of what was not synced, or the process ends
/// alone.
const CRASHES: [DiskFaults; 4] =
    [DiskFaults::KEEPS_ALL, DiskFaults::KEEPS_SYNCED, DiskFaults::KEEPS_SOME, DiskFaults::PROCESS];

fn crash_everywhere(seed: u64) -> u64 {
    let run = run(seed);
    let (mut random, mut images) = (Random::new(seed ^ 0xC4A5), 0);
    let mut replay = run.recording.replay();
    loop {
        let done = replay.done();
        if done >= run.begins {
            let at = run.promises.partition_point(|(steps, _)| *steps <= done);
            let promise = run.promises[at - 1].1;
            for faults in CRASHES {
                let (directory, _) = replay.crash(&mut random, &faults);
                let receiver = boot(directory, &run, promise);
                images += 1;
                if random.one_in(12) {
                    images += crash_again(&receiver.directory, &run, promise, &mut random);
                }
                if random.one_in(10) {
                    come_back(receiver, &run, seed ^ done as u64);
                }
            }
        }
        if !replay.step() {
            return images;
        }
    }
}

/// A second crash, anywhere in the start after the first one.
fn crash_again(started: &Directory, run: &Run, promise: Promise, random: &mut Random) -> u64 {
    let own = started.recorded().unwrap();
    let (mut replay, mut images) = (own.replay(), 0);
    loop {
        for faults in CRASHES {
            boot(replay.crash(random, &faults).0, run, promise);
            images += 1;
        }
        if !replay.step() {
            return images;
        }
    }
}

#[test]
fn bug_020_an_installation_survives_a_crash_anywhere() {
    let wanted: u64 = std::env::var("REVD_INSTALL_SEEDS").map_or(20, |text| text.parse().unwrap());
    let mut images = 0;
    for seed in 0..wanted {
        let made = std::panic::catch_unwind(|| crash_everywhere(seed));
        images += made.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    println!("{images} crash images of {wanted} runs");
    assert!(images > wanted * 300, "{images} images");
}
