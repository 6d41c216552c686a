//! Requests that no library sends, as raw frames to both servers: status,
//! gRPC status and text are the same.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd_http2::PREFACE;
use revd_http2::hpack::{Decoder, literal};
use revd_http2::raw::frame;

use crate::harness::{Server, TempDir, peers, with_server};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEPALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// A request: fields of its head, and its body.
struct Case {
    name: &'static str,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    /// Frames behind it; then their answer is waited for.
    then: Option<Vec<u8>>,
}

fn message(flag: u8, body: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

/// A call with these fields instead of or beside the usual ones.
fn case(name: &'static str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Case {
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")];
    let regular = [("content-type", "application/grpc"), ("te", "trailers")];
    let changed = |name: &str| fields.iter().any(|(field, _)| *field == name);
    let own = |pseudo: bool| fields.iter().filter(move |(name, _)| name.starts_with(':') == pseudo);
    let kept = usual.iter().filter(|(name, _)| !changed(name)).chain(own(true));
    let kept = kept.chain(regular.iter().filter(|(name, _)| !changed(name))).chain(own(false));
    let fields = kept.filter(|(_, value)| *value != "absent");
    let fields = fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Case { name, fields, body: body.to_vec(), then: None }
}

/// The server's reply on the only stream of a connection; a line for each thing of note.
fn answer(server: &Server, case: &Case) -> BTreeMap<String, String> {
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut block = Vec::new();
    for (name, value) in &case.fields {
        literal(&mut block, name.as_bytes(), value.as_bytes(), false);
    }
    let mut wire = [PREFACE, &frame(4, 0, 0, &[])].concat();
    let mut parts = block.chunks(16_000).peekable();
    let mut kind = 1;
    while let Some(part) = parts.next() {
        wire.extend(frame(kind, if parts.peek().is_none() { 4 } else { 0 }, 1, part));
        kind = 9;
    }
    wire.extend(frame(0, 1, 1, &case.body));
    wire.extend(case.then.iter().flatten());
    let last = if case.then.is_some() { 3 } else { 1 };
    socket.write_all(&wire).unwrap();
    let (mut said, mut received, mut buffer) = (BTreeMap::new(), Vec::new(), [0; 4096]);
    let (mut decoder, mut is_over) = (Decoder::default(), false);
    while !is_over {
        let read = socket.read(&mut buffer).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        if read == 0 {
            said.insert("closed".to_owned(), String::new());
            break;
        }
        received.extend_from_slice(&buffer[..read]);
        while let Some((head, behind)) = received.split_first_chunk::<9>() {
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some(payload) = behind.get(..length) else { break };
            match head[3] {
                1 => decoder
                    .decode(payload, |name, value| {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        said.insert(text(name), text(value));
                    })
                    .unwrap(),
                // Other replies name their cluster.
                0 if case.name.contains("check") => {
                    drop(said.insert("data".to_owned(), format!("{payload:?}")))
                }
                0 if length > 0 => drop(said.insert("data".to_owned(), String::new())),
                // etcd resets what it refuses too, if the request is not over by then.
                3 if payload != [0; 4] => drop(said.insert("reset".to_owned(), format!("{payload:?}"))),
                7 => drop(said.insert("goaway".to_owned(), format!("{payload:?}"))),
                _ => {}
            }
            let is_end = head[3] == 3 || head[3] <= 1 && head[4] & 1 != 0;
            is_over |= head[3] == 7 || is_end && head[8] == last;
            received.drain(..9 + length);
        }
    }
    let compared = [":status", "grpc-status", "grpc-message", "data", "reset", "goaway", "closed"];
    said.retain(|name, value| {
        let is_said = name != "grpc-message" || !value.is_empty();
        is_said && compared.contains(&name.as_str())
    });
    said
}

fn heads() -> Vec<Case> {
    let put = message(0, &[0x0a, 1, b'k']);
    let of = |name, fields: &[(&str, &str)]| case(name, PUT, fields, &put);
    vec![
        of("a good call", &[]),
        of("a timeout without a unit", &[("grpc-timeout", "12")]),
        of("a timeout of another unit", &[("grpc-timeout", "1x")]),
        of("an empty timeout", &[("grpc-timeout", "")]),
        of("a timeout of nine digits", &[("grpc-timeout", "123456789S")]),
        of("a negative timeout", &[("grpc-timeout", "-1S")]),
        of("another content type", &[("content-type", "application/json")]),
        of("no content type", &[("content-type", "absent")]),
        of("a longer content type", &[("content-type", "application/grpcx")]),
        of("a content type of another encoding", &[("content-type", "application/grpc+proto")]),
        of("GET", &[(":method", "GET")]),
        of("PUT", &[(":method", "PUT")]),
        of("binary metadata that is none", &[("x-bin", "%%%")]),
        of("binary metadata of a wrong length", &[("x-bin", "abcde")]),
        of("binary metadata", &[("x-bin", "AAEC"), ("y-bin", "AA=="), ("z-bin", "AA")]),
        of("another compression", &[("grpc-encoding", "snappy")]),
        of("a connection header", &[("connection", "close")]),
        of("no time", &[("grpc-timeout", "0n")]),
        case("no time for a watch", WATCH, &[("grpc-timeout", "0n")], &message(0, &[0x0a, 3, 0x0a, 1, b'k'])),
        case("no time for a keepalive", KEEPALIVE, &[("grpc-timeout", "0m")], &message(0, &[8, 77])),
        case("an unknown service", "/no.Such/Thing", &[], &put),
        case("an unknown method", "/etcdserverpb.KV/Get", &[], &put),
        case("a path without a slash", "nothing", &[], &put),
    ]
}

fn bodies() -> Vec<Case> {
    let of = |name, path, body: &[u8]| case(name, path, &[], body);
    let gzip = |body: &[u8]| case("bad gzip", PUT, &[("grpc-encoding", "gzip")], &message(1, body));
    vec![
        of("no message", PUT, &[]),
        of("half a message", PUT, &message(0, &[0x0a, 1, b'k'])[..6]),
        of("two messages", PUT, &[message(0, &[0x0a, 1, b'k']), message(0, &[0x0a, 1, b'l'])].concat()),
        of("a message and half of another", PUT, &[message(0, &[0x0a, 1, b'k']), vec![0, 0]].concat()),
        of("an unknown flag", PUT, &message(2, &[0x0a, 1, b'k'])),
        of("compressed without saying so", PUT, &message(1, &[0x0a, 1, b'k'])),
        gzip(b"no gzip"),
        gzip(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]),
        gzip(&[]),
        of("a message cut short", PUT, &message(0, &[0x0a, 9, b'k'])),
        of("an unknown wire type", PUT, &message(0, &[0x0f, 1])),
        of("a group", RANGE, &message(0, &[0x0a, 1, b'k', 0xfb, 1, 0xfc, 1])),
        of("a group without an end", RANGE, &message(0, &[0x0a, 1, b'k', 0xfb, 1])),
        of("field zero", RANGE, &message(0, &[0x02, 1, b'k'])),
        of("a number without an end", RANGE, &message(0, &[0x18, 0xff])),
        of("health list", "/grpc.health.v1.Health/List", &message(0, &[])),
        of("health check of another", "/grpc.health.v1.Health/Check", &message(0, &[0x0a, 1, b'x'])),
    ]
}

