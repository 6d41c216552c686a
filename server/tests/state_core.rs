//! The state core alone: orders and entries in, news out.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use prost::Message as _;
use revd::apply::command::{Command, CommandId, Kind, Origin, encode};
use revd::apply::{CommittedEntry, DurableIndex, Machine, MachineConfig, Work};
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
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest,
};

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

/// An entry that grants lease 7 and attaches so many keys to it; its last command has their number.
fn lease_with_keys(keys: usize) -> Work {
    let command = |slot, kind, payload: Vec<u8>| Command {
        id: CommandId::new(0, slot, 0),
        kind,
        payload: payload.into(),
    };
    let grant = LeaseGrantRequest { id: 7, ttl: 600 }.encode_to_vec();
    let mut commands = vec![command(0, Kind::LeaseGrant, grant)];
    for number in 1..=keys {
        let put = PutRequest { key: format!("key {number:06}").into(), lease: 7, ..PutRequest::default() };
        commands.push(command(number, Kind::Put, put.encode_to_vec()));
    }
    let data = encode(Origin { member: MEMBER, boot: 1 }, &commands).into();
    Work::Entry(CommittedEntry { index: 1, term: 2, data })
}

/// Issue 14, number 22: all keys of a lease were copied in one turn, and everybody waited for it.
#[test]
fn others_are_served_while_the_keys_of_a_lease_are_listed() {
    const KEYS: usize = 20_000;
    let (seed, around) = seeds();
    let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let running = glommio::spawn_local(state::run(seed));
        let to_state = around.to_state.open().await;
        let from_state = glommio::spawn_local(around.to_log.open());
        let from_core = around.to_edge.open().await;
        around.ready.set();
        assert!(to_state.send(vec![lease_with_keys(KEYS)]).await);
        let mut applied = 0;
        while applied < KEYS {
            for item in from_core.receive().await.unwrap() {
                if let NewsItem::Outcome(id, _) = item {
                    applied = id.slot();
                }
            }
        }
        let local = |slot, kind, payload: Vec<u8>| {
            Work::Local(Command { id: CommandId::new(0, slot, 0), kind, payload: payload.into() })
        };
        let ask = LeaseTimeToLiveRequest { id: 7, keys: true }.encode_to_vec();
        let keepalive = 7_i64.to_le_bytes().to_vec();
        let both = vec![local(1, Kind::LeaseTimeToLive, ask), local(2, Kind::LeaseKeepAlive, keepalive)];
        assert!(to_state.send(both).await);
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            for item in from_core.receive().await.unwrap() {
                if let NewsItem::Outcome(id, outcome) = item {
                    outcomes.push((id.slot(), outcome.result.unwrap()));
                }
            }
        }
        let [(2, _), (1, listed)] = &outcomes[..] else { panic!("the keepalive waited for the list") };
        assert_eq!(LeaseTimeToLiveResponse::decode(listed.clone()).unwrap().keys.len(), KEYS);
        drop(to_state);
        running.await.unwrap();
        drop(from_state.await);
    });
    core.unwrap().join().unwrap();
}

/// Issue 14, number 22, of leases with fewer keys: each list is short, a thousand of them are not.
#[test]
fn what_is_in_the_log_does_not_wait_for_a_thousand_lists_of_keys() {
    const KEYS: usize = 2_000; // as many as are still listed at once
    const LISTS: usize = 1_000;
    let (seed, around) = seeds();
    let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let running = glommio::spawn_local(state::run(seed));
        let to_state = around.to_state.open().await;
        let from_state = glommio::spawn_local(around.to_log.open());
        let from_core = around.to_edge.open().await;
        around.ready.set();
        assert!(to_state.send(vec![lease_with_keys(KEYS)]).await);
        let mut applied = 0;
        while applied < KEYS {
            for item in from_core.receive().await.unwrap() {
                if let NewsItem::Outcome(id, _) = item {
                    applied = id.slot();
                }
            }
        }
        let command = |slot, kind, payload: Vec<u8>| Command {
            id: CommandId::new(0, slot, 0),
            kind,
            payload: payload.into(),
        };
        let ask = LeaseTimeToLiveRequest { id: 7, keys: true }.encode_to_vec();
        let mut work: Vec<Work> =
            (1..=LISTS).map(|slot| Work::Local(command(slot, Kind::LeaseTimeToLive, ask.clone()))).collect();
        let put = PutRequest { key: Bytes::from_static(b"other"), ..PutRequest::default() }.encode_to_vec();
        let data = encode(Origin { member: MEMBER, boot: 1 }, &[command(0, Kind::Put, put)]).into();
        work.push(Work::Entry(CommittedEntry { index: 2, term: 2, data }));
        assert!(to_state.send(work).await);
        let (mut listed, mut before) = (0, None);
        while listed < LISTS || before.is_none() {
            for item in from_core.receive().await.unwrap() {
                match item {
                    NewsItem::Outcome(id, _) if id.slot() == 0 => before = Some(listed),
                    NewsItem::Outcome(_, outcome) => {
                        let body = outcome.result.unwrap();
                        assert_eq!(LeaseTimeToLiveResponse::decode(body).unwrap().keys.len(), KEYS);
                        listed += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(before < Some(LISTS / 2), "the put waited for {before:?} lists");
        drop(to_state);
        running.await.unwrap();
        drop(from_state.await);
    });
    core.unwrap().join().unwrap();
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
