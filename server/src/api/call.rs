//! A call as services see it: a method, a message, what came with it, and where replies go. Nothing of HTTP.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::budget::{Hold, Share};
use revd_member::error::{Error, Status};
use smallvec::SmallVec;

use crate::limits;

/// One encoded message, in as many pieces as it was made of.
pub type Message = SmallVec<[Bytes; 2]>;

/// A call with a stream of replies, under way.
pub type StreamingCall = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// What a client sent along with its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    /// `hasleader: true`: answer only while there is a leader.
    pub requires_leader: bool,
}

/// The request messages of a call with a stream of them.
pub trait Requests {
    /// The next message; none at the end.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;
}

/// The message of a call with one request, once the client has said that there is no more. Answering before that would
/// leave the client's last words to a call that is gone: HTTP/2 counts that as an error, and ends the connection of a client
/// that makes many.
///
/// # Errors
/// What the client gets.
pub async fn only(requests: &mut dyn Requests) -> Result<Bytes, Status> {
    let first = std::future::poll_fn(|context| requests.poll_next(context)).await;
    let message = first.unwrap_or_else(|| Err(Status::internal("the call has no request message")))?;
    match std::future::poll_fn(|context| requests.poll_next(context)).await {
        None => Ok(message),
        Some(Err(status)) => Err(status),
        Some(Ok(_)) => Err(Status::internal("the call has more than one request message")),
    }
}

/// Where a call with a stream of replies puts them. Bounded: a slow client makes the call wait.
#[derive(Debug, Clone)]
pub struct Replies {
    queue: Rc<RefCell<Queue>>,
    share: Share,
}

/// The transport's end of [`Replies`].
#[derive(Debug)]
pub struct ReplyQueue(Rc<RefCell<Queue>>);

#[derive(Debug)]
struct Queue {
    messages: VecDeque<Message>,
    hold: Hold,
    /// The client is gone, or the call is over.
    closed: bool,
    call: Option<Waker>,
    transport: Option<Waker>,
}

pub(super) fn decoded<T>(result: Result<T, prost::DecodeError>) -> Result<T, Error> {
    result.map_err(Error::from)
}

/// Bytes of a message.
#[must_use]
pub fn length(message: &Message) -> usize {
    message.iter().map(Bytes::len).sum()
}

impl Replies {
    /// Both ends; what waits between them is counted in `share`.
    #[must_use]
    pub fn new(share: &Share) -> (Self, ReplyQueue) {
        let (hold, messages) = (share.hold(), VecDeque::new());
        let queue =
            Rc::new(RefCell::new(Queue { messages, hold, closed: false, call: None, transport: None }));
        (Self { queue: Rc::clone(&queue), share: share.clone() }, ReplyQueue(queue))
    }

    /// Where its bytes are counted.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Sends a message, waiting while too many wait already; false when the client is gone.
    pub async fn send(&self, message: Message) -> bool {
        let is_ready = self.ready().await;
        if is_ready {
            self.put(message);
        }
        is_ready
    }

    /// Waits until there is room for a message; false when the client is gone. What is made only after this takes no
    /// memory while the call waits.
    pub async fn ready(&self) -> bool {
        std::future::poll_fn(|context| self.poll_ready(context)).await
    }

    /// See [`Replies::ready`].
    pub fn poll_ready(&self, context: &Context<'_>) -> Poll<bool> {
        let mut queue = self.queue.borrow_mut();
        if queue.closed {
            return Poll::Ready(false);
        }
        if queue.messages.len() >= limits::STREAM_MESSAGES_MAX
            || queue.hold.bytes() >= limits::STREAM_BYTES_MAX
        {
            queue.call = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(true)
    }

    /// Sends a message for which there is room.
    pub fn put(&self, message: Message) {
        let mut queue = self.queue.borrow_mut();
        queue.hold.add(length(&message));
        if queue.messages.capacity() == 0 {
            queue.messages.reserve_exact(1); // most streams never have more
        }
        queue.messages.push_back(message);
        if let Some(transport) = queue.transport.take() {
            transport.wake();
        }
    }
}

impl ReplyQueue {
    /// The next message, if one waits; wakes the call that may now send more.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Message> {
        if let Some(message) = self.take_within(usize::MAX) {
            return Poll::Ready(message);
        }
        let mut queue = self.0.borrow_mut();
        queue.transport = Some(context.waker().clone());
        queue.messages.shrink_to(limits::STREAM_PLACES_KEPT);
        Poll::Pending
    }

    /// The next message, if one waits that has at most so many bytes.
    pub fn take_within(&self, bytes_max: usize) -> Option<Message> {
        let mut queue = self.0.borrow_mut();
        let bytes = length(queue.messages.front()?);
        if bytes > bytes_max {
            return None;
        }
        queue.hold.release(bytes);
        if let Some(call) = queue.call.take() {
            call.wake();
        }
        // The last thing done: what is popped and then kept while something else is done is copied once more.
        queue.messages.pop_front()
    }
}

impl Drop for ReplyQueue {
    fn drop(&mut self) {
        let mut queue = self.0.borrow_mut();
        queue.closed = true;
        if let Some(call) = queue.call.take() {
            call.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_fn, poll_once};

    #[test]
    fn a_slow_client_makes_the_call_wait_and_a_gone_one_ends_it() {
        let (replies, queue) = Replies::new(&Share::new(usize::MAX));
        for _ in 0..limits::STREAM_MESSAGES_MAX {
            assert!(block_on(replies.send(Message::new())));
        }
        let mut next = Box::pin(replies.send(Message::new()));
        assert_eq!(block_on(poll_once(&mut next)), None);
        block_on(poll_fn(|context| queue.poll_take(context)));
        assert!(block_on(next));
        drop(queue);
        assert!(!block_on(replies.send(Message::new())));
    }
}
