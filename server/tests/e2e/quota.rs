//! A store that is full: what is refused, what still works, and the way
//! out of it, the same as with etcd.

use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest, PutRequest,
    RangeRequest, RequestOp, StatusRequest, TxnRequest,
};
use tonic::Status;

use crate::harness::{Client, Server, TempDir, peers, run, said_of_both, with_restartable_server};

const QUOTA_BYTES: &str = "16777216";

fn put(number: u32, len: usize) -> PutRequest {
    PutRequest { key: format!("key/{number:05}").into(), value: vec![7; len].into(), ..PutRequest::default() }
}

/// How a call ended, in words that can be compared.
fn ended<T>(what: &str, result: Result<T, Status>) -> String {
    match result {
        Ok(_) => format!("{what}: done"),
        Err(status) => format!("{what}: {:?} {}", status.code(), status.message()),
    }
}

async fn alarms(client: &Client, action: AlarmAction, alarm: AlarmType) -> Vec<(bool, i32)> {
    let own = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    let own = own.header.unwrap().member_id;
    let member_id = if action == AlarmAction::Get { 0 } else { own };
    let request = AlarmRequest { action: action as i32, member_id, alarm: alarm as i32 };
    let reply = client.maintenance.clone().alarm(request).await.unwrap().into_inner();
    assert!(reply.header.is_some());
    reply.alarms.iter().map(|alarm| (alarm.member_id == own, alarm.alarm)).collect()
}

/// Fills the store, tries everything, makes room, and goes on.
async fn scenario(server: &mut Server, restart: impl Fn(&mut Server)) -> Vec<String> {
    let mut said = Vec::new();
    let client = server.client().await;
    let mut kv = client.kv.clone();
    let mut count = 0;
    let refused = loop {
        match kv.put(put(count, 64 * 1024)).await {
            Ok(_) => count += 1,
            Err(status) => break status,
        }
        assert!(count < 1_000, "the quota does not hold");
    };
    assert!(count > 100, "refused after {count} puts");
    said.push(ended::<()>("put", Err(refused)));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Get, AlarmType::None).await));
    restart(server);
    let client = server.client().await;
    let mut kv = client.kv.clone();
    let success = vec![RequestOp { request: Some(Request::RequestPut(put(0, 1))) }];
    said.push(ended("small put", kv.put(put(0, 1)).await));
    said.push(ended("txn", kv.txn(TxnRequest { success, ..TxnRequest::default() }).await));
    said.push(ended("txn without put", kv.txn(TxnRequest::default()).await));
    let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    said.push(format!(
        "{} errors, NOSPACE: {}",
        status.errors.len(),
        status.errors[0].contains("alarm:NOSPACE")
    ));
    let whole = (bytes::Bytes::from("key/"), bytes::Bytes::from("key0"));
    let (key, range_end) = whole.clone();
    let delete = kv.delete_range(DeleteRangeRequest { key, range_end, prev_kv: false }).await;
    let revision = delete.as_ref().unwrap().get_ref().header.unwrap().revision;
    said.push(ended("delete", delete));
    let (key, range_end) = whole;
    said.push(ended("range", kv.range(RangeRequest { key, range_end, ..RangeRequest::default() }).await));
    said.push(ended("compact", kv.compact(CompactionRequest { revision, physical: true }).await));
    said.push(ended("defragment", client.maintenance.clone().defragment(DefragmentRequest {}).await));
    let after = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    assert!(after.db_size * 4 < status.db_size, "{} bytes, {} before", after.db_size, status.db_size);
    said.push(ended("put with room, alarm raised", kv.put(put(0, 1)).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Deactivate, AlarmType::Nospace).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Get, AlarmType::None).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Deactivate, AlarmType::Nospace).await));
    said.push(ended("put", kv.put(put(0, 1)).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Activate, AlarmType::Corrupt).await));
    said.push(ended("put while corrupt", kv.put(put(0, 1)).await));
    said.push(ended("compact while corrupt", kv.compact(CompactionRequest::default()).await));
    said.push(ended(
        "range while corrupt",
        kv.range(RangeRequest { key: "k".into(), ..RangeRequest::default() }).await,
    ));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Deactivate, AlarmType::Corrupt).await));
    said.push(ended("put", kv.put(put(0, 1)).await));
    said
}

#[test]
fn a_full_store_behaves_like_etcds() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--quota-backend-bytes", QUOTA_BYTES];
        let mut server = Server::revd(&dir.path().join("revd"), &flags);
        let ours = scenario(&mut server, |server| {
            server.kill();
            server.start_again();
        })
        .await;
        let Some(peers) = peers() else { return };
        let mut etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &flags);
        let theirs = scenario(&mut etcd, |_| {}).await;
        assert_eq!(ours, theirs);
        println!("{ours:#?}");
    });
}

/// 13 pages of 4 KiB, the quota of etcd's own tests.
const TINY_QUOTA_BYTES: usize = 13 * 4096;

async fn deactivate(client: &Client) {
    alarms(client, AlarmAction::Deactivate, AlarmType::Nospace).await;
}

