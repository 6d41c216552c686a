//! The watchers of an edge, for the services that watch: the Watch service on behalf of clients,
//! Lock and Election for themselves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::budget::Share;
use revd_member::error::{AuthError, Error};
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema::{self, AuthState};
use revd_member::watch::{Content, Hub, HubCounts, HubLimits, Reply, StreamId};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::Event;
use serde_json::json;

use crate::limits;
use crate::observe::counters::Counters;
use crate::observe::turns::Loop;

/// Edge view: the hub, and the state core's promise to tell this edge of each
/// new View while anybody watches.
#[derive(Debug)]
pub struct Watchers {
    hub: RefCell<Hub>,
    views: Arc<ViewSlot>,
    counters: Arc<Counters>,
    status: Arc<MemberStatus>,
    /// Says of each stream of a client what it may watch.
    judges: RefCell<Judges>,
    judging: RefCell<Judging>,
    /// Permissions that judges had to read since a step has looked.
    costs: Rc<Cell<u64>>,
    edge: u16,
}

/// Whether a range, a first key and the wire's form of its end, may be watched, and why not.
pub type WatchJudge = Box<dyn Fn(&View, &[u8], &[u8], Asked) -> Result<(), &'static str>>;

/// When a judge is asked about a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It is to be made.
    First,
    /// It is there, and users or roles have changed.
    Again,
}
/// How far watchers are judged anew, while rights are needed.
#[derive(Debug, Default)]
struct Judging {
    /// All watchers have been judged by this state of users and roles, or a newer one.
    judged: Option<AuthState>,
    round: Option<Round>,
}

/// Watchers are judged, some in each step, because users or roles have changed. Each is judged by
/// the newest View there is.
#[derive(Debug)]
struct Round {
    /// The View in which they had changed: when the round is over, it may be told of.
    view: View,
    /// Its users and roles.
    state: AuthState,
    /// The View of the round before: nothing newer than this is told meanwhile.
    told_of: Option<View>,
    /// The stream to go on with, and the watcher's id from which on.
    next: Option<(StreamId, i64)>,
}

impl Round {
    fn new(view: &View, state: AuthState, told_of: Option<View>) -> Self {
        Self { view: view.clone(), state, told_of, next: None }
    }
}

/// The judge of each stream.
#[derive(Default)]
struct Judges(BTreeMap<StreamId, WatchJudge>);

impl fmt::Debug for Judges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// A watch stream; it ends with its call.
#[derive(Debug)]
pub struct EdgeWatchStream {
    watchers: Rc<Watchers>,
    id: StreamId,
}

impl Watchers {
    /// No watchers yet.
    #[must_use]
    pub fn new(
        edge: u16,
        views: Arc<ViewSlot>,
        counters: Arc<Counters>,
        status: Arc<MemberStatus>,
        limits: HubLimits,
    ) -> Rc<Self> {
        let (hub, judges, judging) = (RefCell::new(Hub::new(limits)), RefCell::default(), RefCell::default());
        Rc::new(Self { hub, views, counters, status, judges, judging, costs: Rc::default(), edge })
    }

