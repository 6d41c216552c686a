//! The context that the services of one edge share: the newest View, raft's status, the way to the
//! log, memory, bounds.
//!
//! Rules for the calls of every service hook in here: [`ServiceContext::admit`] is asked before
//! each of them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use revd_engine::mvcc::View;
use revd_member::apply::alarm::Raised;
use revd_member::auth::Access;
use revd_member::budget::{Budget, Patience, Share};
use revd_member::cluster::Identity;
use revd_member::cluster::version::AgreedVersions;
use revd_member::error::{Error, Status};
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_member::schema;
use revd_proto::etcdserverpb::ResponseHeader;

use crate::api::auth::parts::AuthParts;
use crate::api::call::{Message, Metadata, StreamingCall};
use crate::api::header::{with_header, with_short_body};
use crate::api::validate::RequestLimits;
use crate::disk::reserve::Reserve;
use crate::edge::pending::Proposals;
use crate::limits::{self, MemoryLimits};
use crate::observe::bounds::Bound;
use crate::observe::calls::CountedCall;
use crate::observe::counters::Counters;
use crate::observe::seldom::Seldom;
use crate::observe::turns::Turns;
use crate::queues::gate::Gate;

/// How members may change, as the operator has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberRules {
    /// `--strict-reconfig-check`
    pub is_strict: bool,
    /// `--max-learners`
    pub learners_max: u32,
    /// `--learner-reads`
    pub learner_reads: bool,
}

/// The parts that the API of every edge is made from.
#[derive(Debug, Clone)]
pub struct ApiSeed {
    /// The member that answers.
    pub identity: Identity,
    /// Bounds an operator sets.
    pub limits: RequestLimits,
    /// `--quota-backend-bytes`, as Status reports it.
    pub quota_bytes: i64,
    /// Seconds of the shortest lease.
    pub lease_ttl_min: i64,
    /// How members may change.
    pub member_rules: MemberRules,
    /// Lease ids start at a random place that depends on this.
    pub lease_seed: u64,
    /// Holds the newest View.
    pub views: Arc<ViewSlot>,
    /// Term, leader and indexes of raft.
    pub status: Arc<MemberStatus>,
    /// Numbers for operators.
    pub counters: Arc<Counters>,
    /// Disk space set aside for what must not fail.
    pub reserve: Arc<Reserve>,
    /// Memory that connections may take.
    pub memory: MemoryLimits,
    /// Tokens and passwords.
    pub auth: AuthParts,
}

/// Edge view: what the services of one edge core work with.
#[derive(Debug)]
pub struct ServiceContext {
    pub(super) identity: Identity,
    pub(super) limits: RequestLimits,
    pub(super) quota_bytes: i64,
    pub(super) member_rules: MemberRules,
    pub(super) views: Arc<ViewSlot>,
    pub(super) status: Arc<MemberStatus>,
    pub(super) reserve: Arc<Reserve>,
    pub(super) counters: Arc<Counters>,
    pub(super) proposals: Rc<Proposals>,
    pub(super) budgets: Budgets,
    pub(super) auth: AuthParts,
    /// The rights of users as of the newest View that somebody was judged by.
    pub(super) access: RefCell<Access>,
    /// Lines about callers that were refused, by the kind of their refusal.
    pub(super) audit_paces: [Seldom; 4],
    /// Calls that only end when the client or the member does; another gate after each time that
    /// they had to.
    endless: RefCell<Gate>,
    /// Streams whose clients want them to end without a leader; another gate after each time.
    led: RefCell<Gate>,
    /// There was no leader for an election timeout, as [`crate::duties::leader_watch`] saw it.
    is_leaderless: Cell<bool>,
    /// A call has seen a leader since that look.
    was_led: Cell<bool>,
}

/// Edge view: the memory of its connections.
#[derive(Debug)]
pub struct Budgets {
    /// Requests, from their first byte until they are handled.
    pub requests: Budget,
    /// Replies that are being made, or that clients have not taken yet.
    pub replies: Budget,
    /// Replies of watch streams that clients have not taken yet.
    pub watches: Budget,
    /// Bytes that clients leave unfinished before it is known that they speak HTTP/2, or in HTTP/1.
    pub sessions: Budget,
}

impl Budgets {
    fn new(limits: MemoryLimits) -> Self {
        Self {
            requests: Budget::new(limits.requests),
            replies: Budget::new(limits.replies),
            watches: Budget::new(limits.watches),
            sessions: Budget::new(limits::SESSION_BYTES_PER_CORE),
        }
    }
}

