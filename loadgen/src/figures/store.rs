//! The keys of both servers, and filling a store with them.

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest};

use crate::caller::{Caller, call_all};
use crate::keys::{KeySpace, value};
use crate::wire::RpcMethod;

/// Bytes of the values of [`key`].
pub(super) const VALUE_BYTES: usize = 256;
/// Puts in a transaction while keys are loaded.
const BATCH: u64 = 100;

fn keys() -> KeySpace {
    KeySpace { prefix: "/registry/pods/{namespace}/".to_owned(), size: 64, ..KeySpace::default() }
}

/// Key number `number`: 64 bytes, like those of Kubernetes.
pub(super) fn key(number: u64) -> Bytes {
    let mut key = Vec::new();
    keys().put(number, &mut key);
    key.into()
}

/// The range of all keys: the first, and the end.
pub(super) fn all_keys() -> (Bytes, Bytes) {
    let keys = keys();
    (keys.common_prefix().to_owned().into(), KeySpace::end(keys.common_prefix()).into())
}

/// A put of key number `number`; each number has a value of its own.
pub(super) fn put(key_number: u64, number: u64) -> PutRequest {
    PutRequest { key: key(key_number), value: value(VALUE_BYTES, number), ..PutRequest::default() }
}

fn load(endpoint: &str, puts: impl Iterator<Item = PutRequest>) -> anyhow::Result<()> {
    let mut caller = Caller::connect(endpoint)?.discarding();
    let mut puts = puts.peekable();
    let bodies = std::iter::from_fn(|| {
        puts.peek()?;
        let op = |put| RequestOp { request: Some(Request::RequestPut(put)) };
        let success = (0..BATCH).map_while(|_| puts.next()).map(op).collect();
        Some(TxnRequest { success, ..TxnRequest::default() }.encode_to_vec())
    });
    call_all(&mut caller, RpcMethod::Txn.path(), bodies)
}

/// Puts of these numbers, number `n` to key number `n % of`.
pub(super) fn load_keys(endpoint: &str, numbers: std::ops::Range<u64>, of: u64) -> anyhow::Result<()> {
    load(endpoint, numbers.map(|number| put(number % of, number)))
}

/// Larger values beside them, below `/large/`.
pub(super) fn load_large(endpoint: &str, count: u64, value_bytes: usize) -> anyhow::Result<()> {
    let key = |number| format!("/large/{number:08}").into();
    let put =
        |number| PutRequest { key: key(number), value: value(value_bytes, number), ..PutRequest::default() };
    load(endpoint, (0..count).map(put))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_in_their_range_and_differ() {
        let (first, end) = all_keys();
        assert_eq!(key(123).len(), 64);
        assert!(first < key(0) && key(u64::MAX / 2) < end && key(1) != key(101));
    }
}
