//! Answers that are asked for and not taken, or taken slowly.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use super::attack::{Attack, AttackTarget};
use super::store::{RANGE, everything, fill, key};
use crate::caller::{Caller, framed};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("ranges that are not read", 0, ranges).after(|target| fill(target, 100_000, 200, 0)),
    Attack::new("8 slow readers of large ranges", 20, slow).after(|target| fill(target, 5_000, 20_000, 0)),
    Attack::new("20,000 replies of 200 KiB that are not read", 20, small)
        .after(|target| fill(target, 1, 200 * 1024, 0)),
    Attack::new("a reader a little too slow", 20, trickle).after(|target| fill(target, 1, 1_000_000, 0)),
    Attack::new("a stream of everything, held while all is written", 23, held)
        .after(|target| fill(target, 200_000, 100, 0)),
];

fn ask(at: u32, request: &RangeRequest) -> Vec<u8> {
    let body = framed(0, &request.encode_to_vec());
    [frame(1, 4, 1 + 2 * at, &call_block(RANGE)), frame(0, 1, 1 + 2 * at, &body)].concat()
}

/// Everything, a thousand times, and nothing of it is read.
fn ranges(target: &AttackTarget) -> anyhow::Result<()> {
    let mut stream = target.raw()?;
    let bytes: Vec<u8> = (0..1_000).flat_map(|at| ask(at, &everything())).collect();
    let _ = stream.write_all(&bytes);
    target.linger(Duration::from_millis(200));
    Ok(())
}

/// Windows that never have to be opened again.
fn open_windows(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut bytes = frame(4, 0, 0, &[&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat());
    bytes.extend(frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
    Ok(stream.write_all(&bytes)?)
}

/// Three answers of 100 MB on each connection, of which 256 KiB are read now and then.
fn slow(target: &AttackTarget) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = target.raw()?;
        open_windows(&mut stream)?;
        stream.write_all(&(0..3).flat_map(|at| ask(at, &everything())).collect::<Vec<u8>>())?;
        streams.push(stream);
    }
    let mut buffer = vec![0; 256 * 1024];
    while !target.is_over() {
        for stream in &mut streams {
            let _ = stream.read(&mut buffer);
        }
        target.linger(Duration::from_secs(2));
    }
    Ok(())
}

/// Answers below every size that is counted, on a hundred connections.
fn small(target: &AttackTarget) -> anyhow::Result<()> {
    let one = RangeRequest { key: key(0), ..RangeRequest::default() };
    let bytes: Vec<u8> = (0..200).flat_map(|at| ask(at, &one)).collect();
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = target.raw()?;
        open_windows(&mut stream)?;
        let _ = stream.write_all(&bytes);
        streams.push(stream);
    }
    target.linger(Duration::from_secs(2));
    Ok(())
}

/// Reads all the time, and asks for a little more than it reads.
fn trickle(target: &AttackTarget) -> anyhow::Result<()> {
    let one = RangeRequest { key: key(0), ..RangeRequest::default() };
    let mut stream = target.raw()?;
    open_windows(&mut stream)?;
    stream.set_nonblocking(true)?;
    let (mut at, mut buffer) = (0, vec![0; 64 * 1024]);
    let mut rest = Vec::new();
    while !target.is_over() && at < 100_000 {
        if rest.is_empty() {
            rest = (at..at + 20).flat_map(|at| ask(at, &one)).collect();
            at += 20;
        }
        match stream.write(&rest) {
            Ok(written) => drop(rest.drain(..written)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Ok(0) = stream.read(&mut buffer) {
            return Ok(());
        }
        target.linger(Duration::from_millis(2));
    }
    Ok(())
}

/// A View that is held for long, and then freed in one go.
fn held(target: &AttackTarget) -> anyhow::Result<()> {
    let mut reader: Caller = target.caller()?;
    reader.begin("/etcdserverpb.KV/RangeStream", &everything().encode_to_vec()).context("no more streams")?;
    reader.client.flush()?;
    let mut writer = target.caller()?;
    let put = |number| PutRequest { key: key(number), ..PutRequest::default() }.encode_to_vec();
    crate::caller::call_all(&mut writer, super::store::PUT, (0..20_000).map(|at| put(at * 10)))?;
    drop(reader);
    target.tally.told("ok");
    Ok(())
}
