//! Members are byte for byte equal behind the same entry.

use std::collections::BTreeMap;

use crate::fault::{Check, Fault};
use crate::history::{History, StateAt};

/// States that differ behind the same entry.
#[must_use]
pub(crate) fn check(history: &History) -> Vec<Fault> {
    let mut first: BTreeMap<u64, &StateAt> = BTreeMap::new();
    let mut faults = Vec::new();
    for state in &history.states {
        let known = *first.entry(state.index).or_insert(state);
        if known.digest != state.digest {
            let text = format!(
                "behind entry {} member {} has {:?} and member {} has {:?}",
                state.index, known.member, known.digest, state.member, state.digest
            );
            faults.push(Fault::new(Check::Members, text));
        }
    }
    faults
}
