//! Clients of all members, that go on whatever happens to the cluster, and write down what they
//! are told: `revd_checker` says whether the cluster kept its promises. No call is repeated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use revd_checker::{Request, Response, Rules, Transcript, Watch, check, has_changed};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use tokio::task::{LocalSet, spawn_local};

use super::storms::record::{Known, Recorder};
use crate::harness::{Cluster, Product, Random, failure};

/// etcd's answers to calls that a fault has met; a client of a cluster has to expect no others.
const ERRORS: [&str; 6] = [
    "(transport)",
    "etcdserver: leader changed",
    "etcdserver: no leader",
    "etcdserver: request timed out",
    "etcdserver: request timed out, possibly due to connection lost",
    "etcdserver: request timed out, possibly due to previous leader failure",
];

/// Each with a key of its own.
const WRITERS: u64 = 12;
/// On each member.
const READERS: u64 = 2;
/// Before a client whose call failed calls the next member.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients at work.
pub struct Workload {
    /// Each member, also those that are gone.
    known: RefCell<Vec<Known>>,
    /// Members that are gone for ever.
    gone: RefCell<BTreeSet<usize>>,
    recorder: Recorder,
    rules: RefCell<Rules>,
    /// The newest revision that anybody was told of.
    newest: Cell<i64>,
    /// Numbers of readers that read once.
    callers: Cell<u32>,
    is_over: Cell<bool>,
    /// Writers and readers that have not ended.
    at_work: Cell<usize>,
    /// The revision at which the clients began.
    first: i64,
    /// Watchers may end when they were told of all up to here.
    last: Cell<Option<i64>>,
    /// A client has met something that the test does not know.
    is_broken: Cell<bool>,
}

/// A client at work: a panic in its task would be heard by nobody.
struct AtWork<'w>(&'w Workload);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_broken.set(true);
        }
    }
}

/// A failed test leaves all that its clients were told.
impl Drop for Workload {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Some(mut file) = failure::file("clusters.history") else { return };
            let text = revd_checker::write(&self.recorder.history.borrow(), &self.rules.borrow());
            let _ = file.write_all(text.as_bytes());
        }
    }
}

/// Runs the clients while `faults` happen to the cluster; what they were told is checked when all
/// members are back. How many writes were acknowledged.
pub async fn survives(cluster: &mut Cluster, faults: impl AsyncFnOnce(&mut Cluster, &Rc<Workload>)) -> usize {
    let workload = Rc::new(Workload::of(cluster).await);
    let tasks = LocalSet::new();
    tasks
        .run_until(async {
            (0..cluster.members.len()).for_each(|member| workload.joins(cluster, member));
            for writer in 0..WRITERS {
                let workload = Rc::clone(&workload);
                spawn_local(async move { workload.work(workload.write(writer)).await });
            }
            faults(cluster, &workload).await;
            cluster.wait_until_all_answer().await;
            workload.is_over.set(true);
            while workload.at_work.get() > 0 && !workload.is_broken.get() {
                tokio::time::sleep(PAUSE).await;
            }
            let last = workload.everything_of_all(cluster).await;
            workload.last.set(Some(last));
        })
        .await;
    tasks.await;
    assert!(!workload.is_broken.get(), "a client has panicked");
    workload.judged()
}

fn key(writer: u64) -> bytes::Bytes {
    format!("writer/{writer:03}").into()
}

fn put(writer: u64, number: u64) -> PutRequest {
    let filler = "x".repeat(usize::try_from((number * 37 + writer * 101) % 1_000).unwrap());
    PutRequest { key: key(writer), value: format!("{number} {filler}").into(), ..PutRequest::default() }
}

/// Puts if the key was last changed at this revision; 0 if it must not be there.
fn swap(writer: u64, number: u64, follows: i64) -> TxnRequest {
    let compare = Compare {
        key: key(writer),
        target: CompareTarget::Mod as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::ModRevision(follows)),
        ..Compare::default()
    };
    let success = vec![RequestOp { request: Some(Op::RequestPut(put(writer, number))) }];
    TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

