//! Secrets are planted in every call and in what goes wrong around them, and looked for in all that
//! a member leaves: its log, its files, its replies, what its offline commands show.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, PutRequest,
};
use tonic::Request;

use super::bugs::{holds, login, set_up, unary_methods};
use super::call;
use super::key_pairs::write_pair;
use crate::harness::{Client, Server, TempDir, free_address, run, wait_until};
use crate::tls::certificates::{Authority, Wanted};

const PASSWORD: &str = "planted-password-of-cat";
const WRONG: &str = "planted-wrong-password";
const LONG: &str =
    "planted-password-that-is-too-long-for-bcrypt-planted-password-that-is-too-long-for-bcrypt";
const TOKEN: &str = "plantedtokenabcd.77";
const BEARER: &str = "planted-bearer-token";

/// Calls a method with headers that have secrets in them.
async fn call_with(client: &Client, path: &'static str, message: Bytes, headers: &[(&'static str, &str)]) {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(2));
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    if let Err(status) = client.raw(path, request).await {
        for secret in [PASSWORD, WRONG, LONG, TOKEN, BEARER] {
            assert!(!status.message().contains(secret), "{path}: {status}");
        }
    }
}

async fn plant_in_every_call(client: &Client) {
    let messages = [
        Bytes::new(),
        AuthenticateRequest { name: "cat".to_owned(), password: WRONG.to_owned() }.encode_to_vec().into(),
        // The password where a message, or a number, is expected.
        [&[0x0a, 0x7f][..], WRONG.as_bytes()].concat().into(),
        [&[0x08, 0xff][..], WRONG.as_bytes()].concat().into(),
        WRONG.as_bytes().into(),
    ];
    for path in unary_methods() {
        if path.ends_with("AuthDisable") {
            continue;
        }
        for message in &messages {
            call_with(client, path, message.clone(), &[("token", TOKEN)]).await;
            let bearer = format!("Bearer {BEARER}");
            call_with(client, path, message.clone(), &[("authorization", &bearer)]).await;
        }
    }
}

async fn plant_in_passwords(client: &Client, root: &str) {
    let add = |name: &str, password: &str| AuthUserAddRequest {
        name: name.to_owned(),
        password: password.to_owned(),
        ..AuthUserAddRequest::default()
    };
    let path = "/etcdserverpb.Auth/UserAdd";
    for (name, password) in [("cat", PASSWORD), ("cat", PASSWORD), ("dog", LONG), ("", PASSWORD)] {
        let _ = call(client, path, add(name, password).encode_to_vec().into(), Some(root)).await;
    }
    for (name, password) in [("cat", PASSWORD), ("nobody", PASSWORD), ("cat", LONG)] {
        let (name, password) = (name.to_owned(), password.to_owned());
        let request = AuthUserChangePasswordRequest { name, password, ..Default::default() };
        let path = "/etcdserverpb.Auth/UserChangePassword";
        let _ = call(client, path, request.encode_to_vec().into(), Some(root)).await;
    }
    for (name, password) in [("cat", PASSWORD), ("cat", WRONG), ("nobody", WRONG), ("cat", LONG)] {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let path = "/etcdserverpb.Auth/Authenticate";
        let _ = call(client, path, request.encode_to_vec().into(), None).await;
    }
}

/// Requests over HTTP/1, with secrets in headers and in the query.
fn plain_replies(endpoint: &str) -> String {
    let address = endpoint.trim_start_matches("http://");
    let mut told = String::new();
    for target in ["/health", "/version", "/livez?verbose", "/readyz?verbose", "/metrics", "/v3/kv/range"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let head = format!(
            "GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {BEARER}\r\ntoken: {TOKEN}\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.read_to_string(&mut told);
    }
    told
}

fn offline(data: &str) -> String {
    let mut text = String::new();
    for args in
        [vec!["check", data], vec!["inspect", data, "--records", "--log"], vec!["inspect", data, "--json"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_revd")).args(args).output().unwrap();
        text += &String::from_utf8_lossy(&[output.stdout, output.stderr].concat());
    }
    text
}

/// Part 3 of the promises about secrets: neither the log at its most talkative, nor a reply, a file
/// or an offline command has a password or a token, whatever goes wrong.
#[test]
fn planted_secrets_are_found_nowhere() {
    run(async {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        let flags = ["--unsafe-no-fsync", "--bcrypt-cost=4", "--log-level=debug"];
        let mut server = Server::revd(&data, &flags);
        let client = server.client().await;
        let (root, ann) = set_up(&client).await;
        plant_in_passwords(&client, &root).await;
        plant_in_every_call(&client).await;
        let put = PutRequest { key: "b".into(), value: "marker-value".into(), ..PutRequest::default() };
        call(&client, "/etcdserverpb.KV/Put", put.encode_to_vec().into(), Some(&ann)).await.unwrap();
        let again = login(&client, "ann").await;
        let plain = plain_replies(&server.endpoint());
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "no core file: {core}");
        server.kill();
        let shown_before = offline(data.to_str().unwrap());
        server.start_again();
        server.stop();
        let shown = shown_before + &offline(data.to_str().unwrap());
        assert!(shown.contains("all is well"), "{shown}");
        let tokens = [&root[..16], &ann[..16], &again[..16]];
        let own = "correct-horse-battery"; // of `set_up`
        for secret in [PASSWORD, WRONG, LONG, &TOKEN[..16], BEARER, own].into_iter().chain(tokens) {
            assert!(!server.log().contains(secret), "the log has {secret}");
            assert!(!shown.contains(secret), "an offline command shows {secret}");
            assert!(!plain.contains(secret), "a reply has {secret}");
            assert!(!holds(&data, secret.as_bytes()), "a file has {secret}");
        }
        assert!(holds(&data, b"marker-value"), "what is looked for would be found");
    });
}

/// The lines of a private key that are not the same in all keys.
fn lines_of_key(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned).collect();
    assert!(lines.len() >= 2, "{text}");
    // The first one begins with what says the kind of the key.
    lines[1..].to_vec()
}

