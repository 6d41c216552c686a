//! Numbers about this member under etcd's metric names, for anyone in the process to read.

use crate::observe::bounds::{Bound, BoundCounters};
use crate::observe::count::Count;
use crate::observe::turns::{self, Turns};

/// Node view. But for the bounds, each number is written by one core and read by anyone, without a
/// lock.
#[derive(Debug)]
pub struct Counters {
    /// One per edge.
    watches: Vec<WatchCounters>,
    /// One per edge.
    turns: Vec<Turns>,
    /// Those of the state core.
    pub state_turns: Turns,
    /// Written by the state core.
    pub leases: LeaseCounters,
    /// Written by every core: how often bounds were reached.
    pub bounds: BoundCounters,
}

/// Edge view.
#[derive(Debug, Default)]
pub struct WatchCounters {
    /// Open watch calls.
    pub streams: Count,
    /// Watchers on them.
    pub watchers: Count,
    /// Unsynced watchers.
    pub lagging: Count,
    /// Events put into replies to watchers.
    pub events: Count,
}

/// State core view.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    /// Leases granted.
    pub granted: Count,
    /// Keepalives of leases that live.
    pub renewed: Count,
    /// Leases revoked, for whatever reason.
    pub revoked: Count,
    /// Leases revoked because they had expired.
    pub expired: Count,
}

impl Counters {
    /// Zeros, for so many edges.
    #[must_use]
    pub fn new(edges: usize) -> Self {
        let watches = (0..edges).map(|_| WatchCounters::default()).collect();
        let turns = (0..edges).map(|_| Turns::default()).collect();
        let state_turns = Turns::default();
        Self {
            watches,
            turns,
            state_turns,
            leases: LeaseCounters::default(),
            bounds: BoundCounters::default(),
        }
    }

    /// Those of an edge.
    #[must_use]
    pub fn watches(&self, edge: u16) -> &WatchCounters {
        &self.watches[usize::from(edge)]
    }

    /// The turns of an edge's loops.
    #[must_use]
    pub fn turns(&self, edge: u16) -> &Turns {
        &self.turns[usize::from(edge)]
    }

    /// Every number by its name.
    #[must_use]
    pub fn samples(&self) -> Vec<(&'static str, u64)> {
        let sum =
            |count: fn(&WatchCounters) -> &Count| self.watches.iter().map(|edge| count(edge).get()).sum();
        let mut samples = vec![
            ("etcd_debugging_mvcc_watch_stream_total", sum(|edge| &edge.streams)),
            ("etcd_debugging_mvcc_watcher_total", sum(|edge| &edge.watchers)),
            ("etcd_debugging_mvcc_slow_watcher_total", sum(|edge| &edge.lagging)),
            ("etcd_debugging_mvcc_events_total", sum(|edge| &edge.events)),
            ("etcd_debugging_lease_granted_total", self.leases.granted.get()),
            ("etcd_debugging_lease_renewed_total", self.leases.renewed.get()),
            ("etcd_debugging_lease_revoked_total", self.leases.revoked.get()),
            ("etcd_debugging_server_lease_expired_total", self.leases.expired.get()),
        ];
        samples.extend(turns::samples(self.turns.iter().chain([&self.state_turns])));
        samples.extend(Bound::ALL.map(|bound| (bound.metric(), self.bounds.get(bound))));
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_added_up() {
        let counters = Counters::new(2);
        counters.watches(0).watchers.set(3);
        counters.watches(1).watchers.set(4);
        counters.leases.granted.set(5);
        let samples = counters.samples();
        assert!(samples.contains(&("etcd_debugging_mvcc_watcher_total", 7)));
        assert!(samples.contains(&("etcd_debugging_lease_granted_total", 5)));
    }
}
