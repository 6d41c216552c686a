//! The streams of a hub: their requests, and what waits to be sent on each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::{Context, Waker};

use bytes::Bytes;
use revd_engine::mvcc::View;
use revd_proto::etcdserverpb::WatchCreateRequest;
use revd_proto::etcdserverpb::watch_create_request::FilterType;

use crate::budget::{Hold, Share};
use crate::limits;
use crate::watch::changes::{Selection, fragments};
use crate::watch::hub::{Hub, Place, StreamId, Watcher};
use crate::watch::pass::{Seat, number};
use crate::watch::range::WatchRange;
use crate::watch::reply::{Content, NO_WATCHER, Reply};

/// Why a watcher is refused, as etcd words it.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
/// The same by our own bound.
const TOO_MANY: &str =
    "etcdserver: too many watchers on this member: cancel some, or connect to another member";

/// One call of a client.
#[derive(Debug)]
pub(super) struct Stream {
    /// Watchers by id; none for one that a compaction has ended: its id stays taken until the client cancels it.
    pub(super) ids: BTreeMap<i64, Option<usize>>,
    next_id: i64,
    /// Replies that were not taken yet ...
    outbox: VecDeque<Reply>,
    /// ... how much memory they hold, in the share of its connection: [`Reply::held_bytes`] of each ...
    hold: Hold,
    /// ... and how many of them have no events.
    answers: usize,
    /// It held as much as it may and holds more than half of it still, or its share had no room for it when it was last
    /// looked at.
    is_full: bool,
    /// Its place in `Hub::starved`.
    pub(super) starved: Option<u64>,
    /// The call is over; its watchers are being removed.
    pub(super) is_closed: bool,
    /// Watchers that have not been told of everything ...
    pub(super) lagging: usize,
    /// ... those of them that are read for, or wait to be ...
    pub(super) admitted: usize,
    /// ... and those that are not, by the revision they go on from.
    pub(super) parked: BTreeSet<(i64, u32)>,
    /// How often lagging ones were told of something since the last were admitted ...
    pub(super) served: u32,
    /// ... and how many those were.
    pub(super) admitted_last: usize,
    /// Watchers that a compaction has ended.
    pub(super) ended: usize,
    /// How many begin at which revision, for those that asked for the future.
    pub(super) begins: BTreeMap<i64, u32>,
    /// A request for progress waits for live watchers to be told of everything up to here; 0: none does.
    pub(super) asked: i64,
    /// Watchers that want to hear of progress.
    pub(super) progress_watchers: usize,
    /// When they are told next, in ticks.
    pub(super) progress_due: u64,
    call: Option<Waker>,
}

impl Stream {
    /// Nothing waits, and nobody watches; what will wait is counted in `share`.
    pub(super) fn new(share: &Share) -> Self {
        Self {
            ids: BTreeMap::new(),
            next_id: 0,
            outbox: VecDeque::new(),
            hold: share.hold(),
            answers: 0,
            is_full: false,
            starved: None,
            is_closed: false,
            lagging: 0,
            admitted: 0,
            parked: BTreeSet::new(),
            served: 0,
            admitted_last: 0,
            ended: 0,
            begins: BTreeMap::new(),
            asked: 0,
            progress_watchers: 0,
            progress_due: 0,
            call: None,
        }
    }

    /// Whether more events may wait here.
    pub(super) fn has_room(&self) -> bool {
        !self.is_full && self.has_share()
    }

    /// Whether others leave room. Where nothing waits, something may while a quarter of the core's memory is free: a client
    /// that reads one of its streams goes on, whatever waits on the others.
    fn has_share(&self) -> bool {
        let share = self.share();
        // Not `fits(0)`: that is also true of whoever holds nothing while nothing is left.
        share.fits(1) || (self.outbox.is_empty() && !share.budget().is_short())
    }

    /// Where what waits here is counted.
    pub(super) fn share(&self) -> &Share {
        self.hold.share()
    }

    /// Nothing more may wait here for now; whether taking what does wait will change that.
    pub(super) fn fill(&mut self) -> bool {
        if !self.is_full {
            self.share().refuse(); // its own bound is told of by push
        }
        self.is_full = true;
        !self.outbox.is_empty()
    }

