//! Leases: alive as long as the holder was promised by the holder's own clock, and gone in bounded
//! time, with all their keys in one revision; keepalives and times to live say what is true.

use std::collections::BTreeMap;

use bytes::Bytes;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{LeaseTimeToLiveResponse, RangeRequest, RequestOp};
use revd_proto::mvccpb::Event;

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{Call, History, Outcome, Request, Response, Time};
use crate::known::Known;
use crate::model::Version;
use crate::range::is_in_range;
use crate::replay::{Cause, Truth};

/// Microseconds of a second, in which leases are counted.
const SECOND: Time = 1_000_000;
/// etcd's words for a lease that is not there.
pub(crate) const NOT_FOUND: &str = "requested lease not found";

/// The words of clients and members about one lease.
#[derive(Debug, Default)]
pub struct Lease {
    /// The time to live that was granted, in seconds.
    granted: Option<i64>,
    /// It was granted so often.
    grants: usize,
    /// Beginnings and ends of calls that gave it its whole time again.
    renewals: Vec<(Time, Time, i64)>,
    /// When calls began that revoke it, whatever came of them.
    revokes: Vec<Time>,
    /// The end of a call that may have renewed it.
    maybe_until: Time,
    /// The first call that may have renewed it, at any time since, began then.
    maybe_from: Option<Time>,
}

impl Lease {
    /// It lives for sure until then.
    #[must_use]
    pub fn sure_until(&self, rules: &Rules) -> Time {
        self.sure_at(Time::MAX, rules)
    }

    /// The same, as far as it was known at a time.
    fn sure_at(&self, time: Time, rules: &Rules) -> Time {
        let known = self.renewals.iter().filter(|(_, returned, _)| *returned < time);
        let deadline = |(began, _, ttl): &(Time, Time, i64)| rules.earliest_end(*began, seconds(*ttl));
        known.map(deadline).max().unwrap_or(0)
    }

    /// It has ended by then, where nothing is wrong since a time.
    fn ended_by(&self, calm: Time, rules: &Rules) -> Time {
        let last = self.renewals.iter().map(|(_, returned, _)| *returned).max().unwrap_or(0);
        let ttl = self.renewals.iter().map(|(.., ttl)| *ttl).max().unwrap_or(0);
        last.max(self.maybe_until).max(calm) + rules.longest(seconds(ttl)) + rules.lease_slack
    }

    /// No call may have given it its whole time again in between.
    fn was_left_alone(&self, from: Time, to: Time) -> bool {
        let meets = |(began, returned, _): &(Time, Time, i64)| *began <= to && from <= *returned;
        !self.renewals.iter().any(meets) && self.maybe_from.is_none_or(|began| to < began)
    }

    fn may_be_renewed_by(&mut self, call: &Call) {
        self.maybe_until = self.maybe_until.max(call.returned);
        self.maybe_from = Some(self.maybe_from.map_or(call.began, |from| from.min(call.began)));
    }

    /// A call may have ended it by then.
    fn may_be_revoked(&self, by: Time) -> bool {
        self.revokes.iter().any(|began| *began < by)
    }
}

fn seconds(count: i64) -> Time {
    Time::try_from(count).unwrap_or(0) * SECOND
}

/// All leases of a history by id.
#[must_use]
pub fn leases(history: &History) -> BTreeMap<i64, Lease> {
    let mut leases: BTreeMap<i64, Lease> = BTreeMap::new();
    for call in &history.calls {
        let unknown = matches!(call.outcome, Outcome::Unknown(_));
        match (&call.request, call.answer()) {
            (_, Some(Response::LeaseGrant(response))) => {
                let lease = leases.entry(response.id).or_default();
                lease.granted = Some(response.ttl);
                lease.grants += 1;
                lease.renewals.push((call.began, call.returned, response.ttl));
            }
            (_, Some(Response::LeaseKeepAlive(response))) if response.ttl > 0 => {
                let lease = leases.entry(response.id).or_default();
                lease.renewals.push((call.began, call.returned, response.ttl));
            }
            (Request::LeaseRevoke(request), _) if !matches!(call.outcome, Outcome::Refused(_)) => {
                leases.entry(request.id).or_default().revokes.push(call.began);
            }
            (Request::LeaseKeepAlive(request), None) if unknown => {
                leases.entry(request.id).or_default().may_be_renewed_by(call);
            }
            (Request::LeaseGrant(request), None) if unknown => {
                let lease = leases.entry(request.id).or_default();
                lease.grants += 1;
                lease.may_be_renewed_by(call);
            }
            _ => {}
        }
    }
    leases
}

