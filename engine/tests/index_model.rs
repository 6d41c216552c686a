//! The key index against a BTreeMap of complete histories: every kind of read, at every revision,
//! while old roots are held and compactions go on.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;

use revd_engine::key_parts::KeyParts;
use revd_engine::mvcc::key_history::KeyHistory;
use revd_engine::mvcc::key_index::{IndexRoot, KeyIndex, SharedIndex};
use revd_engine::mvcc::{Created, Direction, KeyMeta, KeyRange, Revision, Sought};
use revd_engine::random::Random;

/// All states there were, by revision.
type States = Vec<State>;
type State = BTreeMap<Vec<u8>, KeyMeta>;

/// So many keys; every eleventh is longer by this.
#[derive(Debug, Clone, Copy)]
struct KeySpace {
    keys: u64,
    long: usize,
}

fn key(random: &mut Random, space: KeySpace) -> Vec<u8> {
    let number = random.below(space.keys);
    let length = 1 + usize::try_from(number % 5).unwrap();
    let long = if number.is_multiple_of(11) { space.long } else { 0 };
    let begin = if random.one_in(2) { "" } else { "a beginning in common/" };
    let key = format!("{begin}{number:0length$}{}", "x".repeat(long)).into_bytes();
    if random.one_in(8) { near(&key, random) } else { key }
}

