//! From a key to the groups that watch it.
//!
//! Single keys are in one ordered map, ranges in another, and for lookups in an array in the same order that is
//! read as a balanced tree: the middle is the root, and each place knows which range of its subtree ends last, so that
//! subtrees which end too early are left out. The array is made anew when it is first needed after a change.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::watch::range::WatchRange;

/// Groups by what they watch.
#[derive(Debug, Default)]
pub(super) struct RangeMap {
    keys: BTreeMap<Box<[u8]>, usize>,
    ranges: BTreeMap<Rc<WatchRange>, usize>,
    /// None after a change.
    tree: Option<Vec<Node>>,
}

#[derive(Debug)]
struct Node {
    range: Rc<WatchRange>,
    group: usize,
    /// The range of this subtree that ends last.
    last: Rc<WatchRange>,
}

impl RangeMap {
    /// The group that watches exactly this.
    pub(super) fn get(&self, range: &WatchRange) -> Option<usize> {
        match range.only_key() {
            Some(key) => self.keys.get(key).copied(),
            None => self.ranges.get(range).copied(),
        }
    }

    /// Adds a group for what nobody has watched so far.
    pub(super) fn insert(&mut self, range: &Rc<WatchRange>, group: usize) {
        if let Some(key) = range.only_key() {
            self.keys.insert(key.into(), group);
        } else {
            self.ranges.insert(Rc::clone(range), group);
            self.tree = None;
        }
    }

    /// Removes a group.
    pub(super) fn remove(&mut self, range: &WatchRange) {
        if let Some(key) = range.only_key() {
            self.keys.remove(key);
        } else {
            self.ranges.remove(range);
            self.tree = None;
        }
    }

    /// Calls `found` with every group that watches `key`.
    pub(super) fn each_group(&mut self, key: &[u8], mut found: impl FnMut(usize)) {
        if let Some(group) = self.keys.get(key) {
            found(*group);
        }
        if !self.ranges.is_empty() {
            let tree = self.tree.get_or_insert_with(|| build(&self.ranges));
            search(tree, key, &mut found);
        }
    }
}

fn build(ranges: &BTreeMap<Rc<WatchRange>, usize>) -> Vec<Node> {
    let node = |(range, group): (&Rc<WatchRange>, &usize)| Node {
        range: Rc::clone(range),
        group: *group,
        last: Rc::clone(range),
    };
    let mut tree: Vec<Node> = ranges.iter().map(node).collect();
    set_last(&mut tree);
    tree
}

/// Fills in `last` of every place of a subtree.
fn set_last(tree: &mut [Node]) {
    if tree.is_empty() {
        return;
    }
    let middle = tree.len() / 2;
    let (before, rest) = tree.split_at_mut(middle);
    let Some((root, behind)) = rest.split_first_mut() else { return };
    for side in [before, behind] {
        set_last(side);
        if let Some(top) = side.get(side.len() / 2)
            && top.last.ends_behind(&root.last)
        {
            root.last = Rc::clone(&top.last);
        }
    }
}

fn search(tree: &[Node], key: &[u8], found: &mut impl FnMut(usize)) {
    let middle = tree.len() / 2;
    let Some(root) = tree.get(middle) else { return };
    if !root.last.ends_after(key) {
        return;
    }
    search(&tree[..middle], key, found);
    if root.range.start() <= key {
        if root.range.ends_after(key) {
            found(root.group);
        }
        search(&tree[middle + 1..], key, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::random::Random;

    /// A short key over few letters, so that ranges meet.
    fn key(random: &mut Random) -> Vec<u8> {
        (0..random.below(4)).map(|_| b'a' + u8::try_from(random.below(3)).unwrap()).collect()
    }

    #[test]
    fn finds_what_a_walk_over_all_ranges_finds() {
        let mut random = Random::new(5);
        let mut map = RangeMap::default();
        let mut model: Vec<(Rc<WatchRange>, usize)> = Vec::new();
        for group in 0..3000 {
            if random.below(3) == 0 && !model.is_empty() {
                let (range, _) =
                    model.swap_remove(usize::try_from(random.below(model.len() as u64)).unwrap());
                map.remove(&range);
            }
            let end = if random.below(8) == 0 { vec![0] } else { key(&mut random) };
            let Some(range) = WatchRange::from_wire(&key(&mut random), &end) else { continue };
            match model.iter().find(|(known, _)| **known == range) {
                Some((_, known)) => assert_eq!(map.get(&range), Some(*known)),
                None => {
                    assert_eq!(map.get(&range), None);
                    let range = Rc::new(range);
                    map.insert(&range, group);
                    model.push((range, group));
                }
            }
            for _ in 0..4 {
                let key = key(&mut random);
                let mut found = Vec::new();
                map.each_group(&key, |group| found.push(group));
                found.sort_unstable();
                let mut expected: Vec<_> =
                    model.iter().filter(|(range, _)| range.contains(&key)).map(|(_, group)| *group).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "{key:?}");
            }
        }
    }
}
