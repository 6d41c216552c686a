//! Shares of the index beside what they were when they were made.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;

use crate::mvcc::key_index::node_box::counted::nodes as nodes_of_this_thread;
use crate::mvcc::key_index::{IndexRoot, KeyIndex, SharedIndex};
use crate::mvcc::revision::Revision;
use crate::pauses::Pauses;
use crate::random::Random;

/// Keys and when they were put last.
type Model = BTreeMap<Vec<u8>, i64>;

/// Miri takes a thousand times as long.
const STEPS: usize = if cfg!(miri) { 60 } else { 3_000 };

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:05}").into_bytes()
}

fn contents(root: &IndexRoot) -> Model {
    root.entries().map(|(key, history)| (key.to_vec(), history.newest().revision.main)).collect()
}

/// An index beside its model; shares of it beside what it was then.
struct Twin {
    index: KeyIndex,
    model: Model,
    revision: i64,
    held: Vec<(SharedIndex, Model)>,
    /// Changes are shared before they are undone.
    shares_midway: bool,
}

impl Twin {
    fn new() -> Self {
        Self {
            index: KeyIndex::new(),
            model: Model::new(),
            revision: 1,
            held: Vec::new(),
            shares_midway: false,
        }
    }

    fn change(&mut self, random: &mut Random, keys: u64) {
        self.revision += 1;
        let (key, revision) = (key(random.below(keys)), Revision { main: self.revision, sub: 0 });
        let before = self.index.root().history(&key).cloned();
        if self.index.root().history(&key).is_some() && random.one_in(3) {
            self.index.tombstone(&key, revision);
            self.index.compact_key(&key, self.revision);
            self.model.remove(&key);
        } else {
            self.index.put(&key, revision);
            self.model.insert(key.clone(), self.revision);
        }
        if random.one_in(5) {
            // As a read in the middle of a transaction that fails.
            if self.shares_midway && random.one_in(3) && self.held.len() < 20 {
                self.held.push((self.index.share(), self.model.clone()));
            }
            match &before {
                Some(before) => self.model.insert(key.clone(), before.newest().revision.main),
                None => self.model.remove(&key),
            };
            self.index.replace(&key, before);
        }
    }

    fn step(&mut self, random: &mut Random, keys: u64) {
        match random.below(12) {
            0 | 1 => self.held.push((self.index.share(), self.model.clone())),
            2 if !self.held.is_empty() => {
                let at = usize::try_from(random.below(self.held.len() as u64)).unwrap();
                let (share, then) = self.held.swap_remove(at);
                assert!(contents(&share) == then);
            }
            3 if random.one_in(2) => drop(self.index.take_unneeded()),
            3 => self.index.free_unneeded(20),
            _ => self.change(random, keys),
        }
    }

    fn nodes(&self) -> usize {
        self.index.root().nodes()
    }
}

/// Shares end in any order, and what is freed is what none of them has: all of that, when they
/// are looked for.
#[test]
fn a_share_keeps_what_it_has_and_nothing_else_is_kept() {
    for seed in 0..if cfg!(miri) { 3 } else { 40 } {
        let mut random = Random::new(seed);
        let mut twin = Twin { shares_midway: true, ..Twin::new() };
        let keys = [40, 400, 4_000][usize::try_from(seed % 3).unwrap()];
        for _ in 0..STEPS {
            twin.step(&mut random, keys);
        }
        assert!(contents(twin.index.root()) == twin.model);
        for (share, then) in &twin.held {
            assert!(contents(share) == *then);
        }
        // Half of them end with the index, the others later.
        let later = twin.held.split_off(twin.held.len() / 2);
        if random.one_in(2) {
            twin.held.clear();
            drop(later);
            (0..1_000).for_each(|_| twin.index.look_for_unneeded());
            drop(twin.index.take_unneeded());
            assert_eq!(nodes_of_this_thread(), twin.nodes(), "without shares only the tree is there");
            drop(twin);
        } else {
            drop(twin);
            for (share, then) in &later {
                assert!(contents(share) == *then, "shares outlive their index");
            }
            later.into_iter().for_each(|(share, _)| share.free(&mut Pauses::default()));
        }
        assert_eq!(nodes_of_this_thread(), 0, "seed {seed}");
    }
}

/// Each share that is held costs as much as it alone has.
#[test]
fn a_share_that_is_held_long_does_not_keep_what_came_behind_it() {
    let mut twin = Twin::new();
    let mut random = Random::new(1);
    (0..6 * STEPS).for_each(|_| twin.change(&mut random, 4_000));
    drop(twin.index.take_unneeded());
    let long = twin.index.share();
    let nodes = twin.nodes();
    let mut turn = twin.index.share();
    for _ in 0..STEPS {
        (0..10).for_each(|_| twin.change(&mut random, 4_000));
        turn = twin.index.share();
        drop(twin.index.take_unneeded());
        let most = nodes + 2 * twin.nodes() + 200;
        assert!(nodes_of_this_thread() < most, "{} nodes", nodes_of_this_thread());
    }
    drop((long, turn));
    (0..1_000).for_each(|_| twin.index.look_for_unneeded());
    assert!(twin.index.take_unneeded().len() > nodes / 2, "all that changes have replaced since");
    assert_eq!(nodes_of_this_thread(), twin.nodes());
}

