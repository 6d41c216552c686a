//! The demands of RFC 9113 on a server, case by case, each named by its section: frames in, and how
//! the connection answers.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use revd_http2::hpack::{Decoder, literal};
use revd_http2::raw::frame;
use revd_http2::{Config, Connection, Event, HeadersKind, Limit, Role};

/// How the connection answers.
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

/// Opens a stream on which the client may send data.
fn headers(stream: u32) -> Vec<u8> {
    frame(1, 4, stream, &block())
}

/// Opens a stream that the client ends at once.
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
        settings_max: 10,
        header_block_bytes_max: 20_000,
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
    let part = frame(9, 0, 1, &[0; 16_000]);
    check("10.5: a long block", &[begun.clone(), part.clone(), frame(9, 4, 1, &[])], &GoesOn);
    check("10.5: a block that is too long", &[begun, part.clone(), part], &Ends(CALM));
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
    let sizes: Vec<u8> =
        (0..2_730_u32).flat_map(|at| [&[0, 4][..], &(at % 2).to_be_bytes()].concat()).collect();
    check("6.5: thousands of sizes at a time", &opened(vec![frame(4, 0, 0, &sizes)]), &GoesOn);
    let resets = |count: u32| {
        (0..count).flat_map(|at| [headers(1 + 2 * at), frame(3, 0, 1 + 2 * at, &[0; 4])]).collect::<Vec<_>>()
    };
    check("10.5: resets", &resets(5), &GoesOn);
    check("10.5: too many resets", &resets(6), &Ends(CALM));
}

#[test]
fn a_fault_names_the_bound_that_was_reached() {
    let config = Config {
        resets_first: 0,
        idle_frames_max: 0,
        settings_max: 0,
        header_block_bytes_max: 1,
        ..Config::default()
    };
    let long = [frame(1, 0, 1, &block()), frame(9, 4, 1, &[0x88])].concat();
    let reset = [headers(1), frame(3, 0, 1, &[0; 4])].concat();
    for (wire, limit) in [
        (reset, Some(Limit::Resets)),
        (frame(6, 0, 0, &[0; 8]), Some(Limit::IdleFrames)),
        (setting(4, 70_000), Some(Limit::Settings)),
        (long, Some(Limit::HeaderBlock)),
        (data(1, 0, 0), None),
    ] {
        let mut connection: Connection<()> = Connection::new(Role::Server, config);
        let wire = [frame(4, 0, 0, &[]), wire].concat();
        let mut rest = &wire[..];
        let fault = std::iter::repeat_with(|| connection.receive(&mut rest)).find_map(Result::err).unwrap();
        assert_eq!(fault.limit, limit, "{fault}");
    }
}

/// A server that gives streams up or takes none any more: what was on its way for them
/// is no fault, however much it is.
#[test]
fn frames_for_streams_that_were_given_up_are_ignored() {
    for is_leaving in [false, true] {
        let config = Config { resets_max: 5, resets_first: 5, ..Config::default() };
        let mut connection: Connection<()> = Connection::new(Role::Server, config);
        let receive = |connection: &mut Connection<()>, wire: &[u8]| {
            let mut rest = wire;
            let mut streams = Vec::new();
            while let Some(event) = connection.receive(&mut rest).unwrap() {
                match event {
                    Event::Headers { stream, kind: HeadersKind::Head, .. } => streams.push(stream),
                    Event::Headers { kind: HeadersKind::Ignored, .. } | Event::Window => {}
                    event => panic!("{event:?}"),
                }
            }
            streams
        };
        receive(&mut connection, &[frame(4, 0, 0, &[]), headers(1)].concat());
        if is_leaving {
            connection.go_away();
        }
        let ids: Vec<u32> = (0..1_000).map(|at| 3 + 2 * at).collect();
        let opened: Vec<u8> = ids.iter().flat_map(|id| headers(*id)).collect();
        let taken = receive(&mut connection, &opened);
        assert_eq!(taken, if is_leaving { vec![] } else { ids.clone() });
        for id in taken {
            connection.reset(id, revd_http2::ErrorCode::NoError);
        }
        sent(&mut connection);
        let mut credited = 0;
        for id in &ids {
            let trailers = frame(1, 5, *id, &[]);
            let behind = [data(*id, 0, 9_000), window(*id, 7), trailers, frame(3, 0, *id, &[0; 4])].concat();
            receive(&mut connection, &behind);
            credited += grown(&sent(&mut connection));
        }
        // The connection's window must not shrink for it.
        assert!(credited + 2 * 1024 * 1024 >= 1_000 * 9_000, "{credited}");
        assert_eq!(connection.open_streams(), 1);
    }
}

