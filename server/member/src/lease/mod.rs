//! Leases: keys that live only as long as a client keeps their lease alive.
//!
//! [`Leases`] is the replicated part: which leases there are, how long they were granted for, which
//! keys are attached. It changes by commands from the log only, the same on every member.
//! [`LeaseDeadlines`] is the leader's own part: when each lease expires, by a clock that is handed
//! in. A keepalive moves a deadline and touches no log; an expired lease is revoked by a command,
//! which names the term it expired in, so that a former leader revokes nothing.

mod deadlines;
mod leases;
mod walk;

pub use deadlines::{ExpiryCheck, KeepaliveResult, LeaseDeadlines};
pub use leases::{Leases, TTL_MAX, Touched};
pub use walk::SnapshotWalk;
