//! The Election service: the oldest key under a name leads, its value is what the leader proclaims.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{PutRequest, ResponseHeader, TxnRequest, WatchCreateRequest};
use revd_proto::mvccpb::KeyValue;
use revd_proto::mvccpb::event::EventType;
use revd_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use smallvec::smallvec;
use tonic::Status;

use crate::api::call::{Message, Replies};
use crate::api::queue::{Place, created_at, found, oldest, op, prefix, prefix_end, resignation, unknown};
use crate::api::{Api, decoded};
use crate::error::Error;

fn no_leader_field() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

fn not_leader() -> Status {
    Status::unknown("election: not leader")
}

impl Api {
    /// Answers when the caller leads; a call that goes away before gives its place up.
    pub(super) async fn campaign(self: &Rc<Self>, message: Bytes) -> Result<Message, Status> {
        let request = decoded(CampaignRequest::decode(message))?;
        let (place, reply, waiting) = self
            .stand_in_line(&request.name, request.lease, &request.value)
            .await
            .map_err(|error| unknown(&error))?;
        if found(&reply).is_some_and(|kv| kv.value != request.value) {
            let Place { key, revision, lease, .. } = place.clone();
            self.set_value(key, revision, lease, request.value).await?;
        }
        self.wait_for_turn(&place).await.map_err(|error| unknown(&error))?;
        waiting.done();
        let Place { key, lease, revision: rev, .. } = place;
        let leader = Some(LeaderKey { name: request.name, key, rev, lease });
        Ok(smallvec![CampaignResponse { header: reply.header, leader }.encode_to_vec().into()])
    }

    /// The leader says something else.
    pub(super) async fn proclaim(&self, message: Bytes) -> Result<Message, Status> {
        let request = decoded(ProclaimRequest::decode(message))?;
        let leader = request.leader.ok_or_else(no_leader_field)?;
        let lease = self.session(leader.lease).await.map_err(|error| unknown(&error))?;
        let header = self.set_value(leader.key, leader.rev, lease, request.value).await?;
        Ok(smallvec![ProclaimResponse { header }.encode_to_vec().into()])
    }

    async fn set_value(
        &self,
        key: Bytes,
        revision: i64,
        lease: i64,
        value: Bytes,
    ) -> Result<Option<ResponseHeader>, Status> {
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let txn = TxnRequest {
            compare: vec![created_at(&key, revision)],
            success: vec![op(Request::RequestPut(put))],
            failure: Vec::new(),
        };
        let reply = self.run_txn(&txn).await.map_err(|error| unknown(&error))?;
        if reply.succeeded { Ok(reply.header) } else { Err(not_leader()) }
    }

    /// The leader leads no more.
    pub(super) async fn resign(&self, message: Bytes) -> Result<Message, Status> {
        let request = decoded(ResignRequest::decode(message))?;
        let leader = request.leader.ok_or_else(no_leader_field)?;
        let reply =
            self.run_txn(&resignation(leader.key, leader.rev)).await.map_err(|error| unknown(&error))?;
        Ok(smallvec![ResignResponse { header: reply.header }.encode_to_vec().into()])
    }

    /// Who leads, and what it says.
    pub(super) async fn leader(&self, message: Bytes) -> Result<Message, Status> {
        let request = decoded(LeaderRequest::decode(message))?;
        let view = self.view_for_reading(false).map_err(|error| unknown(&error))?;
        let leader = oldest(&view, &prefix(&request.name)).await.map_err(|error| unknown(&error))?;
        let Some(leader) = leader else { return Err(Status::unknown("election: no leader")) };
        Ok(self.proclaimed(view.revision(), leader))
    }

    fn proclaimed(&self, revision: i64, kv: KeyValue) -> Message {
        let header = Some(self.header(revision));
        smallvec![LeaderResponse { header, kv: Some(kv) }.encode_to_vec().into()]
    }

    /// Everything the leaders proclaim, one leader after the other, also through times without one.
    pub(super) async fn observe(&self, message: Bytes, replies: &Replies) -> Result<(), Status> {
        let prefix = prefix(&decoded(LeaderRequest::decode(message))?.name);
        loop {
            let (revision, leader) = {
                let view = self.view_for_reading(false)?;
                (view.revision(), oldest(&view, &prefix).await?)
            };
            let ended = match leader {
                Some(leader) => self.observe_leader(revision, leader, replies).await,
                None => self.wait_for_leader(&prefix, revision).await.map(|()| true),
            };
            match ended {
                Ok(true) | Err(Error::Compacted) => {} // look again
                Ok(false) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn wait_for_leader(&self, prefix: &Bytes, seen: i64) -> Result<(), Error> {
        let range_end = prefix_end(prefix).into();
        let request = WatchCreateRequest {
            key: prefix.clone(),
            range_end,
            start_revision: seen + 1,
            ..WatchCreateRequest::default()
        };
        self.follow(request).next().await.map(drop)
    }

    /// Shows what one leader says until its key is gone; false when the client is gone.
    async fn observe_leader(&self, seen: i64, leader: KeyValue, replies: &Replies) -> Result<bool, Error> {
        let request = WatchCreateRequest {
            key: leader.key.clone(),
            start_revision: seen + 1,
            ..WatchCreateRequest::default()
        };
        let watching = self.follow_for(request, replies.share());
        if !replies.send(self.proclaimed(seen, leader)).await {
            return Ok(false);
        }
        loop {
            let (revision, events) = watching.next().await?;
            for event in events {
                let Some(kv) = event.kv.filter(|_| event.r#type == EventType::Put as i32) else {
                    return Ok(true);
                };
                if !replies.send(self.proclaimed(revision, kv)).await {
                    return Ok(false);
                }
            }
        }
    }
}
