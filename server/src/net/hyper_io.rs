//! Glommio sockets and tasks as hyper's runtime.
//!
//! Writes are collected: hyper's flushes cost nothing, and whoever drives the connection calls
//! [`Socket::poll_send`] once at the end of its turn, so that all frames of a turn leave in one send.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_lite::{AsyncRead as _, AsyncWrite as _};
use glommio::net::TcpStream;
use hyper::rt::ReadBufCursor;

use crate::limits;

/// Bytes read at a time.
const READ_BYTES: usize = 64 * 1024;
/// An emptied send buffer larger than this is given back.
const KEPT_BUFFER_BYTES: usize = 64 * 1024;

/// What a core's sockets share: idle connections own no buffer.
pub(super) struct Buffers {
    /// Where sockets read to before hyper takes the bytes.
    read: Box<[u8]>,
    /// A large send buffer that is not in use: making one anew costs more than filling it.
    send: Vec<u8>,
}

/// A core's buffers.
pub(super) type Scratch = Rc<RefCell<Buffers>>;

/// A core's buffers.
#[must_use]
pub(super) fn new_scratch() -> Scratch {
    Rc::new(RefCell::new(Buffers { read: vec![0; READ_BYTES].into(), send: Vec::new() }))
}

/// A client's socket; clones share it.
#[derive(Clone)]
pub(super) struct Socket(Rc<RefCell<Inner>>);

struct Inner {
    stream: TcpStream,
    scratch: Scratch,
    /// Bytes that were read to find out what the client speaks.
    first: Bytes,
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
}

impl Socket {
    /// A socket of which `first` was read already.
    #[must_use]
    pub(super) fn new(stream: TcpStream, scratch: Scratch, first: Bytes) -> Self {
        Self(Rc::new(RefCell::new(Inner { stream, scratch, first, out: Vec::new(), sent: 0 })))
    }

    /// Sends what was written since the last time.
    ///
    /// # Errors
    /// When the client is gone.
    pub(super) fn poll_send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_send(context)
    }
}

impl Inner {
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, &self.out[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > KEPT_BUFFER_BYTES {
            let large = std::mem::take(&mut self.out);
            let spare = &mut self.scratch.borrow_mut().send;
            if large.capacity() > spare.capacity() && large.capacity() <= 2 * limits::SEND_BUFFER_BYTES {
                *spare = large;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.out.len() + bytes.len() > KEPT_BUFFER_BYTES && self.out.capacity() <= KEPT_BUFFER_BYTES {
            let mut large = std::mem::take(&mut self.scratch.borrow_mut().send);
            large.extend_from_slice(&self.out);
            self.out = large;
        }
        self.out.extend_from_slice(bytes);
    }

    fn poll_read(&mut self, context: &mut Context<'_>, into: &mut ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let len = self.first.len().min(into.remaining());
            into.put_slice(&self.first[..len]);
            self.first.advance(len);
            return Poll::Ready(Ok(()));
        }
        let buffer = &mut self.scratch.borrow_mut().read;
        let len = buffer.len().min(into.remaining());
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer[..len]))?;
        into.put_slice(&buffer[..read]);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Read for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(context, &mut into)
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        if inner.out.len() >= limits::SEND_BUFFER_BYTES {
            ready!(inner.poll_send(context))?;
        }
        inner.write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.0.borrow_mut();
        if inner.out.len() >= limits::SEND_BUFFER_BYTES {
            ready!(inner.poll_send(context))?;
        }
        slices.iter().for_each(|slice| inner.write(slice));
        Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Deferred to [`Socket::poll_send`].
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.0.borrow_mut();
        ready!(inner.poll_send(context))?;
        Pin::new(&mut inner.stream).poll_close(context)
    }
}

/// Runs a connection's calls as tasks of this core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spawner;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, future: F) {
        glommio::spawn_local(future).detach();
    }
}
