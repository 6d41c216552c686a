//! Connections to and from other members: what `server/src/peer/{dial,accept,pulse}.rs` carry out
//! in production, over hello, frames and codec as they ship.

use std::collections::BTreeMap;
use std::time::Duration;

use revd_member::cluster::Identity;
use revd_member::cluster::version::ClusterVersion;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::frame::FrameReader;
use revd_member::peer::hello::{self, Answer, Hello, HelloError, PROTOCOL, Purpose, Refusal};
use revd_member::peer::{Peer, PeerMessage, Sender, codec, frame};
use revd_member::schema;

use crate::marks::Mark;
use crate::member::common::Common;
use crate::network::{ConnectionId, Side, member_at, url};
use crate::outside::{Outside, Timer};
use crate::time::{Micros, SECOND};

const DIAL_PAUSE_MIN: Duration = Duration::from_millis(50);
const DIAL_PAUSE_MAX: Duration = Duration::from_secs(1);
pub(super) const HELLO_DEADLINE: Duration = Duration::from_secs(5);
pub(super) const PULSE_INTERVAL: Duration = Duration::from_secs(1);
pub(super) const SILENT_PULSES_MAX: u32 = 5;
/// Members that are not known here and are dialed.
const GUESTS_MAX: usize = 8;
/// Time in which the state of a member comes to say that another one was removed.
const MISSING_TIME: Micros = 5 * SECOND;
/// Bytes by which a listener shows that it lives.
pub(super) const PULSE: u8 = b'.';
/// The version that members tell each other.
const VERSION: &str = "3.7.0";

/// The other members, and the connections of messages to and from them.
pub(super) struct Peers {
    dialers: BTreeMap<u64, Dialer>,
    by_connection: BTreeMap<ConnectionId, u64>,
    incoming: BTreeMap<ConnectionId, Incoming>,
    /// Of each member, the connection on which it sends.
    current: BTreeMap<u64, ConnectionId>,
    /// Members that are none any more in the log, and perhaps not yet in the state; and since when,
    /// by the process's clock.
    dropped: BTreeMap<u64, Micros>,
}

/// The way to one other member.
struct Dialer {
    /// By its row; none of a guest.
    urls: Vec<String>,
    /// As the member itself says, on a connection that it holds open.
    named: Vec<String>,
    /// It is no member as far as this one knows.
    is_guest: bool,
    version: Option<ClusterVersion>,
    next_url: usize,
    /// The URL of the newest attempt.
    dialed: String,
    state: Dialing,
    pause: Duration,
    /// Since when there is a connection, by the process's clock.
    opened: Micros,
    silent: u32,
    has_sent: bool,
    /// Attempts so far: a timer of an earlier one counts for nothing.
    attempt: u64,
}

enum Dialing {
    Waiting,
    Greeting(ConnectionId, Vec<u8>),
    Open(ConnectionId),
}

/// A connection that another member has opened.
#[derive(Default)]
struct Incoming {
    words: Vec<u8>,
    from: Option<u64>,
    reader: FrameReader,
    silent: u32,
}

/// First words, after more bytes.
pub(super) enum Words {
    Unfinished,
    /// With what came behind them.
    Whole(Vec<u8>),
    Foreign,
}

/// It was a member once, and is none any more.
fn is_removed(member: u64, common: &Common) -> bool {
    schema::removed_members(common.views.load().tables()).any(|removed| removed == member)
}

/// Adds bytes to first words, and no byte behind them.
pub(super) fn add_words(words: &mut Vec<u8>, bytes: &[u8]) -> Words {
    let mut rest = bytes;
    loop {
        match hello::missing(words) {
            Ok(0) => return Words::Whole(rest.to_vec()),
            Err(HelloError::Foreign) => return Words::Foreign,
            Err(_) => return Words::Whole(rest.to_vec()),
            Ok(_) if rest.is_empty() => return Words::Unfinished,
            Ok(missing) => {
                let (now, later) = rest.split_at(missing.min(rest.len()));
                words.extend_from_slice(now);
                rest = later;
            }
        }
    }
}

/// The dialer's first words.
pub(super) fn hello_to(to: u64, purpose: Purpose, common: &Common) -> Vec<u8> {
    let (urls, version) = (vec![url(common.member)], VERSION.to_owned());
    Hello { purpose, from: common.identity, to, boot: common.boot, urls, version }.encode()
}

