//! Which core plays which role, and which state it owns.
//!
//! | role  | owns | loop |
//! |-------|------|------|
//! | edge  | its connections, open proposals, reads, watchers | `edge.rs` |
//! | log   | raft, the write-ahead log | `log.rs` |
//! | state | the store and the leases: apply, checkpoints, publication of Views | `state.rs` |
//!
//! A core is one glommio executor pinned to one CPU and may play several roles. One core plays all
//! of them; with two to four, core 0 plays log and state beside an edge and every other core is an
//! edge; with more, log and state have a core each. Members on one machine begin with different
//! CPUs (`boot/runtime.rs`), so that their log cores do not wait for each other.

pub mod edge;
pub mod log;
pub mod state;

use std::fmt;

use revd_engine::mvcc::SavedState;
use revd_member::apply::DurableIndex;
use revd_member::apply::command::CommandId;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::state_hashes::HashPoint;
use revd_member::cores::edge::Notification;

/// From the state core to an edge: what has happened since the last message.
pub type Notifications = Vec<Notification>;

/// From the state core to the log core: what has happened since the last message.
pub type StateReports = Vec<StateReport>;

/// News of state for the log core.
#[derive(Debug)]
pub enum StateReport {
    /// State up to here is durable elsewhere, so that the log may let go of it.
    Durable(DurableIndex),
    /// The state that the log core has asked for, to be sent to another member.
    Saved {
        /// That member.
        to: u64,
        /// The term of the leader that sends it.
        term: u64,
        /// The state; none if nothing was ever saved.
        state: Option<SavedState>,
    },
    /// A state hash that a member wants to know, or the log core.
    Hash {
        /// That member.
        to: u64,
        /// The hash.
        point: HashPoint,
        /// Members whose alarm says that they are corrupt.
        corrupt: Vec<u64>,
    },
    /// The answer to a local request of another member.
    Answer {
        /// That member.
        to: u64,
        /// Its caller.
        id: CommandId,
        /// The answer.
        outcome: Outcome,
    },
}

/// The roles of one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// Its number among the edges, if it is one.
    pub edge: Option<u16>,
    /// Runs raft and the write-ahead log.
    pub log: bool,
    /// Applies.
    pub state: bool,
}

impl fmt::Display for Roles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cpu {}:", self.cpu)?;
        if self.log {
            write!(out, " log")?;
        }
        if self.state {
            write!(out, " state")?;
        }
        if let Some(edge) = self.edge {
            write!(out, " edge-{edge}")?;
        }
        Ok(())
    }
}

/// The roles of `cores` cores over the CPUs this process may use; more cores than CPUs share them
/// in turn.
///
/// # Panics
/// If `cores` is 0 or more than 1024, or `cpus` is empty; the configuration is checked before.
#[must_use]
pub fn assign(cores: usize, cpus: &[usize]) -> Vec<Roles> {
    assert!((1..=1024).contains(&cores) && !cpus.is_empty(), "{cores} cores over {} CPUs", cpus.len());
    let own_cores = cores > 4; // log and state each have a core to themselves
    let mut edges = 0..;
    (0..cores)
        .map(|core| Roles {
            cpu: cpus[core % cpus.len()],
            log: core == 0,
            state: core == usize::from(own_cores),
            edge: if own_cores && core < 2 { None } else { edges.next() },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(cores: usize) -> String {
        assign(cores, &[0, 1, 2, 3, 4, 5, 6, 7]).iter().map(|roles| format!("{roles}; ")).collect()
    }

    #[test]
    fn roles_follow_the_number_of_cores() {
        assert_eq!(drawn(1), "cpu 0: log state edge-0; ");
        assert_eq!(drawn(2), "cpu 0: log state edge-0; cpu 1: edge-1; ");
        assert_eq!(drawn(5), "cpu 0: log; cpu 1: state; cpu 2: edge-0; cpu 3: edge-1; cpu 4: edge-2; ");
    }

    #[test]
    fn more_cores_than_cpus_share_them() {
        let roles = assign(3, &[4, 6]);
        assert_eq!(roles.iter().map(|roles| roles.cpu).collect::<Vec<_>>(), [4, 6, 4]);
    }
}
