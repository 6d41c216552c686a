//! The changes of one key.
//!
//! A *generation* of a key begins with the put that creates it and ends with a tombstone. Worked
//! example, as `revision: what happened -> create revision / version`:
//!
//! ```text
//! 2.0: put -> 2/1   5.0: put -> 2/2   7.0: delete -> tombstone   9.0: put -> 9/1   9.1: put -> 9/2
//!
//! at 6: the put of 5.0   at 7, 8: nothing   at 9: the put of 9.1 (a revision's last change counts)
//! compacted at 6: 5.0, 7.0, 9.0, 9.1     at 7 or 8: 9.0, 9.1     at 9: 9.1
//! ```
//!
//! Compaction at R keeps the newest change at or below R, unless that is a tombstone: at R the key
//! is then gone either way. A key without changes is forgotten.

use std::sync::Arc;

use crate::mvcc::revision::Revision;
use crate::varint;

/// Changes in one chunk of older ones.
const CHUNK: usize = 32;

/// A key at some revision, as the index knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMeta {
    /// Revision of the put that began this generation.
    pub create_revision: i64,
    /// The last change.
    pub modified: Revision,
    /// Puts in this generation so far, from 1.
    pub version: i64,
}

/// One change; a tombstone has version 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChange {
    /// When.
    pub revision: Revision,
    /// Begin of this generation, 0 for a tombstone.
    pub create_revision: i64,
    /// Puts in this generation up to this one, 0 for a tombstone.
    pub version: i64,
}

impl KeyChange {
    /// The key exists after this change.
    #[must_use]
    pub fn live(&self) -> Option<KeyMeta> {
        (self.version > 0).then_some(KeyMeta {
            create_revision: self.create_revision,
            modified: self.revision,
            version: self.version,
        })
    }
}

/// All changes of one key that are kept. Copies share the older ones.
#[derive(Debug, Clone)]
pub struct KeyHistory {
    newest: KeyChange,
    older: Option<Arc<OlderChanges>>,
}

/// A chunk of changes and the chunks before it: a key changed a million times costs no more to
/// change again, and little more to look back at.
#[derive(Debug)]
struct OlderChanges {
    /// Oldest first; never empty.
    changes: Vec<KeyChange>,
    before: Option<Arc<OlderChanges>>,
    /// A chunk further back, for looking: two chunks with jumps of one length are followed by one
    /// that jumps over both, so any chunk is found in logarithmic time.
    jump: Option<Arc<OlderChanges>>,
    /// Chunks before it.
    depth: u64,
}

impl OlderChanges {
    fn new(change: KeyChange, before: Option<Arc<Self>>) -> Self {
        let jump = before.as_ref().map(|before| {
            let first = before.jump.as_ref();
            let second = first.and_then(|first| first.jump.as_ref());
            match (first, second) {
                (Some(first), Some(second)) if before.depth - first.depth == first.depth - second.depth => {
                    second
                }
                _ => before,
            }
        });
        let (jump, depth) = (jump.cloned(), before.as_ref().map_or(0, |before| before.depth + 1));
        debug_assert!(jump.as_ref().is_none_or(|jump| jump.depth < depth), "a jump from {depth} leads on");
        Self { changes: vec![change], before, jump, depth }
    }

    fn begins_by(&self, at: i64) -> bool {
        self.changes[0].revision.main <= at
    }

    /// The next one to look at for what was there at a revision before this one begins.
    fn towards(&self, at: i64) -> Option<&Self> {
        let jump = self.jump.as_deref().filter(|jump| !jump.begins_by(at));
        jump.or(self.before.as_deref())
    }
}

impl Clone for OlderChanges {
    fn clone(&self) -> Self {
        let mut changes = Vec::with_capacity(self.changes.len() + 1);
        changes.extend_from_slice(&self.changes);
        Self { changes, before: self.before.clone(), jump: self.jump.clone(), depth: self.depth }
    }
}

