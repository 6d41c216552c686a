//! Replies of a streaming call on their way to the transport: framed when they are made, so that
//! many short ones are one chunk and none is looked at twice.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::budget::{Hold, Share};
use revd_member::error::Status;

use crate::api::call::Message;
use crate::limits;

/// In front of each message: a compression flag, never set, and its length.
pub const PREFIX_BYTES: usize = 5;

/// A message's prefix.
///
/// # Errors
/// When the message is longer than a prefix can say, as grpc-go words it.
pub fn prefix(len: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    let too_large = |_| Status::resource_exhausted(format!("grpc: message too large ({len} bytes)"));
    let [a, b, c, d] = u32::try_from(len).map_err(too_large)?.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// The call's end of its replies. Bounded: a slow client makes the call wait.
#[derive(Debug, Clone)]
pub struct Replies {
    queue: Rc<RefCell<Queue>>,
    share: Share,
}

/// The transport's end of [`Replies`].
#[derive(Debug)]
pub struct ReplyQueue(Rc<RefCell<Queue>>);

/// A piece of the stream of replies.
#[derive(Debug)]
pub struct Chunk {
    /// The bytes to send.
    pub bytes: Bytes,
    /// Its last message goes on in the next chunk, which is there already.
    pub goes_on: bool,
}

#[derive(Debug)]
struct Queue {
    /// Chunks to which nothing is added ...
    chunks: VecDeque<Chunk>,
    /// ... and behind them the one that short messages are appended to.
    open: Vec<u8>,
    hold: Hold,
    /// A message could not be framed: what the client is told instead.
    failure: Option<Status>,
    /// The client is gone, or the call is over.
    closed: bool,
    call: Option<Waker>,
    transport: Option<Waker>,
}

impl Queue {
    fn is_full(&self) -> bool {
        self.hold.bytes() >= limits::STREAM_BYTES_MAX
    }

    fn put(&mut self, head: &[u8], rest: &[Bytes]) {
        if self.failure.is_some() {
            return; // the call ends with the message that could not be framed
        }
        let bytes = head.len() + rest.iter().map(Bytes::len).sum::<usize>();
        match prefix(bytes) {
            Ok(prefix) => self.append(prefix, head, rest, bytes),
            Err(status) => self.failure = Some(status),
        }
        if let Some(transport) = self.transport.take() {
            transport.wake();
        }
    }

    fn append(&mut self, prefix: [u8; PREFIX_BYTES], head: &[u8], rest: &[Bytes], bytes: usize) {
        self.hold.add(PREFIX_BYTES + bytes);
        let is_short = bytes <= limits::COPY_BYTES_MAX;
        let copied = PREFIX_BYTES + if is_short { bytes } else { head.len() };
        if self.open.is_empty() || !is_short {
            self.open.reserve_exact(copied); // most chunks are one message, and nothing follows a long one
        } // else it doubles: a chunk that waits holds at most twice what is counted
        self.open.extend_from_slice(&prefix);
        self.open.extend_from_slice(head);
        if is_short {
            rest.iter().for_each(|part| self.open.extend_from_slice(part));
            if self.open.len() >= limits::STREAM_CHUNK_BYTES {
                self.close_chunk(false);
            }
            return;
        }
        self.close_chunk(true);
        self.chunks.extend(rest.iter().map(|part| Chunk { bytes: part.clone(), goes_on: true }));
        if let Some(last) = self.chunks.back_mut() {
            last.goes_on = false;
        }
    }

    fn close_chunk(&mut self, goes_on: bool) {
        self.chunks.push_back(Chunk { bytes: std::mem::take(&mut self.open).into(), goes_on });
    }

    fn take(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_front().or_else(|| {
            let open = std::mem::take(&mut self.open);
            (!open.is_empty()).then(|| Chunk { bytes: open.into(), goes_on: false })
        })?;
        self.hold.release(chunk.bytes.len());
        Some(chunk)
    }
}

impl Replies {
    /// Both ends; what waits between them is counted in `share`.
    #[must_use]
    pub fn new(share: &Share) -> (Self, ReplyQueue) {
        let queue = Rc::new(RefCell::new(Queue {
            chunks: VecDeque::new(),
            open: Vec::new(),
            hold: share.hold(),
            failure: None,
            closed: false,
            call: None,
            transport: None,
        }));
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

    /// Waits until there is room for a message; false when the client is gone. A message that is
    /// made only after this takes no memory while the call waits.
    pub async fn ready(&self) -> bool {
        std::future::poll_fn(|context| self.poll_ready(context)).await
    }

    /// See [`Replies::ready`].
    pub fn poll_ready(&self, context: &Context<'_>) -> Poll<bool> {
        let mut queue = self.queue.borrow_mut();
        if queue.closed {
            return Poll::Ready(false);
        }
        if queue.is_full() {
            queue.call = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(true)
    }

    /// Whether the client is there and there is room for a message.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let queue = self.queue.borrow();
        !queue.closed && !queue.is_full()
    }

    /// Sends a message for which there is room.
    #[expect(clippy::needless_pass_by_value, reason = "a message that is sent is used up")]
    pub fn put(&self, message: Message) {
        self.queue.borrow_mut().put(&[], &message);
    }

    /// Sends a message that begins with `head`, which is copied.
    pub fn put_with_head(&self, head: &[u8], rest: &[Bytes]) {
        self.queue.borrow_mut().put(head, rest);
    }
}

impl ReplyQueue {
    /// The next chunk, if one waits; wakes the call that may now send more.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Chunk> {
        let mut queue = self.0.borrow_mut();
        let Some(chunk) = queue.take() else {
            queue.transport = Some(context.waker().clone());
            queue.chunks.shrink_to(limits::STREAM_PLACES_KEPT);
            return Poll::Pending;
        };
        if let Some(call) = queue.call.take() {
            call.wake();
        }
        Poll::Ready(chunk)
    }

    /// Why no more messages can be sent, if one could not be.
    pub fn take_failure(&self) -> Option<Status> {
        self.0.borrow_mut().failure.take()
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
    use smallvec::smallvec;

    #[test]
    fn a_slow_client_makes_the_call_wait_and_a_gone_one_ends_it() {
        let share = Share::new(usize::MAX);
        let (replies, queue) = Replies::new(&share);
        while replies.has_room() {
            assert!(block_on(replies.send(smallvec![Bytes::from_static(&[7; 100])])));
        }
        assert!((limits::STREAM_BYTES_MAX..limits::STREAM_BYTES_MAX + 105).contains(&share.held()));
        let mut next = Box::pin(replies.send(Message::new()));
        assert_eq!(block_on(poll_once(&mut next)), None);
        block_on(poll_fn(|context| queue.poll_take(context)));
        assert!(block_on(next));
        drop(queue);
        assert!(!block_on(replies.send(Message::new())));
        drop(replies);
        assert_eq!(share.held(), 0);
    }

    #[test]
    fn messages_arrive_whole_and_in_order_however_long_they_are() {
        let (replies, queue) = Replies::new(&Share::new(usize::MAX));
        let mut expected = Vec::new();
        for length in [0, 1, 100, limits::COPY_BYTES_MAX, limits::COPY_BYTES_MAX + 1, 3, 50_000, 7, 7] {
            let (head, rest) = (vec![1; length / 3], vec![2; length - length / 3]);
            expected.extend(prefix(length).unwrap());
            expected.extend([&head[..], &rest].concat());
            replies.put_with_head(&head, &[rest.into()]);
        }
        let (mut arrived, mut chunks, mut goes_on) = (Vec::new(), 0, false);
        while let Some(chunk) = block_on(poll_once(poll_fn(|context| queue.poll_take(context)))) {
            (chunks, goes_on) = (chunks + 1, chunk.goes_on);
            arrived.extend_from_slice(&chunk.bytes);
        }
        assert!(arrived == expected && !goes_on);
        assert_eq!(chunks, 5, "short ones are one chunk, long ones are shared");
    }

    #[test]
    fn short_messages_fill_a_chunk_and_then_another() {
        let (replies, queue) = Replies::new(&Share::new(usize::MAX));
        let count = 2 * limits::STREAM_CHUNK_BYTES / 1_000;
        (0..count).for_each(|_| replies.put_with_head(&[3; 1_000], &[]));
        let mut context = Context::from_waker(Waker::noop());
        let mut left = count * (1_000 + PREFIX_BYTES);
        while let Poll::Ready(chunk) = queue.poll_take(&mut context) {
            assert!(chunk.bytes.len() < limits::STREAM_CHUNK_BYTES + 1_000 + PREFIX_BYTES);
            left -= chunk.bytes.len();
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn chunks_that_wait_hold_little_more_than_is_counted() {
        let share = Share::new(usize::MAX);
        let (replies, queue) = Replies::new(&share);
        let (short, long) = (vec![7; 100], Bytes::from(vec![7; limits::COPY_BYTES_MAX + 1]));
        (0..3).for_each(|_| replies.put_with_head(&short, &[]));
        replies.put_with_head(&short, &[long]);
        let mut context = Context::from_waker(Waker::noop());
        let (counted, mut held) = (share.held(), 0);
        while let Poll::Ready(chunk) = queue.poll_take(&mut context) {
            held += chunk.bytes.try_into_mut().map_or(0, |bytes| bytes.capacity());
        }
        assert!((1..=counted + 4 * 105).contains(&held), "{held} bytes for {counted}");
    }

    #[test]
    fn a_message_longer_than_a_prefix_can_say_is_an_error() {
        assert_eq!(prefix(u32::MAX as usize).unwrap(), [0, 255, 255, 255, 255]);
        let large = Bytes::from(vec![0; 1 << 20]);
        let (replies, queue) = Replies::new(&Share::new(usize::MAX));
        replies.put(std::iter::repeat_n(large, 4096).collect());
        let refused = queue.take_failure().expect("it cannot be framed");
        assert_eq!(refused.code(), revd_member::error::Code::ResourceExhausted);
        assert_eq!(refused.message(), "grpc: message too large (4294967296 bytes)");
        assert!(block_on(poll_once(poll_fn(|context| queue.poll_take(context)))).is_none());
    }
}
