//! The connections between members, on the log core's thread: raft and its peers have no hop
//! between them.
//!
//! - `accept` listens, hears who dials (`revd_member::peer::hello`), and reads messages; plain
//!   requests on the same port are answered by `probes`.
//! - `ask` sends such requests to other members.
//! - `caller` says who this member is, on any core: connections for snapshots are opened by it.
//! - `guests` are members that dial and are not known here: they are dialed back.
//! - `dial` keeps one connection to each other member, on which this member sends; `outbox`
//!   holds the frames that wait.
//! - `states` sends a state to a member that lags behind the log, and receives one, by `receiving`.
//! - `link` is a connection, with TLS on it or not; `transport` connects, and has what is common to
//!   all that is said; `pulse` notices a peer that is silent, `backlog` bounds the bytes that were
//!   received and are not taken yet, `places` keeps room for connections of members, `complaints`
//!   bounds log lines, `shared` is what all connections have in common.
//!
//! A member sends only on connections that it dialed itself: two members have two. Messages that
//! are on their way when one ends may be lost, and the log core is told so.

mod accept;
pub mod ask;
mod backlog;
pub mod caller;
mod complaints;
mod dial;
mod guests;
mod link;
mod outbox;
mod places;
mod probes;
mod pulse;
mod receiving;
mod shared;
pub mod states;
mod transport;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use glommio::Task;
use revd_member::cluster::Identity;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::read::view_slot::ViewSlot;

use crate::clock::Ticker;
use crate::config::ListenAddress;
use crate::limits;
use crate::net::tls::{HandshakeTurns, TlsDomain};
use crate::net::unix::UnixSockets;
use crate::observe::bounds::Bound;
use crate::observe::counters::Counters;
use crate::peer::caller::Caller;
use crate::peer::complaints::Complaints;
use crate::peer::outbox::Outbox;
use crate::peer::places::Places;
use crate::peer::shared::Shared;
pub use crate::peer::shared::{PeerEvent, SnapshotStream};
use crate::queues::gate::Gate;
use crate::queues::sleep::sleep;

/// The parts of a member's peers, before the log core runs.
pub struct PeersSeed {
    /// The member.
    pub identity: Identity,
    /// Changes at every start.
    pub boot: u64,
    /// Where peers reach it.
    pub urls: Vec<String>,
    /// Where it listens for them.
    pub listen: Vec<ListenAddress>,
    /// Certificates for members.
    pub tls: Arc<TlsDomain>,
    /// Connections that others may have open.
    pub connections_max: usize,
    /// The other members at the start; this one may be among them.
    pub peers: Vec<Peer>,
    /// The newest View, for requests of tools.
    pub views: Arc<ViewSlot>,
    /// Numbers for operators.
    pub counters: Arc<Counters>,
}

/// Log core view: the other members, and the connections to and from them.
pub struct Peers {
    shared: Rc<Shared>,
    accepting: Vec<Task<()>>,
    dialing: BTreeMap<u64, Task<()>>,
    /// Their files go with them.
    _sockets: UnixSockets,
}

