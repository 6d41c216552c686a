//! When the state core saves: checkpoints, and the answers that wait for one.
//!
//! ```text
//! Idle --change--> Waiting --100 ms, or enough bytes, or stop--> Writing --done--> Idle
//!                  Waiting --100 ms, few bytes, and nobody waits for it: up to 4 times--> Waiting
//!                  Waiting --stop, and no change--> Idle
//! Idle --a start would be long--> Waiting --2 s without a change--> Writing
//! Idle --a start would not be short--> Waiting --30 s with nothing to do--> Writing
//! ```

use std::time::Duration;

use bytes::Bytes;
use revd_engine::mvcc::{CheckpointKind, QuietTime, Store, WrittenCheckpoint};

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

/// The purpose of a checkpoint, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Changes that are not saved.
    Changes,
    /// Steps of a compaction, of a sweep behind one, of a defragmentation.
    Chores,
    /// Index that records have earned, and that earlier checkpoints have not saved.
    EarnedIndex,
    /// Index that a start would do without, and read records instead: in a quiet time.
    ShortStart(QuietTime),
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
    /// The work that there was last, and since when it waits.
    waits_for: Option<Work>,
    waits_since: u64,
    /// Bytes of the entries since the last one: the log keeps them, also those that change no key.
    entry_bytes: usize,
    /// The last checkpoint found no room: the next one waits a while.
    has_no_room: bool,
    /// The last one that began was without index that nothing waits for.
    is_bare: bool,
    /// The time that more of the index is worth, because a start would read many records, if that
    /// is known of the state since the last checkpoint.
    start_worth: Option<Option<QuietTime>>,
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

    /// The last checkpoint found no room, none was made for it, and one with less is none either.
    pub(super) fn finds_no_room(&self) -> bool {
        self.has_no_room && self.is_bare && self.phase != CheckpointPhase::Writing
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
        let (work, now) = (self.work(machine, is_stopping), effects.microseconds());
        if self.waits_for != work {
            (self.waits_for, self.waits_since) = (work, now);
        }
        let Some(work) = work else {
            if is_stopping {
                self.phase = CheckpointPhase::Idle; // what it waited for is left to the next start
            }
            return;
        };
        let store = machine.store();
        let is_much = store.unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        if due && self.may_wait(work, store, haste, now) {
            self.put_offs += u32::from(work == Work::Changes);
            self.phase = CheckpointPhase::Waiting;
            effects.remind(limits::CHECKPOINT_INTERVAL);
        } else if due || (is_much && !self.has_no_room) || (is_stopping && !self.finds_no_room()) {
            self.start(machine, work, is_stopping, effects);
        } else if self.phase == CheckpointPhase::Idle {
            self.phase = CheckpointPhase::Waiting;
            if work == Work::Changes && self.put_offs == 0 {
                self.waits_since = now;
            }
            effects.remind(match (self.has_no_room, store.has_chores()) {
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
        if store.has_chores() {
            return Some(Work::Chores);
        }
        if self.has_no_room {
            return None;
        }
        if store.is_index_behind() {
            return Some(Work::EarnedIndex);
        }
        let worth = || {
            [QuietTime::Short, QuietTime::Long].into_iter().find(|quiet| store.is_worth_quiet_time(*quiet))
        };
        (*self.start_worth.get_or_insert_with(worth)).map(Work::ShortStart)
    }

    /// A checkpoint that is due waits once more: for more changes, or for a quiet time.
    fn may_wait(&self, work: Work, store: &Store, haste: Haste, now: u64) -> bool {
        match work {
            Work::Changes => {
                let is_little = store.unsaved_bytes().max(self.entry_bytes) < limits::CHECKPOINT_BYTES_MIN;
                is_little
                    && haste == Haste::None
                    && !(store.has_chores() || self.has_no_room || self.is_awaited())
                    && self.may_be_put_off(now)
            }
            Work::ShortStart(QuietTime::Short) => self.waited(now) < limits::QUIET_TIME,
            Work::ShortStart(QuietTime::Long) => self.waited(now) < limits::LONG_QUIET_TIME,
            Work::Chores | Work::EarnedIndex => false,
        }
    }

    /// It was not put off often or for long. Reminders that come in the middle of a long entry are
    /// late.
    fn may_be_put_off(&self, now: u64) -> bool {
        let longest = limits::CHECKPOINT_INTERVAL * (self.put_offs_max + 1);
        self.put_offs < self.put_offs_max && self.waited(now) <= longest
    }

    fn waited(&self, now: u64) -> Duration {
        Duration::from_micros(now.saturating_sub(self.waits_since))
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
            // A stop does not wait for the index: a start reads the records that it does not know.
            // And the room that a full disk has left is for records.
            _ if is_stopping || self.has_no_room => CheckpointKind::WithoutIndex,
            Work::ShortStart(quiet) => CheckpointKind::Quiet(quiet),
            Work::Changes | Work::Chores | Work::EarnedIndex => CheckpointKind::Auto,
        };
        self.is_bare = kind == CheckpointKind::WithoutIndex;
        let Some(checkpoint) = machine.store_mut().checkpoint(kind) else {
            (self.phase, self.start_worth) = (CheckpointPhase::Idle, None);
            return;
        };
        self.phase = CheckpointPhase::Writing;
        let is_light = machine.store().unsaved_bytes() < limits::CHECKPOINT_BYTES_MAX / 8;
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
        self.start_worth = None;
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
        (self.start_worth, self.waits_for, self.has_no_room) = (None, None, false);
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

/// Results of the end of a checkpoint.
pub(super) struct Saved {
    /// The log may let go of everything up to here.
    pub(super) index: DurableIndex,
    /// Callers that waited for it.
    pub(super) answers: Vec<(CommandId, Outcome)>,
}

#[cfg(test)]
mod tests;