/// Holds leases against the truth.
#[must_use]
pub(crate) fn check(history: &History, truth: &Truth, known: &Known, rules: &Rules) -> Vec<Fault> {
    let leases = leases(history);
    let mut wrong = Vec::new();
    for call in &history.calls {
        let fault = answered(call, &leases, truth, rules).or_else(|| refused(call, &leases, rules));
        wrong.extend(fault.map(|text| format!("{text}: {call:?}")));
    }
    for (revision, cause) in &truth.causes {
        let Cause::Revoke { lease: id, is_sure: true } = cause else { continue };
        let (Some(lease), Some(at)) = (leases.get(id), known.when(*revision)) else { continue };
        let deadline = lease.sure_until(rules);
        if at < deadline && !lease.may_be_revoked(at) {
            wrong.push(format!(
                "lease {id} was to live until {deadline}, its keys are gone at {at}: {lease:?}"
            ));
        }
    }
    wrong.extend(attached_again(&leases, truth));
    wrong.extend(history.calls.iter().filter_map(|call| too_old(call, &leases, rules)));
    wrong.extend(grown(&times(history, rules), &leases, rules));
    wrong.into_iter().map(|text| Fault::new(Check::Leases, text)).collect()
}

/// The fault of an answer about a lease.
fn answered(call: &Call, leases: &BTreeMap<i64, Lease>, truth: &Truth, rules: &Rules) -> Option<String> {
    let early = |id: i64| {
        let lease = leases.get(&id)?;
        let deadline = lease.sure_until(rules);
        let is_early = call.returned < deadline && !lease.may_be_revoked(call.returned);
        is_early.then(|| format!("lease {id} was to live until {deadline}, and is gone"))
    };
    let granted = |id: i64| leases.get(&id).and_then(|lease| lease.granted);
    match (&call.request, call.answer()?) {
        (Request::LeaseGrant(request), Response::LeaseGrant(response)) => {
            let is_short = response.ttl < request.ttl || (request.id != 0 && request.id != response.id);
            is_short.then(|| "another lease than the one asked for".to_owned())
        }
        (_, Response::LeaseKeepAlive(response)) if response.ttl <= 0 => early(response.id),
        (_, Response::LeaseKeepAlive(response)) => {
            let is_other = granted(response.id).is_some_and(|granted| granted != response.ttl);
            is_other.then(|| format!("the lease was granted for {:?}", granted(response.id)))
        }
        (_, Response::LeaseTimeToLive(response)) if response.ttl < 0 && response.granted_ttl == 0 => {
            early(response.id)
        }
        (_, Response::LeaseTimeToLive(response)) => {
            let deadline = leases.get(&response.id)?.sure_at(call.began, rules);
            // Whole seconds; the answer is from before its arrival.
            let is_short = call.returned + seconds(response.ttl + 1) < deadline;
            let is_other = granted(response.id).is_some_and(|granted| granted != response.granted_ttl);
            (is_short || is_other)
                .then(|| format!("granted for {:?}, alive until {deadline}", granted(response.id)))
        }
        (Request::LeaseRevoke(request), Response::LeaseRevoke(response)) => {
            let revision = response.header.as_ref()?.revision.min(truth.model.revision());
            let is_left = |version: &&Version| version.kv.as_ref().is_some_and(|kv| kv.lease == request.id);
            let left = truth.model.versions().find(|(_, versions)| {
                let later = versions.partition_point(|version| version.main <= revision);
                versions[..later].last().filter(is_left).is_some()
            });
            left.map(|(key, _)| format!("{key:?} is still there at revision {revision}"))
        }
        _ => None,
    }
}

