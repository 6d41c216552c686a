//! The disk under a directory: what a process sees, what is durable, and its troubles.

use std::collections::BTreeMap;
use std::io;

use revd_engine::random::Random;

use crate::disk::faults::{Begun, Crash, DiskFaults, Ticket, Trouble};
use crate::disk::image::{Change, FileNumber, Folder, Image};
use crate::disk::journal::chance;
use crate::disk::log_calls::LogCalls;
use crate::disk::medium::{Medium, Recording, Step};
use crate::time::Micros;

/// Bytes of the reserve: a segment of the log, and a checkpoint.
pub const RESERVE_BYTES: usize = 256 * 1024;
/// Name of the reserve in `member/`.
const RESERVE: &str = "reserve";
/// Files without a name that are kept before they are looked for.
const FILES_KEPT: usize = 32;

/// All that a directory is.
pub(super) struct Contents {
    pub(super) random: Random,
    pub(super) live: Image,
    medium: Medium,
    pub(super) recording: Option<Recording>,
    next_file: FileNumber,
    next_ticket: u64,
    /// The process that uses the directory now; handles of earlier ones are dead.
    pub(super) process: u64,
    pub(super) is_locked: bool,
    /// Changes belong to this job.
    job: Option<u64>,
    cost: Micros,
    /// The cost without the trouble of the disk.
    usual: Micros,
    trouble: Trouble,
    has_failed: bool,
    /// Bytes that there is room for; none if the disk has no end.
    free: Option<u64>,
    is_found_full: bool,
    /// One crash of so many has the bytes that a process sees compared with the journal.
    pub(super) compares_one_in: u64,
    /// A bit has flipped at rest since the process began.
    has_flipped: bool,
    pub(super) begun: Vec<Begun>,
    pub(super) log: LogCalls,
    /// Writes of dead processes that land after so many calls.
    late: Vec<(u64, Change)>,
}

impl Contents {
    /// The disk as an earlier process has left it.
    pub(super) fn of(medium: Medium, random: Random) -> Self {
        let live = medium.live();
        let next_file = live.files.keys().max().map_or(0, |last| last + 1);
        Self {
            random,
            live,
            medium,
            recording: None,
            next_file,
            next_ticket: 0,
            process: 0,
            is_locked: false,
            job: None,
            cost: 0,
            usual: 0,
            trouble: Trouble::default(),
            has_failed: false,
            free: None,
            is_found_full: false,
            compares_one_in: 1,
            has_flipped: false,
            begun: Vec::new(),
            log: LogCalls::default(),
            late: Vec::new(),
        }
    }

    pub(super) fn record(&mut self) {
        self.recording = Some(Recording { start: self.medium.clone(), steps: Vec::new() });
    }

    fn step(&mut self, step: Step) {
        self.medium.step(&step);
        if let Some(recording) = &mut self.recording {
            recording.steps.push(step);
        }
    }

    pub(super) fn set_trouble(&mut self, trouble: Trouble) {
        match (self.trouble.is_full, trouble.is_full) {
            (false, true) => self.free = Some(0),
            (true, false) => self.free = None,
            _ => {}
        }
        self.has_failed = false;
        self.trouble = trouble;
    }

    /// Changes belong to a job from now on.
    pub(super) fn begin_job(&mut self) -> u64 {
        assert!(self.job.is_none(), "one job begins at a time");
        self.next_ticket += 1;
        self.step(Step::Begin(self.next_ticket));
        (self.job, self.cost, self.usual) = (Some(self.next_ticket), 0, 0);
        self.next_ticket
    }

    /// All changes of the job are asked for.
    pub(super) fn end_of_job_changes(&mut self) -> Begun {
        let ticket = Ticket(self.job.take().expect("a job was begun"));
        Begun { ticket, cost: self.cost, usual: self.usual }
    }

    pub(super) fn end(&mut self, ticket: Ticket) {
        self.step(Step::End(ticket.0));
        self.land_late();
        if self.live.files.len() > FILES_KEPT {
            self.forget_files();
        }
    }

