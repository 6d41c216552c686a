//! Clients that want a member's memory for themselves, on real sockets: what it holds stays within
//! what it was given, and others are served.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use prost::Message as _;
use revd::limits::{HTTP2_DEADLINE, LISTED_LEASE_BYTES};
use revd_http2::PREFACE;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    Compare, LeaseGrantRequest, LeaseLeasesRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
};

use crate::harness::{Client, Server, wait_until, with_server};

/// Memory of the machine, as the member is told: an eighth of it for requests, a quarter for
/// replies, an eighth for watches.
const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes a member may hold beyond those it counts: buffers, the allocator's slack, the store.
const SLACK: u64 = 180_000_000;

/// Bytes that an attack takes at least where it does what it should.
const ATTACK_BYTES_MIN: u64 = 60_000_000;

/// Runs a test beside a member with a gigabyte and one core.
fn with_small_server(test: impl AsyncFnOnce(&Server, &Client)) {
    with_server_of(MEMORY_BYTES, test);
}

fn with_server_of(memory_bytes: u64, test: impl AsyncFnOnce(&Server, &Client)) {
    with_server(&["--memory-bytes", &memory_bytes.to_string(), "--cores", "1"], test);
}

/// A connection that has sent its settings, with windows of `window` bytes;
/// nothing it is sent is read yet.
fn attacker(server: &Server, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(PREFACE).unwrap();
    open_windows(&mut stream, window);
    stream
}

/// Streams of a connection may be sent so much each, and the
/// connection at least what it begins with.
fn open_windows(stream: &mut TcpStream, window: u32) {
    let mut frames = frame(4, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    if let Some(more @ 1..) = window.checked_sub(65_535) {
        frames.extend(frame(8, 0, 0, &more.to_be_bytes()));
    }
    stream.write_all(&frames).unwrap();
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
    let before = server.resident();
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
        most = most.max(server.resident().saturating_sub(before));
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
    with_small_server(async |server, client| {
        let message = [&[0][..], &1_000_000_u32.to_be_bytes(), &vec![7; 1_000_000]].concat();
        let uploads = begun(500, &call_block("/etcdserverpb.KV/Put"), &message);
        let most = uploaded(server, client, 4, &uploads).await;
        // 4 connections with 500 messages of a megabyte each would be 2 GB.
        assert!(most < MEMORY_BYTES / 8 + SLACK, "{most} bytes");
    });
}

#[test]
fn packed_uploads_count_as_what_they_unpack_to() {
    with_small_server(async |server, client| {
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
    });
}

/// Few, and slow to take what they asked for: they hold their share, and not that of others.
#[test]
fn slow_readers_of_large_ranges_leave_room_for_others() {
    with_small_server(async |server, client| {
        fill(client, 40, 1_000_000).await;
        let before = server.resident();
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
            most = most.max(server.resident().saturating_sub(before));
            attackers.iter_mut().for_each(|stream| drop(stream.read(&mut buffer)));
            if began.elapsed() > Duration::from_secs(15) {
                println!("{} MB, {} of {round} ranges of others refused", most / 1_000_000, refused.len());
                break;
            }
        }
        assert!(refused.is_empty(), "{refused:?}");
        // 24 replies of 40 MB would be 960 MB.
        assert!(most < MEMORY_BYTES / 4 + 40_000_000 + SLACK, "{most} bytes");
    });
}

/// The most memory that the member takes beyond `before` in this time, from when the attack is
/// under way; others are served meanwhile.
async fn most_meanwhile(server: &Server, client: &Client, before: u64, time: Duration) -> u64 {
    let (began, mut under_way, mut most) = (now(), None, 0);
    while under_way.map_or_else(|| began.elapsed() < 10 * time, |since: Instant| since.elapsed() < time) {
        let request = RangeRequest { key: "k00000".into(), count_only: true, ..RangeRequest::default() };
        client.kv.clone().range(request).await.unwrap();
        most = most.max(server.resident().saturating_sub(before));
        under_way = under_way.or_else(|| (most >= ATTACK_BYTES_MIN).then(now));
    }
    most
}

