//! Sets of keys as intervals, merged.

/// Keys from the first on, to the second, which is no part of it; without a second to the end.
pub type Interval = (Vec<u8>, Option<Vec<u8>>);

/// Intervals that neither overlap nor touch, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Intervals(Vec<Interval>);

/// The interval that a key and a range end of a permission mean; a range end of one zero byte is
/// the end of all keys.
#[must_use]
pub fn of_wire(key: &[u8], range_end: &[u8]) -> Interval {
    let end = match range_end {
        b"" => Some([key, &[0]].concat()),
        b"\0" => None,
        end => Some(end.to_vec()),
    };
    (key.to_vec(), end)
}

impl Intervals {
    /// The keys that are in any of these.
    #[must_use]
    pub fn merged(mut intervals: Vec<Interval>) -> Self {
        intervals.sort();
        let mut merged: Vec<Interval> = Vec::new();
        for (start, end) in intervals {
            match merged.last_mut() {
                Some((_, last)) if last.as_ref().is_none_or(|last| *last >= start) => {
                    let goes_on = match (&last, &end) {
                        (None, _) => false,
                        (Some(_), None) => true,
                        (Some(last), Some(end)) => end > last,
                    };
                    if goes_on {
                        *last = end;
                    }
                }
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    /// Whether all keys are in it that a request's key and range end mean. Of a range that has
    /// none the first key counts.
    #[must_use]
    pub fn contain(&self, key: &[u8], range_end: &[u8]) -> bool {
        match self.end_of_begun(key) {
            None => false,
            Some(None) => true,
            Some(Some(end)) => range_end != b"\0" && key < end && range_end <= end,
        }
    }

    /// The end of the last interval that begins at this key or before, if there is one; none is
    /// the end of all keys.
    fn end_of_begun(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let behind = self.0.partition_point(|(start, _)| start.as_slice() <= key);
        Some(self.0[behind.checked_sub(1)?].1.as_deref())
    }

    /// Whether all keys of an ordered set are in it. `next` is the first key of the set that is
    /// not before another one: it is asked once for each interval, and once more, however many
    /// keys the set has.
    pub fn hold_all<'k>(&self, mut next: impl FnMut(&[u8]) -> Option<&'k [u8]>) -> bool {
        let mut from: &[u8] = b"";
        while let Some(key) = next(from) {
            match self.end_of_begun(key) {
                Some(None) => return true,
                Some(Some(end)) if key < end => from = end,
                _ => return false,
            }
        }
        true
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No key is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::random::Random;

    #[test]
    fn neighbours_merge_and_gaps_stay() {
        let of = |parts: &[(&str, &str)]| {
            let parts = parts.iter().map(|(key, end)| of_wire(key.as_bytes(), end.as_bytes()));
            Intervals::merged(parts.collect())
        };
        let set = of(&[("c", "e"), ("a", "b"), ("b", "c"), ("x", "\0"), ("y", "z"), ("m", "")]);
        assert!(set.contain(b"a", b"e") && set.contain(b"b", b"d") && !set.contain(b"a", b"e\0"));
        assert!(set.contain(b"m", b"") && set.contain(b"m", b"m\0") && !set.contain(b"m", b"n"));
        assert!(!set.contain(b"m\0", b"") && !set.contain(b"e", b"") && !set.contain(b"", b""));
        assert!(set.contain(b"x", b"\0") && set.contain(b"zzz", b"") && !set.contain(b"w", b"\0"));
        // Row 83 of the catalogue: from a key on is not the key.
        assert!(!set.contain(b"m", b"\0") && !set.contain(b"a", b"\0"));
        // A range without a key in it: the first key decides.
        assert!(set.contain(b"b", b"a") && !set.contain(b"f", b"a"));
    }

    /// Very many keys cost no more than the intervals that they are in.
    #[test]
    fn a_set_of_keys_is_looked_at_once_for_each_interval() {
        let mut denied = 0;
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut byte = |below| u8::try_from(random.below(below)).unwrap();
            let parts =
                (0..4).map(|_| (vec![byte(40)], Some(vec![byte(40)]))).filter(|(a, b)| Some(a) < b.as_ref());
            let set = Intervals::merged(parts.chain([(vec![0], Some(vec![20]))]).collect());
            let keys: std::collections::BTreeSet<Vec<u8>> =
                (0..1 + byte(60)).map(|_| vec![byte(24), byte(3)]).collect();
            let (mut looks, one_by_one) = (0, keys.iter().all(|key| set.contain(key, b"")));
            let held = set.hold_all(|from| {
                looks += 1;
                keys.range(from.to_vec()..).next().map(Vec::as_slice)
            });
            assert_eq!(held, one_by_one, "{set:?} {keys:?}");
            assert!(looks <= set.len() + 1, "{looks} looks for {set:?}");
            denied += u32::from(!held);
        }
        assert!((50..250).contains(&denied), "{denied}");
        assert!(Intervals::default().hold_all(|_| None), "no keys, no right needed");
        assert!(!Intervals::default().hold_all(|_| Some(b"a")));
    }

    /// Merged intervals say the same as looking at every key one by one.
    #[test]
    fn merging_changes_no_answer() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut byte = || u8::try_from(random.below(8)).unwrap();
            let parts: Vec<(u8, u8)> = (0..6).map(|_| (byte(), byte())).filter(|(a, b)| a < b).collect();
            let set = Intervals::merged(parts.iter().map(|(a, b)| (vec![*a], Some(vec![*b]))).collect());
            for from in 0..8_u8 {
                for to in from + 1..9 {
                    let all = (from..to).all(|key| parts.iter().any(|(a, b)| (*a..*b).contains(&key)));
                    assert_eq!(set.contain(&[from], &[to]), all, "{parts:?} {from} {to}");
                }
            }
        }
    }
}
