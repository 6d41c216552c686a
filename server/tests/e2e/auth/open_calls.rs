//! Calls that are under way while users and roles change, and calls of callers that may not make
//! them: what they cost, and when they end.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest, StatusRequest, StatusResponse,
    WatchCreateRequest,
};
use revd_proto::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest};
use revd_proto::v3lockpb::LockRequest;
use tonic::{Code, Status, Streaming};

use super::bugs::{login, must, set_up, watch};
use super::{FLAGS, call};
use crate::harness::{Client, request_as, said_of_both, with_server};

const PATIENCE: Duration = Duration::from_secs(20);

/// A call with a stream of replies: the requests, then nothing more until the call is dropped.
pub(crate) async fn open(
    client: &Client,
    path: &'static str,
    requests: Vec<Vec<u8>>,
    token: Option<&str>,
) -> Result<Streaming<Bytes>, Status> {
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
    requests.into_iter().for_each(|request| sender.send(request.into()).unwrap());
    // A call with one request begins when that is the last.
    if path.ends_with("/Observe") {
        drop(sender);
    } else {
        tokio::spawn(async move { sender.closed().await });
    }
    let request = request_as(tokio_stream::wrappers::UnboundedReceiverStream::new(messages), token);
    let mut raw = tonic::client::Grpc::new(client.channel.clone());
    raw.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(path);
    raw.streaming(request, path, RawCodec).await.map(tonic::Response::into_inner)
}

async fn put(client: &Client, root: &str, key: &'static str) {
    let put = PutRequest { key: key.into(), value: "news".into(), ..PutRequest::default() };
    must(client, "/etcdserverpb.KV/Put", &put, Some(root)).await;
}

async fn revoke(client: &Client, root: &str) {
    let revoke = AuthUserRevokeRoleRequest { name: "ann".to_owned(), role: "b".to_owned() };
    must(client, "/etcdserverpb.Auth/UserRevokeRole", &revoke, Some(root)).await;
}

/// An Observe shows what one leader says for as long as that leads: it ends with the right to it.
#[test]
fn an_observe_does_not_outlive_its_permission() {
    with_server(&FLAGS, async |_, client| {
        let (root, ann) = set_up(client).await;
        let path = "/v3electionpb.Election/Observe";
        let name = || LeaderRequest { name: "b/e".into() }.encode_to_vec();
        for key in ["b/e/1", "b/f/1"] {
            put(client, &root, key).await;
        }
        let mut shown = open(client, path, vec![name()], Some(&ann)).await.unwrap();
        let empty = LeaderRequest { name: "b/none".into() }.encode_to_vec();
        // There is no answer, not even its head, before there is a leader.
        let (other, token) = (client.clone(), ann.clone());
        let waiting = tokio::spawn(async move { open(&other, path, vec![empty], Some(&token)).await });
        let mut of_root = open(client, path, vec![name()], Some(&root)).await.unwrap();
        for stream in [&mut shown, &mut of_root] {
            let reply = LeaderResponse::decode(stream.message().await.unwrap().unwrap()).unwrap();
            assert_eq!(reply.kv.unwrap().key, "b/e/1");
        }
        revoke(client, &root).await;
        put(client, &root, "b/e/1").await;
        put(client, &root, "b/none/1").await;
        let ended = tokio::time::timeout(PATIENCE, shown.message()).await.unwrap().unwrap_err();
        let refused = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap_err();
        for status in [ended, refused] {
            assert_eq!(status.message(), "etcdserver: permission denied");
        }
        let news = LeaderResponse::decode(of_root.message().await.unwrap().unwrap()).unwrap();
        assert_eq!(news.kv.unwrap().value, "news", "root goes on");
    });
}

/// A token counts when a watcher is made. As with etcd, the watcher goes on when the token has
/// ended, and users change: it is its user's, who has the right still.
#[test]
fn a_watch_outlives_its_token_as_with_etcd() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = &server.client().await;
        let (root, ann) = set_up(client).await;
        let create = WatchCreateRequest { key: "b".into(), range_end: "c".into(), ..Default::default() };
        let (created, mut stream) = watch(client, create, Some(&ann)).await;
        assert!(created.created && !created.canceled);
        // Ann's tokens end with her password; then users change.
        let name = || "ann".to_owned();
        let change = AuthUserChangePasswordRequest {
            name: name(),
            password: "another".to_owned(),
            ..Default::default()
        };
        must(client, "/etcdserverpb.Auth/UserChangePassword", &change, Some(&root)).await;
        let bob =
            AuthUserAddRequest { name: "bob".to_owned(), password: "b".to_owned(), ..Default::default() };
        must(client, "/etcdserverpb.Auth/UserAdd", &bob, Some(&root)).await;
        put(client, &root, "b").await;
        let next = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap();
        (next.canceled, next.events.len())
    });
    assert_eq!(seen, (false, 1));
}

