//! Reads of many keys: whole, in pages from either end, and as a
//! stream, while others read and write.

use std::time::Duration;

use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    CompactionRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
};
use revd_proto::mvccpb::KeyValue;

use crate::harness::{Client, with_etcd_beside, with_server};

/// More than a chunk of a stream and several turns of a range.
const KEYS: usize = 12_000;

fn key(number: usize) -> bytes::Bytes {
    format!("key/{number:06}").into()
}

async fn fill(client: &Client) {
    for start in (0..KEYS).step_by(100) {
        let put = |number| {
            let value = vec![u8::try_from(number % 251).unwrap(); 700].into();
            let put = PutRequest { key: key(number), value, ..PutRequest::default() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        };
        let success = (start..start + 100).map(put).collect();
        client.kv.clone().txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "key/".into(), range_end: "key0".into(), ..RangeRequest::default() }
}

fn check(kvs: &[KeyValue]) {
    assert_eq!(kvs.len(), KEYS);
    assert!(kvs.iter().enumerate().all(|(number, kv)| kv.key == key(number) && kv.value.len() == 700));
}

#[test]
fn many_keys_come_whole_in_pages_and_as_a_stream() {
    with_server(&[], async |_, client| {
        fill(client).await;
        let mut kv = client.kv.clone();
        let whole = kv.range(all()).await.unwrap().into_inner();
        check(&whole.kvs);
        assert_eq!(whole.count, i64::try_from(KEYS).unwrap());

        let mut pages = Vec::new();
        let mut request = RangeRequest { limit: 777, ..all() };
        loop {
            let page = kv.range(request.clone()).await.unwrap().into_inner();
            assert_eq!(page.count, i64::try_from(KEYS - pages.len()).unwrap());
            pages.extend(page.kvs);
            if !page.more {
                break;
            }
            request.key = [&pages.last().unwrap().key[..], b"\0"].concat().into();
        }
        check(&pages);

        let mut backwards = Vec::new();
        let order = (SortTarget::Key as i32, SortOrder::Descend as i32);
        let mut request = RangeRequest { limit: 777, sort_target: order.0, sort_order: order.1, ..all() };
        loop {
            let page = kv.range(request.clone()).await.unwrap().into_inner();
            backwards.extend(page.kvs);
            if !page.more {
                break;
            }
            request.range_end = backwards.last().unwrap().key.clone();
        }
        backwards.reverse();
        check(&backwards);

        let mut stream = kv.range_stream(all()).await.unwrap().into_inner();
        // A write in between is not seen: the stream reads one state.
        client.kv.clone().put(PutRequest { key: "key/zzz".into(), ..PutRequest::default() }).await.unwrap();
        let (mut chunks, mut streamed) = (0, Vec::new());
        while let Some(chunk) = stream.message().await.unwrap() {
            streamed.extend(chunk.range_response.unwrap().kvs);
            chunks += 1;
        }
        check(&streamed);
        assert!(chunks > 5, "{chunks} chunks");
    });
}

async fn streamed(client: &Client, request: RangeRequest) -> RangeResponse {
    let mut stream = client.kv.clone().range_stream(request).await.unwrap().into_inner();
    let mut whole = RangeResponse::default();
    while let Some(chunk) = stream.message().await.unwrap() {
        let chunk = chunk.range_response.unwrap();
        whole.kvs.extend(chunk.kvs);
        (whole.header, whole.more, whole.count) = (chunk.header, chunk.more, chunk.count);
    }
    whole
}

/// A sort target without an order means ascending, also for a stream: it
/// ends, and holds what a range holds.
#[test]
fn a_sorted_stream_ends_and_is_what_a_range_is() {
    with_server(&[], async |_, client| {
        fill(client).await;
        for number in (0..KEYS).step_by(7) {
            let value = vec![u8::try_from(number % 13).unwrap()].into();
            let put = PutRequest { key: key(KEYS - 1 - number), value, ..PutRequest::default() };
            client.kv.clone().put(put).await.unwrap();
        }
        let targets =
            [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
        for target in targets {
            for (limit, keys_only, count_only) in [
                (0, false, false),
                (3, false, false),
                (5_000, true, false),
                (0, true, false),
                (7, false, true),
            ] {
                let sort_target = target as i32;
                let request = RangeRequest { sort_target, limit, keys_only, count_only, ..all() };
                let range = client.kv.clone().range(request.clone()).await.unwrap().into_inner();
                let stream = tokio::time::timeout(Duration::from_secs(60), streamed(client, request.clone()))
                    .await
                    .unwrap_or_else(|_| panic!("{request:?} never ends"));
                assert!(stream == range, "{request:?} differs as a stream");
            }
        }
    });
}

/// etcd sorts each chunk of a stream by itself; what fits one chunk of it
/// comes in the same order from both.
#[test]
fn a_short_sorted_stream_is_the_one_of_etcd() {
    with_etcd_beside(&[], async |revd, etcd| {
        let clients = [revd.client().await, etcd.client().await];
        for number in [5, 3, 1, 4, 2, 3, 5, 3] {
            for client in &clients {
                let value = format!("{}", (number * 3) % 7).into();
                let put = PutRequest { key: key(number), value, ..PutRequest::default() };
                client.kv.clone().put(put).await.unwrap();
            }
        }
        for (sort_target, limit, keys_only) in (0..5)
            .flat_map(|target| [(target, 0, false), (target, 2, false), (target, 0, true), (target, 9, true)])
        {
            let request = RangeRequest { sort_target, limit, keys_only, ..all() };
            let [mut ours, mut theirs] =
                [streamed(&clients[0], request.clone()).await, streamed(&clients[1], request.clone()).await];
            (ours.header, theirs.header) = (None, None);
            assert_eq!(ours.count, 5);
            if limit == 2 {
                theirs.count = 5; // etcd counts the rest from the key it answered last, whichever that is
            }
            assert_eq!(ours, theirs, "{request:?}");
        }
    });
}

/// Calls that are given up, at any moment, take nothing with them.
#[test]
fn cancelled_calls_leave_others_alone() {
    with_server(&[], async |_, client| {
        fill(client).await;
        for round in 0..200_u64 {
            let mut kv = client.kv.clone();
            let give_up = std::time::Duration::from_micros(round * 40);
            let call = async {
                match round % 3 {
                    0 => drop(kv.range(all()).await),
                    1 => drop(kv.put(PutRequest { key: key(0), ..PutRequest::default() }).await),
                    _ => drop(kv.range_stream(all()).await),
                }
            };
            // Given up or not: both are fine.
            let _ = tokio::time::timeout(give_up, call).await;
        }
        let whole = client.kv.clone().range(all()).await.unwrap().into_inner();
        assert_eq!(whole.kvs.len(), KEYS);
    });
}

/// A client that does not read its stream keeps no old state alive: others' changes and
/// deletions of everything it has yet to read do not make the file grow, and when a compaction
/// has taken the rest it is told so.
#[test]
fn a_stream_that_is_not_read_holds_nothing() {
    with_server(&[], async |_, client| {
        fill(client).await;
        let mut stream = client.kv.clone().range_stream(all()).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap().range_response.unwrap();
        assert!(!first.kvs.is_empty() && first.header.is_none());
        // Another stream, at its own pace, is not disturbed by
        // writes: all of it is of one revision.
        let mut undisturbed = client.kv.clone().range_stream(all()).await.unwrap().into_inner();
        let mut kvs = Vec::new();
        while let Some(chunk) = undisturbed.message().await.unwrap() {
            kvs.extend(chunk.range_response.unwrap().kvs);
            let number = kvs.len() % KEYS;
            let put = PutRequest { key: key(number), value: "changed".into(), ..PutRequest::default() };
            client.kv.clone().put(put).await.unwrap();
        }
        check(&kvs);
        let size = async || {
            let request = revd_proto::etcdserverpb::StatusRequest {};
            client.maintenance.clone().status(request).await.unwrap().into_inner().db_size
        };
        let mut sizes = Vec::new();
        for _ in 0..6 {
            fill(client).await;
            let now = client.kv.clone().range(RangeRequest { count_only: true, ..all() }).await.unwrap();
            let revision = now.into_inner().header.unwrap().revision;
            let compact = CompactionRequest { revision, physical: true };
            client.kv.clone().compact(compact).await.unwrap();
            sizes.push(size().await);
        }
        assert!(sizes[5] <= sizes[1] + sizes[1] / 4, "the file grows: {sizes:?}");
        let status = loop {
            match stream.message().await {
                Ok(chunk) => assert!(chunk.is_some(), "it ends well although a part of it is gone"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.message(), "etcdserver: mvcc: required revision has been compacted");
    });
}
