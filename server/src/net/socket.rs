//! The socket of a client, and the transport of a connection: the part of a socket that it needs,
//! so that TLS can stand in for TCP.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use revd_http2::Out;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits;
use crate::net::closing::ClosingLine;
use crate::net::permits::ConnectionPermit;
use crate::queues::gate::Pass;

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

/// A socket that knows whether there is still somebody at the other end.
pub(crate) trait HangUp {
    /// The other side has closed, or sends nothing more: also where what it has sent was not read.
    fn has_hung_up(&self) -> bool;
}

impl<S: AsFd> HangUp for S {
    fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::RDHUP)];
        // It does not wait. HUP and ERR are told without being asked for.
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|found| found > 0)
    }
}

impl HangUp for Socket {
    fn has_hung_up(&self) -> bool {
        self.opened.as_ref().is_none_or(|(stream, ..)| stream.has_hung_up())
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

/// A connection, of TCP or through a file, its permit, and its place among those of its core.
pub(super) type Opened = (TcpStream, ConnectionPermit, Rc<Pass>);

/// The socket of a client; it is closed in turns with others.
pub(super) struct Socket {
    /// None only while it is dropped.
    opened: Option<Opened>,
    closing: Rc<ClosingLine<Opened>>,
}

impl Socket {
    pub(super) fn new(opened: Opened, closing: &Rc<ClosingLine<Opened>>) -> Self {
        Self { opened: Some(opened), closing: Rc::clone(closing) }
    }

    /// Where it comes from, as [`remote`] says.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.opened.as_ref().and_then(|(stream, ..)| remote(stream))
    }

    fn stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        let opened = self.opened.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Pin::new(&mut opened.0))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.take() {
            self.closing.push(opened);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_read(context, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, slices)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_close(context)
    }
}

impl Transport for Socket {
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_read(context, into)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>> {
        let stream = self.stream()?;
        let mut slices = [IoSlice::new(&[]); limits::SEND_SLICES];
        let filled = out.fill(&mut slices);
        let sent = if let [one] = slices[..filled] {
            ready!(stream.poll_write(context, &one))?
        } else {
            ready!(stream.poll_write_vectored(context, &slices[..filled]))?
        };
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        out.advance(sent);
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_close(context)
    }
}
