//! Checkpoints of a store in memory, as they are scheduled.

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, Checkpoint, Revision, SavedState, View};

use super::*;
use crate::apply::command::Origin;
use crate::apply::lease_reports::LeaseCounts;
use crate::apply::received::ReplacedState;
use crate::apply::state_hashes::HashPoint;
use crate::apply::{Lost, MachineConfig};
use crate::cores::long::{LongCommand, LongList};
use crate::error::Error;

const KEYS: u64 = 1_000;

fn applied(store: &mut Store) {
    let index = store.applied().index + 1;
    store.set_applied(Applied { index, term: 1 });
}

fn put(store: &mut Store, number: u64) {
    let mut txn = store.begin();
    txn.put(&number.to_be_bytes(), &[7; 40], 0);
    txn.commit();
    applied(store);
}

fn records(store: &mut Store) -> u64 {
    let (view, mut count) = (store.view(), 0);
    let each = view.reader().each_record_after(Revision::default(), |_, _| {
        count += 1;
        Ok(true)
    });
    each.expect("a sound file");
    count
}

fn save(store: &mut Store) {
    while let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        store.finish_checkpoint(checkpoint.write().expect("room"));
    }
}

/// A store whose compaction has left dead records.
fn store() -> Store {
    let options = DbOptions { page_bytes_if_new: 512 };
    let mut store = Store::open(Arc::new(SimDisk::new()), options).expect("an empty disk");
    store.compact_as_large(100, 100); // so few are small
    (0..KEYS).for_each(|number| put(&mut store, number));
    (0..KEYS).step_by(5).for_each(|number| put(&mut store, number));
    save(&mut store);
    store.compact(store.revision()).expect("a revision that is there");
    applied(&mut store);
    save(&mut store);
    store
}

/// A caller of a defragmentation is answered although the disk stays full, also if a compaction
/// comes first; the operator is told why the file is as long as before.
#[test]
fn a_defragmentation_on_a_full_disk_ends_and_says_why() {
    for compacts in [false, true] {
        let disk = SimDisk::new();
        let options = DbOptions { page_bytes_if_new: 512 };
        let mut store = Store::open(Arc::new(disk.clone()), options).expect("an empty disk");
        (0..KEYS).for_each(|number| put(&mut store, number));
        save(&mut store);
        if compacts {
            (0..KEYS).for_each(|number| put(&mut store, number));
            store.compact(store.revision()).expect("a revision that is there");
        }
        let mut txn = store.begin();
        txn.put(b"large", &vec![7; 8 << 20], 0);
        txn.commit();
        applied(&mut store);
        disk.limit(Some(disk.bytes().len() as u64));
        let mut machine = machine(store, i64::MAX);
        let mut saving = Saving::default();
        let caller = CommandId::new(0, 1, 0);
        saving.defragment(caller);
        saving.begin_defragmentation(&mut machine);
        let (mut answers, mut checkpoints) = (Vec::new(), 0);
        while answers.is_empty() {
            let checkpoint = machine.store_mut().checkpoint(CheckpointKind::Auto).expect("much to save");
            let written = checkpoint.write().expect("no failure but that");
            assert!(written.has_no_room());
            answers = saving.written(&mut machine, written, false, false).answers;
            checkpoints += 1;
            assert!(checkpoints < 100, "the caller waits");
        }
        assert_eq!(answers[0].0, caller);
        let is_told = matches!(saving.note, Some(Note::FileStaysLong { why, .. }) if why.contains("disk"));
        assert!(is_told, "{:?}", saving.note);
    }
}

/// A compaction at three quarters of the quota leaves some, and puts go on: what it has left is
/// gone before the quota is full, although nobody compacts again. A member that stops lets it
/// be.
#[test]
fn dead_records_go_when_the_quota_is_nearly_full() {
    for (percent, is_stopping, goes) in [(200, false, false), (120, false, true), (120, true, false)] {
        let mut store = store();
        let before = records(&mut store);
        assert!(before > KEYS + KEYS / 10, "the compaction has left nothing");
        let quota_bytes = store.sizes().in_use.cast_signed() * percent / 100;
        let mut machine = machine(store, quota_bytes);
        let mut saving = Saving::default();
        put(machine.store_mut(), KEYS);
        while let Some(checkpoint) = machine.store_mut().checkpoint(CheckpointKind::Auto) {
            saving.written(&mut machine, checkpoint.write().expect("room"), false, is_stopping);
        }
        let left = if goes { KEYS } else { before } + 1;
        assert_eq!(records(machine.store_mut()), left, "{percent} % of what is in use");
    }
}

