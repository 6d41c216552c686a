//! The watchers of an edge, for the services that watch: the Watch service on behalf of clients,
//! Lock and Election for themselves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::budget::Share;
use revd_member::error::Error;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema::{self, AuthState};
use revd_member::watch::{Content, Hub, HubCounts, HubLimits, Reply, StreamId};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::Event;
use serde_json::json;

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
    /// The state of users and roles that all watchers have been judged by, while rights are
    /// needed.
    judged: Cell<Option<AuthState>>,
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
        let (hub, judges, judged) = (RefCell::new(Hub::new(limits)), RefCell::default(), Cell::new(None));
        Rc::new(Self { hub, views, counters, status, judges, judged, edge })
    }

    /// There may be a newer View: takes a step towards it. The rest is for [`Watchers::step_on`].
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn step(&self) -> Result<(), Error> {
        let mut hub = self.hub.borrow_mut();
        if hub.is_watching() {
            self.take_step(&mut hub)?;
            hub.call_stepper();
        }
        Ok(())
    }

    /// Waits until there is a step to take that no news will bring, and takes it.
    ///
    /// # Errors
    /// When the store is damaged.
    pub async fn step_on(&self) -> Result<(), Error> {
        std::future::poll_fn(|context| self.hub.borrow_mut().poll_steps(context)).await;
        let mut hub = self.hub.borrow_mut();
        self.take_step(&mut hub)?;
        if !hub.is_watching() {
            self.views.follow(self.edge, false);
        }
        Ok(())
    }

    fn take_step(&self, hub: &mut Hub) -> Result<(), Error> {
        let view = self.views.load();
        self.judge(hub, &view);
        let turns = self.counters.turns(self.edge);
        turns.timed(Loop::Watches, || json!({}), || hub.step(&view))?;
        self.count(hub);
        Ok(())
    }

    /// Users or roles may have changed: watchers that lost their right end before they are told of
    /// anything in this View.
    fn judge(&self, hub: &mut Hub, view: &View) {
        if !self.status.needs_rights.load() {
            return self.judged.set(None);
        }
        let state = schema::auth_state(view.tables());
        if self.judged.replace(Some(state)) != Some(state) {
            for (stream, judge) in &self.judges.borrow().0 {
                hub.revoke(*stream, |key, range_end| judge(view, key, range_end, Asked::Again), view);
            }
        }
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
        self.judge(&mut hub, &view);
        let result = change(&mut hub, &view);
        hub.call_stepper();
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
    /// Begins to watch; events that are not taken yet are counted in `share`.
    #[must_use]
    pub fn new(watchers: &Rc<Watchers>, request: WatchCreateRequest, share: &Share) -> Self {
        let stream = watchers.open(share);
        stream.request(RequestUnion::CreateRequest(request));
        Self(stream)
    }

    /// The next events, and the revision of their reply.
    ///
    /// # Errors
    /// [`Error::Compacted`] when a compaction took it; [`Error::NoWatcher`]
    /// when there is no such watcher.
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
                Some(Reply { content: Content::Revoked(reason), .. }) => {
                    return Err(Error::NoWatcher(reason));
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
            OwnWatcher::new(&watchers, request, &Share::new(usize::MAX))
        };
        assert_eq!(block_on(poll_once(follow("a", "b").next())), None, "it waits for something to happen");
        let refused = block_on(poll_once(follow("b", "a").next())).expect("it does not wait");
        assert_eq!(refused, Err(Error::NoWatcher("mvcc: watcher range is empty")));
    }
}
