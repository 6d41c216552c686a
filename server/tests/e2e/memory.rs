//! Clients that want a member's memory for themselves, on real sockets: what it holds stays within what it was given, and others
//! are served.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};
use revd_proto::http2::PREFACE;
use revd_proto::http2::hpack::literal;
use revd_proto::raw::{call_block, frame};

use crate::harness::{Client, Server, TempDir, connect, run, wait_until};

/// What the member thinks the machine has: an eighth of it for requests, a quarter for replies.
const MEMORY_BYTES: u64 = 1 << 30;
/// What a member may hold beyond what it counts: buffers, the allocator's slack, the store.
const SLACK: u64 = 160_000_000;

/// Runs a test beside a member with a gigabyte and one core.
async fn with_small_server(test: impl AsyncFnOnce(&Server, &Client)) {
    with_server_of(MEMORY_BYTES, test).await;
}

async fn with_server_of(memory_bytes: u64, test: impl AsyncFnOnce(&Server, &Client)) {
    let dir = TempDir::new();
    let memory = memory_bytes.to_string();
    let server = Server::revd(&dir.path().join("data"), &["--memory-bytes", &memory, "--cores", "1"]);
    let client = connect(&server.endpoint()).await;
    test(&server, &client).await;
}

/// A connection that has sent its settings, with windows of `window` bytes; nothing it is sent is read yet.
fn attacker(server: &Server, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let settings = frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    let more = frame(8, 0, 0, &(window - 65_535).to_be_bytes());
    stream.write_all(&[PREFACE, &settings, &more].concat()).unwrap();
    stream
}

/// Memory of its own that the process has.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a deadline for what may never happen, no measurement")]
    Instant::now()
}

async fn put(client: &Client, key: String, value: Vec<u8>) -> Result<(), tonic::Status> {
    let request = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
    client.kv.clone().put(request).await.map(drop)
}

/// Every key.
fn everything() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() }
}

async fn fill(client: &Client, keys: usize, value_bytes: usize) {
    for number in 0..keys {
        put(client, format!("k{number:05}"), vec![7; value_bytes]).await.unwrap();
    }
}

/// The beginnings of calls that never end: all of a message, and no word that there is no more.
fn begun(streams: u32, block: &[u8], message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 0..streams {
        bytes.extend(frame(1, 4, 1 + 2 * at, block));
        for part in message.chunks(16_000) {
            bytes.extend(frame(0, 0, 1 + 2 * at, part));
        }
    }
    bytes
}

/// Sends what the other side takes, and reads what it says, without waiting for either.
fn push(stream: &mut TcpStream, bytes: &[u8], sent: &mut usize) {
    let mut said = [0; 65_536];
    while let Ok(1..) = stream.read(&mut said) {}
    while let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) {
        match stream.write(&rest[..rest.len().min(1 << 20)]) {
            Ok(written) if written > 0 => *sent += written,
            _ => return,
        }
    }
}

