//! HashKV: one number for all records up to a revision, the same on every member and the same as etcd's.
//!
//! CRC-32C over the text `key`, then for each record in revision order its key in etcd's form and its value. Of
//! the records at or below the compact revision only those count that are still what their key holds at the hashed
//! revision, whether or not the space of the others is freed already. If no key is left at the hashed revision, etcd
//! counts every record that a compaction leaves in its file; then those count that their key held at the compact
//! revision.

use crate::mvcc::key_index::Direction;
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::Revision;
use crate::mvcc::view::View;
use crate::{Error, Result};

/// A hash being computed, step by step.
#[derive(Debug)]
pub struct HashKv {
    view: View,
    revision: i64,
    /// Where a record at or below the compact revision must still be its key's newest.
    kept_at: i64,
    last: Revision,
    crc: u32,
}

/// A computed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    /// The CRC-32C.
    pub hash: u32,
    /// Up to which revision.
    pub revision: i64,
    /// The compaction it took into account.
    pub compact_revision: i64,
}

impl HashKv {
    /// Of everything up to `revision`; 0 is the newest, and below it there is nothing.
    ///
    /// # Errors
    /// [`Error::Compacted`] and [`Error::FutureRevision`].
    pub fn new(view: View, revision: i64) -> Result<Self> {
        let revision = if revision < 0 { revision } else { view.reader().resolve(revision)? };
        let reader = view.reader();
        let is_empty = reader.scan(KeyRange::ALL, revision, Direction::Forward).next().is_none();
        let kept_at = if is_empty { reader.compact_revision() } else { revision };
        Ok(Self { view, revision, kept_at, last: Revision::default(), crc: crc32c::crc32c(b"key") })
    }

    /// Hashes at most `records` more records; the result when there are none left.
    ///
    /// # Errors
    /// When the tree file is damaged.
    pub fn step(&mut self, records: usize) -> Result<Option<Hashed>> {
        let reader = self.view.reader();
        let compact = reader.compact_revision();
        let (mut crc, mut last, mut left) = (self.crc, self.last, records);
        reader.each_record_after(self.last, |key, bytes| {
            if key.revision.main > self.revision || left == 0 {
                return Ok(false);
            }
            left -= 1;
            last = key.revision;
            if key.revision.main <= compact {
                let record =
                    StoredRecord::parse(bytes).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
                let newest =
                    reader.index.change_at(record.key, self.kept_at).and_then(|change| change.live());
                if newest.is_none_or(|newest| newest.modified != key.revision) {
                    return Ok(true);
                }
            }
            let (etcd_key, len) = key.etcd_form();
            crc = crc32c::crc32c_append(crc, &etcd_key[..len]);
            crc = crc32c::crc32c_append(crc, bytes);
            Ok(true)
        })?;
        (self.crc, self.last) = (crc, last);
        let done = left > 0;
        Ok(done.then_some(Hashed { hash: crc, revision: self.revision, compact_revision: compact }))
    }
}