impl Workload {
    /// Of a cluster as it is.
    async fn of(cluster: &Cluster) -> Self {
        let (key, range_end) = ("\0".into(), "\0".into());
        let all = RangeRequest { key, range_end, ..RangeRequest::default() };
        let client = cluster.client(cluster.present().next().unwrap());
        let found = client.kv.clone().range(all).await.unwrap().into_inner();
        let first = found.header.unwrap().revision;
        let recorder = Recorder::new();
        (recorder.history.borrow_mut().first, recorder.history.borrow_mut().found) = (first, found.kvs);
        let rules = Rules {
            goes_on: true,
            // An event is told only when reads show it too; etcd may tell it a moment earlier.
            watches_show: cluster.product == Product::Revd,
            errors: Some(ERRORS.map(str::to_owned).to_vec()),
            ..Rules::default()
        };
        Self {
            known: RefCell::default(),
            gone: RefCell::default(),
            recorder,
            rules: RefCell::new(rules),
            newest: Cell::new(first),
            callers: Cell::new(10_000),
            is_over: Cell::new(false),
            at_work: Cell::new(0),
            first,
            last: Cell::new(None),
            is_broken: Cell::new(false),
        }
    }

    /// Clients of a member begin; the writers call it too from now on.
    pub fn joins(self: &Rc<Self>, cluster: &Cluster, member: usize) {
        assert_eq!(self.known.borrow().len(), member, "members come in order");
        let place = u32::try_from(member).unwrap();
        self.known.borrow_mut().push(Known { member: place, life: 0, client: cluster.client(member) });
        for reader in 0..READERS {
            let workload = Rc::clone(self);
            spawn_local(async move { workload.work(workload.read(member, reader)).await });
        }
        spawn_local(Rc::clone(self).watch(member));
    }

    /// Other clients write too, keys that begin so, of which nothing is written down.
    pub fn has_others(&self, keys: &'static str) {
        let mut rules = self.rules.borrow_mut();
        (rules.others, rules.others_compact, rules.others_unseen) = (Some(keys.into()), true, true);
    }

    /// So many more reads of a member, linearizable and all at once.
    pub fn reads(self: &Rc<Self>, member: usize, count: u64) {
        for number in 0..count {
            let workload = Rc::clone(self);
            let caller = self.callers.replace(self.callers.get() + 1);
            spawn_local(async move {
                let read = async { _ = workload.get(caller, member, number % WRITERS, true).await };
                workload.work(read).await;
            });
        }
    }

    /// A member is gone for ever.
    pub fn leaves(&self, member: usize) {
        self.gone.borrow_mut().insert(member);
    }

    /// The newest revision that anybody was told of.
    pub fn newest(&self) -> i64 {
        self.newest.get()
    }

    fn is_gone(&self, member: usize) -> bool {
        self.gone.borrow().contains(&member)
    }

    /// A call, made once; none if there is no answer.
    async fn call(&self, client: u32, member: usize, request: Request) -> Option<Response> {
        let known = self.known.borrow()[member].clone();
        let response = self.recorder.call(client, &known, request).await.ok()?;
        self.newest.set(self.newest.get().max(response.revision()));
        Some(response)
    }

    async fn work(&self, work: impl Future<Output = ()>) {
        let _guard = AtWork(self);
        self.at_work.set(self.at_work.get() + 1);
        work.await;
        self.at_work.set(self.at_work.get() - 1);
    }

