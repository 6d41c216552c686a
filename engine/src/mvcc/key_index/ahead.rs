//! A look ahead: what searches for some keys will read is fetched into the caches, for all of them
//! side by side, so that a batch waits for memory about as long as one of them would.
//!
//! Keys go down the tree together, a level at a time. On each level all of them have the tags of
//! their node fetched, then the key that these lead to, then the child that covers them: each step
//! reads what the one before has had fetched. Copies that a change makes are not prepared:
//! that saved nothing.
//!
//! Nothing is kept: changes search for themselves, and a look ahead that goes wrong costs time
//! alone.

use crate::limits::{LOOK_AHEAD_KEY_BYTES_MAX, LOOK_AHEAD_KEYS_MAX};
use crate::mvcc::key_index::node::IndexNode;
use crate::prefetch::fetch;

/// A key on its way down.
#[derive(Clone, Copy)]
struct Place<'i> {
    key: &'i [u8],
    node: &'i IndexNode,
    /// Where its leaf has the key.
    at: usize,
}

/// Fetches what searches for these keys will read; for as many as it has places for.
pub(super) fn look_ahead<'i, 'k: 'i>(root: &'i IndexNode, keys: impl Iterator<Item = &'k [u8]>) {
    let mut places = [Place { key: &[], node: root, at: 0 }; LOOK_AHEAD_KEYS_MAX];
    for Place { node, at, .. } in way_down(&mut places, keys) {
        if let IndexNode::Leaf(entries) = node {
            entries.get(*at).into_iter().for_each(|history| history.fetch_last());
        }
    }
}

/// Leads keys to their leaves; as many as there are places, and none that are long to compare.
fn way_down<'p, 'i, 'k: 'i>(
    places: &'p mut [Place<'i>],
    keys: impl Iterator<Item = &'k [u8]>,
) -> &'p [Place<'i>] {
    let mut len = 0;
    let short = keys.filter(|key| key.len() <= LOOK_AHEAD_KEY_BYTES_MAX);
    for (place, key) in places.iter_mut().zip(short) {
        place.key = key;
        len += 1;
    }
    let places = &mut places[..len];
    while step_down(places) {}
    places
}

/// Goes one level down; false on the lowest.
fn step_down(places: &mut [Place<'_>]) -> bool {
    for place in &*places {
        match place.node {
            IndexNode::Branch(children) => children.fetch_tags(),
            IndexNode::Leaf(entries) => entries.fetch_tags(),
        }
    }
    for place in &*places {
        match place.node {
            IndexNode::Branch(children) => children.fetch_near(place.key),
            IndexNode::Leaf(entries) => entries.fetch_near(place.key),
        }
    }
    for place in &mut *places {
        match place.node {
            IndexNode::Branch(children) => {
                place.at = IndexNode::covering(children, place.key);
                fetch(&children[place.at]);
            }
            IndexNode::Leaf(entries) => {
                place.at = entries.not_below(place.key);
                entries.get(place.at).into_iter().for_each(fetch);
            }
        }
    }
    let mut goes_on = false;
    for place in &mut *places {
        match place.node {
            IndexNode::Branch(children) => {
                place.node = &children[place.at].node;
                fetch(place.node);
                goes_on = true;
            }
            IndexNode::Leaf(entries) => {
                entries.get(place.at).into_iter().for_each(|history| history.fetch_older());
            }
        }
    }
    goes_on
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::key_index::KeyIndex;
    use crate::mvcc::revision::Revision;

    /// Packed keys, and keys too long for that; keys that are there, and others.
    #[test]
    fn every_key_comes_to_its_leaf() {
        for long in [0, 3_000] {
            let key = |number: i64| format!("key/{:04}", number * 7919 % 4_000).into_bytes();
            let mut index = KeyIndex::new();
            for main in 1..=3_000 {
                index.put(&[&key(main)[..], &vec![b'x'; long]].concat(), Revision { main, sub: 0 });
            }
            for first in (0..4_000).step_by(LOOK_AHEAD_KEYS_MAX) {
                let end = first + i64::try_from(LOOK_AHEAD_KEYS_MAX).unwrap();
                let keys: Vec<_> = (first..end).map(key).collect();
                let root = &index.root().node;
                let mut places = [Place { key: &[], node: root, at: 0 }; LOOK_AHEAD_KEYS_MAX];
                let there = way_down(&mut places, keys.iter().map(|key| &key[..]));
                assert_eq!(there.len(), keys.len());
                for (place, key) in there.iter().zip(&keys) {
                    let IndexNode::Leaf(entries) = place.node else {
                        panic!("{key:?} ends above the leaves")
                    };
                    assert!(std::ptr::eq(entries, root.leaf(key)), "{key:?}");
                    assert_eq!(place.at, entries.not_below(key), "{key:?}");
                }
            }
        }
    }

    #[test]
    fn long_keys_are_passed_by() {
        let root = IndexNode::default();
        let keys =
            [LOOK_AHEAD_KEY_BYTES_MAX + 1, LOOK_AHEAD_KEY_BYTES_MAX, 1 << 20].map(|len| vec![b'k'; len]);
        let mut places = [Place { key: &[], node: &root, at: 0 }; LOOK_AHEAD_KEYS_MAX];
        let there = way_down(&mut places, keys.iter().map(|key| &key[..]));
        assert!(there.len() == 1 && there[0].key == keys[1], "{} keys", there.len());
    }

    #[test]
    fn an_empty_index_and_more_keys_than_places_are_looked_at() {
        let mut index = KeyIndex::new();
        let keys = || (0..100_u8).map(|_| &b"key"[..]);
        index.look_ahead(keys());
        index.look_ahead(std::iter::empty());
        index.put(b"key", Revision { main: 2, sub: 0 });
        index.look_ahead(keys());
        index.tombstone(b"key", Revision { main: 3, sub: 0 });
        index.compact_key(b"key", 4);
        index.look_ahead(keys());
    }
}