/// Keys of TLS and of tokens, right ones and broken ones: neither the log nor a file has a line of
/// them, nor what a member says that does not start.
#[test]
fn private_keys_are_found_nowhere() {
    run(async {
        let dir = TempDir::new();
        let authority = Authority::new(&dir.path().join("c"), "authority");
        let (own, peer) = (
            authority.issue(Wanted::default()),
            authority.issue(Wanted { file: "peer", serial: 8, ..Wanted::default() }),
        );
        let (private, public) = write_pair(dir.path(), "RSA");
        let data = dir.path().join("data");
        let tokens =
            format!("--auth-token=jwt,sign-method=RS256,priv-key={private},pub-key={public},ttl=10m");
        let tls = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
        let peers = ["--peer-cert-file", &peer.cert, "--peer-key-file", &peer.key];
        let flags = [&tls[..], &peers, &[&tokens, "--log-level=debug", "--bcrypt-cost=4"]].concat();
        let keys: Vec<String> =
            [&own.key, &peer.key, &private].into_iter().flat_map(|key| lines_of_key(key)).collect();
        let mut server = Server::revd(&data, &flags);
        let broken = std::fs::read_to_string(&own.key).unwrap();
        let half = &broken[..broken.len() / 2];
        std::fs::write(&own.key, half).unwrap();
        let told = || server.log().contains("the former ones stay");
        wait_until(Duration::from_secs(30), told, || server.log());
        server.stop();
        for key in &keys {
            assert!(!server.log().contains(key), "the log has a line of a key");
        }
        // Files are long: the first and the last of these lines, of keys of TLS and of tokens.
        for key in [&keys[0], &keys[keys.len() - 1]] {
            assert!(!holds(&data, key.as_bytes()), "a file has a line of a key");
        }
        // Neither half a key, nor one where a certificate should be, nor one of tokens that is cut.
        std::fs::write(&private, half).unwrap();
        let jwt = format!("--auth-token=jwt,sign-method=RS256,priv-key={private}");
        let url = format!("http://{}", free_address());
        let elsewhere = ["--listen-client-urls", &url, "--advertise-client-urls", &url];
        for (flags, why) in [
            (vec!["--cert-file", &own.cert, "--key-file", &own.key], &*own.key),
            (vec!["--cert-file", &peer.key, "--key-file", &peer.key], &*peer.key),
            (
                vec!["--cert-file", &peer.cert, "--key-file", &peer.key, "--trusted-ca-file", &peer.key],
                &*peer.key,
            ),
            (vec![&*jwt], "token provider"),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_revd"));
            command.env("RUST_BACKTRACE", "full").arg("--data-dir").arg(dir.path().join("other"));
            command.args(["--log-level=debug", "--listen-peer-urls", "http://127.0.0.1:0"]).args(elsewhere);
            let output = command.args(&flags).output().unwrap();
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(!output.status.success() && said.contains(why), "{flags:?}: {said}");
            assert!(!keys.iter().any(|key| said.contains(key)), "{flags:?} shows a key");
            assert!(!half.lines().skip(1).any(|line| said.contains(line)), "{flags:?} shows half a key");
        }
    });
}

/// An operator who wants core files gets them.
#[test]
fn core_files_are_written_where_they_are_asked_for() {
    run(async {
        let dir = TempDir::new();
        let of = |pid: u32| {
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
            core.split_whitespace().nth(4).unwrap().to_owned()
        };
        for (name, flag, expected) in
            [("with", "--core-dumps", "4096"), ("without", "--core-dumps=false", "0")]
        {
            let flags = ["--unsafe-no-fsync", flag];
            let server = Server::revd_limited("--core=4096:4096", &dir.path().join(name), &flags);
            assert_eq!(of(server.pid()), expected, "{name}");
        }
    });
}
