//! Tests of the machine as a whole.

use super::*;
use crate::apply::command::{CommandId, encode};
use crate::apply::lease_reports::ExpiredLeases;
use crate::limits;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind};
use revd_proto::etcdserverpb::LeaseGrantRequest;
use std::sync::Arc;

const OWN: Origin = Origin { member: 1, boot: 1 };

/// A start may take longer than leases live: their time begins when they can be kept alive.
#[test]
fn leases_have_their_time_when_clients_can_come() {
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 1_000 };
    let (mut machine, mut effects) = (Machine::new(store, config).unwrap(), Vec::new());
    assert!(!machine.set_leadership(Some(2), 0, &mut effects));
    let grant = LeaseGrantRequest { id: 7, ttl: 5 }.encode_to_vec().into();
    let id = CommandId::new(0, 1, 0);
    let data = encode(OWN, &[Command { id, kind: Kind::LeaseGrant, payload: grant }]).into();
    machine.apply(&CommittedEntry { index: 1, term: 2, data, change: None }, 0, &mut effects).unwrap();
    machine.serve(1);
    assert!(machine.set_leadership(Some(2), 60_000, &mut effects));
    let mut look = |now| {
        let mut effects = Vec::new();
        machine.lease_request(id, LeaseRequest::Expired, now, &mut effects);
        effects
    };
    let [Effect::Reply(_, outcome)] = &look(65_999)[..] else { panic!("it is asked too early") };
    assert_eq!(
        ExpiredLeases::decode(outcome.result.clone().unwrap()).unwrap(),
        ExpiredLeases { term: 2, leases: Vec::new() }
    );
    assert_eq!(look(66_000), [Effect::Hear(1)]);
}

/// A compaction that is refused begins none of the cleaning that one begins where the quota is
/// nearly full.
#[test]
fn a_refused_compaction_cleans_nothing() {
    let disk = Arc::new(SimDisk::new());
    let open = || Store::open(disk.clone(), DbOptions { page_bytes_if_new: 512 }).unwrap();
    let mut store = open();
    for index in 1..=5 {
        let mut txn = store.begin();
        txn.put(b"key", b"value", 0);
        txn.commit();
        store.set_applied(Applied { index, term: 1 });
    }
    store.compact(4).unwrap();
    while let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        store.finish_checkpoint(checkpoint.write().unwrap());
    }
    drop(store); // the next run does not know what that compaction has left
    for (revision, cleans) in [(3, false), (4, false), (9, false), (5, true)] {
        let config = MachineConfig { own: OWN, quota_bytes: 1, lease_extension: 0 };
        let (mut machine, mut effects) = (Machine::new(open(), config).unwrap(), Vec::new());
        let payload = CompactionRequest { revision, physical: false }.encode_to_vec().into();
        let id = CommandId::new(0, 1, 0);
        let data = encode(OWN, &[Command { id, kind: Kind::Compact, payload }]).into();
        machine.apply(&CommittedEntry { index: 6, term: 1, data, change: None }, 0, &mut effects).unwrap();
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(outcome.result.is_ok(), cleans, "{outcome:?}");
        assert_eq!(machine.store().compaction_pending(), cleans, "a compaction at {revision}");
    }
}

/// Issue 14, number 22: a new leader looked at all leases in one turn.
#[test]
fn a_new_leader_leads_when_it_knows_all_leases() {
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 1_000 };
    let (mut machine, mut effects) = (Machine::new(store, config).unwrap(), Vec::new());
    let leases = 5 * limits::LEASES_PER_TURN + 1;
    for id in 1..=leases as i64 {
        machine.state.leases.grant(&mut machine.state.store, id, 5).unwrap();
    }
    machine.serve(0);
    let mut calls = 1;
    while !machine.set_leadership(Some(2), 1_000 * calls, &mut effects) {
        assert!(machine.lessor().is_loading() && machine.lessor().is_changing());
        assert_eq!(machine.lessor().term(), None);
        calls += 1;
    }
    assert_eq!((calls, machine.lessor().term()), (6, Some(2)));
    // Those that were brought first have their time from now on too.
    let id = CommandId::new(0, 1, 0);
    for (now, over) in [(11_999, 0), (12_000, limits::LEASES_PER_REVOKE)] {
        effects.clear();
        machine.lease_request(id, LeaseRequest::Expired, now, &mut effects);
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(ExpiredLeases::decode(outcome.result.clone().unwrap()).unwrap().leases.len(), over);
    }
    assert!(machine.set_leadership(None, 12_000, &mut effects));
    let calls = (1..).take_while(|_| {
        let is_changing = machine.lessor().is_changing();
        assert!(!machine.set_leadership(None, 12_000, &mut effects));
        is_changing
    });
    assert_eq!(calls.count(), 5, "what it knew is forgotten in parts");
}
