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

use crate::limits::VERSION_MAX;
use crate::mvcc::kept_history::{Kept, Older};
use crate::mvcc::key_change::Life;
pub use crate::mvcc::key_change::{KeyChange, KeyMeta};
use crate::mvcc::key_changes::{CHUNK, Changes};
use crate::mvcc::revision::Revision;
use crate::varint;

/// All changes of one key that are kept. Copies share those that have memory of their own.
#[derive(Debug, Clone)]
pub struct KeyHistory(Kept);

impl KeyHistory {
    /// A key's first put.
    #[must_use]
    pub fn created(revision: Revision) -> Self {
        Self::of(KeyChange { revision, create_revision: revision.main, version: 1 })
    }

    fn of(change: KeyChange) -> Self {
        Self(Kept::of(change, None))
    }

    /// Adds copies of histories to a list. All their bytes are copied at once, and the few that
    /// have memory of their own are counted behind that: they are copied with each leaf.
    pub(super) fn add_copies(from: &[Self], to: &mut Vec<Self>) {
        to.reserve(from.len());
        let room = to.spare_capacity_mut().as_mut_ptr();
        // SAFETY: there is room for so many behind the list's end, which `from` is no part of. The
        // list does not have the copies until all are counted.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), room.cast(), from.len()) };
        from.iter().for_each(|history| history.0.count_copy());
        // SAFETY: they were written above.
        unsafe { to.set_len(to.len() + from.len()) };
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> &Kept {
        &self.0
    }

    /// A put of which no earlier changes are known.
    #[must_use]
    pub fn recorded(put: KeyMeta) -> Self {
        let KeyMeta { create_revision, modified: revision, version } = put;
        Self::of(KeyChange { revision, create_revision, version })
    }

    /// The last change.
    #[must_use]
    pub fn newest(&self) -> KeyChange {
        self.0.newest()
    }

    fn push(&mut self, change: KeyChange) {
        let previous = self.newest();
        let (new, last) = (change.revision, previous.revision);
        assert!(new > last, "a change at {new:?} follows one at {last:?}");
        if let Kept::One { .. } = self.0
            && let Some(two) = Kept::two(previous, change)
        {
            self.0 = two;
            return;
        }
        let nothing = Kept::One { life: Life::default(), word: 0 };
        let older = match std::mem::replace(&mut self.0, nothing).into_older() {
            Some(mut older) => {
                Changes::push(&mut older, previous);
                older
            }
            None => Changes::one(previous),
        };
        self.0 = Kept::of(change, Some(older));
    }

    /// Forgets the put before the newest one where that takes no memory of its own, and a
    /// compaction at `at` drops it.
    pub(crate) fn forget_within(&mut self, at: i64) {
        if let Kept::Two { life, word, .. } = self.0
            && self.newest().revision.main <= at
        {
            self.0 = Kept::One { life, word };
        }
    }

    /// All that a compaction at `at` drops of it lies within it, and is forgotten with the next
    /// change of the key.
    pub(crate) fn loses_within(&self, at: i64) -> bool {
        matches!(self.0, Kept::Two { .. }) && self.newest().revision.main <= at
    }

    /// A put at `revision`.
    pub fn put(&mut self, revision: Revision) {
        let change = match self.newest().live() {
            Some(meta) => {
                KeyChange { revision, create_revision: meta.create_revision, version: meta.version + 1 }
            }
            None => KeyChange { revision, create_revision: revision.main, version: 1 },
        };
        self.push(change);
    }

    /// A put as its record describes it, where the change before it may be gone.
    pub fn put_as_recorded(&mut self, put: KeyMeta) {
        self.push(Self::recorded(put).newest());
    }

    /// A delete at `revision`; false if the key does not exist anyway.
    pub fn delete(&mut self, revision: Revision) -> bool {
        let live = self.newest().live().is_some();
        if live {
            self.push(KeyChange { revision, create_revision: 0, version: 0 });
        }
        live
    }

    /// The newest change of revision `at` or before, tombstones included.
    #[must_use]
    pub fn change_at(&self, at: i64) -> Option<KeyChange> {
        let newest = self.newest();
        if newest.revision.main <= at {
            return Some(newest);
        }
        match self.0.older() {
            Older::None => None,
            Older::One(before) => (before.revision.main <= at).then_some(before),
            Older::Many(older) => older.change_at(at),
        }
    }

    /// The key as of revision `at`.
    #[must_use]
    pub fn at(&self, at: i64) -> Option<KeyMeta> {
        self.change_at(at).and_then(|change| change.live())
    }

    /// All changes, oldest first.
    #[must_use]
    pub fn changes(&self) -> Vec<KeyChange> {
        self.changes_after(Revision { main: -1, sub: 0 }).collect()
    }

    /// The changes behind a revision, oldest first.
    pub(crate) fn changes_after(&self, revision: Revision) -> impl Iterator<Item = KeyChange> + use<'_> {
        let (one, many) = match self.0.older() {
            Older::None => (None, None),
            Older::One(before) => (Some(before), None),
            Older::Many(older) => (None, Some(older.after(revision))),
        };
        let last = one.into_iter().chain([self.newest()]);
        many.into_iter().flatten().chain(last.filter(move |change| change.revision > revision))
    }

