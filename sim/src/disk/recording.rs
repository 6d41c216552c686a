//! A record of all that was done to a directory, to crash it anywhere.

use revd_engine::random::Random;

use crate::disk::contents::Contents;
use crate::disk::directory::Directory;
use crate::disk::faults::{Crash, DiskFaults};
use crate::disk::medium::{Medium, Recording, Step};

/// A directory to which the same is done again, step by step.
#[derive(Debug)]
pub struct Replay<'r> {
    steps: &'r [Step],
    done: usize,
    medium: Medium,
}

impl Directory {
    /// Remembers from now on what is done.
    pub fn record(&self) {
        self.contents().record();
    }

    /// Steps that were recorded: changes, and the beginnings and ends of jobs.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.contents().recording.as_ref().map_or(0, |recording| recording.steps.len())
    }

    /// All that was recorded.
    #[must_use]
    pub fn recorded(&self) -> Option<Recording> {
        self.contents().recording.clone()
    }
}

impl Recording {
    /// Does it again from the beginning.
    #[must_use]
    pub fn replay(&self) -> Replay<'_> {
        Replay { steps: &self.steps, done: 0, medium: self.start.clone() }
    }
}

impl Replay<'_> {
    /// Steps that are done again.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done
    }

    /// The next step; false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(step) = self.steps.get(self.done) else { return false };
        self.medium.step(step);
        self.done += 1;
        true
    }

    /// The directory that a crash here leaves. Jobs that are under way have happened in part.
    #[must_use]
    pub fn crash(&self, random: &mut Random, faults: &DiskFaults) -> (Directory, Crash) {
        let mut contents = Contents::of(self.medium.clone(), Random::new(random.number()));
        let crash = contents.crash(random, faults);
        (Directory::of(contents), crash)
    }
}
