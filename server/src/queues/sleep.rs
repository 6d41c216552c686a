//! Waiting for a time.
//!
//! Every wait of a core stands in one list, and one timer of the runtime's runs, for the first of
//! them. The runtime's own timers are not made for many: each turn of the core walks over all of
//! them, one that is looked at before its time leaves another one behind, above 256 they end up to
//! a millisecond early, and the 257th has the core count the milliseconds since its start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use glommio::timer::Timer;

use crate::clock;

/// Waits for so long.
#[must_use = "it waits only when it is awaited"]
pub fn sleep(time: Duration) -> Sleep {
    Sleep { until: clock::now() + time, place: None }
}

/// The end of a wait.
pub struct Sleep {
    until: Instant,
    /// Its place among those of its core, from the first look on.
    place: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock::now() >= self.until {
            self.leave();
            return Poll::Ready(());
        }
        let until = self.until;
        let entered = SLEEPS.with_borrow_mut(|sleeps| {
            let place = *self.place.get_or_insert_with(|| sleeps.next_place());
            sleeps.enter((until, place), context.waker())
        });
        if entered.is_unwatched {
            glommio::spawn_local(watch()).detach();
        }
        Poll::Pending
    }
}

impl Sleep {
    fn leave(&mut self) {
        if let Some(place) = self.place.take() {
            // Gone with its thread, it has no place any more.
            let leave = |sleeps: &RefCell<Sleeps>| sleeps.borrow_mut().waiting.remove(&(self.until, place));
            let _ = SLEEPS.try_with(leave);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.leave();
    }
}

thread_local! {
    static SLEEPS: RefCell<Sleeps> = RefCell::default();
}

/// Core view: all waits, the first one first.
#[derive(Default)]
struct Sleeps {
    waiting: BTreeMap<(Instant, u64), Waker>,
    places: u64,
    /// The executor whose task ends waits, and that task once it has begun.
    watched_by: Option<usize>,
    watcher: Option<Waker>,
}

/// A wait has its place.
struct Entered {
    /// The task that ends waits is to be made.
    is_unwatched: bool,
    /// Tasks that waited before. With them may go other waits, which have to leave the list.
    _former: Vec<Waker>,
}

impl Sleeps {
    fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    fn enter(&mut self, at: (Instant, u64), task: &Waker) -> Entered {
        if let Some(known) = self.waiting.get_mut(&at) {
            let is_same = known.will_wake(task);
            let former = (!is_same).then(|| std::mem::replace(known, task.clone()));
            return Entered { is_unwatched: false, _former: former.into_iter().collect() };
        }
        let executor = glommio::executor().id();
        let is_unwatched = self.watched_by.replace(executor) != Some(executor);
        let mut former = Vec::new();
        if is_unwatched {
            // The executor that was on this thread before took its tasks with it.
            self.watcher = None;
            former.extend(std::mem::take(&mut self.waiting).into_values());
        }
        self.waiting.insert(at, task.clone());
        let is_first = self.waiting.first_key_value().is_some_and(|(first, _)| *first == at);
        if is_first && let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
        Entered { is_unwatched, _former: former }
    }

    /// Takes out one whose time has come.
    fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// Ends the waits of this core for as long as its executor lives.
async fn watch() {
    let mut running = None;
    std::future::poll_fn(|context| {
        loop {
            let now = clock::now();
            while let Some(task) = SLEEPS.with_borrow_mut(|sleeps| sleeps.pop_due(now)) {
                task.wake();
            }
            let first = SLEEPS.with_borrow_mut(|sleeps| {
                sleeps.watcher = Some(context.waker().clone());
                sleeps.waiting.first_key_value().map(|((until, _), _)| *until)
            });
            let timer = first.map(|first| start(first.saturating_duration_since(now)));
            running = timer;
            let Some(timer) = &mut running else { return Poll::<()>::Pending };
            if Pin::new(timer).poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn start(time: Duration) -> Timer {
    Timer::new(time)
}

/// Runs the test of something that waits.
#[cfg(test)]
pub(crate) fn on_a_core<T>(test: impl Future<Output = T>) -> T {
    glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound).make().unwrap().run(test)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use futures_lite::future::{or, poll_once};
    use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

    use super::*;

    fn executor() -> LocalExecutor {
        LocalExecutorBuilder::new(Placement::Unbound).make().unwrap()
    }

    #[test]
    fn waits_end_in_their_order_and_not_before_their_time() {
        let ended = executor().run(async {
            let ended = Rc::new(RefCell::new(Vec::new()));
            let wait = |time: u64| {
                let (ended, mut sleep) = (Rc::clone(&ended), sleep(Duration::from_millis(time)));
                glommio::spawn_local(async move {
                    let mut looks = 0;
                    std::future::poll_fn(|context| {
                        looks += 1;
                        Pin::new(&mut sleep).poll(context)
                    })
                    .await;
                    assert!(clock::now() >= sleep.until);
                    // On a busy machine its time may have come before the first look.
                    if looks > 1 {
                        ended.borrow_mut().push(sleep.until);
                    }
                })
            };
            let waits: Vec<_> = [30, 10, 50, 20, 40].map(wait).into();
            for wait in waits {
                wait.await;
            }
            ended.take()
        });
        assert!(ended.is_sorted(), "{ended:?}");
        executor().run(sleep(Duration::from_millis(1))); // another executor on this thread
    }

    /// Above 256 timers those of the runtime end early, and a wait that trusts them never ends.
    #[test]
    fn many_waits_all_end() {
        const WAITS: u64 = 2_000;
        let ended = executor().run(async {
            let ended = Rc::new(Cell::new(0));
            let wait = |number: u64| {
                let ended = Rc::clone(&ended);
                glommio::spawn_local(async move {
                    for round in 0..5 {
                        sleep(Duration::from_micros(number * 37 % 3_000 + round)).await;
                    }
                    ended.set(ended.get() + 1);
                })
            };
            let waits: Vec<_> = (0..WAITS).map(wait).collect();
            for wait in waits {
                wait.await;
            }
            ended.get()
        });
        assert_eq!(ended, WAITS);
    }

    #[test]
    fn a_wait_that_is_looked_at_often_or_given_up_leaves_nothing_behind() {
        executor().run(async {
            let waiting = || SLEEPS.with_borrow(|sleeps| sleeps.waiting.len());
            let mut long = sleep(Duration::from_secs(600));
            for _ in 0..1_000 {
                assert!(poll_once(&mut long).await.is_none());
            }
            assert_eq!(waiting(), 1);
            or(long, sleep(Duration::from_millis(1))).await;
            assert_eq!(waiting(), 0);
        });
    }

    /// Without a place among the others the timer would never be looked at.
    #[test]
    fn a_loop_with_news_for_itself_in_each_turn_leaves_the_thread_to_others() {
        let turns_max = 1_000_000;
        let core = LocalExecutorBuilder::default().spawn(move || async move {
            let queue = crate::queues::queue::LocalQueue::new();
            queue.push(());
            let is_over = std::rc::Rc::new(std::cell::Cell::new(false));
            let rung = std::rc::Rc::clone(&is_over);
            let timer = glommio::spawn_local(async move {
                sleep(Duration::from_millis(1)).await;
                rung.set(true);
            });
            let mut turns = 0;
            while !is_over.get() && turns < turns_max {
                queue.take_in_turn().await;
                queue.push(());
                turns += 1;
            }
            timer.await;
            turns
        });
        assert!(core.unwrap().join().unwrap() < turns_max);
    }
}
