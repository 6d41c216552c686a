//! Requests and bytes that no honest client sends: the right error, nothing changed, others served.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use revd_proto::etcdserverpb::{Compare, PutRequest, RangeRequest, TxnRequest};
use tonic::{Code, Request, Status};

use crate::harness::{Client, Random, Server, with_restartable_server};

fn with_server_unharmed(test: impl AsyncFnOnce(&Server, &Client)) {
    with_restartable_server(&[], async |server, client| {
        test(server, &client).await;
        // After anything: still there, still at the first revision, still writing.
        assert!(server.is_running());
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let reply = server.client().await.kv.put(put).await.unwrap().into_inner();
        assert_eq!(reply.header.unwrap().revision, 2, "something was written that must not be");
    });
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

fn field(number: u8, content: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(number << 3 | 2);
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.put_slice(content);
    out.freeze()
}

#[test]
fn transactions_nested_a_hundred_thousand_deep() {
    with_server_unharmed(async |_, client| {
        let mut txn = Bytes::new();
        for _ in 0..100_000 {
            txn = field(2, &field(4, &txn)); // success: request_txn
            if txn.len() > 1_500_000 {
                break;
            }
        }
        let status = client.raw("/etcdserverpb.KV/Txn", txn).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: too many operations in txn request"));
    });
}

#[test]
fn messages_that_are_not_what_their_method_takes() {
    with_server_unharmed(async |_, client| {
        let mut random = Random::new(1);
        let paths = [
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Txn",
            "/etcdserverpb.KV/Compact",
            "/etcdserverpb.Maintenance/Status",
            "/etcdserverpb.Maintenance/HashKV",
            "/etcdserverpb.Maintenance/Alarm",
            "/etcdserverpb.Cluster/MemberList",
            "/grpc.health.v1.Health/Check",
        ];
        for path in paths {
            for _ in 0..200 {
                let length = random.below(40);
                let mut bytes = vec![0x0f]; // field 1 with the unknown wire type 7: never valid
                bytes.extend((0..length).map(|_| u8::try_from(random.below(256)).unwrap()));
                let status = client.raw(path, Bytes::from(bytes)).await.unwrap_err();
                assert!(matches!(status.code(), Code::Internal | Code::InvalidArgument), "{path}: {status}");
            }
        }
    });
}

#[test]
fn sizes_and_counts_beyond_the_limits() {
    with_server_unharmed(async |_, client| {
        let mut kv = client.kv.clone();
        let put = |len| PutRequest { key: "k".into(), value: vec![0; len].into(), ..PutRequest::default() };
        let status = kv.put(put(1_572_864)).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: request is too large"));
        let status = kv.put(put(3_000_000)).await.unwrap_err();
        let text = "grpc: received message larger than max (3000008 vs. 2097152)";
        assert_eq!(told(&status), (Code::ResourceExhausted, text));
        let compare = vec![Compare { key: "k".into(), ..Compare::default() }; 129];
        let status = kv.txn(TxnRequest { compare, ..TxnRequest::default() }).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: too many operations in txn request"));
        let status = kv.range(RangeRequest::default()).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: key is not provided"));
        let request = RangeRequest { key: "k".into(), sort_order: 3, ..RangeRequest::default() };
        let status = kv.range(request).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: invalid sort option"));
        let request = PutRequest { lease: 7, ..put(1) };
        let status = kv.put(request).await.unwrap_err();
        assert_eq!(told(&status), (Code::NotFound, "etcdserver: requested lease not found"));
    });
}

#[test]
fn methods_that_are_not_there() {
    with_server_unharmed(async |_, client| {
        for (path, text) in [
            ("/etcdserverpb.KV/Get", "unknown method Get for service etcdserverpb.KV"),
            ("/no.Such/Thing", "unknown service no.Such"),
            (
                "/etcdserverpb.Maintenance/Snapshot",
                "etcdserverpb.Maintenance/Snapshot is not supported by this version of revd",
            ),
        ] {
            let status = client.raw(path, Bytes::new()).await.unwrap_err();
            assert_eq!(told(&status), (Code::Unimplemented, text));
        }
    });
}

#[test]
fn metadata_that_is_no_text() {
    with_server_unharmed(async |_, client| {
        let message =
            Bytes::from(RangeRequest { key: "k".into(), ..RangeRequest::default() }.encode_to_vec());
        let mut request = Request::new(message.clone());
        request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        client.raw("/etcdserverpb.KV/Range", request).await.unwrap();
        let mut headers = http::HeaderMap::new();
        headers.insert("client-api-version", http::HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        let mut request = Request::new(message);
        *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        let status = client.raw("/etcdserverpb.KV/Range", request).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, "etcdserver: invalid client api version"));
    });
}

#[test]
fn garbage_on_the_port() {
    with_server_unharmed(async |server, client| {
        let mut random = Random::new(7);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for round in 0..300u64 {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let length = random.below(2_000);
            let mut bytes: Vec<u8> = if round % 2 == 0 { preface.to_vec() } else { Vec::new() };
            bytes.extend((0..length).map(|_| u8::try_from(random.below(256)).unwrap()));
            // The server may close while we write.
            let _ = stream.write_all(&bytes);
            if round % 50 == 0 {
                let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
                client.kv.clone().range(request).await.unwrap();
            }
        }
    });
}

#[test]
fn two_thousand_idle_and_half_open_connections() {
    with_server_unharmed(async |server, client| {
        let mut connections = Vec::new();
        for number in 0..2_000u32 {
            let mut stream = TcpStream::connect(server.address).unwrap();
            match number % 4 {
                0 => {}
                1 => stream.write_all(b"PRI * HT").unwrap(),
                2 => stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap(),
                _ => stream.write_all(b"GET /version HTTP/1.1\r\nHo").unwrap(),
            }
            connections.push(stream);
        }
        let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        client.kv.clone().range(request).await.unwrap();
        println!("with 2000 connections: {} kB", server.all_resident() / 1024);
    });
}

#[test]
fn a_request_that_trickles_in_and_one_that_never_ends() {
    with_server_unharmed(async |server, client| {
        let mut slow = TcpStream::connect(server.address).unwrap();
        let mut unfinished = TcpStream::connect(server.address).unwrap();
        unfinished.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\xff\xff\x01").unwrap();
        for byte in b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" {
            slow.write_all(&[*byte]).unwrap();
            let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
            client.kv.clone().range(request).await.unwrap();
        }
        let mut reply = String::new();
        slow.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("\"etcdserver\":\"3.7.1\""), "{reply}");
    });
}
