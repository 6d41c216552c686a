//! A transaction's message: decoded however deep it is nested, and its parts counted before that.

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use crate::error::Error;
use crate::limits;

/// Decodes a transaction, however deep, without recursing deeper than the limit.
///
/// # Errors
/// [`Error::TooManyOperations`] when nested too deep, [`Error::Malformed`].
pub fn decode(bytes: &Bytes) -> Result<TxnRequest, Error> {
    let mut txn = TxnRequest::default();
    merge_nested(&mut txn, bytes.clone(), 0)?;
    Ok(txn)
}

/// Whether a transaction has more parts than these, in all of its branches, however deep: a
/// comparison is one, an operation and its request are two. A look at its bytes, of which decoding
/// would make a hundred times as many. Bytes that cannot be read are for decoding to tell.
#[must_use]
pub fn has_more_parts(bytes: &Bytes, parts_max: usize) -> bool {
    const PART_BYTES_MIN: usize = 2;
    let mut left = parts_max;
    bytes.len() / PART_BYTES_MIN > parts_max && take_parts(bytes.clone(), 0, &mut left).is_none()
}

/// None when there are more than are left.
fn take_parts(mut bytes: Bytes, depth: usize, left: &mut usize) -> Option<()> {
    if depth > limits::TXN_DEPTH_MAX {
        return Some(());
    }
    while let Some((field, mut part)) = next_field(&mut bytes).ok().flatten() {
        *left = left.checked_sub(1)?;
        while matches!(field, 2 | 3)
            && let Some((field, part)) = next_field(&mut part).ok().flatten()
        {
            *left = left.checked_sub(1)?;
            if field == 4 {
                take_parts(part, depth + 1, left)?;
            }
        }
    }
    Some(())
}

