//! gRPC over HTTP/2: from a request to a call and back.

use std::rc::Rc;

use http::{HeaderMap, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tonic::Status;

use crate::api::Api;
use crate::api::call::{Metadata, Replies};
use crate::api::method::{self, Method};
use crate::error::Error;
use crate::net::body::{ReplyBody, trailers};
use crate::net::request::{Messages, RequestBytes};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request is a gRPC call.
#[must_use]
pub(super) fn is_call(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Carries out a call.
pub(super) async fn answer(
    api: Rc<Api>,
    request: Request<Incoming>,
    message_bytes_max: usize,
    core: &RequestBytes,
) -> Response<ReplyBody> {
    match call(api, request, message_bytes_max, core).await {
        Ok(body) => {
            let mut response = Response::new(body);
            response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
            response
        }
        Err(status) => refusal(&status),
    }
}

async fn call(
    api: Rc<Api>,
    request: Request<Incoming>,
    message_bytes_max: usize,
    core: &RequestBytes,
) -> Result<ReplyBody, Status> {
    let method = method::find(request.uri().path())?;
    let metadata = metadata(request.headers())?;
    let messages = Messages::new(request.into_body(), message_bytes_max, core);
    match method {
        Method::Unary(method) => {
            let message = messages.only().await?;
            // In a box, so that the task of a stream is not as large as the largest of these.
            Ok(ReplyBody::unary(Box::pin(api.unary(method, metadata, message)).await?))
        }
        Method::Streaming(method) => {
            let (replies, queue) = Replies::new();
            let call = api.streaming(method, metadata, Box::new(messages), replies);
            Ok(ReplyBody::stream(Box::pin(call), queue))
        }
    }
}

/// What etcd reads from a call's headers.
fn metadata(headers: &HeaderMap) -> Result<Metadata, Status> {
    if let Some(version) = headers.get("client-api-version")
        && std::str::from_utf8(version.as_bytes()).is_err()
    {
        return Err(Error::InvalidClientApiVersion.into());
    }
    let requires_leader = headers.get("hasleader").is_some_and(|value| value == "true");
    Ok(Metadata { requires_leader })
}

/// A reply without messages: the status travels in the head.
fn refusal(status: &Status) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Empty);
    *response.headers_mut() = trailers(status);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}
