//! The state of a connection: flow-control windows, streams, and the data queued on each stream.

use std::collections::{BTreeMap, VecDeque};

use crate::error::{ErrorCode, Fault};
use crate::frame::{self, FRAME_BYTES_MAX, kind, setting};
use crate::hpack;
use crate::out::Out;
use crate::send_queue::SendQueue;

/// The flow-control window before any SETTINGS (RFC 9113, section 6.9.2).
pub(crate) const WINDOW_BYTES_DEFAULT: u32 = 65_535;
/// The largest flow-control window (section 6.9.1).
pub(crate) const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// Payload of the PING that follows the first GOAWAY of a graceful shutdown.
pub(crate) const LAST_CALL: [u8; 8] = *b"lastcall";
/// Entries that the ready queue or the list of blocked streams may have beyond twice the open
/// streams; then entries of ended streams are dropped.
pub(crate) const WAITING_SPARE: usize = 64;

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that opens streams.
    Client,
    /// The side that answers them.
    Server,
}

/// Limits that this side sets for its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Streams that are open at a time.
    pub streams_max: u32,
    /// Initial flow-control window of a stream.
    pub stream_window: u32,
    /// Flow-control window of the connection.
    pub connection_window: u32,
    /// Bytes of decoded request headers.
    pub header_bytes_max: u32,
    /// Streams that the peer may reset between two calls of [`Connection::refill`].
    pub resets_max: u32,
    /// Streams that the peer may reset before the first such call: a client that reconnects as soon
    /// as its connection is ended gets no further.
    pub resets_first: u32,
    /// Frames without content that the peer may send between two such calls.
    pub idle_frames_max: u32,
    /// SETTINGS frames that the peer may send between two such calls: each may unblock all streams.
    pub settings_max: u32,
    /// Bytes of an encoded header block. A block that decodes to more than `header_bytes_max` is
    /// refused with its stream; a block that is longer than this ends the connection.
    pub header_block_bytes_max: u32,
    /// Bytes in [`Out`] above which data stays queued on its stream.
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
            settings_max: 100,
            header_block_bytes_max: 128 * 1024,
            out_bytes_max: 1 << 20,
        }
    }
}

/// The peer's settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerSettings {
    pub(crate) stream_window: i64,
    pub(crate) frame_bytes: usize,
    pub(crate) streams_max: u32,
    pub(crate) table_bytes: usize,
    /// The smallest `table_bytes` that the peer has ever set.
    pub(crate) table_bytes_lowest: usize,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct Http2Stream<T> {
    pub(crate) data: T,
    /// The peer has not ended its half of the stream.
    pub(crate) is_receiving: bool,
    /// This side has not ended its half of the stream.
    pub(crate) is_sending: bool,
    /// Bytes that the peer may still send.
    pub(crate) receive_window: i64,
    /// Bytes that the layer above has used and no WINDOW_UPDATE has returned yet.
    pub(crate) uncredited: u32,
    /// Our send window, relative to the peer's initial window: a new setting changes all streams
    /// without a walk over them.
    pub(crate) send_credit: i64,
    /// The stream is in `Connection::sendable`.
    pub(crate) is_queued: bool,
    /// The stream is in `Connection::blocked`.
    pub(crate) is_blocked: bool,
    /// Its queued data counts in `Connection::held_apart`.
    pub(crate) is_apart: bool,
    /// The queue, present only while something is queued.
    pub(crate) outgoing: Option<Box<SendQueue>>,
}

impl<T> Http2Stream<T> {
    /// Bytes that are queued.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.bytes())
    }

    /// Bytes that the stream's window allows to send; negative after the peer has shrunk its
    /// window.
    pub(crate) fn send_window(&self, peer: &PeerSettings) -> i64 {
        peer.stream_window + self.send_credit
    }

    /// Bytes of memory that the queue holds: a chunk that is sent in part is held in full.
    pub(crate) fn held(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.held())
    }
}

/// A header block of which HEADERS has arrived, but not the last CONTINUATION.
#[derive(Debug)]
pub(crate) struct PartialHeaderBlock {
    pub(crate) stream: u32,
    pub(crate) flags: u8,
    pub(crate) block: Vec<u8>,
    pub(crate) frames: u32,
}