    /// Where judges add the permissions that they had to read: each counts as a watcher.
    #[must_use]
    pub fn costs(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.costs)
    }

    /// There may be a newer View: takes a step towards it. The rest is for [`Watchers::step_on`].
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn step(&self) -> Result<(), Error> {
        let mut hub = self.hub.borrow_mut();
        if hub.is_watching() {
            self.take_step(&mut hub)?;
            self.call_stepper(&mut hub);
        }
        Ok(())
    }

    /// Waits until there is a step to take that no news will bring, and takes it.
    ///
    /// # Errors
    /// When the store is damaged.
    pub async fn step_on(&self) -> Result<(), Error> {
        std::future::poll_fn(|context| {
            let polled = self.hub.borrow_mut().poll_steps(context);
            if self.judging.borrow().round.is_some() { Poll::Ready(()) } else { polled }
        })
        .await;
        let mut hub = self.hub.borrow_mut();
        self.take_step(&mut hub)?;
        if !hub.is_watching() {
            self.views.follow(self.edge, false);
        }
        Ok(())
    }

    fn call_stepper(&self, hub: &mut Hub) {
        if self.judging.borrow().round.is_some() {
            hub.wake_stepper();
        } else {
            hub.call_stepper();
        }
    }

    fn take_step(&self, hub: &mut Hub) -> Result<(), Error> {
        let turns = self.counters.turns(self.edge);
        turns.timed(
            Loop::Watches,
            || json!({}),
            || {
                let told_of = self.judge(hub);
                told_of.map_or(Ok(false), |view| hub.step(&view))
            },
        )?;
        self.count(hub);
        Ok(())
    }

    /// Judges some watchers, if users or roles have changed: those that have lost their right end
    /// before they are told of anything that is newer than that. The newest View that may be told
    /// of, if there is one.
    fn judge(&self, hub: &mut Hub) -> Option<View> {
        let view = self.views.load();
        let judging = &mut *self.judging.borrow_mut();
        if !self.status.needs_rights.load() {
            *judging = Judging::default();
            return Some(view);
        }
        let state = schema::auth_state(view.tables());
        if judging.round.is_none() && judging.judged == Some(state) {
            return Some(view);
        }
        let mut round = judging.round.take().unwrap_or_else(|| Round::new(&view, state, None));
        if !self.judge_some(hub, &mut round.next, &view) {
            return judging.round.insert(round).told_of.clone();
        }
        judging.judged = Some(round.state);
        if round.state == state {
            return Some(view);
        }
        // They have changed again meanwhile. However often they do, each round brings news.
        judging.round = Some(Round::new(&view, state, Some(round.view.clone())));
        Some(round.view)
    }

    /// Judges so many watchers as one step may; true when those were the last ones.
    fn judge_some(&self, hub: &mut Hub, next: &mut Option<(StreamId, i64)>, view: &View) -> bool {
        let judges = self.judges.borrow();
        let from = next.map_or(Bound::Unbounded, |(stream, _)| Bound::Included(stream));
        let mut left = limits::WATCHERS_JUDGED_PER_STEP;
        for (stream, judge) in judges.0.range((from, Bound::Unbounded)) {
            let from = next.filter(|(next, _)| next == stream).map_or(i64::MIN, |(_, id)| id);
            if left == 0 {
                *next = Some((*stream, from));
                return false;
            }
            let judge = |key: &[u8], range_end: &[u8]| judge(view, key, range_end, Asked::Again);
            let (rest, looked) = hub.revoke(*stream, from, left, judge, view);
            if let Some(id) = rest {
                *next = Some((*stream, id));
                return false;
            }
            // A stream without watchers takes time too, and so do rights that have to be made.
            let costs = usize::try_from(self.costs.take()).unwrap_or(usize::MAX);
            left = left.saturating_sub(looked.max(1).saturating_add(costs));
        }
        true
    }

    fn count(&self, hub: &Hub) {
        let HubCounts { streams, watchers, unsynced, events, .. } = hub.counts();
        let counters = self.counters.watches(self.edge);
        counters.streams.set(streams as u64);
        counters.watchers.set(watchers as u64);
        counters.lagging.set(unsynced as u64);
        counters.events.set(events);
    }

    /// A step of the progress clock.
    pub fn tick(&self, tick: u64) {
        self.hub.borrow_mut().tick(tick, &self.views.load());
    }

    /// A new stream; what waits on it is counted in `share`.
    #[must_use]
    pub fn open(self: &Rc<Self>, share: &Share) -> EdgeWatchStream {
        EdgeWatchStream { watchers: Rc::clone(self), id: self.hub.borrow_mut().open(share) }
    }

    /// Does something with the hub and the newest View. The state core is asked for news before the
    /// View is taken, so that none is missed.
    fn with_hub<T>(&self, change: impl FnOnce(&mut Hub, &View) -> T) -> T {
        self.views.follow(self.edge, true);
        let mut hub = self.hub.borrow_mut();
        let view = self.views.load();
        let result = change(&mut hub, &view);
        self.call_stepper(&mut hub);
        self.count(&hub);
        if !hub.is_watching() {
            self.views.follow(self.edge, false);
        }
        result
    }
}

impl EdgeWatchStream {
    /// From now on this decides what may be watched, each time that users or roles change.
    pub fn judge_by(&self, judge: WatchJudge) {
        self.watchers.judges.borrow_mut().0.insert(self.id, judge);
    }

    /// Carries out a request.
    pub fn request(&self, request: RequestUnion) {
        self.watchers.with_hub(|hub, view| match request {
            RequestUnion::CreateRequest(create) => match self.judge(&create, view) {
                Ok(()) => hub.create(self.id, &create, view),
                Err(reason) => hub.refuse(self.id, reason, view),
            },
            RequestUnion::CancelRequest(cancel) => hub.cancel(self.id, cancel.watch_id, view),
            RequestUnion::ProgressRequest(_) => hub.request_progress(self.id, view),
        });
    }

    /// Answers a request for a watcher with this reason not to make it.
    pub fn refuse(&self, reason: &'static str) {
        self.watchers.with_hub(|hub, view| hub.refuse(self.id, reason, view));
    }

