//! A data directory in memory, whose every change is recorded: what a crash leaves of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use revd_engine::disk::{Disk, Map, Recorded, SimDisk};
use revd_engine::random::Random;
use revd_member::wal::layout::LogStep;
use revd_member::wal::reader::{self, RecoveredLog};

const SECTOR: usize = 512;
/// So little room that files grow by no more than they need.
const FILE_BYTES_MAX: u64 = 768 * 1024;

/// A name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Tree,
    Receiving,
    Received,
}

/// A change of the directory or of a file in it.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Of the file with this number.
    File(usize, Recorded),
    /// The name stands for this file from now on, or for none.
    Name(Name, Option<usize>),
    Rename(Name, Name),
    /// Names are durable.
    SyncNames,
    Log(LogStep),
    RemoveSegment(u64),
}

/// The directory, which lives as long as its member's process.
#[derive(Clone, Default)]
pub(crate) struct Directory {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    ops: Vec<Op>,
    disks: Vec<SimDisk>,
    names: BTreeMap<Name, usize>,
    segments: BTreeMap<u64, Vec<u8>>,
}

fn disk_of(bytes: Vec<u8>) -> SimDisk {
    let disk = SimDisk::from_bytes(bytes);
    disk.limit(Some(FILE_BYTES_MAX));
    disk
}

/// A file of a directory.
struct File {
    number: usize,
    disk: SimDisk,
    directory: Directory,
}

