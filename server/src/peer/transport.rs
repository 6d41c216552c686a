//! The bytes between members: TCP now, TLS behind the same trait later.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use glommio::net::{TcpListener, TcpStream};
use revd_member::peer::hello::{self, HelloError};

use crate::config::Keepalive;
use crate::limits;
use crate::net::listen;

/// A stream of bytes to and from one peer.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// Opens a socket for peers.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    // Silent peers are noticed by `pulse`.
    let keepalive = Keepalive { min_time: Duration::ZERO, interval: Duration::ZERO, timeout: Duration::ZERO };
    listen::bind(address, &keepalive)
}

/// Connects to a peer's URL.
pub(super) async fn connect(url: &str) -> io::Result<TcpStream> {
    let Some(address) = url.strip_prefix("http://") else {
        let problem = "only http:// is spoken between members by this version";
        return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
    };
    let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in resolve(address.trim_end_matches('/')).await? {
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let late = "it does not accept the connection";
        result = within(limits::PEER_DIAL_DEADLINE, late, connecting).await;
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The addresses of `host:port`, those of IPv4 first, as members listen on them.
async fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = address.parse() {
        return Ok(vec![address]);
    }
    let name = address.to_owned();
    // Asking for a name may take seconds, which this thread has not.
    let asking = async {
        let found = glommio::executor().spawn_blocking(move || name.to_socket_addrs());
        let mut found: Vec<SocketAddr> = found.await?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        Ok(found)
    };
    within(limits::PEER_DIAL_DEADLINE, "its name is not resolved", asking).await
}

/// Gives up after this time.
pub(super) async fn within<T>(
    deadline: Duration,
    what: &'static str,
    doing: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = async {
        glommio::timer::sleep(deadline).await;
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

/// Reads first words, and no byte behind them.
pub(super) async fn first_words(stream: &mut impl Transport) -> io::Result<FirstWords> {
    let mut words = Vec::with_capacity(hello::HELLO_BYTES_MAX);
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
