//! The clients of a storm: each makes one call after the other, goes to the next member after an
//! error, and makes no call twice.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use revd_checker::{Hold, Request, Response};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    TxnRequest, request_op, response_op,
};
use tokio::task::spawn_local;

use super::record::{Known, Recorder};
use crate::harness::Random;

/// Keys that are put, read and deleted by many.
pub const REGISTERS: u64 = 12;
/// A list is continued by another one behind so many elements.
const ELEMENTS_MAX: usize = 40;
/// Between two calls of a client.
const PAUSE: Duration = Duration::from_millis(8);
/// Before a client whose call failed calls the next member.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);
const LARGE_BYTES: usize = 300_000;
const LEASE_SECONDS: i64 = 4;

/// All clients, and the members that they know.
pub struct Clients {
    pub recorder: Recorder,
    /// By seats.
    pub known: RefCell<Vec<Known>>,
    pub is_over: Cell<bool>,
    /// Clients that have not ended.
    pub at_work: Cell<usize>,
    /// A client has met something that the test does not know.
    pub is_broken: Cell<bool>,
    /// Calls that were answered by each seat since the storm was over.
    pub since_healed: RefCell<Vec<u64>>,
    /// Everything up to here was told to the auditor.
    pub audited: Cell<i64>,
    /// Watchers may end when they know all up to here.
    pub last: Cell<Option<i64>>,
    names: Cell<u32>,
}

/// A panic in its task would be heard by nobody.
pub struct AtWork(Rc<Clients>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.at_work.set(self.0.at_work.get() - 1);
        if std::thread::panicking() {
            self.0.is_broken.set(true);
        }
    }
}

impl Clients {
    pub fn new(known: Vec<Known>) -> Rc<Self> {
        Rc::new(Self {
            recorder: Recorder::new(),
            since_healed: RefCell::new(vec![0; known.len()]),
            known: RefCell::new(known),
            is_over: Cell::new(false),
            at_work: Cell::new(0),
            is_broken: Cell::new(false),
            audited: Cell::new(0),
            last: Cell::new(None),
            names: Cell::new(0),
        })
    }

    /// Clients of all kinds begin.
    pub fn begin(self: &Rc<Self>, seed: u64) {
        let kinds: [Kind; 6] = [
            (8, |one| Box::pin(one.registers())),
            (3, |one| Box::pin(one.lists())),
            (2, |one| Box::pin(one.transactions())),
            (2, |one| Box::pin(one.readers())),
            (2, |one| Box::pin(one.leases())),
            (3, |one| Box::pin(one.locks())),
        ];
        for (kind, (count, work)) in kinds.into_iter().enumerate() {
            for number in 0..count {
                let random = Random::new(seed * 1_000 + (kind * 100 + number) as u64);
                let one = One { all: Rc::clone(self), name: self.name(), seat: number, random, written: 0 };
                let guard = self.works();
                spawn_local(async move {
                    work(one).await;
                    drop(guard);
                });
            }
        }
    }

    /// A name for a client.
    pub fn name(&self) -> u32 {
        self.names.set(self.names.get() + 1);
        self.names.get()
    }

    pub fn works(self: &Rc<Self>) -> AtWork {
        self.at_work.set(self.at_work.get() + 1);
        AtWork(Rc::clone(self))
    }

    pub fn known(&self, seat: usize) -> Known {
        let known = self.known.borrow();
        known[seat % known.len()].clone()
    }

    /// Compacts, never more than the auditor knows; a little less than that.
    pub async fn compact(self: Rc<Self>, seat: usize, less: i64) {
        let revision = self.audited.get() - less;
        if revision > 1 {
            let request = CompactionRequest { revision, physical: less % 2 == 0 };
            let _ = self.recorder.call(self.name(), &self.known(seat), Request::Compact(request)).await;
        }
    }
}

impl Clients {
    /// Writes large values for some seconds, so that a disk without room is missed.
    pub async fn fill(self: Rc<Self>, seat: usize) {
        let _guard = self.works();
        for number in 0..30_u32 {
            let name = self.name();
            let mut value = format!("{name}.{number} ").into_bytes();
            value.resize(LARGE_BYTES, b'x');
            let (key, value) = (key(format!("fill/{}", number % 4)), value.into());
            let put = PutRequest { key, value, ..PutRequest::default() };
            let _ = self.recorder.call(name, &self.known(seat), Request::Put(put)).await;
            tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        }
    }
}

type Work = std::pin::Pin<Box<dyn Future<Output = ()>>>;
/// How many clients do this work.
type Kind = (usize, fn(One) -> Work);

/// One client.
struct One {
    all: Rc<Clients>,
    name: u32,
    seat: usize,
    random: Random,
    written: u64,
}

pub fn key(text: String) -> Bytes {
    text.into()
}

