//! Waiting for a time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use glommio::timer::Timer;

use crate::clock;

/// Waits for so long.
#[must_use = "it waits only when it is awaited"]
pub fn sleep(time: Duration) -> Sleep {
    Sleep { until: clock::now() + time, running: None }
}

/// The end of a wait that may be looked at often before it is over.
///
/// The runtime's own timer starts anew whenever its task looks at it, leaves the earlier ones
/// running, and each turn of the core walks over all of them: beside a connection that is read
/// from, one timer would become thousands.
pub struct Sleep {
    until: Instant,
    /// The timer, and the task that it wakes.
    running: Option<(Timer, Waker)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let left = self.until.saturating_duration_since(clock::now());
        if left.is_zero() {
            self.running = None;
            return Poll::Ready(());
        }
        let knows_task = |(_, task): &(Timer, Waker)| task.will_wake(context.waker());
        if self.running.as_ref().is_some_and(knows_task) {
            return Poll::Pending;
        }
        let mut timer = start(left);
        if Pin::new(&mut timer).poll(context).is_ready() {
            self.running = None;
            return Poll::Ready(());
        }
        self.running = Some((timer, context.waker().clone()));
        Poll::Pending
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn start(time: Duration) -> Timer {
    Timer::new(time)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use glommio::{LocalExecutorBuilder, Placement};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_sleep_that_is_looked_at_often_wakes_its_task_once() {
        const TIME: Duration = Duration::from_millis(50);
        let test = || async {
            let (wakes, mut sleeping) = (Arc::new(Wakes::default()), sleep(TIME));
            let waker = Waker::from(Arc::clone(&wakes));
            let mut look = || Pin::new(&mut sleeping).poll(&mut Context::from_waker(&waker));
            for _ in 0..1_000 {
                if look().is_ready() {
                    return; // the system took the thread away for that long
                }
            }
            while look().is_pending() {
                sleep(TIME / 10).await;
            }
            sleep(2 * TIME).await;
            assert!(wakes.0.load(Ordering::Relaxed) <= 1);
        };
        LocalExecutorBuilder::new(Placement::Unbound).spawn(test).unwrap().join().unwrap();
    }

    #[test]
    fn a_sleep_wakes_the_task_that_looked_at_it_last() {
        let test = || async {
            let mut sleeping = sleep(Duration::from_millis(5));
            let _ = Pin::new(&mut sleeping).poll(&mut Context::from_waker(Waker::noop()));
            sleeping.await;
        };
        LocalExecutorBuilder::new(Placement::Unbound).spawn(test).unwrap().join().unwrap();
    }
}
