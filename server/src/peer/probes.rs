//! Plain requests on the peer port, as tools send them to an etcd's: its members, its version, a
//! downgrade, whether it lives.

use ::http::StatusCode;
use revd_engine::mvcc::{Hashed, Tables, View};
use revd_member::cluster::Identity;
use revd_member::schema;
use revd_proto::etcdserverpb::Member;
use serde_json::{Map, Value, json};

use crate::api;
use crate::clock;
use crate::net::http;
use crate::net::plain::{JSON, PlainReply};
use crate::queues::gate::Pass;

const HASH_KV: &str = "/members/hashkv";

/// Answers a request.
#[must_use]
pub(super) fn answer(tables: &Tables, cluster: u64, method: &str, target: &str) -> PlainReply {
    let path = target.split('?').next().unwrap_or(target);
    if !matches!(path, "/version" | "/members" | HASH_KV | "/raft/probing" | "/downgrade/enabled") {
        return PlainReply::error(StatusCode::NOT_FOUND, "404 page not found");
    }
    if method != "GET" {
        return PlainReply::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    }
    let versions = schema::versions(tables);
    let mut reply = match path {
        "/version" => PlainReply::ok(JSON, http::versions(versions)),
        "/members" => {
            let members: Vec<Value> = schema::members(tables).map(row).collect();
            PlainReply::ok(JSON, format!("{}\n", Value::from(members)))
        }
        // As this member knows; etcd's asks its leader first.
        "/downgrade/enabled" => PlainReply::ok("text/plain", versions.downgrade.is_some().to_string()),
        _ => {
            let now = humantime::format_rfc3339_nanos(clock::wall()).to_string();
            PlainReply::ok(JSON, format!("{}\n", json!({"OK": true, "Now": now})))
        }
    };
    if matches!(path, "/members" | "/downgrade/enabled") {
        reply.more.push(("x-etcd-cluster-id", format!("{cluster:x}")));
    }
    reply
}

/// The revision of which a request wants to know the hash, if it does. It is a parameter; a body,
/// as etcd's members send one to each other, is not read.
pub(super) fn asks_for_hash(method: &str, target: &str) -> Option<i64> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let revision = query.strip_prefix("revision=").and_then(|revision| revision.parse().ok());
    (method == "GET" && path == HASH_KV).then(|| revision.unwrap_or(0))
}

/// HashKV as etcd's members tell it each other. Without a pass there are others to tell.
pub(super) async fn hash(view: View, own: Identity, revision: i64, pass: Option<Pass>) -> PlainReply {
    if pass.is_none() {
        return PlainReply::error(StatusCode::SERVICE_UNAVAILABLE, "too many requests");
    }
    let mut reply = match api::hashed(&view, revision).await {
        Ok(Hashed { hash, revision, compact_revision }) => {
            let header = json!({
                "cluster_id": own.cluster, "member_id": own.member, "revision": view.revision(),
                "raft_term": view.applied().term,
            });
            let hash = json!({
                "header": header, "hash": hash, "compact_revision": compact_revision, "hash_revision": revision,
            });
            PlainReply::ok(JSON, format!("{hash}\n"))
        }
        Err(error) => {
            let text = error.to_string();
            PlainReply::error(StatusCode::BAD_REQUEST, text.trim_start_matches("etcdserver: "))
        }
    };
    reply.more.push(("x-etcd-cluster-id", format!("{:x}", own.cluster)));
    reply
}

/// A member as etcd's JSON has it: what is empty is left out, but for the peer URLs.
fn row(member: Member) -> Value {
    let Member { id, name, peer_ur_ls, client_ur_ls, is_learner } = member;
    let mut row = Map::new();
    row.insert("id".to_owned(), id.into());
    row.insert("peerURLs".to_owned(), peer_ur_ls.into());
    if is_learner {
        row.insert("isLearner".to_owned(), true.into());
    }
    if !name.is_empty() {
        row.insert("name".to_owned(), name.into());
    }
    if !client_ur_ls.is_empty() {
        row.insert("clientURLs".to_owned(), client_ur_ls.into());
    }
    Value::Object(row)
}
