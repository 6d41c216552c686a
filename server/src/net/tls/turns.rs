//! Handshakes of one core: how many are under way, what they hold, and whose turn it is to compute.
//! One takes tenths of a millisecond; a thousand that come at once must not keep the core from its
//! connections, nor the callers of one address those of another. An address waits a little behind
//! each that comes to nothing.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::clock::Ticker;
use crate::limits;
use crate::net::tls::wasted::Wasted;
use crate::queues::latch::Latch;
use crate::queues::lines::{Lines, Turn};
use crate::queues::places::{Most, Places};
use crate::queues::sleep::sleep;
use crate::queues::turn::{SideWork, time_given_way};

/// Core view: all handshakes under way.
#[derive(Debug, Clone)]
pub(crate) struct HandshakeTurns(Rc<Inside>);

#[derive(Debug)]
struct Inside {
    clock: Ticker,
    places: RefCell<Places<Latch>>,
    /// Those that wait for a turn, each in the line of its address. All have places, which bounds
    /// them.
    addresses: Lines,
    /// The first ones of all addresses in one line, of which one computes, or gives way.
    all: Lines,
    wasted: RefCell<Wasted>,
    /// The computing, since others had their turn.
    work: RefCell<SideWork>,
    /// One of these parts of the core's time is for handshakes; with one alone they give way and no
    /// more.
    parts: u64,
    /// Nothing is computed before this, in microseconds.
    rests_until: Cell<u64>,
}

impl Inside {
    /// Microseconds until others had their part, of which there may be none left; none if this
    /// turn is not used up.
    fn rest(&self, now: u64) -> Option<u64> {
        self.work.borrow().is_used_up().then(|| self.rests_until.get().saturating_sub(now))
    }
}

/// Those of the address that holds the most lose their places, oldest first, while there is too
/// much: callers that mean it are done long before.
fn make_room(places: &mut Places<Latch>) {
    loop {
        let most = if places.len() > limits::HANDSHAKES_PER_CORE_MAX {
            Most::Places
        } else if places.bytes() > limits::HANDSHAKE_BYTES_PER_CORE_MAX {
            Most::Bytes
        } else {
            return;
        };
        let Some(displaced) = places.displace(most) else { return };
        displaced.set();
    }
}

/// The place of a handshake; it leaves by being dropped.
#[derive(Debug)]
pub(super) struct HandshakePlace {
    inside: Rc<Inside>,
    id: u64,
    from: u128,
    displaced: Latch,
    /// Microseconds that will have been wasted if it comes to nothing: none before it has computed.
    cost: Cell<u64>,
}

impl HandshakeTurns {
    /// Handshakes have one of so many parts of the core's time, or with one part the turns that
    /// others leave.
    pub(crate) fn new(parts: u64) -> Self {
        Self(Rc::new(Inside {
            clock: Ticker::new(),
            places: RefCell::default(),
            addresses: Lines::default(),
            all: Lines::default(),
            wasted: RefCell::default(),
            work: RefCell::default(),
            parts,
            rests_until: Cell::new(0),
        }))
    }

    /// A place for one more of this address; when there are too many, the oldest one of the address
    /// that has the most loses its own.
    pub(super) fn enter(&self, from: Option<IpAddr>) -> HandshakePlace {
        let (inside, from, displaced) = (Rc::clone(&self.0), address(from), Latch::default());
        let mut places = inside.places.borrow_mut();
        let id = places.add(from, displaced.clone());
        make_room(&mut places);
        drop(places);
        HandshakePlace { inside, id, from, displaced, cost: Cell::new(0) }
    }
}

impl HandshakePlace {
    /// Resolves when the place is another one's.
    pub(super) async fn displaced(&self) {
        self.displaced.wait().await;
    }

    /// Counts bytes that the caller has sent and that are kept.
    pub(super) fn hold(&self, received: usize) {
        let mut places = self.inside.places.borrow_mut();
        if places.hold(self.id, received) {
            make_room(&mut places);
        }
    }

