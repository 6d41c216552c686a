//! Publication: once, before clients come, a member tells the cluster its name, its client URLs and
//! its version.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::error::Error;
use revd_proto::etcdserverpb::Member as MemberRow;
use serde_json::json;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::limits;
use crate::observe::log;
use crate::version;

/// Proposes them and waits, however long the log before them takes to be applied.
pub async fn run(api: Rc<Api>, attributes: MemberRow) {
    let published = propose(&api, Kind::MemberAttributes, attributes.encode_to_vec().into()).await;
    let agreed = match published {
        Ok(()) => propose(&api, Kind::ClusterVersion, version::CLUSTER.into()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = agreed
        && error != Error::Stopped
    {
        log::fatal("this member cannot be published", json!({"error": error.to_string()}));
    }
}

/// Proposes until it is applied: a cluster may be without a leader, or lose it meanwhile. Both
/// commands may well be applied twice.
async fn propose(api: &Api, kind: Kind, message: Bytes) -> Result<(), Error> {
    loop {
        match api.context().propose_patiently(kind, message.clone()).await {
            Ok(_) => return Ok(()),
            Err(error)
                if error.leaves_write_open() || matches!(error, Error::NoLeader | Error::TooManyRequests) =>
            {
                rest(limits::PUBLICATION_INTERVAL).await;
            }
            Err(error) => return Err(error),
        }
    }
}
