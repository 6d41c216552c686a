//! A range request against one state.
//!
//! Stored records are encoded `mvccpb.KeyValue`s: a reply is built by copying them. Everything that needs no
//! value (count, limits, filters, sorting by revisions) comes from the key index.

use std::cmp::Ordering;

use bytes::Bytes;
use revd_engine::mvcc::record::{Stamp, encode_put};
use revd_engine::mvcc::{Direction, KeyMeta, KeyRange, Reader, StoredRecord};
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

use crate::error::Error;
use crate::limits;

/// Protobuf tags of `RangeResponse`.
const TAG_KV: u8 = 0x12;
const TAG_MORE: u8 = 0x18;
const TAG_COUNT: u8 = 0x20;

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("seven bits"));
}

/// Appends a length-delimited field.
pub fn put_field(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a number field, unless it is zero.
pub fn put_number(out: &mut Vec<u8>, tag: u8, value: i64) {
    if value != 0 {
        out.push(tag);
        put_varint(out, value.cast_unsigned());
    }
}

/// The body of a `RangeResponse` (everything but its header), in chunks.
#[derive(Debug, Default)]
pub struct Body {
    /// Full chunks.
    pub chunks: Vec<Bytes>,
    /// The last one, still open.
    pub open: Vec<u8>,
}

impl Body {
    fn close_chunk_if_full(&mut self) {
        if self.open.len() >= limits::REPLY_CHUNK_BYTES {
            self.chunks.push(std::mem::take(&mut self.open).into());
        }
    }

    /// All chunks.
    #[must_use]
    pub fn finish(mut self) -> Vec<Bytes> {
        if !self.open.is_empty() {
            self.chunks.push(self.open.into());
        }
        self.chunks
    }
}

/// A range request being answered, in turns.
#[derive(Debug)]
pub struct RangeRun<'q> {
    request: &'q RangeRequest,
    /// The revision it reads.
    at: i64,
    /// Where the next turn begins.
    resume: Option<Vec<u8>>,
    taken: u64,
    body: Body,
}

fn range_of(request: &RangeRequest) -> KeyRange<'_> {
    KeyRange::from_wire(&request.key, &request.range_end)
}

fn has_filter(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// The order keys are returned in: none if as they are stored.
fn sorting(request: &RangeRequest) -> Option<(SortTarget, SortOrder)> {
    let target = SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key);
    let order = SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None);
    match (target, order) {
        (SortTarget::Key, SortOrder::None | SortOrder::Ascend) => None,
        (target, SortOrder::None) => Some((target, SortOrder::Ascend)),
        sorted => Some(sorted),
    }
}

impl<'q> RangeRun<'q> {
    /// Starts on the state `reader` reads.
    ///
    /// # Errors
    /// [`Error::Compacted`] and [`Error::FutureRevision`].
    pub fn new(request: &'q RangeRequest, reader: &Reader<'_>) -> Result<Self, Error> {
        let at = reader.resolve(request.revision)?;
        Ok(Self { request, at, resume: None, taken: 0, body: Body::default() })
    }

    /// Answers a bounded part; true when all is done. `reader` must read the same state every time.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn turn(&mut self, reader: &Reader<'_>, keys_max: usize) -> Result<bool, Error> {
        let request = self.request;
        if request.count_only {
            self.finish(reader, false)?;
            return Ok(true);
        }
        if has_filter(request) || sorting(request).is_some() {
            let more = self.sorted(reader)?;
            self.finish(reader, more)?;
            return Ok(true);
        }
        let range = match &self.resume {
            None => range_of(request),
            Some(from) => match range_of(request) {
                KeyRange::Span { end, .. } => KeyRange::Span { start: from, end },
                _ => KeyRange::From(from),
            },
        };
        let limit = u64::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
        let mut left = keys_max;
        let mut resume = None;
        let mut more = false;
        for (key, meta) in reader.scan(range, self.at, Direction::Forward) {
            if self.taken == limit {
                more = true;
                break;
            }
            if left == 0 {
                resume = Some(key.to_vec());
                break;
            }
            left -= 1;
            self.taken += 1;
            push_kv(&mut self.body, reader, key, meta, request.keys_only)?;
        }
        if resume.is_some() {
            self.resume = resume;
            return Ok(false);
        }
        self.finish(reader, more)?;
        Ok(true)
    }

    fn finish(&mut self, reader: &Reader<'_>, more: bool) -> Result<(), Error> {
        let count = reader.count(range_of(self.request), self.at)?;
        put_number(&mut self.body.open, TAG_MORE, i64::from(more));
        put_number(&mut self.body.open, TAG_COUNT, count.cast_signed());
        Ok(())
    }

    /// What has been answered so far and was not taken yet.
    #[must_use]
    pub fn take_body(&mut self) -> Body {
        std::mem::take(&mut self.body)
    }

    /// Filters, sorts, cuts; true if something was cut off.
    ///
    /// etcd fetches `limit` keys (and one) *before* sorting when no order is given, only a target; with an explicit
    /// order or a filter it fetches all of them.
    fn sorted(&mut self, reader: &Reader<'_>) -> Result<bool, Error> {
        let request = self.request;
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let explicit = request.sort_order != SortOrder::None as i32;
        let fetched =
            if explicit || has_filter(request) { None } else { limit.map(|limit| limit.saturating_add(1)) };
        let scan = reader.scan(range_of(request), self.at, Direction::Forward);
        let mut keys: Vec<_> =
            scan.take(fetched.unwrap_or(usize::MAX)).filter(|(_, meta)| passes(request, meta)).collect();
        match sorting(request) {
            None => {}
            Some((SortTarget::Value, order)) => sort_by_value(reader, &mut keys, order)?,
            Some((target, order)) => keys.sort_by(|left, right| {
                directed(
                    order,
                    match target {
                        SortTarget::Version => left.1.version.cmp(&right.1.version),
                        SortTarget::Create => left.1.create_revision.cmp(&right.1.create_revision),
                        SortTarget::Mod => left.1.modified.main.cmp(&right.1.modified.main),
                        _ => left.0.cmp(right.0),
                    },
                )
            }),
        }
        let cut = limit.is_some_and(|limit| keys.len() > limit);
        // Sorted by value, the values are at hand, and so is the lease.
        let from_index = request.keys_only && request.sort_target != SortTarget::Value as i32;
        for (key, meta) in keys.into_iter().take(limit.unwrap_or(usize::MAX)) {
            if request.keys_only && !from_index {
                push_without_value(&mut self.body, reader, key, meta)?;
            } else {
                push_kv(&mut self.body, reader, key, meta, from_index)?;
            }
        }
        Ok(cut)
    }
}

