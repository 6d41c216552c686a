//! More bugs of etcd, and of others, by their rows in the catalogue: what is hidden in a
//! transaction, front ends, names of certificates, fields that are empty, and the first start.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::authpb::Permission;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserGrantRoleRequest, Compare,
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use super::bugs::{hash, login, must, set_up, told, unary_methods};
use super::{FLAGS, call};
use crate::harness::{
    Client, Product, Server, TempDir, free_address, peers, said_of_both, wait_until, with_server,
};
use crate::tls::certificates::{Authority, Issued, Wanted};

const TXN: &str = "/etcdserverpb.KV/Txn";
const SOON: Duration = Duration::from_secs(30);

fn range(key: &'static str) -> Request {
    Request::RequestRange(RangeRequest { key: key.into(), ..RangeRequest::default() })
}

fn put(key: &'static str) -> PutRequest {
    PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() }
}

fn delete(key: &'static str, prev_kv: bool) -> Request {
    Request::RequestDeleteRange(DeleteRangeRequest { key: key.into(), prev_kv, ..Default::default() })
}

/// A transaction with this in one of its branches, so many deep in others.
fn nested(leaf: Request, depth: usize, in_failure: bool) -> TxnRequest {
    let op = |request| RequestOp { request: Some(request) };
    let mut txn = TxnRequest { success: vec![op(range("b")), op(leaf)], ..TxnRequest::default() };
    for _ in 0..depth {
        txn =
            TxnRequest { success: vec![op(range("b")), op(Request::RequestTxn(txn))], ..Default::default() };
        if in_failure {
            std::mem::swap(&mut txn.success, &mut txn.failure);
        }
    }
    txn
}

/// Sends a leaf at every depth and in either branch to both: what each has said.
async fn sent(client: &Client, leaf: &Request, token: &str) -> Vec<Result<(), (tonic::Code, String)>> {
    let mut said = Vec::new();
    for depth in 0..4 {
        for in_failure in [false, true] {
            let message = nested(leaf.clone(), depth, in_failure).encode_to_vec();
            said.push(told(call(client, TXN, message.into(), Some(token)).await));
        }
    }
    said
}

fn are_denied(said: &[Result<(), (tonic::Code, String)>]) -> bool {
    said.iter().all(|told| told.as_ref().is_err_and(|(_, text)| text == "etcdserver: permission denied"))
}

/// CVE-2026-33343, row 81: one operation that is forbidden, in a branch that may never be taken,
/// makes nothing of the whole transaction happen.
#[test]
fn bug_081_a_forbidden_operation_is_found_in_every_branch_at_every_depth() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let (root, ann) = set_up(&client).await;
        let before = hash(&client, &root).await;
        let mut seen = Vec::new();
        for leaf in [range("x"), Request::RequestPut(put("x")), delete("x", false), delete("x", true)] {
            let said = sent(&client, &leaf, &ann).await;
            assert!(are_denied(&said), "{leaf:?}: {said:?}");
            seen.extend(said);
        }
        for depth in 0..4 {
            let mut txn = nested(range("b"), depth, false);
            txn.compare.push(Compare { key: "x".into(), ..Compare::default() });
            let outer = nested(Request::RequestTxn(txn), 1, true);
            seen.push(told(call(&client, TXN, outer.encode_to_vec().into(), Some(&ann)).await));
        }
        assert!(are_denied(&seen), "{seen:?}");
        assert_eq!(hash(&client, &root).await, before, "nothing has changed");
        seen.extend(sent(&client, &Request::RequestPut(put("b")), &ann).await);
        seen
    });
    assert!(seen.last().unwrap().is_ok(), "{seen:?}");
}

