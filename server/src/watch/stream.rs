//! The streams of a hub: their requests, and what waits to be sent on each.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Waker};

use bytes::Bytes;
use revd_engine::Result;
use revd_engine::mvcc::View;
use revd_proto::etcdserverpb::WatchCreateRequest;
use revd_proto::etcdserverpb::watch_create_request::FilterType;

use crate::limits;
use crate::watch::changes::{Selection, fragments};
use crate::watch::hub::{Group, Hub, StreamId, Watcher};
use crate::watch::range::WatchRange;
use crate::watch::reply::{Content, NO_WATCHER, Reply};

/// Why a watcher is refused, as etcd words it.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
/// The same by our own bound.
const TOO_MANY: &str =
    "etcdserver: too many watchers on this member: cancel some, or connect to another member";

/// Places for replies that an idle stream keeps.
const OUTBOX_KEPT: usize = 8;

/// One call of a client.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Watchers by id; none for one that a compaction has ended: its id stays taken until the client cancels it.
    pub(super) ids: BTreeMap<i64, Option<usize>>,
    next_id: i64,
    /// Replies that were not taken yet ...
    outbox: VecDeque<Reply>,
    /// ... and how much memory they hold.
    held_bytes: usize,
    /// Watchers that have not been told of everything.
    pub(super) lagging: Vec<usize>,
    /// Watchers that want to hear of progress.
    pub(super) progress_watchers: usize,
    /// When they are told next, in ticks.
    progress_due: u64,
    call: Option<Waker>,
}

impl Stream {
    /// Whether more may wait here.
    pub(super) fn has_room(&self) -> bool {
        self.held_bytes < limits::WATCH_STREAM_BYTES
    }

    /// Leaves a reply and wakes the call.
    pub(super) fn push(&mut self, reply: Reply) {
        self.held_bytes += reply.held_bytes();
        if self.outbox.capacity() == 0 {
            self.outbox.reserve_exact(1); // most streams never have more
        }
        self.outbox.push_back(reply);
        self.wake();
    }

    /// Leaves events, in parts of at most `fragment_bytes` if that is set.
    pub(super) fn push_events(
        &mut self,
        watch_id: i64,
        revision: i64,
        events: Bytes,
        fragment_bytes: Option<usize>,
    ) {
        let parts = match fragment_bytes {
            Some(bytes_max) if events.len() >= bytes_max => fragments(events, bytes_max),
            _ => {
                return self.push(Reply {
                    watch_id,
                    revision,
                    content: Content::Events { events, fragment: false },
                });
            }
        };
        let last = parts.len() - 1;
        for (at, events) in parts.into_iter().enumerate() {
            self.push(Reply { watch_id, revision, content: Content::Events { events, fragment: at < last } });
        }
    }

    pub(super) fn wake(&mut self) {
        if let Some(call) = self.call.take() {
            call.wake();
        }
    }

    fn free_id(&mut self) -> i64 {
        while self.ids.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }
}

