//! A range request against one state.
//!
//! Stored records are encoded `mvccpb.KeyValue`s: a reply is built by copying them. Everything that
//! needs no value (count, limits, filters, sorting by revisions) comes from the key index.

use std::cmp::Reverse;

use bytes::Bytes;
use revd_engine::key_parts::KeyParts;
use revd_engine::mvcc::record::{Stamp, encode_put};
use revd_engine::mvcc::{Counting, Direction, KeyMeta, KeyRange, Reader, Scan, Sought, StoredRecord};
use revd_engine::varint;
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::tags::range_response;

use crate::budget::{Hold, Share};
use crate::error::Error;
use crate::limits;
use crate::read::sort::{Rank, SortEntry, Sorted, Sorter};
use crate::wire::{put_field, put_number, put_varint};

/// The body of a `RangeResponse` (everything but its header), in chunks.
#[derive(Debug)]
pub struct Body {
    chunks: Vec<Bytes>,
    /// The last chunk, still open.
    open: Vec<u8>,
    /// Bytes of the others.
    closed: usize,
    hold: Hold,
    replies: Share,
}

/// Bytes of the number of keys and of the head of a field, with tags.
pub(super) const FIELDS_ROOM: usize = 3 * (1 + varint::BYTES_MAX);

impl Body {
    /// Nothing yet.
    #[must_use]
    pub fn new(replies: &Share) -> Self {
        let hold = replies.hold();
        Self { chunks: Vec::new(), open: Vec::new(), closed: 0, hold, replies: replies.clone() }
    }

    /// Counts what it holds by now.
    fn count(&mut self) -> Result<(), Error> {
        count(&mut self.hold, self.closed + self.open.capacity(), &self.replies)
    }

    fn close_chunk_if_full(&mut self) -> Result<(), Error> {
        if self.open.len() >= limits::REPLY_CHUNK_BYTES {
            let chunk = std::mem::take(&mut self.open);
            self.closed += chunk.capacity();
            self.chunks.push(chunk.into());
            return self.count();
        }
        Ok(())
    }

    /// Appends a length-delimited field.
    ///
    /// # Errors
    /// [`Error::ReplyTooLarge`], [`Error::NoReplyRoom`].
    pub fn push_field(&mut self, tag: u8, bytes: &[u8]) -> Result<(), Error> {
        if self.open.capacity() == 0 && !self.chunks.is_empty() {
            // Another chunk of this size is likely: let it not grow there step by step.
            self.open.reserve(limits::REPLY_CHUNK_BYTES + limits::REPLY_CHUNK_BYTES / 8);
        }
        // Most replies have one: room for it and for the numbers behind it, at once.
        self.open.reserve(bytes.len() + FIELDS_ROOM);
        put_field(&mut self.open, tag, bytes);
        self.close_chunk_if_full()
    }

    /// The chunks so far; the next ones begin empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let next = Self::new(&self.replies);
        std::mem::replace(self, next)
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

/// Counts so many bytes from now on.
///
/// # Errors
/// [`Error::ReplyTooLarge`], [`Error::NoReplyRoom`].
pub fn count(hold: &mut Hold, bytes: usize, replies: &Share) -> Result<(), Error> {
    let before = hold.bytes();
    if bytes <= before {
        hold.release(before - bytes);
        return Ok(());
    }
    hold.grow(bytes - before).map_err(|_| {
        let bytes_max = replies.bytes_max();
        if bytes > bytes_max { Error::ReplyTooLarge { bytes_max } } else { Error::NoReplyRoom { bytes } }
    })
}

/// A range request being answered, in turns.
#[derive(Debug)]
pub struct RangeRun<'a> {
    request: &'a RangeRequest,
    reader: Reader<'a>,
    /// The revision it reads.
    at: i64,
    phase: RangePhase<'a>,
    /// Keys answered so far.
    taken: u64,
    /// The last one that was passed, dead or alive, if keys come in order.
    last_key: Option<KeyParts<'a>>,
    body: Body,
    /// Keys that are gathered to be sorted.
    gathered: Hold,
}

/// How far a range in key order was answered: enough to go on in another state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangePosition {
    /// The revision it reads.
    at: i64,
    taken: u64,
    /// Where the next key is, or behind.
    next_key: Vec<u8>,
}

