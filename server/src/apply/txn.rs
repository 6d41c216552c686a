//! Transactions: compare, then one of two branches, all in one revision.
//!
//! As etcd does it: every compare, those of nested transactions too, is evaluated against the state before the
//! outermost one; then everything on the taken path that could fail is checked; then the path is carried out, each
//! operation seeing what those before it did.

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_engine::mvcc::{Direction, KeyRange, Reader, StoredRecord};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};

use crate::apply::kv;
use crate::apply::state::{State, Writing};
use crate::error::Error;
use crate::lease::Leases;
use crate::limits;
use crate::read::budget::ReplyBudget;
use crate::read::range;
use crate::wire::{put_field, put_number};

/// Decodes a transaction, however deep, without recursing deeper than the limit.
///
/// # Errors
/// [`Error::TooManyOperations`] when nested too deep, [`Error::Malformed`].
pub fn decode(bytes: &Bytes) -> Result<TxnRequest, Error> {
    decode_nested(bytes.clone(), 0)
}

// prost bounds recursion at 100 messages, which 50 nested transactions reach; etcd takes 127. So the recursive part
// is decoded here and everything else by prost.
fn decode_nested(mut bytes: Bytes, depth: usize) -> Result<TxnRequest, Error> {
    if depth > limits::TXN_DEPTH_MAX {
        return Err(Error::TooManyOperations);
    }
    let mut txn = TxnRequest::default();
    while let Some((field, mut part)) = next_field(&mut bytes)? {
        match field {
            1 => txn.compare.push(Compare::decode(part).map_err(Error::from)?),
            2 | 3 => {
                let mut op = RequestOp::default();
                while let Some((field, part)) = next_field(&mut part)? {
                    op.request = match field {
                        4 => Some(Request::RequestTxn(decode_nested(part, depth + 1)?)),
                        _ => leaf_op(field, part)?.or(op.request),
                    };
                }
                if field == 2 { &mut txn.success } else { &mut txn.failure }.push(op);
            }
            _ => {}
        }
    }
    Ok(txn)
}

fn leaf_op(field: u32, part: Bytes) -> Result<Option<Request>, Error> {
    Ok(match field {
        1 => Some(Request::RequestRange(prost::Message::decode(part).map_err(Error::from)?)),
        2 => Some(Request::RequestPut(prost::Message::decode(part).map_err(Error::from)?)),
        3 => Some(Request::RequestDeleteRange(prost::Message::decode(part).map_err(Error::from)?)),
        _ => None,
    })
}

/// The next length-delimited field; fields of other types are unknown here and skipped.
pub(super) fn next_field(bytes: &mut Bytes) -> Result<Option<(u32, Bytes)>, Error> {
    while bytes.has_remaining() {
        let (field, wire) = prost::encoding::decode_key(bytes).map_err(Error::from)?;
        if wire == prost::encoding::WireType::LengthDelimited {
            let len = prost::encoding::decode_varint(bytes).map_err(Error::from)?;
            let len = usize::try_from(len).ok().filter(|len| *len <= bytes.len());
            let len = len.ok_or(Error::Malformed("proto: cannot parse invalid wire-format data"))?;
            return Ok(Some((field, bytes.split_to(len))));
        }
        prost::encoding::skip_field(wire, field, bytes, prost::encoding::DecodeContext::default())
            .map_err(Error::from)?;
    }
    Ok(None)
}

/// Only ranges on both branches: answered without the log. A nested transaction is none.
#[must_use]
pub fn is_read_only(request: &TxnRequest) -> bool {
    let is_range = |op: &RequestOp| matches!(op.request, Some(Request::RequestRange(_)));
    request.success.iter().chain(&request.failure).all(is_range)
}

/// Whether a read-only transaction may be answered from any state: all of its ranges say so, and one without ranges
/// counts as such, as in etcd.
#[must_use]
pub fn is_serializable(request: &TxnRequest) -> bool {
    let is_serializable =
        |op: &RequestOp| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable);
    request.success.iter().chain(&request.failure).all(is_serializable)
}

