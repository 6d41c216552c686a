//! Links between members, which carry bytes in order, late, and up to where they break.
//!
//! A connection is dialed by one member and has two pipes. As with TCP, bytes that were sent are
//! lost only together with everything behind them: while a direction between two members is cut,
//! they wait, and arrive when it is whole again, unless the connection is given up before that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use revd_engine::random::Random;

use crate::time::{Agenda, Micros};

/// A connection, unique in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The URL at which a member begins to listen.
pub(crate) fn url(member: usize) -> String {
    format!("http://m{member}:2380")
}

/// The member at a URL: its number stands in the name of its host.
pub(crate) fn member_at(url: &str) -> Option<usize> {
    url.strip_prefix("http://m")?.split(':').next()?.parse().ok()
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The member that dialed.
    Dialer,
    /// The member that was dialed.
    Listener,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Listener,
            Self::Listener => Self::Dialer,
        }
    }
}

/// The next thing that reaches an end of a connection.
#[derive(Debug)]
pub struct Arrival {
    /// The connection.
    pub connection: ConnectionId,
    /// The end that is reached.
    pub at: Side,
    /// Bytes; none when the connection has ended.
    pub bytes: Option<Vec<u8>>,
}

/// A process that has an end of a connection: the member, and which start of it.
pub type Owner = (usize, u64);

#[derive(Debug)]
struct Connection {
    /// The dialer and the listener; the latter's start is none before it has accepted.
    dialer: Owner,
    listener: (usize, Option<u64>),
    to_dialer: Pipe,
    to_listener: Pipe,
}

#[derive(Debug, Default)]
struct Pipe {
    /// The time at which the bytes sent last arrive.
    last: Micros,
    /// Arrived at a cut, and waiting.
    held: VecDeque<Option<Vec<u8>>>,
    /// So many more bytes arrive, then the end.
    left: Option<usize>,
    is_over: bool,
}

/// How links are in one run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Links {
    /// The least time that bytes are on their way, and a random part on top of it.
    pub delay: Micros,
    /// See `delay`.
    pub jitter: Micros,
    /// One of so many messages is on its way for a hundred times as long; 0: none.
    pub late_one_in: u64,
    /// One of so many pieces of bytes has a bit flipped; 0: none.
    pub flip_one_in: u64,
}

/// Counts of what has happened to links.
#[derive(Debug, Default, Clone, Copy)]
pub struct LinkCounts {
    /// Bytes that have arrived.
    pub bytes: u64,
    /// Bits that were flipped.
    pub flips: u64,
    /// Connections that were broken.
    pub breaks: u64,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Network {
    links: Links,
    connections: BTreeMap<ConnectionId, Connection>,
    dialed: u64,
    /// From and to: nothing gets through.
    cuts: BTreeSet<(usize, usize)>,
    /// Everything from or to this member takes so much longer.
    slow: BTreeMap<usize, Micros>,
    /// The numbers of what has happened.
    pub counts: LinkCounts,
}

impl Network {
    /// Links that are like this.
    #[must_use]
    pub fn new(links: Links) -> Self {
        Self { links, ..Self::default() }
    }

    /// One of so many pieces of bytes has a bit flipped from now on; 0: none.
    pub fn flip_bits(&mut self, one_in: u64) {
        self.links.flip_one_in = one_in;
    }

    /// Begins a connection: the listener hears of it by its first bytes.
    pub fn dial(&mut self, from: Owner, to: usize) -> ConnectionId {
        self.dialed += 1;
        let id = ConnectionId(self.dialed);
        let (to_dialer, to_listener) = (Pipe::default(), Pipe::default());
        let connection = Connection { dialer: from, listener: (to, None), to_dialer, to_listener };
        self.connections.insert(id, connection);
        id
    }

    /// Sends bytes from this end to the other one; they may be lost with the connection.
    pub fn send<E: From<Arrival>>(
        &mut self,
        connection: ConnectionId,
        from: Side,
        bytes: Vec<u8>,
        random: &mut Random,
        agenda: &mut Agenda<E>,
    ) {
        self.put(connection, from, Some(bytes), random, agenda);
    }

    /// Ends a connection: the other end hears of it behind what was sent.
    pub fn close<E: From<Arrival>>(
        &mut self,
        connection: ConnectionId,
        from: Side,
        random: &mut Random,
        agenda: &mut Agenda<E>,
    ) {
        self.put(connection, from, None, random, agenda);
        if let Some(it) = self.connections.get_mut(&connection) {
            it.pipe(from).is_over = true; // nothing arrives at the end that has closed it
        }
    }

    fn put<E: From<Arrival>>(
        &mut self,
        id: ConnectionId,
        from: Side,
        bytes: Option<Vec<u8>>,
        random: &mut Random,
        agenda: &mut Agenda<E>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (links, at) = (self.links, from.other());
        let mut delay = links.delay + random.below(links.jitter + 1);
        if links.late_one_in > 0 && random.one_in(links.late_one_in) {
            delay *= 100;
        }
        let slow = |member: usize| self.slow.get(&member).copied().unwrap_or(0);
        delay += slow(connection.dialer.0) + slow(connection.listener.0);
        let pipe = connection.pipe(at);
        let arrives = (agenda.now() + delay).max(pipe.last);
        pipe.last = arrives;
        agenda.plan(arrives - agenda.now(), E::from(Arrival { connection: id, at, bytes }));
    }

