//! Reports about leases: as bytes between cores and in the log, and as counts.

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{LeaseCheckpoint, LeaseCheckpointRequest, LeaseLeasesResponse, LeaseStatus};

use crate::error::Error;
use crate::lease::LeaseDeadlines;
use crate::limits;

/// The body of a keepalive's outcome: the seconds the lease has now; empty if the lease has a
/// checkpoint, which another one has to take back first.
pub const CHECKPOINT_FIRST: Bytes = Bytes::new();
/// The body of the outcome of a look for expired leases, if there is more to look at.
pub const LOOK_AGAIN: Bytes = Bytes::new();

/// Expired leases, and the term they expired in: body of an outcome, and then payload of a command.
///
/// ```text
///  0  u64  term
///  8  i64  lease, as often as there are any; all little-endian
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredLeases {
    /// The leader's term.
    pub term: u64,
    /// Lease ids.
    pub leases: Vec<i64>,
}

impl ExpiredLeases {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(8 + 8 * self.leases.len());
        out.put_u64_le(self.term);
        self.leases.iter().for_each(|id| out.put_i64_le(*id));
        out.into()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// When it is cut short.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Error> {
        if !bytes.len().is_multiple_of(8) || bytes.is_empty() {
            return Err(Error::Malformed("expired leases of a wrong length"));
        }
        let term = bytes.get_u64_le();
        let mut leases = Vec::with_capacity(bytes.len() / 8);
        while bytes.has_remaining() {
            leases.push(bytes.get_i64_le());
        }
        Ok(Self { term, leases })
    }
}

/// The remaining TTL of some leases, and the id from which on there are more.
///
/// ```text
///  0  u8   1 if there are more
///  1  i64  from this id on, little-endian
///  9  the checkpoint
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemainingTtls {
    /// The checkpoint, ready to be proposed.
    pub checkpoint: LeaseCheckpointRequest,
    /// Where to go on.
    pub next: Option<i64>,
}

impl RemainingTtls {
    /// Of leases that live so long that a restart should not begin their TTL anew:
    /// of some leases, from an id on.
    pub(super) fn of(deadlines: &LeaseDeadlines, from: i64, now: u64) -> Self {
        let mut found = Self::default();
        for (looked, (id, ttl, noted)) in deadlines.iter_from(from).enumerate() {
            if looked == limits::LEASES_PER_LOOK
                || found.checkpoint.checkpoints.len() == limits::LEASE_NOTES_MAX
            {
                found.next = Some(id);
                break;
            }
            let remaining_ttl = deadlines.remaining(id, now).unwrap_or_default();
            let is_long = ttl > limits::LEASE_NOTE_INTERVAL.as_secs().cast_signed();
            if is_long && remaining_ttl > 0 && remaining_ttl < ttl && remaining_ttl != noted {
                found.checkpoint.checkpoints.push(LeaseCheckpoint { id, remaining_ttl });
            }
        }
        found
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = vec![u8::from(self.next.is_some())];
        out.put_i64_le(self.next.unwrap_or_default());
        out.put_slice(&self.checkpoint.encode_to_vec());
        out.into()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// When it is cut short.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Error> {
        let (Ok(has_next), Ok(next)) = (bytes.try_get_u8(), bytes.try_get_i64_le()) else {
            return Err(Error::Malformed("cut short"));
        };
        let checkpoint = LeaseCheckpointRequest::decode(bytes)?;
        Ok(Self { checkpoint, next: (has_next == 1).then_some(next) })
    }
}

/// Every lease and its deadline, as they were found. Putting a million of them into order takes
/// long, and the lessor is not needed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseList(pub(super) Vec<(u64, i64)>);

impl LeaseList {
    /// There are so many that they should be put into order elsewhere.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.0.len() > limits::LEASES_PER_LOOK
    }

    /// The body of `LeaseLeasesResponse`: earliest deadline first, as in etcd.
    #[must_use]
    pub fn encode(mut self) -> Bytes {
        self.0.sort_unstable();
        let leases = self.0.into_iter().map(|(_, id)| LeaseStatus { id }).collect();
        LeaseLeasesResponse { header: None, leases }.encode_to_vec().into()
    }
}

/// Leases granted, renewed and ended since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases granted.
    pub granted: u64,
    /// Keepalives of leases that live.
    pub renewed: u64,
    /// Leases revoked, for whatever reason.
    pub revoked: u64,
    /// Leases revoked because they were due.
    pub expired: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_listed_by_their_deadlines() {
        let listed = LeaseList(vec![(9, 1), (3, 2), (3, -5)]).encode();
        let listed = LeaseLeasesResponse::decode(listed).unwrap();
        assert_eq!(listed.leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [-5, 2, 1]);
    }
}
