//! The keys that a reply about a lease shows, a few at a time: they may be very many, and whoever
//! asked for them has to have the right to each.

use bytes::{Buf as _, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use revd_member::auth::{Attached, Caller, Wants};
use revd_member::error::Error;
use revd_proto::tags::lease_time_to_live_response;

use crate::api::context::ServiceContext;
use crate::limits;
use crate::queues::turn::give_way;

/// The next keys of an encoded reply; none at its end.
fn next_keys(reply: &mut Bytes) -> Result<Vec<Bytes>, Error> {
    let mut keys = Vec::new();
    while reply.has_remaining() && keys.len() < limits::LEASE_KEYS_JUDGED_PER_TURN {
        let (number, kind) = decode_key(reply)?;
        let is_key = number == u32::from(lease_time_to_live_response::KEYS >> 3);
        if !is_key || kind != WireType::LengthDelimited {
            skip_field(kind, number, reply, DecodeContext::default())?;
            continue;
        }
        let len = usize::try_from(decode_varint(reply)?).unwrap_or(usize::MAX);
        if len > reply.remaining() {
            return Err(Error::Malformed("a reply is cut short"));
        }
        keys.push(reply.split_to(len));
    }
    Ok(keys)
}

impl ServiceContext {
    /// Whether a caller may read all keys that a reply about a lease shows; others of this core
    /// have their turn meanwhile. Each part is judged by what is newest.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn check_shown(
        &self,
        caller: &Caller,
        lease: i64,
        reply: impl Iterator<Item = &Bytes>,
    ) -> Result<(), Error> {
        for piece in reply {
            let mut left = piece.clone();
            loop {
                let shown = next_keys(&mut left)?;
                if shown.is_empty() {
                    break;
                }
                let wants = Wants::ReadLease(Some(lease));
                self.check_keys(caller, &wants, &self.views.load(), Attached::Keys(&shown))?;
                if left.has_remaining() {
                    give_way().await;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use revd_proto::etcdserverpb::LeaseTimeToLiveResponse;

    #[test]
    fn keys_of_a_reply_come_in_parts_as_they_are() {
        let parts = 3;
        let count = (parts - 1) * limits::LEASE_KEYS_JUDGED_PER_TURN + 7;
        let key = |number: usize| Bytes::from("k".repeat(number % 300));
        let keys: Vec<Bytes> = (0..count).map(key).collect();
        let reply = LeaseTimeToLiveResponse { id: 7, ttl: 9, keys, ..Default::default() };
        let encoded = Bytes::from(reply.encode_to_vec());
        let mut left = encoded.clone();
        let read: Vec<Vec<Bytes>> =
            std::iter::from_fn(|| Some(next_keys(&mut left).unwrap()).filter(|keys| !keys.is_empty()))
                .collect();
        assert_eq!((read.len(), read.concat()), (parts, reply.keys));
        let header = LeaseTimeToLiveResponse { id: 7, ..Default::default() }.encode_to_vec();
        assert_eq!(next_keys(&mut header.into()), Ok(Vec::new()));
        let cut = encoded.slice(..encoded.len() - 1);
        let mut left = cut.clone();
        assert!((0..=parts).any(|_| next_keys(&mut left).is_err()), "it is cut short");
    }
}
