//! Which leaders an edge has seen, for the cause of a timeout: clients read in etcd's texts whether
//! a leader failed.

use revd_member::error::Error;

/// Edge view: what its sweeps saw of the cluster's leaders.
#[derive(Debug, Default)]
pub(super) struct LeaderHistory {
    /// The sweep that looked last.
    now: u64,
    /// The leader that it saw; 0 for none.
    leader: u64,
    /// The sweep that saw this leader first, if another one saw none or another leader before.
    elected: Option<u64>,
    /// The last sweep that saw a leader.
    seen: Option<u64>,
}

impl LeaderHistory {
    /// A sweep looks at the leader, whose id is 0 if there is none.
    pub(super) fn look(&mut self, sweep: u64, leader: u64) {
        if leader != 0 {
            if leader != self.leader && self.now > 0 {
                self.elected = Some(sweep);
            }
            self.seen = Some(sweep);
        }
        (self.now, self.leader) = (sweep, leader);
    }

    /// Why a request had no answer that came between the sweep `since` and the next one.
    /// One that came within `lost` sweeps before a new leader may be lost with the one before.
    pub(super) fn cause(&self, since: u64, is_command: bool, lost: u64) -> Error {
        let failed = |elected: u64| since < elected && elected <= since + lost;
        match (is_command, self.leader) {
            (false, 0) => Error::NoLeader,
            (false, _) => Error::Timeout,
            (true, _) if self.elected.is_some_and(failed) => Error::TimeoutLeaderFailed,
            (true, 0) if self.seen.is_none_or(|seen| seen < since) => Error::NeverProposed,
            (true, _) => Error::Timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The history of sweeps from 1 on that saw these leaders.
    fn history(leaders: &[u64]) -> LeaderHistory {
        let mut history = LeaderHistory::default();
        leaders.iter().zip(1..).for_each(|(leader, sweep)| history.look(sweep, *leader));
        history
    }

    #[test]
    fn a_steady_leader_is_no_cause() {
        let steady = history(&[7; 20]);
        assert_eq!(steady.cause(0, true, 4), Error::Timeout);
        assert_eq!(steady.cause(5, true, 4), Error::Timeout);
        assert_eq!(steady.cause(5, false, 4), Error::Timeout);
    }

    #[test]
    fn requests_shortly_before_a_new_leader_may_be_lost_with_the_old_one() {
        let changed = history(&[7, 7, 7, 7, 7, 7, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        let causes = [4, 5, 8, 9].map(|since| changed.cause(since, true, 4));
        let failed = Error::TimeoutLeaderFailed;
        assert_eq!(causes, [Error::Timeout, failed.clone(), failed, Error::Timeout]);
        // Only commands are: anything else is asked again.
        assert_eq!(changed.cause(5, false, 4), Error::Timeout);
    }

    #[test]
    fn without_any_leader_nothing_was_proposed() {
        let gone = history(&[7, 7, 0, 0, 0, 0]);
        assert_eq!(gone.cause(1, true, 4), Error::Timeout);
        assert_eq!(gone.cause(2, true, 4), Error::Timeout, "the leader may have got it");
        assert_eq!(gone.cause(3, true, 4), Error::NeverProposed);
        assert_eq!(gone.cause(3, false, 4), Error::NoLeader);
        assert_eq!(history(&[0, 0]).cause(0, true, 4), Error::NeverProposed);
    }
}
