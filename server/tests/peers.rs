//! Connections between members, over loopback sockets: two members that talk, and dialers that are
//! none.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "peers/full.rs"]
mod full;
#[path = "peers/guests.rs"]
mod guests;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use revd::config::{ListenAddress, TlsConfig};
use revd::net::tls::TlsDomain;
use revd::observe::bounds::Bound;
use revd::observe::counters::Counters;
use revd::peer::caller::Caller;
use revd::peer::{PeerEvent, Peers, PeersSeed};
use revd::queues::sleep::sleep;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Store, View};
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::outcome::{Outcome, Rest};
use revd_member::cluster::Identity;
use revd_member::error::Error;
use revd_member::limits::PEER_FRAME_BYTES_MAX;
use revd_member::peer::hello::{Answer, HELLO_BYTES_MAX, Hello, PROTOCOL, Purpose, Refusal, missing};
use revd_member::peer::{Peer, PeerMessage, codec, frame};
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema;
use revd_proto::etcdserverpb::Member;

const CLUSTER: u64 = 7;

/// For what must happen; a test that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that a member's peers told it.
#[derive(Debug, PartialEq)]
enum Seen {
    Messages(u64, Vec<PeerMessage>),
    Connected(u64),
    Lost(u64),
    Unsent(Bytes),
    /// The bytes of a connection for a snapshot.
    Snapshot(u64, Vec<u8>),
    Removed,
}

enum Order {
    Send(u64, Vec<PeerMessage>),
    SetPeers(Vec<Peer>),
    /// Opens a connection for a snapshot, and sends this on it.
    Snapshot(Peer, Vec<u8>),
    Stop,
}

/// The peers of one member, on a core of their own.
struct TestMember {
    id: u64,
    address: SocketAddr,
    seen: Receiver<Seen>,
    orders: Sender<Order>,
    counters: Arc<Counters>,
    views: Arc<ViewSlot>,
    core: Option<ExecutorJoinHandle<()>>,
}

