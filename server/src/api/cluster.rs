//! The Cluster service.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_member::error::Error;
use revd_member::schema;
use revd_proto::etcdserverpb::{MemberListRequest, MemberListResponse};

use crate::api::call::{Message, decoded};
use crate::api::context::ServiceContext;

/// Edge view.
#[derive(Debug)]
pub(super) struct Cluster {
    context: Rc<ServiceContext>,
}

impl Cluster {
    pub(super) fn new(context: &Rc<ServiceContext>) -> Self {
        Self { context: Rc::clone(context) }
    }

    /// The members. As with etcd, headers of this service carry no revision.
    pub(super) async fn member_list(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(MemberListRequest::decode(message))?;
        let view = self.context.view_for_reading(!request.linearizable).await?;
        let members = schema::members(view.tables()).collect();
        let response = MemberListResponse { header: None, members };
        Ok(self.context.reply(0, vec![response.encode_to_vec().into()]))
    }
}