#[test]
fn gets_of_large_values_that_nobody_takes_hold_no_more_than_their_share() {
    with_small_server(async |server, client| {
        fill(client, 2, 1_000_000).await;
        let before = server.resident();
        let get = RangeRequest { key: "k00001".into(), ..RangeRequest::default() }.encode_to_vec();
        let message = [&[0, 0, 0, 0, u8::try_from(get.len()).unwrap()][..], &get].concat();
        let attack = |_| {
            let mut stream = attacker(server, 0x7fff_0000);
            let mut calls = Vec::new();
            for at in 0..64 {
                calls.extend(frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range")));
                calls.extend(frame(0, 1, 1 + 2 * at, &message));
            }
            stream.write_all(&calls).unwrap();
            stream
        };
        let attackers: Vec<_> = (0..60).map(attack).collect();
        let most = most_meanwhile(server, client, before, Duration::from_secs(5)).await;
        println!("{} MB for gets that nobody takes", most / 1_000_000);
        // 3,840 replies of a megabyte, of which sockets take a few megabytes each.
        assert!((ATTACK_BYTES_MIN..MEMORY_BYTES / 4 + SLACK).contains(&most), "{most} bytes");
        drop(attackers);
    });
}

#[test]
fn streams_that_nobody_takes_hold_no_more_than_their_share() {
    with_small_server(async |server, client| {
        fill(client, 40, 1_000_000).await;
        let before = server.resident();
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
            most = most.max(server.resident().saturating_sub(before));
        }
        println!("{} MB for range streams that nobody takes", most / 1_000_000);
        // 500 streams with a few megabytes on their way would be gigabytes.
        assert!(most < MEMORY_BYTES / 4 + SLACK, "{most} bytes");
        drop(stream);
        let status = || format!("{} bytes are still held", server.resident().saturating_sub(before));
        wait_until(Duration::from_secs(20), || server.resident() < before + SLACK, status);
    });
}

/// A client that asks for much more at a time than its share, and takes all of it, gets all of it.
#[test]
fn pipelined_ranges_beyond_the_share_are_all_answered() {
    with_small_server(async |_server, client| {
        fill(client, 20, 1_000_000).await;
        let ranges = (0..40).map(|_| {
            let mut kv = client.kv.clone().max_decoding_message_size(usize::MAX);
            tokio::spawn(async move { kv.range(everything()).await })
        });
        for range in ranges.collect::<Vec<_>>() {
            assert_eq!(range.await.unwrap().unwrap().into_inner().kvs.len(), 20);
        }
    });
}

/// Many large requests at a time, on one connection: they wait for each other.
#[test]
fn pipelined_puts_beyond_the_share_are_all_carried_out() {
    with_small_server(async |_server, client| {
        let puts = (0..200).map(|number| {
            let client = client.clone();
            tokio::spawn(async move { put(&client, format!("p{number}"), vec![7; 1_000_000]).await })
        });
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap().unwrap();
        }
    });
}

