//! Handshakes of one core: how many are under way, what they hold, and whose turn it is to compute.
//! One takes tenths of a millisecond; a thousand that come at once must not keep the core from its
//! connections, nor the callers of one address those of another.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::clock::Ticker;
use crate::limits;
use crate::queues::fair_queue::{FairBounds, FairQueue};
use crate::queues::latch::Latch;
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
    /// One of them computes, or gives way.
    is_taken: Cell<bool>,
    /// Those that wait for a turn, by address. Each has a place, which bounds them; one that gives
    /// up leaves at once.
    waiting: RefCell<FairQueue<1, Latch>>,
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
}

impl HandshakeTurns {
    /// Handshakes have one of so many parts of the core's time, or with one part the turns that
    /// others leave.
    pub(crate) fn new(parts: u64) -> Self {
        Self(Rc::new(Inside {
            clock: Ticker::new(),
            places: RefCell::default(),
            is_taken: Cell::new(false),
            waiting: RefCell::new(FairQueue::new(FairBounds::NONE)),
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
        HandshakePlace { inside, id, from, displaced }
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

    /// Computes when it is its turn, behind other things of the core if handshakes have computed
    /// for a while.
    pub(super) async fn compute<T>(&self, computing: impl FnOnce() -> T) -> T {
        let Inside { clock, work, rests_until, parts, .. } = &*self.inside;
        let turn = Turn::wait(&self.inside, self.from).await;
        // Used up until the rest is over: this one may be given up in the middle of it.
        match self.inside.rest(clock.microseconds()) {
            None => {}
            Some(rest) => {
                if rest == 0 {
                    let others_took = time_given_way(*clock).await;
                    work.borrow_mut().gave_way(others_took);
                } else {
                    sleep(Duration::from_micros(rest)).await;
                    work.borrow_mut().rested();
                }
            }
        }
        let began = clock.microseconds();
        let result = computing();
        let ended = clock.microseconds();
        work.borrow_mut().took(ended.saturating_sub(began));
        rests_until.set(ended + work.borrow().microseconds() * (parts - 1));
        drop(turn);
        result
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
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

/// The turn of a handshake, or its place among those that wait for one.
struct Turn<'i> {
    inside: &'i Inside,
    from: u128,
    called: Option<Latch>,
}

impl<'i> Turn<'i> {
    async fn wait(inside: &'i Inside, from: u128) -> Self {
        if !inside.is_taken.replace(true) {
            return Self { inside, from, called: None };
        }
        let called = Latch::default();
        let _ = inside.waiting.borrow_mut().push([from], called.clone());
        let turn = Self { inside, from, called: Some(called.clone()) };
        called.wait().await;
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match &self.called {
            // Given up before it was its turn.
            Some(called) if !called.is_set() => {
                self.inside.waiting.borrow_mut().remove([self.from], |waiting| waiting.is(called));
            }
            _ => match self.inside.waiting.borrow_mut().pop() {
                Some(next) => next.set(),
                None => self.inside.is_taken.set(false),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;

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
    fn one_computes_at_a_time_and_one_that_gives_up_is_passed_over() {
        let turns = HandshakeTurns::new(1);
        let first = block_on(Turn::wait(&turns.0, 0));
        let [mut second, mut third] = [(); 2].map(|()| Box::pin(Turn::wait(&turns.0, 0)));
        let mut fourth = Box::pin(Turn::wait(&turns.0, 0));
        block_on(async {
            for waiting in [&mut second, &mut third, &mut fourth] {
                assert!(poll_once(waiting).await.is_none());
            }
            drop(second);
            drop(first);
            let third = poll_once(&mut third).await.expect("it is its turn");
            assert!(poll_once(&mut fourth).await.is_none());
            drop(third);
            assert!(poll_once(&mut fourth).await.is_some());
        });
        drop(fourth);
        assert!(!turns.0.is_taken.get());
    }

    /// More come than the core computes, and give up: what waits is those that are still there.
    #[test]
    fn those_that_give_up_are_not_kept() {
        let turns = HandshakeTurns::new(1);
        let first = block_on(Turn::wait(&turns.0, 7));
        let mut last = Box::pin(Turn::wait(&turns.0, 7));
        assert!(block_on(poll_once(&mut last)).is_none());
        for number in 0..100_000_u128 {
            let mut given_up = Box::pin(Turn::wait(&turns.0, number % 3));
            assert!(block_on(poll_once(&mut given_up)).is_none());
        }
        assert_eq!(turns.0.waiting.borrow().len(), 1);
        drop(first);
        assert!(block_on(poll_once(&mut last)).is_some());
    }

    #[test]
    fn a_hundred_callers_of_one_address_do_not_keep_one_of_another_waiting() {
        let mut line = FairQueue::new(FairBounds::NONE);
        let from = |text: &str| address(Some(text.parse().unwrap()));
        let called: Vec<Latch> = (0..100).map(|_| Latch::default()).collect();
        for (at, latch) in called.iter().enumerate() {
            // Of one network, of which one caller has all addresses.
            assert!(line.push([from(&format!("fd00::{at:x}"))], latch.clone()).is_none());
        }
        let other = Latch::default();
        assert!(line.push([from("10.0.0.1")], other.clone()).is_none());
        let first_two: Vec<Latch> = (0..2).filter_map(|_| line.pop()).collect();
        first_two.iter().for_each(Latch::set);
        assert!(other.is_set() && called[0].is_set());
        let rest: Vec<Latch> = std::iter::from_fn(|| line.pop()).collect();
        rest[0].set();
        assert!(called[1].is_set() && rest.len() == 99, "in order");
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
    }

    /// A handshake that computes for 2 ms has the core rest for 18, whoever is given up meanwhile.
    #[test]
    fn handshakes_have_their_part_of_the_time_and_no_more() {
        // The two clocks may differ by a microsecond.
        for (parts, least) in [(10, 9 * 1_999), (1, 0)] {
            let turns = HandshakeTurns::new(parts);
            let clock = Ticker::new();
            assert_eq!(turns.0.rest(clock.microseconds()), None, "nothing was computed yet");
            let ended = block_on(turns.enter(None).compute(|| {
                let began = clock.microseconds();
                while clock.microseconds() < began + 2_000 {}
                turns.0.clock.microseconds()
            }));
            assert!(turns.0.rest(ended).is_some_and(|rest| rest >= least));
            assert_eq!(turns.0.rest(ended + 60_000_000), Some(0), "it gives way all the same");
        }
    }
}
