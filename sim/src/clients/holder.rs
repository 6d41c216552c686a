//! Leases with keys: kept alive for a while, then revoked or left alone; and a look at them when
//! all should be gone.

use revd_checker::{Call, Outcome, Request, Response};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest,
};

use super::next::Next;
use super::shared::Shared;
use crate::time::{Micros, SECOND};

/// The longest time to live that is asked for, in seconds.
const TTL_MAX: u64 = 8;

/// A client with a lease.
#[derive(Debug, Default)]
pub(super) struct Holder {
    lease: Option<i64>,
    ttl: u64,
    keys: u64,
    keepalives: u64,
    /// It has waited for the next keepalive.
    has_rested: bool,
    /// Looks at what is left of all leases when they should be gone.
    looks: u64,
}

/// The keys of all leases.
fn all(serializable: bool) -> Next {
    let (key, range_end) = ("lease/".into(), "lease0".into());
    Request::Range(RangeRequest { key, range_end, serializable, ..RangeRequest::default() }).into()
}

impl Holder {
    pub(super) fn next(
        &mut self,
        may_end: bool,
        now: Micros,
        shared: &mut Shared,
        random: &mut Random,
    ) -> Next {
        if may_end && let Some(end) = shared.leases_end {
            return self.look(now, end, random);
        }
        let Some(id) = self.lease else {
            if random.one_in(4) {
                return all(random.one_in(2)); // what is left of leases that ended
            }
            *self = Self { ttl: 2 + random.below(TTL_MAX - 1), ..Self::default() };
            (self.keys, self.keepalives) = (random.below(4), random.below(6));
            let (ttl, id) = (i64::try_from(self.ttl).expect("a small number"), shared.lease());
            return Request::LeaseGrant(LeaseGrantRequest { ttl, id }).into();
        };
        if self.keys > 0 {
            self.keys -= 1;
            let (key, value) = (format!("lease/{id}/{}", self.keys), shared.value(random));
            let put = PutRequest { key: key.into(), value, lease: id, ..PutRequest::default() };
            return Request::Put(put).into();
        }
        if self.keepalives > 0 {
            if !std::mem::replace(&mut self.has_rested, true) {
                let most = if random.one_in(10) { 2 * self.ttl } else { self.ttl / 2 };
                return Next::Rest(random.below(most.max(1) * SECOND));
            }
            self.has_rested = false;
            self.keepalives -= 1;
            if random.one_in(3) {
                return Request::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys: false }).into();
            }
            return Request::LeaseKeepAlive(LeaseKeepAliveRequest { id }).into();
        }
        self.lease = None;
        if random.one_in(2) {
            return Request::LeaseRevoke(LeaseRevokeRequest { id }).into();
        }
        Next::Rest(random.below(self.ttl * SECOND))
    }

    /// Looks on some members at what is left.
    fn look(&mut self, now: Micros, end: Micros, random: &mut Random) -> Next {
        let end = end + 2 * TTL_MAX * SECOND + SECOND;
        if now < end {
            return Next::Rest(end - now);
        }
        self.looks += 1;
        if self.looks > 3 {
            return Next::Done;
        }
        all(random.one_in(2))
    }

    pub(super) fn learns(&mut self, call: &Call) {
        match (&call.request, &call.outcome) {
            (_, Outcome::Answered(Response::LeaseGrant(response))) => self.lease = Some(response.id),
            (_, Outcome::Answered(Response::LeaseKeepAlive(response))) if response.ttl <= 0 => {
                self.lease = None
            }
            (Request::LeaseGrant(_) | Request::Put(_), Outcome::Refused(_)) => self.lease = None,
            _ => {}
        }
    }

    /// A keepalive may be lost, and nobody repeats it: the next one is a new one.
    pub(super) fn fails(&mut self) {}
}
