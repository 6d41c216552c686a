//! Receiving: frames in, events out. Every violation of RFC 9113 ends its stream or the connection
//! here.

use std::borrow::Cow;

use crate::connection::{Connection, LAST_CALL, PartialHeaderBlock, Role, WINDOW_BYTES_MAX};
use crate::error::{ErrorCode, Fault, Limit};
use crate::frame::{self, FRAME_BYTES_MAX, Frame, flag, kind, setting, unpadded};
use crate::hpack;

/// Frames (HEADERS and CONTINUATION) of one header block.
const FRAGMENTS_MAX: u32 = 16;

/// A header block. It must be decoded whatever becomes of its stream, or the HPACK tables of both
/// sides no longer agree.
pub type HeaderBlock<'i> = Cow<'i, [u8]>;

/// The role of a header block on its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadersKind {
    /// Request headers; on a client, response headers.
    Head,
    /// Trailers, which end the stream.
    Trailers,
    /// None: the stream is refused or has ended.
    Ignored,
}

/// An event for the layer above.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// A header block.
    Headers {
        /// Its stream.
        stream: u32,
        /// The encoded block.
        block: HeaderBlock<'i>,
        /// Its role.
        kind: HeadersKind,
        /// Whether the peer has ended the stream.
        end: bool,
    },
    /// Data of a stream.
    Data {
        /// The stream.
        stream: u32,
        /// The bytes; return credit for them with [`Connection::credit`] when they are used.
        data: &'i [u8],
        /// Whether the peer has ended the stream.
        end: bool,
    },
    /// The stream has ended: the peer has reset it, or broken the protocol on it.
    Reset {
        /// The stream.
        stream: u32,
        /// The error code.
        code: u32,
    },
    /// The peer has sent a PING; the answer is in [`crate::Out`].
    Ping,
    /// The peer has answered our PING.
    Pong([u8; 8]),
    /// The peer takes up no more streams.
    GoAway {
        /// The highest stream that it has taken up.
        last_stream: u32,
        /// The error code.
        code: u32,
    },
    /// SETTINGS or WINDOW_UPDATE: there may be room to send more.
    Window,
}

/// The outcome of a frame.
enum Step<'i> {
    Event(Event<'i>),
    Nothing,
}

use Step::Nothing;

