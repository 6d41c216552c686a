//! Transactions that ask for everything.

use prost::Message as _;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};

use super::attack::{Attack, AttackTarget};
use super::store::{self, RANGE, TXN, everything, fill};
use crate::caller::PATIENCE;

/// Bytes of a reply with everything.
const STORE_BYTES: usize = 50_000_000;
const VALUE_BYTES: usize = 10_000;
/// One less than the operations a transaction may have.
const RANGES: usize = 127;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("txn: a put, 127 ranges of 50 MB", 4, |target| one(target, &with_put(target))).after(large),
    Attack::new("txn: 127 ranges, nested", 4, |target| one(target, &nested(target))).after(large),
    Attack::new("txn: 127 ranges, read only", 5, |target| one(target, &ranges(ranges_of(target))))
        .after(large),
    Attack::new("txn: read only, on 4 connections", 5, many).after(large),
];

fn large(target: &AttackTarget) -> anyhow::Result<()> {
    fill(target, STORE_BYTES / VALUE_BYTES, VALUE_BYTES, 0)
}

/// The whole attack takes 7 GB where it is not refused: fewer by default, and still a gigabyte.
fn ranges_of(target: &AttackTarget) -> usize {
    target.size(20, RANGES)
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn ranges(count: usize) -> TxnRequest {
    let success = vec![op(Request::RequestRange(everything())); count];
    TxnRequest { success, ..TxnRequest::default() }
}

fn with_put(target: &AttackTarget) -> TxnRequest {
    let mut txn = ranges(ranges_of(target));
    let put = PutRequest { key: "attacker".into(), ..PutRequest::default() };
    txn.success.insert(0, op(Request::RequestPut(put)));
    txn
}

/// As many ranges, each in a transaction of its own inside the one before.
fn nested(target: &AttackTarget) -> TxnRequest {
    (0..ranges_of(target)).fold(TxnRequest::default(), |inner, _| {
        let success = vec![op(Request::RequestRange(everything())), op(Request::RequestTxn(inner))];
        TxnRequest { success, ..TxnRequest::default() }
    })
}

/// Asks, and takes the answer.
fn one(target: &AttackTarget, txn: &TxnRequest) -> anyhow::Result<()> {
    let mut caller = target.caller()?.discarding();
    caller.begin(TXN, &txn.encode_to_vec());
    let is_told = caller.until(PATIENCE, |heard| !heard.ended.is_empty() || target.is_over())?;
    target.tally.ends(caller.heard.ended.values());
    if !is_told {
        target.tally.told("no answer");
    }
    Ok(())
}

/// Takes nothing of it.
fn many(target: &AttackTarget) -> anyhow::Result<()> {
    let body = ranges(ranges_of(target)).encode_to_vec();
    let mut callers = Vec::new();
    for _ in 0..4 {
        let mut caller = target.caller()?.discarding();
        caller.begin(TXN, &body);
        caller.begin(RANGE, &store::everything().encode_to_vec());
        caller.client.flush()?;
        callers.push(caller);
    }
    target.linger(std::time::Duration::from_secs(2));
    for caller in &mut callers {
        caller.turn(std::time::Duration::ZERO)?;
        target.tally.ends(caller.heard.ended.values());
    }
    Ok(())
}
