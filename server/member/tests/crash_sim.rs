//! A whole member without clock, network or disk: raft, log layout, state machine and store run on
//! one thread against recorded files. The recorded run is then crashed everywhere:
//!
//! - after every write of the log, and inside it: each prefix of its sectors, random subsets of
//!   them;
//! - at every call of the tree file that may have happened by then, with none, all, or random
//!   sectors of what was not synced;
//! - in every other run, while the tree file finds no room now and then;
//! - with the last removals of log segments undone;
//! - and a second time, in the writes that recovering from the first crash makes.
//!
//! The recovered state must be the effect of a prefix of the log that holds everything
//! acknowledged, with every page and every record in its place. `REVD_CRASH_IMAGES` asks for more
//! images.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "crash_sim/effects.rs"]
mod effects;
#[path = "crash_sim/member.rs"]
mod member;
#[path = "crash_sim/start.rs"]
mod start;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use member::Member;
use revd_engine::db::DbOptions;
use revd_engine::disk::{Recorded, SimDisk};
use revd_engine::mvcc::{HashKv, Store, View};
use revd_engine::random::Random;
use revd_member::apply::command::Origin;
use revd_member::cluster::Identity;
use revd_member::wal::BLOCK;
use revd_member::wal::layout::{Layout, LayoutConfig, LogStep, ReleasedSegment};
use revd_member::wal::reader::{self, RecoveredLog};
use start::Sim;

/// The ids that a new member makes of the URLs and the token in `start.rs`.
const OWNER: Identity = Identity { cluster: 0xcdf8_1819_4e3a_8c32, member: 0x8e9e_05c5_2164_694d };
const ORIGIN: Origin = Origin { member: OWNER.member, boot: 1 };
const LAYOUT: LayoutConfig =
    LayoutConfig { segment_bytes: 6 * BLOCK as u64, first_segment_bytes: 3 * BLOCK as u64, secret: 0x5EED };
const PAGES: DbOptions = DbOptions { page_bytes_if_new: 512 };
const SECTOR: usize = 512;
/// Log writes of one run.
const FRAMES: usize = 40;

/// An operation on the log's files.
#[derive(Debug, Clone)]
enum WalOp {
    Step(LogStep),
    Remove(ReleasedSegment),
}

/// The log's files; a removed one is used again.
#[derive(Debug, Clone, Default)]
struct WalFiles {
    segments: BTreeMap<u64, Vec<u8>>,
    spare: Option<Vec<u8>>,
}

impl WalFiles {
    fn apply(&mut self, op: &WalOp, keep_sector: &mut dyn FnMut(usize) -> bool) {
        match op {
            WalOp::Remove(ReleasedSegment { segment, is_reusable }) => {
                let file = self.segments.remove(segment);
                if *is_reusable {
                    self.spare = file;
                }
            }
            WalOp::Step(LogStep::Create { segment, bytes }) => {
                let bytes = usize::try_from(*bytes).unwrap();
                let spare = self.spare.take().filter(|spare| spare.len() == bytes);
                self.segments.insert(*segment, spare.unwrap_or_else(|| vec![0; bytes]));
            }
            WalOp::Step(LogStep::Write { segment, offset, bytes }) => {
                let file = self.segments.get_mut(segment).unwrap();
                for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                    if keep_sector(sector) {
                        let start = usize::try_from(*offset).unwrap() + sector * SECTOR;
                        file[start..start + part.len()].copy_from_slice(part);
                    }
                }
            }
        }
    }

    fn read(&self) -> Option<RecoveredLog> {
        let files = self.segments.iter().map(|(number, bytes)| (*number, Bytes::from(bytes.clone())));
        let files: Vec<_> = files.collect();
        let whole = reader::assemble(Path::new("wal"), &files).unwrap_or_else(|error| panic!("{error}"));
        whole.inspect(|log| forgets_alike(&files, log))
    }
}

/// A start forgets applied entries between segments, so that they are never in memory together.
fn forgets_alike(files: &[(u64, Bytes)], whole: &RecoveredLog) {
    let committed = whole.hard_state.commit.clamp(whole.base.0, whole.last());
    let seed = whole.end.offset ^ (whole.end.frame << 32);
    let applied = whole.base.0 + Random::new(seed).below(committed - whole.base.0 + 1);
    let mut assembly = reader::Assembly::new(Path::new("wal"), applied);
    files.iter().for_each(|(number, bytes)| assembly.add(*number, bytes).unwrap());
    let mut expected = whole.clone();
    expected.forget_applied(applied);
    assert_eq!(assembly.finish().unwrap(), Some(expected), "with what was applied up to {applied}");
}