async fn entries(client: &Client, root: &str) -> u64 {
    let reply = must(client, "/etcdserverpb.Maintenance/Status", &StatusRequest {}, Some(root)).await;
    StatusResponse::decode(reply).unwrap().raft_index
}

/// Locks and elections without a lease are given one, which is an entry of the log: not before it
/// is known that the caller may have what it is for.
#[test]
fn callers_without_rights_leave_nothing_in_the_log() {
    with_server(&FLAGS, async |_, client| {
        let (root, ann) = set_up(client).await;
        let leader = Some(LeaderKey { name: "x".into(), key: "x/1".into(), rev: 1, lease: 0 });
        let lock = LockRequest { name: "x".into(), lease: 0 }.encode_to_vec();
        let campaign = CampaignRequest { name: "x".into(), ..Default::default() }.encode_to_vec();
        let proclaim = ProclaimRequest { leader, value: "v".into() }.encode_to_vec();
        let before = entries(client, &root).await;
        for (path, message) in [
            ("/v3lockpb.Lock/Lock", &lock),
            ("/v3electionpb.Election/Campaign", &campaign),
            ("/v3electionpb.Election/Proclaim", &proclaim),
        ] {
            for (token, why) in [
                (None, "etcdserver: user name is empty"),
                (Some("garbage"), "etcdserver: invalid auth token"),
                (Some(&*ann), "etcdserver: permission denied"),
            ] {
                for _ in 0..5 {
                    let refused = call(client, path, message.clone().into(), token).await.unwrap_err();
                    assert_eq!((refused.code(), refused.message()), (Code::Unknown, why), "{path}");
                }
            }
        }
        assert_eq!(entries(client, &root).await, before);
        call(client, "/v3lockpb.Lock/Lock", lock.into(), Some(&root)).await.unwrap();
        assert_eq!(entries(client, &root).await, before + 2, "a lease, and a key");
    });
}

/// A keepalive needs the right to write the keys of its lease.
#[test]
fn keepalives_need_the_rights_that_etcd_asks_for() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = &server.client().await;
        let (root, ann) = set_up(client).await;
        let mut seen = Vec::new();
        for token in [None, Some("garbage"), Some(&*ann), Some(&*root)] {
            for leases in [vec![1], vec![2], vec![99], vec![2, 2, 1, 2], vec![99, 2]] {
                let requests = leases.into_iter().map(|id| LeaseKeepAliveRequest { id }.encode_to_vec());
                let mut told = Vec::new();
                let opened =
                    open(client, "/etcdserverpb.Lease/LeaseKeepAlive", requests.collect(), token).await;
                let mut stream = match opened {
                    Ok(stream) => stream,
                    Err(status) => {
                        seen.push((told, Some((status.code(), status.message().to_owned()))));
                        continue;
                    }
                };
                let ended = loop {
                    match tokio::time::timeout(Duration::from_secs(1), stream.message()).await {
                        Err(_) => break None,
                        Ok(Ok(None)) => break Some((Code::Ok, String::new())),
                        Ok(Err(status)) => break Some((status.code(), status.message().to_owned())),
                        Ok(Ok(Some(reply))) => {
                            let reply = LeaseKeepAliveResponse::decode(reply).unwrap();
                            told.push((reply.id, reply.ttl));
                        }
                    }
                };
                seen.push((told, ended));
            }
        }
        seen
    });
    assert!(seen.contains(&(vec![(2, 10_000)], None)), "{seen:?}");
    let denied = Some((Code::PermissionDenied, "etcdserver: permission denied".to_owned()));
    assert!(seen.contains(&(vec![(2, 10_000); 2], denied)), "those before are answered: {seen:?}");
}

/// The keys of a lease are not listed for each keepalive: one that has very many is kept alive as
/// any other, by a user who may write all of them.
#[test]
fn a_lease_of_many_keys_is_kept_alive_by_its_user() {
    with_server(&FLAGS, async |_, client| {
        let (root, ann) = set_up(client).await;
        for number in 0..600 {
            let key = Bytes::from(format!("b{number}"));
            let put = PutRequest { key, lease: 2, ..PutRequest::default() };
            must(client, "/etcdserverpb.KV/Put", &put, Some(&ann)).await;
        }
        let requests = vec![LeaseKeepAliveRequest { id: 2 }.encode_to_vec(); 200];
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let mut stream = open(client, path, requests, Some(&ann)).await.unwrap();
        for _ in 0..200 {
            let reply = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap().unwrap();
            assert_eq!(LeaseKeepAliveResponse::decode(reply).unwrap().ttl, 10_000);
        }
        revoke(client, &root).await;
        let once = vec![LeaseKeepAliveRequest { id: 2 }.encode_to_vec()];
        let refused = open(client, path, once, Some(&ann)).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: permission denied");
        let again = AuthUserGrantRoleRequest { user: "ann".to_owned(), role: "b".to_owned() };
        must(client, "/etcdserverpb.Auth/UserGrantRole", &again, Some(&root)).await;
        assert!(!login(client, "ann").await.is_empty());
    });
}
