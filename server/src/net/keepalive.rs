//! Keepalive as in grpc-go's server: a client that pings too often is disconnected, and a silent
//! one is pinged.

use crate::config::Keepalive;
use crate::limits;
use crate::net::deadline::milliseconds;

/// One connection's pings. Times are milliseconds of the core's clock.
#[derive(Debug)]
pub(super) struct PingRules {
    config: Keepalive,
    last_ping: Option<u64>,
    strikes: u32,
    /// When bytes last arrived from the client.
    heard: u64,
    /// When the server sent a ping, if no bytes have arrived since.
    asked: Option<u64>,
}

/// The next step of a connection whose client is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PingStep {
    /// Nothing until then.
    At(u64),
    /// Send a ping.
    Ask,
    /// End the connection: the ping was not answered.
    Gone,
}

impl PingRules {
    #[must_use]
    pub(super) fn new(config: Keepalive, now: u64) -> Self {
        Self { config, last_ping: None, strikes: 0, heard: now, asked: None }
    }

    /// Counts a ping of the client; false if it is one too many. `has_sent`: HEADERS or DATA went
    /// to the client since its last ping. Such a ping is forgiven, and all before it: a client that
    /// measures its bandwidth pings as often as the answers come back.
    pub(super) fn ping(&mut self, now: u64, has_calls: bool, has_sent: bool) -> bool {
        let min_time =
            if has_calls { milliseconds(self.config.min_time) } else { limits::PING_IDLE_MILLISECONDS };
        let is_early = self.last_ping.replace(now).is_some_and(|last| now < last + min_time);
        self.strikes = if has_sent { 0 } else { self.strikes + u32::from(is_early) };
        self.strikes <= limits::PING_STRIKES_MAX
    }

    /// Notes that bytes have arrived from the client.
    pub(super) fn heard(&mut self, now: u64) {
        self.heard = now;
        self.asked = None;
    }

    /// The next step; none if the interval is zero, which switches pings off.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keepalive() -> PingRules {
        let seconds = std::time::Duration::from_secs;
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
