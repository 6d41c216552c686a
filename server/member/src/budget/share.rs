//! A budget of bytes, the shares of its connections, their holds, and the line of callers that wait
//! for room.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;

use crate::limits;

/// Edge view: the bytes that the connections of a core may hold of one kind. Clones are the same
/// budget.
#[derive(Debug, Clone)]
pub struct Budget(pub(super) Rc<Pool>);

#[derive(Debug)]
pub(super) struct Pool {
    bytes_max: usize,
    used: Cell<usize>,
    /// Refusals since the last [`Budget::take_refused`].
    refused: Cell<u64>,
    /// Counts releases; `listener` is woken by the next one.
    releases: Cell<u64>,
    listener: RefCell<Option<Waker>>,
    pub(super) waiting: RefCell<WaitLine>,
    /// Whether there may be a listener or waiters, so that a release has to look.
    pub(super) is_awaited: Cell<bool>,
}

/// Callers that wait for room, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct WaitLine {
    pub(super) rooms: BTreeMap<u64, RoomWaiter>,
    pub(super) next: u64,
    /// Bytes that waiters want that were woken and have not looked yet.
    pub(super) promised: usize,
    /// The last waiter beyond the front of the line that a release looked at.
    seen: u64,
    /// Waiters that were looked at.
    #[cfg(test)]
    looks: u64,
}

impl WaitLine {
    /// After a release, with `free` bytes: wakes waiters for whom there is room beside what is
    /// promised. Looks at some at the front of the line, and at some behind those of the last
    /// release.
    pub(super) fn offer(&mut self, free: usize) {
        let last = self.offer_from(0, free);
        let behind = last.map(|last| self.seen.max(last));
        self.seen = behind.and_then(|behind| self.offer_from(behind + 1, free)).unwrap_or(0);
    }

    /// Looks at some waiters from this ticket on; the last of them, unless the line ends or
    /// everything is promised.
    fn offer_from(&mut self, ticket: u64, free: usize) -> Option<u64> {
        let mut left = limits::LOOKS_PER_RELEASE;
        for (ticket, waiter) in self.rooms.range_mut(ticket..) {
            if free <= self.promised.saturating_mul(2) {
                return None;
            }
            #[cfg(test)]
            {
                self.looks += 1;
            }
            if !waiter.is_woken && waiter.share.fits(waiter.bytes.saturating_add(self.promised)) {
                waiter.is_woken = true;
                self.promised += waiter.bytes;
                waiter.waker.wake_by_ref();
            }
            left -= 1;
            if left == 0 {
                return Some(*ticket);
            }
        }
        None
    }

    /// Takes back what was promised to a waiter that looks or leaves; the waiter, if it is in the
    /// line.
    pub(super) fn takes_up(&mut self, ticket: u64) -> Option<&mut RoomWaiter> {
        let waiter = self.rooms.get_mut(&ticket)?;
        if std::mem::take(&mut waiter.is_woken) {
            self.promised -= waiter.bytes;
        }
        Some(waiter)
    }
}

/// How long a caller waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// For [`limits::PATIENCE_TICKS`]: the caller holds neither memory that others wait
    /// for nor a state.
    Long,
    /// For [`limits::HOLDING_PATIENCE_TICKS`]: the caller holds a state, or some of the
    /// budget: two such callers could wait for each other.
    Holding,
    /// Until the caller's client goes: the caller holds nothing meanwhile.
    Endless,
}

