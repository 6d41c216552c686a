//! How fast a client takes what it is sent: one that holds much of what
//! others need must get on with it.

use crate::limits;

/// One connection's pace. Times are milliseconds of the core's clock.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the look under way began, while much is held.
    since: Option<u64>,
    /// Bytes taken since then.
    taken: usize,
    /// Looks in a row in which too little was taken.
    slow: u32,
}

/// What a look has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It is too early: look again then.
    At(u64),
    /// An interval is over; whether little was taken in this and in those before.
    Over {
        /// It was.
        is_slow: bool,
    },
}

impl Pace {
    /// The client has taken so many bytes.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Little is held: there is nothing to look at.
    pub(super) fn rest(&mut self) {
        *self = Self::default();
    }

    /// A look is under way.
    pub(super) fn is_looking(&self) -> bool {
        self.since.is_some()
    }

    /// Looks at a client that has so many bytes of replies yet to take, `watched` of them on watch
    /// streams. Those were put there by others, a little on each of very many connections perhaps,
    /// so that they count however few they are.
    pub(super) fn look(&mut self, now: u64, held: usize, watched: usize) -> Look {
        let since = *self.since.get_or_insert_with(|| {
            self.taken = 0;
            now
        });
        let due = since + limits::PACE_INTERVAL;
        if now < due {
            return Look::At(due);
        }
        let wanted = (held / limits::TAKEN_PART).clamp(limits::TAKEN_BYTES_MIN, limits::TAKEN_BYTES_ENOUGH);
        let is_slow = if held >= limits::PACE_BYTES_MIN {
            self.taken < wanted
        } else {
            self.taken < watched.div_ceil(limits::TAKEN_PART)
        };
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        (self.since, self.taken) = (Some(now), 0);
        Look::Over { is_slow: self.slow >= limits::SLOW_LOOKS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: usize = 100_000_000;

    /// Takes `bytes` in each interval; whether that is found slow at last.
    fn is_slow(held: usize, bytes: usize) -> bool {
        let mut pace = Pace::default();
        assert_eq!(pace.look(0, held, 0), Look::At(limits::PACE_INTERVAL));
        let mut found = false;
        for look in 1..=u64::from(limits::SLOW_LOOKS) {
            pace.took(bytes);
            let Look::Over { is_slow } = pace.look(look * limits::PACE_INTERVAL, held, 0) else {
                panic!("the interval is over")
            };
            found = is_slow;
        }
        found
    }

    #[test]
    fn who_holds_much_and_takes_little_is_slow() {
        assert!(is_slow(HELD, 50_000));
        assert!(is_slow(HELD, limits::TAKEN_BYTES_ENOUGH - 1));
        assert!(!is_slow(HELD, limits::TAKEN_BYTES_ENOUGH), "as fast as anybody has to be");
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
            assert_eq!(pace.look(look * limits::PACE_INTERVAL, HELD, 0), Look::Over { is_slow: false });
        }
        pace.rest();
        assert_eq!(pace.look(1_000_000, HELD, 0), Look::At(1_000_000 + limits::PACE_INTERVAL));
    }

    #[test]
    fn events_count_however_few_they_are() {
        for (taken, is_slow) in [(0, true), (99, true), (100, false)] {
            let mut pace = Pace::default();
            let _ = pace.look(0, 1_600, 1_600);
            for look in 1..=u64::from(limits::SLOW_LOOKS) {
                pace.took(taken);
                let found = pace.look(look * limits::PACE_INTERVAL, 1_600, 1_600);
                let is_slow = is_slow && look == u64::from(limits::SLOW_LOOKS);
                assert_eq!(found, Look::Over { is_slow }, "{taken} bytes, look {look}");
            }
        }
    }
}
