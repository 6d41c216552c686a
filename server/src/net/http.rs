//! Plain HTTP on the ports of clients and of metrics: `/version`, `/metrics`, and health
//! (`health.rs`).

use ::http::StatusCode;
use revd_member::cluster::version::{AgreedVersions, ClusterVersion};

use crate::api::Api;
use crate::config::Served;
use crate::limits;
use crate::net::health;
use crate::net::plain::{JSON, METRICS, PlainReply, parameters};
use crate::version;

/// Whether this path is served where such requests are.
#[must_use]
pub(super) fn is_served(served: Served, target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path == "/metrics" || health::is_served(path) || (path == "/version" && served != Served::Metrics)
}

/// Bytes of replies that there must be room for before one to this path is made: probes are
/// answered also while there is hardly any.
#[must_use]
pub(super) fn room_for(target: &str) -> usize {
    if target.starts_with("/metrics") { limits::METRICS_REPLY_BYTES } else { 0 }
}

/// Answers a request that is no gRPC call.
pub(super) async fn answer(api: &Api, served: Served, method: &str, target: &str) -> PlainReply {
    let reply = answer_whole(api, served, method, target).await;
    PlainReply { is_head_alone: method == "HEAD", ..reply }
}

async fn answer_whole(api: &Api, served: Served, method: &str, target: &str) -> PlainReply {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if !is_served(served, path) {
        return PlainReply::error(StatusCode::NOT_FOUND, "404 page not found");
    }
    // As with etcd, metrics are shown whatever the method is.
    if method != "GET" && path != "/metrics" {
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
