//! The walk of a compaction over the keys: which records are still needed, and who forgets some.

use std::sync::Arc;

use crate::limits::{
    COMPACT_BYTES_PER_STEP, COMPACT_WALK_KEYS_PER_STEP, COMPACT_WALK_KEYS_PER_STEP_MAX, COMPACT_WALK_STEPS,
    WALKED_KEYS_PER_STEP,
};
use crate::mvcc::kept_puts::KeptPuts;
use crate::mvcc::key_index::IndexRoot;
use crate::mvcc::record_counts::{RecordCounts, Tally};
use crate::pauses::Pauses;

/// As far as a walk has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walked {
    /// The next key.
    from: Vec<u8>,
    /// Records that keys before it need.
    pub(crate) needed: Arc<RecordCounts>,
}

/// Keys of which a compaction drops something.
#[derive(Debug, Default)]
pub(crate) struct LostByKeys {
    /// Those that have something to forget which does not lie in a node of the index, or a row of
    /// their own in the file.
    pub(crate) forgetting: Vec<Vec<u8>>,
    /// How many they are, these and others.
    pub(crate) keys: u64,
}

/// A walk over the keys, a bounded number of them in each step.
pub(crate) struct Walk<'w> {
    pub(crate) index: &'w IndexRoot,
    /// Where the puts are noted that are needed, if they are.
    pub(crate) kept: Option<&'w KeptPuts>,
    /// The compaction, and the one before.
    pub(crate) at: i64,
    pub(crate) before: i64,
    pub(crate) forgetting_max: usize,
    pub(crate) keys_max: usize,
    /// Keys that are longer have rows of their own.
    pub(crate) key_bytes_max: usize,
}

/// Keys of a step of a walk over so many.
pub(crate) fn walk_keys_max(keys: u64, is_awaited: bool) -> usize {
    if is_awaited {
        return COMPACT_WALK_KEYS_PER_STEP_MAX;
    }
    let step = usize::try_from(keys).unwrap_or(usize::MAX) / COMPACT_WALK_STEPS;
    step.clamp(COMPACT_WALK_KEYS_PER_STEP, COMPACT_WALK_KEYS_PER_STEP_MAX)
}

impl Walked {
    /// It has not begun.
    pub(crate) fn begins(&self) -> bool {
        self.from.is_empty()
    }
}

