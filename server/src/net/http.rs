//! Plain HTTP on the client port: `/version` and `/health`.

use ::http::StatusCode;

use crate::api::{Api, NodeReport};
use crate::version;

/// A whole reply.
#[derive(Debug)]
pub(super) struct PlainReply {
    pub status: StatusCode,
    pub kind: &'static str,
    pub text: String,
}

impl PlainReply {
    /// Its headers.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers =
            vec![("content-type", self.kind.to_owned()), ("content-length", self.text.len().to_string())];
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.push(("allow", "GET".to_owned()));
        }
        headers
    }
}

/// Answers a request that is no gRPC call.
#[must_use]
pub(super) fn answer(api: &Api, method: &str, path: &str) -> PlainReply {
    let report = api.report();
    let (status, kind, text) = match path {
        "/version" | "/health" if method != "GET" => {
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
    PlainReply { status, kind, text }
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