/// Header blocks and frames that never end are counted as requests are, and are not kept
/// while others need their memory.
#[test]
fn header_blocks_and_frames_without_an_end_hold_no_more_than_their_share() {
    const CONNECTIONS: usize = 400;
    with_server_of(64 << 20, async |server, client| {
        let begun = [frame(1, 0, 1, &[7; 16_000]), frame(9, 0, 1, &[7; 16_000]).repeat(7)].concat();
        // A frame of which the last byte does not come.
        let mut half =
            [frame(1, 4, 1, &call_block("/etcdserverpb.KV/Put")), frame(0, 0, 1, &[0; 16_384])].concat();
        half.pop();
        let before = server.resident();
        for (bytes, why) in [(begun, "no room for a header block"), (half, "was begun and is not ended")] {
            let mut attackers: Vec<TcpStream> = (0..CONNECTIONS)
                .map(|_| {
                    let mut stream = attacker(server, 1 << 20);
                    // It may be sent away in the middle.
                    let _ = stream.write_all(&bytes);
                    stream
                })
                .collect();
            // An attacker is told why, soon ...
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
        let most = server.resident().saturating_sub(before);
        assert!(most < (8 << 20) + SLACK, "{most} bytes");
    });
}

/// A watcher of every key, from the first revision on.
fn watch_all() -> RequestUnion {
    let (key, range_end) = (everything().key, everything().range_end);
    RequestUnion::CreateRequest(WatchCreateRequest {
        key,
        range_end,
        start_revision: 2,
        ..WatchCreateRequest::default()
    })
}

/// A call that watches every key, as the `at`th of its connection.
fn watch_call(at: u32) -> Vec<u8> {
    let message = WatchRequest { request_union: Some(watch_all()) }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let head = frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.Watch/Watch"));
    [head, frame(0, 0, 1 + 2 * at, &[&[0][..], &length, &message].concat())].concat()
}

#[test]
fn watch_streams_that_nobody_takes_hold_no_more_than_their_share() {
    const STREAMS: u32 = 600;
    with_small_server(async |server, client| {
        fill(client, 20, 100_000).await;
        let mut honest = server.client().await.open_watch();
        honest.ask(watch_all());
        let before = server.resident();
        let (mut attackers, mut most, mut puts) = (Vec::new(), 0, 20);
        for number in 0..STREAMS {
            if number % 150 == 0 {
                attackers.push(attacker(server, 0));
            }
            // Each alone, so that they share no events. One whose connection has
            // ended was served as it should be.
            let _ = attackers.last_mut().unwrap().write_all(&watch_call(number % 150));
            if number % 10 == 0 {
                put(client, "k".to_owned(), vec![8; 100_000]).await.unwrap();
                puts += 1;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            most = most.max(server.resident().saturating_sub(before));
        }
        let mut told = 0;
        while told < puts {
            let response =
                honest.next_within(Duration::from_secs(60)).await.expect("others are told").unwrap();
            for event in &response.events {
                told += 1;
                assert_eq!(event.kv.as_ref().unwrap().mod_revision, 1 + told, "everything, and in order");
            }
        }
        println!("{} MB for {STREAMS} watch streams that nobody takes", most / 1_000_000);
        // All of them would hold a megabyte and a half each.
        assert!(most < MEMORY_BYTES / 8 + SLACK, "{most} bytes");
        drop(attackers);
        let status = || format!("{} bytes are still held", server.resident().saturating_sub(before));
        wait_until(Duration::from_secs(20), || server.resident() < before + SLACK / 2, status);
    });
}

/// Revisions of the events that a connection was sent, by stream.
fn told(stream: &mut TcpStream, streams: usize, events: usize) -> BTreeMap<u32, Vec<i64>> {
    let (mut input, mut buffer) = (Vec::new(), vec![0; 1 << 20]);
    let (mut bodies, mut told) = (BTreeMap::<u32, Vec<u8>>::new(), BTreeMap::<u32, Vec<i64>>::new());
    while told.values().filter(|told| told.len() >= events).count() < streams {
        let read = stream.read(&mut buffer).expect("more is told");
        assert!(read > 0, "the connection has ended: {:?}", told.values().map(Vec::len).collect::<Vec<_>>());
        input.extend_from_slice(&buffer[..read]);
        let mut rest = &input[..];
        while let Some((head, tail)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some((payload, tail)) = tail.split_at_checked(length) else { break };
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if head[3] == 0 {
                bodies.entry(id).or_default().extend_from_slice(payload);
            }
            rest = tail;
        }
        input = rest.to_vec();
        for (id, body) in &mut bodies {
            while let Some((head, tail)) = body.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                let Some((message, tail)) = tail.split_at_checked(length) else { break };
                let events = WatchResponse::decode(message).unwrap().events;
                let revisions = events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision);
                told.entry(*id).or_default().extend(revisions);
                *body = tail.to_vec();
            }
        }
    }
    told
}

