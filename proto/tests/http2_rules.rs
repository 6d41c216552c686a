//! What RFC 9113 demands of a server, case by case, each named by its section: frames in, and how the connection answers.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use revd_proto::http2::hpack::literal;
use revd_proto::http2::{Config, Connection, Event, Role};
use revd_proto::raw::frame;

/// How it answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The connection goes on, the stream too.
    GoesOn,
    /// The stream is reset with this code.
    Reset(u32),
    /// The connection ends with this code.
    Ends(u32),
}

use Answer::{Ends, GoesOn, Reset};

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const REFUSED: u32 = 7;
const CALM: u32 = 11;

fn block() -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    literal(&mut block, b":path", b"/x", false);
    block
}

fn data(stream: u32, flags: u8, bytes: usize) -> Vec<u8> {
    frame(0, flags, stream, &vec![7; bytes])
}

/// Opens a stream; the client may send data.
fn headers(stream: u32) -> Vec<u8> {
    frame(1, 4, stream, &block())
}

/// Opens a stream; the client is done.
fn whole(stream: u32) -> Vec<u8> {
    frame(1, 5, stream, &block())
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(4, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(8, 0, stream, &more.to_be_bytes())
}

/// Feeds frames to a server that answers nothing by itself, in pieces of every kind of size.
fn answer(frames: &[Vec<u8>], piece: usize) -> Answer {
    let config = Config {
        streams_max: 3,
        stream_window: 70_000,
        connection_window: 100_000,
        resets_max: 5,
        resets_first: 5,
        idle_frames_max: 10,
        ..Config::default()
    };
    let mut connection: Connection<()> = Connection::new(Role::Server, config);
    let settings = connection.out().len();
    let wire: Vec<u8> = [frame(4, 0, 0, &[])].iter().chain(frames).flatten().copied().collect();
    let mut waiting: Vec<u8> = Vec::new();
    for piece in wire.chunks(piece) {
        waiting.extend_from_slice(piece);
        let mut rest = &waiting[..];
        loop {
            match connection.receive(&mut rest) {
                Ok(Some(Event::Headers { .. } | Event::Data { .. })) => {}
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => return Ends(fault.code as u32),
            }
        }
        let used = waiting.len() - rest.len();
        waiting.drain(..used);
    }
    let sent = sent(&mut connection);
    let mut rest = &sent[settings..];
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[3] == 3 {
            return Reset(u32::from_be_bytes(behind[..4].try_into().unwrap()));
        }
        rest = &behind[length..];
    }
    GoesOn
}

fn sent(connection: &mut Connection<()>) -> Vec<u8> {
    let out = connection.out();
    let mut all = Vec::new();
    while !out.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let filled = out.fill(&mut slices);
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
        out.advance(bytes.len());
        all.extend(bytes);
    }
    all
}

#[track_caller]
fn check(section: &str, frames: &[Vec<u8>], expected: &Answer) {
    for piece in [1, 7, 100_000] {
        assert_eq!(&answer(frames, piece), expected, "{section}, {piece} bytes at a time");
    }
}

#[test]
fn frames_and_their_sizes() {
    check("3.4: settings come first", &[], &GoesOn);
    check("4.1: unknown frames are ignored", &[frame(77, 0xff, 5, b"x")], &GoesOn);
    check("4.2: longer than the limit", &[frame(0, 0, 1, &[0; 16_385])], &Ends(FRAME_SIZE));
    check("4.2: settings of a wrong size", &[frame(4, 0, 0, &[0; 5])], &Ends(FRAME_SIZE));
    check("6.3: priority of a wrong size", &[frame(2, 0, 1, &[0; 4])], &Ends(FRAME_SIZE));
    check("6.4: reset of a wrong size", &[headers(1), frame(3, 0, 1, &[0; 3])], &Ends(FRAME_SIZE));
    check("6.7: ping of a wrong size", &[frame(6, 0, 0, &[0; 7])], &Ends(FRAME_SIZE));
    check("6.8: goaway that is too short", &[frame(7, 0, 0, &[0; 7])], &Ends(FRAME_SIZE));
    check("6.9: window update of a wrong size", &[frame(8, 0, 0, &[0; 3])], &Ends(FRAME_SIZE));
    check("6.5: an acknowledgement with bytes", &[frame(4, 1, 0, &[0; 6])], &Ends(FRAME_SIZE));
    check("6.5: an acknowledgement", &[frame(4, 1, 0, &[])], &GoesOn);
}

#[test]
fn streams_and_their_states() {
    check("5.1: data on an idle stream", &[data(1, 0, 1)], &Ends(PROTOCOL));
    check("5.1: reset of an idle stream", &[frame(3, 0, 1, &[0; 4])], &Ends(PROTOCOL));
    check("5.1: window of an idle stream", &[window(1, 1)], &Ends(PROTOCOL));
    check("5.1: priority of an idle stream", &[frame(2, 0, 1, &[0, 0, 0, 3, 1])], &GoesOn);
    check("5.1: data behind the end", &[whole(1), data(1, 0, 1)], &Reset(STREAM_CLOSED));
    check("5.1: headers behind the end", &[whole(1), whole(1)], &Ends(STREAM_CLOSED));
    check(
        "5.1: data behind a reset",
        &[headers(1), frame(3, 0, 1, &[0; 4]), data(1, 0, 1)],
        &Ends(STREAM_CLOSED),
    );
    check("5.1: window behind a reset", &[headers(1), frame(3, 0, 1, &[0; 4]), window(1, 1)], &GoesOn);
    check("5.1.1: even stream", &[headers(2)], &Ends(PROTOCOL));
    check("5.1.1: streams that go back", &[whole(5), whole(3)], &Ends(STREAM_CLOSED));
    check("5.1.2: one stream too many", &[whole(1), whole(3), whole(5), whole(7)], &Reset(REFUSED));
    check("8.1: headers in the middle", &[headers(1), headers(1)], &Reset(PROTOCOL));
    check("8.1: trailers", &[headers(1), data(1, 0, 3), whole(1)], &GoesOn);
    check("8.4: a push from a client", &[frame(5, 4, 1, &[0, 0, 0, 2])], &Ends(PROTOCOL));
    for (name, bytes) in
        [("data", data(0, 0, 1)), ("headers", headers(0)), ("reset", frame(3, 0, 0, &[0; 4]))]
    {
        check(&format!("6: {name} without a stream"), &[bytes], &Ends(PROTOCOL));
    }
    for (name, kind, bytes) in [("settings", 4, 0), ("ping", 6, 8), ("goaway", 7, 8)] {
        check(&format!("6: {name} for a stream"), &[frame(kind, 0, 1, &vec![0; bytes])], &Ends(PROTOCOL));
    }
}

