//! Bugs of etcd, and of others, that revd must not have, by their rows in the catalogue; and a
//! matrix of methods, callers and keys, in which every answer is the one etcd gives.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use revd_proto::authpb::Permission;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, AuthenticateRequest, CompactionRequest,
    DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse, request_op,
};
use revd_proto::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use revd_proto::v3lockpb::{LockRequest, UnlockRequest};
use tonic::{Code, Request, Status};

use super::{FLAGS, call};
use crate::harness::{self, Client, Server, with_etcd_beside, with_server};

pub(crate) const PASSWORD: &str = "correct-horse-battery";

pub(crate) async fn must(
    client: &Client,
    path: &'static str,
    message: &impl Message,
    token: Option<&str>,
) -> Bytes {
    call(client, path, message.encode_to_vec().into(), token).await.unwrap()
}

pub(crate) async fn login(client: &Client, name: &str) -> String {
    harness::login(client, name, PASSWORD).await
}

/// Keys, leases 1 (on `x`) and 2 (on `b1`), root, and ann, who may read and write `[b, c)`. Tokens
/// of both.
pub(crate) async fn set_up(client: &Client) -> (String, String) {
    set_up_without_logins(client).await;
    (login(client, "root").await, login(client, "ann").await)
}

/// The same, where nobody can log in.
pub(crate) async fn set_up_without_logins(client: &Client) {
    set_up_users(client).await;
    must(client, "/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}, None).await;
}

/// The same, where nobody needs rights.
pub(crate) async fn set_up_users(client: &Client) {
    for id in [1, 2] {
        let grant = LeaseGrantRequest { id, ttl: 10_000 };
        must(client, "/etcdserverpb.Lease/LeaseGrant", &grant, None).await;
    }
    for (key, lease) in [("a", 0), ("b", 0), ("b1", 2), ("x", 1)] {
        let put = PutRequest { key: key.into(), value: "secret".into(), lease, ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, None).await;
    }
    for name in ["root", "ann"] {
        let (name, password) = (name.to_owned(), PASSWORD.to_owned());
        let request = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
        must(client, "/etcdserverpb.Auth/UserAdd", &request, None).await;
    }
    let role = || "b".to_owned();
    must(client, "/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name: role() }, None).await;
    let perm = Some(Permission { perm_type: 2, key: "b".into(), range_end: "c".into() });
    let grant = AuthRoleGrantPermissionRequest { name: role(), perm };
    must(client, "/etcdserverpb.Auth/RoleGrantPermission", &grant, None).await;
    for (user, role) in [("root", "root"), ("ann", "b")] {
        let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        must(client, "/etcdserverpb.Auth/UserGrantRole", &request, None).await;
    }
}

/// Every method with one request and one reply, as the wire contract describes itself.
pub(crate) fn unary_methods() -> Vec<&'static str> {
    let files = prost_types::FileDescriptorSet::decode(revd_proto::DESCRIPTORS).unwrap();
    let mut paths = Vec::new();
    for file in &files.file {
        for service in &file.service {
            let methods = service.method.iter();
            let unary = methods.filter(|it| !it.client_streaming() && !it.server_streaming());
            let path = |name: &str| format!("/{}.{}/{name}", file.package(), service.name());
            paths.extend(unary.map(|method| &*path(method.name()).leak()));
        }
    }
    paths
}

/// Requests of a method: with a key that is ann's, and with others; empty where it has no key.
fn requests(path: &str) -> Vec<Bytes> {
    let of = |messages: &[&dyn Fn(&'static str) -> Vec<u8>]| -> Vec<Bytes> {
        let keys = ["b", "x"].into_iter();
        keys.flat_map(|key| messages.iter().map(move |message| message(key).into())).collect()
    };
    let lease = |key: &str| if key == "x" { 1 } else { 2 };
    match path.rsplit_once('/').unwrap().1 {
        "Range" => of(&[
            &|key| RangeRequest { key: key.into(), ..RangeRequest::default() }.encode_to_vec(),
            &|key| {
                RangeRequest { key: key.into(), range_end: "\0".into(), ..RangeRequest::default() }
                    .encode_to_vec()
            },
            &|key| {
                RangeRequest { key: key.into(), range_end: "c".into(), ..RangeRequest::default() }
                    .encode_to_vec()
            },
        ]),
        // Other tests do what ann may do: here nothing may change.
        "Put" => vec![
            PutRequest { key: "x".into(), prev_kv: true, ..PutRequest::default() }.encode_to_vec().into(),
        ],
        "DeleteRange" => of(&[&|key| {
            DeleteRangeRequest { key: key.into(), range_end: "\0".into(), prev_kv: true }.encode_to_vec()
        }]),
        "LeaseRevoke" => vec![LeaseRevokeRequest { id: 1 }.encode_to_vec().into()],
        "LeaseTimeToLive" => {
            of(&[&|key| LeaseTimeToLiveRequest { id: lease(key), keys: true }.encode_to_vec()])
        }
        "LeaseGrant" => vec![LeaseGrantRequest { id: 1, ttl: 60 }.encode_to_vec().into()],
        "Compact" => vec![CompactionRequest { revision: 2, physical: false }.encode_to_vec().into()],
        "Lock" => vec![LockRequest { name: "x".into(), lease: 1 }.encode_to_vec().into()],
        "Unlock" => vec![UnlockRequest { key: "x".into() }.encode_to_vec().into()],
        "Leader" => vec![LeaderRequest { name: "x".into() }.encode_to_vec().into()],
        "Campaign" => vec![LockRequest { name: "x".into(), lease: 1 }.encode_to_vec().into()],
        "Proclaim" | "Resign" => {
            let leader = Some(LeaderKey { key: "x".into(), lease: 1, ..LeaderKey::default() });
            vec![ResignRequest { leader }.encode_to_vec().into()]
        }
        _ => vec![Bytes::new()],
    }
}

/// The newest revision, and the hash of all keys there.
pub(crate) async fn hash(client: &Client, root: &str) -> (i64, u32) {
    let hash = client.hash_of_keys(Some(root)).await;
    (hash.hash_revision, hash.hash)
}

/// CVE-2026-33413, row 80: calls that were not judged. Every method there is, without a token, with
/// a bad one, and by a user who may do little: the answers are etcd's, and nothing changes.
#[test]
fn bug_80_every_method_asks_who_calls() {
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        let (revd, etcd) = (revd.client().await, etcd.client().await);
        let (our_root, our_ann) = set_up(&revd).await;
        let (their_root, their_ann) = set_up(&etcd).await;
        let before = (hash(&revd, &our_root).await, hash(&etcd, &their_root).await);
        assert_eq!(before.0, before.1);
        let (mut asked, mut differ) = (0, Vec::new());
        for path in unary_methods() {
            let is_not_etcds = path.starts_with("/grpc.health");
            for message in requests(path) {
                for (ours, theirs) in
                    [(None, None), (Some("garbage"), Some("garbage")), (Some(&*our_ann), Some(&*their_ann))]
                {
                    let our = told(call(&revd, path, message.clone(), ours).await);
                    let their = told(call(&etcd, path, message.clone(), theirs).await);
                    asked += 1;
                    if our != their && !is_not_etcds && !is_known(path, ours.is_none()) {
                        differ.push(format!("{path} {message:?} {ours:?}: revd {our:?}, etcd {their:?}"));
                    }
                }
            }
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        assert!(asked > 150, "only {asked} calls");
        assert_eq!((hash(&revd, &our_root).await, hash(&etcd, &their_root).await), before);
    });
}

/// Difference 33 of docs/COMPAT.md: requests without a token that ask for nothing.
fn is_known(path: &str, is_nobody: bool) -> bool {
    is_nobody && (path.ends_with("KV/Txn") || path.ends_with("Auth/UserGet"))
}

pub(crate) fn told(result: Result<Bytes, Status>) -> Result<(), (Code, String)> {
    result.map(drop).map_err(|status| (status.code(), status.message().to_owned()))
}

/// The first answer to a request for a watcher.
pub(crate) async fn watch(
    client: &Client,
    create: WatchCreateRequest,
    token: Option<&str>,
) -> (WatchResponse, tonic::Streaming<WatchResponse>) {
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let open = tokio_stream::StreamExt::chain(tokio_stream::iter([request]), tokio_stream::pending());
    let mut request = Request::new(open);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let mut stream = client.watch.clone().watch(request).await.unwrap().into_inner();
    (stream.message().await.unwrap().unwrap(), stream)
}

/// A token is judged first, then the size of a proposal, then rights.
#[test]
fn a_proposal_is_too_large_before_it_is_forbidden() {
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        let mut seen = Vec::new();
        for server in [&*revd, etcd] {
            let client = server.client().await;
            let (_, ann) = set_up(&client).await;
            let put =
                PutRequest { key: "x".into(), value: vec![b'v'; 1_800_000].into(), ..PutRequest::default() };
            let delete =
                DeleteRangeRequest { key: vec![b'x'; 1_800_000].into(), ..DeleteRangeRequest::default() };
            let op = RequestOp { request: Some(request_op::Request::RequestPut(put.clone())) };
            let txn = TxnRequest { success: vec![op], ..TxnRequest::default() };
            let name = vec![b'x'; 1_800_000];
            let lock = LockRequest { name: name.clone().into(), lease: 1 };
            let value = name.clone().into();
            let campaign = CampaignRequest { name: "x".into(), lease: 1, value };
            let leader = LeaderKey { key: "x".into(), lease: 1, ..LeaderKey::default() };
            let proclaim = ProclaimRequest { leader: Some(leader), value: name.clone().into() };
            let role = AuthRoleAddRequest { name: String::from_utf8(name).unwrap() };
            let calls: [(&'static str, Vec<u8>); 8] = [
                ("/etcdserverpb.KV/Put", put.encode_to_vec()),
                ("/etcdserverpb.KV/DeleteRange", delete.encode_to_vec()),
                ("/etcdserverpb.KV/Txn", txn.encode_to_vec()),
                ("/v3lockpb.Lock/Lock", lock.encode_to_vec()),
                ("/v3electionpb.Election/Campaign", campaign.encode_to_vec()),
                ("/v3electionpb.Election/Proclaim", proclaim.encode_to_vec()),
                ("/etcdserverpb.Auth/RoleAdd", role.encode_to_vec()),
                ("/etcdserverpb.Auth/RoleDelete", role.encode_to_vec()),
            ];
            let mut told_here = Vec::new();
            for token in [None, Some("garbage"), Some(&*ann)] {
                for (path, message) in &calls {
                    let told = told(call(&client, path, message.clone().into(), token).await);
                    told_here.push(format!("{path} {:?}: {told:?}", token.map(|token| token == "garbage")));
                }
            }
            seen.push(told_here);
        }
        for (ours, theirs) in seen[0].iter().zip(&seen[1]) {
            assert_eq!(ours, theirs);
        }
    });
}

