//! The watch for a leader: streams whose clients want one end when there was none for long. Calls
//! with one reply that begin without a leader are refused at once; a stream costs more to open
//! again, so that etcd waits three election timeouts. A stream that begins without a leader is
//! refused if there was none for about an election timeout (etcd: at once; its member still has the
//! old leader when clients of a member that stops come to it, because that member leads until they
//! are gone).

use std::rc::Rc;
use std::time::Duration;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::limits::{LEADER_LOOKS, LEADERLESS_TIMEOUTS_MAX};

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>, election_timeout: Duration) {
    let mut watch = LeaderWatch::default();
    loop {
        let leadership = watch.look(api.context().look_for_leader());
        api.context().set_leaderless(leadership != Leadership::Fresh);
        if leadership == Leadership::Missed {
            api.context().end_led();
        }
        rest(election_timeout / LEADER_LOOKS).await;
    }
}

/// How long there was no leader.
#[derive(Debug, PartialEq, Eq)]
enum Leadership {
    /// Less than an election timeout.
    Fresh,
    Stale,
    /// So long that streams that need a leader end.
    Missed,
}

/// Decides when there was no leader for too long. It looks before clients are let in: a member that
/// has joined has seen a leader then.
#[derive(Debug, Default)]
struct LeaderWatch {
    /// Looks in a row that saw none; `None` before one was seen.
    without: Option<u32>,
}

impl LeaderWatch {
    fn look(&mut self, has_leader: bool) -> Leadership {
        self.without = match self.without {
            _ if has_leader => Some(0),
            without => without.map(|looks| looks.saturating_add(1)),
        };
        match self.without.map(|looks| looks / LEADER_LOOKS) {
            // No stream that begins now has waited yet.
            None => Leadership::Stale,
            Some(0) => Leadership::Fresh,
            Some(timeouts) if timeouts < LEADERLESS_TIMEOUTS_MAX => Leadership::Stale,
            Some(_) => Leadership::Missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_end_after_three_election_timeouts_without_a_leader() {
        let mut watch = LeaderWatch::default();
        assert_eq!(watch.look(true), Leadership::Fresh);
        let looks = (1..=3 * LEADER_LOOKS + 1).map(|_| watch.look(false)).collect::<Vec<_>>();
        let (one, three) = (LEADER_LOOKS as usize - 1, 3 * LEADER_LOOKS as usize - 1);
        assert!(looks[..one].iter().all(|look| *look == Leadership::Fresh), "{looks:?}");
        assert!(looks[one..three].iter().all(|look| *look == Leadership::Stale), "{looks:?}");
        assert!(looks[three..].iter().all(|look| *look == Leadership::Missed), "{looks:?}");
        assert_eq!(watch.look(true), Leadership::Fresh);
    }

    #[test]
    fn a_moment_without_a_leader_is_none_without_however_soon_behind_the_start() {
        let mut watch = LeaderWatch::default();
        assert_eq!(watch.look(false), Leadership::Stale, "there was none yet");
        assert_eq!(watch.look(true), Leadership::Fresh);
        assert_eq!(watch.look(false), Leadership::Fresh);
    }
}