/// The files of a member, and what happens to them.
struct Files {
    layout: Layout,
    disk: SimDisk,
    wal: Vec<WalOp>,
    /// Where a log operation stands among the tree's calls: those that are over by then, and those
    /// that may be.
    tree_calls: Vec<(usize, usize)>,
    calls_over: usize,
}

impl Files {
    fn record(&mut self, op: WalOp) {
        self.wal.push(op);
        self.tree_calls.push((self.calls_over, self.disk.recorded().len()));
    }
}

fn hash_of(view: View) -> u32 {
    let mut run = HashKv::new(view, 0).unwrap();
    loop {
        if let Some(hashed) = run.step(usize::MAX).unwrap() {
            return hashed.hash;
        }
    }
}

impl Sim {
    /// Writes and applies until there is nothing more; `applied` hears of each entry.
    fn settle(&mut self, mut applied: impl FnMut(&mut Store, u64)) {
        self.node.campaign().unwrap();
        loop {
            let effects = self.node.effects();
            for entry in &effects.committed {
                self.machine.apply(entry, 0, &mut Vec::new()).unwrap();
                applied(self.machine.store_mut(), entry.index);
            }
            let Some(frame) = effects.append else { return };
            for step in self.files.layout.append(&frame) {
                self.files.record(WalOp::Step(step));
            }
            self.node.written();
        }
    }
}

/// Counts of what a full disk led to in some runs.
#[derive(Debug, Clone, Copy, Default)]
struct FullDisk {
    /// Checkpoints that found no room.
    no_room: u64,
    reserves_given_up: u64,
    /// Commands that the alarm kept from what needs space.
    refused: u64,
    /// Members that stopped without a last checkpoint.
    stopped_unsaved: u64,
}

impl FullDisk {
    fn add(&mut self, more: Self) {
        self.no_room += more.no_room;
        self.reserves_given_up += more.reserves_given_up;
        self.refused += more.refused;
        self.stopped_unsaved += more.stopped_unsaved;
    }
}

/// The disk of every other run is full now and then.
fn fills_disk(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// A recorded run.
struct Run {
    wal: Vec<WalOp>,
    tree_calls: Vec<(usize, usize)>,
    calls: Vec<Recorded>,
    /// By log index: revision and hash of the state after it.
    truth: Vec<(i64, u32)>,
    /// By log operations done: what clients were told.
    acknowledged: Vec<Acknowledged>,
    full_disk: FullDisk,
}

/// The acknowledged state, which must not be taken back.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    /// Entries up to here.
    index: u64,
    /// A compaction of this revision, or a later one, is done: the space is free.
    compacted: i64,
}

impl Default for Acknowledged {
    /// The member's birth.
    fn default() -> Self {
        Self { index: 1, compacted: 0 }
    }
}

impl Acknowledged {
    fn index(index: u64) -> Self {
        Self { index, compacted: 0 }
    }

    fn add(&mut self, more: Self) {
        self.index = self.index.max(more.index);
        self.compacted = self.compacted.max(more.compacted);
    }
}

/// Runs a member for a while.
fn run(seed: u64) -> Run {
    let disk = SimDisk::new();
    // With so little room that the file grows by no more than it needs.
    disk.limit(fills_disk(seed).then_some(100 * 1024));
    let mut sim = Sim::start(disk, None);
    // In every other one few keys are a large index, which is saved a range at a time.
    if seed.is_multiple_of(2) {
        sim.machine.store_mut().save_index_in_steps_of(1 + seed % 5);
    }
    // Another bit says whether compactions leave dead records and compute no hash.
    if seed % 4 < 2 {
        sim.machine.store_mut().compact_as_large(1 + seed % 5, 1 + seed % 5);
    }
    Member::new(sim, seed).run()
}

