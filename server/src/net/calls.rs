//! The calls of one connection: what is under way on each stream.

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
use crate::net::head::{CallHead, PlainHead};
use crate::net::messages::{Assembly, MessageLimits, RequestQueue, no_room};

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

/// Whether a call ends soon by itself, so that its client may be kept waiting for it.
pub(super) fn ends_soon(method: Method, is_long: bool) -> bool {
    !is_long && !matches!(method, Method::Unary(unary) if unary.is_endless())
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
    pub chunks: SmallVec<[Bytes; 2]>,
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
        let (mut chunks, mut taken, mut goes_on) = (SmallVec::new(), 0, false);
        self.is_full = false;
        loop {
            // A message that is begun is sent whole, also if the call is ended behind it.
            if taken >= room && !goes_on {
                self.is_full = true;
                return Replies { chunks, is_over: false };
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
        Replies { chunks, is_over: self.call.is_none() }
    }
}
