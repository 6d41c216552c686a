//! What clients can call: check a request, then answer it from a View or hand it to the log.
//!
//! One file per service. A service sees bytes of a message and gives back bytes; the transport (`net`) knows
//! neither requests nor replies.

pub mod call;
mod cluster;
mod election;
pub mod header;
mod health;
mod kv;
mod lease;
mod lock;
mod maintenance;
pub mod method;
mod queue;
mod quota;
mod reflection;
mod txn;
pub mod validate;
mod watch;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use revd_engine::mvcc::View;
use revd_member::apply::alarm::Raised;
use revd_member::apply::command::Kind;
use revd_member::budget::{Budget, Patience, Share};
use revd_member::error::{Error, Status};
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema;
use revd_member::watch::HubLimits;

use crate::api::call::{Message, Metadata};
use crate::api::header::{Identity, with_header};
use crate::api::lease::LeaseIds;
pub use crate::api::lease::More;
use crate::api::method::{Method, Unary};
use crate::api::validate::RequestLimits;
pub use crate::api::watch::Watches;
use crate::disk::reserve::Reserve;
use crate::edge::pending::{Proposal, Proposals};
use crate::limits::{self as bounds, MemoryLimits};
use crate::observe::bounds::Bound;
use crate::observe::counters::Counters;
use crate::observe::turns::Turns;
use crate::queues::gate::Gate;

/// What the API of every edge is made from.
#[derive(Debug, Clone)]
pub struct ApiSeed {
    /// Who answers.
    pub identity: Identity,
    /// Bounds an operator sets.
    pub limits: RequestLimits,
    /// `--quota-backend-bytes`, as Status reports it.
    pub quota_bytes: i64,
    /// Seconds of the shortest lease.
    pub lease_ttl_min: i64,
    /// Lease ids begin somewhere by this.
    pub lease_seed: u64,
    /// Where the newest View is.
    pub views: Arc<ViewSlot>,
    /// Where consensus stands.
    pub status: Arc<MemberStatus>,
    /// Where watches are counted.
    pub counters: Arc<Counters>,
    /// Whether the disk is full.
    pub reserve: Arc<Reserve>,
    /// What connections may hold.
    pub memory: MemoryLimits,
}

/// Edge view: the services of one edge core.
#[derive(Debug)]
pub struct Api {
    identity: Identity,
    limits: RequestLimits,
    quota_bytes: i64,
    lease_ttl_min: i64,
    lease_ids: LeaseIds,
    views: Arc<ViewSlot>,
    status: Arc<MemberStatus>,
    reserve: Arc<Reserve>,
    counters: Arc<Counters>,
    proposals: Rc<Proposals>,
    budgets: Budgets,
    watches: Rc<Watches>,
    /// Calls that only end when the client or the member does.
    endless: Gate,
}

/// Edge view: the memory of its connections.
#[derive(Debug)]
pub struct Budgets {
    /// Requests, from their first byte until they are handled.
    pub requests: Budget,
    /// Replies that are made or were not taken yet.
    pub replies: Budget,
    /// What watch streams have yet to take.
    pub watches: Budget,
}

impl Budgets {
    fn new(limits: MemoryLimits) -> Self {
        Self {
            requests: Budget::new(limits.requests),
            replies: Budget::new(limits.replies),
            watches: Budget::new(limits.watches),
        }
    }
}

/// Versions and health, for the plain HTTP end points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The cluster's version, once it is agreed.
    pub cluster_version: Option<String>,
    /// Whether there is a leader.
    pub has_leader: bool,
    /// Which alarms are raised.
    pub raised: Raised,
}

impl Api {
    /// The services of an edge that proposes through `proposals`.
    #[must_use]
    pub fn new(seed: ApiSeed, proposals: Rc<Proposals>) -> Rc<Self> {
        let ApiSeed {
            identity,
            limits,
            quota_bytes,
            lease_ttl_min,
            lease_seed,
            views,
            status,
            counters,
            reserve,
            memory,
        } = seed;
        let lease_ids = LeaseIds::new(lease_seed.wrapping_add(u64::from(proposals.edge()) << 48));
        let budgets = Budgets::new(memory);
        let fragment_bytes = limits.request_bytes_max.saturating_add(bounds::GRPC_OVERHEAD_BYTES);
        let hub_limits = HubLimits { fragment_bytes, step_work: crate::limits::WATCH_STEP_WORK };
        let watches = Watches::new(proposals.edge(), Arc::clone(&views), Arc::clone(&counters), hub_limits);
        let endless = Gate::default();
        Rc::new(Self {
            identity,
            limits,
            quota_bytes,
            lease_ttl_min,
            lease_ids,
            views,
            status,
            reserve,
            counters,
            proposals,
            budgets,
            watches,
            endless,
        })
    }

