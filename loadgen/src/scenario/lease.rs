//! Leases: granted, kept alive, and left to expire.

use std::collections::BTreeMap;

use crate::scenario::operation::{NextCall, OpParts, Operation, PerCaller, ReplyVerdict, expiry_prefix};
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

/// Leases with a key each, left to expire.
pub(super) struct ExpiryOperation {
    ttl: i64,
    prefix: String,
    next: u64,
    /// The lease and the key of each caller's operation.
    under_way: PerCaller<(i64, u64)>,
    /// When each key should be gone.
    due: BTreeMap<u64, u64>,
    /// When the last grant was answered, by caller; the lease is not older.
    granted: PerCaller<u64>,
    now: u64,
}

impl ExpiryOperation {
    pub(super) fn new(parts: &OpParts<'_>, ttl: i64) -> Self {
        Self {
            ttl,
            prefix: expiry_prefix(parts.plan, parts.thread),
            next: 0,
            under_way: PerCaller::default(),
            due: BTreeMap::new(),
            granted: PerCaller::default(),
            now: 0,
        }
    }
}

impl Operation for ExpiryOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let (lease, key) = self.under_way.of(ask.caller);
        if *lease == 0 {
            *key = self.next;
            self.next += 1;
            return grant(self.ttl, ask.body);
        }
        put_bytes(ask.body, 1, format!("{}{key}", self.prefix).as_bytes());
        put_number(ask.body, 3, *lease);
        RpcMethod::Put
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        let (lease, key) = self.under_way.of(caller);
        if *lease == 0 {
            *lease = granted(body);
            *self.granted.of(caller) = self.now;
            // A server may make a lease longer than was asked for.
            self.ttl = self.ttl.max(number(body, 3));
            return ReplyVerdict::More;
        }
        let time = u64::try_from(self.ttl).unwrap_or(0).saturating_mul(1_000_000_000);
        self.due.insert(*key, self.granted.of(caller).saturating_add(time));
        *lease = 0;
        ReplyVerdict::Silent
    }

    fn gone(&mut self, key: &[u8], now: u64) -> Option<i64> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.parse().ok()?;
        let due = self.due.remove(&key)?;
        Some(now.cast_signed() - due.cast_signed())
    }

    fn waiting(&self) -> u64 {
        self.due.len() as u64
    }

    fn replied_at(&mut self, now: u64) {
        self.now = now;
    }
}
