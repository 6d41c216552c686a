//! Connections that have more to read than a turn reads. What has come before the end of a lease
//! counts, wherever it lies: who decides about the end waits until it is read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::limits;

/// Edge view: how many connections have not read everything, by the mark that was the last when
/// they fell behind, or when they had read what was there then.
#[derive(Debug, Default)]
pub struct Unread {
    marks: Cell<u64>,
    behind: RefCell<BTreeMap<u64, usize>>,
}

impl Unread {
    /// Marks what has come so far.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.marks.set(self.marks.get() + 1);
        self.marks.get()
    }

    /// Whether everything is read that had come when a mark was set.
    #[must_use]
    pub fn is_read_up_to(&self, mark: u64) -> bool {
        self.behind.borrow().first_key_value().is_none_or(|(behind, _)| *behind >= mark)
    }

    fn enter(&self, mark: u64) {
        *self.behind.borrow_mut().entry(mark).or_default() += 1;
    }

    fn leave(&self, mark: u64) {
        let mut behind = self.behind.borrow_mut();
        if let Some(count) = behind.get_mut(&mark) {
            *count -= 1;
            if *count == 0 {
                behind.remove(&mark);
            }
        }
    }
}

/// How far one connection has read.
#[derive(Debug)]
pub(super) struct Reading {
    unread: Rc<Unread>,
    /// The mark it is counted by, while it is behind.
    behind: Option<u64>,
    /// The last mark it has seen, and the bytes it has read since.
    seen: u64,
    bytes: usize,
}

impl Reading {
    /// Nothing has come.
    pub(super) fn new(unread: &Rc<Unread>) -> Self {
        Self { unread: Rc::clone(unread), behind: None, seen: 0, bytes: 0 }
    }

    /// So many bytes were read in a turn, and there may be more. Who has read as much as can have
    /// been on its way has read what had come, also if it never ends.
    pub(super) fn more(&mut self, bytes: usize) {
        let mark = self.unread.marks.get();
        if self.seen == mark {
            self.bytes += bytes;
        } else {
            (self.seen, self.bytes) = (mark, 0);
        }
        if self.behind.is_none() || (self.behind < Some(mark) && self.bytes >= limits::HEARING_BYTES_MAX) {
            self.all();
            self.behind = Some(mark);
            self.unread.enter(mark);
        }
    }

    /// Everything is read, or nobody should wait for what is not.
    pub(super) fn all(&mut self) {
        if let Some(mark) = self.behind.take() {
            self.unread.leave(mark);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_reached_when_all_who_were_behind_have_read_on() {
        let unread = Rc::<Unread>::default();
        let [mut one, mut other, mut late] = [(); 3].map(|()| Reading::new(&unread));
        let nobody = unread.mark();
        assert!(unread.is_read_up_to(nobody));
        one.more(10);
        other.more(10);
        let mark = unread.mark();
        late.more(10);
        assert!(unread.is_read_up_to(nobody) && !unread.is_read_up_to(mark));
        one.all();
        one.more(10);
        assert!(!unread.is_read_up_to(mark));
        drop(other);
        assert!(unread.is_read_up_to(mark), "others have fallen behind since");
        assert!(!unread.is_read_up_to(unread.mark()));
        late.all();
        one.all();
        assert!(unread.behind.borrow().is_empty());
    }

    /// Somebody who sends without an end is waited for until what he had sent must have been read.
    #[test]
    fn who_never_stops_sending_is_not_waited_for_for_ever() {
        let unread = Rc::<Unread>::default();
        let mut endless = Reading::new(&unread);
        endless.more(limits::HEARING_BYTES_MAX);
        for _ in 0..3 {
            let mark = unread.mark();
            endless.more(limits::HEARING_BYTES_MAX); // perhaps before the mark
            endless.more(limits::HEARING_BYTES_MAX - 1);
            assert!(!unread.is_read_up_to(mark));
            endless.more(1);
            assert!(unread.is_read_up_to(mark));
        }
    }
}
