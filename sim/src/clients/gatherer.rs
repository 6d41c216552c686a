//! Many keys that go at once: deleted by one request, or with the lease that they are attached to.
//! Members carry that out apart from other commands.

use revd_checker::{Call, Request, Response};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, TxnRequest};

use super::next::Next;
use super::shared::Shared;
use super::writer::op;
use crate::time::SECOND;

/// Together more keys than a member deletes within one of its turns.
const BATCHES: u64 = 6;
const KEYS_PER_BATCH: u64 = 100;
/// The history has to hold them all.
const ROUNDS: u64 = 2;

/// A client that gathers keys.
#[derive(Debug, Default)]
pub(super) struct Gatherer {
    rounds: u64,
    batches: u64,
    /// The keys of this round go with it.
    lease: Option<i64>,
    /// This round has a lease, or does without.
    has_begun: bool,
}

impl Gatherer {
    pub(super) fn next(&mut self, may_end: bool, shared: &mut Shared, random: &mut Random) -> Next {
        if may_end {
            return Next::Done;
        }
        let all = RangeRequest { key: "many/".into(), range_end: "many0".into(), ..RangeRequest::default() };
        if self.rounds == ROUNDS {
            // From now on it looks now and then.
            self.has_begun = !self.has_begun;
            let count = RangeRequest { count_only: true, ..all };
            return if self.has_begun { Next::Rest(SECOND) } else { Request::Range(count).into() };
        }
        if !std::mem::replace(&mut self.has_begun, true) && random.one_in(2) {
            return Request::LeaseGrant(LeaseGrantRequest { ttl: 2, id: shared.lease() }).into();
        }
        if self.batches < BATCHES {
            self.batches += 1;
            let success = (0..KEYS_PER_BATCH).map(|key| op(Op::RequestPut(self.put(key, shared)))).collect();
            return Request::Txn(TxnRequest { success, ..TxnRequest::default() }).into();
        }
        let is_leased = self.lease.is_some();
        *self = Self { rounds: self.rounds + 1, ..Self::default() };
        if is_leased {
            return Request::Range(all).into();
        }
        let RangeRequest { key, range_end, .. } = all;
        Request::DeleteRange(DeleteRangeRequest { key, range_end, prev_kv: random.one_in(2) }).into()
    }

    fn put(&self, key: u64, shared: &mut Shared) -> PutRequest {
        let key = format!("many/{}/{key:02}", self.batches).into();
        let value = shared.element().to_string().into();
        PutRequest { key, value, lease: self.lease.unwrap_or(0), ..PutRequest::default() }
    }

    pub(super) fn learns(&mut self, call: &Call) {
        if let Some(Response::LeaseGrant(response)) = call.answer() {
            self.lease = Some(response.id);
        }
    }

    /// Its lease may be gone, or nobody knows of it.
    pub(super) fn fails(&mut self) {
        self.lease = None;
    }
}
