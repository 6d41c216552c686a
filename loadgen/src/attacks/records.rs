//! Records of TLS that are no records, and sessions that ask for new keys again and again.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use revd_http2::PREFACE;
use revd_http2::raw::{call_block, frame};
use rustls::ContentType;
use rustls::version::TLS13;

use super::attack::{Attack, AttackTarget};
use super::session::{self, HEAD_BYTES, RawSession, hello};
use super::store::PUT;
use super::together::{PATIENCE, closed, is_silence, together};
use crate::caller::framed;
use crate::keys::value;
use crate::wire::tls::careless;

/// Connections with each kind of bytes.
const OF_A_KIND: usize = 40;
/// Kinds of records, and all bytes of one with an alert, which is the last of them.
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
const ALERT_BYTES: usize = HEAD_BYTES + 2;
/// The longest record that is one.
const RECORD_BYTES: usize = 1 << 14;
/// Bytes of one write. A kernel without preemption leaves a thread its CPU within a call, whatever
/// its priority: to copy a megabyte would keep the server, on the same CPUs, waiting for as long.
const WRITE_BYTES: usize = 1 << 14;
/// Sessions at a time, and how often each asks to begin anew.
const SESSIONS: usize = 20;
const ASKS: usize = 200;
/// Updates of keys between two bytes of data: libraries bear with 32 (rustls) or 16 (Go) of them
/// and count from the beginning when data comes.
const UPDATES: usize = 15;
/// Bytes of a record of new keys.
const KEYS_BYTES: usize = 27;
/// Bytes of data, each in a record of its own, that are sent together.
const BYTES_AT_ONCE: usize = 100;
/// Bytes of the put that they are part of.
const PUT_BYTES: usize = 16_000;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("TLS: oversized records", 0, oversized).over_tls().told("sent away").never("let in"),
    // A session of TLS 1.3 cannot begin anew; its keys can.
    Attack::new("TLS: renegotiation", 0, renegotiation).over_tls().told("sent away").never("stays"),
    Attack::new("TLS: new keys without end", 0, new_keys).over_tls().told("new keys"),
];

/// Bytes that no client sends.
struct Kind {
    name: &'static str,
    bytes: Vec<u8>,
    /// They are a hello all the same, which a server may answer.
    is_hello: bool,
}

fn kinds(hello: &[u8]) -> Vec<Kind> {
    let handshake = |length: u16, body: &[u8]| [&[0x16, 3, 1][..], &length.to_be_bytes(), body].concat();
    let full = |front: &[u8]| {
        let body = [front, &value(RECORD_BYTES - front.len(), 5)].concat();
        handshake(1 << 14, &body)
    };
    let garbage = [&[0x17, 3, 3, 0x40, 0][..], &value(RECORD_BYTES, 6)].concat();
    let kind = |name, bytes| Kind { name, bytes, is_hello: false };
    let small = hello[HEAD_BYTES..].iter().flat_map(|byte| handshake(1, &[*byte])).collect();
    vec![
        kind("a record of 64 KiB", handshake(0xffff, &value(0xffff, 3))),
        // Of which 1.6 MB come.
        kind("a message of 16 MiB", [full(&[1, 0xff, 0xff, 0xff]), full(&[]).repeat(99)].concat()),
        kind("records that nobody can decrypt", [hello, &garbage.repeat(64)].concat()),
        Kind { name: "a hello in records of one byte", bytes: small, is_hello: true },
        // Behind the first one of a handshake.
        kind("random bytes", [&[0x16][..], &value(1 << 16, 4)].concat()),
    ]
}

/// A connection with bytes of a kind.
struct Sender<'k> {
    kind: &'k Kind,
    socket: TcpStream,
    sent: usize,
    /// The first bytes that came back, or fewer.
    said: Vec<u8>,
}

