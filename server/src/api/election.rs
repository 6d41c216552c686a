//! The Election service: the oldest key under a name leads, its value is what the leader proclaims.

use bytes::Bytes;
use prost::Message as _;
use revd_member::auth::{Caller, Wants};
use revd_member::budget::Patience;
use revd_member::error::Error;
use revd_member::error::Status;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, ResponseHeader, TxnRequest, WatchCreateRequest};
use revd_proto::mvccpb::KeyValue;
use revd_proto::mvccpb::event::EventType;
use revd_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use smallvec::smallvec;

use crate::api::auth::identity::Need;
use crate::api::call::{Credentials, Message, decoded, decoded_in_stream};
use crate::api::key_queue::{
    Joined, KeyQueue, QueuedKey, created_at, key_value, oldest, op, prefix, prefix_end, resignation, unknown,
    value_bytes,
};
use crate::api::replies::Replies;
use crate::observe::bounds::Bound;

fn no_leader_field() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

fn not_leader() -> Status {
    Status::unknown("election: not leader")
}

/// Puts a leader's value, if it leads still.
fn proclamation(key: &Bytes, revision: i64, lease: i64, value: Bytes) -> TxnRequest {
    let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
    TxnRequest {
        compare: vec![created_at(key, revision)],
        success: vec![op(Request::RequestPut(put))],
        failure: Vec::new(),
    }
}

/// The leader of a moment, as an Observe has shown it.
struct Shown {
    /// The caller that it was shown to.
    to: Caller,
    revision: i64,
    /// The leader's key, if there is one.
    leader: Option<Bytes>,
}

/// Edge view.
#[derive(Debug)]
pub(super) struct Election(KeyQueue);

impl Election {
    pub(super) fn new(queue: KeyQueue) -> Self {
        Self(queue)
    }

    /// Answers when the caller leads; a call that goes away before leaves the queue.
    pub(super) async fn campaign(&self, caller: &Caller, message: Bytes) -> Result<Message, Status> {
        let request = decoded(CampaignRequest::decode(message))?;
        let Joined { own, header, has_other_value, mut guard } = self
            .0
            .join(caller, &request.name, request.lease, &request.value)
            .await
            .map_err(|error| unknown(&error))?;
        if has_other_value {
            let QueuedKey { key, revision, lease, .. } = own.clone();
            self.set_value(caller, key, revision, lease, request.value).await?;
        }
        guard.wait_with(&own);
        self.0.wait_until_oldest(caller, &own).await.map_err(|error| unknown(&error))?;
        guard.keep();
        let QueuedKey { key, lease, revision: rev, .. } = own;
        let leader = Some(LeaderKey { name: request.name, key, rev, lease });
        Ok(smallvec![CampaignResponse { header, leader }.encode_to_vec().into()])
    }

    /// The leader says something else.
    pub(super) async fn proclaim(&self, caller: &Caller, message: Bytes) -> Result<Message, Status> {
        let request = decoded(ProclaimRequest::decode(message))?;
        let leader = request.leader.ok_or_else(no_leader_field)?;
        let put = PutRequest { key: leader.key.clone(), ..PutRequest::default() };
        let wants = if put.key.is_empty() { Wants::Login } else { Wants::Put(&put) };
        // As in etcd, where a session of a lease that is named asks nobody.
        if put.key.is_empty() && leader.lease != 0 {
            return Err(unknown(&Error::EmptyKey));
        }
        if !put.key.is_empty() {
            let value = request.value.clone();
            let least = proclamation(&leader.key, leader.rev, leader.lease, value).encoded_len();
            self.0.context.check_len(caller, least).map_err(|error| unknown(&error))?;
        }
        let may_put = self.0.context.check_now(caller, &wants).await;
        may_put.map_err(|error| unknown(&error))?;
        let lease = self.0.session(caller, leader.lease).await.map_err(|error| unknown(&error))?;
        let header = self.set_value(caller, leader.key, leader.rev, lease, request.value).await?;
        Ok(smallvec![ProclaimResponse { header }.encode_to_vec().into()])
    }

    async fn set_value(
        &self,
        caller: &Caller,
        key: Bytes,
        revision: i64,
        lease: i64,
        value: Bytes,
    ) -> Result<Option<ResponseHeader>, Status> {
        let txn = proclamation(&key, revision, lease, value);
        let reply = self.0.run_txn(caller, &txn).await.map_err(|error| unknown(&error))?;
        if reply.succeeded { Ok(reply.header) } else { Err(not_leader()) }
    }

