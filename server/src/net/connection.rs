//! One client connection: its protocol, and its life until it ends or the core does.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::http::StatusCode;
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use revd_http2::PREFACE;
use revd_member::budget::Hold;
use serde_json::json;

use crate::api::Api;
use crate::api::call::{Address, Source};
use crate::config::{ListenAddress, Served};
use crate::limits;
use crate::net::context::EdgeContext;
use crate::net::counted::Counted;
use crate::net::http2::Http2;
use crate::net::plain::{PlainCall, PlainReply};
use crate::net::socket::{Socket, Transport};
use crate::net::tls::{self, Accepted};
use crate::net::{http, http1};
use crate::observe::bounds::Bound;
use crate::observe::log;
use crate::queues::gate::Pass;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// The first byte of a TLS handshake; no request begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves a connection until the client is done, or the core is.
pub(super) async fn serve(stream: Socket, address: Rc<ListenAddress>, edge: Rc<EdgeContext>, pass: Rc<Pass>) {
    let way = (source_of(&stream), address.served);
    let Ok((stream, first)) = begin(stream, &edge, &pass).await else { return };
    // Bytes that are not for this address are read and not answered, as etcd does.
    match first.first() {
        Some(&TLS_HANDSHAKE) if address.is_secure => {
            // Boxed, so that plain connections do not have the size of others.
            Box::pin(serve_tls(stream, way, first, edge, pass)).await;
        }
        Some(&TLS_HANDSHAKE) => pass_over(stream).await,
        _ if address.is_plain => converse(stream, first, (None, way), edge, pass).await,
        _ => pass_over(stream).await,
    }
}

/// Where a connection comes from.
fn source_of(stream: &Socket) -> Source {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    let address = stream.remote().map_or_else(Address::default, |peer| Address::of(peer.ip()));
    Source { address, connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed) }
}

/// Closing before everything is read would look like a broken connection.
async fn pass_over(mut stream: impl AsyncRead + Unpin) {
    let mut nowhere = [0; 1024];
    let _ = futures_lite::future::poll_once(stream.read(&mut nowhere)).await;
}

async fn serve_tls(
    stream: Socket,
    way: (Source, Served),
    first: Vec<u8>,
    edge: Rc<EdgeContext>,
    pass: Rc<Pass>,
) {
    let from = stream.remote();
    let address = from.map(|from| from.ip());
    let handshakes = match way.1 {
        Served::Metrics => &edge.handshakes_for_metrics,
        Served::All | Served::Calls | Served::Plain => &edge.handshakes,
    };
    let accepting = tls::accept(stream, &first, address, &edge.tls, handshakes);
    let told = async {
        std::future::poll_fn(|context| pass.poll_closed(context)).await;
        Err(io::ErrorKind::ConnectionAborted.into())
    };
    let accepted = futures_lite::future::or(accepting, told).await;
    let Accepted { stream, common_name } = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            if error.kind() == io::ErrorKind::TimedOut {
                edge.api.reached(Bound::Handshakes);
            }
            return tell_rejected(&edge, from, &error);
        }
    };
    // Parts of records may lie in a session before it is clear what its client speaks.
    let stream = Counted::new(stream, &edge.api.budgets().sessions.share(), 0, None);
    let Ok((stream, first)) = begin(stream, &edge, &pass).await else { return };
    converse(stream.into_inner(), first, (common_name, way), edge, pass).await;
}

/// In etcd's words, once in `REJECTED_INTERVAL`: whoever reaches the port can cause such lines.
fn tell_rejected(edge: &EdgeContext, from: Option<SocketAddr>, error: &io::Error) {
    // The member stops.
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return;
    }
    if let Some(untold) = edge.rejected.may_tell(edge.clock.milliseconds(), limits::REJECTED_INTERVAL) {
        let from = from.map_or_else(String::new, |from| from.to_string());
        let fields = json!({
            "remote-addr": from, "error": error.to_string(), "others-since-the-last-line": untold,
        });
        log::warn("rejected connection on client endpoint", fields);
    }
}

/// Reads the first bytes, in time. A client that sends nothing, or goes away again, gets no answer.
async fn begin<T: AsyncRead + Unpin>(
    stream: T,
    edge: &Rc<EdgeContext>,
    pass: &Pass,
) -> io::Result<(T, Vec<u8>)> {
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
    futures_lite::future::or(reading, futures_lite::future::or(late, told)).await
}

/// Serves a client whose first bytes were read.
async fn converse<T: Transport + AsyncRead + AsyncWrite + Unpin + 'static>(
    stream: T,
    first: Vec<u8>,
    (common_name, way): (Option<Rc<str>>, (Source, Served)),
    edge: Rc<EdgeContext>,
    pass: Rc<Pass>,
) {
    if first == PREFACE {
        // Boxed, so that the task of a silent client, which waits for its first bytes, stays small.
        if let Some(stream) = Box::new(Http2::new(stream, common_name, way, edge)).serve(&pass).await {
            futures_lite::future::or(hear_out(stream), sleep(limits::LINGER_DEADLINE)).await;
        }
    } else if way.1 == Served::Calls {
        // No call is made this way, and plain requests have URLs of their own.
        pass_over(stream).await;
    } else {
        let budgets = edge.api.budgets();
        let reply = Rc::new(RefCell::new(budgets.replies.share().hold()));
        let stream = Counted::new(stream, &budgets.sessions.share(), first.len(), Some(Rc::clone(&reply)));
        let answering = answering(Rc::clone(&edge.api), way.1, reply);
        Box::pin(http1::serve(stream, first, answering, edge.clock, &pass)).await;
    }
}

