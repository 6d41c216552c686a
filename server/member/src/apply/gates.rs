//! The gates between a command and the store: raised alarms, and the quota.

use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};

use crate::apply::alarm::Raised;
use crate::apply::state::State;
use crate::error::Error;
use crate::mutants::{self, Mutant};

/// Bytes that etcd adds to those of a put's key and value.
const PUT_OVERHEAD_BYTES: i64 = 256;

/// Bytes a lease may add to the store.
pub const LEASE_COST: i64 = 64;

/// As things stand before a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gates {
    pub(super) raised: Raised,
    pub(super) quota_bytes: i64,
}

/// Bytes a put may add to the store.
#[must_use]
pub fn put_cost(put: &PutRequest) -> i64 {
    PUT_OVERHEAD_BYTES.saturating_add_unsigned((put.key.len() + put.value.len()) as u64)
}

/// Bytes a transaction may add: its costlier branch, and so with those nested in it.
#[must_use]
pub fn txn_cost(txn: &TxnRequest) -> i64 {
    let cost = |ops: &[RequestOp]| -> i64 {
        let costs = ops.iter().map(|op| match &op.request {
            Some(Request::RequestPut(put)) => put_cost(put),
            Some(Request::RequestTxn(_)) if mutants::is(Mutant::NestedPutsPassQuota) => 0,
            Some(Request::RequestTxn(nested)) => txn_cost(nested),
            _ => 0,
        });
        costs.sum()
    };
    cost(&txn.success).max(cost(&txn.failure))
}

/// Whether `cost` more bytes fit a store of `bytes`.
#[must_use]
pub fn fits(quota_bytes: i64, bytes: u64, cost: i64) -> bool {
    quota_bytes <= 0 || cost == 0 || bytes.cast_signed().saturating_add(cost) < quota_bytes
}

impl Gates {
    /// Carries a command out unless an alarm forbids it. A put that goes beyond the quota is
    /// carried out, since other members may have room for it, but its caller is told that
    /// there is no space, as etcd does.
    pub(super) fn pass<T>(
        &self,
        state: &mut State,
        cost: i64,
        run: impl FnOnce(&mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.raised.corrupt {
            return Err(Error::Corrupt);
        }
        if self.raised.no_space && cost > 0 {
            return Err(Error::NoSpace);
        }
        let bytes = state.store.sizes().in_use + state.store.unsaved_bytes() as u64;
        let fits = fits(self.quota_bytes, bytes, cost);
        let reply = run(state)?;
        if fits { Ok(reply) } else { Err(Error::NoSpace) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finding 117: nested puts passed the quota.
    #[test]
    fn nested_puts_cost_what_they_cost_outside() {
        let put = |bytes: usize| RequestOp {
            request: Some(Request::RequestPut(PutRequest {
                value: vec![0; bytes].into(),
                ..PutRequest::default()
            })),
        };
        let mut txn =
            TxnRequest { success: vec![put(10)], failure: vec![put(5), put(7)], ..TxnRequest::default() };
        assert_eq!(txn_cost(&txn), 2 * PUT_OVERHEAD_BYTES + 12, "the costlier branch");
        for depth in 1..5 {
            let nested = RequestOp { request: Some(Request::RequestTxn(txn)) };
            txn = TxnRequest { success: vec![nested, put(1)], ..TxnRequest::default() };
            assert_eq!(txn_cost(&txn), (2 + depth) * PUT_OVERHEAD_BYTES + 12 + depth);
        }
    }
}
