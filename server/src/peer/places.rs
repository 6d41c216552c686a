//! Places for connections that others open to the peer port: half of them are kept for members, and
//! a program that is none gives its place to the next one: first those of the address that has the
//! most.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Context;
use std::task::Poll;

use crate::net::tls::address_of;
use crate::queues::gate::{Gate, Pass};
use crate::queues::latch::Latch;
use crate::queues::places::{self, Most};

/// Log core view: the places.
pub(super) struct Places {
    gate: Gate,
    /// How many connections strangers may have, and how many members.
    strangers_max: usize,
    members_max: usize,
    /// The ends of strangers' connections: of those that are not known to be members' (yet).
    strangers: RefCell<places::Places<Latch>>,
    members: Cell<usize>,
}

/// The place of a connection, until it is dropped.
pub(super) struct Place {
    places: Rc<Places>,
    pass: Pass,
    number: u64,
    is_member: Cell<bool>,
    /// A newer connection needs the place.
    taken: Latch,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Place({})", self.number)
    }
}

impl Places {
    pub(super) fn new(connections_max: usize) -> Rc<Self> {
        let strangers_max = (connections_max / 2).max(1);
        Rc::new(Self {
            gate: Gate::default(),
            strangers_max,
            members_max: connections_max.saturating_sub(strangers_max).max(1),
            strangers: RefCell::default(),
            members: Cell::new(0),
        })
    }

    /// A place for a connection of which nothing is known yet but where it comes from, and whether
    /// another one had to give it up; none when the member stops.
    pub(super) fn enter(self: &Rc<Self>, from: Option<IpAddr>) -> Option<(Place, bool)> {
        let pass = self.gate.enter(usize::MAX)?;
        let mut strangers = self.strangers.borrow_mut();
        let taken = Latch::default();
        let number = strangers.add(address_of(from), taken.clone());
        let is_full = strangers.len() > self.strangers_max;
        let displaced = is_full.then(|| strangers.displace(Most::Places)).flatten();
        let has_taken = displaced.map(|displaced| displaced.set()).is_some();
        let place = Place { places: Rc::clone(self), pass, number, is_member: Cell::new(false), taken };
        Some((place, has_taken))
    }

    /// Tells every connection to end.
    pub(super) fn close(&self) {
        self.gate.close();
    }
}

impl Place {
    /// The connection is a known member's: others do not take its place, if there is one left for
    /// members.
    pub(super) fn is_of_member(&self) {
        let (members, places) = (&self.places.members, &self.places);
        if !self.is_member.get() && members.get() < places.members_max {
            members.set(members.get() + 1);
            self.is_member.set(true);
            places.strangers.borrow_mut().remove(self.number);
        }
    }

    /// Another connection needs the place.
    pub(super) fn taken(&self) -> Latch {
        self.taken.clone()
    }

    /// Ready once the member stops.
    pub(super) fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        self.pass.poll_closed(context)
    }

    /// For servers that look at it themselves.
    pub(super) fn pass(&self) -> &Pass {
        &self.pass
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_member.get() {
            self.places.members.set(self.places.members.get() - 1);
        } else {
            self.places.strangers.borrow_mut().remove(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_half_of_the_places_and_the_oldest_one_gives_its_own_up() {
        let places = Places::new(4);
        let enter = || places.enter(None).unwrap();
        let ((first, _), (second, has_taken)) = (enter(), enter());
        assert!(!has_taken && !first.taken().is_set());
        second.is_of_member();
        let (third, has_taken) = enter();
        assert!(!has_taken && !first.taken().is_set(), "a member's place is not a stranger's");
        let (fourth, has_taken) = enter();
        assert!(has_taken && first.taken().is_set() && !second.taken().is_set());
        drop(first);
        let (fifth, has_taken) = enter();
        assert!(has_taken && third.taken().is_set() && !fourth.taken().is_set());
        fourth.is_of_member();
        fifth.is_of_member();
        assert!(!fifth.is_member.get(), "members have their half");
        drop(second);
        fifth.is_of_member();
        assert!(fifth.is_member.get());
        places.close();
        assert!(places.enter(None).is_none());
    }

    #[test]
    fn a_host_that_connects_without_an_end_has_no_place_of_another() {
        let places = Places::new(256);
        let [here, there] = ["10.0.0.1", "10.0.0.2"].map(|from| Some(from.parse().unwrap()));
        let (first, _) = places.enter(there).unwrap();
        let others: Vec<_> = (0..129).map(|_| places.enter(here).unwrap().0).collect();
        assert!(!first.taken().is_set());
        assert!(others[0].taken().is_set() && others[1].taken().is_set() && !others[2].taken().is_set());
    }
}
