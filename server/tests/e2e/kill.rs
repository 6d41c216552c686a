//! kill -9 under load, again and again: nothing acknowledged is lost, revisions never go back.
//!
//! `REVD_KILLS` makes the test longer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use crate::harness::{
    Client, Random, Server, TempDir, connect, free_address, from_env, run, with_restartable_server, within,
};

/// Writers, each with a key and a connection of its own.
const WRITERS: u64 = 24;
/// Acknowledged writes before a kill, at least.
const WRITES_MIN: usize = 40;
/// Longer than a busy machine needs for them.
const MOMENTS: Duration = Duration::from_secs(60);
/// Acknowledged writes of each writer that are read back at their own revision after every kill.
const READ_BACK: usize = 20;

/// Replies to the clients.
#[derive(Clone, Default)]
struct Told {
    /// Per writer: the number last sent, and the acknowledged ones with their revisions.
    sent: BTreeMap<u64, u64>,
    acknowledged: BTreeMap<u64, Vec<(u64, i64)>>,
    revision_max: i64,
}

impl Told {
    /// Acknowledged writes of all writers.
    fn writes(&self) -> usize {
        self.acknowledged.values().map(Vec::len).sum()
    }
}

fn key(writer: u64) -> bytes::Bytes {
    format!("writer/{writer:03}").into()
}

fn put(writer: u64, number: u64) -> PutRequest {
    // Values of all sizes, so that frames end anywhere.
    let filler = "x".repeat(usize::try_from((number * 37 + writer * 101) % 3_000).unwrap());
    PutRequest { key: key(writer), value: format!("{number} {filler}").into(), ..PutRequest::default() }
}

/// Half of the writers put, the others compare and swap: a lost write would
/// show as a failed comparison too.
async fn write(client: &Client, writer: u64, number: u64) -> Option<i64> {
    let mut kv = client.kv.clone();
    if writer.is_multiple_of(2) {
        return kv
            .put(put(writer, number))
            .await
            .ok()
            .map(|reply| reply.into_inner().header.unwrap().revision);
    }
    let compare = Compare {
        key: key(writer),
        target: CompareTarget::Version as i32,
        result: CompareResult::Greater as i32,
        target_union: Some(TargetUnion::Version(-1)),
        ..Compare::default()
    };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put(writer, number))) }];
    let txn = TxnRequest { compare: vec![compare], success, failure: vec![] };
    let reply = kv.txn(txn).await.ok()?.into_inner();
    assert!(reply.succeeded);
    Some(reply.header.unwrap().revision)
}

