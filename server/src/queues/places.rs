//! Places that callers hold, by the address that they come from. Where there are too many, one of
//! the address that holds the most is given up: callers of one address are not in the way of
//! another's.

use std::collections::{BTreeMap, BTreeSet};

/// Places that are taken, each with what tells its holder to go.
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

/// The places of one address, by their numbers, the oldest of which is the lowest.
#[derive(Debug, Default)]
struct Held {
    new: BTreeSet<u64>,
    /// Those in which something has begun.
    begun: BTreeSet<u64>,
    /// Those that hold bytes, behind how many.
    sizes: BTreeSet<(usize, u64)>,
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

impl Held {
    fn places(&self) -> usize {
        self.new.len() + self.begun.len()
    }
}

impl<T> Places<T> {
    /// Takes a place; its number.
    pub fn add(&mut self, from: u128, holder: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, Taken { from, bytes: 0, holder });
        self.of.entry(from).or_default().new.insert(number);
        number
    }

    /// Gives a place back, if it is still taken.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.hold(number, 0);
        let Taken { from, holder, .. } = self.taken.remove(&number)?;
        if let Some(held) = self.of.get_mut(&from) {
            let _ = held.new.remove(&number) || held.begun.remove(&number);
            if held.places() == 0 {
                self.of.remove(&from);
            }
        }
        Some(holder)
    }

    /// Something has begun in a place, if it is still taken.
    pub fn begin(&mut self, number: u64) {
        let held = self.taken.get(&number).and_then(|taken| self.of.get_mut(&taken.from));
        if let Some(held) = held
            && held.new.remove(&number)
        {
            held.begun.insert(number);
        }
    }

    /// A place holds so many bytes from now on; whether it is still taken.
    pub fn hold(&mut self, number: u64, bytes: usize) -> bool {
        let Some(taken) = self.taken.get_mut(&number) else { return false };
        let before = std::mem::replace(&mut taken.bytes, bytes);
        self.bytes = self.bytes - before + bytes;
        if let Some(held) = self.of.get_mut(&taken.from) {
            held.bytes = held.bytes - before + bytes;
            held.sizes.remove(&(before, number));
            if bytes > 0 {
                held.sizes.insert((bytes, number));
            }
        }
        true
    }

    /// Takes a place of the address that holds the most away: of bytes the oldest of those that
    /// hold no less than they do on average; of places the oldest of those in which nothing has
    /// begun, unless in more of them something has. Of several addresses that hold as much all are
    /// looked at.
    pub fn displace(&mut self, most: Most) -> Option<T> {
        let number = match most {
            Most::Places => self.oldest_of_most(),
            Most::Bytes => self.large_one_of_most(),
        };
        self.remove(number?)
    }

    fn oldest_of_most(&self) -> Option<u64> {
        let most = self.of.values().map(Held::places).max()?;
        let of_most = || self.of.values().filter(|held| held.places() == most);
        let groups: [fn(&Held) -> &BTreeSet<u64>; 2] = [|held| &held.new, |held| &held.begun];
        let [new, begun] = groups.map(|group| of_most().map(|held| group(held).len()).sum::<usize>());
        let group = groups[usize::from(begun > new)];
        of_most().filter_map(|held| group(held).first()).min().copied()
    }

    fn large_one_of_most(&self) -> Option<u64> {
        let most = self.of.values().map(|held| held.bytes).max()?;
        let of_most = self.of.values().filter(|held| held.bytes == most);
        let large = of_most.flat_map(|held| held.sizes.range((most / held.sizes.len().max(1), 0)..));
        large.map(|(_, number)| *number).min()
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

    #[test]
    fn an_old_and_large_one_of_the_address_that_holds_the_most_bytes_goes() {
        let mut places = Places::default();
        let numbers = [1, 2, 2, 2, 2].map(|from| places.add(from, from));
        assert!([60, 5, 30, 0, 40].iter().zip(numbers).all(|(bytes, number)| places.hold(number, *bytes)));
        assert_eq!((places.displace(Most::Bytes), places.bytes()), (Some(2), 105));
        assert!(places.remove(numbers[2]).is_none(), "three hold 25 on average");
        assert!(places.hold(numbers[4], 60));
        assert_eq!((places.displace(Most::Bytes), places.bytes()), (Some(2), 65));
        assert!(places.remove(numbers[4]).is_none() && places.hold(numbers[1], 0));
        assert_eq!([(); 2].map(|()| places.displace(Most::Bytes)), [Some(1), None], "the others hold none");
        assert_eq!((places.len(), places.bytes()), (2, 0));
    }

    #[test]
    fn those_in_which_nothing_has_begun_go_first_unless_they_are_fewer() {
        let mut places = Places::default();
        let numbers = [0; 6].map(|from| places.add(from, ()));
        numbers[..3].iter().for_each(|number| places.begin(*number));
        places.displace(Most::Places);
        assert!(places.remove(numbers[3]).is_none(), "the oldest of the new ones");
        places.displace(Most::Places);
        assert!(places.remove(numbers[0]).is_none(), "three had begun, and two had not");
        places.begin(numbers[0]); // has no place any more
        assert_eq!(places.len(), 4);
        // As many as there are addresses: each has one.
        let mut places = Places::default();
        let numbers: Vec<u64> = (0..9).map(|from| places.add(from, ())).collect();
        numbers[..4].iter().for_each(|number| places.begin(*number));
        places.displace(Most::Places);
        assert!(places.remove(numbers[4]).is_none(), "five had not begun");
        // An address with many of both gives way before one with more that have begun.
        let mut places = Places::default();
        let [here, there] = [1, 2].map(|from| [(); 4].map(|()| places.add(from, from)));
        places.remove(there[3]);
        here[..2].iter().chain(&there[..3]).for_each(|number| places.begin(*number));
        assert_eq!(places.displace(Most::Places), Some(1));
        assert!(places.remove(here[2]).is_none());
    }
}
