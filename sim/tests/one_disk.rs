//! A member alone through many lives on one simulated disk: recovery, raft, the writer of the log,
//! the state machine and the store as shipped. Lives end in crashes anywhere: in a start, in a
//! frame, in a checkpoint; of the machine or of the process alone, whose last write may land later.
//! In some runs the disk is full for a while, a call of it fails, syncs lie, or a bit flips at
//! rest.
//!
//! A start must find everything acknowledged, and a state that is the effect of a prefix of the
//! log. After syncs that lied or a flipped bit it may refuse with a reason instead, or have lost
//! the end of the log; it never has another state.
//!
//! `REVD_DISK_SEEDS` says how many runs there are, `REVD_DISK_FIRST` from which on; a failure names
//! its seed.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use prost::Message as _;
use revd_engine::check::check;
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{CheckpointKind, HashKv, Store, View};
use revd_engine::random::Random;
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::{DurableIndex, Machine};
use revd_member::boot::recovery::{Recovery, RecoveryConfig, recover};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::raft::node::{LogRetention, RaftNode};
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::writer::{WalSeed, WalWriter};
use revd_member::wal::{BLOCK, FrameContent, WalError};
use revd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest};
use revd_sim::disk::{Directory, DiskFaults, LogFiles, StartError, Ticket, Trouble};

/// The trouble of a disk beside crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Crashes,
    Full,
    Failing,
    Lying,
    Rot,
}

const MODES: [Mode; 5] = [Mode::Crashes, Mode::Full, Mode::Failing, Mode::Lying, Mode::Rot];
const LIVES: u64 = 6;

/// How often something happened in all runs.
#[derive(Debug, Default)]
struct Seen {
    lives: u64,
    crashes_in_start: u64,
    crashes_in_frame: u64,
    crashes_in_checkpoint: u64,
    of_process_alone: u64,
    late_entries: u64,
    no_room: u64,
    failed_calls: u64,
    lost_after_lies: u64,
    refused_after_lies: u64,
    refused_after_rot: u64,
    found_later_after_rot: u64,
    cut_by_rot: u64,
}

/// Why a life ends.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Crash,
    /// The member ends its process: a call of the disk has failed.
    Failed,
}

struct Life {
    node: RaftNode,
    machine: Machine,
    origin: Origin,
    writer: Option<WalWriter<LogFiles>>,
    begun: Vec<Ticket>,
}

struct Run<'s> {
    mode: Mode,
    directory: Directory,
    random: Random,
    faults: DiskFaults,
    /// By log index: revision and hash of the state after it.
    truth: Vec<(i64, u32)>,
    acknowledged: u64,
    boot: u64,
    commands: u64,
    seen: &'s mut Seen,
}

fn hash_of(view: View) -> revd_engine::Result<u32> {
    let mut run = HashKv::new(view, 0)?;
    loop {
        if let Some(hashed) = run.step(usize::MAX)? {
            return Ok(hashed.hash);
        }
    }
}

/// Reads every page and record.
fn look_at(store: &mut Store) -> revd_engine::Result<()> {
    if let Some(db) = store.db() {
        check(db)?;
    }
    verify(store)?;
    hash_of(store.view()).map(drop)
}

fn config(boot: u64) -> RecoveryConfig {
    RecoveryConfig {
        begins_cluster: true,
        forces_new: false,
        initial: InitialCluster::alone("default", "http://localhost:2380", "etcd-cluster"),
        version: ClusterVersion { major: 3, minor: 7 },
        pre_vote: true,
        advances_election: true,
        boot,
        election_ticks: 10,
        election_seed: boot,
        log_retention: LogRetention::default(),
        quota_bytes: 0,
        lease_extension: 0,
    }
}

fn logger() -> slog::Logger {
    slog::Logger::root(slog::Discard, slog::o!())
}

