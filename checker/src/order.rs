//! Real time: a call shows everything that was shown before it began, and a write comes behind it;
//! a member shows no older revision than before. Two sweeps over the times, O(n log n).

use std::collections::BTreeMap;

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{Call, History, Request, Time};
use crate::known::{Known, Shown, by_replies, by_watchers};
use crate::replay::has_changed;

/// Whether a call has to show everything that was shown before it began.
fn is_linearizable(call: &Call) -> bool {
    match &call.request {
        Request::Range(request) => !request.serializable,
        // Without any op, etcd compares with what the member has.
        Request::Txn(request) => !is_serializable(request),
        Request::Put(_) | Request::DeleteRange(_) | Request::Compact(_) | Request::LeaseRevoke(_) => true,
        // Their headers show what the member has when it answers.
        Request::HashKv(_)
        | Request::LeaseGrant(_)
        | Request::LeaseKeepAlive(_)
        | Request::LeaseTimeToLive(_) => false,
    }
}

fn is_serializable(request: &revd_proto::etcdserverpb::TxnRequest) -> bool {
    use revd_proto::etcdserverpb::request_op::Request as Op;
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| matches!(&op.request, Some(Op::RequestRange(request)) if request.serializable))
}

/// Acknowledged writes behind everything that was shown, linearizable calls not before it. The
/// replay holds the same against writes without an answer.
#[must_use]
pub(crate) fn check(history: &History, known: &Known) -> Vec<Fault> {
    let mut faults = Vec::new();
    for call in &history.calls {
        let (Some(revision), floor) = (call.shown(), known.before(call.began)) else { continue };
        if has_changed(call) {
            faults.extend(behind(call, revision, floor));
        } else if is_linearizable(call) && revision < floor {
            let text = format!("revision {floor} was shown before this call began: {call:?}");
            faults.push(Fault::new(Check::StaleRead, text));
        }
    }
    faults
}

fn behind(call: &Call, revision: i64, floor: i64) -> Option<Fault> {
    (revision <= floor).then(|| {
        let text = format!("a write at revision {revision} began when {floor} had been shown: {call:?}");
        Fault::new(Check::Order, text)
    })
}

/// No member goes back.
#[must_use]
pub(crate) fn check_members(history: &History, rules: &Rules) -> Vec<Fault> {
    let mut shown = by_replies(history);
    if rules.watches_show {
        shown.extend(by_watchers(history));
    }
    shown.sort_unstable();
    // Of each place, the newest revision by the time it was shown.
    let place = |member: u32, life: u32| (member, if rules.goes_on { 0 } else { life });
    let mut places: BTreeMap<(u32, u32), Vec<(Time, i64)>> = BTreeMap::new();
    for Shown { at, revision, place: (member, life) } in shown {
        let newest = places.entry(place(member, life)).or_default();
        if newest.last().is_none_or(|(_, newest)| *newest < revision) {
            newest.push((at, revision));
        }
    }
    let goes_back = |call: &Call| {
        let newest = places.get(&place(call.member, call.life))?;
        let later = newest.partition_point(|(at, _)| *at < call.began);
        let (_, floor) = newest[later.checked_sub(1)?];
        let revision = call.shown().filter(|revision| *revision < floor)?;
        let Call { member, .. } = call;
        let text = format!("member {member} shows {revision} after {floor} was shown: {call:?}");
        Some(Fault::new(Check::GoesBack, text))
    };
    history.calls.iter().filter_map(goes_back).collect()
}
