//! Bytes of other members: first words, messages, and what raft does with those that can be read.

use std::time::Duration;

use bytes::Bytes;
use revd_member::apply::Work;
use revd_member::apply::command::{Command, CommandId, Kind, Origin};
use revd_member::apply::local::Submitted;
use revd_member::apply::received::ReceivedState;
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::peer::frame::{self, FrameReader};
use revd_member::peer::hello::{self, Answer, Hello, PROTOCOL, Purpose, Refusal};
use revd_member::peer::{Peer, PeerMessage, Sender, codec};
use revd_member::raft::feed::LogFetch;
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::wal::FrameContent;
use revd_member::wal::birth::empty_log;

const MEMBERS: u64 = 3;
/// The one that hears the bytes, and the one that sends them.
const SENDER: Sender = Sender { from: 2, to: 1 };

pub fn hello(bytes: &[u8]) {
    let _ = hello::missing(bytes);
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes, "one meaning, one form");
        let _ = hello.judge(Identity { cluster: 1, member: SENDER.to });
    }
    if let Ok(answer) = Answer::decode(bytes) {
        assert_eq!(answer.encode(), bytes, "one meaning, one form");
    }
}

pub fn hello_seeds() -> Vec<Vec<u8>> {
    let from = Identity { cluster: 1, member: SENDER.from };
    let version = "0.1.0".to_owned();
    let urls = vec!["http://10.0.0.1:2380".to_owned(), "http://a.b:1".to_owned()];
    let (purpose, to) = (Purpose::Messages, SENDER.to);
    let hello = Hello { purpose, from, to, boot: 5, urls, version: version.clone() };
    let answer = Answer { refusal: None, protocol: PROTOCOL, from, boot: 5, version };
    let refused = Answer { refusal: Some(Refusal::Cluster), ..answer.clone() };
    vec![hello.encode(), answer.encode(), refused.encode()]
}

/// Bytes of a connection.
pub fn frames(bytes: &[u8]) {
    let (mut reader, mut rest) = (FrameReader::default(), bytes);
    while !rest.is_empty() {
        let Ok(payload) = reader.take(&mut rest) else { return };
        payload.into_iter().for_each(|payload| messages(&payload));
    }
}

pub fn frame_seeds() -> Vec<Vec<u8>> {
    let frame = |payload: Vec<u8>| {
        let mut out = Vec::new();
        let start = frame::begin(&mut out);
        out.extend_from_slice(&payload);
        frame::finish(&mut out, start);
        out
    };
    message_seeds().into_iter().map(frame).collect()
}

/// The payload of a frame.
pub fn messages(payload: &[u8]) {
    let Ok(messages) = codec::decode(Bytes::copy_from_slice(payload), SENDER) else { return };
    let mut out = Vec::new();
    codec::encode(&messages, &mut out);
    let (mut reader, mut rest) = (FrameReader::default(), &out[..]);
    let mut again = Vec::new();
    while !rest.is_empty() {
        let payload = reader.take(&mut rest).expect("a frame of ours").expect("all of it is there");
        again.extend(codec::decode(payload, SENDER).expect("messages of ours"));
    }
    assert_eq!(again, messages, "they survive the round trip");
}

/// A log core hears them in its turns, as follower, candidate and leader.
pub fn raft(payload: &[u8]) {
    let Ok(messages) = codec::decode(Bytes::copy_from_slice(payload), SENDER) else { return };
    let mut cluster = Cluster::new();
    let ticks = payload.iter().map(|byte| usize::from(*byte)).sum::<usize>() % 3 * 12;
    (0..ticks).for_each(|_| cluster.tick());
    let hearing = &mut cluster.members[0];
    for message in messages {
        hearing.event(LogEvent::Peer { from: SENDER.from, message });
    }
    (0..25).for_each(|_| hearing.event(LogEvent::Tick));
    (0..3).for_each(|_| cluster.tick());
}

