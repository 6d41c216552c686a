//! Giving way: the end of a turn of work that has more to do.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use crate::clock::Ticker;
use crate::limits;
use crate::queues::sleep::{Sleep, sleep};

/// A task that is ready again at once keeps the runtime from looking at sockets and timers until
/// the runtime's own time is over, a hundred milliseconds later. A timer that is over almost at
/// once does not.
const PAUSE: Duration = Duration::from_micros(5);

/// Lets everything else of this core have its turn.
pub async fn give_way() {
    sleep(PAUSE).await;
}

/// The same; how long the others took, in microseconds.
pub async fn time_given_way(clock: Ticker) -> u64 {
    let since = clock.microseconds();
    give_way().await;
    clock.microseconds().saturating_sub(since)
}

/// The next turn of a task that is polled by hand.
#[derive(Default)]
pub struct NextTurn(Option<Sleep>);

impl NextTurn {
    /// Has the task of `context` woken when everything else of this core had its turn.
    pub fn ask(&mut self, context: &mut Context<'_>) {
        let mut pause = sleep(PAUSE);
        if Pin::new(&mut pause).poll(context).is_ready() {
            context.waker().wake_by_ref(); // the system took the thread away for that long
        }
        self.0 = Some(pause);
    }
}

/// Core view: how long work lasts that callers cause in small pieces without end, and that is not
/// what the core is for: it gives way behind a short turn. A core that is full of other things
/// comes back late, and has an eighth of its time for it all the same, or thousands would wait for
/// ever.
#[derive(Debug, Default)]
pub struct SideWork {
    /// Microseconds since it gave way.
    took: u64,
    /// Microseconds that everything else took when it gave way, on average of late.
    gave_way: u64,
}

impl SideWork {
    /// It gives way before the next piece.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        let share = (self.gave_way / limits::SIDE_WORK_PARTS).min(limits::SIDE_WORK_MICROSECONDS_MOST);
        self.took >= share.max(limits::SIDE_WORK_MICROSECONDS)
    }

    /// A piece took so many microseconds.
    pub fn took(&mut self, microseconds: u64) {
        self.took = self.took.saturating_add(microseconds);
    }

    /// Microseconds that it has taken since it gave way or rested.
    #[must_use]
    pub fn microseconds(&self) -> u64 {
        self.took
    }

    /// It has waited for a time, which says nothing about the others.
    pub fn rested(&mut self) {
        self.took = 0;
    }

    /// It gave way, and everything else took so many microseconds.
    pub fn gave_way(&mut self, microseconds: u64) {
        // One pass may be long because the system took the thread away.
        self.gave_way = self.gave_way.saturating_mul(7).saturating_add(microseconds) / 8;
        self.took = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of side work in `passes` turns of a core whose other work takes so many in
    /// each.
    fn worked(others: u64, passes: u64) -> u64 {
        let (mut work, mut all) = (SideWork::default(), 0);
        for _ in 0..passes {
            while !work.is_used_up() {
                work.took(10);
                all += 10;
            }
            work.gave_way(others);
        }
        all
    }

    #[test]
    fn side_work_has_short_turns_and_a_part_of_a_core_that_is_full() {
        let (passes, short) = (1_000, limits::SIDE_WORK_MICROSECONDS);
        assert_eq!(worked(0, passes), passes * short);
        assert_eq!(worked(short, passes), passes * short);
        let others = 10_000;
        let part = worked(others, passes) as f64 / (others * passes) as f64;
        assert!((0.11..0.13).contains(&part), "{part}");
        let most = worked(10_000_000, passes);
        assert!((990 * limits::SIDE_WORK_MICROSECONDS_MOST..).contains(&most), "{most}");
        assert!(most <= passes * limits::SIDE_WORK_MICROSECONDS_MOST);
    }

    #[test]
    fn one_late_pass_is_not_a_full_core() {
        let mut work = SideWork::default();
        work.gave_way(6 * limits::SIDE_WORK_MICROSECONDS);
        work.took(limits::SIDE_WORK_MICROSECONDS);
        assert!(work.is_used_up());
        work.gave_way(0);
        assert!(!work.is_used_up());
    }
}
