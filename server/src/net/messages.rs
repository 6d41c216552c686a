//! Request messages: cutting length-prefixed messages out of data frames, and handing them to
//! streaming calls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Read as _;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use revd_member::budget::{Hold, Share};
use revd_member::error::Status;

use crate::api::call::Requests;
use crate::limits;

const PREFIX_BYTES: usize = 5;

/// Bounds of the request messages of a core's calls.
#[derive(Debug)]
pub(super) struct MessageLimits {
    /// A longer message is refused.
    pub bytes_max: usize,
    /// Bytes that were decompressed in the present turn; a connection sets it to zero when its turn
    /// begins.
    pub unpacked: Cell<usize>,
}

/// A request message of which a part has arrived.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    part: Vec<u8>,
    /// Counts `part` in the budget of requests.
    hold: Option<Hold>,
}

impl Assembly {
    /// Whether no message has arrived in part.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Adds data, and passes each message that is complete now to `message`.
    ///
    /// # Errors
    /// The status that the call ends with.
    pub(super) fn add(
        &mut self,
        mut data: &[u8],
        gzip: bool,
        limits: &MessageLimits,
        share: &Share,
        mut message: impl FnMut(Bytes),
    ) -> Result<(), Status> {
        if !self.part.is_empty() {
            let Some(wanted) = self.wanted(data, limits)? else { return self.keep(data, share) };
            let (rest, behind) = data.split_at(wanted - self.part.len());
            data = behind;
            self.hold = None;
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
        if data.is_empty() { Ok(()) } else { self.keep(data, share) }
    }

    /// Bytes of prefix and message, if they are complete with `data`.
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

    fn keep(&mut self, data: &[u8], share: &Share) -> Result<(), Status> {
        let hold = self.hold.get_or_insert_with(|| share.hold());
        hold.grow(data.len()).map_err(|_| no_room(share))?;
        self.part.extend_from_slice(data);
        Ok(())
    }
}

/// Counts a complete message in the budget of requests, whether it fits or not.
pub(super) fn held(share: &Share, message: &Bytes) -> Hold {
    let mut hold = share.hold();
    hold.add(message.len());
    hold
}

/// The status of a request for which this core has no memory at the moment.
pub(super) fn no_room(share: &Share) -> Status {
    share.refuse();
    Status::resource_exhausted(format!(
        "requests hold {} bytes on this connection and {} of {} on its core, which leaves no room for another: end those that \
         are begun, or try again later",
        share.held(),
        share.budget().used(),
        share.budget().bytes_max()
    ))
}

/// Flag and length of the message at the front, if its prefix has arrived.
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
    // One byte more than allowed tells a message that is too long from one that just fits.
    let mut unpacking = flate2::read::GzDecoder::new(&body[..]).take(limits.bytes_max as u64 + 1);
    unpacking.read_to_end(&mut out).map_err(|error| bad_gzip(&body, &error))?;
    limits.unpacked.set(limits.unpacked.get() + out.len());
    too_large(out.len(), limits)?;
    Ok(out.into())
}

/// The status of a message that cannot be decompressed, in the words of Go's library.
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

/// The request messages of a streaming call, on their way from the connection to the call.
#[derive(Debug)]
pub(super) struct RequestQueue {
    queue: RefCell<QueuedRequests>,
    share: Share,
}

#[derive(Debug)]
struct QueuedRequests {
    messages: VecDeque<Bytes>,
    /// Counts the messages and their places in the queue.
    waiting: Hold,
    end: Option<Result<(), Status>>,
    call: Option<Waker>,
    /// Bytes that arrived while the queue was full: back-pressure, no credit is returned for them
    /// before the call has taken some messages.
    owed: usize,
}

/// Bytes that a queued message counts, its place in the queue included.
fn held_bytes(message: &Bytes) -> usize {
    size_of::<Bytes>() + message.len()
}

impl RequestQueue {
    /// An empty queue whose messages are counted in `share`.
    pub(super) fn new(share: &Share) -> Self {
        let (waiting, messages) = (share.hold(), VecDeque::new());
        let queue = RefCell::new(QueuedRequests { messages, waiting, end: None, call: None, owed: 0 });
        Self { queue, share: share.clone() }
    }

    /// Queues a message for the call; ends the call if there is no room for it.
    pub(super) fn push(&self, message: Bytes) {
        let mut queue = self.queue.borrow_mut();
        if queue.waiting.grow(held_bytes(&message)).is_ok() {
            queue.messages.push_back(message);
        } else if queue.end.is_none() {
            queue.end = Some(Err(no_room(&self.share)));
        }
        queue.wake();
    }

    /// Ends the queue: the client has sent everything, or broken the protocol.
    pub(super) fn end(&self, result: Result<(), Status>) {
        let mut queue = self.queue.borrow_mut();
        if !matches!(queue.end, Some(Err(_))) {
            queue.end = Some(result);
        }
        queue.wake();
    }