impl Run<'_> {
    /// All lives; the run ends early when a start is refused with a good reason.
    fn run(mut self) {
        for _ in 0..LIVES {
            let Some(mut life) = self.start() else { return };
            self.seen.lives += 1;
            let stop = self.live(&mut life);
            drop(life);
            match stop {
                Ok(()) => self.directory.leave(),
                Err(Stop::Crash) => self.crash(),
                Err(Stop::Failed) => {
                    self.seen.failed_calls += 1;
                    self.directory.leave();
                }
            }
            self.directory.set_trouble(Trouble::default());
            if self.mode == Mode::Rot && self.random.one_in(2) {
                self.directory.rot(&mut self.random);
                return self.look_after_rot();
            }
        }
    }

    fn crash(&mut self) {
        let crash = self.directory.crash(&mut self.random, &self.faults);
        self.seen.of_process_alone += u64::from(crash.is_process_alone);
    }

    fn recover(&mut self) -> Result<Recovery, StartError> {
        loop {
            self.boot += 1;
            let (directory, boot) = (self.directory.clone(), self.boot);
            let (recovered, begun) =
                directory.job(|| recover(&config(boot), &logger(), &mut directory.recovery(&mut |_| None)));
            if self.random.one_in(5) {
                self.seen.crashes_in_start += 1;
                drop(recovered);
                self.crash();
                continue;
            }
            directory.end(begun.ticket);
            return recovered;
        }
    }

    /// A life begins, with all that was acknowledged.
    fn start(&mut self) -> Option<Life> {
        let recovered = match self.recover() {
            Ok(recovered) => recovered,
            Err(error) if self.mode == Mode::Lying => {
                assert!(!error.to_string().is_empty());
                self.seen.refused_after_lies += 1;
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let Recovery { machine, node, log, origin, .. } = recovered;
        let last = log.last();
        if self.mode == Mode::Lying && last < self.acknowledged {
            self.seen.lost_after_lies += 1;
            self.acknowledged = last;
        }
        assert!(
            last >= self.acknowledged,
            "{} was acknowledged, the log ends with {last}",
            self.acknowledged
        );
        self.seen.late_entries += u64::from(last > self.acknowledged);
        self.truth.truncate(usize::try_from(last).unwrap() + 1);
        let layout = LayoutConfig {
            segment_bytes: 6 * BLOCK as u64,
            // Where it is as long as the others, a spare of the process before may become it.
            first_segment_bytes: if self.boot.is_multiple_of(2) { 6 } else { 3 } * BLOCK as u64,
            secret: 0x5EED ^ self.boot,
        };
        let writer = WalWriter::new(WalSeed { disk: self.directory.log(), layout, log });
        let mut life = Life { node, machine, origin, writer: Some(writer), begun: Vec::new() };
        if let Err(error) = look_at(life.machine.store_mut()) {
            // Pages that a lie has lost are found when they are read.
            assert!(self.mode == Mode::Lying && error.is_fatal(), "{error}");
            self.seen.refused_after_lies += 1;
            return None;
        }
        self.hold_against_truth(&mut life);
        Some(life)
    }

    /// The state is the effect of the log's first entries.
    fn hold_against_truth(&mut self, life: &mut Life) {
        let store = life.machine.store_mut();
        let index = usize::try_from(store.applied().index).unwrap();
        let state = (store.revision(), hash_of(store.view()).unwrap());
        if index == self.truth.len() {
            self.truth.push(state);
        }
        assert_eq!(self.truth[index], state, "the state behind entry {index}");
    }

    /// Elects itself, writes and saves for a while.
    fn live(&mut self, life: &mut Life) -> Result<(), Stop> {
        if self.random.one_in(3) {
            self.trouble();
        }
        life.node.campaign().unwrap();
        self.advance(life)?;
        for _ in 0..5 + self.random.below(40) {
            if self.random.one_in(9) {
                self.trouble();
            }
            if life.node.may_propose() {
                life.node.propose(self.batch(life.origin)).unwrap();
            }
            self.advance(life)?;
            if self.random.one_in(6) {
                self.save(life)?;
            }
        }
        Ok(())
    }

    fn trouble(&mut self) {
        let trouble = match self.mode {
            Mode::Full => Trouble { is_full: self.random.one_in(2), ..Trouble::default() },
            Mode::Failing => {
                let calls = u32::try_from(self.random.below(60)).unwrap();
                Trouble { fails_after: self.random.one_in(2).then_some(calls), ..Trouble::default() }
            }
            Mode::Lying => Trouble { lies: self.random.one_in(2), ..Trouble::default() },
            Mode::Crashes | Mode::Rot => return,
        };
        self.directory.set_trouble(trouble);
        if !trouble.is_full {
            self.directory.fill_reserve();
        }
    }

    fn batch(&mut self, origin: Origin) -> Bytes {
        let random = &mut self.random;
        let key = Bytes::from(format!("key/{}", random.below(20)));
        let revision = self.truth.last().map_or(1, |(revision, _)| *revision);
        let (kind, payload) = match random.below(10) {
            0 => (Kind::DeleteRange, DeleteRangeRequest { key, ..Default::default() }.encode_to_vec()),
            1 => {
                let revision = (revision - 3).max(1);
                (Kind::Compact, CompactionRequest { revision, physical: false }.encode_to_vec())
            }
            _ => {
                let value = vec![random.byte(); usize::try_from(random.below(1_500)).unwrap()].into();
                (Kind::Put, PutRequest { key, value, ..Default::default() }.encode_to_vec())
            }
        };
        self.commands += 1;
        let command = Command { id: CommandId(self.commands), kind, payload: payload.into() };
        command::encode(origin, &[command]).into()
    }

    /// Writes and applies until there is nothing more.
    fn advance(&mut self, life: &mut Life) -> Result<(), Stop> {
        loop {
            let effects = life.node.effects();
            for entry in &effects.committed {
                life.machine.apply(entry, 0, &mut Vec::new()).unwrap();
                self.hold_against_truth(life);
                self.acknowledged = self.acknowledged.max(entry.index);
            }
            life.node.applied(life.machine.store().applied().index);
            let Some(frame) = effects.append else { return Ok(()) };
            self.append(life, frame)?;
            life.node.written();
        }
    }

    fn append(&mut self, life: &mut Life, frame: FrameContent) -> Result<(), Stop> {
        type Appending = Pin<Box<dyn Future<Output = (WalWriter<LogFiles>, Result<(), WalError>)>>>;
        let mut writer = life.writer.take().unwrap();
        let mut appending: Appending = Box::pin(async move {
            let result = writer.append(&frame).await;
            (writer, result)
        });
        for tries in 0.. {
            assert!(tries < 1_000, "a frame is never written");
            match appending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready((mut writer, Err(WalError::NoSpace { .. }))) => {
                    self.seen.no_room += 1;
                    if self.random.one_in(4) {
                        self.directory.set_trouble(Trouble::default());
                    }
                    appending = Box::pin(async move {
                        let result = writer.resume().await;
                        (writer, result)
                    });
                }
                Poll::Ready((writer, Ok(()))) => {
                    life.writer = Some(writer);
                    return Ok(());
                }
                Poll::Ready((_, Err(error))) => {
                    assert_eq!(self.mode, Mode::Failing, "{error}");
                    return Err(Stop::Failed);
                }
                Poll::Pending => {}
            }
            life.begun.extend(self.directory.take_begun().into_iter().map(|begun| begun.ticket));
            if self.random.one_in(60) {
                self.seen.crashes_in_frame += 1;
                return Err(Stop::Crash);
            }
            if !life.begun.is_empty() {
                self.directory.end(life.begun.remove(0));
            }
        }
        unreachable!("it returns");
    }

    /// A checkpoint, and the release of the log.
    fn save(&mut self, life: &mut Life) -> Result<(), Stop> {
        let Some(checkpoint) = life.machine.store_mut().checkpoint(CheckpointKind::Auto) else {
            return Ok(());
        };
        let (written, begun) = self.directory.job(|| checkpoint.write());
        if self.random.one_in(6) {
            self.seen.crashes_in_checkpoint += 1;
            return Err(Stop::Crash);
        }
        self.directory.end(begun.ticket);
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                assert_eq!(self.mode, Mode::Failing, "{error}");
                return Err(Stop::Failed);
            }
        };
        if written.has_no_room() {
            self.directory.give_up_reserve();
        }
        let durable = life.machine.store_mut().finish_checkpoint(written);
        let writer = life.writer.as_mut().unwrap();
        writer.release(DurableIndex::of(&durable).get());
        Ok(())
    }

    /// A bit has flipped: the start is refused, or says what the state was, or fails when the page
    /// is read.
    fn look_after_rot(mut self) {
        let Recovery { mut machine, log, .. } = match self.recover() {
            Ok(recovery) => recovery,
            Err(error) => {
                let text = error.to_string();
                assert!(matches!(error, StartError::Refused(_)) || text.contains("data/member/"), "{text}");
                self.seen.refused_after_rot += 1;
                return;
            }
        };
        // Damage to the last frame looks like a crash in it.
        assert!(log.last() + 1 >= self.acknowledged, "{} of {}", log.last(), self.acknowledged);
        self.seen.cut_by_rot += u64::from(log.last() < self.acknowledged);
        let store = machine.store_mut();
        let index = usize::try_from(store.applied().index).unwrap();
        match hash_of(store.view()) {
            Ok(hash) => assert_eq!((store.revision(), hash), self.truth[index], "entry {index}"),
            Err(error) => {
                assert!(error.is_fatal(), "{error}");
                self.seen.found_later_after_rot += 1;
            }
        }
    }
}

