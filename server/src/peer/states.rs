//! A state on its way between two members, on a connection of its own.
//!
//! ```text
//! dialer:    frame: u64 term, u64 bytes of the state, little-endian
//! listener:  READY, or why not: BUSY, NO_ROOM
//! dialer:    frames: one chunk of the state each
//! listener:  at the end TAKEN
//! ```
//!
//! Both show once a second that they live, also while their disks are slow: the dialer by an empty
//! frame, the listener by a pulse. Files and mapped pages are read and written on helper threads.
//! The receiver (`receiving.rs`) reads chunks, lays out pages and writes them at the same time, as
//! fast as its disk does; the sender sends as fast while nothing else happens, and at a pace while
//! others are served. A state that is not whole when the connection ends is removed at once, and
//! begun anew.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut as _;
use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use glommio::Task;
use glommio::channels::local_channel;
use revd_engine::mvcc::SavedState;
use revd_engine::transfer::StateStream;
use revd_member::apply::received::ReceivedState;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::attempt::Attempt;
use revd_member::peer::{Peer, frame};
use revd_member::raft::status::MemberStatus;
use serde_json::json;

use crate::clock::Ticker;
use crate::disk::received::ReceivedFiles;
use crate::limits;
use crate::observe::log;
use crate::peer::caller::Caller;
use crate::peer::complaints::Complaints;
use crate::peer::pulse::{PULSE, Silence};
use crate::peer::receiving::{self, Incoming};
use crate::peer::shared::SnapshotStream;
use crate::peer::transport;
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// The byte by which a listener says that the state may come.
const READY: u8 = b'+';
/// The same for: it has another one, or another one comes.
const BUSY: u8 = b'-';
/// The same for: its disk has no room.
const NO_ROOM: u8 = b'0';
/// The same for: it has the state.
const TAKEN: u8 = b'!';

/// Log core view: states on their way to other members, and the one that another member sends.
pub struct States {
    caller: Caller,
    files: ReceivedFiles,
    status: Arc<MemberStatus>,
    place: RefCell<Place>,
    complaints: Complaints,
    clock: Ticker,
    /// Of each member that a state could not be sent to, why: told once until it changes.
    told: RefCell<BTreeMap<u64, String>>,
    emit: Box<dyn Fn(LogEvent)>,
}

/// The place of the one state that is received at a time.
enum Place {
    Free,
    /// Parts of it come.
    Coming(Rc<Reception>),
    /// It is whole, and stays until it is the tree file, or is of no use.
    Whole,
}

/// A state that comes.
struct Reception {
    attempt: Attempt,
    /// Since when its next part is waited for, in milliseconds; none while one is added.
    waits_since: Cell<Option<u64>>,
    /// Another attempt is to have its place.
    replaced: Latch,
    /// The place is another one's: its last job is done, and its file removed.
    over: Latch,
}

