//! A member goes on from a state that another one has sent: its watchers are told of everything
//! that they would have been told of, or canceled; its leases are those of the other.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Store, StoreBuilder};
use revd_engine::random::Random;
use revd_member::apply::command::{Command, CommandId, Kind, Origin, encode};
use revd_member::apply::outcome::Effect;
use revd_member::apply::received::ReceivedState;
use revd_member::apply::{CommittedEntry, FatalError, Machine, MachineConfig};
use revd_member::budget::Share;
use revd_member::watch::{Content, Hub, HubLimits, StreamId};
use revd_proto::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, PutRequest, WatchCreateRequest};

fn save(store: &mut Store) {
    if let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) {
        store.finish_checkpoint(checkpoint.write().unwrap());
    }
}

/// A store made of the stream of another one.
fn copy(store: &mut Store) -> Store {
    save(store);
    let mut stream = store.saved_state().unwrap().stream();
    let disk = SimDisk::new();
    let (mut builder, mut chunk) = (StoreBuilder::new(Arc::new(disk.clone())).unwrap(), Vec::new());
    while stream.next_chunk(&mut chunk).unwrap() {
        builder.add(&chunk).unwrap();
    }
    builder.finish().unwrap();
    Store::open(Arc::new(disk), DbOptions::default()).unwrap()
}

/// A hub, its one stream, and what each watcher was told.
struct Watching {
    hub: Hub,
    stream: StreamId,
    events: BTreeMap<i64, Vec<u8>>,
    compacted: BTreeMap<i64, i64>,
}

impl Watching {
    fn new() -> Self {
        let mut hub = Hub::new(HubLimits { fragment_bytes: 1 << 20, step_work: 7 });
        let stream = hub.open(&Share::new(usize::MAX));
        Self { hub, stream, events: BTreeMap::new(), compacted: BTreeMap::new() }
    }

    fn create(&mut self, store: &mut Store, (key, end): (&[u8], &[u8]), start_revision: i64, prev_kv: bool) {
        let (key, range_end) = (key.to_vec().into(), end.to_vec().into());
        let request = WatchCreateRequest { key, range_end, start_revision, prev_kv, ..Default::default() };
        self.hub.create(self.stream, &request, &store.view());
    }

    /// Steps and takes replies until there is nothing more.
    fn settle(&mut self, store: &mut Store) {
        let view = store.view();
        let mut quiet = 0;
        while quiet < 2 {
            let mut is_quiet = !self.hub.step(&view).unwrap();
            while let Some(reply) = self.hub.take(self.stream) {
                is_quiet = false;
                match reply.content {
                    Content::Events { events, .. } => {
                        assert!(reply.revision <= view.revision());
                        self.events.entry(reply.watch_id).or_default().extend_from_slice(&events);
                    }
                    Content::Compacted(at) => drop(self.compacted.insert(reply.watch_id, at)),
                    _ => {}
                }
            }
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
    }
}

fn change(store: &mut Store, random: &mut Random) {
    let index = store.applied().index + 1;
    let mut txn = store.begin();
    let key = format!("k{}", random.below(8));
    if random.one_in(4) {
        txn.delete_range(KeyRange::from_wire(key.as_bytes(), &[]));
    } else {
        txn.put(key.as_bytes(), &index.to_le_bytes(), 0);
    }
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
}

#[test]
fn watchers_are_told_of_all_that_a_received_state_brings_or_canceled() {
    let (mut told, mut canceled) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut leader = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        (0..20).for_each(|_| change(&mut leader, &mut random));
        let mut follower = copy(&mut leader);
        let (mut there, mut here) = (Watching::new(), Watching::new());
        let watched: [(&[u8], &[u8]); 3] = [(b"k3", b""), (b"k", b"l"), (b"k2", b"k6")];
        for range in watched {
            // From now on, of the past, and of a future that the received state has passed, or not.
            for start in [0, 5, 6, follower.revision() + 10, follower.revision() + 11, 10_000] {
                // The value before the first event that is left is compacted, as in etcd.
                let prev_kv = seed % 2 == 0;
                there.create(&mut leader, range, start, prev_kv);
                here.create(&mut follower, range, start, prev_kv);
            }
        }
        if seed % 3 > 0 {
            here.settle(&mut follower);
        } else {
            here.hub.step(&follower.view()).unwrap(); // in the middle of things
        }
        there.settle(&mut leader);
        let compact_after = if seed % 2 == 0 { 100 } else { random.below(40) };
        for step in 0..40 {
            change(&mut leader, &mut random);
            there.settle(&mut leader);
            if step == compact_after {
                leader.compact(leader.revision() - i64::try_from(random.below(4)).unwrap()).unwrap();
            }
            save(&mut leader);
        }
        let (before, mut received) = (follower.revision(), copy(&mut leader));
        assert!(received.revision() > before);
        here.settle(&mut received);
        change(&mut leader, &mut random.clone());
        change(&mut received, &mut random.clone());
        there.settle(&mut leader);
        here.settle(&mut received);
        assert!(there.compacted.is_empty());
        let compact = received.view().compact_revision();
        for (watcher, expected) in &there.events {
            let events = here.events.get(watcher).cloned().unwrap_or_default();
            match here.compacted.get(watcher) {
                None => {
                    assert!(&events == expected, "seed {seed}, watcher {watcher} is told of something else");
                    told += 1;
                }
                Some(at) => {
                    assert!(*at == compact && compact > before, "seed {seed}: canceled at {at}");
                    assert!(expected.starts_with(&events), "seed {seed}, watcher {watcher}");
                    canceled += 1;
                }
            }
        }
        let more = here.events.keys().find(|watcher| !there.events.contains_key(watcher));
        assert_eq!(more, None, "seed {seed}: a watcher is told of what did not happen");
    }
    assert!(told > 200 && canceled > 30, "{told} told of all, {canceled} canceled");
}

