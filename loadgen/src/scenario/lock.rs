//! Locks that many want.

use crate::keys::Picker;
use crate::plan::Plan;
use crate::scenario::operation::{Ask, Operation, Parts, PerCaller, Verdict};
use crate::wire::Method;
use crate::wire::fields::{bytes, number, put_bytes, put_number};

/// Seconds of a caller's lease: longer than any run.
const TTL: i64 = 24 * 3600;

/// Takes a lock, and gives it back at once.
pub(super) struct Lock {
    locks: u64,
    prefix: String,
    picker: Picker,
    callers: PerCaller<Caller>,
}

/// What a caller has.
#[derive(Debug, Default)]
struct Caller {
    lease: i64,
    /// The key of the lock it holds.
    held: Vec<u8>,
}

impl Lock {
    pub(super) fn new(parts: &Parts<'_>, locks: u64) -> Self {
        let Plan { keys, .. } = parts.plan;
        let prefix = format!("{}lock-", keys.common_prefix());
        Self { locks: locks.max(1), prefix, picker: parts.picker(), callers: PerCaller::default() }
    }
}

impl Operation for Lock {
    fn request(&mut self, ask: Ask<'_>) -> Method {
        let caller = self.callers.of(ask.caller);
        if caller.lease == 0 {
            put_number(ask.body, 1, TTL);
            return Method::LeaseGrant;
        }
        if !caller.held.is_empty() {
            put_bytes(ask.body, 1, &caller.held);
            return Method::Unlock;
        }
        let name = format!("{}{}", self.prefix, self.picker.pick() % self.locks);
        put_bytes(ask.body, 1, name.as_bytes());
        put_number(ask.body, 2, caller.lease);
        Method::Lock
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> Verdict {
        let caller = self.callers.of(caller);
        if caller.lease == 0 {
            caller.lease = number(body, 2);
            return Verdict::Prepared;
        }
        if !caller.held.is_empty() {
            caller.held.clear();
            return Verdict::Silent;
        }
        caller.held.extend_from_slice(bytes(body, 2));
        if caller.held.is_empty() {
            Verdict::Failed("a lock was given without a key")
        } else {
            Verdict::DoneMore
        }
    }
}
