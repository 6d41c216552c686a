//! States on their way between members, over loopback sockets and files: what comes, what is
//! refused, and what is left of a state that does not come to its end.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use revd::config::{ListenAddress, TlsConfig};
use revd::disk::received::ReceivedFiles;
use revd::net::tls::TlsDomain;
use revd::observe::counters::Counters;
use revd::peer::states::States;
use revd::peer::{PeerEvent, Peers, PeersSeed};
use revd::queues::queue::LocalQueue;
use revd::queues::sleep::sleep;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, SavedState, Store};
use revd_member::cluster::Identity;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::hello::{Answer, HELLO_BYTES_MAX, Hello, Purpose, missing};
use revd_member::peer::{Peer, frame};
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use tempfile::TempDir;

const CLUSTER: u64 = 7;
/// Term and leader that the receiver follows.
const LED_BY: (u64, u64) = (5, 2);

/// For what must happen; a test that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum Seen {
    /// From a member, of a term: a state up to this entry.
    Received(u64, u64, u64),
    Sent(u64, bool),
}

enum Order {
    Send(Peer, SavedState),
    /// The state that has come is of no use.
    Discard,
    Stop,
}

enum News {
    Peer(PeerEvent),
    Core(LogEvent),
}

/// One member's peers and states, on a core of their own.
struct TestMember {
    id: u64,
    address: SocketAddr,
    dir: TempDir,
    seen: Receiver<Seen>,
    orders: Sender<Order>,
    core: Option<ExecutorJoinHandle<()>>,
}

