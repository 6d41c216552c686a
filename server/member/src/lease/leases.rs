//! Which leases there are, and what is attached to them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use revd_engine::mvcc::{KeyRange, SmallTable, Store};

use crate::error::Error;
use crate::lease::walk::SnapshotWalk;
use crate::limits;
use crate::mutants::{self, Mutant};

/// The longest a lease can be granted for, in seconds.
pub const TTL_MAX: i64 = 9_000_000_000;

/// State core view: all leases.
#[derive(Debug, Default)]
pub struct Leases {
    leases: BTreeMap<i64, Lease>,
    /// Which lease a key is attached to.
    keys: BTreeMap<Arc<[u8]>, i64>,
    /// The number of the next attachment; rows of a lease are stored under it, since a key may be
    /// longer than a row's.
    next_attachment: u64,
    /// The lease whose keys are being read, and the position in them.
    reading: Option<KeyReading>,
}

/// A lease, and how far its keys are read.
type KeyReading = (i64, SnapshotWalk<Arc<[u8]>, u64>);

/// One lease.
#[derive(Debug)]
struct Lease {
    /// Seconds it was granted for.
    ttl: i64,
    /// Remaining TTL of the last lease checkpoint, in seconds; 0 if a keepalive came since, or
    /// there was none.
    remaining: i64,
    /// Attached keys, and the number of each attachment.
    keys: BTreeMap<Arc<[u8]>, u64>,
    /// The bytes of all of them.
    key_bytes: usize,
}

impl Lease {
    fn new(ttl: i64, remaining: i64) -> Self {
        Self { ttl, remaining, keys: BTreeMap::new(), key_bytes: 0 }
    }
}

/// A key that was written, and the lease it was written with; 0 for none, or if it was deleted.
pub type Touched = (Vec<u8>, i64);

