//! Members that dial one that does not know them, or knows them under another address.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use revd::limits::PEER_GUESTS_MAX;
use revd_member::cluster::Identity;
use revd_member::peer::Peer;
use revd_member::peer::hello::{Answer, Hello, PROTOCOL, Refusal};

use crate::{
    CLUSTER, Order, PATIENCE, Seen, TestMember, first_words, free_address, hello, two_that_know_each_other,
    url, view, word,
};

/// Member 1 does not know member 2, which says in its hellos where it listens, and is dialed back.
fn host_and_guest() -> (TestMember, TestMember) {
    let one = TestMember::start(1, free_address());
    let two_is_at = free_address();
    let two = TestMember::start_naming(2, two_is_at, vec![url(two_is_at)]);
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    one.expect(&Seen::Connected(2));
    (one, two)
}

/// One that was added while this one was away is dialed back for as long as it dials.
#[test]
fn a_member_that_is_not_known_here_gets_answers_while_it_dials() {
    let (one, two) = host_and_guest();
    one.reaches(&two, 1);
    one.knows(&[&two]); // by the log, too: the connection stays
    one.reaches(&two, 2);
    drop(two);
    one.expect(&Seen::Lost(2));
}

/// It stays connected, and programs that are none cannot have its place from then on.
#[test]
fn a_guest_that_becomes_known_has_a_members_place() {
    let (one, two) = host_and_guest();
    one.knows(&[&two]);
    one.reaches(&two, 1);
    let crowd: Vec<TcpStream> = (0..20).map(|_| one.connect()).collect();
    // The last of the crowd has one of the places that strangers have.
    let newest = one.dial(&hello());
    two.reaches(&one, 2);
    drop((crowd, newest));
    assert!(two.seen.try_recv().is_err(), "it kept its connection");
}

/// One that was added and removed again while this one was away learns of it here, too.
#[test]
fn a_guest_that_was_removed_is_told() {
    let (one, two) = host_and_guest();
    one.views.store(view(&[2]));
    while two.seen.recv_timeout(PATIENCE).unwrap() != Seen::Removed {}
}

/// A state that was received may be older than a member that leads by now: nobody else says that it
/// is one.
#[test]
fn a_member_that_is_missing_for_long_is_a_guest() {
    let (one, two) = two_that_know_each_other();
    one.order(Order::SetPeers(vec![]));
    while one.seen.recv_timeout(PATIENCE).unwrap() != Seen::Lost(2) {}
    let is_heard = (0..600).any(|number| {
        two.order(Order::Send(1, vec![word(number)]));
        matches!(one.seen.recv_timeout(Duration::from_millis(100)), Ok(Seen::Messages(2, _)))
    });
    assert!(is_heard);
}

/// One that has moved while this one was away says where it is.
#[test]
fn a_member_that_has_moved_is_dialed_where_it_says() {
    let one = TestMember::start(1, free_address());
    let two_is_at = free_address();
    let two = TestMember::start_naming(2, two_is_at, vec![url(two_is_at)]);
    one.order(Order::SetPeers(vec![Peer { id: 2, urls: vec![url(free_address())] }]));
    two.knows(&[&one]);
    two.expect(&Seen::Connected(1));
    one.expect(&Seen::Connected(2));
    one.reaches(&two, 1);
}

/// Any program can call itself a member that is not known here: its word ends no member.
#[test]
fn a_guest_cannot_say_that_a_member_was_removed() {
    let one = TestMember::start(1, free_address());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = vec![url(listener.local_addr().unwrap())];
    let mut connections = Vec::new();
    for member in 3..6 {
        let from = Identity { cluster: CLUSTER, member };
        connections.push(one.dial(&Hello { from, urls: urls.clone(), ..hello() }).0);
    }
    let mut dialed = BTreeSet::new();
    while dialed.len() < 3 {
        let (mut stream, _) = listener.accept().unwrap();
        let hello = Hello::decode(&first_words(&mut stream)).unwrap();
        dialed.insert(hello.to);
        let from = Identity { cluster: CLUSTER, member: hello.to };
        let refusal = Some(Refusal::Removed);
        let answer = Answer { refusal, protocol: PROTOCOL, from, boot: 1, version: "0".to_owned() };
        stream.write_all(&answer.encode()).unwrap();
    }
    while let Ok(seen) = one.seen.recv_timeout(Duration::from_millis(300)) {
        assert_ne!(seen, Seen::Removed, "a guest's word does not end a member");
    }
}

/// Any program can have members dialed by their names: a few at a time.
#[test]
fn guests_are_few() {
    let one = TestMember::start_with(1, free_address(), vec![], 4 * PEER_GUESTS_MAX);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = vec![url(listener.local_addr().unwrap())];
    let mut connections = Vec::new();
    for member in (10..).take(PEER_GUESTS_MAX + 3) {
        let from = Identity { cluster: CLUSTER, member };
        let boot = member;
        connections.push(one.dial(&Hello { from, boot, urls: urls.clone(), ..hello() }).0);
    }
    let mut dialed = BTreeSet::new();
    // Each is dialed again and again: those that are left out would be among so many.
    for _ in 0..PEER_GUESTS_MAX * 4 {
        let (mut stream, _) = listener.accept().unwrap();
        dialed.insert(Hello::decode(&first_words(&mut stream)).unwrap().to);
    }
    assert_eq!(dialed.len(), PEER_GUESTS_MAX, "{dialed:?}");
}

/// It dials again, and there may be a place then.
#[test]
fn a_guest_without_a_place_is_sent_away() {
    let one = TestMember::start_with(1, free_address(), vec![], 4 * PEER_GUESTS_MAX);
    let urls = vec![url(free_address())];
    let dial = |member| {
        let from = Identity { cluster: CLUSTER, member };
        one.dial(&Hello { from, boot: member, urls: urls.clone(), ..hello() }).0
    };
    let is_sent_away = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        match stream.read(&mut [0; 1]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    };
    let held: Vec<_> = (10..).take(PEER_GUESTS_MAX).map(dial).collect();
    assert!(is_sent_away(dial(99)));
    drop(held);
    assert!((0..600).any(|_| !is_sent_away(dial(99))));
}
