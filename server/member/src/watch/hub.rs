//! The watchers of one edge, and how a new View reaches them.

use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};

use revd_engine::Result;
use revd_engine::mvcc::View;
use slab::Slab;

use crate::budget::Share;
use crate::watch::pass::{Budget, Pass, Reached, number};
use crate::watch::reply::{Content, Reply};
use crate::watch::starved::Starved;
use crate::watch::stream::{Stream, StreamId};
use crate::watch::watcher::{Place, Watcher};

/// Bounds of a hub.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// A watcher that accepts fragments gets responses no longer than this.
    pub fragment_bytes: usize,
    /// What one step may do: [`crate::limits::WATCH_STEP_WORK`], or less to see what stops in the middle.
    pub step_work: usize,
}

/// How much there is of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubCounts {
    /// Open streams.
    pub streams: usize,
    /// Watchers on them.
    pub watchers: usize,
    /// Those that have not been told of everything.
    pub lagging: usize,
    /// Events left for streams since the start.
    pub events: u64,
    /// Streams that have nothing to send and wait for memory that others hold.
    pub starved: usize,
}

/// Edge view: everybody who watches here.
#[derive(Debug)]
pub struct Hub {
    /// The live one, those of who is behind, and lost ones whose members have yet to be ended.
    pub(super) passes: Vec<Pass>,
    pub(super) live: usize,
    /// Who is far behind, and who is not.
    pub(super) behind: [usize; 2],
    /// Which of them goes first in the next step.
    pub(super) near_first: bool,
    /// Up-to-date watchers that begin later, by the revision they begin at.
    pub(super) future: BTreeSet<(i64, u32)>,
    /// Lagging watchers that the next pass is to take along, by the revision they go on from.
    pub(super) waiting: BTreeSet<(i64, u32)>,
    pub(super) watchers: Slab<Watcher>,
    pub(super) streams: Slab<Stream>,
    pub(super) limits: HubLimits,
    pub(super) lagging: usize,
    pub(super) events: u64,
    /// The newest revision seen in a View.
    pub(super) seen: i64,
    /// Streams that are over, but not all of their watchers.
    pub(super) closing: VecDeque<usize>,
    /// Streams that have asked for progress while live watchers had not been told of everything, and up to where that was.
    pub(super) asked: VecDeque<(usize, i64)>,
    /// Streams whose watchers are to hear of progress, and the watcher's id from which on.
    pub(super) progress_due: VecDeque<(usize, i64)>,
    /// Streams that wait for others to let go of memory.
    pub(super) starved: Starved,
    /// Who takes the steps.
    stepper: Option<Waker>,
}

