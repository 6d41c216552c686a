//! `ResponseHeader`: field 1 of every response.

use bytes::Bytes;
use revd_engine::varint;
use revd_member::cluster::Identity;
use revd_proto::RESPONSE_HEADER_TAG;
use revd_proto::tags::response_header;

use crate::api::call::Message;
use crate::limits;

/// Bytes of the longest header.
const HEADER_BYTES_MAX: usize = 2 + 4 * (1 + varint::BYTES_MAX);

/// Appends the header to a response that is begun.
pub fn put_header(out: &mut Vec<u8>, identity: Identity, revision: i64, term: u64) {
    let (header, len) = encode(identity, revision, term);
    out.extend_from_slice(&header[..len]);
}

/// The header's bytes, and how many of them count.
fn encode(identity: Identity, revision: i64, term: u64) -> ([u8; HEADER_BYTES_MAX], usize) {
    let mut header = [0; HEADER_BYTES_MAX];
    header[0] = RESPONSE_HEADER_TAG;
    let mut end = 2;
    for (tag, value) in [
        (response_header::CLUSTER_ID, identity.cluster),
        (response_header::MEMBER_ID, identity.member),
        (response_header::REVISION, revision.cast_unsigned()),
        (response_header::RAFT_TERM, term),
    ] {
        if value != 0 {
            let (bytes, len) = varint::encode(value);
            header[end] = tag;
            header[end + 1..][..len].copy_from_slice(&bytes[..len]);
            end += 1 + len;
        }
    }
    header[1] = u8::try_from(end - 2).expect("a header has at most 44 bytes");
    (header, end)
}

/// Puts the header in front of a response's body.
#[must_use]
pub fn with_header(identity: Identity, revision: i64, term: u64, body: Vec<Bytes>) -> Message {
    let body_len: usize = body.iter().map(Bytes::len).sum();
    let is_copied = body_len <= limits::COPY_BYTES_MAX;
    let (header, len) = encode(identity, revision, term);
    // As many bytes as are needed: then no more memory is taken to share them.
    let mut first = Vec::with_capacity(len + if is_copied { body_len } else { 0 });
    first.extend_from_slice(&header[..len]);
    let mut message = Message::new();
    if is_copied {
        body.iter().for_each(|part| first.extend_from_slice(part));
        message.push(first.into());
    } else {
        message.push(first.into());
        message.extend(body);
    }
    message
}

/// Puts the header in front of fields of so many bytes, which are put behind it. As many bytes as
/// are needed: then no more memory is taken to share them.
#[must_use]
pub fn with_short_body(
    identity: Identity,
    revision: i64,
    term: u64,
    bytes: usize,
    put: impl FnOnce(&mut Vec<u8>),
) -> Message {
    let (header, len) = encode(identity, revision, term);
    let mut whole = Vec::with_capacity(len + bytes);
    whole.extend_from_slice(&header[..len]);
    put(&mut whole);
    let mut message = Message::new();
    message.push(whole.into());
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use revd_proto::etcdserverpb::{PutResponse, RangeResponse};

    #[test]
    fn a_header_decodes_and_a_long_body_is_not_copied() {
        let identity = Identity { cluster: u64::MAX, member: 7 };
        let message = with_header(identity, i64::MAX, u64::MAX, vec![]);
        let header = PutResponse::decode(message.concat().as_slice()).unwrap().header.unwrap();
        assert_eq!((header.cluster_id, header.member_id, header.raft_term), (u64::MAX, 7, u64::MAX));
        assert_eq!(header.revision, i64::MAX);

        let body = RangeResponse { count: 3, ..RangeResponse::default() }.encode_to_vec();
        let long = Bytes::from(vec![0; limits::COPY_BYTES_MAX]);
        let message = with_header(identity, 1, 1, vec![body.into(), long.clone()]);
        assert_eq!(message[2].as_ptr(), long.as_ptr());
    }
}
