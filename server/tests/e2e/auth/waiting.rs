//! Calls that wait, of one user: what they may see when their wait is over, and what they leave
//! behind when their client goes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_http2::PREFACE;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{
    AuthUserRevokeRoleRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeStreamResponse,
};
use revd_proto::v3lockpb::LockRequest;

use super::bugs::{must, set_up};
use super::{FLAGS, call};
use crate::harness::{Server, free_address, wait_until, with_server};
use crate::probes::ask;

/// Longer than a member needs for a few calls.
const MOMENTS: Duration = Duration::from_secs(30);

const PUT: &str = "/etcdserverpb.KV/Put";

/// A call with one message, with the token of a user, as the `at`th of its connection.
fn call_of(token: &str, path: &str, at: u32, message: &[u8]) -> Vec<u8> {
    let mut block = call_block(path);
    literal(&mut block, b"token", token.as_bytes(), false);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, message].concat();
    [frame(1, 4, 1 + 2 * at, &block), frame(0, 1, 1 + 2 * at, &body)].concat()
}

/// A connection whose streams may each be sent so much; nothing that it is sent is read yet.
fn connect(server: &Server, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(PREFACE).unwrap();
    open_windows(&mut stream, window);
    stream
}

fn open_windows(stream: &mut TcpStream, window: u32) {
    let settings = frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let connection = frame(8, 0, 0, &(1_u32 << 24).to_be_bytes());
    stream.write_all(&[settings, connection].concat()).unwrap();
}

/// The messages of the `at`th call of a connection, once it is over.
fn messages(stream: &mut TcpStream, at: u32) -> Vec<Vec<u8>> {
    let (mut input, mut buffer, mut body, mut is_over) = (Vec::new(), vec![0; 1 << 16], Vec::new(), false);
    while !is_over {
        let read = stream.read(&mut buffer).expect("the call ends");
        assert!(read > 0, "the connection has ended");
        input.extend_from_slice(&buffer[..read]);
        while let Some(head) = input.first_chunk::<9>().copied() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if input.len() < 9 + length {
                break;
            }
            let payload: Vec<u8> = input.drain(..9 + length).skip(9).collect();
            let [.., a, b, c, d] = head;
            if u32::from_be_bytes([a, b, c, d]) == 1 + 2 * at {
                is_over |= head[3] <= 1 && head[4] & 1 == 1;
                body.extend(if head[3] == 0 { payload } else { Vec::new() });
            }
        }
    }
    let mut messages = Vec::new();
    let mut rest = &body[..];
    while let Some((head, tail)) = rest.split_first_chunk::<5>() {
        let (message, tail) =
            tail.split_at(u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize);
        messages.push(message.to_vec());
        rest = tail;
    }
    messages
}

