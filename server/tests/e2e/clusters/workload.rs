//! Clients of all members, that go on whatever happens to the cluster, and write down what they
//! are told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use revd_proto::mvccpb::KeyValue;
use tokio::task::{LocalSet, spawn_local};
use tonic::Status;

use super::recorded::{Acknowledged, Read, Record, key};
use crate::harness::{Client, Cluster, Product, Random};
use revd_checker::{Changes, Transcript};

/// Each with a key of its own.
const WRITERS: u64 = 12;
/// On each member.
const READERS: u64 = 2;
/// Before a client whose call failed calls the next member.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients at work.
pub struct Workload {
    /// Of each member, also of those that are gone.
    clients: RefCell<Vec<Client>>,
    /// Members that are gone for ever.
    gone: RefCell<BTreeSet<usize>>,
    record: RefCell<Record>,
    /// As all members have it in the end.
    history: RefCell<Changes>,
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
            self.record.borrow().leave(&self.history.borrow());
        }
    }
}

/// Runs the clients while `faults` happen to the cluster; the record is checked when all members
/// are back.
pub async fn survives(
    cluster: &mut Cluster,
    faults: impl AsyncFnOnce(&mut Cluster, &Rc<Workload>),
) -> Record {
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    let reply = cluster.client(cluster.present().next().unwrap()).kv.range(request).await.unwrap();
    let first = reply.into_inner().header.unwrap().revision;
    let record = Record::of(cluster.product == Product::Revd, first);
    let workload = Rc::new(Workload {
        clients: RefCell::default(),
        gone: RefCell::default(),
        record: RefCell::new(record),
        history: RefCell::default(),
        is_over: Cell::new(false),
        at_work: Cell::new(0),
        first,
        last: Cell::new(None),
        is_broken: Cell::new(false),
    });
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
            let history = history(cluster, first + 1, workload.newest()).await;
            workload.last.set(Some(history.revision()));
            *workload.history.borrow_mut() = history;
        })
        .await;
    tasks.await;
    assert!(!workload.is_broken.get(), "a client has panicked");
    let checked = workload.record.borrow().check(&workload.history.borrow());
    checked.unwrap_or_else(|wrong| panic!("{wrong}"));
    let (record, history) = (workload.record.take(), workload.history.take());
    println!(
        "{} writes acknowledged, {} reads, {} watches, {} changes; errors: {:#?}",
        record.acknowledged.len(),
        record.reads.len(),
        record.transcripts.len(),
        history.events().len(),
        record.errors
    );
    record
}

fn put(writer: u64, number: u64) -> PutRequest {
    let filler = "x".repeat(usize::try_from((number * 37 + writer * 101) % 1_000).unwrap());
    PutRequest {
        key: key(writer).into(),
        value: format!("{number} {filler}").into(),
        ..PutRequest::default()
    }
}

/// Puts if the key was last changed at this revision; 0 if it must not be there.
fn swap(writer: u64, number: u64, follows: i64) -> TxnRequest {
    let compare = Compare {
        key: key(writer).into(),
        target: CompareTarget::Mod as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::ModRevision(follows)),
        ..Compare::default()
    };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put(writer, number))) }];
    TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

impl Workload {
    /// Clients of a member begin; the writers call it too from now on.
    pub fn joins(self: &Rc<Self>, cluster: &Cluster, member: usize) {
        assert_eq!(self.clients.borrow().len(), member, "members come in order");
        self.clients.borrow_mut().push(cluster.client(member));
        for reader in 0..READERS {
            let workload = Rc::clone(self);
            spawn_local(async move { workload.work(workload.read(member, reader)).await });
        }
        spawn_local(Rc::clone(self).watch(member));
    }

    /// Other clients write too, other keys.
    pub fn has_others(&self) {
        self.record.borrow_mut().has_others = true;
    }

