//! Handshakes of one core: how many are under way, and whose turn it is to compute. One takes
//! tenths of a millisecond; a thousand that come at once must not keep the core from its
//! connections.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::limits;
use crate::queues::latch::Latch;
use crate::queues::turn::give_way;

/// Core view: all handshakes under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandshakeTurns(Rc<Inside>);

#[derive(Debug, Default)]
struct Inside {
    places: RefCell<BTreeMap<u64, Latch>>,
    next_place: Cell<u64>,
    /// One of them computes, or gives way.
    is_taken: Cell<bool>,
    waiting: RefCell<VecDeque<Latch>>,
    /// Microseconds of computing since others had their turn.
    used: Cell<u64>,
}

/// The place of a handshake; it leaves by being dropped.
#[derive(Debug)]
pub(super) struct HandshakePlace {
    inside: Rc<Inside>,
    id: u64,
    displaced: Latch,
}

impl HandshakeTurns {
    /// A place for one more; the oldest one loses its own when there are too many: clients that
    /// mean it are done long before.
    pub(super) fn enter(&self) -> HandshakePlace {
        let (inside, displaced) = (Rc::clone(&self.0), Latch::default());
        let id = inside.next_place.replace(inside.next_place.get() + 1);
        let mut places = inside.places.borrow_mut();
        places.insert(id, displaced.clone());
        let oldest = (places.len() > limits::HANDSHAKES_PER_CORE_MAX).then(|| places.pop_first()).flatten();
        drop(places);
        if let Some((_, oldest)) = oldest {
            oldest.set();
        }
        HandshakePlace { inside, id, displaced }
    }
}

impl HandshakePlace {
    /// Resolves when the place is another one's.
    pub(super) async fn displaced(&self) {
        self.displaced.wait().await;
    }

    /// Computes when it is its turn, and lets the core do other things after a while. `clock` tells
    /// microseconds.
    pub(super) async fn compute<T>(&self, clock: impl Fn() -> u64, computing: impl FnOnce() -> T) -> T {
        let turn = Turn::wait(&self.inside).await;
        let began = clock();
        let result = computing();
        let used = self.inside.used.get() + clock().saturating_sub(began);
        if used >= limits::HANDSHAKE_MICROSECONDS {
            self.inside.used.set(0);
            give_way().await;
        } else {
            self.inside.used.set(used);
        }
        drop(turn);
        result
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.inside.places.borrow_mut().remove(&self.id);
    }
}

/// The turn of a handshake, or its place among those that wait for one.
struct Turn<'i> {
    inside: &'i Inside,
    called: Option<Latch>,
}

impl<'i> Turn<'i> {
    async fn wait(inside: &'i Inside) -> Self {
        if !inside.is_taken.replace(true) {
            return Self { inside, called: None };
        }
        let called = Latch::default();
        inside.waiting.borrow_mut().push_back(called.clone());
        let turn = Self { inside, called: Some(called.clone()) };
        called.wait().await;
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        match &self.called {
            // Given up before it was its turn: it is called, does nothing, and the next one is.
            Some(called) if !called.is_set() => called.set(),
            _ => loop {
                let Some(next) = self.inside.waiting.borrow_mut().pop_front() else {
                    self.inside.is_taken.set(false);
                    return;
                };
                if !next.is_set() {
                    return next.set();
                }
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
        let turns = HandshakeTurns::default();
        let places: Vec<_> = (0..=limits::HANDSHAKES_PER_CORE_MAX).map(|_| turns.enter()).collect();
        assert!(places[0].displaced.is_set());
        assert!(!places[1].displaced.is_set());
        drop(places);
        assert!(turns.0.places.borrow().is_empty());
    }

    #[test]
    fn one_computes_at_a_time_and_one_that_gives_up_is_passed_over() {
        let turns = HandshakeTurns::default();
        let first = block_on(Turn::wait(&turns.0));
        let [mut second, mut third] = [(); 2].map(|()| Box::pin(Turn::wait(&turns.0)));
        let mut fourth = Box::pin(Turn::wait(&turns.0));
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
}