impl States {
    /// `emit` is told what becomes of states.
    #[must_use]
    pub fn new(
        caller: Caller,
        files: ReceivedFiles,
        status: Arc<MemberStatus>,
        emit: impl Fn(LogEvent) + 'static,
    ) -> Rc<Self> {
        Rc::new(Self {
            caller,
            files,
            status,
            place: RefCell::new(Place::Free),
            complaints: Complaints::default(),
            clock: Ticker::new(),
            told: RefCell::default(),
            emit: Box::new(emit),
        })
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
            Some(state) => self.send_state(to, term, &state).await,
            None => Err(io::Error::other("nothing is saved yet")),
        };
        let took = format!("{} ms", began.microseconds() / 1_000);
        let why = match result {
            Ok(()) => {
                self.told.borrow_mut().remove(&to.id);
                log::info("the member has the state", json!({"peer-id": peer, "took": took}));
                return true;
            }
            Err(error) => error.to_string(),
        };
        let told = self.told.borrow_mut().insert(to.id, why.clone());
        if told.as_ref() != Some(&why) {
            let fields = json!({"peer-id": peer, "took": took, "error": why});
            log::warn("the state could not be sent, and is tried again", fields);
        }
        sleep(limits::STATE_RETRY_INTERVAL).await;
        false
    }

    async fn send_state(&self, to: &Peer, term: u64, state: &SavedState) -> io::Result<()> {
        let stream = self.caller.open_for_snapshot(to).await?;
        let (mut reading, mut writing) = futures_lite::io::split(stream);
        let mut announcement = Vec::with_capacity(16);
        announcement.put_u64_le(term);
        announcement.put_u64_le(state.bytes());
        let mut bytes = Vec::new();
        append_frame(&mut bytes, &announcement);
        transport::write(&mut writing, &bytes).await?;
        hear(&mut reading, READY).await?;
        let fields = json!({
            "peer-id": format!("{:x}", to.id), "index": state.applied().index, "bytes": state.bytes(),
        });
        log::info("sending the state to a member that lags behind the log", fields);
        let sending = async {
            self.write_state(writing, state.stream()).await?;
            std::future::pending().await // the listener has the last word
        };
        futures_lite::future::or(hear(&mut reading, TAKEN), sending).await
    }

    /// Reads each part while the one before it is written.
    async fn write_state(&self, mut to: impl AsyncWrite + Unpin, stream: StateStream) -> io::Result<()> {
        let (all, mut read_for, mut written_for) = (Ticker::new(), 0, 0);
        let mut next = read_ahead(stream, Vec::new());
        let mut spare = Vec::new();
        loop {
            let (began, last_index) = (Ticker::new(), self.status.last_index.load());
            let part = while_pulsing(&mut to, &mut next).await?.map_err(io::Error::other)?;
            let StatePart { stream, mut bytes, read } = part;
            read_for += read;
            if bytes.is_empty() {
                let milliseconds = |of: u64| format!("{} ms", of / 1_000);
                let fields = json!({
                    "took": milliseconds(all.microseconds()), "reading": milliseconds(read_for),
                    "writing": milliseconds(written_for),
                });
                log::info("the whole state is sent", fields);
                return Ok(());
            }
            next = read_ahead(stream, spare);
            let waited = began.microseconds();
            transport::write(&mut to, &bytes).await?;
            let took = began.microseconds();
            written_for += took - waited;
            if self.status.last_index.load() == last_index {
                give_way().await;
            } else {
                while_pulsing(&mut to, sleep(pause_behind(bytes.len(), read, took))).await?;
            }
            bytes.clear();
            spare = bytes;
        }
    }

    /// Receives the state that another member has opened a connection for, if its attempt is the
    /// one that counts; [`LogEvent::StateReceived`] follows when it is whole.
    pub fn receive(self: &Rc<Self>, connection: SnapshotStream) {
        let own = Rc::clone(self);
        glommio::spawn_local(async move {
            let peer = format!("{:x}", connection.from);
            if let Err(error) = own.try_receive(connection).await {
                own.complaints.given_up(own.clock.milliseconds(), &peer, &error.to_string());
            }
        })
        .detach();
    }

    async fn try_receive(&self, connection: SnapshotStream) -> io::Result<()> {
        let SnapshotStream { from, stream, place } = connection;
        let (reading, mut writing) = futures_lite::io::split(stream);
        let mut incoming = Incoming::new(reading);
        let late = "it does not say what it sends";
        let announcing = incoming.announcement();
        let (term, bytes) = transport::within(limits::PEER_HELLO_DEADLINE, late, announcing).await?;
        let attempt = Attempt::new(from, term, (self.status.term.load(), self.status.leader.load()));
        let Some(reception) = self.take_place(attempt).await else {
            return transport::write(&mut writing, &[BUSY]).await;
        };
        let result = self.receive_state(&reception, place.taken(), bytes, incoming, &mut writing).await;
        let is_whole = result.is_ok();
        if !is_whole {
            self.remove_files().await;
        }
        *self.place.borrow_mut() = if is_whole { Place::Whole } else { Place::Free };
        reception.over.set();
        (self.emit)(LogEvent::StateReceived { from, term, state: result? });
        // The dialer may be gone: this member has the state.
        let _ = transport::write(&mut writing, &[TAKEN]).await;
        Ok(())
    }

    /// The place for a state, if it is free for this attempt.
    async fn take_place(&self, attempt: Attempt) -> Option<Rc<Reception>> {
        loop {
            let earlier = match &*self.place.borrow() {
                Place::Free => None,
                Place::Coming(earlier) if attempt.replaces(&earlier.attempt, self.stands_still(earlier)) => {
                    Some(Rc::clone(earlier))
                }
                Place::Coming(_) | Place::Whole => return None,
            };
            let Some(earlier) = earlier else {
                let (replaced, over) = (Latch::default(), Latch::default());
                let waits_since = Cell::default();
                let reception = Rc::new(Reception { attempt, waits_since, replaced, over });
                *self.place.borrow_mut() = Place::Coming(Rc::clone(&reception));
                return Some(reception);
            };
            earlier.replaced.set();
            let over = async {
                earlier.over.wait().await;
                Ok(())
            };
            // Its last job may wait for a slow disk; the sender tries again.
            transport::within(limits::PEER_HELLO_DEADLINE, "", over).await.ok()?;
        }
    }

    /// No part of it has come for a while, and its sender may not lead any more.
    fn stands_still(&self, reception: &Reception) -> bool {
        let waited = reception.waits_since.get().map_or(0, |since| self.clock.milliseconds() - since);
        Duration::from_millis(waited) >= limits::STATE_STILL_TIME
    }

    async fn receive_state(
        &self,
        reception: &Reception,
        taken: Latch,
        bytes: u64,
        mut incoming: Incoming<impl AsyncRead + Unpin>,
        writing: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<Box<ReceivedState>> {
        let (began, files) = (Ticker::new(), self.files.clone());
        let beginning = glommio::executor().spawn_blocking(move || receiving::begin(&files, bytes));
        let builder = match receiving::while_living(writing, beginning).await {
            Ok(builder) => builder,
            Err(error) => {
                let _ = transport::write(writing, &[NO_ROOM]).await;
                return Err(error);
            }
        };
        transport::write(writing, &[READY]).await?;
        let ends = [reception.replaced.clone(), taken];
        let (parts, waiting) = local_channel::new_bounded(limits::STATE_PARTS_WAITING_MAX);
        let reading = receiving::read_all(&mut incoming, &ends, &parts);
        let waits = |waits: bool| reception.waits_since.set(waits.then(|| self.clock.milliseconds()));
        let taking_in = async {
            let adding = receiving::add_all(builder, &waiting, &self.files, waits);
            let builder = futures_lite::future::or(adding, reading).await?;
            let come = began.microseconds();
            // From now on no other attempt is better: this state is only to be opened.
            *self.place.borrow_mut() = Place::Whole;
            let files = self.files.clone();
            let finishing = move || receiving::finish(builder, &files);
            let finished = glommio::executor().spawn_blocking(finishing).await?;
            Ok::<_, io::Error>((finished, come))
        };
        let ((state, synced_for), come) = receiving::while_living(writing, taking_in).await?;
        let milliseconds = |of: u64| format!("{} ms", of / 1_000);
        let took = began.microseconds();
        let fields = json!({
            "index": state.applied().index, "took": milliseconds(took), "receiving": milliseconds(come),
            "syncing": milliseconds(synced_for), "opening": milliseconds(took - come - synced_for),
        });
        log::info("received a state", fields);
        Ok(state)
    }

    /// Removes a received state; another one may be received then.
    pub fn discard(self: &Rc<Self>, state: Box<ReceivedState>) {
        let own = Rc::clone(self);
        glommio::spawn_local(async move {
            glommio::executor().spawn_blocking(move || drop(state)).await;
            own.remove_files().await;
            *own.place.borrow_mut() = Place::Free;
        })
        .detach();
    }

    /// Removes what there is of a state that is not needed: it takes room on the disk.
    async fn remove_files(&self) {
        let files = self.files.clone();
        if let Err(error) = glommio::executor().spawn_blocking(move || files.forget()).await {
            log::warn("cannot remove a received state", json!({"error": error.to_string()}));
        }
    }

    /// The state that was received last is in its place: another one may be received.
    pub fn installed(&self) {
        *self.place.borrow_mut() = Place::Free;
    }
}