impl Leases {
    /// Loads what a store holds.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn load(store: &Store) -> revd_engine::Result<Self> {
        let damaged = || revd_engine::Error::Corrupt("a lease's row cannot be read".to_owned());
        let mut leases = Self::default();
        for (key, row) in store.saved_rows(SmallTable::Leases)? {
            let id = i64::from_be_bytes(key.try_into().map_err(|_| damaged())?);
            let (ttl, remaining) = row.split_at_checked(8).ok_or_else(damaged)?;
            let long = |bytes: &[u8]| bytes.try_into().map(i64::from_le_bytes).map_err(|_| damaged());
            leases.leases.insert(id, Lease::new(long(ttl)?, long(remaining)?));
        }
        for (row_key, key) in store.saved_rows(SmallTable::LeaseKeys)? {
            let (id, number) = row_key.split_first_chunk().ok_or_else(damaged)?;
            let id = i64::from_be_bytes(*id);
            let number = u64::from_be_bytes(number.try_into().map_err(|_| damaged())?);
            let key: Arc<[u8]> = key.into();
            let lease = leases.leases.get_mut(&id).ok_or_else(damaged)?;
            lease.key_bytes += key.len();
            lease.keys.insert(Arc::clone(&key), number);
            leases.keys.insert(key, id);
            leases.next_attachment = leases.next_attachment.max(number + 1);
        }
        Ok(leases)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Leases beyond an id, or all: id, granted TTL and remaining TTL of the last lease checkpoint,
    /// in seconds.
    pub fn iter_after(&self, id: Option<i64>) -> impl Iterator<Item = (i64, i64, i64)> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        let leases = self.leases.range((from, Bound::Unbounded));
        leases.map(|(id, lease)| (*id, lease.ttl, lease.remaining))
    }

    /// Granted TTL of a lease, and remaining TTL of its last lease checkpoint, in seconds.
    #[must_use]
    pub fn get(&self, id: i64) -> Option<(i64, i64)> {
        self.leases.get(&id).map(|lease| (lease.ttl, lease.remaining))
    }

    /// The keys attached to a lease, in order; all of them in one go.
    pub fn keys(&self, id: i64) -> impl Iterator<Item = &[u8]> {
        self.leases.get(&id).into_iter().flat_map(|lease| lease.keys.keys().map(|key| &**key))
    }

    /// The first key attached to a lease that is not before another one.
    #[must_use]
    pub fn key_from(&self, id: i64, from: &[u8]) -> Option<&[u8]> {
        let keys = &self.leases.get(&id)?.keys;
        let from = (Bound::Included(from), Bound::Unbounded);
        keys.range::<[u8], _>(from).next().map(|(key, _)| &**key)
    }

    /// The same of keys that are attached to any lease.
    #[must_use]
    pub fn attached_from(&self, from: &[u8]) -> Option<&[u8]> {
        let from = (Bound::Included(from), Bound::Unbounded);
        self.keys.range::<[u8], _>(from).next().map(|(key, _)| &**key)
    }

    /// How many keys are attached to any lease.
    #[must_use]
    pub fn attached_count(&self) -> usize {
        self.keys.len()
    }

    /// How many keys are attached to a lease.
    #[must_use]
    pub fn key_count(&self, id: i64) -> usize {
        self.leases.get(&id).map_or(0, |lease| lease.keys.len())
    }

    /// The bytes of those keys.
    #[must_use]
    pub fn key_bytes(&self, id: i64) -> usize {
        self.leases.get(&id).map_or(0, |lease| lease.key_bytes)
    }

    /// A lease has so many keys that they are read a part at a time.
    #[must_use]
    pub fn has_many_keys(&self, id: i64) -> bool {
        self.key_count(id) > limits::LEASE_KEYS_PER_TURN / limits::LEASE_PARTS_PER_TURN
            || self.key_bytes(id) > limits::LEASE_KEY_BYTES_PER_TURN / limits::LEASE_PARTS_PER_TURN
    }

    /// From now on [`Leases::read_on`] reads the keys that this lease has now.
    pub fn begin_reading(&mut self, id: i64) {
        self.reading = Some((id, SnapshotWalk::default()));
    }

    /// Reads so many keys, or until `visit` has had enough; false when those were all.
    pub fn read_on(&mut self, keys: usize, mut visit: impl FnMut(&[u8]) -> bool) -> bool {
        let Some((id, walk)) = &mut self.reading else { return false };
        let none = BTreeMap::new();
        let now = self.leases.get(id).map_or(&none, |lease| &lease.keys);
        let more = walk.go_on(now, keys, |key, _| visit(key));
        if !more {
            self.reading = None;
        }
        more
    }

    /// A key of a lease is about to come or go: a walk over its keys that is under way has to know.
    fn will_change(&mut self, id: i64, key: &Arc<[u8]>, number: Option<u64>) {
        if let Some((reading, walk)) = &mut self.reading
            && *reading == id
        {
            walk.will_change(key, number);
        }
    }

    /// Whether a key is attached to any lease.
    #[must_use]
    pub fn is_attached(&self, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(key)
    }

    /// A put may name this lease; 0 is none.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`]
    pub fn check(&self, id: i64) -> Result<(), Error> {
        if id == 0 || self.leases.contains_key(&id) { Ok(()) } else { Err(Error::LeaseNotFound) }
    }

    /// A new lease.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`] for id 0, [`Error::LeaseTtlTooLarge`], [`Error::LeaseExists`].
    pub fn grant(&mut self, store: &mut Store, id: i64, ttl: i64) -> Result<(), Error> {
        if id == 0 {
            return Err(Error::LeaseNotFound);
        }
        if ttl > TTL_MAX {
            return Err(Error::LeaseTtlTooLarge);
        }
        if self.leases.contains_key(&id) {
            return Err(Error::LeaseExists);
        }
        self.leases.insert(id, Lease::new(ttl, 0));
        self.save(store, id);
        Ok(())
    }

    /// Ends a lease and deletes its keys, in order, in one revision.
    ///
    /// # Errors
    /// [`Error::LeaseNotFound`]
    pub fn revoke(&mut self, store: &mut Store, id: i64) -> Result<(), Error> {
        let lease = self.leases.remove(&id).ok_or(Error::LeaseNotFound)?;
        let mut txn = store.begin();
        for key in lease.keys.keys() {
            let _ = txn.delete_range(KeyRange::One(key));
        }
        txn.commit();
        for (key, number) in lease.keys {
            self.will_change(id, &key, Some(number));
            self.keys.remove(&key);
            store.table_remove(SmallTable::LeaseKeys, &attachment_row(id, number));
        }
        store.table_remove(SmallTable::Leases, &id.to_be_bytes());
        Ok(())
    }

    /// A lease checkpoint: the remaining TTL becomes state; nothing if the lease is gone.
    pub fn checkpoint(&mut self, store: &mut Store, id: i64, remaining: i64) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.remaining = remaining;
            self.save(store, id);
        }
    }

    /// Keys were written: attaches them to their new leases.
    pub fn attach(&mut self, store: &mut Store, touched: Vec<Touched>) {
        for (key, id) in touched {
            let old = self.keys.get(&*key).copied().unwrap_or(0);
            if old == id {
                continue;
            }
            if old != 0
                && !(mutants::is(Mutant::LeaseKeyNotDetached) && id == 0)
                && let Some(lease) = self.leases.get_mut(&old)
                && let Some((key, number)) = lease.keys.remove_entry(&*key)
            {
                lease.key_bytes -= key.len();
                self.will_change(old, &key, Some(number));
                self.keys.remove(&key);
                store.table_remove(SmallTable::LeaseKeys, &attachment_row(old, number));
            }
            if let Some(lease) = self.leases.get_mut(&id) {
                let number = self.next_attachment;
                self.next_attachment += 1;
                store.table_put(SmallTable::LeaseKeys, &attachment_row(id, number), &key);
                let key: Arc<[u8]> = key.into();
                lease.key_bytes += key.len();
                lease.keys.insert(Arc::clone(&key), number);
                self.will_change(id, &key, None);
                self.keys.insert(key, id);
            }
        }
    }

    fn save(&self, store: &mut Store, id: i64) {
        let lease = &self.leases[&id];
        let row = [lease.ttl.to_le_bytes(), lease.remaining.to_le_bytes()].concat();
        store.table_put(SmallTable::Leases, &id.to_be_bytes(), &row);
    }
}

