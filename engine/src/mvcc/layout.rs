//! Which table of the tree file holds what, and the store meta in its meta slot.

use crate::limits::USER_BYTES;
use crate::meta::Table;
use crate::mvcc::revision::Revision;
use crate::mvcc::state_hash::StateHash;

/// [`crate::mvcc::revision::RecordKey`] -> encoded `mvccpb.KeyValue`.
pub(crate) const RECORDS: Table = Table(0);
/// User key -> encoded history, for keys that fit a page.
pub(crate) const INDEX: Table = Table(1);
/// Longer keys: see `long_keys.rs`.
pub(crate) const INDEX_LONG: Table = Table(2);
/// Small-table number, row key -> row.
pub(crate) const SMALL: Table = Table(3);

/// Start of a range of the index -> i64 revision up to which it is saved, little-endian; no rows if
/// all of it is saved up to one revision. The first range starts with one zero.
pub(crate) const INDEX_RANGES: Table = Table(4);
/// Older changes of keys: see `saved_history.rs`.
pub(crate) const HISTORIES: Table = Table(5);

/// How far the log has been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Index of the last applied entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// The store meta: how far the store has come, durable together with the data it speaks of.
///
/// ```text
///  0  u64  applied index            32  i64  revision that all of the saved index has
///  8  u64  applied term             40  i64  compaction finished up to this revision
/// 16  i64  revision                 48  i64  0; earlier: compaction, last record looked at, main
/// 24  i64  compact revision         56  i64  ... and sub
/// 64  i64  the saved index has forgotten what compactions up to this revision dropped
/// 72  u64  state hash               80  u64  the entry it began with, 0 before it has begun
/// 88  i64  revision that long keys of the saved index have, if it is above that of their range
/// 96  u64  keys of which compactions have dropped records, counted by steps, and no sweep followed
/// 104 zeros; all integers little-endian
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreMeta {
    /// How far the log has been applied.
    pub applied: Applied,
    /// Newest revision; a new store is at 1.
    pub revision: i64,
    /// Oldest readable revision, -1 before the first compaction.
    pub compact_revision: i64,
    /// The saved index holds every change up to this revision; parts of it hold more.
    pub index_revision: i64,
    /// The compaction at this revision is done: the records that it drops are gone, or left as dead
    /// ones until that pays.
    pub compacted: i64,
    /// In files of earlier versions: how far the compaction under way has looked at records.
    pub compact_cursor: Revision,
    /// The saved index has forgotten what compactions up to this revision dropped.
    pub swept: i64,
    /// The state hash behind the applied entry.
    pub hash: StateHash,
    /// The saved index holds every change of keys too long for a page up to this revision, which an
    /// earlier version has written; or up to that of their range.
    pub long_revision: i64,
    /// Keys of which compactions have dropped records, counted by steps, and that no sweep of the
    /// saved index has followed.
    pub unswept: u64,
}

impl Default for StoreMeta {
    fn default() -> Self {
        Self {
            applied: Applied::default(),
            revision: 1,
            compact_revision: -1,
            index_revision: 1,
            compacted: -1,
            compact_cursor: Revision::default(),
            swept: -1,
            hash: StateHash::default(),
            long_revision: 0,
            unswept: 0,
        }
    }
}

/// Numbers that a store meta has.
const WORDS: usize = 13;

const _: () = assert!(WORDS * 8 <= USER_BYTES);

impl StoreMeta {
    /// Whether these numbers can be true of any store.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { revision, compact_revision, index_revision, compacted, compact_cursor, swept, .. } = *self;
        let long_revision = self.long_revision;
        let are_in_range = revision > 0 && compact_revision >= -1 && index_revision > 0;
        let cursor = compact_cursor.main.min(compact_cursor.sub);
        are_in_range
            && cursor >= 0
            && compact_revision <= revision
            && index_revision <= revision
            && (-1..=compact_revision).contains(&compacted)
            && (-1..=revision).contains(&swept)
            && (0..=revision).contains(&long_revision)
    }

    /// Lays it out.
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; USER_BYTES] {
        let mut out = [0; USER_BYTES];
        let words: [u64; WORDS] = [
            self.applied.index,
            self.applied.term,
            self.revision.cast_unsigned(),
            self.compact_revision.cast_unsigned(),
            self.index_revision.cast_unsigned(),
            self.compacted.cast_unsigned(),
            self.compact_cursor.main.cast_unsigned(),
            self.compact_cursor.sub.cast_unsigned(),
            self.swept.cast_unsigned(),
            self.hash.value,
            self.hash.since,
            self.long_revision.cast_unsigned(),
            self.unswept,
        ];
        for (word, part) in words.iter().zip(out.chunks_exact_mut(8)) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads it back.
    #[must_use]
    pub(crate) fn decode(bytes: &[u8; USER_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let long = |at| word(at).cast_signed();
        Self {
            applied: Applied { index: word(0), term: word(1) },
            revision: long(2),
            compact_revision: long(3),
            index_revision: long(4),
            compacted: long(5),
            compact_cursor: Revision { main: long(6), sub: long(7) },
            swept: long(8),
            hash: StateHash { value: word(9), since: word(10) },
            long_revision: long(11),
            unswept: word(12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_survives_the_round_trip() {
        let meta = StoreMeta {
            applied: Applied { index: 1, term: 2 },
            revision: 3,
            compact_revision: -1,
            index_revision: 5,
            compacted: 6,
            compact_cursor: Revision { main: 7, sub: 8 },
            swept: 9,
            hash: StateHash { value: 10, since: 11 },
            long_revision: 12,
            unswept: 13,
        };
        assert_eq!(StoreMeta::decode(&meta.encode()), meta);
    }

    /// The bytes of a damaged slot may have any numbers.
    #[test]
    fn numbers_that_no_store_can_have_are_not_sound() {
        let sound = StoreMeta {
            revision: 9,
            compact_revision: 5,
            index_revision: 7,
            compacted: 4,
            swept: 3,
            long_revision: 2,
            ..StoreMeta::default()
        };
        assert!(sound.is_sound() && StoreMeta::default().is_sound());
        for wrong in [
            StoreMeta { revision: 0, ..sound },
            StoreMeta { revision: 0, ..StoreMeta::default() },
            StoreMeta { compact_revision: -2, compacted: -2, ..sound },
            StoreMeta { compact_revision: 10, ..sound },
            StoreMeta { index_revision: 0, ..sound },
            StoreMeta { index_revision: 10, ..sound },
            StoreMeta { compacted: -2, ..sound },
            StoreMeta { compacted: 6, ..sound },
            StoreMeta { compact_cursor: Revision { main: -1, sub: 0 }, ..sound },
            StoreMeta { compact_cursor: Revision { main: 0, sub: -1 }, ..sound },
            StoreMeta { swept: -2, ..sound },
            StoreMeta { swept: 10, ..sound },
            StoreMeta { long_revision: -1, ..sound },
            StoreMeta { long_revision: 10, ..sound },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }
}