    /// Whether a watcher may be made. An empty key stands for the smallest one. A bad start is
    /// refused as such, whoever asks.
    fn judge(&self, create: &WatchCreateRequest, view: &View) -> Result<(), &'static str> {
        if !self.watchers.status.needs_rights.load() || create.start_revision < 0 {
            return Ok(());
        }
        let judges = self.watchers.judges.borrow();
        let Some(judge) = judges.0.get(&self.id) else { return Ok(()) };
        let key = if create.key.is_empty() { &[0][..] } else { &create.key };
        judge(view, key, &create.range_end, Asked::First)
    }

    /// The next reply.
    pub fn take(&self) -> Option<Reply> {
        self.watchers.hub.borrow_mut().take(self.id)
    }

    /// Ready when there is a reply.
    pub fn poll_replies(&self, context: &Context<'_>) -> Poll<()> {
        if self.watchers.hub.borrow_mut().has_replies(self.id, context) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Whether the next request may be read.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.watchers.hub.borrow().takes_requests(self.id)
    }
}

impl Drop for EdgeWatchStream {
    fn drop(&mut self) {
        self.watchers.judges.borrow_mut().0.remove(&self.id);
        self.watchers.with_hub(|hub, _| hub.close(self.id));
    }
}

/// The only watcher of a stream of its own, for a call that needs to know what happens.
#[derive(Debug)]
pub struct OwnWatcher(EdgeWatchStream);

impl OwnWatcher {
    /// Begins to watch, as long as the judge lets it; events that are not taken yet are counted in
    /// `share`.
    #[must_use]
    pub fn new(
        watchers: &Rc<Watchers>,
        request: WatchCreateRequest,
        share: &Share,
        judge: WatchJudge,
    ) -> Self {
        let stream = watchers.open(share);
        stream.judge_by(judge);
        stream.request(RequestUnion::CreateRequest(request));
        Self(stream)
    }