    /// Resolves when it is its turn: behind those of its address that came before, the first time
    /// also behind what one of these has wasted, and behind other things of the core if handshakes
    /// have computed for a while.
    pub(super) async fn turn(&self) -> HandshakeTurn<'_> {
        let Inside { clock, addresses, all, work, .. } = &*self.inside;
        let of_address = addresses.turn(self.from).await;
        if self.cost.get() == 0 {
            // Once, and not for what comes to nothing meanwhile.
            let wait = self.inside.wasted.borrow().wait(self.from, clock.microseconds());
            sleep(Duration::from_micros(wait)).await;
        }
        let of_all = all.turn(ALL).await;
        // Used up until the rest is over: this one may be given up in the middle of it.
        match self.inside.rest(clock.microseconds()) {
            None => {}
            Some(0) => {
                let others_took = time_given_way(*clock).await;
                work.borrow_mut().gave_way(others_took);
            }
            Some(rest) => {
                sleep(Duration::from_micros(rest)).await;
                work.borrow_mut().rested();
            }
        }
        HandshakeTurn { place: self, _lines: (of_address, of_all) }
    }

    /// Something was computed for it that is not paid for.
    #[cfg(test)]
    pub(super) fn has_computed(&self) -> bool {
        self.cost.get() > 0 || !self.inside.wasted.borrow().is_empty()
    }

    /// The handshake is done: nothing was wasted.
    pub(super) fn done(&self) {
        self.cost.set(0);
    }

    /// It comes to nothing: the next one of its address waits for what it has cost; once, also
    /// where this is said again.
    pub(super) fn failed(&self) {
        let cost = self.cost.take();
        if cost > 0 {
            let now = self.inside.clock.microseconds();
            self.inside.wasted.borrow_mut().charge(self.from, cost, now);
        }
    }
}

/// The turn of a handshake, for one computation. It ends by being dropped.
pub(super) struct HandshakeTurn<'p> {
    place: &'p HandshakePlace,
    _lines: (Turn<'p>, Turn<'p>),
}

impl HandshakeTurn<'_> {
    /// Computes.
    pub(super) fn compute<T>(self, computing: impl FnOnce() -> T) -> T {
        let HandshakePlace { inside, cost, .. } = self.place;
        let began = inside.clock.microseconds();
        let result = computing();
        let ended = inside.clock.microseconds();
        let took = ended.saturating_sub(began);
        if cost.get() == 0 {
            cost.set(limits::WASTED_CONNECTION_MICROSECONDS);
        }
        cost.set(cost.get().saturating_add(took));
        inside.work.borrow_mut().took(took);
        inside.rests_until.set(ended + inside.work.borrow().microseconds() * (inside.parts - 1));
        result
    }
}

/// The line of all addresses.
const ALL: u128 = 0;

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.failed(); // given up, if it was not done
        self.inside.places.borrow_mut().remove(self.id);
    }
}

