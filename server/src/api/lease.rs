//! The Lease service.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::apply::gates;
use revd_member::apply::lease_reports::{CHECKPOINT_FIRST, ExpiredLeases, LOOK_AGAIN, RemainingTtls};
use revd_member::apply::local::{DeadlineRequest, Heard, LeaseRequest, LeaseRight, LeaseRights, LocalKind};
use revd_member::auth::{Caller, Wants};
use revd_member::budget::{Patience, Share};
use revd_member::error::Error;
use revd_member::error::Status;
use revd_member::read::range::count;
use revd_member::wire::put_number;
use revd_proto::etcdserverpb::{
    LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use revd_proto::tags::lease_keep_alive_response;
use smallvec::smallvec;

use crate::api::auth::identity::Need;
use crate::api::call::{Credentials, Message, Requests, decoded, decoded_in_stream};
use crate::api::context::ServiceContext;
use crate::api::header::put_header;
use crate::api::replies::Replies;
use crate::api::validate;
use crate::edge::pending::Proposal;
use crate::edge::pending::keepalive_stream::KeepaliveStream;
use crate::limits;

/// Ids for leases whose client leaves the choice to us: one after the other, so that many new
/// leases lie side by side in the store, from a start at random (`SplitMix64`, Steele et al. 2014),
/// so that edges, members and restarts do not meet. They are names, not secrets.
#[derive(Debug)]
struct LeaseIds(Cell<u64>);

/// Bits that count; those above them are drawn once.
const COUNTING_BITS: u32 = 36;

impl LeaseIds {
    fn new(seed: u64) -> Self {
        let state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(Cell::new((mixed ^ (mixed >> 31)) >> COUNTING_BITS << COUNTING_BITS))
    }

    /// A positive one.
    fn next(&self) -> i64 {
        loop {
            self.0.set(self.0.get().wrapping_add(1));
            let id = self.0.get().cast_signed() & i64::MAX;
            if id != 0 {
                return id;
            }
        }
    }
}

/// Bytes that a keepalive counts as.
const KEEPALIVE_BYTES: usize = 10;

/// A keepalive on its way.
struct Renewal {
    lease: i64,
    caller: Caller,
    /// The revision when it came.
    revision: i64,
    step: RenewalStep,
    /// None before there is room for it.
    proposal: Option<Proposal>,
}

/// The next step of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenewalStep {
    /// Whether the caller may, depends on the keys of the lease.
    AskRights,
    KeepAlive,
    /// The lease has a checkpoint: one without a remaining TTL replaces
    /// it, then the keepalive follows.
    TakeCheckpointBack,
}

/// The continuation after a step.
#[derive(Debug, PartialEq, Eq)]
enum NextRenewalStep {
    Begin(RenewalStep),
    /// The lease has so many seconds.
    Reply(Bytes),
}

impl RenewalStep {
    /// The client does not hear of a change of leaders: the next one is asked, which looks at the
    /// lease anew.
    fn next(self, outcome: Result<Bytes, Error>) -> Result<NextRenewalStep, Error> {
        match (self, outcome) {
            (Self::KeepAlive, Ok(outcome)) if outcome == CHECKPOINT_FIRST => {
                Ok(NextRenewalStep::Begin(Self::TakeCheckpointBack))
            }
            (Self::KeepAlive, Ok(outcome)) => Ok(NextRenewalStep::Reply(outcome)),
            (Self::AskRights | Self::TakeCheckpointBack, Ok(_))
            | (Self::KeepAlive, Err(Error::NotLeader)) => Ok(NextRenewalStep::Begin(Self::KeepAlive)),
            (Self::TakeCheckpointBack, Err(error)) if error.leaves_write_open() => {
                Ok(NextRenewalStep::Begin(Self::KeepAlive))
            }
            (_, Err(error)) => Err(error),
        }
    }
}

/// Whether something is left to do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// No.
    No,
    /// The caller should look again.
    Perhaps,
}

/// Edge view.
#[derive(Debug, Clone)]
pub struct Lease {
    context: Rc<ServiceContext>,
    ids: Rc<LeaseIds>,
    ttl_min: i64,
}

