//! The end of one thread of a run: what it has measured.

use hdrhistogram::Histogram;

use crate::record::OpRecord;
use crate::run::callers::Callers;

/// The report of a thread.
pub(super) struct WorkerReport {
    pub(super) records: Vec<OpRecord>,
    pub(super) late: Histogram<u64>,
    pub(super) violations: Vec<String>,
    /// The share of its time in which the thread had work.
    pub(super) busy: f64,
    /// CPU nanoseconds of the measured time.
    pub(super) cpu: u64,
    pub(super) expected: u64,
    pub(super) unknown: u64,
    pub(super) delivered: u64,
    /// Watchers behind, or leases that did not end, when time was up.
    pub(super) missing: u64,
    /// Calls of an open loop that found no free caller.
    pub(super) unsent: u64,
    /// When the thread had nothing more to wait for, or was stopped: the last turn that read what
    /// was on its way. The measured time of a run by `total` ends with the last one of all threads.
    pub(super) ended: u64,
}

impl WorkerReport {
    /// That of these callers, whose calls that are under way have failed now; of the time that is
    /// measured the thread took `cpu` nanoseconds, and was busy for a share of it.
    pub(super) fn of(mut callers: Callers, cpu: u64, busy: f64, unsent: u64) -> Self {
        let missing = callers.source.waiting() + callers.watchers.behind() as u64;
        for caller in 0..callers.callers.len() {
            callers.fail(caller, "no answer before the run ended");
        }
        let mut violations = callers.violations;
        violations.append(&mut callers.watchers.violations);
        Self {
            late: callers.late,
            violations,
            busy,
            cpu,
            expected: callers.expected,
            unknown: callers.unknown,
            delivered: callers.watchers.delivered,
            missing,
            unsent,
            ended: callers.now,
            records: callers.records,
        }
    }
}
