//! Connections that have more to do than one turn does. They take turns, one behind the other, and
//! after a while of that everything else of the core comes first: a connection with little to do
//! waits for a turn or two of theirs, not for one of each. The more busy ones there are, the
//! shorter are their turns. Connections that have done everything in their turn are not counted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::limits;
use crate::queues::turn::NextTurn;

/// Edge view: the connections that have asked for another turn.
#[derive(Debug, Default)]
pub(super) struct BusyConnections(RefCell<Round>);

#[derive(Default)]
struct Round {
    /// Those whose turn has not come, in their order.
    waiting: BTreeMap<u64, Waker>,
    asked: u64,
    /// The one whose turn it is, until it begins.
    called: Option<u64>,
    /// Until it is called, if others come first.
    pause: NextTurn,
    /// Microseconds of such turns since others had theirs.
    used: u64,
}

impl std::fmt::Debug for Round {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asked, called, used, .. } = self;
        let fields = (self.waiting.len(), asked, called, used);
        write!(to, "Round(waiting, asked, called, used: {fields:?})")
    }
}

impl Round {
    /// The next one whose turn it is, and whether everything else of the core comes before it; none
    /// while one is called.
    fn next(&mut self) -> Option<(Waker, bool)> {
        if self.called.is_some() {
            return None;
        }
        let (place, waker) = self.waiting.pop_first()?;
        self.called = Some(place);
        let others_first = self.used >= limits::BUSY_MICROSECONDS;
        if others_first {
            self.used = 0;
        }
        Some((waker, others_first))
    }

    fn call_next(&mut self) {
        match self.next() {
            Some((waker, true)) => self.pause.ask(&mut Context::from_waker(&waker)),
            Some((waker, false)) => waker.wake(),
            None => {}
        }
    }

    /// Those that have asked and have not begun.
    fn len(&self) -> u64 {
        self.waiting.len() as u64 + u64::from(self.called.is_some())
    }
}

/// One connection's part in the turns of busy connections.
#[derive(Debug)]
pub(super) struct TurnShare {
    busy: Rc<BusyConnections>,
    /// Its place, if it has asked for a turn.
    place: Option<u64>,
    /// The turn under way is one that it has asked for.
    has_asked: bool,
}

impl TurnShare {
    /// A connection that is not busy.
    pub(super) fn new(busy: &Rc<BusyConnections>) -> Self {
        Self { busy: Rc::clone(busy), place: None, has_asked: false }
    }

    /// Whether the connection may begin a turn: not if it has asked for one that has not come.
    pub(super) fn begin(&mut self) -> bool {
        let mut round = self.busy.0.borrow_mut();
        match self.place {
            Some(place) if round.called != Some(place) => return false,
            Some(_) => round.called = None,
            None => {}
        }
        self.has_asked = self.place.take().is_some();
        true
    }

    /// The turn is over, after so many microseconds; with `comes_back` the task of `context` is
    /// woken for another one.
    pub(super) fn end(&mut self, context: &Context<'_>, took: u64, comes_back: bool) {
        let mut round = self.busy.0.borrow_mut();
        if comes_back || self.has_asked {
            round.used = round.used.saturating_add(took);
        }
        if comes_back {
            round.asked += 1;
            let place = round.asked;
            self.place = Some(place);
            round.waiting.insert(place, context.waker().clone());
        }
        round.call_next();
    }

    /// Microseconds that a turn may last; `most` if no other connection is busy.
    pub(super) fn microseconds(&self, most: u64) -> u64 {
        let others = self.busy.0.borrow().len();
        (limits::ROUND_MICROSECONDS / (others + 1)).clamp(limits::TURN_MICROSECONDS_MIN, most)
    }
}

