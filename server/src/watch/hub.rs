//! The watchers of one edge, and how a new View reaches them.

use std::rc::Rc;

use bytes::Bytes;
use revd_engine::Result;
use revd_engine::mvcc::{Reader, View};
use slab::Slab;

use crate::limits;
use crate::watch::changes::{self, Change, Selection, encode_all};
use crate::watch::range::WatchRange;
use crate::watch::range_map::RangeMap;
use crate::watch::stream::Stream;

/// Bounds an operator sets.
#[derive(Debug, Clone, Copy)]
pub struct HubLimits {
    /// A watcher that accepts fragments gets responses no longer than this.
    pub fragment_bytes: usize,
}

/// Names a stream of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId(pub(super) usize);

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
}

/// Edge view: everybody who watches here.
#[derive(Debug)]
pub struct Hub {
    /// Every live watcher has been told of everything up to here.
    pub(super) revision: i64,
    pub(super) groups: Slab<Group>,
    pub(super) ranges: RangeMap,
    pub(super) watchers: Slab<Watcher>,
    pub(super) streams: Slab<Stream>,
    pub(super) limits: HubLimits,
    pub(super) lagging: usize,
    pub(super) events: u64,
}

/// Everybody who watches the same keys.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) range: Rc<WatchRange>,
    /// Watchers, live or not.
    pub(super) watchers: usize,
    /// The live ones.
    live: Vec<usize>,
    /// Changes of the batch at hand that are in the range.
    matched: Vec<usize>,
}

/// One watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) id: i64,
    pub(super) stream: usize,
    pub(super) group: usize,
    /// Its place among the group's live or the stream's lagging watchers.
    pub(super) position: usize,
    pub(super) is_live: bool,
    /// It wants nothing from before this revision; if it lags, it has been told of everything before.
    pub(super) next: i64,
    pub(super) selection: Selection,
    pub(super) fragment: bool,
    pub(super) progress_notify: bool,
    /// No event since it was last considered for a progress reply.
    pub(super) is_quiet: bool,
}

impl Group {
    pub(super) fn new(range: &Rc<WatchRange>) -> Self {
        Self { range: Rc::clone(range), watchers: 0, live: Vec::new(), matched: Vec::new() }
    }
}

impl Watcher {
    /// It knows everything up to `revision`, and has begun by then.
    pub(super) fn is_up_to_date(&self, revision: i64) -> bool {
        self.is_live && self.next <= revision
    }
}

impl Hub {
    /// Nobody watches yet.
    #[must_use]
    pub fn new(limits: HubLimits) -> Self {
        Self {
            revision: 0,
            groups: Slab::new(),
            ranges: RangeMap::default(),
            watchers: Slab::new(),
            streams: Slab::new(),
            limits,
            lagging: 0,
            events: 0,
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
        }
    }

    /// A new stream.
    pub fn open(&mut self) -> StreamId {
        StreamId(self.streams.insert(Stream::default()))
    }

    /// A stream is over, and all of its watchers.
    pub fn close(&mut self, id: StreamId) {
        for slot in std::mem::take(&mut self.streams[id.0].ids).into_values().flatten() {
            self.remove(slot);
        }
        self.streams.remove(id.0);
    }

