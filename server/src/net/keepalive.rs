//! Keepalive as in grpc-go's server: a client that pings too often is disconnected, and a silent
//! one is pinged.

use std::time::Duration;

use crate::config::Keepalive;
use crate::limits;

/// One connection's pings. Times are milliseconds of the core's clock.
#[derive(Debug)]
pub(super) struct PingRules {
    config: Keepalive,
    last_ping: Option<u64>,
    strikes: u32,
    /// When anything came from the client.
    heard: u64,
    /// When the server asked, and nothing came since.
    asked: Option<u64>,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PingStep {
    /// Look again then.
    At(u64),
    /// Ask the client.
    Ask,
    /// It does not answer.
    Gone,
}

impl PingRules {
    #[must_use]
    pub(super) fn new(config: Keepalive, now: u64) -> Self {
        Self { config, last_ping: None, strikes: 0, heard: now, asked: None }
    }

    /// The client pings; false if that is once too often. `has_sent`: HEADERS or DATA went to it
    /// since its last ping. Such a ping is forgiven, and all before it: a client that is sent much
    /// pings as often as the answers come back, to measure.
    pub(super) fn ping(&mut self, now: u64, has_calls: bool, has_sent: bool) -> bool {
        let min_time =
            if has_calls { milliseconds(self.config.min_time) } else { limits::PING_IDLE_MILLISECONDS };
        let is_early = self.last_ping.replace(now).is_some_and(|last| now < last + min_time);
        self.strikes = if has_sent { 0 } else { self.strikes + u32::from(is_early) };
        self.strikes <= limits::PING_STRIKES_MAX
    }

    /// Something came from the client.
    pub(super) fn heard(&mut self, now: u64) {
        self.heard = now;
        self.asked = None;
    }

    /// None if silence is never looked at.
    pub(super) fn check(&mut self, now: u64) -> Option<PingStep> {
        if self.config.interval.is_zero() {
            return None;
        }
        if let Some(asked) = self.asked {
            let until = asked + milliseconds(self.config.timeout);
            return Some(if now >= until { PingStep::Gone } else { PingStep::At(until) });
        }
        let due = self.heard + milliseconds(self.config.interval);
        if now < due {
            return Some(PingStep::At(due));
        }
        self.asked = Some(now);
        Some(PingStep::Ask)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepalive() -> PingRules {
        let seconds = Duration::from_secs;
        let config = Keepalive { min_time: seconds(5), interval: seconds(60), timeout: seconds(20) };
        PingRules::new(config, 0)
    }

    #[test]
    fn a_client_that_pings_too_often_is_told() {
        let mut pings = keepalive();
        assert!([0, 5_000, 10_000, 15_000, 20_000].into_iter().all(|now| pings.ping(now, true, false)));
        assert!(pings.ping(21_000, true, false) && pings.ping(22_000, true, false));
        assert!(!pings.ping(23_000, true, false), "the third that comes too early");
        let mut busy = keepalive();
        assert!((0..100).all(|now| busy.ping(now, true, true)), "each measures what was sent");
        assert!(busy.ping(100, true, false) && busy.ping(101, true, false));
        assert!(!busy.ping(102, true, false), "nothing was sent");
        let mut idle = keepalive();
        let mut ping = |now| idle.ping(now, false, false);
        assert!(ping(0) && ping(10_000) && ping(20_000));
        assert!(!ping(30_000), "no calls are open");
    }

    #[test]
    fn a_silent_client_is_asked_and_given_up() {
        let mut silent = keepalive();
        assert_eq!(silent.check(1), Some(PingStep::At(60_000)));
        assert_eq!(silent.check(60_000), Some(PingStep::Ask));
        assert_eq!(silent.check(60_001), Some(PingStep::At(80_000)));
        assert_eq!(silent.check(80_000), Some(PingStep::Gone));
        silent.heard(80_000);
        assert_eq!(silent.check(80_000), Some(PingStep::At(140_000)));
    }
}
