//! Memory that a core has freed goes back to the system: the allocator does so only when it is used
//! again, and an idle core would keep what a load has left.

use crate::duties::pace::every;
use crate::limits;
use crate::memory::give_back;

/// Runs until it is cancelled, for the core it runs on.
pub async fn run() {
    every(limits::GIVE_BACK_INTERVAL, give_back).await;
}
