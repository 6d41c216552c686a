//! Locks: a key with a lease, made if it is not there, and deleted by its holder.

use bytes::Bytes;
use revd_checker::{Call, History, Hold, Request, Response};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, TxnRequest,
};

use super::next::Next;
use super::shared::Shared;
use super::writer::{at_mod, op};
use crate::time::{MILLISECOND, Micros, SECOND};

/// The lock that all want.
const LOCK: Bytes = Bytes::from_static(b"lock/1");

/// A client that wants the lock.
#[derive(Debug, Default)]
pub(super) struct Locker {
    lease: Option<i64>,
    /// The revision at which it was given the lock, and its place in the history.
    held: Option<(i64, usize)>,
    /// Keepalives before it gives the lock back.
    keepalives: u64,
    has_rested: bool,
    /// It begins to give the lock back now.
    releases: Option<usize>,
}

impl Locker {
    pub(super) fn next(
        &mut self,
        may_end: bool,
        _now: Micros,
        shared: &mut Shared,
        random: &mut Random,
    ) -> Next {
        let Some(id) = self.lease else {
            if may_end {
                return Next::Done;
            }
            let ttl = 2 + i64::try_from(random.below(3)).expect("a small number");
            return Request::LeaseGrant(LeaseGrantRequest { ttl, id: shared.lease() }).into();
        };
        let Some((revision, hold)) = self.held else {
            if may_end {
                return Next::Done;
            }
            if !std::mem::replace(&mut self.has_rested, true) {
                return Next::Rest(random.below(200 * MILLISECOND));
            }
            self.has_rested = false;
            self.keepalives = random.below(4);
            let put =
                PutRequest { key: LOCK, value: shared.value(random), lease: id, ..PutRequest::default() };
            let success = vec![op(Op::RequestPut(put))];
            return Request::Txn(TxnRequest {
                compare: vec![at_mod(&LOCK, 0)],
                success,
                failure: Vec::new(),
            })
            .into();
        };
        if !std::mem::replace(&mut self.has_rested, true) {
            return Next::Rest(random.below(SECOND));
        }
        self.has_rested = false;
        if self.keepalives > 0 {
            self.keepalives -= 1;
            return Request::LeaseKeepAlive(LeaseKeepAliveRequest { id }).into();
        }
        (self.held, self.releases) = (None, Some(hold));
        if random.one_in(4) {
            self.lease = None; // it forgets the lock, whose lease will end
            return Next::Rest(SECOND);
        }
        let delete = DeleteRangeRequest { key: LOCK, ..DeleteRangeRequest::default() };
        let success = vec![op(Op::RequestDeleteRange(delete))];
        Request::Txn(TxnRequest { compare: vec![at_mod(&LOCK, revision)], success, failure: Vec::new() })
            .into()
    }

    pub(super) fn learns(&mut self, call: &Call, history: &mut History) {
        // The call that gives the lock back ends the hold when it began.
        if let (Request::Txn(_), Some(hold)) = (&call.request, self.releases.take()) {
            history.holds[hold].until = Some(call.began);
            return;
        }
        match (&call.request, call.answer()) {
            (_, Some(Response::LeaseGrant(response))) => self.lease = Some(response.id),
            (_, Some(Response::LeaseKeepAlive(response))) if response.ttl <= 0 => *self = Self::default(),
            (Request::Txn(_), Some(Response::Txn(response))) => {
                let Some(lease) = self.lease.filter(|_| response.succeeded) else { return };
                let revision = response.header.as_ref().map_or(0, |header| header.revision);
                self.held = Some((revision, history.holds.len()));
                let (client, from) = (call.client, call.returned);
                history.holds.push(Hold { client, name: LOCK, lease, from, until: None });
            }
            (Request::Txn(_), None) => *self = Self::default(), // a lease that has ended, or nobody knows
            _ => {}
        }
    }

    /// It does not know whether it has the lock: it takes another lease.
    pub(super) fn fails(&mut self) {
        if self.held.is_none() {
            *self = Self::default();
        }
    }
}
