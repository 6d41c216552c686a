//! Lease expiry: expired leases are revoked, many in one command. A lease whose revocation fails is
//! still expired at the next look.

use std::rc::Rc;

use revd_member::error::Error;
use serde_json::json;

use crate::api::{Api, More};
use crate::duties::pace::rest;
use crate::limits;
use crate::observe::log;
use crate::queues::turn::give_way;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>) {
    loop {
        match api.lease().revoke_expired().await {
            Ok(More::Perhaps) => give_way().await,
            // Another member leads by now, or this one has yet to know its leases.
            Ok(More::No) | Err(Error::NotLeader) => rest(limits::LEASE_CHECK_INTERVAL).await,
            Err(error) => {
                log::warn("expired leases could not be revoked", json!({"error": error.to_string()}));
                rest(limits::LEASE_CHECK_INTERVAL).await;
            }
        }
    }
}
