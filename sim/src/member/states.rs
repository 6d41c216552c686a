//! A state on its way between two members: what `server/src/peer/{states,receiving}.rs` carry out
//! in production, on a connection of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use revd_engine::db::DbOptions;
use revd_engine::limits::TRANSFER_CHUNK_BYTES;
use revd_engine::mvcc::{SavedState, Store, StoreBuilder};
use revd_engine::transfer::StateStream;
use revd_member::apply::received::ReceivedState;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::attempt::Attempt;
use revd_member::peer::frame::{self, FrameReader};
use revd_member::peer::hello::Purpose;

use crate::disk::Directory;
use crate::marks::Mark;
use crate::member::common::{Common, JobEnd, StateJob};
use crate::member::peers::{
    HELLO_DEADLINE, PULSE, SILENT_PULSES_MAX, Words, add_words, hello_to, judge_answer,
};
use crate::network::{ConnectionId, Side, member_at};
use crate::outside::{Outside, Timer};
use crate::time::{Micros, SECOND};

const READY: u8 = b'+';
const BUSY: u8 = b'-';
const NO_ROOM: u8 = b'0';
const TAKEN: u8 = b'!';
/// Bytes of a state that are read at once; less than in production, so that small states have more
/// than one part.
const READ_BYTES: usize = 16 * 1024;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const STILL_TIME: Micros = 5 * SECOND;

/// States on their way to other members, and the one that another member sends.
#[derive(Default)]
pub(super) struct States {
    sending: BTreeMap<ConnectionId, Sending>,
    incoming: BTreeMap<ConnectionId, Incoming>,
    place: Place,
}

struct Sending {
    to: u64,
    term: u64,
    state: SavedState,
    words: Vec<u8>,
    phase: Phase,
    silent: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Greeting,
    Announced,
    Sending,
}

/// A connection on which a state comes.
struct Incoming {
    from: u64,
    reader: FrameReader,
    term: u64,
    silent: u32,
    chunks: Vec<Bytes>,
    /// None while a job has it.
    builder: Option<Box<StoreBuilder>>,
    has_job: bool,
    /// The connection is over, or its state has lost its place; the job under way is the last.
    is_over: bool,
    /// When its last part came, by the process's clock.
    heard: Micros,
}

/// The place of the one state that is received at a time.
#[derive(Default)]
enum Place {
    #[default]
    Free,
    Coming(ConnectionId, Attempt),
    Whole,
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let start = frame::begin(&mut bytes);
    bytes.extend_from_slice(payload);
    frame::finish(&mut bytes, start);
    bytes
}

/// None when a page of the state is damaged.
fn read_chunks(mut stream: StateStream) -> Option<(StateStream, Vec<u8>)> {
    let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
    while bytes.len() < READ_BYTES && stream.next_chunk(&mut chunk).ok()? {
        bytes.extend(framed(&chunk));
    }
    Some((stream, bytes))
}

fn begin(directory: &Directory, bytes: u64) -> Result<Box<StoreBuilder>, String> {
    directory.forget_received()?;
    let disk = directory.begin_receiving(bytes)?;
    StoreBuilder::new(disk).map(Box::new).map_err(|error| error.to_string())
}

fn add(
    mut builder: Box<StoreBuilder>,
    chunks: &[Bytes],
    directory: &Directory,
) -> Result<Box<StoreBuilder>, String> {
    if !directory.has_room(0) {
        return Err("no room".to_owned());
    }
    chunks.iter().try_for_each(|chunk| builder.add(chunk)).map_err(|error| error.to_string())?;
    Ok(builder)
}

fn finish(builder: StoreBuilder, directory: &Directory) -> Result<Box<ReceivedState>, String> {
    builder.finish().map_err(|error| error.to_string())?;
    directory.keep_received()?;
    let disk = directory.received()?;
    let store = Store::open(Arc::clone(&disk), DbOptions::default()).map_err(|error| error.to_string())?;
    ReceivedState::load(store).map(Box::new).map_err(|error| error.to_string())
}

