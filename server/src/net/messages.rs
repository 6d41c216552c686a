//! Request messages: cutting length-prefixed messages out of data frames, and handing them to streaming calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Read as _;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tonic::Status;

use crate::api::call::Requests;
use crate::limits;

const PREFIX_BYTES: usize = 5;

/// Bytes of unfinished requests that a core holds; clones share the count.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestBytes(Rc<Cell<usize>>);

/// What bounds the messages of a call.
#[derive(Debug, Clone)]
pub(super) struct MessageLimits {
    /// A longer one is refused.
    pub bytes_max: usize,
    pub core: RequestBytes,
}

/// A message that has come in part.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    part: Vec<u8>,
    /// The core that holds it: its bytes are counted there.
    core: Option<RequestBytes>,
}

impl Assembly {
    /// Nothing has come in part.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Adds data, and gives each message that is whole now to `message`.
    ///
    /// # Errors
    /// What the client gets.
    pub(super) fn add(
        &mut self,
        mut data: &[u8],
        gzip: bool,
        limits: &MessageLimits,
        mut message: impl FnMut(Bytes),
    ) -> Result<(), Status> {
        if !self.part.is_empty() {
            let Some(wanted) = self.wanted(data, limits)? else { return self.keep(data, limits) };
            let (rest, behind) = data.split_at(wanted - self.part.len());
            data = behind;
            self.release(self.part.len());
            self.part.extend_from_slice(rest);
            let whole = std::mem::take(&mut self.part);
            let flag = whole[0];
            message(unpacked(flag, Bytes::from(whole).slice(PREFIX_BYTES..), gzip, limits)?);
        }
        while let Some((flag, length)) = prefix(data, limits)? {
            let Some(body) = data.get(PREFIX_BYTES..PREFIX_BYTES + length) else { break };
            data = &data[PREFIX_BYTES + length..];
            message(unpacked(flag, Bytes::copy_from_slice(body), gzip, limits)?);
        }
        if data.is_empty() { Ok(()) } else { self.keep(data, limits) }
    }

    /// How long prefix and message are, if they are whole with `data`.
    fn wanted(&self, data: &[u8], limits: &MessageLimits) -> Result<Option<usize>, Status> {
        let mut head = [0; PREFIX_BYTES];
        let bytes = self.part.iter().chain(data);
        head.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let have = self.part.len() + data.len();
        if have < PREFIX_BYTES {
            return Ok(None);
        }
        let length = prefix(&head, limits)?.map_or(0, |(_, length)| PREFIX_BYTES + length);
        Ok((have >= length).then_some(length))
    }

    fn keep(&mut self, data: &[u8], limits: &MessageLimits) -> Result<(), Status> {
        let held = limits.core.0.get();
        if held + data.len() > limits::REQUEST_BYTES_PER_CORE_MAX {
            return Err(Status::resource_exhausted(format!(
                "unfinished requests hold {held} bytes on this core, no more is accepted: try again later"
            )));
        }
        self.part.extend_from_slice(data);
        limits.core.0.set(held + data.len());
        self.core = Some(limits.core.clone());
        Ok(())
    }

    /// The part is no part any more.
    fn release(&mut self, bytes: usize) {
        if let Some(core) = self.core.take() {
            core.0.set(core.0.get() - bytes);
        }
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.release(self.part.len());
    }
}

/// Flag and length of the message at the front, if its prefix is there.
fn prefix(data: &[u8], limits: &MessageLimits) -> Result<Option<(u8, usize)>, Status> {
    let Some((prefix, _)) = data.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let [flag, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    too_large(length, limits)?;
    Ok(Some((flag, length)))
}

fn too_large(length: usize, limits: &MessageLimits) -> Result<(), Status> {
    if length > limits.bytes_max {
        return Err(Status::resource_exhausted(format!(
            "grpc: received message larger than max ({length} vs. {})",
            limits.bytes_max
        )));
    }
    Ok(())
}

fn unpacked(flag: u8, body: Bytes, gzip: bool, limits: &MessageLimits) -> Result<Bytes, Status> {
    match (flag, gzip) {
        (0, _) => return Ok(body),
        (1, true) => {}
        (1, false) => {
            return Err(Status::internal("grpc: compressed flag set with identity or empty encoding"));
        }
        _ => return Err(Status::internal(format!("grpc: received unexpected payload format {flag}"))),
    }
    let mut out = Vec::new();
    // One byte more than allowed tells what is too long from what just fits.
    let mut unpacking = flate2::read::GzDecoder::new(&body[..]).take(limits.bytes_max as u64 + 1);
    unpacking.read_to_end(&mut out).map_err(|error| bad_gzip(&body, &error))?;
    too_large(out.len(), limits)?;
    Ok(out.into())
}

/// In the words of Go's library.
fn bad_gzip(body: &[u8], error: &std::io::Error) -> Status {
    const HEAD_BYTES: usize = 10;
    let is_short = error.kind() == std::io::ErrorKind::UnexpectedEof;
    Status::internal(match body {
        [] => "grpc: failed to decompress the message: EOF".to_owned(),
        _ if body.len() < HEAD_BYTES => "grpc: failed to decompress the message: unexpected EOF".to_owned(),
        [0x1f, 0x8b, 8, ..] if is_short => {
            "grpc: failed to read decompressed data: unexpected EOF".to_owned()
        }
        [0x1f, 0x8b, 8, ..] => format!("grpc: failed to read decompressed data: {error}"),
        _ => "grpc: failed to decompress the message: gzip: invalid header".to_owned(),
    })
}

/// The requests of a streaming call, between the connection and the call.
#[derive(Debug, Default)]
pub(super) struct RequestQueue(RefCell<Queue>);

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Bytes>,
    /// Their bytes.
    waiting: usize,
    end: Option<Result<(), Status>>,
    call: Option<Waker>,
    /// Bytes that came while many waited: the client gets no credit for them before the call has taken some.
    owed: usize,
}