    /// Notes that `bytes` have arrived; the bytes for which the client gets credit now.
    pub(super) fn credit(&self, bytes: usize) -> usize {
        let mut queue = self.queue.borrow_mut();
        queue.owed += bytes;
        if queue.waiting.bytes() < limits::STREAM_BYTES_MAX { std::mem::take(&mut queue.owed) } else { 0 }
    }
}

impl QueuedRequests {
    fn wake(&mut self) {
        if let Some(call) = self.call.take() {
            call.wake();
        }
    }
}

/// The receiving end of the queue, for the call.
pub(super) struct Incoming(pub Rc<RequestQueue>);

impl Requests for Incoming {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let mut queue = self.0.queue.borrow_mut();
        if let Some(message) = queue.messages.pop_front() {
            queue.waiting.release(held_bytes(&message));
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
        MessageLimits { bytes_max, unpacked: Cell::new(0) }
    }

    fn framed(flag: u8, body: &[u8]) -> Vec<u8> {
        [&[flag][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    #[test]
    fn messages_are_cut_at_any_split_of_the_frames() {
        let wire = [framed(0, b"abc"), framed(0, b""), framed(0, b"de")].concat();
        let (bounds, share) = (bounds(100), Share::new(1_000));
        for first in 0..wire.len() {
            for second in first..wire.len() {
                let mut assembly = Assembly::default();
                let mut messages = Vec::new();
                for part in [&wire[..first], &wire[first..second], &wire[second..]] {
                    assembly.add(part, false, &bounds, &share, |message| messages.push(message)).unwrap();
                }
                assert_eq!(messages, [&b"abc"[..], b"", b"de"]);
                assert!(assembly.is_empty());
                drop(assembly);
                assert_eq!(share.held(), 0);
            }
        }
    }

    #[test]
    fn messages_that_are_too_long_or_wrongly_compressed_are_refused() {
        let share = Share::new(10_000);
        let add = |wire: &[u8], gzip| {
            let mut messages = Vec::new();
            let result =
                Assembly::default().add(wire, gzip, &bounds(10), &share, |message| messages.push(message));
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
        let bounds = bounds(1_000);
        let mut messages = Vec::new();
        let mut add = |wire: Vec<u8>| {
            Assembly::default().add(&wire, true, &bounds, &share, |message| messages.push(message))
        };
        add(framed(1, &packed(&[7; 1_000]))).unwrap();
        assert!(add(framed(1, &packed(&[7; 1_001]))).unwrap_err().message().contains("larger than max"));
        assert!(add(framed(1, b"no gzip")).is_err());
        assert_eq!(messages, [vec![7; 1_000]]);
    }

    #[test]
    fn request_bytes_are_counted_from_arrival_until_the_message_is_handled() {
        let (bounds, share) = (bounds(1_000), Share::new(2_000));
        let wire = framed(0, &[1; 600]);
        let mut first = Assembly::default();
        first.add(&wire[..500], false, &bounds, &share, |_| panic!("not whole")).unwrap();
        assert_eq!(share.held(), 500);
        let mut second = Assembly::default();
        second.add(&wire[..400], false, &bounds, &share, |_| panic!("not whole")).unwrap();
        let refused = second.add(&wire[400..600], false, &bounds, &share, |_| panic!("not whole"));
        assert!(refused.unwrap_err().message().contains("requests hold 900 bytes on this connection"));
        drop(second);
        let mut whole = 0;
        first.add(&wire[500..], false, &bounds, &share, |message| whole += message.len()).unwrap();
        assert_eq!((whole, share.held()), (600, 0));
    }

    #[test]
    fn messages_that_a_call_does_not_take_are_bounded_also_if_they_are_empty() {
        let share = Share::new(2 * limits::STREAM_BYTES_MAX);
        let queue = Rc::new(RequestQueue::new(&share));
        let (mut pushed, mut credit) = (0, 0);
        while credit >= pushed {
            queue.push(Bytes::new());
            pushed += 5;
            credit += queue.credit(5);
        }
        assert!(share.held() <= limits::STREAM_BYTES_MAX, "no credit: the client has to wait");
        while share.fits(1_000) {
            queue.push(Bytes::from_static(&[0; 900]));
        }
        queue.push(vec![0; 100_000].into());
        queue.end(Ok(()));
        let mut incoming = Incoming(queue);
        let mut context = Context::from_waker(Waker::noop());
        let end = loop {
            let Poll::Ready(Some(next)) = incoming.poll_next(&mut context) else { panic!("there is more") };
            if let Err(status) = next {
                break status;
            }
        };
        assert!(end.message().contains("leaves no room"));
        assert_eq!(share.held(), 0);
    }
}