#[test]
fn header_blocks() {
    let (first, rest) = (block()[..2].to_vec(), block()[2..].to_vec());
    let begun = frame(1, 0, 1, &first);
    check("6.10: continued", &[begun.clone(), frame(9, 4, 1, &rest)], &GoesOn);
    check("6.10: continued on another stream", &[begun.clone(), frame(9, 4, 3, &rest)], &Ends(PROTOCOL));
    check("6.10: interrupted", &[begun.clone(), frame(6, 0, 0, &[0; 8])], &Ends(PROTOCOL));
    check("6.10: continuation of nothing", &[frame(9, 4, 1, &rest)], &Ends(PROTOCOL));
    check("6.10: behind the end of headers", &[headers(1), frame(9, 4, 1, &rest)], &Ends(PROTOCOL));
    let flood: Vec<Vec<u8>> =
        std::iter::once(begun.clone()).chain(std::iter::repeat_n(frame(9, 0, 1, &[]), 100)).collect();
    check("10.5: continued without end", &flood, &Ends(CALM));
    check(
        "10.5: a block of 64 KiB",
        &[begun, frame(9, 0, 1, &[0; 16_000]), frame(9, 0, 1, &[0; 16_000])],
        &Ends(CALM),
    );
    let padded = |padding: u8| frame(1, 0xc, 1, &[&[padding][..], &block(), &[0; 3]].concat());
    check("6.2: padding", &[padded(3)], &GoesOn);
    check("6.2: more padding than bytes", &[padded(200)], &Ends(PROTOCOL));
    let depends = |on: u32| frame(1, 0x24, 1, &[&on.to_be_bytes()[..], &[9], &block()].concat());
    check("5.3.1: depends on another", &[depends(3)], &GoesOn);
    check("5.3.1: depends on itself", &[depends(1)], &Ends(PROTOCOL));
}

#[test]
fn settings_and_windows() {
    check("6.5.2: push neither on nor off", &[setting(2, 2)], &Ends(PROTOCOL));
    check("6.5.2: too large a window", &[setting(4, 1 << 31)], &Ends(FLOW_CONTROL));
    check("6.5.2: too small a frame", &[setting(5, 16_383)], &Ends(PROTOCOL));
    check("6.5.2: too large a frame", &[setting(5, 1 << 24)], &Ends(PROTOCOL));
    check("6.5.2: an unknown setting", &[setting(99, 1)], &GoesOn);
    check("6.9: a window that grows by nothing", &[window(0, 0)], &Ends(PROTOCOL));
    check("6.9: a stream's that does", &[headers(1), window(1, 0)], &Reset(PROTOCOL));
    check("6.9.1: a window too large", &[window(0, 0x7fff_ffff)], &Ends(FLOW_CONTROL));
    check("6.9.1: a stream's too large", &[headers(1), window(1, 0x7fff_ffff)], &Reset(FLOW_CONTROL));
    let large = setting(4, 0x7fff_ffff);
    check("6.9.2: all windows too large", &[headers(1), window(1, 1 << 20), large], &Ends(FLOW_CONTROL));
    let frames = |count| std::iter::once(headers(1)).chain(std::iter::repeat_n(data(1, 0, 16_384), count));
    check("6.9: all a stream's window", &frames(4).collect::<Vec<_>>(), &GoesOn);
    check("6.9: beyond it", &frames(5).collect::<Vec<_>>(), &Reset(FLOW_CONTROL));
}

#[test]
fn floods() {
    let opened = |frames: Vec<Vec<u8>>| std::iter::once(headers(1)).chain(frames).collect::<Vec<_>>();
    for (name, bytes) in [
        ("pings", frame(6, 0, 0, &[0; 8])),
        ("settings", setting(4, 70_000)),
        ("empty data", data(1, 0, 0)),
        ("priorities", frame(2, 0, 1, &[0, 0, 0, 3, 1])),
        ("unknown frames", frame(77, 0, 0, &[])),
    ] {
        check(&format!("10.5: {name}"), &opened(vec![bytes.clone(); 10]), &GoesOn);
        check(&format!("10.5: too many {name}"), &opened(vec![bytes; 11]), &Ends(CALM));
    }
    let resets = |count: u32| {
        (0..count).flat_map(|at| [headers(1 + 2 * at), frame(3, 0, 1 + 2 * at, &[0; 4])]).collect::<Vec<_>>()
    };
    check("10.5: resets", &resets(5), &GoesOn);
    check("10.5: too many resets", &resets(6), &Ends(CALM));
}
