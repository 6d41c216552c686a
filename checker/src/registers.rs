//! A second opinion that trusts no revision: each key that is put, read and deleted alone is a
//! register, and some order of its calls that keeps to real time must explain all values.
//!
//! Calls are taken by their ends. The configurations after each are the value of the register with
//! those open calls that have had their effect already (Wing and Gong's search, with Lowe's
//! order of work); they are few while few calls to one key overlap.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::{
    Compare, RangeRequest, RequestOp, ResponseOp, TxnRequest, TxnResponse, request_op, response_op,
};
use revd_proto::mvccpb::KeyValue;

use crate::fault::{Check, Fault};
use crate::history::{Call, History, Outcome, Request, Response, Time};

/// A key with more configurations than this is left undecided.
const CONFIGURATIONS_MAX: usize = 4_000;

/// A value by its number; 0 is no value.
type Value = usize;

/// The value that a call found, as far as it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Anything,
    Some,
    Is(Value),
}

/// A call to a register: the value it found, and the one it left.
#[derive(Debug, Clone, Copy)]
struct Op {
    found: Found,
    left: Option<Value>,
    began: Time,
    /// None: it may have its effect at any time, or never.
    returned: Option<Time>,
    call: usize,
}

impl Op {
    fn takes(&self, value: Value) -> Option<Value> {
        let is_right = match self.found {
            Found::Anything => true,
            Found::Some => value != 0,
            Found::Is(found) => value == found,
        };
        is_right.then(|| self.left.unwrap_or(value))
    }
}

/// The calls to one key.
#[derive(Debug, Default)]
struct Register {
    ops: Vec<Op>,
    values: BTreeMap<Bytes, Value>,
    /// Leases, ranges or nested transactions may change it too.
    is_excluded: bool,
}

impl Register {
    fn value(&mut self, value: Option<&Bytes>) -> Value {
        let next = self.values.len() + 1;
        value.map_or(0, |value| *self.values.entry(value.clone()).or_insert(next))
    }
}

/// Every key as a register; also how many keys were decided.
#[must_use]
pub(crate) fn check(history: &History) -> (Vec<Fault>, usize) {
    let mut registers = Registers::default();
    for kv in &history.found {
        registers.0.entry(kv.key.clone()).or_default().is_excluded = true;
    }
    for (number, call) in history.calls.iter().enumerate() {
        registers.call(number, call);
    }
    registers.exclude_ranges(history);
    let (mut faults, mut decided) = (Vec::new(), 0);
    for (key, register) in registers.0.iter_mut().filter(|(_, register)| !register.is_excluded) {
        match search(register) {
            Ok(is_decided) => decided += usize::from(is_decided),
            Err(call) => {
                let (key, call) = (String::from_utf8_lossy(key), &history.calls[call]);
                let text = format!("{key}: no order of the calls before explains {call:?}");
                faults.push(Fault::new(Check::Registers, text));
            }
        }
    }
    (faults, decided)
}

#[derive(Debug, Default)]
struct Registers(BTreeMap<Bytes, Register>);

impl Registers {
    fn call(&mut self, number: usize, call: &Call) {
        if matches!(call.outcome, Outcome::Refused(_)) {
            return;
        }
        let mut add = |key: &Bytes, found, left| self.add(key, number, call, found, left);
        match (&call.request, call.answer()) {
            (Request::Put(put), response) => {
                let before = match response {
                    Some(Response::Put(response)) if put.prev_kv => Saw::kv(response.prev_kv.as_ref()),
                    _ => Saw::Anything,
                };
                add(&put.key, before, Some(Some(&put.value)));
                let is_odd = put.lease != 0 || put.ignore_lease || put.ignore_value;
                self.exclude(&put.key, is_odd);
            }
            (Request::DeleteRange(delete), response) if delete.range_end.is_empty() => {
                let found = match response {
                    Some(Response::DeleteRange(response)) if response.deleted > 0 => {
                        response.prev_kvs.first().map_or(Saw::Some, |kv| Saw::Value(Some(&kv.value)))
                    }
                    Some(_) => Saw::Value(None),
                    None => Saw::Anything,
                };
                add(&delete.key, found, Some(None));
            }
            (Request::Range(range), Some(Response::Range(response))) if is_read(range) => {
                add(&range.key, Saw::kv(response.kvs.first()), None);
            }
            (Request::Txn(txn), Some(Response::Txn(response))) => self.txn(number, call, txn, Some(response)),
            (Request::Txn(txn), None) => self.txn(number, call, txn, None),
            _ => {}
        }
    }

