//! When the index is saved, and how much of it with one checkpoint.
//!
//! All of the index is saved once a *round*: while so many records are added as half of all keys or
//! kept revisions (of these a bounded number for each key: the older changes of a key are written
//! once, however often it is saved). Each record earns the saving of its share of the keys, and a
//! checkpoint saves what has been earned, in steps that are worth a commit. So neither a checkpoint
//! nor the time between two is long, however many keys there are, and each key is written once in a
//! round. A small index is one step.

use crate::limits::{
    HISTORY_ROW_CHANGES, INDEX_BYTES_PER_RECORD_BYTE, INDEX_CHECKPOINT_KEYS_MAX,
    INDEX_CHECKPOINT_KEYS_OF_OWN_MAX, INDEX_KEYS_PER_OWN, INDEX_LONG_QUIET_PART, INDEX_QUIET_PART,
    INDEX_ROUND_PART, INDEX_ROUND_RECORDS_MIN, INDEX_SMALL_CHANGES_PER_KEY, INDEX_SMALL_KEYS,
    INDEX_STEP_BYTES, INDEX_STEP_KEYS, INDEX_WITHOUT_ROOM_MAX, LONG_KEYS_WAITING_BYTES,
};

/// The rate at which records earn the saving of the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexPace {
    /// Records in a round, at least.
    records_min: u64,
    /// Keys of an index that is saved at once.
    small_keys: u64,
    /// Keys of a step.
    step_keys: u64,
    /// Keys that one checkpoint saves, or more if it has many records of its own.
    checkpoint_keys: u64,
    /// Bytes of a step.
    pub(crate) step_bytes: usize,
    /// Bytes of long keys that wait for their range.
    pub(crate) long_bytes: usize,
    /// Older changes of a key in one row.
    pub(crate) row_changes: usize,
}

/// How long nothing has changed: the longer, the less waits for what saving the index takes, and
/// the seldomer such times are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuietTime {
    /// For some seconds.
    Short,
    /// For several times as long.
    Long,
}

/// How much of the index a checkpoint saves, and what it uses up for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexShare {
    /// All of it.
    Whole,
    /// So many keys, of an index of so many that is saved once in a round of so many records.
    Keys { keys: u64, of: u64, round: u64 },
}

/// Whether there may be room for index that nothing waits for. A checkpoint that finds none is
/// followed by some without index, twice as many each time: on a disk that stays nearly full
/// records find the room that there is.
#[derive(Debug, Default)]
pub(crate) struct IndexRoom {
    /// Checkpoints to come without it.
    without: u32,
    /// So many were to come the last time.
    last: u32,
}

impl IndexRoom {
    pub(crate) fn may_be(&self) -> bool {
        self.without == 0
    }

    /// A checkpoint found no room.
    pub(crate) fn not_found(&mut self) {
        self.last = (self.last * 2).clamp(1, INDEX_WITHOUT_ROOM_MAX);
        self.without = self.last;
    }

    /// A checkpoint found room: with index, if there may be some.
    pub(crate) fn found(&mut self) {
        match self.without.checked_sub(1) {
            Some(left) => self.without = left,
            None => self.last = 0,
        }
    }
}

impl Default for IndexPace {
    fn default() -> Self {
        Self {
            records_min: INDEX_ROUND_RECORDS_MIN,
            small_keys: INDEX_SMALL_KEYS,
            step_keys: INDEX_STEP_KEYS,
            checkpoint_keys: INDEX_CHECKPOINT_KEYS_MAX,
            step_bytes: INDEX_STEP_BYTES,
            long_bytes: LONG_KEYS_WAITING_BYTES,
            row_changes: HISTORY_ROW_CHANGES,
        }
    }
}

impl IndexPace {
    /// One for tests, in which few keys are a large index.
    #[cfg(feature = "sim")]
    pub(crate) fn in_steps_of(step_keys: u64) -> Self {
        let (step_bytes, long_bytes) = (INDEX_STEP_BYTES, LONG_KEYS_WAITING_BYTES);
        let small_keys = step_keys / 2;
        let checkpoint_keys = 8 * step_keys;
        Self {
            records_min: step_keys,
            small_keys,
            step_keys,
            checkpoint_keys,
            step_bytes,
            long_bytes,
            row_changes: 4,
        }
    }

    /// The same, in steps of so few bytes.
    #[cfg(feature = "sim")]
    pub(crate) fn with_bytes(self, step_bytes: usize) -> Self {
        Self { step_bytes, long_bytes: step_bytes, ..self }
    }

    /// Bytes of rows that a checkpoint of so many bytes of records saves.
    pub(crate) fn bytes_max(&self, share: Option<IndexShare>, records: usize) -> usize {
        match share {
            Some(IndexShare::Keys { .. }) => {
                self.step_bytes.max(records.saturating_mul(INDEX_BYTES_PER_RECORD_BYTE))
            }
            Some(IndexShare::Whole) | None => usize::MAX,
        }
    }

