//! HashKV: one number for all records up to a revision, the same on every member and the same as
//! etcd's.
//!
//! CRC-32C over the text `key`, then for each record in revision order its key in etcd's form and
//! its value. Of the records at or below the compact revision only those count that are still what
//! their key holds at the hashed revision, whether or not the space of the others is freed already.
//! If no key is left at the hashed revision, etcd counts every record that a compaction leaves in
//! its file; then those count that their key held at the compact revision.
//!
//! A compaction hashes the records that it drops (`compaction_hash.rs`).

use crate::key_parts::KeyParts;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::mvcc::compaction_hash::{Hashed, begun, is_newest, with_record};
use crate::mvcc::key_index::{Direction, Sought};
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
    phase: HashPhase,
    /// The last record that was looked at.
    last: Revision,
    crc: u32,
}

#[derive(Debug)]
enum HashPhase {
    /// A compaction has computed the hash.
    Known(Hashed),
    /// Looking for any key that exists at the revision; the next key to look at.
    Looking(Vec<u8>),
    /// Records are hashed; one at or below the compact revision must be its key's newest at
    /// `kept_at`.
    Hashing { kept_at: i64 },
}

impl HashKv {
    /// A hash of everything up to `revision`; 0 is the newest, and below it there is nothing.
    ///
    /// # Errors
    /// [`Error::Compacted`] and [`Error::FutureRevision`].
    pub fn new(view: View, revision: i64) -> Result<Self> {
        let phase = match view.compaction_hash(revision) {
            Some(known) => HashPhase::Known(known),
            None => HashPhase::Looking(Vec::new()),
        };
        let is_known = matches!(phase, HashPhase::Known(_));
        let revision = if revision < 0 || is_known { revision } else { view.reader().resolve(revision)? };
        Ok(Self { view, revision, phase, last: Revision::default(), crc: begun() })
    }

    /// Does at most as much work as hashing so many small records is; the result when there are
    /// none left.
    ///
    /// # Errors
    /// When the tree file is damaged.
    pub fn step(&mut self, records: usize) -> Result<Option<Hashed>> {
        match &self.phase {
            HashPhase::Known(hashed) => Ok(Some(*hashed)),
            HashPhase::Looking(from) => {
                let from = from.clone();
                self.look(&from, records);
                Ok(None)
            }
            HashPhase::Hashing { kept_at } => self.hash(*kept_at, records),
        }
    }

    /// Looks for any key that exists at the revision.
    fn look(&mut self, from: &[u8], records: usize) {
        let mut steps =
            records.saturating_mul(limits::HASH_STEPS_PER_RECORD).max(limits::HASH_LOOK_STEPS_MIN);
        let reader = self.view.reader();
        let mut scan = reader.scan(KeyRange::From(from), self.revision, Direction::Forward);
        self.phase = match scan.next_within(&mut steps) {
            Sought::Key(..) => HashPhase::Hashing { kept_at: self.revision },
            Sought::End => HashPhase::Hashing { kept_at: reader.compact_revision() },
            Sought::Later => {
                let passed = scan.passed().unwrap_or(KeyParts::from(from));
                HashPhase::Looking(passed.next())
            }
        };
    }

    fn hash(&mut self, kept_at: i64, records: usize) -> Result<Option<Hashed>> {
        let reader = self.view.reader();
        let compact = reader.compact_revision();
        let (mut crc, mut last, mut left) = (self.crc, self.last, records);
        reader.each_record_after(self.last, |key, bytes| {
            if key.revision.main > self.revision || left == 0 {
                return Ok(false);
            }
            left = (left - 1).saturating_sub(bytes.len() / limits::HASH_BYTES_PER_RECORD);
            last = key.revision;
            if key.revision.main <= compact {
                if mutants::is(Mutant::HashKvSkipsCompacted) {
                    return Ok(true);
                }
                let record =
                    StoredRecord::parse(bytes).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
                if !is_newest(reader.index, record.key, key.revision, kept_at) {
                    return Ok(true);
                }
            }
            crc = with_record(crc, key, bytes);
            Ok(true)
        })?;
        (self.crc, self.last) = (crc, last);
        let done = left > 0;
        Ok(done.then_some(Hashed { hash: crc, revision: self.revision, compact_revision: compact }))
    }
}
