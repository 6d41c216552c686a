//! Revision replay: writes in the order of their revisions, carried out on the model, must give
//! every reply. Each revision has one cause: an acknowledged write says its own; that of another is
//! found by what watchers and readers saw of it. O(n log n).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use revd_proto::etcdserverpb::{RequestOp, ResponseOp, TxnRequest, request_op, response_op};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use crate::Rules;
use crate::fault::{Check, Fault};
use crate::history::{Call, History, Outcome, Request, Response};
use crate::known::Known;
use crate::matching::{Maker, Matching};
use crate::model::{Attempt, Model, without_headers};

/// Faults after which a replay ends: those behind them follow from them.
const FAULTS_MAX: usize = 8;

/// Why there is a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The call of this number in the history.
    Call(usize),
    /// A lease was revoked, by a call or because it was due.
    Revoke {
        /// The lease.
        lease: i64,
        /// A deletion without an answer may have done the same.
        is_sure: bool,
    },
    /// A client that is not in the history.
    Others,
}

/// Everything that happened, as far as the history says.
#[derive(Debug)]
pub struct Truth {
    /// Every revision.
    pub model: Model,
    /// Of each revision behind the first.
    pub causes: BTreeMap<i64, Cause>,
    /// The replay has reached the last revision.
    pub is_whole: bool,
    /// Others have made changes that nobody saw.
    pub has_gaps: bool,
}

/// Whether an acknowledged call has changed something.
#[must_use]
pub fn has_changed(call: &Call) -> bool {
    match call.answer() {
        Some(Response::Put(_)) => true,
        Some(Response::DeleteRange(response)) => response.deleted > 0,
        Some(Response::Txn(response)) => ops_have_changed(&response.responses),
        _ => false,
    }
}

fn ops_have_changed(responses: &[ResponseOp]) -> bool {
    use response_op::Response as Answer;
    responses.iter().any(|response| match &response.response {
        Some(Answer::ResponsePut(_)) => true,
        Some(Answer::ResponseDeleteRange(response)) => response.deleted > 0,
        Some(Answer::ResponseTxn(response)) => ops_have_changed(&response.responses),
        Some(Answer::ResponseRange(_)) | None => false,
    })
}

/// The lease that a call may have granted.
fn granted(call: &Call) -> Option<i64> {
    match (&call.request, &call.outcome) {
        (_, Outcome::Answered(Response::LeaseGrant(response))) => Some(response.id),
        (Request::LeaseGrant(request), Outcome::Unknown(_)) => Some(request.id),
        _ => None,
    }
}

/// Replays a history.
#[must_use]
pub fn replay(history: &History, known: &Known, rules: &Rules) -> (Truth, Vec<Fault>) {
    let mut replay = Replay::new(history, known, rules);
    let last = replay.last();
    let model = &replay.truth.model;
    for revision in model.first() + 1..=last {
        replay.revision(revision);
        if replay.faults.len() >= FAULTS_MAX || replay.truth.model.revision() < revision {
            replay.truth.is_whole = false;
            break;
        }
    }
    if replay.faults.is_empty() {
        replay.all_is_known(last);
    }
    (replay.truth, replay.faults)
}

struct Replay<'h> {
    history: &'h History,
    known: &'h Known,
    rules: &'h Rules,
    truth: Truth,
    faults: Vec<Fault>,
    /// Acknowledged changes by revision.
    acknowledged: BTreeMap<i64, Vec<usize>>,
    /// Changes of each revision without an acknowledged write that anybody saw, by key.
    seen: BTreeMap<i64, BTreeMap<Bytes, Event>>,
    /// The keys of such revisions with several changes, in the orders in which watchers were told.
    orders: BTreeMap<i64, BTreeSet<Vec<Bytes>>>,
    /// Calls that put this value, whatever came of them.
    puts: BTreeMap<(Bytes, Bytes), Vec<usize>>,
    /// Calls without an answer that delete.
    deletions: Vec<usize>,
    /// How often each lease may have been granted.
    grants: BTreeMap<i64, usize>,
    /// Causes of revisions that no write was acknowledged at: each has one.
    makers: Matching,
}

impl<'h> Replay<'h> {
    fn new(history: &'h History, known: &'h Known, rules: &'h Rules) -> Self {
        let model = Model::new(history.first, &history.found);
        let mut replay = Self {
            history,
            known,
            rules,
            truth: Truth { model, causes: BTreeMap::new(), is_whole: true, has_gaps: false },
            faults: Vec::new(),
            acknowledged: BTreeMap::new(),
            seen: BTreeMap::new(),
            orders: BTreeMap::new(),
            puts: BTreeMap::new(),
            deletions: Vec::new(),
            grants: BTreeMap::new(),
            makers: Matching::default(),
        };
        for (number, call) in history.calls.iter().enumerate() {
            if has_changed(call) {
                let revision = call.shown().unwrap_or(0);
                replay.acknowledged.entry(revision).or_default().push(number);
            }
            let written = Written::of(&call.request);
            for put in written.puts {
                replay.puts.entry(put).or_default().push(number);
            }
            if written.deletes && matches!(call.outcome, Outcome::Unknown(_)) {
                replay.deletions.push(number);
            }
            if let Some(lease) = granted(call) {
                *replay.grants.entry(lease).or_default() += 1;
            }
        }
        replay.look();
        replay
    }

