//! Put, DeleteRange and Compact against the store.

use bytes::Bytes;
use revd_engine::mvcc::{KeyRange, Reader, Store};
use revd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest};
use revd_proto::tags::{delete_range_response, put_response};

use crate::apply::reply::Reply;
use crate::apply::state::{State, Writing};
use crate::error::Error;
use crate::limits;
use crate::read::parts::{DeferredRead, ReadRequest};
use crate::read::range::stored;
use crate::wire::{put_field, put_number};

/// A put of its own.
pub(super) fn put(state: &mut State, request: &PutRequest, mut reply: Reply) -> Result<Reply, Error> {
    state.leases.check(request.lease)?;
    state.write(false, |writing| {
        put_in(writing, request, Long::Later, &mut reply)?;
        Ok(reply)
    })
}

/// When what a reply says of keys as they were is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Long {
    /// One key at once, more by the edge.
    Later,
    /// All but small values by the edge.
    AllLater,
}

/// A put inside a transaction; fails before it changes anything.
pub(super) fn put_in(
    txn: &mut Writing<'_>,
    request: &PutRequest,
    long: Long,
    reply: &mut Reply,
) -> Result<(), Error> {
    let ignores = request.ignore_value || request.ignore_lease;
    previous(txn, put_read(request), long, reply);
    if !ignores {
        txn.put(&request.key, &request.value, request.lease);
        return Ok(());
    }
    let reader = txn.reader();
    let before = reader.get(&request.key, i64::MAX).ok_or(Error::KeyNotFound)?;
    let old = stored(&reader, before)?;
    let lease = if request.ignore_lease { old.stamp.lease } else { request.lease };
    let value = if request.ignore_value { Bytes::copy_from_slice(old.value) } else { request.value.clone() };
    txn.put(&request.key, &value, lease);
    Ok(())
}

/// A delete of its own.
pub(super) fn delete_range(
    state: &mut State,
    request: &DeleteRangeRequest,
    mut reply: Reply,
) -> Result<Reply, Error> {
    state.write(false, |writing| {
        delete_in(writing, request, Long::Later, &mut reply);
        Ok(reply)
    })
}

/// A delete inside a transaction.
pub(super) fn delete_in(txn: &mut Writing<'_>, request: &DeleteRangeRequest, long: Long, reply: &mut Reply) {
    let range = KeyRange::from_wire(&request.key, &request.range_end);
    let mut before = reply.inner();
    previous(txn, delete_read(request), long, &mut before);
    let deleted = txn.delete_range(range).len();
    if let Some(body) = reply.open() {
        put_number(body, delete_range_response::DELETED, i64::try_from(deleted).expect("keys fit memory"));
    }
    reply.append(before);
}

/// The read of a put that asks for its key as it was.
#[must_use]
pub fn put_read(request: &PutRequest) -> Option<ReadRequest> {
    let what = || ReadRequest::Previous {
        key: request.key.clone(),
        range_end: Bytes::new(),
        tag: put_response::PREV_KV,
    };
    request.prev_kv.then(what)
}

/// The read of a delete that asks for its keys as they were.
#[must_use]
pub fn delete_read(request: &DeleteRangeRequest) -> Option<ReadRequest> {
    let (key, range_end) = (&request.key, &request.range_end);
    let what = || ReadRequest::Previous {
        key: key.clone(),
        range_end: range_end.clone(),
        tag: delete_range_response::PREV_KVS,
    };
    request.prev_kv.then(what)
}

/// Keys as they are before they are changed. A record that cannot be read must not decide what is
/// written: its read is left to the edge, whose caller is told.
fn previous(txn: &mut Writing<'_>, what: Option<ReadRequest>, long: Long, reply: &mut Reply) {
    let Some(ReadRequest::Previous { key, range_end, tag }) = what.filter(|_| reply.is_wanted()) else {
        return;
    };
    if range_end.is_empty()
        && let Some(record) = at_once(&txn.reader(), &key, long)
        && let Some(body) = reply.open()
    {
        record.into_iter().for_each(|record| put_field(body, tag, record));
        return;
    }
    reply.read_later(DeferredRead { view: txn.view(), what: ReadRequest::Previous { key, range_end, tag } });
}

/// The record of a key, if it has one; none if it cannot be read, or is left to the edge for its
/// size.
pub(super) fn at_once<'r>(reader: &Reader<'r>, key: &[u8], long: Long) -> Option<Option<&'r [u8]>> {
    let record = reader.get(key, i64::MAX).map(|meta| reader.record(meta.modified)).transpose().ok()?;
    let is_small = record.is_none_or(|record| record.len() <= limits::READ_AT_ONCE_BYTES);
    (is_small || long == Long::Later).then_some(record)
}

/// A compaction: everything below the revision becomes unreadable now, its space is freed later.
pub(super) fn compact(store: &mut Store, request: &CompactionRequest) -> Result<Bytes, Error> {
    store.compact(request.revision)?;
    Ok(Bytes::new())
}
