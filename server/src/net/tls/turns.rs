//! Handshakes of one core: how many are under way, what they hold, and whose turn it is to compute.
//! One takes tenths of a millisecond; a thousand that come at once must not keep the core from its
//! connections, nor the callers of one address those of another. New handshakes of an address wait
//! a little for those that came to nothing.

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
    /// Those that were not answered yet, each in the line of its address: the first one may wait
    /// for what was wasted. All have places, which bounds them.
    new: Lines,
    /// Those that were answered and compute again, in the same way.
    begun: Lines,
    /// The first of the new ones, when it has waited, and the first of those that have begun, each
    /// in the line of its address, where they take turns.
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

/// Those of the address that holds the most lose their places while there is too much: the oldest
/// of those that were not answered, for which little was computed yet, unless more of them were; of
/// bytes an old one that holds many.
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
    has_waited: Cell<bool>,
    /// It was answered.
    has_begun: Cell<bool>,
}

impl HandshakeTurns {
    /// Handshakes have one of so many parts of the core's time, or with one part the turns that
    /// others leave.
    pub(crate) fn new(parts: u64) -> Self {
        Self(Rc::new(Inside {
            clock: Ticker::new(),
            places: RefCell::default(),
            new: Lines::default(),
            begun: Lines::default(),
            addresses: Lines::default(),
            all: Lines::default(),
            wasted: RefCell::default(),
            work: RefCell::default(),
            parts,
            rests_until: Cell::new(0),
        }))
    }

    /// A place for one more of this address; when there are too many, one of the address that has
    /// the most loses its own.
    pub(super) fn enter(&self, from: Option<IpAddr>) -> HandshakePlace {
        let (inside, from, displaced) = (Rc::clone(&self.0), address(from), Latch::default());
        let mut places = inside.places.borrow_mut();
        let id = places.add(from, displaced.clone());
        make_room(&mut places);
        drop(places);
        HandshakePlace {
            inside,
            id,
            from,
            displaced,
            cost: Cell::new(0),
            has_waited: Cell::default(),
            has_begun: Cell::default(),
        }
    }

    /// Something that was computed came to nothing.
    #[cfg(test)]
    pub(super) fn has_wasted(&self) -> bool {
        !self.0.wasted.borrow().is_empty()
    }

    /// How many without an address are behind the one whose turn it is.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let Inside { new, begun, addresses, .. } = &*self.0;
        [new, begun, addresses].map(|lines| lines.waiting(address(None))).iter().sum()
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

    /// The caller was answered: more was computed for it than a look at its hello.
    pub(super) fn begin(&self) {
        if !self.has_begun.replace(true) {
            self.inside.places.borrow_mut().begin(self.id);
        }
    }

    /// Another one has its place.
    pub(super) fn is_displaced(&self) -> bool {
        self.displaced.is_set()
    }

    /// Resolves when it is its turn: behind those of its address that have come as far as it has
    /// and came before, the first time also behind what its address has wasted, and behind other
    /// things of the core if handshakes have computed for a while. None if the caller is gone by
    /// then, or the place.
    pub(super) async fn turn(&self, is_gone: impl Fn() -> bool) -> Option<HandshakeTurn<'_>> {
        let Inside { clock, new, begun, addresses, all, work, wasted, .. } = &*self.inside;
        let has_begun = self.has_begun.get();
        let of_stage = if has_begun { begun } else { new }.turn(self.from).await;
        let stays = || !is_gone() && !self.is_displaced();
        if !has_begun && !self.has_waited.replace(true) {
            let wait = wasted.borrow_mut().wait(self.from, clock.microseconds());
            if wait > 0 && stays() {
                sleep(Duration::from_micros(wait)).await;
            }
        }
        // It is not in the way of those behind it.
        if !stays() {
            return None;
        }
        let of_address = addresses.turn(self.from).await;
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
        let turn = HandshakeTurn { place: self, _lines: (of_stage, of_address, of_all) };
        stays().then_some(turn)
    }

    /// Microseconds that will have been wasted if it comes to nothing.
    #[cfg(test)]
    pub(super) fn cost(&self) -> u64 {
        self.cost.get()
    }

    /// It was answered.
    #[cfg(test)]
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// The handshake is done: nothing was wasted.
    pub(super) fn done(&self) {
        self.cost.set(0);
    }

    /// It comes to nothing: new ones of its address wait for what it has cost. It is counted once,
    /// also where this is said again.
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
    _lines: (Turn<'p>, Turn<'p>, Turn<'p>),
}

