//! The puts that a compaction keeps, as its walk over the index has found them.
//!
//! To look a record up in a large index is a handful of misses of the caches; a walk has the keys
//! one beside the other. So the walk notes each put that stays, and cleaning asks for a record's
//! revision only. A put has one bit, and two may have the same one: a dead record may look as if it
//! was kept, and then it stays until a later compaction, in which revisions have other bits. One
//! that is kept never looks dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::KEPT_PUTS_BITS_PER_KEY;
use crate::mutants::{self, Mutant};
use crate::mvcc::revision::Revision;
use crate::pauses::Pauses;

/// One bit for each put that is kept. Checkpoints that follow each other share it, also with one
/// that came to nothing: bits that are set twice, or too many, do no harm.
#[derive(Debug)]
pub(crate) struct KeptPuts {
    /// Pieces of so many words that are made and freed one by one; a power of two of words.
    pieces: Vec<Box<[AtomicU64]>>,
    mask: u64,
    /// The compaction: another one has other places, so that no record looks kept for ever beside
    /// a put that stays for ever.
    salt: u64,
}

/// 32 KiB.
const WORDS_PER_PIECE: usize = 4 * 1024;

/// The number of the 64 revisions that share a word, and of the change in its transaction, as a
/// number that says nothing of them any more.
fn mixed(block: u64, sub: u64, salt: u64) -> u64 {
    let mut mixed =
        block ^ sub.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93);
    // The last steps of SplitMix64.
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl KeptPuts {
    /// Room for the puts of so many keys, which is eight to sixteen bits of memory for each, that a
    /// compaction at `at` keeps.
    pub(crate) fn of(keys: u64, at: i64, pauses: &mut Pauses) -> Self {
        let bits = keys.saturating_mul(KEPT_PUTS_BITS_PER_KEY).clamp(64, 1 << 40).next_power_of_two();
        let words = usize::try_from(bits / 64).unwrap_or(usize::MAX);
        let piece = words.min(WORDS_PER_PIECE);
        let new_piece = |_| {
            pauses.count_bytes(piece * size_of::<AtomicU64>());
            (0..piece).map(|_| AtomicU64::new(0)).collect()
        };
        let pieces = (0..words / piece).map(new_piece).collect();
        Self { pieces, mask: words as u64 - 1, salt: at.cast_unsigned() }
    }

    /// Frees it, if nothing else has it, with pauses.
    pub(crate) fn free(this: Arc<Self>, pauses: &mut Pauses) {
        for piece in Arc::into_inner(this).into_iter().flat_map(|kept| kept.pieces) {
            pauses.count_bytes(size_of_val(&*piece));
        }
    }

    /// The word of a revision, and its bit there.
    fn place(&self, revision: Revision) -> (&AtomicU64, u64) {
        let Revision { main, sub } = revision;
        // Revisions that follow each other share a word: cleaning goes from one to the next.
        let mixed = mixed(main.cast_unsigned() / 64, sub.cast_unsigned(), self.salt);
        let word = usize::try_from(mixed & self.mask).expect("a word that is in memory");
        // Two that have the same word do not have the same bit each time.
        (
            &self.pieces[word / WORDS_PER_PIECE][word % WORDS_PER_PIECE],
            1 << ((main.cast_unsigned() + (mixed >> 58)) % 64),
        )
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

    fn looking_kept(kept: &KeptPuts, others: impl Iterator<Item = Revision>) -> Vec<Revision> {
        others.filter(|revision| kept.may_have(*revision)).collect()
    }

    #[test]
    fn what_was_added_is_there_and_little_else_looks_so() {
        let mut random = Random::new(3);
        let mut revision = || Revision {
            main: i64::try_from(random.below(10_000_000)).unwrap(),
            sub: if random.one_in(4) { i64::try_from(random.below(200)).unwrap() } else { 0 },
        };
        let added: Vec<_> = (0..100_000).map(|_| revision()).collect();
        let kept = KeptPuts::of(added.len() as u64, 9, &mut Pauses::default());
        added.iter().for_each(|revision| kept.add(*revision));
        assert!(added.iter().all(|revision| kept.may_have(*revision)));
        let others = looking_kept(&kept, (0..100_000).map(|_| revision())).len();
        assert!(others < 15_000, "{others} of 100,000 others look kept");
    }

    /// Beside puts that stay for ever a record looks kept in few compactions, whatever its distance
    /// from them.
    #[test]
    fn no_record_looks_kept_for_ever() {
        const STAYING: i64 = 10_000;
        let all = |from: i64| (from..from + 400_000).map(|main| Revision { main, sub: 0 });
        for step in [1, 64] {
            let mut looking: Vec<_> = all(STAYING * step).collect();
            for at in [700_000, 700_001, 900_000, 1_000_000, 5_000_000, 5_000_064] {
                let kept = KeptPuts::of(STAYING.unsigned_abs(), at, &mut Pauses::default());
                (0..STAYING).for_each(|number| kept.add(Revision { main: number * step, sub: 0 }));
                let left = looking_kept(&kept, looking.iter().copied());
                assert!(left.len() <= looking.len() / 4 + 20, "{} of {}", left.len(), looking.len());
                looking = left;
            }
        }
    }

    #[test]
    fn there_are_enough_bits_for_any_number_of_keys() {
        for keys in [0, 1, 8, 9, 1_000, 1_000_000] {
            let kept = KeptPuts::of(keys, 1, &mut Pauses::default());
            let words: usize = kept.pieces.iter().map(|piece| piece.len()).sum();
            assert!(words.is_power_of_two() && kept.mask == words as u64 - 1);
            assert!(words as u64 * 64 >= 8 * keys);
            let revision = Revision { main: i64::MAX, sub: i64::MAX };
            assert!(!kept.may_have(revision));
            kept.add(revision);
            assert!(kept.may_have(revision));
        }
    }
}
