//! Effects of the log core and of the state core, on their way: the member carries them out one at
//! a time.

use std::collections::VecDeque;
use std::time::Duration;

use revd_engine::mvcc::{Checkpoint, SavedState, View};
use revd_engine::random::Random;
use revd_member::apply::command::CommandId;
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::{ReceivedState, ReplacedState};
use revd_member::apply::state_hashes::HashPoint;
use revd_member::apply::{DurableIndex, Lost, Machine, Work};
use revd_member::cores::effects::{Note, StateEffects};
use revd_member::cores::log_events::LogEffects;
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::error::Error;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::wal::FrameContent;

use crate::hash_of;

/// A job of the log's writer.
pub(crate) enum WalJob {
    Append(FrameContent),
    Release(u64),
}

/// Effects of the log core, on their way.
#[derive(Default)]
pub(crate) struct FromLog {
    pub(crate) jobs: VecDeque<WalJob>,
    pub(crate) work: VecDeque<Work>,
}

impl LogEffects for FromLog {
    fn append(&mut self, frame: FrameContent) {
        self.jobs.push_back(WalJob::Append(frame));
    }

    fn release(&mut self, index: u64) {
        self.jobs.push_back(WalJob::Release(index));
    }

    fn work(&mut self, work: Work) {
        self.work.push_back(work);
    }

    fn send(&mut self, _to: u64, _message: PeerMessage) {
        unreachable!("there are no other members");
    }

    fn fetch(&mut self, _fetch: LogFetch) {
        unreachable!("there are no other members");
    }

    fn set_peers(&mut self, _peers: Vec<Peer>) {}

    fn discard(&mut self, _state: Box<ReceivedState>) {
        unreachable!("there are no other members");
    }

    fn installed(&mut self) {
        unreachable!("there are no other members");
    }
}

/// A View, and its hash when it was published.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) view: View,
    pub(crate) hash: u32,
}

/// An effect of the state core that is not carried out yet.
pub(crate) enum Effect {
    /// The View, and the last entry that is whole in it.
    Publish(View, u64),
    Answer(CommandId, Outcome),
    Write(Box<Checkpoint>),
    Remind,
    Durable(DurableIndex),
    Run(LongCommand),
}

/// Effects of the state core, on their way.
pub(crate) struct FromState {
    pub(crate) effects: VecDeque<Effect>,
    /// Reading the clock takes time: how much, is random, so that turns end anywhere.
    pub(crate) random: std::cell::RefCell<Random>,
    pub(crate) microseconds: std::cell::Cell<u64>,
    /// By log index: revision and hash of the state after it.
    pub(crate) truth: Vec<(i64, u32)>,
    /// It has stopped on a full disk.
    pub(crate) is_unsaved: bool,
}

impl StateEffects for FromState {
    fn microseconds(&self) -> u64 {
        self.microseconds.set(self.microseconds.get() + self.random.borrow_mut().below(700));
        self.microseconds.get()
    }

    fn last_index(&self) -> u64 {
        unreachable!("there are no leases")
    }

    fn counted(&mut self, _counts: LeaseCounts) {}

    fn publish(&mut self, view: View, applied: u64, _leases: usize) {
        self.effects.push_back(Effect::Publish(view, applied));
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        self.effects.push_back(Effect::Answer(id, outcome));
    }

    fn answer_member(&mut self, member: u64, _id: CommandId, _outcome: Outcome) {
        unreachable!("member {member} does not exist");
    }

    fn end_reads(&mut self, _edge: u16, ticket: u64, _result: Result<(), Error>) {
        unreachable!("nobody waits to read with ticket {ticket}");
    }

    fn lost(&mut self, lost: Lost) {
        unreachable!("a sole voter loses nothing: {lost:?}");
    }

    fn hear(&mut self, _question: u64) {
        unreachable!("there are no leases");
    }

    fn tell_of_view(&mut self) {}

    fn write(&mut self, checkpoint: Checkpoint, _is_light: bool) {
        self.effects.push_back(Effect::Write(Box::new(checkpoint)));
    }

    fn remind(&mut self, _after: Duration) {
        self.effects.push_back(Effect::Remind);
    }

    fn durable(&mut self, index: DurableIndex) {
        self.effects.push_back(Effect::Durable(index));
    }

    fn run(&mut self, command: LongCommand) {
        self.effects.push_back(Effect::Run(command));
    }

    fn encode(&mut self, _list: LongList) {
        unreachable!("there are no leases");
    }

    fn install(&mut self) {
        unreachable!("there are no other members");
    }

    fn discard(&mut self, _state: ReplacedState) {
        unreachable!("there are no other members");
    }

    fn stream(&mut self, _to: u64, _term: u64, _state: Option<SavedState>) {
        unreachable!("there are no other members");
    }

    fn hashed(&mut self, to: u64, _point: HashPoint, _corrupt: &[u64]) {
        unreachable!("member {to} does not exist");
    }

    fn corrupt(&mut self, _is_corrupt: bool) {
        unreachable!("there are no alarms");
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::StoppedUnsaved => self.is_unsaved = true,
            Note::FileStaysLong { .. } => {}
            Note::LeasesReset { .. } => unreachable!("there are no leases"),
        }
    }

    fn applied(&mut self, machine: &mut Machine) {
        let view = machine.store_mut().view();
        self.truth.push((view.revision(), hash_of(view)));
        assert_eq!(self.truth.len() as u64 - 1, machine.store().applied().index);
    }
}
