//! Counts and revisions over all keys below a node.

use crate::mvcc::key_history::{KeyChange, KeyHistory, KeyMeta};

/// Counts and revisions over some keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    /// Live keys.
    pub(super) live: u64,
    /// Keys, dead ones included.
    pub(super) len: u64,
    /// Revision of the last change.
    pub(super) newest: i64,
    /// When the first of its live keys was created.
    oldest: i64,
}

/// The last change of a key, before and after it was updated; none before if the key is new.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyUpdate {
    pub(super) before: Option<KeyChange>,
    pub(super) after: KeyChange,
}

impl Default for Totals {
    fn default() -> Self {
        Self { live: 0, len: 0, newest: 0, oldest: i64::MAX }
    }
}

impl Totals {
    /// Adds a key.
    pub(super) fn add(&mut self, history: &KeyHistory) {
        let newest = history.newest();
        if let Some(meta) = newest.live() {
            self.live += 1;
            self.oldest = self.oldest.min(meta.create_revision);
        }
        self.newest = self.newest.max(newest.revision.main);
        self.len += 1;
    }

    /// Adds other keys.
    pub(super) fn add_all(&mut self, others: Self) {
        self.live += others.live;
        self.len += others.len;
        self.newest = self.newest.max(others.newest);
        self.oldest = self.oldest.min(others.oldest);
    }

    /// Follows the update of a key without a look at the others; false where that would not do, and
    /// nothing is changed.
    pub(super) fn follow(&mut self, update: KeyUpdate) -> bool {
        let KeyUpdate { before, after } = update;
        let (was, is) = (before.and_then(|before| before.live()), after.live());
        let created = |meta: Option<KeyMeta>| meta.map(|meta| meta.create_revision);
        // The oldest key may have gone, or the newest change.
        let is_oldest = was.is_some_and(|was| was.create_revision <= self.oldest);
        if is_oldest && created(was) != created(is)
            || before.is_some_and(|before| after.revision.main < before.revision.main)
        {
            return false;
        }
        self.live = self.live + u64::from(is.is_some()) - u64::from(was.is_some());
        self.len += u64::from(before.is_none());
        self.newest = self.newest.max(after.revision.main);
        self.oldest = self.oldest.min(created(is).unwrap_or(i64::MAX));
        true
    }

    /// Follows the end of a key, of which this was the last change, as [`Self::follow`] does.
    pub(super) fn follow_end(&mut self, last: KeyChange) -> bool {
        let is_told = last.live().is_none() && last.revision.main < self.newest;
        self.len -= u64::from(is_told);
        is_told
    }

    /// How many of the keys exist at a revision, if that can be said without a look at them.
    pub(super) fn count_at(&self, at: i64) -> Option<u64> {
        (self.newest <= at).then_some(self.live)
    }

    /// When the first of the live keys was created, if there are any.
    pub(super) fn oldest(&self) -> Option<i64> {
        (self.live > 0).then_some(self.oldest)
    }

    /// None of the keys exists at a revision, as far as can be said without a look at them.
    pub(super) fn have_nothing_at(&self, at: i64) -> bool {
        self.live == 0 && self.newest <= at
    }
}