impl Lease {
    /// Leases have at least `ttl_min` seconds.
    pub(super) fn new(context: &Rc<ServiceContext>, id_seed: u64, ttl_min: i64) -> Self {
        let seed = id_seed.wrapping_add(u64::from(context.proposals.edge()) << 48);
        Self { context: Rc::clone(context), ids: Rc::new(LeaseIds::new(seed)), ttl_min }
    }

    /// A new lease; the id is chosen here if the client does not, and the
    /// time is not below the shortest.
    pub(super) async fn grant(&self, caller: &Caller, message: Bytes) -> Result<Message, Error> {
        let request = decoded(LeaseGrantRequest::decode(message))?;
        self.context.check_quota(gates::LEASE_COST).await?;
        let ttl = request.ttl.max(self.ttl_min);
        loop {
            let id = if request.id == 0 { self.ids.next() } else { request.id };
            let granted = LeaseGrantRequest { ttl, id }.encode_to_vec().into();
            match self
                .context
                .propose_growth(caller, Kind::LeaseGrant, granted, &self.context.budgets.replies.share())
                .await
            {
                Err(Error::LeaseExists) if request.id == 0 => {}
                result => return result,
            }
        }
    }

    pub(super) async fn revoke(&self, caller: &Caller, message: Bytes) -> Result<Message, Error> {
        decoded(LeaseRevokeRequest::decode(message.clone()))?;
        self.context.submit(caller, Kind::LeaseRevoke, message, false).await
    }

    pub(super) async fn time_to_live(
        &self,
        caller: &Caller,
        credentials: &Credentials,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        let bytes = message.len();
        let LeaseTimeToLiveRequest { id, keys } = decoded(LeaseTimeToLiveRequest::decode(message))?;
        validate::proposal_size(bytes, self.context.limits)?;
        if !keys {
            return self.ask_leader(caller, LeaseRequest::TimeToLive { lease: id, keys }).await;
        }
        self.wait_for_keys().await?;
        let reply = async || self.with_keys(credentials, id, replies).await;
        Box::pin(self.context.with_room(replies, Patience::Holding, reply)).await
    }

    /// The time to live of a lease, and its keys, if there is room for them. Each attempt is judged
    /// by what counts then.
    async fn with_keys(&self, credentials: &Credentials, id: i64, replies: &Share) -> Result<Message, Error> {
        let caller = &self.context.caller_after_wait(credentials);
        if !self.context.views.look(|view| self.context.is_root(caller, view)) {
            self.check_attached(caller, LeaseRight::Read(id)).await?;
        }
        // Room is taken before a reply is made of very many keys, and kept until it leaves.
        let mut hold = replies.hold();
        let bytes = self.context.begin_local(caller, LeaseRequest::KeyBytes { lease: id }.into(), false)?;
        let bytes = bytes.await?.result?.try_get_u64_le().unwrap_or_default();
        count(&mut hold, usize::try_from(bytes).unwrap_or(usize::MAX), replies)?;
        let with_keys = LeaseRequest::TimeToLive { lease: id, keys: true };
        let reply = match self.context.ask(caller, with_keys.into(), false).await {
            Err(Error::NotLeader) => self.time_and_keys(caller, id).await,
            result => result,
        }?;
        count(&mut hold, reply.iter().map(Bytes::len).sum(), replies)?;
        // Others may have been attached since, and the wait for another leader may have been long:
        // those that are shown are judged by what counts now.
        let caller = &self.context.caller_after_wait(credentials);
        if !self.context.views.look(|view| self.context.is_root(caller, view)) {
            self.context.check_shown(caller, id, reply.iter()).await?;
        }
        Ok(reply)
    }

    /// Whether a caller may have what depends on keys of leases: the state core knows these.
    async fn check_attached(&self, caller: &Caller, right: LeaseRight) -> Result<(), Error> {
        let rights = LeaseRights { caller: caller.clone(), right };
        self.context
            .begin_local(caller, LocalKind::MayCaller(Arc::new(rights)), false)?
            .await?
            .result
            .map(drop)
    }

    /// Waits until keys are known here that were attached anywhere before. As with etcd, a change
    /// of leaders is waited for.
    async fn wait_for_keys(&self) -> Result<(), Error> {
        loop {
            match self.context.wait_to_read(false).await {
                Err(Error::LeaderChanged) => {}
                Err(Error::Timeout) if self.context.leader() == 0 => return Err(Error::NoLeader),
                result => return result,
            }
        }
    }

