//! One connection to a server: calls out, messages in. Never waits: bytes that cannot be sent now
//! wait for the socket.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use revd_http2::{Config, Connection, ErrorCode, Event, HeadersKind, PREFACE, Role};

use crate::wire::head::{CallFailure, CallHeads, ReplyHeads};
use crate::wire::method::RpcMethod;
use crate::wire::tls::Socket;

/// In front of each message: a compression flag, and its length.
const PREFIX_BYTES: usize = 5;
/// A longer reply is refused: no request of loadgen asks for so much.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Pieces of one send.
const PIECES: usize = 16;

/// The receiver of replies.
pub trait ReplySink {
    /// Bytes were read from the socket just now; what is in them follows.
    fn arrived(&mut self) {}
    /// A message of the call that was made with this token.
    fn message(&mut self, token: u32, body: &[u8]);
    /// The call is over.
    fn end(&mut self, token: u32, outcome: Result<(), CallFailure>);
    /// The server reset this stream.
    fn reset(&mut self, stream: u32, code: u32);
}

/// State of a stream.
#[derive(Debug, Default)]
struct CallStream {
    token: u32,
    /// A message that has come in part.
    partial: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub struct ClientConnection {
    socket: Socket,
    http2: Connection<CallStream>,
    call_heads: CallHeads,
    /// The newest stream, and the newest one with a token before the present one.
    opened: u32,
    opened_before_token: u32,
    reply_heads: ReplyHeads,
    /// A frame that has come in part.
    partial: Vec<u8>,
    block: Vec<u8>,
}

/// A server's address without a scheme.
///
/// # Errors
/// When it is no `host:port`.
pub fn host(endpoint: &str) -> anyhow::Result<&str> {
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let host = host.unwrap_or(endpoint).trim_end_matches('/');
    anyhow::ensure!(
        host.contains(':'),
        "{endpoint} is no endpoint: it should be host:port, http://host:port or https://host:port"
    );
    Ok(host)
}

/// The addresses of an endpoint.
///
/// # Errors
/// When its name is not known.
pub fn addresses(endpoint: &str) -> anyhow::Result<Vec<SocketAddr>> {
    use std::net::ToSocketAddrs as _;
    let host = host(endpoint)?;
    let found: Vec<_> = host.to_socket_addrs().with_context(|| format!("looking up {host}"))?.collect();
    anyhow::ensure!(!found.is_empty(), "{host} has no address");
    Ok(found)
}

impl ClientConnection {
    /// Connects, waiting at most so long.
    ///
    /// # Errors
    /// With the endpoint in it.
    pub fn connect(endpoint: &str, patience: Duration) -> anyhow::Result<Self> {
        let mut last = None;
        for address in addresses(endpoint)? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(socket) => {
                    let host = host(endpoint)?;
                    let socket = if endpoint.starts_with("https://") {
                        Socket::secure(socket, host, patience)
                            .with_context(|| format!("connecting to {endpoint}"))?
                    } else {
                        Socket::Plain(socket)
                    };
                    return Self::new(socket, host);
                }
                Err(error) => last = Some(error),
            }
        }
        let error = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(error).with_context(|| format!("connecting to {endpoint}"))
    }

    /// Begins to connect to an address, and waits for nothing: the connection is there, or refused,
    /// as its socket can be written or read.
    ///
    /// # Errors
    /// With the endpoint in it.
    pub fn begin(endpoint: &str, address: SocketAddr) -> anyhow::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let begun = socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            match connect(&socket, &address) {
                Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error),
            }
        });
        let socket = TcpStream::from(begun.with_context(|| format!("connecting to {endpoint}"))?);
        let host = host(endpoint)?;
        let socket = if endpoint.starts_with("https://") {
            Socket::begin_secure(socket, host)?
        } else {
            Socket::Plain(socket)
        };
        Self::new(socket, host)
    }

    /// Says goodbye, as far as the socket takes it at once.
    pub fn close(mut self) {
        self.socket.close();
    }

    fn new(socket: Socket, authority: &str) -> anyhow::Result<Self> {
        socket.never_wait()?;
        let is_secure = socket.is_secure();
        let config = Config {
            stream_window: 16 << 20,
            connection_window: 64 << 20,
            resets_max: u32::MAX,
            resets_first: u32::MAX,
            idle_frames_max: u32::MAX,
            out_bytes_max: 4 << 20,
            ..Config::default()
        };
        let mut http2 = Connection::new(Role::Client, config);
        // The settings are in there already; the preface must come before them.
        let mut settings = Vec::new();
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let filled = http2.out().fill(&mut pieces);
        pieces[..filled].iter().for_each(|piece| settings.extend_from_slice(piece));
        http2.out().advance(settings.len());
        http2.out().put(PREFACE);
        http2.out().put(&settings);
        Ok(Self {
            socket,
            http2,
            call_heads: CallHeads::new(authority, is_secure),
            opened: 0,
            opened_before_token: 0,
            reply_heads: ReplyHeads::default(),
            partial: Vec::new(),
            block: Vec::new(),
        })
    }

    /// The token of all calls that follow; watches and keepalives that are open keep theirs.
    pub fn set_token(&mut self, token: Option<Arc<str>>) {
        self.call_heads.set_token(token);
        self.opened_before_token = self.opened;
    }

    /// Whether the call on this stream has a token that was replaced since.
    #[must_use]
    pub fn has_former_token(&self, stream: u32) -> bool {
        stream <= self.opened_before_token
    }

    /// The token of calls.
    #[must_use]
    pub fn token(&self) -> Option<&Arc<str>> {
        self.call_heads.token()
    }

    /// Makes a call with one message: the stream it is on; none while the server allows no more of
    /// them.
    pub fn call(&mut self, method: RpcMethod, token: u32, body: &[u8]) -> Option<u32> {
        let stream = self.open(method, token)?;
        self.http2.send_last(stream, &[&prefix(body), body]);
        Some(stream)
    }

    /// Begins a call of several messages.
    pub fn open(&mut self, method: RpcMethod, token: u32) -> Option<u32> {
        let stream = self.http2.open(CallStream { token, partial: Vec::new() })?;
        self.opened = stream;
        self.block.clear();
        self.call_heads.put(method, &mut self.block);
        self.http2.send_head(stream, &self.block, false);
        Some(stream)
    }

    /// Sends a message on an open call.
    pub fn send_message(&mut self, stream: u32, body: &[u8]) {
        self.http2.send_data(stream, &[[&prefix(body), body].concat().into()]);
    }

    /// Sends bytes on an open call as they are, whatever message they are part of.
    pub fn send(&mut self, stream: u32, bytes: impl Into<Bytes>) {
        self.http2.send_data(stream, &[bytes.into()]);
    }

    /// Ends the request side of an open call.
    pub fn finish(&mut self, stream: u32) {
        self.http2.send_end(stream, None);
    }

    /// Sends frames as they are, valid or not.
    pub fn inject(&mut self, frames: &[u8]) {
        self.http2.out().put(frames);
    }

    /// Cancels a call.
    pub fn cancel(&mut self, stream: u32) {
        self.http2.reset(stream, ErrorCode::Cancel);
    }

    /// Something waits to be sent.
    pub fn has_output(&mut self) -> bool {
        !self.http2.out().is_empty()
    }

    /// Something waits to be sent, or for the server's window.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        self.http2.backlog() > 0
    }

    /// Sends what the system takes; true when nothing is left.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn flush(&mut self) -> io::Result<bool> {
        loop {
            self.http2.pump();
            let out = self.http2.out();
            if out.is_empty() {
                return match self.socket.flush() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    result => result.map(|()| true),
                };
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let filled = out.fill(&mut pieces);
            match self.socket.write_vectored(&pieces[..filled]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.http2.out().advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once and hands over complete messages; whether there may be more.
    ///
    /// # Errors
    /// When the connection is lost, or the server broke the protocol.
    pub fn read(&mut self, buffer: &mut [u8], sink: &mut impl ReplySink) -> io::Result<bool> {
        let (read, has_more) = match self.socket.read(buffer) {
            Ok((0, _)) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error),
        };
        sink.arrived();
        if self.partial.is_empty() {
            let mut rest = &buffer[..read];
            self.events(&mut rest, sink)?;
            self.partial.extend_from_slice(rest);
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(&buffer[..read]);
            let mut rest = &whole[..];
            self.events(&mut rest, sink)?;
            let used = whole.len() - rest.len();
            whole.drain(..used);
            self.partial = whole;
        }
        Ok(has_more)
    }

    fn events(&mut self, input: &mut &[u8], sink: &mut impl ReplySink) -> io::Result<()> {
        let broken = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        loop {
            let event = match self.http2.receive(input) {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(()),
                Err(fault) => return Err(broken(format!("the server broke the protocol: {fault}"))),
            };
            match event {
                Event::Data { stream, data, end } => {
                    self.data(stream, data, sink).map_err(|what| broken(what.to_owned()))?;
                    self.http2.credit(stream, data.len());
                    if end {
                        self.end(
                            stream,
                            Err(CallFailure("the reply ends without a status".to_owned())),
                            sink,
                        );
                    }
                }
                Event::Headers { stream, block, kind, end } => {
                    let outcome = self.reply_heads.read(&block, end);
                    let outcome = outcome.ok_or_else(|| broken("a head cannot be decoded".to_owned()))?;
                    if kind != HeadersKind::Ignored && (end || outcome.is_err()) {
                        self.end(stream, outcome, sink);
                    }
                }
                Event::Reset { stream, code } => sink.reset(stream, code),
                Event::GoAway { code, .. } => {
                    return Err(io::Error::other(format!("the server is going away (code {code})")));
                }
                Event::Ping | Event::Pong(_) | Event::Window => {}
            }
        }
    }

    fn data(&mut self, stream: u32, mut data: &[u8], sink: &mut impl ReplySink) -> Result<(), &'static str> {
        let Some(state) = self.http2.stream(stream) else { return Ok(()) };
        loop {
            let known = if state.partial.is_empty() { data } else { &state.partial[..] };
            let Some(len) = length(known)? else { break };
            if state.partial.is_empty() {
                let Some((message, rest)) = data.split_at_checked(PREFIX_BYTES + len) else { break };
                sink.message(state.token, &message[PREFIX_BYTES..]);
                data = rest;
                continue;
            }
            let missing = (PREFIX_BYTES + len).saturating_sub(state.partial.len());
            let (part, rest) = data.split_at(missing.min(data.len()));
            state.partial.extend_from_slice(part);
            data = rest;
            if state.partial.len() < PREFIX_BYTES + len {
                return Ok(());
            }
            sink.message(state.token, &state.partial[PREFIX_BYTES..]);
            state.partial.clear();
        }
        // Less than a message is left, or so little that its length is not known.
        let missing = PREFIX_BYTES.saturating_sub(state.partial.len());
        if state.partial.is_empty() || data.len() < missing {
            state.partial.extend_from_slice(data);
            return Ok(());
        }
        let (part, rest) = data.split_at(missing);
        state.partial.extend_from_slice(part);
        self.data(stream, rest, sink)
    }

    fn end(&mut self, stream: u32, outcome: Result<(), CallFailure>, sink: &mut impl ReplySink) {
        let Some(state) = self.http2.stream(stream) else { return };
        let token = state.token;
        self.http2.close(stream);
        if self.http2.stream(stream).is_some() {
            self.http2.reset(stream, ErrorCode::Cancel); // one side is still open
        }
        sink.end(token, outcome);
    }
}

