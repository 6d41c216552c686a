//! One watch stream: its watchers' ids, and the replies that wait to be sent on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Context, Waker};

use bytes::Bytes;

use crate::budget::{Hold, Share};
use crate::limits;
use crate::watch::events::fragments;
use crate::watch::reply::{Content, Reply};

/// Names a stream of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub(super) usize);

/// One call of a client.
#[derive(Debug)]
pub(super) struct WatchStream {
    /// Watchers by id; none for one that a compaction has canceled: its id stays taken until the
    /// client cancels it.
    pub(super) ids: BTreeMap<i64, Option<usize>>,
    next_id: i64,
    /// Replies that were not taken yet ...
    outbox: VecDeque<Reply>,
    /// ... how much memory they hold, in the share of its connection: [`Reply::held_bytes`] of each
    /// ...
    hold: Hold,
    /// ... and how many of them have no events.
    answers: usize,
    /// It held as much as it may and holds more than half of it still, or its share had no room for
    /// it when it was last looked at.
    is_full: bool,
    /// Its place in `Hub::starved`.
    pub(super) starved: Option<u64>,
    /// The call is over; its watchers are being removed.
    pub(super) is_closed: bool,
    /// Watchers that are unsynced ...
    pub(super) unsynced: usize,
    /// ... those of them that are read for, or wait to be ...
    pub(super) admitted: usize,
    /// ... and those that are not, by the revision they go on from.
    pub(super) parked: BTreeSet<(i64, u32)>,
    /// How often unsynced ones were told of events since the last were admitted ...
    pub(super) served: u32,
    /// ... and how many those were.
    pub(super) admitted_last: usize,
    /// Watchers that a compaction has canceled.
    pub(super) ended: usize,
    /// How many begin at which revision, for those that asked for the future.
    pub(super) begins: BTreeMap<i64, u32>,
    /// A request for progress waits until the synced pass has come to this revision; 0: none does.
    pub(super) asked: i64,
    /// Watchers that asked for progress notifications.
    pub(super) progress_watchers: usize,
    /// When the next ones are due, in ticks.
    pub(super) progress_due: u64,
    call: Option<Waker>,
}

/// The change of a stream by the taking of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterTake {
    /// Nothing changed for its watchers.
    Unchanged,
    /// It was full and has room again.
    HasRoom,
    /// It is full although nothing waits on it: other streams hold the memory.
    Starved,
}

impl WatchStream {
    /// Without watchers and replies; replies that will wait are counted in `share`.
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
            unsynced: 0,
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

    /// Whether the share leaves room. On a stream without replies one may wait while a quarter of
    /// the core's memory is free: a client that reads one of its streams goes on, whatever waits on
    /// the others.
    fn has_share(&self) -> bool {
        let share = self.share();
        // Not `fits(0)`: that is also true of a share that holds nothing while nothing is left.
        share.fits(1) || (self.outbox.is_empty() && !share.budget().is_short())
    }

    /// The share in which waiting replies are counted.
    pub(super) fn share(&self) -> &Share {
        self.hold.share()
    }

    /// No more replies may wait here for now; whether taking those that do will change that.
    pub(super) fn fill(&mut self) -> bool {
        if !self.is_full {
            self.share().refuse(); // push counts its own bound
        }
        self.is_full = true;
        !self.outbox.is_empty()
    }

    /// Others have released memory: whether more replies may wait here again.
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

    /// The next reply to send.
    pub(super) fn take(&mut self) -> Option<(Reply, AfterTake)> {
        let reply = self.outbox.pop_front()?;
        self.answers -= usize::from(!reply.has_events());
        if self.outbox.is_empty() {
            self.outbox.shrink_to(limits::WATCH_PLACES_KEPT);
        }
        // The reply still counts here, as it will where it goes.
        let left = self.hold.bytes() - reply.held_bytes();
        let has_room = left < limits::WATCH_STREAM_BYTES / 2 && self.has_share();
        self.hold.release(reply.held_bytes());
        let after = match self.is_full {
            true if has_room => AfterTake::HasRoom,
            true if self.outbox.is_empty() => AfterTake::Starved,
            _ => AfterTake::Unchanged,
        };
        self.is_full &= after != AfterTake::HasRoom;
        Some((reply, after))
    }

    /// Whether the next request may be read: not while too many replies without events wait.
    pub(super) fn takes_requests(&self) -> bool {
        let is_short = !self.share().fits(1);
        self.answers < if is_short { limits::WATCH_ANSWERS_MIN } else { limits::WATCH_ANSWERS_MAX }
    }

    /// Whether there is something to send; if not, the call of `context` is woken when there is.
    pub(super) fn has_replies(&mut self, context: &Context<'_>) -> bool {
        if !self.outbox.is_empty() {
            return true;
        }
        if !self.call.as_ref().is_some_and(|call| call.will_wake(context.waker())) {
            self.call = Some(context.waker().clone());
        }
        false
    }

    fn wake(&mut self) {
        if let Some(call) = self.call.take() {
            call.wake();
        }
    }

    /// The smallest id from the last one on that no watcher of this stream has.
    pub(super) fn free_id(&mut self) -> i64 {
        while self.ids.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }
}
