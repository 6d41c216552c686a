//! One request to stop, seen by every core.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Node view: set once, from the signal handler's thread or by a core that cannot go on.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    requested: AtomicBool,
    /// Waiters; a lock is fine here, nothing on a request's path touches it.
    wakers: Mutex<Vec<Waker>>,
}

impl Stop {
    /// Asks everyone to stop. Later calls change nothing.
    pub fn request(&self) {
        self.shared.requested.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.shared.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in wakers {
            waker.wake();
        }
    }

    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::Acquire)
    }

    /// Resolves when a stop is asked for.
    pub fn requested(&self) -> impl Future<Output = ()> + use<> {
        let stop = self.clone();
        let mut registered = false;
        std::future::poll_fn(move |context| {
            if stop.is_requested() {
                return Poll::Ready(());
            }
            if !registered {
                registered = true;
                let mut wakers = stop.shared.wakers.lock().unwrap_or_else(PoisonError::into_inner);
                wakers.push(context.waker().clone());
            }
            // Asked for between the check and the registration: the list may have been taken already.
            if stop.is_requested() { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}