/// An HTTP/2 connection; each stream carries a `T` for the layer above.
#[derive(Debug)]
pub struct Connection<T> {
    pub(crate) role: Role,
    pub(crate) config: Config,
    pub(crate) peer: PeerSettings,
    pub(crate) out: Out,
    pub(crate) streams: BTreeMap<u32, Http2Stream<T>>,
    /// The highest stream that the peer has opened; on a client, the last one it has opened itself.
    pub(crate) last_stream: u32,
    /// The highest stream of the peer that was taken up, as GOAWAY names it.
    pub(crate) last_taken: u32,
    /// Bytes of memory that the queues of all streams hold.
    pub(crate) held: usize,
    /// The part of `held` that belongs to streams of [`Connection::count_apart`].
    pub(crate) held_apart: usize,
    /// The ready queue: streams that may send as soon as `out` and the connection's window have
    /// room.
    pub(crate) sendable: VecDeque<u32>,
    /// Streams whose own window is used up; some may have ended since.
    pub(crate) blocked: Vec<u32>,
    /// The peer's initial window has grown, and `blocked` was not looked at yet.
    pub(crate) has_larger_windows: bool,
    /// An upper bound of every stream's `send_credit`.
    pub(crate) send_credit_max: i64,
    /// Streams whose queue has run empty since the last [`Connection::take_drained`].
    pub(crate) drained: Vec<u32>,
    pub(crate) fragments: Option<PartialHeaderBlock>,
    pub(crate) receive_window: i64,
    pub(crate) uncredited: u32,
    pub(crate) send_window: i64,
    /// The lowest and the highest stream that this side has reset or not taken up. The peer may
    /// send frames for them for an unknown time, so that frames for any ended stream between the
    /// two are ignored (section 5.1).
    pub(crate) given_up: Option<(u32, u32)>,
    /// The rest of `Config::resets_max`, `idle_frames_max` and `settings_max` until the next
    /// refill.
    pub(crate) resets_left: u32,
    pub(crate) idle_frames_left: u32,
    pub(crate) settings_left: u32,
    pub(crate) has_settings: bool,
    pub(crate) has_last_call: bool,
    pub(crate) is_going_away: bool,
    /// HEADERS or DATA went to `out` since the last [`Connection::take_has_sent`].
    pub(crate) has_sent: bool,
    /// Sizes of the peer's HPACK table to announce in the next header block: the smallest since the
    /// last block, and the present one.
    pub(crate) table_announcement: Option<(usize, usize)>,
}

impl<T> Connection<T> {
    /// A new connection with its SETTINGS in [`Out`]. A client sends the preface before them; a
    /// server has received it.
    #[must_use]
    pub fn new(role: Role, config: Config) -> Self {
        let mut connection = Self {
            role,
            config,
            peer: PeerSettings {
                stream_window: WINDOW_BYTES_DEFAULT.into(),
                frame_bytes: FRAME_BYTES_MAX,
                streams_max: u32::MAX,
                table_bytes: hpack::TABLE_BYTES,
                table_bytes_lowest: hpack::TABLE_BYTES,
            },
            out: Out::default(),
            streams: BTreeMap::new(),
            last_stream: 0,
            last_taken: 0,
            held: 0,
            held_apart: 0,
            sendable: VecDeque::new(),
            blocked: Vec::new(),
            has_larger_windows: false,
            send_credit_max: 0,
            drained: Vec::new(),
            fragments: None,
            receive_window: WINDOW_BYTES_DEFAULT.into(),
            uncredited: 0,
            send_window: WINDOW_BYTES_DEFAULT.into(),
            given_up: None,
            resets_left: config.resets_first,
            idle_frames_left: config.idle_frames_max,
            settings_left: config.settings_max,
            has_settings: false,
            has_last_call: false,
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

    /// Bytes that are ready for the socket.
    pub fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    /// The data that the layer above keeps for a stream; none once the stream has ended.
    pub fn stream(&mut self, id: u32) -> Option<&mut T> {
        self.streams.get_mut(&id).map(|stream| &mut stream.data)
    }

    /// As [`Connection::stream`], for reading.
    #[must_use]
    pub fn peek(&self, id: u32) -> Option<&T> {
        self.streams.get(&id).map(|stream| &stream.data)
    }

    /// Every open stream with the data that the layer above keeps for it.
    pub fn streams_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.streams.iter_mut().map(|(id, stream)| (*id, &mut stream.data))
    }

    /// Whether the peer has sent the SETTINGS with which it must begin.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// The stream of a header block that has arrived in part, and the memory that the block takes.
    #[must_use]
    pub fn unfinished_block(&self) -> Option<(u32, usize)> {
        self.fragments.as_ref().map(|fragments| (fragments.stream, fragments.block.capacity()))
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// The smallest size that the peer's HPACK table ever had: it may have evicted entries that
    /// were added before.
    #[must_use]
    pub fn peer_table_bytes(&self) -> usize {
        self.peer.table_bytes_lowest
    }

    /// Bytes that are queued on a stream.
    #[must_use]
    pub fn queued(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, Http2Stream::queued)
    }

    /// Bytes of memory that unsent replies hold, on all streams and in [`Out`].
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.held + self.out.len()
    }

