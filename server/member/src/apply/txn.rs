//! Transactions: compare, then one of two branches, all in one revision.
//!
//! As etcd does it: every compare, those of nested transactions too, is evaluated against the state
//! before the outermost one; then everything on the taken path that could fail is checked; then the
//! path is carried out, each operation seeing what those before it did.

use bytes::Bytes;
use revd_engine::mvcc::{Reader, View};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use revd_proto::tags::{response_op, txn_response};

use crate::apply::compare::{Comparing, Path, branch};
use crate::apply::kv::{self, Long};
use crate::apply::reply::Reply;
use crate::apply::state::{State, Writing};
use crate::budget::Share;
use crate::error::Error;
use crate::lease::Leases;
use crate::limits;
use crate::read::parts::{DeferredRead, ReadRequest, ReplyPart, TxnOp};
use crate::read::range;
use crate::wire::put_number;

/// Only ranges on both branches: answered without the log. A nested transaction is none.
#[must_use]
pub fn is_read_only(request: &TxnRequest) -> bool {
    let is_range = |op: &RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
    request.success.iter().chain(&request.failure).all(is_range)
}

/// Whether a read-only transaction may be answered from any state: all of its ranges say so, and
/// one without ranges counts as such, as in etcd.
#[must_use]
pub fn is_serializable(request: &TxnRequest) -> bool {
    let is_serializable =
        |op: &RequestOp| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable);
    request.success.iter().chain(&request.failure).all(is_serializable)
}

/// Carries out a transaction on the store; nothing changes if it fails. How much it reads and
/// compares is bounded whether anybody wants its reply or not, so that all members have the same
/// answer, also when they start again.
///
/// # Errors
/// The error that the client gets.
pub(super) fn apply(state: &mut State, request: &TxnRequest, mut reply: Reply) -> Result<Reply, Error> {
    let path = evaluate(state.store.reader(), request)?;
    let found = check_path(&state.store.reader(), Some(&state.leases), request, &path)?;
    if found.reads > limits::TXN_READS_MAX {
        return Err(Error::TxnReads { reads_max: limits::TXN_READS_MAX });
    }
    let long = if found.reads > limits::TXN_READS_AT_ONCE { Long::AllLater } else { Long::Later };
    // A put that needs its key can fail now: if something before it in the same transaction deletes
    // the key, or if what is there cannot be read.
    state.write(found.needs_key, |writing| {
        carry_out(writing, request, long, &mut path.iter(), &mut reply)?;
        Ok(reply)
    })
}

fn evaluate(reader: Reader<'_>, request: &TxnRequest) -> Result<Path, Error> {
    let mut comparing = Comparing::new(reader, request);
    if !comparing.turn(limits::TXN_COMPARED_KEYS_MAX)? {
        return Err(Error::TxnCompares { keys_max: limits::TXN_COMPARED_KEYS_MAX });
    }
    Ok(comparing.path())
}

/// The reply to a read-only transaction in parts, and before it what
/// would keep it from being answered.
///
/// # Errors
/// The error that the client gets.
pub fn read_only_parts(view: &View, request: &TxnRequest, path: &Path) -> Result<Vec<ReplyPart>, Error> {
    check_path(&view.reader(), None, request, path)?;
    let mut body = Vec::new();
    put_number(&mut body, txn_response::SUCCEEDED, i64::from(path[0]));
    let mut parts = vec![ReplyPart::Bytes(body.into())];
    for op in branch(request, path[0]) {
        if let Some(Request::RequestRange(range)) = &op.request {
            let op = TxnOp { tag: response_op::RESPONSE_RANGE, revision: Some(view.revision()) };
            let what = ReadRequest::Range(range.clone());
            parts.push(ReplyPart::Op(
                op,
                vec![ReplyPart::Read(Box::new(DeferredRead { view: view.clone(), what }))],
            ));
        }
    }
    Ok(parts)
}

/// The reads of the taken path: ranges, and keys before they change.
#[must_use]
pub fn reads(request: &TxnRequest, path: &Path) -> Vec<ReadRequest> {
    let mut found = Vec::new();
    add_reads(request, &mut path.iter(), &mut found);
    found
}