impl Drop for TurnShare {
    fn drop(&mut self) {
        let mut round = self.busy.0.borrow_mut();
        match self.place {
            Some(place) if round.called == Some(place) => round.called = None,
            Some(place) => drop(round.waiting.remove(&place)),
            None => {} // in the middle of its turn: others wait for the end of it
        }
        // Perhaps with its core, whose timers may be gone.
        if let Some((waker, _)) = round.next() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Connection {
        share: TurnShare,
        woken: Arc<Woken>,
    }

    impl Connection {
        fn new(busy: &Rc<BusyConnections>) -> Self {
            Self { share: TurnShare::new(busy), woken: Arc::default() }
        }

        fn end(&mut self, took: u64, comes_back: bool) {
            let waker = Waker::from(Arc::clone(&self.woken));
            self.share.end(&Context::from_waker(&waker), took, comes_back);
        }

        fn is_woken(&self) -> bool {
            self.woken.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    fn connections(busy: &Rc<BusyConnections>, count: usize) -> Vec<Connection> {
        (0..count).map(|_| Connection::new(busy)).collect()
    }

    #[test]
    fn a_round_of_turns_is_as_long_however_many_take_part() {
        let busy = Rc::<BusyConnections>::default();
        let most = limits::BATCH_MICROSECONDS;
        let mut all = connections(&busy, 50);
        assert_eq!(all[0].share.microseconds(most), most);
        all.iter_mut().for_each(|one| one.end(0, true));
        let round: u64 = (0..50)
            .map(|at| {
                assert!(all[at].share.begin());
                let lasted = all[at].share.microseconds(most);
                all[at].end(0, true);
                lasted
            })
            .sum();
        assert!((limits::ROUND_MICROSECONDS - 50..=limits::ROUND_MICROSECONDS).contains(&round), "{round}");
        all.truncate(1);
        assert_eq!(all[0].share.microseconds(most), most);
        assert!(all[0].share.begin());
        all.extend(connections(&busy, 10_000));
        all.iter_mut().for_each(|one| one.end(0, true));
        assert_eq!(all[0].share.microseconds(most), limits::TURN_MICROSECONDS_MIN);
        drop(all);
        assert_eq!(busy.0.borrow().len(), 0);
    }

    /// A connection that is woken by other things has no turn before its time, and one that has not
    /// asked always has one.
    #[test]
    fn busy_connections_take_turns_and_others_do_not_wait_for_them() {
        let busy = Rc::<BusyConnections>::default();
        let mut all = connections(&busy, 4);
        for one in &mut all[..3] {
            assert!(one.share.begin());
            one.end(1, true);
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            assert!(all[3].share.begin(), "it has little to do");
            all[3].end(1, false);
            let mut turns = (0..3).filter(|at| all[*at].share.begin()).collect::<Vec<_>>();
            assert_eq!(turns.len(), 1, "one of them at a time");
            let turn = turns.remove(0);
            assert!(all[turn].is_woken());
            all[turn].end(1, true);
            order.push(turn);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_connection_that_is_gone_keeps_nobody_waiting() {
        let busy = Rc::<BusyConnections>::default();
        let mut all = connections(&busy, 4);
        all.iter_mut().for_each(|one| one.end(1, true));
        drop(all.remove(1)); // it has waited
        drop(all.remove(0)); // it was called
        assert!(all[0].is_woken() && all[0].share.begin());
        drop(all.remove(0)); // in its turn
        assert!(all[0].is_woken() && all[0].share.begin());
        all[0].end(1, false);
        assert_eq!(busy.0.borrow().len(), 0);
    }

    #[test]
    fn turns_that_were_asked_for_count_also_when_they_are_the_last() {
        let busy = Rc::<BusyConnections>::default();
        let mut all = connections(&busy, 3);
        for one in &mut all {
            assert!(one.share.begin());
            one.end(0, true);
        }
        let used = || busy.0.borrow().used;
        assert!(all[0].share.begin());
        all[0].end(70, false);
        assert_eq!(used(), 70);
        assert!(all[0].share.begin());
        all[0].end(5, false);
        assert_eq!(used(), 70, "it had not asked");
        assert!(all[1].share.begin());
        all[1].end(7, false);
        drop(all);
        assert_eq!((used(), busy.0.borrow().len()), (77, 0));
    }

    #[test]
    fn behind_a_while_of_busy_turns_everything_else_comes_first() {
        let mut round = Round::default();
        let mut comes_first = |used: u64| {
            round.waiting.insert(used, Waker::noop().clone());
            round.used += used;
            let (_, others_first) = round.next().unwrap();
            assert!(round.next().is_none(), "one at a time");
            round.called = None;
            others_first
        };
        let half = limits::BUSY_MICROSECONDS / 2;
        assert_eq!([0, half, half, half, half].map(&mut comes_first), [false, false, true, false, true]);
    }
}
