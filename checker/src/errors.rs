//! Errors: clients of a cluster under faults meet only those that etcd's may give, and each call
//! those of its kind.

use std::collections::BTreeMap;

use revd_proto::etcdserverpb::RequestOp;
use revd_proto::etcdserverpb::request_op::Request as Op;

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{History, Outcome, Request};
use crate::leases::{NOT_FOUND, named};
use crate::reads::{COMPACTED, FUTURE};

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

/// Errors that no fault explains, and those that no call of its kind meets.
#[must_use]
pub(crate) fn check(history: &History, rules: &Rules) -> Vec<Fault> {
    let misplaced = history.calls.iter().filter_map(|call| match &call.outcome {
        Outcome::Refused(text) if !may_meet(&call.request, text) => {
            Some(format!("no such call fails so: {call:?}"))
        }
        _ => None,
    });
    let mut wrong: Vec<String> = misplaced.collect();
    if let Some(expected) = &rules.errors {
        let unexpected =
            counts(history).into_iter().filter(|(text, _)| !expected.iter().any(|known| known == text));
        wrong.extend(unexpected.map(|(text, count)| format!("{count} calls failed: {text}")));
    }
    wrong.into_iter().map(|text| Fault::new(Check::Errors, text)).collect()
}

/// Whether a call that asks for this may be refused in these words.
fn may_meet(request: &Request, text: &str) -> bool {
    if text.contains(NOT_FOUND) {
        return !named(request).is_empty();
    }
    if text.contains(COMPACTED) || text.contains(FUTURE) {
        return names_revision(request);
    }
    !text.contains("lease already exists") || matches!(request, Request::LeaseGrant(_))
}

fn names_revision(request: &Request) -> bool {
    fn any(ops: &[RequestOp]) -> bool {
        ops.iter().any(|op| match &op.request {
            Some(Op::RequestRange(range)) => range.revision > 0,
            Some(Op::RequestTxn(txn)) => any(&txn.success) || any(&txn.failure),
            _ => false,
        })
    }
    match request {
        Request::Range(range) => range.revision > 0,
        Request::Txn(txn) => any(&txn.success) || any(&txn.failure),
        Request::Compact(_) | Request::HashKv(_) => true,
        _ => false,
    }
}