    fn add(&mut self, key: &Bytes, number: usize, call: &Call, saw: Saw, left: Option<Option<&Bytes>>) {
        let register = self.0.entry(key.clone()).or_default();
        let found = match saw {
            Saw::Anything => Found::Anything,
            Saw::Some => Found::Some,
            Saw::Value(value) => Found::Is(register.value(value)),
        };
        let left = left.map(|left| register.value(left));
        let returned = call.answer().map(|_| call.returned);
        if left.is_some() || found != Found::Anything {
            register.ops.push(Op { found, left, began: call.began, returned, call: number });
        }
    }

    /// A transaction, as what it does to each of its keys.
    fn txn(&mut self, number: usize, call: &Call, txn: &TxnRequest, response: Option<&TxnResponse>) {
        let keys = Touched::by(txn);
        for key in &keys.odd {
            self.exclude(key, true);
        }
        for key in &keys.plain {
            let saw = compared(key, &txn.compare).map_or(Saw::Anything, Saw::Value);
            match response {
                Some(TxnResponse { succeeded: true, responses, .. }) => {
                    let (saw, left) = follow(key, &txn.success, responses, saw);
                    self.add(key, number, call, saw, left);
                }
                Some(TxnResponse { responses, .. }) => {
                    let (saw, left) = follow(key, &txn.failure, responses, Saw::Anything);
                    self.add(key, number, call, saw, left);
                }
                None => {
                    for branch in [&txn.success, &txn.failure] {
                        let (_, left) = follow(key, branch, &[], Saw::Anything);
                        self.add(key, number, call, Saw::Anything, left);
                    }
                }
            }
        }
    }

    fn exclude(&mut self, key: &Bytes, is_odd: bool) {
        self.0.entry(key.clone()).or_default().is_excluded |= is_odd;
    }

    /// Keys in ranges that were deleted, whatever came of it.
    fn exclude_ranges(&mut self, history: &History) {
        let mut ranges = BTreeSet::new();
        for call in &history.calls {
            match &call.request {
                Request::DeleteRange(delete) if !delete.range_end.is_empty() => {
                    ranges.insert((delete.key.clone(), delete.range_end.clone()));
                }
                Request::Txn(txn) => ranges.extend(Touched::by(txn).ranges),
                _ => {}
            }
        }
        for (key, register) in &mut self.0 {
            register.is_excluded |=
                ranges.iter().any(|(start, end)| crate::range::is_in_range(key, start, end));
        }
    }
}

/// The value that a call says it found.
#[derive(Debug, Clone, Copy)]
enum Saw<'c> {
    Anything,
    Some,
    Value(Option<&'c Bytes>),
}

impl<'c> Saw<'c> {
    fn kv(kv: Option<&'c KeyValue>) -> Self {
        Self::Value(kv.map(|kv| &kv.value))
    }
}

/// A read of one key's value as it is now.
fn is_read(range: &RangeRequest) -> bool {
    let is_now = range.revision <= 0 && !range.serializable;
    is_now && range.range_end.is_empty() && !range.count_only && !range.keys_only
}

/// The value of a key that a branch of a transaction saw, and the one it left there.
fn follow<'t>(
    key: &Bytes,
    branch: &'t [RequestOp],
    responses: &'t [ResponseOp],
    mut saw: Saw<'t>,
) -> (Saw<'t>, Option<Option<&'t Bytes>>) {
    use request_op::Request as Op;
    let mut left = None;
    for (number, op) in branch.iter().enumerate() {
        let response = responses.get(number).and_then(|response| response.response.as_ref());
        match (&op.request, response) {
            (Some(Op::RequestPut(put)), _) if put.key == key => left = Some(Some(&put.value)),
            (Some(Op::RequestDeleteRange(delete)), _) if delete.key == key => left = Some(None),
            (Some(Op::RequestRange(range)), Some(response_op::Response::ResponseRange(response)))
                if range.key == key && is_read(range) && left.is_none() =>
            {
                saw = Saw::kv(response.kvs.first());
            }
            _ => {}
        }
    }
    (saw, left)
}

