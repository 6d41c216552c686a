//! Plain HTTP on the client port: `/version`, `/metrics`, and health (`health.rs`).

use ::http::StatusCode;
use revd_member::cluster::version::{AgreedVersions, ClusterVersion};

use crate::api::Api;
use crate::limits;
use crate::net::health;
use crate::net::plain::{JSON, METRICS, PlainReply, parameters};
use crate::version;

/// Whether this path is served.
#[must_use]
pub(super) fn is_served(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path == "/version" || path == "/metrics" || health::is_served(path)
}

/// Bytes of replies that there must be room for before one to this path is made: probes are
/// answered also while there is hardly any.
#[must_use]
pub(super) fn room_for(target: &str) -> usize {
    if target.starts_with("/metrics") { limits::METRICS_REPLY_BYTES } else { 0 }
}

/// Answers a request that is no gRPC call.
pub(super) async fn answer(api: &Api, method: &str, target: &str) -> PlainReply {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if !is_served(path) {
        return PlainReply::error(StatusCode::NOT_FOUND, "404 page not found");
    }
    if method != "GET" {
        return PlainReply::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    }
    match path {
        "/metrics" => PlainReply::ok(METRICS, api.metrics()),
        "/version" => PlainReply::ok(JSON, versions(api.context().versions())),
        _ => health::answer(api, path, &parameters(query)).await,
    }
}

/// The text of `/version`; the cluster's version once it is agreed.
#[must_use]
pub(crate) fn versions(AgreedVersions { cluster, .. }: AgreedVersions) -> String {
    let [storage, cluster] = match cluster {
        Some(cluster) => [cluster.of_storage(), cluster].map(ClusterVersion::with_patch),
        None => ["unknown", "not_decided"].map(str::to_owned),
    };
    format!(r#"{{"etcdserver":"{}","etcdcluster":"{cluster}","storage":"{storage}"}}"#, version::ETCD)
}