    /// Counts what is queued on a stream in [`Connection::backlog_apart`] from now on.
    pub fn count_apart(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.is_apart, true)
        {
            self.held_apart += stream.held();
        }
    }

    /// The part of [`Connection::backlog`] that streams of [`Connection::count_apart`] hold.
    #[must_use]
    pub fn backlog_apart(&self) -> usize {
        self.held_apart
    }

    /// Takes `bytes` of a stream's queue out of the count.
    pub(crate) fn let_go(&mut self, bytes: usize, is_apart: bool) {
        self.held -= bytes;
        if is_apart {
            self.held_apart -= bytes;
        }
    }

    /// Removes a stream; whether it was open.
    pub(crate) fn forget(&mut self, id: u32) -> bool {
        let stream = self.streams.remove(&id);
        if let Some(stream) = &stream {
            self.let_go(stream.held(), stream.is_apart);
        }
        stream.is_some()
    }

    /// Streams whose queue has run empty since the last call; they may have ended by now.
    pub fn take_drained(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.drained)
    }

    /// Whether HEADERS or DATA of any stream were sent since the last call: then a ping of the
    /// client measures the bandwidth.
    pub fn take_has_sent(&mut self) -> bool {
        std::mem::take(&mut self.has_sent)
    }

    /// Opens a stream; none while the peer allows no more.
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
        let stream = Http2Stream {
            data,
            is_receiving,
            is_sending: true,
            receive_window: self.config.stream_window.into(),
            uncredited: 0,
            send_credit: 0,
            is_queued: false,
            is_blocked: false,
            is_apart: false,
            outgoing: None,
        };
        self.streams.insert(id, stream);
    }

    /// Returns flow-control credit: the layer above has used `bytes` of a stream's data, and the
    /// peer may send as many again.
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

    /// Notes that a stream's own window is used up.
    pub(crate) fn note_blocked(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.is_blocked, true)
        {
            self.blocked.push(id);
            if self.blocked.len() > WAITING_SPARE + 2 * self.streams.len() {
                self.blocked.retain(|id| self.streams.contains_key(id));
            }
        }
    }

    /// Moves blocked streams to the ready queue if SETTINGS have enlarged their windows.
    pub(crate) fn unblock(&mut self) {
        if std::mem::take(&mut self.has_larger_windows) {
            for id in std::mem::take(&mut self.blocked) {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.is_blocked = false;
                    self.make_sendable(id);
                }
            }
            self.pump();
        }
    }

    pub(crate) fn put_window_update(&mut self, stream: u32, bytes: u32) {
        self.out.put(&frame::head(4, kind::WINDOW_UPDATE, 0, stream));
        self.out.put(&bytes.to_be_bytes());
    }

    /// Resets a stream: its queue is dropped, and frames that still arrive for it are ignored.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        if self.forget(id) {
            self.put_reset(id, code);
        }
    }

    /// Sends RST_STREAM.
    pub(crate) fn put_reset(&mut self, id: u32, code: ErrorCode) {
        self.out.put(&frame::head(4, kind::RST_STREAM, 0, id));
        self.out.put(&(code as u32).to_be_bytes());
        self.note_given_up(id);
    }

    pub(crate) fn note_given_up(&mut self, id: u32) {
        let (lowest, highest) = self.given_up.unwrap_or((id, id));
        self.given_up = Some((lowest.min(id), highest.max(id)));
    }

    /// Whether frames for an ended stream may still be under way.
    pub(crate) fn was_given_up(&self, id: u32) -> bool {
        self.given_up.is_some_and(|(lowest, highest)| (lowest..=highest).contains(&id))
    }

    /// Called at a steady pace: the peer has its full allowance of resets, idle frames and SETTINGS
    /// again.
    pub fn refill(&mut self) {
        self.resets_left = self.config.resets_max;
        self.idle_frames_left = self.config.idle_frames_max;
        self.settings_left = self.config.settings_max;
    }

    /// Begins a graceful shutdown: GOAWAY with the highest stream id refuses nothing yet, and a
    /// PING behind it. When the PING is answered, all streams that the peer had opened before it
    /// saw the GOAWAY have arrived, and [`Connection::go_away`] follows.
    pub fn last_call(&mut self) {
        if !self.has_last_call && !self.is_going_away {
            self.has_last_call = true;
            self.put_go_away(WINDOW_BYTES_MAX.try_into().expect("31 bits"), ErrorCode::NoError, "");
            self.ping(LAST_CALL);
        }
    }

    /// Sends GOAWAY: no more streams are taken up, those that are open go on.
    pub fn go_away(&mut self) {
        if !self.is_going_away {
            self.is_going_away = true;
            self.put_go_away(self.last_taken, ErrorCode::NoError, "");
        }
    }

    /// Whether new streams are refused.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.is_going_away
    }

    /// Ends the connection with GOAWAY: the caller sends what is in [`Out`], then closes the
    /// socket.
    pub fn fail(&mut self, fault: Fault) {
        self.is_going_away = true;
        self.streams.clear();
        self.fragments = None;
        (self.held, self.held_apart) = (0, 0);
        self.put_go_away(self.last_taken, fault.code, fault.reason);
    }

    fn put_go_away(&mut self, last: u32, code: ErrorCode, reason: &str) {
        self.out.put(&frame::head(8 + reason.len(), kind::GOAWAY, 0, 0));
        self.out.put(&last.to_be_bytes());
        self.out.put(&(code as u32).to_be_bytes());
        self.out.put(reason.as_bytes());
    }

    /// Sends a PING.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.out.put(&frame::head(8, kind::PING, 0, 0));
        self.out.put(&payload);
    }
}
