//! Bounds of `limits.rs` that are reached from outside and nowhere else: who reaches one is told
//! so, and others are served. docs/TESTING.md lists the test of each bound.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd::limits::{
    FIRST_BYTES_DEADLINE, HTTP1_DEADLINE, HTTP2_DEADLINE, REQUEST_BYTES_PER_CORE_MAX,
    STREAMS_PER_CONNECTION_MAX,
};
use revd_http2::PREFACE;
use revd_http2::raw::{call_block, frame};
use revd_loadgen::caller::{Caller, framed};
use revd_proto::etcdserverpb::RangeRequest;

use crate::harness::{Client, wait_until, with_server};

const PUT: &str = "/etcdserverpb.KV/Put";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// RFC 9113, 7: a stream that was not even looked at.
const REFUSED_STREAM: u8 = 7;

async fn is_served(client: &Client) {
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap();
}

/// `REQUEST_BYTES_PER_CORE_MAX`: messages that never become whole take so much and no more.
#[test]
fn unfinished_requests_are_refused_when_they_are_too_much() {
    with_server(&[], async |server, client| {
        const MESSAGE: usize = 1 << 20;
        let half = &framed(0, &vec![7; MESSAGE])[..MESSAGE];
        // Enough for every core that there may be connections on.
        let mut callers: Vec<Caller> = (0..8).map(|_| Caller::connect(&server.endpoint()).unwrap()).collect();
        for _ in 0..REQUEST_BYTES_PER_CORE_MAX / MESSAGE / 2 {
            for caller in &mut callers {
                let Some((stream, _)) = caller.open(PUT) else { continue };
                caller.client.send(stream, half.to_vec());
                // A connection that is sent away for it is as good.
                let _ = caller.turn(Duration::ZERO);
            }
        }
        let refused = |caller: &Caller| {
            let mut ends = caller.heard.ended.values();
            ends.any(|end| end.as_ref().is_err_and(|why| why.starts_with("RESOURCE_EXHAUSTED")))
        };
        wait_until(
            Duration::from_secs(60),
            || {
                callers.iter_mut().for_each(|caller| drop(caller.turn(Duration::from_millis(1))));
                callers.iter().any(refused)
            },
            || "nobody is told that it is too much".to_owned(),
        );
        is_served(client).await;
        drop(callers);
        is_served(client).await;
    });
}

/// `STREAMS_PER_CONNECTION_MAX`: one stream more is refused, and the others go on.
#[test]
fn one_stream_too_many_is_refused_alone() {
    with_server(&[], async |server, client| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
        let block = call_block(WATCH);
        let last = 1 + 2 * STREAMS_PER_CONNECTION_MAX;
        let all: Vec<u8> =
            (0..=STREAMS_PER_CONNECTION_MAX).flat_map(|at| frame(1, 4, 1 + 2 * at, &block)).collect();
        stream.write_all(&all).unwrap();
        let refused = frame(3, 0, last, &[0, 0, 0, REFUSED_STREAM]);
        let (mut said, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        while !said.windows(refused.len()).any(|part| part == refused) {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the whole connection is sent away");
            said.extend_from_slice(&buffer[..read]);
        }
        let alive = [9; 8];
        stream.write_all(&frame(6, 0, 0, &alive)).unwrap();
        let pong = frame(6, 1, 0, &alive);
        said.clear();
        while !said.windows(pong.len()).any(|part| part == pong) {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "the connection ends");
            said.extend_from_slice(&buffer[..read]);
        }
        is_served(client).await;
    });
}

/// `FIRST_BYTES_DEADLINE`, `HTTP2_DEADLINE`, `HTTP1_DEADLINE`: who does not say what it is, or says
/// half of something, is gone after that time.
#[test]
fn silent_connections_are_closed() {
    with_server(&[], async |server, client| {
        is_served(client).await; // its connection is past all this
        let longest = FIRST_BYTES_DEADLINE.max(HTTP1_DEADLINE).max(HTTP2_DEADLINE);
        let patience = longest + Duration::from_secs(60);
        let open = |bytes: &[u8]| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(patience)).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let settings = [PREFACE, &frame(4, 0, 0, &[])].concat();
        let block = frame(1, 0, 1, &call_block(PUT));
        let more = frame(9, 0, 1, &[]);
        let cases: [(&str, Vec<u8>, &str); 6] = [
            ("silent", Vec::new(), ""),
            ("half a preface", PREFACE[..10].to_vec(), ""),
            ("half a request", b"GET /version HTTP/1.1\r\nHo".to_vec(), ""),
            ("no settings", PREFACE.to_vec(), "none came in time"),
            ("half of the settings", [PREFACE, &frame(4, 0, 0, &[0; 6])[..12]].concat(), "none came in time"),
            ("half a header block", [settings, block, more].concat(), "begun and not ended in time"),
        ];
        let opened = cases.map(|(who, bytes, why)| (open(&bytes), who, why));
        for (mut stream, who, why) in opened {
            let mut said = Vec::new();
            // Closed with or without a word, but closed.
            let end = stream.read_to_end(&mut said);
            let waits = end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!waits, "{who}: still open after {patience:?}");
            let said = String::from_utf8_lossy(&said);
            assert!(said.contains(why), "{who}: {said}");
            is_served(client).await;
        }
    });
}