fn own_tls() -> Arc<TlsDomain> {
    TlsDomain::open("peer", TlsConfig::default()).unwrap()
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A state that knows one member, and former ones.
fn view(removed: &[u64]) -> View {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    let member = Member {
        id: 1,
        name: "one".to_owned(),
        peer_ur_ls: vec!["http://localhost:2380".to_owned()],
        client_ur_ls: vec![],
        is_learner: true,
    };
    schema::put_member(&mut store, &member);
    removed.iter().for_each(|id| schema::remove_member(&mut store, *id));
    store.view()
}

impl TestMember {
    fn start(id: u64, address: SocketAddr) -> Self {
        Self::start_naming(id, address, vec![])
    }

    /// One that says in its hellos that it listens there.
    fn start_naming(id: u64, address: SocketAddr, urls: Vec<String>) -> Self {
        Self::start_with(id, address, urls, 8)
    }

    fn start_with(id: u64, address: SocketAddr, urls: Vec<String>, connections_max: usize) -> Self {
        let (see, seen) = channel();
        let (orders, take) = channel();
        let (up, is_up) = channel();
        let counters = Arc::new(Counters::new(0));
        let counted = Arc::clone(&counters);
        let views = Arc::new(ViewSlot::new(view(&[]), 0));
        let viewed = Arc::clone(&views);
        let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
            let identity = Identity { cluster: CLUSTER, member: id };
            let (listen, peers) = (vec![ListenAddress::plain(address)], Vec::new());
            let seed = PeersSeed {
                identity,
                boot: 1,
                urls,
                listen,
                tls: own_tls(),
                connections_max,
                peers,
                views: viewed,
                counters: counted,
            };
            let emit = move |event| {
                let see = see.clone();
                drop(see.send(match event {
                    PeerEvent::Version(..) => return,
                    PeerEvent::Received { from, messages, .. } => Seen::Messages(from, messages),
                    PeerEvent::Connected(peer) => Seen::Connected(peer),
                    PeerEvent::Lost(peer) => Seen::Lost(peer),
                    PeerEvent::Unsent(batch) => Seen::Unsent(batch),
                    PeerEvent::Removed(_) => Seen::Removed,
                    PeerEvent::Snapshot(mut opened) => {
                        let reading = async move {
                            let mut bytes = Vec::new();
                            opened.stream.read_to_end(&mut bytes).await.unwrap();
                            let _ = see.send(Seen::Snapshot(opened.from, bytes));
                        };
                        glommio::spawn_local(reading).detach();
                        return;
                    }
                }));
            };
            let mut peers = Peers::start(seed, emit).unwrap();
            up.send(()).unwrap();
            loop {
                match take.try_recv() {
                    Ok(Order::Send(to, messages)) => peers.send(to, &messages),
                    Ok(Order::SetPeers(others)) => peers.set_peers(others),
                    Ok(Order::Snapshot(to, bytes)) => {
                        let caller = Caller { identity, boot: 1, urls: [].into(), tls: own_tls() };
                        let mut stream = caller.open_for_snapshot(&to).await.unwrap();
                        stream.write_all(&bytes).await.unwrap();
                        stream.close().await.unwrap();
                    }
                    Ok(Order::Stop) => return peers.stop().await,
                    Err(_) => sleep(Duration::from_millis(2)).await,
                }
            }
        });
        is_up.recv_timeout(PATIENCE).unwrap();
        Self { id, address, seen, orders, counters, views, core: Some(core.unwrap()) }
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn knows(&self, others: &[&TestMember]) {
        let peer = |other: &&TestMember| Peer { id: other.id, urls: vec![url(other.address)] };
        self.order(Order::SetPeers(others.iter().map(peer).collect()));
    }

    fn expect(&self, expected: &Seen) {
        assert_eq!(self.seen.recv_timeout(PATIENCE).as_ref(), Ok(expected), "member {}", self.id);
    }

    /// Sends to another member, again whenever it is told that something was lost.
    fn reaches(&self, other: &TestMember, number: u64) {
        for _ in 0..1000 {
            self.order(Order::Send(other.id, vec![word(number)]));
            match other.seen.recv_timeout(Duration::from_millis(500)) {
                Ok(seen) => return assert_eq!(seen, Seen::Messages(self.id, vec![word(number)])),
                Err(_) => while self.seen.recv_timeout(PATIENCE).unwrap() != Seen::Connected(other.id) {},
            }
        }
        panic!("member {} does not reach member {}", self.id, other.id);
    }

    /// A connection to it that has said these first words; its answer.
    fn dial(&self, hello: &Hello) -> (TcpStream, Answer) {
        let mut stream = self.connect();
        stream.write_all(&hello.encode()).unwrap();
        let answer = first_words(&mut stream);
        (stream, Answer::decode(&answer).unwrap())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for TestMember {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(core) = self.core.take() {
            let _ = core.join();
        }
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A message whose loss is told.
fn word(number: u64) -> PeerMessage {
    PeerMessage::Refused { ids: vec![CommandId(number)], why: Error::LeaseNotFound }
}

/// With so many bytes.
fn outcome(bytes: usize) -> Outcome {
    Outcome { revision: 4, result: Ok(Bytes::from(vec![7; bytes])), rest: Rest::NONE }
}

fn first_words(stream: &mut TcpStream) -> Vec<u8> {
    let (mut words, mut buffer) = (Vec::new(), [0; HELLO_BYTES_MAX]);
    while let more @ 1.. = missing(&words).unwrap() {
        let read = stream.read(&mut buffer[..more]).unwrap();
        assert!(read > 0, "closed behind {words:?}");
        words.extend_from_slice(&buffer[..read]);
    }
    words
}

/// The bytes that come until the other side closes, without its signs of life.
fn until_closed(stream: &mut TcpStream) -> usize {
    let (mut buffer, mut read) = ([0; 1024], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return read,
            Ok(more) => read += buffer[..more].iter().filter(|byte| **byte != b'.').count(),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return read,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Member 3 dials member 1.
fn hello() -> Hello {
    let from = Identity { cluster: CLUSTER, member: 3 };
    Hello { purpose: Purpose::Messages, from, to: 1, boot: 9, urls: vec![], version: "0".to_owned() }
}

/// Members 1 and 2, connected both ways.
fn two_that_know_each_other() -> (TestMember, TestMember) {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    one.knows(&[&two]);
    one.expect(&Seen::Connected(2));
    (one, two)
}

fn framed(messages: &[PeerMessage]) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode(messages, &mut out);
    out
}

#[test]
fn members_talk_and_find_each_other_again() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    one.knows(&[&one, &two]);
    one.expect(&Seen::Connected(2));
    two.knows(&[&one, &two]);
    two.expect(&Seen::Connected(1));
    one.reaches(&two, 1);
    two.reaches(&one, 2);
    let large = PeerMessage::LeaseAnswer { id: CommandId(3), outcome: outcome(5 << 20) };
    let many: Vec<_> = (0..1000).map(word).chain([large, word(1000)]).collect();
    one.order(Order::Send(2, many.clone()));
    let mut came = Vec::new();
    while came.len() < many.len() {
        match two.seen.recv_timeout(PATIENCE).unwrap() {
            Seen::Messages(1, messages) => came.extend(messages),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(came, many);
    let address = two.address;
    drop(two);
    // Both of their connections are gone: the second one may be told of after the first one.
    one.expect(&Seen::Lost(2));
    let two = TestMember::start(2, address);
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    while one.seen.recv_timeout(PATIENCE).unwrap() != Seen::Connected(2) {}
    one.reaches(&two, 5);
    one.order(Order::SetPeers(vec![]));
    while one.seen.recv_timeout(PATIENCE).unwrap() != Seen::Lost(2) {}
}

#[test]
fn what_raft_would_not_repeat_is_reported_lost() {
    let one = TestMember::start(1, free_address());
    one.order(Order::SetPeers(vec![Peer { id: 2, urls: vec![url(free_address())] }]));
    one.order(Order::Send(2, vec![word(1)]));
    one.expect(&Seen::Lost(2));
}

#[test]
fn a_peer_that_moved_is_found_at_its_other_url() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    // A name may stand for several addresses; two listens on one of them. A row has a URL as it
    // was written.
    let name = format!(" HTTP://localhost:{}", two.address.port());
    let urls = vec!["https://localhost:1".to_owned(), url(free_address()), name];
    one.order(Order::SetPeers(vec![Peer { id: 2, urls }]));
    one.expect(&Seen::Connected(2));
    one.reaches(&two, 1);
}

#[test]
fn strangers_are_refused_and_others_untouched() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    let refused = |change: fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        let (mut stream, answer) = one.dial(&hello);
        assert_eq!(until_closed(&mut stream), 0);
        answer.refusal
    };
    assert_eq!(refused(|hello| hello.from.cluster = 8), Some(Refusal::Cluster));
    assert_eq!(refused(|hello| hello.to = 4), Some(Refusal::Member));
    assert_eq!(refused(|hello| hello.from.member = 1), Some(Refusal::SameMember));
    // Another version of the protocol is told which one is spoken here.
    let mut words = hello().encode();
    words[13] = 99;
    let crc = crc32fast::hash(&words[12..]);
    words[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut stream = one.connect();
    stream.write_all(&words).unwrap();
    let answer = Answer::decode(&first_words(&mut stream)).unwrap();
    assert_eq!(answer.refusal, Some(Refusal::Protocol));
    // Damaged first words have no answer.
    let mut words = hello().encode();
    words[20] ^= 1;
    let mut stream = one.connect();
    stream.write_all(&words).unwrap();
    assert_eq!(until_closed(&mut stream), 0);
    for garbage in [&[0; 5000][..], &[0xff; 5000], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = one.connect();
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        until_closed(&mut stream);
    }
    two.reaches(&one, 1);
}

#[test]
fn frames_that_no_member_sends_end_their_connection_alone() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    let oversized = frame::header_of(u32::MAX).to_vec();
    let mut flipped = framed(&[word(1)]);
    *flipped.last_mut().unwrap() ^= 1;
    let mut unknown = Vec::new();
    let start = frame::begin(&mut unknown);
    unknown.extend_from_slice(&[77, 0, 0, 0, 0]);
    frame::finish(&mut unknown, start);
    let command = Command { id: CommandId(1), kind: Kind::Put, payload: Bytes::new() };
    let foreign = command::encode(Origin { member: 2, boot: 1 }, &[command]);
    let foreign = framed(&[PeerMessage::Forward(foreign.into())]);
    for bytes in [vec![0; 100], oversized, flipped, unknown, foreign] {
        let (mut stream, answer) = one.dial(&hello());
        assert_eq!(answer.refusal, None);
        stream.write_all(&framed(&[word(9)])).unwrap();
        stream.write_all(&bytes).unwrap();
        until_closed(&mut stream);
        one.expect(&Seen::Messages(3, vec![word(9)]));
        one.expect(&Seen::Lost(3));
    }
    two.reaches(&one, 1);
}

#[test]
fn a_second_connection_of_a_member_replaces_its_first() {
    let one = TestMember::start(1, free_address());
    let (mut first, _) = one.dial(&hello());
    first.write_all(&framed(&[word(1)])).unwrap();
    one.expect(&Seen::Messages(3, vec![word(1)]));
    let (mut second, _) = one.dial(&hello());
    until_closed(&mut first);
    one.expect(&Seen::Lost(3));
    second.write_all(&framed(&[word(2)])).unwrap();
    one.expect(&Seen::Messages(3, vec![word(2)]));
}

#[test]
fn a_snapshot_has_a_connection_of_its_own() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    one.knows(&[&two]);
    one.expect(&Seen::Connected(2));
    let (peer, bytes) = (Peer { id: 2, urls: vec![url(two.address)] }, vec![7; 3 << 20]);
    one.order(Order::Snapshot(peer, bytes.clone()));
    two.expect(&Seen::Snapshot(1, bytes));
    one.reaches(&two, 1);
}

#[test]
fn a_member_that_was_removed_is_told_so() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    one.knows(&[&two]);
    two.knows(&[&one]);
    one.expect(&Seen::Connected(2));
    one.views.store(view(&[2]));
    one.order(Order::SetPeers(vec![]));
    while two.seen.recv_timeout(PATIENCE).unwrap() != Seen::Removed {}
}

