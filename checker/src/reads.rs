//! Reads show what the replay has at the revision that they name: every Range, Txns that changed
//! nothing, and refusals of revisions.

use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{Call, History, Outcome, Request, Response, Time};
use crate::known::Known;
use crate::model::{Attempt, without_headers};
use crate::replay::{Truth, has_changed};

/// etcd's words for a revision that is gone, and for one that is not there yet.
pub(crate) const COMPACTED: &str = "required revision has been compacted";
pub(crate) const FUTURE: &str = "required revision is a future revision";

/// A compaction: when it began, when it was acknowledged, up to where.
type Compaction = (Time, Option<Time>, i64);

/// Holds every read against the truth.
#[must_use]
pub(crate) fn check(history: &History, truth: &Truth, known: &Known, rules: &Rules) -> Vec<Fault> {
    let compactions: Vec<Compaction> = history.calls.iter().filter_map(compaction).collect();
    let mut faults = Vec::new();
    for call in &history.calls {
        let fault = match &call.outcome {
            Outcome::Answered(_) if has_changed(call) => None,
            Outcome::Answered(response) => answered(call, response, truth, &compactions),
            Outcome::Refused(text) => refused(call, text, &compactions, known, rules),
            Outcome::Unknown(_) => None,
        };
        faults.extend(fault.map(|text| Fault::new(Check::Reads, format!("{text}: {call:?}"))));
    }
    faults
}

fn compaction(call: &Call) -> Option<Compaction> {
    let Request::Compact(request) = &call.request else { return None };
    match &call.outcome {
        Outcome::Answered(_) => Some((call.began, Some(call.returned), request.revision)),
        Outcome::Unknown(_) => Some((call.began, None, request.revision)),
        Outcome::Refused(_) => None,
    }
}

fn answered(call: &Call, told: &Response, truth: &Truth, compactions: &[Compaction]) -> Option<String> {
    let at = told.revision();
    if at > truth.model.revision() || at < truth.model.first() {
        return None; // the replay says what is missing
    }
    if let Request::Range(request) = &call.request {
        let is_gone = |(_, end, up_to): &&Compaction| {
            !request.serializable && end.is_some_and(|end| end < call.began) && request.revision < *up_to
        };
        if request.revision > 0 && compactions.iter().any(|compaction| is_gone(&compaction)) {
            return Some("that revision is compacted".to_owned());
        }
    }
    let (expected, changes) = match Attempt::run(&truth.model, at, &call.request) {
        Some(done) => done,
        None if matches!(call.request, Request::Range(_) | Request::Put(_) | Request::Txn(_)) => {
            return Some(format!("revision {at} cannot answer it"));
        }
        None => return None,
    };
    let (told, expected) = (in_order(call, told.clone()), in_order(call, expected));
    if told == expected && changes.is_empty() {
        return None;
    }
    Some(format!("at revision {at} the answer is {expected:?}"))
}

/// Keys that are equal to the order that was asked for may come in any: then they are put in order.
fn in_order(call: &Call, response: Response) -> Response {
    let mut response = without_headers(response);
    if let (Request::Range(request), Response::Range(response)) = (&call.request, &mut response) {
        let RangeRequest { limit, .. } = request;
        let has_ties = request.sort_target() != SortTarget::Key && *limit == 0;
        if has_ties && request.sort_order() != SortOrder::None {
            response.kvs.sort_by(|one, other| one.key.cmp(&other.key));
        }
    }
    response
}

fn refused(
    call: &Call,
    text: &str,
    compactions: &[Compaction],
    known: &Known,
    rules: &Rules,
) -> Option<String> {
    let revision = match &call.request {
        Request::Range(request) => request.revision,
        Request::Compact(request) => request.revision,
        Request::HashKv(request) => request.revision,
        _ => return None,
    };
    if text.contains(COMPACTED) {
        if rules.others_compact {
            return None;
        }
        let may_be_gone = |(began, _, up_to): &Compaction| {
            let is_gone = if matches!(call.request, Request::Compact(_)) {
                revision <= *up_to
            } else {
                revision < *up_to
            };
            *began < call.returned && is_gone
        };
        return (!compactions.iter().any(may_be_gone)).then(|| "nobody has compacted that".to_owned());
    }
    let is_local = match &call.request {
        Request::Range(request) => request.serializable,
        Request::HashKv(_) => true,
        _ => false,
    };
    let is_there = revision <= known.before(call.began) && !is_local;
    (text.contains(FUTURE) && is_there).then(|| "that revision was shown before".to_owned())
}
