//! A walk over an ordered map, a part at a time, that finds the map as it was when the walk began:
//! each change of the map is announced before, and the old value is kept if the walk has yet to
//! come to it.

use std::collections::BTreeMap;
use std::ops::Bound;

/// State core view: the position of a walk, and old values beyond it.
#[derive(Debug)]
pub struct SnapshotWalk<K, V> {
    /// Everything up to this key was visited.
    after: Option<K>,
    /// Values beyond that key as they were when the walk began, where the map has changed since;
    /// none if there was none.
    before: BTreeMap<K, Option<V>>,
}

impl<K, V> Default for SnapshotWalk<K, V> {
    /// A walk over a map as it is now.
    fn default() -> Self {
        Self { after: None, before: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, V> SnapshotWalk<K, V> {
    /// The map is about to change: this is what it has for a key, if anything.
    pub fn will_change(&mut self, key: &K, value: Option<V>) {
        if self.after.as_ref().is_none_or(|after| key > after) && !self.before.contains_key(key) {
            self.before.insert(key.clone(), value);
        }
    }

    /// The old values it has kept: a walk that is given up may leave much to free.
    pub fn into_kept(self) -> BTreeMap<K, Option<V>> {
        self.before
    }

    /// Visits what comes next, in order: so many keys, or fewer if `visit` has had enough. False
    /// when that was all.
    pub fn go_on(
        &mut self,
        map: &BTreeMap<K, V>,
        keys: usize,
        mut visit: impl FnMut(&K, &V) -> bool,
    ) -> bool {
        let from = self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut now = map.range::<K, _>((from, Bound::Unbounded)).peekable();
        for _ in 0..keys {
            let has_changed = match (now.peek(), self.before.first_key_value()) {
                (None, None) => return false,
                (Some((key, _)), Some((changed, _))) => changed <= *key,
                (there, _) => there.is_none(),
            };
            let mut goes_on = true;
            if has_changed {
                let Some((key, value)) = self.before.pop_first() else { return false };
                if now.peek().is_some_and(|(there, _)| **there == key) {
                    now.next();
                }
                if let Some(value) = &value {
                    goes_on = visit(&key, value);
                }
                self.after = Some(key);
            } else if let Some((key, value)) = now.next() {
                goes_on = visit(key, value);
                self.after = Some(key.clone());
            }
            if !goes_on {
                break;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::random::Random;

    #[test]
    fn a_walk_finds_what_was_there_when_it_began() {
        let mut random = Random::new(11);
        let (mut changes, mut parts) = (0, 0);
        for _ in 0..300 {
            let mut map: BTreeMap<u64, u64> =
                (0..random.below(60)).map(|_| (random.below(100), random.below(1_000))).collect();
            let expected: Vec<(u64, u64)> = map.iter().map(|(key, value)| (*key, *value)).collect();
            let (mut walk, mut found) = (SnapshotWalk::default(), Vec::new());
            loop {
                let keys = usize::try_from(1 + random.below(8)).unwrap();
                let enough = random.below(12);
                let more = walk.go_on(&map, keys, |key, value| {
                    found.push((*key, *value));
                    *value % 12 != enough
                });
                parts += 1;
                if !more {
                    break;
                }
                for _ in 0..random.below(12) {
                    let key = random.below(100);
                    walk.will_change(&key, map.get(&key).copied());
                    changes += 1;
                    if random.one_in(2) {
                        map.insert(key, random.below(1_000));
                    } else {
                        map.remove(&key);
                    }
                }
            }
            assert_eq!(found, expected);
        }
        assert!(changes > 1_000 && parts > 1_000, "{changes} changes, {parts} parts");
    }
}
