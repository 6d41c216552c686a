//! Where users have logged in: the last places of each name, addresses or connections, with the
//! checksum of the hash that the password fitted. A place does not count for a changed password.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::limits;

/// Places of one kind.
#[derive(Debug)]
pub(super) struct Known<P> {
    of: BTreeMap<Arc<str>, BTreeMap<P, Success>>,
    /// When, name, place: beyond the bound of all, the first one is forgotten.
    oldest: BTreeSet<(u64, Arc<str>, P)>,
}

#[derive(Debug, Clone, Copy)]
struct Success {
    /// By the clock in milliseconds.
    last: u64,
    hash: u32,
}

impl<P> Default for Known<P> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), oldest: BTreeSet::new() }
    }
}

impl<P: Ord + Copy> Known<P> {
    /// A password with this hash was right in this name there, or with any.
    pub(super) fn has(&self, name: &str, place: P, hash: Option<u32>) -> bool {
        let success = self.of.get(name).and_then(|places| places.get(&place));
        success.is_some_and(|success| hash.is_none_or(|hash| hash == success.hash))
    }

    /// A password was right there. A name that has many places forgets the oldest of its own.
    pub(super) fn add(&mut self, name: &str, place: P, hash: u32, now: u64) {
        self.forget(name, place);
        if let Some(places) = self.of.get(name).filter(|it| it.len() >= limits::KNOWN_PER_NAME_MAX)
            && let Some(first) = places.iter().min_by_key(|(_, success)| success.last).map(|it| *it.0)
        {
            self.forget(name, first);
        }
        if self.oldest.len() >= limits::LOGIN_ORIGINS_MAX
            && let Some((_, name, place)) = self.oldest.first().cloned()
        {
            self.forget(&name, place);
        }
        let name = self.of.get_key_value(name).map_or_else(|| Arc::from(name), |(name, _)| Arc::clone(name));
        self.oldest.insert((now, Arc::clone(&name), place));
        self.of.entry(name).or_default().insert(place, Success { last: now, hash });
    }

    fn forget(&mut self, name: &str, place: P) {
        let Some((name, places)) = self.of.get_key_value(name) else { return };
        let Some(success) = places.get(&place) else { return };
        let name = Arc::clone(name);
        self.oldest.remove(&(success.last, Arc::clone(&name), place));
        if let Some(places) = self.of.get_mut(&name) {
            places.remove(&place);
            if places.is_empty() {
                self.of.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_for_the_last_password_that_was_right_there() {
        let mut known = Known::default();
        known.add("ann", 1, 5, 0);
        assert!(known.has("ann", 1, None) && known.has("ann", 1, Some(5)));
        assert!(!known.has("ann", 1, Some(6)) && !known.has("ann", 2, None) && !known.has("bob", 1, None));
        known.add("ann", 1, 6, 0);
        assert!(known.has("ann", 1, Some(6)) && !known.has("ann", 1, Some(5)));
        assert_eq!(known.oldest.len(), 1);
    }

    /// One user logs in from as many places as it likes.
    #[test]
    fn a_user_makes_no_other_forgotten() {
        let mut known = Known::default();
        known.add("ann", 7, 5, 0);
        for place in 0..2 * limits::LOGIN_ORIGINS_MAX {
            known.add("bob", place, 5, place as u64);
        }
        assert!(known.has("ann", 7, Some(5)));
        assert_eq!(known.oldest.len(), 1 + limits::KNOWN_PER_NAME_MAX);
        assert!(known.has("bob", 2 * limits::LOGIN_ORIGINS_MAX - limits::KNOWN_PER_NAME_MAX, None));
        assert!(!known.has("bob", 2 * limits::LOGIN_ORIGINS_MAX - limits::KNOWN_PER_NAME_MAX - 1, None));
    }

    #[test]
    fn places_are_bounded() {
        let mut known = Known::default();
        for number in 0..2 * limits::LOGIN_ORIGINS_MAX {
            known.add(&format!("user {number}"), 7, 5, number as u64);
        }
        assert_eq!(
            (known.of.len(), known.oldest.len()),
            (limits::LOGIN_ORIGINS_MAX, limits::LOGIN_ORIGINS_MAX)
        );
        assert!(!known.has("user 0", 7, None), "the oldest go");
    }
}
