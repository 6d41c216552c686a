//! The watchers of one edge, and how a new View reaches them.

use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};

use revd_engine::Result;
use revd_engine::mvcc::View;
use slab::Slab;

use crate::budget::Share;
use crate::mutants::{self, Mutant};
use crate::watch::pass::{Reached, StepBudget, WatchPass, number};
use crate::watch::reply::{Content, Reply};
use crate::watch::starved::Starved;
use crate::watch::stream::{StreamId, WatchStream};
use crate::watch::watcher::{Watcher, WatcherPlace};

/// Bounds of a hub.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// A watcher that accepts fragments gets responses no longer than this.
    pub fragment_bytes: usize,
    /// Work of one step: [`crate::limits::WATCH_STEP_WORK`], or less to make steps end anywhere.
    pub step_work: usize,
}

/// Counts of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubCounts {
    /// Open streams.
    pub streams: usize,
    /// Watchers on them.
    pub watchers: usize,
    /// Those that are unsynced.
    pub unsynced: usize,
    /// Events left with streams since the start.
    pub events: u64,
    /// Streams that have nothing to send and wait for memory that others hold.
    pub starved: usize,
}

/// Edge view: all watchers of this edge.
#[derive(Debug)]
pub struct Hub {
    /// The synced one, those that catch up, and abandoned ones whose members have yet to be
    /// canceled.
    pub(super) passes: Vec<WatchPass>,
    pub(super) synced: usize,
    /// The passes of watchers that are far behind, and of those that are near.
    pub(super) catching_up: [usize; 2],
    /// Which of them goes first in the next step.
    pub(super) near_first: bool,
    /// Synced watchers that begin later, by the revision they begin at.
    pub(super) future: BTreeSet<(i64, u32)>,
    /// Unsynced watchers that the next pass is to take along, by the revision they go on from.
    pub(super) waiting: BTreeSet<(i64, u32)>,
    pub(super) watchers: Slab<Watcher>,
    pub(super) streams: Slab<WatchStream>,
    pub(super) limits: HubLimits,
    pub(super) unsynced: usize,
    pub(super) events: u64,
    /// The newest revision seen in a View.
    pub(super) seen: i64,
    /// Streams that are over, but not all of their watchers.
    pub(super) closing: VecDeque<usize>,
    /// Streams that asked for progress while the synced pass had yet to reach the newest revision,
    /// and that revision.
    pub(super) asked: VecDeque<(usize, i64)>,
    /// Streams whose watchers are due for progress notifications, and the watcher's id from which
    /// on.
    pub(super) progress_due: VecDeque<(usize, i64)>,
    /// Streams that wait for memory that others hold.
    pub(super) starved: Starved,
    /// The task that takes the steps.
    stepper: Option<Waker>,
}