    /// Writes numbers one after the other; after an error on the next member. Half of the writers
    /// put, the others compare and swap.
    async fn write(&self, writer: u64) {
        let client = u32::try_from(writer).unwrap();
        let mut at = usize::try_from(writer).unwrap();
        let (mut known, mut number) = (0, 0);
        while !self.is_over.get() {
            let member = at % self.known.borrow().len();
            if self.is_gone(member) {
                at += 1;
                continue;
            }
            number += 1;
            let is_answered = if writer % 2 == 1 {
                self.swap(client, member, (writer, number), &mut known).await.is_some()
            } else {
                self.call(client, member, Request::Put(put(writer, number))).await.is_some()
            };
            if !is_answered {
                at += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// `known` is the revision that the key was last changed at, as far as the writer knows.
    async fn swap(
        &self,
        client: u32,
        member: usize,
        (writer, number): (u64, u64),
        known: &mut i64,
    ) -> Option<()> {
        let txn = swap(writer, number, *known);
        let Response::Txn(reply) = self.call(client, member, Request::Txn(txn)).await? else { return None };
        if reply.succeeded {
            *known = reply.header?.revision;
        } else {
            // A write without an answer came before: the key is read to go on from there.
            *known = self.get(client, member, writer, true).await?;
        }
        Some(())
    }

    /// Reads keys of the writers on one member, now from a quorum, now from what the member has.
    async fn read(&self, member: usize, reader: u64) {
        let client = u32::try_from(100 + member * 10).unwrap() + u32::try_from(reader).unwrap();
        let mut random = Random::new(reader);
        while !self.is_over.get() && !self.is_gone(member) {
            let (writer, is_linearizable) = (random.below(WRITERS), random.one_in(2));
            if self.get(client, member, writer, is_linearizable).await.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The revision at which a writer's key was last changed; 0 if it is not there.
    async fn get(&self, client: u32, member: usize, writer: u64, is_linearizable: bool) -> Option<i64> {
        let serializable = !is_linearizable;
        let request = RangeRequest { key: key(writer), serializable, ..RangeRequest::default() };
        let response = self.call(client, member, Request::Range(request)).await?;
        let Response::Range(found) = response else { return None };
        Some(found.kvs.first().map_or(0, |kv| kv.mod_revision))
    }

    /// Watches everything on one member; when the watch ends, from there on in the next.
    async fn watch(self: Rc<Self>, member: usize) {
        let _guard = AtWork(&self);
        let mut next = self.first + 1;
        loop {
            let is_over = |next: i64| self.last.get().is_some_and(|last| next > last);
            let is_complete = self.watch_once(member, &mut next, is_over).await;
            if is_complete || self.is_gone(member) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One watch from a revision on, until it is over or ends; whether it is over.
    async fn watch_once(&self, member: usize, next: &mut i64, is_over: impl Fn(i64) -> bool) -> bool {
        let Known { member: place, life, client } = self.known.borrow()[member].clone();
        let request = everything(*next);
        let (mut transcript, mut times) = (Transcript::new(request.clone()), Vec::new());
        let mut stream = client.open_watch();
        stream.ask(RequestUnion::CreateRequest(request));
        let is_complete = loop {
            if is_over(*next) {
                break true;
            }
            let response = match stream.next_within(Duration::from_secs(1)).await {
                None if stream.is_over() || self.is_gone(member) => break false,
                None => continue,
                Some(Ok(response)) => response,
                Some(Err(status)) => {
                    self.recorder.failed(&status);
                    break false;
                }
            };
            if let Some(newest) = response.events.last() {
                *next = newest.kv.as_ref().unwrap().mod_revision + 1;
                self.newest.set(self.newest.get().max(*next - 1));
            }
            let ends = response.canceled;
            transcript.responses.push(response);
            times.push(self.recorder.now());
            if ends {
                break false;
            }
        };
        transcript.complete_to = is_complete.then_some(*next - 1);
        let watch = Watch { client: 1_000 + place, member: place, life, transcript, times };
        self.recorder.history.borrow_mut().watches.push(watch);
        is_complete
    }

    /// Every member tells everything from the beginning once more; the last revision of a writer.
    async fn everything_of_all(&self, cluster: &Cluster) -> i64 {
        let mut last = self.first;
        for member in cluster.present() {
            let request = RangeRequest {
                key: "writer/".into(),
                range_end: "writer0".into(),
                ..RangeRequest::default()
            };
            let reply = self.call(9_000, member, Request::Range(request)).await;
            let Some(Response::Range(reply)) = reply else { panic!("member {member} does not answer") };
            last = reply.kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or(last);
            let mut next = self.first + 1;
            let watching = self.watch_once(member, &mut next, |next| next > last);
            let told = tokio::time::timeout(Duration::from_secs(30), watching).await;
            assert!(told == Ok(true), "member {member} does not tell of all up to {last}");
        }
        last
    }

    /// Holds everything against etcd's promises; how many writes were acknowledged.
    fn judged(&self) -> usize {
        let (history, errors) = (self.recorder.history.borrow(), self.recorder.errors.borrow());
        let report = check(&history, &self.rules.borrow());
        let acknowledged = history.calls.iter().filter(|call| has_changed(call)).count();
        println!(
            "{acknowledged} writes acknowledged, {} calls, {} watches told of {} events; errors: {errors:#?}",
            history.calls.len(),
            history.watches.len(),
            report.events,
        );
        let faults: Vec<String> = report.faults.iter().take(10).map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        let is_known = |error: &String| ERRORS.iter().any(|known| error.ends_with(&format!(": {known}")));
        assert!(errors.keys().all(is_known), "no errors of a cluster: {errors:#?}");
        acknowledged
    }
}

fn everything(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: "writer/".into(),
        range_end: "writer0".into(),
        start_revision,
        prev_kv: true,
        ..WatchCreateRequest::default()
    }
}