/// Which branch each transaction takes, the nested ones of the taken branches in order behind their parent.
type Path = Vec<bool>;

/// Carries out a transaction on the store; nothing changes if it fails.
///
/// # Errors
/// What the client gets.
pub(super) fn apply(state: &mut State, request: &TxnRequest) -> Result<Bytes, Error> {
    let path = evaluate(&state.store.reader(), request)?;
    let may_fail = check_path(&state.store.reader(), Some(&state.leases), request, &path)?;
    // A put that needs its key can only fail now if something before it in the same transaction deletes the key.
    state.write(may_fail, |writing| {
        let mut body = Vec::new();
        carry_out(writing, request, &mut path.iter(), &mut body)?;
        Ok(body.into())
    })
}

/// Answers a read-only transaction from a state.
///
/// # Errors
/// What the client gets.
pub fn answer_read_only(
    reader: Reader<'_>,
    request: &TxnRequest,
    budget: &ReplyBudget,
) -> Result<Bytes, Error> {
    let path = evaluate(&reader, request)?;
    check_path(&reader, None, request, &path)?;
    let mut body = Vec::new();
    put_number(&mut body, TAG_SUCCEEDED, i64::from(path[0]));
    for op in branch(request, path[0]) {
        if let Some(Request::RequestRange(range)) = &op.request {
            let answer = range::answer(range, reader, budget)?.concat();
            respond(&mut body, TAG_RANGE, Some(reader.revision()), &answer);
        }
    }
    Ok(body.into())
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

fn nested(ops: &[RequestOp]) -> impl Iterator<Item = &TxnRequest> {
    ops.iter().filter_map(|op| match &op.request {
        Some(Request::RequestTxn(txn)) => Some(txn),
        _ => None,
    })
}

fn evaluate(reader: &Reader<'_>, request: &TxnRequest) -> Result<Path, Error> {
    let mut succeeded = true;
    for compare in &request.compare {
        if !holds(reader, compare)? {
            succeeded = false;
            break;
        }
    }
    let mut path = vec![succeeded];
    for txn in nested(branch(request, succeeded)) {
        path.extend(evaluate(reader, txn)?);
    }
    Ok(path)
}

/// Whether every key of the comparison's range satisfies it; a missing key counts as all zeros, except that no
/// comparison of its value holds.
fn holds(reader: &Reader<'_>, compare: &Compare) -> Result<bool, Error> {
    let range = KeyRange::from_wire(&compare.key, &compare.range_end);
    let mut found = false;
    for (_, meta) in reader.scan(range, i64::MAX, Direction::Forward) {
        found = true;
        let record =
            if needs_record(compare) { range::stored(reader, meta)? } else { StoredRecord::default() };
        let numbers = [meta.version, meta.create_revision, meta.modified.main, record.stamp.lease];
        if !satisfies(compare, numbers, record.value) {
            return Ok(false);
        }
    }
    Ok(found || (compare.target != CompareTarget::Value as i32 && satisfies(compare, [0; 4], &[])))
}

fn needs_record(compare: &Compare) -> bool {
    compare.target == CompareTarget::Value as i32 || compare.target == CompareTarget::Lease as i32
}

/// One key, given as version, create revision, mod revision, lease, and value. An operand of another kind than the
/// target counts as zero; an unknown target as equal; an unknown operator as satisfied.
fn satisfies(compare: &Compare, [version, create, modified, lease]: [i64; 4], value: &[u8]) -> bool {
    use std::cmp::Ordering;
    let operand = compare.target_union.as_ref();
    let ordering = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => version
            .cmp(&operand.map_or(0, |operand| if let TargetUnion::Version(it) = operand { *it } else { 0 })),
        Ok(CompareTarget::Create) => create.cmp(
            &operand.map_or(0, |operand| if let TargetUnion::CreateRevision(it) = operand { *it } else { 0 }),
        ),
        Ok(CompareTarget::Mod) => modified.cmp(
            &operand.map_or(0, |operand| if let TargetUnion::ModRevision(it) = operand { *it } else { 0 }),
        ),
        Ok(CompareTarget::Lease) => lease
            .cmp(&operand.map_or(0, |operand| if let TargetUnion::Lease(it) = operand { *it } else { 0 })),
        Ok(CompareTarget::Value) => value.cmp(
            operand.map_or(&[], |operand| if let TargetUnion::Value(it) = operand { it } else { &[][..] }),
        ),
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Err(_) => true,
    }
}

