//! The only place that reads time.

use std::time::{Duration, Instant, SystemTime};

/// A point on a clock that never goes back.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Instant {
    Instant::now()
}

/// How long ago a point was.
#[must_use]
pub fn since(start: Instant) -> Duration {
    now().duration_since(start)
}

/// The time of day, for people to read.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}
