//! The entries raft may ask for.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// The end of the log, in memory. RaftEntries leave at the front once the state core has made their
/// effects durable.
#[derive(Debug)]
pub(super) struct RaftEntries {
    /// Index and term of the entry before the first one here.
    pub(super) base: (u64, u64),
    pub(super) entries: VecDeque<Entry>,
    pub(super) hard_state: HardState,
    pub(super) conf_state: ConfState,
}

impl RaftEntries {
    fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    fn position(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.base.0 + 1)?).ok()
    }

    /// Adds entries; the first may replace those from its index on.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = self.position(first.index).expect("raft never replaces what was released");
        assert!(keep <= self.entries.len(), "entry {} leaves a gap behind {}", first.index, self.last());
        self.entries.truncate(keep);
        self.entries.extend(entries.iter().cloned());
    }

    /// Lets go of entries up to `index`.
    pub(super) fn release(&mut self, index: u64) {
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            let entry = self.entries.pop_front().expect("there is a front");
            self.base = (entry.index, entry.term);
        }
    }
}

impl Storage for RaftEntries {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let Some(from) = self.position(low) else { return Err(StorageError::Compacted.into()) };
        let Some(to) = self.position(high).filter(|to| *to <= self.entries.len()) else {
            return Err(StorageError::Unavailable.into());
        };
        let mut entries: Vec<Entry> = self.entries.range(from..to).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base.0 {
            return Ok(self.base.1);
        }
        let position = self.position(index).ok_or(StorageError::Compacted)?;
        Ok(self.entries.get(position).ok_or(StorageError::Unavailable)?.term)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        // Only a member that lags behind the released entries asks; there are no other members yet.
        Err(StorageError::SnapshotTemporarilyUnavailable.into())
    }
}
