//! The ready queue of a connection: one task polls all of its calls, but only those that were
//! woken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// The slots of calls that were woken. Everything stays on one core and the lock is never
/// contended; it is there because the type of a waker allows to send it to other threads.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    shared: Arc<Mutex<WokenSlots>>,
    /// Wakers by slot; kept when a call is over, for the next call in the slot.
    slots: Vec<(Arc<CallWaker>, Waker)>,
}

#[derive(Debug, Default)]
struct WokenSlots {
    /// Slots that were woken.
    slots: Vec<usize>,
    connection: Option<Waker>,
}

#[derive(Debug)]
struct CallWaker {
    number: usize,
    is_woken: AtomicBool,
    shared: Arc<Mutex<WokenSlots>>,
}

fn lock(shared: &Mutex<WokenSlots>) -> MutexGuard<'_, WokenSlots> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            let mut shared = lock(&self.shared);
            shared.slots.push(self.number);
            let first = if shared.slots.len() == 1 { shared.connection.clone() } else { None };
            drop(shared);
            if let Some(connection) = first {
                connection.wake();
            }
        }
    }
}

impl ReadyQueue {
    /// Sets the task that is woken when a call is.
    pub(super) fn register(&self, context: &Context<'_>) {
        let mut shared = lock(&self.shared);
        if !shared.connection.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            shared.connection = Some(context.waker().clone());
        }
    }

    /// The waker of a call's slot.
    pub(super) fn waker(&mut self, slot: usize) -> Waker {
        while self.slots.len() <= slot {
            let shared = Arc::clone(&self.shared);
            let state =
                Arc::new(CallWaker { number: self.slots.len(), is_woken: AtomicBool::new(false), shared });
            self.slots.push((Arc::clone(&state), Waker::from(state)));
        }
        self.slots[slot].1.clone()
    }

    /// Puts a slot back that was taken and found no time. The task is not woken for it: the caller
    /// must ask for another turn.
    pub(super) fn put_back(&self, slot: usize) {
        if !self.slots[slot].0.is_woken.swap(true, Ordering::AcqRel) {
            lock(&self.shared).slots.push(slot);
        }
    }

    /// Moves the slots that were woken to `into`; they may be woken again from now on.
    pub(super) fn take(&self, into: &mut Vec<usize>) {
        let mut shared = lock(&self.shared);
        for slot in shared.slots.drain(..) {
            self.slots[slot].0.is_woken.store(false, Ordering::Release);
            into.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_woken_twice_is_taken_once() {
        let mut ready = ReadyQueue::default();
        let wakers: Vec<Waker> = (0..3).map(|slot| ready.waker(slot)).collect();
        ready.register(&Context::from_waker(Waker::noop()));
        for slot in [2, 0, 2] {
            wakers[slot].wake_by_ref();
        }
        let mut taken = Vec::new();
        ready.take(&mut taken);
        assert_eq!(taken, [2, 0]);
        wakers[2].wake_by_ref();
        ready.take(&mut taken);
        assert_eq!(taken, [2, 0, 2]);
    }

    #[test]
    fn a_slot_that_is_put_back_is_taken_again_without_a_wake_up() {
        struct Alarm(AtomicBool);
        impl Wake for Alarm {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let alarm = Arc::new(Alarm(AtomicBool::new(false)));
        let mut ready = ReadyQueue::default();
        ready.register(&Context::from_waker(&Waker::from(Arc::clone(&alarm))));
        let waker = ready.waker(0);
        waker.wake_by_ref();
        assert!(alarm.0.swap(false, Ordering::Relaxed));
        let mut taken = Vec::new();
        ready.take(&mut taken);
        ready.put_back(0);
        waker.wake_by_ref();
        assert!(!alarm.0.load(Ordering::Relaxed), "its connection has a turn before it anyway");
        ready.take(&mut taken);
        assert_eq!(taken, [0, 0]);
    }
}
