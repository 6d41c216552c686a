//! The entries raft may ask for.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::raft::convert::{bytes_of, to_raft};
use crate::raft::feed::Feed;
use crate::wal::reader::RecoveredLog;
use crate::wal::terms::TermRuns;

/// The log: the terms of all entries, and its end, in memory. Entries leave memory when they are
/// applied, and the log when it lets go of them; in between they are read from the segments for
/// members that lag behind. Only what is sent is ever asked for then: raft looks at other entries
/// before they are applied.
#[derive(Debug)]
pub(super) struct RaftEntries {
    /// Of the whole log.
    terms: TermRuns,
    /// Its end.
    entries: VecDeque<Entry>,
    /// Bytes of those.
    bytes: usize,
    /// The segments may hold nothing up to here.
    released: u64,
    /// By member that lags behind: entries that were read for it.
    pub(super) feeds: BTreeMap<u64, Feed>,
    /// An entry was asked for that is to be read first.
    missed: Cell<bool>,
    pub(super) hard_state: HardState,
    pub(super) conf_state: ConfState,
    /// State up to here can be sent to a member that lags behind the log.
    pub(super) durable: u64,
    /// State up to here is durable elsewhere, as a checkpoint of this process has said: the state
    /// that a start finds may be in the cache of the system alone, by a process that died before
    /// its sync.
    pub(super) settled: u64,
}

impl RaftEntries {
    /// A recovered log.
    pub(super) fn new(log: &RecoveredLog, hard_state: HardState, conf_state: ConfState) -> Self {
        let mut terms = log.older.clone().unwrap_or_else(|| TermRuns::new(log.base));
        assert_eq!(terms.last(), log.base.0, "the entries follow those before");
        log.entries.iter().for_each(|entry| terms.push(entry.index, entry.term));
        let entries: VecDeque<Entry> = log.entries.iter().map(to_raft).collect();
        let bytes = entries.iter().map(bytes_of).sum();
        let (feeds, missed, durable) = (BTreeMap::new(), Cell::new(false), log.base.0);
        let released = terms.base().0;
        let settled = released;
        Self { terms, entries, bytes, released, feeds, missed, hard_state, conf_state, durable, settled }
    }

    /// The index before the first entry of the log.
    pub(super) fn base(&self) -> u64 {
        self.terms.base().0
    }

    /// The index before the first entry in memory.
    pub(super) fn memory_base(&self) -> u64 {
        self.terms.last() - self.entries.len() as u64
    }

    /// The index up to which the segments may hold nothing.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// Bytes of the entries in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// An entry was asked for that is to be read first, since this was asked last.
    pub(super) fn take_missed(&self) -> bool {
        self.missed.take()
    }

    /// The log has an entry of this index and term.
    pub(super) fn is_known(&self, index: u64, term: u64) -> bool {
        index > self.base() && self.terms.term(index) == Some(term)
    }

    fn position(&self, index: u64) -> Option<usize> {
        usize::try_from(index.checked_sub(self.memory_base() + 1)?).ok()
    }

    /// Adds entries; the first may replace those from its index on.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = self.position(first.index).expect("raft never replaces what is applied");
        self.bytes -= self.entries.drain(keep..).map(|entry| bytes_of(&entry)).sum::<usize>();
        self.bytes += entries.iter().map(bytes_of).sum::<usize>();
        entries.iter().for_each(|entry| self.terms.push(entry.index, entry.term));
        self.entries.extend(entries.iter().cloned());
    }

    /// Begins again behind a state that another member has sent.
    pub(super) fn restart(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.terms = TermRuns::new((metadata.index, metadata.term));
        self.conf_state = metadata.get_conf_state().clone();
        self.entries.clear();
        self.feeds.clear();
        (self.bytes, self.released) = (0, metadata.index);
        (self.durable, self.settled) = (metadata.index, metadata.index);
    }

    /// Lets applied entries leave memory, but for so many bytes of the last ones.
    pub(super) fn forget(&mut self, applied: u64, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(entry) = self.entries.pop_front_if(|entry| entry.index <= applied)
        {
            self.bytes -= bytes_of(&entry);
        }
        self.release(self.released);
    }

    /// Entries up to `index`, which are applied, leave memory.
    pub(super) fn drop_to(&mut self, index: u64) {
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.index <= index) {
            self.bytes -= bytes_of(&entry);
        }
    }

    /// The segments let go of entries up to `index`. Those in memory stay in the log until they
    /// leave it.
    pub(super) fn release(&mut self, index: u64) {
        self.released = self.released.max(index);
        self.terms.release(self.released.min(self.memory_base()));
    }

    /// Entries that were read for some member, from `low` on.
    fn fed(&self, low: u64, high: u64) -> Option<impl Iterator<Item = &Entry>> {
        let entries = self.feeds.values().find_map(|feed| feed.entries_from(low))?;
        Some(entries.take_while(move |entry| entry.index < high))
    }
}

/// As many entries as these bytes hold, and at least one.
fn bounded<'a>(entries: impl Iterator<Item = &'a Entry>, bytes_max: Option<u64>) -> Vec<Entry> {
    // A follower that is far behind asks for little of much.
    let bytes_max = bytes_max.unwrap_or(raft::NO_LIMIT);
    let mut bytes = 0;
    let fits = |entry: &&Entry| {
        let is_first = bytes == 0;
        bytes += bytes_of(entry) as u64;
        is_first || bytes <= bytes_max
    };
    entries.take_while(fits).cloned().collect()
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
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base() {
            return Err(StorageError::Compacted.into());
        }
        let Some(from) = self.position(low) else {
            if let Some(fed) = self.fed(low, high) {
                return Ok(bounded(fed, max_size.into()));
            }
            assert!(context.can_async(), "entry {low} left memory before it was applied");
            self.missed.set(true);
            return Err(StorageError::LogTemporarilyUnavailable.into());
        };
        let Some(to) = self.position(high).filter(|to| *to <= self.entries.len()) else {
            return Err(StorageError::Unavailable.into());
        };
        Ok(bounded(self.entries.range(from..to), max_size.into()))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let missing = if index < self.base() { StorageError::Compacted } else { StorageError::Unavailable };
        self.terms.term(index).ok_or_else(|| missing.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.terms.last())
    }

    /// Only a promise: the state that is sent in the end may be newer, and says so itself.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let term = self.terms.term(self.durable);
        let Some(term) = term.filter(|_| self.durable >= request_index.max(1)) else {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        };
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = self.durable;
        snapshot.mut_metadata().term = term;
        snapshot.mut_metadata().set_conf_state(self.conf_state.clone());
        Ok(snapshot)
    }
}