/// The dialer's judgement of the listener's answer.
pub(super) fn judge_answer(words: &[u8], to: u64, own: Identity) -> Result<Answer, Option<Refusal>> {
    let answer = Answer::decode(words).map_err(|_| None)?;
    let meant = Identity { cluster: own.cluster, member: to };
    match answer.refusal {
        Some(Refusal::Removed) if answer.from != meant => Err(Some(Refusal::Member)),
        Some(refusal) => Err(Some(refusal)),
        None if answer.from != meant => Err(Some(Refusal::Member)),
        None => Ok(answer),
    }
}

impl Dialer {
    fn new(urls: Vec<String>, named: Vec<String>) -> Self {
        Self {
            is_guest: urls.is_empty(),
            urls,
            named,
            version: None,
            next_url: 0,
            dialed: String::new(),
            state: Dialing::Waiting,
            pause: DIAL_PAUSE_MIN,
            opened: 0,
            silent: 0,
            has_sent: false,
            attempt: 0,
        }
    }

    /// Where to dial the member: first where its row says.
    fn ways(&self) -> Vec<String> {
        let named = self.named.iter().filter(|url| !self.urls.contains(url));
        self.urls.iter().chain(named).cloned().collect()
    }

    fn connection(&self) -> Option<ConnectionId> {
        match self.state {
            Dialing::Waiting => None,
            Dialing::Greeting(connection, _) | Dialing::Open(connection) => Some(connection),
        }
    }
}

impl Peers {
    pub(super) fn new() -> Self {
        Self {
            dialers: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            incoming: BTreeMap::new(),
            current: BTreeMap::new(),
            dropped: BTreeMap::new(),
        }
    }

    /// Where a member listens; none if it is none of the others, and no guest.
    pub(super) fn urls(&self, id: u64) -> Option<Vec<String>> {
        self.dialers.get(&id).map(Dialer::ways)
    }

    /// A member by the log, as far as it is known here.
    fn is_known(&self, id: u64) -> bool {
        self.dialers.get(&id).is_some_and(|dialer| !dialer.is_guest)
    }

    /// The other members are these from now on.
    pub(super) fn set_peers(&mut self, peers: Vec<Peer>, common: &mut Common, out: &mut Outside) {
        let own = common.identity.member;
        let peers: BTreeMap<u64, Vec<String>> =
            peers.into_iter().filter(|peer| peer.id != own).map(|peer| (peer.id, peer.urls)).collect();
        let is_gone = |(id, dialer): &(&u64, &Dialer)| !dialer.is_guest && !peers.contains_key(id);
        let gone: Vec<u64> = self.dialers.iter().filter(is_gone).map(|(id, _)| *id).collect();
        for id in gone {
            self.dropped.insert(id, common.clock.at(out.now()));
            if let Some(connection) = self.current.remove(&id) {
                self.incoming.remove(&connection);
                out.close(connection, Side::Listener);
            }
            self.dial_no_more(id, common, out);
        }
        for (id, urls) in peers {
            self.dropped.remove(&id);
            let Some(dialer) = self.dialers.get_mut(&id) else {
                self.dialers.insert(id, Dialer::new(urls, Vec::new()));
                self.dial(id, 0, common, out);
                continue;
            };
            if std::mem::take(&mut dialer.is_guest)
                && let Some(version) = dialer.version
            {
                common.log_event(LogEvent::PeerVersion(id, version), out);
            }
            if dialer.urls != urls {
                dialer.urls = urls;
                self.hint(id, common, out);
            }
        }
    }

    /// It is no member any more, or a guest that has left.
    fn dial_no_more(&mut self, id: u64, common: &mut Common, out: &mut Outside) {
        let Some(dialer) = self.dialers.remove(&id) else { return };
        if let Some(connection) = dialer.connection() {
            self.by_connection.remove(&connection);
            out.close(connection, Side::Dialer);
        }
        if matches!(dialer.state, Dialing::Open(_)) {
            common.log_event(LogEvent::PeerLost(id), out);
        }
    }

    /// The member is likely to be there: it need not be waited for.
    fn hint(&mut self, id: u64, common: &Common, out: &mut Outside) {
        let Some(dialer) = self.dialers.get_mut(&id) else { return };
        if matches!(dialer.state, Dialing::Waiting) {
            dialer.attempt += 1;
            common.timer(DIAL_PAUSE_MIN, Timer::Dial(id, dialer.attempt), out);
        }
    }

