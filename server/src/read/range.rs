//! A range request against one state.
//!
//! Stored records are encoded `mvccpb.KeyValue`s: a reply is built by copying them. Everything that needs no
//! value (count, limits, filters, sorting by revisions) comes from the key index.

use std::cmp::Ordering;

use bytes::Bytes;
use revd_engine::mvcc::record::{Stamp, encode_put};
use revd_engine::mvcc::{Direction, KeyMeta, KeyRange, Reader, Scan, StoredRecord};
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};

use crate::error::Error;
use crate::limits;
use crate::read::budget::ReplyBudget;
use crate::wire::{put_field, put_number, put_varint};

/// Protobuf tags of `RangeResponse`.
const TAG_KV: u8 = 0x12;
const TAG_MORE: u8 = 0x18;
const TAG_COUNT: u8 = 0x20;

/// The body of a `RangeResponse` (everything but its header), in chunks.
#[derive(Debug)]
pub struct Body {
    chunks: Vec<Bytes>,
    /// The last chunk, still open.
    open: Vec<u8>,
    budget: ReplyBudget,
}

impl Body {
    fn new(budget: &ReplyBudget) -> Self {
        Self { chunks: Vec::new(), open: Vec::new(), budget: budget.clone() }
    }

    fn close_chunk_if_full(&mut self) -> Result<(), Error> {
        if self.open.len() >= limits::REPLY_CHUNK_BYTES {
            // Another one of this size is likely: let it not grow there step by step.
            let next = Vec::with_capacity(limits::REPLY_CHUNK_BYTES + limits::REPLY_CHUNK_BYTES / 8);
            let chunk = std::mem::replace(&mut self.open, next);
            self.chunks.push(self.budget.chunk(chunk)?);
        }
        Ok(())
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
pub struct RangeRun<'a> {
    request: &'a RangeRequest,
    reader: Reader<'a>,
    /// The revision it reads.
    at: i64,
    phase: Phase<'a>,
    /// Keys answered so far.
    taken: u64,
    /// The last of them, if keys come in order.
    last_key: Option<&'a [u8]>,
    body: Body,
}

/// How far a range in key order was answered: enough to go on in another state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The revision it reads.
    at: i64,
    taken: u64,
    /// Where the next key is, or behind.
    next_key: Vec<u8>,
}

/// What the next turn does. Without filters and with keys in order: `Walk`, then done. Else: `Gather` all keys, sort them,
/// `Emit`.
#[derive(Debug)]
enum Phase<'a> {
    Walk(Scan<'a>),
    Gather(Scan<'a>, Vec<Found<'a>>),
    Emit(std::vec::IntoIter<Found<'a>>, bool),
    Count,
}

/// A key that exists at the revision.
type Found<'a> = (&'a [u8], KeyMeta);

fn range_of(request: &RangeRequest) -> KeyRange<'_> {
    KeyRange::from_wire(&request.key, &request.range_end)
}

fn has_filter(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// The order keys are returned in.
fn sorting(request: &RangeRequest) -> (SortTarget, SortOrder) {
    let target = SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key);
    match SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None) {
        SortOrder::None => (target, SortOrder::Ascend),
        order => (target, order),
    }
}

impl<'a> RangeRun<'a> {
    /// Starts on the state `reader` reads.
    ///
    /// # Errors
    /// [`Error::Compacted`] and [`Error::FutureRevision`].
    pub fn new(request: &'a RangeRequest, reader: Reader<'a>, budget: &ReplyBudget) -> Result<Self, Error> {
        let at = reader.resolve(request.revision)?;
        let (target, order) = sorting(request);
        let scan = |direction| reader.scan(range_of(request), at, direction);
        let phase = if request.count_only {
            Phase::Count
        } else if has_filter(request) || target != SortTarget::Key {
            Phase::Gather(scan(Direction::Forward), Vec::new())
        } else if order == SortOrder::Descend {
            Phase::Walk(scan(Direction::Reverse))
        } else {
            Phase::Walk(scan(Direction::Forward))
        };
        Ok(Self { request, reader, at, phase, taken: 0, last_key: None, body: Body::new(budget) })
    }

    /// Goes on in a newer state with a range in key order, at the revision it was begun at.
    ///
    /// # Errors
    /// [`Error::Compacted`], when that revision is gone.
    pub fn resume(
        request: &'a RangeRequest,
        reader: Reader<'a>,
        budget: &ReplyBudget,
        place: &'a Place,
    ) -> Result<Self, Error> {
        let at = reader.resolve(place.at)?;
        let rest = match range_of(request) {
            KeyRange::One(key) => KeyRange::Span { start: key, end: key }, // answered
            KeyRange::Span { end, .. } => KeyRange::Span { start: &place.next_key, end },
            KeyRange::From(_) => KeyRange::From(&place.next_key),
        };
        let phase = Phase::Walk(reader.scan(rest, at, Direction::Forward));
        let body = Body::new(budget);
        Ok(Self { request, reader, at, phase, taken: place.taken, last_key: None, body })
    }

