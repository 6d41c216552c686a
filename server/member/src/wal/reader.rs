//! Reading the log back: what is durable, where the next frame goes, and what is damage.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::cluster::Identity;
use crate::mutants::{self, Mutant};
use crate::wal::frame::{self, LogFrame, SegmentHeader};
use crate::wal::places::Places;
use crate::wal::terms::TermRuns;
use crate::wal::{BLOCK, HardState, LogEntry, WalError};

/// A log as it is found on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredLog {
    /// The cluster and member it belongs to.
    pub owner: Identity,
    /// Raft's promises.
    pub hard_state: HardState,
    /// Index and term of the entry before the first one here.
    pub base: (u64, u64),
    /// All entries behind it, ascending, none missing.
    pub entries: VecDeque<LogEntry>,
    /// Entries up to the base that the segments hold and the state too, if any.
    pub older: Option<TermRuns>,
    /// Where entries are.
    pub places: Places,
    /// The segments, oldest first.
    pub segments: VecDeque<SegmentInfo>,
    /// Where the next frame goes.
    pub end: LogEnd,
}

/// A segment that still holds entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub number: u64,
    /// The highest index in it or in those before.
    pub last_index: u64,
    /// Length of its file.
    pub bytes: u64,
}

/// Behind the last frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// The last segment.
    pub segment: u64,
    /// Its life.
    pub life: u64,
    /// Offset in it.
    pub offset: u64,
    /// Number of the next frame.
    pub frame: u64,
}

/// File name of a segment.
#[must_use]
pub fn segment_name(number: u64) -> String {
    format!("{number:016x}.wal")
}

/// Puts the log together from its segments, ascending by number; none if there is no log yet.
///
/// # Errors
/// [`WalError::Damaged`] and [`WalError::Gap`] for what was durable and is not there any more.
pub fn assemble(dir: &Path, files: &[(u64, Bytes)]) -> Result<Option<RecoveredLog>, WalError> {
    let mut assembly = Assembly::new(dir, 0);
    for (number, bytes) in files {
        assembly.add(*number, bytes)?;
    }
    assembly.finish()
}

/// A log that is put together segment by segment: of entries that the state holds, only the terms
/// are kept.
pub struct Assembly {
    dir: PathBuf,
    applied: u64,
    log: Option<RecoveredLog>,
    /// The last segment so far: the next one says where its frames end.
    waiting: Option<Segment>,
}

/// A segment's frames.
struct Segment {
    number: u64,
    path: PathBuf,
    bytes: u64,
    frames: Vec<LogFrame>,
}

impl Assembly {
    /// The log in this directory; the state holds what was applied up to this index.
    #[must_use]
    pub fn new(dir: &Path, applied: u64) -> Self {
        Self { dir: dir.to_owned(), applied, log: None, waiting: None }
    }

    /// Adds the next segment.
    ///
    /// # Errors
    /// As [`assemble`].
    pub fn add(&mut self, number: u64, bytes: &Bytes) -> Result<(), WalError> {
        if let Some(missing) = self.waiting.as_ref().map(|waiting| waiting.number + 1)
            && missing != number
            && !mutants::is(Mutant::SegmentGapPassedOver)
        {
            return Err(WalError::Gap { dir: self.dir.clone(), missing, next: number });
        }
        let path = self.dir.join(segment_name(number));
        let frames = frames_of(&path, number, bytes)?;
        let segment = Segment { number, path, bytes: bytes.len() as u64, frames };
        match self.waiting.take() {
            // A last segment without a header: its making was cut short.
            Some(waiting) if segment.frames.is_empty() => {
                self.waiting = Some(segment);
                self.take(waiting, None)
            }
            Some(waiting) => {
                let next = segment.frames[0].id.frame;
                self.waiting = Some(segment);
                self.take(waiting, Some(next))
            }
            None => {
                self.waiting = Some(segment);
                Ok(())
            }
        }
    }

    /// There are no more segments.
    ///
    /// # Errors
    /// As [`assemble`].
    pub fn finish(mut self) -> Result<Option<RecoveredLog>, WalError> {
        if let Some(last) = self.waiting.take().filter(|last| !last.frames.is_empty()) {
            self.take(last, None)?;
        }
        Ok(self.log)
    }

    /// The frames of a segment are part of the log, up to the one that the next segment begins
    /// with.
    fn take(&mut self, segment: Segment, next: Option<u64>) -> Result<(), WalError> {
        let Segment { number, path, bytes, mut frames } = segment;
        let Some(first) = frames.first() else { return Err(damaged(&path, 0, "its header cannot be read")) };
        let header = first.header.ok_or_else(|| damaged(&path, 0, "it does not begin with a header"))?;
        if let Some(next) = next {
            end_before(&path, &mut frames, next)?;
        }
        match &mut self.log {
            None => self.log = Some(first_segment(number, &frames[0], header)),
            Some(log) => next_segment(log, &path, &frames[0], header)?,
        }
        let log = self.log.as_mut().expect("set above");
        for frame in frames.into_iter().skip(1) {
            add(log, &path, frame)?;
        }
        let last_index = log.entries.back().map_or(log.base.0, |entry| entry.index);
        log.segments.push_back(SegmentInfo { number, last_index, bytes });
        log.forget_applied(self.applied);
        Ok(())
    }
}