/// The value that a key had if a comparison for equality held.
fn compared<'t>(key: &Bytes, compares: &'t [Compare]) -> Option<Option<&'t Bytes>> {
    compares.iter().filter(|compare| compare.key == key && compare.range_end.is_empty()).find_map(|compare| {
        match (compare.result(), compare.target(), &compare.target_union) {
            (CompareResult::Equal, CompareTarget::Value, Some(TargetUnion::Value(value))) => {
                Some(Some(value))
            }
            (CompareResult::Equal, CompareTarget::Version, Some(TargetUnion::Version(0)))
            | (CompareResult::Equal, CompareTarget::Create, Some(TargetUnion::CreateRevision(0)))
            | (CompareResult::Equal, CompareTarget::Mod, Some(TargetUnion::ModRevision(0))) => Some(None),
            _ => None,
        }
    })
}

/// The keys of a transaction.
#[derive(Debug, Default)]
struct Touched {
    plain: BTreeSet<Bytes>,
    /// Written in ways that this check does not follow.
    odd: Vec<Bytes>,
    ranges: Vec<(Bytes, Bytes)>,
}

impl Touched {
    fn by(txn: &TxnRequest) -> Self {
        let mut touched = Self::default();
        touched.see(txn, false);
        touched
    }

    fn see(&mut self, txn: &TxnRequest, is_nested: bool) {
        use request_op::Request as Op;
        for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
            match request {
                Some(Op::RequestPut(put)) => {
                    if is_nested || put.lease != 0 || put.ignore_lease || put.ignore_value {
                        self.odd.push(put.key.clone());
                    }
                    self.plain.insert(put.key.clone());
                }
                Some(Op::RequestDeleteRange(delete)) if !delete.range_end.is_empty() => {
                    self.ranges.push((delete.key.clone(), delete.range_end.clone()));
                }
                Some(Op::RequestDeleteRange(delete)) => {
                    if is_nested {
                        self.odd.push(delete.key.clone());
                    }
                    self.plain.insert(delete.key.clone());
                }
                Some(Op::RequestRange(range)) if is_read(range) && !is_nested => {
                    self.plain.insert(range.key.clone());
                }
                Some(Op::RequestTxn(txn)) => self.see(txn, true),
                Some(Op::RequestRange(_)) | None => {}
            }
        }
    }
}

/// Open calls that have had their effect, by the places that calls have while they are open.
trait Effective: Clone + Ord + Default {
    fn has(&self, place: usize) -> bool;
    fn with(&self, place: usize) -> Self;
    fn without(&self, place: usize) -> Self;
}

/// Few calls to a key are open at a time.
impl Effective for u64 {
    fn has(&self, place: usize) -> bool {
        self >> place & 1 == 1
    }

    fn with(&self, place: usize) -> Self {
        self | 1 << place
    }

    fn without(&self, place: usize) -> Self {
        self & !(1 << place)
    }
}

impl Effective for BTreeSet<usize> {
    fn has(&self, place: usize) -> bool {
        self.contains(&place)
    }

    fn with(&self, place: usize) -> Self {
        let mut more = self.clone();
        more.insert(place);
        more
    }

    fn without(&self, place: usize) -> Self {
        let mut less = self.clone();
        less.remove(&place);
        less
    }
}

/// The calls to a register, and a place for each that no other one has while it is open.
struct Calls<'o> {
    ops: &'o [Op],
    places: Vec<usize>,
    /// The beginnings and ends of calls by time; beginnings come first.
    events: Vec<(Time, bool, usize)>,
    /// Places that are needed.
    most: usize,
}

impl<'o> Calls<'o> {
    fn new(ops: &'o [Op]) -> Self {
        let begins = ops.iter().enumerate().map(|(number, op)| (op.began, false, number));
        let ends = ops.iter().enumerate().filter_map(|(number, op)| Some((op.returned?, true, number)));
        let mut events: Vec<_> = begins.chain(ends).collect();
        events.sort_unstable();
        let (mut places, mut free, mut most) = (vec![0; ops.len()], Vec::new(), 0);
        for (_, is_end, number) in &events {
            if *is_end {
                free.push(places[*number]);
            } else {
                places[*number] = free.pop().unwrap_or(most);
                most = most.max(places[*number] + 1);
            }
        }
        Self { ops, places, events, most }
    }
}