impl Walk<'_> {
    /// Counts what the keys of a step need; true at the end of all.
    pub(crate) fn step(&self, walked: &mut Walked, lost: &mut LostByKeys, pauses: &mut Pauses) -> bool {
        let Walked { from, needed } = walked;
        let (mut bytes, mut tally) = (0, Tally::of(Arc::make_mut(needed), self.at));
        for (number, (key, history)) in self.index.entries_from(from).enumerate() {
            let is_enough = lost.forgetting.len() >= self.forgetting_max || bytes >= COMPACT_BYTES_PER_STEP;
            if number >= self.keys_max || is_enough {
                *from = key.to_vec();
                return false;
            }
            pauses.count(u32::from(number.is_multiple_of(WALKED_KEYS_PER_STEP)));
            let kept = history.at(self.at);
            if let Some(kept) = kept {
                tally.add(kept.modified.main);
                self.kept.iter().for_each(|puts| puts.add(kept.modified));
            }
            // Of one whose loss the compaction before has seen nothing more is lost.
            if history.loses_within(self.before) || !history.loses_beside(self.at, kept) {
                continue;
            }
            lost.keys += 1;
            if !history.loses_within(self.at) || key.len() > self.key_bytes_max {
                lost.forgetting.push(key.to_vec());
                bytes += key.len();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COMPACT_RECORDS_PER_STEP;
    use crate::mvcc::key_history::KeyHistory;
    use crate::mvcc::key_index::KeyIndex;
    use crate::mvcc::revision::Revision;

    /// How many keys forget in each step of a walk over an index of which all keys have so many
    /// puts, until its end; all of them lose all but the last.
    fn walked(keys: impl Iterator<Item = Vec<u8>>, puts: i64, before: i64) -> (Vec<usize>, u64) {
        walked_by(COMPACT_WALK_KEYS_PER_STEP, keys, puts, before)
    }

    /// The same in steps of so many keys.
    fn walked_by(
        keys_max: usize,
        keys: impl Iterator<Item = Vec<u8>>,
        puts: i64,
        before: i64,
    ) -> (Vec<usize>, u64) {
        let mut index = KeyIndex::default();
        let mut history = KeyHistory::created(Revision { main: 2, sub: 0 });
        (1..puts).for_each(|put| history.put(Revision { main: 2 + put, sub: 0 }));
        let all = keys.map(|key| index.set(&key, history.clone())).count() as u64;
        let walk = Walk {
            index: index.root(),
            kept: None,
            at: 1 + puts,
            before,
            forgetting_max: COMPACT_RECORDS_PER_STEP,
            keys_max,
            key_bytes_max: 100,
        };
        let (mut walked, mut steps, mut lost) = (Walked::default(), Vec::new(), 0);
        let mut is_over = false;
        while !is_over {
            let mut done = LostByKeys::default();
            is_over = walk.step(&mut walked, &mut done, &mut Pauses::default());
            steps.push(done.forgetting.len());
            lost += done.keys;
        }
        assert_eq!(walked.needed.all(), all, "each key's newest put stays");
        (steps, lost)
    }

    /// Each key's put at the compaction's revision is noted, whichever step of the walk meets it
    /// and whatever comes behind it meanwhile.
    #[test]
    fn a_walk_notes_the_puts_that_stay() {
        const KEYS: i64 = 2_000;
        let revision = |main| Revision { main, sub: main % 3 };
        let key = |number: i64| number.to_be_bytes();
        let mut index = KeyIndex::default();
        (0..2 * KEYS).for_each(|put| _ = index.put(&key(put * 7 % KEYS), revision(2 + put)));
        let (mut walked, mut is_over, mut main) = (Walked::default(), false, 2 * KEYS + 1);
        let at = main;
        let kept = KeptPuts::of(KEYS.unsigned_abs(), at, &mut Pauses::default());
        while !is_over {
            let walk = Walk {
                index: index.root(),
                kept: Some(&kept),
                at,
                before: 0,
                forgetting_max: COMPACT_RECORDS_PER_STEP,
                keys_max: 30,
                key_bytes_max: 100,
            };
            is_over = walk.step(&mut walked, &mut LostByKeys::default(), &mut Pauses::default());
            for put in 0..100 {
                main += 1;
                match put % 3 {
                    0 => _ = index.tombstone(&key(main * 11 % KEYS), revision(main)),
                    _ => _ = index.put(&key(main * 13 % (2 * KEYS)), revision(main)),
                }
            }
        }
        assert!((KEYS..2 * KEYS).all(|put| kept.may_have(revision(2 + put))));
        let looking = (0..KEYS).filter(|put| kept.may_have(revision(2 + put))).count();
        assert!(looking < 400, "{looking} of the puts before them look kept");
        assert_eq!(walked.needed.all(), KEYS.unsigned_abs());
    }

    /// A put before the newest one takes no memory of its own: it goes with the key's next change.
    /// It is counted once, as the saved index has it.
    #[test]
    fn keys_that_lose_one_put_are_not_looked_for_again() {
        let keys = || (0..100_u64).map(|key| key.to_be_bytes().to_vec());
        assert_eq!(walked(keys(), 2, 0), (vec![0], 100));
        assert_eq!(walked(keys(), 2, 2), (vec![0], 100), "the newest put was behind the compaction before");
        assert_eq!(walked(keys(), 2, 3), (vec![0], 0), "the compaction before has seen it");
        assert_eq!(walked(keys(), 3, 4), (vec![100], 100), "and the index has not forgotten it yet");
        assert_eq!(walked(keys(), 1, 0), (vec![0], 0));
    }

    /// The steps of a walk grow with the keys; where somebody waits they are as long as they may
    /// be.
    #[test]
    fn a_walk_takes_as_many_steps_as_it_has_to() {
        let keys = (0..100_u64).map(|key| key.to_be_bytes().to_vec());
        assert_eq!(walked_by(7, keys, 2, 0), (vec![0; 15], 100));
        let steps = |keys: u64| keys.div_ceil(walk_keys_max(keys, false) as u64);
        assert_eq!([0, 1, 40_001, 10_000_000, 20_000_000].map(steps), [0, 1, 2, 250, 250]);
        assert_eq!(steps(100_000_000), 625);
        assert_eq!([1, 10_000_000].map(|keys| walk_keys_max(keys, true)), [160_000; 2]);
    }

    /// The changes of many keys, or of long ones, are dropped in as many steps.
    #[test]
    fn a_step_over_keys_that_forget_is_bounded() {
        let many = 0..=COMPACT_RECORDS_PER_STEP as u64;
        let all = many.clone().count() as u64;
        let many = many.map(|key| key.to_be_bytes().to_vec());
        assert_eq!(walked(many, 3, 0), (vec![COMPACT_RECORDS_PER_STEP, 1], all));
        for puts in [2, 3] {
            let long = (0..10).map(|key| vec![key; COMPACT_BYTES_PER_STEP / 8]);
            assert_eq!(walked(long, puts, 0), (vec![8, 2], 10), "{puts} puts: their rows are saved anew");
        }
    }
}
