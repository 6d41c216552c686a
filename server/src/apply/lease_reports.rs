//! What the leader's part says of leases, as bytes between cores and in the log.

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::LeaseCheckpointRequest;

use crate::apply::decoded;
use crate::error::Error;

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
        Ok(Self {
            notes: decoded(LeaseCheckpointRequest::decode(bytes))?,
            next: (has_next == 1).then_some(next),
        })
    }
}
