//! A reply in parts: bytes at hand, and reads that an edge has yet to carry out.
//!
//! The reads of a transaction are not carried out where it is applied, by the one core that applies
//! everything, but by the edge of its caller, from a View of the moment at which it was the read's
//! turn. The parts of a transaction inside a transaction are inside of its part:
//!
//! ```text
//! Bytes("succeeded, the response to a put")
//! Op(TxnResponse: Bytes("succeeded") Op(RangeResponse: Read(..)))
//! Bytes(..)
//! ```

use bytes::Bytes;
use revd_engine::mvcc::{Direction, KeyRange, Scan, Sought, View};
use revd_proto::RESPONSE_HEADER_TAG;
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::tags::{response_header, txn_response};

use crate::budget::{Hold, Share};
use crate::error::Error;
use crate::limits;
use crate::read::range::{Body, RangeRun, count};
use crate::wire::{put_field, put_number, put_varint};

/// A part of a reply's body.
#[derive(Debug, Clone)]
pub enum ReplyPart {
    /// As it is.
    Bytes(Bytes),
    /// To be read.
    Read(Box<DeferredRead>),
    /// The response to an operation of a transaction.
    Op(TxnOp, Vec<ReplyPart>),
}

/// Which operation a response is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxnOp {
    /// The field of `ResponseOp`.
    pub tag: u8,
    /// The revision in the response's header; that of a nested transaction has none.
    pub revision: Option<i64>,
}

/// A read that is left to an edge.
#[derive(Debug, Clone)]
pub struct DeferredRead {
    /// The state to read.
    pub view: View,
    /// The keys to read in it.
    pub what: ReadRequest,
}

/// The keys of a read.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadRequest {
    /// Everything of a `RangeResponse` but its header.
    Range(RangeRequest),
    /// Keys as they were before they are changed, each as a field with this tag.
    Previous { key: Bytes, range_end: Bytes, tag: u8 },
}

impl ReadRequest {
    fn is_of_one_key(&self) -> bool {
        match self {
            Self::Range(RangeRequest { range_end, .. }) | Self::Previous { range_end, .. } => {
                range_end.is_empty()
            }
        }
    }
}

impl TxnOp {
    /// The bytes before a response of so many bytes.
    #[must_use]
    pub fn prefix(self, response_bytes: usize) -> Vec<u8> {
        let mut header = Vec::new();
        put_number(&mut header, response_header::REVISION, self.revision.unwrap_or(0));
        let mut message = Vec::new();
        put_field(&mut message, RESPONSE_HEADER_TAG, &header);
        let message_bytes = message.len() + response_bytes;
        let mut op = vec![self.tag];
        put_varint(&mut op, message_bytes as u64);
        let mut prefix = vec![txn_response::RESPONSES];
        put_varint(&mut prefix, (op.len() + message_bytes) as u64);
        prefix.extend_from_slice(&op);
        prefix.extend_from_slice(&message);
        prefix
    }
}

/// Reading in turns.
#[derive(Debug)]
pub enum RunningRead<'p> {
    /// A range.
    Range(Box<RangeRun<'p>>),
    /// Keys as they were.
    Previous(Box<PreviousRun<'p>>),
}

/// Keys as they were before they are changed.
#[derive(Debug)]
pub struct PreviousRun<'p> {
    view: &'p View,
    keys: Scan<'p>,
    tag: u8,
    body: Body,
}

impl<'p> RunningRead<'p> {
    /// Starts.
    ///
    /// # Errors
    /// The error that the client gets.
    pub fn new(view: &'p View, what: &'p ReadRequest, replies: &Share) -> Result<Self, Error> {
        Ok(match what {
            ReadRequest::Range(request) => {
                Self::Range(Box::new(RangeRun::new(request, view.reader(), replies)?))
            }
            ReadRequest::Previous { key, range_end, tag } => {
                let range = KeyRange::from_wire(key, range_end);
                let keys = view.reader().scan(range, i64::MAX, Direction::Forward);
                let body = Body::new(replies);
                Self::Previous(Box::new(PreviousRun { view, keys, tag: *tag, body }))
            }
        })
    }

    /// Reads a bounded part, in keys and in bytes; true when all is done.
    ///
    /// # Errors
    /// When a record cannot be read, [`Error::ReplyTooLarge`], [`Error::NoReplyRoom`].
    pub fn turn(&mut self, keys_max: usize) -> Result<bool, Error> {
        let run = match self {
            Self::Range(run) => return run.turn(keys_max),
            Self::Previous(run) => run,
        };
        let mut steps = keys_max.saturating_mul(limits::STEPS_PER_KEY).max(limits::STEPS_PER_TURN_MIN);
        loop {
            let meta = match run.keys.next_within(&mut steps) {
                Sought::Key(_, meta) => meta,
                Sought::Later => return Ok(false),
                Sought::End => return Ok(true),
            };
            let record = run.view.reader().record(meta.modified)?;
            run.body.push_field(run.tag, record)?;
            steps = steps.saturating_sub(limits::STEPS_PER_KEY + record.len() / limits::BYTES_PER_STEP);
        }
    }