/// Streams that together want more than their share, and are read late: they wait for each other.
#[test]
fn watch_streams_beyond_the_share_are_told_of_everything() {
    with_small_server(async |server, client| {
        fill(client, 20, 100_000).await;
        let mut stream = attacker(server, 0);
        stream.write_all(&(0..80).flat_map(watch_call).collect::<Vec<u8>>()).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        open_windows(&mut stream, 0x7fff_0000);
        let told = told(&mut stream, 80, 20);
        let all: Vec<i64> = (2..22).collect();
        for (id, told) in told {
            assert_eq!(told, all, "stream {id}");
        }
    });
}

/// A frame that came in part, in one piece, on connections on which nothing else is looked
/// at for hours: it is looked at.
#[test]
fn frames_without_an_end_are_found_on_connections_where_nothing_else_comes() {
    const CONNECTIONS: usize = 600;
    with_server_of(64 << 20, async |server, client| {
        let mut half =
            [frame(1, 4, 1, &call_block("/etcdserverpb.KV/Put")), frame(0, 0, 1, &[0; 16_384])].concat();
        half.pop();
        let mut attackers: Vec<TcpStream> = (0..CONNECTIONS).map(|_| attacker(server, 1 << 20)).collect();
        // The times that a new connection has are over: nobody looks at it any more.
        tokio::time::sleep(HTTP2_DEADLINE + Duration::from_secs(2)).await;
        for stream in &mut attackers {
            let _ = stream.write_all(&half); // it may be sent away in the middle
        }
        tokio::time::sleep(Duration::from_secs(15)).await;
        put(client, "large".to_owned(), vec![1; 500_000]).await.expect("there is room");
    });
}

/// Each that begins to observe is told at once who leads, however many there are.
#[test]
fn observers_that_nobody_reads_hold_no_more_than_their_share() {
    with_small_server(async |server, client| {
        put(client, "e/1".to_owned(), vec![8; 1_000_000]).await.unwrap();
        let before = server.resident();
        let message = [&[0x0a, 1][..], b"e"].concat();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let call = |at: u32| {
            let head = frame(1, 4, 1 + 2 * at, &call_block("/v3electionpb.Election/Observe"));
            [head, frame(0, 1, 1 + 2 * at, &[&[0][..], &length, &message].concat())].concat()
        };
        let (mut attackers, mut most) = (Vec::new(), 0);
        for _ in 0..4 {
            let mut stream = attacker(server, 0);
            let _ = stream.write_all(&(0..150).flat_map(call).collect::<Vec<u8>>());
            attackers.push(stream);
        }
        for _ in 0..15 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            most = most.max(server.resident().saturating_sub(before));
        }
        println!("{} MB for 600 observers that nobody reads", most / 1_000_000);
        assert!(most < MEMORY_BYTES / 8 + SLACK, "{most} bytes");
    });
}

async fn grant(client: &Client, id: i64) {
    client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl: 3_600 }).await.unwrap();
}

/// Attaches so many keys to a lease.
async fn attach(client: &Client, lease: i64, keys: usize, key_bytes: usize) {
    for number in 0..keys {
        let key = format!("{number:05}{}", "k".repeat(key_bytes)).into();
        let request = PutRequest { key, lease, ..PutRequest::default() };
        client.kv.clone().put(request).await.unwrap();
    }
}

/// Lists of the keys of a lease take their room before they are made.
#[test]
fn keys_of_leases_that_nobody_takes_hold_no_more_than_their_share() {
    with_small_server(async |server, client| {
        grant(client, 7).await;
        attach(client, 7, 40, 1_000_000).await;
        let before = server.resident();
        let ask = LeaseTimeToLiveRequest { id: 7, keys: true }.encode_to_vec();
        let message = [&[0, 0, 0, 0, u8::try_from(ask.len()).unwrap()][..], &ask].concat();
        let (mut attackers, mut most) = (Vec::new(), 0);
        for _ in 0..20 {
            let began = server.resident();
            let mut stream = attacker(server, 0x7fff_0000);
            let head = frame(1, 4, 1, &call_block("/etcdserverpb.Lease/LeaseTimeToLive"));
            stream.write_all(&[head, frame(0, 1, 1, &message)].concat()).unwrap();
            attackers.push(stream);
            // Those who ask at once share a list. For the first one there is room.
            for _ in 0..if attackers.len() == 1 { 1_000 } else { 20 } {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if server.resident() > began + 30_000_000 {
                    break;
                }
            }
            most = most.max(server.resident().saturating_sub(before));
        }
        println!("{} MB for keys of leases", most / 1_000_000);
        // 20 lists of 40 MB would be 800 MB.
        assert!((30_000_000..MEMORY_BYTES / 4 + SLACK).contains(&most), "{most} bytes");
    });
}

