//! Memory that has become free goes back to the system: the allocator does so only when it is used
//! again, and an idle core would keep what a load has left.

use std::time::Duration;

use crate::clock;
use crate::duties::pace::rest;
use crate::limits;
use crate::memory::{give_back, give_back_all};
use crate::threads;

/// Frees the pages that this core's heap does not use, from time to time. Runs until it is
/// cancelled.
pub async fn run() {
    let mut took = Duration::ZERO;
    loop {
        rest(time_between(took)).await;
        let began = clock::now();
        give_back();
        took = clock::since(began);
    }
}

/// Time to the next walk over a heap of which the last one took so long: it looks at all pages, so
/// that it is long where the heap is large, and in one piece. Where the core had to wait for its
/// CPU meanwhile, that counts too, once.
fn time_between(took: Duration) -> Duration {
    (took * limits::GIVE_BACK_PART).clamp(limits::GIVE_BACK_INTERVAL, limits::GIVE_BACK_INTERVAL_MAX)
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
    fn a_large_heap_is_looked_at_more_rarely() {
        let seconds = |micros: u64| time_between(Duration::from_micros(micros)).as_secs_f64();
        assert_eq!([0, 10, 500].map(seconds), [1.0; 3]);
        assert_eq!([1_000, 4_000].map(seconds), [2.0, 8.0]);
        assert_eq!([8_000, u64::MAX / 1_000_000].map(seconds), [16.0; 2]);
    }
}
