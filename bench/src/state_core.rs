//! The state core of the `cores` program: its loop as it ships, with nobody around it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use revd_bench::cpu_time;
use revd_engine::mvcc::{Checkpoint, Garbage, SavedState, View};
use revd_member::apply::command::CommandId;
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::ReplacedState;
use revd_member::apply::state_hashes::HashPoint;
use revd_member::apply::{CommittedEntry, DurableIndex, Lost, Machine, Work};
use revd_member::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::cores::state::StateCore;
use revd_member::error::Error;

/// As many as a core at its limit applies between two checkpoints.
const PUTS_PER_CHECKPOINT: u64 = 30_000;

/// A state core, and what it costs.
pub(crate) struct StateBench {
    core: StateCore,
    around: Around,
    unsaved: u64,
    garbage: Arc<Mutex<Vec<Garbage>>>,
    pub(crate) spent: Spent,
}

/// CPU time.
#[derive(Default)]
pub(crate) struct Spent {
    /// On the state core.
    pub(crate) state: Duration,
    /// On a helper thread: checkpoints as they are written.
    pub(crate) writing: Duration,
    /// On the thread of the collector: what Views leave behind, where that is much.
    pub(crate) freeing: Duration,
}

/// The surroundings of the core.
struct Around {
    begun: Instant,
    /// The newest View: the slot of the edges has it.
    view: Option<View>,
    answers: u64,
    /// A reminder is wanted.
    reminds: bool,
    checkpoints: VecDeque<Checkpoint>,
}

impl StateBench {
    #[allow(clippy::disallowed_methods, reason = "turns end by a clock, as in the server")]
    pub(crate) fn new(machine: Machine) -> Self {
        let garbage = Arc::new(Mutex::new(Vec::new()));
        let pile = Arc::clone(&garbage);
        machine.store().collect_garbage(move |left| pile.lock().expect("one thread").push(left));
        let around = Around {
            begun: Instant::now(),
            view: None,
            answers: 0,
            reminds: false,
            checkpoints: VecDeque::new(),
        };
        Self { core: StateCore::new(machine, 1), around, unsaved: 0, garbage, spent: Spent::default() }
    }

    /// Index of the last entry.
    pub(crate) fn applied(&self) -> u64 {
        self.core.machine().map_or(0, |machine| machine.store().applied().index)
    }

    /// Applies entries of so many puts, so many entries at a time, as one message of the log core.
    pub(crate) fn apply(
        &mut self,
        entries: Vec<CommittedEntry>,
        at_once: usize,
        puts: u64,
    ) -> anyhow::Result<()> {
        let answers = self.around.answers + puts;
        let mut entries = entries.into_iter().map(Work::Entry).peekable();
        let mut messages = Vec::new();
        while entries.peek().is_some() {
            messages.push(StateEvent::Work(entries.by_ref().take(at_once).collect()));
        }
        let begun = cpu_time()?;
        for message in messages {
            self.core.receive(message, &mut self.around)?;
            self.turns()?;
        }
        self.spent.state += cpu_time()? - begun;
        anyhow::ensure!(
            self.around.answers == answers,
            "{} puts of {answers} are answered",
            self.around.answers
        );
        self.unsaved += puts;
        if self.unsaved >= PUTS_PER_CHECKPOINT && std::mem::take(&mut self.around.reminds) {
            self.unsaved = 0;
            let begun = cpu_time()?;
            self.core.receive(StateEvent::CheckpointDue, &mut self.around)?;
            self.turns()?;
            self.spent.state += cpu_time()? - begun;
        }
        self.elsewhere()
    }

    fn turns(&mut self) -> anyhow::Result<()> {
        loop {
            self.core.turn(Standpoint { is_ready: true }, &mut self.around)?;
            if !self.core.can_go_on() || !self.around.checkpoints.is_empty() {
                return Ok(());
            }
        }
    }

    /// The part of others.
    fn elsewhere(&mut self) -> anyhow::Result<()> {
        while let Some(checkpoint) = self.around.checkpoints.pop_front() {
            let begun = cpu_time()?;
            let written = Box::new(checkpoint.write()?);
            let ended = cpu_time()?;
            self.core.receive(StateEvent::Written { written, made_room: false }, &mut self.around)?;
            self.turns()?;
            self.spent.state += cpu_time()? - ended;
            self.spent.writing += ended - begun;
        }
        let garbage = std::mem::take(&mut *self.garbage.lock().expect("one thread"));
        let begun = cpu_time()?;
        drop(garbage);
        self.spent.freeing += cpu_time()? - begun;
        Ok(())
    }
}

impl StateEffects for Around {
    fn microseconds(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).expect("a short time")
    }

    fn publish(&mut self, view: View, _: u64, _: usize) {
        self.view = Some(view);
    }

    fn answer(&mut self, _: CommandId, outcome: Outcome) {
        self.answers += u64::from(std::hint::black_box(outcome).result.is_ok());
    }

    fn write(&mut self, checkpoint: Checkpoint, _: bool) {
        self.checkpoints.push_back(checkpoint);
    }

    fn remind(&mut self, _: Duration) {
        self.reminds = true;
    }

    fn last_index(&self) -> u64 {
        0
    }

    fn counted(&mut self, _: LeaseCounts) {}
    fn answer_member(&mut self, _: u64, _: CommandId, _: Outcome) {}
    fn end_reads(&mut self, _: u16, _: u64, _: Result<(), Error>) {}
    fn lost(&mut self, _: Lost) {}
    fn hear(&mut self, _: u64) {}
    fn tell_of_view(&mut self) {}
    fn durable(&mut self, _: DurableIndex) {}
    fn run(&mut self, _: LongCommand) {}
    fn encode(&mut self, _: LongList) {}
    fn install(&mut self) {}
    fn discard(&mut self, _: ReplacedState) {}
    fn stream(&mut self, _: u64, _: u64, _: Option<SavedState>) {}
    fn hashed(&mut self, _: u64, _: HashPoint, _: &[u64]) {}
    fn corrupt(&mut self, _: bool) {}
    fn note(&mut self, _: Note) {}
}
