//! How many clients may be connected: each is an open file of the process,
//! and the last files are the log's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Node view: the connections of all cores. A connection is counted when it comes and when it goes.
#[derive(Debug)]
pub struct Places {
    max: usize,
    taken: AtomicUsize,
}

/// One connection's; given back when dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>);

impl Places {
    /// For so many connections.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// How many there are.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// A place, if there is one.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self)); // given back at once if it is one too many
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        (before < self.max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_and_one_that_was_refused_was_never_taken() {
        let places = Places::new(2);
        let (first, second) = (places.take().unwrap(), places.take());
        assert!(second.is_some());
        for _ in 0..3 {
            assert!(places.take().is_none());
        }
        drop(first);
        let third = places.take();
        assert!(third.is_some() && places.take().is_none());
    }
}
