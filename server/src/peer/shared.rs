//! The parts that all connections of a member have in common, and the news they have for the log
//! core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use glommio::Task;
use revd_member::cluster::version::ClusterVersion;
use revd_member::peer::PeerMessage;
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema;

use crate::clock::Ticker;
use crate::limits;
use crate::net::tls::HandshakeTurns;
use crate::observe::counters::Counters;
use crate::peer::backlog::{Backlog, Room};
use crate::peer::caller::Caller;
use crate::peer::complaints::Complaints;
use crate::peer::link::Link;
use crate::peer::outbox::Outbox;
use crate::peer::places::{Place, Places};
use crate::queues::gate::Gate;
use crate::queues::latch::Latch;

/// News for the log core.
#[derive(Debug)]
pub enum PeerEvent {
    /// Another member has sent these.
    Received {
        /// That member.
        from: u64,
        /// In order.
        messages: Vec<PeerMessage>,
        /// Their place among what is received and not taken yet; dropped when they are.
        room: Room,
    },
    /// A member has said which version it has.
    Version(u64, ClusterVersion),
    /// Messages to this member get through from now on.
    Connected(u64),
    /// Messages that were on their way to this member, or from it, may be lost.
    Lost(u64),
    /// A [`PeerMessage::Forward`] of this batch found no room, on a connection that is there: it
    /// alone was dropped.
    Unsent(Bytes),
    /// Another member has opened a connection to send a snapshot.
    Snapshot(SnapshotStream),
    /// This other member says that this one was removed from the cluster.
    Removed(u64),
}

/// A connection that another member has opened to send a snapshot. It counts among those to the
/// peer port until it is dropped.
#[derive(Debug)]
pub struct SnapshotStream {
    /// That member.
    pub from: u64,
    /// Nothing is read from it yet.
    pub stream: Link,
    pub(super) place: Rc<Place>,
}

/// Log core view: a connection on which a member sends.
pub(super) struct Incoming {
    /// Ends it: the member has opened another one, or was removed.
    pub(super) replaced: Latch,
    pub(super) place: Rc<Place>,
}

/// Log core view: the parts that all connections have in common.
pub(super) struct Shared {
    pub(super) caller: Caller,
    pub(super) views: Arc<ViewSlot>,
    pub(super) counters: Arc<Counters>,
    pub(super) emit: Box<dyn Fn(PeerEvent)>,
    pub(super) complaints: Complaints,
    /// About URLs of other members.
    pub(super) unreachable: Complaints,
    pub(super) clock: Ticker,
    /// For connections that others open.
    pub(super) places: Rc<Places>,
    /// Bytes of frames that are not whole yet, of all members that are not known here.
    pub(super) unknown_bytes: Cell<usize>,
    /// The same for what the log core has not taken yet.
    pub(super) unknown_backlog: Rc<Backlog>,
    /// Of each member, the connection on which it sends.
    pub(super) incoming: RefCell<BTreeMap<u64, Incoming>>,
    /// Members that are none any more in the log, and perhaps not yet in the state; and since when,
    /// in milliseconds.
    pub(super) dropped: RefCell<BTreeMap<u64, u64>>,
    /// TLS handshakes that others have begun.
    pub(super) handshakes: HandshakeTurns,
    /// Hashes of keys under way, for requests.
    pub(super) hashing: Gate,
    /// To each other member, and to guests.
    pub(super) outboxes: RefCell<BTreeMap<u64, Rc<Outbox>>>,
    /// Members that are not known here and hold a connection open: what dials them.
    pub(super) guests: RefCell<BTreeMap<u64, Task<()>>>,
}

impl Shared {
    /// The frames that wait for this member.
    pub(super) fn outbox(&self, to: u64) -> Option<Rc<Outbox>> {
        self.outboxes.borrow().get(&to).map(Rc::clone)
    }

    /// A member by the log, as far as it is known here.
    pub(super) fn is_known(&self, member: u64) -> bool {
        self.outboxes.borrow().contains_key(&member) && !self.guests.borrow().contains_key(&member)
    }

    /// It was a member a moment ago: the state may come to say that it was removed.
    pub(super) fn is_dropped(&self, member: u64) -> bool {
        let missing_ms = u64::try_from(limits::PEER_MISSING_TIME.as_millis()).unwrap_or(u64::MAX);
        let since = self.dropped.borrow().get(&member).copied();
        since.is_some_and(|since| self.clock.milliseconds().saturating_sub(since) < missing_ms)
    }

    /// It was a member once, and is none any more.
    pub(super) fn is_removed(&self, member: u64) -> bool {
        schema::removed_members(self.views.load().tables()).any(|removed| removed == member)
    }

    /// Something from or to this member may be lost, although it can be reached.
    pub(super) fn tell_lost(&self, peer: u64) {
        (self.emit)(PeerEvent::Lost(peer));
        if self.outbox(peer).is_some_and(|outbox| outbox.is_open()) {
            (self.emit)(PeerEvent::Connected(peer));
        }
    }
}
