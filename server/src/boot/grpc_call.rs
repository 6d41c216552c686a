//! One gRPC call with one message each way, over a connection of its own. It blocks, at a start,
//! when no core runs yet. The other side may send anything: bytes and time are bounded.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use revd_http2::hpack::{Decoder, indexed, literal};
use revd_http2::{Config, Connection, Event, HeaderBlock, PREFACE, Role};

use crate::limits;
use crate::net::tls::{self, TlsDomain};
use crate::resolve;

/// `:method: POST`, `:scheme: http` and `https` in the static table (RFC 7541, appendix A).
const POST: usize = 3;
const HTTP: usize = 6;
const HTTPS: usize = 7;
/// In front of a message: a compression flag, and its length.
const PREFIX_BYTES: usize = 5;
/// Pieces of one send.
const PIECES: usize = 16;

/// A call.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrpcCall<'c> {
    /// Host and port.
    pub(super) host: &'c str,
    /// How TLS is spoken there; none if it is not.
    pub(super) tls: Option<&'c TlsDomain>,
    /// `/package.Service/Method`.
    pub(super) path: &'c str,
    /// The caller, where the server wants to know.
    pub(super) token: Option<&'c str>,
    /// The request.
    pub(super) message: &'c [u8],
}

/// The reply as far as it has come.
#[derive(Default)]
struct Reply {
    decoder: Decoder,
    message: Vec<u8>,
    http: Option<u16>,
    status: Option<u32>,
    problem: String,
}

impl GrpcCall<'_> {
    /// The reply; a connection may take as long as `dial`, all behind it as long as `patience`.
    ///
    /// # Errors
    /// Why there is none: what the system, the protocol or the server says.
    pub(super) fn make(self, dial: Duration, patience: Duration) -> io::Result<Vec<u8>> {
        let stream = connect(&resolve::addresses(self.host)?, dial)?;
        stream.set_nodelay(true)?;
        let socket = BoundedSocket { stream, started: crate::clock::now(), patience };
        match self.tls {
            None => self.exchange(socket),
            Some(tls) => {
                let stream = tls::connect_blocking(socket, self.host, tls)?;
                // As grpc-go: a server that says nothing of HTTP/2 may well speak something else.
                if stream.conn.alpn_protocol() != Some(b"h2") {
                    return Err(broken("the service does not choose HTTP/2 in the TLS handshake (ALPN h2)"));
                }
                self.exchange(stream)
            }
        }
    }

    fn exchange(self, mut stream: impl io::Read + io::Write) -> io::Result<Vec<u8>> {
        let mut http2 = Connection::new(Role::Client, Config::default());
        // The settings are in there already; the preface comes before them.
        stream.write_all(PREFACE)?;
        let id = http2.open(()).ok_or(ErrorKind::NotConnected)?;
        http2.send_head(id, &self.head(), false);
        let length = u32::try_from(self.message.len()).map_err(|_| ErrorKind::InvalidInput)?;
        http2.send_last(id, &[&[0], &length.to_be_bytes(), self.message]);
        let (mut reply, mut received, mut buffer) = (Reply::default(), Vec::new(), vec![0; 16 * 1024]);
        loop {
            send(&mut stream, &mut http2)?;
            match stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let mut rest = &received[..];
            if reply.receive(&mut http2, &mut rest)? {
                return reply.outcome();
            }
            let used = received.len() - rest.len();
            received.drain(..used);
        }
    }

    /// The request headers.
    fn head(self) -> Vec<u8> {
        let mut block = Vec::new();
        indexed(&mut block, POST);
        indexed(&mut block, if self.tls.is_some() { HTTPS } else { HTTP });
        literal(&mut block, b":path", self.path.as_bytes(), false);
        literal(&mut block, b":authority", self.host.as_bytes(), false);
        literal(&mut block, b"content-type", b"application/grpc", false);
        literal(&mut block, b"te", b"trailers", false);
        if let Some(token) = self.token {
            literal(&mut block, b"token", token.as_bytes(), false);
        }
        block
    }
}