impl Hub {
    /// Without watchers.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        Self {
            passes: vec![WatchPass::new(0, false), WatchPass::new(0, true), WatchPass::new(0, true)],
            synced: 0,
            catching_up: [1, 2],
            near_first: false,
            future: BTreeSet::new(),
            waiting: BTreeSet::new(),
            watchers: Slab::new(),
            streams: Slab::new(),
            limits,
            unsynced: 0,
            events: 0,
            seen: 0,
            closing: VecDeque::new(),
            asked: VecDeque::new(),
            progress_due: VecDeque::new(),
            starved: Starved::default(),
            stepper: None,
        }
    }

    /// There are watchers.
    #[must_use]
    pub fn is_watching(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Counts of a hub.
    #[must_use]
    pub fn counts(&self) -> HubCounts {
        HubCounts {
            streams: self.streams.len(),
            watchers: self.watchers.len(),
            unsynced: self.unsynced,
            events: self.events,
            starved: self.starved.len(),
        }
    }

    /// A new stream. The replies that wait on it are counted in `share`, its connection's; all
    /// shares are of one budget.
    pub fn open(&mut self, share: &Share) -> StreamId {
        StreamId(self.streams.insert(WatchStream::new(share)))
    }

    /// A stream is over, and all of its watchers; many take some steps.
    pub fn close(&mut self, id: StreamId) {
        self.forget_starved(id.0);
        self.streams[id.0].close();
        self.closing.push_back(id.0);
        let mut budget = StepBudget::new(self.limits.step_work);
        self.remove_closed(&mut budget);
        self.call_stepper();
    }

    fn remove_closed(&mut self, budget: &mut StepBudget) {
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

    /// The revision that synced watchers are synced to.
    pub(super) fn synced_to(&self) -> i64 {
        self.passes[self.synced].synced_to
    }

    /// Whether synced watchers have been told of all that is in a View.
    pub(super) fn is_at(&self, view: &View) -> bool {
        let synced = &self.passes[self.synced];
        synced.is_idle() && synced.synced_to >= view.revision() && !self.has_abandoned()
    }

    /// Watchers that were synced are yet to be canceled: a compaction has passed them.
    pub(super) fn has_abandoned(&self) -> bool {
        self.passes.iter().any(|pass| pass.compacted_at.is_some() && !pass.is_catching_up && pass.members > 0)
    }

    /// Tells of what is new in `view`: first synced watchers, then unsynced ones; bounded. True if
    /// there is more to do: let others go on and call it again, with the newest View, or with an
    /// older one as long as nothing behind that may be told.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn step(&mut self, view: &View) -> Result<bool> {
        self.seen = self.seen.max(view.revision());
        let mut budget = StepBudget::new(self.limits.step_work);
        self.run_synced(view, &mut budget)?;
        if self.has_chores() {
            let mut budget = StepBudget::new(self.limits.step_work);
            self.cancel_abandoned(&mut budget);
            self.remove_closed(&mut budget);
            // On a budget of its own: while clients take replies all the time, there is always one
            // more stream to look at.
            self.retry_starved(&mut StepBudget::new(self.limits.step_work));
            self.catch_up(view, &mut budget)?;
        }
        Ok(self.has_steps())
    }

    /// Tells synced watchers of all that is new in `view`.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn advance(&mut self, view: &View) -> Result<()> {
        self.seen = self.seen.max(view.revision());
        while !self.is_at(view) {
            let mut budget = StepBudget::new(self.limits.step_work);
            self.run_synced(view, &mut budget)?;
            self.cancel_abandoned(&mut budget);
        }
        Ok(())
    }

    /// Whether [`Hub::step`] has something to do.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        let synced = &self.passes[self.synced];
        !synced.is_idle() || synced.synced_to < self.seen || self.has_chores()
    }

    fn has_chores(&self) -> bool {
        let lists = [self.waiting.is_empty(), self.closing.is_empty(), self.asked.is_empty()];
        lists.contains(&false)
            || !self.progress_due.is_empty()
            || self.may_retry_starved()
            || self
                .passes
                .iter()
                .any(|pass| (pass.is_catching_up || pass.compacted_at.is_some()) && pass.members > 0)
    }

    /// Ready when there is a step to take; for the task that takes them.
    pub fn poll_steps(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.has_steps() {
            return Poll::Ready(());
        }
        self.listen(context);
        self.stepper = Some(context.waker().clone());
        Poll::Pending
    }

    /// Wakes the task that takes the steps, if there are any.
    pub fn call_stepper(&mut self) {
        if self.stepper.is_some()
            && self.has_steps()
            && let Some(stepper) = self.stepper.take()
        {
            stepper.wake();
        }
    }

    /// Wakes that task, for a reason of its own.
    pub fn wake_stepper(&mut self) {
        if let Some(stepper) = self.stepper.take() {
            stepper.wake();
        }
    }

    fn run_synced(&mut self, view: &View, budget: &mut StepBudget) -> Result<()> {
        self.cancel_compacted_future(view, budget);
        while !budget.is_spent() {
            let synced_to = self.synced_to();
            if self.passes[self.synced].is_idle() && synced_to < view.revision() {
                let reader = view.reader();
                if self.passes[self.synced].members > 0
                    && !mutants::is(Mutant::CompactionPassesHub)
                    && !reader.is_whole_after(synced_to)
                {
                    // This edge stood still while a compaction passed it.
                    let next = self.future.first().map_or(i64::MAX, |(begin, _)| *begin);
                    let whole_after = reader.compact_revision().min(next) - 1;
                    self.synced =
                        self.abandon(self.synced, reader.compact_revision(), whole_after.max(synced_to));
                }
            }
            if self.passes[self.synced].is_idle() {
                self.answer_asked(budget);
                self.notify_progress(budget);
            }
            if self.run(self.synced, view, view.revision(), budget)? {
                break;
            }
            if self.passes[self.synced].is_idle() && self.is_followed(synced_to) {
                break; // these can join only now: the next batch may be under way until there is one more
            }
        }
        Ok(())
    }

    /// Whether unsynced watchers have come to `synced_to`, which synced ones were synced to before.
    fn is_followed(&self, synced_to: i64) -> bool {
        let mut behind = self.catching_up.iter().map(|pass| &self.passes[*pass]);
        self.synced_to() > synced_to && behind.any(|pass| pass.members > 0 && pass.synced_to >= synced_to)
    }

    /// Cancels those that would begin with events that a compaction took before they were seen
    /// here.
    fn cancel_compacted_future(&mut self, view: &View, budget: &mut StepBudget) {
        let (reader, synced_to) = (view.reader(), self.passes[self.synced].reach());
        while !budget.is_spent()
            && let Some((begin, slot)) = self.future.first().copied()
        {
            let missed = begin > synced_to && begin <= view.revision() && !reader.is_whole_after(begin - 1);
            if !missed {
                return;
            }
            self.cancel_compacted(slot as usize, reader.compact_revision());
            budget.spend(3);
        }
    }

    /// A pass cannot go on, for a compaction has taken the next records: its members will be
    /// canceled. The pass that takes its place.
    pub(super) fn abandon(&mut self, pass: usize, compact_revision: i64, synced_to: i64) -> usize {
        let abandoned = &mut self.passes[pass];
        let is_catching_up = abandoned.is_catching_up;
        abandoned.drop_batch();
        abandoned.compacted_at = Some(compact_revision);
        let new = WatchPass::new(synced_to, is_catching_up);
        let is_free = |(at, pass): &(usize, &WatchPass)| {
            pass.compacted_at.is_some()
                && pass.members == 0
                && *at != self.synced
                && !self.catching_up.contains(at)
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

    /// Cancels members of abandoned passes.
    fn cancel_abandoned(&mut self, budget: &mut StepBudget) {
        for pass in 0..self.passes.len() {
            let Some(compact_revision) = self.passes[pass].compacted_at else { continue };
            while !budget.is_spent()
                && let Some(slot) = self.passes[pass].any()
            {
                self.cancel_compacted(slot as usize, compact_revision);
                budget.spend(3);
            }
        }
    }

    /// Takes a pass on towards `to`; true when it is there, false when the budget is spent or there
    /// is more to do.
    pub(super) fn run(&mut self, pass: usize, view: &View, to: i64, budget: &mut StepBudget) -> Result<bool> {
        if self.passes[pass].is_idle() {
            let Some(joining) = self.join_waiting(pass, budget) else { return Ok(false) };
            let current = &mut self.passes[pass];
            if current.synced_to >= to {
                return Ok(true);
            }
            let limit = to.min(joining);
            if current.members == 0 {
                current.synced_to = limit; // no watcher is to be told
                return Ok(false);
            }
            current.begin(view, limit);
        }
        if self.passes[pass].read(budget)? == Reached::Whole && self.deliver(pass, budget) {
            self.passes[pass].end();
        }
        Ok(false)
    }

    /// Lets watchers join that go on from where an idle pass is; the revision up to which the pass
    /// can go before the next one joins, or none if the budget is spent.
    fn join_waiting(&mut self, pass: usize, budget: &mut StepBudget) -> Option<i64> {
        loop {
            let WatchPass { synced_to, is_catching_up, .. } = self.passes[pass];
            let outside = if is_catching_up { &mut self.waiting } else { &mut self.future };
            let Some((next, slot)) = outside.range((synced_to + 1, 0)..).next().copied() else {
                return Some(i64::MAX);
            };
            if next > synced_to + 1 + i64::from(mutants::is(Mutant::WatcherJoinsEarly)) {
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

    /// A watcher that is in no list joins a pass.
    pub(super) fn join(&mut self, pass: usize, slot: usize) {
        let watcher = &mut self.watchers[slot];
        watcher.seat = self.passes[pass].join(number(slot), &mut watcher.range, watcher.selection);
        watcher.place = WatcherPlace::Pass(u8::try_from(pass).expect("a handful of passes"));
    }

    /// Leaves the events of the batch with the streams of members; false when the budget is spent
    /// before.
    fn deliver(&mut self, pass: usize, budget: &mut StepBudget) -> bool {
        let is_catching_up = self.passes[pass].is_catching_up;
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
                stream.served += u32::from(is_catching_up);
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

    /// Removes a watcher; its id is the caller's matter.
    pub(super) fn remove(&mut self, slot: usize) {
        self.leave(slot);
        let watcher = self.watchers.remove(slot);
        let synced_to = self.synced_to();
        let stream = &mut self.streams[watcher.stream as usize];
        stream.progress_watchers -= usize::from(watcher.progress_notify);
        if watcher.begins_later && watcher.next > synced_to {
            stream.does_not_begin(watcher.next);
        }
        self.admit_if_idle(watcher.stream as usize);
    }

    /// Cancels a watcher: a compaction has taken the next events it wants.
    pub(super) fn cancel_compacted(&mut self, slot: usize, compact_revision: i64) {
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
    fn a_pass_without_members_keeps_no_view() {
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
            assert!(hub.passes.iter().all(WatchPass::is_idle), "begins at {start_revision}: a View is kept");
            assert_eq!(hub.synced_to(), store.revision());
        }
    }
}
