//! The transport of a connection: the part of a socket that it needs, so that TLS can stand in for
//! TCP.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead as _, AsyncWrite as _};
use glommio::net::TcpStream;
use revd_http2::Out;

use crate::limits;

/// The address that a connection comes from; of IPv4 as such, also where a socket of both families
/// has accepted it. None for those that come through a file.
pub(crate) fn remote(stream: &TcpStream) -> Option<SocketAddr> {
    let from = stream.peer_addr().ok()?;
    match from.ip().to_canonical() {
        ip if ip.is_ipv4() => Some(SocketAddr::new(ip, from.port())),
        _ => Some(from),
    }
}

/// Reads and writes of a connection.
pub(super) trait Transport {
    /// Reads the bytes that have arrived; 0 when the client has closed its side.
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends from the front of `out` as much as the kernel takes; ready when something was sent.
    fn poll_write(&mut self, context: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>>;

    /// Closes the sending side.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether the last read found nothing because it had worked enough, and there may be more: in
    /// another turn. The task of the read is woken for that.
    fn has_unread(&self) -> bool {
        false
    }

    /// Bytes of this connection that are in memory beside those of its reader and its sender.
    fn held(&self) -> TransportBytes {
        TransportBytes::default()
    }
}

/// Bytes that a transport keeps itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TransportBytes {
    /// Input that cannot be read yet, or was not.
    pub received: usize,
    /// Output, as it is sent: what it is made of is still the sender's.
    pub sealed: usize,
}

impl Transport for TcpStream {
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_read(context, into)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); limits::SEND_SLICES];
        let filled = out.fill(&mut slices);
        let sent = if let [one] = slices[..filled] {
            ready!(Pin::new(self).poll_write(context, &one))?
        } else {
            ready!(Pin::new(self).poll_write_vectored(context, &slices[..filled]))?
        };
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        out.advance(sent);
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_close(context)
    }
}
