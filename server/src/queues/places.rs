//! Places that callers hold, by the address that they come from. Where there are too many, the
//! oldest one of the address that holds the most is given up: callers of one address are not in the
//! way of another's.

use std::collections::BTreeMap;

/// Places that are taken, oldest first, each with what tells its holder to go.
#[derive(Debug)]
pub struct Places<T> {
    taken: BTreeMap<u64, Taken<T>>,
    next: u64,
    of: BTreeMap<u128, Held>,
    bytes: usize,
}

#[derive(Debug)]
struct Taken<T> {
    from: u128,
    bytes: usize,
    holder: T,
}

/// The places of one address.
#[derive(Debug, Default)]
struct Held {
    places: usize,
    bytes: usize,
}

/// Of what an address may hold the most.
#[derive(Debug, Clone, Copy)]
pub enum Most {
    /// Places.
    Places,
    /// Bytes that are counted in them.
    Bytes,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { taken: BTreeMap::new(), next: 0, of: BTreeMap::new(), bytes: 0 }
    }
}

impl<T> Places<T> {
    /// Takes a place; its number.
    pub fn add(&mut self, from: u128, holder: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, Taken { from, bytes: 0, holder });
        self.of.entry(from).or_default().places += 1;
        number
    }

    /// Gives a place back, if it is still taken.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let Taken { from, bytes, holder } = self.taken.remove(&number)?;
        self.bytes -= bytes;
        if let Some(held) = self.of.get_mut(&from) {
            held.places -= 1;
            held.bytes -= bytes;
            if held.places == 0 {
                self.of.remove(&from);
            }
        }
        Some(holder)
    }

    /// A place holds so many bytes from now on; whether it is still taken.
    pub fn hold(&mut self, number: u64, bytes: usize) -> bool {
        let Some(taken) = self.taken.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut taken.bytes, bytes);
        self.bytes = self.bytes - before + bytes;
        if let Some(held) = self.of.get_mut(&taken.from) {
            held.bytes = held.bytes - before + bytes;
        }
        true
    }

    /// Takes the oldest place of the address that holds the most away.
    pub fn displace(&mut self, most: Most) -> Option<T> {
        let held = |held: &Held| match most {
            Most::Places => held.places,
            Most::Bytes => held.bytes,
        };
        let longest = self.of.values().map(held).max()?;
        let is_of_longest = |taken: &Taken<T>| self.of.get(&taken.from).map(held) == Some(longest);
        let number = self.taken.iter().find(|(_, taken)| is_of_longest(taken)).map(|(number, _)| *number);
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
    fn the_oldest_of_the_address_that_holds_the_most_goes() {
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
}