fn add_reads(request: &TxnRequest, path: &mut dyn Iterator<Item = &bool>, found: &mut Vec<ReadRequest>) {
    let succeeded = *path.next().expect("a step for each transaction");
    for op in branch(request, succeeded) {
        match &op.request {
            Some(Request::RequestRange(range)) => found.push(ReadRequest::Range(range.clone())),
            Some(Request::RequestPut(put)) => found.extend(kv::put_read(put)),
            Some(Request::RequestDeleteRange(delete)) => found.extend(kv::delete_read(delete)),
            Some(Request::RequestTxn(txn)) => add_reads(txn, path, found),
            None => {}
        }
    }
}

/// Whether it may read many keys: there is a read of a range in any
/// branch, or there are many of one key.
#[must_use]
pub fn may_read_much(request: &TxnRequest) -> bool {
    keys_read(request) > limits::WRITE_READS_UNCHECKED
}

/// At most so many keys are read, as far as the request shows.
fn keys_read(request: &TxnRequest) -> usize {
    let keys = |range_end: &Bytes| if range_end.is_empty() { 1 } else { usize::MAX };
    let of_op = |op: &RequestOp| match &op.request {
        Some(Request::RequestRange(range)) => keys(&range.range_end),
        Some(Request::RequestPut(put)) => usize::from(put.prev_kv),
        Some(Request::RequestDeleteRange(delete)) if delete.prev_kv => keys(&delete.range_end),
        Some(Request::RequestTxn(txn)) => keys_read(txn),
        Some(Request::RequestDeleteRange(_)) | None => 0,
    };
    request.success.iter().chain(&request.failure).map(of_op).fold(0, usize::saturating_add)
}

/// Checks the taken path, in order, against the state before it.
fn check_path(
    reader: &Reader<'_>,
    leases: Option<&Leases>,
    request: &TxnRequest,
    path: &Path,
) -> Result<Found, Error> {
    let mut found = Found::default();
    check_ops(reader, leases, request, &mut path.iter(), &mut found)?;
    Ok(found)
}

/// A summary of the operations on a path.
#[derive(Default)]
struct Found {
    deletes: bool,
    needs_key: bool,
    /// Ranges, and changes that say what was before them.
    reads: usize,
    /// There was a change since the last range.
    is_changed: bool,
}

impl Found {
    fn read(&mut self, range_end: &Bytes) {
        let shares = !range_end.is_empty() && std::mem::take(&mut self.is_changed);
        self.reads += if shares { limits::READS_PER_STATE } else { 1 };
    }
}

fn check_ops(
    reader: &Reader<'_>,
    leases: Option<&Leases>,
    request: &TxnRequest,
    path: &mut dyn Iterator<Item = &bool>,
    found: &mut Found,
) -> Result<(), Error> {
    let succeeded = *path.next().expect("a step for each transaction");
    for op in branch(request, succeeded) {
        match &op.request {
            Some(Request::RequestRange(range)) => {
                check_range(reader, range)?;
                found.read(&range.range_end);
            }
            Some(Request::RequestPut(put)) => {
                check_put(reader, leases, put)?;
                found.needs_key |= put.ignore_value || put.ignore_lease;
                found.reads += usize::from(put.prev_kv);
                found.is_changed = true;
            }
            Some(Request::RequestDeleteRange(delete)) => {
                found.deletes = true;
                if delete.prev_kv {
                    found.read(&delete.range_end);
                }
                found.is_changed = true;
            }
            Some(Request::RequestTxn(txn)) => check_ops(reader, leases, txn, path, found)?,
            None => {}
        }
    }
    Ok(())
}

fn check_range(reader: &Reader<'_>, range: &RangeRequest) -> Result<(), Error> {
    if range.revision > reader.revision() {
        return Err(Error::FutureRevision);
    }
    // Unlike in a plain range, a negative revision is not the newest one here.
    if range.revision != 0 && range.revision < reader.compact_revision() {
        return Err(Error::Compacted);
    }
    Ok(())
}