// prost bounds recursion at 100 messages, which 50 nested transactions reach; etcd takes 127. So
// the recursive part is decoded here and everything else by prost.
fn merge_nested(txn: &mut TxnRequest, mut bytes: Bytes, depth: usize) -> Result<(), Error> {
    if depth > limits::TXN_DEPTH_MAX {
        return Err(Error::TooManyOperations);
    }
    while let Some((field, mut part)) = next_field(&mut bytes)? {
        match field {
            1 => txn.compare.push(Compare::decode(part).map_err(Error::from)?),
            2 | 3 => {
                let mut op = RequestOp::default();
                while let Some((field, part)) = next_field(&mut part)? {
                    op.request = merged(op.request, field, part, depth)?;
                }
                if field == 2 { &mut txn.success } else { &mut txn.failure }.push(op);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The request of an operation with one more field read: of the same kind it adds to what is there,
/// of another kind it takes its place, as everywhere in protobuf.
fn merged(before: Option<Request>, field: u32, part: Bytes, depth: usize) -> Result<Option<Request>, Error> {
    use Request::{RequestDeleteRange, RequestPut, RequestRange, RequestTxn};
    Ok(match (field, before) {
        (1, Some(RequestRange(before))) => Some(RequestRange(with(before, part)?)),
        (1, _) => Some(RequestRange(with(RangeRequest::default(), part)?)),
        (2, Some(RequestPut(before))) => Some(RequestPut(with(before, part)?)),
        (2, _) => Some(RequestPut(with(PutRequest::default(), part)?)),
        (3, Some(RequestDeleteRange(before))) => Some(RequestDeleteRange(with(before, part)?)),
        (3, _) => Some(RequestDeleteRange(with(DeleteRangeRequest::default(), part)?)),
        (4, before) => {
            let mut txn = if let Some(RequestTxn(before)) = before { before } else { TxnRequest::default() };
            merge_nested(&mut txn, part, depth + 1)?;
            Some(RequestTxn(txn))
        }
        (_, before) => before,
    })
}

fn with<M: prost::Message>(mut message: M, part: Bytes) -> Result<M, Error> {
    message.merge(part).map_err(Error::from)?;
    Ok(message)
}

/// The next length-delimited field; fields of other types are unknown here and skipped.
pub(super) fn next_field(bytes: &mut Bytes) -> Result<Option<(u32, Bytes)>, Error> {
    while bytes.has_remaining() {
        let (field, wire) = prost::encoding::decode_key(bytes).map_err(Error::from)?;
        if wire == prost::encoding::WireType::LengthDelimited {
            let len = prost::encoding::decode_varint(bytes).map_err(Error::from)?;
            let len = usize::try_from(len).ok().filter(|len| *len <= bytes.len());
            let len = len.ok_or(Error::Malformed("proto: cannot parse invalid wire-format data"))?;
            return Ok(Some((field, bytes.split_to(len))));
        }
        prost::encoding::skip_field(wire, field, bytes, prost::encoding::DecodeContext::default())
            .map_err(Error::from)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests of one kind in an operation are one; of two kinds the last one counts.
    #[test]
    fn requests_that_come_twice_are_merged() {
        let field =
            |number: u8, part: &[u8]| [&[number << 3 | 2, u8::try_from(part.len()).unwrap()], part].concat();
        let put = |key: &str, value: &str| {
            let put = PutRequest {
                key: key.to_owned().into(),
                value: value.to_owned().into(),
                ..PutRequest::default()
            };
            field(2, &put.encode_to_vec())
        };
        let operation = |op: &[u8]| decode(&field(2, op).into()).unwrap().success.remove(0).request.unwrap();
        let Request::RequestPut(both) = operation(&[put("a", ""), put("", "v")].concat()) else {
            panic!("of another kind")
        };
        assert_eq!((&both.key[..], &both.value[..]), (&b"a"[..], &b"v"[..]));
        let range = field(1, &RangeRequest { key: "r".into(), ..RangeRequest::default() }.encode_to_vec());
        let last = operation(&[put("a", "v"), range].concat());
        assert!(matches!(last, Request::RequestRange(range) if range.key == "r"));
        let nested = field(4, &field(2, &put("a", "")));
        let Request::RequestTxn(txn) = operation(&[&nested[..], &nested].concat()) else {
            panic!("of another kind")
        };
        assert_eq!(txn.success.len(), 2);
    }

    /// As many parts as decoding makes, and no more are looked for than are asked about.
    #[test]
    fn parts_of_a_transaction_are_counted_before_it_is_decoded() {
        let op = |request| RequestOp { request: Some(request) };
        let put = |key: &'static str| PutRequest { key: key.into(), ..PutRequest::default() };
        let inner = TxnRequest {
            compare: vec![Compare { key: "a".into(), ..Compare::default() }],
            success: vec![op(Request::RequestPut(put("b")))],
            failure: vec![RequestOp::default()],
        };
        let success = vec![op(Request::RequestTxn(inner.clone())), op(Request::RequestPut(put("c")))];
        let txn = TxnRequest { success, failure: vec![op(Request::RequestTxn(inner))], ..Default::default() };
        let bytes = Bytes::from(txn.encode_to_vec());
        const PARTS: usize = 2 + 4 + 2 + 2 + 4;
        assert!(has_more_parts(&bytes, PARTS - 1) && !has_more_parts(&bytes, PARTS));
        assert_eq!(decode(&bytes).unwrap(), txn);
        // A part without content, in a branch, in an operation, and nested.
        for part in [&[0x0a, 0][..], &[0x12, 0], &[0x12, 2, 0x0a, 0], &[0x12, 4, 0x22, 2, 0x12, 0]] {
            let many = Bytes::from(part.repeat(1_000));
            assert!(has_more_parts(&many, 999), "{part:?}");
            assert!(!has_more_parts(&many.slice(..part.len() * 100), 400), "{part:?}");
        }
        assert!(!has_more_parts(&vec![0x0f; 10_000].into(), 9), "for decoding to say");
    }
}
