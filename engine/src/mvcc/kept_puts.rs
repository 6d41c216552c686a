//! The puts that a compaction keeps, as its walk over the index has found them.
//!
//! To look a record up in a large index is a handful of misses of the caches; a walk has the keys
//! one beside the other. So the walk notes each put that stays, and cleaning asks for a record's
//! revision only. A put has one bit, and two may have the same one: a dead record may look as if it
//! was kept, and then it stays until another compaction. One that is kept never looks dead.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::KEPT_PUTS_BITS_PER_KEY;
use crate::mutants::{self, Mutant};
use crate::mvcc::revision::Revision;
use crate::pauses::Pauses;

/// One bit for each put that is kept. Checkpoints that follow each other share it, also with one
/// that came to nothing: bits that are set twice, or too many, do no harm.
#[derive(Debug)]
pub(crate) struct KeptPuts {
    /// A power of two of them.
    words: Vec<AtomicU64>,
}

/// Revisions that follow each other have bits that do, and a window of so many as there are bits
/// has none twice: the changes of a transaction lie so far apart.
const BITS_PER_SUB: u64 = 0x9e37_79b9_7f4a_7c15;

impl KeptPuts {
    /// Room for the puts of so many keys, which is eight to sixteen bits of memory for each.
    pub(crate) fn of(keys: u64, pauses: &mut Pauses) -> Self {
        const WORDS_PER_STEP: usize = 4 * 1024;
        let bits = keys.saturating_mul(KEPT_PUTS_BITS_PER_KEY).clamp(64, 1 << 40).next_power_of_two();
        let len = usize::try_from(bits / 64).unwrap_or(usize::MAX);
        let mut words = Vec::with_capacity(len);
        while words.len() < len {
            let step = WORDS_PER_STEP.min(len - words.len());
            words.extend((0..step).map(|_| AtomicU64::new(0)));
            pauses.count_bytes(step * size_of::<AtomicU64>());
        }
        Self { words }
    }

    /// The word of a revision, and its bit there.
    fn place(&self, revision: Revision) -> (&AtomicU64, u64) {
        let Revision { main, sub } = revision;
        let at = main.cast_unsigned().wrapping_add(sub.cast_unsigned().wrapping_mul(BITS_PER_SUB));
        let mask = self.words.len() as u64 - 1;
        let word = usize::try_from((at / 64) & mask).expect("a word that is in memory");
        (&self.words[word], 1 << (at % 64))
    }

    /// The put of this revision is kept.
    pub(crate) fn add(&self, revision: Revision) {
        if mutants::is(Mutant::KeptPutNotNoted) && revision.main % 8 == 0 {
            return;
        }
        let (word, bit) = self.place(revision);
        // One thread at a time has it, and hands it on.
        word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
    }

    /// The put of this revision is kept, or looks so; false if it is dead.
    pub(crate) fn may_have(&self, revision: Revision) -> bool {
        let (word, bit) = self.place(revision);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn what_was_added_is_there_and_little_else_looks_so() {
        let mut random = Random::new(3);
        let mut revision = || Revision {
            main: i64::try_from(random.below(10_000_000)).unwrap(),
            sub: if random.one_in(4) { i64::try_from(random.below(200)).unwrap() } else { 0 },
        };
        let added: Vec<_> = (0..100_000).map(|_| revision()).collect();
        let kept = KeptPuts::of(added.len() as u64, &mut Pauses::default());
        added.iter().for_each(|revision| kept.add(*revision));
        assert!(added.iter().all(|revision| kept.may_have(*revision)));
        let others = (0..100_000).filter(|_| kept.may_have(revision())).count();
        assert!(others < 15_000, "{others} of 100,000 others look kept");
        assert!((1..10_000).any(|_| !kept.may_have(revision())));
    }

    #[test]
    fn there_are_enough_bits_for_any_number_of_keys() {
        for keys in [0, 1, 8, 9, 1_000, 1_000_000] {
            let kept = KeptPuts::of(keys, &mut Pauses::default());
            assert!(kept.words.len().is_power_of_two());
            assert!(kept.words.len() as u64 * 64 >= 8 * keys);
            let revision = Revision { main: i64::MAX, sub: i64::MAX };
            assert!(!kept.may_have(revision));
            kept.add(revision);
            assert!(kept.may_have(revision));
        }
    }
}
