//! The only place that reads time.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Nanoseconds since the program first asked; the same clock on all threads.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A duration in nanoseconds.
#[must_use]
pub fn in_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds of a plan in nanoseconds.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked with the plan: short, not negative"
)]
pub fn from_seconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// The time of day, for people to read.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Lets this thread rest.
pub fn rest(duration: Duration) {
    let until = nanos().saturating_add(in_nanos(duration));
    while let Some(left) = until.checked_sub(nanos()).filter(|left| *left > 0) {
        std::thread::park_timeout(Duration::from_nanos(left));
    }
}

/// CPU time this thread has used, in nanoseconds.
#[must_use]
pub fn thread_cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