/// The effects of a schedule, at some time.
#[derive(Default)]
struct Begun {
    now: Duration,
    checkpoint: Option<Checkpoint>,
    is_reminded: bool,
}

impl StateEffects for Begun {
    fn microseconds(&self) -> u64 {
        u64::try_from(self.now.as_micros()).unwrap()
    }
    fn last_index(&self) -> u64 {
        0
    }
    fn write(&mut self, checkpoint: Checkpoint, _is_light: bool) {
        self.checkpoint = Some(checkpoint);
    }
    fn remind(&mut self, _after: Duration) {
        self.is_reminded = true;
    }
    fn counted(&mut self, _counts: LeaseCounts) {}
    fn publish(&mut self, _view: View, _applied: u64, _leases: usize) {}
    fn answer(&mut self, _id: CommandId, _outcome: Outcome) {}
    fn answer_member(&mut self, _member: u64, _id: CommandId, _outcome: Outcome) {}
    fn end_reads(&mut self, _edge: u16, _ticket: u64, _result: Result<(), Error>) {}
    fn lost(&mut self, _lost: Lost) {}
    fn hear(&mut self, _question: u64) {}
    fn tell_of_view(&mut self) {}
    fn durable(&mut self, _index: DurableIndex) {}
    fn run(&mut self, _command: LongCommand) {}
    fn encode(&mut self, _list: LongList) {}
    fn install(&mut self) {}
    fn discard(&mut self, _state: ReplacedState) {}
    fn stream(&mut self, _to: u64, _term: u64, _state: Option<SavedState>) {}
    fn hashed(&mut self, _to: u64, _point: HashPoint, _corrupt: &[u64]) {}
    fn corrupt(&mut self, _is_corrupt: bool) {}
    fn note(&mut self, _note: Note) {}
}

/// Schedules until nothing is left to do: intervals that passed before each checkpoint.
fn settle(saving: &mut Saving, machine: &mut Machine, haste: Haste) -> Vec<u32> {
    let (mut checkpoints, mut intervals, mut now) = (Vec::new(), 0, Duration::ZERO);
    loop {
        let mut begun = Begun { now, ..Begun::default() };
        saving.schedule(machine, haste, &mut begun);
        if let Some(checkpoint) = begun.checkpoint {
            let written = checkpoint.write().expect("room");
            saving.written(machine, written, false, haste == Haste::Stopping);
            checkpoints.push(std::mem::take(&mut intervals));
        } else if begun.is_reminded {
            saving.due();
            intervals += 1;
            now += limits::CHECKPOINT_INTERVAL;
        } else {
            return checkpoints;
        }
        assert!(intervals < 1_000 && checkpoints.len() < 1_000, "it has no end");
    }
}

/// A store whose index is saved in many steps, behind a load.
fn loaded(disk: &SimDisk) -> Store {
    let options = DbOptions { page_bytes_if_new: 512 };
    let mut store = Store::open(Arc::new(disk.clone()), options).expect("an empty disk");
    store.save_index_in_steps_of(40);
    for number in 0..KEYS {
        put(&mut store, number);
        if number % 50 == 0 {
            save(&mut store);
        }
    }
    assert!(store.is_worth_quiet_time(QuietTime::Short), "a start would read half a round");
    store
}

fn machine(store: Store, quota_bytes: i64) -> Machine {
    let own = Origin { member: 1, boot: 1 };
    let config = MachineConfig { own, quota_bytes, lease_extension: 0 };
    Machine::new(store, config).expect("a sound store")
}