/// Health, for the plain HTTP end points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The cluster has a leader.
    pub has_leader: bool,
    /// This member has no vote.
    pub is_learner: bool,
    /// Alarms of any member.
    pub raised: Raised,
}

impl ServiceContext {
    pub(super) fn new(seed: ApiSeed, proposals: Rc<Proposals>) -> Self {
        let ApiSeed { identity, limits, quota_bytes, member_rules, .. } = seed;
        let ApiSeed { views, status, counters, reserve, memory, auth, .. } = seed;
        proposals.count_in(&counters);
        Self {
            identity,
            limits,
            quota_bytes,
            member_rules,
            views,
            status,
            reserve,
            counters,
            proposals,
            budgets: Budgets::new(memory),
            auth,
            access: RefCell::default(),
            audit_paces: Default::default(),
            endless: RefCell::default(),
            led: RefCell::default(),
            is_leaderless: Cell::new(true),
            was_led: Cell::new(false),
        }
    }

    /// Whether a call may be answered at all. A learner may be far behind: it answers few. A
    /// corrupt member answers none from its state.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) fn admit(
        &self,
        metadata: &Metadata,
        is_of_state: bool,
        is_for_learners: impl FnOnce(bool) -> bool,
        is_stream: bool,
    ) -> Result<(), Error> {
        if is_of_state && self.status.is_corrupt.load() {
            return Err(Error::CorruptMember);
        }
        if self.status.is_learner.load() && !is_for_learners(self.member_rules.learner_reads) {
            return Err(Error::NotForLearners);
        }
        if metadata.requires_leader && !self.note_leader() && (self.is_leaderless.get() || !is_stream) {
            return Err(Error::NoLeader);
        }
        Ok(())
    }

    /// Whether there is a leader; the next look at whether there was one knows of it.
    pub fn note_leader(&self) -> bool {
        let is_led = self.leader() != 0;
        if is_led {
            self.is_leaderless.set(false);
            self.was_led.set(true);
        }
        is_led
    }

    /// Whether a leader was seen since the last look, or is there now.
    pub fn look_for_leader(&self) -> bool {
        self.note_leader();
        self.was_led.take()
    }

    /// Lets a call go on until the member stops. The call stays where it is: moving it
    /// here would take its size twice.
    pub(super) async fn until_stopped<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = Result<T, Status>>>,
    ) -> Result<T, Status> {
        let pass = self.endless.borrow().enter(usize::MAX);
        let Some(pass) = pass else { return Err(Error::Stopped.into()) };
        std::future::poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Pending => pass.poll_closed(context).map(|()| Err(self.why_ended().into())),
            ready => ready,
        })
        .await
    }

    fn why_ended(&self) -> Error {
        if self.status.is_corrupt.load() { Error::CorruptMember } else { Error::Stopped }
    }

    /// Called at a steady pace: ends calls that would go on for ever once this member is corrupt.
    pub fn end_if_corrupt(&self) {
        if self.status.is_corrupt.load() && !self.endless.borrow().is_closed() {
            self.endless.take().close();
        }
    }

    /// Has a stream end when there is no leader for long, if its client wants that.
    pub(super) fn while_led(&self, metadata: &Metadata, mut call: StreamingCall) -> StreamingCall {
        let pass = metadata.requires_leader.then(|| self.led.borrow().enter(usize::MAX)).flatten();
        let Some(pass) = pass else { return call };
        Box::pin(std::future::poll_fn(move |context| match call.as_mut().poll(context) {
            Poll::Pending => pass.poll_closed(context).map(|()| Err(Error::NoLeader.into())),
            ready => ready,
        }))
    }

    /// Whether there was no leader for an election timeout. Streams that begin earlier are admitted
    /// as if there was one: a client that lost its stream with its leader opens another one before
    /// there is the next leader, and would not try again after a refusal.
    pub fn set_leaderless(&self, is_leaderless: bool) {
        self.is_leaderless.set(is_leaderless);
    }

    /// There is no leader for long: ends the streams that are to end then.
    pub fn end_led(&self) {
        self.led.take().close();
    }

    /// Ends calls that would go on for ever, and logins that wait behind others.
    pub(super) fn stop(&self) {
        self.endless.borrow().close();
        self.auth.passwords.close();
    }

    /// The memory of this core's connections.
    #[must_use]
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Called at a steady pace: ends waits for room that last too long, and counts refusals.
    pub fn look_at_budgets(&self) {
        self.budgets.replies.tick();
        self.budgets.watches.tick();
        for _ in 0..self.budgets.requests.take_refused() + self.budgets.sessions.take_refused() {
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

    /// Counts an error that says that a bound was reached.
    pub(super) fn counted(&self, error: Error) -> Error {
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

    /// A call of a method begins.
    pub(super) fn count_call(&self, method: usize) -> CountedCall<'_> {
        self.counters.calls_of(self.proposals.edge()).begin(method)
    }

    /// How long this edge's turns take.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        self.counters.turns(self.proposals.edge())
    }

    /// The newest revision this member has applied.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.views.look(View::revision)
    }

    pub(super) fn report(&self) -> NodeReport {
        let view = self.views.load();
        NodeReport {
            has_leader: self.leader() != 0,
            is_learner: self.status.is_learner.load(),
            raised: Raised::of(view.tables()),
        }
    }

    /// The cluster's version, and the downgrade that is enabled.
    #[must_use]
    pub fn versions(&self) -> AgreedVersions {
        self.views.look(|view| schema::versions(view.tables()))
    }

    /// The newest View.
    #[must_use]
    pub fn view(&self) -> View {
        self.views.load()
    }

    /// The member that answers.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// A View that holds everything that was acknowledged or read anywhere before.
    ///
    /// # Errors
    /// The error that a client would get.
    pub async fn linearizable_view(&self) -> Result<View, Error> {
        self.view_for_reading(false).await
    }

    /// The id of the cluster's leader, 0 while there is none.
    #[must_use]
    pub fn leader(&self) -> u64 {
        self.status.leader.load()
    }

    /// No other member has a vote.
    #[must_use]
    pub fn is_sole_voter(&self) -> bool {
        self.status.is_sole_voter.load()
    }

    /// This member leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leader() == self.identity.member
    }

    /// Waits until the newest View holds everything that was acknowledged or read anywhere before;
    /// not for a serializable read. The View of a leader without any other member does: no
    /// message, no wait.
    ///
    /// # Errors
    /// The error that the client gets.
    pub(super) async fn wait_to_read(&self, serializable: bool) -> Result<(), Error> {
        if self.reads_at_once(serializable) {
            return Ok(());
        }
        if self.is_sole_voter() && self.leader() == 0 {
            return Err(Error::NoLeader);
        }
        let read = self.proposals.read().inspect_err(|error| {
            if *error == Error::TooManyRequests {
                self.reached(Bound::Reads);
            }
        });
        read?.await
    }

    /// The state a read sees; see [`ServiceContext::wait_to_read`].
    pub(super) async fn view_for_reading(&self, serializable: bool) -> Result<View, Error> {
        self.wait_to_read(serializable).await?;
        Ok(self.views.load())
    }

    /// The newest View is what a linearizable read sees.
    pub(super) fn reads_alone(&self) -> bool {
        self.status.reads_alone.load()
    }

    /// A read sees its state without a wait.
    pub(super) fn reads_at_once(&self, serializable: bool) -> bool {
        serializable || self.reads_alone()
    }

    /// A reply: the header, then the encoded fields behind it.
    pub(super) fn reply(&self, revision: i64, body: Vec<Bytes>) -> Message {
        with_header(self.identity, revision, self.status.term.load(), body)
    }

    /// The same, in one piece, of fields that take so many bytes.
    pub(super) fn short_reply(&self, revision: i64, bytes: usize, put: impl FnOnce(&mut Vec<u8>)) -> Message {
        with_short_body(self.identity, revision, self.status.term.load(), bytes, put)
    }

    /// The header of a reply that is encoded as a whole.
    pub(super) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision,
            raft_term: self.status.term.load(),
        }
    }

    /// Makes a reply. If it finds no room, it drops what is made, waits for twice as much, and
    /// begins again: no call waits while it holds memory that others wait for.
    pub(super) async fn with_room<T>(
        &self,
        replies: &Share,
        patience: Patience,
        make: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..limits::REPLY_ATTEMPTS_MAX {
            let result = make().await;
            let Err(Error::NoReplyRoom { bytes }) = result else {
                return result.map_err(|error| self.counted(error));
            };
            self.reached(Bound::ReplyBytes);
            let wanted = (2 * bytes).min(replies.bytes_max());
            replies.room(wanted, patience).await.map_err(|_| Error::NoReplyRoom { bytes })?;
        }
        Err(Error::NoReplyRoom { bytes: replies.bytes_max() })
    }
}
