//! One connection: its windows, its streams, and what each stream still has to send.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::http2::frame::{FRAME_BYTES_MAX, kind, setting};
use crate::http2::{ErrorCode, Fault, Out, frame};

/// A window before any setting (RFC 9113, section 6.9.2).
pub(crate) const WINDOW_BYTES_DEFAULT: u32 = 65_535;
/// The largest window there is.
pub(crate) const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Client,
    /// Answers them.
    Server,
}

/// What this end allows the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Streams open at a time.
    pub streams_max: u32,
    /// Bytes on a stream before it must wait for credit.
    pub stream_window: u32,
    /// Bytes on the whole connection before it must wait for credit.
    pub connection_window: u32,
    /// Bytes of a request's headers, decoded; also of a header block.
    pub header_bytes_max: u32,
    /// Streams the other side may reset between two calls of [`Connection::refill`].
    pub resets_max: u32,
    /// The same before the first such call: whoever comes back as soon as it is sent away gets no further.
    pub resets_first: u32,
    /// Frames that carry nothing, in the same time.
    pub idle_frames_max: u32,
    /// Bytes waiting to be sent before streams keep the rest for themselves.
    pub out_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            streams_max: 10_000,
            stream_window: 1 << 20,
            connection_window: 4 << 20,
            header_bytes_max: 16 * 1024,
            resets_max: 5_000,
            resets_first: 5_000,
            idle_frames_max: 10_000,
            out_bytes_max: 1 << 20,
        }
    }
}

/// What the other end allows us.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) stream_window: i64,
    pub(crate) frame_bytes: usize,
    pub(crate) streams_max: u32,
    pub(crate) table_bytes: usize,
}

/// What a stream has yet to send.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) chunks: VecDeque<Bytes>,
    pub(crate) bytes: usize,
    pub(crate) end: Option<End>,
}

/// How a stream ends.
#[derive(Debug)]
pub(crate) enum End {
    /// With the last data.
    Data,
    /// With this header block.
    Trailers(Vec<u8>),
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream<T> {
    pub(crate) data: T,
    /// The other side has more to send.
    pub(crate) is_receiving: bool,
    /// We have more to send.
    pub(crate) is_sending: bool,
    /// Bytes the other side may still send.
    pub(crate) receive_window: i64,
    /// Bytes it has sent, and was not given credit for again.
    pub(crate) uncredited: u32,
    /// Bytes we may still send.
    pub(crate) send_window: i64,
    /// In `Connection::sendable`.
    pub(crate) is_queued: bool,
    /// There only while something waits.
    pub(crate) outgoing: Option<Box<Outgoing>>,
}

impl<T> Stream<T> {
    /// Bytes that wait.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.bytes)
    }
}

/// A header block that comes in several frames.
#[derive(Debug)]
pub(crate) struct Fragments {
    pub(crate) stream: u32,
    pub(crate) flags: u8,
    pub(crate) block: Vec<u8>,
    pub(crate) frames: u32,
}

/// A connection; each stream carries a `T` for the layer above.
#[derive(Debug)]
pub struct Connection<T> {
    pub(crate) role: Role,
    pub(crate) config: Config,
    pub(crate) peer: Peer,
    pub(crate) out: Out,
    pub(crate) streams: BTreeMap<u32, Stream<T>>,
    /// The highest stream the other side has opened, or for a client the last of its own.
    pub(crate) last_stream: u32,
    /// Bytes that streams have yet to send.
    pub(crate) queued: usize,
    /// Streams with something to send that nothing but `out` keeps from being sent.
    pub(crate) sendable: VecDeque<u32>,
    /// Streams whose queue has run empty since they were asked for.
    pub(crate) drained: Vec<u32>,
    pub(crate) fragments: Option<Fragments>,
    pub(crate) receive_window: i64,
    pub(crate) uncredited: u32,
    pub(crate) send_window: i64,
    /// Streams that were reset from here not long ago: frames for them may still come.
    pub(crate) reset_lately: VecDeque<u32>,
    /// Resets left, and frames without content.
    pub(crate) resets_left: u32,
    pub(crate) idle_frames_left: u32,
    pub(crate) has_settings: bool,
    pub(crate) is_going_away: bool,
    /// HEADERS or DATA went to `out` since somebody asked.
    pub(crate) has_sent: bool,
    /// The table size to announce in the next block.
    pub(crate) table_announcement: Option<usize>,
}

impl<T> Connection<T> {
    /// A new connection; its settings are the first thing to be sent. A client sends the preface before, a server has
    /// received it.
    #[must_use]
    pub fn new(role: Role, config: Config) -> Self {
        let mut connection = Self {
            role,
            config,
            peer: Peer {
                stream_window: WINDOW_BYTES_DEFAULT.into(),
                frame_bytes: FRAME_BYTES_MAX,
                streams_max: u32::MAX,
                table_bytes: crate::http2::hpack::TABLE_BYTES,
            },
            out: Out::default(),
            streams: BTreeMap::new(),
            last_stream: 0,
            queued: 0,
            sendable: VecDeque::new(),
            drained: Vec::new(),
            fragments: None,
            receive_window: WINDOW_BYTES_DEFAULT.into(),
            uncredited: 0,
            send_window: WINDOW_BYTES_DEFAULT.into(),
            reset_lately: VecDeque::new(),
            resets_left: config.resets_first,
            idle_frames_left: config.idle_frames_max,
            has_settings: false,
            is_going_away: false,
            has_sent: false,
            table_announcement: None,
        };
        connection.put_settings();
        connection
    }