/// A state that was received may be older than the list of members that a new one began with.
#[test]
fn a_member_that_is_missing_for_a_while_was_not_removed() {
    let (one, two) = two_that_know_each_other();
    one.order(Order::SetPeers(vec![]));
    while let Ok(seen) = two.seen.recv_timeout(Duration::from_millis(500)) {
        assert_ne!(seen, Seen::Removed);
    }
    one.knows(&[&two]);
    two.expect(&Seen::Connected(1));
}

/// A member of another cluster at the address of a peer cannot say that this one was removed.
#[test]
fn a_stranger_cannot_say_that_a_member_was_removed() {
    let one = TestMember::start(1, free_address());
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = vec![url(stranger.local_addr().unwrap())];
    one.order(Order::SetPeers(vec![Peer { id: 3, urls }]));
    let mut answer = Answer {
        refusal: Some(Refusal::Removed),
        protocol: PROTOCOL,
        from: Identity { cluster: 8, member: 3 },
        boot: 1,
        version: "0".to_owned(),
    };
    for cluster in [8, CLUSTER] {
        answer.from.cluster = cluster;
        let (mut dialed, _) = stranger.accept().unwrap();
        first_words(&mut dialed);
        assert!(one.seen.try_recv().is_err(), "nothing is told before its own cluster answers");
        dialed.write_all(&answer.encode()).unwrap();
    }
    one.expect(&Seen::Removed);
}

