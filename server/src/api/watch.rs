//! The Watch service: one call carries the requests and replies of many watchers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::budget::Share;
use revd_member::error::Error;
use revd_member::error::Status;
use revd_member::read::view_slot::ViewSlot;
use revd_member::watch::{Content, Hub, HubCounts, HubLimits, Reply, StreamId};
use revd_member::wire::{put_field, put_number};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use revd_proto::mvccpb::Event;
use revd_proto::tags::watch_response;
use serde_json::json;

use crate::api::call::{Message, Replies, Requests};
use crate::api::header::put_header;
use crate::api::{Api, decoded};
use crate::limits;
use crate::observe::counters::Counters;
use crate::observe::turns::Loop;
use crate::queues::turn::give_way;

/// Edge view: the hub, and the state core's promise to tell this edge of each new View while anybody watches.
#[derive(Debug)]
pub struct Watches {
    hub: RefCell<Hub>,
    views: Arc<ViewSlot>,
    counters: Arc<Counters>,
    edge: u16,
}

/// A stream; it ends with its call.
pub(super) struct OpenStream {
    watches: Rc<Watches>,
    id: StreamId,
}

impl Watches {
    /// Nobody watches yet.
    #[must_use]
    pub(super) fn new(
        edge: u16,
        views: Arc<ViewSlot>,
        counters: Arc<Counters>,
        limits: HubLimits,
    ) -> Rc<Self> {
        Rc::new(Self { hub: RefCell::new(Hub::new(limits)), views, counters, edge })
    }

    /// There may be a newer View: takes a step towards it. What is left is for [`Watches::step_on`].
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
        let turns = self.counters.turns(self.edge);
        turns.timed(Loop::Watches, || json!({}), || hub.step(&self.views.load()))?;
        self.count(hub);
        Ok(())
    }

    fn count(&self, hub: &Hub) {
        let HubCounts { streams, watchers, lagging, events, .. } = hub.counts();
        let counters = self.counters.watches(self.edge);
        counters.streams.set(streams as u64);
        counters.watchers.set(watchers as u64);
        counters.lagging.set(lagging as u64);
        counters.events.set(events);
    }

    /// A step of the progress clock.
    pub fn tick(&self, tick: u64) {
        self.hub.borrow_mut().tick(tick, &self.views.load());
    }

    /// A new stream; what waits on it is counted in `share`.
    #[must_use]
    pub(super) fn open(self: &Rc<Self>, share: &Share) -> OpenStream {
        OpenStream { watches: Rc::clone(self), id: self.hub.borrow_mut().open(share) }
    }

    /// Does something with the hub and the newest View. The state core is asked for news before the View is taken, so
    /// that none is missed.
    fn with_hub<T>(&self, change: impl FnOnce(&mut Hub, &View) -> T) -> T {
        self.views.follow(self.edge, true);
        let mut hub = self.hub.borrow_mut();
        let result = change(&mut hub, &self.views.load());
        hub.call_stepper();
        self.count(&hub);
        if !hub.is_watching() {
            self.views.follow(self.edge, false);
        }
        result
    }
}

impl OpenStream {
    /// Carries out a request.
    pub(super) fn request(&self, request: RequestUnion) {
        self.watches.with_hub(|hub, view| match request {
            RequestUnion::CreateRequest(create) => hub.create(self.id, &create, view),
            RequestUnion::CancelRequest(cancel) => hub.cancel(self.id, cancel.watch_id, view),
            RequestUnion::ProgressRequest(_) => hub.request_progress(self.id, view),
        });
    }

    /// The next reply.
    pub(super) fn take(&self) -> Option<Reply> {
        self.watches.hub.borrow_mut().take(self.id)
    }

    /// Ready when there is a reply.
    pub(super) fn poll_replies(&self, context: &Context<'_>) -> Poll<()> {
        if self.watches.hub.borrow_mut().has_replies(self.id, context) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Whether the next request may be read.
    fn takes_requests(&self) -> bool {
        self.watches.hub.borrow().takes_requests(self.id)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.watches.with_hub(|hub, _| hub.close(self.id));
    }
}

/// A watcher of our own.
pub(super) struct Following(OpenStream);

impl Following {
    fn new(watches: &Rc<Watches>, request: WatchCreateRequest, share: &Share) -> Self {
        let stream = watches.open(share);
        stream.request(RequestUnion::CreateRequest(request));
        Self(stream)
    }

