//! Slow readers: a client that holds much memory in unread replies, while others need it, must read
//! at a minimum pace.

use crate::limits;

/// How fast the client of one connection reads. Times are milliseconds of the core's clock.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the present interval began; none while the connection holds little.
    since: Option<u64>,
    /// Bytes that the client has read in it.
    taken: usize,
    /// Intervals in a row in which the client has read too little.
    slow: u32,
}

/// The result of a look at a client's pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PaceCheck {
    /// The interval is not over: look again then.
    At(u64),
    /// An interval is over.
    Over {
        /// The client has read too little in `SLOW_LOOKS` intervals in a row.
        is_slow: bool,
    },
}

impl Pace {
    /// Counts bytes that the client has read.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Ends the present interval: the connection holds little.
    pub(super) fn rest(&mut self) {
        *self = Self::default();
    }

    /// Whether an interval is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.since.is_some()
    }

    /// Looks at a client that has `held` bytes of replies yet to read, `watched` of them on watch
    /// streams. Watch replies count however few they are: puts of other clients make them, perhaps
    /// a few bytes on each of very many connections.
    pub(super) fn look(&mut self, now: u64, held: usize, watched: usize) -> PaceCheck {
        let since = *self.since.get_or_insert_with(|| {
            self.taken = 0;
            now
        });
        let due = since + limits::PACE_INTERVAL;
        if now < due {
            return PaceCheck::At(due);
        }
        let wanted = (held / limits::TAKEN_PART).clamp(limits::TAKEN_BYTES_MIN, limits::TAKEN_BYTES_ENOUGH);
        let is_slow = if held >= limits::PACE_BYTES_MIN {
            self.taken < wanted
        } else {
            self.taken < watched.div_ceil(limits::TAKEN_PART)
        };
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        (self.since, self.taken) = (Some(now), 0);
        PaceCheck::Over { is_slow: self.slow >= limits::SLOW_LOOKS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: usize = 100_000_000;

    /// Whether a client that reads `bytes` in each interval is found slow.
    fn is_slow(held: usize, bytes: usize) -> bool {
        let mut pace = Pace::default();
        assert_eq!(pace.look(0, held, 0), PaceCheck::At(limits::PACE_INTERVAL));
        let mut found = false;
        for look in 1..=u64::from(limits::SLOW_LOOKS) {
            pace.took(bytes);
            let PaceCheck::Over { is_slow } = pace.look(look * limits::PACE_INTERVAL, held, 0) else {
                panic!("the interval is over")
            };
            found = is_slow;
        }
        found
    }

    #[test]
    fn a_client_that_holds_much_and_reads_little_is_slow() {
        assert!(is_slow(HELD, 50_000));
        assert!(is_slow(HELD, limits::TAKEN_BYTES_ENOUGH - 1));
        assert!(!is_slow(HELD, limits::TAKEN_BYTES_ENOUGH), "as fast as any client has to be");
        assert!(is_slow(limits::PACE_BYTES_MIN, 0));
        assert!(!is_slow(limits::PACE_BYTES_MIN, limits::TAKEN_BYTES_MIN), "it holds little");
        assert!(!is_slow(limits::PACE_BYTES_MIN - 1, 0), "it holds next to nothing");
    }

    #[test]
    fn one_slow_interval_is_forgiven() {
        let mut pace = Pace::default();
        let _ = pace.look(0, HELD, 0);
        for look in 1..100 {
            pace.took(if look % 2 == 0 { HELD } else { 0 });
            assert_eq!(pace.look(look * limits::PACE_INTERVAL, HELD, 0), PaceCheck::Over { is_slow: false });
        }
        pace.rest();
        assert_eq!(pace.look(1_000_000, HELD, 0), PaceCheck::At(1_000_000 + limits::PACE_INTERVAL));
    }

    #[test]
    fn watch_replies_count_however_few_they_are() {
        for (taken, is_slow) in [(0, true), (99, true), (100, false)] {
            let mut pace = Pace::default();
            let _ = pace.look(0, 1_600, 1_600);
            for look in 1..=u64::from(limits::SLOW_LOOKS) {
                pace.took(taken);
                let found = pace.look(look * limits::PACE_INTERVAL, 1_600, 1_600);
                let is_slow = is_slow && look == u64::from(limits::SLOW_LOOKS);
                assert_eq!(found, PaceCheck::Over { is_slow }, "{taken} bytes, look {look}");
            }
        }
    }
}
