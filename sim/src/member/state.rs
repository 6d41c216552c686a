//! The state core's turns: what `server/src/cores/state.rs` carries out in production.

use std::time::Duration;

use revd_engine::mvcc::{Checkpoint, SavedState, View};
use revd_member::apply::command::CommandId;
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::ReplacedState;
use revd_member::apply::state_hashes::HashPoint;
use revd_member::apply::{DurableIndex, Lost, Machine};
use revd_member::cores::edge::Notification;
use revd_member::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use revd_member::cores::log_events::LogEvent;
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::cores::state::StateCore;
use revd_member::error::Error;

use crate::marks::Mark;
use crate::member::common::{Common, End, JobEnd, LogInput, StateInput};
use crate::outside::{Outside, Part, Timer};
use crate::time::Micros;

/// The state core.
pub(super) struct StatePart {
    pub(super) core: StateCore,
    pub(super) is_over: bool,
}

struct StateDriver<'p> {
    common: &'p mut Common,
    now: Micros,
    out: &'p mut Outside,
}

impl StatePart {
    /// A turn: all that has come, then what can be applied.
    pub(super) fn turn(&mut self, is_ready: bool, common: &mut Common, out: &mut Outside) -> Result<(), End> {
        let inputs = std::mem::take(&mut common.to_state);
        if self.is_over {
            return Ok(());
        }
        let failed = |error: &dyn std::fmt::Display| End::Failed(format!("the state core: {error}"));
        let core = &mut self.core;
        let now = common.clock.at(out.now());
        let mut driver = StateDriver { common: &mut *common, now, out };
        for input in inputs {
            let event = match input {
                StateInput::Core(event) => event,
                StateInput::Written(written) => {
                    let written = written.map_err(|error| End::DiskFailed(error.to_string()))?;
                    let made_room = written.has_no_room() && driver.common.directory.give_up_reserve();
                    StateEvent::Written { written, made_room }
                }
                StateInput::Installed(renamed) => {
                    renamed.map_err(End::DiskFailed)?;
                    driver.out.marks.reach(Mark::StateInstalled);
                    StateEvent::Installed
                }
            };
            core.receive(event, &mut driver).map_err(|error| failed(&error))?;
        }
        core.turn(Standpoint { is_ready }, &mut driver).map_err(|error| failed(&error))?;
        if core.is_over(&mut driver) {
            self.is_over = true;
            common.wake(Part::Edge, out);
        } else if core.can_go_on() {
            common.wake(Part::State, out);
        }
        Ok(())
    }
}

impl StateEffects for StateDriver<'_> {
    fn microseconds(&self) -> u64 {
        self.now
    }

    fn last_index(&self) -> u64 {
        self.common.status.last_index.load()
    }

    fn counted(&mut self, _counts: LeaseCounts) {}

    fn publish(&mut self, view: View, applied: u64, leases: usize) {
        self.common.status.leases.store(leases as u64);
        self.common.views.store(view);
        self.common.status.applied.store(applied);
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        if id.edge() == 0 {
            self.common.notify(Notification::Outcome(id, outcome), self.out);
        }
    }

    fn answer_member(&mut self, member: u64, id: CommandId, outcome: Outcome) {
        self.common.log_event(LogEvent::Answer { to: member, id, outcome }, self.out);
    }

    fn end_reads(&mut self, edge: u16, ticket: u64, result: Result<(), Error>) {
        assert_eq!(edge, 0, "there is one edge");
        self.common.notify(
            match result {
                Ok(()) => Notification::Read(ticket),
                Err(why) => {
                    self.out.marks.reach(Mark::ReadRefused);
                    Notification::ReadFailed(ticket, why)
                }
            },
            self.out,
        );
    }

    fn lost(&mut self, lost: Lost) {
        let Lost { numbers, why } = lost;
        self.common.notify(Notification::Lost(numbers[0], why), self.out);
    }

    fn hear(&mut self, question: u64) {
        self.common.notify(Notification::Hearing(question), self.out);
    }

    fn tell_of_view(&mut self) {
        if self.common.to_edge.is_empty() && self.common.views.is_followed(0) {
            self.common.notify(Notification::View, self.out);
        }
    }

    fn write(&mut self, checkpoint: Checkpoint, _is_light: bool) {
        self.common.spawn(|| JobEnd::Written(checkpoint.write().map(Box::new)), self.out);
    }

    fn remind(&mut self, after: Duration) {
        self.common.timer(after, Timer::Remind, self.out);
    }

    fn durable(&mut self, index: DurableIndex) {
        self.common.log_event(LogEvent::Durable(index), self.out);
    }

    fn run(&mut self, command: LongCommand) {
        self.out.marks.reach(Mark::LongCommand);
        self.common.spawn(|| JobEnd::Finished(Box::new(command.run())), self.out);
    }

    fn encode(&mut self, list: LongList) {
        self.common.spawn(|| JobEnd::Listed(list.encode()), self.out);
    }

    fn install(&mut self) {
        let directory = self.common.directory.clone();
        self.common.spawn(|| JobEnd::Installed(directory.install_received()), self.out);
    }

    fn discard(&mut self, state: ReplacedState) {
        drop(state);
    }

    fn stream(&mut self, to: u64, term: u64, state: Option<SavedState>) {
        self.common.log_input(LogInput::Send(to, term, state), self.out);
    }

    fn hashed(&mut self, to: u64, point: HashPoint, corrupt: &[u64]) {
        self.common.log_event(LogEvent::Hash { to, point, corrupt: corrupt.to_vec() }, self.out);
    }

    fn corrupt(&mut self, is_corrupt: bool) {
        self.common.status.is_corrupt.store(is_corrupt);
        self.out.truth.corrupt(self.common.identity.member, is_corrupt);
    }

    fn note(&mut self, _note: Note) {}

    fn applied(&mut self, machine: &mut Machine) {
        self.out.truth.applied(self.common.identity.member, machine);
    }
}
