//! Clients that mean harm, on real sockets: each is told why and sent away, or is not waited for,
//! while others are served. The bounds themselves are tested in `proto/http2/tests/http2_rules.rs`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd_http2::PREFACE;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::harness::{Client, Server, wait_until, with_server};

const CALM: u32 = 11;
const FLOW_CONTROL: u32 = 3;
const COMPRESSION: u32 = 9;
const FRAME_SIZE: u32 = 6;

/// A connection that has sent its settings; nothing it is sent is read yet.
fn attacker(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).unwrap();
    stream
}

/// The error code of the server's GOAWAY, if it sends one.
fn goodbye(stream: &mut TcpStream) -> Option<u32> {
    let mut said = Vec::new();
    // It may close while there is something left that we have sent:
    // then the end of this is an error.
    let _ = stream.read_to_end(&mut said);
    let (mut rest, mut code) = (&said[..], None);
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, behind)) = behind.split_at_checked(length) else { break };
        if head[3] == 7 {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = behind;
    }
    code
}

/// Waits until a call is told that its time is over.
fn wait_for_the_end_of_time(stream: &mut TcpStream) {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    wait_until(
        Duration::from_secs(20),
        || {
            let read = stream.read(&mut buffer).unwrap();
            said.extend_from_slice(&buffer[..read]);
            String::from_utf8_lossy(&said).contains("context deadline exceeded")
        },
        || "the call's time does not end".to_owned(),
    );
}

async fn is_served(client: &Client) {
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    client.kv.clone().range(request).await.unwrap();
}

#[test]
fn floods_end_with_the_right_words() {
    with_server(&[], async |server, client| {
        let whole = frame(1, 4, 1, &call_block("/etcdserverpb.Watch/Watch"));
        let resets: Vec<u8> = (0..40_000_u32)
            .flat_map(|at| {
                let stream = 1 + 2 * at;
                let opened = frame(1, 4, stream, &call_block("/etcdserverpb.Watch/Watch"));
                [opened, frame(3, 0, stream, &[0, 0, 0, 8])].concat()
            })
            .collect();
        let begun = frame(1, 0, 1, &call_block("/x"));
        for (name, bytes, code) in [
            ("rapid reset", resets, CALM),
            ("continuations", [begun, frame(9, 0, 1, &[]).repeat(50_000)].concat(), CALM),
            ("settings", frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(100_000), CALM),
            ("empty data", [whole.clone(), frame(0, 0, 1, &[]).repeat(100_000)].concat(), CALM),
            ("pings", frame(6, 0, 0, &[7; 8]).repeat(100_000), CALM),
            ("priorities", frame(2, 0, 1, &[0, 0, 0, 3, 1]).repeat(100_000), CALM),
            ("a window of 2^31", frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), FLOW_CONTROL),
            ("a bad header block", frame(1, 5, 1, &[0xff; 40]), COMPRESSION),
            ("a frame too long", frame(0, 0, 1, &vec![0; 20_000]), FRAME_SIZE),
        ] {
            let mut stream = attacker(server);
            // The server may have closed before it is all out.
            let _ = stream.write_all(&bytes);
            assert_eq!(goodbye(&mut stream), Some(code), "{name}");
            is_served(client).await;
        }
    });
}

/// Replies of a client that never takes them stay bounded: it is not read any more.
#[test]
fn a_client_that_reads_nothing_is_not_answered_for_ever() {
    with_server(&[], async |server, client| {
        let value = vec![7; 1_000_000];
        let request = PutRequest { key: "large".into(), value: value.into(), ..PutRequest::default() };
        client.kv.clone().put(request).await.unwrap();
        let before = server.resident();
        let message = [&[0, 0, 0, 0, 7][..], &[0x0a, 5], b"large"].concat();
        let mut attackers = Vec::new();
        for _ in 0..20 {
            let mut stream = attacker(server);
            stream.set_nonblocking(true).unwrap();
            for at in 0..2_000_u32 {
                let head = frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range"));
                let bytes = [head, frame(0, 1, 1 + 2 * at, &message)].concat();
                if stream.write_all(&bytes).is_err() {
                    break;
                }
            }
            attackers.push(stream);
        }
        for _ in 0..50 {
            is_served(client).await;
        }
        // 20 x 2,000 replies of a megabyte would be 40 GB.
        let grown = server.resident().saturating_sub(before);
        println!("{} MB for replies that nobody takes", grown / 1_000_000);
        assert!(grown < 1_200_000_000, "{grown} bytes");
        drop(attackers);
    });
}

/// The same with ranges of many keys, which are made in turns: few are
/// made at a time, whatever is asked.
#[test]
fn ranges_that_nobody_takes_do_not_pile_up() {
    with_server(&[], async |server, client| {
        const CONNECTIONS: usize = 10;
        let mut put = client.kv.clone();
        for number in 0..3_000 {
            let (key, value) = (format!("k{number}").into(), vec![7; 1_000].into());
            put.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
        }
        let before = server.resident();
        let message = [&[0, 0, 0, 0, 6][..], &[0x0a, 1, 0, 0x12, 1, 0]].concat();
        let calls: Vec<u8> = (0..1_000_u32)
            .flat_map(|at| {
                let head = frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range"));
                [head, frame(0, 1, 1 + 2 * at, &message)].concat()
            })
            .collect();
        let mut attackers = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = attacker(server);
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write_all(&calls);
            attackers.push(stream);
        }
        let mut most = 0;
        for _ in 0..300 {
            is_served(client).await;
            most = most.max(server.resident().saturating_sub(before));
        }
        // 1,000 replies of 3 MB on each connection would be 30 GB; made all at once
        // they took all that a core may.
        println!("{} MB for ranges that nobody takes", most / 1_000_000);
        assert!(most / CONNECTIONS as u64 <= 70_000_000, "{most} bytes");
        drop(attackers);
    });
}

