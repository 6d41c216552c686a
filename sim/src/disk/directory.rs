//! A member's data directory, which outlives the processes of the member.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use revd_engine::random::Random;

use crate::disk::contents::Contents;
use crate::disk::faults::{Begun, Crash, DiskFaults, Trouble};
use crate::disk::image::Folder;
use crate::disk::medium::Medium;

/// A member's directory. Clones share it.
#[derive(Clone)]
pub struct Directory(Arc<Mutex<Contents>>);

impl Directory {
    /// An empty one.
    #[must_use]
    pub fn new(random: Random) -> Self {
        Self::of(Contents::of(Medium::default(), random))
    }

    pub(super) fn of(contents: Contents) -> Self {
        Self(Arc::new(Mutex::new(contents)))
    }

    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process is killed, or its machine fails: calls that have not ended happened in part,
    /// unsynced writes are lost, torn or there. Handles of the process are dead: they change
    /// nothing any more.
    pub fn crash(&self, random: &mut Random, faults: &DiskFaults) -> Crash {
        let faults = faults.of_crash(random);
        self.contents().crash(random, &faults)
    }

    /// The process ends by itself, or has refused to start.
    pub fn leave(&self) {
        let mut contents = self.contents();
        let mut random = contents.random.clone();
        contents.crash(&mut random, &DiskFaults::PROCESS);
    }

    /// All its bytes are compared with the journal at one crash in four only: in long runs.
    pub fn compare_seldom(&self) {
        self.contents().compares_one_in = 4;
    }

    /// From now on the disk has this trouble, or none.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.contents().set_trouble(trouble);
    }

    /// The disk has so many bytes in all; with little room files grow by no more than they need.
    pub fn set_size(&self, bytes: u64) {
        self.contents().set_size(bytes);
    }

    /// Runs a helper's job (a checkpoint that is written, a part of a state, a rename, a start) at
    /// once; none of its changes is sure to have happened before it ends. The world hands its
    /// result on only then.
    ///
    /// # Panics
    /// If it runs a job itself.
    pub fn job<T>(&self, job: impl FnOnce() -> T) -> (T, Begun) {
        self.contents().begin_job();
        let result = job();
        (result, self.contents().end_of_job_changes())
    }

    /// The calls of the log's handles that were begun since the last time.
    pub fn take_begun(&self) -> Vec<Begun> {
        std::mem::take(&mut self.contents().begun)
    }

    /// The disk has no room for something: gives the reserve up, if that has not happened yet; true
    /// if there may be room now.
    pub fn give_up_reserve(&self) -> bool {
        self.contents().give_up_reserve()
    }

    /// Makes the reserve, or makes it again; false if there is no room for it.
    pub fn fill_reserve(&self) -> bool {
        self.contents().fill_reserve()
    }

    /// The disk was found full, and had no room for the reserve since.
    #[must_use]
    pub fn is_found_full(&self) -> bool {
        self.contents().is_found_full()
    }

    /// Flips a bit of a file at rest: its path, and where; none if there is nothing to flip.
    pub fn rot(&self, random: &mut Random) -> Option<(String, u64)> {
        self.contents().rot(random)
    }

    /// Changes bits of a file at rest; false if there is no such byte.
    pub fn damage(&self, folder: Folder, name: &str, offset: usize, bits: u8) -> bool {
        let mut contents = self.contents();
        let file = contents.live.file(folder, name).filter(|file| offset < contents.live.len(*file));
        file.inspect(|file| contents.flip(*file, offset, bits)).is_some()
    }

    /// Names and lengths of all files, for a reader of a failure.
    #[must_use]
    pub fn listing(&self) -> Vec<(String, usize)> {
        let contents = self.contents();
        let path = |folder: &Folder, name: &str| format!("{}/{name}", folder.path());
        let names = contents.live.names.iter();
        names.map(|((folder, name), file)| (path(folder, name), contents.live.len(*file))).collect()
    }
}