impl States {
    /// Parts of a state are still to come.
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.place, Place::Coming(..))
    }

    /// Sends a state to a member, in the name of the leader of a term.
    pub(super) fn send(
        &mut self,
        (to, term): (u64, u64),
        urls: &[String],
        state: Option<SavedState>,
        common: &mut Common,
        out: &mut Outside,
    ) {
        let at = urls.first().and_then(|url| member_at(url));
        let (Some(state), Some(at)) = (state, at) else {
            return common.timer(RETRY_INTERVAL, Timer::Resend(to), out);
        };
        let connection = out.network.dial((common.member, common.boot), at);
        out.send(connection, Side::Dialer, hello_to(to, Purpose::Snapshot, common));
        common.timer(HELLO_DEADLINE, Timer::Late(connection), out);
        let sending = Sending { to, term, state, words: Vec::new(), phase: Phase::Greeting, silent: 0 };
        self.sending.insert(connection, sending);
    }

    fn give_up(&mut self, connection: ConnectionId, common: &Common, out: &mut Outside) {
        let Some(sending) = self.sending.remove(&connection) else { return };
        out.marks.reach(Mark::StateCutShort);
        out.close(connection, Side::Dialer);
        common.timer(RETRY_INTERVAL, Timer::Resend(sending.to), out);
    }

    /// First words are late.
    pub(super) fn late(&mut self, connection: ConnectionId, common: &Common, out: &mut Outside) {
        if self.sending.get(&connection).is_some_and(|sending| sending.phase == Phase::Greeting) {
            self.give_up(connection, common, out);
        }
    }

    /// Bytes for the dialer; whether the connection is one for a state.
    pub(super) fn heard_back(
        &mut self,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
        common: &mut Common,
        out: &mut Outside,
    ) -> bool {
        let Some(sending) = self.sending.get_mut(&connection) else { return false };
        let Some(bytes) = bytes else {
            self.give_up(connection, common, out);
            return true;
        };
        sending.silent = 0;
        let mut said = bytes.to_vec();
        if sending.phase == Phase::Greeting {
            said = match add_words(&mut sending.words, bytes) {
                Words::Unfinished => return true,
                Words::Foreign => Vec::new(),
                Words::Whole(rest) => rest,
            };
            if judge_answer(&sending.words, sending.to, common.identity).is_err() {
                self.give_up(connection, common, out);
                return true;
            }
            sending.phase = Phase::Announced;
            let mut announcement = Vec::new();
            announcement.put_u64_le(sending.term);
            announcement.put_u64_le(sending.state.bytes());
            out.send(connection, Side::Dialer, framed(&announcement));
        }
        for word in said {
            let Some(sending) = self.sending.get_mut(&connection) else { return true };
            match (word, sending.phase) {
                (PULSE, _) => {}
                (READY, Phase::Announced) => {
                    sending.phase = Phase::Sending;
                    let stream = sending.state.stream();
                    Self::read_more(connection, stream, common, out);
                }
                (TAKEN, Phase::Sending) => {
                    let to = sending.to;
                    self.sending.remove(&connection);
                    out.close(connection, Side::Dialer);
                    common.log_event(LogEvent::StateSent { to, is_there: true }, out);
                }
                _ => self.give_up(connection, common, out),
            }
        }
        true
    }

    fn read_more(connection: ConnectionId, stream: StateStream, common: &mut Common, out: &mut Outside) {
        let read = || JobEnd::State(StateJob::Read(connection, read_chunks(stream).map(Box::new)));
        common.spawn(read, out);
    }

    /// Another member has opened a connection for a state.
    pub(super) fn accept(
        &mut self,
        connection: ConnectionId,
        from: u64,
        rest: &[u8],
        common: &mut Common,
        out: &mut Outside,
    ) {
        let incoming = Incoming {
            from,
            reader: FrameReader::new(TRANSFER_CHUNK_BYTES),
            term: 0,
            silent: 0,
            chunks: Vec::new(),
            builder: None,
            has_job: false,
            is_over: false,
            heard: common.clock.at(out.now()),
        };
        self.incoming.insert(connection, incoming);
        if !rest.is_empty() {
            self.heard(connection, Some(rest), common, out);
        }
    }

    /// Bytes for the listener; whether the connection is one for a state.
    pub(super) fn heard(
        &mut self,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
        common: &mut Common,
        out: &mut Outside,
    ) -> bool {
        let Some(incoming) = self.incoming.get_mut(&connection) else { return false };
        let Some(bytes) = bytes else {
            self.end(connection, common, out);
            return true;
        };
        incoming.silent = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(incoming) = self.incoming.get_mut(&connection) else { return true };
            let Ok(taken) = incoming.reader.take(&mut rest) else {
                out.marks.reach(Mark::BadBytes);
                self.end(connection, common, out);
                return true;
            };
            let Some(payload) = taken.filter(|payload| !payload.is_empty()) else { continue };
            incoming.heard = common.clock.at(out.now());
            if incoming.term == 0 {
                self.announced(connection, &payload, common, out);
            } else {
                incoming.chunks.push(payload);
            }
        }
        self.go_on(connection, common, out);
        true
    }

    /// The sender says what comes; it is begun if its attempt is the one that counts.
    fn announced(&mut self, connection: ConnectionId, frame: &Bytes, common: &mut Common, out: &mut Outside) {
        let Some(incoming) = self.incoming.get_mut(&connection) else { return };
        if frame.len() != 16 {
            return self.end(connection, common, out);
        }
        let (term, bytes) = {
            let mut frame = frame.clone();
            (frame.get_u64_le(), frame.get_u64_le())
        };
        (incoming.term, incoming.has_job) = (term.max(1), true);
        let led_by = (common.status.term.load(), common.status.leader.load());
        let attempt = Attempt::new(incoming.from, term, led_by);
        let now = common.clock.at(out.now());
        let is_free = match &self.place {
            Place::Free => true,
            Place::Whole => false,
            Place::Coming(earlier, other) => self.incoming.get(earlier).is_none_or(|it| {
                // A job under way is its last; the sender tries again.
                let stands_still = now - it.heard >= STILL_TIME && !it.has_job;
                attempt.replaces(other, stands_still) && !it.has_job
            }),
        };
        if !is_free {
            out.send(connection, Side::Listener, vec![BUSY]);
            self.incoming.remove(&connection);
            return out.close(connection, Side::Listener);
        }
        if let Place::Coming(earlier, _) = self.place {
            self.incoming.remove(&earlier);
            out.close(earlier, Side::Listener);
        }
        self.place = Place::Coming(connection, attempt);
        let directory = common.directory.clone();
        common.spawn(|| JobEnd::State(StateJob::Begun(connection, begin(&directory, bytes))), out);
    }

    /// Adds the parts that have come.
    fn go_on(&mut self, connection: ConnectionId, common: &mut Common, out: &mut Outside) {
        let Some(incoming) = self.incoming.get_mut(&connection) else { return };
        if incoming.has_job || incoming.is_over {
            return;
        }
        let Some(builder) = incoming.builder.take_if(|it| it.is_whole() || !incoming.chunks.is_empty())
        else {
            return;
        };
        incoming.has_job = true;
        let (chunks, directory) = (std::mem::take(&mut incoming.chunks), common.directory.clone());
        if builder.is_whole() {
            self.place = Place::Whole;
            let done = || JobEnd::State(StateJob::Finished(connection, finish(*builder, &directory)));
            common.spawn(done, out);
        } else {
            let added = || JobEnd::State(StateJob::Added(connection, add(builder, &chunks, &directory)));
            common.spawn(added, out);
        }
    }

    /// The connection is over: parts of the state are removed, unless it is whole.
    fn end(&mut self, connection: ConnectionId, common: &mut Common, out: &mut Outside) {
        let Some(incoming) = self.incoming.get_mut(&connection) else { return };
        if incoming.has_job {
            incoming.is_over = true;
            return;
        }
        self.incoming.remove(&connection);
        out.close(connection, Side::Listener);
        if matches!(self.place, Place::Coming(coming, _) if coming == connection) {
            self.discard(common, out);
        }
    }

    /// A job on a state is done.
    pub(super) fn done(&mut self, job: StateJob, common: &mut Common, out: &mut Outside) {
        match job {
            StateJob::Read(connection, None) => self.give_up(connection, common, out),
            StateJob::Read(connection, Some(read)) => {
                let (stream, bytes) = *read;
                if bytes.is_empty() || !self.sending.contains_key(&connection) {
                    return; // the listener has the last word
                }
                out.send(connection, Side::Dialer, bytes);
                Self::read_more(connection, stream, common, out);
            }
            StateJob::Begun(connection, begun) => {
                if let Some(incoming) = self.incoming.get_mut(&connection) {
                    incoming.has_job = false;
                    match begun {
                        Ok(builder) => {
                            incoming.builder = Some(builder);
                            out.send(connection, Side::Listener, vec![READY]);
                        }
                        Err(_) => {
                            out.send(connection, Side::Listener, vec![NO_ROOM]);
                            incoming.is_over = true;
                        }
                    }
                }
                self.after_job(connection, common, out);
            }
            StateJob::Added(connection, added) => {
                if let Some(incoming) = self.incoming.get_mut(&connection) {
                    incoming.has_job = false;
                    incoming.is_over |= added.is_err();
                    incoming.builder = added.ok();
                }
                self.after_job(connection, common, out);
            }
            StateJob::Finished(connection, finished) => self.finished(connection, finished, common, out),
        }
    }

    fn after_job(&mut self, connection: ConnectionId, common: &mut Common, out: &mut Outside) {
        if self.incoming.get(&connection).is_some_and(|incoming| incoming.is_over) {
            self.end(connection, common, out);
        } else {
            self.go_on(connection, common, out);
        }
    }

    fn finished(
        &mut self,
        connection: ConnectionId,
        finished: Result<Box<ReceivedState>, String>,
        common: &mut Common,
        out: &mut Outside,
    ) {
        let incoming = self.incoming.remove(&connection).expect("it has a job");
        match finished {
            Ok(state) => {
                let (from, term) = (incoming.from, incoming.term);
                common.log_event(LogEvent::StateReceived { from, term, state }, out);
                out.send(connection, Side::Listener, vec![TAKEN]);
            }
            Err(_) => self.discard(common, out),
        }
        out.close(connection, Side::Listener);
    }

    /// A received state is of no use: another one may be received.
    pub(super) fn discard(&mut self, common: &mut Common, _out: &mut Outside) {
        // It fails with the disk, and another call says so.
        let _ = common.directory.forget_received();
        self.place = Place::Free;
    }

    /// The state that was received last is in its place.
    pub(super) fn installed(&mut self) {
        self.place = Place::Free;
    }

    /// Once a second: both ends show that they live, and silent ones are given up.
    pub(super) fn pulse(&mut self, common: &mut Common, out: &mut Outside) {
        let silent = |silent: &mut u32| {
            *silent += 1;
            *silent > SILENT_PULSES_MAX
        };
        let mut ended = Vec::new();
        for (connection, sending) in &mut self.sending {
            if silent(&mut sending.silent) {
                ended.push(*connection);
            } else if sending.phase == Phase::Sending {
                out.send(*connection, Side::Dialer, framed(&[]));
            }
        }
        ended.into_iter().for_each(|connection| self.give_up(connection, common, out));
        let mut ended = Vec::new();
        for (connection, incoming) in &mut self.incoming {
            if silent(&mut incoming.silent) {
                ended.push(*connection);
            } else if incoming.term > 0 {
                out.send(*connection, Side::Listener, vec![PULSE]);
            }
        }
        ended.into_iter().for_each(|connection| self.end(connection, common, out));
    }
}
