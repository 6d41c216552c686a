//! A TLS session over a socket, as a transport: bytes in, records out.
//!
//! Ciphertext is read into the buffer of the reader, and the session keeps only what it must: a
//! record that is not whole, and plaintext that its reader had no room for. Records of at most
//! `TLS_SEND_BYTES` wait for the kernel; what they carry leaves the sender's own buffer as they are
//! sent, byte by byte, so that a slow client's pace is seen as it is. All that the session keeps
//! is counted (`held`).

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead, AsyncWrite};
use revd_http2::Out;
use rustls::pki_types::CertificateDer;
use rustls::{Connection, HandshakeKind};

use crate::limits;
use crate::net::socket::{HangUp, Transport, TransportBytes};
use crate::net::tls::records::Records;
use crate::queues::turn::NextTurn;

/// rustls takes no more ciphertext while more plaintext than this waits for its reader.
const UNREAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes of data that allow as many records without data as a session may send at once.
const EMPTY_CREDIT_MAX: usize = limits::TLS_EMPTY_RECORDS_MAX * limits::TLS_BYTES_PER_EMPTY_RECORD;

/// A session, from its handshake to its end.
pub(crate) struct TlsStream<S> {
    socket: S,
    session: Connection,
    /// Plaintext that the session holds.
    readable: usize,
    /// Ciphertext that was read and not given to the session yet.
    unfed: Vec<u8>,
    /// Bytes that were fed since the last ones that brought plaintext: of a record, or of a message
    /// in several records, that is not whole.
    unfinished: usize,
    records: Records,
    /// Bytes of the sender's buffer whose records wait for the kernel.
    sealed: usize,
    /// Bytes of those records that the kernel has taken and the sender was not told of.
    taken: usize,
    /// The other side sends nothing more.
    is_over: bool,
    /// Records that brought little since there was nothing more to be read.
    idle: usize,
    /// Bytes of data that allow records without data still to come.
    empty_credit: usize,
    /// There may be more to be read, in the next turn.
    pauses: bool,
    /// Boxed: few sessions ever have one.
    next_turn: Option<Box<NextTurn>>,
}

impl<S> TlsStream<S> {
    /// Nothing is said yet.
    pub(crate) fn new(socket: S, session: impl Into<Connection>) -> Self {
        let mut session = session.into();
        session.set_buffer_limit(Some(limits::TLS_SEND_BYTES));
        Self {
            socket,
            session,
            readable: 0,
            unfed: Vec::new(),
            unfinished: 0,
            records: Records::default(),
            sealed: 0,
            taken: 0,
            is_over: false,
            idle: 0,
            empty_credit: EMPTY_CREDIT_MAX,
            pauses: false,
            next_turn: None,
        }
    }

    /// There is something to be said.
    pub(super) fn has_records(&self) -> bool {
        self.session.wants_write()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// The certificates of the other side, its own first.
    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        self.session.peer_certificates().unwrap_or_default()
    }

    /// The session goes on from an earlier one: the other side's certificates were not verified in
    /// this handshake.
    pub(super) fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The caller's first hello could not be answered: it was asked for another one.
    pub(super) fn asked_again(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest)
    }

    /// Gives ciphertext to the session: as much as it takes before plaintext is read, and of a
    /// session that is begun no more records than a turn has time for (new keys take ten
    /// microseconds each).
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut left = if self.is_handshaking() { usize::MAX } else { limits::TLS_RECORDS_AT_ONCE };
        while !bytes.is_empty() && !self.is_over {
            if self.readable >= UNREAD_BYTES_MAX || left == 0 {
                self.unfed.extend_from_slice(bytes);
                return Ok(());
            }
            let (readable, was_handshaking) = (self.readable, self.is_handshaking());
            // One record at a time, so that it is known which have no data.
            let mut at_once = if was_handshaking { left } else { 1 };
            let most = self.records.clone().pass(bytes, &mut at_once);
            let read = self.session.read_tls(&mut &bytes[..most])?;
            let state = self.session.process_new_packets();
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            self.readable = state.plaintext_bytes_to_read();
            self.is_over = state.peer_has_closed();
            let before = left;
            self.records.pass(&bytes[..read], &mut left);
            bytes = &bytes[read..];
            let (come, ended) = (self.readable.saturating_sub(readable), before - left);
            self.idle += ended.saturating_sub(come / limits::TLS_RECORD_BYTES_LITTLE);
            if !was_handshaking && ended > 0 {
                self.check_data(come)?;
            }
            let has_news = self.readable > readable || was_handshaking && !self.is_handshaking();
            self.unfinished =
                if has_news { self.records.unfinished() } else { self.unfinished.saturating_add(read) };
            self.check_unfinished()?;
        }
        Ok(())
    }

    /// rustls joins 64 KiB of a message whose end does not come. That counts in the memory of
    /// handshakes; of sessions there are far more, and of some nothing is counted: those of HTTP/1,
    /// and those of which the first bytes have not come. A member's tickets have any length: it is
    /// dialed, and no caller.
    fn check_unfinished(&self) -> io::Result<()> {
        let is_callers = matches!(self.session, Connection::Server(_)) && !self.is_handshaking();
        if is_callers && self.unfinished > limits::TLS_UNFINISHED_SESSION_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a TLS message without an end"));
        }
        Ok(())
    }

    /// A record of so many bytes of data has come. rustls bears with some without data in a row,
    /// and counts anew behind each byte: new keys between single bytes would have no end, and
    /// each costs ten microseconds. A member that is dialed sends tickets.
    fn check_data(&mut self, bytes: usize) -> io::Result<()> {
        self.allow_empty(bytes);
        if bytes > 0 || !matches!(self.session, Connection::Server(_)) {
            return Ok(());
        }
        let Some(left) = self.empty_credit.checked_sub(limits::TLS_BYTES_PER_EMPTY_RECORD) else {
            self.is_over = true;
            let why = "TLS records without data, again and again";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        };
        self.empty_credit = left;
        Ok(())
    }

    /// So many bytes of data have come, or are sent: for new keys of ours the caller answers with
    /// its own.
    fn allow_empty(&mut self, bytes: usize) {
        self.empty_credit = (self.empty_credit + bytes).min(EMPTY_CREDIT_MAX);
    }

    /// Bytes of input that are not read, or cannot be read yet. rustls keeps no more of a message
    /// that is not whole than its own bound says.
    pub(super) fn received(&self) -> usize {
        self.unfinished.min(limits::TLS_UNFINISHED_BYTES) + self.readable + self.unfed.capacity()
    }
}

