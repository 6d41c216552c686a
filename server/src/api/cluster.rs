//! The Cluster service.

use bytes::Bytes;
use prost::Message as _;
use revd_member::error::Error;
use revd_member::schema;
use revd_proto::etcdserverpb::{MemberListRequest, MemberListResponse};

use crate::api::call::Message;
use crate::api::{Api, decoded};

impl Api {
    /// Who is in the cluster. As with etcd, headers of this service carry no revision.
    pub(super) fn member_list(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(MemberListRequest::decode(message))?;
        let view = self.view_for_reading(!request.linearizable)?;
        let members = schema::members(view.tables()).collect();
        let response = MemberListResponse { header: None, members };
        Ok(self.reply(0, vec![response.encode_to_vec().into()]))
    }
}
