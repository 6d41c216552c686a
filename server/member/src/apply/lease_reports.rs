//! What is said about leases: as bytes between cores and in the log, and as numbers.

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{LeaseCheckpoint, LeaseCheckpointRequest, LeaseLeasesResponse, LeaseStatus};

use crate::error::Error;
use crate::lease::LeaseDeadlines;
use crate::limits;

/// The body of a keepalive's outcome: the seconds the lease has now; nothing if it has to be noted first that a keepalive
/// came.
pub const NOTE_FIRST: Bytes = Bytes::new();
/// The body of the outcome of a look for leases that are due, if there is more to look at.
pub const LOOK_AGAIN: Bytes = Bytes::new();

/// Leases that are due, and the term they were due in: body of an outcome, and then payload of a command.
///
/// ```text
///  0  u64  term
///  8  i64  lease, as often as there are any; all little-endian
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The leader's term.
    pub term: u64,
    /// Lease ids.
    pub leases: Vec<i64>,
}

impl Due {
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
            return Err(Error::Malformed("due leases of a wrong length"));
        }
        let term = bytes.get_u64_le();
        let mut leases = Vec::with_capacity(bytes.len() / 8);
        while bytes.has_remaining() {
            leases.push(bytes.get_i64_le());
        }
        Ok(Self { term, leases })
    }
}

/// What an edge says that was asked to pass on its keepalives.
///
/// ```text
///  0  u64  number of the question, little-endian
///  8  u8   1 if it has passed on all
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// What is answered.
    pub question: u64,
    /// No stream held any back.
    pub is_all: bool,
}

impl Heard {
    /// As bytes.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(9);
        out.put_u64_le(self.question);
        out.put_u8(u8::from(self.is_all));
        out.into()
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, Error> {
        let (Ok(question), Ok(is_all)) = (bytes.try_get_u64_le(), bytes.try_get_u8()) else {
            return Err(Error::Malformed("cut short"));
        };
        Ok(Self { question, is_all: is_all == 1 })
    }
}

/// What some leases have left, and the id from which on there are more.
///
/// ```text
///  0  u8   1 if there are more
///  1  i64  from this id on, little-endian
///  9  the notes
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Left {
    /// The notes, ready to be proposed.
    pub notes: LeaseCheckpointRequest,
    /// Where to go on.
    pub next: Option<i64>,
}

impl Left {
    /// What is left of leases that live so long that a restart should not begin their time anew: of some leases, from an id
    /// on.
    pub(super) fn of(deadlines: &LeaseDeadlines, from: &Bytes, now: u64) -> Self {
        let from = from.clone().try_get_i64_le().unwrap_or(i64::MIN);
        let mut left = Self::default();
        for (looked, (id, ttl, noted)) in deadlines.iter_from(from).enumerate() {
            if looked == limits::LEASES_PER_LOOK || left.notes.checkpoints.len() == limits::LEASE_NOTES_MAX {
                left.next = Some(id);
                break;
            }
            let remaining_ttl = deadlines.remaining(id, now).unwrap_or_default();
            let is_long = ttl > limits::LEASE_NOTE_INTERVAL.as_secs().cast_signed();
            if is_long && remaining_ttl > 0 && remaining_ttl < ttl && remaining_ttl != noted {
                left.notes.checkpoints.push(LeaseCheckpoint { id, remaining_ttl });
            }
        }
        left
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = vec![u8::from(self.next.is_some())];
        out.put_i64_le(self.next.unwrap_or_default());
        out.put_slice(&self.notes.encode_to_vec());
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
        Ok(Self { notes: LeaseCheckpointRequest::decode(bytes)?, next: (has_next == 1).then_some(next) })
    }
}

/// Every lease and its deadline, as they were found. What takes long with a million of them is putting them into order, for
/// which the leader is not needed.
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

/// What has happened to leases since the start of the process.
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
