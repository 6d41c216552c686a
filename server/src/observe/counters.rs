//! Numbers about this member under etcd's metric names, for anyone in the process to read.

use std::sync::Arc;

use crate::observe::bounds::BoundCounters;
use crate::observe::calls::CallCounters;
use crate::observe::certificates::{self, CertificateEnds};
use crate::observe::count::Count;
use crate::observe::exposition::{Exposition, Kind};
use crate::observe::process::ProcessFigures;
use crate::observe::turns::{self, Turns};

/// Node view. But for the bounds, each number is written by one core and read by anyone, without a
/// lock.
#[derive(Debug)]
pub struct Counters {
    edges: Vec<EdgeCounters>,
    /// Those of the state core.
    pub state_turns: Turns,
    /// Written by the state core.
    pub leases: LeaseCounters,
    /// Written by every core: how often bounds were reached.
    pub bounds: BoundCounters,
    /// Written by a thread of its own.
    pub process: Arc<ProcessFigures>,
    /// Written by the thread that looks at certificates.
    certificates: Vec<Arc<CertificateEnds>>,
}

/// Edge view, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct EdgeCounters {
    watches: WatchCounters,
    turns: Turns,
    calls: CallCounters,
    proposals: ProposalCounters,
}

/// Edge view: commands of its callers.
#[derive(Debug, Default)]
pub struct ProposalCounters {
    /// Without an outcome.
    pub pending: Count,
    /// Answered with an error before they were known to be applied.
    pub failed: Count,
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
        Self {
            edges: (0..edges).map(|_| EdgeCounters::default()).collect(),
            state_turns: Turns::default(),
            leases: LeaseCounters::default(),
            bounds: BoundCounters::default(),
            process: Arc::default(),
            certificates: Vec::new(),
        }
    }

    /// The same, with the ends of certificates.
    #[must_use]
    pub fn with_certificates(self, certificates: Vec<Arc<CertificateEnds>>) -> Self {
        Self { certificates, ..self }
    }

    /// Those of an edge.
    #[must_use]
    pub fn watches(&self, edge: u16) -> &WatchCounters {
        &self.edges[usize::from(edge)].watches
    }

    /// The turns of an edge's loops.
    #[must_use]
    pub fn turns(&self, edge: u16) -> &Turns {
        &self.edges[usize::from(edge)].turns
    }

    /// The calls of an edge.
    #[must_use]
    pub fn calls_of(&self, edge: u16) -> &CallCounters {
        &self.edges[usize::from(edge)].calls
    }

    /// The calls of each edge.
    pub fn calls(&self) -> impl Iterator<Item = &CallCounters> {
        self.edges.iter().map(|edge| &edge.calls)
    }

    /// The proposals of an edge.
    #[must_use]
    pub fn proposals_of(&self, edge: u16) -> &ProposalCounters {
        &self.edges[usize::from(edge)].proposals
    }

    /// The proposals of each edge.
    pub fn proposals(&self) -> impl Iterator<Item = &ProposalCounters> {
        self.edges.iter().map(|edge| &edge.proposals)
    }

    /// Adds the metrics of watches, leases, turns and bounds.
    pub fn write(&self, to: &mut Exposition) {
        let sum = |count: fn(&WatchCounters) -> &Count| {
            self.edges.iter().map(|edge| count(&edge.watches).get()).sum::<u64>()
        };
        let mut gauge = |name, help, value| to.one(name, Kind::Gauge, help, value);
        gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch calls.", sum(|edge| &edge.streams));
        gauge("etcd_debugging_mvcc_watcher_total", "Watchers on them.", sum(|edge| &edge.watchers));
        let help = "Watchers that have not been told everything.";
        gauge("etcd_debugging_mvcc_slow_watcher_total", help, sum(|edge| &edge.lagging));
        let mut counter = |name, help, value| to.one(name, Kind::Counter, help, value);
        counter("etcd_debugging_mvcc_events_total", "Events told to watchers.", sum(|edge| &edge.events));
        let LeaseCounters { granted, renewed, revoked, expired } = &self.leases;
        counter("etcd_debugging_lease_granted_total", "Leases granted.", granted.get());
        counter("etcd_debugging_lease_renewed_total", "Keepalives of leases.", renewed.get());
        counter("etcd_debugging_lease_revoked_total", "Leases that have ended.", revoked.get());
        let help = "Leases that have ended by their time.";
        counter("etcd_debugging_server_lease_expired_total", help, expired.get());
        turns::write(self.edges.iter().map(|edge| &edge.turns).chain([&self.state_turns]), to);
        self.bounds.write(to);
        certificates::write(&self.certificates, to);
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
        let mut text = Exposition::default();
        counters.write(&mut text);
        let text = text.into_text();
        assert!(text.contains("\netcd_debugging_mvcc_watcher_total 7\n"), "{text}");
        assert!(text.contains("\netcd_debugging_lease_granted_total 5\n"), "{text}");
    }
}
