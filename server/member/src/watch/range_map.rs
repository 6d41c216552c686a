//! From a key to the groups that watch it.
//!
//! Single keys are in one ordered map. Ranges are in a balanced tree (AVL) in the order of their
//! starts, in which each node knows which range of its subtree ends last, so that subtrees which
//! end too early are left out. Adding, removing and finding one take logarithmic time, whatever
//! happens in between.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use slab::Slab;

use crate::mutants::{self, Mutant};
use crate::watch::range::WatchRange;

/// No node.
const NONE: u32 = u32::MAX;

/// Groups by what they watch.
#[derive(Debug)]
pub(super) struct RangeMap {
    keys: BTreeMap<Box<[u8]>, u32>,
    nodes: Slab<RangeNode>,
    root: u32,
}

#[derive(Debug)]
struct RangeNode {
    range: Rc<WatchRange>,
    group: u32,
    before: u32,
    behind: u32,
    /// The node of this subtree whose range ends last.
    last: u32,
    height: u8,
}

impl Default for RangeMap {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), nodes: Slab::new(), root: NONE }
    }
}

impl RangeMap {
    /// The group that watches exactly this.
    pub(super) fn get(&self, range: &WatchRange) -> Option<u32> {
        if let Some(key) = range.only_key() {
            return self.keys.get(key).copied();
        }
        let mut at = self.root;
        while at != NONE {
            let node = self.node(at);
            at = match range.cmp(&node.range) {
                Ordering::Less => node.before,
                Ordering::Greater => node.behind,
                Ordering::Equal => return Some(node.group),
            };
        }
        None
    }

    /// Adds a group for a range that has none so far.
    pub(super) fn insert(&mut self, range: &Rc<WatchRange>, group: u32) {
        if let Some(key) = range.only_key() {
            self.keys.insert(key.into(), group);
            return;
        }
        let node =
            RangeNode { range: Rc::clone(range), group, before: NONE, behind: NONE, last: NONE, height: 1 };
        let new = u32::try_from(self.nodes.insert(node)).expect("fewer watchers than that");
        self.node_mut(new).last = new;
        self.root = self.insert_below(self.root, new);
    }

    /// Removes a group.
    pub(super) fn remove(&mut self, range: &WatchRange) {
        match range.only_key() {
            Some(key) => drop(self.keys.remove(key)),
            None => self.root = self.remove_below(self.root, range),
        }
    }

    /// Any group.
    pub(super) fn any(&self) -> Option<u32> {
        let key = self.keys.values().next().copied();
        key.or_else(|| (self.root != NONE).then(|| self.node(self.root).group))
    }

    /// Calls `found` with every group that watches `key`, in an order, until it says false. Then
    /// that group's range: from behind it one can go on, whatever was removed meanwhile.
    pub(super) fn each_group(
        &self,
        key: &[u8],
        behind: Option<&WatchRange>,
        mut found: impl FnMut(u32) -> bool,
    ) -> Option<Rc<WatchRange>> {
        if behind.is_none()
            && let Some(group) = self.keys.get(key)
        {
            found(*group); // one more may come: it has no place among the ranges
        }
        let last = self.search(self.root, key, behind, &mut found)?;
        Some(Rc::clone(&self.node(last).range))
    }

    /// The node at which it was to stop.
    fn search(
        &self,
        mut at: u32,
        key: &[u8],
        behind: Option<&WatchRange>,
        found: &mut impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        while at != NONE {
            let node = self.node(at);
            if !self.node(node.last).range.ends_after(key) {
                return None;
            }
            if behind.is_none_or(|behind| *node.range > *behind) {
                let last = self.search(node.before, key, behind, found);
                if last.is_some() || node.range.start() > key {
                    return last;
                }
                if node.range.ends_after(key) && !found(node.group) {
                    return Some(at);
                }
            }
            at = node.behind;
        }
        None
    }

    fn node(&self, at: u32) -> &RangeNode {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut RangeNode {
        &mut self.nodes[at as usize]
    }

    fn height(&self, at: u32) -> u8 {
        if at == NONE { 0 } else { self.node(at).height }
    }

    /// Adds a node to a subtree; its new root.
    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        if self.node(new).range < self.node(at).range {
            let before = self.insert_below(self.node(at).before, new);
            self.node_mut(at).before = before;
        } else {
            let behind = self.insert_below(self.node(at).behind, new);
            self.node_mut(at).behind = behind;
        }
        self.balanced(at)
    }

    /// Removes a range from a subtree; its new root.
    fn remove_below(&mut self, at: u32, range: &WatchRange) -> u32 {
        if at == NONE {
            return NONE;
        }
        let RangeNode { before, behind, .. } = *self.node(at);
        match range.cmp(&self.node(at).range) {
            Ordering::Less => self.node_mut(at).before = self.remove_below(before, range),
            Ordering::Greater => self.node_mut(at).behind = self.remove_below(behind, range),
            Ordering::Equal => {
                self.nodes.remove(at as usize);
                if behind == NONE {
                    return before;
                }
                let (first, rest) = self.without_first(behind);
                let node = self.node_mut(first);
                (node.before, node.behind) = (before, rest);
                return self.balanced(first);
            }
        }
        self.balanced(at)
    }