const CONFIG: MachineConfig =
    MachineConfig { own: Origin { member: 1, boot: 1 }, quota_bytes: 0, lease_extension: 0 };

fn entry(index: u64, kind: Kind, payload: Vec<u8>) -> CommittedEntry {
    let command = Command { id: CommandId::new(0, 1, 0), kind, payload: Bytes::from(payload) };
    let data = encode(Origin { member: 9, boot: 9 }, &[command]).into();
    CommittedEntry { index, term: 1, data, change: None }
}

fn grant(id: i64) -> Vec<u8> {
    LeaseGrantRequest { id, ttl: 60 }.encode_to_vec()
}

fn put(key: &'static str, lease: i64) -> Vec<u8> {
    PutRequest { key: key.into(), lease, ..PutRequest::default() }.encode_to_vec()
}

fn machine() -> Machine {
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    Machine::new(store, CONFIG).unwrap()
}

#[test]
fn leases_are_those_of_the_received_state_and_a_leader_begins_anew() {
    let (mut leader, mut follower, mut effects) = (machine(), machine(), Vec::new());
    let entries = [
        entry(1, Kind::LeaseGrant, grant(1)),
        entry(2, Kind::Put, put("a", 1)),
        entry(3, Kind::LeaseGrant, grant(2)),
        entry(4, Kind::LeaseRevoke, LeaseRevokeRequest { id: 1 }.encode_to_vec()),
        entry(5, Kind::Put, put("b", 2)),
    ];
    entries.iter().for_each(|entry| leader.apply(entry, 0, &mut effects).unwrap());
    entries[..2].iter().for_each(|entry| follower.apply(entry, 0, &mut effects).unwrap());
    follower.serve(0);
    assert!(follower.set_leadership(Some(1), 0, &mut effects));
    let received = ReceivedState::load(copy(leader.store_mut())).unwrap();
    assert_eq!(received.applied(), Applied { index: 5, term: 1 });
    effects.clear();
    drop(follower.replace_state(received, 0, &mut effects).unwrap());
    assert_eq!((follower.leases().len(), follower.lessor().term()), (1, None));
    assert!(follower.set_leadership(Some(2), 0, &mut effects));
    // The same entries do the same from here on: the key goes with its lease.
    let revoke = entry(6, Kind::LeaseRevoke, LeaseRevokeRequest { id: 2 }.encode_to_vec());
    for machine in [&mut leader, &mut follower] {
        machine.apply(&revoke, 0, &mut effects).unwrap();
        let view = machine.store_mut().view();
        assert_eq!((view.revision(), view.reader().count(KeyRange::ALL, i64::MAX)), (5, 0));
        assert_eq!(machine.leases().len(), 0);
    }
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Reply(..))), "no caller is ours");
    // A state that is no newer is of another log.
    let old = ReceivedState::load(copy(leader.store_mut())).unwrap();
    let refused = follower.replace_state(old, 0, &mut effects);
    assert!(matches!(refused, Err(FatalError::Received { index: 6, applied: 6, .. })));
}
