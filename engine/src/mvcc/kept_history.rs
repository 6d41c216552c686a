//! The kinds in which the history of a key is kept, in three words.

use std::sync::Arc;

use crate::mvcc::key_change::{KeyChange, Life, Words, revision_of, revision_word};
use crate::mvcc::key_changes::Changes;

/// There is one for each key in memory. Most have no memory beside it: nodes of the index are
/// copied and freed all the time, and memory of a key's own would be a miss of the processor's
/// caches each time, which is most of what that costs in a large store.
#[derive(Debug, Clone)]
pub(super) enum Kept {
    /// One change.
    One { life: Life, word: u64 },
    /// A put, and the revision of the one before it in its generation.
    Two { life: Life, word: u64, before: u64 },
    /// A change and some before it.
    Many { life: Life, word: u64, older: Arc<Changes> },
    /// The newest one does not fit two words.
    Wide { newest: Arc<KeyChange>, older: Option<Arc<Changes>> },
}

const _: () = assert!(size_of::<Kept>() == 24);

/// The changes before the newest one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Older<'h> {
    None,
    One(KeyChange),
    Many(&'h Arc<Changes>),
}

/// The word of the revision of `before`, if `newest` is the put behind it in its generation, so
/// that the one says all of the other.
fn put_before(before: KeyChange, newest: KeyChange) -> Option<u64> {
    let follows = newest.version == before.version + 1 && newest.create_revision == before.create_revision;
    if before.version > 0 && follows { revision_word(before.revision) } else { None }
}

impl Kept {
    pub(super) fn of(newest: KeyChange, older: Option<Arc<Changes>>) -> Self {
        let before = older.as_ref().and_then(|older| older.only());
        if let Some(two) = before.and_then(|before| Self::two(before, newest)) {
            return two;
        }
        match (Words::of(newest), older) {
            (None, older) => Self::Wide { newest: Arc::new(newest), older },
            (Some(Words { life, word }), None) => Self::One { life, word },
            (Some(Words { life, word }), Some(older)) => Self::Many { life, word, older },
        }
    }

    /// Two changes, if they can be kept without memory of their own.
    pub(super) fn two(before: KeyChange, newest: KeyChange) -> Option<Self> {
        let (before, Words { life, word }) = (put_before(before, newest)?, Words::of(newest)?);
        Some(Self::Two { life, word, before })
    }

    pub(super) fn newest(&self) -> KeyChange {
        match self {
            Self::One { life, word } | Self::Two { life, word, .. } | Self::Many { life, word, .. } => {
                Words { life: *life, word: *word }.change()
            }
            Self::Wide { newest, .. } => **newest,
        }
    }

    pub(super) fn older(&self) -> Older<'_> {
        match self {
            Self::One { .. } | Self::Wide { older: None, .. } => Older::None,
            Self::Two { before, .. } => {
                let KeyChange { create_revision, version, .. } = self.newest();
                let revision = revision_of(*before);
                Older::One(KeyChange { revision, create_revision, version: version - 1 })
            }
            Self::Many { older, .. } | Self::Wide { older: Some(older), .. } => Older::Many(older),
        }
    }

    /// Raises the counters of the memory that it shares, as a clone does that is never dropped.
    pub(super) fn count_copy(&self) {
        match self {
            Self::One { life: _, word: _ } | Self::Two { life: _, word: _, before: _ } => {}
            Self::Many { .. } | Self::Wide { .. } => std::mem::forget(self.clone()),
        }
    }

    /// The changes before the newest one, to be changed.
    pub(super) fn into_older(self) -> Option<Arc<Changes>> {
        if let Older::One(before) = self.older() {
            return Some(Changes::one(before));
        }
        match self {
            Self::Many { older, .. } | Self::Wide { older: Some(older), .. } => Some(older),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::key_change::KeyMeta;
    use crate::mvcc::key_history::KeyHistory;
    use crate::mvcc::revision::Revision;

    /// One history of each kind, without and with memory of its own.
    fn of_each_kind() -> Vec<KeyHistory> {
        let at = |main| Revision { main, sub: 0 };
        let with_puts = |first: KeyHistory, puts: i64| {
            let mut history = first;
            (0..puts).for_each(|more| history.put(at(7 + more)));
            history
        };
        let wide = KeyMeta { create_revision: 1, modified: at(2), version: 1 << 20 };
        let firsts = [KeyHistory::created(at(2)), KeyHistory::recorded(wide)];
        firsts.into_iter().flat_map(|first| [0, 1, 2, 9].map(|puts| with_puts(first.clone(), puts))).collect()
    }

    #[test]
    fn copies_are_owners_of_their_own() {
        let owners = |histories: &[KeyHistory]| -> Vec<usize> {
            let of = |history: &KeyHistory| match history.kept() {
                Kept::One { .. } | Kept::Two { .. } => 0,
                Kept::Many { older, .. } => Arc::strong_count(older),
                Kept::Wide { newest, older } => {
                    Arc::strong_count(newest) + 100 * older.as_ref().map_or(0, Arc::strong_count)
                }
            };
            histories.iter().map(of).collect()
        };
        let histories = of_each_kind();
        assert_eq!(owners(&histories), [0, 0, 1, 1, 1, 101, 101, 101]);
        let mut copies = vec![KeyHistory::created(Revision { main: 1, sub: 0 })];
        KeyHistory::add_copies(&histories, &mut copies);
        assert_eq!(owners(&histories), [0, 0, 2, 2, 2, 202, 202, 202]);
        let changes: Vec<_> = histories.iter().map(KeyHistory::changes).collect();
        drop(histories);
        assert!(copies[1..].iter().map(KeyHistory::changes).eq(changes));
        assert_eq!(owners(&copies[1..]), [0, 0, 1, 1, 1, 101, 101, 101]);
        KeyHistory::add_copies(&[], &mut copies);
        assert_eq!(copies.len(), 9);
    }
}
