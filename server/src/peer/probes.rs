//! Plain requests on the peer port, as tools send them to an etcd's: its members, its version,
//! whether it lives.

use ::http::StatusCode;
use revd_engine::mvcc::Tables;
use revd_member::schema;
use revd_proto::etcdserverpb::Member;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::net::http::{JSON, PlainReply, TEXT, versions};

/// Answers a request.
#[must_use]
pub(super) fn answer(tables: &Tables, cluster: u64, method: &str, target: &str) -> PlainReply {
    let path = target.split('?').next().unwrap_or(target);
    let is_known = matches!(path, "/version" | "/members" | "/raft/probing");
    let (status, kind, text) = match path {
        _ if !is_known => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
        _ if method != "GET" => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "Method Not Allowed\n".to_owned()),
        "/version" => (StatusCode::OK, JSON, versions(schema::cluster_version(tables))),
        "/members" => {
            let members: Vec<Value> = schema::members(tables).map(row).collect();
            (StatusCode::OK, JSON, format!("{}\n", Value::from(members)))
        }
        _ => {
            let now = humantime::format_rfc3339_nanos(clock::wall()).to_string();
            (StatusCode::OK, JSON, format!("{}\n", json!({"OK": true, "Now": now})))
        }
    };
    let more = (path == "/members").then(|| ("x-etcd-cluster-id", format!("{cluster:x}")));
    PlainReply { status, kind, text, more }
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
