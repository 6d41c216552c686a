//! A state on its way between two members, on a connection of its own.
//!
//! ```text
//! dialer:    frame: u64 term, little-endian | frames: one chunk of the state each
//! listener:  a pulse a second | at the end TAKEN
//! ```
//!
//! Files and mapped pages are read and written on helper threads. The receiver takes chunks as fast
//! as its disk does, and the sender sends no faster than a bound, so that neither holds others up.
//! A state that is not whole when the connection ends is begun anew.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{SavedState, Store, StoreBuilder};
use revd_engine::transfer::StateStream;
use revd_member::apply::received::ReceivedState;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::Peer;
use revd_member::peer::frame::{self, FrameReader};
use serde_json::json;

use crate::clock::Ticker;
use crate::disk::received::ReceivedFiles;
use crate::limits;
use crate::observe::log;
use crate::peer::caller::Caller;
use crate::peer::pulse::{Silence, show_life};
use crate::peer::shared::SnapshotStream;
use crate::peer::transport;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// The byte by which a listener says that it has the state.
const TAKEN: [u8; 1] = [b'!'];

/// Log core view: states on their way to other members, and the one that another member sends.
pub struct States {
    caller: Caller,
    files: ReceivedFiles,
    /// A state is received, or is on its way into its place: there is one at a time.
    is_receiving: Cell<bool>,
    emit: Box<dyn Fn(LogEvent)>,
}

impl States {
    /// `emit` is told what becomes of states.
    #[must_use]
    pub fn new(caller: Caller, files: ReceivedFiles, emit: impl Fn(LogEvent) + 'static) -> Rc<Self> {
        Rc::new(Self { caller, files, is_receiving: Cell::new(false), emit: Box::new(emit) })
    }

    /// Sends a state to a member, in the name of the leader of a term; [`LogEvent::StateSent`]
    /// follows.
    pub fn send(self: &Rc<Self>, to: Peer, term: u64, state: Option<SavedState>) {
        let own = Rc::clone(self);
        glommio::spawn_local(async move {
            let is_there = own.try_send(&to, term, state).await;
            (own.emit)(LogEvent::StateSent { to: to.id, is_there });
        })
        .detach();
    }

    async fn try_send(&self, to: &Peer, term: u64, state: Option<SavedState>) -> bool {
        let (began, peer) = (Ticker::new(), format!("{:x}", to.id));
        let result = match state {
            Some(state) => {
                let fields = json!({"peer-id": peer, "index": state.applied().index});
                log::info("sending the state to a member that lags behind the log", fields);
                send_state(self.caller, to, term, &state).await
            }
            None => Err(io::Error::other("nothing is saved yet")),
        };
        let took = format!("{} ms", began.microseconds() / 1_000);
        match &result {
            Ok(()) => log::info("the member has the state", json!({"peer-id": peer, "took": took})),
            Err(error) => {
                let fields = json!({"peer-id": peer, "took": took, "error": error.to_string()});
                log::warn("the state could not be sent", fields);
                sleep(limits::STATE_RETRY_INTERVAL).await;
            }
        }
        result.is_ok()
    }

    /// Receives the state that another member has opened a connection for, if no other one is
    /// received; [`LogEvent::StateReceived`] follows when it is whole.
    pub fn receive(self: &Rc<Self>, connection: SnapshotStream) {
        if self.is_receiving.replace(true) {
            return; // the sender finds the connection closed, and tries again later
        }
        let own = Rc::clone(self);
        glommio::spawn_local(async move { own.try_receive(connection).await }).detach();
    }

    async fn try_receive(&self, connection: SnapshotStream) {
        let (began, peer) = (Ticker::new(), format!("{:x}", connection.from));
        match self.receive_state(connection).await {
            Ok(()) => {
                let took = format!("{} ms", began.microseconds() / 1_000);
                log::info("received a state", json!({"peer-id": peer, "took": took}));
            }
            Err(error) => {
                let fields = json!({"peer-id": peer, "error": error.to_string()});
                log::warn("a state that another member was sending is given up", fields);
                self.is_receiving.set(false);
            }
        }
    }

    async fn receive_state(&self, connection: SnapshotStream) -> io::Result<()> {
        let from = connection.from;
        let (reading, mut writing) = futures_lite::io::split(connection.stream);
        let (silence, files) = (Silence::default(), self.files.clone());
        let receiving = read_state(reading, files.clone(), &silence);
        let watched = futures_lite::future::or(receiving, async { Err(silence.watch(|| {}).await) });
        let shown = async { Err(show_life(&mut writing).await) };
        let (term, builder) = futures_lite::future::or(watched, shown).await?;
        let opening = async { glommio::executor().spawn_blocking(move || finish(builder, &files)).await };
        let shown = async { Err(show_life(&mut writing).await) };
        let state = futures_lite::future::or(opening, shown).await?;
        (self.emit)(LogEvent::StateReceived { from, term, state });
        // The dialer may be gone: this member has the state.
        let _ = transport::write(&mut writing, &TAKEN).await;
        Ok(())
    }

