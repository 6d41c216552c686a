//! The Watch service: one call carries the requests and replies of many watchers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use revd_proto::mvccpb::Event;
use serde_json::json;
use tonic::Status;

use crate::api::call::{Message, Replies, Requests};
use crate::api::header::put_header;
use crate::api::{Api, decoded};
use crate::error::Error;
use crate::observe::counters::Counters;
use crate::observe::turns::Loop;
use crate::read::view_slot::ViewSlot;
use crate::watch::{Content, Hub, HubCounts, HubLimits, Reply, StreamId};
use crate::wire::{put_field, put_number};

/// Protobuf tags of `WatchResponse`.
const TAG_WATCH_ID: u8 = 0x10;
const TAG_CREATED: u8 = 0x18;
const TAG_CANCELED: u8 = 0x20;
const TAG_COMPACT_REVISION: u8 = 0x28;
const TAG_CANCEL_REASON: u8 = 0x32;
const TAG_FRAGMENT: u8 = 0x38;

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

    /// There may be a newer View.
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn advance(&self) -> Result<(), Error> {
        let mut hub = self.hub.borrow_mut();
        if hub.is_watching() {
            hub.advance(&self.views.load())?;
            self.count(&hub);
        }
        Ok(())
    }

    fn count(&self, hub: &Hub) {
        let HubCounts { streams, watchers, lagging, events } = hub.counts();
        let counters = self.counters.watches(self.edge);
        counters.streams.set(streams as u64);
        counters.watchers.set(watchers as u64);
        counters.lagging.set(lagging as u64);
        counters.events.set(events);
    }

    /// A step of the progress clock.
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn tick(&self, tick: u64) -> Result<(), Error> {
        Ok(self.hub.borrow_mut().tick(tick, &self.views.load())?)
    }

    /// A new stream.
    #[must_use]
    pub(super) fn open(self: &Rc<Self>) -> OpenStream {
        OpenStream { watches: Rc::clone(self), id: self.hub.borrow_mut().open() }
    }

    /// Does something with the hub and the newest View. The state core is asked for news before the View is taken, so
    /// that none is missed.
    fn with_hub<T>(&self, change: impl FnOnce(&mut Hub, &View) -> T) -> T {
        self.views.follow(self.edge, true);
        let mut hub = self.hub.borrow_mut();
        let result = change(&mut hub, &self.views.load());
        self.count(&hub);
        if !hub.is_watching() {
            self.views.follow(self.edge, false);
        }
        result
    }
}

impl OpenStream {
    /// Carries out a request.
    ///
    /// # Errors
    /// When the store is damaged.
    pub(super) fn request(&self, request: RequestUnion) -> Result<(), Error> {
        self.watches.with_hub(|hub, view| match request {
            RequestUnion::CreateRequest(create) => hub.create(self.id, &create, view),
            RequestUnion::CancelRequest(cancel) => hub.cancel(self.id, cancel.watch_id, view),
            RequestUnion::ProgressRequest(_) => hub.request_progress(self.id, view),
        })?;
        Ok(())
    }

    /// The next reply.
    pub(super) fn take(&self) -> Option<Reply> {
        self.watches.hub.borrow_mut().take(self.id)
    }

    /// Whether any watcher is behind.
    fn is_behind(&self) -> bool {
        self.watches.hub.borrow().is_behind(self.id)
    }

    /// Lets watchers that are behind read on; cheap if there are none.
    ///
    /// # Errors
    /// When the store is damaged.
    pub(super) fn catch_up(&self) -> Result<(), Error> {
        let mut hub = self.watches.hub.borrow_mut();
        hub.catch_up(self.id, &self.watches.views.load())?;
        self.watches.count(&hub);
        Ok(())
    }

    /// Ready when there is a reply, or something to read on.
    pub(super) fn poll_work(&self, context: &Context<'_>) -> Poll<()> {
        if self.watches.hub.borrow_mut().has_work(self.id, context) { Poll::Ready(()) } else { Poll::Pending }
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
    /// What happened next, and the revision up to which that is everything.
    ///
    /// # Errors
    /// [`Error::Compacted`] when a compaction took it.
    pub(super) async fn next(&self) -> Result<(i64, Vec<Event>), Error> {
        loop {
            std::future::poll_fn(|context| self.0.poll_work(context)).await;
            match self.0.take() {
                Some(Reply { revision, content: Content::Events { events, .. }, .. }) => {
                    return Ok((revision, decoded(WatchResponse::decode(events))?.events));
                }
                Some(Reply { content: Content::Compacted(_), .. }) => return Err(Error::Compacted),
                Some(_) => {}
                None => self.0.catch_up()?,
            }
        }
    }
}

/// What a stream waits for.
enum Turn {
    Work,
    Request(Option<Result<Bytes, Status>>),
}

impl Api {
    /// Watches on this member's own account.
    pub(super) fn follow(&self, request: WatchCreateRequest) -> Result<Following, Error> {
        let stream = self.watches.open();
        stream.request(RequestUnion::CreateRequest(request))?;
        Ok(Following(stream))
    }

    /// Serves one watch stream until the client ends it.
    pub(super) async fn watch(
        &self,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let stream = self.watches.open();
        let mut scratch = Vec::new();
        let mut more_requests = true;
        loop {
            let turn = std::future::poll_fn(|context| {
                if stream.poll_work(context).is_ready() {
                    return Poll::Ready(Turn::Work);
                }
                if more_requests && let Poll::Ready(request) = requests.poll_next(context) {
                    return Poll::Ready(Turn::Request(request));
                }
                Poll::Pending
            });
            match turn.await {
                Turn::Request(Some(message)) => {
                    let request = decoded(WatchRequest::decode(message?))?;
                    if let Some(request) = request.request_union {
                        stream.request(request)?;
                    }
                }
                // The client has nothing more to ask, but still listens.
                Turn::Request(None) => more_requests = false,
                Turn::Work => {
                    loop {
                        if !replies.ready().await {
                            return Ok(());
                        }
                        let Some(reply) = stream.take() else { break };
                        replies.put(self.encoded(reply, &mut scratch));
                    }
                    if stream.is_behind() {
                        self.turns().timed(Loop::CatchUp, || json!({}), || stream.catch_up())?;
                        futures_lite::future::yield_now().await;
                    }
                }
            }
        }
    }

    fn encoded(&self, reply: Reply, scratch: &mut Vec<u8>) -> Message {
        scratch.clear();
        put_header(scratch, self.identity, reply.revision, self.status.term.load());
        put_number(scratch, TAG_WATCH_ID, reply.watch_id);
        let mut message = Message::new();
        match reply.content {
            Content::Created => put_number(scratch, TAG_CREATED, 1),
            Content::Refused(reason) => {
                put_number(scratch, TAG_CREATED, 1);
                put_number(scratch, TAG_CANCELED, 1);
                put_field(scratch, TAG_CANCEL_REASON, reason.as_bytes());
            }
            Content::Canceled => put_number(scratch, TAG_CANCELED, 1),
            Content::Compacted(revision) => {
                put_number(scratch, TAG_CANCELED, 1);
                put_number(scratch, TAG_COMPACT_REVISION, revision);
            }
            Content::Progress => {}
            Content::Events { events, fragment } => {
                put_number(scratch, TAG_FRAGMENT, i64::from(fragment));
                message.push(Bytes::copy_from_slice(scratch));
                message.push(events);
                return message;
            }
        }
        message.push(Bytes::copy_from_slice(scratch));
        message
    }
}
