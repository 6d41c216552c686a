//! Packing: the leaves that a transaction writes take no more pages than their cells need.
//!
//! Where many keys are removed from leaves that follow each other, each leaf keeps a page until it
//! is nearly empty. Those leaves are written anyway, so they are filled up from their right
//! neighbours first.

use crate::btree::{Edit, Tree, TreeNode};
use crate::page::{PageKind, PageRef, SLOT, branch_cell};
use crate::{Error, Result};

/// Packs the decoded leaves of a table whose keys are all of one length: no branch becomes longer.
///
/// # Errors
/// When the pages cannot be those of such a table; the transaction must be given up then.
pub fn pack(tree: &mut Tree, edit: &Edit<'_>) -> Result<()> {
    let Some(root) = &mut tree.root else { return Ok(()) };
    pack_below(root, edit)?;
    while root.kind == PageKind::Branch && root.cells.len() == 1 {
        let Some(only) = root.children[0].take() else { return Ok(()) };
        *root = only;
        if tree.stored.depth <= 1 {
            return Err(Error::corrupt("a tree is deeper than its meta slot says"));
        }
        tree.stored.depth -= 1;
    }
    Ok(())
}

fn pack_below(node: &mut TreeNode, edit: &Edit<'_>) -> Result<()> {
    node.children.iter_mut().flatten().try_for_each(|child| pack_below(child, edit))?;
    let mut at = 0;
    while at + 1 < node.children.len() {
        if node.children[at].is_none() || node.children[at + 1].is_none() {
            at += 1;
            continue;
        }
        let separator = node.key(at + 1).ok_or_else(|| edit.malformed())?.to_vec();
        let (left, right) = node.children.split_at_mut(at + 1);
        let (Some(left), Some(right)) = (&mut left[at], &mut right[0]) else { return Ok(()) };
        if left.kind != PageKind::Leaf || right.kind != PageKind::Leaf {
            return Ok(());
        }
        if left.cells.are_sharing() || right.cells.are_sharing() {
            return Err(Error::corrupt(
                "a table whose leaves are packed has some that share beginnings of keys",
            ));
        }
        // Cells that go to the left must belong there, and what is left still below its branch.
        let last = left.cells.len().checked_sub(1).and_then(|last| left.key(last));
        let first = right.key(0).ok_or_else(|| edit.malformed())?;
        if last.is_some_and(|last| last >= &*separator) || first < &*separator {
            return Err(Error::corrupt("leaves that are packed have keys that do not follow each other"));
        }
        if fill(left, right, edit.page_bytes()) {
            let first = right.key(0).ok_or_else(|| edit.malformed())?;
            if first.len() > separator.len() {
                return Err(Error::corrupt("a table whose keys are of one length has a longer one"));
            }
            node.cells.replace(at + 1, &branch_cell(first, PageRef::default()));
            at += 1;
        } else {
            node.cells.remove(at + 1);
            node.children.remove(at + 1);
        }
    }
    Ok(())
}

/// Moves as many cells from the right leaf to the left one as that has room for; false if none is
/// left.
fn fill(left: &mut TreeNode, right: &mut TreeNode, page_bytes: usize) -> bool {
    let mut bytes = left.cells.page_bytes();
    let fits = |at: &usize| {
        bytes += right.cells.cell(*at).len() + SLOT;
        bytes <= page_bytes
    };
    let moved = (0..right.cells.len()).take_while(fits).count();
    if moved == right.cells.len() {
        left.cells.extend(&right.cells);
        return false;
    }
    if moved > 0 {
        let rest = right.cells.split_off(moved);
        left.cells.extend(&right.cells);
        right.cells = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::db::{Db, DbOptions};
    use crate::disk::SimDisk;
    use crate::meta::Table;
    use crate::random::Random;

    const TABLE: Table = Table(0);

    /// Keys are removed here and there from a table that was written in order, in some ranges of
    /// it: what is left is what it was, in as few leaves as it needs there.
    #[test]
    fn leaves_that_lose_keys_are_packed() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut db, mut model) = (open(), BTreeMap::new());
            let mut txn = db.begin().unwrap();
            for number in 0..3_000_u64 {
                let value = vec![b'v'; usize::try_from(random.below(60)).unwrap()];
                txn.put(TABLE, &number.to_be_bytes(), &value).unwrap();
                model.insert(number, value);
            }
            txn.commit().unwrap();
            let full = in_use(&db);
            for _ in 0..10 {
                let from = random.below(3_000);
                let (end, part) = (from + random.below(1_500), 1 + random.below(9));
                let mut txn = db.begin().unwrap();
                for number in from..end {
                    if random.below(10) < part {
                        txn.remove(TABLE, &number.to_be_bytes()).unwrap();
                        model.remove(&number);
                    }
                }
                txn.pack(TABLE).unwrap();
                txn.commit().unwrap();
                let tree = db.snapshot();
                let mut cursor = tree.cursor(TABLE);
                cursor.seek(&[]).unwrap();
                for (number, value) in &model {
                    let found = cursor.next().unwrap();
                    assert_eq!(found, Some((&number.to_be_bytes()[..], &value[..])), "seed {seed}");
                    assert_eq!(tree.get(TABLE, &number.to_be_bytes()).unwrap(), Some(&value[..]));
                }
                assert_eq!(cursor.next().unwrap(), None);
            }
            // All of it at once, as if it was written in order; only branches may be less full.
            let put_all = |db: &mut Db| {
                let mut txn = db.begin().unwrap();
                for (number, value) in &model {
                    txn.put(TABLE, &number.to_be_bytes(), value).unwrap();
                }
                txn.pack(TABLE).unwrap();
                txn.commit().unwrap();
                in_use(db)
            };
            let (packed, new) = (put_all(&mut db), put_all(&mut open()));
            assert!(packed <= new * 5 / 4 + 4, "seed {seed}: {packed} pages of {full}, {new} if new");
        }
    }

    fn open() -> Db {
        Db::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap()
    }

    fn in_use(db: &Db) -> u64 {
        db.sizes().in_use / 512
    }
}
