//! Plain HTTP on the client port: `/version` and `/health`.

use ::http::StatusCode;

use crate::api::{Api, NodeReport};
use crate::version;

/// A reply to a plain HTTP request.
#[derive(Debug)]
pub(crate) struct PlainReply {
    pub status: StatusCode,
    pub kind: &'static str,
    pub text: String,
    /// A header beside the usual ones.
    pub more: Option<(&'static str, String)>,
}

impl PlainReply {
    /// Its headers.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers =
            vec![("content-type", self.kind.to_owned()), ("content-length", self.text.len().to_string())];
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.push(("allow", "GET".to_owned()));
        }
        headers.extend(self.more.clone());
        headers
    }
}

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";

/// Whether this path is served.
#[must_use]
pub(super) fn is_served(target: &str) -> bool {
    matches!(target.split('?').next(), Some("/version" | "/health"))
}

/// Answers a request that is no gRPC call.
#[must_use]
pub(super) fn answer(api: &Api, method: &str, target: &str) -> PlainReply {
    let report = api.report();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (status, kind, text) = match path {
        "/version" | "/health" if method != "GET" => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "Method Not Allowed\n".to_owned())
        }
        "/version" => (StatusCode::OK, JSON, versions(report.cluster_version.as_deref())),
        "/health" => match unhealthy(&report, query) {
            None => (StatusCode::OK, TEXT, r#"{"health":"true","reason":""}"#.to_owned()),
            Some(reason) => (
                StatusCode::SERVICE_UNAVAILABLE,
                TEXT,
                format!("{{\"health\":\"false\",\"reason\":\"{reason}\"}}\n"),
            ),
        },
        _ => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
    };
    PlainReply { status, kind, text, more: None }
}

/// The text of `/version`; the cluster's version once it is agreed.
#[must_use]
pub(crate) fn versions(cluster: Option<&str>) -> String {
    let cluster = cluster.unwrap_or("not_decided");
    format!(r#"{{"etcdserver":"{}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#, version::ETCD)
}

/// Why this member is not healthy, in etcd's order. The parameter `exclude` names alarms that do
/// not count; with `serializable=true` a leader is not needed.
fn unhealthy(report: &NodeReport, query: &str) -> Option<&'static str> {
    let fields = parameters(query);
    let is_excluded =
        |alarm: &str| fields.iter().any(|(name, value)| name == b"exclude" && value == alarm.as_bytes());
    let serializable = fields.iter().find(|(name, _)| name == b"serializable");
    if report.raised.no_space && !is_excluded("NOSPACE") {
        Some("ALARM NOSPACE")
    } else if report.raised.corrupt && !is_excluded("CORRUPT") {
        Some("ALARM CORRUPT")
    } else if !report.has_leader && serializable.is_none_or(|(_, value)| value != b"true") {
        Some("RAFT NO LEADER")
    } else {
        None
    }
}

/// The parameters of a query, as Go reads them: a parameter that cannot be decoded is left out.
fn parameters(query: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let parts = query.split('&').filter(|part| !part.is_empty() && !part.contains(';'));
    let decoded = parts.filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Some((unescaped(name)?, unescaped(value)?))
    });
    decoded.collect()
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || u8::try_from(char::from(bytes.next()?).to_digit(16)?).ok();
                digit()? << 4 | digit()?
            }
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_member::apply::alarm::Raised;

    #[test]
    fn health_excludes_what_the_query_says() {
        let raised = Raised { no_space: true, ..Raised::default() };
        let report = |raised, has_leader| NodeReport { cluster_version: None, has_leader, raised };
        let alarmed = |query| unhealthy(&report(raised, true), query);
        for query in [
            "",
            "exclude=CORRUPT",
            "exclude=nospace",
            "exclude=NOSPACE,CORRUPT",
            "a;exclude=NOSPACE",
            "exclude",
        ] {
            assert_eq!(alarmed(query), Some("ALARM NOSPACE"), "{query}");
        }
        for query in ["exclude=NOSPACE", "exclude=CORRUPT&exclude=%4eOSPACE", "x;y&%zz=1&exclude=NOSPACE"] {
            assert_eq!(alarmed(query), None, "{query}");
        }
        let leaderless = |query| unhealthy(&report(Raised::default(), false), query);
        assert_eq!(leaderless("serializable=true"), None);
        for query in ["", "serializable", "serializable=1", "serializable=x&serializable=true"] {
            assert_eq!(leaderless(query), Some("RAFT NO LEADER"), "{query}");
        }
    }
}
