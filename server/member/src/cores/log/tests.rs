//! A state that is received, and the log of before it; which senders are remembered; what a member
//! that joins may say.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Store};

use super::*;
use crate::apply::DurableIndex;
use crate::apply::command::{self, Kind};
use crate::apply::received::ReceivedState;
use crate::cluster::Identity;
use crate::cluster::conf_state::ConfState;
use crate::peer::Peer;
use crate::raft::feed::LogFetch;
use crate::raft::message::RaftMessage;
use crate::raft::node::RaftConfig;
use crate::wal::FrameContent;
use crate::wal::birth::{empty_log, joining_log};
use crate::wal::reader::RecoveredLog;

const OWN: u64 = 2;

/// The effects that these tests are about, in their order.
#[derive(Debug, Default)]
struct Heard(Vec<String>);

impl LogEffects for Heard {
    fn append(&mut self, frame: FrameContent) {
        let restart = frame.restart.map(|restart| format!("begin again behind {}", restart.index));
        self.0.extend(restart);
    }

    fn release(&mut self, index: u64) {
        self.0.push(format!("release up to {index}"));
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Install(state) => self.0.push(format!("install {}", state.applied().index)),
            Work::Answer(id, outcome) => {
                let why = outcome.result.map_err(|error| error.to_string());
                self.0.push(format!("answer {}: {why:?}", id.0));
            }
            Work::Lost(_) => self.0.push("all that has left is lost".to_owned()),
            _ => {}
        }
    }

    fn installed(&mut self) {
        self.0.push("another state may come".to_owned());
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        if let PeerMessage::Forward(_) = message {
            self.0.push(format!("forward to {to}"));
        }
    }

    fn fetch(&mut self, _: LogFetch) {}

    fn set_peers(&mut self, _: Vec<Peer>) {}

    fn discard(&mut self, state: Box<ReceivedState>) {
        self.0.push(format!("discard {}", state.applied().index));
    }
}

/// A state behind this entry, in a file of its own.
fn state(index: u64, votes: &ConfState) -> (Box<ReceivedState>, DurableIndex) {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    schema::put_conf_state(&mut store, votes);
    store.set_applied(Applied { index, term: 4 });
    let written = store.checkpoint(CheckpointKind::Auto).unwrap().write().unwrap();
    let durable = DurableIndex::of(&store.finish_checkpoint(written));
    (Box::new(ReceivedState::load(store).unwrap()), durable)
}

const OWNER: Identity = Identity { cluster: 1, member: OWN };

/// A member with these votes that has applied what its log begins behind.
fn core(votes: &ConfState, log: &RecoveredLog) -> LogCore {
    let config = RaftConfig { conf_state: votes.clone(), ..RaftConfig::alone(OWN, log.base.0) };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let node = RaftNode::start(&config, log, &logger).unwrap();
    let origin = Origin { member: OWN, boot: 1 };
    LogCore::new(node, LogConfig { origin, edges: 1, tick: Duration::from_millis(100) })
}

/// One event in a turn of its own, and what follows.
fn turn(core: &mut LogCore, event: LogEvent) -> Vec<String> {
    let mut heard = Heard::default();
    core.receive(event, &mut heard);
    core.advance(&mut heard).unwrap();
    heard.0
}

/// A message of raft, of a kind by its number on the wire, as it comes from the network.
fn said(kind: u8, from: u64, term: u64) -> LogEvent {
    let mut bytes = vec![kind, 0];
    [OWN, from, term, 0, 0, 0, 0, 0, 0, 0, 0].iter().for_each(|field| bytes.extend(u64::to_le_bytes(*field)));
    LogEvent::Peer { from, message: PeerMessage::Raft(RaftMessage::decode(bytes.into()).unwrap()) }
}

/// Until the log has begun again, durably, and the state is the tree file, a crash leads back to
/// the log of before: it has to be there, however little room the disk has.
#[test]
fn the_log_of_before_stays_until_the_state_is_in_its_place() {
    let votes = ConfState::of_voters(vec![1, OWN, 3]);
    let mut core = core(&votes, &empty_log(OWNER));
    let mut turn = |event| turn(&mut core, event);
    let (state, durable) = state(50, &votes);
    assert_eq!(turn(LogEvent::StateReceived { from: 1, term: 5, state }), ["begin again behind 50"]);
    assert!(turn(LogEvent::DiskRoom(0)).is_empty(), "the frame may not be durable");
    assert_eq!(turn(LogEvent::Written), ["install 50"]);
    assert!(turn(LogEvent::DiskRoom(0)).is_empty(), "the tree file is the one of before");
    let durable = turn(LogEvent::Durable(durable));
    assert_eq!(durable, ["release up to 50", "another state may come"]);
}

/// Without certificates any program can say that it is a member, each time another one.
#[test]
fn senders_that_are_no_members_are_not_remembered() {
    let (learner, mut heard) = (9, Heard::default());
    let votes = ConfState { learners: vec![learner], ..ConfState::of_voters(vec![OWN]) };
    let mut core = core(&votes, &empty_log(OWNER));
    core.start(&mut heard).unwrap();
    core.receive(LogEvent::Written, &mut heard);
    core.advance(&mut heard).unwrap();
    assert!(core.status().is_leader);
    for from in [learner].into_iter().chain(1000..101_000) {
        core.receive(said(8, from, core.status().term), &mut heard);
    }
    assert_eq!(core.leader_reads.heard.keys().collect::<Vec<_>>(), [&learner]);
}

/// Seeds 10012395, 10034998 of the simulator: a member that joined had told the others its name,
/// and lost power before a byte of its log was durable. It was taken for one that had been started
/// with another directory, could not start again, and its vote was missing for ever.
#[test]
fn a_member_that_joins_says_nothing_before_its_log_is_durable() {
    let mut core = core(&ConfState::default(), &joining_log(OWNER));
    let mut turn = |event| turn(&mut core, event);
    let name = Command { id: CommandId::new(0, 1, 0), kind: Kind::MemberAttributes, payload: Bytes::new() };
    let submitted = Submitted { commands: vec![name], number: 1, ..Submitted::default() };
    assert!(turn(LogEvent::PeerConnected(1)).is_empty());
    assert!(turn(LogEvent::Submitted { edge: 0, submitted }).is_empty());
    assert!(turn(said(7, 1, 5)).is_empty(), "the term is yet to be durable");
    assert_eq!(turn(LogEvent::Written), ["forward to 1"]);
}

/// The way to the leader is full for one batch: its callers alone are told, and those whose
/// commands are on their way wait for their outcomes. With the connection all of them are lost.
#[test]
fn a_batch_that_finds_no_room_is_refused_alone() {
    let mut core = core(&ConfState::default(), &joining_log(OWNER));
    let mut turn = |event| turn(&mut core, event);
    turn(LogEvent::PeerConnected(1));
    turn(said(7, 1, 5));
    turn(LogEvent::Written);
    let put = |id| Command { id: CommandId(id), kind: Kind::Put, payload: Bytes::new() };
    for number in [1, 2] {
        let submitted = Submitted { commands: vec![put(number)], number, ..Submitted::default() };
        assert_eq!(turn(LogEvent::Submitted { edge: 0, submitted }), ["forward to 1"]);
    }
    let origin = Origin { member: OWN, boot: 1 };
    let batch = command::encode(origin, &[put(2), put(3)]).into();
    let refused = r#"Err("etcdserver: too many requests")"#;
    assert_eq!(turn(LogEvent::Unsent(batch)), [2, 3].map(|id| format!("answer {id}: {refused}")));
    assert_eq!(turn(LogEvent::PeerLost(1)), ["all that has left is lost"]);
}