impl RequestQueue {
    /// A message for the call.
    pub(super) fn push(&self, message: Bytes) {
        let mut queue = self.0.borrow_mut();
        queue.waiting += message.len();
        queue.messages.push_back(message);
        queue.wake();
    }

    /// No more will come, or not in good order.
    pub(super) fn end(&self, result: Result<(), Status>) {
        let mut queue = self.0.borrow_mut();
        queue.end = Some(result);
        queue.wake();
    }

    /// So many bytes came: for how many the client may send others.
    pub(super) fn credit(&self, bytes: usize) -> usize {
        let mut queue = self.0.borrow_mut();
        queue.owed += bytes;
        if queue.waiting < limits::STREAM_BYTES_MAX { std::mem::take(&mut queue.owed) } else { 0 }
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(call) = self.call.take() {
            call.wake();
        }
    }
}

/// The call's end.
pub(super) struct Incoming(pub Rc<RequestQueue>);

impl Requests for Incoming {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let mut queue = self.0.0.borrow_mut();
        if let Some(message) = queue.messages.pop_front() {
            queue.waiting -= message.len();
            if queue.messages.is_empty() {
                queue.messages.shrink_to(0);
            }
            return Poll::Ready(Some(Ok(message)));
        }
        match &queue.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(status)) => Poll::Ready(Some(Err(status.clone()))),
            None => {
                queue.call = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn bounds(bytes_max: usize) -> MessageLimits {
        MessageLimits { bytes_max, core: RequestBytes::default() }
    }

    fn framed(flag: u8, body: &[u8]) -> Vec<u8> {
        [&[flag][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    #[test]
    fn messages_are_cut_at_any_split_of_the_frames() {
        let wire = [framed(0, b"abc"), framed(0, b""), framed(0, b"de")].concat();
        let bounds = bounds(100);
        for first in 0..wire.len() {
            for second in first..wire.len() {
                let mut assembly = Assembly::default();
                let mut messages = Vec::new();
                for part in [&wire[..first], &wire[first..second], &wire[second..]] {
                    assembly.add(part, false, &bounds, |message| messages.push(message)).unwrap();
                }
                assert_eq!(messages, [&b"abc"[..], b"", b"de"]);
                assert!(assembly.is_empty());
                drop(assembly);
                assert_eq!(bounds.core.0.get(), 0);
            }
        }
    }

    #[test]
    fn what_is_too_long_or_packed_wrongly_is_refused() {
        let bounds = bounds(10);
        let add = |wire: &[u8], gzip| {
            let mut messages = Vec::new();
            let result = Assembly::default().add(wire, gzip, &bounds, |message| messages.push(message));
            result.map(|()| messages).map_err(|status| status.message().to_owned())
        };
        assert_eq!(
            add(&framed(0, &[0; 11]), false).unwrap_err(),
            "grpc: received message larger than max (11 vs. 10)"
        );
        assert!(add(&framed(1, b"abc"), false).unwrap_err().contains("compressed flag set"));
        assert!(add(&framed(2, b"abc"), true).unwrap_err().contains("unexpected payload format"));
        let packed = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let bounds = MessageLimits { bytes_max: 1_000, core: RequestBytes::default() };
        let mut messages = Vec::new();
        let mut add =
            |wire: Vec<u8>| Assembly::default().add(&wire, true, &bounds, |message| messages.push(message));
        add(framed(1, &packed(&[7; 1_000]))).unwrap();
        assert!(add(framed(1, &packed(&[7; 1_001]))).unwrap_err().message().contains("larger than max"));
        assert!(add(framed(1, b"no gzip")).is_err());
        assert_eq!(messages, [vec![7; 1_000]]);
    }
}
