//! The key index against a BTreeMap of complete histories: every kind of read, at every revision, while old roots are
//! held and compactions go on.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;

use revd_engine::mvcc::key_index::{IndexRoot, KeyIndex};
use revd_engine::mvcc::{Direction, KeyMeta, KeyRange, Revision};
use revd_engine::random::Random;

/// All states there were, by revision.
type States = Vec<BTreeMap<Vec<u8>, KeyMeta>>;

fn key(random: &mut Random, keys: u64) -> Vec<u8> {
    let number = random.below(keys);
    let length = 1 + usize::try_from(number % 5).unwrap();
    format!("{number:0length$}").into_bytes()
}

fn put(state: &mut BTreeMap<Vec<u8>, KeyMeta>, key: &[u8], modified: Revision) {
    let before = state.get(key).copied();
    let meta = KeyMeta {
        create_revision: before.map_or(modified.main, |meta| meta.create_revision),
        modified,
        version: before.map_or(1, |meta| meta.version + 1),
    };
    state.insert(key.to_vec(), meta);
}

fn check(root: &IndexRoot, states: &States, at: i64, random: &mut Random, keys: u64) {
    let state = &states[usize::try_from(at).unwrap()];
    let (start, end) = (key(random, keys), key(random, keys));
    let ranges =
        [KeyRange::ALL, KeyRange::One(&start), KeyRange::From(&start), KeyRange::from_wire(&start, &end)];
    for range in ranges {
        let expected: Vec<_> = state.iter().filter(|(key, _)| range.contains(key)).collect();
        let found: Vec<_> = root.scan(range, at, Direction::Forward).collect();
        assert_eq!(found.len(), expected.len(), "{range:?} at {at}");
        assert!(
            found
                .iter()
                .zip(&expected)
                .all(|(found, expected)| (found.0, &found.1) == (&expected.0[..], expected.1))
        );
        let mut reverse: Vec<_> = root.scan(range, at, Direction::Reverse).collect();
        reverse.reverse();
        assert_eq!(reverse, found, "{range:?} at {at} backwards");
        if at + 1 == i64::try_from(states.len()).unwrap() {
            assert_eq!(root.live_count(range), expected.len() as u64, "count of {range:?}");
        }
    }
    assert_eq!(root.get(&start, at), state.get(&start).copied());
}

#[test]
fn the_index_equals_its_twin() {
    // From keys that all fit one leaf to a tree of several levels.
    for (seed, keys) in [(1_u64, 10), (2, 200), (3, 5_000), (4, 5_000)] {
        let mut random = Random::new(seed);
        let mut index = KeyIndex::new();
        let mut states: States = vec![BTreeMap::new(); 2];
        let mut held: Vec<(IndexRoot, usize)> = Vec::new();
        let mut compacted = 1;
        for main in 2..3_000_i64 {
            let mut state = states.last().unwrap().clone();
            for sub in 0..=i64::try_from(random.below(4)).unwrap() {
                let (key, revision) = (key(&mut random, keys), Revision { main, sub });
                if random.below(3) == 0 {
                    assert_eq!(index.tombstone(&key, revision), state.remove(&key));
                } else {
                    let previous = state.get(&key).copied();
                    put(&mut state, &key, revision);
                    let put = index.put(&key, revision);
                    assert_eq!((put.meta, put.previous), (state[&key], previous));
                }
            }
            states.push(state);
            if random.below(100) == 0 {
                compacted = compacted.max(main - i64::try_from(random.below(50)).unwrap());
                let all: Vec<Vec<u8>> = index.root().entries().map(|(key, _)| key.to_vec()).collect();
                for key in all {
                    index.compact_key(&key, compacted);
                }
            }
            if random.below(200) == 0 {
                held.push((index.root().clone(), states.len()));
            }
            if random.below(20) == 0 {
                let at = compacted
                    + i64::try_from(random.below(u64::try_from(main - compacted + 1).unwrap())).unwrap();
                check(index.root(), &states, at, &mut random, keys);
                check(index.root(), &states, main, &mut random, keys);
            }
        }
        for (root, length) in held {
            let then: States = states[..length].to_vec();
            check(&root, &then, i64::try_from(length).unwrap() - 1, &mut random, keys);
        }
    }
}
