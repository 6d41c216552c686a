//! Leaves that a cursor comes to soon, fetched before it is there: a fault for each would wait for
//! the disk as often as there are leaves.

use crate::limits::{LEAVES_AHEAD_MAX, LEAVES_AHEAD_MIN, LEAVES_AHEAD_REQUESTS_MAX};
use crate::page::{PageId, PageView, Pages};

/// How far a cursor has asked for leaves. A place that it was led to by a key says nothing about
/// what is read next, so it begins with the second leaf in order.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Leaves to ask for next; 0 before any was entered in order.
    window: usize,
    /// The branch above the leaves, and its cell before which all were asked for.
    asked: Option<(PageId, usize)>,
}

impl ReadAhead {
    /// The cursor was led to a place.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// The cursor enters the leaf under a cell of a branch, in order.
    pub(super) fn enter(&mut self, pages: &Pages, branch: &PageView<'_>, cell: usize) {
        let asked = self.asked.filter(|(id, _)| *id == branch.id()).map_or(cell, |(_, asked)| asked);
        // Asked for when half of the last ones are left, so that the disk is never waited for at
        // once.
        if asked > cell + self.window / 2 {
            return;
        }
        self.window = (self.window * 2).clamp(LEAVES_AHEAD_MIN, LEAVES_AHEAD_MAX);
        let end = asked.saturating_add(self.window).min(branch.len());
        self.asked = Some((branch.id(), ask(pages, branch, asked..end)));
    }
}

