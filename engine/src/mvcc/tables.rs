//! Small tables beside the key space: members, alarms and the like. They are saved row by
//! row. Tables that are small indeed are held in memory and shared with every View; the others are
//! held by their owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Which table a row belongs to. The numbers are in the file: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SmallTable {
    /// Members of the cluster, by id.
    Members = 1,
    /// Cluster-wide settings, by name.
    Cluster = 2,
    /// Raised alarms.
    Alarms = 3,
    /// Leases, by id; not in Views.
    Leases = 4,
    /// Keys attached to leases; not in Views.
    LeaseKeys = 5,
    /// Users, by name.
    Users = 6,
    /// Roles, by name.
    Roles = 7,
}

impl SmallTable {
    /// Rows of this table are part of every View.
    pub(crate) fn is_shared(self) -> bool {
        Self::is_shared_number(self as u8)
    }

    /// Rows of the table with this number are part of every View.
    pub(crate) fn is_shared_number(number: u8) -> bool {
        number != Self::Leases as u8 && number != Self::LeaseKeys as u8
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Rows of all small tables at one moment; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    rows: Arc<Rows>,
}

/// Recognises rows of small tables, without a look at them.
///
/// It keeps their place in memory from being used for others, and from being changed there, but
/// not the rows themselves.
#[derive(Debug, Clone, Default)]
pub struct TablesMark(Weak<Rows>);

/// Rows that changed: their new content, or none if they are gone.
pub(crate) type TableChanges = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(crate) fn row_key(table: SmallTable, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(1 + key.len());
    full.push(table as u8);
    full.extend_from_slice(key);
    full
}

impl Tables {
    /// A row.
    #[must_use]
    pub fn get(&self, table: SmallTable, key: &[u8]) -> Option<&[u8]> {
        self.rows.get(&row_key(table, key)).map(Vec::as_slice)
    }

    /// All rows of a table, by key.
    pub fn rows(&self, table: SmallTable) -> impl Iterator<Item = (&[u8], &[u8])> {
        let from = vec![table as u8];
        let rows = self.rows.range(from..).take_while(move |(key, _)| key[0] == table as u8);
        rows.map(|(key, row)| (&key[1..], row.as_slice()))
    }

    /// A mark of these rows.
    #[must_use]
    pub fn mark(&self) -> TablesMark {
        TablesMark(Arc::downgrade(&self.rows))
    }

    /// These are the rows that were marked. Others may be equal to them.
    #[must_use]
    pub fn is_marked(&self, mark: &TablesMark) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.rows), mark.0.as_ptr())
    }

    pub(crate) fn set(&mut self, full_key: Vec<u8>, row: Option<Vec<u8>>) {
        let rows = Arc::make_mut(&mut self.rows);
        match row {
            Some(row) => rows.insert(full_key, row),
            None => rows.remove(&full_key),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbOptions;
    use crate::disk::{Disk, SimDisk};
    use crate::mvcc::{Applied, CheckpointKind, Store};

    /// Rows of leases are many, and their owner has them all in memory.
    #[test]
    fn views_have_the_rows_of_all_tables_but_those_of_leases() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let open = || Store::open(Arc::clone(&disk), DbOptions::default()).unwrap();
        let mut store = open();
        let kept = [(SmallTable::Users, true), (SmallTable::Leases, false), (SmallTable::LeaseKeys, false)];
        let are_shown = |store: &mut Store, row: Option<&[u8]>| {
            let view = store.view();
            kept.iter()
                .all(|(table, is_shared)| view.tables().get(*table, b"key") == row.filter(|_| *is_shared))
        };
        kept.iter().for_each(|(table, _)| store.table_put(*table, b"key", b"row"));
        assert!(are_shown(&mut store, Some(b"row")));
        store.set_applied(Applied { index: 1, term: 1 });
        let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
        store.finish_checkpoint(checkpoint.write().unwrap());
        for (table, _) in kept {
            assert_eq!(store.saved_rows(table).unwrap(), [(b"key".to_vec(), b"row".to_vec())], "{table:?}");
        }
        drop(store);
        let mut store = open();
        assert!(are_shown(&mut store, Some(b"row")));
        kept.iter().for_each(|(table, _)| store.table_remove(*table, b"key"));
        assert!(are_shown(&mut store, None));
    }

    /// Rows that change are not those of before, whether others share these or nobody does.
    #[test]
    fn marked_rows_are_recognised_until_they_change() {
        let mut tables = Tables::default();
        assert!(!tables.is_marked(&TablesMark::default()), "no rows have the first mark");
        for number in 0..100_u8 {
            let mark = tables.mark();
            let view = (number % 2 == 0).then(|| tables.clone());
            assert!(tables.is_marked(&mark) && view.iter().all(|view| view.is_marked(&mark)));
            tables.set(row_key(SmallTable::Users, b"ann"), Some(vec![number]));
            assert!(!tables.is_marked(&mark), "change {number}");
            assert!(view.iter().all(|view| view.is_marked(&mark)), "a View has the rows of before");
            drop(view);
            // Memory that is free now may be used for the rows of the next change.
            tables.set(row_key(SmallTable::Users, b"bob"), None);
            assert!(!tables.is_marked(&mark));
        }
    }
}