impl<S: HangUp> TlsStream<S> {
    pub(super) fn has_hung_up(&self) -> bool {
        self.socket.has_hung_up()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Reads ciphertext, when there is some.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_read(context, into)
    }

    /// Sends the records that wait.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let mut socket = NonBlocking { socket: &mut self.socket, context };
            match self.session.write_tls(&mut socket) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(taken) => self.taken += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_plaintext(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut small = [0; limits::TLS_SMALL_READ_BYTES];
        self.pauses = false;
        loop {
            if self.readable > 0 {
                let read = io::Read::read(&mut self.session.reader(), into)?;
                self.readable -= read;
                return Poll::Ready(Ok(read));
            }
            if self.is_over {
                return Poll::Ready(Ok(0));
            }
            if self.idle >= limits::TLS_RECORDS_AT_ONCE {
                // Others come first, also if every other record has a byte of data.
                (self.idle, self.pauses) = (0, true);
                self.next_turn.get_or_insert_default().ask(context);
                return Poll::Pending;
            }
            if !self.unfed.is_empty() {
                let unfed = std::mem::take(&mut self.unfed);
                self.feed_and_answer(context, &unfed)?;
                continue;
            }
            // The reader's buffer has ciphertext first, then plaintext; a few bytes of a buffer
            // would make a call to the kernel of each part of a record.
            let buffer = if into.len() < small.len() { &mut small[..] } else { &mut *into };
            let len = buffer.len().min(limits::TLS_READ_BYTES);
            let Poll::Ready(received) = Pin::new(&mut self.socket).poll_read(context, &mut buffer[..len])?
            else {
                self.idle = 0;
                return Poll::Pending;
            };
            if received == 0 {
                // Without a goodbye; HTTP/2 and frames of members know by themselves what is whole.
                self.is_over = true;
                return Poll::Ready(Ok(0));
            }
            self.feed_and_answer(context, &buffer[..received])?;
        }
    }

    /// Sends what feeding leaves to be said: why the session ends, or an answer to new keys. If the
    /// kernel takes nothing now, it goes with what is sent next.
    fn feed_and_answer(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<()> {
        let fed = self.feed(bytes);
        if (fed.is_err() || self.session.wants_write())
            && let Poll::Ready(sent) = self.poll_send(context)
        {
            return fed.and(sent);
        }
        fed
    }

    fn poll_goodbye(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.send_close_notify(); // once, however often it is called
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_close(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Transport for TlsStream<S> {
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_plaintext(context, into)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
        if self.sealed == 0 {
            let mut slices = [IoSlice::new(&[]); limits::SEND_SLICES];
            let filled = out.fill(&mut slices);
            (self.sealed, self.taken) = (self.session.writer().write_vectored(&slices[..filled])?, 0);
            self.allow_empty(self.sealed);
        }
        let is_all = match self.poll_send(context) {
            Poll::Ready(sent) => sent.map(|()| true)?,
            Poll::Pending => false,
        };
        if self.sealed == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        // The last byte stays until all is sent, so that the sender comes again. Records are a
        // little longer than what is in them: no byte leaves before it is sent.
        let taken = std::mem::take(&mut self.taken);
        let left = if is_all { self.sealed } else { taken.min(self.sealed - 1) };
        if left == 0 {
            return Poll::Pending;
        }
        self.sealed -= left;
        out.advance(left);
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_goodbye(context)
    }

    fn has_unread(&self) -> bool {
        self.pauses
    }

    fn held(&self) -> TransportBytes {
        TransportBytes { received: self.received(), sealed: self.sealed }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_plaintext(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(context))?;
        let sealed = self.session.writer().write(bytes)?;
        self.allow_empty(sealed);
        if let Poll::Ready(sent) = self.poll_send(context) {
            sent?;
        }
        Poll::Ready(Ok(sealed))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_goodbye(context)
    }
}

/// A socket for rustls, which knows no tasks: what would wait is an error.
struct NonBlocking<'s, 'c, 'w, S> {
    socket: &'s mut S,
    context: &'c mut Context<'w>,
}

impl<S: AsyncWrite + Unpin> io::Write for NonBlocking<'_, '_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(Pin::new(&mut *self.socket).poll_write(self.context, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [one] => self.write(one),
            _ => now(Pin::new(&mut *self.socket).poll_write_vectored(self.context, slices)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn now<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
