//! The tail: the newest records, in memory, until a checkpoint has put them into the tree file.
//! Other engines call it a memtable; unlike most of those it is ordered by revision, not by key,
//! and is the history for watchers too.
//!
//! Records lie in immutable chunks that readers share. Publishing turns what was added since the
//! last time into a chunk and joins small chunks of similar size, so that there are never many of
//! them and each record is copied a logarithmic number of times at most; chunks of a mebibyte are
//! left alone.

use std::sync::Arc;

use crate::limits::TAIL_CHUNK_BYTES;
use crate::mvcc::revision::{RecordKey, Revision};

/// Records in revision order.
#[derive(Debug, Clone, Default)]
pub struct TailChunk {
    /// Key and end in `data`.
    records: Vec<(RecordKey, usize)>,
    data: Vec<u8>,
}

/// A record: its key and the encoded `mvccpb.KeyValue`.
pub type TailRecord<'t> = (RecordKey, &'t [u8]);

impl TailChunk {
    fn push(&mut self, key: RecordKey, parts: &[&[u8]]) -> &[u8] {
        let (last, start) = (self.records.last().map(|(last, _)| last.revision), self.data.len());
        assert!(last.is_none_or(|last| last < key.revision), "record {:?} follows {last:?}", key.revision);
        parts.iter().for_each(|part| self.data.extend_from_slice(part));
        self.records.push((key, self.data.len()));
        &self.data[start..]
    }

    fn truncate_after(&mut self, revision: Revision) {
        let keep = self.records.partition_point(|(key, _)| key.revision <= revision);
        self.records.truncate(keep);
        self.data.truncate(self.records.last().map_or(0, |(_, end)| *end));
    }

    fn at(&self, at: usize) -> TailRecord<'_> {
        let start = if at == 0 { 0 } else { self.records[at - 1].1 };
        let (key, end) = self.records[at];
        (key, &self.data[start..end])
    }

    fn first(&self) -> Revision {
        self.records[0].0.revision
    }

    fn last(&self) -> Revision {
        self.records[self.records.len() - 1].0.revision
    }

    fn joined(&self, later: &Self) -> Self {
        let (last, first) = (self.last(), later.first());
        assert!(last < first, "a chunk that begins with {first:?} is joined behind {last:?}");
        let mut data = Vec::with_capacity(self.data.len() + later.data.len());
        data.extend_from_slice(&self.data);
        data.extend_from_slice(&later.data);
        let mut records = Vec::with_capacity(self.records.len() + later.records.len());
        records.extend_from_slice(&self.records);
        records.extend(later.records.iter().map(|(key, end)| (*key, end + self.data.len())));
        Self { records, data }
    }

    fn get(&self, revision: Revision) -> Option<TailRecord<'_>> {
        let at = self.records.binary_search_by(|(key, _)| key.revision.cmp(&revision)).ok()?;
        Some(self.at(at))
    }

    /// Records above `after`.
    fn after(&self, after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
        let from = self.records.partition_point(|(key, _)| key.revision <= after);
        (from..self.records.len()).map(|at| self.at(at))
    }
}

/// State core view: the tail being written.
#[derive(Debug, Default)]
pub struct Tail {
    published: TailView,
    open: TailChunk,
}

/// The tail at one moment. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct TailView {
    /// Oldest first.
    chunks: Vec<Arc<TailChunk>>,
}

impl Tail {
    /// Adds a record, its value given in parts; its revision must be above all others. Returns the
    /// value.
    pub fn push(&mut self, key: RecordKey, parts: &[&[u8]]) -> &[u8] {
        if self.open.records.is_empty() {
            let last = self.published.chunks.last().map(|chunk| chunk.last());
            assert!(
                last.is_none_or(|last| last < key.revision),
                "record {:?} follows {last:?}",
                key.revision
            );
        }
        self.open.push(key, parts)
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        let published = self.published.chunks.iter().map(|chunk| chunk.records.len()).sum::<usize>();
        (published + self.open.records.len()) as u64
    }

    /// Takes back every record above `revision`. Readers that share them keep them.
    pub fn truncate_after(&mut self, revision: Revision) {
        self.open.truncate_after(revision);
        let chunks = &mut self.published.chunks;
        while let Some(chunk) = chunks.pop_if(|chunk| chunk.last() > revision) {
            if chunk.first() <= revision {
                let mut chunk = Arc::unwrap_or_clone(chunk);
                chunk.truncate_after(revision);
                chunks.push(Arc::new(chunk));
            }
        }
    }

    /// Shares everything added so far.
    pub fn publish(&mut self) -> &TailView {
        if !self.open.records.is_empty() {
            let mut chunk = std::mem::take(&mut self.open);
            let ends_at = chunk.records.last().map_or(0, |(_, end)| *end);
            assert_eq!(ends_at, chunk.data.len(), "the records of a chunk end elsewhere than its bytes");
            let chunks = &mut self.published.chunks;
            while let Some(last) = chunks.last() {
                let together = last.data.len() + chunk.data.len();
                if last.records.len() >= 2 * chunk.records.len() || together > TAIL_CHUNK_BYTES {
                    break;
                }
                chunk = last.joined(&chunk);
                chunks.pop();
            }
            chunks.push(Arc::new(chunk));
        }
        &self.published
    }

    /// Lets go of chunks that hold nothing above revision `main`.
    pub fn drop_through(&mut self, main: i64) {
        self.published.chunks.retain(|chunk| chunk.last().main > main);
    }

    /// Bytes of the records it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.open.data.len() + self.published.chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>()
    }

    /// Records above `after`, in order.
    pub fn after(&self, after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
        self.published.after(after).chain(self.open.after(after))
    }

    /// A record.
    #[must_use]
    pub fn get(&self, revision: Revision) -> Option<TailRecord<'_>> {
        self.open.get(revision).or_else(|| self.published.get(revision))
    }
}

impl TailView {
    /// A record.
    #[must_use]
    pub fn get(&self, revision: Revision) -> Option<TailRecord<'_>> {
        let behind = self.chunks.partition_point(|chunk| chunk.first() <= revision);
        self.chunks[..behind].last()?.get(revision)
    }

    /// Records above `after`, in order.
    pub fn after(&self, after: Revision) -> impl Iterator<Item = TailRecord<'_>> {
        let from = self.chunks.partition_point(|chunk| chunk.last() <= after);
        self.chunks[from..].iter().flat_map(move |chunk| chunk.after(after))
    }
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
                views.push((main, tail.publish().clone()));
            }
        }
        for (newest, view) in &views {
            assert!(view.chunks.len() <= 12, "{} chunks", view.chunks.len());
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
        let shared = tail.publish().clone();
        tail.push(key(3), &[b"d"]);
        tail.truncate_after(key(1).revision);
        assert!(tail.get(key(2).revision).is_none() && tail.get(key(3).revision).is_none());
        assert_eq!(shared.get(key(2).revision).unwrap().1, b"bb");
        tail.push(key(2), &[b"c"]);
        assert_eq!(tail.get(key(2).revision).unwrap().1, b"c");
        assert_eq!(tail.get(key(1).revision).unwrap().1, b"a");
    }
}