/// Lease id and number of the attachment, both big-endian.
fn attachment_row(id: i64, number: u64) -> [u8; 16] {
    let mut row = [0; 16];
    row[..8].copy_from_slice(&id.to_be_bytes());
    row[8..].copy_from_slice(&number.to_be_bytes());
    row
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;

    use super::*;

    /// A lease with keys of these lengths.
    fn leases(keys: impl Iterator<Item = usize>) -> Leases {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let mut leases = Leases::default();
        leases.grant(&mut store, 7, 60).unwrap();
        let key =
            |(number, len): (usize, usize)| [&(number as u64).to_be_bytes(), &vec![0; len - 8][..]].concat();
        leases.attach(&mut store, keys.enumerate().map(|numbered| (key(numbered), 7)).collect());
        leases
    }

    #[test]
    fn a_lease_with_more_keys_than_one_part_is_read_a_part_at_a_time() {
        let (keys, bytes) = (limits::LEASE_KEYS_PER_TURN, limits::LEASE_KEY_BYTES_PER_TURN);
        let (keys, bytes) = (keys / limits::LEASE_PARTS_PER_TURN, bytes / limits::LEASE_PARTS_PER_TURN);
        assert!(!leases(std::iter::repeat_n(8, keys)).has_many_keys(7));
        assert!(leases(std::iter::repeat_n(8, keys + 1)).has_many_keys(7));
        assert!(!leases([bytes / 2, bytes / 2].into_iter()).has_many_keys(7));
        assert!(leases([bytes / 2, bytes / 2 + 1].into_iter()).has_many_keys(7));
        assert!(!leases(std::iter::repeat_n(8, keys + 1)).has_many_keys(8), "another lease");
    }
}
