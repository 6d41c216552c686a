//! A keepalive stream that waits for a slot: the streams of an edge take turns.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::Proposals;

/// A keepalive stream's place in the queue for slots, and whether it holds requests back.
#[derive(Debug)]
pub struct KeepaliveStream {
    proposals: Rc<Proposals>,
    place: Option<u64>,
    holds_back: bool,
}

impl KeepaliveStream {
    /// A stream that waits for nothing.
    #[must_use]
    pub fn new(proposals: &Rc<Proposals>) -> Self {
        Self { proposals: Rc::clone(proposals), place: None, holds_back: false }
    }

    /// Ready when a keepalive that is submitted now finds a slot.
    pub fn poll_slot(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.proposals.poll_keepalive_slot(&mut self.place, context)
    }

    /// The stream does, or does not, leave requests where they are for now.
    pub fn hold_back(&mut self, holds_back: bool) {
        if self.holds_back != holds_back {
            self.holds_back = holds_back;
            let held_back = &mut self.proposals.table.borrow_mut().held_back;
            *held_back = if holds_back { *held_back + 1 } else { *held_back - 1 };
        }
    }
}

impl Drop for KeepaliveStream {
    fn drop(&mut self) {
        self.hold_back(false);
        let table = &mut *self.proposals.table.borrow_mut();
        // If its turn had come, it is the next one's.
        if let Some(place) = self.place
            && table.queue.remove(&place).is_none()
            && let Some((_, stream)) = table.queue.pop_first()
        {
            stream.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::pending::tests::{KEEP_ALIVE, LIMITS, outcome};
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn keepalive_streams_wait_for_slots_in_their_order() {
        let proposals = Proposals::new(0, LIMITS);
        let keep_alive = || proposals.submit_local(None, KEEP_ALIVE.into(), true);
        let mut under_way = vec![keep_alive().unwrap(), keep_alive().unwrap()];
        let mut streams: Vec<_> = (0..3).map(|_| KeepaliveStream::new(&proposals)).collect();
        let poll = |stream: &mut KeepaliveStream| {
            block_on(poll_once(std::future::poll_fn(|context| stream.poll_slot(context)))).is_some()
        };
        assert!(streams.iter_mut().all(|stream| !poll(stream)));
        streams[0].hold_back(true);
        streams[0].hold_back(true);
        assert!(proposals.holds_keepalives_back());
        let batch = proposals.take_batch();
        proposals.resolve(batch.local[0].id, outcome(1));
        drop(under_way.remove(0));
        let waiting =
            |proposals: &Proposals| proposals.table.borrow().queue.keys().copied().collect::<Vec<_>>();
        assert_eq!(waiting(&proposals), [2, 3], "the first was woken");
        // It goes away without taking the slot: the next one is woken.
        streams.remove(0);
        assert!(!proposals.holds_keepalives_back());
        assert_eq!(waiting(&proposals), [3]);
        assert!(poll(&mut streams[0]));
        under_way.push(keep_alive().unwrap());
        assert!(!poll(&mut streams[1]));
        proposals.close();
        assert!(poll(&mut streams[1]), "no stream waits after the end");
    }
}
