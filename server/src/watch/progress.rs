//! Replies that say how far a stream's watchers are.

use revd_engine::mvcc::View;

use crate::limits;
use crate::watch::hub::{Hub, Place, StreamId};
use crate::watch::pass::Budget;
use crate::watch::reply::{Content, NO_WATCHER, Reply};
use crate::watch::stream::Stream;

impl Stream {
    /// Every watcher has begun and knows everything up to `told`. As in etcd, one that a compaction has ended counts as
    /// behind until the client cancels it.
    fn is_up_to_date(&mut self, told: i64) -> bool {
        while self.begins.first_key_value().is_some_and(|(begin, _)| *begin <= told) {
            self.begins.pop_first();
        }
        !self.ids.is_empty() && self.lagging == 0 && self.ended == 0 && self.begins.is_empty()
    }
}

impl Hub {
    /// A request to say how far all of a stream's watchers are; not answered while any is behind.
    pub fn request_progress(&mut self, id: StreamId, view: &View) {
        self.seen = self.seen.max(view.revision());
        if self.is_at(view) {
            self.answer_progress(id.0);
        } else if !std::mem::replace(&mut self.streams[id.0].has_asked, true) {
            self.asked.push_back(id.0);
        }
    }

    fn answer_progress(&mut self, stream: usize) {
        let revision = self.told();
        let stream = &mut self.streams[stream];
        if stream.is_up_to_date(revision) {
            stream.push(Reply { watch_id: NO_WATCHER, revision, content: Content::Progress });
        }
    }

    /// Answers those who asked before live watchers had been told of everything.
    pub(super) fn answer_asked(&mut self, view: &View, budget: &mut Budget) {
        while !budget.is_spent()
            && self.is_at(view)
            && let Some(stream) = self.asked.pop_front()
        {
            self.streams[stream].has_asked = false;
            self.answer_progress(stream);
            budget.spend(1);
        }
    }

    /// A step of the clock that [`limits::PROGRESS_TICKS`] of make a progress interval: whoever wants to know, was told
    /// nothing for an interval and is up to date will hear how far that is.
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

    /// Tells watchers of streams that are due, in steps.
    pub(super) fn tell_progress(&mut self, budget: &mut Budget) {
        let revision = self.told();
        let live = Place::Pass(u8::try_from(self.live).expect("a handful of passes"));
        let is_between = !self.passes[self.live].is_idle();
        while !is_between
            && !budget.is_spent()
            && let Some((slot, from)) = self.progress_due.pop_front()
        {
            let stream = &mut self.streams[slot];
            let mut told = Vec::new();
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
                if watcher.progress_notify && was_quiet && has_begun && watcher.place == live {
                    told.push(*id);
                }
            }
            for watch_id in told {
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