    /// What happened next, and the revision of then.
    ///
    /// # Errors
    /// [`Error::Compacted`] when a compaction took it; [`Error::NoWatcher`] when there is no such watcher.
    pub(super) async fn next(&self) -> Result<(i64, Vec<Event>), Error> {
        loop {
            std::future::poll_fn(|context| self.0.poll_replies(context)).await;
            match self.0.take() {
                Some(Reply { revision, content: Content::Events { events, .. }, .. }) => {
                    return Ok((revision, decoded(WatchResponse::decode(events))?.events));
                }
                Some(Reply { content: Content::Compacted(_), .. }) => return Err(Error::Compacted),
                Some(Reply { content: Content::Refused(reason), .. }) => {
                    return Err(Error::NoWatcher(reason));
                }
                _ => {}
            }
        }
    }
}

/// What a stream can do next.
enum Turn {
    Reply,
    Request(Option<Result<Bytes, Status>>),
    /// The client is gone.
    Gone,
}

impl Api {
    /// Watches on behalf of a call that takes what happens as soon as it does, whatever its client does.
    pub(super) fn follow(&self, request: WatchCreateRequest) -> Following {
        self.follow_for(request, &self.budgets.watches.share())
    }

    /// Watches on behalf of a call whose client may keep it waiting: what is left then is in the share of its connection.
    pub(super) fn follow_for(&self, request: WatchCreateRequest, share: &Share) -> Following {
        Following::new(&self.watches, request, share)
    }

    /// Serves one watch stream until the client ends it. Requests and replies take turns: neither waits for the other.
    pub(super) async fn watch(
        &self,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let stream = self.watches.open(replies.share());
        let mut scratch = Vec::new();
        let mut more_requests = true;
        let mut done = 0;
        loop {
            let turn = std::future::poll_fn(|context| {
                let takes = more_requests && stream.takes_requests();
                for is_request in [done % 2 == 0, done % 2 != 0] {
                    if !is_request {
                        if let Some(turn) = poll_reply(&stream, replies, context) {
                            return Poll::Ready(turn);
                        }
                    } else if takes && let Poll::Ready(request) = requests.poll_next(context) {
                        return Poll::Ready(Turn::Request(request));
                    }
                }
                Poll::Pending
            });
            match turn.await {
                Turn::Request(Some(message)) => {
                    let request = decoded(WatchRequest::decode(message?))?;
                    if let Some(request) = request.request_union {
                        stream.request(request);
                    }
                }
                // The client has nothing more to ask, but still listens.
                Turn::Request(None) => more_requests = false,
                Turn::Reply => {
                    if let Some(reply) = stream.take() {
                        replies.put(self.encoded(reply, &mut scratch));
                    }
                }
                Turn::Gone => return Ok(()),
            }
            done += 1;
            if done % limits::WATCH_TURNS == 0 {
                give_way().await;
            }
        }
    }

    fn encoded(&self, reply: Reply, scratch: &mut Vec<u8>) -> Message {
        scratch.clear();
        put_header(scratch, self.identity, reply.revision, self.status.term.load());
        put_number(scratch, watch_response::WATCH_ID, reply.watch_id);
        let mut message = Message::new();
        match reply.content {
            Content::Created => put_number(scratch, watch_response::CREATED, 1),
            Content::Refused(reason) => {
                put_number(scratch, watch_response::CREATED, 1);
                put_number(scratch, watch_response::CANCELED, 1);
                put_field(scratch, watch_response::CANCEL_REASON, reason.as_bytes());
            }
            Content::Canceled => put_number(scratch, watch_response::CANCELED, 1),
            Content::Compacted(revision) => {
                put_number(scratch, watch_response::CANCELED, 1);
                put_number(scratch, watch_response::COMPACT_REVISION, revision);
            }
            Content::Progress => {}
            Content::Events { events, fragment } => {
                put_number(scratch, watch_response::FRAGMENT, i64::from(fragment));
                message.push(Bytes::copy_from_slice(scratch));
                message.push(events);
                return message;
            }
        }
        message.push(Bytes::copy_from_slice(scratch));
        message
    }
}

/// A reply to send, or word that there is nobody to send it to.
fn poll_reply(stream: &OpenStream, replies: &Replies, context: &mut Context<'_>) -> Option<Turn> {
    match replies.poll_ready(context) {
        Poll::Ready(false) => Some(Turn::Gone),
        Poll::Ready(true) => stream.poll_replies(context).is_ready().then_some(Turn::Reply),
        Poll::Pending => None,
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
        let limits = HubLimits { fragment_bytes: 1 << 20, step_work: limits::WATCH_STEP_WORK };
        let watches = Watches::new(0, views, counters, limits);
        let follow = |key: &'static str, range_end: &'static str| {
            let (key, range_end) = (key.into(), range_end.into());
            let request = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
            Following::new(&watches, request, &Share::new(usize::MAX))
        };
        assert_eq!(block_on(poll_once(follow("a", "b").next())), None, "it waits for something to happen");
        let refused = block_on(poll_once(follow("b", "a").next())).expect("it does not wait");
        assert_eq!(refused, Err(Error::NoWatcher("mvcc: watcher range is empty")));
    }
}