    /// Dials a member, unless a later attempt has taken the place of this one.
    pub(super) fn dial(&mut self, id: u64, attempt: u64, common: &Common, out: &mut Outside) {
        let Some(dialer) = self.dialers.get_mut(&id) else { return };
        if dialer.attempt != attempt || !matches!(dialer.state, Dialing::Waiting) {
            return;
        }
        let ways = dialer.ways();
        let Some(way) = ways.get(dialer.next_url % ways.len().max(1)) else { return };
        dialer.next_url = (dialer.next_url + 1) % ways.len();
        let Some(to) = member_at(way) else { return };
        dialer.dialed.clone_from(way);
        let connection = out.network.dial((common.member, common.boot), to);
        out.send(connection, Side::Dialer, hello_to(id, Purpose::Messages, common));
        common.timer(HELLO_DEADLINE, Timer::Late(connection), out);
        dialer.state = Dialing::Greeting(connection, Vec::new());
        dialer.silent = 0;
        self.by_connection.insert(connection, id);
    }

    /// Ends the connection to a member, and dials again later.
    fn lose(&mut self, id: u64, common: &mut Common, out: &mut Outside) {
        let now = common.clock.at(out.now());
        let Some(dialer) = self.dialers.get_mut(&id) else { return };
        let Some(connection) = dialer.connection() else { return };
        self.by_connection.remove(&connection);
        out.close(connection, Side::Dialer);
        let was_open = matches!(dialer.state, Dialing::Open(_));
        dialer.state = Dialing::Waiting;
        if was_open && now - dialer.opened >= 1_000_000 {
            dialer.pause = DIAL_PAUSE_MIN;
        }
        dialer.attempt += 1;
        common.timer(DIAL_PAUSE_MIN + dialer.pause, Timer::Dial(id, dialer.attempt), out);
        dialer.pause = (dialer.pause * 2).min(DIAL_PAUSE_MAX);
        if was_open {
            common.log_event(LogEvent::PeerLost(id), out);
        }
    }

    /// Sends messages to a member; without a connection they are dropped.
    pub(super) fn send(&mut self, to: u64, messages: &[PeerMessage], common: &mut Common, out: &mut Outside) {
        let is_full = out.drops_messages();
        let dialer = self.dialers.get_mut(&to);
        let open = dialer.and_then(|dialer| match dialer.state {
            Dialing::Open(connection) if !is_full => {
                dialer.has_sent = true;
                Some(connection)
            }
            _ => None,
        });
        if let Some(connection) = open {
            let mut bytes = Vec::new();
            codec::encode(messages, &mut bytes);
            out.send(connection, Side::Dialer, bytes);
        } else if !messages.iter().all(PeerMessage::is_repeated) {
            self.tell_lost(to, common, out);
        }
    }

    /// Something from or to this member may be lost, although it can be reached.
    fn tell_lost(&self, peer: u64, common: &mut Common, out: &mut Outside) {
        common.log_event(LogEvent::PeerLost(peer), out);
        if self.dialers.get(&peer).is_some_and(|dialer| matches!(dialer.state, Dialing::Open(_))) {
            common.log_event(LogEvent::PeerConnected(peer), out);
        }
    }

    /// Bytes for the dialer of a connection of messages: answers and pulses; whether it was one.
    pub(super) fn heard_back(
        &mut self,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
        common: &mut Common,
        out: &mut Outside,
    ) -> bool {
        let Some(id) = self.by_connection.get(&connection).copied() else { return false };
        let dialer = self.dialers.get_mut(&id).expect("its connection is known");
        let Some(bytes) = bytes else {
            self.lose(id, common, out);
            return true;
        };
        dialer.silent = 0;
        let Dialing::Greeting(_, words) = &mut dialer.state else { return true };
        match add_words(words, bytes) {
            Words::Unfinished => {}
            Words::Foreign => self.lose(id, common, out),
            Words::Whole(_) => match judge_answer(words, id, common.identity) {
                Ok(answer) => {
                    dialer.state = Dialing::Open(connection);
                    dialer.opened = common.clock.at(out.now());
                    dialer.version = ClusterVersion::parse(&answer.version);
                    if dialer.is_guest {
                        out.marks.reach(Mark::GuestDialed);
                    } else if let Some(version) = dialer.version {
                        common.log_event(LogEvent::PeerVersion(id, version), out);
                    }
                    common.log_event(LogEvent::PeerConnected(id), out);
                }
                Err(refusal) => {
                    out.marks.reach(Mark::Refused);
                    // Any program can say that it listens somewhere.
                    let is_agreed = dialer.urls.contains(&dialer.dialed);
                    if refusal == Some(Refusal::Removed) && is_agreed {
                        common.log_event(LogEvent::SentAway { by: id }, out);
                    }
                    self.lose(id, common, out);
                }
            },
        }
        true
    }

