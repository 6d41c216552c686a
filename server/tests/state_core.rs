//! The state core alone: orders and entries in, news out.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use revd::apply::command::{Command, CommandId, Kind, Origin};
use revd::apply::{DurableIndex, Machine, MachineConfig, Work};
use revd::cores::state::{self, StateSeed};
use revd::cores::{News, NewsItem};
use revd::error::Error;
use revd::observe::counters::Counters;
use revd::raft::status::NodeStatus;
use revd::read::view_slot::ViewSlot;
use revd::reserve::Reserve;
use revd::xcore::latch::Latch;
use revd::xcore::mailbox::{Receiver, ReceiverSeed, Sender, SenderSeed, pair};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;

const MEMBER: u64 = 1;

/// What the other cores have of it.
struct Around {
    to_state: SenderSeed<Vec<Work>>,
    to_log: ReceiverSeed<DurableIndex>,
    to_edge: ReceiverSeed<News>,
    ready: Latch,
}

/// A state core whose member leads, with one edge.
fn seeds() -> (StateSeed, Around) {
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    let own = Origin { member: MEMBER, boot: 1 };
    let config = MachineConfig { own, quota_bytes: 0, lease_extension: 0 };
    let mut machine = Machine::new(store, config).unwrap();
    let status = Arc::new(NodeStatus::default());
    status.term.store(2);
    status.leader.store(MEMBER);
    let (to_state, from_log) = pair(8);
    let (to_log, from_state) = pair(8);
    let (to_edge, from_core) = pair(8);
    let ready = Latch::default();
    let seed = StateSeed {
        views: Arc::new(ViewSlot::new(machine.store_mut().view(), 1)),
        machine,
        from_log,
        to_log,
        to_edges: vec![to_edge],
        status,
        counters: Arc::new(Counters::new(1)),
        reserve: Arc::new(Reserve::new(std::env::temp_dir().join("revd-no-reserve"), 0)),
        member: MEMBER,
        ready: ready.clone(),
    };
    (seed, Around { to_state, to_log: from_state, to_edge: from_core, ready })
}

/// The outcome of an order.
async fn order(
    to_state: &Sender<Vec<Work>>,
    from_state: &Receiver<News>,
    kind: Kind,
) -> Result<Bytes, Error> {
    let id = CommandId::new(0, 1, 1);
    assert!(to_state.send(vec![Work::Local(Command { id, kind, payload: Bytes::new() })]).await);
    loop {
        for item in from_state.receive().await.unwrap() {
            if let NewsItem::Outcome(_, outcome) = item {
                return outcome.result;
            }
        }
    }
}

/// Whatever the log says of leadership, no lease has a deadline before clients can come.
#[test]
fn leases_have_no_time_before_the_member_is_ready() {
    let (seed, around) = seeds();
    let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let running = glommio::spawn_local(state::run(seed));
        let to_state = around.to_state.open().await;
        let from_state = glommio::spawn_local(around.to_log.open());
        let from_core = around.to_edge.open().await;
        assert_eq!(order(&to_state, &from_core, Kind::LeaseLeft).await, Err(Error::NoLeader));
        around.ready.set();
        assert!(order(&to_state, &from_core, Kind::LeaseLeft).await.is_ok());
        drop(to_state);
        running.await.unwrap();
        drop(from_state.await);
    });
    core.unwrap().join().unwrap();
}