impl Drop for OlderChanges {
    fn drop(&mut self) {
        // One by one: dropping a long chain by recursion would overflow the stack. A jump is never
        // the last way to its chunk while the chain is there.
        self.jump = None;
        let mut next = self.before.take();
        while let Some(mut older) = next.and_then(|older| Arc::try_unwrap(older).ok()) {
            next = older.before.take();
        }
    }
}

impl KeyHistory {
    /// A key's first put.
    #[must_use]
    pub fn created(revision: Revision) -> Self {
        Self { newest: KeyChange { revision, create_revision: revision.main, version: 1 }, older: None }
    }

    /// A put of which no earlier changes are known.
    #[must_use]
    pub fn recorded(put: KeyMeta) -> Self {
        let KeyMeta { create_revision, modified: revision, version } = put;
        Self { newest: KeyChange { revision, create_revision, version }, older: None }
    }

    /// A history from its changes, oldest first; none if there are none.
    #[must_use]
    pub fn from_changes(changes: impl IntoIterator<Item = KeyChange>) -> Option<Self> {
        let mut changes = changes.into_iter();
        let mut history = Self { newest: changes.next()?, older: None };
        changes.for_each(|change| history.push(change));
        Some(history)
    }

    /// The last change.
    #[must_use]
    pub fn newest(&self) -> KeyChange {
        self.newest
    }

    fn push(&mut self, change: KeyChange) {
        let (new, last) = (change.revision, self.newest.revision);
        assert!(new > last, "a change at {new:?} follows one at {last:?}");
        let previous = std::mem::replace(&mut self.newest, change);
        match &mut self.older {
            Some(older) if older.changes.len() < CHUNK => Arc::make_mut(older).changes.push(previous),
            older => *older = Some(Arc::new(OlderChanges::new(previous, older.take()))),
        }
    }

    /// A put at `revision`.
    pub fn put(&mut self, revision: Revision) {
        let change = match self.newest.live() {
            Some(meta) => {
                KeyChange { revision, create_revision: meta.create_revision, version: meta.version + 1 }
            }
            None => KeyChange { revision, create_revision: revision.main, version: 1 },
        };
        self.push(change);
    }

    /// A put as its record describes it, where the change before it may be gone.
    pub fn put_as_recorded(&mut self, put: KeyMeta) {
        self.push(Self::recorded(put).newest);
    }

    /// A delete at `revision`; false if the key does not exist anyway.
    pub fn delete(&mut self, revision: Revision) -> bool {
        let live = self.newest.live().is_some();
        if live {
            self.push(KeyChange { revision, create_revision: 0, version: 0 });
        }
        live
    }

    /// The newest change of revision `at` or before, tombstones included.
    #[must_use]
    pub fn change_at(&self, at: i64) -> Option<KeyChange> {
        if self.newest.revision.main <= at {
            return Some(self.newest);
        }
        let mut chunk = self.older.as_deref();
        while let Some(older) = chunk.filter(|older| !older.begins_by(at)) {
            chunk = older.towards(at);
        }
        let changes = &chunk?.changes;
        let behind = changes.partition_point(|change| change.revision.main <= at);
        Some(changes[behind - 1])
    }

    /// The key as of revision `at`.
    #[must_use]
    pub fn at(&self, at: i64) -> Option<KeyMeta> {
        self.change_at(at).and_then(|change| change.live())
    }

    /// All changes, oldest first.
    #[must_use]
    pub fn changes(&self) -> Vec<KeyChange> {
        let mut all = Vec::new();
        self.for_each_change(|change| all.push(*change));
        all
    }

    /// Walks all changes, oldest first.
    fn for_each_change(&self, mut each: impl FnMut(&KeyChange)) {
        let mut chunks = Vec::new();
        let mut chunk = self.older.as_deref();
        while let Some(older) = chunk {
            chunks.push(older);
            chunk = older.before.as_deref();
        }
        for older in chunks.into_iter().rev() {
            older.changes.iter().for_each(&mut each);
        }
        each(&self.newest);
    }

