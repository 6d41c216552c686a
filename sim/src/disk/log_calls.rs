//! The calls of the log's handles: those that are under way, and changes of the log's directory
//! that wait for those before them.

use std::collections::BTreeMap;

use bytes::Bytes;
use revd_member::wal::WalError;
use revd_member::wal::changes::{Before, Changes, Kind, Progress};

use crate::disk::faults::Ticket;
use crate::disk::image::FileNumber;

/// A change of the log's directory that waits for those before it.
#[derive(Debug)]
pub(super) enum Waiting {
    Make { segment: u64, bytes: u64, call: u64 },
    Prepare(u64),
    Remove(u64, Option<u64>),
    Settle(u64),
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
    pub(super) waiting: Changes<Waiting>,
    /// The change of the directory that is being made.
    pub(super) turn: Option<Ticket>,
    /// The pause behind a removal.
    pub(super) pause: Option<Ticket>,
    /// A caller waits for all changes: they are made without pauses.
    pub(super) settles: bool,
    pub(super) progress: Progress,
}

impl LogCalls {
    /// The change of the directory that is made now.
    pub(super) fn next_change(&mut self) -> Option<(Kind, Waiting)> {
        if self.pause.is_some() && !self.settles {
            return self.waiting.next_before(Before::Other).map(|change| (Kind::Other, change));
        }
        self.waiting.take_next()
    }
}
