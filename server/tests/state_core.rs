//! The state core alone: local requests and entries in, news out.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use prost::Message as _;
use revd::api::auth::tokens::Tokens;
use revd::cores::state::{self, StateSeed};
use revd::cores::{Notifications, StateReports};
use revd::disk::received::ReceivedFiles;
use revd::disk::reserve::Reserve;
use revd::observe::counters::Counters;
use revd::observe::turns::Loop;
use revd::queues::latch::Latch;
use revd::queues::mailbox::{Receiver, ReceiverSeed, Sender, SenderSeed, pair};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;
use revd_member::apply::command::{Command, CommandId, Kind, Origin, encode};
use revd_member::apply::local::{DeadlineRequest, LeaseRequest, LocalKind, LocalRequest};
use revd_member::apply::{CommittedEntry, Machine, MachineConfig, Work};
use revd_member::cores::edge::Notification;
use revd_member::error::Error;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseLeasesResponse, LeaseTimeToLiveResponse, PutRequest,
};

const MEMBER: u64 = 1;

/// The other cores' ends of its mailboxes.
struct Around {
    to_state: SenderSeed<Vec<Work>>,
    to_log: ReceiverSeed<StateReports>,
    to_edge: ReceiverSeed<Notifications>,
    ready: Latch,
}

/// A state core whose member leads, with one edge.
fn seeds() -> (StateSeed, Around) {
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    let own = Origin { member: MEMBER, boot: 1 };
    let config = MachineConfig { own, quota_bytes: 0, lease_extension: 0 };
    let mut machine = Machine::new(store, config).unwrap();
    let (to_state, from_log) = pair(8);
    let (to_log, from_state) = pair(8);
    let (to_edge, from_core) = pair(8);
    let ready = Latch::default();
    let seed = StateSeed {
        views: Arc::new(ViewSlot::new(machine.store_mut().view(), 1)),
        machine,
        put_offs_max: 0,
        from_log,
        to_log,
        to_edges: vec![to_edge],
        status: Arc::new(MemberStatus::default()),
        counters: Arc::new(Counters::new(1)),
        tokens: Arc::new(Tokens::new(Duration::from_secs(300))),
        files: ReceivedFiles::new(&std::env::temp_dir(), None),
        reserve: Arc::new(Reserve::new(std::env::temp_dir().join("revd-no-reserve"), 0)),
        ready: ready.clone(),
    };
    (seed, Around { to_state, to_log: from_state, to_edge: from_core, ready })
}

/// A running state core, as the other cores see it.
struct Core {
    to_state: Sender<Vec<Work>>,
    from_core: Receiver<Notifications>,
    ready: Latch,
    counters: Arc<Counters>,
}

/// Runs a test beside a state core, which ends after it.
fn with_core(test: impl AsyncFnOnce(&Core) + Send + 'static) {
    let (seed, around) = seeds();
    let running = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let counters = Arc::clone(&seed.counters);
        let running = glommio::spawn_local(state::run(seed));
        let to_state = around.to_state.open().await;
        assert!(to_state.send(vec![Work::Leads(Some(2))]).await);
        let to_log = glommio::spawn_local(around.to_log.open());
        let from_core = around.to_edge.open().await;
        let core = Core { to_state, from_core, ready: around.ready, counters };
        test(&core).await;
        let Core { to_state, from_core, .. } = core;
        drop(to_state);
        running.await.unwrap();
        drop((to_log.await, from_core));
    });
    running.unwrap().join().unwrap();
}

fn command(slot: usize, kind: Kind, payload: Vec<u8>) -> Command {
    Command { id: CommandId::new(0, slot, 0), kind, payload: payload.into() }
}

fn entry(index: u64, commands: &[Command]) -> Work {
    let data = encode(Origin { member: MEMBER, boot: 1 }, commands).into();
    Work::Entry(CommittedEntry { index, term: 2, data, change: None })
}

/// A command that grants a lease.
fn grant(slot: usize, id: i64) -> Command {
    command(slot, Kind::LeaseGrant, LeaseGrantRequest { id, ttl: 600 }.encode_to_vec())
}

/// A command that sets a key, with a lease unless that is 0.
fn put(slot: usize, lease: i64) -> Command {
    let put = PutRequest { key: format!("key {slot:06}").into(), lease, ..PutRequest::default() };
    command(slot, Kind::Put, put.encode_to_vec())
}

fn keepalive(slot: usize, id: i64) -> Work {
    local(slot, DeadlineRequest::KeepAlive { lease: id })
}

fn local(slot: usize, kind: impl Into<LocalKind>) -> Work {
    Work::Local(LocalRequest { id: CommandId::new(0, slot, 0), kind: kind.into(), from: None })
}

/// Outcomes up to one, with the slot each is for.
async fn outcomes(from_core: &Receiver<Notifications>, until: usize) -> Vec<(usize, Bytes)> {
    let mut outcomes = Vec::new();
    loop {
        for item in from_core.receive().await.unwrap() {
            if let Notification::Outcome(id, outcome) = item {
                outcomes.push((id.slot(), outcome.result.unwrap()));
            }
        }
        if outcomes.iter().any(|(slot, _)| *slot == until) {
            return outcomes;
        }
    }
}

