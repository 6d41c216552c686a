//! Giving way: the end of a turn of work that has more to do.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
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
/// what the core is for. All of it together gives way behind a short turn. A core that is full of
/// other things comes back late, and has an eighth of its time for it all the same, or thousands
/// would wait for ever.
#[derive(Debug, Default, Clone)]
pub struct SideWork(Rc<Cell<SideTurn>>);

#[derive(Debug, Default, Clone, Copy)]
struct SideTurn {
    /// Microseconds since it gave way.
    took: u64,
    /// Microseconds that everything else took when it gave way, on average of late.
    gave_way: u64,
    /// How often it gave way.
    passes: u64,
}

impl SideWork {
    /// It gives way before the next piece.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        let SideTurn { took, gave_way, .. } = self.0.get();
        let share = (gave_way / limits::SIDE_WORK_PARTS).min(limits::SIDE_WORK_MICROSECONDS_MOST);
        took >= share.max(limits::SIDE_WORK_MICROSECONDS)
    }

    /// A piece took so many microseconds.
    pub fn took(&self, microseconds: u64) {
        let turn = self.0.get();
        self.0.set(SideTurn { took: turn.took.saturating_add(microseconds), ..turn });
    }

    /// Microseconds that it has taken since it gave way or rested.
    #[must_use]
    pub fn microseconds(&self) -> u64 {
        self.0.get().took
    }

    /// It has waited for a time, which says nothing about the others.
    pub fn rested(&self) {
        self.0.set(SideTurn { took: 0, ..self.0.get() });
    }

    /// Lets everything else have its turn.
    pub async fn give_way(&self, clock: Ticker) {
        let (pass, since) = (self.0.get().passes, clock.microseconds());
        give_way().await;
        self.gave_way(pass, clock.microseconds().saturating_sub(since));
    }

    /// Everything else took so many microseconds. Of several kinds of side work that gave way in
    /// one pass, the first one to come back says so for all.
    fn gave_way(&self, pass: u64, microseconds: u64) {
        let SideTurn { gave_way, passes, .. } = self.0.get();
        if pass == passes {
            // One pass may be long because the system took the thread away.
            let gave_way = gave_way.saturating_mul(7).saturating_add(microseconds) / 8;
            self.0.set(SideTurn { took: 0, gave_way, passes: passes + 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of side work in `passes` turns of a core whose other work takes so many in
    /// each, of so many kinds that give way together.
    fn worked(others: u64, passes: u64, kinds: usize) -> u64 {
        let (work, mut all) = (SideWork::default(), 0);
        for pass in 0..passes {
            while !work.is_used_up() {
                work.took(10);
                all += 10;
            }
            for _ in 0..kinds {
                work.gave_way(pass, others);
                work.took(10); // the piece that each was about to do
                all += 10;
            }
        }
        all
    }

    #[test]
    fn side_work_has_short_turns_and_a_part_of_a_core_that_is_full() {
        let (passes, short) = (1_000, limits::SIDE_WORK_MICROSECONDS);
        for kinds in [1, 3] {
            let is_short = |worked: u64| worked <= passes * (short + 20);
            assert!(is_short(worked(0, passes, kinds)) && is_short(worked(short, passes, kinds)));
            let others = 10_000;
            let part = worked(others, passes, kinds) as f64 / (others * passes) as f64;
            assert!((0.11..0.13).contains(&part), "{part}");
            let most = worked(10_000_000, passes, kinds);
            assert!((990 * limits::SIDE_WORK_MICROSECONDS_MOST..).contains(&most), "{most}");
            assert!(most <= passes * (limits::SIDE_WORK_MICROSECONDS_MOST + 20));
        }
    }

    #[test]
    fn one_late_pass_is_not_a_full_core_however_many_kinds_it_delays() {
        let work = SideWork::default();
        (0..3).for_each(|_| work.gave_way(0, 6 * limits::SIDE_WORK_MICROSECONDS));
        work.took(limits::SIDE_WORK_MICROSECONDS);
        assert!(work.is_used_up());
        work.gave_way(1, 0);
        assert!(!work.is_used_up());
    }
}