/// Starts a member from what a crash has left and lets it go on; its log's writes are returned.
fn recover(
    wal: &WalFiles,
    tree: Vec<u8>,
    truth: &[(i64, u32)],
    acknowledged: Acknowledged,
) -> (Vec<WalOp>, u64) {
    let disk = SimDisk::from_bytes(tree);
    let mut sim = Sim::start(disk, wal.read());
    let last = sim.last;
    let store = sim.machine.store_mut();
    let applied = usize::try_from(store.applied().index).unwrap();
    assert_eq!(truth[applied], (store.revision(), hash_of(store.view())), "the tree file alone");
    let Acknowledged { index: acknowledged, compacted } = acknowledged;
    if compacted > 0 {
        let asked = store.view().compact_revision();
        assert!(
            asked > compacted || (asked == compacted && !store.compaction_pending()),
            "compacted {asked}"
        );
    }
    assert!(last >= acknowledged, "entry {acknowledged} was acknowledged, the log ends with {last}");
    sim.settle(|store, index| {
        let expected = truth[usize::try_from(index.min(last)).unwrap()];
        assert_eq!((store.revision(), hash_of(store.view())), expected, "entry {index} of {last}");
    });
    assert!(sim.machine.store().applied().index > last, "the new leader's own entry");
    (sim.files.wal, last)
}

/// The tree file's bytes after some of its calls.
struct TreeImages<'r> {
    calls: &'r [Recorded],
    /// Bytes at each sync: (calls until then, bytes).
    synced: Vec<(usize, Vec<u8>)>,
}

impl<'r> TreeImages<'r> {
    fn new(calls: &'r [Recorded]) -> Self {
        let mut synced = vec![(0, Vec::new())];
        for (at, call) in calls.iter().enumerate() {
            if *call == Recorded::Sync {
                let (from, bytes) = synced.last().unwrap();
                let bytes = replay(bytes.clone(), &calls[*from..at], &mut |_| true);
                synced.push((at + 1, bytes));
            }
        }
        Self { calls, synced }
    }

    fn after(&self, calls: usize, keep_sector: &mut dyn FnMut(usize) -> bool) -> Vec<u8> {
        let (from, bytes) = self.synced.iter().rfind(|(from, _)| *from <= calls).unwrap();
        replay(bytes.clone(), &self.calls[*from..calls], keep_sector)
    }
}

fn replay(mut bytes: Vec<u8>, calls: &[Recorded], keep_sector: &mut dyn FnMut(usize) -> bool) -> Vec<u8> {
    for call in calls {
        match call {
            Recorded::SetLen(len) => bytes.resize(usize::try_from(*len).unwrap(), 0),
            Recorded::Write { offset, bytes: new } => {
                let start = usize::try_from(*offset).unwrap();
                bytes.resize(bytes.len().max(start + new.len()), 0);
                for (sector, part) in new.chunks(SECTOR).enumerate() {
                    if keep_sector(sector) {
                        let at = start + sector * SECTOR;
                        bytes[at..at + part.len()].copy_from_slice(part);
                    }
                }
            }
            Recorded::Sync => {}
        }
    }
    bytes
}

/// Crashes one run everywhere; how many images were recovered, and what came of a full disk.
fn crash_everywhere(seed: u64) -> (u64, FullDisk) {
    let run = run(seed);
    let tree = TreeImages::new(&run.calls);
    let mut random = Random::new(seed ^ 0xC4A5);
    let mut files = WalFiles::default();
    let mut before_removals = files.clone();
    let mut images = 0;
    for done in 0..=run.wal.len() {
        let (calls_min, calls_max) =
            run.tree_calls.get(done).copied().unwrap_or((run.calls.len(), run.calls.len()));
        let mut logs = vec![files.clone(), before_removals.clone()];
        if let Some(op @ WalOp::Step(LogStep::Write { bytes, .. })) = run.wal.get(done) {
            for torn in 0..bytes.len() / SECTOR + 4 {
                let mut log = files.clone();
                let whole = bytes.len() / SECTOR;
                log.apply(op, &mut |sector| if torn <= whole { sector < torn } else { random.below(2) == 0 });
                logs.push(log);
            }
        }
        for (at, log) in logs.into_iter().enumerate() {
            // The write that was cut short lands after all, later.
            let late = if at >= 2 { run.wal.get(done) } else { None };
            // Torn writes are many: each is held against one image of the tree.
            let variants = if late.is_some() { random.below(3)..=2 } else { 0..=2 };
            for variant in variants.take(if late.is_some() { 1 } else { 3 }) {
                let calls =
                    calls_min + usize::try_from(random.below((calls_max - calls_min + 1) as u64)).unwrap();
                let bytes = tree.after(calls, &mut |_| match variant {
                    0 => true,
                    1 => false,
                    _ => random.below(2) == 0,
                });
                let (again, last) = recover(&log, bytes.clone(), &run.truth, run.acknowledged[done]);
                images += 1;
                if random.below(16) == 0 {
                    images += crash_again(&log, &bytes, &again, late, &run.truth, last, &mut random);
                }
            }
        }
        let Some(op) = run.wal.get(done) else { break };
        if !matches!(op, WalOp::Remove(_)) {
            files.apply(op, &mut |_| true);
            before_removals = files.clone();
        } else {
            files.apply(op, &mut |_| true);
        }
    }
    (images, run.full_disk)
}

