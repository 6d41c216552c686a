//! Leases: made, kept alive, and left to end.

use std::collections::BTreeMap;

use crate::scenario::operation::{Ask, Operation, Parts, PerCaller, Verdict, expiry_prefix};
use crate::wire::Method;
use crate::wire::fields::{number, put_bytes, put_number};

fn grant(ttl: i64, body: &mut Vec<u8>) -> Method {
    put_number(body, 1, ttl);
    Method::LeaseGrant
}

/// The id that a grant's reply names.
fn granted(body: &[u8]) -> i64 {
    number(body, 2)
}

/// New leases.
pub(super) struct Grant(i64);

impl Grant {
    pub(super) fn new(ttl: i64) -> Self {
        Self(ttl)
    }
}

impl Operation for Grant {
    fn request(&mut self, ask: Ask<'_>) -> Method {
        grant(self.0, ask.body)
    }

    fn reply(&mut self, _caller: u32, body: &[u8]) -> Verdict {
        if granted(body) == 0 { Verdict::Failed("a lease was granted without an id") } else { Verdict::Done }
    }
}

/// A lease for each caller, kept alive.
pub(super) struct KeepAlive {
    ttl: i64,
    leases: PerCaller<i64>,
}

impl KeepAlive {
    pub(super) fn new(ttl: i64) -> Self {
        Self { ttl, leases: PerCaller::default() }
    }
}

impl Operation for KeepAlive {
    fn request(&mut self, ask: Ask<'_>) -> Method {
        match *self.leases.of(ask.caller) {
            0 => grant(self.ttl, ask.body),
            id => {
                put_number(ask.body, 1, id);
                Method::LeaseKeepAlive
            }
        }
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> Verdict {
        let lease = self.leases.of(caller);
        if *lease == 0 {
            *lease = granted(body);
            return Verdict::Prepared;
        }
        if number(body, 3) > 0 {
            return Verdict::Done;
        }
        *lease = 0;
        Verdict::Failed("a lease that was kept alive is gone")
    }
}

/// Leases with a key each, left to end.
pub(super) struct Expiry {
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

impl Expiry {
    pub(super) fn new(parts: &Parts<'_>, ttl: i64) -> Self {
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

impl Operation for Expiry {
    fn request(&mut self, ask: Ask<'_>) -> Method {
        let (lease, key) = self.under_way.of(ask.caller);
        if *lease == 0 {
            *key = self.next;
            self.next += 1;
            return grant(self.ttl, ask.body);
        }
        put_bytes(ask.body, 1, format!("{}{key}", self.prefix).as_bytes());
        put_number(ask.body, 3, *lease);
        Method::Put
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> Verdict {
        let (lease, key) = self.under_way.of(caller);
        if *lease == 0 {
            *lease = granted(body);
            *self.granted.of(caller) = self.now;
            // A server may make a lease longer than was asked for.
            self.ttl = self.ttl.max(number(body, 3));
            return Verdict::More;
        }
        let time = u64::try_from(self.ttl).unwrap_or(0).saturating_mul(1_000_000_000);
        self.due.insert(*key, self.granted.of(caller).saturating_add(time));
        *lease = 0;
        Verdict::Silent
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