/// A key that begins like another one, or that begins another one: the next of all, or a part.
fn near(key: &[u8], random: &mut Random) -> Vec<u8> {
    if random.one_in(2) { [key, &[0]].concat() } else { key[..key.len().div_ceil(2)].to_vec() }
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

fn check(root: &IndexRoot, states: &[State], at: i64, random: &mut Random, space: KeySpace) {
    let state = &states[usize::try_from(at).unwrap()];
    let (start, end) = (key(random, space), key(random, space));
    let near = near(&start, random);
    let ranges = [
        KeyRange::ALL,
        KeyRange::One(&start),
        KeyRange::One(&near),
        KeyRange::From(&near),
        KeyRange::from_wire(&start, &end),
    ];
    for range in ranges {
        let expected: Vec<_> = state.iter().filter(|(key, _)| range.contains(key)).collect();
        let found: Vec<_> = root.scan(range, at, Direction::Forward).collect();
        assert_eq!(found.len(), expected.len(), "{range:?} at {at}");
        assert!(
            found
                .iter()
                .zip(&expected)
                .all(|(found, expected)| (found.0.to_vec(), &found.1) == (expected.0.clone(), expected.1))
        );
        let mut reverse: Vec<_> = root.scan(range, at, Direction::Reverse).collect();
        reverse.reverse();
        assert_eq!(reverse, found, "{range:?} at {at} backwards");
        assert_eq!(
            in_steps(root, range, at, random),
            (found, expected.len() as u64),
            "{range:?} at {at} in steps"
        );
        if at + 1 == i64::try_from(states.len()).unwrap() {
            assert_eq!(root.live_count(range), expected.len() as u64, "count of {range:?}");
            check_created(root, range, &expected, random);
        }
    }
    assert_eq!(root.get(&start, at), state.get(&start).copied());
}

/// The first of a range that was created, and the last before some revision.
fn check_created(root: &IndexRoot, range: KeyRange<'_>, keys: &[(&Vec<u8>, &KeyMeta)], random: &mut Random) {
    let first = keys.iter().min_by_key(|(key, meta)| (meta.create_revision, *key));
    let first = first.map(|(key, meta)| (KeyParts::from(&key[..]), **meta));
    assert_eq!(created(root, range, Created::First).0, first, "{range:?}");
    let before = i64::try_from(random.below(3_100)).unwrap();
    let older = keys.iter().map(|(_, meta)| meta.create_revision).filter(|created| *created < before);
    let found = created(root, range, Created::LastBefore(before)).0;
    assert_eq!(found.map(|(_, meta)| meta.create_revision), older.max(), "{range:?} before {before}");
    assert!(found.is_none_or(|(key, meta)| keys.contains(&(&key.to_vec(), &meta))));
}

/// A key by when it was created, and the steps that took.
fn created<'i>(
    root: &'i IndexRoot,
    range: KeyRange<'i>,
    wanted: Created,
) -> (Option<(KeyParts<'i>, KeyMeta)>, usize) {
    let (mut search, mut taken) = (root.created(range, wanted), 0);
    loop {
        let mut steps = 7;
        let found = search.step(&mut steps);
        taken += 7 - steps;
        if let Some(found) = found {
            return (found, taken);
        }
        assert_eq!(steps, 0);
    }
}

/// A waiter that comes to a line, or has become its first, finds that out without a walk of the
/// line, however long it is.
#[test]
fn the_ends_of_a_line_cost_a_few_steps() {
    const WAITERS: i64 = 10_000;
    let mut index = KeyIndex::new();
    // In no order, as the ids of leases are.
    let key =
        |waiter: i64| format!("line/{:08x}", waiter.wrapping_mul(0x9e37_79b9) & 0xffff_ffff).into_bytes();
    let line = KeyRange::Span { start: b"line/", end: b"line0" };
    for before in 0..1_000_i64 {
        index.put(format!("a/{before}").as_bytes(), Revision { main: 2 + before, sub: 0 });
    }
    let (first, mut most) = (2_000, 0);
    let mut look = |index: &KeyIndex, wanted, waiter: Option<i64>| {
        let (found, steps) = created(index.root(), line, wanted);
        assert_eq!(found.map(|(key, _)| key.to_vec()), waiter.map(key), "{wanted:?}");
        most = most.max(steps);
    };
    for waiter in 0..WAITERS {
        let own = first + waiter;
        index.put(&key(waiter), Revision { main: own, sub: 0 });
        look(&index, Created::LastBefore(own), (waiter > 0).then(|| waiter - 1));
        look(&index, Created::First, Some(0));
    }
    for waiter in 0..WAITERS - 1 {
        index.tombstone(&key(waiter), Revision { main: first + WAITERS + waiter, sub: 0 });
        look(&index, Created::LastBefore(first + waiter + 1), None);
        look(&index, Created::First, Some(waiter + 1));
    }
    assert!(most < 400, "{most} steps for one of {WAITERS}");
}

/// A scan and a count, few steps at a time.
fn in_steps<'i>(
    root: &'i IndexRoot,
    range: KeyRange<'i>,
    at: i64,
    random: &mut Random,
) -> (Vec<(KeyParts<'i>, KeyMeta)>, u64) {
    let mut few = || usize::try_from(1 + random.below(40)).unwrap();
    let (mut found, mut scan, mut steps) = (Vec::new(), root.scan(range, at, Direction::Forward), few());
    loop {
        match scan.next_within(&mut steps) {
            Sought::Key(key, meta) => found.push((key, meta)),
            Sought::Later => {
                assert_eq!(steps, 0);
                steps = few();
            }
            Sought::End => break,
        }
    }
    let mut counting = root.counting(range, at);
    loop {
        if let Some(count) = counting.step(&mut few()) {
            return (found, count);
        }
    }
}

/// Steps that a scan takes to its end, and a count.
fn steps_taken(root: &IndexRoot, range: KeyRange<'_>, at: i64, direction: Direction) -> (usize, usize) {
    let (mut scanning, mut counting) = (usize::MAX, usize::MAX);
    let mut scan = root.scan(range, at, direction);
    while scan.next_within(&mut scanning) != Sought::End {}
    assert!(root.counting(range, at).step(&mut counting).is_some());
    (usize::MAX - scanning, usize::MAX - counting)
}

#[test]
fn dead_keys_and_old_revisions_cost_what_has_changed_not_what_is_there() {
    let mut index = KeyIndex::new();
    let key = |number: i64| format!("key/{number:06}").into_bytes();
    for number in 0..50_000 {
        index.put(&key(number), Revision { main: number + 2, sub: 0 });
    }
    let filled = 50_001;
    for number in 1..49_999 {
        index.tombstone(&key(number), Revision { main: filled + 1, sub: number });
    }
    for (direction, range) in [
        (Direction::Forward, KeyRange::ALL),
        (Direction::Reverse, KeyRange::ALL),
        (Direction::Forward, KeyRange::Span { start: b"key/000500", end: b"key/040000" }),
        (Direction::Reverse, KeyRange::Span { start: b"key/000500", end: b"key/040000" }),
    ] {
        // Two keys live, the others are dead but not yet compacted.
        let (scan, count) = steps_taken(index.root(), range, filled + 1, direction);
        assert!(scan < 1_000 && count < 1_000, "{scan} and {count} steps for {range:?} {direction:?}");
        // At a revision since which all has changed, each is looked at.
        let (scan, count) = steps_taken(index.root(), range, filled, direction);
        assert!(scan > 30_000 && count > 30_000, "{scan} and {count} steps for {range:?} {direction:?}");
    }
    // Ten changes later a count of the state before looks at the leaves with those, wherever a page
    // begins.
    for number in 1..49_999 {
        let created = Revision { main: number + 2, sub: 0 };
        index.replace(&key(number), Some(KeyHistory::created(created)));
    }
    for number in 0..10 {
        index.put(&key(number * 4_999), Revision { main: filled + 1 + number, sub: 0 });
    }
    for page in [0, 10_000, 25_000, 49_000] {
        let start = key(page);
        let range = KeyRange::From(&start);
        let (_, count) = steps_taken(index.root(), range, filled, Direction::Forward);
        assert!(count < 3_000, "{count} steps");
        assert_eq!(
            root_count(index.root(), range, filled),
            u64::try_from(50_000 - page).unwrap(),
            "from {page} on"
        );
    }
}

fn root_count(root: &IndexRoot, range: KeyRange<'_>, at: i64) -> u64 {
    let mut steps = usize::MAX;
    root.counting(range, at).step(&mut steps).unwrap()
}

#[test]
fn the_index_equals_its_twin() {
    // From keys that all fit one leaf to a tree of several levels; keys too long to be packed.
    let short = |keys| (KeySpace { keys, long: 0 }, 3_000_i64);
    let long = (KeySpace { keys: 400, long: 9_000 }, 600);
    let spaces = [short(10), short(200), short(5_000), short(5_000), long];
    for (seed, (space, revisions)) in (1_u64..).zip(spaces) {
        let mut random = Random::new(seed);
        let mut index = KeyIndex::new();
        let mut states: States = vec![BTreeMap::new(); 2];
        let mut held: Vec<(SharedIndex, usize)> = Vec::new();
        let mut compacted = 1;
        for main in 2..revisions {
            let mut state = states.last().unwrap().clone();
            for sub in 0..=i64::try_from(random.below(4)).unwrap() {
                let (key, revision) = (key(&mut random, space), Revision { main, sub });
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
            if random.below(60) == 0 {
                held.push((index.share(), states.len()));
            }
            if random.below(70) == 0 && !held.is_empty() {
                let at = usize::try_from(random.below(held.len() as u64)).unwrap();
                let (root, length) = held.swap_remove(at);
                if random.below(4) == 0 {
                    let at = i64::try_from(length).unwrap() - 1;
                    check(&root, &states[..length], at, &mut random, space);
                }
                drop(root);
                drop(index.take_unneeded());
            }
            if random.below(20) == 0 {
                let at = compacted
                    + i64::try_from(random.below(u64::try_from(main - compacted + 1).unwrap())).unwrap();
                check(index.root(), &states, at, &mut random, space);
                check(index.root(), &states, main, &mut random, space);
            }
        }
        for (root, length) in held {
            check(&root, &states[..length], i64::try_from(length).unwrap() - 1, &mut random, space);
        }
    }
}

/// The earlier states of a key, if there are several, lie elsewhere in memory: a walk that has to
/// look there is given fewer keys.
#[test]
fn looking_back_costs_more_than_a_look() {
    let used = |puts: i64, at| {
        let mut index = KeyIndex::new();
        for main in 1..=puts * 1_000 {
            index.put(&(main % 1_000).to_be_bytes(), Revision { main, sub: 0 });
        }
        let (mut steps, mut scanned, mut scan) =
            (usize::MAX, usize::MAX, index.root().scan(KeyRange::ALL, at, Direction::Forward));
        assert_eq!(index.root().counting(KeyRange::ALL, at).step(&mut steps), Some(1_000));
        while scan.next_within(&mut scanned) != Sought::End {}
        (usize::MAX - steps, usize::MAX - scanned)
    };
    let ((count, scan), (count_now, scan_now)) = (used(3, 1_000), used(3, 3_000));
    assert!(count > 4_000 && scan > 4_000, "{count}, {scan}");
    assert!(count_now == 0 && scan_now < 1_500, "{count_now}, {scan_now}");
    // The put before the last one lies beside it.
    let (count, scan) = used(2, 1_000);
    assert!(count < 1_500 && scan < 1_500, "{count}, {scan}");
}