/// Member 3, as far as it has agreed to the hello of `one`: it neither reads nor writes any more.
fn dialed_by(one: &TestMember) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer { id: 3, urls: vec![url(listener.local_addr().unwrap())] };
    one.order(Order::SetPeers(vec![peer]));
    let (mut dialed, _) = listener.accept().unwrap();
    let hello_of_one = Hello::decode(&first_words(&mut dialed)).unwrap();
    assert_eq!((hello_of_one.from.member, hello_of_one.to), (1, 3));
    let agreed = Answer {
        refusal: None,
        protocol: PROTOCOL,
        from: Identity { cluster: CLUSTER, member: 3 },
        boot: 1,
        version: "0".to_owned(),
    };
    dialed.write_all(&agreed.encode()).unwrap();
    one.expect(&Seen::Connected(3));
    dialed
}

/// Connections on which nothing comes any more: before a hello, within a frame, and to a listener
/// that has answered and is dead.
#[test]
fn half_open_connections_are_given_up() {
    let one = TestMember::start(1, free_address());
    let _dialed = dialed_by(&one);
    let mut mute = one.connect();
    let (mut stuck, _) = one.dial(&hello());
    stuck.write_all(&framed(&[word(1)])[..20]).unwrap();
    until_closed(&mut mute);
    until_closed(&mut stuck);
    assert_eq!(one.counters.bounds.get(Bound::PeerSilence), 2);
    let mut lost = 0;
    while lost < 2 {
        lost += usize::from(one.seen.recv_timeout(PATIENCE).unwrap() == Seen::Lost(3));
    }
}