    /// So many more reads of a member, linearizable and all at once.
    pub fn reads(self: &Rc<Self>, member: usize, count: u64) {
        for number in 0..count {
            let workload = Rc::clone(self);
            spawn_local(async move {
                let read = async {
                    if let Err(status) = workload.get(member, number % WRITERS, true).await {
                        workload.record.borrow_mut().failed(&status);
                    }
                };
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
        self.record.borrow().newest()
    }

    fn is_gone(&self, member: usize) -> bool {
        self.gone.borrow().contains(&member)
    }

    fn client(&self, member: usize) -> Client {
        self.clients.borrow()[member].clone()
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
        let mut at = usize::try_from(writer).unwrap();
        let mut known = 0;
        while !self.is_over.get() {
            let member = at % self.clients.borrow().len();
            if self.is_gone(member) {
                at += 1;
                continue;
            }
            let swaps = writer % 2 == 1;
            let result = if swaps {
                self.swap(member, writer, &mut known).await
            } else {
                self.put(member, writer).await
            };
            if let Err(status) = result {
                self.record.borrow_mut().failed(&status);
                at += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn put(&self, member: usize, writer: u64) -> Result<(), Status> {
        let number = self.record.borrow_mut().next(writer);
        let floor = self.record.borrow().begins(member, true);
        let reply = self.client(member).kv.put(put(writer, number)).await?.into_inner();
        let revision = reply.header.unwrap().revision;
        let mut record = self.record.borrow_mut();
        record.shows(member, true, floor, revision, "a put");
        record.acknowledged.push(Acknowledged { member, written: (writer, number), revision, follows: None });
        Ok(())
    }

    /// `known` is the revision that the key was last changed at, as far as the writer knows.
    async fn swap(&self, member: usize, writer: u64, known: &mut i64) -> Result<(), Status> {
        let number = self.record.borrow_mut().next(writer);
        let floor = self.record.borrow().begins(member, true);
        let txn = swap(writer, number, *known);
        let reply = self.client(member).kv.txn(txn).await?.into_inner();
        let revision = reply.header.unwrap().revision;
        self.record.borrow_mut().shows(member, true, floor, revision, "a transaction");
        if reply.succeeded {
            let told = Acknowledged { member, written: (writer, number), revision, follows: Some(*known) };
            self.record.borrow_mut().acknowledged.push(told);
            *known = revision;
        } else {
            // A write without an answer came before: the key is read to go on from there.
            *known = self.get(member, writer, true).await?.map_or(0, |found| found.mod_revision);
        }
        Ok(())
    }

    /// Reads keys of the writers on one member, now from a quorum, now from what the member has.
    async fn read(&self, member: usize, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over.get() && !self.is_gone(member) {
            let (writer, is_linearizable) = (random.below(WRITERS), random.one_in(2));
            if let Err(status) = self.get(member, writer, is_linearizable).await {
                self.record.borrow_mut().failed(&status);
                tokio::time::sleep(PAUSE).await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn get(
        &self,
        member: usize,
        writer: u64,
        is_linearizable: bool,
    ) -> Result<Option<KeyValue>, Status> {
        let key = key(writer);
        let floor = self.record.borrow().begins(member, is_linearizable);
        let request = RangeRequest {
            key: key.clone().into(),
            serializable: !is_linearizable,
            ..RangeRequest::default()
        };
        let reply = self.client(member).kv.range(request).await?.into_inner();
        let (revision, found) = (reply.header.unwrap().revision, reply.kvs.into_iter().next());
        let mut record = self.record.borrow_mut();
        record.shows(member, is_linearizable, floor, revision, "a read");
        record.reads.push(Read { member, key, revision, found: found.clone() });
        Ok(found)
    }

    /// Watches everything on one member; when the watch ends, from there on in the next.
    async fn watch(self: Rc<Self>, member: usize) {
        let _guard = AtWork(&self);
        let mut next = self.first + 1;
        loop {
            let request = everything(next);
            let mut transcript = Transcript::new(request.clone());
            let mut stream = self.client(member).open_watch();
            stream.ask(RequestUnion::CreateRequest(request));
            let is_complete = loop {
                if self.last.get().is_some_and(|last| next > last) {
                    break true;
                }
                let response = match stream.next_within(Duration::from_secs(1)).await {
                    None if stream.is_over() || self.is_gone(member) => break false,
                    None => continue,
                    Some(Ok(response)) => response,
                    Some(Err(status)) => {
                        self.record.borrow_mut().failed(&status);
                        break false;
                    }
                };
                if let Some(newest) = response.events.last() {
                    let newest = newest.kv.as_ref().unwrap().mod_revision;
                    next = newest + 1;
                    self.record.borrow_mut().tells(member, newest);
                }
                let ends = response.canceled;
                transcript.responses.push(response);
                if ends {
                    break false;
                }
            };
            transcript.complete_to = is_complete.then_some(next - 1);
            self.record.borrow_mut().transcripts.push(transcript);
            if is_complete || self.is_gone(member) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// All changes, from the first one, as one member has them; all members have the same in the end.
async fn history(cluster: &Cluster, first: i64, newest: i64) -> Changes {
    let mut histories = Vec::new();
    for member in cluster.present() {
        let client = cluster.client(member);
        let request =
            RangeRequest { key: "writer/".into(), range_end: "writer0".into(), ..RangeRequest::default() };
        let reply = client.kv.clone().range(request).await.unwrap().into_inner();
        let last = reply.header.unwrap().revision;
        assert!(last >= newest, "member {member} has {last}, and {newest} was shown");
        let mut stream = client.open_watch();
        stream.ask(RequestUnion::CreateRequest(everything(first)));
        let last = reply.kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or(first);
        let mut history = Changes::default();
        while history.revision() < last {
            let response = stream.next_within(Duration::from_secs(30)).await;
            let response = response.expect("all that has happened").unwrap();
            response.events.into_iter().for_each(|mut event| {
                event.prev_kv = None;
                history.push(event);
            });
        }
        histories.push(history);
    }
    let first = histories.swap_remove(0);
    for other in &histories {
        assert_eq!(first.events(), other.events(), "members have different histories");
    }
    first
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