#[test]
fn both_servers_answer_alike() {
    let Some(peers) = peers() else { return };
    let dir = TempDir::new();
    let revd = Server::revd(&dir.path().join("revd"), &[]);
    let etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &[]);
    let mut differences = Vec::new();
    for case in heads().iter().chain(&bodies()) {
        let (ours, theirs) = (answer(&revd, case), answer(&etcd, case));
        if ours != theirs {
            differences.push(format!("{}:\n  revd {ours:?}\n  etcd {theirs:?}", case.name));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// More headers than are read, in one field or in many: refused with their stream alone, and what
/// the block has said to the table counts.
#[test]
fn long_heads_are_refused_alone() {
    with_server(&[], async |server, _| {
        let many: Vec<(String, String)> = (0..2_000).map(|at| (format!("x-{at}"), "v".to_owned())).collect();
        let long = vec![("x".to_owned(), "v".repeat(70_000))];
        for more in [many, long] {
            let mut case = case("long", RANGE, &[], &message(0, &[0x0a, 1, b'k']));
            let mut usual = Vec::new();
            case.fields
                .iter()
                .for_each(|(name, value)| literal(&mut usual, name.as_bytes(), value.as_bytes(), false));
            case.fields.extend(more);
            case.then = Some([frame(1, 4, 3, &usual), frame(0, 1, 3, &case.body)].concat());
            let said = answer(server, &case);
            assert_eq!(said[":status"], "200", "the second request is answered: {said:?}");
            assert_eq!(said["grpc-status"], "0");
            assert!(!said.contains_key("goaway"));
        }
    });
}
