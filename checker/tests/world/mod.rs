//! A cluster that does all it promises, and the history of its clients.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use revd_checker::{
    Attempt, Call, Check, History, Hold, LISTS, Model, Outcome, Request, Response, Rules, StateAt, Time,
    Transcript, Watch, check, elements, hash_kv,
};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, HashKvRequest, HashKvResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, RangeRequest,
    RequestOp, ResponseHeader, TxnRequest, WatchCreateRequest, WatchResponse,
};
use revd_proto::mvccpb::Event;

pub(crate) const SECOND: Time = 1_000_000;

/// The cluster, its clients, and all they know.
pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) model: Model,
    pub(crate) now: Time,
    random: u64,
    number: u64,
    compacted: i64,
    deadlines: BTreeMap<i64, Time>,
}

pub(crate) fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..PutRequest::default() }
}

pub(crate) fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

pub(crate) fn delete(key: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key.to_owned().into(), ..DeleteRangeRequest::default() }
}

pub(crate) fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(crate) fn at_mod(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Mod as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Compare::default()
    }
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            history: History::default(),
            model: Model::new(1, &[]),
            now: 0,
            random: seed.wrapping_mul(2) + 1,
            number: 0,
            compacted: 0,
            deadlines: BTreeMap::new(),
        }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Takes effect at the next moment; others begin before and end after it.
    pub(crate) fn call(&mut self, request: Request) -> Response {
        self.now += 1_000;
        let (began, returned) = (self.now - self.below(2_500).min(self.now), self.now + self.below(2_500));
        let response = self.answer(&request);
        let member = u32::try_from(self.below(3)).unwrap();
        let client = u32::try_from(self.history.calls.len()).unwrap();
        let outcome = Outcome::Answered(response.clone());
        self.history.calls.push(Call { client, member, life: 0, began, returned, request, outcome });
        response
    }

    fn answer(&mut self, request: &Request) -> Response {
        let now = self.now;
        let revision = self.model.revision();
        let left = |deadlines: &BTreeMap<i64, Time>, id: i64| deadlines.get(&id).copied();
        let mut response = match request {
            Request::Compact(request) => {
                self.compacted = request.revision;
                Response::Compact(CompactionResponse::default())
            }
            Request::HashKv(_) => Response::HashKv(HashKvResponse {
                hash: hash_kv(&self.model, revision, self.compacted),
                hash_revision: revision,
                compact_revision: self.compacted,
                header: None,
            }),
            Request::LeaseGrant(request) => {
                self.deadlines.insert(request.id, now + u64::try_from(request.ttl).unwrap() * SECOND);
                Response::LeaseGrant(LeaseGrantResponse {
                    id: request.id,
                    ttl: request.ttl,
                    ..Default::default()
                })
            }
            Request::LeaseKeepAlive(request) => {
                let alive = left(&self.deadlines, request.id).is_some();
                self.deadlines.entry(request.id).and_modify(|at| *at = now + 5 * SECOND);
                let ttl = if alive { 5 } else { 0 };
                Response::LeaseKeepAlive(LeaseKeepAliveResponse { header: None, id: request.id, ttl })
            }
            Request::LeaseTimeToLive(request) => {
                let (ttl, granted_ttl) = left(&self.deadlines, request.id)
                    .map_or((-1, 0), |at| (i64::try_from(at.saturating_sub(now) / SECOND).unwrap(), 5));
                let id = request.id;
                Response::LeaseTimeToLive(LeaseTimeToLiveResponse {
                    id,
                    ttl,
                    granted_ttl,
                    ..Default::default()
                })
            }
            Request::LeaseRevoke(request) => {
                self.ends(request.id);
                Response::LeaseRevoke(LeaseRevokeResponse::default())
            }
            _ => {
                let (response, changes) =
                    Attempt::run(&self.model, revision, request).expect("a right request");
                if !changes.is_empty() {
                    self.model.push(changes);
                }
                response
            }
        };
        *response.header() = header(self.model.revision());
        response
    }

    pub(crate) fn ends(&mut self, lease: i64) {
        self.deadlines.remove(&lease);
        let changes = self.model.revoke(lease);
        if !changes.is_empty() {
            self.model.push(changes);
        }
    }

    pub(crate) fn value(&mut self) -> String {
        self.number += 1;
        format!("value {}", self.number)
    }

    /// A client that does one thing.
    pub(crate) fn step(&mut self) {
        let key = format!("key/{}", self.below(4));
        let value = self.value();
        let request = match self.below(9) {
            0..3 => Request::Put(PutRequest { prev_kv: true, ..put(&key, &value) }),
            3 => Request::DeleteRange(DeleteRangeRequest { prev_kv: true, ..delete(&key) }),
            4 => Request::Range(get(&key)),
            5 => Request::Range(RangeRequest { serializable: true, ..get(&key) }),
            6 => {
                let revision = 1 + i64::try_from(self.below(self.model.revision().cast_unsigned())).unwrap();
                let revision = revision.max(self.compacted);
                let range = RangeRequest { range_end: "key0".into(), limit: 2, ..get("key/") };
                Request::Range(RangeRequest { revision, ..range })
            }
            7 => {
                let other = format!("key/{}", self.below(4));
                let success = vec![op(Op::RequestPut(put(&key, &value)))];
                let failure = vec![op(Op::RequestRange(get(&other)))];
                let found =
                    self.model.get(key.as_bytes(), self.model.revision()).map_or(0, |kv| kv.mod_revision);
                let compare = vec![at_mod(&key.into(), if self.below(2) == 0 { found } else { 999_999 })];
                Request::Txn(TxnRequest { compare, success, failure })
            }
            _ => return self.append(),
        };
        self.call(request);
    }

    /// Reads all lists, and appends to one or two of them.
    pub(crate) fn append(&mut self) {
        let range = RangeRequest { range_end: "list0".into(), ..get("list/") };
        let Response::Range(found) = self.call(Request::Range(range)) else { unreachable!() };
        let mut txn = TxnRequest::default();
        let both = self.below(2) == 0;
        for list in (0..3).filter(|list| both || *list == 1) {
            let key = Bytes::from(format!("{}{list}", std::str::from_utf8(LISTS).unwrap()));
            let before = found.kvs.iter().find(|kv| kv.key == key);
            let value = before.map_or(String::new(), |kv| String::from_utf8(kv.value.to_vec()).unwrap());
            txn.compare.push(at_mod(&key, before.map_or(0, |kv| kv.mod_revision)));
            self.number += 1;
            assert!(elements(&Bytes::from(value.clone())).len() < 10_000);
            txn.success.push(op(Op::RequestPut(PutRequest {
                key,
                value: format!("{value}{},", self.number).into(),
                ..PutRequest::default()
            })));
        }
        self.call(Request::Txn(txn));
    }

    /// A lease with keys that is kept alive and left alone, one that is revoked, and a lock.
    pub(crate) fn hold(&mut self) {
        for id in [71, 72] {
            self.call(Request::LeaseGrant(LeaseGrantRequest { id, ttl: 5 }));
            for key in ["a", "b"] {
                let value = self.value();
                self.call(Request::Put(PutRequest {
                    lease: id,
                    ..put(&format!("leased/{id}/{key}"), &value)
                }));
            }
            let from = self.history.calls.last().unwrap().returned;
            self.now = from;
            let until = from + 1_500;
            let (client, name) = (u32::try_from(id).unwrap(), Bytes::from("lock"));
            self.history.holds.push(Hold { client, name, lease: id, from, until: Some(until) });
            self.now = until + 5_000;
        }
        self.call(Request::LeaseRevoke(LeaseRevokeRequest { id: 72 }));
        self.now += 3 * SECOND;
        self.call(Request::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 71, keys: false }));
        self.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id: 71 }));
        self.now += 6 * SECOND;
        self.ends(71);
        self.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id: 71 }));
        self.now += 60 * SECOND;
        self.call(Request::Range(RangeRequest { range_end: "leased0".into(), ..get("leased/") }));
    }

    /// Compacts and hashes.
    pub(crate) fn compact(&mut self) {
        let revision = self.model.revision() - 5;
        self.call(Request::Compact(CompactionRequest { revision, physical: false }));
        self.now += 10_000;
        self.call(Request::HashKv(HashKvRequest::default()));
    }

    /// A watcher of everything, that is told a few revisions at a time.
    pub(crate) fn watched(&mut self) {
        let request = WatchCreateRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            start_revision: 2,
            ..WatchCreateRequest::default()
        };
        let mut transcript = Transcript::new(request);
        let created = WatchResponse { created: true, header: header(1), ..WatchResponse::default() };
        let mut times = vec![self.now];
        transcript.responses.push(created);
        let events: Vec<Event> = self.model.changes().to_vec();
        let revision = |event: &Event| event.kv.as_ref().unwrap().mod_revision;
        let newest = self.model.revision();
        for events in events.chunk_by(|one, other| revision(one) / 3 == revision(other) / 3) {
            self.now += 500;
            times.push(self.now);
            let told =
                WatchResponse { header: header(newest), events: events.to_vec(), ..Default::default() };
            transcript.responses.push(told);
        }
        transcript.responses.push(WatchResponse { header: header(newest), ..WatchResponse::default() });
        times.push(self.now);
        transcript.complete_to = Some(newest);
        self.history.watches.push(Watch { client: 0, member: 1, life: 0, transcript, times });
    }

    /// The history of a whole run.
    pub(crate) fn run(seed: u64) -> Self {
        let mut world = Self::new(seed);
        (0..150).for_each(|_| world.step());
        world.compact();
        world.hold();
        (0..50).for_each(|_| world.step());
        for index in 0..10_u64 {
            for member in 0..3 {
                let digest = Bytes::from(format!("state {index}"));
                world.history.states.push(StateAt { member, index, digest });
            }
        }
        world.now += SECOND;
        world.watched();
        world
    }
}

/// The promises that its history is judged by.
pub(crate) fn rules() -> Rules {
    Rules {
        watches_show: true,
        errors: Some(vec!["etcdserver: request timed out".to_owned()]),
        lease_slack: 3 * SECOND,
        calm_since: Some(0),
        ..Rules::default()
    }
}

/// The checks that find something.
pub(crate) fn found_in(history: &History) -> BTreeSet<Check> {
    check(history, &rules()).faults.iter().map(|fault| fault.check).collect()
}

/// The number of the last call that is so.
pub(crate) fn last(history: &History, is_it: impl Fn(&Call) -> bool) -> Option<usize> {
    history.calls.iter().rposition(is_it)
}