    /// Something that was planned arrives: what the end gets of it, if it is not held or lost.
    pub fn arrive(&mut self, arrival: Arrival, random: &mut Random) -> Option<Arrival> {
        let Arrival { connection: id, at, bytes } = arrival;
        let is_cut = self.is_cut(id, at);
        let (links, counts) = (self.links, &mut self.counts);
        let pipe = self.connections.get_mut(&id)?.pipe(at);
        if pipe.is_over {
            return None;
        }
        let is_reminder = bytes.as_ref().is_some_and(Vec::is_empty);
        if !is_reminder {
            pipe.held.push_back(bytes);
        }
        if is_cut {
            return None;
        }
        let Some(mut bytes) = pipe.held.pop_front()? else {
            pipe.is_over = true;
            return Some(Arrival { connection: id, at, bytes: None });
        };
        if let Some(left) = &mut pipe.left {
            bytes.truncate(*left);
            *left -= bytes.len();
            if bytes.is_empty() {
                pipe.is_over = true;
                return Some(Arrival { connection: id, at, bytes: None });
            }
        }
        if links.flip_one_in > 0 && !bytes.is_empty() && random.one_in(links.flip_one_in) {
            let bit = random.below(bytes.len() as u64 * 8);
            bytes[usize::try_from(bit / 8).expect("within the bytes")] ^= 1 << (bit % 8);
            counts.flips += 1;
        }
        counts.bytes += bytes.len() as u64;
        Some(Arrival { connection: id, at, bytes: Some(bytes) })
    }

    fn is_cut(&self, id: ConnectionId, at: Side) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let (dialer, listener) = (connection.dialer.0, connection.listener.0);
            self.cuts.contains(&match at {
                Side::Listener => (dialer, listener),
                Side::Dialer => (listener, dialer),
            })
        })
    }

    /// The process that has this end; none if no process has accepted yet.
    #[must_use]
    pub fn owner(&self, id: ConnectionId, at: Side) -> Option<(usize, Option<u64>)> {
        self.connections.get(&id).map(|connection| match at {
            Side::Dialer => (connection.dialer.0, Some(connection.dialer.1)),
            Side::Listener => connection.listener,
        })
    }

    /// This start of the listener has accepted.
    pub fn accept(&mut self, id: ConnectionId, boot: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.listener.1 = Some(boot);
        }
    }

    /// Connections that are there.
    #[must_use]
    pub fn open(&self) -> Vec<ConnectionId> {
        self.connections.keys().copied().collect()
    }

    /// Connections that bytes get through on, both ways.
    #[must_use]
    pub fn whole(&self) -> Vec<ConnectionId> {
        let is_whole = |pipe: &Pipe| !pipe.is_over && pipe.left.is_none();
        let whole = self.connections.iter();
        let whole = whole.filter(|(_, it)| is_whole(&it.to_dialer) && is_whole(&it.to_listener));
        whole.map(|(id, _)| *id).collect()
    }

    /// Breaks a connection: of what is on its way some bytes arrive, and then its end.
    pub fn break_off<E: From<Arrival>>(
        &mut self,
        id: ConnectionId,
        random: &mut Random,
        agenda: &mut Agenda<E>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.counts.breaks += 1;
        for at in [Side::Dialer, Side::Listener] {
            let pipe = connection.pipe(at);
            let some = if random.one_in(2) { 0 } else { random.below(2_000) };
            pipe.left.get_or_insert(usize::try_from(some).expect("a small number"));
            let after = pipe.last.max(agenda.now()) - agenda.now();
            agenda.plan(after, E::from(Arrival { connection: id, at, bytes: None }));
        }
    }

    /// The process of this start of a member has ended: so have its connections.
    pub fn process_ended<E: From<Arrival>>(
        &mut self,
        member: usize,
        random: &mut Random,
        agenda: &mut Agenda<E>,
    ) {
        for id in self.open() {
            let connection = &self.connections[&id];
            let has_dialed = connection.dialer.0 == member;
            let has_accepted = connection.listener.0 == member && connection.listener.1.is_some();
            if has_dialed || has_accepted {
                self.break_off(id, random, agenda);
                let own = if has_dialed { Side::Dialer } else { Side::Listener };
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.pipe(own).is_over = true;
                }
            }
        }
    }

    /// Nothing gets through from one member to another, or everything does again.
    pub fn cut<E: From<Arrival>>(&mut self, link: (usize, usize), is_cut: bool, agenda: &mut Agenda<E>) {
        if is_cut {
            self.cuts.insert(link);
            return;
        }
        self.cuts.remove(&link);
        let ids = self.open();
        for (id, at) in ids.into_iter().flat_map(|id| [(id, Side::Dialer), (id, Side::Listener)]) {
            if self.is_cut(id, at) {
                continue;
            }
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            // A reminder for each: no bytes overtake those that wait.
            for _ in 0..connection.pipe(at).held.len() {
                agenda.plan(0, E::from(Arrival { connection: id, at, bytes: Some(Vec::new()) }));
            }
        }
    }

    /// Whether nothing gets through from one member to another.
    #[must_use]
    pub fn has_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// All cuts.
    #[must_use]
    pub fn cuts(&self) -> Vec<(usize, usize)> {
        self.cuts.iter().copied().collect()
    }

    /// Everything from or to this member takes so much longer from now on.
    pub fn set_slow(&mut self, member: usize, by: Micros) {
        self.slow.insert(member, by);
    }

    /// Forgets connections whose both ends are over.
    pub fn tidy(&mut self) {
        self.connections.retain(|_, it| !(it.to_dialer.is_over && it.to_listener.is_over));
    }
}

impl Connection {
    /// The pipe to this end.
    fn pipe(&mut self, at: Side) -> &mut Pipe {
        match at {
            Side::Dialer => &mut self.to_dialer,
            Side::Listener => &mut self.to_listener,
        }
    }
}