/// A number of a member's: that of the first sample with all these words.
fn figure(metrics: SocketAddr, words: &[&str]) -> u64 {
    let shown = ask(metrics, "GET /metrics");
    let mut samples = shown.split(" | ").filter(|line| words.iter().all(|word| line.contains(*word)));
    samples.next().map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

/// The first chunk of a streamed range may have to wait for room, as long as its client likes: what
/// it shows then is of the state in which its user was judged, and which its header names.
#[test]
fn a_streamed_range_that_waits_shows_the_state_that_it_was_judged_in() {
    const MEMORY_BYTES: usize = 4 << 20;
    const REPLY_BYTES: usize = MEMORY_BYTES * 3 / 16;
    let memory = format!("--memory-bytes={MEMORY_BYTES}");
    // Metrics that are asked for there take no room that calls have.
    let metrics = free_address();
    let urls = format!("--listen-metrics-urls=http://{metrics}");
    let answered = || figure(metrics, &["handled_total", "grpc_method=\"Range\"", "grpc_code=\"OK\""]);
    let waited = || figure(metrics, &["revd_limit_reached_total", "limit=\"reply_bytes\""]);
    with_server(&[&FLAGS[..], &["--cores=1", &memory, &urls]].concat(), async |server, client| {
        let (root, ann) = set_up(client).await;
        for (key, bytes) in [("b2", REPLY_BYTES * 21 / 100), ("b3", REPLY_BYTES / 4)] {
            let put = PutRequest { key: key.into(), value: vec![7; bytes].into(), ..PutRequest::default() };
            must(client, PUT, &put, Some(&root)).await;
        }
        let get = |key: &str| {
            RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }.encode_to_vec()
        };
        // Neither reads its reply: the first has more than the other leaves it.
        let (mut own, mut other) = (connect(server, 0), connect(server, 0));
        for at in [0, 1] {
            own.write_all(&call_of(&ann, "/etcdserverpb.KV/Range", at, &get("b2"))).unwrap();
        }
        wait_until(MOMENTS, || answered() == 2, || "no room for b2".to_owned());
        other.write_all(&call_of(&ann, "/etcdserverpb.KV/Range", 0, &get("b3"))).unwrap();
        wait_until(MOMENTS, || answered() == 3, || "no room for b3".to_owned());
        let before = waited();
        own.write_all(&call_of(&ann, "/etcdserverpb.KV/RangeStream", 2, &get("b"))).unwrap();
        wait_until(MOMENTS, || waited() > before, || "room for more".to_owned());
        let revoke = AuthUserRevokeRoleRequest { name: "ann".to_owned(), role: "b".to_owned() };
        must(client, "/etcdserverpb.Auth/UserRevokeRole", &revoke, Some(&root)).await;
        let put = PutRequest { key: "b".into(), value: "not for ann".into(), ..PutRequest::default() };
        must(client, PUT, &put, Some(&root)).await;

        open_windows(&mut own, 1 << 20);
        let mut shown = 0;
        for message in messages(&mut own, 2) {
            let part = RangeStreamResponse::decode(&message[..]).unwrap().range_response.unwrap();
            let revision = part.header.map_or(i64::MAX, |header| header.revision);
            for kv in part.kvs {
                assert!(kv.mod_revision <= revision, "{} under the header of {revision}", kv.mod_revision);
                assert_eq!(kv.value, "secret", "what was put after ann had lost her right");
                shown += 1;
            }
        }
        assert_eq!(shown, 1, "what she might read when she asked");
    });
}

/// Callers of one user that all go at once give their keys up at once: others are served meanwhile.
#[test]
fn locks_that_are_given_up_at_once_leave_room_for_others() {
    const CALLS: u32 = 5_000;
    const CONNECTIONS: usize = 5;
    with_server(&[&FLAGS[..], &["--cores=1"]].concat(), async |server, client| {
        let (root, ann) = set_up(client).await;
        for id in [11, 12] {
            let grant = LeaseGrantRequest { id, ttl: 10_000 };
            must(client, "/etcdserverpb.Lease/LeaseGrant", &grant, Some(&root)).await;
        }
        let lock = |lease| LockRequest { name: "b".into(), lease };
        must(client, "/v3lockpb.Lock/Lock", &lock(11), Some(&root)).await;
        let mut waiting = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = connect(server, 0x7fff_0000);
            let message = lock(12).encode_to_vec();
            for at in 0..CALLS {
                stream.write_all(&call_of(&ann, "/v3lockpb.Lock/Lock", at, &message)).unwrap();
            }
            waiting.push(stream);
            // They are less than what ann may have under way, and are through before the next.
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (other, over) = (server.client().await, Arc::clone(&is_over));
        let puts = tokio::spawn(async move {
            let put = Bytes::from(PutRequest { key: "x".into(), ..PutRequest::default() }.encode_to_vec());
            let mut refused = Vec::new();
            while !over.load(Ordering::Relaxed) {
                refused.extend(call(&other, PUT, put.clone(), Some(&root)).await.err());
            }
            refused
        });
        drop(waiting);
        tokio::time::sleep(Duration::from_secs(3)).await;
        is_over.store(true, Ordering::Relaxed);
        let refused = puts.await.unwrap();
        assert!(refused.is_empty(), "{} puts, first {:?}", refused.len(), refused.first());
    });
}
