//! When the state core saves: checkpoints, and the answers that wait for one.
//!
//! ```text
//! Idle --change--> Waiting --100 ms, or enough bytes, or stop--> Writing --done--> Idle
//!                  Waiting --100 ms, few bytes, and nobody waits for it: up to 4 times--> Waiting
//!                  Waiting --stop, and no change--> Idle
//! Idle --a start would be long--> Waiting --2 s without a change--> Writing
//! ```

use std::time::Duration;

use bytes::Bytes;
use revd_engine::mvcc::{CheckpointKind, Store, WrittenCheckpoint};

use crate::apply::command::CommandId;
use crate::apply::outcome::{Outcome, Rest};
use crate::apply::{DurableIndex, Machine};
use crate::cores::effects::{Note, StateEffects};
use crate::limits;

/// Where the checkpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CheckpointPhase {
    #[default]
    Idle,
    Waiting,
    Writing,
}

/// What a checkpoint is for, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Changes that are not saved.
    Changes,
    /// Steps of a compaction, of a sweep behind one, of a defragmentation.
    Chores,
    /// Index that records have earned, and that earlier checkpoints have not saved.
    EarnedIndex,
    /// Index that a start would do without, and read records instead: in a quiet time.
    ShortStart,
}

/// Why a checkpoint is not put off, however little it saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// No reason.
    None,
    /// A member waits to be sent a newer saved state.
    Streaming,
    /// This member stops.
    Stopping,
}

/// State core view: the checkpoint that comes or is under way.
#[derive(Debug, Default)]
pub(super) struct Saving {
    phase: CheckpointPhase,
    /// The time to wait since the last change is over.
    is_due: bool,
    /// How often a checkpoint of little may be put off.
    put_offs_max: u32,
    /// How often the one that waits was.
    put_offs: u32,
    /// Since when it waits.
    waits_since: u64,
    /// Bytes of the entries since the last one: the log keeps them, also those that change no key.
    entry_bytes: usize,
    /// The last checkpoint found no room: the next one waits a while.
    has_no_room: bool,
    /// Whether a start would read many records, if that is known of the state since the last
    /// checkpoint: more of the index is saved in a quiet time then.
    is_start_long: Option<bool>,
    /// Intervals since there was anything else to save.
    quiet: u32,
    /// The work that there was last.
    waits_for: Option<Work>,
    /// Answers that wait for the space that compactions free, and up to which revision.
    compacting: Vec<(i64, CommandId, Outcome)>,
    /// Callers that wait for a defragmentation that has not begun yet.
    defragment_next: Vec<CommandId>,
    /// Callers that wait for the defragmentation under way.
    defragmenting: Vec<CommandId>,
    /// News for the operator: the reply, as in etcd, says nothing of it.
    note: Option<Note>,
}

impl Saving {
    /// Checkpoints of little are put off so often.
    pub(super) fn put_off_little(&mut self, times: u32) {
        self.put_offs_max = times;
    }

    /// An entry of so many bytes is applied.
    pub(super) fn entry(&mut self, bytes: usize) {
        self.entry_bytes = self.entry_bytes.saturating_add(bytes);
    }

    /// Some time has passed since state last changed.
    pub(super) fn due(&mut self) {
        self.is_due = true;
    }

    /// A caller waits for a defragmentation.
    pub(super) fn defragment(&mut self, id: CommandId) {
        self.defragment_next.push(id);
    }

    /// An answer waits for the space that compactions up to a revision free.
    pub(super) fn when_compacted(&mut self, id: CommandId, outcome: Outcome, at: i64) {
        self.compacting.push((at, id, outcome));
    }

    /// The answers that wait for the space of a compaction. The compactions themselves are done.
    pub(super) fn take_compacted(&mut self) -> Vec<(CommandId, Outcome)> {
        self.compacted(i64::MAX)
    }

    /// The answers that wait for the space of compactions up to a revision.
    fn compacted(&mut self, revision: i64) -> Vec<(CommandId, Outcome)> {
        let is_free = |(at, ..): &mut (i64, CommandId, Outcome)| *at <= revision;
        self.compacting.extract_if(.., is_free).map(|(_, id, outcome)| (id, outcome)).collect()
    }

    /// The last checkpoint found no room, and none was made for it.
    pub(super) fn has_no_room(&self) -> bool {
        self.has_no_room
    }