/// Whether the register was decided.
///
/// # Errors
/// The call that nothing explains.
fn search(register: &mut Register) -> Result<bool, usize> {
    // An open call whose value is seen by nobody explains nothing.
    let sees = |op: &Op| match op.found {
        Found::Is(value) => Some(value),
        Found::Anything | Found::Some => None,
    };
    let seen: BTreeSet<Value> = register.ops.iter().filter_map(sees).collect();
    let sees_any = register.ops.iter().any(|op| op.found == Found::Some);
    let is_seen = |op: &Op| op.left.is_some_and(|left| sees_any || seen.contains(&left));
    register.ops.retain(|op| op.returned.is_some() || is_seen(op));
    let calls = Calls::new(&register.ops);
    if calls.most <= 64 { explain::<u64>(&calls) } else { explain::<BTreeSet<usize>>(&calls) }
}

/// Goes through the calls by their ends.
fn explain<E: Effective>(calls: &Calls<'_>) -> Result<bool, usize> {
    let mut open = BTreeSet::new();
    let mut configurations = BTreeSet::from([(0, E::default())]);
    for (_, is_end, number) in &calls.events {
        if !*is_end {
            open.insert(*number);
            continue;
        }
        let fault = Err(calls.ops[*number].call);
        if !open.contains(number) {
            return fault; // it ended before it began
        }
        let Some(next) = after(calls, &open, configurations, *number) else { return Ok(false) };
        if next.is_empty() {
            return fault;
        }
        configurations = next;
        open.remove(number);
    }
    Ok(true)
}

/// The configurations, each a value and the open calls that have had their effect, in which a call
/// that ends has had its own; none if they are too many.
fn after<E: Effective>(
    calls: &Calls<'_>,
    open: &BTreeSet<usize>,
    configurations: BTreeSet<(Value, E)>,
    ending: usize,
) -> Option<BTreeSet<(Value, E)>> {
    let open: Vec<(usize, &Op)> =
        open.iter().map(|number| (calls.places[*number], &calls.ops[*number])).collect();
    let ending = calls.places[ending];
    let mut left: Vec<(Value, E)> = configurations.iter().cloned().collect();
    let (mut seen, mut next) = (configurations, BTreeSet::new());
    while let Some((value, effective)) = left.pop() {
        if effective.has(ending) {
            next.insert((value, effective.without(ending)));
            continue;
        }
        for (place, op) in open.iter().filter(|(place, _)| !effective.has(*place)) {
            let Some(value) = op.takes(value) else { continue };
            let after = (value, effective.with(*place));
            if seen.insert(after.clone()) {
                left.push(after);
            }
        }
        if seen.len() > CONFIGURATIONS_MAX {
            return None;
        }
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look like chance, always the same.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (self.0 >> 33) % bound
        }
    }

    /// Calls to one register, most of them with true values.
    fn ops(random: &mut Random) -> Vec<Op> {
        let (mut value, mut ops) = (0, Vec::new());
        for call in 0..40 {
            let number = |random: &mut Random, bound: u64| {
                usize::try_from(random.below(bound)).expect("a small number")
            };
            let is_write = random.below(2) == 0;
            let found = if is_write { Found::Anything } else { Found::Is(value) };
            let found = if random.below(60) == 0 { Found::Is(number(random, 40)) } else { found };
            if is_write {
                value = call + 1;
            }
            let at = 10 * call as Time;
            let (began, end) = (at.saturating_sub(random.below(40)), at + random.below(40));
            let returned = (random.below(12) > 0).then_some(end);
            ops.push(Op { found, left: is_write.then_some(call + 1), began, returned, call });
        }
        ops
    }

    /// Sets of open calls in a word, and any others, lead to the same.
    #[test]
    fn sets_of_any_size_explain_the_same() {
        let (mut random, mut explained) = (Random(1), [0; 2]);
        for _ in 0..300 {
            let ops = ops(&mut random);
            let calls = Calls::new(&ops);
            let result = explain::<u64>(&calls);
            assert_eq!(result, explain::<BTreeSet<usize>>(&calls));
            explained[usize::from(result == Ok(true))] += 1;
        }
        assert!(explained.iter().all(|count| *count > 20), "{explained:?}");
    }
}
