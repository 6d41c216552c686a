//! Plain HTTP on the client port: `/version` and `/health`.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

use crate::api::{Api, NodeReport};
use crate::net::body::ReplyBody;
use crate::version;

/// Answers a request that is no gRPC call.
#[must_use]
pub(super) fn answer(api: &Api, method: &Method, path: &str) -> Response<ReplyBody> {
    let report = api.report();
    let (status, kind, text) = match path {
        "/version" | "/health" if method != Method::GET => {
            (StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "Method Not Allowed\n".to_owned())
        }
        "/version" => {
            let cluster = report.cluster_version.as_deref().unwrap_or("not_decided");
            let text = format!(
                r#"{{"etcdserver":"{}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#,
                version::ETCD
            );
            (StatusCode::OK, "application/json", text)
        }
        "/health" => match unhealthy(&report) {
            None => (StatusCode::OK, "application/json", r#"{"health":"true","reason":""}"#.to_owned()),
            Some(reason) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "application/json",
                format!(r#"{{"health":"false","reason":"{reason}"}}"#),
            ),
        },
        _ => (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(ReplyBody::Plain(Some(Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

/// Why this member is not healthy, in etcd's order.
fn unhealthy(report: &NodeReport) -> Option<&'static str> {
    if report.raised.no_space {
        Some("ALARM NOSPACE")
    } else if report.raised.corrupt {
        Some("ALARM CORRUPT")
    } else if !report.has_leader {
        Some("RAFT NO LEADER")
    } else {
        None
    }
}
