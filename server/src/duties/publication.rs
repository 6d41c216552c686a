//! Publication: once, before clients come, a member tells the cluster its name, its client URLs and
//! its version.

use std::rc::Rc;

use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_proto::etcdserverpb::Member as MemberRow;
use serde_json::json;

use crate::api::Api;
use crate::observe::log;
use crate::version;

/// Proposes them and waits, however long the log before them takes to be applied.
pub async fn run(api: Rc<Api>, attributes: MemberRow) {
    let published =
        api.context().propose_patiently(Kind::MemberAttributes, attributes.encode_to_vec().into()).await;
    let agreed = match published {
        Ok(_) => api.context().propose_patiently(Kind::ClusterVersion, version::CLUSTER.into()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = agreed {
        log::fatal("this member cannot be published", json!({"error": error.to_string()}));
    }
}