/// Behind a load more of the index is saved, but only when nothing has changed for a while; a
/// member that stops, or is to save what changes meanwhile, does not wait for that.
#[test]
fn the_index_is_saved_further_in_a_quiet_time() {
    let loaded = || machine(loaded(&SimDisk::new()), i64::MAX);
    let (mut machine, mut saving) = (loaded(), Saving::default());
    let checkpoints = settle(&mut saving, &mut machine, Haste::None);
    assert!(!machine.store().is_worth_quiet_time(QuietTime::Long), "{checkpoints:?}");
    let [first, rest @ ..] = &checkpoints[..] else { panic!("nothing was saved") };
    assert!(*first <= 5, "{checkpoints:?}");
    let waited = |intervals: u32| limits::CHECKPOINT_INTERVAL * intervals;
    let (quiet, long) = (limits::QUIET_TIME, limits::LONG_QUIET_TIME);
    assert!(quiet <= waited(rest[0]) && waited(rest[0]) < long, "{checkpoints:?}");
    assert!(rest.len() > 1 && rest[1..].iter().all(|intervals| *intervals <= 1), "{checkpoints:?}");
    assert_eq!(settle(&mut saving, &mut machine, Haste::None), [], "it is saved");

    // Fewer records are worth it in a longer time.
    (0..KEYS / 15).for_each(|number| put(machine.store_mut(), number * 11));
    let checkpoints = settle(&mut saving, &mut machine, Haste::None);
    assert!(!machine.store().is_worth_quiet_time(QuietTime::Long), "{checkpoints:?}");
    let [first, second, rest @ ..] = &checkpoints[..] else { panic!("{checkpoints:?}") };
    assert!(*first <= 5 && waited(*second) >= long, "{checkpoints:?}");
    assert!(rest.iter().all(|intervals| *intervals <= 1), "{checkpoints:?}");

    // A change that comes meanwhile is saved as ever.
    put(machine.store_mut(), KEYS);
    let checkpoints = settle(&mut saving, &mut machine, Haste::None);
    assert!(checkpoints.len() == 1 && checkpoints[0] <= 1, "{checkpoints:?}");

    let (mut machine, mut saving) = (loaded(), Saving::default());
    assert_eq!(settle(&mut saving, &mut machine, Haste::Stopping), [0], "what has changed, and no more");
    assert!(!machine.store().has_unsaved() && machine.store().is_worth_quiet_time(QuietTime::Short));
}

/// Records that a start has read have earned the saving of the index, which is done at once; not by
/// a member that stops.
#[test]
fn what_records_have_earned_is_saved_when_they_have_come() {
    for haste in [Haste::None, Haste::Stopping] {
        let disk = SimDisk::new();
        let mut store = loaded(&disk);
        put(&mut store, KEYS);
        save(&mut store);
        drop(store);
        let mut store = Store::open(Arc::new(disk), DbOptions::default()).expect("a sound disk");
        store.save_index_in_steps_of(40);
        assert!(store.is_index_behind() && !store.has_unsaved());
        let mut machine = machine(store, i64::MAX);
        let checkpoints = settle(&mut Saving::default(), &mut machine, haste);
        let is_stopping = haste == Haste::Stopping;
        assert_eq!((checkpoints.is_empty(), machine.store().is_index_behind()), (is_stopping, is_stopping));
        assert!(checkpoints.iter().all(|intervals| *intervals <= 1), "{checkpoints:?}");
    }
}

/// Where the disk has no room for it, the index waits for the next checkpoint of something else:
/// it is tried once, nothing is refused for it, and the stop is a clean one.
#[test]
fn index_that_finds_no_room_is_tried_once() {
    let disk = SimDisk::new();
    let mut machine = machine(loaded(&disk), i64::MAX);
    let mut saving = Saving::default();
    let mut begun = Begun::default();
    saving.schedule(&mut machine, Haste::Stopping, &mut begun);
    let written = begun.checkpoint.expect("what has changed").write().expect("room");
    saving.written(&mut machine, written, false, false);
    disk.limit(Some(disk.bytes().len() as u64));
    let mut tries = 0;
    for interval in 0..200 {
        let mut begun = Begun { now: limits::CHECKPOINT_INTERVAL * interval, ..Begun::default() };
        saving.schedule(&mut machine, Haste::None, &mut begun);
        if let Some(checkpoint) = begun.checkpoint {
            let written = checkpoint.write().expect("no failure but that");
            assert!(!written.has_no_room(), "the reserve would be given up for it");
            saving.written(&mut machine, written, false, false);
            tries += 1;
        } else if begun.is_reminded {
            saving.due();
        }
    }
    let is_clean = !machine.store().has_unsaved() && !saving.has_no_room;
    assert!(is_clean && (1..=20).contains(&tries), "{tries} tries");
    disk.limit(None);
    put(machine.store_mut(), KEYS);
    settle(&mut saving, &mut machine, Haste::None);
    assert!(!machine.store().is_worth_quiet_time(QuietTime::Long), "there is room again");
}
