//! Pings, as grpc-go's server deals with them: a client that pings too often is told to go, and a silent one is asked
//! whether it is still there.

use std::time::Duration;

use crate::config::Keepalive as KeepaliveConfig;

/// Pings too early that are forgiven.
const STRIKES_MAX: u32 = 2;
/// Without open calls a client may ping this often.
const IDLE_MIN_TIME: u64 = 2 * 3600 * 1000;

/// One connection's pings. Times are milliseconds of the core's clock.
#[derive(Debug)]
pub(super) struct Keepalive {
    config: KeepaliveConfig,
    last_ping: Option<u64>,
    strikes: u32,
    /// When anything came from the client.
    heard: u64,
    /// When the server asked, and nothing came since.
    asked: Option<u64>,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Look again then.
    At(u64),
    /// Ask the client.
    Ask,
    /// It does not answer.
    Gone,
}

impl Keepalive {
    #[must_use]
    pub(super) fn new(config: KeepaliveConfig, now: u64) -> Self {
        Self { config, last_ping: None, strikes: 0, heard: now, asked: None }
    }

    /// The client pings; false if that is once too often.
    pub(super) fn ping(&mut self, now: u64, has_calls: bool) -> bool {
        let min_time = if has_calls { milliseconds(self.config.min_time) } else { IDLE_MIN_TIME };
        let is_early = self.last_ping.is_some_and(|last| now < last + min_time);
        self.last_ping = Some(now);
        self.strikes += u32::from(is_early);
        self.strikes <= STRIKES_MAX
    }

    /// A reply was sent: the client may ping again.
    pub(super) fn replied(&mut self) {
        self.strikes = 0;
        self.last_ping = None;
    }

    /// Something came from the client.
    pub(super) fn heard(&mut self, now: u64) {
        self.heard = now;
        self.asked = None;
    }

    /// None if silence is never looked at.
    pub(super) fn check(&mut self, now: u64) -> Option<Check> {
        if self.config.interval.is_zero() {
            return None;
        }
        if let Some(asked) = self.asked {
            let until = asked + milliseconds(self.config.timeout);
            return Some(if now >= until { Check::Gone } else { Check::At(until) });
        }
        let due = self.heard + milliseconds(self.config.interval);
        if now < due {
            return Some(Check::At(due));
        }
        self.asked = Some(now);
        Some(Check::Ask)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepalive() -> Keepalive {
        let seconds = Duration::from_secs;
        let config = KeepaliveConfig { min_time: seconds(5), interval: seconds(60), timeout: seconds(20) };
        Keepalive::new(config, 0)
    }

    #[test]
    fn a_client_that_pings_too_often_is_told() {
        let mut pings = keepalive();
        assert!([0, 5_000, 10_000, 15_000, 20_000].into_iter().all(|now| pings.ping(now, true)));
        assert!(pings.ping(21_000, true) && pings.ping(22_000, true));
        assert!(!pings.ping(23_000, true), "the third that comes too early");
        let mut busy = keepalive();
        for now in 0..100 {
            assert!(busy.ping(now, true));
            busy.replied();
        }
        let mut idle = keepalive();
        assert!(idle.ping(0, false) && idle.ping(10_000, false) && idle.ping(20_000, false));
        assert!(!idle.ping(30_000, false), "no calls are open");
    }

    #[test]
    fn a_silent_client_is_asked_and_given_up() {
        let mut silent = keepalive();
        assert_eq!(silent.check(1), Some(Check::At(60_000)));
        assert_eq!(silent.check(60_000), Some(Check::Ask));
        assert_eq!(silent.check(60_001), Some(Check::At(80_000)));
        assert_eq!(silent.check(80_000), Some(Check::Gone));
        silent.heard(80_000);
        assert_eq!(silent.check(80_000), Some(Check::At(140_000)));
    }
}
