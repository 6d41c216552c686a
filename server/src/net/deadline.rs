//! Time on a connection: its timer, and the deadlines of its calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use revd_member::error::Status;

use crate::limits;
use crate::queues::sleep::{Sleep, sleep};

/// A duration on the core's clock; one that is too long counts as for ever.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

/// How a call ends whose deadline has passed, as grpc-go words it.
pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// Wakes its connection's task at the next moment at which the connection must act by itself. Times
/// are milliseconds of the core's clock.
#[derive(Default)]
pub(super) struct Timer {
    /// The next such moment.
    at: Option<u64>,
    /// The timer that wakes the task, and when it does.
    running: Option<(u64, Sleep)>,
}

impl Timer {
    /// Adds a moment at which to act; the earliest counts.
    pub(super) fn add(&mut self, at: u64) {
        if at != u64::MAX {
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
        }
    }

    /// Sets the next moment at which to act.
    pub(super) fn set(&mut self, at: Option<u64>) {
        self.at = at.filter(|at| *at != u64::MAX);
    }

    /// Whether the moment to act has come.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Starts a timer that wakes the task in time, unless one is running. An early timer only costs
    /// a look.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, now: u64) {
        let Some(at) = self.at else { return self.running = None };
        // A running timer is not polled again: it knows its task, and a look at the list of waits
        // in each turn would be for nothing.
        if self.running.as_ref().is_some_and(|(runs_until, _)| (now + 1..=at).contains(runs_until)) {
            return;
        }
        // At least a millisecond, so that a moment that has passed does not wake the task at once.
        let runs_until = at.max(now + 1);
        let mut timer = sleep(Duration::from_millis(runs_until - now));
        let _ = Pin::new(&mut timer).poll(context);
        self.running = Some((runs_until, timer));
    }
}

/// Streams of calls that have a deadline, the soonest first. A call that ends earlier stays in the
/// heap until its deadline, or until such calls are many: each call costs the logarithm of the
/// heap, one without a deadline nothing.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BinaryHeap<Reverse<(u64, u32)>>);

impl Deadlines {
    /// Adds a call on `stream`, one of `open` streams; `u64::MAX` stands for no deadline.
    pub(super) fn add(&mut self, deadline: u64, stream: u32, open: usize, is_open: impl Fn(u32) -> bool) {
        if deadline == u64::MAX {
            return;
        }
        if self.0.len() > limits::DEADLINES_ENDED_MAX + 2 * open {
            self.0.retain(|Reverse((_, stream))| is_open(*stream));
        }
        self.0.push(Reverse((deadline, stream)));
    }

    /// Takes a stream whose deadline has passed; its call may have ended before.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<u32> {
        let Reverse((deadline, stream)) = *self.0.peek()?;
        (deadline <= now).then(|| {
            self.0.pop();
            stream
        })
    }

    /// The next deadline of a stream that is open.
    pub(super) fn next(&mut self, is_open: impl Fn(u32) -> bool) -> Option<u64> {
        while let Some(Reverse((deadline, stream))) = self.0.peek() {
            if is_open(*stream) {
                return Some(*deadline);
            }
            self.0.pop();
        }
        self.0.shrink_to(limits::DEADLINES_ENDED_MAX);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn deadlines_of_ten_thousand_streams_cost_a_look_each() {
        const STREAMS: u32 = 10_000;
        let looks = Cell::new(0);
        let look = |is_open: bool| {
            looks.set(looks.get() + 1);
            is_open
        };
        let mut deadlines = Deadlines::default();
        for at in 0..STREAMS {
            // The last comes first.
            deadlines.add(u64::from(STREAMS - at), 1 + 2 * at, at as usize, |_| look(true));
        }
        for now in 0..=u64::from(STREAMS) {
            let due = deadlines.pop_due(now);
            assert_eq!(due, (now > 0).then(|| 1 + 2 * (STREAMS - u32::try_from(now).unwrap())));
            assert_eq!(deadlines.pop_due(now), None, "each has a time of its own");
            let next = deadlines.next(|_| look(true));
            assert_eq!(next, (now < u64::from(STREAMS)).then_some(now + 1));
        }
        assert!(looks.get() <= STREAMS + 1, "{} looks", looks.get());
    }

    #[test]
    fn calls_that_end_before_their_time_do_not_pile_up() {
        let looks = Cell::new(0_u64);
        let mut deadlines = Deadlines::default();
        deadlines.add(u64::MAX, 1, 0, |_| true);
        assert!(deadlines.0.is_empty(), "a call without a deadline costs nothing");
        for at in 0..100_000 {
            // The last ten are open.
            let is_open = |stream: u32| {
                looks.set(looks.get() + 1);
                stream > 2 * (at - 10_u32.min(at))
            };
            deadlines.add(5_000 + u64::from(at), 1 + 2 * at, 10, is_open);
            assert!(deadlines.0.len() <= limits::DEADLINES_ENDED_MAX + 21, "{} are kept", deadlines.0.len());
        }
        assert!(looks.get() < 2 * 100_000, "{} looks", looks.get());
        assert_eq!(deadlines.next(|stream| stream == 199_999), Some(104_999));
        assert_eq!((deadlines.next(|_| false), deadlines.0.len()), (None, 0));
    }
}
