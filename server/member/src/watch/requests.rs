//! Requests of a watch call to the hub: to create and to cancel watchers, and to hand over replies.

use std::rc::Rc;
use std::task::Context;

use revd_engine::mvcc::View;
use revd_proto::etcdserverpb::WatchCreateRequest;
use revd_proto::etcdserverpb::watch_create_request::FilterType;

use crate::limits;
use crate::watch::events::Selection;
use crate::watch::hub::Hub;
use crate::watch::pass::{Seat, number};
use crate::watch::range::WatchRange;
use crate::watch::reply::{Content, NO_WATCHER, Reply};
use crate::watch::stream::{AfterTake, StreamId};
use crate::watch::watcher::{Watcher, WatcherPlace};

/// Why a watcher is refused, as etcd words it.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
/// The same by our own bound.
const TOO_MANY: &str =
    "etcdserver: too many watchers on this member: cancel some, or connect to another member";

impl Hub {
    /// A request for a new watcher.
    pub fn create(&mut self, id: StreamId, request: &WatchCreateRequest, view: &View) {
        self.seen = self.seen.max(view.revision());
        let (watch_id, content) = match self.try_create(id, request, view.revision()) {
            Ok(watch_id) => (watch_id, Content::Created),
            Err(reason) => (NO_WATCHER, Content::Refused(reason)),
        };
        self.streams[id.0].push(Reply { watch_id, revision: view.revision(), content });
    }

    /// A watcher is refused for a reason that lies elsewhere.
    pub fn refuse(&mut self, id: StreamId, reason: &'static str, view: &View) {
        let content = Content::Refused(reason);
        self.streams[id.0].push(Reply { watch_id: NO_WATCHER, revision: view.revision(), content });
    }

    /// Cancels watchers of a stream whose ranges (first key, and the wire's form of the end) may
    /// not be watched any more: looks at so many of them, from this id on. The id to go on from, if
    /// there are more, and how many were looked at.
    pub fn revoke(
        &mut self,
        id: StreamId,
        from: i64,
        count: usize,
        mut judge: impl FnMut(&[u8], &[u8]) -> std::result::Result<(), &'static str>,
        view: &View,
    ) -> (Option<i64>, usize) {
        let (watchers, streams) = (&self.watchers, &self.streams);
        let (mut looked, mut revoked, mut next) = (0, Vec::new(), None);
        for (watch_id, slot) in streams[id.0].ids.range(from..) {
            if looked == count {
                next = Some(*watch_id);
                break;
            }
            looked += 1;
            let Some(slot) = *slot else { continue };
            let range = &watchers[slot].range;
            if let Err(reason) = judge(range.start(), range.wire_end()) {
                revoked.push((*watch_id, slot, reason));
            }
        }
        for (watch_id, slot, reason) in revoked {
            self.streams[id.0].ids.remove(&watch_id);
            self.remove(slot);
            let content = Content::Revoked(reason);
            self.streams[id.0].push(Reply { watch_id, revision: view.revision(), content });
        }
        (next, looked)
    }

    fn try_create(
        &mut self,
        id: StreamId,
        request: &WatchCreateRequest,
        now: i64,
    ) -> std::result::Result<i64, &'static str> {
        if request.start_revision < 0 {
            return Err(COMPACTED);
        }
        let range = WatchRange::from_wire(&request.key, &request.range_end).ok_or(EMPTY_RANGE)?;
        let stream = &mut self.streams[id.0];
        let watch_id = match request.watch_id {
            0 => stream.free_id(),
            taken if stream.ids.contains_key(&taken) => return Err(DUPLICATE_ID),
            chosen => chosen,
        };
        if self.watchers.len() >= limits::WATCHERS_PER_CORE_MAX {
            return Err(TOO_MANY);
        }
        let shared = self.passes[self.synced].shared(&range).cloned();
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        let begins_later = request.start_revision > now;
        let slot = self.watchers.insert(Watcher {
            id: watch_id,
            range: shared.unwrap_or_else(|| Rc::new(range)),
            next: if request.start_revision == 0 { now + 1 } else { request.start_revision },
            stream: number(id.0),
            seat: Seat::default(),
            place: WatcherPlace::Future,
            selection: Selection {
                prev_kv: request.prev_kv,
                no_put: filters(FilterType::Noput),
                no_delete: filters(FilterType::Nodelete),
            },
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            is_quiet: true,
            begins_later,
        });
        stream.ids.insert(watch_id, Some(slot));
        stream.progress_watchers += usize::from(request.progress_notify);
        if begins_later {
            *stream.begins.entry(request.start_revision).or_default() += 1;
        }
        self.place(slot, now);
        Ok(watch_id)
    }

    /// Finds a place for a new watcher.
    fn place(&mut self, slot: usize, now: i64) {
        let next = self.watchers[slot].next;
        let synced = &mut self.passes[self.synced];
        if synced.members == 0 && synced.is_idle() && self.future.is_empty() {
            synced.synced_to = synced.synced_to.max(now); // no watcher is to be told of what was before
        }
        if next <= now {
            self.make_unsynced(slot);
        } else if synced.is_idle() && next == synced.synced_to + 1 {
            self.join(self.synced, slot);
        } else {
            self.future.insert((next, number(slot)));
        }
    }

    /// A request to end a watcher; one that does not exist is not answered.
    pub fn cancel(&mut self, id: StreamId, watch_id: i64, view: &View) {
        let stream = &mut self.streams[id.0];
        match stream.ids.remove(&watch_id) {
            None => return,
            Some(None) => stream.ended -= 1,
            Some(Some(slot)) => self.remove(slot),
        }
        let revision = view.revision();
        self.streams[id.0].push(Reply { watch_id, revision, content: Content::Canceled });
    }

    /// The next reply to send.
    pub fn take(&mut self, id: StreamId) -> Option<Reply> {
        let (reply, after) = self.streams[id.0].take()?;
        match after {
            AfterTake::Unchanged => {}
            AfterTake::HasRoom => self.readmit(id.0),
            AfterTake::Starved => {
                self.starve(id.0);
                self.call_stepper();
            }
        }
        Some(reply)
    }

    /// Whether the stream's next request may be read: not while too many answers wait, for this
    /// stream or for its share.
    #[must_use]
    pub fn takes_requests(&self, id: StreamId) -> bool {
        self.streams[id.0].takes_requests()
    }

    /// Whether there is something to send; if not, the call of `context` is woken when there is.
    #[must_use]
    pub fn has_replies(&mut self, id: StreamId, context: &Context<'_>) -> bool {
        self.streams[id.0].has_replies(context)
    }
}
