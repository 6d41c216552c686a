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

/// Milliseconds by a clock that never goes back and begins anywhere. It is some milliseconds late,
/// and a fifth of the work to read.
#[must_use]
pub fn coarse_milliseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec.cast_unsigned() * 1_000 + time.tv_nsec.cast_unsigned() / 1_000_000
}

/// Time since it was made, by a clock that never goes back.
#[derive(Debug, Clone, Copy)]
pub struct Ticker(Instant);

impl Ticker {
    /// Begins now.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self(now())
    }

    /// Microseconds since then.
    #[must_use]
    pub fn microseconds(self) -> u64 {
        u64::try_from(since(self.0).as_micros()).unwrap_or(u64::MAX)
    }

    /// Since then.
    #[must_use]
    pub fn milliseconds(self) -> u64 {
        u64::try_from(since(self.0).as_millis()).unwrap_or(u64::MAX)
    }
}
