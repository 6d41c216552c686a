//! One key changed twice in one revision: a transaction that deletes `[k, "\0")`, which etcd's
//! check for double changes takes for an empty range, and puts a key in it. Such a request can end
//! the process of etcd 3.7.1 for good, so only revd gets these requests.

use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use tonic::Code;

use crate::harness::{Client, with_restartable_server};

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn delete_all() -> RequestOp {
    let (key, range_end) = ("\0".into(), "\0".into());
    op(Request::RequestDeleteRange(DeleteRangeRequest { key, range_end, prev_kv: false }))
}

fn put(value: &str) -> PutRequest {
    PutRequest { key: "k".into(), value: value.to_owned().into(), ..PutRequest::default() }
}

async fn value_at(client: &Client, revision: i64) -> Option<String> {
    let request = RangeRequest { key: "k".into(), revision, ..RangeRequest::default() };
    let kvs = client.kv.clone().range(request).await.unwrap().into_inner().kvs;
    kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
}

async fn revision(client: &Client) -> i64 {
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap().into_inner().header.unwrap().revision
}

/// The put would need the key that its own transaction has just deleted: refused, and nothing has
/// changed, the same after a restart.
#[test]
fn bug_106_a_put_that_needs_the_key_its_transaction_deletes() {
    with_restartable_server(&[], async |server, client| {
        client.kv.clone().put(put("v")).await.unwrap();
        for ignores in
            [PutRequest { ignore_value: true, ..put("") }, PutRequest { ignore_lease: true, ..put("w") }]
        {
            let success = vec![delete_all(), op(Request::RequestPut(ignores))];
            let txn = TxnRequest { success, ..TxnRequest::default() };
            let refused = client.kv.clone().txn(txn).await.unwrap_err();
            assert_eq!(
                (refused.code(), refused.message()),
                (Code::InvalidArgument, "etcdserver: key not found")
            );
        }
        assert_eq!(revision(&client).await, 2);
        server.kill();
        server.start_again();
        let client = server.client().await;
        assert_eq!(revision(&client).await, 2);
        assert_eq!(value_at(&client, 0).await.as_deref(), Some("v"));
        client.kv.clone().put(put("again")).await.unwrap();
    });
}

/// Deleted and put in one revision: the last change counts, before and after compactions below, at
/// and above that revision, and after restarts.
#[test]
fn bug_107_compaction_around_a_revision_that_changed_a_key_twice() {
    for compact_at in [3, 4, 5] {
        with_restartable_server(&[], async |server, client| {
            client.kv.clone().put(put("two")).await.unwrap();
            client.kv.clone().put(put("three")).await.unwrap();
            let success = vec![delete_all(), op(Request::RequestPut(put("four")))];
            client.kv.clone().txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
            client.kv.clone().put(put("five")).await.unwrap();
            let request = CompactionRequest { revision: compact_at, physical: true };
            client.kv.clone().compact(request).await.unwrap();
            let values = [(3, "three"), (4, "four"), (5, "five")];
            let check = async |client: &Client| {
                for (revision, value) in values.iter().filter(|(revision, _)| *revision >= compact_at) {
                    assert_eq!(
                        value_at(client, *revision).await.as_deref(),
                        Some(*value),
                        "compacted at {compact_at}"
                    );
                }
                client.hash_of_keys(None).await.hash
            };
            let before = check(&client).await;
            server.kill();
            server.start_again();
            let client = server.client().await;
            assert_eq!(check(&client).await, before);
            server.stop();
            server.start_again();
            let client = server.client().await;
            assert_eq!(check(&client).await, before);
        });
    }
}