fn passes(request: &RangeRequest, meta: &KeyMeta) -> bool {
    let above = |min: i64, value: i64| min == 0 || value >= min;
    let below = |max: i64, value: i64| max == 0 || value <= max;
    above(request.min_mod_revision, meta.modified.main)
        && below(request.max_mod_revision, meta.modified.main)
        && above(request.min_create_revision, meta.create_revision)
        && below(request.max_create_revision, meta.create_revision)
}

fn directed(order: SortOrder, ordering: Ordering) -> Ordering {
    if order == SortOrder::Descend { ordering.reverse() } else { ordering }
}

fn sort_by_value(
    reader: &Reader<'_>,
    keys: &mut Vec<(&[u8], KeyMeta)>,
    order: SortOrder,
) -> Result<(), Error> {
    let mut with_values = Vec::with_capacity(keys.len());
    for (key, meta) in keys.drain(..) {
        with_values.push((stored(reader, meta)?.value, key, meta));
    }
    with_values.sort_by(|left, right| directed(order, left.0.cmp(right.0)));
    keys.extend(with_values.into_iter().map(|(_, key, meta)| (key, meta)));
    Ok(())
}

/// The stored record of a key.
///
/// # Errors
/// When it cannot be read.
pub fn stored<'r>(reader: &Reader<'r>, meta: KeyMeta) -> Result<StoredRecord<'r>, Error> {
    StoredRecord::parse(reader.record(meta.modified)?).ok_or(Error::Corrupt)
}

fn push_kv(
    body: &mut Body,
    reader: &Reader<'_>,
    key: &[u8],
    meta: KeyMeta,
    keys_only: bool,
) -> Result<(), Error> {
    if keys_only {
        push_encoded(body, key, meta, 0);
    } else {
        put_field(&mut body.open, TAG_KV, reader.record(meta.modified)?);
    }
    body.close_chunk_if_full();
    Ok(())
}

fn push_without_value(body: &mut Body, reader: &Reader<'_>, key: &[u8], meta: KeyMeta) -> Result<(), Error> {
    push_encoded(body, key, meta, stored(reader, meta)?.stamp.lease);
    body.close_chunk_if_full();
    Ok(())
}

fn push_encoded(body: &mut Body, key: &[u8], meta: KeyMeta, lease: i64) {
    let stamp = Stamp {
        create_revision: meta.create_revision,
        mod_revision: meta.modified.main,
        version: meta.version,
        lease,
    };
    encode_put(key, &[], stamp, |parts| {
        body.open.push(TAG_KV);
        put_varint(&mut body.open, parts.iter().map(|part| part.len() as u64).sum());
        parts.iter().for_each(|part| body.open.extend_from_slice(part));
    });
}

/// Answers in one go; for transactions, whose every part is bounded by the request's limits.
///
/// # Errors
/// As [`RangeRun::new`] and [`RangeRun::turn`].
pub fn answer(request: &RangeRequest, reader: &Reader<'_>) -> Result<Vec<Bytes>, Error> {
    let mut run = RangeRun::new(request, reader)?;
    while !run.turn(reader, usize::MAX)? {}
    Ok(run.take_body().finish())
}
