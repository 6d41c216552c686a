//! The parts that all connections of a member have in common, and the news they have for the log
//! core.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use revd_member::cluster::Identity;
use revd_member::peer::PeerMessage;
use revd_member::read::view_slot::ViewSlot;

use crate::clock::Ticker;
use crate::peer::backlog::Room;
use crate::peer::complaints::Complaints;
use crate::peer::outbox::Outbox;
use crate::queues::gate::Gate;
use crate::queues::latch::Latch;
use crate::version;

/// The version that peers are told.
pub(super) const VERSION: &str = version::REVD;

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
    /// Messages to this member get through from now on.
    Connected(u64),
    /// Messages that were on their way to this member, or from it, may be lost.
    Lost(u64),
}

/// Log core view: the parts that all connections have in common.
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) boot: u64,
    pub(super) views: Arc<ViewSlot>,
    pub(super) emit: Box<dyn Fn(PeerEvent)>,
    pub(super) complaints: Complaints,
    pub(super) clock: Ticker,
    /// Connections that others have opened, and how many they may.
    pub(super) gate: Gate,
    pub(super) connections_max: usize,
    /// Of each member, what ends the connection on which it sends when it opens another one.
    pub(super) incoming: RefCell<BTreeMap<u64, Latch>>,
    /// To each other member.
    pub(super) outboxes: RefCell<BTreeMap<u64, Rc<Outbox>>>,
}

impl Shared {
    /// The frames that wait for this member.
    pub(super) fn outbox(&self, to: u64) -> Option<Rc<Outbox>> {
        self.outboxes.borrow().get(&to).map(Rc::clone)
    }

    /// Something from or to this member may be lost, although it can be reached.
    pub(super) fn tell_lost(&self, peer: u64) {
        (self.emit)(PeerEvent::Lost(peer));
        if self.outbox(peer).is_some_and(|outbox| outbox.is_open()) {
            (self.emit)(PeerEvent::Connected(peer));
        }
    }
}