/// GHSA-xg4h-6gfc-h4m8, row 83: a watch of everything from a key on was taken for one of the key.
#[test]
fn bug_83_every_form_of_a_range_end_means_what_it_says() {
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        let mut seen = Vec::new();
        for server in [&*revd, etcd] {
            let client = server.client().await;
            let (root, ann) = set_up(&client).await;
            let mut told_here = Vec::new();
            for (key, range_end) in [
                ("b", ""),
                ("b", "\0"),
                ("b", "b\0"),
                ("b", "c"),
                ("b", "d"),
                ("", "\0"),
                ("x", ""),
                ("b1", "b1"),
            ] {
                for token in [None, Some("garbage"), Some(&*ann), Some(&*root)] {
                    let (key, range_end) = (key.into(), range_end.into());
                    let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
                    let (answer, _) = watch(&client, create, token).await;
                    told_here.push((answer.created, answer.canceled, answer.watch_id, answer.cancel_reason));
                }
            }
            seen.push(told_here);
        }
        let (ours, theirs) = (&seen[0], &seen[1]);
        for (number, (our, their)) in ours.iter().zip(theirs).enumerate() {
            assert_eq!(our, their, "case {number}");
        }
    });
}

/// CVE-2023-32082, row 84: keys of a lease that are nobody's business.
#[test]
fn bug_84_keys_of_leases_are_shown_to_those_who_may_read_them() {
    with_server(&FLAGS, async |_, client| {
        let (root, ann) = set_up(client).await;
        let path = "/etcdserverpb.Lease/LeaseTimeToLive";
        for (id, token, is_shown) in [(1, &ann, false), (2, &ann, true), (1, &root, true)] {
            let request = LeaseTimeToLiveRequest { id, keys: true };
            let result = call(client, path, request.encode_to_vec().into(), Some(token)).await;
            assert_eq!(result.is_ok(), is_shown, "lease {id}: {result:?}");
        }
        let bare = LeaseTimeToLiveRequest { id: 1, keys: false };
        assert!(call(client, path, bare.encode_to_vec().into(), Some(&ann)).await.is_ok());
        let all = call(client, "/etcdserverpb.Lease/LeaseLeases", Bytes::new(), Some(&ann)).await;
        assert_eq!(told(all), Err((Code::PermissionDenied, "etcdserver: permission denied".to_owned())));
    });
}

