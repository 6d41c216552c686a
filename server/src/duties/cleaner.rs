//! The cleaner: a thread that frees what dropped Views leave behind, so that no core has to.

use std::sync::Arc;
use std::sync::mpsc::{TrySendError, sync_channel};

use crate::limits;
use crate::observe::bounds::Bound;
use crate::observe::counters::Counters;
use crate::threads;

/// Starts the thread, on any CPU, which does `free` with all that it is given. It ends when the
/// last clone of the returned function is dropped; the end of the process does not wait for it,
/// since that frees everything at once.
///
/// # Errors
/// When the system has no thread.
pub fn start<T: Send + 'static>(
    counters: Arc<Counters>,
    free: impl Fn(T) + Send + 'static,
) -> std::io::Result<impl Fn(T) + Send + Sync + 'static> {
    let (to_cleaner, garbage) = sync_channel::<T>(limits::GARBAGE_MAX);
    let clean = move || garbage.into_iter().for_each(free);
    threads::begin("cleaner", clean)?;
    Ok(move |garbage| {
        // Garbage that does not get through is dropped here.
        if let Err(TrySendError::Full(_)) = to_cleaner.try_send(garbage) {
            counters.bounds.reached(Bound::Garbage);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};

    /// Tells who drops it, and takes its time if it has to wait.
    struct Waste(Sender<ThreadId>, Option<Receiver<()>>);

    impl Drop for Waste {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
            if let Some(gate) = self.1.take() {
                let _ = gate.recv();
            }
        }
    }

    #[test]
    fn garbage_is_freed_elsewhere_until_too_much_of_it_waits() {
        let counters = Arc::new(Counters::new(1));
        let collect = start(Arc::clone(&counters), drop).unwrap();
        let (dropped, drops) = channel();
        let (open, gate) = channel();
        collect(Waste(dropped.clone(), Some(gate)));
        let cleaner = drops.recv().unwrap();
        assert_ne!(cleaner, thread::current().id());
        for _ in 0..limits::GARBAGE_MAX {
            collect(Waste(dropped.clone(), None));
        }
        assert_eq!((drops.try_iter().count(), counters.bounds.get(Bound::Garbage)), (0, 0));
        collect(Waste(dropped.clone(), None));
        assert_eq!(drops.recv().unwrap(), thread::current().id());
        assert_eq!(counters.bounds.get(Bound::Garbage), 1);
        drop((open, collect, dropped));
        assert_eq!(drops.iter().filter(|by| *by == cleaner).count(), limits::GARBAGE_MAX);
    }
}