    /// Gathers what was seen of revisions that no write was acknowledged at.
    fn look(&mut self) {
        let revision = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let acknowledged = &self.acknowledged;
        let is_acknowledged = |revision: i64| acknowledged.contains_key(&revision);
        for response in self.history.watches.iter().flat_map(|watch| &watch.transcript.responses) {
            for event in &response.events {
                let Some(kv) = event.kv.as_ref().filter(|kv| !is_acknowledged(kv.mod_revision)) else {
                    continue;
                };
                let event = Event { prev_kv: None, ..event.clone() };
                self.seen.entry(kv.mod_revision).or_default().insert(kv.key.clone(), event);
            }
            let several = response.events.chunk_by(|one, other| revision(one) == revision(other));
            let is_of_interest =
                |events: &&[Event]| events.len() > 1 && !is_acknowledged(revision(&events[0]));
            for events in several.filter(is_of_interest) {
                let keys = events.iter().filter_map(|event| Some(event.kv.as_ref()?.key.clone()));
                self.orders.entry(revision(&events[0])).or_default().insert(keys.collect());
            }
        }
        for call in &self.history.calls {
            let Some(Response::Range(response)) = call.answer() else { continue };
            let is_whole = !matches!(&call.request, Request::Range(request) if request.keys_only);
            for kv in response.kvs.iter().filter(|kv| is_whole && !is_acknowledged(kv.mod_revision)) {
                let event = Event { r#type: EventType::Put as i32, kv: Some(kv.clone()), prev_kv: None };
                let seen = self.seen.entry(kv.mod_revision).or_default();
                seen.entry(kv.key.clone()).or_insert(event);
            }
        }
    }

    /// The last revision that anything is known of.
    fn last(&self) -> i64 {
        let acknowledged = self.acknowledged.keys().next_back();
        acknowledged.max(self.seen.keys().next_back()).copied().unwrap_or(self.history.first)
    }

    fn wrong(&mut self, text: String) {
        self.faults.push(Fault::new(Check::Replay, text));
    }

    fn call(&self, number: usize) -> &'h Call {
        &self.history.calls[number]
    }

    fn revision(&mut self, revision: i64) {
        let calls = self.acknowledged.get(&revision).cloned().unwrap_or_default();
        let Some(number) = calls.first().copied() else { return self.unacknowledged(revision) };
        if calls.len() > 1 {
            let calls: Vec<_> = calls.iter().map(|number| self.call(*number)).collect();
            self.wrong(format!("{} writes have the revision {revision}: {calls:?}", calls.len()));
        }
        let call = self.call(number);
        let done = Attempt::run(&self.truth.model, revision - 1, &call.request);
        let (response, changes) =
            done.map_or((None, Vec::new()), |(response, changes)| (Some(response), changes));
        let told = call.answer().cloned().map(without_headers);
        if response != told || changes.is_empty() {
            self.wrong(format!("{call:?}: the answer of the revisions before it is {response:?}"));
        }
        self.goes_on(Cause::Call(number), changes);
    }

    fn goes_on(&mut self, cause: Cause, changes: Vec<Event>) {
        self.truth.model.push(changes);
        self.truth.causes.insert(self.truth.model.revision(), cause);
    }

    /// A revision that no write was acknowledged at.
    fn unacknowledged(&mut self, revision: i64) {
        let seen = self.seen.get(&revision).cloned().unwrap_or_default();
        if seen.is_empty() && !self.rules.others_unseen {
            return self.wrong(format!("nobody knows what has changed at revision {revision}"));
        }
        let candidates = self.candidates(&seen);
        let is_known = !seen.is_empty();
        if is_known && let Some((cause, makers, changes)) = self.explained(&candidates, &seen) {
            if !self.makers.add(makers) {
                self.wrong(format!("revision {revision} has changes that were made before: {seen:?}"));
            }
            return self.goes_on(cause, changes);
        }
        let others = self.rules.others.as_ref();
        if !others.is_some_and(|others| seen.keys().all(|key| key.starts_with(others))) {
            let calls: Vec<_> = candidates.iter().map(|number| self.call(*number)).collect();
            self.wrong(format!("revision {revision} has changes that nobody made: {seen:?}; like {calls:?}"));
        }
        self.truth.has_gaps |= seen.is_empty();
        self.goes_on(Cause::Others, seen.into_values().collect());
    }

    /// Whether a call without an answer may have made the next revision: it began before that
    /// revision was shown.
    fn is_open(&self, number: usize) -> bool {
        let call = self.call(number);
        let began_before = self.known.before(call.began) <= self.truth.model.revision();
        matches!(call.outcome, Outcome::Unknown(_)) && began_before
    }