impl Patience {
    /// Ticks until the caller gives up, if it does.
    pub(super) fn ticks(self) -> Option<u32> {
        match self {
            Self::Long => Some(limits::PATIENCE_TICKS),
            Self::Holding => Some(limits::HOLDING_PATIENCE_TICKS),
            Self::Endless => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct RoomWaiter {
    pub(super) share: Share,
    pub(super) bytes: usize,
    pub(super) waker: Waker,
    /// The waiter was woken because there was room, and has not looked yet.
    pub(super) is_woken: bool,
    pub(super) patience: Patience,
    /// Ticks until the waiter gives up, if it does; reset whenever its own share releases
    /// something.
    pub(super) left: Option<u32>,
}

/// A connection's part of a budget. Clones are the same share.
#[derive(Debug, Clone)]
pub struct Share(Rc<ShareCounts>);

#[derive(Debug)]
struct ShareCounts {
    budget: Budget,
    held: Cell<usize>,
    /// Something of it was released since the last tick.
    has_released: Cell<bool>,
}

/// Bytes that are counted for as long as this lives.
#[derive(Debug)]
pub struct Hold {
    share: Share,
    bytes: usize,
}

/// There is no room for so many bytes at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

impl Budget {
    /// A budget of `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self(Rc::new(Pool {
            bytes_max,
            used: Cell::new(0),
            refused: Cell::new(0),
            releases: Cell::new(0),
            listener: RefCell::default(),
            waiting: RefCell::default(),
            is_awaited: Cell::new(false),
        }))
    }

    /// A new share, for a connection.
    #[must_use]
    pub fn share(&self) -> Share {
        Share(Rc::new(ShareCounts {
            budget: self.clone(),
            held: Cell::new(0),
            has_released: Cell::new(false),
        }))
    }

    /// Bytes that all shares may hold together.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes that all shares hold together.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.get()
    }

    /// Whether little is left: then each share that holds something is in the way of others.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.used() > self.bytes_max() / 4 * 3
    }

    /// Counts releases: a caller that found no room may find some when this has changed.
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.0.releases.get()
    }

    /// Sets the listener that the next release wakes: there is one, which looks after all callers
    /// that found no room.
    pub fn listen(&self, waker: &Waker) {
        *self.0.listener.borrow_mut() = Some(waker.clone());
        self.0.is_awaited.set(true);
    }

    /// Refusals since the last call.
    #[must_use]
    pub fn take_refused(&self) -> u64 {
        self.0.refused.take()
    }

    /// Called at a steady pace: each waiter is a tick nearer to giving up, and all are looked at.
    pub fn tick(&self) {
        let mut waiting = self.0.waiting.borrow_mut();
        for RoomWaiter { share, waker, patience, left, .. } in waiting.rooms.values_mut() {
            let one_less = left.map(|left| left.saturating_sub(1));
            *left = if share.0.has_released.get() { patience.ticks() } else { one_less };
            if *left == Some(0) {
                waker.wake_by_ref();
            }
        }
        for waiter in waiting.rooms.values_mut() {
            waiter.share.0.has_released.set(false);
            waiter.is_woken = false;
        }
        waiting.promised = 0;
        let mut next = Some(0);
        while let Some(from) = next {
            next = waiting.offer_from(from, self.free()).map(|last| last + 1);
        }
    }

    pub(super) fn free(&self) -> usize {
        self.0.bytes_max.saturating_sub(self.used())
    }

    fn take(&self, bytes: usize) {
        self.0.used.set(self.used() + bytes);
    }

    fn give(&self, bytes: usize) {
        self.0.used.set(self.used() - bytes);
        self.0.releases.set(self.releases() + 1);
        if self.0.is_awaited.get() {
            self.tell();
        }
    }

    /// Wakes the listener and waiters. Rare: most releases find none.
    #[cold]
    fn tell(&self) {
        self.0.is_awaited.set(!self.0.waiting.borrow().rooms.is_empty());
        if let Some(listener) = self.0.listener.take() {
            listener.wake();
        }
        self.offer();
    }

    pub(super) fn offer(&self) {
        self.0.waiting.borrow_mut().offer(self.free());
    }
}

impl Share {
    /// The only share of a budget of its own.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Budget::new(bytes_max).share()
    }

    /// The budget that it is a share of.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.get()
    }

    /// Whether it may hold `bytes` more at the moment.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        let used = self.budget().used().saturating_add(bytes);
        self.held().saturating_add(bytes) <= self.budget().bytes_max().saturating_sub(used)
    }

    /// Whether others need what this share holds: little is left, or there is a waiter that would
    /// have room if this share held nothing, or whose share holds no more than this one. The latter
    /// because, of many shares that hold some each, none need be in the way alone.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        let (bytes_max, used) = (self.budget().bytes_max(), self.budget().used());
        let without = bytes_max.saturating_sub(used - self.held());
        let waits_for_us = |RoomWaiter { share, bytes, .. }: &RoomWaiter| {
            let wanted = share.held().saturating_add(*bytes).saturating_add(*bytes);
            !Rc::ptr_eq(&share.0, &self.0) && (wanted <= without || share.held() <= self.held())
        };
        self.budget().is_short() || self.budget().0.waiting.borrow().rooms.values().any(waits_for_us)
    }

    /// Bytes that it could hold if no other share held anything: more will never fit.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.budget().bytes_max() / 2
    }

    /// A new hold, of no bytes.
    #[must_use]
    pub fn hold(&self) -> Hold {
        Hold { share: self.clone(), bytes: 0 }
    }

    /// Counts that a caller was refused for want of room.
    pub fn refuse(&self) {
        let refused = &self.budget().0.refused;
        refused.set(refused.get() + 1);
    }
}

