//! The write-ahead log: what raft has accepted, durable before anyone hears of it.
//!
//! The log is a row of *segments*, files of a fixed size that are written once with zeros, then
//! filled, and used again for later segments when everything in them is durable elsewhere. The unit
//! of writing is a *frame*: all that had gathered while the frame before was being synced. A frame
//! is written, synced, and only then is the next one written; its blocks are never written again.
//! Guarantees:
//!
//! - A frame for which [`writer::WalWriter::append`] returned is found by [`reader::assemble`],
//!   whatever happened since.
//! - A frame that was cut short by a crash is as if it had never been; nothing of it can come back
//!   later.
//! - A frame that cannot be read although later ones can was durable once: that is damage, reported
//!   by file and offset, and never mistaken for the end of the log. So is a missing segment.
//!
//! Format: `frame.rs`, drawn byte by byte.

pub mod birth;
pub mod changes;
pub mod disk;
pub mod frame;
pub mod layout;
pub mod places;
pub mod reader;
pub mod segment_files;
pub mod terms;
pub mod writer;

use std::path::PathBuf;

use bytes::Bytes;

/// Frames start at multiples of this, so that each can be written past the page cache.
pub const BLOCK: usize = 4096;

/// Raft's promises: term, vote, and what is known to be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// Current term.
    pub term: u64,
    /// Member voted for in it, 0 for none.
    pub vote: u64,
    /// Highest index known to be committed.
    pub commit: u64,
}

/// One entry of the raft log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Position in the log.
    pub index: u64,
    /// Term of the leader that made it.
    pub term: u64,
    /// raft's entry type: 0 for commands, 1 and 2 for configuration changes.
    pub kind: u8,
    /// For kind 0 an `apply::command` batch, or nothing.
    pub data: Bytes,
}

/// The log begins again: the state up to this entry came from another member, and is whole in a
/// file of its own before this is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRestart {
    /// The last entry that the state has the effect of.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// Entries and promises that one frame makes durable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameContent {
    /// Nothing before counts any more, but for promises; the entries below follow this one.
    pub restart: Option<LogRestart>,
    /// New promises, if they changed.
    pub hard_state: Option<HardState>,
    /// Entries, ascending; the first may replace earlier ones from its index on.
    pub entries: Vec<LogEntry>,
}

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The system refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The disk has no room for another segment. Nothing was changed; it may be tried again.
    #[error("making {}: {source}: free some space on its disk", path.display())]
    NoSpace {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something that was durable cannot be read any more.
    #[error(
        "{} is damaged at offset {offset}: {what}; this member must not go on with a shorter log: keep a copy of the \
         directory, then restore the member from a snapshot or remove it and add it again empty",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// The damage.
        what: String,
    },
    /// A segment between two others is not there.
    #[error(
        "segment {missing} of the log is missing from {} although segment {next} is there: put the file back, or restore \
         the member from a snapshot",
        dir.display()
    )]
    Gap {
        /// The log's directory.
        dir: PathBuf,
        /// The first segment that is missing.
        missing: u64,
        /// The next one that is there.
        next: u64,
    },
}