/// The pause behind a part of a state while the log grows, that is, while others are served: it
/// keeps the pace, and others get as much time as was read. Microseconds for which the part was
/// read, and which it took in all, that of waiting for the receiver among it.
fn pause_behind(bytes: usize, read: u64, took: u64) -> Duration {
    let pace = bytes as u64 * 1_000_000 / limits::STATE_BYTES_PER_SECOND;
    let pause = pace.max(2 * read).saturating_sub(took);
    Duration::from_micros(pause).min(limits::STATE_PAUSE_MAX)
}

/// A part of a state that is sent.
struct StatePart {
    /// The parts behind it.
    stream: StateStream,
    /// Chunks in frames; none at the end.
    bytes: Vec<u8>,
    /// Microseconds for which it was read.
    read: u64,
}

/// Begins to read the next part on a helper thread, into memory that was used before.
fn read_ahead(stream: StateStream, spare: Vec<u8>) -> Task<revd_engine::Result<StatePart>> {
    glommio::spawn_local(glommio::executor().spawn_blocking(move || read_part(stream, spare)))
}

fn read_part(mut stream: StateStream, mut bytes: Vec<u8>) -> revd_engine::Result<StatePart> {
    let began = Ticker::new();
    while bytes.len() < limits::STATE_READ_BYTES {
        let start = frame::begin(&mut bytes);
        if !stream.append_chunk(&mut bytes)? {
            bytes.truncate(start);
            break;
        }
        frame::finish(&mut bytes, start);
    }
    Ok(StatePart { stream, bytes, read: began.microseconds() })
}