    /// Calls that put a value that was seen; if none was, those that delete.
    fn candidates(&self, seen: &BTreeMap<Bytes, Event>) -> Vec<usize> {
        let kvs = seen.values().filter(|event| event.r#type == EventType::Put as i32);
        match kvs.filter_map(|event| event.kv.as_ref()).next() {
            Some(KeyValue { key, value, .. }) => {
                self.puts.get(&(key.clone(), value.clone())).cloned().unwrap_or_default()
            }
            None => self.deletions.clone(),
        }
    }

    /// The changes that a request makes now, if all that was seen is among them.
    fn changes(&self, request: &Request, seen: &BTreeMap<Bytes, Event>) -> Option<Vec<Event>> {
        let model = &self.truth.model;
        let (_, changes) = Attempt::run(model, model.revision(), request)?;
        has_all(&changes, seen).then_some(changes)
    }

    /// The changes of a revision by calls without an answer or the end of a lease, and all that
    /// would make the same ones. Those who make just what was seen come before those who make more:
    /// not all may have been seen. Of two that differ in their order the right one is that
    /// of which watchers were told.
    fn explained(
        &self,
        candidates: &[usize],
        seen: &BTreeMap<Bytes, Event>,
    ) -> Option<(Cause, Vec<Maker>, Vec<Event>)> {
        let open = candidates.iter().copied().filter(|number| self.is_open(*number));
        let called = open.filter_map(|number| {
            Some((Maker::Call(number), self.changes(&self.call(number).request, seen)?))
        });
        let model = &self.truth.model;
        let lease = seen.keys().next().and_then(|key| model.get(key, model.revision()));
        let lease = lease.map_or(0, |kv| kv.lease);
        let revoked = Some(model.revoke(lease)).filter(|changes| lease != 0 && has_all(changes, seen));
        let ends = 0..revoked.as_ref().map_or(0, |_| self.grants.get(&lease).copied().unwrap_or(0).max(1));
        let revoked = ends.filter_map(|end| Some((Maker::Lease(lease, end), revoked.clone()?)));
        let orders = self.orders.get(&(model.revision() + 1));
        let is_as_told =
            |changes: &[Event]| orders.into_iter().flatten().all(|keys| has_order(changes, keys));
        let all = revoked.chain(called).filter(|(_, changes)| is_as_told(changes));
        let mut all: Vec<(Maker, Vec<Event>)> = all.collect();
        let best = all.iter().position(|(_, changes)| changes.len() == seen.len()).unwrap_or(0);
        let changes = all.get(best)?.1.clone();
        all.retain(|(_, others)| *others == changes);
        let makers: Vec<Maker> = all.into_iter().map(|(maker, _)| maker).collect();
        let is_sure = !makers.iter().any(|maker| matches!(maker, Maker::Call(_)));
        let cause = match makers[0] {
            Maker::Call(number) => Cause::Call(number),
            Maker::Lease(lease, _) => Cause::Revoke { lease, is_sure },
        };
        Some((cause, makers, changes))
    }

    /// No reply shows a revision behind the last one that is known.
    fn all_is_known(&mut self, last: i64) {
        if self.rules.others_unseen {
            return;
        }
        let beyond = self.history.calls.iter().find(|call| call.shown() > Some(last));
        if let Some(call) = beyond {
            self.wrong(format!(
                "revision {last} is the last that anybody knows, and a reply shows more: {call:?}"
            ));
        }
    }
}

/// Whether everything that was seen is among these changes.
fn has_all(changes: &[Event], seen: &BTreeMap<Bytes, Event>) -> bool {
    let by_key: BTreeMap<&[u8], &Event> =
        changes.iter().filter_map(|event| Some((&event.kv.as_ref()?.key[..], event))).collect();
    !changes.is_empty() && seen.iter().all(|(key, event)| by_key.get(&key[..]) == Some(&event))
}

/// Whether the changes of these keys come in this order.
fn has_order(changes: &[Event], keys: &[Bytes]) -> bool {
    let mut changed = changes.iter().filter_map(|event| Some(&event.kv.as_ref()?.key));
    keys.iter().all(|key| changed.any(|other| other == key))
}

/// The writes that a request may make.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Keys and values of its puts, on every branch.
    pub(crate) puts: Vec<(Bytes, Bytes)>,
    /// It may delete.
    pub(crate) deletes: bool,
}

impl Written {
    /// Looks into a request.
    #[must_use]
    pub(crate) fn of(request: &Request) -> Self {
        let mut written = Self::default();
        match request {
            Request::Put(put) => written.puts.push((put.key.clone(), put.value.clone())),
            Request::DeleteRange(_) => written.deletes = true,
            Request::Txn(txn) => written.txn(txn),
            _ => {}
        }
        written
    }

    fn txn(&mut self, txn: &TxnRequest) {
        use request_op::Request as Op;
        for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
            match request {
                Some(Op::RequestPut(put)) => self.puts.push((put.key.clone(), put.value.clone())),
                Some(Op::RequestDeleteRange(_)) => self.deletes = true,
                Some(Op::RequestTxn(txn)) => self.txn(txn),
                Some(Op::RequestRange(_)) | None => {}
            }
        }
    }
}
