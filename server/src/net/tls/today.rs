//! The time of day, which alone decides whether a certificate counts.

use std::time::{Duration, SystemTime};

use crate::clock;

/// Since 1970.
pub(super) fn now() -> Duration {
    clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Since 1970, in seconds as certificates have them.
pub(super) fn seconds() -> i64 {
    i64::try_from(now().as_secs()).unwrap_or(i64::MAX)
}

/// A time for people to read.
pub(super) fn text(seconds: i64) -> String {
    let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string()
}

/// The time of day, so long from now.
pub(super) fn later(time: Duration) -> SystemTime {
    clock::wall() + time
}