#[test]
fn nothing_is_shared_anew_that_has_not_changed() {
    let mut index = KeyIndex::new();
    index.put(b"1", Revision { main: 2, sub: 0 });
    let shares = [index.share(), index.share(), index.share()];
    assert!(shares[0].is(&shares[2]));
    assert_eq!(index.open_shares(), 1);
    index.put(b"1", Revision { main: 3, sub: 0 });
    let newer = index.share();
    assert!(!shares[0].is(&newer));
    drop(shares);
    index.look_for_unneeded();
    assert_eq!(index.open_shares(), 1);
}

/// Readers on other threads hold shares for as long as they like, beside a writer that frees.
#[test]
fn readers_of_other_threads_see_what_was_shared() {
    const KEYS: u64 = STEPS as u64;
    let mut random = Random::new(7);
    let mut index = KeyIndex::new();
    (0..KEYS).for_each(|number| _ = index.put(&key(number), Revision { main: 2, sub: 0 }));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (to_reader, shares) = channel::<(SharedIndex, i64)>();
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for (share, revision) in shares {
                        held.push((share, revision));
                        if held.len() > reader * 9 {
                            let (share, revision) = held.swap_remove(held.len() / 2);
                            let newest = share.entries().map(|(_, history)| history.newest().revision.main);
                            assert_eq!(newest.max(), Some(revision));
                            assert_eq!(share.len(), KEYS);
                        }
                    }
                });
                to_reader
            })
            .collect();
        for main in 3..i64::try_from(STEPS / 2).unwrap() {
            (0..1 + random.below(20)).for_each(|sub| {
                let revision = Revision { main, sub: i64::try_from(sub).unwrap() };
                index.put(&key(random.below(KEYS)), revision);
            });
            for reader in &readers {
                reader.send((index.share(), main)).unwrap();
            }
            if main % 2 == 0 {
                drop(index.take_unneeded());
            } else {
                index.free_unneeded(1_000);
            }
        }
    });
}

/// Nodes that are gone have children that may be freed: to show what holds them must not look.
#[test]
fn nothing_that_is_gone_is_looked_at_to_be_shown() {
    let mut twin = Twin::new();
    let mut random = Random::new(2);
    (0..300).for_each(|_| twin.change(&mut random, 400));
    let share = twin.index.share();
    (0..300).for_each(|_| twin.change(&mut random, 400));
    drop(share);
    let other = twin.index.share();
    (0..10).for_each(|_| twin.index.look_for_unneeded());
    let unneeded = twin.index.take_unneeded();
    assert!(unneeded.len() > 3);
    let shown = format!("{:?} {other:?}", twin.index);
    drop((other, twin));
    assert!(format!("{unneeded:?}").contains("Gone") && shown.contains("NodeBox"));
}

/// The memory that many keys lose together takes as long to free as that of one.
#[test]
fn histories_of_many_keys_are_heavy_together() {
    let mut index = KeyIndex::new();
    let mut main = 1;
    for _ in 0..400 {
        for number in 0..60 {
            main += 1;
            index.put(&key(number), Revision { main, sub: 0 });
        }
    }
    let share = index.share();
    drop(index.take_unneeded());
    let pieces = |index: &KeyIndex, number| index.root().history(&key(number)).unwrap().pieces();
    assert!((0..60).all(|number| pieces(&index, number) < 100), "none is heavy by itself");
    (0..60).for_each(|number| index.compact_key(&key(number), main));
    let newer = index.share();
    drop(share);
    (0..100).for_each(|_| index.look_for_unneeded());
    assert!(index.are_many_unneeded());
    drop(index.take_unneeded());
    index.put(&key(1), Revision { main: main + 1, sub: 0 });
    let newest = index.share();
    drop(newer);
    (0..100).for_each(|_| index.look_for_unneeded());
    assert!(!index.are_many_unneeded());
    drop(newest);
}

#[test]
fn so_many_nodes_are_freed_as_the_writer_asks_for() {
    let mut index = KeyIndex::new();
    let put_all = |index: &mut KeyIndex, main| {
        for number in 0..2_000 {
            index.put(&key(number), Revision { main, sub: 0 });
        }
    };
    put_all(&mut index, 1);
    let share = index.share();
    put_all(&mut index, 2);
    drop(share);
    (0..3).for_each(|_| index.look_for_unneeded());
    for wanted in [0, 1, 3, 8, 20] {
        let before = nodes_of_this_thread();
        index.free_unneeded(wanted);
        assert_eq!(before - nodes_of_this_thread(), wanted);
    }
    index.free_unneeded(10_000);
    assert_eq!(nodes_of_this_thread(), index.root().nodes(), "all that nothing needs is freed");
}
