//! The state that commands change: the key space and the leases.

use revd_engine::mvcc::{KeyMeta, KeyRange, Reader, Store, Txn, View};

use crate::error::Error;
use crate::lease::{Leases, Touched};
use crate::mutants::{self, Mutant};

/// State core view.
#[derive(Debug)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) leases: Leases,
}

/// One revision being written.
pub(super) struct Writing<'s> {
    txn: Txn<'s>,
    leases: &'s Leases,
    /// Keys that may have to change their lease.
    touched: Vec<Touched>,
    /// The state as it is now, if somebody has asked for it since the last change.
    view: Option<View>,
}

impl State {
    /// Writes what `run` writes as one revision; nothing if it fails. If it may fail after it has
    /// changed something, it must be `revertible`, which costs copies.
    pub(super) fn write<T>(
        &mut self,
        revertible: bool,
        run: impl FnOnce(&mut Writing<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Self { store, leases } = self;
        let txn = if revertible { store.begin_revertible() } else { store.begin() };
        let mut writing = Writing { txn, leases, touched: Vec::new(), view: None };
        match run(&mut writing) {
            Ok(result) => {
                let Writing { txn, touched, .. } = writing;
                txn.commit();
                leases.attach(store, touched);
                Ok(result)
            }
            Err(error) => {
                if mutants::is(Mutant::TxnHalfApplied) {
                    writing.txn.commit();
                } else {
                    writing.txn.revert();
                }
                Err(error)
            }
        }
    }
}

impl Writing<'_> {
    /// Reads the state with what was written so far.
    pub(super) fn reader(&self) -> Reader<'_> {
        self.txn.reader()
    }

    /// Shares the state with what was written so far.
    pub(super) fn view(&mut self) -> View {
        self.view.get_or_insert_with(|| self.txn.view()).clone()
    }

    /// Its own revision if it has changed anything, else the newest before it.
    pub(super) fn revision(&self) -> i64 {
        self.txn.revision()
    }

    /// Sets a key.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], lease: i64) {
        self.view = None;
        self.txn.put(key, value, lease);
        self.touch(key, lease);
    }

    /// Deletes keys; as they were, in key order.
    pub(super) fn delete_range(&mut self, range: KeyRange<'_>) -> Vec<(Vec<u8>, KeyMeta)> {
        self.view = None;
        let deleted = self.txn.delete_range(range);
        deleted.iter().for_each(|(key, _)| self.touch(key, 0));
        deleted
    }

    fn touch(&mut self, key: &[u8], lease: i64) {
        if lease != 0 || !self.touched.is_empty() || self.leases.is_attached(key) {
            self.touched.push((key.to_vec(), lease));
        }
    }
}