impl<T: Default> Connection<T> {
    /// Takes frames off the front of `input` up to the next event; none when there is no whole
    /// frame left.
    ///
    /// # Errors
    /// The peer's violation, to be passed to [`Connection::fail`].
    pub fn receive<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Event<'i>>, Fault> {
        while let Some(frame) = frame::take(input)? {
            if !self.has_settings && frame.kind != kind::SETTINGS {
                return Err(Fault::protocol("the first frame is not SETTINGS"));
            }
            if self.fragments.is_some() && frame.kind != kind::CONTINUATION {
                return Err(Fault::protocol("a header block is interrupted"));
            }
            if let Step::Event(event) = self.frame(frame)? {
                return Ok(Some(event));
            }
        }
        self.unblock();
        Ok(None)
    }

    fn frame<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        match frame.kind {
            kind::DATA => self.data(frame),
            kind::HEADERS => self.headers(frame),
            kind::CONTINUATION => self.continuation(frame),
            kind::RST_STREAM => self.rst_stream(frame),
            kind::SETTINGS => self.settings(frame),
            kind::PING => self.ping_frame(frame),
            kind::GOAWAY => go_away(frame),
            kind::WINDOW_UPDATE => self.window_update(frame),
            kind::PRIORITY => self.priority(frame),
            kind::PUSH_PROMISE => Err(Fault::protocol("a push is promised")),
            _ => self.idle_frame().map(|()| Nothing), // unknown kinds are ignored (section 4.1)
        }
    }

    /// Counts a frame without content: too many of them are an attack.
    fn idle_frame(&mut self) -> Result<(), Fault> {
        self.idle_frames_left =
            self.idle_frames_left.checked_sub(1).ok_or(Fault::too_much(Limit::IdleFrames))?;
        Ok(())
    }

    fn stream_error<'i>(&mut self, stream: u32, code: ErrorCode) -> Result<Step<'i>, Fault> {
        self.idle_frame()?;
        self.reset(stream, code);
        Ok(Step::Event(Event::Reset { stream, code: code as u32 }))
    }

    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream || stream.is_multiple_of(2)
    }

    fn data<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        let id = frame.stream;
        if id == 0 || self.is_idle(id) {
            return Err(Fault::protocol("data for a stream that is not open"));
        }
        let bytes = i64::try_from(frame.payload.len()).expect("a frame is short");
        if bytes > self.receive_window {
            return Err(Fault::new(ErrorCode::FlowControl, "more data than the connection's window allows"));
        }
        self.receive_window -= bytes;
        self.credit_connection(frame.payload.len());
        let data = unpadded(&frame)?;
        let end = frame.has(flag::END_STREAM);
        if data.is_empty() && !end {
            self.idle_frame()?;
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.was_given_up(id) {
                return Ok(Nothing);
            }
            return Err(Fault::new(ErrorCode::StreamClosed, "data for a stream that has ended"));
        };
        if !stream.is_receiving {
            return self.stream_error(id, ErrorCode::StreamClosed);
        }
        if bytes > stream.receive_window {
            return self.stream_error(id, ErrorCode::FlowControl);
        }
        stream.receive_window -= bytes;
        // The layer above never sees padding: its credit is returned at once.
        let padding = frame.payload.len() - data.len();
        if end {
            self.end_receiving(id);
        } else if padding > 0 {
            self.credit(id, padding);
        }
        Ok(Step::Event(Event::Data { stream: id, data, end }))
    }

    /// Returns credit for the connection at once: the windows of the streams, and the memory budget
    /// of the layer above, bound what a peer can send.
    fn credit_connection(&mut self, bytes: usize) {
        self.uncredited += u32::try_from(bytes).expect("a frame is short");
        if self.uncredited >= self.config.connection_window / 2 {
            let bytes = std::mem::take(&mut self.uncredited);
            self.receive_window += i64::from(bytes);
            self.put_window_update(0, bytes);
        }
    }

    /// The peer has ended its half of a stream.
    fn end_receiving(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_receiving = false;
        if !stream.is_sending && self.role == Role::Server {
            self.forget(id);
        }
    }

    /// Removes a stream that both sides have ended; on a client, once the answer is read.
    pub fn close(&mut self, id: u32) {
        if self.streams.get(&id).is_some_and(|stream| !stream.is_receiving && !stream.is_sending) {
            self.forget(id);
        }
    }

    fn headers<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        if frame.stream == 0 {
            return Err(Fault::protocol("headers for no stream"));
        }
        let mut block = unpadded(&frame)?;
        if frame.has(flag::PRIORITY) {
            let (priority, rest) = block.split_first_chunk::<5>().ok_or(Fault::new(
                ErrorCode::FrameSize,
                "headers are too short for the priority they announce",
            ))?;
            let depends_on = u32::from_be_bytes(priority[..4].try_into().expect("four bytes")) & 0x7fff_ffff;
            if depends_on == frame.stream {
                return Err(Fault::protocol("a stream depends on itself"));
            }
            block = rest;
        }
        if frame.has(flag::END_HEADERS) {
            return self.header_block(frame.stream, frame.flags, Cow::Borrowed(block));
        }
        let fragments =
            PartialHeaderBlock { stream: frame.stream, flags: frame.flags, block: block.to_vec(), frames: 1 };
        self.fragments = Some(fragments);
        Ok(Nothing)
    }

    fn continuation<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        let Some(mut fragments) = self.fragments.take().filter(|fragments| fragments.stream == frame.stream)
        else {
            return Err(Fault::protocol("a continuation of nothing"));
        };
        fragments.block.extend_from_slice(frame.payload);
        fragments.frames += 1;
        let bytes_max = self.config.header_block_bytes_max as usize;
        if fragments.block.len() > bytes_max || fragments.frames > FRAGMENTS_MAX {
            return Err(Fault::too_much(Limit::HeaderBlock));
        }
        if frame.has(flag::END_HEADERS) {
            return self.header_block(fragments.stream, fragments.flags, Cow::Owned(fragments.block));
        }
        self.fragments = Some(fragments);
        Ok(Nothing)
    }

    /// Finds the role of a header block that has arrived in full.
    fn header_block<'i>(&mut self, id: u32, flags: u8, block: HeaderBlock<'i>) -> Result<Step<'i>, Fault> {
        let end = flags & flag::END_STREAM != 0;
        let kind = if self.role == Role::Server && id > self.last_stream {
            self.take_up(id, end)?
        } else {
            self.later_block(id, end)?
        };
        Ok(Step::Event(Event::Headers { stream: id, block, kind, end }))
    }

    /// Opens or refuses a new stream of the peer.
    fn take_up(&mut self, id: u32, end: bool) -> Result<HeadersKind, Fault> {
        if id.is_multiple_of(2) {
            return Err(Fault::protocol("a client opens a stream with an even number"));
        }
        self.last_stream = id;
        if self.is_going_away {
            self.note_given_up(id);
            return Ok(HeadersKind::Ignored);
        }
        self.last_taken = id;
        if self.streams.len() >= self.config.streams_max as usize {
            self.idle_frame()?;
            self.put_reset(id, ErrorCode::RefusedStream);
            return Ok(HeadersKind::Ignored);
        }
        self.insert(id, T::default(), !end);
        Ok(HeadersKind::Head)
    }

    /// Finds the role of a header block on a stream that is or was open.
    fn later_block(&mut self, id: u32, end: bool) -> Result<HeadersKind, Fault> {
        if self.is_idle(id) {
            return Err(Fault::protocol("headers for a stream that is not open"));
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.was_given_up(id) {
                return Ok(HeadersKind::Ignored);
            }
            return Err(Fault::new(ErrorCode::StreamClosed, "headers for a stream that has ended"));
        };
        if !stream.is_receiving {
            return Err(Fault::new(ErrorCode::StreamClosed, "headers behind the end of a stream"));
        }
        if self.role == Role::Server && !end {
            self.reset(id, ErrorCode::Protocol);
            return Ok(HeadersKind::Ignored);
        }
        if end {
            self.end_receiving(id);
        }
        Ok(if self.role == Role::Client && !end { HeadersKind::Head } else { HeadersKind::Trailers })
    }

    fn rst_stream<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        let code = number(&frame)?;
        if frame.stream == 0 || self.is_idle(frame.stream) {
            return Err(Fault::protocol("a reset of a stream that is not open"));
        }
        if !self.streams.contains_key(&frame.stream) && self.was_given_up(frame.stream) {
            return self.idle_frame().map(|()| Nothing); // both sides have given it up
        }
        self.resets_left = self.resets_left.checked_sub(1).ok_or(Fault::too_much(Limit::Resets))?;
        let is_open = self.forget(frame.stream);
        Ok(if is_open { Step::Event(Event::Reset { stream: frame.stream, code }) } else { Nothing })
    }

    fn priority<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        self.idle_frame()?;
        if frame.stream == 0 {
            return Err(Fault::protocol("a priority for no stream"));
        }
        let Some((depends_on, _)) =
            frame.payload.split_first_chunk::<4>().filter(|_| frame.payload.len() == 5)
        else {
            return Err(Fault::new(ErrorCode::FrameSize, "a priority has five bytes"));
        };
        if u32::from_be_bytes(*depends_on) & 0x7fff_ffff == frame.stream {
            return Err(Fault::protocol("a stream depends on itself"));
        }
        Ok(Nothing)
    }

    fn settings<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        if frame.stream != 0 {
            return Err(Fault::protocol("settings for a stream"));
        }
        if frame.has(flag::ACK) {
            let is_empty = frame.payload.is_empty();
            return is_empty
                .then_some(Nothing)
                .ok_or(Fault::new(ErrorCode::FrameSize, "settings are acknowledged with bytes"));
        }
        if !frame.payload.len().is_multiple_of(6) {
            return Err(Fault::new(ErrorCode::FrameSize, "settings have six bytes each"));
        }
        if self.has_settings {
            self.settings_left = self.settings_left.checked_sub(1).ok_or(Fault::too_much(Limit::Settings))?;
        }
        self.has_settings = true;
        for setting in frame.payload.chunks_exact(6) {
            let [high, low, value @ ..] = setting else { unreachable!("six bytes") };
            let value = u32::from_be_bytes(value.try_into().expect("four bytes"));
            self.setting(u16::from_be_bytes([*high, *low]), value)?;
        }
        self.out.put(&frame::head(0, kind::SETTINGS, flag::ACK, 0));
        Ok(Step::Event(Event::Window))
    }

    fn setting(&mut self, id: u16, value: u32) -> Result<(), Fault> {
        match id {
            setting::HEADER_TABLE_SIZE => {
                let bytes = (value as usize).min(hpack::TABLE_BYTES);
                if bytes != self.peer.table_bytes {
                    // Each size in between counts, not only the last (RFC 7541, section 4.2).
                    let lowest = self.table_announcement.map_or(self.peer.table_bytes, |(lowest, _)| lowest);
                    self.table_announcement = Some((lowest.min(bytes), bytes));
                }
                self.peer.table_bytes = bytes;
                self.peer.table_bytes_lowest = self.peer.table_bytes_lowest.min(bytes);
            }
            setting::ENABLE_PUSH if value > 1 => {
                return Err(Fault::protocol("ENABLE_PUSH is neither 0 nor 1"));
            }
            setting::MAX_CONCURRENT_STREAMS => self.peer.streams_max = value,
            setting::INITIAL_WINDOW_SIZE => {
                let value = i64::from(value);
                if value > WINDOW_BYTES_MAX {
                    return Err(Fault::new(ErrorCode::FlowControl, "a window of 2^31 bytes or more"));
                }
                self.resize_windows(value)?;
            }
            setting::MAX_FRAME_SIZE => {
                let bytes = value as usize;
                if !(FRAME_BYTES_MAX..1 << 24).contains(&bytes) {
                    return Err(Fault::protocol("MAX_FRAME_SIZE is out of bounds"));
                }
                self.peer.frame_bytes = bytes;
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes the initial window of all streams without a walk over them; blocked streams are
    /// looked at when the last frame of this read is processed.
    fn resize_windows(&mut self, window: i64) -> Result<(), Fault> {
        if window + self.send_credit_max > WINDOW_BYTES_MAX {
            // The stream with that much credit may have ended: find the present maximum.
            self.send_credit_max =
                self.streams.values().map(|stream| stream.send_credit).max().unwrap_or(0).max(0);
            if window + self.send_credit_max > WINDOW_BYTES_MAX {
                return Err(Fault::new(ErrorCode::FlowControl, "a window of 2^31 bytes or more"));
            }
        }
        self.has_larger_windows |= window > self.peer.stream_window;
        self.peer.stream_window = window;
        Ok(())
    }

    fn ping_frame<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        if frame.stream != 0 {
            return Err(Fault::protocol("a ping for a stream"));
        }
        let payload: [u8; 8] = frame
            .payload
            .try_into()
            .map_err(|_| Fault::new(ErrorCode::FrameSize, "a ping has eight bytes"))?;
        self.idle_frame()?;
        if frame.has(flag::ACK) {
            if self.has_last_call && payload == LAST_CALL {
                self.go_away();
            }
            return Ok(Step::Event(Event::Pong(payload)));
        }
        self.out.put(&frame::head(8, kind::PING, flag::ACK, 0));
        self.out.put(&payload);
        Ok(Step::Event(Event::Ping))
    }

    fn window_update<'i>(&mut self, frame: Frame<'i>) -> Result<Step<'i>, Fault> {
        let more = i64::from(number(&frame)? & 0x7fff_ffff);
        let id = frame.stream;
        if id == 0 {
            self.send_window += more;
            if more == 0 {
                return Err(Fault::protocol("a window grows by nothing"));
            }
            if self.send_window > WINDOW_BYTES_MAX {
                return Err(Fault::new(ErrorCode::FlowControl, "a window of 2^31 bytes or more"));
            }
        } else {
            if self.is_idle(id) {
                return Err(Fault::protocol("a window for a stream that is not open"));
            }
            let Some(stream) = self.streams.get_mut(&id) else {
                return self.idle_frame().map(|()| Nothing); // the stream has ended meanwhile
            };
            stream.send_credit += more;
            self.send_credit_max = self.send_credit_max.max(stream.send_credit);
            let is_overflow = stream.send_window(&self.peer) > WINDOW_BYTES_MAX;
            if more == 0 || is_overflow {
                let code = if is_overflow { ErrorCode::FlowControl } else { ErrorCode::Protocol };
                return self.stream_error(id, code);
            }
            self.make_sendable(id);
        }
        self.pump();
        Ok(Step::Event(Event::Window))
    }
}

fn go_away<'i>(frame: Frame<'i>) -> Result<Step<'i>, Fault> {
    let Some((last, rest)) = frame.payload.split_first_chunk::<4>() else {
        return Err(Fault::new(ErrorCode::FrameSize, "GOAWAY has at least eight bytes"));
    };
    let Some((code, _)) = rest.split_first_chunk::<4>() else {
        return Err(Fault::new(ErrorCode::FrameSize, "GOAWAY has at least eight bytes"));
    };
    if frame.stream != 0 {
        return Err(Fault::protocol("GOAWAY for a stream"));
    }
    let last_stream = u32::from_be_bytes(*last) & 0x7fff_ffff;
    Ok(Step::Event(Event::GoAway { last_stream, code: u32::from_be_bytes(*code) }))
}

/// The payload of a frame that holds one 32-bit number.
fn number(frame: &Frame<'_>) -> Result<u32, Fault> {
    let bytes = frame.payload.try_into();
    bytes
        .map(u32::from_be_bytes)
        .map_err(|_| Fault::new(ErrorCode::FrameSize, "a frame of four bytes has others"))
}