/// The work of the next turn. With keys in order: `Walk`, then `Count`. Else: `Gather` all keys,
/// `Emit` them sorted, `Count`.
#[derive(Debug)]
enum RangePhase<'a> {
    Walk(Scan<'a>),
    Gather(Scan<'a>, Sorter<'a>),
    /// And whether the limit has cut keys off.
    Emit(Sorted<'a>, bool),
    /// And whether there are more keys than were answered.
    Count(Counting<'a>, bool),
}

fn range_of(request: &RangeRequest) -> KeyRange<'_> {
    KeyRange::from_wire(&request.key, &request.range_end)
}

/// Only some keys are wanted, by their revisions.
pub(super) fn has_filter(request: &RangeRequest) -> bool {
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
    pub fn new(request: &'a RangeRequest, reader: Reader<'a>, replies: &Share) -> Result<Self, Error> {
        let at = reader.resolve(request.revision)?;
        let (target, order) = sorting(request);
        let scan = |direction| reader.scan(range_of(request), at, direction);
        let phase = if request.count_only {
            RangePhase::Count(reader.counting(range_of(request), at), false)
        } else if target != SortTarget::Key {
            RangePhase::Gather(scan(Direction::Forward), Sorter::new(limit(request)))
        } else if order == SortOrder::Descend {
            RangePhase::Walk(scan(Direction::Reverse))
        } else {
            RangePhase::Walk(scan(Direction::Forward))
        };
        let (body, gathered) = (Body::new(replies), replies.hold());
        Ok(Self { request, reader, at, phase, taken: 0, last_key: None, body, gathered })
    }

    /// Goes on in a newer state with a range in key order, at the revision it was begun at.
    ///
    /// # Errors
    /// [`Error::Compacted`], when that revision is gone.
    pub fn resume(
        request: &'a RangeRequest,
        reader: Reader<'a>,
        replies: &Share,
        place: &'a RangePosition,
    ) -> Result<Self, Error> {
        let at = reader.resolve(place.at)?;
        let rest = match range_of(request) {
            KeyRange::One(key) => KeyRange::Span { start: key, end: key }, // answered
            KeyRange::Span { end, .. } => KeyRange::Span { start: &place.next_key, end },
            KeyRange::From(_) => KeyRange::From(&place.next_key),
        };
        let phase = RangePhase::Walk(reader.scan(rest, at, Direction::Forward));
        let (body, gathered) = (Body::new(replies), replies.hold());
        Ok(Self { request, reader, at, phase, taken: place.taken, last_key: None, body, gathered })
    }

    /// It still looks for the keys it has to sort: nothing is answered yet.
    #[must_use]
    pub fn is_gathering(&self) -> bool {
        matches!(self.phase, RangePhase::Gather(..))
    }

    /// How far it is, if it has passed any key.
    #[must_use]
    pub fn place(&self) -> Option<RangePosition> {
        let next_key = self.last_key?.next();
        Some(RangePosition { at: self.at, taken: self.taken, next_key })
    }

    /// Does a bounded part of the work: answers at most so many keys, fewer where dead keys have to
    /// be passed, where values are large, or where many of the keys it visits are not wanted. True
    /// when all is done. The bytes made by then are counted in the share; the whole answer is its
    /// caller's to count.
    ///
    /// # Errors
    /// When a record cannot be read, [`Error::ReplyTooLarge`], [`Error::NoReplyRoom`],
    /// [`Error::SortTooLarge`].
    pub fn turn(&mut self, keys_max: usize) -> Result<bool, Error> {
        let is_done = self.advance(keys_max)?;
        if !is_done {
            self.body.count()?;
            let gathered = match &self.phase {
                RangePhase::Gather(_, sorter) => sorter.bytes(),
                RangePhase::Emit(..) => self.gathered.bytes(),
                RangePhase::Walk(_) | RangePhase::Count(..) => 0,
            };
            count(&mut self.gathered, gathered, &self.body.replies)?;
        }
        Ok(is_done)
    }

    fn advance(&mut self, keys_max: usize) -> Result<bool, Error> {
        let mut steps = keys_max.saturating_mul(limits::STEPS_PER_KEY).max(limits::STEPS_PER_TURN_MIN);
        loop {
            match &mut self.phase {
                RangePhase::Walk(_) => self.walk(keys_max, &mut steps)?,
                RangePhase::Gather(..) => self.gather(&mut steps)?,
                RangePhase::Emit(..) => self.emit(keys_max, &mut steps)?,
                RangePhase::Count(counting, more) => {
                    let Some(count) = counting.step(&mut steps) else { return Ok(false) };
                    put_number(&mut self.body.open, range_response::MORE, i64::from(*more));
                    put_number(&mut self.body.open, range_response::COUNT, count.cast_signed());
                    return Ok(true);
                }
            }
            // Only the count at the end may follow in the same turn: it is mostly known at once.
            if !matches!(self.phase, RangePhase::Count(..)) {
                return Ok(false);
            }
        }
    }

    /// Every key is answered; what is left is to count those there are.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        matches!(self.phase, RangePhase::Count(..))
    }

    /// Every key is answered that is to be.
    fn end(&mut self, more: bool) {
        self.phase = RangePhase::Count(self.reader.counting(range_of(self.request), self.at), more);
    }

    /// The part of the answer that is ready and was not taken yet.
    #[must_use]
    pub fn take_body(&mut self) -> Body {
        self.body.take()
    }

    /// Answers keys as they come.
    fn walk(&mut self, keys_max: usize, steps: &mut usize) -> Result<(), Error> {
        let RangePhase::Walk(scan) = &mut self.phase else { return Ok(()) };
        let limit = limit(self.request).unwrap_or(u64::MAX);
        let filtered = has_filter(self.request);
        let mut answered = 0;
        let ended = loop {
            if answered >= keys_max {
                break None;
            }
            let (key, meta) = match scan.next_within(steps) {
                Sought::Key(key, meta) => (key, meta),
                Sought::Later => break None,
                Sought::End => break Some(false),
            };
            if filtered && !passes(self.request, &meta) {
                continue;
            }
            if self.taken == limit {
                break Some(true);
            }
            self.taken += 1;
            answered += 1;
            let bytes = push_kv(&mut self.body, &self.reader, key, meta, self.request.keys_only)?;
            *steps = steps.saturating_sub(limits::STEPS_PER_KEY + bytes / limits::BYTES_PER_STEP);
        };
        self.last_key = scan.passed().or(self.last_key);
        if let Some(more) = ended {
            self.end(more);
        }
        Ok(())
    }

    /// Visits keys that have to be sorted.
    fn gather(&mut self, steps: &mut usize) -> Result<(), Error> {
        let RangePhase::Gather(scan, sorter) = &mut self.phase else { return Ok(()) };
        let fetched = fetched(self.request);
        loop {
            let (key, meta) = match scan.next_within(steps) {
                Sought::Key(key, meta) if self.taken < fetched => (key, meta),
                Sought::Later => return Ok(()),
                Sought::Key(..) | Sought::End => break,
            };
            self.taken += 1;
            if !passes(self.request, &meta) {
                continue;
            }
            let (rank, cost) = rank(self.request, &self.reader, meta)?;
            let sorting = sorter.add(SortEntry { rank, key, meta })?;
            *steps = steps.saturating_sub(cost + sorting);
        }
        let gathered = std::mem::replace(sorter, Sorter::new(None));
        let (sorted, cut) = gathered.sorted();
        self.phase = RangePhase::Emit(sorted, cut);
        Ok(())
    }

    /// Answers keys that are sorted and cut already.
    fn emit(&mut self, keys_max: usize, steps: &mut usize) -> Result<(), Error> {
        let RangePhase::Emit(keys, cut) = &mut self.phase else { return Ok(()) };
        // Sorted by value, the values are at hand, and so is the lease.
        let by_value = self.request.sort_target == SortTarget::Value as i32;
        let mut answered = 0;
        while answered < keys_max
            && *steps > 0
            && let Some(SortEntry { key, meta, .. }) = keys.next_within(steps)
        {
            answered += 1;
            let bytes = if self.request.keys_only && by_value {
                let lease = stored(&self.reader, meta)?.stamp.lease;
                push_encoded(&mut self.body, key, meta, lease)?
            } else {
                push_kv(&mut self.body, &self.reader, key, meta, self.request.keys_only)?
            };
            *steps = steps.saturating_sub(limits::STEPS_PER_KEY + bytes / limits::BYTES_PER_STEP);
        }
        if keys.is_empty() {
            let more = *cut;
            self.end(more);
        }
        Ok(())
    }
}

