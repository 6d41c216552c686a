//! The clock of progress notifications; the hub decides at which tick a watcher gets one.

use std::rc::Rc;
use std::time::Duration;

use crate::api::Api;
use crate::duties::pace::every;
use crate::limits;

/// Runs until it is cancelled.
///
/// # Panics
/// Never: `PROGRESS_TICKS` is a small number.
pub async fn run(api: Rc<Api>, interval: Duration) {
    let ticks = u32::try_from(limits::PROGRESS_TICKS).expect("a small number");
    let mut tick = 0;
    every(interval / ticks, || {
        tick += 1;
        api.watchers().tick(tick);
    })
    .await;
}
