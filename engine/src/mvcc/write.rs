//! One revision being written.

use crate::mutants::{self, Mutant};
use crate::mvcc::key_history::{KeyHistory, KeyMeta};
use crate::mvcc::key_index::{Direction, PutResult};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::reader::Reader;
use crate::mvcc::record::{Stamp, encode_put, encode_tombstone};
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::state_hash::StateHash;
use crate::mvcc::store::Store;
use crate::mvcc::view::View;

/// Changes that become one revision, if there are any.
#[derive(Debug)]
#[must_use = "finish it with commit or revert"]
pub struct Txn<'s> {
    store: &'s mut Store,
    main: i64,
    sub: i64,
    undo: Option<Undo>,
}

#[derive(Debug)]
struct Undo {
    /// Keys that were changed, and their histories before that, in the order of the changes.
    keys: Vec<(Box<[u8]>, Option<KeyHistory>)>,
    unsaved_bytes: usize,
    records_since_index: u64,
    hash: StateHash,
}

/// Everything a transaction had done is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reverted;

impl Store {
    /// Begins a transaction that will be committed.
    pub fn begin(&mut self) -> Txn<'_> {
        let main = self.meta.revision + 1;
        Txn { store: self, main, sub: 0, undo: None }
    }

    /// Begins a transaction that may be reverted: costs copies of the keys that it changes.
    pub fn begin_revertible(&mut self) -> Txn<'_> {
        let undo = Undo {
            keys: Vec::new(),
            unsaved_bytes: self.unsaved_bytes,
            records_since_index: self.records_since_index,
            hash: self.meta.hash,
        };
        Txn { undo: Some(undo), ..self.begin() }
    }

    fn push(&mut self, key: RecordKey, parts: &[&[u8]]) {
        let record = self.tail.push(key, parts);
        if mutants::is(Mutant::StateHashSkipsDeletions) && key.kind == RecordKind::Tombstone {
            return;
        }
        self.meta.hash.record(key, record);
    }
}

impl Txn<'_> {
    /// Reads the state with this transaction's changes.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader { revision: self.revision(), ..self.store.reader() }
    }

    /// Shares the state with this transaction's changes so far.
    #[must_use]
    pub fn view(&mut self) -> View {
        self.store.view_at(self.revision())
    }

    /// Its own revision if it has changed anything, else the newest before it.
    #[must_use]
    pub fn revision(&self) -> i64 {
        if self.sub > 0 { self.main } else { self.main - 1 }
    }

    fn next_revision(&mut self) -> Revision {
        let revision = Revision { main: self.main, sub: self.sub };
        debug_assert_eq!(self.main, self.store.meta.revision + 1, "{revision:?} is not of the next revision");
        self.sub += 1;
        revision
    }

    /// Notes a key that is about to change.
    fn note(&mut self, key: &[u8]) {
        if let Some(undo) = &mut self.undo {
            undo.keys.push((key.into(), self.store.index.root().history(key).cloned()));
        }
    }

    fn count(&mut self, key: &[u8], bytes: usize) {
        if key.len() > self.store.key_bytes_max && !self.store.unsaved_long.contains(key) {
            let shared = self.store.index.root().shared_key(key);
            self.store.unsaved_long.insert(shared.expect("a key that was changed is in the index"));
        }
        self.store.unsaved_bytes += bytes;
        self.store.records_since_index += 1;
        self.store.replaced.count(bytes);
    }

    /// Sets a key; returns it as it is now and as it was.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> PutResult {
        self.note(key);
        let revision = self.next_revision();
        let put = self.store.index.put(key, revision);
        let stamp = Stamp {
            create_revision: put.meta.create_revision,
            mod_revision: revision.main,
            version: put.meta.version,
            lease,
        };
        let record = RecordKey { revision, kind: RecordKind::Put };
        encode_put(key, value, stamp, |parts| self.store.push(record, parts));
        self.count(key, key.len() + value.len());
        put
    }

    /// Deletes every key of the range; the keys as they were, in key order.
    pub fn delete_range(&mut self, range: KeyRange<'_>) -> Vec<(Vec<u8>, KeyMeta)> {
        let doomed: Vec<_> = match range {
            KeyRange::One(key) => self
                .store
                .index
                .root()
                .get(key, i64::MAX)
                .map(|meta| (key.to_vec(), meta))
                .into_iter()
                .collect(),
            _ => {
                let keys = self.store.index.root().scan(range, i64::MAX, Direction::Forward);
                keys.map(|(key, meta)| (key.to_vec(), meta)).collect()
            }
        };
        for (key, _) in &doomed {
            self.note(key);
            let revision = self.next_revision();
            let deleted = self.store.index.tombstone(key, revision);
            assert!(deleted.is_some(), "a key that was found is not there at {revision:?}");
            let record = RecordKey { revision, kind: RecordKind::Tombstone };
            encode_tombstone(key, |parts| self.store.push(record, parts));
            self.count(key, key.len());
        }
        doomed
    }

    /// Ends it; returns the store's newest revision.
    pub fn commit(self) -> i64 {
        let (before, after) = (self.store.meta.revision, self.revision());
        assert!(after == before || after == before + 1, "revision {after} follows {before}");
        self.store.meta.revision = after;
        self.store.meta.revision
    }

    /// Undoes everything.
    ///
    /// # Panics
    /// If it has changed something and was not begun with [`Store::begin_revertible`].
    pub fn revert(self) -> Reverted {
        if self.sub > 0 {
            let undo = self.undo.expect("only a revertible transaction is reverted");
            for (key, before) in undo.keys.into_iter().rev() {
                self.store.index.replace(&key, before);
            }
            self.store.unsaved_bytes = undo.unsaved_bytes;
            self.store.records_since_index = undo.records_since_index;
            self.store.meta.hash = undo.hash;
            let (newest, before) = (self.store.index.root().newest_change(), self.store.meta.revision);
            assert!(newest <= before, "the index is at {newest} after a return to {before}");
            if !mutants::is(Mutant::RevertLeavesRecords) {
                self.store.tail.truncate_after(Revision { main: self.main - 1, sub: i64::MAX });
            }
        }
        Reverted
    }
}
