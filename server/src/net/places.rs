//! The bound on client connections: each is an open file of the process, and the last files are
//! kept for the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Node view: permits for the connections of all cores.
#[derive(Debug)]
pub struct Places {
    max: usize,
    taken: AtomicUsize,
}

/// The permit of one connection; returned when dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>);

impl Places {
    /// Permits for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// Connections that there may be.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes a permit, if one is left.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self)); // dropped, and so returned, if it is one too many
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
    fn a_dropped_permit_is_free_again_and_a_refused_one_was_never_taken() {
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
