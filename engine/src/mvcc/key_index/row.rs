//! The row of a node: its entries or children in key order, and how one of them is found.
//!
//! Keys lie elsewhere, so that a look at one is a miss in the processor's caches more often than
//! not. A row has eight bytes of each key beside it, its tag: the first in which keys of this row
//! can differ. Most searches look at the first key, and at the one that is found; where eight bytes
//! do not tell the keys apart, at a few more.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A key, shared between the copies of the nodes that hold it.
pub type Key = Arc<[u8]>;

/// An item of a row.
pub(super) trait Tagged {
    /// How many items at the front of a row have keys that say nothing.
    const UNSEARCHED: usize;

    fn key(&self) -> &Key;
    fn tag(&self) -> u64;
    fn set_tag(&mut self, tag: u64);
}

/// Items in the order of their keys. Their keys may not be changed in place.
#[derive(Debug, Clone)]
pub(super) struct Row<T> {
    items: Vec<T>,
    /// Bytes that are the same in all keys, those of items that are not searched apart; tags begin
    /// behind them. There may be more.
    same: usize,
}

impl<T> Default for Row<T> {
    fn default() -> Self {
        Self { items: Vec::new(), same: 0 }
    }
}

impl<T> Deref for Row<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for Row<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<T: Tagged> Row<T> {
    pub(super) fn new(items: Vec<T>) -> Self {
        let mut row = Self { items, same: 0 };
        row.tag_all();
        row
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }

    pub(super) fn insert(&mut self, at: usize, item: T) {
        self.items.insert(at, item);
        let (from, item) = (T::UNSEARCHED, &self.items[at]);
        let neighbour = self.items.get(from + usize::from(at == from));
        let same = neighbour.map_or(0, |other| common(other.key(), item.key()));
        // A key alone is all the same.
        if at < from || same < self.same || self.items.len() <= from + 2 {
            return self.tag_all();
        }
        let tag = tag(item.key(), self.same);
        self.items[at].set_tag(tag);
    }

    pub(super) fn remove(&mut self, at: usize) -> T {
        let removed = self.items.remove(at);
        if at < T::UNSEARCHED {
            self.tag_all();
        }
        removed
    }

    /// Takes the items from `at` on off the row.
    pub(super) fn split(&mut self, at: usize) -> Self {
        let mut right = Vec::with_capacity(self.items.len() - at);
        right.extend(self.items.drain(at..));
        self.items.shrink_to_fit();
        self.tag_all();
        Self::new(right)
    }

    /// Adds items whose keys follow.
    pub(super) fn extend(&mut self, more: impl Iterator<Item = T>) {
        self.items.extend(more);
        self.tag_all();
    }

    fn tag_all(&mut self) {
        let searched = self.items.get_mut(T::UNSEARCHED..).unwrap_or_default();
        let (Some(first), Some(last)) = (searched.first(), searched.last()) else { return };
        self.same = common(first.key(), last.key());
        for item in searched {
            let tag = tag(item.key(), self.same);
            item.set_tag(tag);
        }
    }

    /// The first item whose key is not below `key`.
    pub(super) fn not_below(&self, key: &[u8]) -> usize {
        self.first_where(key, |other| other < key)
    }

    /// The first item whose key is above `key`.
    pub(super) fn above(&self, key: &[u8]) -> usize {
        self.first_where(key, |other| other <= key)
    }

    /// The first of the searched items whose key is not `before`, which goes by its order to `key`.
    fn first_where(&self, key: &[u8], before: impl Fn(&[u8]) -> bool) -> usize {
        let searched = self.items.get(T::UNSEARCHED..).unwrap_or_default();
        let Some(first) = searched.first() else { return self.items.len().min(T::UNSEARCHED) };
        let same = &first.key()[..self.same];
        match key[..self.same.min(key.len())].cmp(same) {
            Ordering::Less => return T::UNSEARCHED,
            Ordering::Greater => return self.items.len(),
            Ordering::Equal => {}
        }
        let wanted = tag(key, self.same);
        let low = searched.partition_point(|item| item.tag() < wanted);
        let alike = searched[low..].partition_point(|item| item.tag() == wanted);
        let found = searched[low..low + alike].partition_point(|item| before(item.key()));
        T::UNSEARCHED + low + found
    }
}

/// How many bytes two keys begin with alike.
fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Eight bytes of a key from `from` on, as a number that is ordered as they are.
fn tag(key: &[u8], from: usize) -> u64 {
    let rest = key.get(from..).unwrap_or_default();
    if let Some(bytes) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// An item of which some at the front say nothing.
    #[derive(Debug, Clone)]
    struct Item<const UNSEARCHED: usize>(Key, u64);

    impl<const FROM: usize> Tagged for Item<FROM> {
        const UNSEARCHED: usize = FROM;

        fn key(&self) -> &Key {
            &self.0
        }

        fn tag(&self) -> u64 {
            self.1
        }

        fn set_tag(&mut self, tag: u64) {
            self.1 = tag;
        }
    }

    fn below(random: &mut Random, bound: usize) -> usize {
        usize::try_from(random.below(bound as u64)).unwrap()
    }

    /// Short and long, alike and not, with zeros and without.
    fn random_key(random: &mut Random) -> Vec<u8> {
        let prefix: &[u8] = [&b""[..], b"/registry/", b"/registry/pods/default/"][below(random, 3)];
        let rest = (0..random.below(12)).map(|_| [0, b'a', b'b', 255][below(random, 4)]);
        prefix.iter().copied().chain(rest).collect()
    }

    fn check<const FROM: usize>(row: &Row<Item<FROM>>, random: &mut Random) {
        let searched = row.get(FROM..).unwrap_or_default();
        assert!(searched.is_sorted_by(|one, next| one.0 < next.0));
        let keys = searched.iter().map(|item| item.0.to_vec()).chain([random_key(random), Vec::new()]);
        for key in keys.collect::<Vec<_>>() {
            for key in [&key[..], &key[..key.len() / 2], &[&key[..], &[0]].concat()] {
                let from = FROM.min(row.len());
                assert_eq!(row.not_below(key), from + searched.partition_point(|item| &*item.0 < key));
                assert_eq!(row.above(key), from + searched.partition_point(|item| &*item.0 <= key));
            }
        }
    }

    /// A search finds what a look at each key would, after any changes of the row.
    fn search_is_that_of_keys<const FROM: usize>() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut row: Row<Item<FROM>> = Row::new((0..FROM).map(|_| Item(b"zzz"[..].into(), 0)).collect());
            for _ in 0..60 {
                let key = random_key(&mut random);
                let at = row.not_below(&key);
                match random.below(8) {
                    0 if row.len() > FROM => {
                        row.remove(FROM + below(&mut random, row.len() - FROM));
                    }
                    1 if row.len() > FROM + 1 => {
                        let right = row.split(FROM + 1 + below(&mut random, row.len() - FROM));
                        check(&row, &mut random);
                        if FROM == 0 {
                            check(&right, &mut random);
                        }
                        if random.below(2) == 0 {
                            row.extend(right.into_items().into_iter());
                        }
                    }
                    _ if row.get(at).is_none_or(|item| *item.0 != *key) => {
                        row.insert(at, Item(key.into(), 0))
                    }
                    _ => {}
                }
                check(&row, &mut random);
            }
        }
    }

    #[test]
    fn a_search_by_tags_finds_what_a_search_by_keys_does() {
        search_is_that_of_keys::<0>();
        search_is_that_of_keys::<1>();
    }
}