    /// An index of so many keys, with so many revisions that are kept, is saved at once.
    pub(crate) fn is_small(&self, keys: u64, kept: u64) -> bool {
        keys <= self.small_keys && kept <= self.counted_max(keys)
    }

    /// Kept revisions that make a round longer, at most: a key may have any number of changes, and
    /// what one save of it writes is what has come since the one before.
    fn counted_max(&self, keys: u64) -> u64 {
        keys.max(self.small_keys).saturating_mul(INDEX_SMALL_CHANGES_PER_KEY)
    }

    /// Records for one of which there are `part` keys, or kept revisions; at least `min`.
    fn records_of(&self, keys: u64, kept: u64, part: u64, min: u64) -> u64 {
        let counted = kept.min(self.counted_max(keys));
        min.max(keys.max(counted) / part)
    }

    /// The share that so many records have earned, `own` of which the checkpoint itself saves, of
    /// an index of so many keys with so many revisions that are kept; none if that is no step.
    pub(crate) fn earned(&self, records: u64, own: u64, keys: u64, kept: u64) -> Option<IndexShare> {
        let round = self.records_of(keys, kept, INDEX_ROUND_PART, self.records_min);
        if self.is_small(keys, kept) {
            return (records >= round).then_some(IndexShare::Whole);
        }
        let earned = u128::from(records) * u128::from(keys) / u128::from(round);
        let earned = u64::try_from(earned).unwrap_or(u64::MAX).min(keys);
        // More than its own records earn: what others have left is made up for.
        let of_own = own.saturating_mul(INDEX_KEYS_PER_OWN).min(INDEX_CHECKPOINT_KEYS_OF_OWN_MAX);
        let max = self.checkpoint_keys.max(of_own);
        (earned >= self.step_keys.min(keys)).then_some(IndexShare::Keys {
            keys: earned.min(max),
            of: keys,
            round,
        })
    }

    /// The share of a large index of so many keys that is saved in a time in which nothing else is
    /// to be: none if a start would read few records for want of it.
    pub(crate) fn unearned(
        &self,
        quiet: QuietTime,
        records: u64,
        keys: u64,
        kept: u64,
    ) -> Option<IndexShare> {
        let (part, min) = match quiet {
            QuietTime::Short => (INDEX_QUIET_PART, self.records_min),
            QuietTime::Long => {
                (INDEX_LONG_QUIET_PART, self.records_min * INDEX_QUIET_PART / INDEX_LONG_QUIET_PART)
            }
        };
        if self.is_small(keys, kept) || records < self.records_of(keys, kept, part, min) {
            return None;
        }
        // Of what records have earned it uses up little: most of that is saved already.
        Some(IndexShare::Keys { keys: self.checkpoint_keys.min(keys), of: keys, round: self.records_min })
    }
}

impl IndexShare {
    /// Keys to be saved.
    pub(crate) fn keys(&self) -> u64 {
        match self {
            Self::Whole => u64::MAX,
            Self::Keys { keys, .. } => *keys,
        }
    }