    /// How many changes there are.
    fn len(&self) -> usize {
        let mut len = 1;
        let mut chunk = self.older.as_deref();
        while let Some(older) = chunk {
            len += older.changes.len();
            chunk = older.before.as_deref();
        }
        len
    }

    /// Pieces of memory that it lies in.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        self.older.as_ref().map_or(1, |older| older.depth + 2)
    }

    /// The oldest change that is kept.
    #[must_use]
    pub fn oldest(&self) -> KeyChange {
        let mut oldest = self.newest;
        let mut chunk = self.older.as_deref();
        while let Some(older) = chunk {
            oldest = older.changes[0];
            chunk = older.towards(i64::MIN);
        }
        oldest
    }

    /// The history that a compaction at `at` leaves; none if it leaves nothing.
    #[must_use]
    pub fn compacted(&self, at: i64) -> Option<Self> {
        if self.oldest().revision.main > at {
            return Some(self.clone());
        }
        let kept = self.change_at(at).filter(|change| change.live().is_some());
        let from = kept.map_or(Revision { main: at, sub: i64::MAX }, |change| change.revision);
        let after = |change: &KeyChange| {
            change.revision > from || kept.is_some_and(|kept| kept.revision == change.revision)
        };
        let compacted = Self::from_changes(self.changes().into_iter().filter(after));
        let newest = compacted.as_ref().map(|compacted| compacted.newest);
        assert!(
            newest.is_none_or(|newest| newest == self.newest),
            "a compaction at {at} has changed {:?} to {newest:?}",
            self.newest
        );
        assert!(
            newest.is_some() || (self.newest.version == 0 && self.newest.revision.main <= at),
            "a compaction at {at} has dropped {:?}",
            self.newest
        );
        compacted
    }

    /// The durable form: the number of changes, then each as four integers, all as varints,
    /// revisions relative to the change before.
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.len() as u64);
        let mut before = 0;
        self.for_each_change(|change| {
            varint::put(out, (change.revision.main - before).cast_unsigned());
            varint::put(out, change.revision.sub.cast_unsigned());
            // Relative to the change itself: one byte for the common case, a key put once.
            varint::put(out, (change.revision.main - change.create_revision).cast_unsigned());
            varint::put(out, change.version.cast_unsigned());
            before = change.revision.main;
        });
    }

    /// Appends the durable form of what a compaction at `at` leaves; false if it leaves nothing.
    pub fn encode_compacted(&self, at: i64, out: &mut Vec<u8>) -> bool {
        if self.older.is_some() {
            let compacted = self.compacted(at);
            compacted.iter().for_each(|history| history.encode(out));
            return compacted.is_some();
        }
        let is_kept = self.newest.live().is_some() || self.newest.revision.main > at;
        if is_kept {
            self.encode(out);
        }
        is_kept
    }

    /// Reads the durable form; none if it is not one.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let count = varint::take(&mut bytes)?;
        let mut main = 0_i64;
        let mut last = Revision::default();
        let mut history: Option<Self> = None;
        for _ in 0..count {
            main = main.checked_add_unsigned(varint::take(&mut bytes)?)?;
            let sub = i64::try_from(varint::take(&mut bytes)?).ok()?;
            let create_revision = main.checked_sub_unsigned(varint::take(&mut bytes)?)?;
            let version = i64::try_from(varint::take(&mut bytes)?).ok()?;
            let change = KeyChange { revision: Revision { main, sub }, create_revision, version };
            if create_revision < 0 || version == i64::MAX || (history.is_some() && change.revision <= last) {
                return None;
            }
            last = change.revision;
            match &mut history {
                Some(history) => history.push(change),
                None => history = Some(Self { newest: change, older: None }),
            }
        }
        history.filter(|_| bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(main: i64, sub: i64) -> Revision {
        Revision { main, sub }
    }

    fn example() -> KeyHistory {
        let mut history = KeyHistory::created(revision(2, 0));
        history.put(revision(5, 0));
        assert!(history.delete(revision(7, 0)));
        assert!(!history.delete(revision(8, 0)));
        history.put(revision(9, 0));
        history.put(revision(9, 1));
        history
    }

    fn drawn(history: Option<&KeyHistory>) -> String {
        let changes = history.map(KeyHistory::changes).unwrap_or_default();
        let text = |change: &KeyChange| {
            let Revision { main, sub } = change.revision;
            format!("{main}.{sub}={}/{}", change.create_revision, change.version)
        };
        changes.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_worked_example() {
        let history = example();
        let at = |at| history.at(at).map(|meta| (meta.modified.main, meta.modified.sub, meta.version));
        assert_eq!((at(1), at(2), at(6)), (None, Some((2, 0, 1)), Some((5, 0, 2))));
        assert_eq!((at(7), at(8), at(9), at(i64::MAX)), (None, None, Some((9, 1, 2)), Some((9, 1, 2))));
        let compacted = |at| drawn(history.compacted(at).as_ref());
        assert_eq!(compacted(1), "2.0=2/1 5.0=2/2 7.0=0/0 9.0=9/1 9.1=9/2");
        assert_eq!(compacted(6), "5.0=2/2 7.0=0/0 9.0=9/1 9.1=9/2");
        assert_eq!(compacted(7), "9.0=9/1 9.1=9/2");
        assert_eq!(compacted(9), "9.1=9/2");
        let mut gone = example();
        gone.delete(revision(10, 0));
        assert!(gone.compacted(10).is_none());
        for history in [example(), gone, KeyHistory::created(revision(3, 1))] {
            for at in 0..12 {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                let left = history.compacted(at).inspect(|history| history.encode(&mut one));
                assert_eq!(history.encode_compacted(at, &mut other), left.is_some());
                assert_eq!(one, other);
            }
        }
    }

    #[test]
    fn durable_forms_survive_the_round_trip_and_noise_is_refused() {
        let history = example();
        let mut bytes = Vec::new();
        history.encode(&mut bytes);
        assert_eq!(KeyHistory::decode(&bytes).unwrap().changes(), history.changes());
        for cut in 0..bytes.len() {
            assert!(KeyHistory::decode(&bytes[..cut]).is_none());
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let _ = KeyHistory::decode(&bad); // must not panic
            }
        }
        assert!(KeyHistory::decode(&[0xff; 30]).is_none());
    }

    #[test]
    fn a_million_changes_share_their_past() {
        let mut history = KeyHistory::created(revision(1, 0));
        for main in 2..1_000_000 {
            history.put(revision(main, 0));
        }
        let shared = history.clone();
        history.put(revision(1_000_000, 0));
        assert_eq!(shared.newest().version, 999_999);
        assert_eq!(history.at(500).unwrap().version, 500);
        assert_eq!(history.oldest(), history.change_at(1).unwrap());
        drop(shared);
        assert_eq!(history.at(999_999).unwrap().version, 999_999);
        drop(history);
    }

    /// However long the history is, and wherever in it one looks.
    #[test]
    fn looking_back_takes_logarithmic_time() {
        let mut history = KeyHistory::created(revision(1, 0));
        for main in 2..1_000_000 {
            history.put(revision(main, 0));
        }
        let mut most = 0;
        for at in (1..1_000_000 - 2 * i64::try_from(CHUNK).unwrap()).step_by(997) {
            assert_eq!(history.change_at(at).unwrap().revision.main, at);
            let (mut chunk, mut steps) = (history.older.as_deref(), 0);
            while let Some(older) = chunk.filter(|older| !older.begins_by(at)) {
                (chunk, steps) = (older.towards(at), steps + 1);
            }
            most = most.max(steps);
        }
        assert!(most <= 60, "{most} of 31,250 chunks were looked at"); // twice or so the logarithm
    }
}