impl Hold {
    /// Bytes that are held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The share in which they count.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Holds `bytes` more, if they fit.
    ///
    /// # Errors
    /// When they do not fit; nothing is changed then.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if !self.share.fits(bytes) {
            return Err(NoRoom);
        }
        self.add(bytes);
        Ok(())
    }

    /// Holds `bytes` more, whether they fit or not: their memory is in use already.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.share.0.held.set(self.share.held() + bytes);
        self.share.budget().take(bytes);
    }

    /// Holds `bytes` in total from now on, whether they fit or not.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.release(self.bytes - bytes);
        }
    }

    /// Releases `bytes`.
    ///
    /// # Panics
    /// If it does not hold them.
    pub fn release(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "{bytes} bytes of {} are released", self.bytes);
        if bytes > 0 {
            self.bytes -= bytes;
            self.share.0.held.set(self.share.held() - bytes);
            self.share.0.has_released.set(true);
            self.share.budget().give(bytes);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Room;
    use std::pin::Pin;
    use std::task::Context;

    use futures_lite::future::{block_on, poll_once};

    const KIB: usize = 1024;

    /// A hold of as many bytes as a share can get, in steps of `step`.
    fn greedy(share: &Share, step: usize) -> Hold {
        let mut hold = share.hold();
        while hold.grow(step).is_ok() {}
        hold
    }

    #[test]
    fn greedy_shares_leave_as_much_as_each_of_them_has() {
        for connections in [1, 2, 8, 50] {
            let budget = Budget::new(1024 * KIB);
            let shares: Vec<Share> = (0..connections).map(|_| budget.share()).collect();
            let mut holds: Vec<Hold> = shares.iter().map(Share::hold).collect();
            for _ in 0..1024 {
                for hold in &mut holds {
                    let _ = hold.grow(KIB);
                }
            }
            let fair = budget.bytes_max() / (connections + 1);
            assert!(holds.iter().all(|hold| hold.bytes() <= fair + KIB), "{connections} shares");
            // The next share finds room.
            assert!(budget.share().fits(fair / 2 - KIB), "{connections} shares");
            drop(holds);
            assert_eq!((budget.used(), shares[0].held()), (0, 0));
        }
    }

    #[test]
    fn held_bytes_count_until_they_are_released() {
        let budget = Budget::new(1000);
        let share = budget.share();
        let mut hold = share.hold();
        hold.add(300);
        hold.set(450);
        assert_eq!(hold.grow(100), Err(NoRoom), "more than is left");
        assert_eq!((hold.bytes(), share.held(), budget.used()), (450, 450, 450));
        hold.release(400);
        assert_eq!(hold.grow(100), Ok(()));
        hold.set(20);
        assert_eq!((hold.bytes(), share.held(), budget.used()), (20, 20, 20), "fewer than before");
        drop(hold);
        assert_eq!((share.held(), budget.used()), (0, 0));
    }

    #[test]
    fn a_waiter_gets_room_when_others_release_enough() {
        let budget = Budget::new(1024 * KIB);
        let (slow, other) = (budget.share(), budget.share());
        let mut held = greedy(&slow, KIB);
        let mut room = Box::pin(other.room(300 * KIB, Patience::Long));
        assert_eq!(block_on(poll_once(&mut room)), None);
        assert!(slow.is_in_the_way() && !other.is_in_the_way());
        held.release(50 * KIB);
        assert_eq!(block_on(poll_once(&mut room)), None);
        held.release(50 * KIB);
        assert_eq!(block_on(poll_once(&mut room)), Some(Ok(())));
        assert!(!slow.is_in_the_way(), "there is no waiter any more");
    }

    #[test]
    fn many_shares_that_hold_some_each_are_in_the_way_of_one_that_holds_nothing() {
        let budget = Budget::new(1024 * KIB);
        let (shares, other): (Vec<Share>, Share) = ((0..8).map(|_| budget.share()).collect(), budget.share());
        let mut holds: Vec<Hold> = shares.iter().map(Share::hold).collect();
        holds.iter_mut().for_each(|hold| hold.add(64 * KIB));
        let mut room = Box::pin(other.room(300 * KIB, Patience::Long));
        assert_eq!(block_on(poll_once(&mut room)), None);
        assert!(shares.iter().all(Share::is_in_the_way), "half is free, and no end of one alone would do");
        holds.truncate(6);
        assert_eq!(block_on(poll_once(&mut room)), Some(Ok(())));
        assert!(!shares.iter().any(Share::is_in_the_way));
    }

    #[test]
    fn a_waiter_gives_up_unless_its_own_client_takes_something() {
        let budget = Budget::new(1024 * KIB);
        let (slow, other) = (budget.share(), budget.share());
        let _held = greedy(&slow, KIB);
        let mut own = other.hold();
        own.add(100 * KIB);
        for patience in [Patience::Holding, Patience::Long, Patience::Endless] {
            let mut room = Box::pin(other.room(300 * KIB, patience));
            let mut poll = |ticks: u32| {
                (0..ticks).for_each(|_| budget.tick());
                block_on(poll_once(&mut room))
            };
            let ticks = patience.ticks().unwrap_or(1_000);
            assert_eq!(poll(ticks - 1), None, "{patience:?}");
            own.release(1);
            assert_eq!(poll(ticks - 1), None, "{patience:?}: its client takes replies");
            let end = (patience != Patience::Endless).then_some(Err(NoRoom));
            assert_eq!(poll(2), end, "{patience:?}");
        }
        assert!(budget.0.waiting.borrow().rooms.is_empty());
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Alarm(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Alarm {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Rooms that wait, and how often each was woken.
    struct Line(Vec<(Pin<Box<Room>>, std::sync::Arc<Alarm>)>);

    impl Line {
        fn new(budget: &Budget, count: usize, bytes: usize) -> Self {
            let wait = |_| (Box::pin(budget.share().room(bytes, Patience::Long)), std::sync::Arc::default());
            let mut line = Self((0..count).map(wait).collect());
            assert!((0..count).all(|at| !line.is_ready(at)));
            line
        }

        fn is_ready(&mut self, at: usize) -> bool {
            let (room, alarm) = &mut self.0[at];
            let waker = Waker::from(std::sync::Arc::clone(alarm));
            room.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        }

        fn woken(&self) -> Vec<usize> {
            let is_woken = |at: &usize| self.0[*at].1.0.load(std::sync::atomic::Ordering::Relaxed) > 0;
            (0..self.0.len()).filter(is_woken).collect()
        }
    }

    #[test]
    fn a_release_looks_at_few_waiters_however_many_there_are() {
        for count in [100, 10_000] {
            let budget = Budget::new(1024 * KIB);
            let mut held = greedy(&budget.share(), KIB);
            let _line = Line::new(&budget, count, 400 * KIB);
            let releases = 100;
            (0..releases).for_each(|_| held.release(1));
            let looks = budget.0.waiting.borrow().looks;
            assert!(
                looks <= 2 * releases * limits::LOOKS_PER_RELEASE as u64,
                "{looks} looks with {count} waiters"
            );
        }
    }

    #[test]
    fn free_bytes_are_promised_in_order_and_once() {
        let budget = Budget::new(1024 * KIB);
        let mut held = greedy(&budget.share(), KIB);
        let mut line = Line::new(&budget, 10_000, 300 * KIB);
        held.release(200 * KIB);
        assert_eq!(line.woken(), [0], "712 KiB are free");
        let looks = budget.0.waiting.borrow().looks;
        (0..1_000).for_each(|_| held.release(1));
        let more = budget.0.waiting.borrow().looks - looks;
        assert!(line.woken() == [0] && more <= 1_000 * 2 * limits::LOOKS_PER_RELEASE as u64, "{more} looks");
        // The first leaves without taking its room: the second gets it.
        drop(line.0.remove(0));
        assert_eq!(line.woken(), [0]);
        assert!(line.is_ready(0));
        // A small request far behind is found at the next tick at the latest.
        let mut small = Line::new(&budget, 0, KIB);
        held.add(212 * KIB);
        small.0.push((Box::pin(budget.share().room(270 * KIB, Patience::Long)), std::sync::Arc::default()));
        assert!(!small.is_ready(0));
        held.release(60 * KIB);
        assert_eq!((line.woken().len(), small.woken()), (1, vec![]));
        budget.tick();
        assert_eq!((line.woken().len(), small.woken()), (1, vec![0]));
        assert!(small.is_ready(0));
    }

    #[test]
    fn every_waiter_that_fits_is_woken_by_releases_alone() {
        let budget = Budget::new(1024 * KIB);
        let mut held = greedy(&budget.share(), KIB);
        let _large = Line::new(&budget, 100, 1024 * KIB);
        let mut small = Line::new(&budget, 1_000, 257 * KIB);
        held.release(3 * KIB);
        for _ in 0..1_100 / limits::LOOKS_PER_RELEASE {
            held.release(1);
        }
        let first = small.woken();
        assert_eq!(first.len(), 1, "there is room for one at a time");
        assert!(small.is_ready(first[0]));
    }
}