fn check_put(reader: &Reader<'_>, leases: Option<&Leases>, put: &PutRequest) -> Result<(), Error> {
    leases.map_or(Ok(()), |leases| leases.check(put.lease))?;
    if (put.ignore_value || put.ignore_lease) && reader.get(&put.key, i64::MAX).is_none() {
        return Err(Error::KeyNotFound);
    }
    Ok(())
}

fn carry_out(
    txn: &mut Writing<'_>,
    request: &TxnRequest,
    long: Long,
    path: &mut dyn Iterator<Item = &bool>,
    reply: &mut Reply,
) -> Result<(), Error> {
    let succeeded = *path.next().expect("a step for each transaction");
    if let Some(body) = reply.open() {
        put_number(body, txn_response::SUCCEEDED, i64::from(succeeded));
    }
    for op in branch(request, succeeded) {
        let mut response = reply.inner();
        let tag = match &op.request {
            Some(Request::RequestRange(range)) => {
                read_in(txn, range, long, &mut response);
                response_op::RESPONSE_RANGE
            }
            Some(Request::RequestPut(put)) => {
                kv::put_in(txn, put, long, &mut response)?;
                response_op::RESPONSE_PUT
            }
            Some(Request::RequestDeleteRange(delete)) => {
                kv::delete_in(txn, delete, long, &mut response);
                response_op::RESPONSE_DELETE_RANGE
            }
            Some(Request::RequestTxn(inner)) => {
                carry_out(txn, inner, long, path, &mut response)?;
                reply.respond(TxnOp { tag: response_op::RESPONSE_TXN, revision: None }, response);
                continue;
            }
            None => continue, // refused by the checks of the API
        };
        reply.respond(TxnOp { tag, revision: Some(txn.revision()) }, response);
    }
    Ok(())
}

