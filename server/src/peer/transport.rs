//! The bytes between members: connecting, and what is common to all that they say.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use glommio::net::{TcpListener, TcpStream};
use revd_member::peer::hello::{self, HelloError};
use revd_member::urls;

use crate::config::{Keepalive, ListenPlace, Listened, listened};
use crate::limits;
use crate::net::listen;
use crate::net::unix::UnixSockets;
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;
use crate::resolve;
use crate::threads;

/// A stream of bytes to and from one peer.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// Opens a socket for peers.
pub(super) fn bind(place: &ListenPlace, sockets: &UnixSockets) -> io::Result<TcpListener> {
    // Silent peers are noticed by `pulse`.
    let keepalive = Keepalive { min_time: Duration::ZERO, interval: Duration::ZERO, timeout: Duration::ZERO };
    listen::bind(place, &keepalive, sockets)
}

/// Connects to a peer's URL, on which the members have agreed or not; the host, if the URL asks for
/// TLS with it.
pub(super) async fn connect(url: &str, is_agreed: bool) -> io::Result<(TcpStream, Option<String>)> {
    // As with etcd, a row has what `MemberUpdate` brought: spaces, a scheme in capitals.
    let url = urls::parse(&[url.to_owned()]).map_or_else(|_| url.to_owned(), |urls| urls.concat());
    let (address, is_secure) = match listened(&url) {
        Some((Listened::Host(address), is_secure)) => (address.trim_end_matches('/'), is_secure),
        // Any program may have named it, and would have this member call any other of the machine.
        Some((Listened::File(_), _)) if !is_agreed => {
            let why = "a socket of this machine on which the members have not agreed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Some((Listened::File(path), is_secure)) => {
            let host = path.split([':', '/']).next().unwrap_or_default();
            return Ok((listen::connect_file(Path::new(path))?, is_secure.then(|| host.to_owned())));
        }
        None => return Err(io::Error::new(io::ErrorKind::Unsupported, "no URL of a peer")),
    };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in addresses_of(address, is_agreed).await? {
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok((stream, is_secure.then(|| host.to_owned())))
        };
        let late = "it does not accept the connection";
        result = within(limits::PEER_DIAL_DEADLINE, late, connecting).await;
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The addresses of `host:port`.
async fn addresses_of(address: &str, is_agreed: bool) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let name = address.to_owned();
    let is_looking_up = if is_agreed { &LOOKS_UP_AGREED } else { &LOOKS_UP_NAMED };
    within(limits::PEER_DIAL_DEADLINE, "its name is not resolved", look_up(name, is_looking_up)).await
}

/// A name is being looked up on which the members have agreed.
static LOOKS_UP_AGREED: AtomicBool = AtomicBool::new(false);
/// The same of a name that any program may have named: names without an answer must not keep
/// members from each other.
static LOOKS_UP_NAMED: AtomicBool = AtomicBool::new(false);

/// Asks the system, on a thread of its own: without a resolver the answer takes half a minute, and
/// the helper threads of this core have segments of the log to make. One name of a kind at a time,
/// so that such threads do not pile up.
async fn look_up(name: String, is_looking_up: &'static AtomicBool) -> io::Result<Vec<SocketAddr>> {
    while is_looking_up.swap(true, Ordering::AcqRel) {
        sleep(limits::PEER_LOOK_UP_PAUSE).await;
    }
    let (found, done) = (Arc::new(Mutex::new(None)), Latch::default());
    let (answer, over) = (Arc::clone(&found), done.clone());
    let asking = move || {
        let addresses = resolve::addresses(&name);
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(addresses);
        is_looking_up.store(false, Ordering::Release);
        over.set();
    };
    if let Err(error) = threads::begin("peer name", asking) {
        is_looking_up.store(false, Ordering::Release);
        return Err(error);
    }
    done.wait().await;
    let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    found.expect("the thread has left its answer")
}

/// Gives up after this time.
pub(super) async fn within<T>(
    deadline: Duration,
    what: &'static str,
    doing: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = async {
        sleep(deadline).await;
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    };
    futures_lite::future::or(doing, late).await
}

/// First words that were read.
pub(super) enum FirstWords {
    /// A hello or an answer, perhaps a damaged one.
    Peer(Vec<u8>),
    /// The beginning of something else.
    Foreign(Vec<u8>),
}

/// Reads first words, and no byte behind them; the first of them were read already.
pub(super) async fn first_words(stream: &mut impl Transport, mut words: Vec<u8>) -> io::Result<FirstWords> {
    words.reserve(hello::HELLO_BYTES_MAX);
    loop {
        match hello::missing(&words) {
            Err(HelloError::Foreign) => return Ok(FirstWords::Foreign(words)),
            Ok(0) | Err(_) => return Ok(FirstWords::Peer(words)),
            Ok(missing) => {
                let mut buffer = [0; hello::HELLO_BYTES_MAX];
                let read = stream.read(&mut buffer[..missing]).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                words.extend_from_slice(&buffer[..read]);
            }
        }
    }
}

/// Writes all of it.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn a_file_that_any_program_has_named_is_not_connected_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        other.set_nonblocking(true).unwrap();
        for scheme in ["unix", "UNIXS"] {
            let url = format!("{scheme}://{}", path.display());
            let Err(error) = block_on(connect(&url, false)) else { panic!("{url} is connected to") };
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{url}: {error}");
        }
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
