//! Small tables beside the key space: members, alarms and the like. They are saved row by
//! row. Tables that are small indeed are held in memory and shared with every View; the others are
//! held by their owner.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
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

type Rows = BTreeMap<Arc<[u8]>, Arc<[u8]>>;

/// Rows in chunks. A row is in the chunk with the greatest key at most its own. The key of the
/// first chunk is empty. No chunk but the first is empty; none has more than [`CHUNK_ROWS_MAX`]
/// rows. A chunk keeps its key when its first row goes.
type Chunks = BTreeMap<Arc<[u8]>, Arc<Rows>>;

/// With more rows a chunk is divided. A change copies the places of a chunk's rows and of all
/// chunks, not what is in them: of 10,000 users 64 to 128 rows and about 150 chunks. Chunks are not
/// joined when rows go: there are never more of them than rows.
const CHUNK_ROWS_MAX: usize = 128;

/// Rows of all small tables at one moment; clones share them, and what was not changed in between
/// is shared by all.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    chunks: Arc<Chunks>,
}

/// Recognises rows of small tables, without a look at them.
///
/// It keeps their place in memory from being used for others, and from being changed there, but
/// not the rows themselves.
#[derive(Debug, Clone, Default)]
pub struct TablesMark(Weak<Chunks>);

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
        let key = row_key(table, key);
        let (_, rows) = self.chunks.range::<[u8], _>((Unbounded, Included(&key[..]))).next_back()?;
        rows.get(key.as_slice()).map(|row| &**row)
    }

    /// All rows of a table, by key.
    pub fn rows(&self, table: SmallTable) -> impl Iterator<Item = (&[u8], &[u8])> {
        let number = [table as u8];
        let first = self.chunks.range::<[u8], _>((Unbounded, Included(&number[..]))).next_back();
        let others = self.chunks.range::<[u8], _>((Excluded(&number[..]), Unbounded));
        first
            .into_iter()
            .chain(others)
            .flat_map(move |(_, rows)| rows.range::<[u8], _>((Included(&number[..]), Unbounded)))
            .take_while(move |(key, _)| key.first() == Some(&number[0]))
            .map(|(key, row)| (&key[1..], &**row))
    }

    /// A mark of these rows.
    #[must_use]
    pub fn mark(&self) -> TablesMark {
        TablesMark(Arc::downgrade(&self.chunks))
    }

    /// These are the rows that were marked. Others may be equal to them.
    #[must_use]
    pub fn is_marked(&self, mark: &TablesMark) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.chunks), mark.0.as_ptr())
    }

    pub(crate) fn set(&mut self, full_key: &[u8], row: Option<&[u8]>) {
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some((first, chunk)) = chunks.range_mut::<[u8], _>((Unbounded, Included(full_key))).next_back()
        else {
            if let Some(row) = row {
                // No key is before the first chunk's, which is empty.
                chunks.insert(Arc::default(), Arc::new(Rows::from([(full_key.into(), row.into())])));
            }
            return;
        };
        let rows = Arc::make_mut(chunk);
        match row {
            Some(row) => rows.insert(full_key.into(), row.into()),
            None => rows.remove(full_key),
        };
        if rows.is_empty() && !first.is_empty() {
            let first = Arc::clone(first);
            chunks.remove(&first);
        } else if rows.len() > CHUNK_ROWS_MAX {
            let middle = rows.keys().nth(CHUNK_ROWS_MAX / 2).cloned().expect("there are more");
            let behind = rows.split_off(&middle);
            let before = chunks.insert(middle, Arc::new(behind));
            assert!(before.is_none(), "a chunk begins where another one does");
        }
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
            tables.set(&row_key(SmallTable::Users, b"ann"), Some(&[number]));
            assert!(!tables.is_marked(&mark), "change {number}");
            assert!(view.iter().all(|view| view.is_marked(&mark)), "a View has the rows of before");
            drop(view);
            // Memory that is free now may be used for the rows of the next change.
            tables.set(&row_key(SmallTable::Users, b"bob"), None);
            assert!(!tables.is_marked(&mark));
        }
    }

    /// Beside a model with one map, through changes that divide and empty chunks.
    #[test]
    fn rows_in_chunks_are_those_of_one_map() {
        let tables_of = [SmallTable::Members, SmallTable::Users, SmallTable::Roles];
        let (mut tables, mut model) = (Tables::default(), BTreeMap::new());
        let mut random = 1_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for step in 0..20_000_u64 {
            let table = tables_of[usize::try_from(below(3)).unwrap()];
            let name = format!("{:03}", below(400));
            // Rows come, most of them go, others come.
            let goes = below(10) < if step / 5_000 % 2 == 0 { 2 } else { 8 };
            let row = (!goes).then(|| step.to_be_bytes());
            let key = row_key(table, name.as_bytes());
            tables.set(&key, row.as_ref().map(<[u8; 8]>::as_slice));
            match row {
                Some(row) => drop(model.insert(key.clone(), row.to_vec())),
                None => drop(model.remove(&key)),
            }
            assert_eq!(tables.get(table, name.as_bytes()), model.get(&key).map(Vec::as_slice));
            if step % 500 == 0 {
                for table in tables_of {
                    let rows: Vec<_> =
                        tables.rows(table).map(|(key, row)| (row_key(table, key), row)).collect();
                    let of_model = model.iter().filter(|(key, _)| key[0] == table as u8);
                    assert_eq!(
                        rows,
                        of_model.map(|(key, row)| (key.clone(), row.as_slice())).collect::<Vec<_>>()
                    );
                }
                let sizes = tables.chunks.values().map(|rows| rows.len());
                assert!(sizes.clone().all(|rows| rows <= CHUNK_ROWS_MAX), "{:?}", sizes.collect::<Vec<_>>());
            }
        }
        assert!(model.len() > CHUNK_ROWS_MAX && tables.chunks.len() > 2);
        model.keys().for_each(|key| tables.set(key, None));
        assert_eq!(tables.chunks.len(), 1, "what is empty is gone, but for the first");
    }

    /// A change leaves alone what others hold of all other rows.
    #[test]
    fn a_change_copies_one_chunk() {
        let mut tables = Tables::default();
        let key = |number: u32| row_key(SmallTable::Users, &number.to_be_bytes());
        (0..10_000).for_each(|number| tables.set(&key(number), Some(b"row")));
        let before = tables.clone();
        tables.set(&key(5_000), Some(b"changed"));
        let copied = tables.chunks.iter().filter(|(first, rows)| !Arc::ptr_eq(rows, &before.chunks[*first]));
        assert_eq!(copied.count(), 1);
        assert!(tables.chunks.len() > 50);
        assert_eq!(before.get(SmallTable::Users, &5_000_u32.to_be_bytes()), Some(&b"row"[..]));
    }
}
