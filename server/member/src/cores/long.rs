//! Work that is too long for a turn of the state core; it is handed to a thread of its own.

use crate::apply::lease_reports::LeaseList;
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::{FatalError, Machine};

/// The machine, on its way to carry out one command that takes long.
#[derive(Debug)]
pub struct LongCommand {
    pub(super) machine: Box<Machine>,
    pub(super) now: u64,
}

/// The machine, and the effects of a long command.
#[derive(Debug)]
pub struct FinishedCommand {
    pub(super) machine: Box<Machine>,
    pub(super) effects: Vec<Effect>,
    pub(super) result: Result<(), FatalError>,
}

impl LongCommand {
    /// Carries it out.
    #[must_use]
    pub fn run(self) -> FinishedCommand {
        let Self { mut machine, now } = self;
        let mut effects = Vec::new();
        let result = machine.step(now, &mut effects);
        FinishedCommand { machine, effects, result }
    }
}

/// A list of all leases that takes long to encode.
#[derive(Debug)]
pub struct LongList {
    pub(super) list: LeaseList,
    pub(super) revision: i64,
}

impl LongList {
    /// Encodes it.
    #[must_use]
    pub fn encode(self) -> Outcome {
        Outcome { revision: self.revision, result: Ok(self.list.encode()), rest: Rest::NONE }
    }
}