    fn put_settings(&mut self) {
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, self.config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, self.config.header_bytes_max),
        ];
        match self.role {
            Role::Client => settings.push((setting::ENABLE_PUSH, 0)),
            Role::Server => settings.push((setting::MAX_CONCURRENT_STREAMS, self.config.streams_max)),
        }
        self.out.put(&frame::head(settings.len() * 6, kind::SETTINGS, 0, 0));
        for (id, value) in settings {
            self.out.put(&id.to_be_bytes());
            self.out.put(&value.to_be_bytes());
        }
        let more = i64::from(self.config.connection_window) - self.receive_window;
        if let Ok(more) = u32::try_from(more)
            && more > 0
        {
            self.receive_window += i64::from(more);
            self.put_window_update(0, more);
        }
    }

    /// What is to be sent.
    pub fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    /// What the layer above keeps for a stream; none once the stream is over.
    pub fn stream(&mut self, id: u32) -> Option<&mut T> {
        self.streams.get_mut(&id).map(|stream| &mut stream.data)
    }

    /// Every stream, and what the layer above keeps for it.
    pub fn streams(&self) -> impl Iterator<Item = (u32, &T)> {
        self.streams.iter().map(|(id, stream)| (*id, &stream.data))
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of the table in which the other side keeps what we have sent in headers.
    #[must_use]
    pub fn peer_table_bytes(&self) -> usize {
        self.peer.table_bytes
    }

    /// Bytes a stream has yet to send.
    #[must_use]
    pub fn queued(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, Stream::queued)
    }

    /// Bytes that all streams have yet to send, and those that wait for the socket.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.queued + self.out.len()
    }

    /// Lets go of a stream; whether it was there.
    pub(crate) fn forget(&mut self, id: u32) -> bool {
        let stream = self.streams.remove(&id);
        self.queued -= stream.as_ref().map_or(0, Stream::queued);
        stream.is_some()
    }

    /// Streams that have sent everything they had since the last call; they may have ended by now.
    pub fn take_drained(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.drained)
    }

    /// Whether HEADERS or DATA of any stream were sent since the last call: a client that pings meanwhile measures.
    pub fn take_has_sent(&mut self) -> bool {
        std::mem::take(&mut self.has_sent)
    }

    /// Opens a stream; none while the other side allows no more.
    ///
    /// # Panics
    /// On a server: it opens none.
    pub fn open(&mut self, data: T) -> Option<u32> {
        assert!(self.role == Role::Client, "a server opens no streams");
        if self.is_going_away || self.streams.len() >= self.peer.streams_max as usize {
            return None;
        }
        let id = if self.last_stream == 0 { 1 } else { self.last_stream.checked_add(2)? };
        self.last_stream = id;
        self.insert(id, data, true);
        Some(id)
    }

    pub(crate) fn insert(&mut self, id: u32, data: T, is_receiving: bool) {
        let stream = Stream {
            data,
            is_receiving,
            is_sending: true,
            receive_window: self.config.stream_window.into(),
            uncredited: 0,
            send_window: self.peer.stream_window,
            is_queued: false,
            outgoing: None,
        };
        self.streams.insert(id, stream);
    }

    /// The layer above has used so many bytes of a stream's data: the other side may send as many again.
    pub fn credit(&mut self, id: u32, bytes: usize) {
        let half = self.config.stream_window / 2;
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.is_receiving) else { return };
        stream.uncredited = stream.uncredited.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if stream.uncredited >= half {
            let bytes = std::mem::take(&mut stream.uncredited);
            stream.receive_window += i64::from(bytes);
            self.put_window_update(id, bytes);
        }
    }

    pub(crate) fn put_window_update(&mut self, stream: u32, bytes: u32) {
        self.out.put(&frame::head(4, kind::WINDOW_UPDATE, 0, stream));
        self.out.put(&bytes.to_be_bytes());
    }

    /// Gives a stream up. Nothing more of it is sent, and what comes for it is ignored.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        if self.forget(id) {
            self.put_reset(id, code);
        }
    }

    /// Tells the other side that a stream is given up, and remembers that for a while.
    pub(crate) fn put_reset(&mut self, id: u32, code: ErrorCode) {
        /// More of them are forgotten.
        const REMEMBERED: usize = 64;
        self.out.put(&frame::head(4, kind::RST_STREAM, 0, id));
        self.out.put(&(code as u32).to_be_bytes());
        self.reset_lately.push_back(id);
        if self.reset_lately.len() > REMEMBERED {
            self.reset_lately.pop_front();
        }
    }

    /// Some time has passed: what the other side may do in such a time it may do again.
    pub fn refill(&mut self) {
        self.resets_left = self.config.resets_max;
        self.idle_frames_left = self.config.idle_frames_max;
    }

    /// Takes up no more streams; those that are open go on.
    pub fn go_away(&mut self) {
        if !self.is_going_away {
            self.is_going_away = true;
            self.put_go_away(ErrorCode::NoError, "");
        }
    }

    /// Ends the connection: what waits is sent, then the socket is to be closed.
    pub fn fail(&mut self, fault: Fault) {
        self.is_going_away = true;
        self.streams.clear();
        self.queued = 0;
        self.put_go_away(fault.code, fault.reason);
    }

    fn put_go_away(&mut self, code: ErrorCode, reason: &str) {
        let last = if self.role == Role::Server { self.last_stream } else { 0 };
        self.out.put(&frame::head(8 + reason.len(), kind::GOAWAY, 0, 0));
        self.out.put(&last.to_be_bytes());
        self.out.put(&(code as u32).to_be_bytes());
        self.out.put(reason.as_bytes());
    }

    /// Asks whether the other side is still there.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.out.put(&frame::head(8, kind::PING, 0, 0));
        self.out.put(&payload);
    }
}