/// A second crash, in what recovering from the first one writes to the log; the write in which the
/// first one happened may land at any time in between.
fn crash_again(
    log: &WalFiles,
    tree: &[u8],
    wal: &[WalOp],
    late: Option<&WalOp>,
    truth: &[(i64, u32)],
    last: u64,
    random: &mut Random,
) -> u64 {
    let mut images = 0;
    let mut log = log.clone();
    // The new leader's entry stands for the state that was there before it.
    let mut own_truth = truth[..=usize::try_from(last).unwrap()].to_vec();
    own_truth.resize(own_truth.len() + 2, *own_truth.last().unwrap());
    let mut writes = 0;
    for op in wal {
        let mut torn = log.clone();
        torn.apply(op, &mut |_| random.below(2) == 0);
        recover(&torn, tree.to_vec(), &own_truth, Acknowledged::index(last));
        log.apply(op, &mut |_| true);
        writes += u64::from(matches!(op, WalOp::Step(LogStep::Write { .. })));
        recover(&log, tree.to_vec(), &own_truth, Acknowledged::index(last + writes.saturating_sub(1)));
        images += 2;
        let Some(WalOp::Step(LogStep::Write { segment, .. })) = late else { continue };
        // A segment that was made again under the same name is another file.
        let is_other =
            |op: &WalOp| matches!(op, WalOp::Step(LogStep::Create { segment: made, .. }) if made == segment);
        if wal.iter().any(is_other) {
            continue;
        }
        let mut landed = log.clone();
        landed.apply(late.unwrap(), &mut |_| true);
        // Before the new segment's header is durable, the log may as well go on with what landed.
        let truth = if writes == 0 { truth } else { &own_truth };
        recover(&landed, tree.to_vec(), truth, Acknowledged::index(last + writes.saturating_sub(1)));
        images += 1;
    }
    images
}

#[test]
fn a_member_survives_a_crash_anywhere() {
    let wanted: u64 = std::env::var("REVD_CRASH_IMAGES").map_or(50_000, |text| text.parse().unwrap());
    let (seeds, images, full_disk) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(FullDisk::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while images.load(Ordering::Relaxed) < wanted {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed) + 1;
                    let made = std::panic::catch_unwind(|| crash_everywhere(seed));
                    let (made, full) = made.unwrap_or_else(|_| panic!("seed {seed}"));
                    images.fetch_add(made, Ordering::Relaxed);
                    full_disk.lock().unwrap().add(full);
                }
            });
        }
    });
    let full_disk = full_disk.into_inner().unwrap();
    println!(
        "{} crash images of {} runs recovered; {full_disk:?}",
        images.load(Ordering::Relaxed),
        seeds.load(Ordering::Relaxed)
    );
    let FullDisk { no_room, reserves_given_up, refused, stopped_unsaved } = full_disk;
    let seen = [no_room, reserves_given_up, refused, stopped_unsaved];
    let is_enough = seeds.into_inner() >= 10;
    assert!(!is_enough || !seen.contains(&0), "a full disk had no effect: {full_disk:?}");
}

/// A crash while a new member is made leaves nothing, or a member that goes on.
#[test]
fn a_new_member_survives_a_crash_anywhere() {
    let disk = SimDisk::new();
    drop(Sim::start(disk.clone(), None));
    let calls = disk.recorded();
    let tree = TreeImages::new(&calls);
    let mut random = Random::new(1);
    for done in 0..=calls.len() {
        for variant in 0..8 {
            let bytes = tree.after(done, &mut |_| match variant {
                0 => true,
                1 => false,
                _ => random.below(2) == 0,
            });
            let mut sim = Sim::start(SimDisk::from_bytes(bytes), None);
            sim.settle(|_, _| {});
            assert_eq!(sim.machine.store().applied().index, 2, "its birth, and its own entry");
        }
    }
}
