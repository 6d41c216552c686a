//! Contended locks.

use crate::keys::KeyPicker;
use crate::plan::Plan;
use crate::scenario::operation::{NextCall, OpParts, Operation, PerCaller, ReplyVerdict};
use crate::wire::RpcMethod;
use crate::wire::fields::{bytes, number, put_bytes, put_number};

/// Seconds of a caller's lease: longer than any run.
const TTL: i64 = 24 * 3600;

/// Takes a lock, and gives it back at once.
pub(super) struct LockOperation {
    locks: u64,
    prefix: String,
    picker: KeyPicker,
    callers: PerCaller<LockCaller>,
}

/// State of a caller.
#[derive(Debug, Default)]
struct LockCaller {
    lease: i64,
    /// The key of the lock it holds.
    held: Vec<u8>,
}

impl LockOperation {
    pub(super) fn new(parts: &OpParts<'_>, locks: u64) -> Self {
        let Plan { keys, .. } = parts.plan;
        let prefix = format!("{}lock-", keys.common_prefix());
        Self { locks: locks.max(1), prefix, picker: parts.picker(), callers: PerCaller::default() }
    }
}

impl Operation for LockOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let caller = self.callers.of(ask.caller);
        if caller.lease == 0 {
            put_number(ask.body, 1, TTL);
            return RpcMethod::LeaseGrant;
        }
        if !caller.held.is_empty() {
            put_bytes(ask.body, 1, &caller.held);
            return RpcMethod::Unlock;
        }
        let name = format!("{}{}", self.prefix, self.picker.pick() % self.locks);
        put_bytes(ask.body, 1, name.as_bytes());
        put_number(ask.body, 2, caller.lease);
        RpcMethod::Lock
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        let caller = self.callers.of(caller);
        if caller.lease == 0 {
            caller.lease = number(body, 2);
            return ReplyVerdict::Prepared;
        }
        if !caller.held.is_empty() {
            caller.held.clear();
            return ReplyVerdict::Silent;
        }
        caller.held.extend_from_slice(bytes(body, 2));
        if caller.held.is_empty() {
            ReplyVerdict::Failed("a lock was given without a key")
        } else {
            ReplyVerdict::DoneMore
        }
    }
}
