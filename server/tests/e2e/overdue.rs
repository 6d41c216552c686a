//! Calls whose time is over before they begin: they are told so, and nothing of what
//! they ask for is done, as in etcd.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message as _;
use revd_http2::PREFACE;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseLeasesRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest, request_op::Request,
};

use crate::harness::{Client, Server, TempDir, peers, run, with_server};

fn writes() -> [(&'static str, Vec<u8>); 4] {
    let put = PutRequest { key: "new".into(), ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: "old".into(), ..DeleteRangeRequest::default() };
    let txn = TxnRequest {
        success: vec![RequestOp { request: Some(Request::RequestPut(put.clone())) }],
        ..TxnRequest::default()
    };
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    [
        ("/etcdserverpb.KV/Put", put.encode_to_vec()),
        ("/etcdserverpb.KV/DeleteRange", delete.encode_to_vec()),
        ("/etcdserverpb.KV/Txn", txn.encode_to_vec()),
        ("/etcdserverpb.Lease/LeaseGrant", grant.encode_to_vec()),
    ]
}

/// Sends each write with each of these timeouts, one stream after the other,
/// and then a call with time enough.
fn send_all(server: &Server, timeouts: &[&str]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = [PREFACE, &frame(4, 0, 0, &[]), &frame(4, 1, 0, &[])].concat();
    let mut number = 1;
    for timeout in timeouts {
        for (path, message) in writes() {
            let mut block = call_block(path);
            literal(&mut block, b"te", b"trailers", false);
            literal(&mut block, b"grpc-timeout", timeout.as_bytes(), false);
            let length = u8::try_from(message.len()).unwrap();
            let data = [&[0, 0, 0, 0, length][..], &message].concat();
            bytes.extend([frame(1, 4, number, &block), frame(0, 1, number, &data)].concat());
            number += 2;
        }
    }
    stream.write_all(&bytes).unwrap();
    stream
}

/// Waits until so many streams have ended.
fn wait_for_ends(stream: &mut TcpStream, count: usize) -> String {
    hear_ends(stream, count).expect("every call ends")
}

/// The same.
///
/// # Errors
/// Nothing comes for as long as a read of the connection waits, or not all of them in 20 s.
fn hear_ends(stream: &mut TcpStream, count: usize) -> std::io::Result<String> {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    let ends = |said: &[u8]| {
        let (mut rest, mut ends) = (said, 0);
        while let Some((head, behind)) = rest.split_first_chunk::<9>() {
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((_, behind)) = behind.split_at_checked(length) else { break };
            // A reset, or the end of the stream on its headers.
            ends += usize::from(head[3] == 3 || (head[3] == 1 && head[4] & 1 == 1));
            rest = behind;
        }
        ends
    };
    let began = tokio::time::Instant::now();
    while ends(&said) < count {
        if began.elapsed() > Duration::from_secs(20) {
            return Err(ErrorKind::TimedOut.into());
        }
        let read = stream.read(&mut buffer)?;
        assert!(read > 0, "the connection has ended, and not every call");
        said.extend_from_slice(&buffer[..read]);
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Revision, keys and leases.
async fn standing(client: &Client) -> (i64, i64, usize) {
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() };
    let reply = client.kv.clone().range(all).await.unwrap().into_inner();
    let leases = client.lease.clone().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    (reply.header.unwrap().revision, reply.count, leases.leases.len())
}

async fn nothing_changes(server: &Server, timeouts: &[&str]) -> String {
    let client = server.client().await;
    let old = PutRequest { key: "old".into(), ..PutRequest::default() };
    client.kv.clone().put(old).await.unwrap();
    let mut stream = send_all(server, timeouts);
    let said = wait_for_ends(&mut stream, timeouts.len() * writes().len());
    assert_eq!(standing(&client).await, (2, 1, 0), "a write was carried out whose time was over");
    said
}

#[test]
fn a_write_whose_deadline_has_passed_changes_nothing() {
    run(async {
        let dir = TempDir::new();
        let server = Server::revd(&dir.path().join("revd"), &[]);
        let timeouts = ["0n", "1n", "99n", "49u", "0m", "0H"];
        let said = nothing_changes(&server, &timeouts).await;
        let told = said.matches("context deadline exceeded").count();
        assert_eq!(told, timeouts.len() * writes().len());
        let Some(peers) = peers() else { return };
        let etcd = Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &[]);
        nothing_changes(&etcd, &["0n", "1n"]).await;
    });
}

/// Whether one of many gets is answered that have so much time.
fn is_read(server: &Server, timeout: &str) -> bool {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &frame(4, 1, 0, &[])].concat()).unwrap();
    let mut block = call_block("/etcdserverpb.KV/Range");
    literal(&mut block, b"te", b"trailers", false);
    literal(&mut block, b"grpc-timeout", timeout.as_bytes(), false);
    let message =
        RangeRequest { key: "old".into(), serializable: true, ..RangeRequest::default() }.encode_to_vec();
    let data = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
    (0..500).any(|at| {
        let number = 1 + 2 * at;
        stream.write_all(&[frame(1, 4, number, &block), frame(0, 1, number, &data)].concat()).unwrap();
        wait_for_ends(&mut stream, 1).contains("old")
    })
}