    /// The time to live from the leader, and the keys, which may be very many, from this member.
    async fn time_and_keys(&self, caller: &Caller, lease: i64) -> Result<Message, Error> {
        let mut reply = self.ask_leader(caller, LeaseRequest::TimeToLive { lease, keys: false }).await?;
        let keys = self.context.begin_local(caller, LeaseRequest::Keys { lease }.into(), false)?.await?;
        // Fields behind each other are one message.
        reply.push(keys.result?);
        Ok(reply)
    }

    pub(super) async fn leases(
        &self,
        caller: &Caller,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        decoded(LeaseLeasesRequest::decode(message))?;
        let list = async || self.list(caller, replies).await;
        Box::pin(self.context.with_room(replies, Patience::Holding, list)).await
    }

    /// The list of all leases, if there is room for it.
    async fn list(&self, caller: &Caller, replies: &Share) -> Result<Message, Error> {
        let mut hold = replies.hold();
        let leases = usize::try_from(self.context.status.leases.load()).unwrap_or(usize::MAX);
        count(&mut hold, leases.saturating_mul(limits::LISTED_LEASE_BYTES), replies)?;
        let reply = self.context.ask(caller, DeadlineRequest::List.into(), false).await?;
        count(&mut hold, reply.iter().map(Bytes::len).sum(), replies)?;
        if !self.context.views.look(|view| self.context.is_root(caller, view)) {
            self.check_attached(caller, LeaseRight::ReadAll).await?;
        }
        Ok(reply)
    }

    /// Asks the leader, whoever that is. One that ceases to lead before it answers is not asked
    /// again: the request waits for the next one.
    async fn ask_leader(&self, caller: &Caller, request: LeaseRequest) -> Result<Message, Error> {
        loop {
            match self.context.ask(caller, request.into(), false).await {
                Err(Error::NotLeader) => {}
                result => return result,
            }
        }
    }

