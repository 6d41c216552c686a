//! Request bodies: cutting length-prefixed messages out of a stream of data frames.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body as _;
use hyper::body::Incoming;
use tonic::Status;

use crate::api::call::{self, Requests};
use crate::limits;

const PREFIX_BYTES: usize = 5;

/// Bytes of unfinished requests that a core holds; clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestBytes(Rc<Cell<usize>>);

/// The messages of one request body.
pub(super) struct Messages {
    body: Incoming,
    /// What was received and not cut out yet.
    received: Received,
    message_bytes_max: usize,
}

/// Bytes held for one call, counted against what the core may hold.
struct Received {
    bytes: Bytes,
    /// Used when a message comes in several frames.
    joined: BytesMut,
    counted: usize,
    core: RequestBytes,
}

impl Messages {
    /// The messages of `body`; one of more than `message_bytes_max` is refused.
    #[must_use]
    pub(super) fn new(body: Incoming, message_bytes_max: usize, core: &RequestBytes) -> Self {
        Self { body, received: Received::new(core), message_bytes_max }
    }

    /// The only message of a call.
    ///
    /// # Errors
    /// What the client gets.
    pub(super) async fn only(mut self) -> Result<Bytes, Status> {
        call::only(&mut self).await
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            match self.received.cut(self.message_bytes_max) {
                Ok(None) => {}
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(Status::cancelled(error.to_string())))),
                None if self.received.len() == 0 => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Status::internal("unexpected EOF")))),
            };
            if let Ok(data) = frame.into_data()
                && let Err(status) = self.received.add(data)
            {
                return Poll::Ready(Some(Err(status)));
            }
        }
    }
}

impl Requests for Messages {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        self.poll_message(context)
    }
}

impl Received {
    fn new(core: &RequestBytes) -> Self {
        Self { bytes: Bytes::new(), joined: BytesMut::new(), counted: 0, core: core.clone() }
    }

    fn len(&self) -> usize {
        self.bytes.len() + self.joined.len()
    }

    fn add(&mut self, data: Bytes) -> Result<(), Status> {
        if self.len() == 0 {
            self.bytes = data; // the usual case: nothing is copied
            return Ok(());
        }
        let held = self.core.0.get();
        if held + data.len() > limits::REQUEST_BYTES_PER_CORE_MAX {
            return Err(Status::resource_exhausted(format!(
                "unfinished requests hold {held} bytes on this core, no more is accepted: try again later"
            )));
        }
        if self.joined.is_empty() {
            self.joined = BytesMut::from(&self.bytes[..]);
            self.bytes = Bytes::new();
        }
        self.joined.extend_from_slice(&data);
        self.core.0.set(held + data.len());
        self.counted += data.len();
        Ok(())
    }

    /// The next whole message.
    fn cut(&mut self, message_bytes_max: usize) -> Result<Option<Bytes>, Status> {
        let bytes = if self.joined.is_empty() { &self.bytes[..] } else { &self.joined[..] };
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if compressed != 0 {
            return Err(Status::unimplemented("grpc: Decompressor is not installed for this grpc-encoding"));
        }
        if length > message_bytes_max {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({length} vs. {message_bytes_max})"
            )));
        }
        if rest.len() < length {
            return Ok(None);
        }
        if !self.joined.is_empty() {
            self.bytes = std::mem::take(&mut self.joined).freeze();
            self.uncount();
        }
        self.bytes.advance(PREFIX_BYTES);
        Ok(Some(self.bytes.split_to(length)))
    }

    fn uncount(&mut self) {
        self.core.0.set(self.core.0.get() - self.counted);
        self.counted = 0;
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.uncount();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received() -> Received {
        Received::new(&RequestBytes::default())
    }

    #[test]
    fn messages_are_cut_at_any_split_of_the_frames() {
        let wire = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2], b"de"].concat();
        for first in 0..wire.len() {
            for second in first..wire.len() {
                let mut received = received();
                let mut messages = Vec::new();
                for part in [&wire[..first], &wire[first..second], &wire[second..]] {
                    received.add(Bytes::copy_from_slice(part)).unwrap();
                    while let Some(message) = received.cut(100).unwrap() {
                        messages.push(message);
                    }
                }
                assert_eq!(messages, [&b"abc"[..], b"", b"de"]);
                assert_eq!(received.core.0.get(), received.counted);
            }
        }
    }

    #[test]
    fn a_message_in_one_frame_is_not_copied() {
        let wire = Bytes::from_static(b"\0\0\0\0\x03abc");
        let mut received = received();
        received.add(wire.clone()).unwrap();
        assert_eq!(received.cut(100).unwrap().unwrap().as_ptr(), wire[5..].as_ptr());
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_arrives() {
        let mut received = received();
        received.add(Bytes::from_static(b"\0\0\0\x01\0")).unwrap();
        let status = received.cut(100).unwrap_err();
        assert_eq!(status.message(), "grpc: received message larger than max (256 vs. 100)");
    }

    #[test]
    fn unfinished_requests_are_counted_per_core() {
        let core = RequestBytes::default();
        let held = limits::REQUEST_BYTES_PER_CORE_MAX - 10;
        core.0.set(held);
        let mut received = Received::new(&core);
        received.add(Bytes::from_static(&[0, 0, 0, 0, 99])).unwrap();
        received.add(Bytes::from_static(&[0; 10])).unwrap();
        assert!(received.add(Bytes::from_static(&[0; 1])).is_err());
        drop(received);
        assert_eq!(core.0.get(), held);
    }
}
