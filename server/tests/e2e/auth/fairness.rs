//! Shares of users: how much one may ask for each second.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
};
use revd_proto::v3electionpb::LeaderRequest;
use tonic::Code;

use super::bugs::{must, set_up};
use super::{call, watchers};
use crate::harness::{Cluster, Product, TempDir, Wiring, run, with_server};

/// Ann has ten calls a second, root has no limit.
#[test]
#[expect(clippy::disallowed_methods, reason = "a busy machine takes longer, and lets as much more through")]
fn a_user_beyond_its_limit_is_refused_and_others_are_not() {
    let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--limit-user=ann=10/s,0/s", "--limit-user=bob=1,1"];
    with_server(&flags, async |_, client| {
        let (root, ann) = set_up(client).await;
        let get = Bytes::from(RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec());
        let began = Instant::now();
        let mut refused = 0_u32;
        for _ in 0..100 {
            must(
                client,
                "/etcdserverpb.KV/Range",
                &RangeRequest { key: "a".into(), ..Default::default() },
                Some(&root),
            )
            .await;
            if let Err(status) = call(client, "/etcdserverpb.KV/Range", get.clone(), Some(&ann)).await {
                let text = "etcdserver: too many requests";
                // etcd has this one without its code.
                assert_eq!((status.code(), status.message()), (Code::Unknown, text));
                refused += 1;
            }
        }
        // A second's worth at once, and then as much each second.
        let most = 11 + 10 * u32::try_from(began.elapsed().as_secs() + 1).unwrap();
        assert!(100 - refused <= most, "{refused} were refused, in {:?}", began.elapsed());
        assert!(refused < 95, "{refused}");
    });
}

/// Streams, calls that are refused, and watchers count as other calls do; a watcher that is not
/// made leaves the others of its stream alone.
#[test]
fn no_call_passes_a_limit_by() {
    let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--limit-user=ann=20/s,100/s"];
    with_server(&flags, async |_, client| {
        let (root, ann) = set_up(client).await;
        let long =
            PutRequest { key: "b2".into(), value: vec![b'v'; 100_000].into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &long, Some(&root)).await;
        let create = |key: &str| WatchCreateRequest { key: key.to_owned().into(), ..Default::default() };
        let mut watch = watchers::open(client, &create("b"), Some(&ann)).await.expect("ann may watch it");

        // Its reply takes the bytes of a quarter of an hour.
        let get = RangeRequest { key: "b2".into(), ..RangeRequest::default() }.encode_to_vec();
        call(client, "/etcdserverpb.KV/RangeStream", get.into(), Some(&ann)).await.unwrap();
        let denied = PutRequest { key: "x".into(), ..PutRequest::default() }.encode_to_vec();
        let observed = LeaderRequest { name: "b".into() }.encode_to_vec();
        let get = RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec();
        for (path, message) in [
            ("/etcdserverpb.KV/Range", get.clone()),
            ("/etcdserverpb.KV/RangeStream", get),
            ("/etcdserverpb.KV/Put", denied),
            ("/etcdserverpb.Auth/UserList", Vec::new()),
            ("/v3electionpb.Election/Observe", observed),
        ] {
            let status = call(client, path, message.into(), Some(&ann)).await.unwrap_err();
            assert_eq!(status.message(), "etcdserver: too many requests", "{path}");
        }
        let another = RequestUnion::CreateRequest(create("b1"));
        watch.requests.send(WatchRequest { request_union: Some(another) }).unwrap();
        let refused = watch.replies.message().await.unwrap().unwrap();
        assert!(refused.canceled, "{refused:?}");
        assert_eq!(refused.cancel_reason, "etcdserver: too many requests");
        // Progress is not shown, or the next reply would be that.
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        watch.requests.send(WatchRequest { request_union: Some(progress) }).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let put = PutRequest { key: "b".into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        let told = watch.replies.message().await.unwrap().unwrap();
        assert_eq!((told.events.len(), told.canceled), (1, false), "{told:?}");
    });
}

/// Messages that ask for nothing count too.
#[test]
fn empty_messages_of_a_watch_count() {
    let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--limit-user=ann=20/s,0/s"];
    with_server(&flags, async |_, client| {
        let (_, ann) = set_up(client).await;
        let create = WatchCreateRequest { key: "b".into(), ..WatchCreateRequest::default() };
        let mut watch = watchers::open(client, &create, Some(&ann)).await.expect("ann may watch it");
        for _ in 0..500 {
            watch.requests.send(WatchRequest { request_union: None }).unwrap();
        }
        let another = RequestUnion::CreateRequest(create);
        watch.requests.send(WatchRequest { request_union: Some(another) }).unwrap();
        let refused = watch.replies.message().await.unwrap().unwrap();
        assert_eq!(refused.cancel_reason, "etcdserver: too many requests", "{refused:?}");
    });
}

/// A user beyond its limit is told at once, where a refusal for want of rights would wait for what
/// the other members know.
#[test]
fn a_user_beyond_its_limit_waits_for_no_other_member() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--limit-user=ann=2/s,0/s"];
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &flags).await;
        let member = cluster.leader().await;
        let client = cluster.client(member);
        let (_, ann) = set_up(&client).await;
        cluster.isolate(member);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let calls = (0..20).map(|_| {
            let (client, ann) = (client.clone(), ann.clone());
            let list =
                async move { call(&client, "/etcdserverpb.Auth/UserList", Bytes::new(), Some(&ann)).await };
            tokio::spawn(tokio::time::timeout(Duration::from_secs(3), list))
        });
        let mut refused = 0;
        for told in calls.collect::<Vec<_>>() {
            let told = told.await.unwrap().ok().and_then(Result::err);
            let is_beyond = |status: tonic::Status| status.message() == "etcdserver: too many requests";
            refused += u32::from(told.is_some_and(is_beyond));
        }
        assert!(refused >= 12, "{refused} of 20 were told at once");
    });
}