    /// Keeps leases alive, in the order they are named; several may be on their way. A renewal
    /// without room waits for it: its client does not hear of that. One that is refused ends the
    /// stream, after the answers to those before it.
    pub(super) async fn keep_alive(
        &self,
        credentials: &Credentials,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let mut calls = KeepAlives::new(KeepaliveStream::new(&self.context.proposals));
        while calls.more_requests || !calls.renewals.is_empty() {
            let event = std::future::poll_fn(|context| calls.poll_event(&mut *requests, context)).await;
            match event {
                StreamEvent::Request(None) => calls.more_requests = false,
                StreamEvent::Request(Some(message)) => {
                    let lease = decoded_in_stream(LeaseKeepAliveRequest::decode(message?))?.id;
                    match self.renewal(credentials, lease).await {
                        Ok(mut renewal) => {
                            self.begin_renewal(&mut renewal)?;
                            calls.renewals.push_back(renewal);
                        }
                        Err(error) => calls.refuse(error),
                    }
                }
                StreamEvent::Room { first } => {
                    let renewals = &mut calls.renewals;
                    let waiting = if first { renewals.front_mut() } else { renewals.back_mut() };
                    waiting.map_or(Ok(()), |renewal| self.begin_renewal(renewal))?;
                }
                StreamEvent::Rights(Err(error)) => {
                    calls.renewals.pop_back();
                    calls.refuse(error);
                }
                StreamEvent::Rights(Ok(_)) => {
                    let Some(renewal) = calls.renewals.back_mut() else { continue };
                    renewal.step = RenewalStep::KeepAlive;
                    self.begin_renewal(renewal)?;
                }
                StreamEvent::Outcome(outcome) => {
                    let Some(renewal) = calls.renewals.front_mut() else { continue };
                    match renewal.step.next(outcome)? {
                        NextRenewalStep::Begin(step) => {
                            renewal.step = step;
                            self.begin_renewal(renewal)?;
                        }
                        NextRenewalStep::Reply(seconds) => {
                            let reply = self.kept_alive(renewal.lease, renewal.revision, seconds);
                            calls.renewals.pop_front();
                            if !replies.send(reply).await {
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        calls.refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The renewal that a client asks for with a keepalive, if it may ask for one.
    async fn renewal(&self, credentials: &Credentials, lease: i64) -> Result<Renewal, Error> {
        let caller = self.context.caller(Need::Login, false, credentials).await?;
        self.context.auth.limits.take(&caller, KEEPALIVE_BYTES)?;
        let view = self.context.views.load();
        let is_root = self.context.is_root(&caller, &view);
        if !is_root {
            self.context.check(&caller, &Wants::WriteLease(lease), &view)?;
        }
        // The header says what was before: a lease that is found gone was not alive at a later
        // revision.
        let revision = self.context.revision();
        let step = if is_root { RenewalStep::KeepAlive } else { RenewalStep::AskRights };
        Ok(Renewal { lease, caller, revision, step, proposal: None })
    }

    /// Submits what a renewal needs next, if there is room for it now. However long the answer
    /// takes, it is waited for: the end of a lease is an answer too.
    fn begin_renewal(&self, renewal: &mut Renewal) -> Result<(), Error> {
        let lease = renewal.lease;
        let begun = match renewal.step {
            RenewalStep::AskRights => {
                let (caller, right) = (renewal.caller.clone(), LeaseRight::Write(lease));
                let rights = Arc::new(LeaseRights { caller, right });
                self.context.begin_local(&renewal.caller, LocalKind::MayCaller(rights), true)
            }
            RenewalStep::KeepAlive => {
                self.context.begin_local(&renewal.caller, DeadlineRequest::KeepAlive { lease }.into(), true)
            }
            RenewalStep::TakeCheckpointBack => {
                let checkpoints = vec![LeaseCheckpoint { id: lease, remaining_ttl: 0 }];
                let checkpoint = LeaseCheckpointRequest { checkpoints }.encode_to_vec().into();
                self.context.begin(&Caller::Member, Kind::LeaseCheckpoint, checkpoint, true)
            }
        };
        renewal.proposal = match begun {
            Err(Error::TooManyRequests) => None,
            begun => Some(begun?),
        };
        Ok(())
    }

    fn kept_alive(&self, id: i64, revision: i64, mut outcome: Bytes) -> Message {
        let mut response = Vec::with_capacity(64);
        put_header(&mut response, self.context.identity, revision, self.context.status.term.load());
        put_number(&mut response, lease_keep_alive_response::ID, id);
        put_number(
            &mut response,
            lease_keep_alive_response::TTL,
            outcome.try_get_i64_le().unwrap_or_default(),
        );
        smallvec![response.into()]
    }

    /// Revokes expired leases, if this member leads. For one edge, at a steady pace.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn revoke_expired(&self) -> Result<More, Error> {
        if !self.leads_leases() {
            return Ok(More::No);
        }
        let expired = self.report(LeaseRequest::Expired.into()).await?;
        if expired == LOOK_AGAIN {
            return Ok(More::Perhaps);
        }
        if ExpiredLeases::decode(expired.clone())?.leases.is_empty() {
            return Ok(More::No);
        }
        self.context.submit(&Caller::Member, Kind::LeaseExpire, expired, true).await?;
        Ok(More::Perhaps)
    }

    /// Reports that this edge has passed on the keepalives that had come when it was
    /// asked, or those that it could.
    pub fn heard(&self, heard: Heard) {
        if let Ok(report) = self.context.begin_local(&Caller::Member, LeaseRequest::Heard(heard).into(), true)
        {
            report.detach();
        }
    }

    /// Writes the remaining TTL of long leases to the log, so that a
    /// restart does not begin it anew; if this member leads.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        if !self.leads_leases() {
            return Ok(());
        }
        let mut from = i64::MIN;
        loop {
            let remaining = self.report(DeadlineRequest::Remaining { from }.into()).await?;
            let RemainingTtls { checkpoint, next } = RemainingTtls::decode(remaining)?;
            if !checkpoint.checkpoints.is_empty() {
                let checkpoint = checkpoint.encode_to_vec().into();
                self.context.submit(&Caller::Member, Kind::LeaseCheckpoint, checkpoint, true).await?;
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }

    /// There are leases, and this member decides when they end.
    fn leads_leases(&self) -> bool {
        self.context.status.leases.load() > 0 && self.context.leads()
    }

    /// Asks this member alone, on its own behalf.
    async fn report(&self, kind: LocalKind) -> Result<Bytes, Error> {
        self.context.begin_local(&Caller::Member, kind, true)?.await?.result
    }
}

/// An event that a keepalive stream has waited for.
enum StreamEvent {
    /// There is room for the first renewal, or the last.
    Room {
        first: bool,
    },
    Request(Option<Result<Bytes, Status>>),
    /// Of the first renewal.
    Outcome(Result<Bytes, Error>),
    /// The last renewal may go on, or is refused.
    Rights(Result<Bytes, Error>),
}

/// The renewals of a stream. Only the last one may be waiting for its caller's rights: etcd carries
/// keepalives of a stream out one after the other, too.
struct KeepAlives {
    stream: KeepaliveStream,
    renewals: VecDeque<Renewal>,
    more_requests: bool,
    refused: Option<Error>,
}

impl KeepAlives {
    fn new(stream: KeepaliveStream) -> Self {
        Self { stream, renewals: VecDeque::new(), more_requests: true, refused: None }
    }

    /// Nothing more is taken from the client; it is told why at the end.
    fn refuse(&mut self, error: Error) {
        self.more_requests = false;
        self.refused = Some(error);
    }

    fn poll_event(&mut self, requests: &mut dyn Requests, context: &mut Context<'_>) -> Poll<StreamEvent> {
        let Self { stream, renewals, more_requests, .. } = self;
        // The first may need another step; the last may have come when there was no room.
        let [first, last] = [renewals.front(), renewals.back()]
            .map(|renewal| renewal.is_some_and(|renewal| renewal.proposal.is_none()));
        let asks =
            |renewal: Option<&Renewal>| renewal.is_some_and(|renewal| renewal.step == RenewalStep::AskRights);
        let [first_asks, last_asks] = [asks(renewals.front()), asks(renewals.back())];
        let is_full = first || last || last_asks || renewals.len() >= limits::KEEPALIVES_PER_STREAM;
        stream.hold_back(is_full);
        if (first || last) && stream.poll_slot(context).is_ready() {
            return Poll::Ready(StreamEvent::Room { first });
        }
        if *more_requests
            && !is_full
            && let Poll::Ready(request) = requests.poll_next(context)
        {
            return Poll::Ready(StreamEvent::Request(request));
        }
        let mut poll = |renewal: Option<&mut Renewal>| match renewal.and_then(|it| it.proposal.as_mut()) {
            Some(proposal) => Pin::new(proposal).poll(context).map(|it| it.and_then(|it| it.result)),
            None => Poll::Pending,
        };
        if !first_asks && let Poll::Ready(outcome) = poll(renewals.front_mut()) {
            return Poll::Ready(StreamEvent::Outcome(outcome));
        }
        if last_asks {
            return poll(renewals.back_mut()).map(StreamEvent::Rights);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_goes_on_with_the_next_leader_and_ends_with_other_errors() {
        use RenewalStep::{AskRights, KeepAlive, TakeCheckpointBack};
        let seconds = Bytes::from_static(&[60, 0, 0, 0, 0, 0, 0, 0]);
        for (step, outcome, next) in [
            (KeepAlive, Ok(seconds.clone()), Ok(NextRenewalStep::Reply(seconds))),
            (KeepAlive, Ok(CHECKPOINT_FIRST), Ok(NextRenewalStep::Begin(TakeCheckpointBack))),
            (AskRights, Ok(Bytes::new()), Ok(NextRenewalStep::Begin(KeepAlive))),
            (TakeCheckpointBack, Ok(Bytes::new()), Ok(NextRenewalStep::Begin(KeepAlive))),
            (KeepAlive, Err(Error::NotLeader), Ok(NextRenewalStep::Begin(KeepAlive))),
            (TakeCheckpointBack, Err(Error::TimeoutLeaderFailed), Ok(NextRenewalStep::Begin(KeepAlive))),
            (KeepAlive, Err(Error::NoLeader), Err(Error::NoLeader)),
            (TakeCheckpointBack, Err(Error::Stopped), Err(Error::Stopped)),
        ] {
            assert_eq!(step.next(outcome), next);
        }
    }

    #[test]
    fn ids_are_positive_and_do_not_repeat() {
        let mut drawn: Vec<i64> = (0..100_u64)
            .map(LeaseIds::new)
            .flat_map(|ids| (0..100).map(|_| ids.next()).collect::<Vec<_>>())
            .collect();
        assert!(drawn.iter().all(|id| *id > 0));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 10_000);
    }
}