fn append_frame(bytes: &mut Vec<u8>, payload: &[u8]) {
    let start = frame::begin(bytes);
    bytes.extend_from_slice(payload);
    frame::finish(bytes, start);
}

/// Waits for the end of a job, and shows the listener meanwhile that this member lives.
async fn while_pulsing<T>(to: &mut (impl AsyncWrite + Unpin), job: impl Future<Output = T>) -> io::Result<T> {
    let (mut job, mut pulse) = (pin!(job), Vec::new());
    append_frame(&mut pulse, &[]);
    loop {
        let done = async { Some((&mut job).await) };
        let late = async {
            sleep(limits::PEER_PULSE_INTERVAL).await;
            None
        };
        match futures_lite::future::or(done, late).await {
            Some(result) => return Ok(result),
            None => transport::write(to, &pulse).await?,
        }
    }
}

/// Waits for a word of the listener, as long as it lives.
async fn hear(stream: &mut (impl AsyncRead + Unpin), awaited: u8) -> io::Result<()> {
    let silence = Silence::default();
    let hearing = async {
        let mut words = [0; 64];
        loop {
            let read = stream.read(&mut words).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            silence.broken();
            for word in &words[..read] {
                match *word {
                    word if word == awaited => return Ok(()),
                    word if word == PULSE[0] => {}
                    BUSY => return Err(io::Error::other("it has another state, or another one comes")),
                    NO_ROOM => return Err(io::Error::other("it has no room for the state")),
                    word => return Err(io::Error::other(format!("it says {word:#04x}"))),
                }
            }
            give_way().await;
        }
    };
    futures_lite::future::or(hearing, async { Err(silence.watch(|| {}).await) }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_pace_and_leaves_others_half_of_the_time() {
        let bytes = usize::try_from(limits::STATE_BYTES_PER_SECOND / 8).unwrap();
        let pause = |read, written| pause_behind(bytes, read, written).as_micros();
        assert_eq!(pause(0, 0), 125_000, "the pace");
        assert_eq!(pause(20_000, 30_000), 95_000, "the time that the part has taken is in it");
        assert_eq!(pause(20_000, 500_000), 0, "the receiver was waited for longer");
        assert_eq!(pause(90_000, 100_000), 80_000, "as long as was read, nothing is read");
        assert_eq!(pause(60_000_000, 60_000_000), limits::STATE_PAUSE_MAX.as_micros());
    }
}