/// A part of a millisecond is enough for a read, as in etcd.
#[test]
fn a_read_with_less_than_a_millisecond_is_answered() {
    run(async {
        let dir = TempDir::new();
        let revd = Server::revd(&dir.path().join("revd"), &[]);
        let mut servers = vec![("revd", revd)];
        if let Some(peers) = peers() {
            servers.push(("etcd", Server::etcd(&peers.path("etcd"), &dir.path().join("etcd"), &[])));
        }
        for (name, server) in &servers {
            let old = PutRequest { key: "old".into(), ..PutRequest::default() };
            server.client().await.kv.put(old).await.unwrap();
            assert!(is_read(server, "900u"), "{name}");
            assert!(!is_read(server, "1n"), "{name}");
        }
    });
}

/// Whether calls that come in one read, and are many for one turn, are all answered at once.
fn are_answered_at_once(server: &Server) -> bool {
    let mut stream = TcpStream::connect(server.address).unwrap();
    // They wait for nobody: not for a timer of something else either.
    let soon = Duration::from_millis(revd::limits::PACE_INTERVAL - 100);
    stream.set_read_timeout(Some(soon)).unwrap();
    stream.set_nodelay(true).unwrap();
    let window = frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &frame(4, 1, 0, &[]), &window].concat()).unwrap();
    let mut block = call_block("/etcdserverpb.KV/Range");
    literal(&mut block, b"te", b"trailers", false);
    let message =
        RangeRequest { key: "old".into(), serializable: true, ..RangeRequest::default() }.encode_to_vec();
    let data = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
    let mut number = 1;
    for count in 100..130 {
        let mut calls = Vec::new();
        for _ in 0..count {
            calls.extend([frame(1, 4, number, &block), frame(0, 1, number, &data)].concat());
            number += 2;
        }
        assert!(calls.len() < 32 * 1024, "one read holds all of it");
        stream.write_all(&calls).unwrap();
        match hear_ends(&mut stream, count) {
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                eprintln!("some of {count} calls wait");
                return false;
            }
            Err(error) => panic!("{error}"),
        }
    }
    true
}

/// Calls that came in one read and take several turns are all answered, whether or not the client
/// says anything more, and at once.
#[test]
fn calls_that_are_left_to_a_later_turn_are_answered_in_it() {
    with_server(&["--cores", "1"], async |server, _| {
        let old = PutRequest { key: "old".into(), ..PutRequest::default() };
        server.client().await.kv.put(old).await.unwrap();
        // A busy machine may stand still for so long once.
        let are_answered = are_answered_at_once(server) || (0..2).all(|_| are_answered_at_once(server));
        assert!(are_answered, "some calls wait for something else");
    });
}