    /// How many changes there are.
    pub(crate) fn len(&self) -> u64 {
        match self.0.older() {
            Older::None => 1,
            Older::One(_) => 2,
            Older::Many(older) => 1 + older.len(),
        }
    }

    /// Pieces of memory that it lies in, about: one for a chunk of changes, and where the newest is
    /// a wide one, as all of a key that was put very often are, one for each change.
    #[must_use]
    pub fn pieces(&self) -> u64 {
        let chunk = if let Kept::Wide { .. } = self.0 { 1 } else { CHUNK as u64 };
        self.len() / chunk + 1
    }

    /// Its older changes lie elsewhere in memory.
    pub(crate) fn lies_apart(&self) -> bool {
        matches!(self.0.older(), Older::Many(_))
    }

    /// The oldest change that is kept.
    #[must_use]
    pub fn oldest(&self) -> KeyChange {
        match self.0.older() {
            Older::None => self.newest(),
            Older::One(before) => before,
            Older::Many(older) => older.first(),
        }
    }

    /// A compaction at `at` drops some of it, or all.
    #[must_use]
    pub(crate) fn loses(&self, at: i64) -> bool {
        self.loses_beside(at, self.at(at))
    }

    /// The same, where this is the key as of `at`.
    pub(crate) fn loses_beside(&self, at: i64, kept: Option<KeyMeta>) -> bool {
        let oldest = self.oldest().revision;
        oldest.main <= at && kept.is_none_or(|kept| kept.modified != oldest)
    }

    /// The history that a compaction at `at` leaves; none if it leaves nothing.
    #[must_use]
    pub fn compacted(&self, at: i64) -> Option<Self> {
        if self.oldest().revision.main > at {
            return Some(self.clone());
        }
        let kept = self.change_at(at).filter(|change| change.live().is_some());
        let from = kept.map_or(Revision { main: at, sub: i64::MAX }, |change| change.revision);
        let is_gone =
            |revision: Revision| revision <= from && kept.is_none_or(|kept| revision != kept.revision);
        let before = self.newest();
        let left = || match self.0.older() {
            Older::One(older) if is_gone(older.revision) => Self::of(before),
            Older::Many(older) => Self(Kept::of(before, Changes::cut(older, &is_gone))),
            _ => self.clone(),
        };
        let compacted = (!is_gone(before.revision)).then(left);
        let newest = compacted.as_ref().map(Self::newest);
        assert!(
            newest.is_none_or(|newest| newest == before),
            "a compaction at {at} has changed {before:?} to {newest:?}",
        );
        assert!(
            newest.is_some() || (before.version == 0 && before.revision.main <= at),
            "a compaction at {at} has dropped {before:?}",
        );
        compacted
    }

