//! Plain requests on the peer port, as tools send them to an etcd's: its members, its version, a
//! downgrade, whether it lives.

use ::http::StatusCode;
use revd_engine::mvcc::Tables;
use revd_member::schema;
use revd_proto::etcdserverpb::Member;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::net::http;
use crate::net::plain::{JSON, PlainReply};

/// Answers a request.
#[must_use]
pub(super) fn answer(tables: &Tables, cluster: u64, method: &str, target: &str) -> PlainReply {
    let path = target.split('?').next().unwrap_or(target);
    if !matches!(path, "/version" | "/members" | "/raft/probing" | "/downgrade/enabled") {
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
