//! A state that is received, and the log of before it; what is remembered of who was heard.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Store};

use super::*;
use crate::apply::DurableIndex;
use crate::apply::command::Kind;
use crate::apply::received::ReceivedState;
use crate::cluster::Identity;
use crate::cluster::conf_state::ConfState;
use crate::peer::Peer;
use crate::raft::feed::LogFetch;
use crate::raft::message::RaftMessage;
use crate::raft::node::RaftConfig;
use crate::wal::FrameContent;
use crate::wal::birth::{empty_log, joining_log};

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
        if let Work::Install(state) = work {
            self.0.push(format!("install {}", state.applied().index));
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

fn core(votes: &ConfState) -> LogCore {
    let config = RaftConfig { conf_state: votes.clone(), ..RaftConfig::alone(OWN, 1) };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let log = empty_log(Identity { cluster: 1, member: OWN });
    let node = RaftNode::start(&config, &log, &logger).unwrap();
    let origin = Origin { member: OWN, boot: 1 };
    LogCore::new(node, LogConfig { origin, edges: 1, tick: Duration::from_millis(100) })
}

/// Until the log has begun again, durably, and the state is the tree file, a crash leads back to
/// the log of before: it has to be there, however little room the disk has.
#[test]
fn the_log_of_before_stays_until_the_state_is_in_its_place() {
    let votes = ConfState::of_voters(vec![1, OWN, 3]);
    let mut core = core(&votes);
    let (state, durable) = state(50, &votes);
    let mut turn = |event| {
        let mut heard = Heard::default();
        core.receive(event, &mut heard);
        core.advance(&mut heard).unwrap();
        heard.0
    };
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
    let mut core = core(&ConfState { learners: vec![learner], ..ConfState::of_voters(vec![OWN]) });
    core.start(&mut heard).unwrap();
    core.receive(LogEvent::Written, &mut heard);
    core.advance(&mut heard).unwrap();
    assert!(core.status().is_leader);
    for from in [learner].into_iter().chain(1000..101_000) {
        let term = core.status().term;
        let mut beat = raft::eraftpb::Message { from, to: OWN, term, ..Default::default() };
        beat.set_msg_type(raft::eraftpb::MessageType::MsgHeartbeatResponse);
        let message = PeerMessage::Raft(RaftMessage(beat));
        core.receive(LogEvent::Peer { from, message }, &mut heard);
    }
    assert_eq!(core.leader_reads.heard.keys().collect::<Vec<_>>(), [&learner]);
}

/// Seeds 10012395, 10034998 of the simulator: a member that joined had told the others its name,
/// and lost power before a byte of its log was durable. It was taken for one that had been started
/// with another directory, could not start again, and its vote was missing for ever.
#[test]
fn a_member_that_joins_says_nothing_before_its_log_is_durable() {
    let config = RaftConfig { conf_state: ConfState::default(), ..RaftConfig::alone(OWN, 0) };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let log = joining_log(Identity { cluster: 1, member: OWN });
    let node = RaftNode::start(&config, &log, &logger).unwrap();
    let origin = Origin { member: OWN, boot: 1 };
    let mut core = LogCore::new(node, LogConfig { origin, edges: 1, tick: Duration::from_millis(100) });
    let mut turn = |event| {
        let mut heard = Heard::default();
        core.receive(event, &mut heard);
        core.advance(&mut heard).unwrap();
        heard.0
    };
    let name = Command { id: CommandId::new(0, 1, 0), kind: Kind::MemberAttributes, payload: Bytes::new() };
    let submitted = Submitted { commands: vec![name], number: 1, ..Submitted::default() };
    assert!(turn(LogEvent::PeerConnected(1)).is_empty());
    assert!(turn(LogEvent::Submitted { edge: 0, submitted }).is_empty());
    let mut heartbeat = vec![7, 0]; // as it comes from the network
    [OWN, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0].iter().for_each(|field| heartbeat.extend(u64::to_le_bytes(*field)));
    let message = PeerMessage::Raft(RaftMessage::decode(heartbeat.into()).unwrap());
    assert!(turn(LogEvent::Peer { from: 1, message }).is_empty(), "the term is yet to be durable");
    assert_eq!(turn(LogEvent::Written), ["forward to 1"]);
}