    /// The next events, and the revision of their reply.
    ///
    /// # Errors
    /// [`Error::Compacted`] when a compaction took it; [`AuthError::PermissionDenied`] when the
    /// right to it is gone; [`Error::NoWatcher`] when there is no such watcher.
    pub async fn next(&self) -> Result<(i64, Vec<Event>), Error> {
        loop {
            std::future::poll_fn(|context| self.0.poll_replies(context)).await;
            match self.0.take() {
                Some(Reply { revision, content: Content::Events { events, .. }, .. }) => {
                    return Ok((revision, WatchResponse::decode(events)?.events));
                }
                Some(Reply { content: Content::Compacted(_), .. }) => return Err(Error::Compacted),
                Some(Reply { content: Content::Refused(reason), .. }) => {
                    return Err(Error::NoWatcher(reason));
                }
                Some(Reply { content: Content::Revoked(_), .. }) => {
                    return Err(Error::Auth(AuthError::PermissionDenied));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;

    #[test]
    fn a_call_that_needs_a_watcher_is_told_that_there_is_none() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let (views, counters) = (Arc::new(ViewSlot::new(store.view(), 1)), Arc::new(Counters::new(1)));
        let limits = HubLimits { fragment_bytes: 1 << 20, step_work: crate::limits::WATCH_STEP_WORK };
        let watchers = Watchers::new(0, views, counters, Arc::default(), limits);
        let follow = |key: &'static str, range_end: &'static str| {
            let (key, range_end) = (key.into(), range_end.into());
            let request = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
            OwnWatcher::new(&watchers, request, &Share::new(usize::MAX), Box::new(|_, _, _, _| Ok(())))
        };
        assert_eq!(block_on(poll_once(follow("a", "b").next())), None, "it waits for something to happen");
        let refused = block_on(poll_once(follow("b", "a").next())).expect("it does not wait");
        assert_eq!(refused, Err(Error::NoWatcher("mvcc: watcher range is empty")));
    }

    /// Watchers of a store in which rights are needed.
    struct Subject {
        store: Store,
        views: Arc<ViewSlot>,
        watchers: Rc<Watchers>,
        revision: u64,
        /// Every watcher has lost its right.
        is_revoked: Rc<Cell<bool>>,
        /// Watchers that were judged because users had changed.
        judged: Rc<Cell<usize>>,
    }

    impl Subject {
        fn new() -> Self {
            let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
            let (views, counters) = (Arc::new(ViewSlot::new(store.view(), 1)), Arc::new(Counters::new(1)));
            let status = Arc::new(MemberStatus::default());
            status.needs_rights.store(true);
            let limits = HubLimits { fragment_bytes: 1 << 20, step_work: crate::limits::WATCH_STEP_WORK };
            let watchers = Watchers::new(0, Arc::clone(&views), counters, status, limits);
            let (is_revoked, judged) = (Rc::default(), Rc::default());
            let mut subject = Self { store, views, watchers, revision: 1, is_revoked, judged };
            subject.change_users();
            subject
        }

        fn change_users(&mut self) {
            self.revision += 1;
            schema::put_auth_state(&mut self.store, AuthState { enabled: true, revision: self.revision });
            self.views.store(self.store.view());
        }

        fn put(&mut self) {
            let mut txn = self.store.begin();
            txn.put(b"k", b"", 0);
            txn.commit();
            self.views.store(self.store.view());
        }

        /// A stream with so many watchers of one key.
        fn stream(&self, watchers: usize) -> EdgeWatchStream {
            let stream = self.watchers.open(&Share::new(usize::MAX));
            let (is_revoked, judged) = (Rc::clone(&self.is_revoked), Rc::clone(&self.judged));
            stream.judge_by(Box::new(move |_, _, _, when| {
                judged.set(judged.get() + usize::from(when == Asked::Again));
                if is_revoked.get() { Err("revoked") } else { Ok(()) }
            }));
            for _ in 0..watchers {
                let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
                stream.request(RequestUnion::CreateRequest(create));
            }
            while stream.take().is_some() {}
            stream
        }

        /// Takes steps until there are none left; most watchers that were judged in one of them.
        fn settle(&self) -> usize {
            let before = self.judged.get();
            self.watchers.step().unwrap();
            let mut most = self.judged.get() - before;
            loop {
                let before = self.judged.get();
                if block_on(poll_once(self.watchers.step_on())).is_none() {
                    return most;
                }
                most = most.max(self.judged.get() - before);
            }
        }
    }

    /// Events, and watchers that were told that they have lost their right.
    fn told(streams: &[EdgeWatchStream]) -> (usize, usize) {
        let (mut events, mut revoked) = (0, 0);
        for stream in streams {
            while let Some(reply) = stream.take() {
                events += usize::from(matches!(reply.content, Content::Events { .. }));
                revoked += usize::from(matches!(reply.content, Content::Revoked(_)));
            }
        }
        (events, revoked)
    }

    #[test]
    fn very_many_watchers_are_judged_a_step_at_a_time_and_told_nothing_newer_before() {
        let per_step = crate::limits::WATCHERS_JUDGED_PER_STEP;
        let mut subject = Subject::new();
        let mut streams = vec![subject.stream(2 * per_step + 7)];
        streams.extend((0..per_step / 2).map(|_| subject.stream(2)));
        let all = 3 * per_step + 7;
        subject.settle();
        subject.put();
        subject.settle();
        assert_eq!(told(&streams), (all, 0));
        subject.judged.set(0);
        subject.change_users();
        subject.put();
        subject.watchers.step().unwrap();
        assert_eq!((subject.judged.get(), told(&streams)), (per_step, (0, 0)), "not all are judged");
        assert_eq!(subject.settle(), per_step);
        assert_eq!((subject.judged.get(), told(&streams)), (all, (all, 0)), "each once, then the event");
        subject.is_revoked.set(true);
        subject.change_users();
        subject.put();
        subject.settle();
        assert_eq!(told(&streams), (0, all));
    }

    /// A user whose rights have to be made of very many permissions is all of a step.
    #[test]
    fn permissions_that_have_to_be_read_count_as_watchers() {
        let mut subject = Subject::new();
        let streams: Vec<EdgeWatchStream> = (0..5).map(|_| subject.stream(1)).collect();
        for stream in &streams {
            let (costs, judged) = (subject.watchers.costs(), Rc::clone(&subject.judged));
            stream.judge_by(Box::new(move |_, _, _, _| {
                costs.set(costs.get() + crate::limits::WATCHERS_JUDGED_PER_STEP as u64);
                judged.set(judged.get() + 1);
                Ok(())
            }));
        }
        subject.settle();
        subject.judged.set(0);
        subject.change_users();
        subject.put();
        assert_eq!(subject.settle(), 1, "one in a step");
        assert_eq!((subject.judged.get(), told(&streams)), (5, (5, 0)));
    }

    /// Users change while watchers are judged, again and again: these are told of what was before.
    #[test]
    fn however_often_users_change_watchers_are_told_of_what_was_before() {
        let mut subject = Subject::new();
        let streams = [subject.stream(3 * crate::limits::WATCHERS_JUDGED_PER_STEP)];
        subject.settle();
        for _ in 0..10 {
            subject.change_users();
            subject.put();
            subject.watchers.step().unwrap();
        }
        let (events, revoked) = told(&streams);
        assert!(events > 0 && revoked == 0, "{events} events, {revoked} revoked");
        subject.settle();
        let (more, _) = told(&streams);
        // Each watcher is told of each put, of some of them together.
        assert!(events + more >= 3 * crate::limits::WATCHERS_JUDGED_PER_STEP);
    }
}