/// Uploads on several connections while others put; the most memory that the member took.
async fn uploaded(server: &Server, client: &Client, connections: usize, uploads: &[u8]) -> u64 {
    let before = resident(server);
    let mut attackers: Vec<(TcpStream, usize)> =
        (0..connections).map(|_| (attacker(server, 1 << 20), 0)).collect();
    attackers.iter().for_each(|(stream, _)| stream.set_nonblocking(true).unwrap());
    let (mut most, began, mut served) = (0, now(), 0);
    while began.elapsed() < Duration::from_secs(12) {
        for (stream, sent) in &mut attackers {
            push(stream, uploads, sent);
        }
        // Others may be told to try again, but not for long.
        served += usize::from(put(client, "honest".to_owned(), vec![1; 100_000]).await.is_ok());
        most = most.max(resident(server).saturating_sub(before));
        // On a fast machine they would fill the store's quota.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(served > 0);
    // In the end somebody else's large request is taken.
    put(client, "large".to_owned(), vec![1; 1_000_000]).await.unwrap();
    println!("{} MB for uploads without an end, {served} puts of others", most / 1_000_000);
    most
}

#[test]
fn uploads_without_an_end_hold_no_more_than_their_share() {
    run(with_small_server(async |server, client| {
        let message = [&[0][..], &1_000_000_u32.to_be_bytes(), &vec![7; 1_000_000]].concat();
        let uploads = begun(500, &call_block("/etcdserverpb.KV/Put"), &message);
        let most = uploaded(server, client, 4, &uploads).await;
        // 4 connections with 500 messages of a megabyte each would be 2 GB.
        assert!(most < MEMORY_BYTES / 8 + SLACK, "{most} bytes");
    }));
}

#[test]
fn packed_uploads_count_as_what_they_unpack_to() {
    run(with_small_server(async |server, client| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&vec![0; 1_000_000]).unwrap();
        let packed = encoder.finish().unwrap();
        let length = u32::try_from(packed.len()).unwrap().to_be_bytes();
        let message = [&[1][..], &length, &packed].concat();
        for path in ["/etcdserverpb.KV/Put", "/etcdserverpb.Lease/LeaseKeepAlive"] {
            let mut block = call_block(path);
            literal(&mut block, b"grpc-encoding", b"gzip", false);
            let most = uploaded(server, client, 2, &begun(1_500, &block, &message)).await;
            assert!(most < MEMORY_BYTES / 8 + SLACK, "{path}: {most} bytes");
        }
    }));
}

/// Few, and slow to take what they asked for: they hold their share, and not that of others.
#[test]
fn slow_readers_of_large_ranges_leave_room_for_others() {
    run(with_small_server(async |server, client| {
        fill(client, 40, 1_000_000).await;
        let before = resident(server);
        let message = [&[0, 0, 0, 0, 6][..], &[0x0a, 1, 0, 0x12, 1, 0]].concat();
        let mut attackers = Vec::new();
        for _ in 0..8 {
            let mut stream = attacker(server, 0x7fff_0000);
            for at in 0..3 {
                let head = frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range"));
                stream.write_all(&[head, frame(0, 1, 1 + 2 * at, &message)].concat()).unwrap();
            }
            stream.set_nonblocking(true).unwrap();
            attackers.push(stream);
        }
        let (began, mut most, mut refused, mut buffer) = (now(), 0, Vec::new(), vec![0; 32 * 1024]);
        for round in 0.. {
            let mut kv = client.kv.clone().max_decoding_message_size(usize::MAX);
            match kv.range(everything()).await {
                Ok(reply) => assert_eq!(reply.into_inner().count, 40),
                Err(status) => refused.push(status),
            }
            most = most.max(resident(server).saturating_sub(before));
            attackers.iter_mut().for_each(|stream| drop(stream.read(&mut buffer)));
            if began.elapsed() > Duration::from_secs(15) {
                println!("{} MB, {} of {round} ranges of others refused", most / 1_000_000, refused.len());
                break;
            }
        }
        assert!(refused.is_empty(), "{refused:?}");
        // 24 replies of 40 MB would be 960 MB.
        assert!(most < MEMORY_BYTES / 4 + 40_000_000 + SLACK, "{most} bytes");
    }));
}