    /// Removes a received state; another one may be received then.
    pub fn discard(self: &Rc<Self>, state: Box<ReceivedState>) {
        let own = Rc::clone(self);
        glommio::spawn_local(async move {
            let files = own.files.clone();
            let removing = move || {
                drop(state);
                files.forget()
            };
            if let Err(error) = glommio::executor().spawn_blocking(removing).await {
                log::warn("cannot remove a received state", json!({"error": error.to_string()}));
            }
            own.is_receiving.set(false);
        })
        .detach();
    }

    /// The state that was received last is in its place: another one may be received.
    pub fn installed(&self) {
        self.is_receiving.set(false);
    }
}

async fn send_state(caller: Caller, to: &Peer, term: u64, state: &SavedState) -> io::Result<()> {
    let stream = caller.open_for_snapshot(to).await?;
    let (reading, writing) = futures_lite::io::split(stream);
    let silence = Silence::default();
    let sending = async {
        write_state(writing, term, state.stream()).await?;
        std::future::pending().await // the listener has the last word
    };
    let hearing = futures_lite::future::or(hear_taken(reading, &silence), sending);
    futures_lite::future::or(hearing, async { Err(silence.watch(|| {}).await) }).await
}

async fn write_state(mut to: impl AsyncWrite + Unpin, term: u64, mut stream: StateStream) -> io::Result<()> {
    let mut bytes = Vec::new();
    append_frame(&mut bytes, &term.to_le_bytes());
    loop {
        transport::write(&mut to, &bytes).await?;
        // The pace: never faster than this, whatever the network takes.
        let micros = bytes.len() as u64 * 1_000_000 / limits::STATE_BYTES_PER_SECOND;
        sleep(Duration::from_micros(micros)).await;
        bytes.clear();
        let reading = glommio::executor().spawn_blocking(move || read_chunks(stream, bytes));
        (stream, bytes) = reading.await.map_err(io::Error::other)?;
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

/// The next chunks, in frames.
fn read_chunks(mut stream: StateStream, mut bytes: Vec<u8>) -> revd_engine::Result<(StateStream, Vec<u8>)> {
    let mut chunk = Vec::new();
    while bytes.len() < limits::STATE_READ_BYTES && stream.next_chunk(&mut chunk)? {
        append_frame(&mut bytes, &chunk);
    }
    Ok((stream, bytes))
}

fn append_frame(bytes: &mut Vec<u8>, payload: &[u8]) {
    let start = frame::begin(bytes);
    bytes.extend_from_slice(payload);
    frame::finish(bytes, start);
}

async fn hear_taken(mut stream: impl AsyncRead + Unpin, silence: &Silence) -> io::Result<()> {
    let mut words = [0; 64];
    loop {
        match stream.read(&mut words).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read if words[..read].contains(&TAKEN[0]) => return Ok(()),
            _ => silence.broken(),
        }
        give_way().await;
    }
}

/// Reads until the state is whole: the term, and what has come.
async fn read_state(
    mut stream: impl AsyncRead + Unpin,
    files: ReceivedFiles,
    silence: &Silence,
) -> io::Result<(u64, StoreBuilder)> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut builder = glommio::executor().spawn_blocking(move || begin(&files)).await?;
    let (mut reader, mut term) = (FrameReader::default(), None);
    let mut buffer = vec![0; limits::PEER_READ_BYTES];
    while !builder.is_whole() {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut bytes, mut chunks) = (&buffer[..read], Vec::new());
        while !bytes.is_empty() {
            let frame = reader.take(&mut bytes).map_err(|error| invalid(error.to_string()))?;
            let Some(mut payload) = frame else { continue };
            match term {
                None if payload.len() == 8 => term = Some(payload.get_u64_le()),
                None => return Err(invalid("a state without a term".to_owned())),
                Some(_) => chunks.push(payload),
            }
        }
        if !chunks.is_empty() {
            silence.broken();
            let adding = glommio::executor().spawn_blocking(move || add(builder, &chunks));
            builder = adding.await.map_err(io::Error::other)?;
        }
        silence.broken();
        give_way().await;
    }
    Ok((term.expect("chunks come behind it"), builder))
}

fn begin(files: &ReceivedFiles) -> io::Result<StoreBuilder> {
    files.forget()?;
    let disk = MmapDisk::open(&files.receiving()).map_err(io::Error::other)?;
    StoreBuilder::new(Arc::new(disk)).map_err(io::Error::other)
}

fn add(mut builder: StoreBuilder, chunks: &[Bytes]) -> revd_engine::Result<StoreBuilder> {
    chunks.iter().try_for_each(|chunk| builder.add(chunk))?;
    Ok(builder)
}

/// The file is whole: it gets a name that says so, and is opened.
fn finish(builder: StoreBuilder, files: &ReceivedFiles) -> io::Result<Box<ReceivedState>> {
    builder.finish().map_err(io::Error::other)?;
    files.keep()?;
    let disk = MmapDisk::open(&files.received()).map_err(io::Error::other)?;
    let store = Store::open(Arc::new(disk), DbOptions::default()).map_err(io::Error::other)?;
    ReceivedState::load(store).map(Box::new).map_err(io::Error::other)
}