    /// The part that is read and was not taken yet.
    #[must_use]
    pub fn take(&mut self) -> Vec<Bytes> {
        match self {
            Self::Range(run) => run.take_body().finish(),
            Self::Previous(run) => run.body.take().finish(),
        }
    }
}

/// The error of what found no room beside so many bytes that are held: room is wanted for all of
/// them.
#[must_use]
pub fn beside(error: Error, held: usize) -> Error {
    match error {
        Error::NoReplyRoom { bytes } => Error::NoReplyRoom { bytes: bytes + held },
        other => other,
    }
}

/// Bytes that parts take, beside those of replies in them.
#[must_use]
pub fn bytes_of_parts(parts: &[ReplyPart]) -> usize {
    let of_part = |part: &ReplyPart| match part {
        ReplyPart::Bytes(_) => 0,
        ReplyPart::Read(_) => size_of::<DeferredRead>(),
        ReplyPart::Op(_, parts) => bytes_of_parts(parts),
    };
    size_of_val(parts) + parts.iter().map(of_part).sum::<usize>()
}

/// A reply being put together, in turns.
#[derive(Debug)]
pub struct ReplyAssembly<'p> {
    /// The whole, and in it the operations whose parts are being put together.
    open: Vec<Open<'p>>,
    /// And whether it is of a single key.
    reading: Option<(RunningRead<'p>, bool)>,
    /// The bytes read so far.
    hold: Hold,
    replies: Share,
}

#[derive(Debug)]
struct Open<'p> {
    op: Option<TxnOp>,
    parts: std::slice::Iter<'p, ReplyPart>,
    chunks: Vec<Bytes>,
    bytes: usize,
}

impl Open<'_> {
    fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push(chunk);
    }
}

impl<'p> ReplyAssembly<'p> {
    /// Of these parts.
    #[must_use]
    pub fn new(parts: &'p [ReplyPart], replies: &Share) -> Self {
        let all = Open { op: None, parts: parts.iter(), chunks: Vec::new(), bytes: 0 };
        Self { open: vec![all], reading: None, hold: replies.hold(), replies: replies.clone() }
    }

    /// Puts a bounded part together; the whole when that is done. Reads of single keys, which most
    /// are, share a turn.
    ///
    /// # Errors
    /// When a record cannot be read, [`Error::ReplyTooLarge`], [`Error::NoReplyRoom`].
    pub fn turn(&mut self) -> Result<Option<Vec<Bytes>>, Error> {
        let mut bytes_left = limits::REPLY_CHUNK_BYTES;
        for _ in 0..limits::REPLY_PARTS_PER_TURN {
            let last = self.open.last_mut().expect("the whole is open until it is done");
            if let Some((reading, is_of_one_key)) = &mut self.reading {
                let held = self.hold.bytes();
                let turn = reading.turn(limits::RANGE_KEYS_PER_TURN);
                if !turn.map_err(|error| beside(error, held))? {
                    return Ok(None);
                }
                let before = last.bytes;
                reading.take().into_iter().for_each(|chunk| last.push(chunk));
                let (read, is_brief) = (last.bytes - before, *is_of_one_key);
                self.reading = None;
                count(&mut self.hold, held + read, &self.replies)?;
                bytes_left = bytes_left.saturating_sub(read);
                if is_brief && bytes_left > 0 {
                    continue;
                }
                return Ok(None);
            }
            match last.parts.next() {
                Some(ReplyPart::Bytes(bytes)) => last.push(bytes.clone()),
                Some(ReplyPart::Read(read)) => {
                    let reading = RunningRead::new(&read.view, &read.what, &self.replies)?;
                    self.reading = Some((reading, read.what.is_of_one_key()));
                }
                Some(ReplyPart::Op(op, parts)) => {
                    let op = Some(*op);
                    self.open.push(Open { op, parts: parts.iter(), chunks: Vec::new(), bytes: 0 });
                }
                None => {
                    let done = self.open.pop().expect("it is the last one");
                    let (Some(op), Some(outer)) = (done.op, self.open.last_mut()) else {
                        return Ok(Some(done.chunks));
                    };
                    outer.push(op.prefix(done.bytes).into());
                    outer.bytes += done.bytes;
                    outer.chunks.extend(done.chunks);
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use std::sync::Arc;

    #[test]
    fn keys_as_they_were_are_read_in_turns_of_some_bytes() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let mut txn = store.begin();
        for key in 0..40 {
            txn.put(format!("k{key:02}").as_bytes(), &vec![7; 1 << 20], 0);
        }
        txn.commit();
        let what = ReadRequest::Previous {
            key: "k".into(),
            range_end: "l".into(),
            tag: revd_proto::tags::delete_range_response::PREV_KVS,
        };
        let view = store.view();
        let mut reading = RunningRead::new(&view, &what, &Share::new(usize::MAX)).unwrap();
        let (mut bytes, mut longest, mut is_done) = (0, 0, false);
        while !is_done {
            is_done = reading.turn(limits::RANGE_KEYS_PER_TURN).unwrap();
            let turn = reading.take().iter().map(Bytes::len).sum::<usize>();
            (bytes, longest) = (bytes + turn, longest.max(turn));
        }
        assert!(bytes > 40 << 20 && longest < 16 << 20, "{longest} of {bytes} bytes in one turn");
    }
}