impl Reply {
    /// Takes what has come; whether the reply has ended.
    fn receive(&mut self, http2: &mut Connection<()>, received: &mut &[u8]) -> io::Result<bool> {
        loop {
            let event = http2.receive(received).map_err(|fault| broken(&fault.to_string()))?;
            match event {
                Some(Event::Headers { block, end, .. }) => {
                    self.fields(&block)?;
                    if end {
                        return Ok(true);
                    }
                }
                Some(Event::Data { stream, data, end }) => {
                    if self.message.len() + data.len() > PREFIX_BYTES + limits::REGISTRY_ANSWER_BYTES_MAX {
                        return Err(broken("an answer is longer than 1 MiB"));
                    }
                    self.message.extend_from_slice(data);
                    http2.credit(stream, data.len());
                    if end {
                        return Ok(true);
                    }
                }
                Some(Event::Reset { code, .. } | Event::GoAway { code, .. }) => {
                    return Err(broken(&format!("the server ends the call (code {code})")));
                }
                Some(Event::Ping | Event::Pong(_) | Event::Window) => {}
                None => return Ok(false),
            }
        }
    }

    fn fields(&mut self, block: &HeaderBlock<'_>) -> io::Result<()> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let Self { decoder, http, status, problem, .. } = self;
        let decoded = decoder.decode(block, |name, value| match name {
            b":status" => *http = text(value).parse().ok(),
            b"grpc-status" => *status = text(value).parse().ok(),
            b"grpc-message" => *problem = text(value),
            _ => {}
        });
        decoded.map_err(|_| broken("headers cannot be decoded"))
    }

    fn outcome(mut self) -> io::Result<Vec<u8>> {
        match (self.status, self.http) {
            (Some(0), _) => {}
            (Some(code), _) => return Err(broken(&format!("{} (gRPC code {code})", self.problem))),
            (None, http) => return Err(broken(&format!("no gRPC status (HTTP status {http:?})"))),
        }
        let Some((&[packed, ref length @ ..], message)) = self.message.split_first_chunk::<PREFIX_BYTES>()
        else {
            return Err(broken("no message"));
        };
        if packed != 0 || u32::from_be_bytes(*length) as usize != message.len() {
            return Err(broken("not one message"));
        }
        Ok(self.message.split_off(PREFIX_BYTES))
    }
}

fn connect(addresses: &[SocketAddr], dial: Duration) -> io::Result<TcpStream> {
    let mut result = Err(ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        result = TcpStream::connect_timeout(address, dial);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// A socket that is neither read nor written any more when the time of its call is over.
struct BoundedSocket {
    stream: TcpStream,
    started: Instant,
    patience: Duration,
}

impl io::Read for BoundedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.started, self.patience)?))?;
        self.stream.read(buffer).map_err(in_time)
    }
}

impl io::Write for BoundedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.started, self.patience)?))?;
        self.stream.write(bytes).map_err(in_time)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(time_left(self.started, self.patience)?))?;
        self.stream.write_vectored(pieces).map_err(in_time)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error that a time that is over should have: the system says that it would wait.
