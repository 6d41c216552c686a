//! Reading the records that the saved index does not have, when a store is opened.
//!
//! Records lie in the order of revisions, which is no order of keys: taken one by one, each would
//! bring other nodes of the index into the caches, and miss each time. So they are gathered, as
//! many as come to each node some times, and taken in the order of their keys; those of one key
//! keep theirs.

use crate::mvcc::index_part::{LoadedPart, part_of};
use crate::mvcc::key_history::KeyMeta;
use crate::mvcc::key_index::Key;
use crate::mvcc::layout::{RECORDS, StoreMeta};
use crate::mvcc::long_keys::WaitingKeys;
use crate::mvcc::record::StoredRecord;
use crate::mvcc::revision::{RecordKey, RecordKind, Revision};
use crate::mvcc::saved_ranges::SavedRanges;
use crate::snapshot::Snapshot;
use crate::{Error, Result, limits};

/// Parts of an index that take in records newer than themselves.
pub(crate) struct Replay<'r> {
    tree: &'r Snapshot,
    meta: StoreMeta,
    ranges: &'r SavedRanges,
    /// In the order of their keys.
    parts: Vec<LoadedPart<'r>>,
    /// Records that were not in it.
    records: u64,
    /// Keys too long for a page that they have changed.
    long: WaitingKeys,
    /// In the order of revisions; taken when there are `worth` of them.
    gathered: Vec<Gathered<'r>>,
    worth: u64,
}

/// The parts, and how much they have taken in.
pub(crate) struct Replayed<'r> {
    pub(crate) parts: Vec<LoadedPart<'r>>,
    pub(crate) records: u64,
    pub(crate) long: WaitingKeys,
}

/// The parts of a record that the index needs.
struct Gathered<'r> {
    key: &'r [u8],
    at: RecordKey,
    create_revision: i64,
    version: i64,
}

impl<'r> Replay<'r> {
    pub(crate) fn new(
        tree: &'r Snapshot,
        meta: StoreMeta,
        ranges: &'r SavedRanges,
        parts: Vec<LoadedPart<'r>>,
        long: WaitingKeys,
    ) -> Self {
        let worth = worth_taking(&parts);
        Self { tree, meta, ranges, parts, worth, records: 0, long, gathered: Vec::new() }
    }

    /// Reads all records above the saved index, and takes those of the parts' keys. `tell` is told
    /// now and then how many have been read.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn run(&mut self, tell: &mut dyn FnMut(u64)) -> Result<()> {
        let (tree, meta) = (self.tree, self.meta);
        let mut cursor = tree.cursor(RECORDS);
        let after = Revision { main: meta.index_revision, sub: i64::MAX };
        cursor.seek(&RecordKey { revision: after, kind: RecordKind::Tombstone }.encode())?;
        let mut read = 0_u64;
        while let Some((key, record)) = cursor.next()? {
            let key =
                RecordKey::decode(key).ok_or_else(|| Error::corrupt("a record's key cannot be read"))?;
            let record =
                StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
            if key.revision.main > meta.revision {
                return Err(Error::corrupt(format!(
                    "there is a record of revision {}, but the store is at {}",
                    key.revision.main, meta.revision
                )));
            }
            read += 1;
            if read.is_multiple_of(limits::RESTORED_PER_REPORT) {
                tell(read);
            }
            if part_of(&self.parts, record.key).is_some() {
                self.gather(key, &record)?;
            }
        }
        Ok(())
    }

    /// The parts with all records.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn end(mut self) -> Result<Replayed<'r>> {
        self.take_gathered()?;
        Ok(Replayed { parts: self.parts, records: self.records, long: self.long })
    }

    fn gather(&mut self, at: RecordKey, record: &StoredRecord<'r>) -> Result<()> {
        let (create_revision, version) = (record.stamp.create_revision, record.stamp.version);
        self.gathered.push(Gathered { key: record.key, at, create_revision, version });
        if self.gathered.len() as u64 >= self.worth { self.take_gathered() } else { Ok(()) }
    }

    /// Takes the gathered records, in the order of keys.
    fn take_gathered(&mut self) -> Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let (mut saved, mut part) = (self.ranges.walk(), 0);
        for at in key_order(&gathered) {
            let record = &gathered[at as usize];
            let saved = saved.at(record.key);
            let is_behind =
                |part: &LoadedPart<'_>| part.part.end.as_deref().is_some_and(|end| end <= record.key);
            while is_behind(&self.parts[part]) {
                part += 1;
            }
            self.take(record, saved, part)?;
        }
        gathered.clear();
        self.gathered = gathered;
        self.worth = worth_taking(&self.parts);
        Ok(())
    }

    /// Takes a record, the range of whose key is saved up to a revision, into the part of its key.
    fn take(&mut self, record: &Gathered<'_>, saved: i64, part: usize) -> Result<()> {
        let is_long = record.key.len() > limits::key_bytes_max(self.tree.page_bytes());
        let saved = saved.max(if is_long { self.meta.long_revision } else { 0 });
        let revision = record.at.revision;
        if revision.main <= saved {
            return Ok(());
        }
        self.records += 1;
        if is_long {
            self.long.insert(Key::from(record.key));
        }
        let index = self.parts[part].piece.index();
        // Some versions have saved some keys ahead of the rest of their range.
        let known = index.root().change_at(record.key, i64::MAX);
        if known.is_some_and(|known| known.revision >= revision) {
            return Ok(());
        }
        let is_compacted = revision.main <= self.meta.compact_revision;
        match record.at.kind {
            // A compaction may have dropped the change before it.
            RecordKind::Put if is_compacted => {
                let Gathered { create_revision, version, .. } = *record;
                let is_possible = (1..=limits::VERSION_MAX).contains(&version)
                    && (0..=revision.main).contains(&create_revision);
                if !is_possible {
                    return Err(record.contradicts(0));
                }
                let put = KeyMeta { create_revision, modified: revision, version };
                index.put_as_recorded(record.key, put);
            }
            RecordKind::Put => {
                let put = index.put(record.key, revision);
                if put.meta.version != record.version {
                    return Err(record.contradicts(put.meta.version));
                }
            }
            RecordKind::Tombstone => {
                index.tombstone(record.key, revision);
            }
        }
        if is_compacted {
            index.compact_key(record.key, self.meta.compact_revision);
        }
        Ok(())
    }
}