/// The prefix of a message: not compressed, and its length.
fn prefix(body: &[u8]) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// The length of the message that begins here; none if too little of it is there to know.
fn length(known: &[u8]) -> Result<Option<usize>, &'static str> {
    let Some(prefix) = known.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    if prefix[0] != 0 {
        return Err("a reply is compressed, though no compression was offered");
    }
    let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if len > MESSAGE_BYTES_MAX { Err("a reply is longer than 1 GiB") } else { Ok(Some(len)) }
}

impl AsFd for ClientConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;
    use crate::clock;

    #[derive(Default)]
    struct Heard(Vec<&'static str>);

    impl ReplySink for Heard {
        fn arrived(&mut self) {
            self.0.push("arrived");
        }

        fn message(&mut self, _: u32, _: &[u8]) {}

        fn end(&mut self, _: u32, _: Result<(), CallFailure>) {}

        fn reset(&mut self, _: u32, _: u32) {
            self.0.push("reset");
        }
    }

    #[test]
    fn a_sink_is_told_of_bytes_behind_each_read_and_before_what_is_in_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let mut client = ClientConnection::connect(&endpoint, Duration::from_secs(5)).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let (mut heard, mut buffer) = (Heard::default(), [0; 1024]);
        client.read(&mut buffer, &mut heard).unwrap();
        assert!(heard.0.is_empty(), "nothing was sent");
        client.call(RpcMethod::Other("/a.B/C"), 7, b"").unwrap();
        // SETTINGS without any, and RST_STREAM of stream 1.
        peer.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
        peer.write_all(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]).unwrap();
        let until = clock::nanos() + 30 * clock::SECOND;
        while !heard.0.contains(&"reset") {
            assert!(clock::nanos() < until, "it was told of {:?} alone", heard.0);
            client.read(&mut buffer, &mut heard).unwrap();
        }
        assert_eq!((heard.0[0], heard.0.iter().filter(|what| **what == "reset").count()), ("arrived", 1));
    }
}
