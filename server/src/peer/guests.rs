//! Answers to members that this one does not know, or knows under another address: it was away
//! while they came or moved, and one of them leads by now. Messages go only where this member
//! dials, so it dials where such a member says that it listens, as long as that one holds a
//! connection open.
//!
//! Any program can call itself a member: there are few guests at a time, with little room, they say
//! nothing about versions or removals, and lines about them are few.

use std::rc::Rc;

use crate::limits;
use crate::peer::dial;
use crate::peer::outbox::Outbox;
use crate::peer::shared::{PeerEvent, Shared};
use crate::queues::latch::Latch;

/// Log core view: the connection of a member that has said where it listens. Its word counts until
/// this is dropped.
pub(super) struct Named {
    shared: Rc<Shared>,
    member: u64,
    /// Another connection of the member has taken the place of this one.
    replaced: Latch,
}

/// Whether a member that is not known here gets answers. Without a place for one more guest it is
/// sent away: it dials again, and there may be one then.
pub(super) fn has_place(shared: &Shared, member: u64, urls: &[String]) -> bool {
    let is_there = shared.outbox(member).is_some();
    is_there || urls.is_empty() || shared.guests.borrow().len() < limits::PEER_GUESTS_MAX
}

impl Named {
    /// Dials the member there, too.
    pub(super) fn begin(shared: &Rc<Shared>, member: u64, urls: &[String], replaced: &Latch) -> Self {
        match shared.outbox(member) {
            Some(outbox) => outbox.set_named(urls),
            None if urls.is_empty() => {}
            None => {
                let outbox = Rc::new(Outbox::of_guest(member, urls));
                shared.outboxes.borrow_mut().insert(member, Rc::clone(&outbox));
                let dialing = dial::start(outbox, shared);
                shared.guests.borrow_mut().insert(member, dialing);
            }
        }
        Self { shared: Rc::clone(shared), member, replaced: replaced.clone() }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.replaced.is_set() {
            return; // by what its other connection says, or the member is none any more
        }
        let guest = self.shared.guests.borrow_mut().remove(&self.member);
        if guest.is_none() {
            if let Some(outbox) = self.shared.outbox(self.member) {
                outbox.set_named(&[]);
            }
            return;
        }
        drop(guest); // a task that is dropped is cancelled
        let outbox = self.shared.outboxes.borrow_mut().remove(&self.member);
        if outbox.is_some_and(|outbox| outbox.close()) {
            (self.shared.emit)(PeerEvent::Lost(self.member));
        }
    }
}
