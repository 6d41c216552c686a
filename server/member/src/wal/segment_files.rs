//! The log's files by name: how a segment is made, prepared, let go of and read, and what a start
//! does with those of a dead process.

use std::io;

use crate::files::{Files, is_no_space};
use crate::wal::WalError;
use crate::wal::reader::{Assembly, LogEnd, RecoveredLog, segment_name};

/// A prepared file that waits to become a segment.
const SPARE: &str = "spare.tmp";
/// How the names of files begin that are being prepared.
const PREPARING: &str = "preparing";
/// The one that is being prepared by this process.
const PREPARING_NOW: &str = "preparing.tmp";

/// Makes a segment of the spare, or of a file that is prepared now. Without room `no_room` is told.
///
/// # Errors
/// [`WalError::NoSpace`], with nothing changed; [`WalError::Io`] when the system refuses.
pub fn make(files: &impl Files, segment: u64, bytes: u64, no_room: impl FnOnce()) -> Result<(), WalError> {
    let name = segment_name(segment);
    try_make(files, &name, bytes).map_err(|source| {
        let path = files.path().join(&name);
        if is_no_space(&source) {
            no_room();
            return WalError::NoSpace { path, source };
        }
        WalError::Io { what: "making", path, source }
    })
}

fn try_make(files: &impl Files, name: &str, bytes: u64) -> io::Result<()> {
    if files.len(SPARE) != Some(bytes) {
        prepare(files, bytes)?;
    }
    files.rename(SPARE, name)?;
    files.sync()
}

/// Writes a file full of zeros, so that later syncs have no metadata to write, and calls it the
/// spare.
fn prepare(files: &impl Files, bytes: u64) -> io::Result<()> {
    // A spare of another length only takes room.
    if files.len(SPARE).is_some() {
        files.remove(SPARE)?;
    }
    if let Err(error) = files.write_zeros(PREPARING_NOW, bytes) {
        // The part that was written must not take the last room. If it cannot go, the next start
        // removes it.
        let _ = files.remove(PREPARING_NOW);
        return Err(error);
    }
    files.rename(PREPARING_NOW, SPARE)
}

/// Makes the file for the next segment, unless a segment was let go of that can be it. An error
/// shows when the file is needed. Without room it is tried again if `makes_room` says so.
pub fn prepare_next(files: &impl Files, bytes: u64, makes_room: impl FnOnce() -> bool) {
    if files.len(SPARE) == Some(bytes) {
        return;
    }
    let first = prepare(files, bytes);
    if first.as_ref().is_err_and(is_no_space) && makes_room() {
        let _ = prepare(files, bytes);
    }
}

/// How long the first segment of a process is to be: as long as the spare that the process before
/// has left, if that is a whole one.
pub fn first_segment_bytes(files: &impl Files, whole: u64, short: u64) -> u64 {
    if files.len(SPARE) == Some(whole) { whole } else { short }
}

/// Takes a released segment away; it becomes the spare if it has `spare_bytes` and there is none.
///
/// # Errors
/// [`WalError::Io`] when the system refuses.
pub fn release(files: &impl Files, segment: u64, spare_bytes: Option<u64>) -> Result<(), WalError> {
    let name = segment_name(segment);
    let is_spare = spare_bytes.is_some() && spare_bytes == files.len(&name) && files.len(SPARE).is_none();
    let released = if is_spare { files.rename(&name, SPARE) } else { files.remove(&name) };
    released.map_err(|source| WalError::Io { what: "releasing", path: files.path().join(name), source })
}

/// Reads the log, one segment after the other; none if there is no log yet. Of entries up to the
/// applied one only the terms are kept. All that is read counts as part of the log from now on, and
/// is durable: the process before may have ended while it wrote it.
///
/// # Errors
/// [`WalError::Io`] when the system refuses; else as [`Assembly`].
pub fn read(files: &impl Files, applied: u64) -> Result<Option<RecoveredLog>, WalError> {
    read_behind(files, applied, None)
}

/// The same, where one segment has been read before, whatever came of it.
///
/// # Errors
/// As [`read`].
pub fn read_behind(
    files: &impl Files,
    applied: u64,
    mut before: Option<ReadSegment>,
) -> Result<Option<RecoveredLog>, WalError> {
    let io = |what, name: &str, source| WalError::Io { what, path: files.path().join(name), source };
    let listing = |source| WalError::Io { what: "listing", path: files.path().to_owned(), source };
    let mut assembly = Assembly::new(files.path(), applied);
    for (number, name) in segments(files).map_err(listing)? {
        let bytes = match before.take_if(|before| before.number == number) {
            Some(before) => before.bytes,
            None => files.read(&name),
        };
        assembly.add(number, &bytes.map_err(|source| io("reading", &name, source))?.into())?;
    }
    assembly.finish()
}

/// A segment that was read, as a start reads it.
#[derive(Debug)]
pub struct ReadSegment {
    number: u64,
    bytes: io::Result<Vec<u8>>,
}

/// Reads the last segment, which is most of a log that has no more than it needs; none if there is
/// none.
pub fn read_last(files: &impl Files) -> Option<ReadSegment> {
    let (number, name) = segments(files).ok()?.pop()?;
    Some(ReadSegment { number, bytes: files.read(&name) })
}

/// Numbers and names of all segments, ascending.
fn segments(files: &impl Files) -> io::Result<Vec<(u64, String)>> {
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(".wal")?, 16).ok();
    let named = files.names()?.into_iter().filter_map(|name| Some((number(&name)?, name)));
    let mut segments: Vec<_> = named.collect();
    segments.sort();
    Ok(segments)
}

/// Removes files that a process which is dead by now was preparing.
///
/// # Errors
/// When the system refuses.
pub fn remove_leftovers(files: &impl Files) -> io::Result<()> {
    let names = files.names()?;
    let leftovers = names.iter().filter(|name| name.starts_with(PREPARING) && name.ends_with(".tmp"));
    leftovers.into_iter().try_for_each(|name| files.remove(name))
}

/// Gives back the room that a dead process has taken and not used: the rest of the last segment,
/// which is not written to any more, and the segment behind it if its making was cut short. So a
/// member that is killed at every start, before it comes to a checkpoint, does not fill its disk.
///
/// # Errors
/// When the system refuses.
pub fn give_back_unused(files: &impl Files, end: &LogEnd) -> io::Result<()> {
    let unmade = segment_name(end.segment + 1);
    if files.len(&unmade).is_some() {
        files.remove(&unmade)?;
    }
    let last = segment_name(end.segment);
    if files.len(&last).is_some_and(|bytes| bytes > end.offset) {
        files.cut(&last, end.offset)?;
    }
    Ok(())
}
