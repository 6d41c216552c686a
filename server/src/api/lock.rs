//! The Lock service: the oldest key under a name holds its lock.

use bytes::Bytes;
use prost::Message as _;
use revd_member::auth::Caller;
use revd_member::error::Error;
use revd_member::error::Status;
use revd_proto::etcdserverpb::{DeleteRangeRequest, DeleteRangeResponse};
use revd_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use smallvec::smallvec;

use crate::api::call::{Message, decoded};
use crate::api::key_queue::{Joined, KeyQueue, oldest, unknown};

/// Edge view.
#[derive(Debug)]
pub(super) struct Lock(KeyQueue);

impl Lock {
    pub(super) fn new(queue: KeyQueue) -> Self {
        Self(queue)
    }

    /// Answers when the caller holds the lock; a call that goes away before leaves the queue.
    pub(super) async fn lock(&self, caller: &Caller, message: Bytes) -> Result<Message, Status> {
        let Self(queue) = self;
        let request = decoded(LockRequest::decode(message))?;
        let Joined { own, mut header, mut guard, .. } = queue
            .join(caller, &request.name, request.lease, &Bytes::new())
            .await
            .map_err(|error| unknown(&error))?;
        let view = queue.context.views.load();
        let owner = oldest(&view, &own.prefix).await;
        if owner.is_some_and(|(key, _)| key != own.key) {
            guard.wait_with(&own);
            queue.wait_until_oldest(caller, &own).await.map_err(|error| unknown(&error))?;
            let view = queue.context.view_for_reading(false).await.map_err(|error| unknown(&error))?;
            if view.reader().get(&own.key, i64::MAX).is_none() {
                return Err(Status::unknown("mutex: session is expired"));
            }
            header = Some(queue.context.header(view.revision()));
        }
        guard.keep();
        Ok(smallvec![LockResponse { header, key: own.key }.encode_to_vec().into()])
    }

    /// Deletes the key that holds a lock.
    pub(super) async fn unlock(&self, caller: &Caller, message: Bytes) -> Result<Message, Status> {
        let request = decoded(UnlockRequest::decode(message))?;
        let delete = DeleteRangeRequest { key: request.key, ..DeleteRangeRequest::default() };
        let Self(KeyQueue { context, kv, .. }) = self;
        let header = async {
            let replies = context.budgets.replies.share();
            let reply = kv.delete_range(caller, delete.encode_to_vec().into(), &replies).await?.concat();
            Ok::<_, Error>(decoded(DeleteRangeResponse::decode(&reply[..]))?.header)
        };
        let header = header.await.map_err(|error| unknown(&error))?;
        Ok(smallvec![UnlockResponse { header }.encode_to_vec().into()])
    }
}
