//! `ResponseHeader`: field 1 of every response.

use bytes::{BufMut as _, Bytes, BytesMut};
use revd_member::cluster::Identity;
use revd_member::wire::put_varint;
use revd_proto::RESPONSE_HEADER_TAG;
use revd_proto::tags::response_header;

use crate::api::call::Message;
use crate::limits;

/// Appends the header to a response that is begun.
pub fn put_header(out: &mut Vec<u8>, identity: Identity, revision: i64, term: u64) {
    let start = out.len();
    out.extend_from_slice(&[RESPONSE_HEADER_TAG, 0]);
    for (tag, value) in [
        (response_header::CLUSTER_ID, identity.cluster),
        (response_header::MEMBER_ID, identity.member),
        (response_header::REVISION, revision.cast_unsigned()),
        (response_header::RAFT_TERM, term),
    ] {
        if value != 0 {
            out.push(tag);
            put_varint(out, value);
        }
    }
    out[start + 1] = u8::try_from(out.len() - start - 2).expect("a header has at most 44 bytes");
}

/// Puts the header in front of a response's body.
#[must_use]
pub fn with_header(identity: Identity, revision: i64, term: u64, body: Vec<Bytes>) -> Message {
    let body_len: usize = body.iter().map(Bytes::len).sum();
    let copied = if body_len <= limits::COPY_BYTES_MAX { body_len } else { 0 };
    let mut header = Vec::with_capacity(48 + copied);
    put_header(&mut header, identity, revision, term);
    let mut first = BytesMut::with_capacity(header.len() + copied);
    first.put_slice(&header);
    let mut message = Message::new();
    if body_len <= limits::COPY_BYTES_MAX {
        body.iter().for_each(|part| first.put_slice(part));
        message.push(first.freeze());
    } else {
        message.push(first.freeze());
        message.extend(body);
    }
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
