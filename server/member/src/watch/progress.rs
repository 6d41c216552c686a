//! Progress notifications: replies that name the revision a stream's watchers are synced to.

use revd_engine::mvcc::View;

use crate::limits;
use crate::mutants::{self, Mutant};
use crate::watch::hub::Hub;
use crate::watch::pass::StepBudget;
use crate::watch::reply::{Content, NO_WATCHER, Reply};
use crate::watch::stream::{StreamId, WatchStream};
use crate::watch::watcher::WatcherPlace;

impl WatchStream {
    /// Every watcher has begun and is synced to `synced_to`. As in etcd, one that a compaction has
    /// canceled counts as unsynced until the client cancels it.
    fn is_up_to_date(&mut self, synced_to: i64) -> bool {
        while self.begins.first_key_value().is_some_and(|(begin, _)| *begin <= synced_to) {
            self.begins.pop_first();
        }
        !self.ids.is_empty() && self.unsynced == 0 && self.ended == 0 && self.begins.is_empty()
    }
}

impl Hub {
    /// A request for progress of all of a stream's watchers; not answered while any is unsynced.
    pub fn request_progress(&mut self, id: StreamId, view: &View) {
        self.seen = self.seen.max(view.revision());
        if self.is_at(view) || mutants::is(Mutant::ProgressTooEarly) {
            self.answer_progress(id.0);
        } else if std::mem::replace(&mut self.streams[id.0].asked, self.seen) == 0 {
            self.asked.push_back((id.0, self.seen));
        }
    }

    fn answer_progress(&mut self, stream: usize) {
        let revision = if mutants::is(Mutant::ProgressTooEarly) { self.seen } else { self.synced_to() };
        let stream = &mut self.streams[stream];
        if stream.is_up_to_date(revision) {
            stream.push(Reply { watch_id: NO_WATCHER, revision, content: Content::Progress });
        }
    }

    /// Answers streams that asked while the synced pass had yet to reach the newest revision. There
    /// need not be a moment at which it has reached the newest one.
    pub(super) fn answer_asked(&mut self, budget: &mut StepBudget) {
        let synced_to = self.synced_to();
        while !budget.is_spent()
            && let Some((stream, revision)) = self.asked.front().copied()
            && revision <= synced_to
            && !self.has_abandoned()
        {
            self.asked.pop_front();
            self.answer_progress(stream);
            let last = &mut self.streams[stream].asked;
            if *last > synced_to {
                self.asked.push_back((stream, *last)); // it has asked again meanwhile
            } else {
                *last = 0;
            }
            budget.spend(1);
        }
    }

    /// A step of the clock that [`limits::PROGRESS_TICKS`] of make a progress interval: a watcher
    /// that asked for it, is synced and had no event for an interval gets a progress notification.
    pub fn tick(&mut self, tick: u64, view: &View) {
        self.seen = self.seen.max(view.revision());
        for (slot, stream) in &mut self.streams {
            if stream.progress_watchers == 0 {
                stream.progress_due = 0;
                continue;
            }
            // Not all at once: up to a tenth later.
            let next = tick + limits::PROGRESS_TICKS + (slot as u64 & 1);
            let due = std::mem::replace(&mut stream.progress_due, next);
            if due == 0 || tick < due {
                stream.progress_due = if due == 0 { next } else { due };
                continue;
            }
            self.progress_due.push_back((slot, i64::MIN));
        }
        self.call_stepper();
    }

    /// Sends progress notifications to watchers of streams that are due, in steps; while the synced
    /// pass is idle.
    pub(super) fn notify_progress(&mut self, budget: &mut StepBudget) {
        let revision = self.synced_to();
        let synced = WatcherPlace::Pass(u8::try_from(self.synced).expect("a handful of passes"));
        while !budget.is_spent()
            && let Some((slot, from)) = self.progress_due.pop_front()
        {
            let stream = &mut self.streams[slot];
            let mut quiet = Vec::new();
            let mut rest = None;
            for (id, watcher) in stream.ids.range(from..) {
                if budget.is_spent() {
                    rest = Some(*id);
                    break;
                }
                budget.spend(1);
                let Some(watcher) = watcher.map(|slot| &mut self.watchers[slot]) else { continue };
                let was_quiet = std::mem::replace(&mut watcher.is_quiet, true);
                let has_begun = !watcher.begins_later || watcher.next <= revision;
                if watcher.progress_notify && was_quiet && has_begun && watcher.place == synced {
                    quiet.push(*id);
                }
            }
            for watch_id in quiet {
                if stream.has_room() {
                    stream.push(Reply { watch_id, revision, content: Content::Progress });
                }
            }
            if let Some(id) = rest {
                self.progress_due.push_front((slot, id));
            }
        }
    }
}