fn limit(request: &RangeRequest) -> Option<u64> {
    u64::try_from(request.limit).ok().filter(|limit| *limit > 0)
}

/// How many keys are looked at before sorting: with a target but no order and no filter etcd takes
/// `limit` keys and one first, and sorts those.
fn fetched(request: &RangeRequest) -> u64 {
    let all = has_filter(request) || request.sort_order != SortOrder::None as i32;
    limit(request).filter(|_| !all).map_or(u64::MAX, |limit| limit.saturating_add(1))
}

/// The rank of a key in the order asked for, and the steps it took to find it.
fn rank<'a>(request: &RangeRequest, reader: &Reader<'a>, meta: KeyMeta) -> Result<(Rank<'a>, usize), Error> {
    let (target, order) = sorting(request);
    let descends = order == SortOrder::Descend;
    let number = |number: i64| (Rank::Number(if descends { -number } else { number }), 0);
    Ok(match target {
        SortTarget::Key => number(0),
        SortTarget::Version => number(meta.version),
        SortTarget::Create => number(meta.create_revision),
        SortTarget::Mod => number(meta.modified.main),
        SortTarget::Value => {
            let value = stored(reader, meta)?.value;
            let rank = if descends { Rank::ValueFromLast(Reverse(value)) } else { Rank::Value(value) };
            (rank, limits::STEPS_PER_KEY)
        }
    })
}

