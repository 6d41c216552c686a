//! Errors: clients of a cluster under faults meet only those that etcd's may give.

use std::collections::BTreeMap;

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{History, Outcome};

/// How often calls failed, by the error's text.
#[must_use]
pub fn counts(history: &History) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for call in &history.calls {
        if let Outcome::Unknown(text) | Outcome::Refused(text) = &call.outcome {
            *counts.entry(text.as_str()).or_insert(0) += 1;
        }
    }
    counts
}

/// Errors that no fault explains.
#[must_use]
pub(crate) fn check(history: &History, rules: &Rules) -> Vec<Fault> {
    let Some(expected) = &rules.errors else { return Vec::new() };
    let unexpected =
        counts(history).into_iter().filter(|(text, _)| !expected.iter().any(|known| known == text));
    let fault = |(text, count)| Fault::new(Check::Errors, format!("{count} calls failed: {text}"));
    unexpected.map(fault).collect()
}
