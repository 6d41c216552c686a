//! Connections that others open: who dials, what for, and the messages that follow.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use futures_lite::{AsyncRead, AsyncReadExt as _};
use glommio::net::{TcpListener, TcpStream};
use revd_member::peer::frame::FrameReader;
use revd_member::peer::hello::{Answer, Hello, HelloError, PROTOCOL, Purpose, Refusal};
use revd_member::peer::{Sender, codec};
use serde_json::json;

use crate::config::ListenAddress;
use crate::limits;
use crate::net::http1;
use crate::net::plain::PlainCall;
use crate::net::socket;
use crate::observe::bounds::Bound;
use crate::observe::log;
use crate::peer::guests::{self, Named};
use crate::peer::link::Link;
use crate::peer::places::Place;
use crate::peer::probes;
use crate::peer::pulse::{Silence, show_life};
use crate::peer::shared::{Incoming, PeerEvent, Shared, SnapshotStream};
use crate::peer::transport::{self, FirstWords, Transport};
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;
use crate::version;

/// Accepts connections for as long as its task lives.
pub(super) async fn run(listener: TcpListener, address: ListenAddress, shared: Rc<Shared>) {
    let address = Rc::new(address);
    loop {
        let Ok(stream) = listener.accept().await else {
            sleep(limits::ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let from = socket::remote(&stream).map(|from| from.ip());
        let Some((place, has_taken)) = shared.places.enter(from) else { return };
        if has_taken {
            shared.counters.bounds.reached(Bound::PeerConnections);
        }
        glommio::spawn_local(serve(stream, Rc::clone(&address), Rc::clone(&shared), place)).detach();
        give_way().await; // the next connection may be there already
    }
}

async fn serve(stream: TcpStream, address: Rc<ListenAddress>, shared: Rc<Shared>, place: Place) {
    let (from, place) = (remote(&stream), Rc::new(place));
    let told = async {
        std::future::poll_fn(|context| place.poll_closed(context)).await;
        Ok(()) // the member stops
    };
    let taken = async {
        place.taken().wait().await;
        Err(io::Error::other("too many connections: a newer one has its place"))
    };
    let serving = async {
        let beginning = Link::accept(stream, &address, &shared.caller.tls, &shared.handshakes).await;
        let (stream, first) = match beginning {
            Ok(begun) => begun,
            // A look whether the port is open.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        converse(stream, first, &from, &shared, &place).await
    };
    let ended = futures_lite::future::or(serving, futures_lite::future::or(told, taken));
    if let Err(error) = ended.await {
        complain(&shared, &from, &error.to_string());
    }
}

/// Hears the first words, and goes on as they say. An error is worth a line in the log.
async fn converse(
    mut stream: Link,
    first: Vec<u8>,
    from: &str,
    shared: &Rc<Shared>,
    place: &Rc<Place>,
) -> io::Result<()> {
    let hearing = transport::first_words(&mut stream, first);
    match transport::within(limits::PEER_HELLO_DEADLINE, "it says nothing", hearing).await {
        Ok(FirstWords::Peer(words)) => {
            let hello = greet(&mut stream, &words, shared).await?;
            if shared.is_known(hello.from.member) {
                place.is_of_member();
            }
            if hello.purpose == Purpose::Snapshot {
                let (from, place) = (hello.from.member, Rc::clone(place));
                (shared.emit)(PeerEvent::Snapshot(SnapshotStream { from, stream, place }));
                return Ok(());
            }
            receive(stream, &hello, from, shared, place).await
        }
        Ok(FirstWords::Foreign(first)) => {
            let (views, identity) = (Arc::clone(&shared.views), shared.caller.identity);
            let hashing = shared.hashing.clone();
            let answer = move |method: String, target: String| -> PlainCall {
                let view = views.load();
                if let Some(revision) = probes::asks_for_hash(&method, &target) {
                    let pass = hashing.enter(limits::PEER_HASHES_MAX);
                    return Box::pin(probes::hash(view, identity, revision, pass));
                }
                let answer = probes::answer(view.tables(), identity.cluster, &method, &target);
                Box::pin(std::future::ready(answer))
            };
            http1::serve(stream, first, Rc::new(answer), shared.clock, place.pass()).await;
            Ok(())
        }
        // A look whether the port is open.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => {
            count_silence(shared, &error);
            Err(error)
        }
    }
}

/// Agrees with the dialer on what follows, or refuses.
async fn greet(stream: &mut impl Transport, words: &[u8], shared: &Shared) -> io::Result<Hello> {
    let own = &shared.caller;
    let judged = match Hello::decode(words) {
        Ok(hello) => match hello.judge(own.identity) {
            Ok(()) if shared.is_removed(hello.from.member) => Err(Refusal::Removed),
            Ok(()) => Ok(hello),
            Err(refusal) => Err(refusal),
        },
        Err(HelloError::Protocol(_)) => Err(Refusal::Protocol),
        Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    if judged.as_ref().is_ok_and(|hello| shared.is_dropped(hello.from.member)) {
        // It dials again, until the state says that it was removed, or it is a member again, or a
        // state that was received was older than it: it is a guest then, and may be the leader.
        return Err(io::Error::other("the dialer is no member at this moment"));
    }
    let answer = Answer {
        refusal: judged.as_ref().err().copied(),
        protocol: PROTOCOL,
        from: own.identity,
        boot: own.boot,
        version: version::for_peers(),
    };
    let answer = answer.encode();
    let answering = transport::write(stream, &answer);
    transport::within(limits::PEER_HELLO_DEADLINE, "it does not read the answer", answering).await?;
    judged.map_err(|refusal| io::Error::other(format!("to the dialer: {refusal}")))
}

/// Receives messages until the connection ends, or its dialer has opened another one or was
/// removed.
async fn receive(
    stream: Link,
    hello: &Hello,
    from: &str,
    shared: &Rc<Shared>,
    place: &Rc<Place>,
) -> io::Result<()> {
    let sender = Sender { from: hello.from.member, to: shared.caller.identity.member };
    if !guests::has_place(shared, sender.from, &hello.urls) {
        return Err(io::Error::other("there are as many members that are not known here as there may be"));
    }
    let replaced = Latch::default();
    let incoming = Incoming { replaced: replaced.clone(), place: Rc::clone(place) };
    let earlier = shared.incoming.borrow_mut().insert(sender.from, incoming);
    if let Some(earlier) = earlier {
        earlier.replaced.set();
        shared.tell_lost(sender.from);
    }
    let is_known = shared.is_known(sender.from);
    let _named = Named::begin(shared, sender.from, &hello.urls, &replaced);
    if let Some(outbox) = shared.outbox(sender.from) {
        outbox.hint(); // a member that can dial can be dialed
    }
    let silence = Silence::default();
    let (reading, writing) = futures_lite::io::split(stream);
    let talking = futures_lite::future::or(read(reading, sender, &silence, shared), async {
        Err(show_life(writing).await)
    });
    // One that was never known here is in no other list that changes.
    let removed = Latch::default();
    let look = || {
        if shared.is_removed(sender.from) {
            removed.set();
        }
    };
    let watching = async { Err(silence.watch(look).await) };
    let ended = futures_lite::future::or(talking, watching);
    let over = async {
        let taken = place.taken();
        let displaced = futures_lite::future::or(replaced.wait(), taken.wait());
        futures_lite::future::or(displaced, removed.wait()).await;
        Ok(())
    };
    let result = futures_lite::future::or(over, ended).await;
    if replaced.is_set() {
        return Ok(());
    }
    shared.incoming.borrow_mut().remove(&sender.from);
    shared.tell_lost(sender.from);
    let fields =
        |error: &str| json!({"peer-id": format!("{:x}", sender.from), "remote-addr": from, "error": error});
    match result {
        // Any program can call itself a member.
        _ if !is_known => return result,
        // Bytes that no member sends.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
        Err(error) => {
            count_silence(shared, &error);
            log::info("a peer's connection ended", fields(&error.to_string()));
        }
        Ok(()) => log::info("a peer closed its connection", fields("")),
    }
    Ok(())
}

/// Reads messages and hands them on, as fast as the log core takes them.
async fn read(
    mut stream: impl AsyncRead + Unpin,
    sender: Sender,
    silence: &Silence,
    shared: &Shared,
) -> io::Result<()> {
    let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut is_known = shared.is_known(sender.from);
    let mut backlog = if is_known { Rc::default() } else { Rc::clone(&shared.unknown_backlog) };
    let mut reader = FrameReader::default();
    let mut unfinished = Unfinished { of_all: &shared.unknown_bytes, bytes: 0 };
    let (mut buffer, mut in_a_row) = (vec![0; limits::PEER_READ_BYTES], 0);
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        silence.broken();
        if !is_known && shared.is_known(sender.from) {
            is_known = true; // by the log, since it dialed
            backlog = Rc::default();
            unfinished.is_now(0);
        }
        let mut bytes = &buffer[..read];
        while !bytes.is_empty() {
            let frame = reader.take(&mut bytes).map_err(|error| invalid(error.to_string()))?;
            let Some(payload) = frame.filter(|payload| !payload.is_empty()) else { continue };
            let room = backlog.enter(payload.len());
            let messages = codec::decode(payload, sender).map_err(|error| invalid(error.to_string()))?;
            (shared.emit)(PeerEvent::Received { from: sender.from, messages, room });
        }
        if !is_known && !unfinished.is_now(reader.unfinished()) {
            return Err(invalid("too many bytes of members that are not known here".to_owned()));
        }
        backlog.has_room().await;
        silence.broken();
        in_a_row += 1;
        if read == buffer.len() || in_a_row == limits::PEER_READS_IN_A_ROW_MAX {
            in_a_row = 0;
            give_way().await; // more may be there already
        }
    }
}

/// The bytes of a frame that is not whole yet, of a member that is not known here, among those of
/// all such members: a program can call itself any number of members.
struct Unfinished<'s> {
    of_all: &'s Cell<usize>,
    bytes: usize,
}

impl Unfinished<'_> {
    /// False if there are too many together.
    fn is_now(&mut self, bytes: usize) -> bool {
        self.of_all.set(self.of_all.get() - self.bytes + bytes);
        self.bytes = bytes;
        self.of_all.get() <= limits::PEER_UNKNOWN_BYTES
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.of_all.set(self.of_all.get() - self.bytes);
    }
}

fn count_silence(shared: &Shared, error: &io::Error) {
    if error.kind() == io::ErrorKind::TimedOut {
        shared.counters.bounds.reached(Bound::PeerSilence);
    }
}

fn remote(stream: &TcpStream) -> String {
    socket::remote(stream).map_or_else(String::new, |address| address.to_string())
}

fn complain(shared: &Shared, from: &str, why: &str) {
    shared.complaints.refused(shared.clock.milliseconds(), from, why);
}
