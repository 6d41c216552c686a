//! Reply bodies: length-prefixed messages, then trailers with the call's status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use tonic::Status;

use crate::api::call::{Message, ReplyQueue, length};
use crate::limits;

/// In front of each message: a compression flag, never set, and its length.
const PREFIX_BYTES: usize = 5;
/// Up to this length a message is copied behind its prefix.
const COPY_BYTES_MAX: usize = 4096;

/// The status of a call that went well.
fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    trailers
}

/// A status as trailers.
#[must_use]
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // Only metadata could fail to convert, and we attach none.
    let _ = status.add_header(&mut trailers);
    trailers
}

fn put_prefix(out: &mut BytesMut, len: usize) {
    out.put_u8(0);
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// Appends a message with its prefix.
fn frame(message: Message, chunks: &mut VecDeque<Bytes>) {
    let len = length(&message);
    let copied = if len <= COPY_BYTES_MAX { len } else { 0 };
    let mut first = BytesMut::with_capacity(PREFIX_BYTES + copied);
    put_prefix(&mut first, len);
    if len <= COPY_BYTES_MAX {
        message.iter().for_each(|part| first.put_slice(part));
        chunks.push_back(first.freeze());
    } else {
        chunks.push_back(first.freeze());
        chunks.extend(message);
    }
}

/// Appends a message, and those behind it that are small, as one chunk.
fn frame_all(first: Message, queue: &ReplyQueue, chunks: &mut VecDeque<Bytes>) {
    let Some(second) = queue.take_within(COPY_BYTES_MAX) else { return frame(first, chunks) };
    if length(&first) > COPY_BYTES_MAX {
        frame(first, chunks);
        return frame_all(second, queue, chunks);
    }
    let mut chunk = BytesMut::with_capacity(4 * COPY_BYTES_MAX);
    let mut put = |message: Message| {
        put_prefix(&mut chunk, length(&message));
        message.iter().for_each(|part| chunk.put_slice(part));
        chunk.len()
    };
    put(first);
    let mut next = Some(second);
    while let Some(message) = next {
        let full = put(message) >= limits::STREAM_CHUNK_BYTES;
        next = if full { None } else { queue.take_within(COPY_BYTES_MAX) };
    }
    chunks.push_back(chunk.freeze());
}

/// What follows the response's head.
pub(super) enum ReplyBody {
    /// Nothing: the head says it all.
    Empty,
    /// A whole plain reply.
    Plain(Option<Bytes>),
    /// One message.
    Unary { chunks: VecDeque<Bytes>, trailers: Option<HeaderMap> },
    /// Messages as a call produces them.
    Stream(Box<StreamBody>),
}

/// A running call.
type RunningCall = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// A call that is running, and what it has produced.
pub(super) struct StreamBody {
    /// The call itself; gone when it is over.
    call: Option<RunningCall>,
    queue: ReplyQueue,
    chunks: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl ReplyBody {
    /// One message and a good end.
    #[must_use]
    pub(super) fn unary(message: Message) -> Self {
        let mut chunks = VecDeque::with_capacity(2);
        frame(message, &mut chunks);
        Self::Unary { chunks, trailers: Some(ok_trailers()) }
    }

    /// The replies that `call` puts into `queue`, and its result.
    #[must_use]
    pub(super) fn stream(call: RunningCall, queue: ReplyQueue) -> Self {
        Self::Stream(Box::new(StreamBody {
            call: Some(call),
            queue,
            chunks: VecDeque::new(),
            trailers: None,
        }))
    }
}

impl StreamBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        loop {
            if let Some(chunk) = self.chunks.pop_front() {
                return Poll::Ready(Some(Frame::data(chunk)));
            }
            if let Poll::Ready(message) = self.queue.poll_take(context) {
                frame_all(message, &self.queue, &mut self.chunks);
                continue;
            }
            let Some(call) = &mut self.call else {
                return Poll::Ready(self.trailers.take().map(Frame::trailers));
            };
            match call.as_mut().poll(context) {
                Poll::Ready(result) => {
                    self.call = None;
                    self.trailers = Some(result.map_or_else(|status| trailers(&status), |()| ok_trailers()));
                }
                Poll::Pending => {
                    // The call may have sent something before it had to wait.
                    let Poll::Ready(message) = self.queue.poll_take(context) else { return Poll::Pending };
                    frame_all(message, &self.queue, &mut self.chunks);
                }
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.get_mut() {
            Self::Empty => None,
            Self::Plain(bytes) => bytes.take().map(Frame::data),
            Self::Unary { chunks, trailers } => match chunks.pop_front() {
                Some(chunk) => Some(Frame::data(chunk)),
                None => trailers.take().map(Frame::trailers),
            },
            Self::Stream(stream) => match stream.poll(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty | Self::Plain(None) | Self::Unary { trailers: None, .. })
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Plain(Some(bytes)) => http_body::SizeHint::with_exact(bytes.len() as u64),
            Self::Empty | Self::Plain(None) => http_body::SizeHint::with_exact(0),
            _ => http_body::SizeHint::default(),
        }
    }
}
