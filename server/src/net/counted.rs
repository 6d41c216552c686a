//! A socket whose bytes count in the memory of its core, for as long as its connection is not
//! HTTP/2, which counts its own.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_lite::{AsyncRead, AsyncWrite};
use revd_member::budget::{Hold, Share};

use crate::limits;
use crate::net::socket::{Transport, TransportBytes};

/// Counts bytes that a client leaves unfinished, as a part of a budget: those that a transport
/// keeps itself, and those of a request that is not answered yet. An idle connection, and one with
/// a request as short as those of probes, take nothing.
pub(super) struct Counted<T> {
    stream: T,
    hold: Hold,
    /// Bytes that were read since something was written.
    unanswered: usize,
    /// The last reply, until the socket has taken it.
    reply: Option<Rc<RefCell<Hold>>>,
}

impl<T: Transport> Counted<T> {
    /// A socket with what was read from it already; its replies are in `reply`.
    pub(super) fn new(stream: T, share: &Share, read: usize, reply: Option<Rc<RefCell<Hold>>>) -> Self {
        Self { stream, hold: share.hold(), unanswered: read, reply }
    }

    /// The socket; another one counts it from now on.
    pub(super) fn into_inner(self) -> T {
        self.stream
    }

    fn count(&mut self) -> io::Result<()> {
        let TransportBytes { received, sealed } = self.stream.held();
        let bytes = (self.unanswered + received + sealed).saturating_sub(limits::SESSION_BYTES_FREE);
        match bytes.checked_sub(self.hold.bytes()) {
            Some(more) if self.hold.grow(more).is_err() => {
                self.hold.share().refuse();
                Err(io::Error::new(io::ErrorKind::OutOfMemory, "no room for what a client has sent"))
            }
            _ => {
                self.hold.set(bytes);
                Ok(())
            }
        }
    }
}

impl<T: Transport + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = Transport::poll_read(&mut self.stream, context, into);
        if let Poll::Ready(Ok(bytes)) = read {
            self.unanswered += bytes;
        }
        // Also where nothing can be read yet: that is what such a client waits for.
        self.count()?;
        read
    }
}

impl<T: Transport + AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = AsyncWrite::poll_write(Pin::new(&mut self.stream), context, bytes);
        self.unanswered = 0;
        self.count()?;
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if let (Poll::Ready(Ok(())), Some(reply)) = (&flushed, &self.reply) {
            reply.borrow_mut().set(0);
        }
        flushed
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_close(Pin::new(&mut self.stream), context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use revd_http2::Out;
    use revd_member::budget::Budget;

    use super::*;

    const KIB: usize = 1024;

    /// A session whose caller sends a kilobyte of a record at a time, and never its end.
    struct Endless(usize);

    impl Transport for Endless {
        fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            self.0 += KIB;
            Poll::Pending
        }

        fn poll_write(&mut self, _: &mut Context<'_>, _: &mut Out) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn held(&self) -> TransportBytes {
            TransportBytes { received: self.0, sealed: 0 }
        }
    }

    /// How many kilobytes a caller can leave there.
    fn sends(stream: &mut Counted<Endless>) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let mut read = || AsyncRead::poll_read(Pin::new(&mut *stream), &mut context, &mut []);
        (0..1_000).take_while(|_| read().is_pending()).count()
    }

    #[test]
    fn what_callers_leave_unfinished_counts_and_has_a_bound() {
        let budget = Budget::new(100 * KIB);
        let mut streams: Vec<Counted<Endless>> = Vec::new();
        for _ in 0..200 {
            let mut stream = Counted::new(Endless(0), &budget.share(), 0, None);
            let left = sends(&mut stream);
            assert!(left < 200, "{left} KiB");
            streams.push(stream);
            assert!(budget.used() <= budget.bytes_max(), "{}", budget.used());
        }
        assert!(budget.take_refused() > 0);
        // However full it is, a connection that asks little is served.
        let last = streams.last_mut().unwrap();
        last.stream.0 = 0;
        last.count().unwrap();
        assert_eq!(sends(last), limits::SESSION_BYTES_FREE / KIB);
        let (used, held) = (budget.used(), streams[0].hold.bytes());
        let _socket = streams.remove(0).into_inner();
        assert_eq!(budget.used(), used - held, "another one counts it");
        drop(streams);
        assert_eq!(budget.used(), 0);
    }
}
