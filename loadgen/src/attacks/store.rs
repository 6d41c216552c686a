//! The contents of the store before an attack.

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};

use super::attack::AttackTarget;
use crate::caller::{Caller, call_all};
use crate::keys::value;

pub(super) const PUT: &str = "/etcdserverpb.KV/Put";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
pub(super) const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";

/// Puts in a transaction.
const BATCH: u64 = 100;

pub(super) fn key(number: u64) -> Bytes {
    format!("attack/{number:08}").into()
}

/// All keys that attacks write.
pub(super) fn everything() -> RangeRequest {
    RangeRequest { key: "attack/".into(), range_end: "attack0".into(), ..RangeRequest::default() }
}

/// Keys of this many bytes, on a lease if it is not 0.
pub(super) fn fill(target: &AttackTarget, keys: usize, value_bytes: usize, lease: i64) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let keys = keys as u64;
    let batch = if value_bytes > 5_000 { 10 } else { BATCH };
    let value = value(value_bytes, 7);
    let bodies = (0..keys.div_ceil(batch)).map(|at| {
        let put = |number| {
            let put = PutRequest { key: key(number), value: value.clone(), lease, ..PutRequest::default() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        };
        let success = (at * batch..keys.min((at + 1) * batch)).map(put).collect();
        TxnRequest { success, ..TxnRequest::default() }.encode_to_vec()
    });
    call_all(&mut caller, TXN, bodies)
}

/// As many revisions of one key.
pub(super) fn revisions(target: &AttackTarget, count: usize, value_bytes: usize) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let put = PutRequest { key: key(0), value: value(value_bytes, 7), ..PutRequest::default() };
    call_all(&mut caller, PUT, std::iter::repeat_n(put.encode_to_vec(), count))
}

/// Deletes them all.
pub(super) fn clear(target: &AttackTarget) -> anyhow::Result<i64> {
    let RangeRequest { key, range_end, .. } = everything();
    let request = DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() };
    let reply: DeleteRangeResponse = target.caller()?.ask(DELETE, &request)?;
    Ok(reply.deleted)
}

/// A new lease.
pub(super) fn grant(caller: &mut Caller, ttl: i64) -> anyhow::Result<i64> {
    let reply: LeaseGrantResponse = caller.ask(GRANT, &LeaseGrantRequest { ttl, id: 0 })?;
    Ok(reply.id)
}
