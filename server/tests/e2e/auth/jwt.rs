//! Signed tokens beside an etcd 3.7.1 that has the same keys.

use std::path::Path;
use std::process::Command;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthStatusRequest, AuthStatusResponse, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest, AuthenticateRequest, DeleteRangeRequest, LeaseGrantRequest,
    LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, TxnRequest,
    WatchCreateRequest,
};
use serde_json::{Value, json};
use tonic::Code;

use super::bugs::{PASSWORD, login, must, set_up, told, watch};
use super::generator::Tokens;
use super::key_pairs::{write_file, write_pair};
use super::open_calls::open;
use super::{FLAGS, call, compare};
use crate::harness::{
    Client, Server, TempDir, from_env, with_clusters_beside, with_etcd_beside, with_server,
};

/// The algorithms, and a key for each.
const METHODS: [(&str, &str); 13] = [
    ("RS256", "RSA"),
    ("PS512", "RSA"),
    ("ES512", "P521"),
    ("EdDSA", "Ed25519"),
    ("HS384", "HMAC"),
    ("RS384", "RSA"),
    ("RS512", "RSA"),
    ("PS256", "RSA"),
    ("PS384", "RSA"),
    ("ES256", "P256"),
    ("ES384", "P384"),
    ("HS256", "HMAC"),
    ("HS512", "HMAC"),
];
/// A test of every change uses these, one of each family.
const METHODS_OF_CI: u64 = 5;
const SECRET: &[u8] = b"a secret that etcd and revd share\n";

/// Writes a private key and the public one.
fn keys(dir: &Path, family: &str) -> (String, String) {
    if family == "HMAC" {
        return (write_file(dir, "hmac", SECRET), String::new());
    }
    write_pair(dir, family)
}

/// The flag for members that make tokens, and for those that only look at them.
fn flags(dir: &Path, method: &str, family: &str) -> (String, String) {
    let (private, public) = keys(dir, family);
    let makes = format!("--auth-token=jwt,sign-method={method},priv-key={private},ttl=10m");
    let looks = format!("--auth-token=jwt,sign-method={method},pub-key={public}");
    (if public.is_empty() { makes.clone() } else { format!("{makes},pub-key={public}") }, looks)
}

fn with(flag: &str) -> Vec<&str> {
    [&FLAGS[..], &[flag]].concat()
}

async fn get(client: &Client, key: &str, token: &str) -> Result<(), (Code, String)> {
    let get = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    told(call(client, "/etcdserverpb.KV/Range", get.encode_to_vec().into(), Some(token)).await)
}

fn denied() -> Result<(), (Code, String)> {
    Err((Code::PermissionDenied, "etcdserver: permission denied".to_owned()))
}

/// A token that etcd has made is one of revd's, and the other way round; with each algorithm.
#[test]
fn tokens_of_etcd_and_revd_count_at_each_other() {
    let dir = TempDir::new();
    let count = usize::try_from(from_env("REVD_JWT_METHODS", METHODS_OF_CI)).unwrap();
    for (method, family) in METHODS.into_iter().take(count) {
        let (makes, _) = flags(dir.path(), method, family);
        with_etcd_beside(&with(&makes), async |revd, etcd| {
            let clients = [revd.client().await, etcd.client().await];
            let (_, ours) = set_up(&clients[0]).await;
            let (_, theirs) = set_up(&clients[1]).await;
            for client in &clients {
                for token in [&ours, &theirs] {
                    assert_eq!(get(client, "b", token).await, Ok(()), "{method} {token}");
                    assert_eq!(get(client, "x", token).await, denied(), "{method}");
                }
            }
            let head = |token: &str| token.split('.').next().unwrap().to_owned();
            assert_eq!(head(&ours), head(&theirs));
        });
    }
}

/// A member with a public key alone believes tokens that are made elsewhere, and makes none.
#[test]
fn a_member_without_the_private_key_only_looks_at_tokens() {
    let dir = TempDir::new();
    for family in ["RSA", "Ed25519"] {
        let method = if family == "RSA" { "RS256" } else { "EdDSA" };
        let (makes, looks) = flags(dir.path(), method, family);
        with_etcd_beside(&with(&looks), async |revd, etcd| {
            let mut said = Vec::new();
            for (server, name) in [(&*revd, "a"), (etcd, "b")] {
                let client = server.client().await;
                let maker = Server::revd(&dir.path().join(format!("{name}{family}")), &with(&makes));
                let (_, ann) = set_up(&maker.client().await).await;
                super::bugs::set_up_without_logins(&client).await;
                let request = AuthenticateRequest { name: "ann".to_owned(), password: PASSWORD.to_owned() };
                let path = "/etcdserverpb.Auth/Authenticate";
                said.push((
                    told(call(&client, path, request.encode_to_vec().into(), None).await),
                    get(&client, "b", &ann).await,
                    get(&client, "x", &ann).await,
                ));
            }
            assert_eq!(said[0], said[1]);
            let text = "auth: token signing attempted with verify-only key".to_owned();
            assert_eq!(said[0], (Err((Code::Unknown, text)), Ok(()), denied()));
        });
    }
}