/// An empty store is small: what counts is what holds data.
async fn tiny_scenario(server: &Server) -> Vec<String> {
    let client = server.client().await;
    let mut kv = client.kv.clone();
    let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    println!("an empty store: {} bytes, {} in use", status.db_size, status.db_size_in_use);
    let is_small = (8 * 1024..=128 * 1024).contains(&status.db_size);
    let mut said = vec![
        format!("small: {is_small}, quota: {}", status.db_size_quota),
        format!("in use at most all: {}", status.db_size_in_use <= status.db_size),
    ];
    said.push(ended("small put", kv.put(put(0, 1024)).await));
    said.push(ended("small put again", kv.put(put(0, 1024)).await));
    said.push(ended("large put", kv.put(put(1, TINY_QUOTA_BYTES)).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Get, AlarmType::None).await));
    said.push(ended("small put", kv.put(put(0, 1)).await));
    said
}

fn txn_of(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, failure, ..TxnRequest::default() }
}

/// Puts in nested transactions, which do not fit in all, or do.
async fn nested_scenario(server: &Server) -> Vec<String> {
    let client = server.client().await;
    let mut kv = client.kv.clone();
    let put_of = |number, len| RequestOp { request: Some(Request::RequestPut(put(number, len))) };
    let nested = |txn| RequestOp { request: Some(Request::RequestTxn(txn)) };
    let (large, half) = (900_000, 500_000);
    let too_much = [
        ("nested", txn_of(vec![nested(txn_of(vec![put_of(0, large)], vec![]))], vec![])),
        ("nested, not taken", txn_of(vec![nested(txn_of(vec![], vec![put_of(0, large)]))], vec![])),
        ("in the branch not taken", txn_of(vec![], vec![nested(txn_of(vec![put_of(0, large)], vec![]))])),
        (
            "two levels down",
            txn_of(
                vec![nested(txn_of(vec![nested(txn_of(vec![put_of(0, large)], vec![]))], vec![]))],
                vec![],
            ),
        ),
        (
            "with one beside",
            txn_of(vec![put_of(0, half), nested(txn_of(vec![put_of(1, half)], vec![]))], vec![]),
        ),
        (
            "two side by side",
            txn_of(
                vec![
                    nested(txn_of(vec![put_of(0, half)], vec![])),
                    nested(txn_of(vec![], vec![put_of(1, half)])),
                ],
                vec![],
            ),
        ),
    ];
    let mut said = Vec::new();
    for (what, txn) in too_much {
        said.push(ended(what, kv.txn(txn).await));
        said.push(format!("{:?}", alarms(&client, AlarmAction::Get, AlarmType::None).await));
        let small = txn_of(vec![nested(txn_of(vec![put_of(9, 1)], vec![]))], vec![]);
        said.push(ended("a small nested one meanwhile", kv.txn(small).await));
        deactivate(&client).await;
    }
    // Either branch fits: only one of them is taken.
    let fits =
        txn_of(vec![nested(txn_of(vec![put_of(0, half)], vec![put_of(1, half)]))], vec![put_of(2, half)]);
    said.push(ended("fits", kv.txn(fits).await));
    said.push(format!("{:?}", alarms(&client, AlarmAction::Get, AlarmType::None).await));
    said
}

#[test]
fn a_tiny_quota_takes_what_etcds_takes() {
    println!("{:#?}", said_of_both(&["--quota-backend-bytes", &TINY_QUOTA_BYTES.to_string()], tiny_scenario));
}

#[test]
fn nested_puts_count_for_the_quota_as_in_etcd() {
    println!("{:#?}", said_of_both(&["--quota-backend-bytes", "800000"], nested_scenario));
}

/// Reads and writes go on while space is given back, and everything is still there afterwards.
#[test]
fn defragmenting_while_serving() {
    with_restartable_server(&[], async |server, client| {
        let mut kv = client.kv.clone();
        for number in 0..1_500 {
            kv.put(put(number, 20_000)).await.unwrap();
        }
        let delete =
            DeleteRangeRequest { key: "key/00100".into(), range_end: "key/01400".into(), prev_kv: false };
        let revision = kv.delete_range(delete).await.unwrap().into_inner().header.unwrap().revision;
        kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
        let before = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        let mut maintenance = client.maintenance.clone();
        let defragment = maintenance.defragment(DefragmentRequest {});
        let mut writes = 0;
        let serve = async {
            loop {
                kv.put(put(5_000 + writes % 10, 100)).await.unwrap();
                let read =
                    kv.range(RangeRequest { key: "key/00001".into(), ..RangeRequest::default() }).await;
                assert_eq!(read.unwrap().into_inner().kvs[0].value.len(), 20_000);
                writes += 1;
            }
        };
        tokio::select! {
            done = defragment => drop(done.unwrap()),
            () = serve => unreachable!("it serves for ever"),
        }
        let after = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        println!("{} bytes became {}, {writes} writes meanwhile", before.db_size, after.db_size);
        assert!(after.db_size * 3 < before.db_size && writes > 0);
        server.kill();
        server.start_again();
        let client = server.client().await;
        let all = RangeRequest { key: "key/".into(), range_end: "key0".into(), ..RangeRequest::default() };
        let kvs = client.kv.clone().range(all).await.unwrap().into_inner().kvs;
        assert!(kvs.len() > 200 && kvs.iter().take(200).all(|kv| kv.value.len() == 20_000));
    });
}
