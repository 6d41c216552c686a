//! One client connection: its protocol, and its life until it ends or the core does.

use std::io;
use std::rc::Rc;

use futures_lite::{AsyncRead, AsyncReadExt as _};
use glommio::net::TcpStream;
use revd_http2::PREFACE;

use crate::limits;
use crate::net::context::EdgeContext;
use crate::net::http2::Http2;
use crate::net::plain::PlainCall;
use crate::net::{http, http1};
use crate::observe::bounds::Bound;
use crate::queues::gate::Pass;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// Serves a connection until the client is done, or the core is.
pub(super) async fn serve(stream: TcpStream, edge: Rc<EdgeContext>, pass: Pass) {
    let reading = first_bytes(stream);
    let api = Rc::clone(&edge.api);
    let late = async move {
        sleep(limits::FIRST_BYTES_DEADLINE).await;
        api.reached(Bound::FirstBytes);
        Err(io::ErrorKind::TimedOut.into())
    };
    let told = async {
        std::future::poll_fn(|context| pass.poll_closed(context)).await;
        Err(io::ErrorKind::ConnectionAborted.into())
    };
    let first = futures_lite::future::or(reading, futures_lite::future::or(late, told)).await;
    // A client that sends nothing in time, or goes away again, gets no answer.
    let Ok((stream, first)) = first else { return };
    if first == PREFACE {
        // Boxed, so that the task of a silent client, which waits for its first bytes, stays small.
        if let Some(stream) = Box::new(Http2::new(stream, None, edge)).serve(&pass).await {
            futures_lite::future::or(hear_out(stream), sleep(limits::LINGER_DEADLINE)).await;
        }
    } else {
        let (api, clock) = (Rc::clone(&edge.api), edge.clock);
        let answering = move |method: String, target: String| -> PlainCall {
            let api = Rc::clone(&api);
            Box::pin(async move { http::answer(&api, &method, &target).await })
        };
        Box::pin(http1::serve(stream, first, Rc::new(answering), clock, &pass)).await;
    }
}

/// Reads and drops input until the client closes: closing first would discard replies that it has
/// not read yet.
async fn hear_out(mut stream: impl AsyncRead + Unpin) {
    let mut nowhere = [0; 1024];
    while stream.read(&mut nowhere).await.is_ok_and(|bytes| bytes > 0) {
        // A client that sends without a pause must not keep the core from its other tasks and
        // timers.
        give_way().await;
    }
}

/// Reads until it is clear whether the client speaks HTTP/2.
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

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll};

    use super::*;

    /// A client that sends faster than it is read, for longer than any core may be kept busy.
    struct Flood(u32);

    impl AsyncRead for Flood {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            self.0 -= 1;
            Poll::Ready(Ok(if self.0 == 0 { 0 } else { into.len() }))
        }
    }

    /// How often other tasks of the core have their turn before `hearing` ends.
    async fn turns_of(hearing: impl Future<Output = ()>) -> usize {
        let mut hearing = pin!(hearing);
        let mut turns = 0;
        std::future::poll_fn(|context| {
            turns += 1;
            hearing.as_mut().poll(context)
        })
        .await;
        turns
    }

    #[test]
    fn a_client_that_never_stops_sending_is_heard_out_in_turns() {
        let core = glommio::LocalExecutorBuilder::default();
        let turns = core.spawn(|| turns_of(hear_out(Flood(1_000)))).unwrap().join().unwrap();
        assert!(turns >= 100, "others had their turn {turns} times");
    }
}
