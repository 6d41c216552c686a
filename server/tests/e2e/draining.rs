//! Calls under way when others are refused early, or when the member stops: nothing else on the
//! connection suffers, and whatever was taken is answered.

use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message as _;
use revd_http2::raw::{call_block, frame};
use revd_http2::{Config, Connection, Event, PREFACE, Role};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest, WatchRequest};

use crate::harness::{with_restartable_server, with_server};

const PUT: &str = "/etcdserverpb.KV/Put";

/// Two hundred puts at a time that are too large, each refused at its first frame while others of
/// it are under way: each is told so, and the connection and its watch go on. With etcd's client:
/// part `refusals` of `bench/peers/interop/main.go`.
#[test]
fn early_refusals_leave_the_connection_alone() {
    with_server(&[], async |server, _| {
        const PUTS: u32 = 200;
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let call = |id, path| frame(1, 4, id, &call_block(path));
        let message =
            |message: &[u8]| [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat();
        let ids: Vec<u32> = (0..PUTS).map(|at| 3 + 2 * at).collect();
        let large = [&[0][..], &(3_u32 << 20).to_be_bytes(), &[7; 10_000]].concat();
        let mut wire = [PREFACE, &frame(4, 0, 0, &[])].concat();
        wire.extend(call(1, "/etcdserverpb.Watch/Watch"));
        wire.extend(frame(0, 0, 1, &message(&create.encode_to_vec())));
        wire.extend(ids.iter().flat_map(|id| [call(*id, PUT), frame(0, 0, *id, &large)].concat()));
        wire.extend(ids.iter().flat_map(|id| frame(0, 0, *id, &[7; 10_000])));
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let last = 3 + 2 * PUTS;
        wire.extend([call(last, PUT), frame(0, 1, last, &message(&put.encode_to_vec()))].concat());
        socket.write_all(&wire).unwrap();
        let (mut received, mut buffer, mut refused, mut events) = (Vec::new(), [0; 1 << 14], 0, 0);
        while refused < PUTS || events < 2 {
            let read = socket.read(&mut buffer).unwrap();
            assert!(read > 0, "closed after {refused} refusals");
            received.extend_from_slice(&buffer[..read]);
            while let Some((head, behind)) = received.split_first_chunk::<9>() {
                let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                let Some(payload) = behind.get(..length) else { break };
                let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
                assert!(head[3] != 7, "after {refused} refusals: {}", String::from_utf8_lossy(payload));
                let is_too_large = || String::from_utf8_lossy(payload).contains("larger than max");
                refused += u32::from(head[3] == 1 && stream < last && is_too_large());
                events += u32::from(head[3] == 0 && stream == 1);
                received.drain(..9 + length);
            }
        }
    });
}

/// Puts without a pause over a connection of its own, until the server has closed it: how many
/// streams were opened, which of them were answered well, and the last one the server says it took.
fn put_until_closed(address: std::net::SocketAddr, name: usize) -> (u32, BTreeSet<u32>, u32) {
    const UNDER_WAY: usize = 2_000;
    let mut socket = TcpStream::connect(address).unwrap();
    // It does not wait for answers: there are always streams on their way to the server.
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket.write_all(PREFACE).unwrap();
    let mut connection: Connection<()> = Connection::new(Role::Client, Config::default());
    let (mut opened, mut last, mut answered) = (0, u32::MAX, BTreeSet::new());
    let (mut waiting, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // It goes on opening streams until it knows which the last one is.
        for _ in 0..10 {
            if last < u32::MAX >> 1 || connection.open_streams() >= UNDER_WAY {
                break;
            }
            let Some(id) = connection.open(()) else { break };
            let key = format!("{name}/{id}");
            let put = PutRequest { key: key.into(), value: vec![7; 100].into(), ..PutRequest::default() };
            let put = put.encode_to_vec();
            let prefix = [&[0][..], &u32::try_from(put.len()).unwrap().to_be_bytes()].concat();
            connection.send_head(id, &call_block(PUT), false);
            connection.send_last(id, &[&prefix, &put]);
            opened = id;
        }
        while !connection.out().is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = connection.out().fill(&mut slices);
            // It may be closed already: what it has said comes next.
            let Ok(written) = socket.write_vectored(&slices[..filled]) else { break };
            connection.out().advance(written);
            connection.pump();
        }
        let read = match socket.read(&mut buffer) {
            Ok(0) => return (opened, answered, last),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}, {} of {} are answered", answered.len(), opened.div_ceil(2)),
        };
        waiting.extend_from_slice(&buffer[..read]);
        let mut rest = &waiting[..];
        while let Some(event) = connection.receive(&mut rest).unwrap() {
            match event {
                Event::Headers { stream, block, end: true, .. } => {
                    // Good trailers are a byte: the table has `grpc-status: 0`.
                    assert!(block.len() < 20, "{}", String::from_utf8_lossy(&block));
                    answered.insert(stream);
                    connection.close(stream);
                }
                Event::GoAway { last_stream, .. } => last = last_stream,
                _ => {}
            }
        }
        waiting = rest.to_vec();
    }
}

/// A stop under load: every call that was taken is answered and its write is there at the next
/// start; the others were not taken, and their writes are not there.
#[test]
fn a_stop_answers_every_call_that_was_taken() {
    with_restartable_server(&[], async |server, _| {
        let address = server.address;
        for round in 0..3 {
            let callers: Vec<_> = (0..4)
                .map(|name| std::thread::spawn(move || put_until_closed(address, round * 10 + name)))
                .collect();
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.stop();
            let results: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
            server.start_again();
            let client = server.client().await;
            for (name, (opened, answered, last)) in results.into_iter().enumerate() {
                assert!(!answered.is_empty(), "{opened} opened");
                let taken: BTreeSet<u32> = (1..=opened.min(last)).step_by(2).collect();
                let missing: Vec<&u32> = taken.difference(&answered).collect();
                assert!(
                    missing.is_empty(),
                    "{opened} opened, {last} is the last, without an answer: {missing:?}"
                );
                let key = format!("{}/", round * 10 + name);
                let range_end = format!("{}0", round * 10 + name).into();
                let range =
                    RangeRequest { key: key.into(), range_end, count_only: true, ..Default::default() };
                let count = client.kv.clone().range(range).await.unwrap().into_inner().count;
                assert_eq!(usize::try_from(count).unwrap(), answered.len());
            }
        }
    });
}