    /// Tells live watchers of everything up to `view`.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn advance(&mut self, view: &View) -> Result<()> {
        let revision = view.revision();
        if revision <= self.revision {
            return Ok(());
        }
        if self.watchers.len() > self.lagging {
            let reader = view.reader();
            if !reader.is_whole_after(self.revision) {
                self.end_those_behind(&reader);
            }
            let changes = changes::after(&reader, self.revision)?;
            for group in self.matched_groups(&changes) {
                self.deliver(group, &changes, &reader, revision)?;
            }
        }
        self.revision = revision;
        Ok(())
    }

    /// This edge has stood still while a compaction passed it: whoever should have been told what is gone is ended. Those
    /// that begin behind it miss nothing.
    fn end_those_behind(&mut self, reader: &Reader<'_>) {
        let told = self.revision;
        let is_behind = |(_, watcher): &(usize, &Watcher)| {
            watcher.is_live && !reader.is_whole_after(told.max(watcher.next - 1))
        };
        let behind: Vec<usize> = self.watchers.iter().filter(is_behind).map(|(slot, _)| slot).collect();
        for slot in behind {
            self.end_compacted(slot, reader.compact_revision());
        }
    }

    /// Notes for each group which changes are its own; the groups that have any.
    fn matched_groups(&mut self, changes: &[Change<'_>]) -> Vec<usize> {
        let mut matched = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            self.ranges.each_group(change.key, |group| {
                let changes = &mut self.groups[group].matched;
                if changes.is_empty() {
                    matched.push(group);
                }
                changes.push(at);
            });
        }
        matched
    }

    /// Leaves a group's changes with the stream of each of its live watchers. What is the same for many is encoded once.
    fn deliver(
        &mut self,
        group: usize,
        changes: &[Change<'_>],
        reader: &Reader<'_>,
        revision: i64,
    ) -> Result<()> {
        let matched = std::mem::take(&mut self.groups[group].matched);
        let revision_of = |at: &usize| changes[*at].revision;
        let (Some(first), Some(last)) = (matched.first().map(revision_of), matched.last().map(revision_of))
        else {
            return Ok(());
        };
        let encode = |selection, from: i64| {
            let wanted = matched.iter().map(|at| &changes[*at]).filter(|change| change.revision >= from);
            encode_all(wanted, selection, reader, limits::WATCH_RESPONSE_BYTES)
        };
        let mut shared: [Option<Vec<Bytes>>; Selection::COUNT] = Default::default();
        let mut position = 0;
        while let Some(slot) = self.groups[group].live.get(position).copied() {
            let watcher = &mut self.watchers[slot];
            let stream = &mut self.streams[watcher.stream];
            if watcher.next > last {
                position += 1; // it begins later
                continue;
            }
            if !stream.has_room() {
                watcher.next = watcher.next.max(first);
                self.take_out(slot);
                self.make_lagging(slot);
                continue; // another one has taken its position
            }
            position += 1;
            let own;
            let events = if watcher.next > first {
                own = encode(watcher.selection, watcher.next)?;
                &own
            } else {
                let shared = &mut shared[watcher.selection.index()];
                if shared.is_none() {
                    *shared = Some(encode(watcher.selection, 0)?);
                }
                shared.as_ref().expect("filled a moment ago")
            };
            watcher.is_quiet &= events.is_empty();
            let fragment_bytes = watcher.fragment.then_some(self.limits.fragment_bytes);
            for piece in events {
                stream.push_events(watcher.id, revision, piece.clone(), fragment_bytes);
            }
            self.events += matched.len() as u64;
        }
        let group = &mut self.groups[group];
        group.matched = matched;
        group.matched.clear();
        Ok(())
    }

    /// Ends a watcher; its id is the caller's matter.
    pub(super) fn remove(&mut self, slot: usize) {
        self.take_out(slot);
        let watcher = self.watchers.remove(slot);
        self.streams[watcher.stream].progress_watchers -= usize::from(watcher.progress_notify);
        let group = &mut self.groups[watcher.group];
        group.watchers -= 1;
        if group.watchers == 0 {
            let group = self.groups.remove(watcher.group);
            self.ranges.remove(&group.range);
        }
    }

    /// Takes a watcher out of the list it is in.
    pub(super) fn take_out(&mut self, slot: usize) {
        let Watcher { is_live, group, stream, position, .. } = self.watchers[slot];
        let list = if is_live { &mut self.groups[group].live } else { &mut self.streams[stream].lagging };
        list.swap_remove(position);
        if let Some(moved) = list.get(position) {
            self.watchers[*moved].position = position;
        }
        self.lagging -= usize::from(!is_live);
    }

    pub(super) fn make_live(&mut self, slot: usize) {
        let watcher = &mut self.watchers[slot];
        let live = &mut self.groups[watcher.group].live;
        (watcher.is_live, watcher.position) = (true, live.len());
        live.push(slot);
    }

    pub(super) fn make_lagging(&mut self, slot: usize) {
        let watcher = &mut self.watchers[slot];
        let stream = &mut self.streams[watcher.stream];
        (watcher.is_live, watcher.position) = (false, stream.lagging.len());
        stream.lagging.push(slot);
        stream.wake();
        self.lagging += 1;
    }
}