    /// How far it is, if it has answered any key.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let next_key = [self.last_key?, &[0]].concat();
        Some(Place { at: self.at, taken: self.taken, next_key })
    }

    /// Answers a bounded part; true when all is done.
    ///
    /// # Errors
    /// When a record cannot be read, [`Error::ReplyTooLarge`].
    pub fn turn(&mut self, keys_max: usize) -> Result<bool, Error> {
        let more = match &mut self.phase {
            Phase::Walk(_) => self.walk(keys_max)?,
            Phase::Gather(scan, keys) => {
                let wanted = fetched(self.request).saturating_sub(self.taken);
                let part = usize::try_from(wanted).unwrap_or(usize::MAX).min(keys_max);
                let before = self.taken;
                for found in scan.by_ref().take(part) {
                    self.taken += 1;
                    if passes(self.request, &found.1) {
                        keys.push(found);
                    }
                }
                let at_end = self.taken - before < part as u64 || part == 0;
                if at_end || self.taken == fetched(self.request) {
                    let keys = std::mem::take(keys);
                    self.phase = sorted(self.request, &self.reader, keys)?;
                }
                return Ok(false);
            }
            Phase::Emit(..) => self.emit(keys_max)?,
            Phase::Count => Some(false),
        };
        let Some(more) = more else { return Ok(false) };
        let count = self.reader.count(range_of(self.request), self.at)?;
        put_number(&mut self.body.open, TAG_MORE, i64::from(more));
        put_number(&mut self.body.open, TAG_COUNT, count.cast_signed());
        Ok(true)
    }

    /// What has been answered so far and was not taken yet.
    #[must_use]
    pub fn take_body(&mut self) -> Body {
        let next = Body::new(&self.body.budget);
        std::mem::replace(&mut self.body, next)
    }

    /// Answers keys as they come; at the end, whether the limit has cut any off.
    fn walk(&mut self, keys_max: usize) -> Result<Option<bool>, Error> {
        let Phase::Walk(scan) = &mut self.phase else { return Ok(None) };
        let limit = limit(self.request).unwrap_or(u64::MAX);
        for _ in 0..keys_max {
            let Some((key, meta)) = scan.next() else { return Ok(Some(false)) };
            if self.taken == limit {
                return Ok(Some(true));
            }
            self.taken += 1;
            self.last_key = Some(key);
            push_kv(&mut self.body, &self.reader, key, meta, self.request.keys_only)?;
        }
        Ok(None)
    }

    /// Answers keys that are sorted and cut already.
    fn emit(&mut self, keys_max: usize) -> Result<Option<bool>, Error> {
        let Phase::Emit(keys, cut) = &mut self.phase else { return Ok(None) };
        // Sorted by value, the values are at hand, and so is the lease.
        let by_value = self.request.sort_target == SortTarget::Value as i32;
        for (key, meta) in keys.by_ref().take(keys_max) {
            if self.request.keys_only && by_value {
                let lease = stored(&self.reader, meta)?.stamp.lease;
                push_encoded(&mut self.body, key, meta, lease)?;
            } else {
                push_kv(&mut self.body, &self.reader, key, meta, self.request.keys_only)?;
            }
        }
        Ok((keys.len() == 0).then_some(*cut))
    }
}

fn limit(request: &RangeRequest) -> Option<u64> {
    u64::try_from(request.limit).ok().filter(|limit| *limit > 0)
}

/// How many keys are looked at before sorting: with a target but no order and no filter etcd takes `limit` keys and one
/// first, and sorts those.
fn fetched(request: &RangeRequest) -> u64 {
    let all = has_filter(request) || request.sort_order != SortOrder::None as i32;
    limit(request).filter(|_| !all).map_or(u64::MAX, |limit| limit.saturating_add(1))
}

/// Sorts and cuts.
fn sorted<'a>(
    request: &RangeRequest,
    reader: &Reader<'a>,
    mut keys: Vec<Found<'a>>,
) -> Result<Phase<'a>, Error> {
    let (target, order) = sorting(request);
    match target {
        SortTarget::Key if order == SortOrder::Descend => keys.reverse(),
        SortTarget::Key => {}
        SortTarget::Version => {
            keys.sort_by(|left, right| directed(order, left.1.version.cmp(&right.1.version)))
        }
        SortTarget::Create => {
            keys.sort_by(|left, right| directed(order, left.1.create_revision.cmp(&right.1.create_revision)));
        }
        SortTarget::Mod => {
            keys.sort_by(|left, right| directed(order, left.1.modified.main.cmp(&right.1.modified.main)));
        }
        SortTarget::Value => sort_by_value(reader, &mut keys, order)?,
    }
    let limit = limit(request).and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let cut = keys.len() > limit;
    keys.truncate(limit);
    Ok(Phase::Emit(keys.into_iter(), cut))
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
        return push_encoded(body, key, meta, 0);
    }
    put_field(&mut body.open, TAG_KV, reader.record(meta.modified)?);
    body.close_chunk_if_full()
}

fn push_encoded(body: &mut Body, key: &[u8], meta: KeyMeta, lease: i64) -> Result<(), Error> {
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
    body.close_chunk_if_full()
}

/// Answers in one go; for transactions, whose every part is bounded by the request's limits.
///
/// # Errors
/// As [`RangeRun::new`] and [`RangeRun::turn`].
pub fn answer(request: &RangeRequest, reader: Reader<'_>, budget: &ReplyBudget) -> Result<Vec<Bytes>, Error> {
    let mut run = RangeRun::new(request, reader, budget)?;
    while !run.turn(usize::MAX)? {}
    Ok(run.take_body().finish())
}