impl Hub {
    /// A request for a new watcher.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn create(&mut self, id: StreamId, request: &WatchCreateRequest, view: &View) -> Result<()> {
        self.advance(view)?;
        let (watch_id, content) = match self.try_create(id, request) {
            Ok(watch_id) => (watch_id, Content::Created),
            Err(reason) => (NO_WATCHER, Content::Refused(reason)),
        };
        let revision = self.revision;
        self.streams[id.0].push(Reply { watch_id, revision, content });
        Ok(())
    }

    fn try_create(
        &mut self,
        id: StreamId,
        request: &WatchCreateRequest,
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
        let group = match self.ranges.get(&range) {
            Some(group) => group,
            None => {
                let range = Rc::new(range);
                let group = self.groups.insert(Group::new(&range));
                self.ranges.insert(&range, group);
                group
            }
        };
        self.groups[group].watchers += 1;
        let is_live = request.start_revision == 0 || request.start_revision > self.revision;
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        let slot = self.watchers.insert(Watcher {
            id: watch_id,
            stream: id.0,
            group,
            position: 0,
            is_live: false,
            next: request.start_revision,
            selection: Selection {
                prev_kv: request.prev_kv,
                no_put: filters(FilterType::Noput),
                no_delete: filters(FilterType::Nodelete),
            },
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            is_quiet: true,
        });
        stream.ids.insert(watch_id, Some(slot));
        stream.progress_watchers += usize::from(request.progress_notify);
        if is_live {
            self.make_live(slot)
        } else {
            self.make_lagging(slot)
        }
        Ok(watch_id)
    }

    /// A request to end a watcher; one that does not exist is not answered.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn cancel(&mut self, id: StreamId, watch_id: i64, view: &View) -> Result<()> {
        self.advance(view)?;
        let Some(slot) = self.streams[id.0].ids.remove(&watch_id) else { return Ok(()) };
        if let Some(slot) = slot {
            self.remove(slot);
        }
        let revision = self.revision;
        self.streams[id.0].push(Reply { watch_id, revision, content: Content::Canceled });
        Ok(())
    }

    /// A request to say how far all of a stream's watchers are; not answered while any is behind.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn request_progress(&mut self, id: StreamId, view: &View) -> Result<()> {
        self.advance(view)?;
        let stream = &mut self.streams[id.0];
        // As in etcd, one that a compaction has ended counts as behind until the client cancels it.
        let up_to_date =
            |slot: &Option<usize>| slot.is_some_and(|slot| self.watchers[slot].is_up_to_date(self.revision));
        let mut slots = stream.ids.values().peekable();
        if slots.peek().is_some() && slots.all(up_to_date) {
            stream.push(Reply { watch_id: NO_WATCHER, revision: self.revision, content: Content::Progress });
        }
        Ok(())
    }

    /// A step of the clock that [`limits::PROGRESS_TICKS`] of make a progress interval: whoever wants to know, was told
    /// nothing for an interval and is up to date hears how far that is.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn tick(&mut self, tick: u64, view: &View) -> Result<()> {
        self.advance(view)?;
        let Self { streams, watchers, revision, .. } = self;
        for (slot, stream) in &mut *streams {
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
            let slots: Vec<usize> = stream.ids.values().flatten().copied().collect();
            for watcher in slots {
                let watcher = &mut watchers[watcher];
                let was_quiet = std::mem::replace(&mut watcher.is_quiet, true);
                if watcher.progress_notify
                    && was_quiet
                    && watcher.is_up_to_date(*revision)
                    && stream.has_room()
                {
                    stream.push(Reply {
                        watch_id: watcher.id,
                        revision: *revision,
                        content: Content::Progress,
                    });
                }
            }
        }
        Ok(())
    }

    /// The next reply to send.
    pub fn take(&mut self, id: StreamId) -> Option<Reply> {
        let stream = &mut self.streams[id.0];
        let reply = stream.outbox.pop_front()?;
        stream.held_bytes -= reply.held_bytes();
        if stream.outbox.is_empty() {
            stream.outbox.shrink_to(OUTBOX_KEPT);
        }
        Some(reply)
    }

    /// Whether any watcher of a stream is behind.
    #[must_use]
    pub fn is_behind(&self, id: StreamId) -> bool {
        !self.streams[id.0].lagging.is_empty()
    }

    /// Whether there is something to send, or to read up on; if not, the call of `context` is woken when there is.
    #[must_use]
    pub fn has_work(&mut self, id: StreamId, context: &Context<'_>) -> bool {
        let stream = &mut self.streams[id.0];
        if !stream.outbox.is_empty() || !stream.lagging.is_empty() {
            return true;
        }
        if !stream.call.as_ref().is_some_and(|call| call.will_wake(context.waker())) {
            stream.call = Some(context.waker().clone());
        }
        false
    }
}