/// All that one member says to another while three elect a leader and write.
pub fn message_seeds() -> Vec<Vec<u8>> {
    let mut cluster = Cluster::new();
    (0..80).for_each(|_| cluster.tick());
    let mut seeds = Vec::new();
    for messages in cluster.said.chunks(2).take(80) {
        let mut out = Vec::new();
        codec::encode(messages, &mut out);
        seeds.push(out.split_off(frame::FRAME_HEADER));
    }
    seeds
}

#[derive(Default)]
struct Effects {
    frame: Option<FrameContent>,
    messages: Vec<(u64, PeerMessage)>,
}

impl LogEffects for Effects {
    fn append(&mut self, frame: FrameContent) {
        self.frame = Some(frame);
    }

    fn release(&mut self, _index: u64) {}

    fn work(&mut self, _work: Work) {}

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.push((to, message));
    }

    fn fetch(&mut self, _fetch: LogFetch) {}

    fn set_peers(&mut self, _peers: Vec<Peer>) {}

    fn discard(&mut self, _state: Box<ReceivedState>) {}

    fn installed(&mut self) {}
}

struct Member {
    log: LogCore,
    effects: Effects,
}

impl Member {
    fn new(id: u64) -> Self {
        let config = RaftConfig {
            conf_state: ConfState::of_voters((1..=MEMBERS).collect()),
            seed: id,
            ..RaftConfig::alone(id, 1)
        };
        let log = empty_log(Identity { cluster: 1, member: id });
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RaftNode::start(&config, &log, &logger).expect("an empty log");
        let origin = Origin { member: id, boot: 1 };
        let config = LogConfig { origin, edges: 1, tick: Duration::from_millis(100) };
        let mut member = Self { log: LogCore::new(node, config), effects: Effects::default() };
        member.log.start(&mut member.effects).expect("raft starts");
        for other in (1..=MEMBERS).filter(|other| *other != id) {
            member.event(LogEvent::PeerConnected(other));
        }
        member
    }

    /// One turn, and the write that it asks for.
    fn event(&mut self, event: LogEvent) {
        self.log.receive(event, &mut self.effects);
        self.log.advance(&mut self.effects).expect("raft goes on");
        while self.effects.frame.take().is_some() {
            self.log.receive(LogEvent::Written, &mut self.effects);
            self.log.advance(&mut self.effects).expect("raft goes on");
        }
        let committed = self.log.status().committed;
        self.log.receive(LogEvent::Applied(committed), &mut self.effects);
    }
}

struct Cluster {
    members: Vec<Member>,
    ticks: u64,
    submitted: u64,
    /// By [`SENDER`].
    said: Vec<PeerMessage>,
}

impl Cluster {
    fn new() -> Self {
        Self { members: (1..=MEMBERS).map(Member::new).collect(), ticks: 0, submitted: 0, said: Vec::new() }
    }

    /// A tick of every member, and what they say to each other.
    fn tick(&mut self) {
        for member in &mut self.members {
            member.event(LogEvent::Tick);
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(4) {
            self.submit();
        }
        for _ in 0..6 {
            self.deliver();
        }
    }

    /// A command and a read at each member.
    fn submit(&mut self) {
        self.submitted += 1;
        for member in &mut self.members {
            let id = CommandId::new(0, 1, u32::try_from(self.submitted).unwrap_or(0));
            let command = Command { id, kind: Kind::Put, payload: Bytes::from_static(b"\x0a\x01k") };
            let submitted = Submitted {
                commands: vec![command],
                number: self.submitted,
                read: Some(self.submitted),
                ..Submitted::default()
            };
            member.event(LogEvent::Submitted { edge: 0, submitted });
        }
    }

    fn deliver(&mut self) {
        for from in 1..=MEMBERS {
            let from_member = &mut self.members[usize::try_from(from - 1).expect("a few members")];
            for (to, message) in std::mem::take(&mut from_member.effects.messages) {
                if (from, to) == (SENDER.from, SENDER.to) {
                    self.said.push(message.clone());
                }
                let to_member = &mut self.members[usize::try_from(to - 1).expect("a few members")];
                to_member.event(LogEvent::Peer { from, message });
            }
        }
    }
}
