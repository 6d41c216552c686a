//! Connections that have more to read than a turn reads. A keepalive that arrived before its lease
//! expires counts even while it lies in a socket: the decision to expire leases waits until it is
//! read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::limits;

/// Edge view: connections that have not read everything, counted by mark: the mark that was the
/// newest when a connection fell behind, or when it had read everything that was there at an
/// earlier mark.
#[derive(Debug, Default)]
pub struct Unread {
    marks: Cell<u64>,
    behind: RefCell<BTreeMap<u64, usize>>,
}

impl Unread {
    /// Sets a mark behind everything that has arrived so far.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.marks.set(self.marks.get() + 1);
        self.marks.get()
    }

    /// Whether everything is read that had arrived when a mark was set.
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
pub(super) struct ReadProgress {
    unread: Rc<Unread>,
    /// The mark by which the connection is counted, while it is behind.
    behind: Option<u64>,
    /// The newest mark that the connection has seen, and the bytes it has read since.
    seen: u64,
    bytes: usize,
}

impl ReadProgress {
    /// The progress of a new connection, which is not behind.
    pub(super) fn new(unread: &Rc<Unread>) -> Self {
        Self { unread: Rc::clone(unread), behind: None, seen: 0, bytes: 0 }
    }

    /// `bytes` were read in a turn, and there may be more. A connection that has read as many bytes
    /// as can have been under way at a mark has reached it, even if its client never stops sending.
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

    /// Everything is read, or the rest should not keep leases from expiring.
    pub(super) fn all(&mut self) {
        if let Some(mark) = self.behind.take() {
            self.unread.leave(mark);
        }
    }
}

impl Drop for ReadProgress {
    fn drop(&mut self) {
        self.all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_reached_when_all_connections_that_were_behind_have_read_on() {
        let unread = Rc::<Unread>::default();
        let [mut one, mut other, mut late] = [(); 3].map(|()| ReadProgress::new(&unread));
        let first = unread.mark();
        assert!(unread.is_read_up_to(first));
        one.more(10);
        other.more(10);
        let mark = unread.mark();
        late.more(10);
        assert!(unread.is_read_up_to(first) && !unread.is_read_up_to(mark));
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

    #[test]
    fn a_client_that_never_stops_sending_is_not_waited_for_for_ever() {
        let unread = Rc::<Unread>::default();
        let mut endless = ReadProgress::new(&unread);
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