    /// Bytes for the listener of a connection; a connection for a state is returned with the
    /// member that sends it, and what came behind its hello.
    pub(super) fn heard(
        &mut self,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
        common: &mut Common,
        out: &mut Outside,
    ) -> Option<(u64, Vec<u8>)> {
        let Some(bytes) = bytes else {
            self.end_incoming(connection, common, out);
            return None;
        };
        let incoming = self.incoming.entry(connection).or_default();
        incoming.silent = 0;
        if incoming.from.is_some() {
            self.read(connection, bytes, common, out);
            return None;
        }
        let rest = match add_words(&mut incoming.words, bytes) {
            Words::Unfinished => return None,
            Words::Foreign => {
                self.refuse(connection, out);
                return None;
            }
            Words::Whole(rest) => rest,
        };
        let words = std::mem::take(&mut incoming.words);
        let hello = self.greet(connection, &words, common, out)?;
        let from = hello.from.member;
        if hello.purpose == Purpose::Snapshot {
            self.incoming.remove(&connection);
            return Some((from, rest));
        }
        if self.has_place(from) {
            self.take_incoming(connection, from, hello.urls, common, out);
            self.read(connection, &rest, common, out);
        } else {
            self.refuse(connection, out);
        }
        None
    }

    /// Agrees with the dialer on what follows, or refuses.
    fn greet(
        &mut self,
        connection: ConnectionId,
        words: &[u8],
        common: &Common,
        out: &mut Outside,
    ) -> Option<Hello> {
        let judged = match Hello::decode(words) {
            Ok(hello) => match hello.judge(common.identity) {
                Ok(()) if is_removed(hello.from.member, common) => Err(Refusal::Removed),
                Ok(()) => Ok(hello),
                Err(refusal) => Err(refusal),
            },
            Err(HelloError::Protocol(_)) => Err(Refusal::Protocol),
            Err(_) => {
                out.marks.reach(Mark::BadBytes);
                self.refuse(connection, out);
                return None;
            }
        };
        let now = common.clock.at(out.now());
        let is_dropped =
            |id: u64| self.dropped.get(&id).is_some_and(|since| now.saturating_sub(*since) < MISSING_TIME);
        if judged.as_ref().is_ok_and(|hello| is_dropped(hello.from.member)) {
            self.refuse(connection, out);
            return None;
        }
        let answer = Answer {
            refusal: judged.as_ref().err().copied(),
            protocol: PROTOCOL,
            from: common.identity,
            boot: common.boot,
            version: VERSION.to_owned(),
        };
        out.send(connection, Side::Listener, answer.encode());
        if judged.is_err() {
            self.refuse(connection, out);
        }
        judged.ok()
    }

    fn refuse(&mut self, connection: ConnectionId, out: &mut Outside) {
        self.incoming.remove(&connection);
        out.close(connection, Side::Listener);
    }

    /// The member sends on this connection from now on, and no more on an earlier one.
    fn take_incoming(
        &mut self,
        connection: ConnectionId,
        from: u64,
        named: Vec<String>,
        common: &mut Common,
        out: &mut Outside,
    ) {
        if let Some(earlier) = self.current.insert(from, connection) {
            out.marks.reach(Mark::DialedAgain);
            self.incoming.remove(&earlier);
            out.close(earlier, Side::Listener);
            self.tell_lost(from, common, out);
        }
        if let Some(incoming) = self.incoming.get_mut(&connection) {
            incoming.from = Some(from);
        }
        // A guest is dialed back for as long as it holds this connection.
        if let Some(dialer) = self.dialers.get_mut(&from) {
            dialer.named = named;
        } else if !named.is_empty() {
            self.dialers.insert(from, Dialer::new(Vec::new(), named));
            self.dial(from, 0, common, out);
        }
        self.hint(from, common, out);
    }

    /// Of members that are not known here few are dialed back; one more is sent away.
    fn has_place(&self, from: u64) -> bool {
        let guests = self.dialers.values().filter(|dialer| dialer.is_guest).count();
        self.dialers.contains_key(&from) || guests < GUESTS_MAX
    }

    /// A member says no more where it listens.
    fn names_no_more(&mut self, from: u64, common: &mut Common, out: &mut Outside) {
        if self.is_known(from) {
            self.dialers.entry(from).and_modify(|dialer| dialer.named.clear());
        } else {
            self.dial_no_more(from, common, out);
        }
    }

