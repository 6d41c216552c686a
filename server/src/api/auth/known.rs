//! Where users have logged in: the last places of each name, addresses or connections, with the
//! checksum of the hash that the password fitted. A place does not count for a changed password.
//!
//! Names share a bounded table. While it has room nothing is forgotten; when it is full, the name
//! that has most places forgets the oldest of its own: however many places a user has, it makes
//! none forgotten of a name that has fewer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::limits;

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Known<P> {
    of: BTreeMap<Arc<str>, Places<P>>,
    /// How many places, when the oldest was added, name: the last one forgets. Of names with as
    /// many it is the one whose oldest place is older than the others'.
    most: BTreeSet<(usize, Reverse<u64>, Arc<str>)>,
    /// Places of all names.
    len: usize,
    /// The next number of a success.
    next: u64,
}

/// Those of a name, of which there is one at least.
#[derive(Debug)]
struct Places<P> {
    of: BTreeMap<P, Success>,
    /// By their numbers.
    oldest: BTreeMap<u64, P>,
}

#[derive(Debug, Clone, Copy)]
struct Success {
    number: u64,
    hash: u32,
}

impl<P> Default for Known<P> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), most: BTreeSet::new(), len: 0, next: 0 }
    }
}

impl<P> Places<P> {
    /// The row in [`Known::most`].
    fn rank(&self, name: &Arc<str>) -> Option<(usize, Reverse<u64>, Arc<str>)> {
        let (oldest, _) = self.oldest.first_key_value()?;
        Some((self.of.len(), Reverse(*oldest), Arc::clone(name)))
    }
}

impl<P: Ord + Copy> Known<P> {
    /// A password with this hash was right in this name there, or with any.
    pub(super) fn has(&self, name: &str, place: P, hash: Option<u32>) -> bool {
        let success = self.of.get(name).and_then(|places| places.of.get(&place));
        success.is_some_and(|success| hash.is_none_or(|hash| hash == success.hash))
    }

    /// A password was right there.
    pub(super) fn add(&mut self, name: &str, place: P, hash: u32) {
        self.forget(name, place);
        let name = self.of.get_key_value(name).map_or_else(|| Arc::from(name), |(name, _)| Arc::clone(name));
        let number = self.next;
        self.next += 1;
        let places = self.of.entry(Arc::clone(&name));
        let places = places.or_insert_with(|| Places { of: BTreeMap::new(), oldest: BTreeMap::new() });
        places.rank(&name).map(|rank| self.most.remove(&rank));
        places.of.insert(place, Success { number, hash });
        places.oldest.insert(number, place);
        self.most.extend(places.rank(&name));
        self.len += 1;
        if self.len > limits::LOGIN_ORIGINS_MAX {
            self.forget_one();
        }
    }

    /// Makes room: the new place is the newest of its name, so another one goes, if the table has
    /// room for two.
    fn forget_one(&mut self) {
        let Some((_, _, name)) = self.most.last().cloned() else { return };
        let oldest = self.of.get(&name).and_then(|places| places.oldest.first_key_value());
        let Some(place) = oldest.map(|(_, place)| *place) else { return };
        self.forget(&name, place);
    }

    fn forget(&mut self, name: &str, place: P) {
        let Some((name, _)) = self.of.get_key_value(name) else { return };
        let name = Arc::clone(name);
        let Some(places) = self.of.get_mut(&name) else { return };
        let rank = places.rank(&name);
        let Some(success) = places.of.remove(&place) else { return };
        places.oldest.remove(&success.number);
        rank.map(|rank| self.most.remove(&rank));
        match places.rank(&name) {
            Some(rank) => self.most.insert(rank),
            None => self.of.remove(&name).is_some(),
        };
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = limits::LOGIN_ORIGINS_MAX;

    impl<P: Ord + Copy + std::fmt::Debug> Known<P> {
        /// The bound, and that each order has each place once.
        fn check(&self) {
            assert!(self.len <= MAX);
            assert_eq!(self.of.values().map(|places| places.of.len()).sum::<usize>(), self.len);
            let ranks = self.of.iter().map(|(name, places)| places.rank(name).expect("none is empty"));
            assert_eq!(ranks.collect::<BTreeSet<_>>(), self.most);
            for places in self.of.values() {
                let by_number = places.of.iter().map(|(place, success)| (success.number, *place));
                assert_eq!(by_number.collect::<BTreeMap<_, _>>(), places.oldest);
            }
        }
    }

    #[test]
    fn a_place_is_known_for_the_last_password_that_was_right_there() {
        let mut known = Known::default();
        known.add("ann", 1, 5);
        assert!(known.has("ann", 1, None) && known.has("ann", 1, Some(5)));
        assert!(!known.has("ann", 1, Some(6)) && !known.has("ann", 2, None) && !known.has("bob", 1, None));
        known.add("ann", 1, 6);
        assert!(known.has("ann", 1, Some(6)) && !known.has("ann", 1, Some(5)));
        assert_eq!(known.len, 1);
        known.check();
    }

    /// One user logs in from as many places as it likes.
    #[test]
    fn a_user_makes_no_other_forgotten() {
        let mut known = Known::default();
        known.add("ann", 7, 5);
        for place in 0..2 * MAX {
            known.add("bob", place, 5);
        }
        assert!(known.has("ann", 7, Some(5)));
        assert!(known.has("bob", MAX + 1, None) && !known.has("bob", MAX, None), "its own oldest go");
        // Nor does one that comes when the table is full.
        for place in 0..2 * MAX {
            known.add("cem", place, 5);
        }
        assert!(known.has("ann", 7, Some(5)));
        let left = |name| (0..2 * MAX).filter(|place| known.has(name, *place, None)).count();
        let (bob, cem) = (left("bob"), left("cem"));
        assert!(bob + cem == MAX - 1 && bob.abs_diff(cem) <= 1, "equal parts: {bob}, {cem}");
        known.check();
    }

    /// A fleet with one user logs in from each of its networks in turn.
    #[test]
    fn a_fleet_is_known_in_all_its_networks() {
        let mut known = Known::default();
        for turn in 0..3 {
            for network in 0..MAX {
                assert_eq!(known.has("fleet", network, Some(5)), turn > 0, "network {network}");
                known.add("fleet", network, 5);
            }
        }
        known.check();
    }

    #[test]
    fn places_are_bounded() {
        let mut known = Known::default();
        for number in 0..2 * MAX {
            known.add(&format!("user {number}"), 7, 5);
        }
        assert_eq!((known.of.len(), known.len), (MAX, MAX));
        assert!(!known.has(&format!("user {}", MAX - 1), 7, None), "the oldest go");
        assert!(known.has(&format!("user {MAX}"), 7, None));
        known.check();
    }
}
