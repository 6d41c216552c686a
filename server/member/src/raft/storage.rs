//! The entries raft may ask for.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// The end of the log, in memory. Entries leave at the front when the log lets go of them.
#[derive(Debug)]
pub(super) struct RaftEntries {
    /// Index and term of the entry before the first one here.
    base: (u64, u64),
    entries: VecDeque<Entry>,
    /// Bytes of the entries.
    bytes: usize,
    pub(super) hard_state: HardState,
    pub(super) conf_state: ConfState,
    /// State up to here is durable elsewhere, and can be sent to a member that lags behind `base`.
    pub(super) durable: u64,
}

/// Bytes that an entry takes in memory.
fn bytes_of(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.data.len() + entry.context.len()
}

impl RaftEntries {
    /// The log behind its base.
    pub(super) fn new(
        base: (u64, u64),
        entries: VecDeque<Entry>,
        hard_state: HardState,
        conf_state: ConfState,
    ) -> Self {
        let bytes = entries.iter().map(bytes_of).sum();
        Self { base, entries, bytes, hard_state, conf_state, durable: base.0 }
    }

    /// The index before the first entry.
    pub(super) fn base(&self) -> u64 {
        self.base.0
    }

    /// Bytes of all entries.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The index that leaves no more than so many bytes if everything up to it is released.
    pub(super) fn index_below(&self, bytes_max: usize) -> u64 {
        let mut bytes = self.bytes;
        let too_many = self.entries.iter().take_while(|entry| {
            let is_too_much = bytes > bytes_max;
            bytes -= bytes_of(entry);
            is_too_much
        });
        self.base.0 + too_many.count() as u64
    }

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
        self.bytes -= self.entries.drain(keep..).map(|entry| bytes_of(&entry)).sum::<usize>();
        self.bytes += entries.iter().map(bytes_of).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Begins again behind a state that another member has sent.
    pub(super) fn restart(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.base = (metadata.index, metadata.term);
        self.conf_state = metadata.get_conf_state().clone();
        self.entries.clear();
        (self.bytes, self.durable) = (0, metadata.index);
    }

    /// Lets go of entries up to `index`.
    pub(super) fn release(&mut self, index: u64) {
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            let entry = self.entries.pop_front().expect("there is a front");
            self.bytes -= bytes_of(&entry);
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
        // A follower that is far behind asks for little of much.
        let bytes_max = max_size.into().unwrap_or(raft::NO_LIMIT);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += bytes_of(entry) as u64;
            is_first || bytes <= bytes_max
        };
        Ok(self.entries.range(from..to).take_while(fits).cloned().collect())
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

    /// Only a promise: the state that is sent in the end may be newer, and says so itself.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.durable < request_index.max(1) {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = self.durable;
        snapshot.mut_metadata().term = self.term(self.durable)?;
        snapshot.mut_metadata().set_conf_state(self.conf_state.clone());
        Ok(snapshot)
    }
}