impl Hub {
    /// Nobody watches yet.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        Self {
            passes: vec![Pass::new(0, false), Pass::new(0, true), Pass::new(0, true)],
            live: 0,
            behind: [1, 2],
            near_first: false,
            future: BTreeSet::new(),
            waiting: BTreeSet::new(),
            watchers: Slab::new(),
            streams: Slab::new(),
            limits,
            lagging: 0,
            events: 0,
            seen: 0,
            closing: VecDeque::new(),
            asked: VecDeque::new(),
            progress_due: VecDeque::new(),
            starved: Starved::default(),
            stepper: None,
        }
    }

    /// Anybody watches.
    #[must_use]
    pub fn is_watching(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// How much there is of everything.
    #[must_use]
    pub fn counts(&self) -> HubCounts {
        HubCounts {
            streams: self.streams.len(),
            watchers: self.watchers.len(),
            lagging: self.lagging,
            events: self.events,
            starved: self.starved.len(),
        }
    }

    /// A new stream. What waits on it is counted in `share`, its connection's; all are of one budget.
    pub fn open(&mut self, share: &Share) -> StreamId {
        StreamId(self.streams.insert(Stream::new(share)))
    }

    /// A stream is over, and all of its watchers; many take some steps.
    pub fn close(&mut self, id: StreamId) {
        self.forget_starved(id.0);
        self.streams[id.0].close();
        self.closing.push_back(id.0);
        let mut budget = Budget::new(self.limits.step_work);
        self.end_closed(&mut budget);
        self.call_stepper();
    }

    fn end_closed(&mut self, budget: &mut Budget) {
        while let Some(stream) = self.closing.front().copied() {
            while let Some((_, slot)) = self.streams[stream].ids.pop_first() {
                if let Some(slot) = slot {
                    self.remove(slot);
                }
                if !budget.spend(3) {
                    return;
                }
            }
            self.streams.remove(stream);
            self.closing.pop_front();
            self.asked.retain(|(asked, _)| *asked != stream);
            self.progress_due.retain(|(due, _)| *due != stream);
        }
    }

    /// Live watchers were told of everything up to here.
    pub(super) fn told(&self) -> i64 {
        self.passes[self.live].told
    }

    /// Whether live watchers have been told of all that is in a View.
    pub(super) fn is_at(&self, view: &View) -> bool {
        let live = &self.passes[self.live];
        live.is_idle() && live.told >= view.revision() && !self.is_losing()
    }

    /// Watchers that were live are yet to hear that a compaction has passed them.
    pub(super) fn is_losing(&self) -> bool {
        self.passes.iter().any(|pass| pass.lost.is_some() && !pass.is_behind && pass.members > 0)
    }

    /// Tells of what is new in `view`: first live watchers, then those that are behind; bounded. True if there is more to
    /// do: let others go on and call it again, with the newest View.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn step(&mut self, view: &View) -> Result<bool> {
        self.seen = self.seen.max(view.revision());
        let mut budget = Budget::new(self.limits.step_work);
        self.run_live(view, &mut budget)?;
        if self.has_chores() {
            let mut budget = Budget::new(self.limits.step_work);
            self.end_lost(&mut budget);
            self.end_closed(&mut budget);
            // While somebody takes something all the time, there is always one more to look at.
            self.feed(&mut Budget::new(self.limits.step_work));
            self.catch_up(view, &mut budget)?;
        }
        Ok(self.has_steps())
    }

    /// Tells live watchers of all that is new in `view`.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn advance(&mut self, view: &View) -> Result<()> {
        self.seen = self.seen.max(view.revision());
        while !self.is_at(view) {
            let mut budget = Budget::new(self.limits.step_work);
            self.run_live(view, &mut budget)?;
            self.end_lost(&mut budget);
        }
        Ok(())
    }

    /// Whether [`Hub::step`] has something to do.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        let live = &self.passes[self.live];
        !live.is_idle() || live.told < self.seen || self.has_chores()
    }

    fn has_chores(&self) -> bool {
        let lists = [self.waiting.is_empty(), self.closing.is_empty(), self.asked.is_empty()];
        lists.contains(&false)
            || !self.progress_due.is_empty()
            || self.may_feed()
            || self.passes.iter().any(|pass| (pass.is_behind || pass.lost.is_some()) && pass.members > 0)
    }

    /// Ready when there is a step to take; for the one who takes them.
    pub fn poll_steps(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.has_steps() {
            return Poll::Ready(());
        }
        self.listen(context);
        self.stepper = Some(context.waker().clone());
        Poll::Pending
    }

    /// Wakes who takes the steps, if there are any.
    pub fn call_stepper(&mut self) {
        if self.stepper.is_some()
            && self.has_steps()
            && let Some(stepper) = self.stepper.take()
        {
            stepper.wake();
        }
    }

    fn run_live(&mut self, view: &View, budget: &mut Budget) -> Result<()> {
        self.lose_future(view, budget);
        while !budget.is_spent() {
            let told = self.told();
            if self.passes[self.live].is_idle() && told < view.revision() {
                let reader = view.reader();
                if self.passes[self.live].members > 0 && !reader.is_whole_after(told) {
                    // This edge has stood still while a compaction passed it.
                    let next = self.future.first().map_or(i64::MAX, |(begin, _)| *begin);
                    let whole_after = reader.compact_revision().min(next) - 1;
                    self.live = self.lose(self.live, reader.compact_revision(), whole_after.max(told));
                }
            }
            if self.passes[self.live].is_idle() {
                self.answer_asked(budget);
                self.tell_progress(budget);
            }
            if self.run(self.live, view, view.revision(), budget)? {
                break;
            }
            if self.passes[self.live].is_idle() && self.is_followed(told) {
                break; // they can join only now, and the next batch may be under way until there is one more
            }
        }
        Ok(())
    }

    /// Whether those who were behind have been told of everything up to `told`, which live watchers were before.
    fn is_followed(&self, told: i64) -> bool {
        let mut behind = self.behind.iter().map(|pass| &self.passes[*pass]);
        self.told() > told && behind.any(|pass| pass.members > 0 && pass.told >= told)
    }

    /// Ends those that would begin with what a compaction took before it was seen here.
    fn lose_future(&mut self, view: &View, budget: &mut Budget) {
        let (reader, told) = (view.reader(), self.passes[self.live].reach());
        while !budget.is_spent()
            && let Some((begin, slot)) = self.future.first().copied()
        {
            let missed = begin > told && begin <= view.revision() && !reader.is_whole_after(begin - 1);
            if !missed {
                return;
            }
            self.end_compacted(slot as usize, reader.compact_revision());
            budget.spend(3);
        }
    }

    /// A pass cannot go on: its members will be ended. The pass that takes its place.
    pub(super) fn lose(&mut self, pass: usize, compact_revision: i64, told: i64) -> usize {
        let lost = &mut self.passes[pass];
        let is_behind = lost.is_behind;
        lost.drop_batch();
        lost.lost = Some(compact_revision);
        let new = Pass::new(told, is_behind);
        let is_free = |(at, pass): &(usize, &Pass)| {
            pass.lost.is_some() && pass.members == 0 && *at != self.live && !self.behind.contains(at)
        };
        let free = self.passes.iter().enumerate().find(is_free).map(|(at, _)| at);
        match free {
            Some(at) => {
                self.passes[at] = new;
                at
            }
            None => {
                self.passes.push(new);
                self.passes.len() - 1
            }
        }
    }

    /// Ends members of lost passes.
    fn end_lost(&mut self, budget: &mut Budget) {
        for pass in 0..self.passes.len() {
            let Some(compact_revision) = self.passes[pass].lost else { continue };
            while !budget.is_spent()
                && let Some(slot) = self.passes[pass].any()
            {
                self.end_compacted(slot as usize, compact_revision);
                budget.spend(3);
            }
        }
    }

    /// Takes a pass on towards `to`; true when it is there, false when the budget is spent or there is more to do.
    pub(super) fn run(&mut self, pass: usize, view: &View, to: i64, budget: &mut Budget) -> Result<bool> {
        if self.passes[pass].is_idle() {
            let Some(joining) = self.join_waiting(pass, budget) else { return Ok(false) };
            let current = &mut self.passes[pass];
            if current.told >= to {
                return Ok(true);
            }
            let limit = to.min(joining);
            if current.members == 0 {
                current.told = limit; // nobody is to be told
                return Ok(false);
            }
            current.begin(view, limit);
        }
        if self.passes[pass].read(budget)? == Reached::Whole && self.deliver(pass, budget) {
            self.passes[pass].end();
        }
        Ok(false)
    }

    /// Lets those join who go on from where an idle pass is; the revision up to which it can go before the next do, or
    /// none if the budget is spent.
    fn join_waiting(&mut self, pass: usize, budget: &mut Budget) -> Option<i64> {
        loop {
            let Pass { told, is_behind, .. } = self.passes[pass];
            let outside = if is_behind { &mut self.waiting } else { &mut self.future };
            let Some((next, slot)) = outside.range((told + 1, 0)..).next().copied() else {
                return Some(i64::MAX);
            };
            if next > told + 1 {
                return Some(next - 1);
            }
            if budget.is_spent() {
                return None;
            }
            outside.remove(&(next, slot));
            self.join(pass, slot as usize);
            budget.spend(3);
        }
    }

    /// A watcher that stands nowhere joins a pass.
    pub(super) fn join(&mut self, pass: usize, slot: usize) {
        let watcher = &mut self.watchers[slot];
        watcher.seat = self.passes[pass].join(number(slot), &mut watcher.range, watcher.selection);
        watcher.place = Place::Pass(u8::try_from(pass).expect("a handful of passes"));
    }

    /// Leaves what was found with the streams of members; false when the budget is spent before.
    fn deliver(&mut self, pass: usize, budget: &mut Budget) -> bool {
        let is_behind = self.passes[pass].is_behind;
        let revision = self.passes[pass].header_revision();
        loop {
            let mut full = None;
            let Some((found, encoded, members)) = self.passes[pass].next_found() else { return true };
            while !budget.is_spent()
                && let Some(slot) = found.next(members)
            {
                budget.spend(1);
                let watcher = &mut self.watchers[slot as usize];
                let stream = &mut self.streams[watcher.stream as usize];
                if !stream.has_room() {
                    full = Some((slot, found.first));
                    break;
                }
                self.events += found.count();
                stream.served += u32::from(is_behind);
                let events = found.events(watcher.selection, encoded);
                if !events.is_empty() {
                    watcher.is_quiet = false;
                    let fragment_bytes = watcher.fragment.then_some(self.limits.fragment_bytes);
                    stream.push_events(watcher.id, revision, events, fragment_bytes);
                }
            }
            if let Some((slot, first)) = full {
                self.park(slot as usize, first);
            } else if budget.is_spent() {
                return self.passes[pass].next_found().is_none();
            }
        }
    }

    /// Ends a watcher; its id is the caller's matter.
    pub(super) fn remove(&mut self, slot: usize) {
        self.leave(slot);
        let watcher = self.watchers.remove(slot);
        let told = self.told();
        let stream = &mut self.streams[watcher.stream as usize];
        stream.progress_watchers -= usize::from(watcher.progress_notify);
        if watcher.begins_later && watcher.next > told {
            stream.does_not_begin(watcher.next);
        }
        self.admit_if_idle(watcher.stream as usize);
    }

    /// Ends a watcher: a compaction has taken what it should have been told.
    pub(super) fn end_compacted(&mut self, slot: usize, compact_revision: i64) {
        let Watcher { id: watch_id, stream, .. } = self.watchers[slot];
        self.remove(slot);
        let stream = &mut self.streams[stream as usize];
        if stream.is_closed {
            stream.ids.remove(&watch_id);
            return;
        }
        stream.ids.insert(watch_id, None);
        stream.ended += 1;
        // As etcd: the header of this reply has no revision.
        stream.push(Reply { watch_id, revision: 0, content: Content::Compacted(compact_revision) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use revd_proto::etcdserverpb::WatchCreateRequest;

    use super::*;

    /// A View keeps all the memory and pages of its time.
    #[test]
    fn a_pass_that_everybody_has_left_keeps_no_view() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let mut txn = store.begin();
        for number in 0..100_u8 {
            txn.put(&[number], b"", 0);
        }
        txn.commit();
        for start_revision in [0, 1] {
            let mut hub = Hub::new(HubLimits { fragment_bytes: 1 << 20, step_work: 10 });
            let (stream, other) = (hub.open(&Share::new(usize::MAX)), hub.open(&Share::new(usize::MAX)));
            let (key, range_end) = (b"\0".as_ref().into(), b"\0".as_ref().into());
            let request =
                WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
            let idle = WatchCreateRequest { key: b"idle".as_ref().into(), ..WatchCreateRequest::default() };
            hub.create(stream, &request, &store.view());
            if start_revision > 0 {
                hub.create(other, &idle, &store.view());
            } else {
                let mut txn = store.begin();
                for number in 0..100_u8 {
                    txn.put(&[number], b"", 0);
                }
                txn.commit();
            }
            hub.step(&store.view()).unwrap();
            hub.step(&store.view()).unwrap();
            assert!(hub.passes.iter().any(|pass| !pass.is_idle()), "a batch is under way");
            hub.cancel(stream, 0, &store.view());
            while hub.step(&store.view()).unwrap() {}
            assert!(hub.passes.iter().all(Pass::is_idle), "begins at {start_revision}: a View is kept");
            assert_eq!(hub.told(), store.revision());
        }
    }
}