/// CVE-2026-44283, row 82: a put shows what was there before, and ends with its lease; who may do
/// neither does so in no transaction.
#[test]
fn bug_082_options_of_a_put_need_their_rights_at_every_depth() {
    said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let (root, _) = set_up(&client).await;
        let name = || "w".to_owned();
        must(&client, "/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name: name() }, Some(&root)).await;
        let perm = Some(Permission { perm_type: 1, key: "w".into(), range_end: Bytes::new() });
        let grant = AuthRoleGrantPermissionRequest { name: name(), perm };
        must(&client, "/etcdserverpb.Auth/RoleGrantPermission", &grant, Some(&root)).await;
        let grant = AuthUserGrantRoleRequest { user: "ann".to_owned(), role: name() };
        must(&client, "/etcdserverpb.Auth/UserGrantRole", &grant, Some(&root)).await;
        let ann = login(&client, "ann").await;
        let mut seen = Vec::new();
        for (put, is_allowed) in [
            (put("w"), true),
            (PutRequest { prev_kv: true, ..put("w") }, false),
            (PutRequest { prev_kv: true, ..put("b") }, true),
            (PutRequest { lease: 1, ..put("w") }, false), // the lease of x, which is not ann's
            (PutRequest { lease: 2, ..put("w") }, true),
        ] {
            let before = hash(&client, &root).await;
            let said = sent(&client, &Request::RequestPut(put.clone()), &ann).await;
            assert_eq!(are_denied(&said), !is_allowed, "{put:?}: {said:?}");
            if !is_allowed {
                assert_eq!(hash(&client, &root).await, before, "{put:?}");
            }
            seen.extend(said);
        }
        seen
    });
}

/// The status and the message of a Range over TLS with this certificate.
fn grpc(url: &str, authority: &str, client: &Issued, frame: &str, headers: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http2", "--max-time", "10", "--cacert", authority, "-o", "/dev/null", "-D", "-"]);
    curl.args(["--cert", &client.cert, "--key", &client.key, "--data-binary", frame]);
    curl.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    for header in headers {
        curl.args(["-H", header]);
    }
    let output = curl.arg(format!("{url}/etcdserverpb.KV/Range")).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let mut grpc: Vec<&str> = said.lines().filter(|line| line.starts_with("grpc-")).map(str::trim).collect();
    grpc.sort_unstable();
    grpc.join(", ")
}

/// CVE-2018-16886, row 86: what a gateway passes on is of the one who asked it, not of the one
/// whose certificate the gateway has; and a member's own certificate makes nobody root.
#[test]
fn bug_086_no_front_end_lends_its_name() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let named = |file, name| authority.issue(Wanted { file, common_name: Some(name), ..Wanted::default() });
    let (own, root, ann) = (named("own", "root"), named("root", "root"), named("ann", "ann"));
    let frame = dir.path().join("frame");
    std::fs::write(&frame, b"\0\0\0\0\x03\x0a\x01k").unwrap();
    let frame = format!("@{}", frame.display());
    let tls = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
    let flags = [&tls[..], &["--bcrypt-cost=4", "--client-cert-auth"]].concat();
    let said = said_of_both(&flags, async |server: &Server| {
        let url = server.endpoint();
        let lines =
            ["user add root:r", "user grant-role root root", "user add ann --no-password", "auth enable"];
        for line in lines {
            assert!(crate::tls::etcdctl(&url, &authority.file, Some(&root), line).0, "{line}");
        }
        let gateway = "grpcgateway-accept: */*";
        [
            grpc(&url, &authority.file, &root, &frame, &[]),
            grpc(&url, &authority.file, &ann, &frame, &[]),
            grpc(&url, &authority.file, &root, &frame, &[gateway]),
            grpc(&url, &authority.file, &own, &frame, &[gateway]),
        ]
    });
    assert!(said[0].contains("grpc-status: 0"), "{said:?}");
    assert!(said[1].contains("permission denied"), "{said:?}");
    assert!(said[2].contains("user name is empty") && said[3] == said[2], "{said:?}");
}

/// Row 89, etcd's #15619, #10907, #9379: fields of requests about users that are empty, or there
/// twice, and calls of elections without a leader. Those of each field are in `odd_fields.rs`.
#[test]
fn bug_089_empty_and_doubled_fields_are_answered_as_by_etcd() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let (root, _) = set_up(&client).await;
        let mut seen = Vec::new();
        for path in unary_methods() {
            let is_of_users = path.contains(".Auth/") && !path.ends_with("AuthDisable");
            let waits = path.ends_with("/Lock") || path.ends_with("/Campaign");
            let messages: &[&'static [u8]] = match path {
                _ if is_of_users => &[b"", b"\x0a\0", b"\x12\0", b"\x0a\x01b\x0a\x01q", b"\x12\x01b"],
                // With a lease that is not there.
                _ if waits => &[b"\x10\x63"],
                _ if path.starts_with("/v3") => &[b"", b"\x0a\0"],
                _ => &[],
            };
            for message in messages {
                let result = call(&client, path, Bytes::from_static(message), Some(&root)).await;
                seen.push((path, *message, told(result)));
            }
        }
        seen
    });
    assert!(seen.len() > 60 && seen.iter().filter(|(.., told)| told.is_err()).count() > 30, "{seen:?}");
}

