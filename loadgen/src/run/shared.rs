//! State shared by the threads of a run.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};

/// Counters and flags of all threads of a run.
#[derive(Debug, Default)]
pub(super) struct RunShared {
    /// Threads whose watchers are there.
    pub(super) ready: AtomicUsize,
    /// When traffic begins; 0 before that is known.
    pub(super) start: AtomicU64,
    pub(super) stopped: AtomicBool,
    pub(super) why: Mutex<Option<String>>,
    pub(super) done: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) events: AtomicU64,
    /// The newest revision that a reply has shown.
    pub(super) newest: AtomicI64,
    /// Events that must come by what all threads have confirmed, and how many threads have.
    pub(super) expected: AtomicU64,
    pub(super) threads: usize,
    pub(super) confirmed: AtomicUsize,
}

impl RunShared {
    pub(super) fn stop(&self, why: &str) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.to_owned());
        self.stopped.store(true, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub(super) fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn confirm(&self, expected: u64) {
        self.expected.fetch_add(expected, Relaxed);
    }

    pub(super) fn is_all_delivered(&self) -> bool {
        self.confirmed.load(Relaxed) == self.threads
            && self.events.load(Relaxed) >= self.expected.load(Relaxed)
    }
}