/// A call was told that its lease is not there, which lives for sure.
fn refused(call: &Call, leases: &BTreeMap<i64, Lease>, rules: &Rules) -> Option<String> {
    let Outcome::Refused(text) = &call.outcome else { return None };
    if !text.contains(NOT_FOUND) {
        return None;
    }
    let lives = |id: &i64| {
        let lease = leases.get(id)?;
        let deadline = lease.sure_at(call.began, rules);
        let lives = call.returned < deadline && !lease.may_be_revoked(call.returned);
        lives.then_some(deadline)
    };
    let named = named(&call.request);
    // One that is gone explains the refusal.
    let all_live = !named.is_empty() && named.iter().all(|id| lives(id).is_some());
    all_live.then(|| format!("leases {named:?} were to live until {:?}", lives(&named[0])))
}

/// The leases that a request names.
pub(crate) fn named(request: &Request) -> Vec<i64> {
    fn of(ops: &[RequestOp], found: &mut Vec<i64>) {
        for op in ops {
            match &op.request {
                Some(Op::RequestPut(put)) if put.lease != 0 => found.push(put.lease),
                Some(Op::RequestTxn(txn)) => {
                    of(&txn.success, found);
                    of(&txn.failure, found);
                }
                _ => {}
            }
        }
    }
    match request {
        Request::Put(put) if put.lease != 0 => vec![put.lease],
        Request::Txn(txn) => {
            let mut found = Vec::new();
            of(&txn.success, &mut found);
            of(&txn.failure, &mut found);
            found
        }
        Request::LeaseRevoke(request) => vec![request.id],
        Request::LeaseKeepAlive(request) => vec![request.id],
        Request::LeaseTimeToLive(request) => vec![request.id],
        _ => Vec::new(),
    }
}

/// An answer in a calm time, and when that began, of how long a lease has left.
type TimeLeft<'h> = (&'h Call, Time, &'h LeaseTimeToLiveResponse);

/// The answers in calm times about how long leases have left, by lease and in the order of the
/// calls. In the others a new leader may have lengthened them.
fn times<'h>(history: &'h History, rules: &Rules) -> BTreeMap<i64, Vec<TimeLeft<'h>>> {
    let mut answers: BTreeMap<i64, Vec<TimeLeft<'_>>> = BTreeMap::new();
    for call in &history.calls {
        if let Some(Response::LeaseTimeToLive(response)) = call.answer()
            && let Some(calm) = rules.calm_at(call.began)
        {
            answers.entry(response.id).or_default().push((call, calm, response));
        }
    }
    answers.values_mut().for_each(|answers| answers.sort_by_key(|(call, ..)| call.began));
    answers
}

/// Remaining times that grow while the lease is left alone, or exceed what was granted. A leader
/// that is new counts from the granted time, or a checkpoint, and adds an extension: it is another
/// if the term is.
fn grown(
    times: &BTreeMap<i64, Vec<TimeLeft<'_>>>,
    leases: &BTreeMap<i64, Lease>,
    rules: &Rules,
) -> Vec<String> {
    let term = |response: &LeaseTimeToLiveResponse| response.header.as_ref().map(|header| header.raft_term);
    let mut wrong = Vec::new();
    for (id, answers) in times {
        let Some(lease) = leases.get(id) else { continue };
        let exceeds = |response: &LeaseTimeToLiveResponse| {
            seconds(response.ttl) > seconds(response.granted_ttl) + rules.lease_slack
        };
        let longer = answers.iter().filter(|(.., response)| exceeds(response));
        wrong.extend(longer.map(|(call, ..)| format!("more time is left than was granted: {call:?}")));
        for pair in answers.windows(2) {
            let [(one, calm, before), (other, other_calm, after)] = pair else { continue };
            let is_one_leader =
                one.returned < other.began && calm == other_calm && term(before) == term(after);
            let is_alone = is_one_leader && lease.was_left_alone(one.began, other.returned);
            if is_alone && after.ttl > before.ttl {
                wrong.push(format!("lease {id} has more time left without a keepalive: {one:?}, {other:?}"));
            }
        }
    }
    wrong
}

