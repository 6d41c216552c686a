//! Leases: granted, kept alive, and left to expire.

use std::collections::BTreeMap;

use crate::clock::SECOND;
use crate::scenario::operation::{
    KeyEnd, NextCall, OpParts, Operation, PerCaller, ReplyVerdict, expiry_prefix,
};
use crate::wire::RpcMethod;
use crate::wire::fields::{number, put_bytes, put_number};

fn grant(ttl: i64, body: &mut Vec<u8>) -> RpcMethod {
    put_number(body, 1, ttl);
    RpcMethod::LeaseGrant
}

/// The id that a grant's reply names.
fn granted(body: &[u8]) -> i64 {
    number(body, 2)
}

/// New leases.
pub(super) struct GrantOperation(i64);

impl GrantOperation {
    pub(super) fn new(ttl: i64) -> Self {
        Self(ttl)
    }
}

impl Operation for GrantOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        grant(self.0, ask.body)
    }

    fn reply(&mut self, _caller: u32, body: &[u8]) -> ReplyVerdict {
        if granted(body) == 0 {
            ReplyVerdict::Failed("a lease was granted without an id")
        } else {
            ReplyVerdict::Done
        }
    }
}

/// A lease for each caller, kept alive.
pub(super) struct KeepAliveOperation {
    ttl: i64,
    leases: PerCaller<i64>,
}

impl KeepAliveOperation {
    pub(super) fn new(ttl: i64) -> Self {
        Self { ttl, leases: PerCaller::default() }
    }
}

impl Operation for KeepAliveOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        match *self.leases.of(ask.caller) {
            0 => grant(self.ttl, ask.body),
            id => {
                put_number(ask.body, 1, id);
                RpcMethod::LeaseKeepAlive
            }
        }
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        let lease = self.leases.of(caller);
        if *lease == 0 {
            *lease = granted(body);
            return ReplyVerdict::Prepared;
        }
        if number(body, 3) > 0 {
            return ReplyVerdict::Done;
        }
        *lease = 0;
        ReplyVerdict::Failed("a lease that was kept alive is gone")
    }
}

/// An expiry operation of a caller.
#[derive(Debug, Clone, Copy, Default)]
struct LeaseUnderWay {
    /// 0 before it is granted.
    lease: i64,
    key: u64,
    life: LeaseLife,
}

/// A lease lives for so many nanoseconds from a time between when its grant was asked for and when
/// the reply was read.
#[derive(Debug, Clone, Copy, Default)]
struct LeaseLife {
    asked: u64,
    granted: u64,
    length: u64,
}

/// Leases with a key each, left to expire.
pub(super) struct ExpiryOperation {
    ttl: i64,
    prefix: String,
    next: u64,
    under_way: PerCaller<LeaseUnderWay>,
    /// Keys that should go.
    left: BTreeMap<u64, LeaseLife>,
    now: u64,
}

impl ExpiryOperation {
    pub(super) fn new(parts: &OpParts<'_>, ttl: i64) -> Self {
        Self {
            ttl,
            prefix: expiry_prefix(parts.plan, parts.thread),
            next: 0,
            under_way: PerCaller::default(),
            left: BTreeMap::new(),
            now: 0,
        }
    }
}

impl Operation for ExpiryOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let own = self.under_way.of(ask.caller);
        if own.lease == 0 {
            (own.key, own.life.asked) = (self.next, ask.now);
            self.next += 1;
            return grant(self.ttl, ask.body);
        }
        put_bytes(ask.body, 1, format!("{}{}", self.prefix, own.key).as_bytes());
        put_number(ask.body, 3, own.lease);
        RpcMethod::Put
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        let own = self.under_way.of(caller);
        if own.lease == 0 {
            (own.lease, own.life.granted) = (granted(body), self.now);
            // A server may make a lease longer than was asked for.
            let ttl = u64::try_from(self.ttl.max(number(body, 3))).unwrap_or(0);
            own.life.length = ttl.saturating_mul(SECOND);
            return ReplyVerdict::More;
        }
        self.left.insert(own.key, own.life);
        own.lease = 0;
        ReplyVerdict::Silent
    }

    fn gone(&mut self, key: &[u8], now: u64) -> Option<KeyEnd> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.parse().ok()?;
        let LeaseLife { asked, granted, length } = self.left.remove(&key)?;
        Some(KeyEnd {
            late: now.saturating_sub(granted.saturating_add(length)),
            early: asked.saturating_add(length).saturating_sub(now),
        })
    }

    fn waiting(&self) -> u64 {
        self.left.len() as u64
    }

    fn replied_at(&mut self, now: u64) {
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OpKind, Plan, PlannedOp};

    const MS: u64 = 1_000_000;

    /// An operation whose grant was asked for at 1 s, and the reply, of a lease of so many seconds,
    /// read when it says; its key is `expiry-0/0` behind the prefix of the plan.
    fn granted_at(granted: u64, ttl: i64) -> (ExpiryOperation, String) {
        let plan = Plan { ops: vec![PlannedOp::new(OpKind::LeaseExpiry { ttl: 5 })], ..Plan::default() };
        let parts = OpParts { plan: &plan, op: &plan.ops[0], thread: 0, index: 0 };
        let mut operation = ExpiryOperation::new(&parts, 5);
        let mut call = |now, reply: &[u8]| {
            operation.request(NextCall { caller: 0, intended: 0, now, body: &mut Vec::new() });
            operation.replied_at(now.max(granted));
            operation.reply(0, reply)
        };
        let mut reply = Vec::new();
        put_number(&mut reply, 2, 77);
        put_number(&mut reply, 3, ttl);
        assert_eq!(call(SECOND, &reply), ReplyVerdict::More);
        assert_eq!(call(granted, &[]), ReplyVerdict::Silent);
        (operation, format!("{}0", expiry_prefix(&plan, 0)))
    }

    /// The server granted it at once and ended it in time, 5 s later: by the reply, which the
    /// generator read late, it looks 150 ms early.
    #[test]
    fn a_lease_whose_grant_was_read_late_does_not_end_too_early() {
        let (mut operation, key) = granted_at(SECOND + 150 * MS, 5);
        assert_eq!(operation.waiting(), 1);
        assert_eq!(operation.gone(b"other", 6 * SECOND), None);
        assert_eq!(operation.gone(key.as_bytes(), 6 * SECOND), Some(KeyEnd { late: 0, early: 0 }));
        assert_eq!((operation.gone(key.as_bytes(), 6 * SECOND), operation.waiting()), (None, 0));
    }

    #[test]
    fn lateness_counts_from_the_reply_and_earliness_from_the_call() {
        for (at, late, early) in [(6_400, 250, 0), (6_100, 0, 0), (5_800, 0, 200)] {
            let (mut operation, key) = granted_at(SECOND + 150 * MS, 5);
            let end = KeyEnd { late: late * MS, early: early * MS };
            assert_eq!(operation.gone(key.as_bytes(), at * MS), Some(end), "at {at} ms");
        }
        let (mut operation, key) = granted_at(SECOND, 8);
        let end = KeyEnd { late: 0, early: 3 * SECOND };
        assert_eq!(operation.gone(key.as_bytes(), 6 * SECOND), Some(end), "the server made it longer");
    }
}
