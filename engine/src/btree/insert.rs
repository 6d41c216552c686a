//! Putting keys: copy the path, change the leaf, divide what has become too large.
//!
//! Puts come in the order of their keys, one or many: those of one leaf change it together, and the
//! way to it is gone once.

use std::ops::Range;

use crate::Result;
use crate::btree::{Edit, Tree, TreeNode};
use crate::limits::DEPTH_MAX;
use crate::page::{Cells, PageKind, PageRef, branch_cell, cell_key};

/// Puts leaf cells, whose keys ascend, each in the place of the one that is there; returns how many
/// of the keys are new.
///
/// # Errors
/// When a page on the way is damaged; the transaction must be given up then.
pub fn insert(tree: &mut Tree, edit: &mut Edit<'_>, puts: &Cells) -> Result<u64> {
    if puts.is_empty() {
        return Ok(0);
    }
    let mut root = tree.open(edit)?;
    let inserting = Inserting { puts, shares: tree.are_leaves_sharing };
    let (new, mut rights) = inserting.below(&mut root, edit, 0..puts.len(), tree.stored.depth)?;
    while !rights.is_empty() {
        if tree.stored.depth as usize >= DEPTH_MAX {
            return Err(crate::Error::corrupt("a tree is deeper than any tree can be"));
        }
        let mut above = Box::new(TreeNode::branch());
        above.push_child(&[], root);
        rights.into_iter().for_each(|(separator, right)| above.push_child(&separator, right));
        rights = divide(&mut above, edit, Changed::Last);
        root = above;
        tree.stored.depth += 1;
    }
    tree.stored.len += new;
    assert!(!root.cells.is_empty() && tree.stored.depth > 0, "a key was put, but its tree is empty");
    tree.root = Some(root);
    Ok(new)
}

/// A node's new right neighbour and the smallest key in it.
type Right = (Vec<u8>, Box<TreeNode>);

/// The cells of a node that make it grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changed {
    /// The first one.
    First,
    /// Mostly new ones behind all others.
    Last,
    /// Any.
    Some,
}

struct Inserting<'p> {
    /// Cells of leaves, whose keys ascend.
    puts: &'p Cells,
    /// Leaves have once what all of their keys begin with.
    shares: bool,
}

