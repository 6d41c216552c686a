//! The watch for a leader: streams whose clients want one end when there was none for long. Calls
//! with one reply that begin without a leader are refused at once; a stream costs more to open
//! again, so that etcd waits three election timeouts. A stream that begins without a leader is
//! refused if the last look found none either (etcd: at once; its member still has the old leader
//! when clients of a member that stops come to it, because that member leads until they are gone).

use std::rc::Rc;
use std::time::Duration;

use crate::api::Api;
use crate::duties::pace::every;
use crate::limits;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>, election_timeout: Duration) {
    let mut watch = LeaderWatch::default();
    every(election_timeout, || {
        let has_leader = api.context().leader() != 0;
        api.context().set_leaderless(!has_leader);
        if watch.look(has_leader) {
            api.context().end_led();
        }
    })
    .await;
}

/// Decides when there was no leader for too long.
#[derive(Debug, Default)]
struct LeaderWatch {
    /// Looks in a row that saw none.
    without: u32,
}

impl LeaderWatch {
    /// Whether streams that need a leader are to end now.
    fn look(&mut self, has_leader: bool) -> bool {
        self.without = if has_leader { 0 } else { self.without.saturating_add(1) };
        self.without >= limits::LEADERLESS_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_end_at_the_third_look_in_a_row_without_a_leader() {
        let mut watch = LeaderWatch::default();
        let looks = [true, false, false, true, false, false, false, false, true, false];
        let ends = looks.map(|has_leader| watch.look(has_leader));
        assert_eq!(ends, [false, false, false, false, false, false, true, true, false, false]);
    }
}
