//! The bound on client connections: each is an open file of the process, and the last files are
//! kept for the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Node view: permits for the connections of all cores.
#[derive(Debug)]
pub struct ConnectionPermits {
    max: usize,
    taken: AtomicUsize,
    /// Those that were ever taken.
    given: AtomicUsize,
}

/// The permit of one connection; returned when dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<ConnectionPermits>);

impl ConnectionPermits {
    /// Permits for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0), given: AtomicUsize::new(0) })
    }

    /// Connections that there may be.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Connections, open or closed, that ever had one.
    pub(super) fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// Takes a permit, if one is left.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        // Never one too many, not even for a moment in which another core asks.
        let one_more = |taken| (taken < self.max).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok()?;
        self.given.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit(Arc::clone(self)))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_permit_is_free_again_and_a_refused_one_was_never_taken() {
        let permits = ConnectionPermits::new(2);
        let (first, second) = (permits.take().unwrap(), permits.take());
        assert!(second.is_some());
        for _ in 0..3 {
            assert!(permits.take().is_none());
        }
        drop(first);
        let third = permits.take();
        assert!(third.is_some() && permits.take().is_none());
        assert_eq!(permits.given(), 3, "refused ones are not counted");
    }

    #[test]
    fn one_that_is_refused_is_not_counted_even_for_a_moment() {
        let permits = ConnectionPermits::new(1);
        let held = permits.take().unwrap();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    together.wait();
                    for _ in 0..1_000_000 {
                        assert!(permits.take().is_none());
                        assert_eq!(permits.taken.load(Ordering::Relaxed), 1);
                    }
                });
            }
        });
        drop(held);
        assert!(permits.take().is_some());
    }
}