    /// Others have let go of something: whether more may wait here again.
    pub(super) fn has_room_again(&mut self) -> bool {
        let has_room = self.hold.bytes() < limits::WATCH_STREAM_BYTES / 2 && self.has_share();
        self.is_full &= !has_room;
        has_room
    }

    /// The call is over: nothing waits here any more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.outbox = VecDeque::new();
        self.hold.set(0);
    }

    /// A watcher that was to begin at a revision of the future does not.
    pub(super) fn does_not_begin(&mut self, begin: i64) {
        if let Some(count) = self.begins.get_mut(&begin) {
            *count -= 1;
            if *count == 0 {
                self.begins.remove(&begin);
            }
        }
    }

    /// Leaves a reply and wakes the call.
    pub(super) fn push(&mut self, reply: Reply) {
        if self.is_closed {
            return;
        }
        self.hold.add(reply.held_bytes());
        self.is_full |= self.hold.bytes() >= limits::WATCH_STREAM_BYTES;
        self.answers += usize::from(!reply.has_events());
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

    fn wake(&mut self) {
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
    pub fn create(&mut self, id: StreamId, request: &WatchCreateRequest, view: &View) {
        self.seen = self.seen.max(view.revision());
        let (watch_id, content) = match self.try_create(id, request, view.revision()) {
            Ok(watch_id) => (watch_id, Content::Created),
            Err(reason) => (NO_WATCHER, Content::Refused(reason)),
        };
        self.streams[id.0].push(Reply { watch_id, revision: view.revision(), content });
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
        let shared = self.passes[self.live].shared(&range).cloned();
        let filters = |filter: FilterType| request.filters.contains(&(filter as i32));
        let begins_later = request.start_revision > now;
        let slot = self.watchers.insert(Watcher {
            id: watch_id,
            range: shared.unwrap_or_else(|| Rc::new(range)),
            next: if request.start_revision == 0 { now + 1 } else { request.start_revision },
            stream: number(id.0),
            seat: Seat::default(),
            place: Place::Future,
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
        let live = &mut self.passes[self.live];
        if live.members == 0 && live.is_idle() && self.future.is_empty() {
            live.told = live.told.max(now); // nobody is to be told of what was before
        }
        if next <= now {
            self.make_lagging(slot);
        } else if live.is_idle() && next == live.told + 1 {
            self.join(self.live, slot);
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
        let stream = &mut self.streams[id.0];
        let reply = stream.outbox.pop_front()?;
        stream.answers -= usize::from(!reply.has_events());
        if stream.outbox.is_empty() {
            stream.outbox.shrink_to(limits::WATCH_PLACES_KEPT);
        }
        // The reply still counts here, as it will where it goes.
        let left = stream.hold.bytes() - reply.held_bytes();
        let has_room = left < limits::WATCH_STREAM_BYTES / 2 && stream.has_share();
        stream.hold.release(reply.held_bytes());
        if stream.is_full && has_room {
            stream.is_full = false;
            self.readmit(id.0);
        } else if stream.is_full && stream.outbox.is_empty() {
            self.starve(id.0);
            self.call_stepper();
        }
        Some(reply)
    }

    /// Whether the stream's next request may be read: not while too many answers wait, for this stream or for its
    /// share.
    #[must_use]
    pub fn takes_requests(&self, id: StreamId) -> bool {
        let stream = &self.streams[id.0];
        let is_short = !stream.share().fits(1);
        stream.answers < if is_short { limits::WATCH_ANSWERS_MIN } else { limits::WATCH_ANSWERS_MAX }
    }

    /// Whether there is something to send; if not, the call of `context` is woken when there is.
    #[must_use]
    pub fn has_replies(&mut self, id: StreamId, context: &Context<'_>) -> bool {
        let stream = &mut self.streams[id.0];
        if !stream.outbox.is_empty() {
            return true;
        }
        if !stream.call.as_ref().is_some_and(|call| call.will_wake(context.waker())) {
            stream.call = Some(context.waker().clone());
        }
        false
    }
}