    /// Writes of a dead process, which nothing waits for, reach the disk now and then.
    pub(super) fn land_late(&mut self) {
        self.late.iter_mut().for_each(|(after, _)| *after = after.saturating_sub(1));
        let landing: Vec<_> = self.late.extract_if(.., |(after, _)| *after == 0).collect();
        for (_, change) in landing {
            self.live.apply(&change);
            self.step(Step::Land(change));
        }
    }

    /// A process asks for a change.
    pub(super) fn change(&mut self, process: u64, change: Change) -> io::Result<()> {
        if process != self.process {
            return Err(io::Error::other("the process is dead"));
        }
        let usual = self.cost_of(&change);
        self.usual += usual;
        self.cost += usual + self.trouble.slow;
        self.fail(&change)?;
        let (before, after) = (self.bytes_with_names(&change), self.bytes_after(&change));
        if let Some(free) = &mut self.free {
            if after > before && after - before > *free {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *free = (*free + before) - after;
        }
        self.live.apply(&change);
        if change.is_sync() && self.trouble.lies {
            return Ok(());
        }
        self.step(Step::Change(change, self.job));
        Ok(())
    }

    /// The disk has failed, or fails in this call: a part of a write may be done.
    fn fail(&mut self, change: &Change) -> io::Result<()> {
        let failure = || Err(io::Error::other("the disk has failed"));
        if self.has_failed {
            return failure();
        }
        match &mut self.trouble.fails_after {
            None => return Ok(()),
            Some(0) => {}
            Some(calls) => {
                *calls -= 1;
                return Ok(());
            }
        }
        self.trouble.fails_after = None;
        self.has_failed = true;
        if let Change::Write { file, offset, bytes } = change {
            let room = self.live.len(*file).saturating_sub(*offset).min(bytes.len());
            let done = usize::try_from(self.random.below(room as u64 + 1)).expect("below a length");
            let part = Change::Write { file: *file, offset: *offset, bytes: bytes.slice(..done) };
            self.live.apply(&part);
            self.step(Step::Change(part, self.job));
        }
        // The log's files are read past the cache.
        if let Change::Sync { file } = change
            && !self.live.names.iter().any(|((folder, _), of)| *folder == Folder::Log && of == file)
        {
            self.step(Step::Forget(change.target()));
        }
        failure()
    }

    fn cost_of(&mut self, change: &Change) -> Micros {
        match change {
            Change::Write { bytes, .. } => 20 + bytes.len() as u64 / 500,
            Change::Sync { .. } | Change::SyncNames { .. } => 100 + self.random.below(900),
            _ => 10,
        }
    }

    /// Bytes of the files that the change makes longer or shorter, or takes a name from.
    fn bytes_with_names(&self, change: &Change) -> u64 {
        let named = |folder: &Folder, name: &str| self.live.file(*folder, name);
        let file = match change {
            Change::Write { file, .. } | Change::SetLen { file, .. } => Some(*file),
            Change::Make { folder, name, .. } | Change::Remove { folder, name } => named(folder, name),
            Change::Rename { folder, to, .. } => named(folder, to),
            Change::Sync { .. } | Change::SyncNames { .. } => None,
        };
        file.map_or(0, |file| self.live.len(file) as u64)
    }

    fn bytes_after(&self, change: &Change) -> u64 {
        match change {
            Change::Write { file, offset, bytes } => self.live.len(*file).max(offset + bytes.len()) as u64,
            Change::SetLen { bytes, .. } => *bytes as u64,
            _ => 0,
        }
    }

    pub(super) fn new_file(&mut self) -> FileNumber {
        self.next_file += 1;
        self.next_file
    }

    /// Makes an empty file under a name.
    pub(super) fn make(&mut self, process: u64, folder: Folder, name: &str) -> io::Result<FileNumber> {
        let file = self.new_file();
        self.change(process, Change::Make { folder, name: name.to_owned(), file }).map(|()| file)
    }

    pub(super) fn set_size(&mut self, bytes: u64) {
        let used: usize = self.live.names.values().map(|file| self.live.len(*file)).sum();
        self.free = Some(bytes.saturating_sub(used as u64));
    }

    pub(super) fn room(&self) -> u64 {
        self.free.unwrap_or(u64::MAX)
    }

    /// As `Reserve::give_up` of the server.
    pub(super) fn give_up_reserve(&mut self) -> bool {
        self.is_found_full = true;
        let (folder, name) = (Folder::Member, RESERVE.to_owned());
        let is_there = self.live.file(folder, &name).is_some();
        is_there && self.change(self.process, Change::Remove { folder, name }).is_ok()
    }

    /// As `Reserve::fill` of the server.
    pub(super) fn fill_reserve(&mut self) -> bool {
        let folder = Folder::Member;
        if self.live.file(folder, RESERVE).is_none() {
            let made = self.make(self.process, folder, RESERVE);
            let filled = made
                .and_then(|file| self.change(self.process, Change::SetLen { file, bytes: RESERVE_BYTES }));
            if let Err(error) = filled {
                let _ = self.change(self.process, Change::Remove { folder, name: RESERVE.to_owned() });
                self.is_found_full = revd_member::files::is_no_space(&error);
                return false;
            }
        }
        self.is_found_full = false;
        true
    }

    pub(super) fn is_found_full(&self) -> bool {
        self.is_found_full
    }

    /// The process ends here, alone or with its machine.
    pub(super) fn crash(&mut self, random: &mut Random, faults: &DiskFaults) -> Crash {
        let is_to_pass = self.has_flipped || !self.next_ticket.is_multiple_of(self.compares_one_in);
        let is_same = is_to_pass || self.medium.shows(&self.live);
        assert!(is_same, "the journal has another order than the changes had");
        self.process += 1;
        self.has_flipped = false;
        (self.job, self.is_locked, self.has_failed, self.is_found_full) = (None, false, false, false);
        self.trouble.fails_after = None;
        self.begun.clear();
        self.log = LogCalls::default();
        let unsynced = self.medium.unsynced();
        let is_process_alone = chance(random, faults.only_process);
        if is_process_alone {
            self.late.extend(self.medium.lose_process(random));
        } else {
            self.late.clear();
            self.medium.lose_power(random, faults);
        }
        self.live = self.medium.live();
        self.forget_files();
        let rotten = if chance(random, faults.rot) { self.rot(random) } else { None };
        Crash { is_process_alone, unsynced, rotten }
    }

    /// Files without a name are gone.
    fn forget_files(&mut self) {
        let used = self.medium.forget_files(&self.live);
        self.live.files.retain(|file, _| used.contains(file));
    }

    /// Flips a bit of a file at rest; its name, and where.
    pub(super) fn rot(&mut self, random: &mut Random) -> Option<(String, u64)> {
        let is_rottable =
            |name: &str| matches!(name, "tree.revd" | "received.revd") || name.ends_with(".wal");
        let rottable: BTreeMap<_, _> =
            self.live.names.iter().filter(|((_, name), _)| is_rottable(name)).collect();
        let at = usize::try_from(random.below(rottable.len().max(1) as u64)).expect("below a length");
        let ((folder, name), file) = rottable.into_iter().nth(at)?;
        let len = self.live.len(*file) as u64;
        let offset = random.below(len.max(1));
        let (path, file) = (format!("{}/{name}", folder.path()), *file);
        self.flip(file, usize::try_from(offset).expect("below a length"), 1 << random.below(8));
        (len > 0).then_some((path, offset))
    }

    /// The changed bits are what the disk has from now on.
    pub(super) fn flip(&mut self, file: FileNumber, offset: usize, bits: u8) {
        self.has_flipped = true;
        for image in [&mut self.live, &mut self.medium.durable] {
            image.flip(file, offset, bits);
        }
    }
}
