//! Durable bytes, the changes that are not durable yet, and what a crash makes of both.

use std::collections::BTreeSet;

use revd_engine::random::Random;

use crate::disk::faults::DiskFaults;
use crate::disk::image::{Change, FileNumber, Folder, Image, Target};
use crate::disk::journal::Journal;

/// The disk itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Medium {
    pub(super) durable: Image,
    journal: Journal,
}

/// Something that is done to it.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Change(Change, Option<u64>),
    /// A job begins.
    Begin(u64),
    End(u64),
    /// A write of a dead process reaches the disk.
    Land(Change),
    /// A sync has failed.
    Forget(Target),
}

/// All that was done to a directory since it is recorded.
#[derive(Debug, Clone)]
pub struct Recording {
    pub(super) start: Medium,
    pub(super) steps: Vec<Step>,
}

impl Medium {
    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Change(change, job) => self.journal.add(change.clone(), *job, &mut self.durable),
            Step::Begin(job) => self.journal.begin(*job),
            Step::End(job) => self.journal.end(*job, &mut self.durable),
            // Behind the changes before it: a later sync is for all of them, in their order.
            Step::Land(change) => self.journal.add(change.clone(), None, &mut self.durable),
            Step::Forget(target) => self.journal.forget(*target),
        }
    }

    /// Changes that are not durable.
    pub(super) fn unsynced(&self) -> usize {
        self.journal.len()
    }

    /// The image that a process sees.
    pub(super) fn live(&self) -> Image {
        self.journal.replay(&self.durable)
    }

    /// Whether a process that has changed its image with each change sees what the disk would show
    /// to the next one.
    pub(super) fn shows(&self, live: &Image) -> bool {
        let medium = self.live();
        live.names == medium.names && live.names.values().all(|file| live.has_equal(*file, &medium))
    }

    /// The process dies alone, in the middle of its jobs. Returns writes that land later, with the
    /// number of calls until then: they may be those of the log, which go past the cache. Others
    /// end before the process does.
    pub(super) fn lose_process(&mut self, random: &mut Random) -> Vec<(u64, Change)> {
        let names = self.live().names;
        let is_of_log = |change: &Change| {
            let mut of_log = names.iter().filter(|((folder, _), _)| *folder == Folder::Log);
            of_log.any(|(_, file)| change.target() == Target::File(*file))
        };
        let mut late = Vec::new();
        for change in self.journal.cut_jobs(random) {
            match random.below(3) {
                0 if is_of_log(&change) => late.push((1 + random.below(12), change)),
                0 | 1 => self.journal.add(change, None, &mut self.durable),
                _ => self.journal.add_torn(&change, random),
            }
        }
        late
    }

    /// The power fails.
    pub(super) fn lose_power(&mut self, random: &mut Random, faults: &DiskFaults) {
        let cut = self.journal.cut_jobs(random);
        self.journal.lose(&mut self.durable, random, faults);
        for change in cut {
            // Sectors in their order, or any.
            let (in_order, mut left) = (random.one_in(2), random.below(24));
            let mut keeps = || {
                left = left.saturating_sub(1);
                if in_order { left > 0 } else { random.one_in(2) }
            };
            self.durable.apply_sectors(&change, &mut keeps);
        }
        // With the name of a folder all names in it are gone.
        for (name, folder) in [("member", Folder::Member), ("wal", Folder::Log)] {
            if self.durable.file(Folder::Data, name).is_none() {
                self.durable.names.retain(|(of, _), _| *of != folder);
            }
        }
    }

    /// Forgets files that have no name any more, and which no change can give one; returns the
    /// others.
    pub(super) fn forget_files(&mut self, live: &Image) -> BTreeSet<FileNumber> {
        let mut used = self.journal.files();
        used.extend(live.names.values().chain(self.durable.names.values()));
        self.durable.files.retain(|file, _| used.contains(file));
        used
    }
}