/// An address, of IPv6 the half that its owner does not choose; 0 for none.
pub(crate) fn address(from: Option<IpAddr>) -> u128 {
    match from.map(|from| from.to_canonical()) {
        Some(IpAddr::V4(four)) => four.to_ipv6_mapped().to_bits(),
        Some(IpAddr::V6(six)) => six.to_bits() >> 64 << 64,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::queues::sleep::on_a_core;

    #[test]
    fn the_oldest_handshake_makes_room() {
        let turns = HandshakeTurns::new(1);
        let places: Vec<_> = (0..=limits::HANDSHAKES_PER_CORE_MAX).map(|_| turns.enter(None)).collect();
        assert!(places[0].displaced.is_set());
        assert!(!places[1].displaced.is_set());
        drop(places);
        assert!(turns.0.places.borrow().is_empty());
    }

    #[test]
    fn callers_of_one_address_do_not_have_the_places_of_another() {
        let turns = HandshakeTurns::new(1);
        let from = |text: &str| Some(text.parse().unwrap());
        let first = turns.enter(from("10.0.0.1"));
        let others: Vec<_> =
            (0..2 * limits::HANDSHAKES_PER_CORE_MAX).map(|_| turns.enter(from("10.0.0.2"))).collect();
        assert!(!first.displaced.is_set() && others[0].displaced.is_set());
        first.hold(limits::HANDSHAKE_BYTES_PER_CORE_MAX / 2);
        others.iter().for_each(|other| other.hold(limits::HANDSHAKE_BYTES_PER_CORE_MAX / 100));
        assert!(!first.displaced.is_set(), "the others together hold more");
        drop((first, others));
        let places = turns.0.places.borrow();
        assert!(places.is_empty() && places.bytes() == 0);
    }

    #[test]
    fn handshakes_hold_no_more_than_their_bytes_together() {
        let turns = HandshakeTurns::new(1);
        let one = limits::HANDSHAKE_BYTES_PER_CORE_MAX / 4;
        let places: Vec<_> = (0..4).map(|_| turns.enter(None)).collect();
        places.iter().for_each(|place| place.hold(one));
        assert!(places.iter().all(|place| !place.displaced.is_set()), "all of it");
        places[2].hold(one + 1);
        assert!(places[0].displaced.is_set() && !places[1].displaced.is_set());
        places[0].hold(7); // has no place any more
        places[3].hold(limits::HANDSHAKE_BYTES_PER_CORE_MAX + 1);
        assert!(places.iter().all(|place| place.displaced.is_set()));
        let new = turns.enter(None);
        new.hold(5);
        drop(places);
        assert_eq!(turns.0.places.borrow().bytes(), 5);
        drop(new);
        assert_eq!(turns.0.places.borrow().bytes(), 0);
    }

    #[test]
    fn addresses_are_those_whose_owners_differ() {
        let from = |text: &str| address(Some(text.parse().unwrap()));
        // Of one network, of which one caller has all addresses.
        assert_eq!(from("fd00::1"), from("fd00::2"));
        assert_ne!(from("fd00::1"), from("fd00:0:0:1::1"));
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
        assert_ne!(from("10.0.0.2"), from("10.0.0.1"));
    }

    #[test]
    fn a_hundred_callers_of_one_address_do_not_keep_one_of_another_waiting() {
        let (turns, computed) = (HandshakeTurns::new(1), RefCell::new(Vec::new()));
        let from = |text: &str| Some(text.parse().unwrap());
        let (here, there) = (turns.enter(from("10.0.0.2")), turns.enter(from("10.0.0.1")));
        let compute = async |place: &HandshakePlace, number: usize| {
            place.turn().await.compute(|| computed.borrow_mut().push(number));
        };
        block_on(async {
            let computes = turns.0.all.turn(ALL).await;
            let mut many: Vec<_> = (0..100).map(|number| Box::pin(compute(&here, number))).collect();
            for waiting in &mut many {
                assert!(poll_once(waiting).await.is_none());
            }
            let mut other = Box::pin(compute(&there, 1_000));
            assert!(poll_once(&mut other).await.is_none());
            drop(computes);
            assert!(poll_once(&mut many[0]).await.is_some());
            assert!(poll_once(&mut other).await.is_some());
            assert!(poll_once(&mut many[1]).await.is_some());
        });
        assert_eq!(*computed.borrow(), [0, 1_000, 1], "addresses in turns, and each in order");
        assert!(turns.0.addresses.is_empty() && turns.0.all.is_empty());
    }

    #[test]
    fn an_address_waits_behind_a_handshake_that_came_to_nothing_and_no_other_does() {
        let turns = HandshakeTurns::new(1);
        let [here, there] = [2, 1].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let is_told = || turns.0.wasted.borrow().wait(address(here), 0) > 0;
        on_a_core(async {
            drop(turns.enter(here));
            let done = turns.enter(here);
            done.turn().await.compute(|| ());
            done.done();
            drop(done);
            assert!(!is_told(), "one that has computed nothing, and one that is done");
            let failed = turns.enter(here);
            failed.turn().await.compute(|| ());
            failed.failed();
            assert!(is_told());
            // Later than now, or a slow machine would have it over.
            let later = turns.0.clock.microseconds() + 3_600_000_000;
            turns.0.wasted.borrow_mut().charge(address(here), 1, later);
            let (first, second) = (turns.enter(here), turns.enter(here));
            let mut waits = Box::pin(first.turn());
            assert!(poll_once(&mut waits).await.is_none());
            let mut behind = Box::pin(second.turn());
            assert!(poll_once(&mut behind).await.is_none());
            turns.enter(there).turn().await.compute(|| ());
            drop(waits); // given up: the next one has its place
            behind.await.compute(|| ());
        });
        assert!(turns.0.addresses.is_empty() && turns.0.all.is_empty());
    }

    /// A handshake that computes for 2 ms has the core rest for 18, whoever is given up meanwhile.
    #[test]
    fn handshakes_have_their_part_of_the_time_and_no_more() {
        // The two clocks may differ by a microsecond.
        for (parts, least) in [(10, 9 * 1_999), (1, 0)] {
            let turns = HandshakeTurns::new(parts);
            let clock = Ticker::new();
            assert_eq!(turns.0.rest(clock.microseconds()), None, "nothing was computed yet");
            let place = turns.enter(None);
            let ended = block_on(place.turn()).compute(|| {
                let began = clock.microseconds();
                while clock.microseconds() < began + 2_000 {}
                turns.0.clock.microseconds()
            });
            assert!(turns.0.rest(ended).is_some_and(|rest| rest >= least));
            assert_eq!(turns.0.rest(ended + 60_000_000), Some(0), "it gives way all the same");
        }
    }
}
