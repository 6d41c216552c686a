//! A chunk of the tail: memory that its writer fills from the front, while readers share what was
//! there when they were given their share. So no record is copied to be shared, and a chunk that
//! grows is not made anew.
//!
//! ```text
//! entries  | revision, kind and end of each record ... | room |
//! data     | the records, one behind the other ......  | room |
//!                                  shares end here ^  ^ the writer goes on here
//! ```

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::limits::TAIL_BYTES_PER_ENTRY;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};

/// A record: its key and the encoded `mvccpb.KeyValue`.
pub type TailRecord<'t> = (RecordKey, &'t [u8]);

/// The first records of a chunk, in revision order; there is at least one. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct TailChunk {
    memory: Arc<Memory>,
    filled: Filled,
    first: Revision,
    last: Revision,
}

/// The writer of a chunk: there is one of each.
#[derive(Debug)]
pub(super) struct OpenChunk {
    memory: Arc<Memory>,
    filled: Filled,
    /// Records that shares have: these are not put again.
    shared: usize,
}

/// Records of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records<'t> {
    entries: &'t [Entry],
    data: &'t [u8],
}

/// How much of a chunk there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Filled {
    records: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Memory {
    entries: Room<Entry>,
    data: Room<u8>,
}

/// A record's key, and where it ends in the data.
#[derive(Debug, Clone, Copy)]
struct Entry {
    revision: Revision,
    end: u32,
    kind: RecordKind,
}

/// Room for items: those at the front are there, and are never changed. It does not know how many
/// these are.
#[derive(Debug)]
struct Room<T: Copy>(NonNull<[MaybeUninit<T>]>);

// SAFETY: it owns its items, as a box does.
unsafe impl<T: Copy + Send> Send for Room<T> {}
// SAFETY: items are written by one writer, and read by those who know of them: `put` and `front`
// want that of their callers.
unsafe impl<T: Copy + Send + Sync> Sync for Room<T> {}

impl<T: Copy> Room<T> {
    fn new(len: usize) -> Self {
        Self(NonNull::from(Box::leak(Box::new_uninit_slice(len))))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes items from `at` on.
    ///
    /// # Safety
    /// Nothing else writes or reads items from there on.
    unsafe fn put(&self, at: usize, items: &[T]) {
        let end = at + items.len();
        assert!(end <= self.len(), "{end} items in room for {}", self.len());
        // SAFETY: it is in the room, as was just seen.
        let to = unsafe { self.0.cast::<T>().add(at) };
        // SAFETY: there is room for them, which no reference leads to, as the caller says.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(items).cast(), items.len()) };
    }

    /// The first items.
    ///
    /// # Safety
    /// So many were put, and are put no more.
    unsafe fn front(&self, len: usize) -> &[T] {
        assert!(len <= self.len(), "{len} items of room for {}", self.len());
        // SAFETY: they are in the room, were written, and are not written again, as the caller says.
        unsafe { NonNull::slice_from_raw_parts(self.0.cast::<T>(), len).as_ref() }
    }
}

impl<T: Copy> Drop for Room<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has leaked it, and nothing uses it any more. Items need no end of their own.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Memory {
    /// # Safety
    /// So much was put, and is not put again.
    unsafe fn records(&self, filled: Filled) -> Records<'_> {
        // SAFETY: each record has an entry; the caller says the rest.
        let entries = unsafe { self.entries.front(filled.records) };
        // SAFETY: as the caller says.
        let data = unsafe { self.data.front(filled.bytes) };
        Records { entries, data }
    }
}

impl OpenChunk {
    /// An empty chunk with room for so many bytes of records.
    pub(super) fn with_room(bytes: usize) -> Self {
        assert!(u32::try_from(bytes).is_ok(), "a chunk of {bytes} bytes is too long");
        let (entries, data) = (Room::new(bytes.div_ceil(TAIL_BYTES_PER_ENTRY)), Room::new(bytes));
        Self { memory: Arc::new(Memory { entries, data }), filled: Filled::default(), shared: 0 }
    }

    /// Bytes of records that there is room for in all.
    pub(super) fn room(&self) -> usize {
        self.memory.data.len()
    }

