//! Records of TLS that are no records, and sessions that ask for new keys again and again.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd_http2::PREFACE;
use revd_http2::raw::{call_block, frame};
use rustls::ContentType;
use rustls::version::TLS13;

use super::attack::{Attack, AttackTarget};
use super::session::{self, HEAD_BYTES, RawSession, hello, is_sent_away, is_silence};
use super::store::PUT;
use crate::caller::framed;
use crate::keys::value;
use crate::wire::tls::careless;

/// Connections with each kind of bytes.
const OF_A_KIND: usize = 40;
/// The longest record that is one.
const RECORD_BYTES: usize = 1 << 14;
/// Sessions at a time, and how often each asks to begin anew.
const SESSIONS: usize = 20;
const ASKS: usize = 200;
/// Updates of keys between two bytes of data: libraries bear with 32 (rustls) or 16 (Go) of them
/// and count from the beginning when data comes.
const UPDATES: usize = 15;
/// Bytes of data, each in a record of its own, that are sent together.
const BYTES_AT_ONCE: usize = 100;
/// Bytes of the put that they are part of.
const PUT_BYTES: usize = 16_000;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("TLS: oversized records", 0, oversized).over_tls().told("sent away"),
    // A session of TLS 1.3 cannot begin anew; its keys can.
    Attack::new("TLS: renegotiation", 0, renegotiation).over_tls().told("sent away"),
    Attack::new("TLS: new keys without end", 0, new_keys).over_tls().told("new keys"),
];

/// Bytes that no client sends.
fn kinds(hello: &[u8]) -> Vec<Vec<u8>> {
    let handshake = |length: u16, body: &[u8]| [&[0x16, 3, 1][..], &length.to_be_bytes(), body].concat();
    let full = |front: &[u8]| {
        let body = [front, &value(RECORD_BYTES - front.len(), 5)].concat();
        handshake(1 << 14, &body)
    };
    let garbage = [&[0x17, 3, 3, 0x40, 0][..], &value(RECORD_BYTES, 6)].concat();
    vec![
        // A record of 64 KiB.
        handshake(0xffff, &value(0xffff, 3)),
        // A message of 16 MiB, of which 1.6 MB come.
        [full(&[1, 0xff, 0xff, 0xff]), full(&[]).repeat(99)].concat(),
        // Records that nobody can decrypt.
        [hello, &garbage.repeat(64)].concat(),
        // A hello in records of one byte.
        hello[HEAD_BYTES..].iter().flat_map(|byte| handshake(1, &[*byte])).collect(),
        // Random bytes behind the first one of a handshake.
        [&[0x16][..], &value(1 << 16, 4)].concat(),
    ]
}

fn oversized(target: &AttackTarget) -> anyhow::Result<()> {
    for bytes in kinds(&hello(target)?) {
        let mut open = Vec::new();
        for _ in 0..OF_A_KIND {
            let mut stream = target.silent()?;
            // Being sent away in the middle is what should happen.
            let _ = stream.write_all(&bytes);
            open.push(stream);
        }
        open.iter_mut().for_each(|stream| target.tally.told(&first_answer(stream)));
        if target.is_over() {
            break;
        }
    }
    Ok(())
}

/// The first thing that is said to an attacker.
fn first_answer(stream: &mut TcpStream) -> String {
    let mut said = [0; 4096];
    match stream.read(&mut said) {
        Ok(7..) if said[0] == 0x15 => format!("sent away, alert {}", said[6]),
        Ok(1..) => "answered".to_owned(),
        Err(error) if is_silence(&error) => "no answer".to_owned(),
        Ok(_) | Err(_) => "sent away".to_owned(),
    }
}

/// Sessions of TLS 1.2 that ask for another handshake, again and again.
fn renegotiation(target: &AttackTarget) -> anyhow::Result<()> {
    let hello = hello(target)?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let mut session = RawSession::begin(target)?;
        let is_done = (0..ASKS).all(|_| session.send(ContentType::Handshake, &hello[HEAD_BYTES..]).is_ok());
        target.tally.told(if is_done { "all asked" } else { "ended before all were asked" });
        sessions.push(session);
    }
    for session in &mut sessions {
        target.tally.told(if is_sent_away(&mut session.socket) { "sent away" } else { "stays" });
    }
    Ok(())
}

/// A session of TLS 1.3 that takes new keys all the time, and has the server take them too, behind
/// each byte of a call.
fn new_keys(target: &AttackTarget) -> anyhow::Result<()> {
    let mut session = session::begin(target, &careless(&[&TLS13], None)?)?;
    session::finish(&mut session)?;
    let call = [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 4, 1, &call_block(PUT))].concat();
    let put = frame(0, 0, 1, &framed(0, &[0; PUT_BYTES]));
    session.conn.writer().write_all(&call)?;
    let mut nowhere = [0; 64 * 1024];
    session.sock.set_nonblocking(true)?;
    for bytes in put.chunks(BYTES_AT_ONCE) {
        for byte in bytes {
            session.conn.writer().write_all(&[*byte])?;
            (0..UPDATES).try_for_each(|_| session.conn.refresh_traffic_keys())?;
        }
        while session.conn.wants_write() && !target.is_over() {
            // The answers are keys, too: they are taken, and not looked at.
            while session.sock.read(&mut nowhere).is_ok_and(|read| read > 0) {}
            match session.conn.write_tls(&mut session.sock) {
                Ok(_) => {}
                Err(error) if is_silence(&error) => target.linger(Duration::from_millis(1)),
                Err(_) => {
                    target.tally.told("sent away");
                    return Ok(());
                }
            }
        }
        if session.conn.wants_write() {
            break; // keys that were not sent are none
        }
        target.tally.told_times("new keys", (bytes.len() * UPDATES) as u64);
        if target.is_over() {
            break;
        }
    }
    Ok(())
}
