//! HTTP/1.1 on the client port and the peer port, by hyper: requests and replies in turn, until the
//! client is done or silent for long.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use ::http::{HeaderName, HeaderValue, Request, Response};
use bytes::{Buf as _, Bytes};
use futures_lite::{AsyncRead, AsyncWrite};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1;
use hyper::service::service_fn;

use crate::clock::Ticker;
use crate::limits;
use crate::net::deadline;
use crate::net::plain::PlainCall;
use crate::queues::gate::Pass;

/// The answer to a request, by its method and target.
pub(crate) type Answering = dyn Fn(String, String) -> PlainCall;

/// Answers requests until the client is gone or silent for `HTTP1_DEADLINE`, or the core ends.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    first: Vec<u8>,
    answering: Rc<Answering>,
    clock: Ticker,
    pass: &Pass,
) {
    let socket = Socket { stream, first: first.into() };
    let requests = Rc::new(Cell::new(0_u64));
    let counted = Rc::clone(&requests);
    let service = service_fn(move |request| {
        counted.set(counted.get() + 1);
        answer(Rc::clone(&answering), request)
    });
    let serving = http1::Builder::new()
        .max_buf_size(limits::HEADER_LIST_BYTES_MAX as usize)
        .serve_connection(socket, service);
    let mut serving = pin!(serving);
    let mut timer = deadline::Timer::default();
    let (mut seen, mut until) = (0, clock.milliseconds() + deadline::milliseconds(limits::HTTP1_DEADLINE));
    let mut is_told = false;
    std::future::poll_fn(|context| {
        if !is_told && pass.poll_closed(context).is_ready() {
            is_told = true;
            serving.as_mut().graceful_shutdown();
        }
        // An error means that the client broke off: there is no one to answer.
        if serving.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let now = clock.milliseconds();
        if requests.get() != seen {
            seen = requests.get();
            until = now + deadline::milliseconds(limits::HTTP1_DEADLINE);
        }
        timer.set(Some(until));
        timer.poll(context, now);
        if now >= until { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn answer(
    answering: Rc<Answering>,
    request: Request<Incoming>,
) -> Result<Response<WholeBody>, Infallible> {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(uri.path(), |target| target.as_str());
    let reply = answering(request.method().as_str().to_owned(), target.to_owned()).await;
    let mut response = Response::new(WholeBody(None));
    *response.status_mut() = reply.status;
    for (name, value) in reply.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    *response.body_mut() = WholeBody(Some(reply.text.into()));
    Ok(response)
}

/// A body that is complete.
struct WholeBody(Option<Bytes>);

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// A socket of the runtime for hyper.
struct Socket<S> {
    stream: S,
    /// Bytes that were read to find out which protocol the client speaks.
    first: Bytes,
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let len = self.first.len().min(into.remaining());
            into.put_slice(&self.first[..len]);
            self.first.advance(len);
            return Poll::Ready(Ok(()));
        }
        let mut buffer = [0; limits::HTTP1_READ_BYTES];
        let len = buffer.len().min(into.remaining());
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer[..len]))?;
        into.put_slice(&buffer[..read]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
