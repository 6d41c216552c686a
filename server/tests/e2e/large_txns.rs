//! Transactions and deletes that read much: the member lives, others are served meanwhile, a start
//! does not repeat what nobody waits for, and what is refused has changed nothing.

use std::time::{Duration, Instant};

use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::response_op::Response;
use revd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use tonic::{Code, Status};

use crate::harness::{Client, Server, said_of_both, with_restartable_server, with_server};

const VALUE_BYTES: usize = 64 * 1024;

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put_of(key: &str, len: usize) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: vec![7; len].into(), ..PutRequest::default() }
}

fn put(key: &str) -> RequestOp {
    op(Request::RequestPut(put_of(key, 1)))
}

fn all() -> RangeRequest {
    RangeRequest { key: "big/".into(), range_end: "big0".into(), ..RangeRequest::default() }
}

fn txn_of(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, ..TxnRequest::default() }
}

fn nested(txn: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(txn))
}

/// 50 MB.
async fn fill(client: &Client) {
    for number in 0..800 {
        client.kv.clone().put(put_of(&format!("big/{number:04}"), VALUE_BYTES)).await.unwrap();
    }
}

async fn has(client: &Client, key: &str) -> bool {
    let request = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap().into_inner().count == 1
}

/// The slowest of others' puts and gets while the call is under way.
#[expect(clippy::disallowed_methods, reason = "what others wait is measured from outside")]
async fn meanwhile<T>(client: &Client, call: impl Future<Output = T>) -> (T, Duration) {
    let mut slowest = Duration::ZERO;
    let others = async {
        loop {
            let start = Instant::now();
            client.kv.clone().put(put_of("other", 1)).await.unwrap();
            assert!(has(client, "other").await);
            slowest = slowest.max(start.elapsed());
        }
    };
    let ended = tokio::select! {
        ended = call => ended,
        () = others => unreachable!("others go on for ever"),
    };
    (ended, slowest)
}

/// The fastest of some ranges over everything: a moment in which the machine stands still allows
/// nothing.
#[expect(clippy::disallowed_methods, reason = "what others wait is held against what this machine needs")]
async fn alone(client: &Client) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        client.kv.clone().range(all()).await.unwrap();
        fastest = fastest.min(start.elapsed());
    }
    fastest
}

fn is_refused(result: Result<impl std::fmt::Debug, Status>, words: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains(words), "{status:?}");
}

/// A put with 127 ranges over 50 MB, read-only ranges of the same size, nested and not: none of
/// them takes the memory or the time of the member, and it starts again after a kill.
#[test]
fn many_large_ranges_of_one_transaction_hurt_nobody() {
    with_restartable_server(&[], async |server, _| {
        let other = server.client().await;
        let client = server.client().await;
        fill(&client).await;
        let before = server.most_resident();
        let ranges = || (0..127).map(|_| op(Request::RequestRange(all()))).collect::<Vec<_>>();
        let with_put = [vec![put("written")], ranges()].concat();
        let mut kv = client.kv.clone();
        let (ended, slowest) = meanwhile(&other, kv.txn(txn_of(with_put))).await;
        println!("a put and 127 ranges: {:?}, others wait up to {slowest:?}", ended.as_ref().map(|_| ()));
        is_refused(ended, "nothing was changed");
        assert!(!has(&client, "written").await);
        let (ended, nested_slowest) = meanwhile(&other, kv.txn(txn_of(vec![nested(txn_of(ranges()))]))).await;
        println!("nested: others wait up to {nested_slowest:?}");
        is_refused(ended, "nothing was changed");
        let (ended, read_only_slowest) = meanwhile(&other, kv.txn(txn_of(ranges()))).await;
        println!("read-only: others wait up to {read_only_slowest:?}");
        assert_eq!(ended.unwrap_err().code(), Code::ResourceExhausted);
        let fits = vec![put("written"), op(Request::RequestRange(all())), put("too")];
        let (ended, one_slowest) = meanwhile(&other, kv.txn(txn_of(fits))).await;
        println!("one range: others wait up to {one_slowest:?}");
        let responses = ended.unwrap().into_inner().responses;
        let Some(Response::ResponseRange(range)) = &responses[1].response else { panic!("no range") };
        assert_eq!((range.kvs.len(), range.count), (800, 800));
        let grown = server.most_resident() - before;
        println!("memory: {before} bytes and {grown} more");
        assert!(grown < 2 << 30, "{grown} bytes for replies");
        let longest = slowest.max(nested_slowest).max(read_only_slowest).max(one_slowest);
        // 127 of them take far longer than 30.
        let long = Duration::from_secs(6).max(30 * alone(&client).await);
        assert!(longest < long, "others waited for {longest:?}, which may be {long:?}");
        server.kill();
        server.start_again();
        let again = server.most_resident();
        println!("started again with {again} bytes at most");
        assert!(again < before.max(300 << 20), "{again} bytes at the start, {before} before");
        let client = server.client().await;
        assert!(has(&client, "written").await && has(&client, "too").await);
    });
}

/// A delete that would answer with more than a reply may have is refused as well, alone and in a
/// transaction; in parts it is answered.
#[test]
fn a_delete_with_too_many_previous_values_changes_nothing() {
    with_server(&[], async |_, client| {
        fill(client).await;
        let delete = DeleteRangeRequest { key: "big/".into(), range_end: "big0".into(), prev_kv: true };
        let deletes = (0..8).map(|_| op(Request::RequestRange(all()))).collect::<Vec<_>>();
        let too_much = [deletes, vec![op(Request::RequestDeleteRange(delete.clone()))]].concat();
        is_refused(client.kv.clone().txn(txn_of(too_much)).await, "nothing was changed");
        assert!(has(client, "big/0000").await);
        let reply = client.kv.clone().delete_range(delete).await.unwrap().into_inner();
        assert_eq!((reply.deleted, reply.prev_kvs.len()), (800, 800));
        assert!(reply.prev_kvs.iter().all(|kv| kv.value.len() == VALUE_BYTES));
        assert!(!has(client, "big/0000").await);
    });
}

