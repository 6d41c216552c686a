//! Places that callers hold, in groups: by the address that they come from, say. Where there are too
//! many, the oldest one of the group that holds the most is given up: callers of one address are not
//! in the way of another's.

use std::collections::{BTreeMap, BTreeSet};

/// Places that are taken, each with what tells its holder to go.
#[derive(Debug)]
pub struct Places<G, T> {
    taken: BTreeMap<u64, Taken<G, T>>,
    next: u64,
    of: BTreeMap<G, Held>,
    bytes: usize,
}

#[derive(Debug)]
struct Taken<G, T> {
    group: G,
    bytes: usize,
    holder: T,
}

/// The places of one group.
#[derive(Debug, Default)]
struct Held {
    /// Their numbers, oldest first.
    places: BTreeSet<u64>,
    bytes: usize,
}

/// Of what a group may hold the most.
#[derive(Debug, Clone, Copy)]
pub enum Most {
    /// Places.
    Places,
    /// Bytes that are counted in them.
    Bytes,
}

impl<G, T> Default for Places<G, T> {
    fn default() -> Self {
        Self { taken: BTreeMap::new(), next: 0, of: BTreeMap::new(), bytes: 0 }
    }
}

impl<G: Ord + Copy, T> Places<G, T> {
    /// Takes a place; its number.
    pub fn add(&mut self, group: G, holder: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.insert(number, Taken { group, bytes: 0, holder });
        number
    }

    /// Gives a place back, if it is still taken.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        Some(self.take(number)?.holder)
    }

    /// A place is of another group from now on, if it is still taken; it is as old as before.
    pub fn regroup(&mut self, number: u64, group: G) {
        if let Some(taken) = self.take(number) {
            self.insert(number, Taken { group, ..taken });
        }
    }

    fn insert(&mut self, number: u64, taken: Taken<G, T>) {
        let held = self.of.entry(taken.group).or_default();
        held.places.insert(number);
        held.bytes += taken.bytes;
        self.bytes += taken.bytes;
        self.taken.insert(number, taken);
    }

    fn take(&mut self, number: u64) -> Option<Taken<G, T>> {
        let taken = self.taken.remove(&number)?;
        self.bytes -= taken.bytes;
        if let Some(held) = self.of.get_mut(&taken.group) {
            held.places.remove(&number);
            held.bytes -= taken.bytes;
            if held.places.is_empty() {
                self.of.remove(&taken.group);
            }
        }
        Some(taken)
    }

    /// A place holds so many bytes from now on; whether it is still taken.
    pub fn hold(&mut self, number: u64, bytes: usize) -> bool {
        let Some(taken) = self.taken.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut taken.bytes, bytes);
        self.bytes = self.bytes - before + bytes;
        if let Some(held) = self.of.get_mut(&taken.group) {
            held.bytes = held.bytes - before + bytes;
        }
        true
    }

    /// Takes the oldest place of the group that holds the most away.
    pub fn displace(&mut self, most: Most) -> Option<T> {
        let held = |held: &Held| match most {
            Most::Places => held.places.len(),
            Most::Bytes => held.bytes,
        };
        let longest = self.of.values().map(held).max()?;
        let oldest = |of: &Held| of.places.first().copied();
        let number = self.of.values().filter(|of| held(of) == longest).filter_map(oldest).min();
        self.remove(number?)
    }

    /// How many are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// None is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Bytes that are counted in them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_group_that_holds_the_most_goes() {
        let mut places = Places::default();
        let first = places.add(1, "first");
        let here: Vec<u64> = (0..3).map(|_| places.add(2, "here")).collect();
        assert!(places.hold(first, 700) && places.hold(here[1], 400) && places.hold(here[1], 300));
        assert_eq!((places.len(), places.bytes()), (4, 1_000));
        assert_eq!(places.displace(Most::Bytes), Some("first"));
        assert!(!places.hold(first, 9) && places.remove(first).is_none());
        places.add(1, "second");
        assert_eq!(places.displace(Most::Places), Some("here"));
        assert!(places.remove(here[0]).is_none(), "the oldest of them");
        assert_eq!(places.remove(here[1]), Some("here"));
        assert_eq!(places.bytes(), 0);
        assert_eq!([(); 3].map(|()| places.displace(Most::Places)), [Some("here"), Some("second"), None]);
        assert!(places.is_empty() && places.of.is_empty());
    }

    #[test]
    fn a_place_of_another_group_is_as_old_as_before() {
        let mut places = Places::default();
        let numbers = [1, 2, 1, 2].map(|group| places.add(group, group));
        assert!(places.hold(numbers[2], 30));
        places.regroup(numbers[0], 2);
        places.regroup(numbers[2], 2);
        assert_eq!((places.len(), places.bytes(), places.of[&2].bytes), (4, 30, 30));
        assert_eq!((places.of.len(), places.displace(Most::Places)), (1, Some(1)));
        places.regroup(numbers[0], 3); // has no place any more
        assert_eq!([(); 2].map(|()| places.displace(Most::Bytes)), [Some(2), Some(1)]);
        assert_eq!((places.len(), places.bytes()), (1, 0));
    }
}