fn run(seed: u64, seen: &mut Seen) {
    let mode = MODES[usize::try_from(seed % MODES.len() as u64).unwrap()];
    // With syncs that lie an entry that another one has replaced could land late, and be the last.
    let only_process = if mode == Mode::Lying { 0 } else { 400 };
    let faults = DiskFaults { only_process, lost_sector: 400, lost_write: 300, undone_name: 500, rot: 0 };
    let (directory, random) = (Directory::new(Random::new(seed)), Random::new(seed ^ 0xD15C));
    let (truth, acknowledged, boot, commands) = (vec![(0, 0)], 0, 0, 0);
    Run { mode, directory, random, faults, truth, acknowledged, boot, commands, seen }.run();
}

#[test]
fn a_member_keeps_what_it_acknowledged_through_all_that_its_disk_does() {
    let wanted: u64 = std::env::var("REVD_DISK_SEEDS").map_or(300, |text| text.parse().unwrap());
    let mut seen = Seen::default();
    let first: u64 = std::env::var("REVD_DISK_FIRST").map_or(0, |text| text.parse().unwrap());
    for seed in first..first + wanted {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut seen)));
        ended.unwrap_or_else(|_| panic!("seed {seed}, {:?}", MODES[usize::try_from(seed % 5).unwrap()]));
    }
    println!("{seen:?}");
    let Seen { crashes_in_start, crashes_in_frame, crashes_in_checkpoint, .. } = seen;
    let crashes = [crashes_in_start, crashes_in_frame, crashes_in_checkpoint, seen.of_process_alone];
    let troubles = [seen.late_entries, seen.no_room, seen.failed_calls];
    let losses = [seen.lost_after_lies, seen.refused_after_lies, seen.refused_after_rot];
    let reached = [&crashes[..], &troubles, &losses].concat();
    assert!(wanted < 300 || !reached.contains(&0), "not everything was reached: {seen:?}");
}

/// A start died between making a folder and syncing its name; the next one goes on with what it
/// finds, and then the power fails.
#[test]
fn a_folder_whose_maker_died_is_durable_after_the_next_start() {
    let mut random = Random::new(1);
    for cut in 0..40 {
        let directory = Directory::new(Random::new(cut));
        let first = directory.job(|| recover(&config(1), &logger(), &mut directory.recovery(&mut |_| None)));
        drop(first);
        directory.crash(&mut random, &DiskFaults::PROCESS);
        let second = recover(&config(2), &logger(), &mut directory.recovery(&mut |_| None)).unwrap();
        let names: Vec<_> = directory.listing();
        drop(second);
        directory.crash(&mut random, &DiskFaults::KEEPS_SYNCED);
        let left = directory.listing();
        let is_kept = |name: &str| left.iter().any(|(path, _)| path == name);
        assert!(is_kept("data/member") && is_kept("data/wal"), "{cut}: {names:?} became {left:?}");
        assert!(is_kept("data/member/tree.revd"), "{cut}: {names:?} became {left:?}");
    }
}