impl HandshakeTurn<'_> {
    /// Computes.
    pub(super) fn compute<T>(self, computing: impl FnOnce() -> T) -> T {
        let HandshakePlace { inside, cost, from, .. } = self.place;
        let began = inside.clock.microseconds();
        let result = computing();
        let ended = inside.clock.microseconds();
        let took = ended.saturating_sub(began);
        if cost.get() == 0 {
            cost.set(limits::WASTED_CONNECTION_MICROSECONDS);
            inside.wasted.borrow_mut().has_waited(*from);
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

    fn stays() -> bool {
        false
    }

    async fn computes(place: &HandshakePlace) {
        place.turn(stays).await.expect("its caller stays").compute(|| ());
    }

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
        places[0].hold(one - 1);
        places[2].hold(one + 2);
        assert!(places[1].displaced.is_set(), "the oldest that holds no less than they do on average");
        places[1].hold(7); // has no place any more
        places[3].hold(limits::HANDSHAKE_BYTES_PER_CORE_MAX + 1);
        assert!(
            !places[0].displaced.is_set() && !places[2].displaced.is_set() && places[3].displaced.is_set()
        );
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
            let turn = place.turn(stays).await.expect("its caller stays");
            turn.compute(|| computed.borrow_mut().push(number));
        };
        on_a_core(async {
            let computes = turns.0.all.turn(ALL).await;
            let mut many: Vec<_> = (0..100).map(|number| Box::pin(compute(&here, number))).collect();
            for waiting in &mut many {
                assert!(poll_once(waiting).await.is_none());
            }
            let mut other = Box::pin(compute(&there, 1_000));
            assert!(poll_once(&mut other).await.is_none());
            drop(computes);
            for next in [0, 100, 1] {
                turns.0.work.borrow_mut().rested(); // on a slow machine this would be another rest
                let next = if next == 100 { &mut other } else { &mut many[next] };
                assert!(poll_once(next).await.is_some());
            }
        });
        assert_eq!(*computed.borrow(), [0, 1_000, 1], "addresses in turns, and each in order");
        assert!(turns.0.new.is_empty() && turns.0.all.is_empty());
    }

    #[test]
    fn an_address_waits_behind_a_handshake_that_came_to_nothing_and_no_other_does() {
        let turns = HandshakeTurns::new(1);
        let [here, there] = [2, 1].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        let is_told = || turns.has_wasted();
        on_a_core(async {
            drop(turns.enter(here));
            let done = turns.enter(here);
            computes(&done).await;
            done.done();
            drop(done);
            assert!(!is_told(), "one that has computed nothing, and one that is done");
            let failed = turns.enter(here);
            computes(&failed).await;
            failed.failed();
            assert!(is_told());
            waits_long(&turns, here);
            let (first, second) = (turns.enter(here), turns.enter(here));
            let began = turns.0.clock.microseconds();
            let mut waits = Box::pin(first.turn(stays));
            assert!(poll_once(&mut waits).await.is_none());
            let mut behind = Box::pin(second.turn(stays));
            assert!(poll_once(&mut behind).await.is_none());
            computes(&turns.enter(there)).await;
            drop(waits); // given up: the next one has its place, and waits for what is left of it
            behind.await.expect("its caller stays").compute(|| ());
            let waited = turns.0.clock.microseconds() - began;
            // The two clocks may differ by a microsecond.
            assert!(waited >= limits::WASTED_WAIT_MICROSECONDS_MAX - 1, "{waited}");
        });
        assert!(turns.0.new.is_empty() && turns.0.all.is_empty());
    }

    /// The address has wasted something later than now, or a slow machine would have it over.
    fn waits_long(turns: &HandshakeTurns, from: Option<IpAddr>) {
        let later = turns.0.clock.microseconds() + 3_600_000_000;
        turns.0.wasted.borrow_mut().charge(address(from), 1, later);
    }

    #[test]
    fn handshakes_that_have_begun_do_not_wait_behind_new_ones() {
        let (turns, here) = (HandshakeTurns::new(1), Some(IpAddr::from([10, 0, 0, 2])));
        on_a_core(async {
            let (begun, new) = (turns.enter(here), turns.enter(here));
            computes(&begun).await;
            begun.begin();
            turns.0.work.borrow_mut().rested();
            waits_long(&turns, here);
            let mut waits = Box::pin(new.turn(stays));
            assert!(poll_once(&mut waits).await.is_none());
            let mut again = Box::pin(begun.turn(stays));
            let turn = poll_once(&mut again).await.expect("it does not wait").expect("its caller stays");
            turn.compute(|| ());
            waits.await.expect("its caller stays").compute(|| ());
        });
    }

    /// Of one address there may be many that compute again and again.
    #[test]
    fn new_handshakes_and_those_that_have_begun_take_turns() {
        let (turns, computed) = (HandshakeTurns::new(1), RefCell::new(Vec::new()));
        let places = [(); 6].map(|()| turns.enter(None));
        places[..4].iter().for_each(HandshakePlace::begin);
        let compute = async |number: usize| {
            let turn = places[number].turn(stays).await.expect("its caller stays");
            turn.compute(|| computed.borrow_mut().push(number));
        };
        on_a_core(async {
            let computes = turns.0.all.turn(ALL).await;
            let mut all: Vec<_> = (0..6).map(|number| Some(Box::pin(compute(number)))).collect();
            for waiting in all.iter_mut().flatten() {
                assert!(poll_once(waiting).await.is_none());
            }
            drop(computes);
            while all.iter().any(Option::is_some) {
                for slot in &mut all {
                    let Some(waiting) = slot else { continue };
                    turns.0.work.borrow_mut().rested();
                    if poll_once(waiting).await.is_some() {
                        *slot = None;
                    }
                }
            }
        });
        assert_eq!(*computed.borrow(), [0, 4, 1, 5, 2, 3]);
    }

    #[test]
    fn a_caller_that_has_gone_has_no_turn_and_is_not_waited_for() {
        let (turns, here) = (HandshakeTurns::new(1), Some(IpAddr::from([10, 0, 0, 2])));
        on_a_core(async {
            let of_address = turns.0.addresses.turn(address(here)).await;
            let place = turns.enter(here);
            let turn = poll_once(Box::pin(place.turn(|| true))).await;
            assert!(turn.expect("it does not wait for those that have begun").is_none());
            drop(of_address);
            waits_long(&turns, here);
            let place = turns.enter(here);
            let turn = poll_once(Box::pin(place.turn(|| true))).await;
            assert!(turn.expect("it does not wait").is_none());
            turns.0.wasted.borrow_mut().has_waited(address(here));
            let place = turns.enter(here);
            let goes = Cell::new(false);
            let mut waits = Box::pin(place.turn(|| goes.get()));
            assert!(poll_once(&mut waits).await.is_none());
            goes.set(true);
            assert!(waits.await.is_none(), "it went while it waited");
        });
        assert!(turns.0.new.is_empty() && turns.0.all.is_empty());
    }

    /// More come than can be computed for, of one address or each of another one: those that were
    /// answered are not given up for new ones.
    #[test]
    fn new_handshakes_make_room_before_those_that_have_begun() {
        let most = u32::try_from(limits::HANDSHAKES_PER_CORE_MAX).unwrap();
        for addresses in [1, 2 * most] {
            let from = |number: u32| Some(IpAddr::from((number % addresses).to_be_bytes()));
            let turns = HandshakeTurns::new(1);
            let places: Vec<_> = (0..most).map(|number| turns.enter(from(number))).collect();
            let (begun, new) = places.split_at(places.len() / 2);
            begun.iter().for_each(HandshakePlace::begin);
            let later: Vec<_> = (most..most + 100).map(|number| turns.enter(from(number))).collect();
            assert!(new[..100].iter().all(|place| place.displaced.is_set()));
            assert!(begun.iter().chain(&new[100..]).chain(&later).all(|place| !place.displaced.is_set()));
        }
    }

    #[test]
    fn a_handshake_that_has_lost_its_place_has_no_turn() {
        let turns = HandshakeTurns::new(1);
        on_a_core(async {
            let place = turns.enter(None);
            let other = turns.enter(None);
            let turn = other.turn(stays).await;
            let mut waits = Box::pin(place.turn(stays));
            assert!(poll_once(&mut waits).await.is_none());
            place.displaced.set();
            drop(turn);
            assert!(waits.await.is_none());
        });
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
            let ended = block_on(place.turn(stays)).expect("its caller stays").compute(|| {
                let began = clock.microseconds();
                while clock.microseconds() < began + 2_000 {}
                turns.0.clock.microseconds()
            });
            assert!(turns.0.rest(ended).is_some_and(|rest| rest >= least));
            assert_eq!(turns.0.rest(ended + 60_000_000), Some(0), "it gives way all the same");
        }
    }
}