/// Neighbours in the file are one request; where there are few, a bounded number of requests is
/// made. Returns the cell before which all were asked for. One that cannot be read is an error when
/// the cursor comes to it.
fn ask(pages: &Pages, branch: &PageView<'_>, cells: std::ops::Range<usize>) -> usize {
    let (mut run, mut requests, asked): (Option<(PageId, u64)>, _, _) = (None, 0, cells.end);
    for cell in cells {
        let Some(child) = branch.branch_cell(cell).map(|cell| cell.child.id) else { break };
        run = match run {
            Some((first, count)) if first.0.checked_add(count) == Some(child.0) => Some((first, count + 1)),
            before => {
                if let Some((first, count)) = before {
                    pages.will_need(first, count);
                    requests += 1;
                }
                if requests == LEAVES_AHEAD_REQUESTS_MAX {
                    return cell;
                }
                Some((child, 1))
            }
        };
    }
    if let Some((first, count)) = run {
        pages.will_need(first, count);
    }
    asked
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use crate::Result;
    use crate::db::{Db, DbOptions};
    use crate::disk::{Disk, Map, MapBytes, SimDisk};
    use crate::limits::{LEAVES_AHEAD_MAX, LEAVES_AHEAD_REQUESTS_MAX};
    use crate::meta::Table;
    use crate::random::Random;
    use crate::txn::WriteTxn;

    const TABLE: Table = Table(0);
    const PAGE: usize = 512;

    /// Ranges of the file that were asked for ahead.
    #[derive(Clone, Default)]
    struct Asked(Arc<Mutex<Vec<Range<usize>>>>);

    impl Asked {
        /// Those since the last call.
        fn take(&self) -> Vec<Range<usize>> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    /// A disk that notes what it is asked for ahead.
    #[derive(Default)]
    struct NotingDisk {
        disk: SimDisk,
        asked: Asked,
    }

    struct NotingMap {
        map: Map,
        asked: Asked,
    }

    impl AsRef<[u8]> for NotingMap {
        fn as_ref(&self) -> &[u8] {
            self.map.bytes()
        }
    }

    impl MapBytes for NotingMap {
        fn will_need(&self, bytes: Range<usize>) {
            self.asked.0.lock().unwrap().push(bytes);
        }
    }

    impl Disk for NotingDisk {
        fn file_len(&self) -> Result<u64> {
            self.disk.file_len()
        }

        fn set_len(&self, len: u64) -> Result<()> {
            self.disk.set_len(len)
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.disk.write_at(offset, bytes)
        }

        fn sync(&self) -> Result<()> {
            self.disk.sync()
        }

        fn map(&self) -> Result<Map> {
            Ok(Map::new(Arc::new(NotingMap { map: self.disk.map()?, asked: self.asked.clone() })))
        }
    }

    /// An empty tree, and what is asked of its disk.
    fn open() -> (Db, Asked) {
        let disk = NotingDisk::default();
        let asked = disk.asked.clone();
        let options = DbOptions { page_bytes_if_new: u32::try_from(PAGE).unwrap() };
        (Db::open(Arc::new(disk), options).unwrap(), asked)
    }

    /// A short value for each of these keys.
    fn fill(txn: &mut WriteTxn<'_>, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            txn.put(TABLE, &number.to_be_bytes(), &[b'v'; 40]).unwrap();
        }
    }

    /// Pages are read by a reader in order a second time, when their checksums are known: it asks
    /// for every leaf but the first before it is there, in far fewer requests than there are
    /// leaves. A place that a key led to is no order.
    #[test]
    fn a_reader_in_order_asks_for_leaves_before_it_comes_to_them() {
        let (mut db, asked) = open();
        let mut txn = db.begin().unwrap();
        fill(&mut txn, 0..5_000);
        let tree = txn.commit().unwrap();
        let base = tree.parts().pages.map.bytes().as_ptr().addr();
        let read = || {
            let mut cursor = tree.cursor(TABLE);
            cursor.seek(&[]).unwrap();
            let (mut leaves, mut requests) = (Vec::new(), Vec::new());
            while let Some((key, _)) = cursor.next().unwrap() {
                requests.append(&mut asked.take());
                let leaf = (key.as_ptr().addr() - base) / PAGE;
                if leaves.last() != Some(&leaf) {
                    let is_asked = |at: &Range<usize>| at.contains(&(leaf * PAGE));
                    assert!(leaves.is_empty() || requests.iter().any(is_asked), "leaf {leaf}");
                    leaves.push(leaf);
                }
            }
            (leaves.len(), requests)
        };
        read();
        let (leaves, requests) = read();
        assert!(leaves > 20 * LEAVES_AHEAD_MAX / 2, "{leaves} leaves");
        assert!(requests.len() < leaves / 3, "{} requests for {leaves} leaves", requests.len());
        let bytes: usize = requests.iter().map(Range::len).sum();
        assert_eq!(bytes, (leaves - 1) * PAGE, "each leaf is asked for once");
        for number in 0..5_000_u64 {
            let mut cursor = tree.cursor(TABLE);
            cursor.seek(&number.to_be_bytes()).unwrap();
            tree.get(TABLE, &number.to_be_bytes()).unwrap();
        }
        assert_eq!(asked.take(), [], "places that keys led to");
    }

    /// Updates in no order leave hardly a leaf beside its neighbour: a turn asks for few, and all
    /// are asked for before the reader is there.
    #[test]
    fn leaves_that_lie_apart_are_asked_for_a_few_at_a_time() {
        let (mut db, asked) = open();
        let (mut random, mut numbers) = (Random::new(3), (0..3_000_u64).collect::<Vec<_>>());
        (1..numbers.len()).for_each(|at| {
            numbers.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
        });
        for some in [&(0..3_000).collect::<Vec<_>>()[..]].into_iter().chain(numbers[..1_500].chunks(3)) {
            let mut txn = db.begin().unwrap();
            fill(&mut txn, some.iter().copied());
            txn.commit().unwrap();
        }
        let tree = db.snapshot();
        let base = tree.parts().pages.map.bytes().as_ptr().addr();
        let read = || {
            let mut cursor = tree.cursor(TABLE);
            cursor.seek(&[]).unwrap();
            let (mut most, mut ahead, mut last, mut requests) = (0, 0, None, Vec::new());
            while let Some((key, _)) = cursor.next().unwrap() {
                let mut some = asked.take();
                most = most.max(some.len());
                requests.append(&mut some);
                let leaf = (key.as_ptr().addr() - base) / PAGE;
                if last.replace(leaf) != Some(leaf) {
                    ahead += usize::from(requests.iter().any(|at| at.contains(&(leaf * PAGE))));
                }
            }
            let bytes: usize = requests.iter().map(Range::len).sum();
            (most, ahead * PAGE == bytes, requests.len(), ahead)
        };
        read();
        let (most, is_each_once, requests, leaves) = read();
        assert!(requests * 4 > leaves * 3, "{requests} requests for {leaves} leaves: they lie together");
        assert!(leaves > 10 * LEAVES_AHEAD_MAX && is_each_once, "{leaves} leaves were asked for");
        assert_eq!(most, LEAVES_AHEAD_REQUESTS_MAX);
    }

    /// A key's path is asked for page by page, once; a value of many pages as one, at each read.
    #[test]
    fn a_point_read_asks_for_its_path_and_for_a_long_value() {
        let (mut db, asked) = open();
        let mut txn = db.begin().unwrap();
        fill(&mut txn, 0..1_000);
        txn.put(TABLE, &500_u64.to_be_bytes(), &[b'l'; 10 * PAGE]).unwrap();
        let tree = txn.commit().unwrap();
        asked.take();
        tree.get(TABLE, &500_u64.to_be_bytes()).unwrap().unwrap();
        let path = asked.take();
        // Its checksum, which is not known yet, is the reason for the last one.
        let [pages @ .., value, summed] = &path[..] else { panic!("{path:?}") };
        assert!((2..5).contains(&pages.len()), "{path:?}");
        assert!(pages.iter().all(|page| page.len() == PAGE), "{path:?}");
        assert!(value.len() > 10 * PAGE && value.start == summed.start, "{path:?}");
        tree.get(TABLE, &500_u64.to_be_bytes()).unwrap().unwrap();
        assert_eq!(asked.take(), std::slice::from_ref(value), "the pages of the path are known");
    }
}