    /// Records of `records` that were used up when so many keys were saved.
    pub(crate) fn used(&self, keys: u64, records: u64) -> u64 {
        match self {
            Self::Whole => records,
            Self::Keys { of, round, .. } => {
                let used = u128::from(keys) * u128::from(*round) / u128::from((*of).max(1));
                u64::try_from(used).unwrap_or(u64::MAX).min(records)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_index_is_saved_at_once_and_seldom() {
        let pace = IndexPace::default();
        assert_eq!(pace.earned(INDEX_ROUND_RECORDS_MIN - 1, 0, 100, 100), None);
        assert_eq!(pace.earned(INDEX_ROUND_RECORDS_MIN, 0, 100, 100), Some(IndexShare::Whole));
        assert_eq!(pace.earned(INDEX_ROUND_RECORDS_MIN, 0, 100, 1_000_000), None);
        assert_eq!(pace.earned(500_000, 0, 100, 1_000_000), Some(IndexShare::Whole));
    }

    /// Their histories may be as long as a large index: they have its budget of bytes.
    #[test]
    fn few_keys_with_very_many_changes_are_no_small_index() {
        let pace = IndexPace::default();
        let round = INDEX_SMALL_KEYS * INDEX_SMALL_CHANGES_PER_KEY / INDEX_ROUND_PART;
        for keys in [1, 100] {
            let share = pace.earned(round, 0, keys, 20_000_000).unwrap();
            assert_eq!(share, IndexShare::Keys { keys, of: keys, round });
            assert_eq!(pace.bytes_max(Some(share), 0), INDEX_STEP_BYTES);
            assert_eq!(pace.earned(round - 1, 0, keys, 20_000_000), None);
        }
        // A few keys more do not make the round twenty times as long.
        let IndexShare::Keys { round: longer, .. } = pace.earned(round, 0, 70_000, 20_000_000).unwrap()
        else {
            panic!("70,000 keys are a large index");
        };
        assert!(longer < round * 5 / 4, "{longer} records");
    }

    /// A checkpoint every thousand records: all keys are saved once in a round, evenly.
    #[test]
    fn a_large_index_is_saved_evenly() {
        let (pace, keys) = (IndexPace::default(), 10_000_000);
        let (mut records, mut saved, mut steps, mut most) = (0, 0, 0, 0);
        for _ in 0..5_000 {
            records += 1_000;
            if let Some(share) = pace.earned(records, 1_000, keys, keys) {
                records -= share.used(share.keys(), records);
                saved += share.keys();
                most = most.max(share.keys());
                steps += 1;
            }
        }
        assert!((keys - 2 * INDEX_STEP_KEYS..=keys).contains(&saved), "{saved} of {keys} keys in a round");
        assert!(most < 2 * INDEX_STEP_KEYS && steps > 300, "{steps} steps, the largest of {most} keys");
        // A share that was earned meanwhile is made up for, but not at once.
        let late = pace.earned(5_000_000, 1_000, keys, keys).unwrap();
        assert_eq!(late.keys(), INDEX_CHECKPOINT_KEYS_MAX);
        assert!(late.used(late.keys(), 5_000_000) < 100_000);
    }

    /// Small records come by the hundred thousand: the index does not fall behind them, round for
    /// round.
    #[test]
    fn checkpoints_of_many_records_keep_up() {
        let (pace, keys, own) = (IndexPace::default(), 100_000_000, 260_000);
        let mut behind = 3_000_000;
        for _ in 0..400 {
            behind += own;
            let share = pace.earned(behind, own, keys, keys).unwrap();
            behind -= share.used(share.keys(), behind);
        }
        assert!(behind < own, "{behind} records have earned what is not saved");
        let share = pace.earned(keys, keys, keys, keys).unwrap();
        assert_eq!(share.keys(), INDEX_CHECKPOINT_KEYS_OF_OWN_MAX, "however many come at once");
    }

    /// Behind a quiet time a start has few records to read, and the rows were worth it.
    #[test]
    fn a_start_behind_a_quiet_time_is_short() {
        let (pace, keys) = (IndexPace::default(), 10_000_000);
        let fewest = INDEX_ROUND_RECORDS_MIN;
        for (quiet, part, fewest) in [
            (QuietTime::Short, INDEX_QUIET_PART, fewest),
            (QuietTime::Long, INDEX_LONG_QUIET_PART, fewest * INDEX_QUIET_PART / INDEX_LONG_QUIET_PART),
        ] {
            let unearned = |records, keys, kept| pace.unearned(quiet, records, keys, kept);
            assert_eq!(unearned(keys / part - 1, keys, keys), None);
            assert_eq!(unearned(keys / part, keys, keys).unwrap().keys(), INDEX_CHECKPOINT_KEYS_MAX);
            let kept = 16 * keys;
            assert_eq!(unearned(kept / part - 1, keys, kept), None, "their rows are longer");
            assert!(unearned(kept / part, keys, kept).is_some());
            assert_eq!(unearned(INDEX_SMALL_KEYS, INDEX_SMALL_KEYS, INDEX_SMALL_KEYS), None);
            let keys = INDEX_SMALL_KEYS + 1;
            assert_eq!(unearned(fewest - 1, keys, keys), None);
            assert!(unearned(fewest, keys, keys).is_some());
        }
    }

    /// One checkpoint without index, then two, up to the bound; from the first again once one has
    /// found room.
    #[test]
    fn index_waits_longer_the_more_often_it_finds_no_room() {
        let mut room = IndexRoom::default();
        let waits = |room: &mut IndexRoom| {
            room.not_found();
            let mut waited = 0;
            while !room.may_be() {
                room.found();
                waited += 1;
            }
            waited
        };
        assert_eq!([(); 4].map(|()| waits(&mut room)), [1, 2, 4, 8]);
        for _ in 0..9 {
            waits(&mut room);
        }
        assert_eq!(waits(&mut room), INDEX_WITHOUT_ROOM_MAX);
        room.found();
        assert_eq!(waits(&mut room), 1);
    }

    /// Large keys do not leave the index behind: a round writes each once, while half as many
    /// records come, each as large as its key.
    #[test]
    fn records_earn_bytes_too() {
        let pace = IndexPace::default();
        let share = Some(IndexShare::Keys { keys: 1, of: 1, round: 1 });
        assert_eq!(pace.bytes_max(share, 100), INDEX_STEP_BYTES);
        let much = 100 * INDEX_STEP_BYTES;
        assert_eq!(pace.bytes_max(share, much), INDEX_BYTES_PER_RECORD_BYTE * much);
        assert_eq!(pace.bytes_max(share, usize::MAX), usize::MAX);
        assert_eq!(pace.bytes_max(Some(IndexShare::Whole), 100), usize::MAX);
    }
}
