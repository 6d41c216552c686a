//! Changes that are not durable yet: what becomes of them by a sync, and by a crash.

use std::collections::{BTreeMap, BTreeSet};

use revd_engine::random::Random;

use crate::disk::faults::DiskFaults;
use crate::disk::image::{Change, Folder, Image, SECTOR, Target};

/// A change, and the job of which it is a part while that has not ended: it may have happened then,
/// or not.
#[derive(Debug, Clone)]
struct Entry {
    change: Change,
    job: Option<u64>,
    /// A sync of it has failed, and the cache takes it for clean: no later sync is for it.
    is_forgotten: bool,
}

impl Entry {
    fn new(change: Change, job: Option<u64>) -> Self {
        Self { change, job, is_forgotten: false }
    }

    /// Another one has changed the same sector, which is not clean any more then.
    fn is_touched_by(&self, other: &Change) -> bool {
        let Change::Write { file, offset, bytes } = &self.change else { return false };
        let end = offset + bytes.len();
        match other {
            Change::Write { file: of, offset: from, bytes } => {
                of == file && *from < end && *offset < from + bytes.len()
            }
            Change::SetLen { file: of, bytes } => of == file && bytes < &end,
            _ => false,
        }
    }
}

/// Changes in the order in which they were asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal {
    entries: Vec<Entry>,
    open: BTreeSet<u64>,
}

impl Journal {
    pub(super) fn begin(&mut self, job: u64) {
        self.open.insert(job);
    }

    pub(super) fn end(&mut self, job: u64, disk: &mut Image) {
        self.open.remove(&job);
        self.entries.iter_mut().filter(|entry| entry.job == Some(job)).for_each(|entry| entry.job = None);
        self.settle(disk);
    }

    pub(super) fn add(&mut self, change: Change, job: Option<u64>, disk: &mut Image) {
        let settles = change.is_sync() && job.is_none();
        self.entries.push(Entry::new(change, job));
        if settles {
            self.settle(disk);
        }
    }

    /// All that is synced, and part of no job that is under way, is on the disk from now on.
    fn settle(&mut self, disk: &mut Image) {
        let (mut under_way, mut synced) = (BTreeSet::new(), BTreeMap::new());
        for (at, Entry { change, job, .. }) in self.entries.iter().enumerate() {
            if job.is_some() {
                under_way.insert(change.target());
            } else if change.is_sync() {
                synced.insert(change.target(), at);
            }
        }
        synced.retain(|target, _| !under_way.contains(target));
        for (at, entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let is_synced = synced.get(&entry.change.target()).is_some_and(|last| at <= *last);
            if entry.is_forgotten || !is_synced {
                // In their order: a crash keeps the first changes of a job.
                self.entries.push(entry);
                continue;
            }
            let is_written = |it: &mut Entry| it.is_forgotten && it.is_touched_by(&entry.change);
            for earlier in self.entries.extract_if(.., is_written) {
                disk.apply(&earlier.change);
            }
            disk.apply(&entry.change);
        }
    }

    /// A sync of this has failed: it was for all that was written since the one before.
    pub(super) fn forget(&mut self, target: Target) {
        let is_sync = |entry: &Entry| entry.change.is_sync() && entry.change.target() == target;
        let since = self.entries.iter().rposition(is_sync).map_or(0, |at| at + 1);
        for entry in self.entries.split_off(since) {
            let Change::Write { file, offset, bytes } = &entry.change else {
                self.entries.push(entry);
                continue;
            };
            if entry.change.target() != target {
                self.entries.push(entry);
                continue;
            }
            // By sectors: each may be written again by itself.
            for (at, sector) in (0..bytes.len()).step_by(SECTOR).zip(bytes.chunks(SECTOR)) {
                let bytes = bytes.slice_ref(sector);
                let change = Change::Write { file: *file, offset: offset + at, bytes };
                self.entries.push(Entry { change, job: entry.job, is_forgotten: true });
            }
        }
    }

    /// A crash: of each job that is under way, some of its first changes have happened, and a part
    /// of the next one if it is a write. Returns writes that were cut off.
    pub(super) fn cut_jobs(&mut self, random: &mut Random) -> Vec<Change> {
        let mut cut = Vec::new();
        for job in std::mem::take(&mut self.open) {
            let count = self.entries.iter().filter(|entry| entry.job == Some(job)).count() as u64;
            let (done, mut seen) = (random.below(count + 1), 0);
            self.entries.retain_mut(|entry| {
                if entry.job != Some(job) {
                    return true;
                }
                entry.job = None;
                seen += 1;
                if seen == done + 1 && matches!(entry.change, Change::Write { .. }) {
                    cut.push(entry.change.clone());
                }
                seen <= done
            });
        }
        cut
    }

    /// Adds those sectors of a write that chance keeps.
    pub(super) fn add_torn(&mut self, change: &Change, random: &mut Random) {
        let Change::Write { file, offset, bytes } = change else { return };
        for (at, sector) in (0..bytes.len()).step_by(SECTOR).zip(bytes.chunks(SECTOR)) {
            if random.one_in(2) {
                let bytes = bytes.slice_ref(sector);
                let change = Change::Write { file: *file, offset: offset + at, bytes };
                self.entries.push(Entry::new(change, None));
            }
        }
    }

    /// The image that the next process sees when only the process before died.
    pub(super) fn replay(&self, disk: &Image) -> Image {
        let mut image = disk.clone();
        self.entries.iter().for_each(|entry| image.apply(&entry.change));
        image
    }

    /// The power failed: unsynced writes are lost whole or by sectors, unsynced names from the
    /// first one on that is lost.
    pub(super) fn lose(&mut self, disk: &mut Image, random: &mut Random, faults: &DiskFaults) {
        let mut last_sync: BTreeMap<Target, usize> = BTreeMap::new();
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.change.is_sync()) {
            last_sync.insert(entry.change.target(), at);
        }
        let mut undone: BTreeSet<Folder> = BTreeSet::new();
        for (at, Entry { change, is_forgotten, .. }) in self.entries.drain(..).enumerate() {
            let is_synced = last_sync.get(&change.target()).is_some_and(|last| at <= *last);
            if is_synced && !is_forgotten {
                disk.apply(&change);
                continue;
            }
            match change.target() {
                Target::File(_) if chance(random, faults.lost_write) => {}
                Target::File(_) => disk.apply_sectors(&change, &mut || !chance(random, faults.lost_sector)),
                Target::Names(folder) => {
                    if undone.contains(&folder) || chance(random, faults.undone_name) {
                        undone.insert(folder);
                    } else {
                        disk.apply(&change);
                    }
                }
            }
        }
    }

    /// Files that some change names, or that a name may come back to.
    pub(super) fn files(&self) -> BTreeSet<usize> {
        let files = self.entries.iter().filter_map(|entry| match &entry.change {
            Change::Write { file, .. }
            | Change::SetLen { file, .. }
            | Change::Sync { file }
            | Change::Make { file, .. } => Some(*file),
            _ => None,
        });
        files.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

pub(super) fn chance(random: &mut Random, of_thousand: u32) -> bool {
    random.below(1_000) < u64::from(of_thousand)
}