    /// There is room for a record of so many bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let Self { memory, filled, .. } = self;
        filled.records < memory.entries.len() && bytes <= self.room() - filled.bytes
    }

    /// Adds a record, its value given in parts, for which there is room. Returns the value.
    pub(super) fn push(&mut self, key: RecordKey, parts: &[&[u8]]) -> &[u8] {
        let Self { memory, filled, .. } = self;
        let start = filled.bytes;
        for part in parts {
            // SAFETY: this is the one writer, and no share has what comes behind.
            unsafe { memory.data.put(filled.bytes, part) };
            filled.bytes += part.len();
        }
        let end = u32::try_from(filled.bytes).expect("a chunk is as short as its room");
        let entry = Entry { revision: key.revision, end, kind: key.kind };
        // SAFETY: as above.
        unsafe { memory.entries.put(filled.records, &[entry]) };
        filled.records += 1;
        &self.records().data[start..]
    }

    pub(super) fn records(&self) -> Records<'_> {
        // SAFETY: so much was put, and is not put again while it is looked at.
        unsafe { self.memory.records(self.filled) }
    }

    /// Shares what is there, if there is something.
    pub(super) fn share(&mut self) -> Option<TailChunk> {
        let records = self.records();
        let (first, last) = (records.entries.first()?.revision, records.entries.last()?.revision);
        self.shared = self.filled.records;
        Some(TailChunk { memory: Arc::clone(&self.memory), filled: self.filled, first, last })
    }

    /// Takes back every record above `revision`. Shares keep theirs.
    pub(super) fn truncate_after(&mut self, revision: Revision) {
        let records = self.records().until(revision);
        if records.len() < self.shared {
            *self = Self::copy_of(records, self.room());
        } else {
            self.filled = Filled { records: records.len(), bytes: records.data.len() };
        }
    }

    /// A chunk with these records, and room for so many bytes in all.
    fn copy_of(records: Records<'_>, room: usize) -> Self {
        let mut copy = Self::with_room(room);
        for (key, value) in records.iter() {
            copy.push(key, &[value]);
        }
        copy
    }
}

impl TailChunk {
    pub(super) fn records(&self) -> Records<'_> {
        // SAFETY: the writer had put so much when it shared it, and does not put it again.
        unsafe { self.memory.records(self.filled) }
    }

    pub(super) fn first(&self) -> Revision {
        self.first
    }

    pub(super) fn last(&self) -> Revision {
        self.last
    }

    /// A chunk that goes on behind `revision`.
    pub(super) fn reopened_after(&self, revision: Revision) -> OpenChunk {
        OpenChunk::copy_of(self.records().until(revision), self.memory.data.len())
    }
}

impl<'t> Records<'t> {
    pub(super) fn len(self) -> usize {
        self.entries.len()
    }

    /// Bytes of all of them.
    pub(super) fn bytes(self) -> usize {
        self.data.len()
    }

    pub(super) fn last(self) -> Option<Revision> {
        self.entries.last().map(|entry| entry.revision)
    }

