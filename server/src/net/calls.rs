//! The calls of one connection: the state of each stream, and the calls under way in their slots.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use revd_member::budget::{Hold, Share};
use revd_member::error::Status;
use slab::Slab;
use smallvec::SmallVec;

use crate::api::call::{Message, StreamingCall};
use crate::api::method::Method;
use crate::api::replies::ReplyQueue;
use crate::net::messages::{Assembly, MessageLimits, RequestQueue, no_room};
use crate::net::plain::PlainCall;
use crate::net::request_headers::{CallHeaders, PlainHeaders};

/// A call with one reply, under way.
pub(super) type UnaryCall = Pin<Box<dyn Future<Output = Result<Message, Status>>>>;

/// The state of a stream of the connection.
#[derive(Default)]
pub(super) enum StreamState {
    /// The request is answered; its body and its answer may still be under way.
    #[default]
    Answered,
    /// A plain HTTP request whose body is incomplete.
    Plain(Box<PlainHeaders>),
    /// A call with one request message that is incomplete or waits to begin.
    Request(Box<UnaryRequest>),
    /// A call under way.
    Running(RunningCall),
}

/// A call with one request message that is incomplete or waits to begin.
pub(super) struct UnaryRequest {
    pub head: CallHeaders,
    /// By the core's clock in milliseconds; `u64::MAX` for none.
    pub deadline: u64,
    pub assembly: Assembly,
    pub message: Option<Bytes>,
    /// Counts the complete message.
    pub hold: Option<Hold>,
    /// The message is complete and the call is in the wait queue.
    pub waits: bool,
    /// Looks at which the message was incomplete.
    pub looks: u32,
    /// It may take many turns.
    pub is_long: bool,
}

impl UnaryRequest {
    /// A call of which only the request headers have arrived.
    pub(super) fn new(head: CallHeaders, deadline: u64) -> Self {
        let assembly = Assembly::default();
        Self { head, deadline, assembly, message: None, hold: None, waits: false, looks: 0, is_long: false }
    }

    /// Counts a complete message while the client has not ended its half of the stream.
    ///
    /// # Errors
    /// When there is no memory for it.
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

/// The slot of a call under way; dropped with its stream, however that ends.
pub(super) struct RunningCall {
    pub slot: usize,
    over: Rc<RefCell<Vec<usize>>>,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.over.borrow_mut().push(self.slot);
    }
}

/// A call under way.
pub(super) struct Call {
    pub stream: u32,
    /// It may take many turns.
    pub is_long: bool,
    /// The call ends soon by itself, whatever its client does.
    pub is_brief: bool,
    /// Counts the call's message until it is over.
    pub hold: Hold,
    pub kind: CallKind,
}

impl Call {
    fn brief_bytes(&self) -> usize {
        if self.is_brief { self.hold.bytes() } else { 0 }
    }
}

/// Whether a call ends soon by itself, so that its client may be kept waiting for it.
pub(super) fn ends_soon(method: Method, is_long: bool) -> bool {
    !is_long && !matches!(method, Method::Unary(unary) if unary.is_endless())
}

/// A call under way, by the kind of its replies.
pub(super) enum CallKind {
    /// A plain HTTP request that is complete.
    Plain(PlainCall),
    Unary(UnaryCall),
    Streaming(Box<OpenStreamingCall>),
}

/// A call with a stream of replies.
pub(super) struct OpenStreamingCall {
    /// The call's future; none once it is over.
    pub call: Option<StreamingCall>,
    pub replies: ReplyQueue,
    pub requests: Rc<RequestQueue>,
    pub assembly: Assembly,
    pub gzip: bool,
    /// Looks at which a message was incomplete.
    pub looks: u32,
    pub has_head: bool,
    /// Replies wait for room on the connection.
    pub is_full: bool,
    pub result: Option<Result<(), Status>>,
}

/// The calls of one connection that are under way.
#[derive(Default)]
pub(super) struct Calls {
    slots: Slab<Call>,
    long: usize,
    /// Bytes of the messages of calls that end soon by themselves.
    brief_bytes: usize,
    over: Rc<RefCell<Vec<usize>>>,
}

impl Calls {
    /// The slot of the next call.
    pub(super) fn next_slot(&self) -> usize {
        self.slots.vacant_key()
    }

    /// Adds a call; the result belongs to its stream.
    pub(super) fn insert(&mut self, call: Call) -> RunningCall {
        self.long += usize::from(call.is_long);
        self.brief_bytes += call.brief_bytes();
        RunningCall { slot: self.slots.insert(call), over: Rc::clone(&self.over) }
    }

    /// Calls under way that may take many turns.
    pub(super) fn long(&self) -> usize {
        self.long
    }

    /// Bytes of messages that are released soon, whatever the client does.
    pub(super) fn brief_bytes(&self) -> usize {
        self.brief_bytes
    }

    /// The call in a slot, unless it is over.
    pub(super) fn get(&mut self, slot: usize) -> Option<&mut Call> {
        self.slots.get_mut(slot)
    }

    /// Drops calls whose streams have ended.
    pub(super) fn reap(&mut self) {
        // Dropping a call ends no streams, so that `over` does not grow meanwhile.
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

/// The replies that a poll of a streaming call has produced.
pub(super) struct PolledReplies {
    /// Ready to be sent.
    pub chunks: SmallVec<[Bytes; 2]>,
    /// The call is over and all of its replies are in `chunks` or before.
    pub is_over: bool,
}

impl OpenStreamingCall {
    /// Adds data from the client; `end` when it has ended its half of the stream. Returns the bytes
    /// for which the client gets credit, and whether the call has something new: a message, or an
    /// end.
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

    /// Polls the call, and takes replies until `room` bytes are taken.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, room: usize) -> PolledReplies {
        if let Some(call) = &mut self.call
            && let Poll::Ready(result) = call.as_mut().poll(context)
        {
            self.call = None;
            self.result = Some(result);
        }
        let (mut chunks, mut taken, mut goes_on) = (SmallVec::new(), 0, false);
        self.is_full = false;
        loop {
            // A message that is begun is sent whole, also if the call is ended behind it.
            if taken >= room && !goes_on {
                self.is_full = true;
                return PolledReplies { chunks, is_over: false };
            }
            // A message that is put in later wakes this call's slot.
            let Poll::Ready(chunk) = self.replies.poll_take(context) else { break };
            (taken, goes_on) = (taken + chunk.bytes.len(), chunk.goes_on);
            chunks.push(chunk.bytes);
        }
        if let Some(status) = self.replies.take_failure() {
            self.call = None;
            self.result = Some(Err(status));
        }
        PolledReplies { chunks, is_over: self.call.is_none() }
    }
}
