//! One connection: its windows, its streams, and what each stream still has to send.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::error::{ErrorCode, Fault};
use crate::frame::{self, FRAME_BYTES_MAX, kind, setting};
use crate::hpack;
use crate::out::Out;

/// A window before any setting (RFC 9113, section 6.9.2).
pub(crate) const WINDOW_BYTES_DEFAULT: u32 = 65_535;
/// The largest window there is.
pub(crate) const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// What the ping asks behind a last call.
pub(crate) const LAST_CALL: [u8; 8] = *b"lastcall";
/// Streams that wait to send, or for their windows, beyond twice those that are open: then those that have ended are forgotten.
pub(crate) const WAITING_SPARE: usize = 64;

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
    /// Bytes of a request's headers, decoded.
    pub header_bytes_max: u32,
    /// Streams the other side may reset between two calls of [`Connection::refill`].
    pub resets_max: u32,
    /// The same before the first such call: whoever comes back as soon as it is sent away gets no further.
    pub resets_first: u32,
    /// Frames that carry nothing, in the same time.
    pub idle_frames_max: u32,
    /// Frames of settings, in the same time: each may let all streams send.
    pub settings_max: u32,
    /// Bytes of a header block as it comes. One that is longer than `header_bytes_max` is refused with its stream, one longer
    /// than this ends the connection.
    pub header_block_bytes_max: u32,
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
            settings_max: 100,
            header_block_bytes_max: 128 * 1024,
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
    /// The smallest it ever was.
    pub(crate) table_bytes_lowest: usize,
}

/// What a stream has yet to send.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) chunks: VecDeque<Bytes>,
    pub(crate) bytes: usize,
    /// Bytes of the first chunk that are sent already: the memory of a chunk is there until all of it is sent.
    pub(crate) front_sent: usize,
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
    /// Bytes we may still send beyond the window that streams begin with: a new setting need not look at every stream.
    pub(crate) send_credit: i64,
    /// In `Connection::sendable`.
    pub(crate) is_queued: bool,
    /// In `Connection::blocked`.
    pub(crate) is_blocked: bool,
    /// What it has yet to send counts apart.
    pub(crate) is_apart: bool,
    /// There only while something waits.
    pub(crate) outgoing: Option<Box<Outgoing>>,
}

