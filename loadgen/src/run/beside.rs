//! Threads beside the callers: they begin with the traffic and end with the run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock;
use crate::plan::Plan;
use crate::run::shared::RunShared;

/// The end of the run is seen within this time.
const REST_MAX: u64 = 50_000_000;

/// A thread, and the flag that ends it.
pub(super) struct Beside<T> {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

/// The time of the run, as a thread beside it sees it.
pub(super) struct RunTime {
    shared: Arc<RunShared>,
    is_over: Arc<AtomicBool>,
    warmup: u64,
    length: u64,
    /// The end of the warm-up; known when traffic begins.
    pub(super) from: u64,
}

impl<T: Send + 'static> Beside<T> {
    /// Starts a thread, which begins its work when traffic begins.
    ///
    /// # Errors
    /// When the system has no thread.
    pub(super) fn start(
        name: &str,
        plan: &Plan,
        shared: &Arc<RunShared>,
        work: impl FnOnce(&RunTime) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let timed = clock::from_seconds(plan.duration);
        let mut time = RunTime {
            shared: Arc::clone(shared),
            is_over: Arc::clone(&is_over),
            warmup: clock::from_seconds(plan.warmup),
            length: if plan.total.is_some() { u64::MAX } else { timed },
            from: 0,
        };
        let body = move || {
            while time.shared.start.load(Relaxed) == 0 && !time.is_over() {
                clock::rest(Duration::from_millis(1));
            }
            time.from = time.shared.start.load(Relaxed).saturating_add(time.warmup);
            work(&time)
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends it; its result, unless it has panicked.
    pub(super) fn end(mut self) -> Option<T> {
        self.is_over.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl<T> Drop for Beside<T> {
    /// A run that did not begin leaves no thread behind.
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

impl RunTime {
    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed) || self.shared.is_stopped()
    }

    /// Rests until then; false when the measured time is over by then, or the run ends before.
    pub(super) fn rest_until(&self, at: u64) -> bool {
        if at >= self.from.saturating_add(self.length) {
            return false;
        }
        while !self.is_over() {
            let left = at.saturating_sub(clock::nanos());
            if left == 0 {
                return true;
            }
            clock::rest(Duration::from_nanos(left.min(REST_MAX)));
        }
        false
    }

    /// The newest revision that a reply has shown.
    pub(super) fn newest(&self) -> i64 {
        self.shared.newest.load(Relaxed)
    }
}