#[test]
fn streams_that_nobody_takes_hold_no_more_than_their_share() {
    run(with_small_server(async |server, client| {
        fill(client, 40, 1_000_000).await;
        let before = resident(server);
        let message = [&[0, 0, 0, 0, 6][..], &[0x0a, 1, 0, 0x12, 1, 0]].concat();
        let mut stream = attacker(server, 0x7fff_0000);
        let mut calls = Vec::new();
        for at in 0..500 {
            calls.extend(frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/RangeStream")));
            calls.extend(frame(0, 1, 1 + 2 * at, &message));
        }
        stream.write_all(&calls).unwrap();
        let (began, mut most) = (now(), 0);
        while began.elapsed() < Duration::from_secs(5) {
            let request = RangeRequest { key: "k00001".into(), ..RangeRequest::default() };
            client.kv.clone().range(request).await.unwrap();
            most = most.max(resident(server).saturating_sub(before));
        }
        println!("{} MB for range streams that nobody takes", most / 1_000_000);
        // 500 streams with a few megabytes on their way would be gigabytes.
        assert!(most < MEMORY_BYTES / 4 + SLACK, "{most} bytes");
        drop(stream);
        let status = || format!("{} bytes are still held", resident(server).saturating_sub(before));
        wait_until(Duration::from_secs(20), || resident(server) < before + SLACK, status);
    }));
}

/// A client that asks for much more at a time than its share, and takes all of it, gets all of it.
#[test]
fn pipelined_ranges_beyond_the_share_are_all_answered() {
    run(with_small_server(async |_server, client| {
        fill(client, 20, 1_000_000).await;
        let ranges = (0..40).map(|_| {
            let mut kv = client.kv.clone().max_decoding_message_size(usize::MAX);
            tokio::spawn(async move { kv.range(everything()).await })
        });
        for range in ranges.collect::<Vec<_>>() {
            assert_eq!(range.await.unwrap().unwrap().into_inner().kvs.len(), 20);
        }
    }));
}

/// Many large requests at a time, on one connection: they wait for each other.
#[test]
fn pipelined_puts_beyond_the_share_are_all_carried_out() {
    run(with_small_server(async |_server, client| {
        let puts = (0..200).map(|number| {
            let client = client.clone();
            tokio::spawn(async move { put(&client, format!("p{number}"), vec![7; 1_000_000]).await })
        });
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap().unwrap();
        }
    }));
}

/// Header blocks and frames that never end are counted as requests are, and are not kept while others need their memory.
#[test]
fn header_blocks_and_frames_without_an_end_hold_no_more_than_their_share() {
    const CONNECTIONS: usize = 400;
    run(with_server_of(64 << 20, async |server, client| {
        let begun = [frame(1, 0, 1, &[7; 16_000]), frame(9, 0, 1, &[7; 16_000]).repeat(7)].concat();
        // A frame of which the last byte does not come.
        let mut half =
            [frame(1, 4, 1, &call_block("/etcdserverpb.KV/Put")), frame(0, 0, 1, &[0; 16_384])].concat();
        half.pop();
        let before = resident(server);
        for (bytes, why) in [(begun, "no room for a header block"), (half, "was begun and is not ended")] {
            let mut attackers: Vec<TcpStream> = (0..CONNECTIONS)
                .map(|_| {
                    let mut stream = attacker(server, 1 << 20);
                    // It may be sent away in the middle.
                    let _ = stream.write_all(&bytes);
                    stream
                })
                .collect();
            // Somebody is told why, soon ...
            let mut said = vec![Vec::new(); CONNECTIONS];
            attackers.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
            let mut is_told = || {
                for (stream, said) in attackers.iter_mut().zip(&mut said) {
                    let _ = stream.read_to_end(said);
                }
                said.iter().any(|said| String::from_utf8_lossy(said).contains(why))
            };
            wait_until(Duration::from_secs(60), &mut is_told, || format!("nobody is told: {why}"));
            // ... and others have room.
            let (began, mut last) = (now(), put(client, "large".to_owned(), vec![1; 500_000]).await);
            while last.is_err() && began.elapsed() < Duration::from_secs(60) {
                tokio::time::sleep(Duration::from_millis(100)).await;
                last = put(client, "large".to_owned(), vec![1; 500_000]).await;
            }
            last.unwrap();
        }
        let most = resident(server).saturating_sub(before);
        assert!(most < (8 << 20) + SLACK, "{most} bytes");
    }));
}