/// Answers requests of one HTTP/1 connection. Its last reply counts until the socket has taken it.
fn answering(api: Rc<Api>, served: Served, told: Rc<RefCell<Hold>>) -> Rc<http1::Answering> {
    Rc::new(move |method: String, target: String| -> PlainCall {
        let (api, told) = (Rc::clone(&api), Rc::clone(&told));
        told.borrow_mut().set(0);
        // The few connections there are for metrics do not depend on the room that clients leave.
        let room = if served == Served::Metrics { 0 } else { http::room_for(&target) };
        if told.borrow_mut().grow(room).is_err() {
            api.reached(Bound::ReplyBytes);
            return Box::pin(std::future::ready(PlainReply::empty(StatusCode::SERVICE_UNAVAILABLE)));
        }
        Box::pin(async move {
            let reply = http::answer(&api, served, &method, &target).await;
            told.borrow_mut().set(reply.text.len());
            reply
        })
    })
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
async fn first_bytes<T: AsyncRead + Unpin>(mut stream: T) -> io::Result<(T, Vec<u8>)> {
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

    /// All that a client has sent.
    struct Sent(std::collections::VecDeque<u8>);

    impl AsyncRead for Sent {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(io::Read::read(&mut self.0, into))
        }
    }

    impl AsyncWrite for Sent {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A session that is begun, and its client's end of it.
    fn session() -> (rustls::ServerConnection, rustls::ClientConnection) {
        let made = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let mut server = rustls::ServerConnection::new(config.into()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let mut client = rustls::ClientConnection::new(config.into(), "h".try_into().unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        (server, client)
    }

    /// Records of a byte each, read as fast as they come, in a loop that stops only where there is
    /// nothing to be read.
    #[test]
    fn a_session_of_little_records_is_read_in_turns() {
        const BYTES: usize = 1_600;
        let core = glommio::LocalExecutorBuilder::default();
        let reading = core.spawn(|| async {
            let (server, mut client) = session();
            let mut sent = Vec::new();
            for _ in 0..BYTES {
                io::Write::write_all(&mut client.writer(), b"x").unwrap();
                while client.wants_write() {
                    client.write_tls(&mut sent).unwrap();
                }
            }
            let mut stream = tls::TlsStream::new(Sent(sent.into()), server);
            let mut read = Vec::new();
            let turns = turns_of(async { drop(stream.read_to_end(&mut read).await) }).await;
            (turns, read)
        });
        let (turns, read) = reading.unwrap().join().unwrap();
        assert_eq!(read.len(), BYTES);
        // A turn may end with twice as many.
        let least = BYTES / (2 * limits::TLS_RECORDS_AT_ONCE);
        assert!(turns >= least, "others had their turn {turns} times");
    }

    /// The end of a session of data, each part followed by so many new keys, and the bytes that are
    /// read of it.
    fn read_with_new_keys(parts: &[(usize, usize)]) -> (usize, io::Result<()>) {
        let (server, mut client) = session();
        client.set_buffer_limit(None);
        let mut sent = Vec::new();
        for (bytes, keys) in parts {
            io::Write::write_all(&mut client.writer(), &vec![b'x'; *bytes]).unwrap();
            (0..*keys).for_each(|_| client.refresh_traffic_keys().unwrap());
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
        }
        let core = glommio::LocalExecutorBuilder::default();
        let reading = core.spawn(move || async {
            let mut stream = tls::TlsStream::new(Sent(sent.into()), server);
            let mut read = Vec::new();
            let end = stream.read_to_end(&mut read).await;
            (read.len(), end.map(|_| ()))
        });
        reading.unwrap().join().unwrap()
    }

    /// New keys that a byte now and then comes between; those that data have earned are taken.
    #[test]
    fn a_session_of_new_keys_without_data_is_ended() {
        let (most, worth) = (limits::TLS_EMPTY_RECORDS_MAX, limits::TLS_BYTES_PER_EMPTY_RECORD);
        let (read, end) = read_with_new_keys(&vec![(1, 1); most]);
        assert_eq!((read, end.is_ok()), (most, true));
        for part in [(1, 15), (1, 1), (32, 10), (1_000, 15)] {
            let (read, end) = read_with_new_keys(&vec![part; 3 * most]);
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData, "{part:?}");
            assert!(read <= part.0 * (most / part.1 + 1), "{part:?}: {read} bytes");
        }
        let earned = vec![(worth, 1); 2 * most];
        let (read, end) = read_with_new_keys(&[&[(1, most - 1), (1, 1)][..], &earned].concat());
        assert_eq!((read, end.is_ok()), (2 + 2 * most * worth, true));
        let (_, end) = read_with_new_keys(&[&[(1, most - 1), (1, 1)][..], &earned, &[(1, 1)]].concat());
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_client_that_never_stops_sending_is_heard_out_in_turns() {
        let core = glommio::LocalExecutorBuilder::default();
        let turns = core.spawn(|| turns_of(hear_out(Flood(1_000)))).unwrap().join().unwrap();
        assert!(turns >= 100, "others had their turn {turns} times");
    }
}