pub fn prefix(text: &str) -> RangeRequest {
    let mut end = text.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    RangeRequest { key: text.to_owned().into(), range_end: end.into(), ..RangeRequest::default() }
}

fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn compares(key: &Bytes, target: CompareTarget, union: TargetUnion) -> Vec<Compare> {
    let result = CompareResult::Equal as i32;
    let (key, target) = (key.clone(), target as i32);
    vec![Compare { key, target, result, target_union: Some(union), ..Compare::default() }]
}

impl One {
    /// Calls, and waits a moment; after an error the next member is the one to call.
    async fn call(&mut self, request: Request) -> Option<Response> {
        let seats = self.all.known.borrow().len();
        if self.random.one_in(60) {
            self.seat += 1;
        }
        let seat = self.seat % seats;
        let result = self.all.recorder.call(self.name, &self.all.known(seat), request).await;
        match result {
            Ok(response) => {
                self.all.since_healed.borrow_mut()[seat] += 1;
                tokio::time::sleep(PAUSE).await;
                return Some(response);
            }
            // A call without an answer may be carried out later, beside those that follow.
            Err(true) => {
                self.name = self.all.name();
                self.seat += 1;
            }
            Err(false) => {}
        }
        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
        None
    }

    async fn range(&mut self, request: RangeRequest) -> Option<RangeResponse> {
        match self.call(Request::Range(request)).await? {
            Response::Range(response) => Some(response),
            _ => None,
        }
    }

    fn goes_on(&self) -> bool {
        !self.all.is_over.get()
    }

    /// A value that nobody else writes.
    fn value(&mut self) -> Bytes {
        self.written += 1;
        format!("{}.{}", self.name, self.written).into()
    }

    fn put(&mut self, key: &Bytes) -> PutRequest {
        let (key, prev_kv) = (key.clone(), self.random.one_in(3));
        PutRequest { key, value: self.value(), prev_kv, ..PutRequest::default() }
    }

    fn register(&mut self) -> Bytes {
        key(format!("reg/{:02}", self.random.below(REGISTERS)))
    }

    async fn registers(mut self) {
        while self.goes_on() {
            let key = self.register();
            let request = match self.random.below(10) {
                0..4 => Request::Put(self.put(&key)),
                4 => {
                    let prev_kv = self.random.one_in(2);
                    Request::DeleteRange(DeleteRangeRequest { key, prev_kv, ..Default::default() })
                }
                5 => {
                    let put = self.put(&key);
                    let read = RangeRequest { key: key.clone(), ..Default::default() };
                    let compare = compares(&key, CompareTarget::Version, TargetUnion::Version(0));
                    let success = vec![op(request_op::Request::RequestPut(put))];
                    let failure = vec![op(request_op::Request::RequestRange(read))];
                    Request::Txn(TxnRequest { compare, success, failure })
                }
                _ => Request::Range(RangeRequest { key, ..Default::default() }),
            };
            self.call(request).await;
        }
    }

    /// Appends to lists, and reads several at once.
    async fn lists(mut self) {
        let mut list = 0_u64;
        while self.goes_on() {
            if self.random.one_in(4) {
                let reads = (0..=list).rev().take(3).map(|list| {
                    let request = RangeRequest { key: key(format!("list/{list:05}")), ..Default::default() };
                    op(request_op::Request::RequestRange(request))
                });
                let success = reads.collect();
                self.call(Request::Txn(TxnRequest { success, ..Default::default() })).await;
                continue;
            }
            let at = key(format!("list/{list:05}"));
            let read = RangeRequest { key: at.clone(), ..Default::default() };
            let Some(found) = self.range(read.clone()).await else { continue };
            let found = found.kvs.first();
            let (known, old) = found.map_or((0, Bytes::new()), |kv| (kv.mod_revision, kv.value.clone()));
            if old.iter().filter(|byte| **byte == b',').count() >= ELEMENTS_MAX {
                list += 1;
                continue;
            }
            let value = [&old[..], &self.value()[..], b","].concat().into();
            let put = PutRequest { key: at.clone(), value, ..Default::default() };
            let compare = compares(&at, CompareTarget::Mod, TargetUnion::ModRevision(known));
            let success = vec![op(request_op::Request::RequestPut(put))];
            let failure = vec![op(request_op::Request::RequestRange(read))];
            self.call(Request::Txn(TxnRequest { compare, success, failure })).await;
        }
    }