/// A token with any head and claims, rightly signed.
fn signed(head: &Value, claims: &str) -> String {
    let encode = |part: &str| BASE64_URL_SAFE_NO_PAD.encode(part);
    let text = format!("{}.{}", encode(&head.to_string()), encode(claims));
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), text.as_bytes());
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
}

/// Tokens as somebody with the key may make them: every claim and every revision there may be.
fn tokens(now: i64, revision: i64) -> Vec<String> {
    let head = json!({"alg": "HS256", "typ": "JWT"});
    let claims = [
        json!({}),
        json!({"exp": now + 600}),
        json!({"exp": now - 5}),
        json!({"exp": 0}),
        json!({"exp": -5}),
        json!({"exp": 1e300}),
        json!({"exp": 1e18}),
        json!({"exp": "x"}),
        json!({"exp": null}),
        json!({"nbf": now + 600}),
        json!({"nbf": 1}),
        json!({"nbf": "x"}),
        json!({"iat": now + 600, "iss": 7, "aud": ["x"], "sub": {}}),
        json!({"revision": revision + 1}),
        json!({"revision": revision - 1}),
        json!({"revision": 0}),
        json!({"revision": "7"}),
        json!({"revision": null}),
        json!({"username": "root"}),
        json!({"username": ""}),
        json!({"username": 7}),
        json!({"username": null}),
        json!({"username": "root", "revision": revision - 1}),
        json!({"username": "root", "revision": revision + 1}),
        json!({"username": "nobody"}),
    ];
    let mut tokens: Vec<String> = claims
        .into_iter()
        .map(|changed| {
            let mut claims = json!({"username": "ann", "revision": revision});
            for (name, value) in changed.as_object().unwrap() {
                claims[name] = value.clone();
            }
            signed(&head, &claims.to_string())
        })
        .collect();
    let good = format!(r#"{{"username":"ann","revision":{revision}}}"#);
    let alg = |alg: &str| signed(&json!({"alg": alg}), &good);
    tokens.extend(["HS256", "HS512", "RS256", "none", "hs256", ""].map(alg));
    tokens.extend([signed(&json!({}), &good), signed(&json!({"alg": 7}), &good)]);
    tokens.extend(["null", "[]", "", "{", r#"{"username":"ann"}"#].map(|claims| signed(&head, claims)));
    tokens.push(signed(&head, &format!("{good} x")));
    let token = signed(&head, &good);
    let text = token.rsplit_once('.').unwrap().0;
    tokens.extend([format!("{token}="), format!("{token}.x"), format!("{text}."), text.to_owned()]);
    tokens.push(signed(&head, &format!(r#"{{"username":"root","username":"ann","revision":{revision}}}"#)));
    tokens
}

/// Requests that say which rights a token stands for.
fn requests() -> Vec<(&'static str, Bytes)> {
    let range = |key: &'static str, serializable| {
        let key = key.into();
        let range = RangeRequest { key, serializable, ..RangeRequest::default() };
        ("/etcdserverpb.KV/Range", range.encode_to_vec().into())
    };
    let put = |key: &'static str| {
        let put = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
        ("/etcdserverpb.KV/Put", put.encode_to_vec().into())
    };
    let delete = DeleteRangeRequest { key: "bb".into(), ..DeleteRangeRequest::default() };
    vec![
        range("b", false),
        range("b", true),
        range("x", false),
        put("b"),
        put("x"),
        ("/etcdserverpb.KV/DeleteRange", delete.encode_to_vec().into()),
        ("/etcdserverpb.Auth/UserGet", Bytes::from_static(b"\n\x03ann")),
        ("/etcdserverpb.Auth/UserList", Bytes::new()),
        ("/etcdserverpb.Auth/RoleAdd", AuthRoleAddRequest { name: "b".to_owned() }.encode_to_vec().into()),
        ("/etcdserverpb.Cluster/MemberList", Bytes::new()),
        ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { id: 1, ttl: 60 }.encode_to_vec().into()),
        time_to_live(1, true),
        time_to_live(2, true),
        time_to_live(2, false),
        ("/etcdserverpb.Lease/LeaseLeases", Bytes::new()),
        // The last one: whoever may, ends it.
        ("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id: 3 }.encode_to_vec().into()),
    ]
}

/// A lease, with a key that is not ann's; it may be there already.
async fn lease_with_a_key(client: &Client, root: &str) {
    let grant = LeaseGrantRequest { id: 3, ttl: 10_000 }.encode_to_vec();
    let _ = call(client, "/etcdserverpb.Lease/LeaseGrant", grant.into(), Some(root)).await;
    let put = PutRequest { key: "x3".into(), lease: 3, ..PutRequest::default() };
    must(client, "/etcdserverpb.KV/Put", &put, Some(root)).await;
}

/// The first reply to a keepalive, or why there is none.
async fn keep_alive(client: &Client, id: i64, token: &str) -> Result<(), (Code, String)> {
    let requests = vec![LeaseKeepAliveRequest { id }.encode_to_vec()];
    let opened = open(client, "/etcdserverpb.Lease/LeaseKeepAlive", requests, Some(token)).await;
    told(match opened {
        Ok(mut stream) => stream.message().await.map(Option::unwrap_or_default),
        Err(status) => Err(status),
    })
}

fn time_to_live(id: i64, keys: bool) -> (&'static str, Bytes) {
    let request = LeaseTimeToLiveRequest { id, keys };
    ("/etcdserverpb.Lease/LeaseTimeToLive", request.encode_to_vec().into())
}

async fn auth_revision(client: &Client) -> u64 {
    let reply = must(client, "/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {}, None).await;
    AuthStatusResponse::decode(reply).unwrap().auth_revision
}

/// A user that is not there (any more) gets nothing of revd; etcd lets anybody in who has a token.
fn is_known(token_names_nobody: bool, path: &str) -> bool {
    token_names_nobody && (path.ends_with("MemberList") || path.contains("Lease/"))
}

#[test]
fn a_token_says_the_same_to_revd_as_to_etcd() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "HS256", "HMAC");
    with_etcd_beside(&with(&makes), async |revd, etcd| {
        let clients = [revd.client().await, etcd.client().await];
        let mut roots = Vec::new();
        for client in &clients {
            roots.push(set_up(client).await.0);
        }
        let revision = auth_revision(&clients[0]).await;
        assert_eq!(revision, auth_revision(&clients[1]).await);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let (mut differ, mut let_in, mut asked) = (Vec::new(), 0, 0);
        for token in tokens(i64::try_from(now).unwrap(), i64::try_from(revision).unwrap()) {
            let claims = token.split('.').nth(1).unwrap();
            let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
            let claims = String::from_utf8_lossy(&claims);
            let names_nobody = claims.contains("\"nobody\"") || claims.contains("\"username\":\"\"");
            for (client, root) in clients.iter().zip(&roots) {
                lease_with_a_key(client, root).await;
            }
            for lease in [1, 2] {
                let our = keep_alive(&clients[0], lease, &token).await;
                let their = keep_alive(&clients[1], lease, &token).await;
                if our != their && !names_nobody {
                    differ.push(format!("keepalive {lease} {claims} {token}: revd {our:?}, etcd {their:?}"));
                }
            }
            for (path, message) in requests() {
                let our = told(call(&clients[0], path, message.clone(), Some(&token)).await);
                let their = told(call(&clients[1], path, message.clone(), Some(&token)).await);
                asked += 1;
                let_in += u32::from(our.is_ok());
                assert!(our.is_err() || !is_known(names_nobody, path), "{path} {claims}");
                if our != their && !is_known(names_nobody, path) {
                    differ.push(format!("{path} {claims} {token}: revd {our:?}, etcd {their:?}"));
                }
            }
        }
        assert!(differ.is_empty(), "{}", differ.join("\n"));
        assert!(asked > 400 && (60..asked - 100).contains(&let_in), "{let_in} of {asked}");
    });
}

/// Any change of users or roles makes tokens old where keys are named; a new login helps.
#[test]
fn a_change_of_users_makes_tokens_old_as_with_etcd() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "ES256", "P256");
    with_etcd_beside(&with(&makes), async |revd, etcd| {
        let mut said = Vec::new();
        for server in [&*revd, etcd] {
            let client = server.client().await;
            let (root, ann) = set_up(&client).await;
            lease_with_a_key(&client, &root).await;
            let add = AuthRoleAddRequest { name: "another".to_owned() };
            must(&client, "/etcdserverpb.Auth/RoleAdd", &add, Some(&root)).await;
            let mut here = Vec::new();
            for token in [&root, &ann, &login(&client, "ann").await] {
                for lease in [1, 2] {
                    here.push(("keepalive", keep_alive(&client, lease, token).await));
                }
                for (path, message) in requests() {
                    here.push((path, told(call(&client, path, message, Some(token)).await)));
                }
                let empty = TxnRequest::default().encode_to_vec();
                here.push((
                    "Txn",
                    told(call(&client, "/etcdserverpb.KV/Txn", empty.into(), Some(token)).await),
                ));
                let (key, range_end) = ("b".into(), "c".into());
                let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
                let (answer, _) = watch(&client, create, Some(token)).await;
                here.push(("Watch", Err((Code::Ok, answer.cancel_reason))));
            }
            said.push(here);
        }
        assert_eq!(said[0], said[1]);
        let old = "etcdserver: revision of auth store is old".to_owned();
        let are_old = said[0].iter().filter(|(_, told)| *told == Err((Code::InvalidArgument, old.clone())));
        assert!(are_old.count() > 10, "{:?}", said[0]);
    });
}

/// etcd goes on with every watch. revd ends those that lost their right, and no others: a change
/// of other users is none of theirs, although it makes their tokens old.
#[test]
fn a_watch_with_a_signed_token_lives_as_long_as_its_right() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "EdDSA", "Ed25519");
    with_server(&with(&makes), async |_, client| {
        let (root, ann) = set_up(client).await;
        let create = WatchCreateRequest { key: "b".into(), range_end: "c".into(), ..Default::default() };
        let (created, mut stream) = watch(client, create, Some(&ann)).await;
        assert!(created.created && !created.canceled);
        let add = AuthRoleAddRequest { name: "another".to_owned() };
        must(client, "/etcdserverpb.Auth/RoleAdd", &add, Some(&root)).await;
        let to_another = AuthUserGrantRoleRequest { user: "root".to_owned(), role: "another".to_owned() };
        must(client, "/etcdserverpb.Auth/UserGrantRole", &to_another, Some(&root)).await;
        let root = login(client, "root").await;
        let put = PutRequest { key: "b".into(), value: "1".into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        let next = stream.message().await.unwrap().unwrap();
        assert!(next.events.len() == 1 && !next.canceled, "{next:?}");
        let revoke = AuthUserRevokeRoleRequest { name: "ann".to_owned(), role: "b".to_owned() };
        must(client, "/etcdserverpb.Auth/UserRevokeRole", &revoke, Some(&root)).await;
        let root = login(client, "root").await;
        must(client, "/etcdserverpb.KV/Put", &put, Some(&root)).await;
        let next = stream.message().await.unwrap().unwrap();
        assert!(next.canceled && next.events.is_empty(), "{next:?}");
    });
}

