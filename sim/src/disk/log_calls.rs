//! The calls of the log's handles: those that are under way, and changes of the log's directory
//! that wait for those before them.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bytes::Bytes;
use revd_member::wal::WalError;

use crate::disk::faults::Ticket;
use crate::disk::image::{FileNumber, Folder};

/// A change of the log's directory that waits for those before it.
#[derive(Debug)]
pub(super) enum Waiting {
    Make { segment: u64, bytes: u64, call: u64 },
    Prepare(u64),
    Remove(u64, Option<u64>),
    Settle(u64),
}

/// How the changes of the directory went so far.
#[derive(Debug, Default)]
pub(super) enum Outcome {
    #[default]
    Well,
    /// One in the background failed; the next caller is told.
    Failed(WalError),
    /// A caller was told of a failure.
    Told,
}

/// The result of a call when its time is over.
#[derive(Debug)]
pub(super) enum End {
    Return(Result<Bytes, WalError>),
    /// The part of the file is read at the end.
    Read {
        file: FileNumber,
        offset: usize,
        bytes: usize,
    },
}

/// Calls of the log's handles.
#[derive(Debug, Default)]
pub(super) struct LogCalls {
    pub(super) next_call: u64,
    /// By ticket: the call that waits for it, if any does.
    pub(super) under_way: BTreeMap<Ticket, (u64, End)>,
    pub(super) ended: BTreeMap<u64, Result<Bytes, WalError>>,
    pub(super) waiting: VecDeque<Waiting>,
    /// The change of the directory that is being made.
    pub(super) turn: Option<Ticket>,
    pub(super) outcome: Outcome,
}

impl Outcome {
    pub(super) fn tell(&mut self) -> WalError {
        match std::mem::replace(self, Self::Told) {
            Self::Failed(error) => error,
            Self::Well | Self::Told => {
                let source = io::Error::other("an earlier change of the log's directory failed");
                WalError::Io { what: "changing", path: Folder::Log.path().into(), source }
            }
        }
    }
}