/// Answers every request with a redirection, and counts them.
fn redirect(from: &TcpListener, to: &str, asked: &AtomicUsize, is_over: &AtomicBool) {
    from.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = from.accept() else {
            std::thread::park_timeout(Duration::from_millis(10));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let read = stream.read(&mut [0; 4096]).unwrap_or(0);
        let answer = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes());
        asked.fetch_add(usize::from(read > 0), Ordering::Relaxed);
    }
}

/// etcd's #16986, row 92: a member asks those whom its operator has named, and nobody whom they
/// send it to.
#[test]
fn bug_092_no_redirection_is_followed() {
    let dir = TempDir::new();
    let bind = || TcpListener::bind((free_address().ip(), 0)).unwrap();
    let (peer, inside) = (bind(), bind());
    inside.set_nonblocking(true).unwrap();
    let (asked, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let to = format!("http://{}/members", inside.local_addr().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| redirect(&peer, &to, &asked, &is_over));
        let (own, other) = (format!("http://{}", free_address()), peer.local_addr().unwrap());
        let flags = [
            "--name=m0",
            &format!("--listen-peer-urls={own}"),
            &format!("--initial-advertise-peer-urls={own}"),
            &format!("--initial-cluster=m0={own},m1=http://{other}"),
            "--initial-cluster-state=existing",
        ];
        let flags = flags.map(str::to_owned);
        let server = Server::spawn_member(Product::Revd, free_address(), &dir.path().join("m0"), &flags);
        let has_asked = || asked.load(Ordering::Relaxed) > 0 && server.log().contains("no answer about");
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(SOON, has_asked, || server.log());
        }));
        is_over.store(true, Ordering::Relaxed);
        assert!(waited.is_ok(), "the other member was not asked: {}", server.log());
    });
    let accepted = inside.accept().map(|(_, from)| from);
    assert!(accepted.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it was followed");
}

/// CVE-2018-1098 and 1099, row 93: a page in a browser can send requests to any port, and may call
/// a host by any name; none of them is a call here.
#[test]
fn bug_093_no_request_of_a_browser_is_a_call() {
    with_server(&FLAGS, async |server, client| {
        let put = put("k").encode_to_vec();
        let frame = [&[0, 0, 0, 0, u8::try_from(put.len()).unwrap()], &put[..]].concat();
        let json: &[u8] = br#"{"key":"aw==","value":"dg=="}"#;
        for (path, body) in [("/v3/kv/put", json), ("/v3beta/kv/put", json), ("/etcdserverpb.KV/Put", &frame)]
        {
            for kind in
                ["text/plain", "application/json", "application/x-www-form-urlencoded", "application/grpc"]
            {
                let mut stream = TcpStream::connect(server.address).unwrap();
                stream.set_read_timeout(Some(SOON)).unwrap();
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\
                     Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                assert!(answer.starts_with("HTTP/1.1 4"), "{path} {kind}: {answer}");
                assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
            }
        }
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
        let reply = must(client, "/etcdserverpb.KV/Range", &all, None).await;
        let kvs = revd_proto::etcdserverpb::RangeResponse::decode(reply).unwrap().kvs;
        assert!(kvs.is_empty(), "{kvs:?}");
    });
}

/// CVE-2020-15113, row 94: a data directory that others may enter. The other half of that row, an
/// empty password, is in `passwords.rs`.
#[test]
fn bug_094_a_data_directory_is_closed_to_others() {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let set = |mode| std::fs::set_permissions(&data, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o777);
    let mut server = Server::revd(&data, &FLAGS);
    let mode = || std::fs::metadata(&data).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o700, "the first start");
    server.kill();
    set(0o755);
    server.start_again();
    assert_eq!(mode(), 0o700, "a later one");
}
