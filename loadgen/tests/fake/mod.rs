//! A server with known faults, to see whether loadgen sees them: it answers what a run asks, and
//! stalls, forgets events, goes back in time or dies when it is told to. One thread serves
//! everything, so that a stall stops everything.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use revd_http2::hpack::{Decoder, literal};
use revd_http2::{Config, Connection, Event, PREFACE, Role};
use revd_loadgen::clock;
use revd_loadgen::wire::fields::{FieldValue, MessageFields, bytes, put_bytes, put_number, put_part};

/// Its faults.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// So long after the first write it does nothing for so long.
    pub(crate) stall: Option<(Duration, Duration)>,
    /// The write that comes as this one by number is done and answered 300 ms later, and others are
    /// not kept waiting.
    pub(crate) holds_put: Option<u64>,
    /// One of so many events is not sent.
    pub(crate) forgets_event: Option<u64>,
    /// After so many writes, one is answered with an old revision.
    pub(crate) goes_back_after: Option<u64>,
    /// After so many writes it closes everything and listens no more.
    pub(crate) dies_after: Option<u64>,
    /// One of so many writes fails.
    pub(crate) refuses: Option<u64>,
    /// After so many writes it believes none of its tokens any more, but new ones.
    pub(crate) ends_tokens_after: Option<u64>,
    /// It has no users before so many writes, and asks for rights from then on.
    pub(crate) is_open_until: Option<u64>,
    /// It compacts nothing.
    pub(crate) refuses_compactions: bool,
}

