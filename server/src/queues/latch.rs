//! A flag that is set once and that every core sees: a request to stop, being ready to serve.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Node view: set once, by any thread.
#[derive(Debug, Clone, Default)]
pub struct Latch {
    state: Arc<LatchState>,
}

#[derive(Debug, Default)]
struct LatchState {
    set: AtomicBool,
    /// Waiters; a lock is fine here, nothing on a request's path touches it.
    wakers: Mutex<Vec<Waker>>,
}

impl Latch {
    /// Sets it; later calls change nothing.
    pub fn set(&self) {
        self.state.set.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *self.state.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in wakers {
            waker.wake();
        }
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.state.set.load(Ordering::Acquire)
    }

    /// Whether both are the same one.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Resolves when it is set.
    pub fn wait(&self) -> impl Future<Output = ()> + use<> {
        let latch = self.clone();
        let mut registered = false;
        std::future::poll_fn(move |context| {
            if latch.is_set() {
                return Poll::Ready(());
            }
            if !registered {
                registered = true;
                let mut wakers = latch.state.wakers.lock().unwrap_or_else(PoisonError::into_inner);
                wakers.push(context.waker().clone());
            }
            // Set between the check and the registration: the list may have been taken already.
            if latch.is_set() { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}
