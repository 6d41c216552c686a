//! The tail: the newest records, in memory, until a checkpoint has put them into the tree file.
//! Other engines call it a memtable; unlike most of those it is ordered by revision, not by key,
//! and is the history for watchers too.
//!
//! Records lie in chunks, one behind the other. The last one is open: it is filled while readers
//! share what it has. A chunk that is full stays as it is until all of it is in the tree file.

use std::sync::Arc;

use crate::limits::{TAIL_CHUNK_BYTES, TAIL_CHUNK_BYTES_MIN};
use crate::mvcc::revision::{RecordKey, Revision};
use crate::mvcc::tail_chunk::{OpenChunk, TailChunk};

pub use crate::mvcc::tail_chunk::TailRecord;

/// State core view: the tail being written.
#[derive(Debug)]
pub struct Tail {
    /// Oldest first.
    full: Arc<[TailChunk]>,
    open: OpenChunk,
}

/// The tail at one moment. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct TailView {
    full: Arc<[TailChunk]>,
    /// What the open chunk had, if it had something.
    newest: Option<TailChunk>,
}

impl Default for Tail {
    fn default() -> Self {
        Self { full: Arc::default(), open: OpenChunk::with_room(0) }
    }
}

impl Tail {
    /// Adds a record, its value given in parts; its revision must be above all others. Returns the
    /// value.
    pub fn push(&mut self, key: RecordKey, parts: &[&[u8]]) -> &[u8] {
        let last = self.last();
        assert!(last.is_none_or(|last| last < key.revision), "record {:?} follows {last:?}", key.revision);
        let bytes = parts.iter().map(|part| part.len()).sum();
        if !self.open.has_room(bytes) {
            self.close();
            // A store in which little happens has little memory for it.
            let room = (2 * self.open.room()).clamp(TAIL_CHUNK_BYTES_MIN, TAIL_CHUNK_BYTES);
            self.open = OpenChunk::with_room(room.max(bytes));
        }
        self.open.push(key, parts)
    }

    /// The open chunk is full, as far as it goes.
    fn close(&mut self) {
        if let Some(chunk) = self.open.share() {
            self.full = self.full.iter().cloned().chain([chunk]).collect();
        }
    }

    fn last(&self) -> Option<Revision> {
        self.open.records().last().or_else(|| self.full.last().map(TailChunk::last))
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        let full = self.full.iter().map(|chunk| chunk.records().len()).sum::<usize>();
        (full + self.open.records().len()) as u64
    }

    /// Takes back every record above `revision`. Readers that share them keep them.
    pub fn truncate_after(&mut self, revision: Revision) {
        self.open.truncate_after(revision);
        let whole = self.full.partition_point(|chunk| chunk.last() <= revision);
        if let Some(chunk) = self.full.get(whole) {
            self.open = chunk.reopened_after(revision);
            self.full = Arc::from(&self.full[..whole]);
        }
    }

    /// Shares everything added so far.
    pub fn publish(&mut self) -> TailView {
        TailView { full: Arc::clone(&self.full), newest: self.open.share() }
    }

    /// Lets go of chunks that hold nothing above revision `main`.
    pub fn drop_through(&mut self, main: i64) {
        let gone = self.full.partition_point(|chunk| chunk.last().main <= main);
        if gone > 0 {
            self.full = Arc::from(&self.full[gone..]);
        }
        if self.open.records().last().is_some_and(|last| last.main <= main) {
            self.open = OpenChunk::with_room(0);
        }
    }

    /// Bytes of the records it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let full = self.full.iter().map(|chunk| chunk.records().bytes()).sum::<usize>();
        full + self.open.records().bytes()
    }

    /// Records above `after`, in order.
    pub fn after(&self, after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
        after_in(&self.full, after).chain(self.open.records().after(after))
    }

    /// A record.
    #[must_use]
    pub fn get(&self, revision: Revision) -> Option<TailRecord<'_>> {
        self.open.records().get(revision).or_else(|| get_in(&self.full, revision))
    }
}

impl TailView {
    /// A record.
    #[must_use]
    pub fn get(&self, revision: Revision) -> Option<TailRecord<'_>> {
        match &self.newest {
            Some(newest) if newest.first() <= revision => newest.records().get(revision),
            _ => get_in(&self.full, revision),
        }
    }

    /// Records above `after`, in order.
    pub fn after(&self, after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
        let newest = self.newest.iter().flat_map(move |newest| newest.records().after(after));
        after_in(&self.full, after).chain(newest)
    }
}

/// A record of these chunks.
fn get_in(chunks: &[TailChunk], revision: Revision) -> Option<TailRecord<'_>> {
    let behind = chunks.partition_point(|chunk| chunk.first() <= revision);
    chunks[..behind].last()?.records().get(revision)
}

/// Records of these chunks above `after`, in order.
fn after_in(chunks: &[TailChunk], after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
    let from = chunks.partition_point(|chunk| chunk.last() <= after);
    chunks[from..].iter().flat_map(move |chunk| chunk.records().after(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::revision::RecordKind;

    fn key(main: i64) -> RecordKey {
        RecordKey { revision: Revision { main, sub: 0 }, kind: RecordKind::Put }
    }

    #[test]
    fn every_record_is_found_whatever_the_chunks() {
        let mut tail = Tail::default();
        let mut views = Vec::new();
        for main in 1..=1000 {
            tail.push(key(main), &[b"value ", main.to_string().as_bytes()]);
            if main % 7 == 0 || main < 50 {
                views.push((main, tail.publish()));
            }
        }
        for (newest, view) in &views {
            assert!(view.full.len() <= 4, "{} chunks", view.full.len());
            for main in [1, newest / 2 + 1, *newest] {
                assert_eq!(view.get(key(main).revision).unwrap().1, format!("value {main}").as_bytes());
            }
            assert!(view.get(key(newest + 1).revision).is_none());
            assert_eq!(
                view.after(Revision { main: 3, sub: 0 }).count(),
                usize::try_from((newest - 3).max(0)).unwrap()
            );
        }
        assert_eq!(tail.get(key(1000).revision).unwrap().1, b"value 1000");
        tail.publish();
        tail.drop_through(1000);
        assert!(tail.get(key(1000).revision).is_none());
        assert_eq!(tail.bytes(), 0);
    }

    #[test]
    fn an_unfinished_transaction_is_taken_back() {
        let mut tail = Tail::default();
        tail.push(key(1), &[b"a"]);
        tail.push(key(2), &[b"bb"]);
        let shared = tail.publish();
        tail.push(key(3), &[b"d"]);
        tail.truncate_after(key(1).revision);
        assert!(tail.get(key(2).revision).is_none() && tail.get(key(3).revision).is_none());
        assert_eq!(shared.get(key(2).revision).unwrap().1, b"bb");
        tail.push(key(2), &[b"c"]);
        assert_eq!(tail.get(key(2).revision).unwrap().1, b"c");
        assert_eq!(tail.get(key(1).revision).unwrap().1, b"a");
    }
}
