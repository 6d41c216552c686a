//! Put, DeleteRange and Compact against the store.

use bytes::Bytes;
use revd_engine::mvcc::{KeyRange, Reader, Store};
use revd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest};

use crate::apply::state::{State, Writing};
use crate::error::Error;
use crate::read::range::stored;
use crate::wire::{put_field, put_number};

/// Protobuf tags of `PutResponse` and `DeleteRangeResponse`.
const TAG_PUT_PREV_KV: u8 = 0x12;
const TAG_DELETED: u8 = 0x10;
const TAG_PREV_KVS: u8 = 0x1a;

/// A put of its own.
pub(super) fn put(state: &mut State, request: &PutRequest) -> Result<Bytes, Error> {
    state.leases.check(request.lease)?;
    state.write(false, |writing| {
        let mut body = Vec::new();
        put_in(writing, request, &mut body)?;
        Ok(body.into())
    })
}

/// A put inside a transaction; fails before it changes anything.
pub(super) fn put_in(txn: &mut Writing<'_>, request: &PutRequest, body: &mut Vec<u8>) -> Result<(), Error> {
    let ignores = request.ignore_value || request.ignore_lease;
    if !ignores && !request.prev_kv {
        txn.put(&request.key, &request.value, request.lease);
        return Ok(());
    }
    let reader = txn.reader();
    let Some(previous) = reader.get(&request.key, i64::MAX) else {
        if ignores {
            return Err(Error::KeyNotFound);
        }
        txn.put(&request.key, &request.value, request.lease);
        return Ok(());
    };
    if request.prev_kv {
        put_field(body, TAG_PUT_PREV_KV, reader.record(previous.modified)?);
    }
    if !ignores {
        txn.put(&request.key, &request.value, request.lease);
        return Ok(());
    }
    let old = stored(&reader, previous)?;
    let lease = if request.ignore_lease { old.stamp.lease } else { request.lease };
    let value = if request.ignore_value { Bytes::copy_from_slice(old.value) } else { request.value.clone() };
    txn.put(&request.key, &value, lease);
    Ok(())
}

/// A delete of its own.
pub(super) fn delete_range(state: &mut State, request: &DeleteRangeRequest) -> Result<Bytes, Error> {
    state.write(false, |writing| {
        let mut body = Vec::new();
        delete_in(writing, request, &mut body)?;
        Ok(body.into())
    })
}

/// A delete inside a transaction; fails before it changes anything.
pub(super) fn delete_in(
    txn: &mut Writing<'_>,
    request: &DeleteRangeRequest,
    body: &mut Vec<u8>,
) -> Result<(), Error> {
    let range = KeyRange::from_wire(&request.key, &request.range_end);
    let mut previous = Vec::new();
    if request.prev_kv {
        previous_kvs(&txn.reader(), range, &mut previous)?;
    }
    let deleted = txn.delete_range(range).len();
    put_number(body, TAG_DELETED, i64::try_from(deleted).expect("keys fit memory"));
    body.extend_from_slice(&previous);
    Ok(())
}

fn previous_kvs(reader: &Reader<'_>, range: KeyRange<'_>, body: &mut Vec<u8>) -> Result<(), Error> {
    for (_, meta) in reader.scan(range, i64::MAX, revd_engine::mvcc::Direction::Forward) {
        put_field(body, TAG_PREV_KVS, reader.record(meta.modified)?);
    }
    Ok(())
}

/// A compaction: everything below the revision becomes unreadable now, its space is freed later.
pub(super) fn compact(store: &mut Store, request: &CompactionRequest) -> Result<Bytes, Error> {
    store.compact(request.revision)?;
    Ok(Bytes::new())
}
