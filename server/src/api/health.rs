//! The standard health service: serving, for the server as a whole.

use bytes::Bytes;
use prost::Message as _;
use revd_member::error::Status;
use revd_proto::grpc::health::health_check_response::ServingStatus;
use revd_proto::grpc::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use smallvec::smallvec;

use crate::api::call::{Message, decoded, decoded_in_stream};
use crate::api::replies::Replies;

/// The one service there is: the server as a whole.
fn is_served(request: &HealthCheckRequest) -> bool {
    request.service.is_empty()
}

fn reply(status: ServingStatus) -> Message {
    smallvec![HealthCheckResponse { status: status as i32 }.encode_to_vec().into()]
}

/// The same on every core: it has no state.
#[derive(Debug)]
pub(super) struct Health;

impl Health {
    /// `Check`
    pub(super) fn check(message: Bytes) -> Result<Message, Status> {
        if is_served(&decoded(HealthCheckRequest::decode(message))?) {
            Ok(reply(ServingStatus::Serving))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    /// `List`: there is only the whole.
    pub(super) fn list(message: Bytes) -> Result<Message, Status> {
        decoded(HealthListRequest::decode(message))?;
        let serving = HealthCheckResponse { status: ServingStatus::Serving as i32 };
        let statuses = [(String::new(), serving)].into();
        Ok(smallvec![HealthListResponse { statuses }.encode_to_vec().into()])
    }

    /// `Watch`: the state now, then nothing, since it does not change while there
    /// is a connection to tell it on.
    pub(super) async fn watch(message: Bytes, replies: &Replies) -> Result<(), Status> {
        let request = decoded_in_stream(HealthCheckRequest::decode(message))?;
        let is_served = is_served(&request);
        let status = if is_served { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        if replies.send(reply(status)).await {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}