/// Checks the taken path, in order, against the state before it. True if a put that needs its key could still fail
/// because the same transaction deletes something.
fn check_path(
    reader: &Reader<'_>,
    leases: Option<&Leases>,
    request: &TxnRequest,
    path: &Path,
) -> Result<bool, Error> {
    let mut found = Found::default();
    check_ops(reader, leases, request, &mut path.iter(), &mut found)?;
    Ok(found.deletes && found.needs_key)
}

#[derive(Default)]
struct Found {
    deletes: bool,
    needs_key: bool,
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
            Some(Request::RequestRange(range)) => check_range(reader, range)?,
            Some(Request::RequestPut(put)) => {
                check_put(reader, leases, put)?;
                found.needs_key |= put.ignore_value || put.ignore_lease;
            }
            Some(Request::RequestDeleteRange(_)) => found.deletes = true,
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

/// Protobuf tags of `TxnResponse` and `ResponseOp`.
const TAG_SUCCEEDED: u8 = 0x10;
const TAG_RESPONSES: u8 = 0x1a;
const TAG_RANGE: u8 = 0x0a;
const TAG_PUT: u8 = 0x12;
const TAG_DELETE: u8 = 0x1a;
const TAG_TXN: u8 = 0x22;
/// Field 1 of every response, and the revision in a header.
const TAG_HEADER: u8 = 0x0a;
const TAG_HEADER_REVISION: u8 = 0x18;

/// Appends one operation's response. Inner headers hold the revision only, that of a nested transaction nothing.
fn respond(body: &mut Vec<u8>, tag: u8, revision: Option<i64>, response: &[u8]) {
    let mut header = Vec::new();
    put_number(&mut header, TAG_HEADER_REVISION, revision.unwrap_or(0));
    let mut message = Vec::with_capacity(header.len() + response.len() + 2);
    put_field(&mut message, TAG_HEADER, &header);
    message.extend_from_slice(response);
    let mut op = Vec::with_capacity(message.len() + 6);
    put_field(&mut op, tag, &message);
    put_field(body, TAG_RESPONSES, &op);
}

fn carry_out(
    txn: &mut Writing<'_>,
    request: &TxnRequest,
    path: &mut dyn Iterator<Item = &bool>,
    body: &mut Vec<u8>,
) -> Result<(), Error> {
    let succeeded = *path.next().expect("a step for each transaction");
    put_number(body, TAG_SUCCEEDED, i64::from(succeeded));
    for op in branch(request, succeeded) {
        let mut response = Vec::new();
        let tag = match &op.request {
            Some(Request::RequestRange(range)) => {
                // Applying has the same result on every member: no bound that depends on this one's memory.
                response = range::answer(range, txn.reader(), &ReplyBudget::new(usize::MAX))?.concat();
                TAG_RANGE
            }
            Some(Request::RequestPut(put)) => {
                kv::put_in(txn, put, &mut response)?;
                TAG_PUT
            }
            Some(Request::RequestDeleteRange(delete)) => {
                kv::delete_in(txn, delete, &mut response)?;
                TAG_DELETE
            }
            Some(Request::RequestTxn(inner)) => {
                carry_out(txn, inner, path, &mut response)?;
                respond(body, TAG_TXN, None, &response);
                continue;
            }
            None => continue, // refused by the checks of the API
        };
        respond(body, tag, Some(txn.revision()), &response);
    }
    Ok(())
}