    /// Lets a call go on until the member stops. The call stays where it is: moving it here would take its size twice.
    async fn until_stopped<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = Result<T, Status>>>,
    ) -> Result<T, Status> {
        let Some(pass) = self.endless.enter(usize::MAX) else { return Err(Error::Stopped.into()) };
        std::future::poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Pending => pass.poll_closed(context).map(|()| Err(Error::Stopped.into())),
            ready => ready,
        })
        .await
    }

    /// Ends calls that would go on for ever.
    pub fn stop(&self) {
        self.endless.close();
    }

    /// The memory of this core's connections.
    #[must_use]
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Called at a steady pace: nobody waits for room for ever, and who was refused is counted.
    pub fn look_at_budgets(&self) {
        self.budgets.replies.tick();
        self.budgets.watches.tick();
        for _ in 0..self.budgets.requests.take_refused() {
            self.reached(Bound::RequestBytes);
        }
        for _ in 0..self.budgets.watches.take_refused() {
            self.reached(Bound::WatchBytes);
        }
    }

    /// A bound was reached.
    pub fn reached(&self, bound: Bound) {
        self.counters.bounds.reached(bound);
    }

    /// Who watches here.
    #[must_use]
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// The newest revision this member has applied.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.views.load().revision()
    }

    /// For the plain HTTP end points.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let view = self.views.load();
        NodeReport {
            cluster_version: schema::cluster_version(view.tables()).map(str::to_owned),
            has_leader: self.status.leader.load() != 0,
            raised: Raised::of(view.tables()),
        }
    }

    /// How long this edge's turns take.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        self.counters.turns(self.proposals.edge())
    }

    /// Proposes a command and waits until it is durable and applied.
    ///
    /// # Errors
    /// What the client gets.
    pub async fn propose(&self, kind: Kind, message: Bytes) -> Result<Message, Error> {
        self.submit(kind, message, false).await
    }

    /// The same, however long that takes: for what the member itself cannot go on without.
    ///
    /// # Errors
    /// When the member stops.
    pub async fn propose_patiently(&self, kind: Kind, message: Bytes) -> Result<Message, Error> {
        self.submit(kind, message, true).await
    }

    async fn submit(&self, kind: Kind, message: Bytes, patient: bool) -> Result<Message, Error> {
        validate::proposal_size(message.len(), self.limits)?;
        let outcome = self.begin(kind, message, patient)?.await?;
        let result = outcome.result.map_err(|error| self.counted(error))?;
        Ok(self.reply(outcome.revision, vec![result]))
    }

    /// Proposes a command, and reads what is to be answered beside its result.
    async fn propose_and_read(&self, kind: Kind, message: Bytes, replies: &Share) -> Result<Message, Error> {
        validate::proposal_size(message.len(), self.limits)?;
        self.answer(self.begin(kind, message, false)?, replies).await
    }

    /// What a command's caller is told: its result, and what is read beside it.
    async fn answer(&self, proposal: Proposal, replies: &Share) -> Result<Message, Error> {
        let outcome = proposal.await?;
        let mut body = vec![outcome.result.map_err(|error| self.counted(error))?];
        let parts = outcome.rest.parts();
        if !parts.is_empty() {
            let rest = Box::pin(self.with_room(replies, async || txn::assemble(parts, replies).await)).await;
            body.extend(rest.map_err(|error| Error::Unanswered(Box::new(error)))?);
        }
        Ok(self.reply(outcome.revision, body))
    }

    /// Makes a reply. If it finds no room, it lets go of what is made, waits for twice as much, and begins again: nobody
    /// waits while holding what others wait for.
    async fn with_room<T>(
        &self,
        replies: &Share,
        make: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..bounds::REPLY_ATTEMPTS_MAX {
            let result = make().await;
            let Err(Error::NoReplyRoom { bytes }) = result else {
                return result.map_err(|error| self.counted(error));
            };
            self.reached(Bound::ReplyBytes);
            let wanted = (2 * bytes).min(replies.bytes_max());
            replies.room(wanted, Patience::Long).await.map_err(|_| Error::NoReplyRoom { bytes })?;
        }
        Err(Error::NoReplyRoom { bytes: replies.bytes_max() })
    }

    /// Counts an error that says that a bound was reached.
    fn counted(&self, error: Error) -> Error {
        let bound = match &error {
            Error::TxnCompares { .. } => Bound::TxnCompares,
            Error::TxnReads { .. } => Bound::TxnReads,
            Error::WriteReplyTooLarge { .. } => Bound::WriteReply,
            Error::SortTooLarge { .. } => Bound::SortBytes,
            Error::ReplyTooLarge { .. } | Error::NoReplyRoom { .. } => Bound::ReplyBytes,
            _ => return error,
        };
        self.reached(bound);
        error
    }

    /// Hands a command on, if there is room.
    fn begin(&self, kind: Kind, message: Bytes, patient: bool) -> Result<Proposal, Error> {
        let submitted = self.proposals.submit(kind, message, patient);
        if submitted.as_ref().is_err_and(|error| *error == Error::TooManyRequests) {
            self.reached(match kind {
                Kind::LeaseKeepAlive | Kind::LeaseNote => Bound::Keepalives,
                _ => Bound::Proposals,
            });
        }
        submitted
    }

    fn check_leader(&self, metadata: Metadata) -> Result<(), Error> {
        if metadata.requires_leader && self.status.leader.load() == 0 { Err(Error::NoLeader) } else { Ok(()) }
    }

    /// The state a read sees; see `read`.
    fn view_for_reading(&self, serializable: bool) -> Result<View, Error> {
        if !serializable && self.status.leader.load() == 0 {
            return Err(Error::NoLeader);
        }
        Ok(self.views.load())
    }

    fn reply(&self, revision: i64, body: Vec<Bytes>) -> Message {
        with_header(self.identity, revision, self.status.term.load(), body)
    }
}

