//! The calls of one connection: what is under way on each stream.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use revd_member::budget::{Hold, Share};
use revd_member::error::Status;
use slab::Slab;

use crate::api::call::{Message, ReplyQueue, StreamingCall, length};
use crate::limits;
use crate::net::head::{CallHead, PlainHead};
use crate::net::messages::{Assembly, MessageLimits, RequestQueue, no_room};

/// In front of each message: a compression flag, never set, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

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
    /// The message is counted while it is there.
    pub hold: Option<Hold>,
    /// It is whole, and waits for its turn.
    pub waits: bool,
    /// How often it was looked at and was not ended.
    pub looks: u32,
    /// It may take many turns.
    pub is_long: bool,
}

impl Asking {
    /// Nothing of its message has come.
    pub(super) fn new(head: CallHead, deadline: u64) -> Self {
        let assembly = Assembly::default();
        Self { head, deadline, assembly, message: None, hold: None, waits: false, looks: 0, is_long: false }
    }

    /// Counts a message that is whole while the client has not said that there is no more.
    ///
    /// # Errors
    /// When there is no room for it.
    pub(super) fn hold_message(&mut self, share: &Share) -> Result<(), Status> {
        if let Some(message) = &self.message
            && self.hold.is_none()
        {
            let mut hold = share.hold();
            hold.grow(message.len()).map_err(|_| no_room(share))?;
            self.hold = Some(hold);
        }
        Ok(())
    }
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
    /// It may take many turns.
    pub is_long: bool,
    /// It ends soon by itself, whatever its client does.
    pub is_brief: bool,
    /// Its message, counted until the call is over.
    pub hold: Hold,
    pub kind: CallKind,
}

impl Call {
    fn brief_bytes(&self) -> usize {
        if self.is_brief { self.hold.bytes() } else { 0 }
    }
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
    /// How often it was looked at with a message in part.
    pub looks: u32,
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
    /// Bytes of messages that those hold who end soon by themselves, whatever their client does.
    brief_bytes: usize,
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
        self.brief_bytes += call.brief_bytes();
        Running { slot: self.slots.insert(call), over: Rc::clone(&self.over) }
    }

    /// Those under way that may take many turns.
    pub(super) fn long(&self) -> usize {
        self.long
    }

    /// Bytes of messages that will be let go of soon, whatever the client does.
    pub(super) fn brief_bytes(&self) -> usize {
        self.brief_bytes
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
            let Some(call) = call else { continue };
            self.long -= usize::from(call.is_long);
            self.brief_bytes -= call.brief_bytes();
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
    pub(super) fn add(
        &mut self,
        data: &[u8],
        end: bool,
        limits: &MessageLimits,
        share: &Share,
    ) -> (usize, bool) {
        let requests = &self.requests;
        let mut is_news = end;
        let added = self.assembly.add(data, self.gzip, limits, share, |message| {
            is_news = true;
            requests.push(message);
        });
        if self.assembly.is_empty() {
            self.looks = 0;
        }
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
            if let Err(status) = frame_all(message, &self.replies, &mut chunks) {
                self.call = None;
                self.result = Some(Err(status));
                break;
            }
        }
        Replies { chunks, is_over: self.call.is_none() }
    }
}

/// A message's prefix.
///
/// # Errors
/// When the message is longer than a prefix can say, as grpc-go words it.
pub(super) fn prefix(len: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    let too_large = |_| Status::resource_exhausted(format!("grpc: message too large ({len} bytes)"));
    let [a, b, c, d] = u32::try_from(len).map_err(too_large)?.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// Appends a message with its prefix.
///
/// # Errors
/// As [`prefix`]; nothing is appended then.
pub(super) fn frame(message: Message, chunks: &mut Vec<Bytes>) -> Result<(), Status> {
    let len = length(&message);
    let prefix = prefix(len)?;
    if len > limits::COPY_BYTES_MAX {
        chunks.push(Bytes::copy_from_slice(&prefix));
        chunks.extend(message);
        return Ok(());
    }
    let mut whole = BytesMut::with_capacity(PREFIX_BYTES + len);
    whole.put_slice(&prefix);
    message.iter().for_each(|part| whole.put_slice(part));
    chunks.push(whole.freeze());
    Ok(())
}

/// Appends a message, and those behind it that are small, as one chunk.
fn frame_all(first: Message, queue: &ReplyQueue, chunks: &mut Vec<Bytes>) -> Result<(), Status> {
    if length(&first) > limits::COPY_BYTES_MAX {
        return frame(first, chunks);
    }
    let Some(second) = queue.take_within(limits::COPY_BYTES_MAX) else { return frame(first, chunks) };
    let mut chunk = BytesMut::with_capacity(4 * limits::COPY_BYTES_MAX);
    let mut put = |message: Message| -> Result<usize, Status> {
        chunk.put_slice(&prefix(length(&message))?);
        message.iter().for_each(|part| chunk.put_slice(part));
        Ok(chunk.len())
    };
    put(first)?;
    let mut next = Some(second);
    while let Some(message) = next {
        let full = put(message)? >= limits::STREAM_CHUNK_BYTES;
        next = if full { None } else { queue.take_within(limits::COPY_BYTES_MAX) };
    }
    chunks.push(chunk.freeze());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_longer_than_a_prefix_can_say_is_an_error() {
        assert_eq!(prefix(u32::MAX as usize).unwrap(), [0, 255, 255, 255, 255]);
        let refused = prefix(u32::MAX as usize + 1).unwrap_err();
        assert_eq!(refused.code(), revd_member::error::Code::ResourceExhausted);
        assert_eq!(refused.message(), "grpc: message too large (4294967296 bytes)");
        let large = Bytes::from(vec![0; 1 << 20]);
        let mut chunks = Vec::new();
        assert!(frame(std::iter::repeat_n(large, 4096).collect(), &mut chunks).is_err());
        assert!(chunks.is_empty());
    }
}
