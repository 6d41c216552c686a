//! Two ends of our own talk to each other over a wire that cuts bytes anywhere: everything arrives,
//! in order, and no window is overrun.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;

use bytes::Bytes;
use revd_http2::hpack::{Decoder, indexed, literal};
use revd_http2::{Config, Connection, ErrorCode, Event, HeadersKind, Role};

/// A small generator of our own: this crate depends on no engine.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn size(&mut self, end: u64) -> usize {
        usize::try_from(self.below(end)).unwrap()
    }
}

#[derive(Default)]
struct Side {
    received: BTreeMap<u32, Vec<u8>>,
    ended: BTreeMap<u32, bool>,
    fields: BTreeMap<u32, Vec<String>>,
    wire: Vec<u8>,
    decoder: Decoder,
}

/// Some of the bytes an end sends.
fn sent(from: &mut Connection<()>, bytes_max: usize) -> Vec<u8> {
    let out = from.out();
    let mut slices = [std::io::IoSlice::new(&[]); 3];
    let filled = out.fill(&mut slices);
    let mut bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
    bytes.truncate(bytes_max);
    out.advance(bytes.len());
    from.pump();
    bytes
}

/// Moves some bytes from one end to the other.
fn move_bytes(from: &mut Connection<()>, to: &mut Connection<()>, side: &mut Side, random: &mut Random) {
    side.wire.extend(sent(from, 1 + random.size(40_000)));
    let wire = std::mem::take(&mut side.wire);
    let mut rest = &wire[..];
    while let Some(event) = to.receive(&mut rest).unwrap() {
        let mut credit = None;
        match event {
            Event::Headers { stream, block, kind, end } => {
                let fields = side.fields.entry(stream).or_default();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let add = |name: &[u8], value: &[u8]| fields.push(format!("{}={}", text(name), text(value)));
                side.decoder.decode(&block, add).unwrap();
                assert!(kind != HeadersKind::Ignored);
                side.ended.insert(stream, end);
            }
            Event::Data { stream, data, end } => {
                side.received.entry(stream).or_default().extend_from_slice(data);
                side.ended.insert(stream, end);
                credit = Some((stream, data.len()));
            }
            Event::Reset { stream, code } => {
                assert_eq!(code, ErrorCode::NoError as u32, "stream {stream}");
            }
            _ => {}
        }
        if let Some((stream, bytes)) = credit {
            to.credit(stream, bytes);
        }
        side.ended.iter().filter(|(_, ended)| **ended).for_each(|(stream, _)| to.close(*stream));
    }
    side.wire = rest.to_vec();
}

fn body(stream: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at + stream as usize * 31) % 251).unwrap()).collect()
}

