//! The names of ReadIndex rounds.

use bytes::{Buf as _, BufMut as _};

use crate::apply::command::Origin;

/// The name of one attempt to learn a read index. raft-rs may serve a read from an old answer if a
/// name is used twice (etcd #20418), so that no attempt of any member, in any of its incarnations,
/// has the name of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadContext {
    /// The member that asks, in one incarnation.
    pub origin: Origin,
    /// Attempts of that incarnation, up to this one.
    pub attempt: u64,
}

impl ReadContext {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.put_u64_le(self.origin.member);
        out.put_u64_le(self.origin.boot);
        out.put_u64_le(self.attempt);
        out
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let origin = Origin { member: bytes.try_get_u64_le().ok()?, boot: bytes.try_get_u64_le().ok()? };
        let attempt = bytes.try_get_u64_le().ok()?;
        bytes.is_empty().then_some(Self { origin, attempt })
    }
}
