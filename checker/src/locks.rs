//! Locks: never two holders whose leases live for sure.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{History, Hold, Time};
use crate::leases::leases;

/// No two clients hold one lock at the same time.
#[must_use]
pub(crate) fn check(history: &History, rules: &Rules) -> Vec<Fault> {
    let leases = leases(history);
    let mut locks: BTreeMap<&Bytes, Vec<(Time, Time, &Hold)>> = BTreeMap::new();
    for hold in &history.holds {
        let sure = leases.get(&hold.lease).map_or(0, |lease| lease.sure_until(rules));
        let until = hold.until.map_or(sure, |until| until.min(sure));
        locks.entry(&hold.name).or_default().push((hold.from, until, hold));
    }
    let mut faults = Vec::new();
    for holds in locks.values_mut() {
        holds.sort_unstable_by_key(|(from, until, hold)| (*from, *until, hold.client));
        let mut last: Option<(Time, &Hold)> = None;
        for (from, until, hold) in holds.iter() {
            if let Some((end, other)) = last.filter(|(end, _)| from < end && from < until) {
                let text = format!("held until {end} by {other:?}, and by {hold:?} until {until}");
                faults.push(Fault::new(Check::Locks, text));
            }
            if last.is_none_or(|(end, _)| end < *until) {
                last = Some((*until, hold));
            }
        }
    }
    faults
}