impl Sender<'_> {
    /// Sends what the server takes, and listens until it closes; what came of it.
    fn go_on(&mut self) -> io::Result<()> {
        while let Some(rest) = self.kind.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(&rest[..rest.len().min(WRITE_BYTES)]) {
                Ok(taken) => self.sent += taken,
                // Being sent away in the middle is what should happen: it is read below, behind
                // what was said before.
                Err(_) => break,
            }
        }
        if self.said.len() < ALERT_BYTES {
            let mut said = [0; ALERT_BYTES];
            match self.socket.read(&mut said) {
                Ok(read @ 1..) => self.said.extend_from_slice(&said[..read]),
                Err(error) if is_silence(&error) => return Err(error),
                Ok(_) | Err(_) => return Ok(()),
            }
        }
        if self.kind.is_hello && self.said.first() == Some(&HANDSHAKE) {
            return Ok(());
        }
        closed(&mut self.socket)
    }

    /// In words; `is_over`: the server has closed it, or has said all that it may say.
    fn told(&self, is_over: bool) -> String {
        let what = match (is_over, &self.said[..]) {
            (true, [ALERT, .., alert]) if self.said.len() == ALERT_BYTES => {
                format!("sent away, alert {alert}")
            }
            (true, [HANDSHAKE, ..]) if self.kind.is_hello => "answered".to_owned(),
            (true, _) => "sent away".to_owned(),
            (false, []) if self.kind.is_hello => "no answer".to_owned(),
            (false, []) => "let in, without an answer".to_owned(),
            (false, _) => "let in, and answered".to_owned(),
        };
        format!("{}: {what}", self.kind.name)
    }
}

fn oversized(target: &AttackTarget) -> anyhow::Result<()> {
    all_kinds(target, PATIENCE)
}

/// All kinds at once, and each to its end: one of which nothing is told might have been let in.
fn all_kinds(target: &AttackTarget, patience: Duration) -> anyhow::Result<()> {
    let kinds = kinds(&hello(target)?);
    let mut open = Vec::new();
    for kind in kinds.iter().flat_map(|kind| std::iter::repeat_n(kind, OF_A_KIND)) {
        let socket = target.silent()?;
        socket.set_nonblocking(true)?;
        open.push(Sender { kind, socket, sent: 0, said: Vec::new() });
    }
    let ends = together(&mut open, patience, Sender::go_on);
    open.iter().zip(ends).for_each(|(sender, end)| target.tally.told(&sender.told(end.is_some())));
    Ok(())
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
    sessions.iter().try_for_each(|session| session.socket.set_nonblocking(true))?;
    for end in together(&mut sessions, PATIENCE, |session| closed(&mut session.socket)) {
        target.tally.told(if end.is_some() { "sent away" } else { "stays" });
    }
    Ok(())
}

/// A session of TLS 1.3 that takes new keys all the time, and has the server take them too, behind
/// each byte of a call, until it is sent away.
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
                Ok(bytes) => target.tally.told_times("new keys", (bytes / KEYS_BYTES) as u64),
                Err(error) if is_silence(&error) => target.linger(Duration::from_millis(1)),
                Err(_) => {
                    target.tally.told("sent away");
                    return Ok(());
                }
            }
        }
        if target.is_over() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that closes connections, but lets some in: by the second and third byte.
    fn server(lets_in: fn([u8; 3]) -> bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move |mut socket: TcpStream| {
            let mut first = [0; 3];
            if socket.read_exact(&mut first).is_ok() && lets_in(first) {
                std::mem::forget(socket); // open for as long as the test runs
            }
        };
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                std::thread::spawn(move || serve(socket));
            }
        });
        format!("https://{address}")
    }

    #[test]
    fn each_kind_that_is_let_in_is_told() {
        let target = AttackTarget::new(&server(|first| first[1] != 3));
        // Those that are let in keep silent for so long.
        all_kinds(&target, Duration::from_secs(2)).unwrap();
        let told = target.tally.all();
        let of = |what: &str| -> Vec<&str> {
            let found = told.iter().filter(|(told, _)| told.contains(what));
            found.map(|(told, _)| told.split(':').next().unwrap()).collect()
        };
        assert_eq!(of("let in"), ["random bytes"], "{told:?}");
        let mut away = of("sent away");
        away.sort_unstable();
        assert_eq!(away.len(), 4, "{told:?}");
        assert!(!away.contains(&"random bytes"), "{told:?}");
    }
}
