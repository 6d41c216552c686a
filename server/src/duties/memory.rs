//! Memory that has become free goes back to the system: the allocator does so only when it is used
//! again, and an idle core would keep what a load has left.

use std::time::Duration;

use crate::duties::pace::every;
use crate::limits;
use crate::memory::{give_back, give_back_all};
use crate::threads;

/// When a core last frees the pages that its heap does not use: a walk over all of them, which is
/// milliseconds with ten million keys.
#[derive(Debug, Default)]
struct Pace {
    /// CPU time of the core when it was last looked at.
    used: Duration,
    /// Times that it was put off.
    put_offs: u32,
}

impl Pace {
    /// An interval is over, and the core has used so much CPU time since it began: a busy core
    /// allocates again what it frees, and puts the walk off.
    fn is_time(&mut self, used: Duration) -> bool {
        let took = used.saturating_sub(std::mem::replace(&mut self.used, used));
        let is_busy = took > limits::GIVE_BACK_INTERVAL / 4;
        let is_time = !is_busy || self.put_offs == limits::GIVE_BACK_PUT_OFFS_MAX;
        self.put_offs = if is_time { 0 } else { self.put_offs + 1 };
        is_time
    }
}

/// Frees the pages that this core's heap does not use, from time to time. Runs until it is
/// cancelled.
pub async fn run() {
    let mut pace = Pace::default();
    every(limits::GIVE_BACK_INTERVAL, || {
        if pace.is_time(threads::cpu_time()) {
            give_back();
        }
    })
    .await;
}

/// Starts the thread that gives the system the pages that no heap has. The end of the process does
/// not wait for it.
///
/// # Errors
/// When the system has no thread.
pub fn start() -> std::io::Result<()> {
    threads::begin("memory", || {
        loop {
            threads::rest(limits::GIVE_BACK_INTERVAL);
            give_back_all();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_core_frees_its_pages_now_and_then_and_one_that_rests_each_time() {
        let mut pace = Pace::default();
        let mut used = Duration::from_secs(9);
        pace.is_time(used);
        let mut times = |part: u32, looks: usize| {
            let look = |_| {
                used += limits::GIVE_BACK_INTERVAL / part;
                pace.is_time(used)
            };
            (0..looks).map(look).filter(|is_time| *is_time).count()
        };
        let put_offs = limits::GIVE_BACK_PUT_OFFS_MAX as usize;
        assert_eq!(times(8, 5), 5);
        assert_eq!(times(2, put_offs), 0);
        assert_eq!(times(2, 1), 1);
        assert_eq!(times(2, 3 * (put_offs + 1)), 3);
        assert_eq!(times(8, 1), 1);
    }
}
