//! The next moment at which a connection has something to do by itself.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

/// Wakes its connection's task. Times are milliseconds of the core's clock.
#[derive(Default)]
pub(super) struct Timer {
    /// When there is something to do.
    at: Option<u64>,
    /// What wakes the task, and when.
    running: Option<(u64, Pin<Box<glommio::timer::Timer>>)>,
}

impl Timer {
    /// There is something to do then, or not later.
    pub(super) fn add(&mut self, at: u64) {
        if at != u64::MAX {
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
        }
    }

    /// The next thing to do is then.
    pub(super) fn set(&mut self, at: Option<u64>) {
        self.at = at.filter(|at| *at != u64::MAX);
    }

    /// The time has come.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Has the task woken in time. A timer that is early only costs a look.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, now: u64) {
        let Some(at) = self.at else { return self.running = None };
        // A running timer is not polled again: it knows its task, and asking glommio each turn costs more than the turn.
        if self.running.as_ref().is_some_and(|(runs_until, _)| (now + 1..=at).contains(runs_until)) {
            return;
        }
        // At least a little, so that a moment that has passed does not come back at once.
        let runs_until = at.max(now + 1);
        let mut timer = Box::pin(glommio::timer::Timer::new(Duration::from_millis(runs_until - now)));
        let _ = timer.as_mut().poll(context);
        self.running = Some((runs_until, timer));
    }
}
