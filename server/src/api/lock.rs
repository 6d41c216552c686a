//! The Lock service: the oldest key under a name holds its lock.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::error::Error;
use revd_member::error::Status;
use revd_proto::etcdserverpb::{DeleteRangeRequest, DeleteRangeResponse};
use revd_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use smallvec::smallvec;

use crate::api::call::Message;
use crate::api::queue::{oldest, unknown};
use crate::api::{Api, decoded};

impl Api {
    /// Answers when the caller holds the lock; a call that goes away before gives its place up.
    pub(super) async fn lock(self: &Rc<Self>, message: Bytes) -> Result<Message, Status> {
        let request = decoded(LockRequest::decode(message))?;
        let (place, reply, waiting) = self
            .stand_in_line(&request.name, request.lease, &Bytes::new())
            .await
            .map_err(|error| unknown(&error))?;
        let view: View = self.views.load();
        let owner = oldest(&view, &place.prefix).await;
        let mut header = reply.header;
        if owner.is_some_and(|(key, _)| key != place.key) {
            self.wait_for_turn(&place).await.map_err(|error| unknown(&error))?;
            let view: View = self.view_for_reading(false).map_err(|error| unknown(&error))?;
            if view.reader().get(&place.key, i64::MAX).is_none() {
                return Err(Status::unknown("mutex: session is expired"));
            }
            header = Some(self.header(view.revision()));
        }
        waiting.done();
        Ok(smallvec![LockResponse { header, key: place.key }.encode_to_vec().into()])
    }

    /// Deletes the key that holds a lock.
    pub(super) async fn unlock(&self, message: Bytes) -> Result<Message, Status> {
        let request = decoded(UnlockRequest::decode(message))?;
        let delete = DeleteRangeRequest { key: request.key, ..DeleteRangeRequest::default() };
        let header = async {
            let reply = self
                .delete_range(delete.encode_to_vec().into(), &self.budgets.replies.share())
                .await?
                .concat();
            Ok::<_, Error>(decoded(DeleteRangeResponse::decode(&reply[..]))?.header)
        };
        let header = header.await.map_err(|error| unknown(&error))?;
        Ok(smallvec![UnlockResponse { header }.encode_to_vec().into()])
    }
}