/// Plain requests need no user, and wait for nothing: their replies are bounded all the same.
#[test]
fn metrics_that_nobody_takes_do_not_pile_up() {
    with_server(&["--cores", "1"], async |server, client| {
        const STREAMS: u32 = 3_000;
        is_served(client).await;
        let before = server.resident();
        let mut stream = attacker(server);
        // No stream has a window.
        let mut bytes = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let mut block = vec![0x82, 0x86]; // GET, http
        literal(&mut block, b":path", b"/metrics", false);
        literal(&mut block, b":authority", b"a", false);
        bytes.extend((0..STREAMS).flat_map(|at| frame(1, 5, 1 + 2 * at, &block)));
        stream.write_all(&bytes).unwrap();
        let (mut answered, mut refused) = (0, 0);
        while answered + refused < STREAMS {
            let mut head = [0; 9];
            stream.read_exact(&mut head).expect("requests are not answered");
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).unwrap();
            match (head[3], head[4] & 1) {
                (1, 0) => answered += 1,
                (1, _) => refused += 1,
                _ => {}
            }
        }
        let grown = server.resident().saturating_sub(before);
        println!("{} MB for {answered} replies that nobody takes", grown / 1_000_000);
        assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
        assert!(grown < 60_000_000, "{grown} bytes for {answered} replies");
        is_served(client).await;
        drop(stream);
    });
}

/// A client that asks for far more than may wait on a connection, and
/// takes all of it, gets all of it.
#[test]
fn calls_that_had_to_wait_are_answered() {
    with_server(&[], async |server, client| {
        const CALLS: u32 = 200;
        let value = vec![7; 1_000_000];
        let request = PutRequest { key: "large".into(), value: value.into(), ..PutRequest::default() };
        client.kv.clone().put(request).await.unwrap();
        let message = [&[0, 0, 0, 0, 7][..], &[0x0a, 5], b"large"].concat();
        let mut stream = attacker(server);
        // Windows that never have to be opened again.
        let mut bytes = frame(4, 0, 0, &[&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat());
        bytes.extend(frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
        for at in 0..CALLS {
            bytes.extend(frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range")));
            bytes.extend(frame(0, 1, 1 + 2 * at, &message));
        }
        stream.write_all(&bytes).unwrap();
        let (mut received, mut buffer) = (0_u64, vec![0; 1 << 20]);
        while received < u64::from(CALLS) * 1_000_000 {
            let read = stream.read(&mut buffer).expect("replies stay away");
            assert!(read > 0, "closed after {received} bytes");
            received += read as u64;
        }
    });
}

/// Thousands of connections that say nothing more cost little.
#[test]
fn idle_connections_are_small() {
    with_server(&[], async |server, client| {
        is_served(client).await;
        let before = server.resident();
        let connections: Vec<TcpStream> = (0..2_000).map(|_| attacker(server)).collect();
        for stream in &connections {
            let mut settings = [0; 9];
            (&mut &*stream).read_exact(&mut settings).unwrap();
        }
        is_served(client).await;
        let each = server.resident().saturating_sub(before) / 2_000;
        println!("{each} bytes for an idle connection");
        assert!(each < 16 * 1024, "{each} bytes for an idle connection");
    });
}

/// A call that is not done in its time is told so, and so is a compressed one what it is.
#[test]
fn timeouts_and_compression_of_the_protocol() {
    with_server(&[], async |server, _client| {
        let mut stream = attacker(server);
        let mut block = call_block("/v3lockpb.Lock/Lock");
        literal(&mut block, b"grpc-timeout", b"300m", false);
        // The first takes the lock, the second waits for it for ever.
        let message = [&[0, 0, 0, 0, 3][..], &[0x0a, 1, b'l']].concat();
        let mut bytes =
            [frame(1, 4, 1, &call_block("/v3lockpb.Lock/Lock")), frame(0, 1, 1, &message)].concat();
        bytes.extend([frame(1, 4, 3, &block), frame(0, 1, 3, &message)].concat());
        stream.write_all(&bytes).unwrap();
        wait_for_the_end_of_time(&mut stream);
    });
}

/// The time of a call counts from its head, also when its message never comes.
#[test]
fn a_call_whose_message_stays_away_ends_in_its_time() {
    with_server(&[], async |server, client| {
        let mut stream = attacker(server);
        let mut block = call_block("/etcdserverpb.KV/Range");
        literal(&mut block, b"grpc-timeout", b"300m", false);
        stream.write_all(&[frame(1, 4, 1, &block), frame(0, 0, 1, &[0, 0])].concat()).unwrap();
        wait_for_the_end_of_time(&mut stream);
        is_served(client).await;
    });
}