#[test]
fn everything_arrives_whatever_the_windows() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let window = |random: &mut Random| 1 + u32::try_from(random.below(100_000)).unwrap();
        let config = |random: &mut Random| Config {
            stream_window: window(random),
            connection_window: 65_535 + window(random),
            out_bytes_max: 1 + random.size(50_000),
            ..Config::default()
        };
        let mut client: Connection<()> = Connection::new(Role::Client, config(&mut random));
        let mut server: Connection<()> = Connection::new(Role::Server, config(&mut random));
        let (mut at_client, mut at_server) = (Side::default(), Side::default());
        let mut asked = BTreeMap::new();
        let mut answered = BTreeMap::new();
        let mut quiet = 0;
        while answered.len() < 12 || server.open_streams() > 0 || quiet < 10 {
            quiet = if client.out().is_empty() && server.out().is_empty() { quiet + 1 } else { 0 };
            assert!(
                quiet < 1_000,
                "seed {seed} got stuck: {} asked, {} answered",
                asked.len(),
                answered.len()
            );
            if asked.len() < 12 && random.below(20) == 0 {
                let id = client.open(()).unwrap();
                let mut block = vec![0x83];
                literal(&mut block, b"x-number", id.to_string().as_bytes(), random.below(2) == 0);
                let len = random.size(150_000);
                client.send_head(id, &block, false);
                let whole = Bytes::from(body(id, len));
                let cut = random.size(len as u64 + 1);
                client.send_data(id, &[whole.slice(..cut), whole.slice(cut..)]);
                client.send_end(id, None);
                asked.insert(id, len);
            }
            move_bytes(&mut client, &mut server, &mut at_server, &mut random);
            let done = |id: &&u32| at_server.ended.get(*id) == Some(&true);
            for id in asked.keys().filter(done) {
                if answered.contains_key(id) {
                    continue;
                }
                let len = random.size(3) * random.size(100_000);
                let mut head = Vec::new();
                indexed(&mut head, 8);
                let mut trailers = Vec::new();
                literal(&mut trailers, b"grpc-status", b"0", false);
                let reply = body(*id + 1, len);
                if !server.send_short(*id, &head, &[&reply], &trailers) {
                    server.send_head(*id, &head, false);
                    server.send_data(*id, &[Bytes::from(reply)]);
                    server.send_end(*id, Some(&trailers));
                }
                answered.insert(*id, len);
            }
            move_bytes(&mut server, &mut client, &mut at_client, &mut random);
        }
        for (id, len) in &asked {
            assert!(
                at_server.received.get(id).cloned().unwrap_or_default() == body(*id, *len),
                "seed {seed}"
            );
            assert_eq!(at_server.fields[id], [":method=POST".to_owned(), format!("x-number={id}")]);
            let reply = at_client.received.get(id).cloned().unwrap_or_default();
            assert_eq!(reply.len(), answered[id], "seed {seed}: the answer to {id}");
            assert!(reply == body(*id + 1, answered[id]), "seed {seed}: the answer to {id}");
            assert_eq!(at_client.fields[id], [":status=200", "grpc-status=0"]);
            assert!(at_client.ended[id]);
        }
        assert_eq!((server.open_streams(), client.open_streams()), (0, 0));
    }
}

/// A client that measures pings whenever data comes and its last ping was answered: something was
/// sent between any two of them, however the windows cut a reply into pieces.
#[test]
fn data_is_sent_between_the_pings_of_a_client_that_measures() {
    for (window, out_bytes_max) in [(65_535, 1 << 20), (65_535, 20_000), (10_000_000, 1 << 20), (16_384, 1)] {
        let config =
            Config { stream_window: window, connection_window: window.max(65_535), ..Config::default() };
        let mut client: Connection<()> = Connection::new(Role::Client, config);
        let server_config = Config { out_bytes_max, ..Config::default() };
        let mut server: Connection<()> = Connection::new(Role::Server, server_config);
        let stream = client.open(()).unwrap();
        client.send_head(stream, &[0x83], true);
        let (mut received, mut pings, mut is_asked, mut waiting) = (0, 0, false, Vec::new());
        const BYTES: usize = 5_000_000;
        while received < BYTES {
            let wire = sent(&mut client, usize::MAX);
            let mut rest = &wire[..];
            while let Some(event) = server.receive(&mut rest).unwrap() {
                match event {
                    Event::Headers { stream, .. } => {
                        server.send_head(stream, &[0x88], false);
                        server.send_data(stream, &[Bytes::from(vec![7; BYTES])]);
                        server.send_end(stream, Some(&[]));
                    }
                    Event::Ping => {
                        pings += 1;
                        assert!(server.take_has_sent(), "ping {pings} of a client with a window of {window}");
                    }
                    _ => {}
                }
            }
            waiting.extend(sent(&mut server, 10_000));
            let mut rest = &waiting[..];
            let mut credits = Vec::new();
            while let Some(event) = client.receive(&mut rest).unwrap() {
                match event {
                    Event::Data { data, .. } => credits.push(data.len()),
                    Event::Pong(_) => is_asked = false,
                    _ => {}
                }
            }
            waiting = rest.to_vec();
            for bytes in credits {
                received += bytes;
                client.credit(stream, bytes);
                if !std::mem::replace(&mut is_asked, true) {
                    client.ping([0; 8]);
                }
            }
        }
        assert!(pings > 2, "{pings} pings");
    }
}
