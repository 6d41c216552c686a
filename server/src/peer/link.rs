//! The socket between two members, with TLS on it or not.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use glommio::net::TcpStream;

use crate::config::ListenAddress;
use crate::limits;
use crate::net::socket;
use crate::net::tls::{self, HandshakeTurns, TlsDomain, TlsStream};
use crate::peer::transport;

/// The first byte of a TLS handshake; no member's first word begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// A connection to or from a member.
pub enum Link {
    /// Bytes as they are.
    Plain(TcpStream),
    /// A TLS session.
    #[expect(private_interfaces, reason = "what is in it concerns nobody else")]
    Secure(Box<TlsStream<TcpStream>>),
}

impl Link {
    /// Begins what is spoken on an address: the connection, and bytes of it that were read already.
    pub(super) async fn accept(
        mut stream: TcpStream,
        address: &ListenAddress,
        domain: &TlsDomain,
        turns: &HandshakeTurns,
    ) -> io::Result<(Self, Vec<u8>)> {
        if !address.is_secure {
            return Ok((Self::Plain(stream), Vec::new()));
        }
        let mut first = [0];
        let reading = stream.read(&mut first);
        if transport::within(limits::PEER_HELLO_DEADLINE, "it says nothing", reading).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first == [TLS_HANDSHAKE] {
            let from: Option<IpAddr> = socket::remote(&stream).map(|address| address.ip());
            let accepted = tls::accept(stream, &first, from, domain, turns).await?;
            return Ok((Self::Secure(Box::new(accepted.stream)), Vec::new()));
        }
        if address.is_plain {
            return Ok((Self::Plain(stream), first.to_vec()));
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS"))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Secure(_) => "Secure",
        })
    }
}

impl AsyncRead for Link {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Self::Secure(stream) => Pin::new(&mut **stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Secure(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Secure(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_close(context),
            Self::Secure(stream) => Pin::new(&mut **stream).poll_close(context),
        }
    }
}
