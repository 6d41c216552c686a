//! The calls of one connection: what is under way on each stream.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use slab::Slab;
use tonic::Status;

use crate::api::call::{Message, ReplyQueue, StreamingCall, length};
use crate::limits;
use crate::net::head::{CallHead, PlainHead};
use crate::net::messages::{Assembly, MessageLimits, RequestQueue};

/// In front of each message: a compression flag, never set, and its length.
pub(super) const PREFIX_BYTES: usize = 5;
/// Up to this length a message is copied behind its prefix.
const COPY_BYTES_MAX: usize = 4096;

/// A call with one reply, under way.
pub(super) type UnaryCall = Pin<Box<dyn Future<Output = Result<Message, Status>>>>;

/// What a stream of the connection carries.
#[derive(Default)]
pub(super) enum StreamState {
    /// A request that is answered without its body.
    #[default]
    Answered,
    /// A request that is no call, and whose body is still on its way.
    Plain(Box<PlainHead>),
    /// A call whose only message is still on its way.
    Asking(Box<Asking>),
    /// A call that is under way.
    Running(Running),
}

/// A call whose only message is still on its way.
pub(super) struct Asking {
    pub head: CallHead,
    /// By the core's clock in milliseconds; `u64::MAX` for none.
    pub deadline: u64,
    pub assembly: Assembly,
    pub message: Option<Bytes>,
    /// It may take many turns.
    pub is_long: bool,
}

/// A call's place; dropped with its stream, whatever ends that.
pub(super) struct Running {
    pub slot: usize,
    over: Rc<RefCell<Vec<usize>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.borrow_mut().push(self.slot);
    }
}

/// A call under way.
pub(super) struct Call {
    pub stream: u32,
    /// By the core's clock in milliseconds; `u64::MAX` for none.
    pub deadline: u64,
    /// It may take many turns.
    pub is_long: bool,
    pub kind: CallKind,
}

/// How it is answered.
pub(super) enum CallKind {
    Unary(UnaryCall),
    Streaming(Box<Streaming>),
}

/// A call with a stream of replies.
pub(super) struct Streaming {
    /// Gone when it is over.
    pub call: Option<StreamingCall>,
    pub replies: ReplyQueue,
    pub requests: Rc<RequestQueue>,
    pub assembly: Assembly,
    pub gzip: bool,
    pub has_head: bool,
    /// Replies wait for room on the connection.
    pub is_full: bool,
    pub result: Option<Result<(), Status>>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Calls {
    slots: Slab<Call>,
    long: usize,
    over: Rc<RefCell<Vec<usize>>>,
}

impl Calls {
    /// The slot the next call gets.
    pub(super) fn next_slot(&self) -> usize {
        self.slots.vacant_key()
    }

    /// Takes a call in, and what its stream has to carry.
    pub(super) fn insert(&mut self, call: Call) -> Running {
        self.long += usize::from(call.is_long);
        Running { slot: self.slots.insert(call), over: Rc::clone(&self.over) }
    }

    /// Those under way that may take many turns.
    pub(super) fn long(&self) -> usize {
        self.long
    }

    /// A call, unless it is over.
    pub(super) fn get(&mut self, slot: usize) -> Option<&mut Call> {
        self.slots.get_mut(slot)
    }

    /// Lets go of calls whose streams are gone.
    pub(super) fn reap(&mut self) {
        // A call that is dropped may end other things, but no streams.
        let over = std::mem::take(&mut *self.over.borrow_mut());
        for slot in &over {
            let call = self.slots.try_remove(*slot);
            self.long -= usize::from(call.is_some_and(|call| call.is_long));
        }
        if over.capacity() > 0 {
            let mut empty = over;
            empty.clear();
            *self.over.borrow_mut() = empty;
        }
        if self.slots.is_empty() && self.slots.capacity() > 64 {
            self.slots.shrink_to_fit();
        }
    }

    /// Every call.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Call)> {
        self.slots.iter()
    }
}

/// What polling a streaming call has brought.
pub(super) struct Replies {
    /// Ready to be sent.
    pub chunks: Vec<Bytes>,
    /// The call is over and everything is taken.
    pub is_over: bool,
}

impl Streaming {
    /// Data from the client; `end` when it has said everything. For how many bytes it may send others, and whether there
    /// is something new for the call: a message, or an end.
    pub(super) fn add(&mut self, data: &[u8], end: bool, limits: &MessageLimits) -> (usize, bool) {
        let requests = &self.requests;
        let mut is_news = end;
        let added = self.assembly.add(data, self.gzip, limits, |message| {
            is_news = true;
            requests.push(message);
        });
        if added.is_err() {
            is_news = true;
            requests.end(added);
        } else if end {
            let is_whole = self.assembly.is_empty();
            requests.end(is_whole.then_some(()).ok_or_else(|| Status::internal("unexpected EOF")));
        }
        (requests.credit(data.len()), is_news)
    }

    /// Lets the call go on, and takes replies while fewer than `room` bytes are taken.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, room: usize) -> Replies {
        if let Some(call) = &mut self.call
            && let Poll::Ready(result) = call.as_mut().poll(context)
        {
            self.call = None;
            self.result = Some(result);
        }
        let (mut chunks, mut taken) = (Vec::new(), 0);
        self.is_full = false;
        loop {
            if taken >= room {
                self.is_full = true;
                return Replies { chunks, is_over: false };
            }
            // Who puts something in later wakes this call's slot.
            let Poll::Ready(message) = self.replies.poll_take(context) else { break };
            taken += length(&message);
            frame_all(message, &self.replies, &mut chunks);
        }
        Replies { chunks, is_over: self.call.is_none() }
    }
}

/// A message's prefix.
pub(super) fn prefix(len: usize) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// Appends a message with its prefix.
pub(super) fn frame(message: Message, chunks: &mut Vec<Bytes>) {
    let len = length(&message);
    if len > COPY_BYTES_MAX {
        chunks.push(Bytes::copy_from_slice(&prefix(len)));
        chunks.extend(message);
        return;
    }
    let mut whole = BytesMut::with_capacity(PREFIX_BYTES + len);
    whole.put_slice(&prefix(len));
    message.iter().for_each(|part| whole.put_slice(part));
    chunks.push(whole.freeze());
}

/// Appends a message, and those behind it that are small, as one chunk.
fn frame_all(first: Message, queue: &ReplyQueue, chunks: &mut Vec<Bytes>) {
    if length(&first) > COPY_BYTES_MAX {
        return frame(first, chunks);
    }
    let Some(second) = queue.take_within(COPY_BYTES_MAX) else { return frame(first, chunks) };
    let mut chunk = BytesMut::with_capacity(4 * COPY_BYTES_MAX);
    let mut put = |message: Message| {
        chunk.put_slice(&prefix(length(&message)));
        message.iter().for_each(|part| chunk.put_slice(part));
        chunk.len()
    };
    put(first);
    let mut next = Some(second);
    while let Some(message) = next {
        let full = put(message) >= limits::STREAM_CHUNK_BYTES;
        next = if full { None } else { queue.take_within(COPY_BYTES_MAX) };
    }
    chunks.push(chunk.freeze());
}