    /// The leader leads no more.
    pub(super) async fn resign(&self, caller: &Caller, message: Bytes) -> Result<Message, Status> {
        let request = decoded(ResignRequest::decode(message))?;
        let leader = request.leader.ok_or_else(no_leader_field)?;
        let reply = self
            .0
            .run_txn(caller, &resignation(leader.key, leader.rev))
            .await
            .map_err(|error| unknown(&error))?;
        Ok(smallvec![ResignResponse { header: reply.header }.encode_to_vec().into()])
    }

    /// The leader, and its value.
    pub(super) async fn leader(&self, credentials: &Credentials, message: Bytes) -> Result<Message, Status> {
        let request = decoded(LeaderRequest::decode(message))?;
        let view = self.0.context.view_for_reading(false).await.map_err(|error| unknown(&error))?;
        let prefix = prefix(&request.name);
        let now = self.0.context.caller_after_wait(credentials);
        self.0.check(&now, &prefix, &view).map_err(|error| unknown(&error))?;
        drop(now);
        let leader = oldest(&view, &prefix).await;
        let Some((key, meta)) = leader else { return Err(Status::unknown("election: no leader")) };
        let leader = key_value(&view, key, meta).map_err(|error| unknown(&error))?;
        Ok(self.proclaimed(view.revision(), leader))
    }

    fn proclaimed(&self, revision: i64, kv: KeyValue) -> Message {
        let header = Some(self.0.context.header(revision));
        smallvec![LeaderResponse { header, kv: Some(kv) }.encode_to_vec().into()]
    }

    /// Everything the leaders proclaim, one leader after the other, also through times without one.
    pub(super) async fn observe(
        &self,
        credentials: &Credentials,
        message: Bytes,
        replies: &Replies,
    ) -> Result<(), Status> {
        // A token may be new to this member; then it is not any more.
        let caller = self.0.context.caller(Need::Judged, false, credentials).await?;
        self.0.context.auth.limits.take(&caller, message.len())?;
        drop(caller);
        let prefix = prefix(&decoded_in_stream(LeaderRequest::decode(message))?.name);
        while let Some(shown) = self.show_leader(credentials, &prefix, replies).await? {
            let ended = match &shown.leader {
                Some(key) => self.observe_leader(&shown, key, replies).await,
                None => self.wait_for_leader(&shown, &prefix).await,
            };
            match ended {
                Ok(()) | Err(Error::Compacted | Error::Auth(_)) => {} // look again
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn wait_for_leader(&self, shown: &Shown, prefix: &Bytes) -> Result<(), Error> {
        let range_end = prefix_end(prefix).into();
        let request = WatchCreateRequest {
            key: prefix.clone(),
            range_end,
            start_revision: shown.revision + 1,
            ..WatchCreateRequest::default()
        };
        self.0.watch(&shown.to, request).next().await.map(drop)
    }

    /// Shows what the leader of now says, if there is one: it is read when there is room
    /// for it, and nothing of it is held before. None when the client is gone.
    async fn show_leader(
        &self,
        credentials: &Credentials,
        prefix: &Bytes,
        replies: &Replies,
    ) -> Result<Option<Shown>, Error> {
        let share = replies.share();
        while replies.ready().await {
            let view = self.0.context.view_for_reading(false).await?;
            let caller = self.0.context.caller_after_wait(credentials);
            self.0.check(&caller, prefix, &view)?;
            let revision = view.revision();
            let Some((key, meta)) = oldest(&view, prefix).await else {
                return Ok(Some(Shown { to: caller, revision, leader: None }));
            };
            let bytes = value_bytes(&view, meta)?.clamp(1, share.bytes_max());
            if share.fits(bytes) {
                replies.put(self.proclaimed(revision, key_value(&view, key.clone(), meta)?));
                return Ok(Some(Shown { to: caller, revision, leader: Some(key) }));
            }
            drop(view);
            self.0.context.reached(Bound::WatchBytes);
            // It never gives up: the client decides how long.
            let _ = share.room(bytes, Patience::Endless).await;
        }
        Ok(None)
    }

    /// Shows what one leader says until its key is gone. Later events wait with the watcher, where
    /// they are counted, until the client has taken what was shown before.
    async fn observe_leader(&self, shown: &Shown, key: &Bytes, replies: &Replies) -> Result<(), Error> {
        let (key, start_revision) = (key.clone(), shown.revision + 1);
        let request = WatchCreateRequest { key, start_revision, ..WatchCreateRequest::default() };
        let watching = self.0.watch_for(&shown.to, request, replies.share());
        while replies.ready().await {
            let (revision, events) = watching.next().await?;
            for event in events {
                let Some(kv) = event.kv.filter(|_| event.r#type == EventType::Put as i32) else {
                    return Ok(());
                };
                replies.put(self.proclaimed(revision, kv));
            }
        }
        Ok(()) // the client is gone
    }
}
