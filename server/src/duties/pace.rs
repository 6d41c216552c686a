//! A steady pace, for duties and for raft's clock.

use std::time::Duration;

use crate::queues::sleep::sleep;

/// Calls `step` after every `interval`, for as long as its task lives.
pub async fn every(interval: Duration, mut step: impl FnMut()) {
    loop {
        rest(interval).await;
        step();
    }
}

/// Waits for this time.
pub async fn rest(interval: Duration) {
    sleep(interval).await;
}
