//! The state hash: one number for everything that the log has changed, in the order in which it was
//! changed. Members that have applied the same entries to the same state have the same one.
//!
//! The changes that reach the store go into it, not the commands that asked for them: a record has
//! versions and revisions that come of the state before, so that members whose states differ soon
//! differ in what they write.
//!
//! ```text
//! word w into hash h:  x = (h ^ w) * 0x9e3779b97f4a7c15 mod 2^64;  h = x ^ (x >> 32)
//!
//! record      1, main, 2 * sub (1 more for a tombstone), CRC-32C of its bytes + 2^32 * their count
//! row         2, the same of table and key, the same of the row
//! row gone    3, the same of table and key
//! compaction  4, its revision
//! entry       5, index, term; behind its changes
//! ```
//!
//! For a given word this turns different hashes into different ones: members that differ once
//! differ for ever. A hash begins behind an entry, with 0 and that entry's words; only those that
//! began with the same entry can be compared. Rows of attached keys are left out: their numbers are
//! each member's own, and what is attached is in the records.

use crate::mvcc::revision::{RecordKey, RecordKind};
use crate::mvcc::tables::SmallTable;

const RECORD: u64 = 1;
const ROW: u64 = 2;
const ROW_GONE: u64 = 3;
const COMPACTION: u64 = 4;
const ENTRY: u64 = 5;

/// The state hash behind an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateHash {
    /// The hash.
    pub value: u64,
    /// The entry that it began with; 0 before it has begun.
    pub since: u64,
}

impl StateHash {
    fn word(&mut self, word: u64) {
        let mixed = (self.value ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.value = mixed ^ (mixed >> 32);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(u64::from(crc32c::crc32c(bytes)) | (bytes.len() as u64) << 32);
    }

    pub(crate) fn record(&mut self, key: RecordKey, bytes: &[u8]) {
        self.word(RECORD);
        self.word(key.revision.main.cast_unsigned());
        let is_tombstone = key.kind == RecordKind::Tombstone;
        self.word(key.revision.sub.cast_unsigned() << 1 | u64::from(is_tombstone));
        self.bytes(bytes);
    }

    /// A row of a small table; `key` begins with the table's number.
    pub(crate) fn row(&mut self, key: &[u8], row: Option<&[u8]>) {
        if key.first() == Some(&(SmallTable::LeaseKeys as u8)) {
            return;
        }
        self.word(if row.is_some() { ROW } else { ROW_GONE });
        self.bytes(key);
        row.into_iter().for_each(|row| self.bytes(row));
    }

    pub(crate) fn compaction(&mut self, revision: i64) {
        self.word(COMPACTION);
        self.word(revision.cast_unsigned());
    }

    /// An entry is applied; the first one begins the hash.
    pub(crate) fn applied(&mut self, index: u64, term: u64) {
        if self.since == 0 {
            *self = Self { value: 0, since: index };
        }
        self.word(ENTRY);
        self.word(index);
        self.word(term);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::DbOptions;
    use crate::disk::SimDisk;
    use crate::mvcc::{Applied, CheckpointKind, KeyRange, Store};

    fn open(disk: &SimDisk) -> Store {
        Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap()
    }

    fn apply(store: &mut Store, index: u64, change: impl FnOnce(&mut Store)) -> StateHash {
        change(store);
        store.set_applied(Applied { index, term: 1 });
        store.state_hash()
    }

    fn put(key: &'static [u8], value: &'static [u8], lease: i64) -> impl FnOnce(&mut Store) {
        move |store| {
            let mut txn = store.begin();
            txn.put(key, value, lease);
            txn.commit();
        }
    }

    fn save(store: &mut Store) {
        let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
    }

    /// Members of other builds compute it too: the number is a part of the format.
    #[test]
    fn the_hash_of_a_history_is_fixed() {
        let mut store = open(&SimDisk::new());
        assert_eq!(store.state_hash(), StateHash::default());
        assert_eq!(apply(&mut store, 7, put(b"lost", b"", 0)).since, 7, "what came before is not in it");
        apply(&mut store, 8, put(b"key", b"value", 3));
        apply(&mut store, 9, |store| store.table_put(SmallTable::Leases, b"row", b"content"));
        apply(&mut store, 10, |store| store.table_remove(SmallTable::Leases, b"row"));
        apply(&mut store, 11, |store| drop(store.begin().delete_range(KeyRange::One(b"none"))));
        apply(&mut store, 12, |store| {
            let mut txn = store.begin();
            txn.delete_range(KeyRange::One(b"key"));
            txn.commit();
        });
        let hash = apply(&mut store, 13, |store| store.compact(3).unwrap());
        assert_eq!(hash, StateHash { value: 14_274_776_324_310_353_874, since: 7 });
    }

    #[test]
    fn every_change_counts_and_a_difference_stays() {
        let (mut left, mut right) = (open(&SimDisk::new()), open(&SimDisk::new()));
        for store in [&mut left, &mut right] {
            apply(store, 1, |_| {});
            apply(store, 2, put(b"a", b"value", 0));
        }
        assert_eq!(left.state_hash(), right.state_hash());
        let base = (left.state_hash(), 3);
        let changes: [fn(&mut Store); 7] = [
            |_| {},
            |store| put(b"a", b"value", 0)(store),
            |store| put(b"a", b"valuf", 0)(store),
            |store| put(b"a", b"value", 1)(store),
            |store| store.table_put(SmallTable::Alarms, b"a", b""),
            |store| store.table_remove(SmallTable::Alarms, b"a"),
            |store| store.compact(2).unwrap(),
        ];
        let mut seen = vec![base.0];
        for change in changes {
            let mut store = open(&SimDisk::new());
            apply(&mut store, 1, |_| {});
            apply(&mut store, 2, put(b"a", b"value", 0));
            let hash = apply(&mut store, base.1, change);
            assert!(!seen.contains(&hash));
            seen.push(hash);
        }
        // The numbers of attachments are each member's own.
        apply(&mut left, 3, |store| store.table_put(SmallTable::LeaseKeys, b"1", b"k"));
        apply(&mut right, 3, |store| store.table_put(SmallTable::LeaseKeys, b"2", b"k"));
        assert_eq!(left.state_hash(), right.state_hash());
        apply(&mut left, 4, put(b"a", b"lost", 0));
        apply(&mut right, 4, |_| {});
        for index in 5..10 {
            assert_ne!(
                apply(&mut left, index, put(b"b", b"same", 0)),
                apply(&mut right, index, put(b"b", b"same", 0))
            );
        }
    }

    #[test]
    fn it_is_saved_with_the_applied_index_and_forgets_what_is_reverted() {
        let disk = SimDisk::new();
        let mut store = open(&disk);
        apply(&mut store, 4, |_| {});
        let hash = apply(&mut store, 5, put(b"a", b"1", 0));
        save(&mut store);
        let later = apply(&mut store, 6, put(b"a", b"2", 0));
        drop(store);
        let mut store = open(&disk);
        assert_eq!((store.applied().index, store.state_hash()), (5, hash));
        let mut txn = store.begin_revertible();
        txn.put(b"b", b"never", 0);
        txn.revert();
        assert_eq!(apply(&mut store, 6, put(b"a", b"2", 0)), later);
        // Begun again, it has nothing of before.
        let begun = |store: &mut Store| {
            store.begin_state_hash();
            store.set_applied(Applied { index: 7, term: 2 });
            store.state_hash()
        };
        let mut other = open(&SimDisk::new());
        assert_eq!(begun(&mut store), begun(&mut other));
    }
}