impl Inserting<'_> {
    /// Puts some of the cells below a node: how many are new, and the node's right neighbours.
    fn below(
        &self,
        node: &mut TreeNode,
        edit: &mut Edit<'_>,
        puts: Range<usize>,
        levels: u32,
    ) -> Result<(u64, Vec<Right>)> {
        if node.kind == PageKind::Leaf {
            let (new, changed) = self.put_into_leaf(node, edit, puts)?;
            return Ok((new, divide(node, edit, changed)));
        }
        if levels <= 1 {
            return Err(crate::Error::corrupt("a tree is deeper than its meta slot says"));
        }
        let (mut new, mut changed, mut from) = (0, None, puts.start);
        while from < puts.end {
            let (at, _) = node.find(self.key(from)).ok_or_else(|| edit.malformed())?;
            let to = self.before(node, at + 1, from..puts.end, edit)?;
            let mut child = node.take_child(at, edit)?;
            let (more, neighbours) = self.below(&mut child, edit, from..to, levels - 1)?;
            node.children[at] = Some(child);
            (new, from) = (new + more, to);
            if !neighbours.is_empty() {
                let is_last = at + 1 == node.cells.len() && changed.is_none();
                changed = Some(if is_last { Changed::Last } else { Changed::Some });
                adopt(node, edit, at, neighbours)?;
            }
        }
        Ok((new, divide(node, edit, changed.unwrap_or(Changed::Some))))
    }

    /// Puts some of the cells into their leaf; how many are new.
    fn put_into_leaf(
        &self,
        leaf: &mut TreeNode,
        edit: &mut Edit<'_>,
        puts: Range<usize>,
    ) -> Result<(u64, Changed)> {
        let (first, is_there) = leaf.find(self.key(puts.start)).ok_or_else(|| edit.malformed())?;
        let (is_alone, behind) = (puts.len() == 1, self.behind(leaf, puts.clone()));
        // The last cell is like one behind it, if it alone changes.
        let is_last = is_there && is_alone && first + 1 == leaf.cells.len();
        let mut new = 0;
        if is_alone {
            let cell = self.puts.cell(puts.start);
            if is_there {
                edit.free_value(leaf.cells.cell(first))?;
                leaf.cells.replace(first, cell);
            } else {
                leaf.cells.insert(first, cell);
                new = 1;
            }
        } else {
            (new, leaf.cells) = self.merged(leaf, first, edit, puts)?;
        }
        if self.shares {
            leaf.cells.share();
        }
        let changed = match first {
            _ if is_last || 2 * behind > new => Changed::Last,
            0 => Changed::First,
            _ => Changed::Some,
        };
        Ok((new, changed))
    }

    /// How many of the puts come to lie behind all cells of their leaf.
    fn behind(&self, leaf: &TreeNode, puts: Range<usize>) -> u64 {
        let last = leaf.cells.len().checked_sub(1).and_then(|last| leaf.key(last));
        puts.rev().take_while(|at| last.is_none_or(|last| self.key(*at) > last)).count() as u64
    }

    /// The cells of a leaf with some others, the first of which comes to lie at `first`; how many
    /// are new.
    fn merged(
        &self,
        leaf: &TreeNode,
        first: usize,
        edit: &mut Edit<'_>,
        puts: Range<usize>,
    ) -> Result<(u64, Cells)> {
        let mut merged = Cells::like(&leaf.cells);
        merged.push_all(&leaf.cells, 0..first);
        let (mut new, mut at) = (0, first);
        for put in puts {
            let (key, from) = (self.key(put), at);
            while at < leaf.cells.len() && leaf.key(at).ok_or_else(|| edit.malformed())? < key {
                at += 1;
            }
            merged.push_all(&leaf.cells, from..at);
            if at < leaf.cells.len() && leaf.key(at) == Some(key) {
                edit.free_value(leaf.cells.cell(at))?;
                at += 1;
            } else {
                new += 1;
            }
            merged.push(&[self.puts.cell(put)]);
        }
        merged.push_all(&leaf.cells, at..leaf.cells.len());
        Ok((new, merged))
    }

    fn key(&self, at: usize) -> &[u8] {
        cell_key(PageKind::Leaf, self.puts.cell(at)).expect("a cell of our own")
    }

    /// Where those of the puts end that belong before the child at `next`; the first one does.
    fn before(&self, node: &TreeNode, next: usize, puts: Range<usize>, edit: &Edit<'_>) -> Result<usize> {
        if next == node.cells.len() {
            return Ok(puts.end);
        }
        let bound = node.key(next).ok_or_else(|| edit.malformed())?;
        let Range { start, end } = puts;
        Ok((start + 1..end).find(|at| self.key(*at) >= bound).unwrap_or(end))
    }
}

/// Takes right neighbours of the child at `at` as children behind it.
fn adopt(node: &mut TreeNode, edit: &Edit<'_>, at: usize, rights: Vec<Right>) -> Result<()> {
    let next = (at + 1 < node.cells.len()).then(|| node.key(at + 1).map(<[u8]>::to_vec));
    let mut before = (at > 0).then(|| node.key(at).map(<[u8]>::to_vec));
    for (place, (separator, right)) in (at + 1..).zip(rights) {
        let is_behind = before.is_none_or(|before| before.is_some_and(|before| before < separator));
        let is_before = next.as_ref().is_none_or(|next| next.as_ref().is_some_and(|next| separator < *next));
        if !is_behind || !is_before {
            return Err(edit.misplaced());
        }
        node.cells.insert(place, &branch_cell(&separator, PageRef::default()));
        node.children.insert(place, Some(right));
        before = Some(Some(separator));
    }
    Ok(())
}

