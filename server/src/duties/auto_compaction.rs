//! Auto compaction, by etcd's two rules.
//!
//! *Periodic*: keep what is younger than a period. Revisions are noted at every tenth of the period
//! (of an hour, for a longer one); after the first period, and then every period (or hour), the
//! store is compacted at the revision of one period ago. *Revision*: every five minutes, keep that
//! many newest revisions. The leader does it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use revd_member::error::Error;
use serde_json::json;

use crate::api::Api;
use crate::config::Retention;
use crate::duties::pace::rest;
use crate::observe::log;

/// The longest time between two periodic compactions.
const PERIODIC_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Revisions are noted so many times in that interval.
const NOTES_PER_INTERVAL: u32 = 10;
/// How often the revision rule looks.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>, retention: Retention) {
    let mut duty = AutoCompaction::new(retention);
    let Some(interval) = duty.interval() else { return };
    loop {
        // Every member notes revisions, so that a new leader goes on from them; only the leader
        // compacts.
        let due = duty.look(api.context().revision());
        if let Some(revision) = due.filter(|_| api.context().leads()) {
            let fields = |outcome: &str| json!({"revision": revision, "outcome": outcome});
            match api.kv().compact_at(revision).await {
                // A client was faster: the revisions are gone all the same.
                Ok(()) | Err(Error::Compacted) => {
                    duty.compacted(revision);
                    log::info("auto compaction", fields("compacted"));
                }
                Err(error) => log::warn("auto compaction", fields(&format!("{error}; will be tried again"))),
            }
        }
        rest(interval).await;
    }
}

/// Decides when to compact at which revision.
#[derive(Debug)]
pub struct AutoCompaction {
    retention: Retention,
    /// Revisions noted, oldest first.
    notes: VecDeque<i64>,
    /// Looks since the last compaction.
    looks: u32,
    /// Looks that must have passed: the first time a whole period.
    looks_min: u32,
    last: i64,
}

impl AutoCompaction {
    /// Nothing noted yet.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        let mut new = Self { retention, notes: VecDeque::new(), looks: 0, looks_min: 1, last: 0 };
        if let Retention::Period(_) = retention {
            new.looks_min = new.notes_max() - 1;
        }
        new
    }

    /// How often [`AutoCompaction::look`] wants to be asked; none if never.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        match self.retention {
            Retention::All => None,
            Retention::Period(period) => Some(period.min(PERIODIC_INTERVAL_MAX) / NOTES_PER_INTERVAL),
            Retention::Revisions(_) => Some(REVISION_INTERVAL),
        }
    }

    /// Notes that reach back one period.
    fn notes_max(&self) -> u32 {
        match (self.retention, self.interval()) {
            (Retention::Period(period), Some(interval)) if !interval.is_zero() => {
                u32::try_from(period.as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX - 1) + 1
            }
            _ => 1,
        }
    }

    /// Told the current revision, says at which one to compact now, if at any.
    pub fn look(&mut self, revision: i64) -> Option<i64> {
        self.looks += 1;
        let due = match self.retention {
            Retention::All => return None,
            Retention::Period(_) => {
                let due = self.notes.front().copied();
                self.notes.push_back(revision);
                if self.notes.len() > self.notes_max() as usize {
                    self.notes.pop_front();
                }
                due.filter(|_| self.looks > self.looks_min)?
            }
            Retention::Revisions(kept) => revision - kept,
        };
        (due > 0 && due != self.last).then_some(due)
    }

    /// The store is compacted at `revision`, by this or by someone else.
    pub fn compacted(&mut self, revision: i64) {
        self.last = revision;
        self.looks = 1;
        self.looks_min = match self.retention {
            Retention::Period(_) => NOTES_PER_INTERVAL,
            _ => 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks with ten new revisions each; which looks compact at what.
    fn compactions(retention: Retention, looks: i64) -> Vec<(i64, i64)> {
        let mut duty = AutoCompaction::new(retention);
        let mut compactions = Vec::new();
        for look in 0..looks {
            if let Some(revision) = duty.look((look + 1) * 10) {
                compactions.push((look, revision));
                duty.compacted(revision);
            }
        }
        compactions
    }

    #[test]
    fn an_hour_is_kept_and_compacted_hourly() {
        let hour = Retention::Period(Duration::from_secs(3600));
        assert_eq!(AutoCompaction::new(hour).interval(), Some(Duration::from_secs(360)));
        // Look 0 is at the start; at look 10 an hour has passed.
        assert_eq!(compactions(hour, 32), [(10, 10), (20, 100), (30, 200)]);
    }

    #[test]
    fn a_day_is_kept_and_compacted_hourly_once_a_day_has_passed() {
        let found = compactions(Retention::Period(Duration::from_secs(24 * 3600)), 262);
        assert_eq!(found, [(240, 10), (250, 100), (260, 200)]);
    }

    #[test]
    fn so_many_revisions_are_kept() {
        assert_eq!(compactions(Retention::Revisions(25), 5), [(2, 5), (3, 15), (4, 25)]);
    }

    #[test]
    fn nothing_new_is_not_compacted_again_and_a_failure_is_tried_again() {
        let mut duty = AutoCompaction::new(Retention::Revisions(1));
        assert_eq!(duty.look(5), Some(4));
        assert_eq!(duty.look(5), Some(4), "the compaction was not confirmed");
        duty.compacted(4);
        assert_eq!(duty.look(5), None);
    }

    #[test]
    fn everything_is_kept_by_default() {
        assert_eq!(AutoCompaction::new(Retention::All).interval(), None);
    }
}
