//! One change of a key, and the two words in which it is kept.
//!
//! ```text
//! word: 45 bits of the main revision | 15 bits of the sub-revision | 4 bits of the age
//! life: 36 bits of the age | 20 bits of the version
//! ```
//!
//! The age of a put is how many revisions before it its generation began; that of a tombstone,
//! which has none, is the higher bits of its sub-revision. The life is a byte short of a word, so
//! that the tag of an enum fits beside it.

use std::sync::Arc;

use crate::mvcc::revision::Revision;

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

/// Bits of main revisions: those of a year with a million of them a second.
const MAIN_BITS: u32 = 45;
/// More changes than a transaction of puts makes, as a server bounds them. One that deletes very
/// many keys and puts some behind that makes more.
const SUB_BITS: u32 = 15;
/// Bits of the age that lie in the word.
const YOUNG_BITS: u32 = u64::BITS - MAIN_BITS - SUB_BITS;
/// Few keys are put a million times, however many revisions there are.
const PUTS_BITS: u32 = 20;

/// Age and version.
pub(super) type Life = [u8; 7];

/// A change in two words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) life: Life,
    pub(super) word: u64,
}

impl Words {
    /// Of a change that fits: there may be wider ones.
    pub(super) fn of(change: KeyChange) -> Option<Self> {
        let KeyChange { revision, create_revision, version } = change;
        let age = match version {
            0 if create_revision == 0 => u64::try_from(revision.sub).ok()? >> SUB_BITS,
            0 => return None,
            _ if create_revision < 0 => return None,
            _ => u64::try_from(revision.main.checked_sub(create_revision)?).ok()?,
        };
        let sub = if version == 0 { revision.sub & ((1 << SUB_BITS) - 1) } else { revision.sub };
        let (age, young) = divided(age, YOUNG_BITS);
        let word = revision_word(Revision { main: revision.main, sub })? | young;
        let life = joined(age, u64::try_from(version).ok()?, PUTS_BITS)?;
        let [life @ .., above] = life.to_le_bytes();
        (above == 0).then_some(Self { life, word })
    }

    pub(super) fn change(self) -> KeyChange {
        let [a, b, c, d, e, f, g] = self.life;
        let (age, puts) = divided(u64::from_le_bytes([a, b, c, d, e, f, g, 0]), PUTS_BITS);
        let age = age << YOUNG_BITS | divided(self.word, YOUNG_BITS).1;
        let Revision { main, sub } = revision_of(self.word);
        let (age, version) = (age.cast_signed(), puts.cast_signed());
        if version == 0 {
            let revision = Revision { main, sub: age << SUB_BITS | sub };
            return KeyChange { revision, create_revision: 0, version };
        }
        KeyChange { revision: Revision { main, sub }, create_revision: main - age, version }
    }
}

/// The word of a revision, without an age; none if it does not fit.
pub(super) fn revision_word(revision: Revision) -> Option<u64> {
    let (main, sub) = (u64::try_from(revision.main).ok()?, u64::try_from(revision.sub).ok()?);
    joined(joined(main, sub, SUB_BITS)?, 0, YOUNG_BITS)
}

/// The revision of a word. Of a tombstone it has only the lower bits of the sub-revision.
pub(super) fn revision_of(word: u64) -> Revision {
    let (main, sub) = divided(divided(word, YOUNG_BITS).0, SUB_BITS);
    Revision { main: main.cast_signed(), sub: sub.cast_signed() }
}

/// The bits of a word above so many, and those many.
fn divided(word: u64, bits: u32) -> (u64, u64) {
    (word >> bits, word & ((1 << bits) - 1))
}

/// The word of two numbers, the second in so many bits; none if one of them does not fit.
fn joined(above: u64, below: u64, bits: u32) -> Option<u64> {
    let word = above << bits | below;
    (divided(word, bits) == (above, below)).then_some(word)
}

/// A change as it is kept, in half of its size.
#[derive(Debug, Clone)]
pub(super) enum KeptChange {
    Usual {
        life: Life,
        word: u64,
    },
    /// One that does not fit.
    Wide(Arc<KeyChange>),
}

const _: () = assert!(size_of::<KeptChange>() == 16);

impl KeptChange {
    pub(super) fn get(&self) -> KeyChange {
        match self {
            Self::Usual { life, word } => Words { life: *life, word: *word }.change(),
            Self::Wide(change) => **change,
        }
    }

    pub(super) fn revision(&self) -> Revision {
        self.get().revision
    }
}

impl From<KeyChange> for KeptChange {
    fn from(change: KeyChange) -> Self {
        match Words::of(change) {
            Some(Words { life, word }) => Self::Usual { life, word },
            None => Self::Wide(Arc::new(change)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number at the edges of what fits so many bits.
    fn edges(bits: u32) -> [i64; 7] {
        let end = 1 << bits;
        [0, 1, end - 2, end - 1, end, end + 1, i64::MAX]
    }

    #[test]
    fn a_change_is_kept_whatever_its_numbers() {
        for main in edges(45) {
            for sub in edges(15).into_iter().chain(edges(55)) {
                for age in edges(40) {
                    for version in edges(20) {
                        let revision = Revision { main, sub };
                        let create_revision = if version == 0 { 0 } else { main.saturating_sub(age) };
                        let change = KeyChange { revision, create_revision, version };
                        let kept = KeptChange::from(change);
                        assert_eq!(kept.get(), change);
                        let fits = match version {
                            0 => sub >> 55 == 0,
                            _ => {
                                sub >> 15 == 0 && create_revision >= 0 && (main - create_revision) >> 40 == 0
                            }
                        };
                        let is_usual = main >> 45 == 0 && version >> 20 == 0 && fits;
                        assert_eq!(matches!(kept, KeptChange::Usual { .. }), is_usual, "{change:?}");
                    }
                }
            }
        }
        // No tombstone has a create revision, and nothing is negative or older than its generation;
        // a damaged file may say so.
        for (main, sub, create_revision, version) in [
            (9, 1, 3, 0),
            (-9, 1, 3, 4),
            (9, -1, 3, 4),
            (9, -1, 0, 0),
            (9, 1, -3, 4),
            (9, 1, 3, -4),
            (9, 1, 12, 4),
        ] {
            let odd = KeyChange { revision: Revision { main, sub }, create_revision, version };
            assert_eq!(KeptChange::from(odd).get(), odd);
        }
    }
}