fn read_in(txn: &mut Writing<'_>, request: &RangeRequest, long: Long, reply: &mut Reply) {
    if !reply.is_wanted() {
        return;
    }
    let is_small = || request.revision == 0 && kv::at_once(&txn.reader(), &request.key, long).is_some();
    if request.range_end.is_empty() && (long == Long::Later || is_small()) {
        // One key: no bound that depends on this member's memory.
        let answer = range::answer(request, txn.reader(), &Share::new(usize::MAX));
        if let (Ok(answer), Some(body)) = (answer, reply.open()) {
            answer.iter().for_each(|chunk| body.extend_from_slice(chunk));
            return;
        }
    }
    // Also what cannot be read: it must not decide what is written.
    reply.read_later(DeferredRead { view: txn.view(), what: ReadRequest::Range(request.clone()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::{Command, CommandId, Kind, Origin, encode};
    use crate::apply::outcome::{Effect, Outcome};
    use crate::apply::{CommittedEntry, FatalError, Machine, MachineConfig};
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::{Applied, CheckpointKind, Store};
    use revd_proto::etcdserverpb::DeleteRangeRequest;
    use std::sync::Arc;

    const OWN: Origin = Origin { member: 1, boot: 1 };

    /// A machine in whose tree file the value of `old` cannot be read.
    fn machine() -> Machine {
        let disk = SimDisk::new();
        let open = || Store::open(Arc::new(disk.clone()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let mut store = open();
        let mut txn = store.begin();
        txn.put(b"old", &[0xa5; 4000], 0);
        txn.commit();
        store.set_applied(Applied { index: 1, term: 1 });
        let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
        store.finish_checkpoint(written);
        disk.damage(|bytes| {
            let at = bytes.windows(64).position(|window| window == [0xa5; 64]).unwrap();
            bytes[at + 32] ^= 1;
        });
        let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
        Machine::new(open(), config).unwrap()
    }

    /// Rights are asked for what is read, so that none of it may be passed over.
    #[test]
    fn reads_are_those_of_the_taken_branches() {
        let get = |key: &'static str| RangeRequest { key: key.into(), ..RangeRequest::default() };
        let put = |key: &'static str, prev_kv| {
            Request::RequestPut(PutRequest { key: key.into(), prev_kv, ..PutRequest::default() })
        };
        let delete = |key: &'static str, prev_kv| {
            let range_end = "z".into();
            Request::RequestDeleteRange(DeleteRangeRequest { key: key.into(), range_end, prev_kv })
        };
        let inner = TxnRequest {
            failure: txn_of([Request::RequestRange(get("of the failure"))]).success,
            ..txn_of([Request::RequestRange(get("nested")), delete("f", true), put("e", true)])
        };
        let txn = txn_of([
            put("a", false),
            put("b", true),
            Request::RequestTxn(inner),
            delete("c", false),
            Request::RequestRange(get("d")),
        ]);
        let read = |request: ReadRequest| match request {
            ReadRequest::Range(range) => range.key,
            ReadRequest::Previous { key, range_end, .. } => [&key[..], &range_end].join(&b'-').into(),
        };
        let read = |path: Path| reads(&txn, &path).into_iter().map(read).collect::<Vec<_>>();
        assert_eq!(read(vec![true, true]), ["b-", "nested", "f-z", "e-", "d"]);
        assert_eq!(read(vec![true, false]), ["b-", "of the failure", "d"]);
        assert_eq!(read(vec![false]), [""; 0]);
    }

    /// The reply of such a transaction is measured before it is proposed.
    #[test]
    fn transactions_that_may_read_much_are_those_with_a_range_or_many_keys() {
        let get = |range_end: &'static str| {
            let (key, range_end) = ("a".into(), range_end.into());
            Request::RequestRange(RangeRequest { key, range_end, ..RangeRequest::default() })
        };
        let delete = |prev_kv| {
            let (key, range_end) = ("a".into(), "z".into());
            Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv })
        };
        let many = |count: usize| txn_of((0..count).map(|_| get("")));
        let nested = |inner| txn_of([Request::RequestTxn(inner)]);
        let otherwise = |txn: TxnRequest| TxnRequest { failure: txn.success, ..TxnRequest::default() };
        for few in [many(limits::WRITE_READS_UNCHECKED), txn_of([delete(false)]), nested(many(1))] {
            assert!(!may_read_much(&few) && !may_read_much(&otherwise(few)));
        }
        for much in [many(limits::WRITE_READS_UNCHECKED + 1), txn_of([get("b")]), txn_of([delete(true)])] {
            assert!(may_read_much(&much) && may_read_much(&otherwise(much.clone())));
            assert!(may_read_much(&nested(otherwise(much))));
        }
    }

    fn apply_one(machine: &mut Machine, origin: Origin, txn: &TxnRequest) -> Result<(), FatalError> {
        apply_all(machine, origin, txn, &mut Vec::new())
    }

    fn apply_all(
        machine: &mut Machine,
        origin: Origin,
        txn: &TxnRequest,
        effects: &mut Vec<Effect>,
    ) -> Result<(), FatalError> {
        let payload = prost::Message::encode_to_vec(txn).into();
        let command = Command { id: CommandId::new(0, 1, 2), kind: Kind::Txn, payload };
        let data = encode(origin, &[command]).into();
        let index = machine.store().applied().index + 1;
        machine.apply(&CommittedEntry { index, term: 1, data, change: None }, 0, effects)
    }

    fn txn_of(requests: impl IntoIterator<Item = Request>) -> TxnRequest {
        let success = requests.into_iter().map(|request| RequestOp { request: Some(request) });
        TxnRequest { success: success.collect(), ..TxnRequest::default() }
    }

    fn outcome(machine: &mut Machine, txn: &TxnRequest) -> Outcome {
        let mut effects = Vec::new();
        apply_all(machine, OWN, txn, &mut effects).unwrap();
        match effects.pop() {
            Some(Effect::Reply(_, outcome)) => outcome,
            other => panic!("{other:?} is no reply"),
        }
    }

    /// A state that is shared in the middle of a transaction keeps parts of the index, which no
    /// budget counts: there are few of them, and none for what is shorter.
    #[test]
    fn states_shared_in_the_middle_of_a_transaction_are_few() {
        let mut machine = machine();
        let put = |_| Request::RequestPut(PutRequest { prev_kv: true, ..put("small") });
        let small = outcome(&mut machine, &txn_of((0..5_000).map(put)));
        assert!(small.result.is_ok() && small.rest.parts().is_empty());
        let large = PutRequest {
            key: "small".into(),
            value: vec![1; 2 * limits::READ_AT_ONCE_BYTES].into(),
            ..PutRequest::default()
        };
        let revision = outcome(&mut machine, &txn_of([Request::RequestPut(large)])).revision;
        assert!(outcome(&mut machine, &txn_of([put(0)])).result.is_ok());
        let get = RangeRequest { key: "small".into(), revision, ..RangeRequest::default() };
        let old = outcome(
            &mut machine,
            &txn_of((0..20).map(|_| Request::RequestRange(get.clone())).chain([put(0)])),
        );
        assert!(!old.rest.parts().is_empty(), "what was longer at an older revision is left to the edge");
        let all = RangeRequest { key: "a".into(), range_end: "b".into(), ..RangeRequest::default() };
        let pairs = |count| (0..count).flat_map(|at| [put(at), Request::RequestRange(all.clone())]);
        assert!(outcome(&mut machine, &txn_of(pairs(900))).result.is_ok());
        let ranges = (0..9_000).map(|_| Request::RequestRange(all.clone()));
        assert!(outcome(&mut machine, &txn_of(ranges)).result.is_ok(), "of one state");
        let before = machine.store().revision();
        let refused = outcome(&mut machine, &txn_of(pairs(1_000)));
        assert_eq!(refused.result, Err(Error::TxnReads { reads_max: limits::TXN_READS_MAX }));
        assert_eq!(machine.store().revision(), before);
    }

    fn put(key: &'static str) -> PutRequest {
        PutRequest { key: key.into(), ..PutRequest::default() }
    }

    /// A value that is needed and cannot be read ends the member with an error, also in the middle
    /// of a transaction, and nothing is changed.
    #[test]
    fn a_damaged_value_that_is_needed_changes_nothing() {
        let mut machine = machine();
        let needing = PutRequest { ignore_value: true, ..put("old") };
        let txn = txn_of([Request::RequestPut(put("new")), Request::RequestPut(needing)]);
        let before = machine.store().revision();
        assert!(apply_one(&mut machine, OWN, &txn).is_err());
        assert_eq!(machine.store().revision(), before);
        assert!(machine.store().reader().get(b"new", i64::MAX).is_none());
    }

    /// A value that only the reply needs does not decide what is written: the result is the same
    /// whether a caller waits for the reply or not.
    #[test]
    fn a_damaged_value_in_a_reply_does_not_decide_what_is_written() {
        let get = RangeRequest { key: "old".into(), ..RangeRequest::default() };
        let replaced = PutRequest { prev_kv: true, ..put("old") };
        let ops =
            [Request::RequestPut(put("new")), Request::RequestRange(get), Request::RequestPut(replaced)];
        for origin in [OWN, Origin { member: 2, boot: 1 }] {
            let mut machine = machine();
            let before = machine.store().revision();
            apply_one(&mut machine, origin, &txn_of(ops.clone())).unwrap();
            assert_eq!(machine.store().revision(), before + 1);
        }
    }

    /// As with etcd: the log is asked for unless every operation is a range, and a quorum unless
    /// each range says that it need not be.
    #[test]
    fn a_transaction_is_as_strict_as_its_strictest_operation() {
        let range = |serializable| {
            let range = RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() };
            RequestOp { request: Some(Request::RequestRange(range)) }
        };
        let put = || RequestOp { request: Some(Request::RequestPut(PutRequest::default())) };
        let nested = || RequestOp { request: Some(Request::RequestTxn(TxnRequest::default())) };
        for (ops, is_read_only, is_serializable) in [
            (vec![], true, true),
            (vec![range(true), range(true)], true, true),
            (vec![range(true), range(false)], true, false),
            (vec![range(true), put()], false, false),
            (vec![nested()], false, false),
        ] {
            let (success, failure) = (ops.clone(), ops);
            let branches = [
                TxnRequest { success, ..TxnRequest::default() },
                TxnRequest { failure, ..TxnRequest::default() },
            ];
            for txn in branches {
                assert_eq!(super::is_read_only(&txn), is_read_only, "{txn:?}");
                assert_eq!(super::is_serializable(&txn), is_serializable, "{txn:?}");
            }
        }
    }
}