    /// The durable form: the number of changes, then each as four integers, all as varints,
    /// revisions relative to the change before.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Self::encode_changes(self.len(), self.changes_after(Revision { main: -1, sub: 0 }), out);
    }

    /// The same of some changes, so many.
    pub(crate) fn encode_changes(len: u64, changes: impl Iterator<Item = KeyChange>, out: &mut Vec<u8>) {
        varint::put(out, len);
        let mut before = 0;
        for change in changes {
            varint::put(out, (change.revision.main - before).cast_unsigned());
            varint::put(out, change.revision.sub.cast_unsigned());
            // Relative to the change itself: one byte for the common case, a key put once.
            varint::put(out, (change.revision.main - change.create_revision).cast_unsigned());
            varint::put(out, change.version.cast_unsigned());
            before = change.revision.main;
        }
    }

    /// Appends the durable form of what a compaction at `at` leaves; false if it leaves nothing.
    pub fn encode_compacted(&self, at: i64, out: &mut Vec<u8>) -> bool {
        if !matches!(self.0.older(), Older::None) {
            let compacted = self.compacted(at);
            compacted.iter().for_each(|history| history.encode(out));
            return compacted.is_some();
        }
        let newest = self.newest();
        let is_kept = newest.live().is_some() || newest.revision.main > at;
        if is_kept {
            self.encode(out);
        }
        is_kept
    }

    /// Reads the durable form; none if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_behind(None, bytes)
    }

    /// Reads the durable form of one change, as most keys have it; none if it is another.
    #[inline]
    pub(crate) fn decode_one(bytes: &[u8]) -> Option<Self> {
        let mut bytes = bytes.strip_prefix(&[1])?;
        let change = take_change(&mut bytes, 0)?;
        bytes.is_empty().then(|| Self::of(change))
    }

    /// Reads the durable form of changes that follow those of a history.
    pub(crate) fn decode_behind(mut history: Option<Self>, mut bytes: &[u8]) -> Option<Self> {
        let count = varint::take(&mut bytes).filter(|count| *count > 0)?;
        let mut main = 0;
        let mut last = history.as_ref().map_or(Revision::default(), |history| history.newest().revision);
        for _ in 0..count {
            let change = take_change(&mut bytes, main)?;
            if history.is_some() && change.revision <= last {
                return None;
            }
            (main, last) = (change.revision.main, change.revision);
            match &mut history {
                Some(history) => history.push(change),
                None => history = Some(Self::of(change)),
            }
        }
        history.filter(|_| bytes.is_empty())
    }
}