/// Writes numbers one after the other until the server is gone.
async fn writer(client: Client, writer: u64, told: Rc<RefCell<Told>>) {
    loop {
        let number = {
            let mut told = told.borrow_mut();
            let sent = told.sent.entry(writer).or_insert(0);
            *sent += 1;
            *sent
        };
        let Some(revision) = write(&client, writer, number).await else { return };
        let mut told = told.borrow_mut();
        told.acknowledged.entry(writer).or_default().push((number, revision));
        told.revision_max = told.revision_max.max(revision);
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().split_once(' ').unwrap().0.parse().unwrap()
}

/// Compares what the server has with what the clients were told.
async fn check(client: &Client, told: &Told) {
    let mut kv = client.kv.clone();
    for writer in 0..WRITERS {
        let request = RangeRequest { key: key(writer), ..RangeRequest::default() };
        let reply = kv.range(request).await.unwrap().into_inner();
        assert!(reply.header.unwrap().revision >= told.revision_max, "the revision went back");
        let acknowledged = told.acknowledged.get(&writer).map_or(&[][..], Vec::as_slice);
        let Some((last, last_revision)) = acknowledged.last().copied() else { continue };
        let found = reply.kvs.first().expect("a key that was written");
        assert!(
            number(&found.value) >= last && found.mod_revision >= last_revision,
            "writer {writer} was told that {last} is written at revision {last_revision}, found {} at {}",
            number(&found.value),
            found.mod_revision
        );
        assert!(number(&found.value) <= told.sent[&writer], "a number nobody sent");
        for (number_then, revision) in acknowledged.iter().rev().take(READ_BACK) {
            let request = RangeRequest { key: key(writer), revision: *revision, ..RangeRequest::default() };
            let kvs = kv.range(request).await.unwrap().into_inner().kvs;
            assert_eq!(number(&kvs[0].value), *number_then, "writer {writer} at revision {revision}");
        }
    }
}

async fn kill_loop(kills: u64) {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    let address = free_address();
    let told = Rc::new(RefCell::new(Told::default()));
    let mut random = Random::new(kills);
    let mut slowest = Duration::ZERO;
    for _ in 0..kills {
        #[expect(
            clippy::disallowed_methods,
            reason = "reported, and compared with a bound no machine is near"
        )]
        let started = std::time::Instant::now();
        let mut server = Server::revd_at(address, &data, &[]);
        slowest = slowest.max(started.elapsed());
        let so_far = told.borrow().clone();
        check(&server.client().await, &so_far).await;
        let tasks = tokio::task::LocalSet::new();
        for number in 0..WRITERS {
            let (endpoint, told) = (server.endpoint(), Rc::clone(&told));
            tasks.spawn_local(async move { writer(connect(&endpoint).await, number, told).await });
        }
        let enough = so_far.writes() + WRITES_MIN;
        let running = async {
            tokio::time::sleep(Duration::from_millis(60 + random.below(150))).await;
            let is_enough = async || (told.borrow().writes() >= enough).then_some(());
            within(MOMENTS, "hardly anything is written", is_enough).await;
        };
        tasks.run_until(running).await;
        server.kill();
        tasks.await; // every writer sees the end
    }
    let server = Server::revd_at(address, &data, &[]);
    let told = told.borrow().clone();
    check(&server.client().await, &told).await;
    let acknowledged = told.writes();
    println!("{kills} kills, {acknowledged} acknowledged writes all there, slowest start {slowest:?}");
    assert!(slowest < Duration::from_secs(10), "a start took {slowest:?}");
}

#[test]
fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    run(kill_loop(from_env("REVD_KILLS", 30)));
}

/// Puts so many keys, a hundred at a time.
async fn fill(client: &Client, keys: u64) {
    for first in (0..keys).step_by(100) {
        let put = |number| PutRequest { key: format!("key/{number:09}").into(), ..PutRequest::default() };
        let success =
            (first..first + 100).map(|number| RequestOp { request: Some(Request::RequestPut(put(number))) });
        let txn = TxnRequest { success: success.collect(), ..TxnRequest::default() };
        client.kv.clone().txn(txn).await.unwrap();
    }
}

/// Killed in the middle of one command that takes long, which the start
/// has to apply from its beginning.
#[test]
fn a_start_may_take_longer_than_a_call() {
    with_restartable_server(&[], async |server, client| {
        let keys = from_env("REVD_REPLAY_KEYS", 30_000);
        fill(&client, keys).await;
        let all = || (bytes::Bytes::from("key/"), bytes::Bytes::from("key0"));
        let (key, range_end) = all();
        let deleting = client.clone();
        let deleting = tokio::spawn(async move {
            deleting.kv.clone().delete_range(DeleteRangeRequest { key, range_end, prev_kv: false }).await
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.kill();
        let acknowledged = deleting.await.unwrap().is_ok();
        server.start_again();
        let (key, range_end) = all();
        let request = RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
        let client = server.client().await;
        let left = client.kv.clone().range(request).await.unwrap().into_inner().count;
        assert!(
            left == 0 || (!acknowledged && left == i64::try_from(keys).unwrap()),
            "{left} of {keys} left"
        );
        println!("{left} of {keys} left, acknowledged: {acknowledged}");
    });
}
