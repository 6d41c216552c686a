//! One kind of operation, as one thread does it, and the parts that all kinds share.

use crate::keys::{KeyPicker, KeySpace, ValueSource};
use crate::plan::{Plan, PlannedOp};
use crate::wire::RpcMethod;

/// The meaning of a reply for its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyVerdict {
    /// The operation is done.
    Done,
    /// It needs another call; its time goes on.
    More,
    /// Another caller changed the key first: another call, counted as a conflict.
    Conflict,
    /// That was preparation: now it begins.
    Prepared,
    /// It is done, and leaves something to clear up.
    DoneMore,
    /// Something that is not measured is done.
    Silent,
    /// It is over without success, and without a fault of the server.
    GaveUp(&'static str),
    /// The answer is not what it should be.
    Failed(&'static str),
}

/// Events that watchers must get for changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ExpectedEvents {
    /// Watchers in all.
    pub(super) watchers: u64,
    /// Keys they are spread over; 0: each watches all.
    pub(super) keys: u64,
}

impl ExpectedEvents {
    pub(super) fn of(self, key: u64) -> u64 {
        match key.checked_rem(self.keys) {
            None => self.watchers,
            Some(_) if key >= self.keys => 0,
            Some(at) => self.watchers / self.keys + u64::from(at < self.watchers % self.keys),
        }
    }
}

/// One call that is to be made.
pub(crate) struct NextCall<'c> {
    pub(crate) caller: u32,
    /// When it was meant to begin: values carry it to watchers.
    pub(crate) intended: u64,
    /// The present time: the call is not sent before it.
    pub(crate) now: u64,
    pub(crate) body: &'c mut Vec<u8>,
}

/// The end of a key that goes with its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyEnd {
    /// Nanoseconds since the lease was due, counted from when its grant's reply was read.
    pub(crate) late: u64,
    /// Nanoseconds to the first moment at which it may have ended: one that lives so long from when
    /// it was asked for, as the server may have granted it at once.
    pub(crate) early: u64,
}

/// One kind of operation, as one thread does it.
pub(crate) trait Operation: Send {
    /// The next call of a caller.
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod;

    /// The reply to it.
    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict;

    /// Events that watchers must get for the last reply.
    fn confirmed(&mut self) -> u64 {
        0
    }

    /// A key is gone; `None` if it is none of its own.
    fn gone(&mut self, _key: &[u8], _now: u64) -> Option<KeyEnd> {
        None
    }

    /// Keys of its own that are not gone yet.
    fn waiting(&self) -> u64 {
        0
    }

    /// A call failed: the operation of that caller is over.
    fn failed(&mut self, _caller: u32) {}

    /// The time of the next reply.
    fn replied_at(&mut self, _now: u64) {}
}

/// The inputs of every operation of a thread.
pub(super) struct OpParts<'p> {
    pub(super) plan: &'p Plan,
    pub(super) op: &'p PlannedOp,
    pub(super) thread: usize,
    pub(super) index: usize,
}

impl OpParts<'_> {
    pub(super) fn keys(&self) -> &KeySpace {
        self.op.keys.as_ref().unwrap_or(&self.plan.keys)
    }

    pub(super) fn picker(&self) -> KeyPicker {
        let seed = self.plan.seed.wrapping_add(self.index as u64 * 7919);
        KeyPicker::new(self.keys(), seed, self.thread, self.plan.threads)
    }

    pub(super) fn values(&self) -> ValueSource {
        ValueSource::new(self.op.val_size.unwrap_or(self.plan.val_size), self.plan.seed)
    }

    pub(super) fn fan_out(&self) -> ExpectedEvents {
        match &self.plan.watch {
            Some(watch) if self.op.keys.is_none() => {
                ExpectedEvents { watchers: watch.watchers as u64, keys: watch.keys }
            }
            _ => ExpectedEvents::default(),
        }
    }
}

/// Values begin so when there are watchers: this, and the time at which the write was meant to
/// begin.
pub const STAMP: [u8; 8] = *b"loadgen:";
/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 16;

/// The time in a value; none if it has none.
#[must_use]
pub fn stamp(value: &[u8]) -> Option<u64> {
    let (mark, rest) = value.split_first_chunk::<8>()?;
    (*mark == STAMP).then(|| rest.first_chunk().map(|time| u64::from_le_bytes(*time)))?
}

/// Writes a value, with a stamp if there are watchers.
pub(super) fn stamped(value: &[u8], intended: Option<u64>, out: &mut Vec<u8>) {
    let Some(intended) = intended else { return out.extend_from_slice(value) };
    out.extend_from_slice(&STAMP);
    out.extend_from_slice(&intended.to_le_bytes());
    out.extend_from_slice(value.get(STAMP_BYTES..).unwrap_or_default());
}

/// The prefix of the keys with a thread's own leases; its watcher watches it.
#[must_use]
pub(crate) fn expiry_prefix(plan: &Plan, thread: usize) -> String {
    format!("{}expiry-{thread}/", plan.keys.common_prefix())
}

/// A slot for each caller, made when it first comes.
#[derive(Debug, Default)]
pub(super) struct PerCaller<T>(Vec<T>);

impl<T: Default> PerCaller<T> {
    pub(super) fn of(&mut self, caller: u32) -> &mut T {
        let at = caller as usize;
        while self.0.len() <= at {
            self.0.push(T::default());
        }
        &mut self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_expected_of_the_watchers_of_a_key() {
        let all = ExpectedEvents { watchers: 10, keys: 0 };
        assert_eq!((all.of(0), all.of(99)), (10, 10));
        let spread = ExpectedEvents { watchers: 10, keys: 4 };
        assert_eq!((0..6).map(|key| spread.of(key)).collect::<Vec<_>>(), [3, 3, 2, 2, 0, 0]);
    }

    #[test]
    fn stamps_are_read_back() {
        let mut out = Vec::new();
        stamped(&[1; 20], Some(77), &mut out);
        assert_eq!((out.len(), stamp(&out)), (20, Some(77)));
        assert_eq!(stamp(&[1; 20]), None);
        assert_eq!(stamp(b"loadgen:"), None);
    }
}