impl<T> Stream<T> {
    /// Bytes that wait.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.bytes)
    }

    /// Bytes we may still send.
    pub(crate) fn send_window(&self, peer: &Peer) -> i64 {
        peer.stream_window + self.send_credit
    }

    /// Bytes of chunks that wait, with those that are sent of chunks that are not sent in full.
    pub(crate) fn held(&self) -> usize {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.bytes + outgoing.front_sent)
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
    /// The highest stream of the other side that was opened before this side went away.
    pub(crate) last_taken: u32,
    /// Bytes of chunks that streams have yet to send; of one that is sent in part, all.
    pub(crate) held: usize,
    /// Those of them that count apart.
    pub(crate) held_apart: usize,
    /// Streams with something to send that nothing but `out` keeps from being sent.
    pub(crate) sendable: VecDeque<u32>,
    /// Streams that waited for their own window; some may have ended since.
    pub(crate) blocked: Vec<u32>,
    /// The window that streams begin with has grown, and they were not looked at yet.
    pub(crate) has_larger_windows: bool,
    /// No stream has more `send_credit`.
    pub(crate) send_credit_max: i64,
    /// Streams whose queue has run empty since they were asked for.
    pub(crate) drained: Vec<u32>,
    pub(crate) fragments: Option<Fragments>,
    pub(crate) receive_window: i64,
    pub(crate) uncredited: u32,
    pub(crate) send_window: i64,
    /// The lowest and the highest stream that were reset or not taken up from here. Frames for them may still come, who knows
    /// for how long; so what comes for any stream between them that is gone is ignored (section 5.1).
    pub(crate) given_up: Option<(u32, u32)>,
    /// Resets left, frames without content, and settings.
    pub(crate) resets_left: u32,
    pub(crate) idle_frames_left: u32,
    pub(crate) settings_left: u32,
    pub(crate) has_settings: bool,
    pub(crate) has_last_call: bool,
    pub(crate) is_going_away: bool,
    /// HEADERS or DATA went to `out` since somebody asked.
    pub(crate) has_sent: bool,
    /// The smallest size the table had since the last block, and the size it has now: to be announced in the next.
    pub(crate) table_announcement: Option<(usize, usize)>,
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

    /// What is to be sent.
    pub fn out(&mut self) -> &mut Out {
        &mut self.out
    }

    /// What the layer above keeps for a stream; none once the stream is over.
    pub fn stream(&mut self, id: u32) -> Option<&mut T> {
        self.streams.get_mut(&id).map(|stream| &mut stream.data)
    }

    /// The same, to look at it.
    #[must_use]
    pub fn peek(&self, id: u32) -> Option<&T> {
        self.streams.get(&id).map(|stream| &stream.data)
    }

    /// Every stream, and what the layer above keeps for it.
    pub fn streams_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.streams.iter_mut().map(|(id, stream)| (*id, &mut stream.data))
    }

    /// The other side has said its settings, with which it must begin.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// A header block that has come in part: its stream, and the memory it takes.
    #[must_use]
    pub fn unfinished_block(&self) -> Option<(u32, usize)> {
        self.fragments.as_ref().map(|fragments| (fragments.stream, fragments.block.capacity()))
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// The least bytes that the table ever had in which the other side keeps what we have sent in headers: it may have lost
    /// what was there before.
    #[must_use]
    pub fn peer_table_bytes(&self) -> usize {
        self.peer.table_bytes_lowest
    }

    /// Bytes a stream has yet to send.
    #[must_use]
    pub fn queued(&self, id: u32) -> usize {
        self.streams.get(&id).map_or(0, Stream::queued)
    }

    /// Bytes that all streams have yet to send, and those that wait for the socket, with what is sent of chunks that are not
    /// sent in full: their memory is still held.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.held + self.out.len()
    }

    /// What a stream has yet to send counts apart from what others have.
    pub fn count_apart(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.is_apart, true)
        {
            self.held_apart += stream.held();
        }
    }

    /// The part of [`Connection::backlog`] that streams hold that count apart.
    #[must_use]
    pub fn backlog_apart(&self) -> usize {
        self.held_apart
    }

    /// So many bytes of a stream are not held any more.
    pub(crate) fn let_go(&mut self, bytes: usize, is_apart: bool) {
        self.held -= bytes;
        if is_apart {
            self.held_apart -= bytes;
        }
    }

    /// Lets go of a stream; whether it was there.
    pub(crate) fn forget(&mut self, id: u32) -> bool {
        let stream = self.streams.remove(&id);
        if let Some(stream) = &stream {
            self.let_go(stream.held(), stream.is_apart);
        }
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
            send_credit: 0,
            is_queued: false,
            is_blocked: false,
            is_apart: false,
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

    /// A stream that waits for its own window, if it does not wait already.
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

    /// After settings: streams that waited for their windows may send, if those have grown.
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

    /// Gives a stream up. Nothing more of it is sent, and what comes for it is ignored.
    pub fn reset(&mut self, id: u32, code: ErrorCode) {
        if self.forget(id) {
            self.put_reset(id, code);
        }
    }

    /// Tells the other side that a stream is given up.
    pub(crate) fn put_reset(&mut self, id: u32, code: ErrorCode) {
        self.out.put(&frame::head(4, kind::RST_STREAM, 0, id));
        self.out.put(&(code as u32).to_be_bytes());
        self.note_given_up(id);
    }

    pub(crate) fn note_given_up(&mut self, id: u32) {
        let (lowest, highest) = self.given_up.unwrap_or((id, id));
        self.given_up = Some((lowest.min(id), highest.max(id)));
    }

    /// Whether frames for a stream that is gone may still be under way.
    pub(crate) fn was_given_up(&self, id: u32) -> bool {
        self.given_up.is_some_and(|(lowest, highest)| (lowest..=highest).contains(&id))
    }

    /// Some time has passed: what the other side may do in such a time it may do again.
    pub fn refill(&mut self) {
        self.resets_left = self.config.resets_max;
        self.idle_frames_left = self.config.idle_frames_max;
        self.settings_left = self.config.settings_max;
    }

    /// Says that the end is near, without refusing anything yet: streams may be under way. Once the other side has heard of
    /// it, whatever it opened before has arrived, and the connection goes away by itself.
    pub fn last_call(&mut self) {
        if !self.has_last_call && !self.is_going_away {
            self.has_last_call = true;
            self.put_go_away(WINDOW_BYTES_MAX.try_into().expect("31 bits"), ErrorCode::NoError, "");
            self.ping(LAST_CALL);
        }
    }

    /// Takes up no more streams; those that are open go on.
    pub fn go_away(&mut self) {
        if !self.is_going_away {
            self.is_going_away = true;
            self.put_go_away(self.last_taken, ErrorCode::NoError, "");
        }
    }

    /// No more streams are taken up.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.is_going_away
    }

    /// Ends the connection: what waits is sent, then the socket is to be closed.
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

    /// Asks whether the other side is still there.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.out.put(&frame::head(8, kind::PING, 0, 0));
        self.out.put(&payload);
    }
}