    /// Takes the first node out of a subtree; it, and the new root.
    fn without_first(&mut self, at: u32) -> (u32, u32) {
        let RangeNode { before, behind, .. } = *self.node(at);
        if before == NONE {
            return (at, behind);
        }
        let (first, rest) = self.without_first(before);
        self.node_mut(at).before = rest;
        (first, self.balanced(at))
    }

    /// Makes a subtree whose sides have changed by one node at most balanced again; its new root.
    fn balanced(&mut self, at: u32) -> u32 {
        let RangeNode { before, behind, .. } = *self.node(at);
        let (left, right) = (self.height(before), self.height(behind));
        if left > right + 1 {
            let RangeNode { before: outer, behind: inner, .. } = *self.node(before);
            if self.height(inner) > self.height(outer) {
                let turned = self.turned_left(before);
                self.node_mut(at).before = turned;
            }
            return self.turned_right(at);
        }
        if right > left + 1 {
            let RangeNode { before: inner, behind: outer, .. } = *self.node(behind);
            if self.height(inner) > self.height(outer) {
                let turned = self.turned_right(behind);
                self.node_mut(at).behind = turned;
            }
            return self.turned_left(at);
        }
        self.refresh(at);
        at
    }

    fn turned_right(&mut self, at: u32) -> u32 {
        let top = self.node(at).before;
        self.node_mut(at).before = self.node(top).behind;
        self.refresh(at);
        self.node_mut(top).behind = at;
        self.refresh(top);
        top
    }

    fn turned_left(&mut self, at: u32) -> u32 {
        let top = self.node(at).behind;
        self.node_mut(at).behind = self.node(top).before;
        self.refresh(at);
        self.node_mut(top).before = at;
        self.refresh(top);
        top
    }

    /// Sets what a node knows of its subtree.
    fn refresh(&mut self, at: u32) {
        let RangeNode { before, behind, .. } = *self.node(at);
        let mut last = at;
        for side in [before, behind] {
            if side != NONE && !mutants::is(Mutant::RangeMapEntryLost) {
                let theirs = self.node(side).last;
                if self.node(theirs).range.ends_behind(&self.node(last).range) {
                    last = theirs;
                }
            }
        }
        let height = 1 + self.height(before).max(self.height(behind));
        let node = self.node_mut(at);
        (node.last, node.height) = (last, height);
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

    /// Heights and ends are right everywhere, and no side is more than one higher; the height.
    fn check(map: &RangeMap, at: u32) -> u8 {
        if at == NONE {
            return 0;
        }
        let node = map.node(at);
        let heights = [node.before, node.behind].map(|side| check(map, side));
        assert!(heights[0].abs_diff(heights[1]) <= 1, "{heights:?}");
        assert_eq!(node.height, 1 + heights[0].max(heights[1]));
        for side in [at, node.before, node.behind] {
            let ends = |at: u32| &map.node(at).range;
            assert!(side == NONE || !ends(map.node(side).last).ends_behind(ends(node.last)) || side == at);
        }
        node.height
    }

    #[test]
    fn a_range_added_between_lookups_costs_the_same_however_many_there_are() {
        let mut map = RangeMap::default();
        let range = |number: u32| {
            let key = number.to_be_bytes();
            Rc::new(WatchRange::from_wire(&key, &[&key[..], b"~"].concat()).unwrap())
        };
        for number in 0..100_000 {
            map.insert(&range(number), number);
            let mut found = Vec::new();
            map.each_group(&number.to_be_bytes(), None, |group| {
                found.push(group);
                true
            });
            assert_eq!(found, [number]);
        }
        assert!(check(&map, map.root) <= 20, "sorted input does not make it deep");
        (0..100_000).for_each(|number| map.remove(&range(number)));
        assert_eq!((map.root, map.nodes.len()), (NONE, 0));
    }

    #[test]
    fn finds_what_a_walk_over_all_ranges_finds() {
        let mut random = Random::new(5);
        let mut map = RangeMap::default();
        let mut model: Vec<(Rc<WatchRange>, u32)> = Vec::new();
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
            check(&map, map.root);
            for _ in 0..4 {
                let key = key(&mut random);
                let mut found = Vec::new();
                let mut behind = None;
                loop {
                    let pause = random.one_in(2);
                    behind = map.each_group(&key, behind.as_deref(), |group| {
                        found.push(group);
                        !pause
                    });
                    if behind.is_none() {
                        break;
                    }
                }
                found.sort_unstable();
                let mut expected: Vec<_> =
                    model.iter().filter(|(range, _)| range.contains(&key)).map(|(_, group)| *group).collect();
                expected.sort_unstable();
                assert_eq!(found, expected, "{key:?}");
            }
        }
    }
}