    /// No checkpoint waits or is being written.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == CheckpointPhase::Idle
    }

    /// A checkpoint is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.phase == CheckpointPhase::Writing
    }

    /// A checkpoint waits for the end of an entry.
    pub(super) fn has_to_save(&self, machine: &Machine) -> bool {
        let much = !self.has_no_room && machine.store().unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        (self.is_due && self.phase == CheckpointPhase::Waiting)
            || (much && self.phase != CheckpointPhase::Writing)
    }

    /// Decides whether a checkpoint starts now, later, or not at all; not within an entry: the
    /// applied index that is saved is that of a whole entry, and so must be the state that is saved
    /// with it.
    pub(super) fn schedule(&mut self, machine: &mut Machine, haste: Haste, effects: &mut impl StateEffects) {
        if let Some(note) = self.note.take() {
            effects.note(note);
        }
        let due = std::mem::take(&mut self.is_due);
        if due && self.phase == CheckpointPhase::Waiting {
            self.phase = CheckpointPhase::Idle;
        }
        if self.phase == CheckpointPhase::Writing {
            return; // its end comes back here
        }
        self.begin_defragmentation(machine);
        let is_stopping = haste == Haste::Stopping;
        let work = self.work(machine, is_stopping);
        if work == Some(Work::Changes) && self.waits_for != work {
            self.waits_since = effects.microseconds();
        }
        self.quiet = if work == Some(Work::ShortStart) { self.quiet + u32::from(due) } else { 0 };
        self.waits_for = work;
        let Some(work) = work else {
            if is_stopping {
                self.phase = CheckpointPhase::Idle; // what it waited for is left to the next start
            }
            return;
        };
        let store = machine.store();
        let much = is_stopping || store.unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        if due && self.may_wait(work, machine, haste, effects.microseconds()) {
            self.put_offs += u32::from(work == Work::Changes);
            self.phase = CheckpointPhase::Waiting;
            effects.remind(limits::CHECKPOINT_INTERVAL);
        } else if due || (much && !self.has_no_room) {
            self.start(machine, work, is_stopping, effects);
        } else if self.phase == CheckpointPhase::Idle {
            self.phase = CheckpointPhase::Waiting;
            if self.put_offs == 0 {
                self.waits_since = effects.microseconds();
            }
            effects.remind(match (self.has_no_room, has_chores(store)) {
                (true, _) => limits::NO_SPACE_INTERVAL,
                (false, true) => limits::COMPACT_INTERVAL,
                (false, false) => limits::CHECKPOINT_INTERVAL,
            });
        }
    }

    /// The most urgent work of the next checkpoint. A member that stops leaves all but changes to
    /// its next start, which does it while it serves; and only changes and chores find what room a
    /// full disk has left.
    fn work(&mut self, machine: &Machine, is_stopping: bool) -> Option<Work> {
        let store = machine.store();
        if store.has_unsaved() {
            return Some(Work::Changes);
        }
        if is_stopping {
            return None;
        }
        if has_chores(store) {
            return Some(Work::Chores);
        }
        if self.has_no_room {
            return None;
        }
        if store.is_index_behind() {
            return Some(Work::EarnedIndex);
        }
        let is_start_long = *self.is_start_long.get_or_insert_with(|| store.is_start_long());
        is_start_long.then_some(Work::ShortStart)
    }

    /// A checkpoint that is due waits once more: for more changes, or for a quiet time.
    fn may_wait(&self, work: Work, machine: &Machine, haste: Haste, now: u64) -> bool {
        let store = machine.store();
        match work {
            Work::Changes => {
                let is_little = store.unsaved_bytes().max(self.entry_bytes) < limits::CHECKPOINT_BYTES_MIN;
                is_little
                    && haste == Haste::None
                    && !(has_chores(store) || self.has_no_room || self.is_awaited())
                    && self.may_be_put_off(now)
            }
            Work::ShortStart => self.quiet < limits::QUIET_INTERVALS,
            Work::Chores | Work::EarnedIndex => false,
        }
    }

    /// It was not put off often or for long. Reminders that come in the middle of a long entry are
    /// late.
    fn may_be_put_off(&self, now: u64) -> bool {
        let longest = limits::CHECKPOINT_INTERVAL * (self.put_offs_max + 1);
        let waited = Duration::from_micros(now.saturating_sub(self.waits_since));
        self.put_offs < self.put_offs_max && waited <= longest
    }

    /// Callers wait for one.
    fn is_awaited(&self) -> bool {
        !(self.compacting.is_empty() && self.defragmenting.is_empty() && self.defragment_next.is_empty())
    }

    /// Begins the next one; all callers that wait by now are served by it.
    fn begin_defragmentation(&mut self, machine: &mut Machine) {
        if !self.defragment_next.is_empty()
            && self.defragmenting.is_empty()
            && machine.store_mut().defragment().is_ok()
        {
            self.defragmenting.append(&mut self.defragment_next);
        }
    }

    fn start(
        &mut self,
        machine: &mut Machine,
        work: Work,
        is_stopping: bool,
        effects: &mut impl StateEffects,
    ) {
        (self.put_offs, self.entry_bytes) = (0, 0);
        let kind = match work {
            // A stop does not wait for the index: a start reads the records that it does not know. And
            // what a full disk has room for is kept for records.
            _ if is_stopping || self.has_no_room => CheckpointKind::WithoutIndex,
            Work::ShortStart => CheckpointKind::Quiet,
            Work::Changes | Work::Chores | Work::EarnedIndex => CheckpointKind::Auto,
        };
        let Some(checkpoint) = machine.store_mut().checkpoint(kind) else {
            self.phase = CheckpointPhase::Idle;
            return;
        };
        self.phase = CheckpointPhase::Writing;
        let saves_index = matches!(work, Work::EarnedIndex | Work::ShortStart);
        let is_light = !saves_index && machine.store().unsaved_bytes() < limits::CHECKPOINT_BYTES_MAX / 8;
        effects.write(checkpoint, is_light);
    }

    /// A checkpoint is over; what is durable by it. `made_room`: it found none, and there may be
    /// some now. A member that is to stop begins nothing that its next start begins as well.
    pub(super) fn written(
        &mut self,
        machine: &mut Machine,
        written: WrittenCheckpoint,
        made_room: bool,
        is_stopping: bool,
    ) -> Saved {
        let durable = machine.store_mut().finish_checkpoint(written);
        if !is_stopping {
            machine.free_where_nearly_full();
        }
        self.phase = CheckpointPhase::Idle;
        self.is_start_long = None;
        self.has_no_room = durable.no_space.is_some() && !made_room;
        let revision = machine.store().revision();
        let mut answers = self.compacted(durable.compacted);
        if !durable.defragmenting && !self.defragmenting.is_empty() {
            answers.append(&mut self.defragmented(revision));
            let sizes = machine.store().sizes();
            let note = |why| Note::FileStaysLong { why, file: sizes.file, in_use: sizes.in_use };
            self.note = machine.store().defragmentation_left().map(note);
        }
        Saved { index: DurableIndex::of(&durable), answers }
    }

    /// The store is another one, whose file was just made: no caller waits for the old one's.
    pub(super) fn replaced(&mut self, machine: &Machine) -> Vec<(CommandId, Outcome)> {
        let mut answers = self.defragmented(machine.store().revision());
        if !machine.store().compaction_pending() {
            answers.append(&mut self.take_compacted());
        }
        answers
    }

    /// The answers of those who wait for the defragmentation under way.
    fn defragmented(&mut self, revision: i64) -> Vec<(CommandId, Outcome)> {
        let outcome = Outcome { revision, result: Ok(Bytes::new()), rest: Rest::NONE };
        self.defragmenting.drain(..).map(|id| (id, outcome.clone())).collect()
    }
}

