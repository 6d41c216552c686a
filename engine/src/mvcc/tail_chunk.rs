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

/// The writer of a chunk: no second one is ever made for the same memory.
#[derive(Debug)]
pub(super) struct OpenChunk {
    memory: Arc<Memory>,
    filled: Filled,
    /// Records that shares have or had: these are not put again.
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
        // SAFETY: they are in the room, and were written for good, as the caller says.
        unsafe { NonNull::slice_from_raw_parts(self.0.cast::<T>(), len).as_ref() }
    }
}

impl<T: Copy> Drop for Room<T> {
    fn drop(&mut self) {
        // SAFETY: `new` has leaked it, and nothing uses it any more. Items need no drop.
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
    /// An empty chunk with room for so many bytes of so many records.
    pub(super) fn with_room(bytes: usize, records: usize) -> Self {
        assert!(u32::try_from(bytes).is_ok(), "a chunk of {bytes} bytes is too long");
        let (entries, data) = (Room::new(records), Room::new(bytes));
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
        let (start, mut end) = (filled.bytes, filled.bytes);
        for part in parts {
            // SAFETY: this is the one writer, and no share has what comes behind.
            unsafe { memory.data.put(end, part) };
            end += part.len();
        }
        let end_entry = u32::try_from(end).expect("a chunk is as short as its room");
        let entry = Entry { revision: key.revision, end: end_entry, kind: key.kind };
        // SAFETY: as above.
        unsafe { memory.entries.put(filled.records, &[entry]) };
        *filled = Filled { records: filled.records + 1, bytes: end };
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

    /// Takes back every record above `revision`; false, and nothing is, if a share may have one of
    /// them.
    pub(super) fn truncate_after(&mut self, revision: Revision) -> bool {
        let filled = self.records().until(revision).filled();
        let is_free = filled.records >= self.shared;
        if is_free {
            self.filled = filled;
        }
        is_free
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

    /// The first records of it, up to `revision`, if there are some.
    pub(super) fn until(&self, revision: Revision) -> Option<Self> {
        let records = self.records().until(revision);
        let (memory, filled) = (Arc::clone(&self.memory), records.filled());
        Some(Self { memory, filled, first: self.first, last: records.last()? })
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

    fn filled(self) -> Filled {
        Filled { records: self.len(), bytes: self.bytes() }
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
    pub(super) fn count_until(self, revision: Revision) -> usize {
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

    pub(super) fn iter(self) -> impl Iterator<Item = TailRecord<'t>> {
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

    /// Shares stay as they were, on another thread too, while the writer goes on behind them in the
    /// same memory.
    #[test]
    fn shares_stay_as_they_were_while_the_chunk_fills() {
        let mut chunk = OpenChunk::with_room(2_000, 200);
        assert!(chunk.share().is_none());
        let (send, shared) = std::sync::mpsc::channel::<TailChunk>();
        let reader = std::thread::spawn(move || {
            let mut newest = None;
            for share in shared {
                let (last, value) = share.records().iter().last().unwrap();
                assert_eq!((last.revision, share.last()), (share.last(), last.revision));
                assert_eq!(value, last.revision.main.to_string().repeat(2).as_bytes());
                newest = Some(share);
            }
            newest.unwrap()
        });
        let mut main = 1;
        while chunk.has_room(10) {
            let text = main.to_string();
            assert_eq!(
                chunk.push(key(main), &[text.as_bytes(), b"", text.as_bytes()]),
                text.repeat(2).as_bytes()
            );
            send.send(chunk.share().unwrap()).unwrap();
            main += 1;
        }
        drop((send, chunk));
        let all = reader.join().unwrap();
        assert_eq!((all.first(), all.last()), (key(1).revision, key(main - 1).revision));
        assert_eq!(all.records().get(key(1).revision), Some((key(1), &b"11"[..])));
        assert_eq!(all.records().after(key(1).revision).count(), all.records().len() - 1);
        assert!(all.records().get(key(main).revision).is_none());
    }

    #[test]
    fn room_ends_with_bytes_or_with_records() {
        let mut chunk = OpenChunk::with_room(100, 2);
        assert!(chunk.has_room(100) && !chunk.has_room(101));
        chunk.push(key(1), &[b"a"]);
        assert!(chunk.has_room(99) && !chunk.has_room(100));
        chunk.push(key(2), &[b"b"]);
        assert!(!chunk.has_room(0), "there is no entry left");
        assert!(!OpenChunk::with_room(0, 0).has_room(0));
    }

    #[test]
    #[should_panic(expected = "room")]
    fn a_record_does_not_go_where_there_is_no_room() {
        OpenChunk::with_room(100, 9).push(key(1), &[&[0; 60], &[0; 41]]);
    }

    /// The memory is used again only behind what a share has.
    #[test]
    fn what_is_taken_back_stays_in_shares() {
        let mut chunk = OpenChunk::with_room(1_000, 9);
        chunk.push(key(1), &[b"a"]);
        chunk.push(key(2), &[b"b"]);
        let two = chunk.share().unwrap();
        chunk.push(key(3), &[b"c"]);
        assert!(chunk.truncate_after(key(2).revision));
        chunk.push(key(3), &[b"C"]);
        assert_eq!(texts(chunk.records()), ["a", "b", "C"]);
        assert!(!chunk.truncate_after(key(1).revision), "a share has the second one");
        assert_eq!((texts(chunk.records()).len(), texts(two.records())), (3, vec!["a", "b"]));
        let one = two.until(key(1).revision).unwrap();
        assert_eq!((texts(one.records()), one.last()), (vec!["a"], key(1).revision));
        assert!(two.until(Revision::default()).is_none());
    }
}