/// Divides a node that is too large for a page; its new right neighbours.
fn divide(node: &mut TreeNode, edit: &Edit<'_>, changed: Changed) -> Vec<Right> {
    let mut rights = Vec::new();
    if node.cells.page_bytes() <= edit.page_bytes() {
        return rights;
    }
    let is_leaf = node.kind == PageKind::Leaf;
    // The others fit by themselves, and take much more room with this key among them.
    let first_apart = changed == Changed::First && is_leaf && node.cells.first_breaks_begin();
    // Growing at the right end means keys come in order: leave the left node full rather than half
    // empty.
    let leaves_full = changed == Changed::Last;
    for cells in node.cells.divide(edit.page_bytes(), leaves_full, first_apart) {
        rights.push((Vec::new(), Box::new(TreeNode { kind: node.kind, cells, children: Vec::new() })));
    }
    let mut children = std::mem::take(&mut node.children);
    for (separator, right) in rights.iter_mut().rev() {
        *separator = right.key(0).expect("a cell of our own").to_vec();
        if !is_leaf {
            right.children = children.split_off(children.len() - right.cells.len());
        }
        let bytes = right.cells.page_bytes();
        assert!(bytes <= edit.page_bytes(), "a page was divided, and a part of {bytes} bytes is too large");
    }
    node.children = children;
    let bytes = node.cells.page_bytes();
    assert!(bytes <= edit.page_bytes(), "a page was divided, and {bytes} bytes of it are too many still");
    rights
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::check::check;
    use crate::db::{Db, DbOptions};
    use crate::disk::SimDisk;
    use crate::meta::Table;
    use crate::random::Random;
    use crate::txn::SortedPuts;

    const TABLE: Table = Table(0);

    fn open(page_bytes: u32) -> Db {
        Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: page_bytes }).unwrap()
    }

    fn assert_has(db: &Db, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
        check(db).unwrap();
        let snapshot = db.snapshot();
        assert_eq!(snapshot.len(TABLE), model.len() as u64);
        let (mut cursor, mut expected) = (snapshot.cursor(TABLE), model.iter());
        cursor.seek(&[]).unwrap();
        while let Some((key, value)) = cursor.next_parts().unwrap() {
            let (expected_key, expected_value) = expected.next().unwrap();
            assert_eq!((&key.to_vec(), value), (expected_key, &expected_value[..]));
        }
        assert!(expected.next().is_none());
    }

    /// Keys that begin alike in the one or the other way.
    fn key(random: &mut Random, number: u64) -> Vec<u8> {
        let prefix = if number.is_multiple_of(3) { "/registry/pods/default/" } else { "/registry/" };
        let long = if random.one_in(40) { "x".repeat(10) } else { String::new() };
        format!("{prefix}{number:05}{long}").into_bytes()
    }

    /// Keys come and are replaced in groups, some of them many pages in one place, and go one by
    /// one: what is there is what would be if they had come one by one too.
    #[test]
    fn puts_of_one_leaf_change_it_together() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut db = open(random.pick(&[512, 1024]));
            let (mut model, shares) = (BTreeMap::new(), random.one_in(2));
            for _ in 0..12 {
                let (from, span) = (random.below(3_000), 1 + random.below(1_000));
                let one_in = random.pick(&[1, 2, 20]);
                let group: BTreeMap<_, _> = (from..from + span)
                    .filter(|_| random.below(one_in) == 0)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|number| {
                        let most = random.pick(&[1, 40, 40, 40, 700]);
                        let value = vec![random.byte(); usize::try_from(random.below(most)).unwrap()];
                        (key(&mut random, number), value)
                    })
                    .collect();
                let mut txn = db.begin().unwrap();
                if shares {
                    txn.share_beginnings(TABLE);
                }
                let mut puts = SortedPuts::new(TABLE);
                group.iter().for_each(|(key, value)| puts.put(&mut txn, key, value).unwrap());
                let new = group.keys().filter(|key| !model.contains_key(*key)).count() as u64;
                assert_eq!(puts.finish(&mut txn).unwrap(), new);
                model.extend(group);
                let gone: Vec<_> = model.keys().filter(|_| random.one_in(9)).cloned().collect();
                for key in gone {
                    assert!(txn.remove(TABLE, &key).unwrap());
                    model.remove(&key);
                }
                txn.commit().unwrap();
                assert_has(&db, &model);
            }
        }
    }

    fn in_use(db: &Db) -> u64 {
        db.sizes().in_use
    }

    /// As pages of keys that come in order one by one are, also where each group changes some of
    /// those before.
    #[test]
    fn pages_of_keys_that_come_in_order_are_full() {
        let entry = |number: u64| (number.to_be_bytes(), [7; 60]);
        let [mut one_by_one, mut together] = [512, 512].map(open);
        let mut end = 0_u64;
        for count in [1_000, 2, 1_000, 20, 20, 20, 20, 20, 20, 20, 20, 20, 300] {
            let part = end.saturating_sub(30)..end + count;
            end += count;
            let mut txn = one_by_one.begin().unwrap();
            for (key, value) in part.clone().map(entry) {
                txn.put(TABLE, &key, &value).unwrap();
            }
            txn.commit().unwrap();
            let mut txn = together.begin().unwrap();
            let mut puts = SortedPuts::new(TABLE);
            part.map(entry).for_each(|(key, value)| puts.put(&mut txn, &key, &value).unwrap());
            puts.finish(&mut txn).unwrap();
            txn.commit().unwrap();
        }
        let (alone, together) = (in_use(&one_by_one), in_use(&together));
        assert!(together <= alone, "{together} bytes in use, {alone} when they came one by one");
    }

    /// A key that begins in another way comes to a leaf of many that begin alike: it gets a page of
    /// its own, and theirs stay as full as they were.
    #[test]
    fn a_leaf_that_loses_its_beginning_makes_few_pages() {
        for odd in [b"zzz", b"aaa"] {
            let alike = |number: u64| [&[b'k'; 100][..], &number.to_be_bytes()].concat();
            let mut db = open(1024);
            for group in [vec![], vec![odd.to_vec()]] {
                let mut group: Vec<_> = (0..40).map(alike).chain(group).collect();
                group.sort();
                let mut txn = db.begin().unwrap();
                txn.share_beginnings(TABLE);
                let mut puts = SortedPuts::new(TABLE);
                group.iter().for_each(|key| puts.put(&mut txn, key, b"v").unwrap());
                puts.finish(&mut txn).unwrap();
                txn.commit().unwrap();
            }
            // A branch, and no more leaves than puts one by one make.
            let pages = check(&db).unwrap().reachable;
            assert!(pages <= 4, "{pages} pages in use");
        }
    }

    /// Many that come into the middle of a leaf take no more pages than they need.
    #[test]
    fn many_in_the_middle_of_a_leaf_make_full_pages() {
        let mut db = open(512);
        for numbers in [vec![0_u64, 1_000], (1..300).collect()] {
            let mut txn = db.begin().unwrap();
            let mut puts = SortedPuts::new(TABLE);
            numbers.iter().for_each(|number| puts.put(&mut txn, &number.to_be_bytes(), &[1; 30]).unwrap());
            puts.finish(&mut txn).unwrap();
            txn.commit().unwrap();
        }
        // A cell takes 46 B and 10 fill a page.
        let pages = in_use(&db) / 512;
        assert!(pages < 30 * 13 / 10 + 20, "{pages} pages");
    }

    /// Long values that are placed and never put give their room back.
    #[test]
    fn a_transaction_that_is_dropped_leaves_nothing() {
        let mut db = open(512);
        let before = in_use(&db);
        let mut txn = db.begin().unwrap();
        let mut puts = SortedPuts::new(TABLE);
        (0..10_u64).for_each(|number| puts.put(&mut txn, &number.to_be_bytes(), &[1; 3_000]).unwrap());
        drop((puts, txn));
        assert_eq!(in_use(&db), before);
        check(&db).unwrap();
    }
}