pub(crate) fn holds(dir: &std::path::Path, secret: &[u8]) -> bool {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().any(|path| {
        if path.is_dir() {
            return holds(&path, secret);
        }
        std::fs::read(path).unwrap_or_default().windows(secret.len()).any(|window| window == secret)
    })
}

/// CVE-2021-28235, row 87: secrets in logs. Neither the log nor any file has a password or a token.
#[test]
fn bug_87_secrets_stay_secret() {
    let flags = [&FLAGS[..], &["--log-level=debug"]].concat();
    with_server(&flags, async |server, client| {
        let (root, ann) = set_up(client).await;
        let wrong =
            AuthenticateRequest { name: "ann".to_owned(), password: "wrong-password-of-ann".to_owned() };
        call(client, "/etcdserverpb.Auth/Authenticate", wrong.encode_to_vec().into(), None)
            .await
            .unwrap_err();
        call(client, "/etcdserverpb.KV/Compact", Bytes::new(), Some(&ann)).await.unwrap_err();
        for secret in [PASSWORD, &root[..16], &ann[..16], "wrong-password-of-ann"] {
            assert!(!server.log().contains(secret), "the log has a secret");
            assert!(!holds(server.data_dir(), secret.as_bytes()), "a file has a secret");
        }
        assert!(holds(server.data_dir(), b"ann"), "what is looked for would be found");
    });
}

