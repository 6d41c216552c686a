//! The row of a node: its histories or children in the order of their keys, and the totals of all
//! keys below.

use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};

use crate::key_parts::KeyParts;
use crate::limits::SPARE_ROWS_MAX;
use crate::mvcc::key_change::KeyChange;
use crate::mvcc::key_index::keys::{KeyRef, Keys};
use crate::mvcc::key_index::totals::{KeyUpdate, Totals};

/// An item of a row.
pub(super) trait Item {
    /// How many items at the front of a row have keys that say nothing.
    const UNSEARCHED: usize;

    /// Adds its keys to the totals of a row.
    fn add_to(&self, totals: &mut Totals);
}

/// Items in the order of their keys, without room for more: there is one in memory for each node,
/// and few of them grow.
#[derive(Debug)]
pub(super) struct Row<T> {
    items: Box<[T]>,
    keys: Keys,
    totals: Totals,
}

/// Memory of rows that are no more, by how many items it has room for: that of a row is as long as
/// the row.
#[derive(Debug)]
pub(super) struct SpareRows<T>(Vec<Vec<Vec<T>>>);

impl<T> Default for SpareRows<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> SpareRows<T> {
    /// Room for so many items.
    fn take(&mut self, len: usize) -> Vec<T> {
        let spare = self.0.get_mut(len).and_then(Vec::pop);
        spare.unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Keeps the memory of a row, if there is not much of its length.
    pub(super) fn keep(&mut self, mut items: Vec<T>) {
        items.clear();
        let len = items.capacity();
        if self.0.len() <= len {
            self.0.resize_with(len + 1, Vec::new);
        }
        if self.0[len].len() < SPARE_ROWS_MAX {
            self.0[len].push(items);
        }
    }
}

impl<T> Default for Row<T> {
    fn default() -> Self {
        Self { items: Box::default(), keys: Keys::default(), totals: Totals::default() }
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

/// The totals of items, by a look at each.
fn counted<T: Item>(items: &[T]) -> Totals {
    let mut totals = Totals::default();
    items.iter().for_each(|item| item.add_to(&mut totals));
    totals
}

impl<T: Item> Row<T> {
    /// Items with their keys, in order.
    pub(super) fn new<'k>(items: Vec<T>, keys: impl DoubleEndedIterator<Item = KeyRef<'k>> + Clone) -> Self {
        let totals = counted(&items);
        Self::with_totals(items, keys, totals)
    }

    /// The same, where the totals are known.
    pub(super) fn with_totals<'k>(
        items: Vec<T>,
        keys: impl DoubleEndedIterator<Item = KeyRef<'k>> + Clone,
        totals: Totals,
    ) -> Self {
        let keys = Keys::new(keys, T::UNSEARCHED);
        assert_eq!(items.len(), keys.len(), "a row has as many keys as items");
        debug_assert_eq!(totals, counted(&items), "the totals are not those of the items");
        Self { items: items.into(), keys, totals }
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The totals as they are by a look at all items.
    fn recount(&mut self) {
        self.totals = counted(&self.items);
    }

    /// Counts the update of a key: a look at all items for each would be most of what it costs.
    pub(super) fn count(&mut self, update: KeyUpdate) {
        let have_followed = self.totals.follow(update);
        self.recount_unless(have_followed);
    }

    /// Counts that a key, of which this was the last change, is not there any more.
    pub(super) fn count_end(&mut self, last: KeyChange) {
        let have_followed = self.totals.follow_end(last);
        self.recount_unless(have_followed);
    }

    fn recount_unless(&mut self, have_followed: bool) {
        if !have_followed {
            self.recount();
        }
        debug_assert_eq!(self.totals, counted(&self.items), "the totals do not follow");
    }

    /// The row with copies of its items, which `add` adds to a list; the keys are shared.
    pub(super) fn copy(&self, add: impl FnOnce(&[T], &mut Vec<T>), spare: &mut SpareRows<T>) -> Self {
        let mut items = spare.take(self.len());
        add(&self.items, &mut items);
        Self { items: items.into(), keys: self.keys.clone(), totals: self.totals }
    }

    /// Asks for the memory that a search looks at first.
    pub(super) fn prefetch_keys(&self) {
        self.keys.prefetch();
    }

    /// Asks for the count of those that share the keys.
    pub(super) fn prefetch_owners(&self) {
        self.keys.prefetch_owners();
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items.into_vec()
    }

    fn take_items(&mut self) -> Vec<T> {
        std::mem::take(&mut self.items).into_vec()
    }

    pub(super) fn key(&self, at: usize) -> KeyParts<'_> {
        self.keys.get(at).key()
    }

