//! One connection to one other member: dialed at each of its URLs in turn until one answers, and
//! again when it is lost.

use std::io;
use std::rc::Rc;

use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use glommio::net::TcpStream;
use revd_member::cluster::Identity;
use revd_member::peer::hello::{Answer, Hello, Purpose, Refusal};
use serde_json::json;

use crate::limits;
use crate::observe::log;
use crate::peer::outbox::Outbox;
use crate::peer::pulse::Silence;
use crate::peer::shared::{PeerEvent, Shared, VERSION};
use crate::peer::transport::{self, FirstWords, Transport};
use crate::queues::turn::give_way;

/// Keeps a connection to a member for as long as its task lives.
pub(super) async fn run(outbox: Rc<Outbox>, shared: Rc<Shared>) {
    let mut pause = limits::PEER_DIAL_INTERVAL_MIN;
    let mut told = String::new();
    loop {
        for url in outbox.urls() {
            let error = match dial(&url, outbox.peer, &shared).await {
                Ok((stream, answer)) => {
                    pause = limits::PEER_DIAL_INTERVAL_MIN;
                    told.clear();
                    tell_connected(&outbox, &url, &answer);
                    let error = converse(stream, &outbox, &shared).await;
                    tell_lost(&outbox, &url, &error);
                    break;
                }
                Err(error) => format!("{url}: {error}"),
            };
            // Once until it changes: a member may be away for days.
            if told != error {
                log::warn("cannot reach a peer", json!({"peer-id": hex(outbox.peer), "error": error}));
                told = error;
            }
        }
        glommio::timer::sleep(limits::PEER_DIAL_INTERVAL_MIN).await;
        futures_lite::future::or(glommio::timer::sleep(pause), outbox.hinted()).await;
        pause = (pause * 2).min(limits::PEER_DIAL_INTERVAL_MAX);
    }
}

/// Sends what waits until the connection ends; why it did.
async fn converse(stream: TcpStream, outbox: &Outbox, shared: &Shared) -> io::Error {
    outbox.open();
    (shared.emit)(PeerEvent::Connected(outbox.peer));
    let silence = Silence::default();
    let (reading, writing) = futures_lite::io::split(stream);
    let ended = futures_lite::future::or(send(writing, outbox), hear(reading, &silence));
    let error = futures_lite::future::or(ended, silence.watch(|| outbox.pulse())).await;
    if outbox.close() {
        (shared.emit)(PeerEvent::Lost(outbox.peer));
    }
    error
}

async fn send(mut stream: impl AsyncWrite + Unpin, outbox: &Outbox) -> io::Error {
    loop {
        let bytes = outbox.next().await;
        if let Err(error) = transport::write(&mut stream, &bytes).await {
            return error;
        }
        outbox.done(bytes.len());
    }
}

/// Hears pulses; a listener says nothing else.
async fn hear(mut stream: impl AsyncRead + Unpin, silence: &Silence) -> io::Error {
    let mut pulses = [0; 64];
    loop {
        match stream.read(&mut pulses).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => silence.broken(),
            Err(error) => return error,
        }
        give_way().await;
    }
}

/// Connects, and agrees with the listener on what follows.
async fn dial(url: &str, to: u64, shared: &Shared) -> io::Result<(TcpStream, Answer)> {
    let mut stream = transport::connect(url).await?;
    let hello = Hello {
        purpose: Purpose::Messages,
        from: shared.identity,
        to,
        boot: shared.boot,
        version: VERSION.to_owned(),
    };
    let greeting = greet(&mut stream, &hello);
    let answer = transport::within(limits::PEER_HELLO_DEADLINE, "it does not answer", greeting).await?;
    Ok((stream, answer))
}

async fn greet(stream: &mut impl Transport, hello: &Hello) -> io::Result<Answer> {
    transport::write(stream, &hello.encode()).await?;
    let FirstWords::Peer(words) = transport::first_words(stream).await? else {
        return Err(io::Error::other(
            "it does not speak the protocol of revd's peers: another program, or TLS",
        ));
    };
    let answer = Answer::decode(&words).map_err(io::Error::other)?;
    let meant = Identity { cluster: hello.from.cluster, member: hello.to };
    match answer.refusal {
        Some(refusal) => Err(io::Error::new(io::ErrorKind::ConnectionRefused, refusal)),
        None if answer.from != meant => Err(io::Error::other(Refusal::Member)),
        None => Ok(answer),
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

fn tell_connected(outbox: &Outbox, url: &str, answer: &Answer) {
    let fields = json!({"peer-id": hex(outbox.peer), "url": url, "peer-version": answer.version});
    log::info("connected to a peer", fields);
}

fn tell_lost(outbox: &Outbox, url: &str, error: &io::Error) {
    let fields = json!({"peer-id": hex(outbox.peer), "url": url, "error": error.to_string()});
    log::warn("lost the connection to a peer", fields);
}
