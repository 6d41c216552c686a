//! The reserve: on a full disk the alarm is raised, and the reserve is made again once there is
//! room.

use std::rc::Rc;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::limits;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>) {
    loop {
        rest(limits::RESERVE_INTERVAL).await;
        if let Some(reserve) = api.context().look_at_disk().await {
            // Without room for it the next look tries again.
            let _ = glommio::executor().spawn_blocking(move || reserve.fill()).await;
        }
    }
}