/// Whether a call may take many turns: it reads more than one key. A look at its bytes only.
#[must_use]
pub fn may_be_long(method: Method, message: &Bytes) -> bool {
    match method {
        Method::Unary(Unary::Range) => has_field(message, RANGE_END),
        Method::Unary(Unary::DeleteRange) => has_field(message, RANGE_END) && has_field(message, PREV_KV),
        Method::Unary(Unary::Txn) => is_long_txn(message),
        _ => false,
    }
}

/// `range_end` of `RangeRequest` and `DeleteRangeRequest`, and `prev_kv` of the latter.
const RANGE_END: u32 = 2;
const PREV_KV: u32 = 3;

fn is_long_txn(message: &Bytes) -> bool {
    /// `range_end` of a `Compare`.
    const COMPARED_END: u32 = 64;
    /// Fields of a `RequestOp`.
    const REQUEST_RANGE: u32 = 1;
    const REQUEST_DELETE: u32 = 3;
    const REQUEST_TXN: u32 = 4;
    any_field(message, |field, part| match field {
        1 => has_field(part, COMPARED_END),
        2 | 3 => any_field(part, |field, request| match field {
            REQUEST_RANGE => has_field(request, RANGE_END),
            REQUEST_DELETE => has_field(request, RANGE_END) && has_field(request, PREV_KV),
            REQUEST_TXN => true, // whatever is in it
            _ => false,
        }),
        _ => false,
    })
}

fn has_field(message: &[u8], wanted: u32) -> bool {
    any_field(message, |field, _| field == wanted)
}

/// Whether any field is as wanted, given its number and, if it has a length, its content.
fn any_field(mut rest: &[u8], is_wanted: impl Fn(u32, &[u8]) -> bool) -> bool {
    while let Ok((field, wire_type)) = decode_key(&mut rest) {
        let mut content: &[u8] = &[];
        if wire_type == WireType::LengthDelimited {
            let Ok(len) = decode_varint(&mut rest) else { return false };
            let Some((inside, behind)) = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len))
            else {
                return false;
            };
            (content, rest) = (inside, behind);
        } else if skip_field(wire_type, field, &mut rest, DecodeContext::default()).is_err() {
            return false;
        }
        if is_wanted(field, content) {
            return true;
        }
    }
    false
}

fn decoded<T>(result: Result<T, prost::DecodeError>) -> Result<T, Error> {
    result.map_err(Error::from)
}
