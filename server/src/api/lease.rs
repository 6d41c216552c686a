//! The Lease service.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::Poll;

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest,
};
use smallvec::smallvec;
use tonic::Status;

use crate::api::call::{Message, Replies, Requests};
use crate::api::header::put_header;
use crate::api::{Api, decoded};
use crate::apply::command::Kind;
use crate::apply::gates;
use crate::apply::lessor::{Due, NOTE_FIRST};
use crate::error::Error;
use crate::limits;
use crate::raft::propose::Proposal;
use crate::wire::put_number;

/// Protobuf tags of `LeaseKeepAliveResponse`.
const TAG_KEEPALIVE_ID: u8 = 0x10;
const TAG_KEEPALIVE_TTL: u8 = 0x18;

/// Ids for leases whose client leaves the choice to us: one after the other, so that many new leases lie side by side in
/// the store, from a start at random (`SplitMix64`, Steele et al. 2014), so that edges, members and restarts do not meet.
/// They are names, not secrets.
#[derive(Debug)]
pub(super) struct LeaseIds(Cell<u64>);

/// Bits that count; those above them are drawn once.
const COUNTING_BITS: u32 = 36;

impl LeaseIds {
    pub(super) fn new(seed: u64) -> Self {
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

/// A keepalive on its way: the lease, the revision when it came, and its outcome.
type Renewal = (i64, i64, Proposal);

impl Api {
    /// A new lease; the id is chosen here if the client does not, and the time is not below the shortest.
    pub(super) async fn lease_grant(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(LeaseGrantRequest::decode(message))?;
        self.check_quota(gates::LEASE_COST).await?;
        let ttl = request.ttl.max(self.lease_ttl_min);
        loop {
            let id = if request.id == 0 { self.lease_ids.next() } else { request.id };
            let granted = LeaseGrantRequest { ttl, id }.encode_to_vec().into();
            match self.propose_growth(Kind::LeaseGrant, granted).await {
                Err(Error::LeaseExists) if request.id == 0 => {}
                result => return result,
            }
        }
    }

    pub(super) async fn lease_revoke(&self, message: Bytes) -> Result<Message, Error> {
        decoded(LeaseRevokeRequest::decode(message.clone()))?;
        self.propose(Kind::LeaseRevoke, message).await
    }

    pub(super) async fn lease_time_to_live(&self, message: Bytes) -> Result<Message, Error> {
        decoded(LeaseTimeToLiveRequest::decode(message.clone()))?;
        self.propose(Kind::LeaseTimeToLive, message).await
    }

    pub(super) async fn lease_leases(&self, message: Bytes) -> Result<Message, Error> {
        decoded(LeaseLeasesRequest::decode(message))?;
        self.propose(Kind::LeaseLeases, Bytes::new()).await
    }

    /// Keeps leases alive, in the order they are named; several may be on their way.
    pub(super) async fn lease_keep_alive(
        &self,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let mut renewals: VecDeque<Renewal> = VecDeque::new();
        let mut more_requests = true;
        while more_requests || !renewals.is_empty() {
            let turn = std::future::poll_fn(|context| {
                if more_requests
                    && renewals.len() < limits::KEEPALIVES_PER_STREAM
                    && let Poll::Ready(request) = requests.poll_next(context)
                {
                    return Poll::Ready(Turn::Request(request));
                }
                match renewals.front_mut().map(|(.., proposal)| Pin::new(proposal).poll(context)) {
                    Some(Poll::Ready(outcome)) => {
                        Poll::Ready(Turn::Renewed(outcome.and_then(|it| it.result)))
                    }
                    _ => Poll::Pending,
                }
            });
            match turn.await {
                Turn::Request(None) => more_requests = false,
                Turn::Request(Some(message)) => {
                    let id = decoded(LeaseKeepAliveRequest::decode(message?))?.id;
                    // The header says what was before: a lease that is found gone was not alive at a later revision.
                    renewals.push_back((id, self.revision(), self.keep_alive(id)?));
                }
                Turn::Renewed(outcome) => {
                    let Some((id, revision, _)) = renewals.pop_front() else { continue };
                    let outcome = outcome?;
                    if outcome == NOTE_FIRST {
                        self.note_left(&[LeaseCheckpoint { id, remaining_ttl: 0 }]).await?;
                        renewals.push_front((id, revision, self.keep_alive(id)?));
                    } else if !replies.send(self.kept_alive(id, revision, outcome)).await {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn keep_alive(&self, id: i64) -> Result<Proposal, Error> {
        self.proposals.submit(Kind::LeaseKeepAlive, Bytes::copy_from_slice(&id.to_le_bytes()), false)
    }

    fn kept_alive(&self, id: i64, revision: i64, mut outcome: Bytes) -> Message {
        let mut response = Vec::with_capacity(64);
        put_header(&mut response, self.identity, revision, self.status.term.load());
        put_number(&mut response, TAG_KEEPALIVE_ID, id);
        put_number(&mut response, TAG_KEEPALIVE_TTL, outcome.try_get_i64_le().unwrap_or_default());
        smallvec![response.into()]
    }

    /// Revokes leases that are due; how many. For one edge of the leader, at a steady pace.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn revoke_due(&self) -> Result<usize, Error> {
        if self.status.leases.load() == 0 {
            return Ok(0);
        }
        let due = self.order(Kind::LeaseDue).await?;
        let count = Due::decode(due.clone())?.leases.len();
        if count > 0 {
            self.propose(Kind::LeaseExpire, due).await?;
        }
        Ok(count)
    }

    /// Notes in the log what long leases have left, so that a restart does not begin their time anew.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn note_leases(&self) -> Result<(), Error> {
        if self.status.leases.load() == 0 {
            return Ok(());
        }
        let left = decoded(LeaseCheckpointRequest::decode(self.order(Kind::LeaseLeft).await?))?;
        for notes in left.checkpoints.chunks(limits::LEASE_NOTES_MAX) {
            self.note_left(notes).await?;
        }
        Ok(())
    }

    async fn note_left(&self, notes: &[LeaseCheckpoint]) -> Result<(), Error> {
        let request = LeaseCheckpointRequest { checkpoints: notes.to_vec() };
        self.propose(Kind::LeaseNote, request.encode_to_vec().into()).await.map(drop)
    }

    /// An order to this member alone that needs no more words; the outcome's body.
    async fn order(&self, kind: Kind) -> Result<Bytes, Error> {
        self.proposals.submit(kind, Bytes::new(), false)?.await?.result
    }
}

/// What a keepalive stream waits for.
enum Turn {
    Request(Option<Result<Bytes, Status>>),
    Renewed(Result<Bytes, Error>),
}

#[cfg(test)]
mod tests {
    use super::*;

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
