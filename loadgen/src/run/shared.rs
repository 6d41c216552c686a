//! State shared by the threads of a run.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
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
    /// Events that must come by the replies that threads have had, and how many threads have had
    /// all of theirs.
    expected: AtomicU64,
    threads: usize,
    confirmed: AtomicUsize,
}

impl RunShared {
    pub(super) fn new(threads: usize) -> Self {
        Self { threads, ..Self::default() }
    }

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

    /// A thread has had all of its replies, or waits for no more: by them so many events must come.
    pub(super) fn confirm(&self, expected: u64) {
        self.expected.fetch_add(expected, Relaxed);
        self.confirmed.fetch_add(1, Release);
    }

    /// No thread has replies to come that others wait for.
    pub(super) fn are_all_confirmed(&self) -> bool {
        self.confirmed.load(Acquire) == self.threads
    }

    /// All events have come that any reply tells of.
    pub(super) fn is_all_delivered(&self) -> bool {
        self.are_all_confirmed() && self.events.load(Relaxed) >= self.expected.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_complete_when_every_thread_has_had_its_replies() {
        let shared = RunShared::new(2);
        shared.confirm(3);
        shared.events.store(3, Relaxed);
        assert!(!shared.are_all_confirmed());
        assert!(!shared.is_all_delivered(), "the other thread may have replies to come");
        shared.confirm(2);
        assert!(shared.are_all_confirmed());
        assert!(!shared.is_all_delivered(), "3 of 5");
        shared.events.store(5, Relaxed);
        assert!(shared.is_all_delivered());
    }
}