/// Keys that are attached to a lease behind its end.
fn attached_again(leases: &BTreeMap<i64, Lease>, truth: &Truth) -> Vec<String> {
    let mut ended: BTreeMap<i64, i64> = BTreeMap::new();
    for (revision, cause) in &truth.causes {
        if let Cause::Revoke { lease, is_sure: true } = cause
            && leases.get(lease).is_some_and(|lease| lease.grants == 1)
        {
            ended.entry(*lease).or_insert(*revision);
        }
    }
    let kvs = truth.model.changes().iter().filter_map(|event| event.kv.as_ref());
    let late = kvs.filter(|kv| ended.get(&kv.lease).is_some_and(|end| kv.mod_revision > *end));
    late.map(|kv| format!("lease {} ended at revision {}, then {kv:?}", kv.lease, ended[&kv.lease])).collect()
}

/// How much of leases was judged.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LeasesJudged {
    /// Leases that ended by themselves, and whose keys a read then asked for in a calm time: each
    /// could have failed.
    pub ended: usize,
    /// Answers in calm times that said how long a lease has left.
    pub times: usize,
}

/// How much [`check`] has judged.
pub(crate) fn judged(history: &History, truth: &Truth, rules: &Rules) -> LeasesJudged {
    let times = times(history, rules).values().map(Vec::len).sum();
    LeasesJudged { ended: looked_for(history, truth, rules), times }
}

/// Leases that ended by themselves with a key that a read behind their end, in a calm time, asked
/// for: had one of them not ended, the read would have shown it.
fn looked_for(history: &History, truth: &Truth, rules: &Rules) -> usize {
    let leases = leases(history);
    let reads: Vec<(Time, Time, &RangeRequest)> = history
        .calls
        .iter()
        .filter_map(|call| match (&call.request, call.answer()) {
            (Request::Range(request), Some(_))
                if request.revision <= 0 && request.limit == 0 && !request.count_only =>
            {
                Some((call.began, rules.calm_at(call.began)?, request))
            }
            _ => None,
        })
        .collect();
    let is_looked_for = |revision: i64, lease: &Lease| {
        let changes = truth.model.changes();
        let from = changes.partition_point(|event| mod_revision(event) < revision);
        let keys = changes[from..].iter().take_while(|event| mod_revision(event) == revision);
        let keys: Vec<&Bytes> = keys.filter_map(|event| Some(&event.kv.as_ref()?.key)).collect();
        reads.iter().any(|(began, calm, read)| {
            *began > lease.ended_by(*calm, rules)
                && keys.iter().any(|key| is_in_range(key, &read.key, &read.range_end))
        })
    };
    let ends = truth.causes.iter().filter_map(|(revision, cause)| match cause {
        Cause::Revoke { lease, .. } => Some((*revision, leases.get(lease)?)),
        _ => None,
    });
    ends.filter(|(revision, lease)| {
        lease.granted.is_some() && lease.revokes.is_empty() && is_looked_for(*revision, lease)
    })
    .count()
}

fn mod_revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// A read that shows a key whose lease should have ended.
fn too_old(call: &Call, leases: &BTreeMap<i64, Lease>, rules: &Rules) -> Option<String> {
    let calm = rules.calm_at(call.began)?;
    let (Request::Range(request), Some(Response::Range(response))) = (&call.request, call.answer()) else {
        return None;
    };
    let is_old = |id: &i64| {
        let lease = leases.get(id).filter(|lease| request.revision <= 0 && lease.granted.is_some());
        lease.is_some_and(|lease| call.began > lease.ended_by(calm, rules))
    };
    let id = response.kvs.iter().map(|kv| kv.lease).filter(|id| *id != 0).find(is_old)?;
    Some(format!("lease {id} should have ended long ago, {:?}: {call:?}", leases.get(&id)))
}
