//! Lagging watchers: told of the past, step by step, until they know everything.

use bytes::Bytes;
use revd_engine::Result;
use revd_engine::mvcc::{Revision, View};

use crate::limits;
use crate::watch::changes::{Change, Selection};
use crate::watch::hub::{Hub, StreamId, Watcher};
use crate::watch::range::WatchRange;
use crate::watch::reply::{Content, Reply};

/// A lagging watcher during one step.
struct Reading<'h> {
    slot: usize,
    range: &'h WatchRange,
    next: i64,
    selection: Selection,
    events: Vec<u8>,
}

impl Hub {
    /// Takes a step with a stream's lagging watchers, if there is room for what it finds; all of them read together.
    /// Call it again while [`Hub::has_work`], letting others go on in between.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn catch_up(&mut self, id: StreamId, view: &View) -> Result<()> {
        self.advance(view)?;
        if self.streams[id.0].lagging.is_empty() || !self.streams[id.0].has_room() {
            return Ok(());
        }
        self.cancel_compacted(id, view.compact_revision());
        // What the hub has told live watchers and what is read here must meet: both come from this View.
        debug_assert_eq!(view.revision(), self.revision, "views only move forward");
        let (reached, found) = self.read_step(id, view)?;
        for (slot, events) in found {
            self.caught_up_to(slot, reached, events);
        }
        Ok(())
    }

    /// Ends watchers that should have been told what is gone.
    fn cancel_compacted(&mut self, id: StreamId, compact_revision: i64) {
        let lagging = self.streams[id.0].lagging.clone();
        for slot in lagging {
            if self.watchers[slot].next < compact_revision {
                self.end_compacted(slot, compact_revision);
            }
        }
    }

    /// Ends a watcher: a compaction has taken what it should have been told.
    pub(super) fn end_compacted(&mut self, slot: usize, compact_revision: i64) {
        let Watcher { id: watch_id, stream, .. } = self.watchers[slot];
        self.remove(slot);
        let stream = &mut self.streams[stream];
        stream.ids.insert(watch_id, None);
        // As etcd: the header of this reply has no revision.
        stream.push(Reply { watch_id, revision: 0, content: Content::Compacted(compact_revision) });
    }

    /// Reads a bounded number of records behind the earliest cursor; the revision up to which everything was read, and
    /// what it means for each watcher that wants to know of revisions up to there.
    fn read_step(&self, id: StreamId, view: &View) -> Result<(i64, Vec<(usize, Bytes)>)> {
        let reading = |slot: &usize| {
            let watcher = &self.watchers[*slot];
            let range = &*self.groups[watcher.group].range;
            let (next, selection) = (watcher.next, watcher.selection);
            Reading { slot: *slot, range, next, selection, events: Vec::new() }
        };
        let mut watchers: Vec<Reading<'_>> = self.streams[id.0].lagging.iter().map(reading).collect();
        let Some(first) = watchers.iter().map(|watcher| watcher.next).min() else {
            return Ok((self.revision, Vec::new()));
        };
        let reader = view.reader();
        let (mut reached, mut last) = (self.revision, first - 1);
        let (mut records, mut bytes) = (0, 0);
        reader.each_record_after(Revision { main: last, sub: i64::MAX }, |key, record| {
            let full = records >= limits::WATCH_STEP_RECORDS || bytes >= limits::WATCH_STEP_BYTES;
            if full && key.revision.main > last {
                reached = last; // whole revisions only
                return Ok(false);
            }
            last = key.revision.main;
            records += 1;
            let change = Change::read(key, record)?;
            for watcher in &mut watchers {
                if watcher.next <= change.revision && watcher.range.contains(change.key) {
                    let before = watcher.events.len();
                    change.encode(watcher.selection, &reader, &mut watcher.events)?;
                    bytes += watcher.events.len() - before;
                }
            }
            Ok(true)
        })?;
        let told = watchers.into_iter().filter(|watcher| watcher.next <= reached);
        Ok((reached, told.map(|watcher| (watcher.slot, watcher.events.into())).collect()))
    }

    fn caught_up_to(&mut self, slot: usize, reached: i64, events: Bytes) {
        let watcher = &mut self.watchers[slot];
        watcher.next = reached + 1;
        if !events.is_empty() {
            watcher.is_quiet = false;
            let fragment_bytes = watcher.fragment.then_some(self.limits.fragment_bytes);
            self.streams[watcher.stream].push_events(watcher.id, self.revision, events, fragment_bytes);
        }
        if reached == self.revision {
            self.watchers[slot].next = 0; // whatever comes
            self.take_out(slot);
            self.make_live(slot);
        }
    }
}