impl RecoveredLog {
    /// The state holds what was applied up to this index: of those entries, only the terms are
    /// kept.
    pub fn forget_applied(&mut self, applied: u64) {
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.index <= applied) {
            let older = self.older.get_or_insert_with(|| TermRuns::new(self.base));
            older.push(entry.index, entry.term);
            self.base = (entry.index, entry.term);
        }
    }

    /// Index and term of the entry before the first one that the segments hold.
    #[must_use]
    pub fn oldest(&self) -> (u64, u64) {
        self.older.as_ref().map_or(self.base, TermRuns::base)
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.entries.back().map_or(self.base.0, |entry| entry.index)
    }
}

/// The next segment begins with this frame: one of the same number here was under way when its
/// process died, and became whole after the log was read by the process that made the next segment.
/// It was never acknowledged. There cannot be two: a frame is written when the one before is
/// durable.
fn end_before(path: &Path, frames: &mut Vec<LogFrame>, next: u64) -> Result<(), WalError> {
    let behind = frames.iter().filter(|frame| frame.id.frame >= next).count();
    if behind > 1 || behind == frames.len() {
        let offset = frames.iter().take(frames.len() - behind).map(|frame| frame.len as u64).sum();
        return Err(damaged(path, offset, format!("frame {next} is here and in the next segment")));
    }
    frames.truncate(frames.len() - behind);
    Ok(())
}

/// The frames at the start of a segment; damage if a whole frame of the same life follows behind
/// their end.
fn frames_of(path: &Path, number: u64, bytes: &Bytes) -> Result<Vec<LogFrame>, WalError> {
    let mut frames: Vec<LogFrame> = Vec::new();
    let mut offset = 0;
    while let Some(frame) = frame::decode(&bytes.slice(offset.min(bytes.len())..)) {
        let expected = frames.last().map(|last| (last.id.life, last.id.frame + 1));
        let fits =
            frame.id.segment == number && expected.is_none_or(|next| next == (frame.id.life, frame.id.frame));
        if !fits {
            break;
        }
        offset += frame.len;
        frames.push(frame);
    }
    let last = frames.last().map(|frame| frame.id);
    for behind in (offset..bytes.len()).step_by(BLOCK) {
        // A cheap look first: only a frame of this very segment and life can make what is before it
        // damage.
        let Some(id) = frame::peek(&bytes[behind..]) else { continue };
        let same_life = last.is_none_or(|last| id.life == last.life && id.frame > last.frame);
        let is_here = id.segment == number && same_life && !mutants::is(Mutant::DamageTakenForEnd);
        if is_here && frame::decode(&bytes.slice(behind..)).is_some() {
            let what = format!("frame {} is whole although the one here is not", id.frame);
            return Err(damaged(path, offset as u64, what));
        }
    }
    Ok(frames)
}

fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> WalError {
    WalError::Damaged { path: PathBuf::from(path), offset, what: what.into() }
}

fn first_segment(number: u64, frame: &LogFrame, header: SegmentHeader) -> RecoveredLog {
    RecoveredLog {
        owner: header.owner,
        hard_state: header.hard_state,
        base: (header.last_index, header.last_term),
        entries: VecDeque::new(),
        older: None,
        places: Places::default(),
        segments: VecDeque::new(),
        end: LogEnd {
            segment: number,
            life: frame.id.life,
            offset: frame.len as u64,
            frame: frame.id.frame + 1,
        },
    }
}

fn next_segment(
    log: &mut RecoveredLog,
    path: &Path,
    frame: &LogFrame,
    header: SegmentHeader,
) -> Result<(), WalError> {
    let last = log.entries.back().map_or(log.base, |entry| (entry.index, entry.term));
    if frame.id.frame != log.end.frame || (header.last_index, header.last_term) != last {
        let what = format!(
            "it follows frame {} and entry {}, but the segment before ends with frame {} and entry {}",
            frame.id.frame.saturating_sub(1),
            header.last_index,
            log.end.frame - 1,
            last.0
        );
        return Err(damaged(path, 0, what));
    }
    if header.owner != log.owner {
        return Err(damaged(path, 0, format!("it belongs to member {:x}", header.owner.member)));
    }
    log.hard_state = header.hard_state;
    log.end = LogEnd {
        segment: frame.id.segment,
        life: frame.id.life,
        offset: frame.len as u64,
        frame: frame.id.frame + 1,
    };
    Ok(())
}

fn add(log: &mut RecoveredLog, path: &Path, frame: LogFrame) -> Result<(), WalError> {
    log.places.add(frame.id, log.end.offset, frame.len as u64, &frame.content);
    if let Some(state) = frame.content.hard_state {
        log.hard_state = state;
    }
    if let Some(restart) = frame.content.restart {
        if !mutants::is(Mutant::EntriesBeforeStateKept) {
            log.entries.clear();
        }
        (log.base, log.older) = ((restart.index, restart.term), None);
    }
    for entry in frame.content.entries {
        let next = log.base.0 + log.entries.len() as u64 + 1;
        if entry.index > next {
            let what = format!("entry {} follows entry {}", entry.index, next - 1);
            return Err(damaged(path, log.end.offset, what));
        }
        if entry.index <= log.base.0 {
            // The segment before, released since, ended with entries that this one replaces; or it
            // is there, and they looked like applied ones.
            log.entries.clear();
            log.base = (entry.index, entry.term);
            log.older.take_if(|older| older.base().0 >= entry.index);
            if let Some(older) = &mut log.older {
                older.push(entry.index, entry.term);
            }
            continue;
        }
        let keep = usize::try_from(entry.index - log.base.0 - 1).expect("below the number of entries");
        log.entries.truncate(keep);
        log.entries.push_back(entry);
    }
    log.end.offset += frame.len as u64;
    log.end.frame = frame.id.frame + 1;
    Ok(())
}
