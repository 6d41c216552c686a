//! One client connection: what it speaks, and its life until it ends or the core does.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use futures_lite::AsyncReadExt as _;
use glommio::net::TcpStream;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;

use crate::api::Api;
use crate::limits;
use crate::net::body::ReplyBody;
use crate::net::hyper_io::{Scratch, Socket, Spawner};
use crate::net::request::RequestBytes;
use crate::net::{grpc, http as plain};
use crate::xcore::gate::Pass;

/// How an HTTP/2 client begins (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the connections of a core have in common.
#[derive(Clone)]
pub(super) struct Shared {
    /// The services.
    pub api: Rc<Api>,
    /// Where sockets read to.
    pub scratch: Scratch,
    /// Bytes of unfinished requests.
    pub request_bytes: RequestBytes,
    /// A larger message is refused.
    pub message_bytes_max: usize,
    /// Streams a client may have open.
    pub streams_max: u32,
}

/// Serves a connection until the client is done, or the core is.
pub(super) async fn serve(stream: TcpStream, shared: Shared, pass: Pass) {
    let reading = first_bytes(stream);
    let late = async {
        glommio::timer::sleep(limits::FIRST_BYTES_DEADLINE).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    let told = async {
        std::future::poll_fn(|context| pass.poll_closed(context)).await;
        Err(io::ErrorKind::ConnectionAborted.into())
    };
    let first = futures_lite::future::or(reading, futures_lite::future::or(late, told)).await;
    // Whoever says nothing in time, or goes away again, has nothing to be told.
    let Ok((stream, first)) = first else { return };
    let socket = Socket::new(stream, Rc::clone(&shared.scratch), Bytes::copy_from_slice(&first));
    if first == PREFACE {
        serve_http2(socket, shared, &pass).await;
    } else {
        serve_http1(socket, shared).await;
    }
}

/// Reads until it is clear whether this is HTTP/2.
async fn first_bytes(mut stream: TcpStream) -> io::Result<(TcpStream, Vec<u8>)> {
    let mut first = Vec::with_capacity(PREFACE.len());
    let mut buffer = [0; PREFACE.len()];
    while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
        let read = stream.read(&mut buffer[..PREFACE.len() - first.len()]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        first.extend_from_slice(&buffer[..read]);
    }
    Ok((stream, first))
}

async fn answer(shared: Shared, request: Request<Incoming>) -> Result<Response<ReplyBody>, Infallible> {
    let Shared { api, request_bytes, message_bytes_max, .. } = shared;
    Ok(if grpc::is_call(request.headers()) {
        grpc::answer(api, request, message_bytes_max, &request_bytes).await
    } else {
        plain::answer(&api, request.method(), request.uri().path())
    })
}

async fn serve_http2(socket: Socket, shared: Shared, pass: &Pass) {
    let mut builder = http2::Builder::new(Spawner);
    builder
        .max_concurrent_streams(shared.streams_max)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS_MAX)
        .max_local_error_reset_streams(limits::ERROR_RESETS_MAX)
        .max_send_buf_size(limits::SEND_BUFFER_BYTES)
        .auto_date_header(false);
    let service = service_fn(move |request| answer(shared.clone(), request));
    let mut connection = Box::pin(builder.serve_connection(socket.clone(), service));
    let mut told = false;
    std::future::poll_fn(|context| {
        if !told && pass.poll_closed(context).is_ready() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        let ended = connection.as_mut().poll(context).is_ready();
        // Everything this turn has written leaves now; what does not fit wakes this task again.
        match socket.poll_send(context) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(())) if ended => Poll::Ready(()),
            Poll::Pending if ended => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
}

/// One request and its reply; then the connection closes.
async fn serve_http1(socket: Socket, shared: Shared) {
    let service = service_fn(move |request| answer_http1(shared.clone(), request));
    let mut connection = Box::pin(
        http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(limits::HEADER_LIST_BYTES_MAX as usize)
            .serve_connection(socket.clone(), service),
    );
    let serving = std::future::poll_fn(|context| {
        let ended = connection.as_mut().poll(context).is_ready();
        match socket.poll_send(context) {
            Poll::Ready(_) if ended => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    });
    futures_lite::future::or(serving, glommio::timer::sleep(limits::HTTP1_DEADLINE)).await;
}

async fn answer_http1(shared: Shared, request: Request<Incoming>) -> Result<Response<ReplyBody>, Infallible> {
    Ok(plain::answer(&shared.api, request.method(), request.uri().path()))
}