fn passes(request: &RangeRequest, meta: &KeyMeta) -> bool {
    let above = |min: i64, value: i64| min == 0 || value >= min;
    let below = |max: i64, value: i64| max == 0 || value <= max;
    above(request.min_mod_revision, meta.modified.main)
        && below(request.max_mod_revision, meta.modified.main)
        && above(request.min_create_revision, meta.create_revision)
        && below(request.max_create_revision, meta.create_revision)
}

/// The stored record of a key.
///
/// # Errors
/// When it cannot be read.
pub fn stored<'r>(reader: &Reader<'r>, meta: KeyMeta) -> Result<StoredRecord<'r>, Error> {
    StoredRecord::parse(reader.record(meta.modified)?).ok_or(Error::Corrupt)
}

/// Answers a key; how many bytes that are.
fn push_kv(
    body: &mut Body,
    reader: &Reader<'_>,
    key: KeyParts<'_>,
    meta: KeyMeta,
    keys_only: bool,
) -> Result<usize, Error> {
    if keys_only {
        return push_encoded(body, key, meta, 0);
    }
    let record = reader.record(meta.modified)?;
    body.push_field(range_response::KVS, record)?;
    Ok(record.len())
}

fn push_encoded(body: &mut Body, key: KeyParts<'_>, meta: KeyMeta, lease: i64) -> Result<usize, Error> {
    let stamp = Stamp {
        create_revision: meta.create_revision,
        mod_revision: meta.modified.main,
        version: meta.version,
        lease,
    };
    encode_put(key, &[], stamp, |parts| {
        body.open.push(range_response::KVS);
        put_varint(&mut body.open, parts.iter().map(|part| part.len() as u64).sum());
        parts.iter().for_each(|part| body.open.extend_from_slice(part));
    });
    body.close_chunk_if_full()?;
    Ok(key.len())
}

/// Answers in one go; for what reads few keys.
///
/// # Errors
/// As [`RangeRun::new`] and [`RangeRun::turn`].
pub fn answer(request: &RangeRequest, reader: Reader<'_>, replies: &Share) -> Result<Vec<Bytes>, Error> {
    let mut run = RangeRun::new(request, reader, replies)?;
    while !run.turn(usize::MAX)? {}
    Ok(run.take_body().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk that is full counts for as long as the body is there.
    #[test]
    fn all_chunks_of_a_body_count() {
        let replies = Share::new(20 * limits::REPLY_CHUNK_BYTES);
        let (mut body, field) = (Body::new(&replies), vec![7; limits::REPLY_CHUNK_BYTES]);
        for fields in 1..=5 {
            body.push_field(0x12, &field).unwrap();
            assert!(replies.held() >= fields * field.len(), "{} bytes of {fields} chunks", replies.held());
        }
        let taken = body.take();
        assert!(replies.held() >= 5 * field.len(), "its chunks are there still");
        drop(taken);
        assert_eq!(replies.held(), 0);
        let refused = (0..20).find_map(|_| body.push_field(0x12, &field).err());
        assert_eq!(refused, Some(Error::ReplyTooLarge { bytes_max: replies.bytes_max() }));
    }
}