    /// Transactions of many operations, some with reads of revisions that are not there.
    async fn transactions(mut self) {
        let is_present = std::env::var("REVD_STORMS_READS").is_ok_and(|reads| reads == "present");
        while self.goes_on() {
            let own = key(format!("txn/{}/{}", self.name, self.random.below(5)));
            let mut success = vec![op(request_op::Request::RequestPut(self.put(&own)))];
            let audited = self.all.audited.get();
            let revision = match self.random.below(8) {
                _ if is_present => 0,
                0 => audited + 1_000_000,
                1 => 1,
                2 | 3 => audited,
                _ => 0,
            };
            let read = RangeRequest { revision, ..prefix("reg/") };
            success.push(op(request_op::Request::RequestRange(read)));
            if self.random.one_in(3) {
                let key = key(format!("txn/{}/x", self.name));
                let put = self.put(&key);
                let inner = TxnRequest {
                    success: vec![op(request_op::Request::RequestPut(put))],
                    ..TxnRequest::default()
                };
                success.push(op(request_op::Request::RequestTxn(inner)));
            }
            self.call(Request::Txn(TxnRequest { success, ..Default::default() })).await;
            if self.random.one_in(10) {
                let RangeRequest { key, range_end, .. } = prefix(&format!("txn/{}/", self.name));
                let request = DeleteRangeRequest { key, range_end, prev_kv: true };
                self.call(Request::DeleteRange(request)).await;
            }
        }
    }

    /// Reads ranges: now, of a member alone, and of earlier revisions.
    async fn readers(mut self) {
        while self.goes_on() {
            let mut request = prefix(self.random.pick(&["reg/", "txn/", "lock/", "list/"]));
            request.serializable = self.random.one_in(2);
            request.limit = i64::from(self.random.one_in(3)) * 3;
            request.count_only = self.random.one_in(6);
            if self.random.one_in(3) {
                let back = i64::try_from(self.random.below(300)).unwrap();
                request.revision = (self.all.audited.get() - back).max(1);
            }
            self.range(request).await;
        }
    }

    async fn grant(&mut self) -> Option<i64> {
        let request = LeaseGrantRequest { ttl: LEASE_SECONDS, id: 0 };
        match self.call(Request::LeaseGrant(request)).await? {
            Response::LeaseGrant(response) => Some(response.id),
            _ => None,
        }
    }

    /// Keys with leases that are kept alive for a while, and then revoked or left to end.
    async fn leases(mut self) {
        while self.goes_on() {
            let Some(id) = self.grant().await else { continue };
            let own = key(format!("lease/{id:x}"));
            let put = PutRequest { lease: id, ..self.put(&own) };
            self.call(Request::Put(put)).await;
            for _ in 0..self.random.below(8) {
                if !self.goes_on() {
                    break;
                }
                self.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id })).await;
                let request = LeaseTimeToLiveRequest { id, keys: self.random.one_in(2) };
                self.call(Request::LeaseTimeToLive(request)).await;
                self.range(RangeRequest { key: own.clone(), ..Default::default() }).await;
                tokio::time::sleep(Duration::from_millis(self.random.below(1_000))).await;
            }
            if self.random.one_in(2) {
                self.call(Request::LeaseRevoke(LeaseRevokeRequest { id })).await;
            }
        }
    }

    /// A lock by etcd's recipe: the oldest key below its name holds it.
    async fn locks(mut self) {
        while self.goes_on() {
            let Some(id) = self.grant().await else { continue };
            let own = key(format!("lock/{id:x}"));
            if self.acquires(&own, id).await {
                let from = self.all.recorder.now();
                for _ in 0..self.random.below(4) {
                    self.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id })).await;
                    tokio::time::sleep(Duration::from_millis(self.random.below(400))).await;
                }
                let (name, until) = (Bytes::from_static(b"lock/"), Some(self.all.recorder.now()));
                let hold = Hold { client: self.name, name, lease: id, from, until };
                self.all.recorder.history.borrow_mut().holds.push(hold);
            }
            self.call(Request::LeaseRevoke(LeaseRevokeRequest { id })).await;
        }
    }

    /// Whether the lock is ours, after some waiting.
    async fn acquires(&mut self, own: &Bytes, lease: i64) -> bool {
        let put = PutRequest { lease, ..self.put(own) };
        let compare = compares(own, CompareTarget::Create, TargetUnion::CreateRevision(0));
        let success = vec![op(request_op::Request::RequestPut(put))];
        let txn = TxnRequest { compare, success, failure: Vec::new() };
        let Some(Response::Txn(reply)) = self.call(Request::Txn(txn)).await else { return false };
        let is_put = matches!(
            reply.responses.first().and_then(|response| response.response.as_ref()),
            Some(response_op::Response::ResponsePut(_))
        );
        for _ in 0..20 {
            let mut oldest = prefix("lock/");
            oldest.sort_target = SortTarget::Create as i32;
            oldest.sort_order = SortOrder::Ascend as i32;
            oldest.limit = 1;
            let Some(found) = self.range(oldest).await else { continue };
            if found.kvs.first().is_some_and(|kv| kv.key == own) {
                return is_put;
            }
            self.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id: lease })).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }
}