/// The keys that a transaction in the log compares and the reads that it makes are bounded.
#[test]
fn comparisons_and_reads_of_a_logged_transaction_are_bounded() {
    with_server(&[], async |_, client| {
        for batch in 0..20 {
            let puts = (0..100).map(|key| put(&format!("k/{batch:02}/{key:03}")));
            client.kv.clone().txn(txn_of(puts.collect())).await.unwrap();
        }
        let compare = Compare {
            key: "k/".into(),
            range_end: "k0".into(),
            target: CompareTarget::Version as i32,
            result: CompareResult::Equal as i32,
            target_union: Some(TargetUnion::Version(1)),
        };
        let txn = |times, success| TxnRequest {
            compare: vec![compare.clone(); times],
            success,
            ..TxnRequest::default()
        };
        let few = client.kv.clone().txn(txn(50, vec![put("few")])).await.unwrap().into_inner();
        assert!(few.succeeded);
        is_refused(client.kv.clone().txn(txn(128, vec![put("many")])).await, "200000 keys");
        assert!(!has(client, "many").await);
        let read_only = client.kv.clone().txn(txn(128, vec![])).await.unwrap().into_inner();
        assert!(read_only.succeeded, "what is not logged may compare as much as it likes");
        let reads = |count: usize| {
            (0..count).map(|_| {
                op(Request::RequestRange(RangeRequest { key: "few".into(), ..RangeRequest::default() }))
            })
        };
        let nested_reads = |each: usize| {
            txn_of(
                (0..36)
                    .map(|_| nested(txn_of((0..36).map(|_| nested(txn_of(reads(each).collect()))).collect())))
                    .collect(),
            )
        };
        let many = client.kv.clone().txn(nested_reads(5)).await.unwrap().into_inner();
        assert_eq!(leaves(&many), 36 * 36 * 5);
        is_refused(client.kv.clone().txn(nested_reads(9)).await, "10000 times");
    });
}

/// Many reads of one large key are as much as a range: refused before anything is changed.
#[test]
fn many_reads_of_one_large_key_are_refused_before_the_write() {
    with_server(&[], async |_, client| {
        client.kv.clone().put(put_of("large", 1 << 20)).await.unwrap();
        let get = RangeRequest { key: "large".into(), ..RangeRequest::default() };
        let gets = |count| nested(txn_of(vec![op(Request::RequestRange(get.clone())); count]));
        let txn = |times| txn_of([vec![put("written")], vec![gets(30); times]].concat());
        is_refused(client.kv.clone().txn(txn(20)).await, "nothing was changed");
        let put_again = op(Request::RequestPut(PutRequest { prev_kv: true, ..put_of("large", 1) }));
        is_refused(
            client.kv.clone().txn(txn_of([vec![gets(80); 4], vec![put_again]].concat())).await,
            "nothing was",
        );
        assert!(!has(client, "written").await);
        let reply = client.kv.clone().txn(txn(2)).await.unwrap().into_inner();
        assert_eq!(leaves(&reply), 60);
        assert!(has(client, "written").await);
    });
}

fn leaves(reply: &TxnResponse) -> usize {
    let of = |response: &Option<Response>| match response {
        Some(Response::ResponseTxn(inner)) => leaves(inner),
        Some(Response::ResponseRange(range)) => usize::from(range.kvs.len() == 1),
        _ => 0,
    };
    reply.responses.iter().map(|response| of(&response.response)).sum()
}

/// Reads in the middle of a transaction see what is before them, whoever reads it and
/// when: as in etcd, byte for byte.
#[test]
fn reads_between_writes_are_those_of_etcd() {
    async fn scenario(server: &Server) -> Vec<TxnResponse> {
        let client = server.client().await;
        let range = |range_end: &'static str, revision| {
            let (key, range_end) = ("a".into(), range_end.into());
            op(Request::RequestRange(RangeRequest { key, range_end, revision, ..RangeRequest::default() }))
        };
        let delete = |range_end: &'static str| {
            let (key, range_end) = ("a".into(), range_end.into());
            op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: true }))
        };
        let replace = |key: &str| op(Request::RequestPut(PutRequest { prev_kv: true, ..put_of(key, 2) }));
        let mut said = Vec::new();
        for reads in [1, 20] {
            let mut ops = vec![range("z", 0), put("a1"), range("z", 0), range("", 0), put("a2")];
            ops.extend((0..reads).flat_map(|_| [range("z", 0), range("", 0)]));
            ops.push(nested(txn_of(vec![range("z", 0), put("a3"), range("z", 1), range("z", 0)])));
            ops.extend([replace("b"), range("z", 0), range("b", 0)]);
            said.push(client.kv.clone().txn(txn_of(ops)).await.unwrap().into_inner());
            let ops = vec![range("z", 0), delete("a2"), range("z", 0), delete("z"), range("z", 0), put("z")];
            said.push(client.kv.clone().txn(txn_of(ops)).await.unwrap().into_inner());
        }
        for reply in &mut said {
            reply.header.as_mut().unwrap().raft_term = 0;
            reply.header.as_mut().unwrap().cluster_id = 0;
            reply.header.as_mut().unwrap().member_id = 0;
        }
        said
    }
    said_of_both(&[], scenario);
}
