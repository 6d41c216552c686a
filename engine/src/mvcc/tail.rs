//! The tail: the newest records, in memory, until a checkpoint has put them into the tree file.
//! Other engines call it a memtable; unlike most of those it is ordered by revision, not by key,
//! and is the history for watchers too.
//!
//! Records lie in chunks, one behind the other. The last one is open: it is filled while readers
//! share what it has. A chunk leaves memory when all of it is in the tree file, and no reader has
//! it any more: a View keeps all of its newest chunk.

use std::sync::Arc;

use crate::limits::{
    TAIL_CHUNK_BYTES, TAIL_CHUNK_BYTES_MIN, TAIL_COPIED_BYTES_MAX, TAIL_COPIED_RECORDS_MAX,
    TAIL_RECORD_BYTES, TAIL_RECORD_BYTES_MAX, TAIL_RECORD_BYTES_MIN,
};
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
    /// The open chunk as it was, if it had something.
    newest: Option<TailChunk>,
}

impl Default for Tail {
    fn default() -> Self {
        Self { full: Arc::default(), open: OpenChunk::with_room(0, 0) }
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
            let next = self.next_chunk(bytes);
            let full = self.open.share();
            self.close(full);
            self.open = next;
        }
        self.open.push(key, parts)
    }

    /// A chunk to follow the open one, with room for a record of so many bytes.
    fn next_chunk(&self, bytes: usize) -> OpenChunk {
        // Large ones would leave much room of such chunks empty.
        if bytes > TAIL_CHUNK_BYTES / 4 {
            return OpenChunk::with_room(bytes, 1);
        }
        // A store in which little happens has little memory for it.
        let room = (2 * self.open.room()).clamp(TAIL_CHUNK_BYTES_MIN, TAIL_CHUNK_BYTES).max(bytes);
        let records = self.open.records();
        let of_one = records.bytes().checked_div(records.len()).unwrap_or(TAIL_RECORD_BYTES);
        OpenChunk::with_room(room, room / of_one.clamp(TAIL_RECORD_BYTES_MIN, TAIL_RECORD_BYTES_MAX))
    }

    /// Adds a chunk, if there is one, to those that are full: the open one has to be another then.
    fn close(&mut self, chunk: Option<TailChunk>) {
        if chunk.is_some() {
            self.full = self.full.iter().cloned().chain(chunk).collect();
        }
    }

    fn last(&self) -> Option<Revision> {
        self.open.records().last().or_else(|| self.full.last().map(TailChunk::last))
    }

    /// How many records there are above `after`.
    pub fn records_after(&self, after: Revision) -> u64 {
        let all = self.full.iter().map(TailChunk::records).chain([self.open.records()]);
        all.map(|records| (records.len() - records.count_until(after)) as u64).sum()
    }

    /// Takes back every record above `revision`. Readers that share them keep them.
    pub fn truncate_after(&mut self, revision: Revision) {
        let whole = self.full.partition_point(|chunk| chunk.last() <= revision);
        let left = match self.full.get(whole) {
            Some(chunk) => chunk.until(revision),
            None if self.open.truncate_after(revision) => return,
            None => self.open.share().and_then(|chunk| chunk.until(revision)),
        };
        self.full = Arc::from(&self.full[..whole]);
        self.open = OpenChunk::with_room(0, 0);
        let Some(left) = left else { return };
        let records = left.records();
        // Little is copied, lest there be a chunk for each transaction that is undone.
        if records.bytes() > TAIL_COPIED_BYTES_MAX || records.len() > TAIL_COPIED_RECORDS_MAX {
            return self.close(Some(left));
        }
        let room = (2 * records.bytes()).max(TAIL_CHUNK_BYTES_MIN);
        self.open = OpenChunk::with_room(room, 2 * records.len() + room / TAIL_RECORD_BYTES);
        for (key, value) in records.iter() {
            self.open.push(key, &[value]);
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
            self.open = OpenChunk::with_room(0, 0);
        }
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
    use std::collections::VecDeque;

    use super::*;
    use crate::mvcc::revision::RecordKind;
    use crate::random::Random;

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
        assert_eq!(tail.records_after(Revision::default()), 0);
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

    /// A list of records beside the tail, and beside each of its Views.
    fn assert_has(
        get: impl Fn(Revision) -> Option<Vec<u8>>,
        after: &[(RecordKey, Vec<u8>)],
        all: &[(RecordKey, Vec<u8>)],
    ) {
        assert!(after == all, "{} records where {} were", after.len(), all.len());
        for (at, (key, value)) in all.iter().enumerate().filter(|(at, _)| at % 7 == 0 || at + 3 > all.len()) {
            assert_eq!(get(key.revision).as_ref(), Some(value), "the {at}th of {}", all.len());
        }
    }

    /// The tail and each View have the records that they should have, in any order of puts, shares,
    /// records that are taken back and that are dropped.
    #[test]
    fn a_tail_and_its_views_are_lists_of_records() {
        for seed in 0..if cfg!(miri) { 3 } else { 40 } {
            let mut random = Random::new(seed);
            let (mut tail, mut model, mut views) = (Tail::default(), Vec::new(), VecDeque::new());
            let (mut main, mut saved) = (1, 0);
            let copied = |records: &mut dyn Iterator<Item = TailRecord<'_>>| {
                records.map(|(key, value)| (key, value.to_vec())).collect::<Vec<_>>()
            };
            for _ in 0..if cfg!(miri) { 40 } else { 250 } {
                match random.below(10) {
                    0..5 => {
                        let (count, most) = (random.below(60), random.pick(&[2, 30, 400, 9_000]));
                        for sub in 0..i64::try_from(count).unwrap() {
                            let long = random.one_in(2_000) && !cfg!(miri);
                            let len = if long { 1_100_000 } else { random.below(most) };
                            let value = vec![random.byte(); usize::try_from(len).unwrap()];
                            let key =
                                RecordKey { revision: Revision { main, sub }, kind: RecordKind::Tombstone };
                            let (front, rest) = value.split_at(value.len() / 3);
                            assert_eq!(tail.push(key, &[front, rest]), value);
                            model.push((key, value));
                        }
                        main += 1;
                    }
                    5 | 6 => {
                        views.push_back((tail.publish(), model.clone()));
                        views.drain(..views.len().saturating_sub(4));
                    }
                    7 | 8 => {
                        let back = i64::try_from(random.below(4)).unwrap();
                        let to = Revision { main: (main - back).max(saved), sub: i64::MAX - back };
                        tail.truncate_after(to);
                        model.retain(|(key, _)| key.revision <= to);
                    }
                    _ => {
                        saved = (main - 1 - i64::try_from(random.below(6)).unwrap()).max(saved);
                        tail.drop_through(saved);
                        // It may keep some of them.
                        let first = tail.after(Revision::default()).next();
                        let kept = first.map_or(Revision { main, sub: 0 }, |(key, _)| key.revision);
                        let needed = model.iter().find(|(key, _)| key.revision.main > saved);
                        assert!(needed.is_none_or(|(key, _)| kept <= key.revision), "a record is lost");
                        model.retain(|(key, _)| key.revision >= kept);
                    }
                }
                let all = copied(&mut tail.after(Revision::default()));
                assert_has(|at| tail.get(at).map(|(_, value)| value.to_vec()), &all, &model);
                let above = Revision { main: main - 2, sub: 3 };
                let count = model.iter().filter(|(key, _)| key.revision > above).count();
                assert_eq!((tail.records_after(above), tail.after(above).count()), (count as u64, count));
            }
            for (view, model) in &views {
                let all = copied(&mut view.after(Revision::default()));
                assert_has(|at| view.get(at).map(|(_, value)| value.to_vec()), &all, model);
            }
        }
    }

    /// A transaction that is undone again and again copies little, and there is no chunk for each.
    #[test]
    fn what_is_undone_often_leaves_few_chunks() {
        let (mut tail, times) = (Tail::default(), if cfg!(miri) { 50 } else { 3_000 });
        for main in 1..=times {
            tail.push(key(main), &[&[1; 100]]);
            tail.push(key(main + 1), &[&[2; 100]]);
            let view = tail.publish();
            tail.truncate_after(key(main).revision);
            assert!(view.get(key(main + 1).revision).is_some() && tail.get(key(main + 1).revision).is_none());
        }
        assert!(tail.full.len() < 15, "{} chunks for {times} transactions", tail.full.len());
    }
}