/// Lists of leases and of their keys that would be larger than a reply may be are never made.
#[test]
fn lists_of_leases_beyond_the_share_are_refused() {
    const SMALL_MEMORY_BYTES: usize = 4 << 20;
    with_server_of(SMALL_MEMORY_BYTES as u64, async |_, client| {
        let reply_bytes_max = SMALL_MEMORY_BYTES * 3 / 32;
        let why = format!("a reply may take {reply_bytes_max} bytes of this member's memory");
        grant(client, 1).await;
        attach(client, 1, 2, reply_bytes_max / 2).await;
        let ask = |id| LeaseTimeToLiveRequest { id, keys: true };
        let mut lease = client.lease.clone();
        let refused = lease.lease_time_to_live(ask(1)).await.unwrap_err();
        assert!(refused.message().contains(&why), "{refused:?}");
        let leases = reply_bytes_max / LISTED_LEASE_BYTES;
        for from in (2..=leases).step_by(500) {
            let mut granting = tokio::task::JoinSet::new();
            for id in from..(from + 500).min(leases + 1) {
                let client = client.clone();
                granting.spawn(async move { grant(&client, i64::try_from(id).unwrap()).await });
            }
            granting.join_all().await;
        }
        let listed = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
        assert_eq!(listed.leases.len(), leases);
        grant(client, i64::try_from(leases).unwrap() + 1).await;
        let refused = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap_err();
        assert!(refused.message().contains(&why), "{refused:?}");
        assert!(lease.lease_time_to_live(ask(2)).await.unwrap().into_inner().keys.is_empty());
    });
}

/// A decoded transaction may be many times its message: while its reply waits for room, the message
/// alone is kept.
#[test]
fn transactions_that_wait_for_room_hold_no_more_than_their_messages() {
    with_small_server(async |server, client| {
        fill(client, 2, 1_000_000).await;
        let before = server.resident();
        let get = |key: &'static str| RequestOp {
            request: Some(Request::RequestRange(RangeRequest { key: key.into(), ..RangeRequest::default() })),
        };
        let compare = Compare { key: "x".into(), target_union: None, ..Compare::default() };
        let ops: Vec<_> = (0..127).map(|_| get("x")).chain([get("k00001")]).collect();
        let txn = TxnRequest { compare: vec![compare; 128], success: ops.clone(), failure: ops };
        let txn = txn.encode_to_vec();
        let message = [&[0][..], &u32::try_from(txn.len()).unwrap().to_be_bytes(), &txn].concat();
        let attack = |_| {
            let mut stream = attacker(server, 0x7fff_0000);
            let mut calls = Vec::new();
            for at in 0..200 {
                calls.extend(frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Txn")));
                calls.extend(frame(0, 1, 1 + 2 * at, &message));
            }
            stream.write_all(&calls).unwrap();
            stream
        };
        let attackers: Vec<_> = (0..60).map(attack).collect();
        let most = most_meanwhile(server, client, before, Duration::from_secs(8)).await;
        println!("{} MB for transactions that nobody takes", most / 1_000_000);
        // Decoded, 12,000 of them are 700 MB.
        assert!((ATTACK_BYTES_MIN..MEMORY_BYTES / 4 + SLACK).contains(&most), "{most} bytes");
        drop(attackers);
    });
}