    fn at(self, at: usize) -> TailRecord<'t> {
        let Entry { revision, end, kind } = self.entries[at];
        (RecordKey { revision, kind }, &self.data[self.end_of(at)..end as usize])
    }

    /// Where the first so many end.
    fn end_of(self, records: usize) -> usize {
        records.checked_sub(1).map_or(0, |last| self.entries[last].end as usize)
    }

    /// How many are not above a revision.
    fn count_until(self, revision: Revision) -> usize {
        self.entries.partition_point(|entry| entry.revision <= revision)
    }

    fn until(self, revision: Revision) -> Self {
        let keep = self.count_until(revision);
        Self { entries: &self.entries[..keep], data: &self.data[..self.end_of(keep)] }
    }

    pub(super) fn get(self, revision: Revision) -> Option<TailRecord<'t>> {
        let at = self.entries.binary_search_by(|entry| entry.revision.cmp(&revision)).ok()?;
        Some(self.at(at))
    }

    fn iter(self) -> impl Iterator<Item = TailRecord<'t>> {
        (0..self.len()).map(move |at| self.at(at))
    }

    /// Those above `after`.
    pub(super) fn after(self, after: Revision) -> impl Iterator<Item = TailRecord<'t>> {
        (self.count_until(after)..self.len()).map(move |at| self.at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(main: i64) -> RecordKey {
        RecordKey { revision: Revision { main, sub: 0 }, kind: RecordKind::Put }
    }

    fn texts(records: Records<'_>) -> Vec<&str> {
        records.iter().map(|(_, value)| std::str::from_utf8(value).unwrap()).collect()
    }

    /// What was shared stays as it was, on whatever thread it is looked at, while the writer goes
    /// on in the same memory.
    #[test]
    fn shares_stay_as_they_were_while_the_chunk_fills() {
        let mut chunk = OpenChunk::with_room(1_000);
        assert!(chunk.share().is_none());
        assert_eq!(chunk.push(key(1), &[b"a", b"", b"b"]), b"ab");
        let one = chunk.share().unwrap();
        let memory = Arc::as_ptr(&chunk.memory);
        let reader = std::thread::spawn(move || {
            for _ in 0..50 {
                assert_eq!(texts(one.records()), ["ab"]);
                assert_eq!((one.first(), one.last()), (key(1).revision, key(1).revision));
            }
            one
        });
        let mut main = 2;
        while chunk.has_room(10) {
            chunk.push(key(main), &[b"0123456789"]);
            main += 1;
        }
        let all = chunk.share().unwrap();
        drop(chunk);
        let one = reader.join().unwrap();
        assert_eq!((Arc::as_ptr(&one.memory), Arc::as_ptr(&all.memory)), (memory, memory));
        assert_eq!(all.records().get(key(1).revision), Some((key(1), &b"ab"[..])));
        assert_eq!(all.records().after(key(1).revision).count(), all.records().len() - 1);
        assert!(all.records().get(key(main).revision).is_none());
    }

    #[test]
    fn room_ends_with_bytes_or_with_entries() {
        let mut chunk = OpenChunk::with_room(2 * TAIL_BYTES_PER_ENTRY);
        assert!(chunk.has_room(2 * TAIL_BYTES_PER_ENTRY) && !chunk.has_room(2 * TAIL_BYTES_PER_ENTRY + 1));
        chunk.push(key(1), &[b"a"]);
        assert!(!chunk.has_room(2 * TAIL_BYTES_PER_ENTRY));
        chunk.push(key(2), &[b"b"]);
        assert!(!chunk.has_room(0), "there is no entry left");
        assert!(!OpenChunk::with_room(0).has_room(0));
    }

    #[test]
    #[should_panic(expected = "room")]
    fn a_record_does_not_go_where_there_is_no_room() {
        OpenChunk::with_room(100).push(key(1), &[&[0; 60], &[0; 41]]);
    }

    /// The memory is used again only behind what a share has.
    #[test]
    fn what_is_taken_back_stays_in_shares() {
        let mut chunk = OpenChunk::with_room(1_000);
        chunk.push(key(1), &[b"a"]);
        chunk.push(key(2), &[b"b"]);
        let two = chunk.share().unwrap();
        chunk.push(key(3), &[b"c"]);
        let memory = Arc::as_ptr(&chunk.memory);
        chunk.truncate_after(key(2).revision);
        assert_eq!((Arc::as_ptr(&chunk.memory), texts(chunk.records())), (memory, vec!["a", "b"]));
        chunk.push(key(3), &[b"C"]);
        assert_eq!(texts(chunk.records()), ["a", "b", "C"]);
        chunk.truncate_after(key(1).revision);
        assert_ne!(Arc::as_ptr(&chunk.memory), memory);
        chunk.push(key(2), &[b"B"]);
        assert_eq!(texts(chunk.records()), ["a", "B"]);
        assert_eq!(texts(two.records()), ["a", "b"]);
        let mut again = two.reopened_after(key(1).revision);
        again.push(key(2), &[b"bb"]);
        assert_eq!((texts(again.records()), texts(two.records())), (vec!["a", "bb"], vec!["a", "b"]));
        again.truncate_after(Revision::default());
        assert!(again.share().is_none() && again.records().bytes() == 0);
    }
}