/// The status line, and everything, of the reply to a request.
fn request(one: &TestMember, target: &str) -> (String, String) {
    let mut stream = one.connect();
    let request = format!("GET {target} HTTP/1.1\r\nhost: peer\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    (reply.lines().next().unwrap().to_owned(), reply)
}

/// Programs that are no members cannot keep members away, however many connections they open.
#[test]
fn strangers_have_half_of_the_places_and_the_newest_has_the_oldest_ones() {
    let one = TestMember::start(1, free_address());
    let two = TestMember::start(2, free_address());
    let (mut unknown, _) = one.dial(&hello());
    let mut crowd: Vec<TcpStream> = (0..4).map(|_| one.connect()).collect();
    assert_eq!(until_closed(&mut unknown), 0);
    one.expect(&Seen::Lost(3));
    crowd.extend((0..20).map(|_| one.connect()));
    let newest = crowd.split_off(20);
    crowd.iter_mut().for_each(|stream| assert_eq!(until_closed(stream), 0));
    assert_eq!(one.counters.bounds.get(Bound::PeerConnections), 21);
    one.knows(&[&two]);
    one.expect(&Seen::Connected(2)); // from here on member 2 is no stranger
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    let crowd: Vec<TcpStream> = (0..20).map(|_| one.connect()).collect();
    two.reaches(&one, 1);
    drop((newest, crowd));
    assert_eq!(request(&one, "/raft/probing").0, "HTTP/1.1 200 OK");
    assert!(two.seen.try_recv().is_err(), "it kept its connection");
}

/// A program can call itself any number of members: together they hold no more than one long frame.
#[test]
fn frames_of_unknown_members_are_bounded_together() {
    let one = TestMember::start(1, free_address());
    let long = |from: u64| {
        let mut hello = hello();
        hello.from.member = from;
        let (mut stream, answer) = one.dial(&hello);
        assert_eq!(answer.refusal, None);
        let header = frame::header_of(u32::try_from(PEER_FRAME_BYTES_MAX).unwrap());
        stream.write_all(&header).unwrap();
        stream
    };
    let (mut first, mut second) = (long(3), long(4));
    let half = vec![7; PEER_FRAME_BYTES_MAX / 2];
    first.write_all(&half).unwrap();
    // Of its bytes, some find no taker any more.
    let _ = second.write_all(&half).and_then(|()| second.write_all(&half));
    one.expect(&Seen::Lost(4));
    drop(first);
    one.expect(&Seen::Lost(3));
}

#[test]
fn tools_are_answered_on_the_peer_port() {
    let one = TestMember::start(1, free_address());
    let (status, reply) = request(&one, "/members");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(reply.to_lowercase().contains("x-etcd-cluster-id: 7\r\n"), "{reply}");
    let rows: serde_json::Value = serde_json::from_str(reply.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let row = serde_json::json!({
        "id": 1, "peerURLs": ["http://localhost:2380"], "isLearner": true, "name": "one",
    });
    assert_eq!(rows, serde_json::json!([row]));
    assert!(request(&one, "/version").1.contains(r#""etcdserver":"3."#));
    assert!(request(&one, "/raft/probing").1.contains(r#""OK":true"#));
    for target in ["/health", "/metrics", "/raft", "/"] {
        assert_eq!(request(&one, target).0, "HTTP/1.1 404 Not Found", "{target}");
    }
}
