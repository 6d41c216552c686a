//! Lease checkpoints: the remaining TTL of long leases is written to the log, so that a restart or
//! a new leader does not begin it anew.

use std::rc::Rc;

use revd_member::error::Error;
use serde_json::json;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::limits;
use crate::observe::log;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>) {
    loop {
        rest(limits::LEASE_NOTE_INTERVAL).await;
        if let Err(error) = api.lease().checkpoint().await
            && error != Error::NotLeader
        {
            log::warn("lease checkpoints could not be written", json!({"error": error.to_string()}));
        }
    }
}