/// Issue 14, number 22: all keys of a lease were copied in one turn, and everybody waited for it.
#[test]
fn others_are_served_while_the_keys_of_a_lease_are_listed() {
    const KEYS: usize = 20_000;
    with_core(async |Core { to_state, from_core, ready, .. }| {
        ready.set();
        let commands: Vec<Command> =
            std::iter::once(grant(0, 7)).chain((1..=KEYS).map(|key| put(key, 7))).collect();
        assert!(to_state.send(vec![entry(1, &commands)]).await);
        outcomes(from_core, KEYS).await;
        let ask = local(1, LeaseRequest::TimeToLive { lease: 7, keys: true });
        assert!(to_state.send(vec![ask, keepalive(2, 7)]).await);
        let outcomes = outcomes(from_core, 1).await;
        let [(2, _), (1, listed)] = &outcomes[..] else { panic!("the keepalive waited for the list") };
        assert_eq!(LeaseTimeToLiveResponse::decode(listed.clone()).unwrap().keys.len(), KEYS);
    });
}

/// Issue 14, number 22, of leases with few keys: each list is short, a thousand of them are not.
#[test]
fn entries_of_the_log_do_not_wait_for_a_thousand_lists_of_keys() {
    const KEYS: usize = 125; // as many as are listed at once
    const LISTS: usize = 1_000;
    with_core(async |Core { to_state, from_core, ready, .. }| {
        ready.set();
        let commands: Vec<Command> =
            std::iter::once(grant(0, 7)).chain((1..=KEYS).map(|key| put(key, 7))).collect();
        assert!(to_state.send(vec![entry(1, &commands)]).await);
        outcomes(from_core, KEYS).await;
        let list = |slot| local(slot, LeaseRequest::TimeToLive { lease: 7, keys: true });
        let mut work: Vec<Work> = (1..=LISTS).map(list).collect();
        work.push(entry(2, &[put(0, 0)]));
        assert!(to_state.send(work).await);
        let answered = outcomes(from_core, LISTS).await;
        let before = answered.iter().position(|(slot, _)| *slot == 0);
        assert!(before.is_some_and(|lists| lists < LISTS / 2), "the put waited for {before:?} lists");
        for (_, listed) in answered.iter().filter(|(slot, _)| *slot > 0) {
            assert_eq!(LeaseTimeToLiveResponse::decode(listed.clone()).unwrap().keys.len(), KEYS);
        }
    });
}

/// Issue 14, number 22: a new leader gave all leases their time in one turn, and all
/// were copied in one for a list.
#[test]
fn others_are_served_while_a_leader_comes_to_know_its_leases_and_lists_them() {
    const LEASES: usize = 20_000;
    const KEYS: usize = 1_000;
    with_core(async |Core { to_state, from_core, ready, counters }| {
        let grants: Vec<Command> = (1..=LEASES).map(|id| grant(id, i64::try_from(id).unwrap())).collect();
        let puts: Vec<Command> = (1..=KEYS).map(|key| put(key, 0)).collect();
        assert!(to_state.send(vec![entry(1, &puts), entry(2, &grants)]).await);
        outcomes(from_core, LEASES).await;
        ready.set();
        assert!(to_state.send(vec![keepalive(1, 7), entry(3, &[put(2, 0)])]).await);
        let loaded = outcomes(from_core, 1).await;
        let [(2, _), (1, seconds)] = &loaded[..] else { panic!("the put waited for the leader") };
        assert_eq!(**seconds, 600_i64.to_le_bytes());
        // Goes on while a long command is carried out elsewhere.
        let turns = || counters.state_turns.total(Loop::State);
        let before = turns();
        let all = DeleteRangeRequest { key: "key".into(), range_end: "kez".into(), ..Default::default() };
        let long = entry(4, &[command(3, Kind::DeleteRange, all.encode_to_vec())]);
        let ask = local(1, DeadlineRequest::List);
        assert!(to_state.send(vec![long, ask, keepalive(2, 7)]).await);
        let answered = outcomes(from_core, 1).await;
        assert_eq!(answered[0].0, 2, "the keepalive waited");
        let (_, listed) = answered.iter().find(|(slot, _)| *slot == 1).unwrap();
        let listed = LeaseLeasesResponse::decode(listed.clone()).unwrap();
        assert_eq!(listed.leases.len(), LEASES);
        let turns = turns() - before;
        assert!(turns >= 20, "{turns} turns");
    });
}

/// Asks for remaining TTLs.
async fn remaining_ttls(
    to_state: &Sender<Vec<Work>>,
    from_state: &Receiver<Notifications>,
) -> Result<Bytes, Error> {
    assert!(to_state.send(vec![local(1, DeadlineRequest::Remaining { from: i64::MIN })]).await);
    loop {
        for item in from_state.receive().await.unwrap() {
            if let Notification::Outcome(_, outcome) = item {
                return outcome.result;
            }
        }
    }
}

/// No lease has a deadline before clients can come, whatever the log says of leadership.
#[test]
fn leases_have_no_time_before_the_member_is_ready() {
    with_core(async |Core { to_state, from_core, ready, .. }| {
        // It leads when it has applied an entry of its term.
        assert!(to_state.send(vec![entry(1, &[])]).await);
        assert_eq!(remaining_ttls(to_state, from_core).await, Err(Error::NotLeader));
        ready.set();
        assert!(remaining_ttls(to_state, from_core).await.is_ok());
    });
}
