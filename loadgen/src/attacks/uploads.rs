//! Requests that begin and do not end.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};

use super::attack::{Attack, AttackTarget};
use super::store::PUT;
use crate::caller::framed;
use crate::keys::value;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("2,000 uploads of 1 MiB that do not end", 19, |target| {
        unending(target, &framed(0, &value(1 << 20, 3)))
    }),
    Attack::new("2,000 uploads of 1 MiB, half a message", 19, |target| {
        let whole = framed(0, &value(1 << 20, 3));
        unending(target, &whole[..whole.len() - 1])
    }),
    Attack::new("2,000 uploads of 1.4 KB, gzip", 19, zipped),
    Attack::new("keepalives whose replies are not read", 19, keepalives),
];

/// Streams with a message each and no end, on four connections.
fn unending(target: &AttackTarget, body: &[u8]) -> anyhow::Result<()> {
    const CONNECTIONS: usize = 4;
    let body: bytes::Bytes = body.to_vec().into();
    let mut callers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut caller = target.caller()?;
        for _ in 0..500 {
            let Some((stream, _)) = caller.open(PUT) else { break };
            caller.client.send(stream, body.clone());
        }
        callers.push(caller);
    }
    for _ in 0..300 {
        for caller in &mut callers {
            caller.turn(Duration::from_millis(2))?;
        }
        if target.is_over() {
            break;
        }
    }
    for caller in &callers {
        target.tally.ends(caller.heard.ended.values());
    }
    Ok(())
}

/// The same, a thousandth as long on the wire: within every window.
fn zipped(target: &AttackTarget) -> anyhow::Result<()> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; 1 << 20])?;
    let body = framed(1, &encoder.finish()?);
    let mut block = call_block(PUT);
    literal(&mut block, b"grpc-encoding", b"gzip", false);
    let mut stream = target.raw()?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let bytes: Vec<u8> = (0..2_000_u32)
        .flat_map(|at| [frame(1, 4, 1 + 2 * at, &block), frame(0, 0, 1 + 2 * at, &body)].concat())
        .collect();
    stream.write_all(&bytes)?;
    target.linger(Duration::from_secs(1));
    Ok(())
}

/// One stream that asks without end and takes no answer.
fn keepalives(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let id = super::store::grant(&mut caller, 60)?;
    let (stream, _) = caller.open("/etcdserverpb.Lease/LeaseKeepAlive").unwrap_or_default();
    let one =
        framed(0, &prost::Message::encode_to_vec(&revd_proto::etcdserverpb::LeaseKeepAliveRequest { id }));
    for _ in 0..50 {
        caller.client.send(stream, one.repeat(10_000));
        caller.send_all(Duration::from_millis(100))?;
        if target.is_over() {
            break;
        }
    }
    Ok(())
}