impl Gathered<'_> {
    fn contradicts(&self, version: i64) -> Error {
        let Revision { main, sub } = self.at.revision;
        Error::corrupt(format!(
            "record {main}.{sub} says version {} of its key, the index says {version}",
            self.version
        ))
    }
}

/// Records that are taken at a time into parts as large as they are now.
fn worth_taking(parts: &[LoadedPart<'_>]) -> u64 {
    let keys: u64 = parts.iter().map(|part| part.piece.keys()).sum();
    (keys / limits::REPLAY_GATHERED_PART).clamp(limits::REPLAY_GATHERED_MIN, limits::REPLAY_GATHERED_MAX)
}

/// Where the records are, in the order of their keys; those of one key in the order that they have.
/// The first bytes that keys do not share are copied: a look at the keys themselves, which lie all
/// over the file, is for those that are alike in these.
fn key_order(gathered: &[Gathered<'_>]) -> Vec<u32> {
    let Some(first) = gathered.first().map(|record| record.key) else { return Vec::new() };
    let shared = gathered.iter().fold(first.len(), |shared, record| {
        first[..shared].iter().zip(record.key).take_while(|(one, other)| one == other).count()
    });
    let bytes_behind = |key: &[u8]| {
        let mut bytes = [0; size_of::<u128>()];
        let len = bytes.len().min(key.len() - shared);
        bytes[..len].copy_from_slice(&key[shared..shared + len]);
        u128::from_be_bytes(bytes)
    };
    let mut order: Vec<(u128, u32)> =
        (0..).zip(gathered).map(|(at, of)| (bytes_behind(of.key), at)).collect();
    order.sort_unstable_by(|(bytes, at), (other_bytes, other_at)| {
        let keys = || gathered[*at as usize].key.cmp(gathered[*other_at as usize].key);
        bytes.cmp(other_bytes).then_with(keys).then(at.cmp(other_at))
    });
    order.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::DbOptions;
    use crate::disk::SimDisk;
    use crate::mvcc::Store;
    use crate::mvcc::index_part::IndexPart;
    use crate::mvcc::key_index::KeyIndex;
    use crate::mvcc::record::{Stamp, encode_put};
    use crate::random::Random;

    /// A compacted record is taken at its word: the puts that follow it count on from there.
    #[test]
    fn a_compacted_record_with_an_impossible_version_is_an_error() {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let tree = store.db.as_ref().unwrap().snapshot();
        let meta = StoreMeta { revision: 9, compact_revision: 9, ..StoreMeta::default() };
        let ranges = SavedRanges::load(&tree, &StoreMeta::default()).unwrap();
        let revision = |main| Revision { main, sub: 0 };
        let take = |version| {
            let all = IndexPart { from: Vec::new(), end: None };
            let parts = vec![LoadedPart { at: 0, part: &all, piece: KeyIndex::new().into() }];
            let mut replay = Replay::new(&tree, meta, &ranges, parts, WaitingKeys::default());
            let stamp = Stamp { create_revision: 1, mod_revision: 8, version, lease: 0 };
            let record = encode_put(&b"key"[..], b"value", stamp, |parts| parts.concat());
            let at = RecordKey { revision: revision(8), kind: RecordKind::Put };
            replay.gather(at, &StoredRecord::parse(&record).unwrap())?;
            let mut parts = replay.end()?.parts;
            Ok(parts[0].piece.index().put(b"key", revision(9)).meta.version)
        };
        for version in [limits::VERSION_MAX + 1, i64::MAX - 1, i64::MAX] {
            let taken: Result<i64> = take(version);
            assert!(matches!(taken, Err(Error::Corrupt(_))), "{version}: {taken:?}");
        }
        assert_eq!(take(limits::VERSION_MAX).unwrap(), limits::VERSION_MAX + 1);
    }

    #[test]
    fn records_are_taken_in_the_order_of_keys_and_those_of_a_key_in_theirs() {
        let mut random = Random::new(3);
        for shared in ["", "a", "/registry/pods/of-a-long-name/"] {
            let keys: Vec<Vec<u8>> = (0..2_000)
                .map(|_| {
                    let len = usize::try_from(random.below(20)).unwrap();
                    let byte = |_| u8::try_from(random.below(3)).unwrap();
                    [shared.as_bytes(), &(0..len).map(byte).collect::<Vec<_>>()].concat()
                })
                .collect();
            let at = RecordKey { revision: Revision::default(), kind: RecordKind::Put };
            let gathered: Vec<_> =
                keys.iter().map(|key| Gathered { key, at, create_revision: 1, version: 1 }).collect();
            let mut expected: Vec<u32> = (0..2_000).collect();
            expected.sort_by_key(|at| &keys[*at as usize]); // stable
            assert_eq!(key_order(&gathered), expected, "{shared:?}");
        }
        assert_eq!(key_order(&[]), [0; 0]);
    }
}