/// A running one; ends when it is dropped.
pub(crate) struct Fake {
    pub(crate) endpoint: String,
    /// How often somebody has logged in.
    #[allow(dead_code, reason = "of two tests with this server one asks")]
    pub(crate) logins: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let logins = Arc::new(AtomicU64::new(0));
        let server = FakeServer::new(faults, Arc::clone(&logins));
        let thread = std::thread::spawn(move || server.serve(listener, &flag));
        Self { endpoint, logins, is_over, thread: Some(thread) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A call: its path, and what has come of its messages.
#[derive(Debug, Default)]
struct FakeCall {
    path: String,
    token: Vec<u8>,
    partial: Vec<u8>,
    watchers: i64,
    has_head: bool,
}

struct FakePeer {
    socket: TcpStream,
    http2: Connection<()>,
    decoder: Decoder,
    calls: BTreeMap<u32, FakeCall>,
    partial: Vec<u8>,
    has_preface: bool,
    /// A call that is answered at this time.
    held: Option<(u64, u32, FakeCall)>,
}

struct FakeServer {
    faults: Faults,
    revision: i64,
    puts: u64,
    events: u64,
    first_put: Option<u64>,
    has_stalled: bool,
    has_held: bool,
    is_dead: bool,
    logins: Arc<AtomicU64>,
}

fn header(reply: &mut Vec<u8>, revision: i64) {
    put_part(reply, 1, |header| put_number(header, 3, revision));
}

impl FakeServer {
    fn new(faults: Faults, logins: Arc<AtomicU64>) -> Self {
        Self {
            faults,
            revision: 1,
            puts: 0,
            events: 0,
            first_put: None,
            has_stalled: false,
            has_held: false,
            is_dead: false,
            logins,
        }
    }

    /// The token that counts now.
    fn token(&self) -> &'static [u8] {
        let have_ended = self.faults.ends_tokens_after.is_some_and(|after| self.puts >= after);
        if have_ended { b"second" } else { b"first" }
    }

    fn is_open(&self) -> bool {
        self.faults.is_open_until.is_some_and(|until| self.puts < until)
    }

    fn serve(mut self, listener: TcpListener, is_over: &AtomicBool) {
        let mut peers: Vec<FakePeer> = Vec::new();
        while !is_over.load(Ordering::Relaxed) && !self.is_dead {
            while let Ok((socket, _)) = listener.accept() {
                socket.set_nonblocking(true).unwrap();
                socket.set_nodelay(true).unwrap();
                peers.push(FakePeer {
                    socket,
                    http2: Connection::new(Role::Server, Config::default()),
                    decoder: Decoder::default(),
                    calls: BTreeMap::new(),
                    partial: Vec::new(),
                    has_preface: false,
                    held: None,
                });
            }
            if let (Some((after, length)), Some(first), false) =
                (self.faults.stall, self.first_put, self.has_stalled)
                && clock::nanos() >= first + clock::in_nanos(after)
            {
                self.has_stalled = true;
                clock::rest(length);
            }
            let mut events = Vec::new();
            let mut is_idle = true;
            peers.retain_mut(|peer| match peer.turn(&mut self, &mut events) {
                Ok(had_work) => {
                    is_idle &= !had_work;
                    true
                }
                Err(_) => false,
            });
            for peer in &mut peers {
                events.iter().for_each(|event| peer.tell(event, &mut self));
                let _ = peer.flush();
            }
            if is_idle {
                std::thread::park_timeout(Duration::from_micros(50));
            }
        }
    }

    fn answer(
        &mut self,
        call: &FakeCall,
        events: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, (&'static str, &'static str)> {
        let (mut reply, body) = (Vec::new(), call.partial.get(5..).unwrap_or_default());
        match call.path.as_str() {
            "/etcdserverpb.Auth/Authenticate" => {
                self.logins.fetch_add(1, Ordering::Relaxed);
                if self.is_open() {
                    return Err(("9", "etcdserver: authentication is not enabled"));
                }
                put_bytes(&mut reply, 2, self.token());
            }
            "/etcdserverpb.KV/Put" if !call.token.is_empty() && call.token != self.token() => {
                return Err(("16", "etcdserver: invalid auth token"));
            }
            "/etcdserverpb.KV/Put"
                if call.token.is_empty() && self.faults.is_open_until.is_some() && !self.is_open() =>
            {
                return Err(("3", "etcdserver: user name is empty"));
            }
            "/etcdserverpb.KV/Compact" if self.faults.refuses_compactions => {
                return Err(("14", "etcdserver: request timed out"));
            }
            "/etcdserverpb.Maintenance/Status" => {
                header(&mut reply, self.revision);
                put_bytes(&mut reply, 2, b"fake");
            }
            "/etcdserverpb.KV/Put" => {
                self.puts += 1;
                self.first_put.get_or_insert_with(clock::nanos);
                let is_every =
                    |every: Option<u64>, count: u64| every.is_some_and(|every| count.is_multiple_of(every));
                if self.faults.dies_after.is_some_and(|after| self.puts > after) {
                    self.is_dead = true;
                }
                if is_every(self.faults.refuses, self.puts) {
                    return Err(("8", "etcdserver: mvcc: database space exceeded"));
                }
                self.revision += 1;
                let mut event = Vec::new();
                put_part(&mut event, 2, |kv| {
                    put_bytes(kv, 1, bytes(body, 1));
                    put_number(kv, 3, self.revision);
                    put_bytes(kv, 5, bytes(body, 2));
                });
                events.push(event);
                let is_back = self.faults.goes_back_after == Some(self.puts);
                header(&mut reply, if is_back { 1 } else { self.revision });
            }
            _ => header(&mut reply, self.revision),
        }
        Ok(reply)
    }
}

fn framed(body: &[u8]) -> Bytes {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out.into()
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    fields.iter().for_each(|(name, value)| literal(&mut block, name.as_bytes(), value.as_bytes(), false));
    block
}

impl FakePeer {
    fn turn(&mut self, server: &mut FakeServer, events: &mut Vec<Vec<u8>>) -> io::Result<bool> {
        if let Some((_, stream, call)) = self.held.take_if(|(until, ..)| *until <= clock::nanos()) {
            self.reply(stream, &call, server, events);
        }
        let mut buffer = vec![0; 64 * 1024];
        let read = match self.socket.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.partial.extend_from_slice(&buffer[..read]);
        if !self.has_preface {
            if self.partial.len() < PREFACE.len() {
                return Ok(true);
            }
            self.partial.drain(..PREFACE.len());
            self.has_preface = true;
        }
        let input = std::mem::take(&mut self.partial);
        let mut rest = &input[..];
        while let Some(event) = self.http2.receive(&mut rest).map_err(io::Error::other)? {
            match event {
                Event::Headers { stream, block, .. } => {
                    let mut call = FakeCall::default();
                    let path = |name: &[u8], value: &[u8]| {
                        if name == b":path" {
                            call.path = String::from_utf8_lossy(value).into_owned();
                        }
                        if name == b"token" {
                            call.token = value.to_vec();
                        }
                    };
                    self.decoder
                        .decode(&block, path)
                        .map_err(|_| io::Error::other("a block cannot be decoded"))?;
                    self.calls.insert(stream, call);
                }
                Event::Data { stream, data, end } => {
                    self.http2.credit(stream, data.len());
                    self.data(stream, data, end, server, events);
                }
                Event::Reset { stream, .. } => drop(self.calls.remove(&stream)),
                _ => {}
            }
        }
        self.partial = rest.to_vec();
        self.flush()?;
        Ok(true)
    }

    fn data(
        &mut self,
        stream: u32,
        data: &[u8],
        end: bool,
        server: &mut FakeServer,
        events: &mut Vec<Vec<u8>>,
    ) {
        let Some(call) = self.calls.get_mut(&stream) else { return };
        call.partial.extend_from_slice(data);
        while let Some(len) =
            call.partial.get(1..5).map(|len| u32::from_be_bytes(len.try_into().unwrap()) as usize)
        {
            if call.partial.len() < 5 + len || call.path != "/etcdserverpb.Watch/Watch" {
                break;
            }
            call.partial.drain(..5 + len);
            let mut reply = Vec::new();
            header(&mut reply, server.revision);
            put_number(&mut reply, 2, call.watchers);
            put_number(&mut reply, 3, 1);
            call.watchers += 1;
            if !std::mem::replace(&mut call.has_head, true) {
                self.http2.send_head(
                    stream,
                    &block(&[(":status", "200"), ("content-type", "application/grpc")]),
                    false,
                );
            }
            self.http2.send_data(stream, &[framed(&reply)]);
        }
        if !end {
            return;
        }
        let Some(call) = self.calls.remove(&stream) else { return };
        let is_put = call.path == "/etcdserverpb.KV/Put";
        if is_put && !server.has_held && server.faults.holds_put == Some(server.puts + 1) {
            server.has_held = true;
            self.held = Some((clock::nanos() + 300_000_000, stream, call));
        } else {
            self.reply(stream, &call, server, events);
        }
    }

    fn reply(&mut self, stream: u32, call: &FakeCall, server: &mut FakeServer, events: &mut Vec<Vec<u8>>) {
        match server.answer(call, events) {
            Ok(reply) => {
                self.http2.send_head(
                    stream,
                    &block(&[(":status", "200"), ("content-type", "application/grpc")]),
                    false,
                );
                self.http2.send_data(stream, &[framed(&reply)]);
                self.http2.send_end(stream, Some(&block(&[("grpc-status", "0")])));
            }
            Err((code, message)) => {
                let fields = [(":status", "200"), ("grpc-status", code), ("grpc-message", message)];
                self.http2.send_head(stream, &block(&fields), true);
            }
        }
    }

    /// Tells all watchers of this connection.
    fn tell(&mut self, event: &[u8], server: &mut FakeServer) {
        let revision = MessageFields(bytes(event, 2)).find_map(|(number, value)| match (number, value) {
            (3, FieldValue::Number(_)) => Some(value.signed()),
            _ => None,
        });
        for (stream, call) in &self.calls {
            for watcher in 0..call.watchers {
                server.events += 1;
                if server.faults.forgets_event.is_some_and(|every| server.events.is_multiple_of(every)) {
                    continue;
                }
                let mut reply = Vec::new();
                header(&mut reply, revision.unwrap_or(0));
                put_number(&mut reply, 2, watcher);
                put_bytes(&mut reply, 11, event);
                self.http2.send_data(*stream, &[framed(&reply)]);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            self.http2.pump();
            let out = self.http2.out();
            if out.is_empty() {
                return Ok(());
            }
            let mut pieces = [IoSlice::new(&[]); 16];
            let filled = out.fill(&mut pieces);
            match self.socket.write_vectored(&pieces[..filled]) {
                Ok(sent) => self.http2.out().advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