impl Peers {
    /// Listens; `emit` is told what happens.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn start(seed: PeersSeed, emit: impl Fn(PeerEvent) + 'static) -> io::Result<Self> {
        let sockets = UnixSockets::default();
        let PeersSeed { identity, boot, urls, listen, tls, connections_max, peers, views, counters } = seed;
        let shared = Rc::new(Shared {
            caller: Caller { identity, boot, urls: urls.into(), tls },
            views,
            counters,
            emit: Box::new(emit),
            complaints: Complaints::default(),
            unreachable: Complaints::default(),
            clock: Ticker::new(),
            places: Places::new(connections_max),
            unknown_bytes: Cell::new(0),
            unknown_backlog: Rc::default(),
            incoming: RefCell::default(),
            dropped: RefCell::default(),
            handshakes: HandshakeTurns::new(limits::PEER_HANDSHAKE_PARTS),
            hashing: Gate::default(),
            outboxes: RefCell::default(),
            guests: RefCell::default(),
        });
        let bind = |address: ListenAddress| Ok((transport::bind(&address.place, &sockets)?, address));
        let listeners: io::Result<Vec<_>> = listen.into_iter().map(bind).collect();
        let accept =
            |(listener, address)| glommio::spawn_local(accept::run(listener, address, Rc::clone(&shared)));
        let accepting = listeners?.into_iter().map(accept).collect();
        let mut own = Self { shared, accepting, dialing: BTreeMap::new(), _sockets: sockets };
        own.set_peers(peers);
        Ok(own)
    }

    /// The other members are these from now on. One that is missing was removed, or is newer than a
    /// state that was received: it must not be told that it was removed unless the state says so.
    pub fn set_peers(&mut self, peers: Vec<Peer>) {
        let own = self.shared.caller.identity.member;
        let peers: BTreeMap<u64, Vec<String>> =
            peers.into_iter().filter(|peer| peer.id != own).map(|peer| (peer.id, peer.urls)).collect();
        let gone: Vec<u64> = self.dialing.keys().filter(|id| !peers.contains_key(id)).copied().collect();
        for id in gone {
            self.dialing.remove(&id); // a task that is dropped is cancelled
            self.shared.dropped.borrow_mut().insert(id, self.shared.clock.milliseconds());
            if let Some(connection) = self.shared.incoming.borrow_mut().remove(&id) {
                connection.replaced.set(); // it is told why when it dials again
            }
            if self.shared.outboxes.borrow_mut().remove(&id).is_some_and(|outbox| outbox.close()) {
                (self.shared.emit)(PeerEvent::Lost(id));
            }
        }
        for (id, urls) in peers {
            self.shared.dropped.borrow_mut().remove(&id);
            if let Some(connection) = self.shared.incoming.borrow().get(&id) {
                connection.place.is_of_member(); // it may have been a stranger's so far
            }
            if let Some(outbox) = self.shared.outbox(id) {
                outbox.set_urls(urls);
                let guest = self.shared.guests.borrow_mut().remove(&id);
                if let Some(dialing) = guest {
                    outbox.version().inspect(|version| (self.shared.emit)(PeerEvent::Version(id, *version)));
                    self.dialing.insert(id, dialing);
                }
                continue;
            }
            let outbox = Rc::new(Outbox::new(id, urls));
            self.shared.outboxes.borrow_mut().insert(id, Rc::clone(&outbox));
            let dialing = dial::start(outbox, &self.shared);
            self.dialing.insert(id, dialing);
        }
    }

    /// Another member, as far as it is known here.
    #[must_use]
    pub fn peer(&self, id: u64) -> Option<Peer> {
        self.shared.outbox(id).map(|outbox| Peer { id, urls: outbox.urls() })
    }

    /// This member, as it says who it is.
    #[must_use]
    pub fn caller(&self) -> Caller {
        self.shared.caller.clone()
    }

    /// Sends these to another member, in order, behind what was sent before; without a connection
    /// or without room they are dropped. If the sender would not notice, [`PeerEvent::Lost`]
    /// follows; for a batch of commands without room [`PeerEvent::Unsent`], since those before it
    /// are on their way.
    pub fn send(&self, to: u64, messages: &[PeerMessage]) {
        let outbox = self.shared.outbox(to);
        if outbox.as_ref().is_some_and(|outbox| outbox.push(messages)) {
            return;
        }
        let is_full = outbox.is_some_and(|outbox| outbox.is_open());
        if is_full {
            self.shared.counters.bounds.reached(Bound::PeerOutbox);
        }
        let mut is_lost = false;
        for message in messages {
            match message {
                PeerMessage::Forward(batch) if is_full => {
                    (self.shared.emit)(PeerEvent::Unsent(batch.clone()));
                }
                other => is_lost |= !other.is_repeated(),
            }
        }
        if is_lost {
            self.shared.tell_lost(to);
        }
    }

    /// Sends what waits, for a short time, and ends all connections.
    pub async fn stop(self) {
        let Self { shared, accepting, dialing, _sockets } = self;
        for task in accepting {
            task.cancel().await;
        }
        shared.places.close();
        let outboxes: Vec<_> = shared.outboxes.borrow().values().map(Rc::clone).collect();
        let sent = async {
            for outbox in outboxes {
                outbox.sent().await;
            }
        };
        futures_lite::future::or(sent, sleep(limits::PEER_STOP_DEADLINE)).await;
        let guests = shared.guests.take();
        for task in dialing.into_values().chain(guests.into_values()) {
            task.cancel().await;
        }
    }
}