/// Row 88: tokens that are none.
#[test]
fn bug_88_no_token_ends_the_member() {
    with_server(&FLAGS, async |server, client| {
        let (_, ann) = set_up(client).await;
        let get = Bytes::from(RangeRequest { key: "b".into(), ..RangeRequest::default() }.encode_to_vec());
        let long = "x".repeat(10_000);
        let future = format!("{}.{}", &ann[..16], u64::MAX);
        for bad in ["", ".", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", &long, &future, &ann[..16], "Bearer "] {
            let refused = told(call(client, "/etcdserverpb.KV/Range", get.clone(), Some(bad)).await);
            let text = "etcdserver: invalid auth token".to_owned();
            assert_eq!(refused, Err((Code::Unauthenticated, text)), "{bad}");
        }
        assert!(call(client, "/etcdserverpb.KV/Range", get, Some(&ann)).await.is_ok());
        assert!(server.log().len() < 1 << 20);
    });
}

/// A watch ends with the right to it; etcd goes on with it.
#[test]
fn a_watch_does_not_outlive_its_permission() {
    with_server(&FLAGS, async |_: &Server, client| {
        let (root, ann) = set_up(client).await;
        let create = WatchCreateRequest { key: "b".into(), range_end: "c".into(), ..Default::default() };
        let (created, mut stream) = watch(client, create.clone(), Some(&ann)).await;
        let (_, mut of_root) = watch(client, create, Some(&root)).await;
        assert!(created.created && !created.canceled);
        let put = PutRequest { key: "b".into(), value: "1".into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        assert_eq!(stream.message().await.unwrap().unwrap().events.len(), 1);
        let revoke = AuthUserRevokeRoleRequest { name: "ann".to_owned(), role: "b".to_owned() };
        must(client, "/etcdserverpb.Auth/UserRevokeRole", &revoke, Some(&root)).await;
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        let next = tokio::time::timeout(Duration::from_secs(20), stream.message()).await.unwrap();
        let next = next.unwrap().unwrap();
        assert!(next.canceled && next.events.is_empty() && next.watch_id == created.watch_id, "{next:?}");
        let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert_eq!(next.cancel_reason, reason);
        for _ in 0..2 {
            assert_eq!(of_root.message().await.unwrap().unwrap().events.len(), 1, "root goes on");
        }
    });
}
