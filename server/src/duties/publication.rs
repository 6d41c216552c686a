//! Publication: once, before clients come, a member tells the cluster its name and its client URLs;
//! a leader sees then to the cluster's version.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::error::Error;
use revd_proto::etcdserverpb::Member as MemberRow;
use serde_json::json;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::duties::versions;
use crate::limits;
use crate::observe::log;

/// Proposes them and waits, however long the log before them takes to be applied.
pub async fn run(api: Rc<Api>, attributes: MemberRow) {
    match propose(&api, Kind::MemberAttributes, attributes.encode_to_vec().into()).await {
        Ok(()) => versions::look(&api).await,
        Err(Error::Stopped) => {}
        Err(error) => {
            log::fatal("this member cannot be published", json!({"error": error.to_string()}));
        }
    }
}

/// Proposes until it is applied: a cluster may be without a leader, or lose it meanwhile. The
/// command may well be applied twice.
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
