//! A client's socket, as little of it as a connection needs: TLS has to fit under it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_lite::{AsyncRead as _, AsyncWrite as _};
use glommio::net::TcpStream;
use revd_http2::Out;

use crate::limits;

/// Reads and writes of a connection.
pub(super) trait Transport {
    /// Reads what there is; 0 bytes when the client has closed its side.
    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends from the front of `out`, as much as the system takes; ready when something was sent.
    fn poll_write(&mut self, context: &mut Context<'_>, out: &mut Out) -> Poll<io::Result<()>>;

    /// Sends nothing more.
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
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