/// Chores that go on with each checkpoint.
fn has_chores(store: &Store) -> bool {
    store.compaction_pending() || store.is_sweeping() || store.is_defragmenting()
}

/// Results of the end of a checkpoint.
pub(super) struct Saved {
    /// The log may let go of everything up to here.
    pub(super) index: DurableIndex,
    /// Callers that waited for it.
    pub(super) answers: Vec<(CommandId, Outcome)>,
}

#[cfg(test)]
mod tests {
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
            let own = Origin { member: 1, boot: 1 };
            let config = MachineConfig { own, quota_bytes: i64::MAX, lease_extension: 0 };
            let mut machine = Machine::new(store, config).expect("a sound store");
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
            let is_told =
                matches!(saving.note, Some(Note::FileStaysLong { why, .. }) if why.contains("disk"));
            assert!(is_told, "{:?}", saving.note);
        }
    }

    /// A compaction at three quarters of the quota leaves some, and puts go on: what it has left is
    /// gone before the quota is full, although nobody compacts again. A member that stops lets it
    /// be.
    #[test]
    fn dead_records_go_when_the_quota_is_nearly_full() {
        let own = Origin { member: 1, boot: 1 };
        for (percent, is_stopping, goes) in [(200, false, false), (120, false, true), (120, true, false)] {
            let mut store = store();
            let before = records(&mut store);
            assert!(before > KEYS + KEYS / 10, "the compaction has left nothing");
            let quota_bytes = store.sizes().in_use.cast_signed() * percent / 100;
            let config = MachineConfig { own, quota_bytes, lease_extension: 0 };
            let mut machine = Machine::new(store, config).expect("a sound store");
            let mut saving = Saving::default();
            put(machine.store_mut(), KEYS);
            while let Some(checkpoint) = machine.store_mut().checkpoint(CheckpointKind::Auto) {
                saving.written(&mut machine, checkpoint.write().expect("room"), false, is_stopping);
            }
            let left = if goes { KEYS } else { before } + 1;
            assert_eq!(records(machine.store_mut()), left, "{percent} % of what is in use");
        }
    }

    /// What a schedule begins.
    #[derive(Default)]
    struct Begun {
        checkpoint: Option<Checkpoint>,
        is_reminded: bool,
    }

    impl StateEffects for Begun {
        fn microseconds(&self) -> u64 {
            0
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
        let (mut checkpoints, mut intervals) = (Vec::new(), 0);
        loop {
            let mut begun = Begun::default();
            saving.schedule(machine, haste, &mut begun);
            if let Some(checkpoint) = begun.checkpoint {
                let written = checkpoint.write().expect("room");
                saving.written(machine, written, false, haste == Haste::Stopping);
                checkpoints.push(std::mem::take(&mut intervals));
            } else if begun.is_reminded {
                saving.due();
                intervals += 1;
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
        assert!(store.is_start_long(), "a start would read half a round");
        store
    }

    fn machine(store: Store) -> Machine {
        let own = Origin { member: 1, boot: 1 };
        let config = MachineConfig { own, quota_bytes: i64::MAX, lease_extension: 0 };
        Machine::new(store, config).expect("a sound store")
    }

    /// Behind a load more of the index is saved, but only when nothing has changed for a while; a
    /// member that stops, or is to save what changes meanwhile, does not wait for that.
    #[test]
    fn the_index_is_saved_further_in_a_quiet_time() {
        let loaded = || machine(loaded(&SimDisk::new()));
        let (mut machine, mut saving) = (loaded(), Saving::default());
        let checkpoints = settle(&mut saving, &mut machine, Haste::None);
        assert!(!machine.store().is_start_long(), "{checkpoints:?}");
        let [first, rest @ ..] = &checkpoints[..] else { panic!("nothing was saved") };
        assert!(*first <= 5 && rest[0] >= limits::QUIET_INTERVALS, "{checkpoints:?}");
        assert!(rest.len() > 1 && rest[1..].iter().all(|intervals| *intervals <= 1), "{checkpoints:?}");
        assert_eq!(settle(&mut saving, &mut machine, Haste::None), [], "it is saved");

        // What changes meanwhile is saved as ever.
        put(machine.store_mut(), KEYS);
        let checkpoints = settle(&mut saving, &mut machine, Haste::None);
        assert!(checkpoints.len() == 1 && checkpoints[0] <= 1, "{checkpoints:?}");

        let (mut machine, mut saving) = (loaded(), Saving::default());
        assert_eq!(settle(&mut saving, &mut machine, Haste::Stopping), [0], "what has changed, and no more");
        assert!(!machine.store().has_unsaved() && machine.store().is_start_long());
    }

    /// Records that a start has read have earned the saving of the index, which is done at once; not
    /// by a member that stops.
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
            let mut machine = machine(store);
            let checkpoints = settle(&mut Saving::default(), &mut machine, haste);
            let is_stopping = haste == Haste::Stopping;
            assert_eq!(
                (checkpoints.is_empty(), machine.store().is_index_behind()),
                (is_stopping, is_stopping)
            );
            assert!(checkpoints.iter().all(|intervals| *intervals <= 1), "{checkpoints:?}");
        }
    }

    /// Where the disk has no room for it, the index waits for the next checkpoint of something else:
    /// it is tried once, nothing is refused for it, and the stop is a clean one.
    #[test]
    fn index_that_finds_no_room_is_tried_once() {
        let disk = SimDisk::new();
        let mut machine = machine(loaded(&disk));
        let mut saving = Saving::default();
        let mut begun = Begun::default();
        saving.schedule(&mut machine, Haste::Stopping, &mut begun);
        let written = begun.checkpoint.expect("what has changed").write().expect("room");
        saving.written(&mut machine, written, false, false);
        disk.limit(Some(disk.bytes().len() as u64));
        let mut tries = 0;
        for _ in 0..200 {
            let mut begun = Begun::default();
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
        let is_clean = !machine.store().has_unsaved() && !saving.has_no_room();
        assert!(is_clean && (1..=20).contains(&tries), "{tries} tries");
        disk.limit(None);
        put(machine.store_mut(), KEYS);
        settle(&mut saving, &mut machine, Haste::None);
        assert!(!machine.store().is_start_long(), "there is room again");
    }
}