/// Takes the durable form of a change that follows one of this main revision.
#[inline]
fn take_change(bytes: &mut &[u8], before: i64) -> Option<KeyChange> {
    let main = before.checked_add_unsigned(varint::take(bytes)?)?;
    let sub = i64::try_from(varint::take(bytes)?).ok()?;
    let create_revision = main.checked_sub_unsigned(varint::take(bytes)?)?;
    let version = i64::try_from(varint::take(bytes)?).ok()?;
    let is_possible = create_revision >= 0 && version <= VERSION_MAX;
    is_possible.then_some(KeyChange { revision: Revision { main, sub }, create_revision, version })
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
        let mut two = KeyHistory::created(revision(3, 1));
        two.put(revision(6, 0));
        for history in [example(), gone, two, KeyHistory::created(revision(3, 1))] {
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
        let no_changes = [0];
        assert!(KeyHistory::decode(&no_changes).is_none());
        assert!(KeyHistory::decode_behind(Some(history), &no_changes).is_none(), "a row has some");
    }

    #[test]
    fn a_version_that_no_put_can_follow_is_refused() {
        for version in [VERSION_MAX - 1, VERSION_MAX, VERSION_MAX + 1, i64::MAX - 1, i64::MAX] {
            let mut bytes = Vec::new();
            let put = KeyMeta { create_revision: 1, modified: revision(2, 0), version };
            KeyHistory::recorded(put).encode(&mut bytes);
            let decoded = KeyHistory::decode(&bytes);
            assert_eq!(decoded.is_some(), version <= VERSION_MAX, "{version}");
            if let Some(mut history) = decoded {
                (3..6).for_each(|main| history.put(revision(main, 0)));
                assert_eq!(history.newest().version, version + 3);
            }
        }
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

    /// The millionth put of a key is one like any other.
    #[test]
    fn versions_go_on_behind_what_fits_two_words() {
        let version = (1 << 20) - 4;
        let put = KeyMeta { create_revision: 1, modified: revision(2, 0), version };
        let mut history = KeyHistory::recorded(put);
        (3..8).for_each(|main| history.put(revision(main, 0)));
        for main in 2..8 {
            assert_eq!(history.at(main).map(|meta| meta.version), Some(version + main - 2));
        }
        let mut bytes = Vec::new();
        history.encode(&mut bytes);
        assert_eq!(KeyHistory::decode(&bytes).unwrap().changes(), history.changes());
        let compacted = history.compacted(7).unwrap();
        assert_eq!(compacted.newest().version, version + 5);
        assert!(history.delete(revision(8, i64::from(u32::MAX) + 1)));
        assert!(history.compacted(8).is_none());
    }

    /// Two puts of a generation, if they are all, need no memory of their own; what is said of them
    /// is what a list says.
    #[test]
    fn a_put_and_the_one_before_it_are_kept_together() {
        let is_two = |history: &KeyHistory| matches!(history.0, Kept::Two { .. });
        let mut history = KeyHistory::created(revision(3, 2));
        history.put(revision(5, 1));
        assert!(is_two(&history));
        let change =
            |main, sub, version| KeyChange { revision: revision(main, sub), create_revision: 3, version };
        assert_eq!(history.changes(), [change(3, 2, 1), change(5, 1, 2)]);
        assert_eq!((history.len(), history.oldest()), (2, change(3, 2, 1)));
        assert_eq!(
            [2, 3, 4, 5].map(|at| history.change_at(at).map(|change| change.version)),
            [None, Some(1), Some(1), Some(2)]
        );
        assert!(history.changes_after(revision(3, 2)).eq([change(5, 1, 2)]));
        assert!([2, 3, 4].iter().all(|at| history.compacted(*at).is_some_and(|left| is_two(&left))));
        assert!(!history.loses(4) && history.loses(5));
        assert_eq!(history.compacted(5).unwrap().changes(), [change(5, 1, 2)]);
        history.put(revision(6, 0));
        let three = [change(3, 2, 1), change(5, 1, 2), change(6, 0, 3)];
        assert_eq!((history.changes(), is_two(&history)), (three.to_vec(), false));
        let left = history.compacted(5).unwrap();
        assert!(is_two(&left), "also when it was more");
        assert_eq!(left.changes(), three[1..]);
        for later in [revision(7, 0), revision(1 << 45, 0)] {
            let (mut gone, mut wide) = (history.compacted(6).unwrap(), left.clone());
            assert!(gone.delete(later));
            let tombstone = KeyChange { revision: later, create_revision: 0, version: 0 };
            assert!(!is_two(&gone), "a tombstone says nothing of the put");
            assert_eq!(gone.changes(), [three[2], tombstone]);
            wide.put(later);
            assert_eq!(wide.changes()[..2], three[1..]);
            assert_eq!(wide.newest(), KeyChange { revision: later, create_revision: 3, version: 4 });
        }
    }

    /// Any changes in any order, beside a list.
    #[test]
    fn a_history_is_the_list_that_it_stands_for() {
        let mut random = crate::random::Random::new(5);
        for _ in 0..2_000 {
            let first = [1, (1 << 45) - 9][usize::from(random.one_in(4))];
            let mut history = KeyHistory::created(revision(first, 0));
            let (mut model, mut main) = (history.changes(), first);
            for _ in 0..random.below(8) {
                main += i64::try_from(random.below(4)).unwrap();
                let last = model[model.len() - 1].revision;
                let sub = if last.main == main { last.sub + 1 } else { 0 };
                let sub = if random.one_in(9) { sub + (1 << 15) } else { sub };
                let (revision, before) = (revision(main, sub), model[model.len() - 1]);
                let is_live = before.version > 0;
                if random.one_in(3) {
                    assert_eq!(history.delete(revision), is_live);
                    let tombstone = KeyChange { revision, create_revision: 0, version: 0 };
                    model.extend(is_live.then_some(tombstone));
                } else {
                    history.put(revision);
                    let create_revision = if is_live { before.create_revision } else { main };
                    model.push(KeyChange { revision, create_revision, version: before.version + 1 });
                }
                if random.one_in(4) {
                    let at = main - i64::try_from(random.below(5)).unwrap();
                    let kept = model.iter().rposition(|change| change.revision.main <= at);
                    let gone = kept.map_or(0, |kept| if model[kept].version > 0 { kept } else { kept + 1 });
                    assert_eq!(history.loses(at), gone > 0);
                    model.drain(..gone);
                    let Some(left) = history.compacted(at) else {
                        assert!(model.is_empty());
                        break;
                    };
                    history = left;
                }
                assert_eq!(history.changes(), model);
                assert_eq!((history.len(), history.oldest()), (model.len() as u64, model[0]));
                for at in first - 1..=main {
                    let expected = model.iter().rev().find(|change| change.revision.main <= at);
                    assert_eq!(history.change_at(at), expected.copied(), "at {at}");
                    let after = Revision { main: at, sub: 0 };
                    let expected = model.iter().filter(|change| change.revision > after).copied();
                    assert!(history.changes_after(after).eq(expected));
                }
            }
        }
    }

    /// Records of a file may say anything: a put goes on from the one before it, or does not.
    #[test]
    fn puts_that_do_not_follow_each_other_are_kept_as_they_are() {
        let put = |main, create_revision, version| KeyMeta {
            create_revision,
            modified: revision(main, 0),
            version,
        };
        let first = put(5, 3, 2);
        for second in [put(6, 3, 3), put(6, 4, 3), put(6, 3, 4), put(6, 3, 2), put(6, 6, 1), put(6, 3, 1)] {
            let mut history = KeyHistory::recorded(first);
            history.put_as_recorded(second);
            let changes = history.changes().iter().map(KeyChange::live).collect::<Vec<_>>();
            assert_eq!(changes, [Some(first), Some(second)]);
            assert_eq!(matches!(history.0, Kept::Two { .. }), second == put(6, 3, 3));
            let mut bytes = Vec::new();
            history.encode(&mut bytes);
            assert_eq!(KeyHistory::decode(&bytes).unwrap().changes(), history.changes());
        }
    }

    #[test]
    fn wide_changes_are_pieces_of_their_own() {
        let often = KeyMeta { create_revision: 1, modified: revision(2, 0), version: 1 << 20 };
        let [mut wide, mut usual] = [often, KeyMeta { version: 1, ..often }].map(KeyHistory::recorded);
        for main in 3..1_003 {
            wide.put(revision(main, 0));
            usual.put(revision(main, 0));
        }
        assert!(wide.pieces() > 1_000 && usual.pieces() < 40);
    }

    /// A compaction shares what it leaves, and a window of changes that goes on is no longer than
    /// what is in it.
    #[test]
    fn a_compaction_shares_what_is_left() {
        let mut history = KeyHistory::created(revision(1, 0));
        (2..=100_000).for_each(|main| history.put(revision(main, 0)));
        let half = history.compacted(50_000).unwrap();
        assert_eq!((half.len(), half.oldest().revision.main), (50_001, 50_000));
        assert_eq!(half.at(49_999), None);
        assert_eq!((half.at(50_000), half.at(99_999)), (history.at(50_000), history.at(99_999)));
        let all = half.compacted(100_000).unwrap();
        assert_eq!((all.len(), all.pieces()), (1, 1));
        assert!(half.compacted(50_000).unwrap().changes() == half.changes());
        assert!(half.changes_after(revision(99_998, 7)).eq(half.changes()[49_999..].iter().copied()));
    }
}