impl Directory {
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.inner.lock().unwrap().ops.clone()
    }

    pub(crate) fn ops_done(&self) -> usize {
        self.inner.lock().unwrap().ops.len()
    }

    pub(crate) fn has(&self, name: Name) -> bool {
        self.inner.lock().unwrap().names.contains_key(&name)
    }

    /// Opens a file, or makes an empty one.
    pub(crate) fn open(&self, name: Name) -> Arc<dyn Disk> {
        let mut inner = self.inner.lock().unwrap();
        let number = inner.names.get(&name).copied().unwrap_or_else(|| {
            let number = inner.disks.len();
            inner.disks.push(disk_of(Vec::new()));
            inner.change(Op::Name(name, Some(number)));
            number
        });
        Arc::new(File { number, disk: inner.disks[number].clone(), directory: self.clone() })
    }

    pub(crate) fn change(&self, op: Op) {
        self.inner.lock().unwrap().change(op);
    }

    pub(crate) fn read_log(&self) -> Option<RecoveredLog> {
        let inner = self.inner.lock().unwrap();
        let files = inner.segments.iter().map(|(number, bytes)| (*number, Bytes::from(bytes.clone())));
        let files: Vec<_> = files.collect();
        reader::assemble(Path::new("wal"), &files).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Inner {
    /// Changes to bytes of files are their own.
    fn change(&mut self, op: Op) {
        match &op {
            Op::File(..) | Op::SyncNames => {}
            Op::Name(name, Some(number)) => drop(self.names.insert(*name, *number)),
            Op::Name(name, None) => drop(self.names.remove(name)),
            Op::Rename(from, to) => {
                let number = self.names.remove(from).expect("a file that is renamed");
                self.names.insert(*to, number);
            }
            Op::Log(step) => write_log(&mut self.segments, step, &mut |_| true),
            Op::RemoveSegment(segment) => drop(self.segments.remove(segment)),
        }
        self.ops.push(op);
    }
}

impl File {
    fn record(&self, call: Recorded) {
        self.directory.change(Op::File(self.number, call));
    }
}

impl Disk for File {
    fn file_len(&self) -> revd_engine::Result<u64> {
        self.disk.file_len()
    }

    fn set_len(&self, len: u64) -> revd_engine::Result<()> {
        self.disk.set_len(len)?;
        self.record(Recorded::SetLen(len));
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> revd_engine::Result<()> {
        self.disk.write_at(offset, bytes)?;
        self.record(Recorded::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn sync(&self) -> revd_engine::Result<()> {
        self.disk.sync()?;
        self.record(Recorded::Sync);
        Ok(())
    }

    fn map(&self) -> revd_engine::Result<Map> {
        self.disk.map()
    }
}

fn write_log(
    segments: &mut BTreeMap<u64, Vec<u8>>,
    step: &LogStep,
    keep_sector: &mut dyn FnMut(usize) -> bool,
) {
    match step {
        LogStep::Create { segment, bytes } => {
            segments.insert(*segment, vec![0; usize::try_from(*bytes).unwrap()]);
        }
        LogStep::Write { segment, offset, bytes } => {
            let file = segments.get_mut(segment).expect("a segment that is written was made");
            for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                if keep_sector(sector) {
                    let start = usize::try_from(*offset).unwrap() + sector * SECTOR;
                    file[start..start + part.len()].copy_from_slice(part);
                }
            }
        }
    }
}

/// The part of what was not synced that a crash leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    All,
    Nothing,
    Some,
}

/// The bytes and names of a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image {
    names: BTreeMap<Name, usize>,
    /// By number.
    files: Vec<Vec<u8>>,
    segments: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    /// The image that a crash behind the first ops leaves, in which the next one, if it writes to
    /// the log, may be done in part. (Writes of the log are durable when they return.)
    pub(crate) fn after(&self, ops: &[Op], next: Option<&Op>, left: Left, random: &mut Random) -> Self {
        let mut image = self.clone();
        let keeps = |random: &mut Random| match left {
            Left::All => true,
            Left::Nothing => false,
            Left::Some => random.below(2) == 0,
        };
        let names_synced = ops.iter().rposition(|op| matches!(op, Op::SyncNames)).map_or(0, |at| at + 1);
        let mut synced = BTreeMap::new();
        for (at, op) in ops.iter().enumerate() {
            if let Op::File(number, Recorded::Sync) = op {
                synced.insert(*number, at);
            }
        }
        // Names change in their order.
        let mut names_go_on = true;
        for (at, op) in ops.iter().enumerate() {
            match op {
                Op::File(number, call) => {
                    let is_synced = synced.get(number).is_some_and(|sync| *sync >= at);
                    image.call(*number, call, &mut |_| is_synced || keeps(random));
                }
                Op::Name(..) | Op::Rename(..) if at >= names_synced => {
                    names_go_on = names_go_on && keeps(random);
                    if names_go_on {
                        image.name(op);
                    }
                }
                Op::Name(..) | Op::Rename(..) => image.name(op),
                Op::SyncNames => {}
                Op::Log(step) => write_log(&mut image.segments, step, &mut |_| true),
                Op::RemoveSegment(segment) => drop(image.segments.remove(segment)),
            }
        }
        if let Some(Op::Log(step)) = next {
            write_log(&mut image.segments, step, &mut |_| random.below(2) == 0);
        }
        image
    }

    fn call(&mut self, number: usize, call: &Recorded, keep_sector: &mut dyn FnMut(usize) -> bool) {
        if self.files.len() <= number {
            self.files.resize(number + 1, Vec::new());
        }
        let file = &mut self.files[number];
        match call {
            Recorded::SetLen(len) => file.resize(usize::try_from(*len).unwrap(), 0),
            Recorded::Write { offset, bytes } => {
                let start = usize::try_from(*offset).unwrap();
                file.resize(file.len().max(start + bytes.len()), 0);
                for (sector, part) in bytes.chunks(SECTOR).enumerate() {
                    if keep_sector(sector) {
                        let from = start + sector * SECTOR;
                        file[from..from + part.len()].copy_from_slice(part);
                    }
                }
            }
            Recorded::Sync => {}
        }
    }

    fn name(&mut self, op: &Op) {
        match op {
            Op::Name(name, Some(number)) => drop(self.names.insert(*name, *number)),
            Op::Name(name, None) => drop(self.names.remove(name)),
            Op::Rename(from, to) => {
                // The file that is renamed may have been left out.
                if let Some(number) = self.names.remove(from) {
                    self.names.insert(*to, number);
                }
            }
            _ => unreachable!("{op:?} changes no name"),
        }
    }

    /// The directory of the next process. Its changes are recorded from here on.
    pub(crate) fn directory(&self) -> Directory {
        let bytes = |number: &usize| self.files.get(*number).cloned().unwrap_or_default();
        let (names, files): (Vec<_>, Vec<_>) =
            self.names.iter().map(|(name, number)| (*name, bytes(number))).unzip();
        let inner = Inner {
            ops: Vec::new(),
            disks: files.into_iter().map(disk_of).collect(),
            names: names.into_iter().zip(0..).collect(),
            segments: self.segments.clone(),
        };
        Directory { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The same with the numbers that its directory has.
    pub(crate) fn renumbered(&self) -> Self {
        let files = self.names.values().map(|number| self.files.get(*number).cloned().unwrap_or_default());
        Self { files: files.collect(), names: self.names.keys().copied().zip(0..).collect(), ..self.clone() }
    }
}