/// By how much window updates of the connection open its window.
fn grown(mut wire: &[u8]) -> u32 {
    let mut grown = 0;
    while let Some((head, behind)) = wire.split_first_chunk::<9>() {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[3] == 8 && head[5..] == [0; 4] {
            grown += u32::from_be_bytes(behind[..4].try_into().unwrap());
        }
        wire = &behind[length..];
    }
    grown
}

/// 6.8: streams that are under way when the server wants to end are taken up, and
/// only then is the last one named.
#[test]
fn a_last_call_comes_before_the_end() {
    let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
    let receive = |connection: &mut Connection<()>, wire: &[u8]| {
        let mut rest = wire;
        let mut heads = Vec::new();
        while let Some(event) = connection.receive(&mut rest).unwrap() {
            if let Event::Headers { stream, kind: HeadersKind::Head, .. } = event {
                heads.push(stream);
            }
        }
        heads
    };
    receive(&mut connection, &[frame(4, 0, 0, &[]), headers(1)].concat());
    sent(&mut connection);
    connection.last_call();
    connection.last_call();
    let said = sent(&mut connection);
    let ping = &said[17..];
    assert_eq!(said[..17], frame(7, 0, 0, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert_eq!(receive(&mut connection, &headers(3)), [3]);
    assert!(!connection.is_going_away());
    receive(&mut connection, &frame(6, 1, 0, &ping[9..]));
    assert!(connection.is_going_away());
    assert_eq!(sent(&mut connection), frame(7, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]));
    assert_eq!(receive(&mut connection, &headers(5)), [0; 0]);
    connection.go_away();
    assert_eq!((sent(&mut connection).len(), connection.open_streams()), (0, 2));
    // A stream that was not taken is never named as the last, also when the end is a bad one.
    let mut fault = &data(0, 0, 1)[..];
    let fault = connection.receive(&mut fault).unwrap_err();
    connection.fail(fault);
    let said = sent(&mut connection);
    assert_eq!((said[3], &said[9..17]), (7, &[0, 0, 0, 3, 0, 0, 0, 1][..]));
}

/// 6.5.3 and RFC 7541, 4.2: sizes of the table that came and went between two blocks are announced,
/// and what the table may have lost is not leaned upon.
#[test]
fn each_size_of_the_header_table_is_announced() {
    let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
    let mut decoder = Decoder::default();
    let mut kept = Vec::new();
    literal(&mut kept, b"a", b"b", true);
    decoder.decode(&kept, |_, _| {}).unwrap();
    let table = |size: u32| [&[0, 1][..], &size.to_be_bytes()].concat();
    let wire = [frame(4, 0, 0, &[]), headers(1), frame(4, 0, 0, &[table(0), table(4096)].concat())].concat();
    let mut rest = &wire[..];
    while connection.receive(&mut rest).unwrap().is_some() {}
    assert_eq!(connection.peer_table_bytes(), 0);
    sent(&mut connection);
    connection.send_head(1, &[0x88], true);
    let said = sent(&mut connection);
    assert_eq!(said[9..14], [0x20, 0x3f, 0xe1, 0x1f, 0x88], "size 0, size 4096, status 200");
    decoder.decode(&said[9..14], |_, _| {}).unwrap();
    assert!(decoder.decode(&[0xbe], |_, _| {}).is_err(), "the table is empty");
}

/// 6.9.2: streams that wait for their windows go on when the last of many
/// settings has made them larger.
#[test]
fn windows_grow_once_for_many_settings() {
    let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
    let receive = |connection: &mut Connection<()>, wire: &[u8]| {
        let mut rest = wire;
        while connection.receive(&mut rest).unwrap().is_some() {}
    };
    let opened: Vec<u8> = (0..100).flat_map(|at| headers(1 + 2 * at)).collect();
    receive(&mut connection, &[setting(4, 0), opened].concat());
    for at in 0..100 {
        connection.send_head(1 + 2 * at, &[0x88], false);
        connection.send_data(1 + 2 * at, &[vec![7; 30].into()]);
    }
    sent(&mut connection);
    let sizes: Vec<u8> = [50, 0, 10].map(|size| setting(4, size)).concat();
    receive(&mut connection, &sizes);
    let said = sent(&mut connection);
    assert_eq!(said.len(), 3 * 9 + 100 * (9 + 10), "ten bytes of each");
    receive(&mut connection, &setting(4, 5));
    assert_eq!(sent(&mut connection).len(), 9);
    receive(&mut connection, &[window(1, 6), setting(4, 10)].concat());
    assert_eq!(
        sent(&mut connection).len(),
        (9 + 1) + 9 + (9 + 5),
        "one stream has more, the others what they had"
    );
    receive(&mut connection, &setting(4, 1_000));
    assert_eq!(sent(&mut connection).len(), 9 + 99 * (9 + 20) + 9 + 14);
}