impl TestMember {
    fn start(id: u64) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (dir, (see, seen), (orders, take)) = (TempDir::new().unwrap(), channel(), channel());
        let (up, is_up) = channel();
        let files = ReceivedFiles::new(dir.path(), None);
        let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
            let status = Arc::new(MemberStatus::default());
            status.term.store(LED_BY.0);
            status.leader.store(LED_BY.1);
            let view = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap().view();
            let seed = PeersSeed {
                identity: Identity { cluster: CLUSTER, member: id },
                boot: 1,
                urls: vec![],
                listen: vec![ListenAddress::plain(address)],
                tls: TlsDomain::open("peer", TlsConfig::default()).unwrap(),
                connections_max: 8,
                peers: Vec::new(),
                views: Arc::new(ViewSlot::new(view, 0)),
                counters: Arc::new(Counters::new(0)),
            };
            let news = LocalQueue::new();
            let (of_peers, of_states) = (Rc::clone(&news), Rc::clone(&news));
            let peers = Peers::start(seed, move |event| of_peers.push(News::Peer(event))).unwrap();
            let emit = move |event| of_states.push(News::Core(event));
            let states = States::new(peers.caller(), files, status, emit);
            up.send(()).unwrap();
            let mut here = None;
            loop {
                for event in news.take_now() {
                    match event {
                        News::Peer(PeerEvent::Snapshot(connection)) => states.receive(connection),
                        News::Peer(event) => panic!("{event:?}"),
                        News::Core(LogEvent::StateReceived { from, term, state }) => {
                            see.send(Seen::Received(from, term, state.applied().index)).unwrap();
                            here = Some(state);
                        }
                        News::Core(LogEvent::StateSent { to, is_there }) => {
                            see.send(Seen::Sent(to, is_there)).unwrap();
                        }
                        News::Core(event) => panic!("{event:?}"),
                    }
                }
                match take.try_recv() {
                    Ok(Order::Send(to, state)) => states.send(to, LED_BY.0, Some(state)),
                    Ok(Order::Discard) => states.discard(here.take().unwrap()),
                    Ok(Order::Stop) => return peers.stop().await,
                    Err(_) => sleep(Duration::from_millis(2)).await,
                }
            }
        });
        is_up.recv().unwrap();
        Self { id, address, dir, seen, orders, core: Some(core.unwrap()) }
    }

    fn expect(&self, expected: &Seen) {
        assert_eq!(self.seen.recv_timeout(PATIENCE).as_ref(), Ok(expected), "member {}", self.id);
    }

    fn send(&self, to: &Self, state: &SavedState) {
        let peer = Peer { id: to.id, urls: vec![format!("http://{}", to.address)] };
        self.orders.send(Order::Send(peer, state.clone())).unwrap();
    }

    /// Waits until its directory has these files and no others.
    fn has_files(&self, expected: &[&str]) {
        let mut found = Vec::new();
        for _ in 0..6_000 {
            let names = std::fs::read_dir(self.dir.path()).unwrap();
            found = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            found.sort();
            if found == expected {
                return;
            }
            pause(Duration::from_millis(10));
        }
        panic!("{found:?} instead of {expected:?}");
    }

    /// A program that says that it is a member and sends a state in the name of a term's leader.
    fn dial(&self, from: u64, term: u64, bytes: u64) -> Dialed {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let identity = Identity { cluster: CLUSTER, member: from };
        let (purpose, version) = (Purpose::Snapshot, "0".to_owned());
        let hello = Hello { purpose, from: identity, to: self.id, boot: 9, urls: vec![], version };
        stream.write_all(&hello.encode()).unwrap();
        let (mut answer, mut buffer) = (Vec::new(), [0; HELLO_BYTES_MAX]);
        while let more @ 1.. = missing(&answer).unwrap() {
            let read = stream.read(&mut buffer[..more]).unwrap();
            answer.extend_from_slice(&buffer[..read]);
        }
        assert_eq!(Answer::decode(&answer).unwrap().refusal, None);
        let mut dialed = Dialed(stream);
        dialed.send(&[&term.to_le_bytes()[..], &bytes.to_le_bytes()].concat());
        dialed
    }

    /// The same, asked again while the place is that of a discarded state: its files have lost
    /// their names a while before it is free.
    fn dial_a_free_place(&self, from: u64, term: u64, bytes: u64) -> Dialed {
        for _ in 0..6_000 {
            let mut dialed = self.dial(from, term, bytes);
            match dialed.word() {
                Some(b'+') => return dialed,
                Some(b'-') => pause(Duration::from_millis(10)),
                other => panic!("{other:?}"),
            }
        }
        panic!("the place is never free");
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

struct Dialed(TcpStream);

impl Dialed {
    fn send(&mut self, payload: &[u8]) {
        let mut bytes = Vec::new();
        let start = frame::begin(&mut bytes);
        bytes.extend_from_slice(payload);
        frame::finish(&mut bytes, start);
        self.0.write_all(&bytes).unwrap();
    }

    /// The next word that is no sign of life; none if the connection is closed.
    fn word(&mut self) -> Option<u8> {
        let mut word = [0];
        loop {
            match self.0.read(&mut word) {
                Ok(0) => return None,
                Ok(_) if word == *b"." => {}
                Ok(_) => return Some(word[0]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test looks at files, and sends slowly")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// A state up to entry 5.
fn state() -> SavedState {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    for number in 0..600_u32 {
        let mut txn = store.begin();
        txn.put(&number.to_le_bytes(), &[7; 1_000], 0);
        txn.commit();
    }
    store.set_applied(Applied { index: 5, term: 3 });
    let checkpoint = store.checkpoint(CheckpointKind::Auto).unwrap();
    store.finish_checkpoint(checkpoint.write().unwrap());
    store.saved_state().unwrap()
}

fn chunks(state: &SavedState) -> Vec<Vec<u8>> {
    let (mut stream, mut chunks, mut chunk) = (state.stream(), Vec::new(), Vec::new());
    while stream.next_chunk(&mut chunk).unwrap() {
        chunks.push(chunk.clone());
    }
    assert!(chunks.len() > 3, "several chunks");
    chunks
}

#[test]
fn a_state_comes_and_another_one_when_there_is_a_place() {
    let (one, two, state) = (TestMember::start(1), TestMember::start(2), state());
    two.send(&one, &state);
    one.expect(&Seen::Received(2, LED_BY.0, 5));
    two.expect(&Seen::Sent(1, true));
    one.has_files(&["received.revd"]);
    two.send(&one, &state);
    two.expect(&Seen::Sent(1, false));
    one.orders.send(Order::Discard).unwrap();
    one.has_files(&[]);
    drop(one.dial_a_free_place(2, 5, 1));
    one.has_files(&[]);
    two.send(&one, &state);
    one.expect(&Seen::Received(2, LED_BY.0, 5));
    two.expect(&Seen::Sent(1, true));
}

/// It would take room on the disk until the next attempt or the next start.
#[test]
fn what_has_come_of_a_state_is_removed_when_the_rest_does_not_come() {
    let (one, chunks) = (TestMember::start(1), chunks(&state()));
    let mut damaged = chunks[1].clone();
    damaged[100] ^= 1;
    let too_long = vec![0; revd_engine::limits::TRANSFER_CHUNK_BYTES + 1];
    for next in [None, Some(damaged), Some(too_long)] {
        let mut sender = one.dial(2, 5, 1);
        assert_eq!(sender.word(), Some(b'+'));
        sender.send(&chunks[0]);
        one.has_files(&["receiving.tmp"]);
        if let Some(next) = next {
            sender.send(&next);
            assert_eq!(sender.word(), None);
        } else {
            drop(sender);
        }
        one.has_files(&[]);
    }
    assert!(one.seen.try_recv().is_err());
}

#[test]
fn a_state_for_which_the_disk_has_no_room_does_not_begin() {
    let one = TestMember::start(1);
    let mut sender = one.dial(2, 5, u64::MAX / 2);
    assert_eq!(sender.word(), Some(b'0'));
    assert_eq!(sender.word(), None);
    one.has_files(&[]);
    assert_eq!(one.dial(2, 5, 1).word(), Some(b'+'), "the place is free");
}

/// Any program that reaches the port could keep the member from catching up.
#[test]
fn the_leader_takes_the_place_of_others() {
    let (one, chunks) = (TestMember::start(1), chunks(&state()));
    let mut stranger = one.dial(3, 9, 1);
    assert_eq!(stranger.word(), Some(b'+'));
    stranger.send(&chunks[0]);
    assert_eq!(one.dial(4, 8, 1).word(), Some(b'-'), "a stranger as good as the first");
    let mut leader = one.dial(2, 5, 1);
    assert_eq!(leader.word(), Some(b'+'));
    assert_eq!(stranger.word(), None);
    assert_eq!(one.dial(3, 9, 1).word(), Some(b'-'));
    leader.send(&chunks[0]);
    let mut again = one.dial(2, 5, 1);
    assert_eq!(again.word(), Some(b'+'), "the leader has begun anew");
    assert_eq!(leader.word(), None);
    chunks.iter().for_each(|chunk| again.send(chunk));
    assert_eq!(again.word(), Some(b'!'));
    one.expect(&Seen::Received(2, 5, 5));
    one.has_files(&["received.revd"]);
}

/// A sender whose disk is slow shows that it lives, one that is gone does not.
#[test]
fn a_slow_sender_is_waited_for_and_a_silent_one_is_not() {
    let (one, chunks) = (TestMember::start(1), chunks(&state()));
    let mut slow = one.dial(2, 5, 1);
    assert_eq!(slow.word(), Some(b'+'));
    let (last, first) = chunks.split_last().unwrap();
    first.iter().for_each(|chunk| slow.send(chunk));
    for _ in 0..8 {
        pause(Duration::from_secs(1));
        slow.send(&[]);
    }
    slow.send(last);
    assert_eq!(slow.word(), Some(b'!'));
    one.expect(&Seen::Received(2, 5, 5));
    one.orders.send(Order::Discard).unwrap();
    one.has_files(&[]);
    let mut silent = one.dial_a_free_place(2, 5, 1);
    silent.send(&chunks[0]);
    assert_eq!(silent.word(), None);
    one.has_files(&[]);
}