/// The same random requests as with simple tokens; no user is deleted, for etcd lets the owner of a
/// token go on then.
#[test]
fn users_with_signed_tokens_may_do_what_etcd_lets_them() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "RS256", "RSA");
    let requests = from_env("REVD_AUTH_REQUESTS", 400);
    with_etcd_beside(&with(&makes), async |revd, etcd| {
        compare(11, requests, Tokens::Signed, &[revd.client().await], &[etcd.client().await]).await;
    });
}

/// A token that one of three members has made counts at the others.
#[test]
fn users_with_signed_tokens_of_three_members_may_do_what_three_etcds_let_them() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "HS256", "HMAC");
    let requests = from_env("REVD_AUTH_REQUESTS", 120);
    with_clusters_beside(&with(&makes), async |revd, etcd| {
        let (revd, etcd) = (revd.clients(), etcd.clients());
        compare(12, requests, Tokens::Signed, &revd, &etcd).await;
    });
}

/// Keys and options that cannot work are refused at the start, in etcd's words.
#[test]
fn flags_that_cannot_work_end_the_start() {
    let dir = TempDir::new();
    let (private, _) = keys(dir.path(), "P384");
    for (value, text) in [
        ("jwt", "auth: invalid auth options"),
        ("jwt,sign-method=RS256", "auth: missing key data"),
        ("foo", "auth: invalid auth options"),
        (&*format!("jwt,sign-method=RS256,priv-key={private}"), "key is not a valid RSA private key"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_revd"));
        command.arg("--data-dir").arg(dir.path().join("data")).arg(format!("--auth-token={value}"));
        let output = command.args(["--listen-peer-urls", "http://127.0.0.1:0"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(text), "{value}: {said}");
    }
}

/// Keys and tokens reach neither the log nor a file.
#[test]
fn bug_87_keys_and_signed_tokens_stay_secret() {
    let dir = TempDir::new();
    let (makes, _) = flags(dir.path(), "HS256", "HMAC");
    let flags = [&with(&makes)[..], &["--log-level=debug"]].concat();
    with_server(&flags, async |server, client| {
        let (_, ann) = set_up(client).await;
        let bad = format!("{ann}x");
        assert!(get(client, "b", &ann).await.is_ok() && get(client, "b", &bad).await.is_err());
        let signature = ann.rsplit_once('.').unwrap().1;
        for secret in ["a secret that etcd", &ann[..40], signature, PASSWORD] {
            assert!(!server.log().contains(secret), "the log has a secret");
            assert!(!super::bugs::holds(server.data_dir(), secret.as_bytes()), "a file has a secret");
        }
    });
}