fn in_time(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

fn send(stream: &mut impl io::Write, http2: &mut Connection<()>) -> io::Result<()> {
    loop {
        http2.pump();
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let filled = http2.out().fill(&mut pieces);
        if filled == 0 {
            // A session may hold what the socket has not taken.
            return stream.flush();
        }
        let sent = stream.write_vectored(&pieces[..filled])?;
        http2.out().advance(sent);
    }
}

/// A server that sends without an end is not listened to without one.
fn time_left(started: Instant, patience: Duration) -> io::Result<Duration> {
    let left = patience.saturating_sub(crate::clock::since(started));
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn broken(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use revd_http2::raw::frame;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;
    use crate::config::TlsConfig;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A server that sends these bytes to one client, whatever that says, and holds the connection
    /// until it is gone.
    fn sending(bytes: Vec<u8>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(&bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        (host, serving)
    }

    fn call(bytes: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String> {
        let (host, serving) = sending(bytes);
        let call =
            GrpcCall { host: &host, tls: None, path: "/a.B/C", token: Some("t"), message: b"question" };
        let outcome = call.make(PATIENCE, patience).map_err(|error| error.to_string());
        serving.join().unwrap();
        outcome
    }

    fn headers(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        fields.iter().for_each(|(name, value)| literal(&mut block, name.as_bytes(), value.as_bytes(), false));
        frame(HEADERS, END_HEADERS | flags, 1, &block)
    }

    fn reply(data: &[u8], trailers: &[(&str, &str)]) -> Vec<u8> {
        let head = headers(0, &[(":status", "200")]);
        [frame(SETTINGS, 0, 0, &[]), head, frame(DATA, 0, 1, data), headers(END_STREAM, trailers)].concat()
    }

    const WELL: &[(&str, &str)] = &[("grpc-status", "0")];

    #[test]
    fn a_call_has_the_message_of_its_reply_or_says_why_there_is_none() {
        assert_eq!(call(reply(b"\0\0\0\0\x06answer", WELL), PATIENCE).unwrap(), b"answer");
        assert_eq!(call(reply(b"\0\0\0\0\0", WELL), PATIENCE).unwrap(), b"");
        let refusal = [("grpc-status", "16"), ("grpc-message", "who are you")];
        for (bytes, problem) in [
            (reply(b"", &refusal), "who are you (gRPC code 16)"),
            (reply(b"", WELL), "no message"),
            (reply(b"\0\0\0\0\x07answer", WELL), "not one message"),
            (reply(b"\x01\0\0\0\x06answer", WELL), "not one message"),
            (
                [frame(SETTINGS, 0, 0, &[]), headers(END_STREAM, &[(":status", "404")])].concat(),
                "no gRPC status (HTTP status Some(404))",
            ),
            (
                [frame(SETTINGS, 0, 0, &[]), frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1])].concat(),
                "the server ends the call (code 1)",
            ),
        ] {
            assert_eq!(call(bytes, PATIENCE).unwrap_err(), problem);
        }
        let garbage = call(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), PATIENCE).unwrap_err();
        assert!(!garbage.is_empty());
    }

    #[test]
    fn a_service_that_does_not_choose_http2_over_tls_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let bundle = dir.path().join("bundle");
        std::fs::write(&bundle, made.cert.pem()).unwrap();
        let dialing = TlsConfig {
            trusted_ca_file: bundle.to_str().unwrap().to_owned(),
            calls_http2: true,
            ..TlsConfig::default()
        };
        let domain = TlsDomain::open("discovery", dialing).unwrap();
        let call = |protocols: &[&[u8]]| {
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = ServerConfig::builder_with_provider(provider);
            let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            let mut config = builder.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let host = listener.local_addr().unwrap().to_string();
            let serving = std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let session = ServerConnection::new(Arc::new(config)).unwrap();
                let mut stream = StreamOwned::new(session, stream);
                let _ = stream.write_all(&reply(b"\0\0\0\0\x06answer", WELL));
                let _ = io::copy(&mut stream, &mut io::sink());
            });
            let call = GrpcCall {
                host: &host,
                tls: Some(&domain),
                path: "/a.B/C",
                token: None,
                message: b"question",
            };
            let outcome = call.make(PATIENCE, PATIENCE).map_err(|error| error.to_string());
            serving.join().unwrap();
            outcome
        };
        assert_eq!(call(&[b"h2"]).unwrap(), b"answer");
        assert_eq!(
            call(&[]).unwrap_err(),
            "the service does not choose HTTP/2 in the TLS handshake (ALPN h2)"
        );
        assert!(call(&[b"http/1.1"]).is_err());
    }

    #[test]
    fn an_answer_is_bounded_in_bytes_and_time() {
        let part = frame(DATA, 0, 1, &[0; 16 * 1024]);
        let parts = limits::REGISTRY_ANSWER_BYTES_MAX / (16 * 1024) + 1;
        let head = [frame(SETTINGS, 0, 0, &[]), headers(0, &[(":status", "200")])].concat();
        let long = [head.clone(), part.repeat(parts)].concat();
        assert_eq!(call(long, PATIENCE).unwrap_err(), "an answer is longer than 1 MiB");
        assert_eq!(call(head, Duration::from_millis(50)).unwrap_err(), "timed out");
        let nobody = GrpcCall { host: "127.0.0.1:1", tls: None, path: "/a.B/C", token: None, message: b"" };
        assert!(nobody.make(PATIENCE, PATIENCE).is_err());
    }
}