    /// Reads messages and hands them on.
    fn read(&mut self, connection: ConnectionId, bytes: &[u8], common: &mut Common, out: &mut Outside) {
        let Some(incoming) = self.incoming.get_mut(&connection) else { return };
        let sender = Sender { from: incoming.from.expect("it has said so"), to: common.identity.member };
        let mut rest = bytes;
        while !rest.is_empty() {
            let Ok(taken) = incoming.reader.take(&mut rest) else {
                out.marks.reach(Mark::BadBytes);
                self.end_incoming(connection, common, out);
                return;
            };
            let Some(payload) = taken.filter(|payload| !payload.is_empty()) else { continue };
            let Ok(messages) = codec::decode(payload, sender) else {
                out.marks.reach(Mark::BadBytes);
                self.end_incoming(connection, common, out);
                return;
            };
            for message in messages {
                common.log_event(LogEvent::Peer { from: sender.from, message }, out);
            }
        }
    }

    /// A connection of messages that another member has opened is over.
    fn end_incoming(&mut self, connection: ConnectionId, common: &mut Common, out: &mut Outside) {
        let Some(incoming) = self.incoming.remove(&connection) else { return };
        out.close(connection, Side::Listener);
        let Some(from) = incoming.from else { return };
        if self.current.get(&from) == Some(&connection) {
            self.current.remove(&from);
            self.tell_lost(from, common, out);
            self.names_no_more(from, common, out);
        }
    }

    /// First words are late.
    pub(super) fn late(&mut self, connection: ConnectionId, common: &mut Common, out: &mut Outside) {
        let Some(id) = self.by_connection.get(&connection).copied() else { return };
        let greets = |dialer: &Dialer| matches!(dialer.state, Dialing::Greeting(at, _) if at == connection);
        if self.dialers.get(&id).is_some_and(greets) {
            self.lose(id, common, out);
        }
    }

    /// Once a second: both ends show that they live, and silent ones are given up.
    pub(super) fn pulse(&mut self, common: &mut Common, out: &mut Outside) {
        let mut silent = Vec::new();
        for (id, dialer) in &mut self.dialers {
            let Dialing::Open(connection) = dialer.state else { continue };
            dialer.silent += 1;
            if dialer.silent > SILENT_PULSES_MAX {
                silent.push(*id);
            } else if !std::mem::take(&mut dialer.has_sent) {
                let mut bytes = Vec::new();
                let start = frame::begin(&mut bytes);
                frame::finish(&mut bytes, start);
                out.send(connection, Side::Dialer, bytes);
            }
        }
        for id in silent {
            out.marks.reach(Mark::Silent);
            self.lose(id, common, out);
        }
        // One that was never known here is in no list that changes.
        let is_former = |id: &u64| !self.is_known(*id) && is_removed(*id, common);
        let former = self.current.iter().filter(|(id, _)| is_former(id));
        let mut silent: Vec<ConnectionId> = Vec::new();
        for connection in former.map(|(_, connection)| *connection).collect::<Vec<_>>() {
            self.end_incoming(connection, common, out);
        }
        for (connection, incoming) in &mut self.incoming {
            incoming.silent += 1;
            if incoming.silent > SILENT_PULSES_MAX {
                silent.push(*connection);
            } else if incoming.from.is_some() {
                out.send(*connection, Side::Listener, vec![PULSE]);
            }
        }
        for connection in silent {
            out.marks.reach(Mark::Silent);
            self.end_incoming(connection, common, out);
        }
    }

    /// The connections, for a failure's message.
    pub(super) fn inside(&self) -> String {
        let to = self.dialers.iter().map(|(id, dialer)| {
            let how = match dialer.state {
                Dialing::Waiting => "waits".to_owned(),
                Dialing::Greeting(connection, _) => format!("greets on {}", connection.0),
                Dialing::Open(connection) => format!("open on {}", connection.0),
            };
            format!("to {id:x} {how}")
        });
        let from = self.current.iter().map(|(id, connection)| format!("from {id:x} on {}", connection.0));
        to.chain(from).collect::<Vec<String>>().join(", ")
    }

    /// Ends all connections.
    pub(super) fn stop(&mut self, common: &Common, out: &mut Outside) {
        out.network.process_ended(common.member, &mut out.random, &mut out.agenda);
        self.dialers.clear();
        self.incoming.clear();
        self.by_connection.clear();
        self.current.clear();
    }
}