    pub(super) fn key_ref(&self, at: usize) -> KeyRef<'_> {
        self.keys.get(at)
    }

    fn keys(&self) -> impl DoubleEndedIterator<Item = KeyRef<'_>> + ExactSizeIterator + Clone {
        self.keys.range(0..self.len())
    }

    /// Adds an item; [`Self::count`] is told of the update that it comes of.
    pub(super) fn insert(&mut self, at: usize, key: KeyRef<'_>, item: T) {
        self.keys.insert(at, key, T::UNSEARCHED);
        let mut items = self.take_items();
        items.reserve_exact(1);
        items.insert(at, item);
        self.items = items.into();
    }

    /// Removes an item; [`Self::count_end`] is told if its key is not there any more.
    pub(super) fn remove(&mut self, at: usize) -> T {
        self.keys.remove(at, T::UNSEARCHED);
        let mut items = self.take_items();
        let removed = items.remove(at);
        self.items = items.into();
        removed
    }

    /// Takes the items from `at` on off the row; both are counted.
    pub(super) fn split(&mut self, at: usize) -> Self {
        let keys = Keys::new(self.keys.range(at..self.len()), T::UNSEARCHED);
        self.keys = Keys::new(self.keys.range(0..at), T::UNSEARCHED);
        let mut items = self.take_items();
        let right = items.split_off(at);
        // An allocator leaves a piece that shrinks by less than a half as large as it was.
        let mut left = Vec::with_capacity(at);
        left.append(&mut items);
        self.items = left.into();
        self.recount();
        let mut right = Self { items: right.into(), keys, totals: Totals::default() };
        right.recount();
        right
    }

    /// The first item whose key is not below `key`.
    pub(super) fn not_below(&self, key: &[u8]) -> usize {
        self.keys.first_where(key, T::UNSEARCHED, |order| order == Ordering::Less)
    }

    /// The first item whose key is above `key`.
    pub(super) fn above(&self, key: &[u8]) -> usize {
        self.keys.first_where(key, T::UNSEARCHED, |order| order != Ordering::Greater)
    }

    /// Adds the items of a row whose keys follow; the first has another key, if it is given one.
    pub(super) fn extend(&mut self, more: Self, first: Option<KeyRef<'_>>) {
        let first_and_rest = first.into_iter().chain(more.keys().skip(usize::from(first.is_some())));
        self.keys = Keys::new(self.keys().chain(first_and_rest), T::UNSEARCHED);
        let mut items = self.take_items();
        items.reserve_exact(more.len());
        items.append(&mut more.into_items());
        self.items = items.into();
        self.recount();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// An item of a row in which some at the front say nothing.
    #[derive(Debug, Clone)]
    struct Nothing<const UNSEARCHED: usize>;

    impl<const FROM: usize> Item for Nothing<FROM> {
        const UNSEARCHED: usize = FROM;

        fn add_to(&self, _totals: &mut Totals) {}
    }

    fn below(random: &mut Random, bound: usize) -> usize {
        usize::try_from(random.below(bound as u64)).unwrap()
    }

    /// Short and long, alike and not, with zeros and without; some too long to be packed.
    fn random_key(random: &mut Random, is_long: bool) -> Vec<u8> {
        let long = [b'b'; 6_000];
        let long = if is_long && random.one_in(2) { &long[..] } else { b"" };
        let prefix: &[u8] = [&b""[..], b"/registry/", b"/registry/pods/default/", long][below(random, 4)];
        let rest = (0..random.below(12)).map(|_| [0, b'a', b'b', 255][below(random, 4)]);
        prefix.iter().copied().chain(rest).collect()
    }

    /// A row beside the list of its keys.
    struct Twin<const FROM: usize> {
        row: Row<Nothing<FROM>>,
        keys: Vec<Vec<u8>>,
    }

    impl<const FROM: usize> Twin<FROM> {
        fn check(&self, random: &mut Random, is_long: bool) {
            let Self { row, keys } = self;
            assert!((0..row.len()).map(|at| row.key(at).to_vec()).eq(keys.iter().cloned()));
            assert_eq!(row.keys.len(), keys.len());
            let from = FROM.min(keys.len());
            let searched = &keys[from..];
            let asked = searched.iter().cloned().chain([random_key(random, is_long), Vec::new()]);
            for key in asked {
                for key in [&key[..], &key[..key.len() / 2], &[&key[..], &[0]].concat()] {
                    let expected = searched.partition_point(|other| &other[..] < key);
                    assert_eq!(row.not_below(key), from + expected, "{key:?} in {keys:?}");
                    let expected = searched.partition_point(|other| &other[..] <= key);
                    assert_eq!(row.above(key), from + expected, "{key:?} in {keys:?}");
                }
            }
        }
    }

    /// A search finds what a look at each key would, after any changes of the row.
    fn search_is_that_of_keys<const FROM: usize>(is_long: bool) {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let keys = vec![b"zzz".to_vec(); FROM];
            let row = Row::new(vec![Nothing::<FROM>; FROM], keys.iter().map(|key| KeyRef::bytes(key)));
            let mut twin = Twin { row, keys };
            for _ in 0..60 {
                let key = random_key(&mut random, is_long);
                let at = twin.row.not_below(&key);
                let len = twin.keys.len();
                match random.below(8) {
                    0 if len > FROM => {
                        let at = FROM + below(&mut random, len - FROM);
                        twin.row.remove(at);
                        twin.keys.remove(at);
                    }
                    1 if len > FROM + 1 => {
                        let at = FROM + 1 + below(&mut random, len - FROM - 1);
                        let right = Twin { row: twin.row.split(at), keys: twin.keys.split_off(at) };
                        twin.check(&mut random, is_long);
                        right.check(&mut random, is_long);
                        if random.one_in(2) {
                            // The first key of the right row may have said nothing, but it is true.
                            let first = right.keys.first().filter(|_| random.one_in(2));
                            twin.row.extend(right.row, first.map(|key| KeyRef::bytes(key)));
                            twin.keys.extend(right.keys);
                        }
                    }
                    _ if twin.keys.get(at) != Some(&key) => {
                        twin.row.insert(at, KeyRef::bytes(&key), Nothing::<FROM>);
                        twin.keys.insert(at, key);
                    }
                    _ => {}
                }
                twin.check(&mut random, is_long);
            }
        }
    }

    #[test]
    fn a_search_by_tags_finds_what_a_search_by_keys_does() {
        search_is_that_of_keys::<0>(false);
        search_is_that_of_keys::<1>(false);
    }

    #[test]
    fn long_keys_are_found_too() {
        search_is_that_of_keys::<0>(true);
        search_is_that_of_keys::<1>(true);
    }

    #[test]
    fn a_copy_lies_in_the_memory_of_a_row_of_its_length_that_is_no_more() {
        #[derive(Debug, Clone)]
        struct Number(u64);
        impl Item for Number {
            const UNSEARCHED: usize = 0;
            fn add_to(&self, _totals: &mut Totals) {}
        }
        let keys = [b"a", b"b", b"c"].map(|key| KeyRef::bytes(key));
        let row = |len: u64| {
            let items: Vec<Number> = (0..len).map(Number).collect();
            Row::new(items, keys[..usize::try_from(len).unwrap()].iter().copied())
        };
        let mut spare = SpareRows::default();
        let gone = row(2);
        let place = gone.as_ptr();
        spare.keep(gone.into_items());
        let longer = row(3).copy(|from, to| to.extend_from_slice(from), &mut spare);
        assert!(longer.as_ptr() != place && longer[2].0 == 2);
        let copy = row(2).copy(|from, to| to.extend_from_slice(from), &mut spare);
        assert!(copy.as_ptr() == place && copy.len() == 2 && copy[1].0 == 1);
        assert!(spare.0[2].is_empty(), "it is used once");
        (0..2 * SPARE_ROWS_MAX).for_each(|_| spare.keep(row(3).into_items()));
        assert_eq!(spare.0[3].len(), SPARE_ROWS_MAX, "no more are kept");
    }

    /// They are not copied when a node is made anew.
    #[test]
    fn long_keys_are_shared() {
        let long = crate::mvcc::key_index::Key::from(&[7; 40_000][..]);
        let mut row: Row<Nothing<0>> = Row::default();
        row.insert(0, KeyRef::Own(&long), Nothing);
        row.insert(0, KeyRef::bytes(b"a"), Nothing);
        let right = row.split(1);
        assert!(std::sync::Arc::ptr_eq(&right.key_ref(0).to_key(), &long));
        assert!(matches!(row.keys, Keys::Packed(_)));
    }
}
