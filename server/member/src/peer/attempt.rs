//! Attempts of other members to send this one a state: one at a time comes, and which of two that
//! is.

/// An attempt of another member to send its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    from: u64,
    /// When it began, this member followed its sender.
    is_of_leader: bool,
}

impl Attempt {
    /// A member begins to send its state in the name of the leader of a term; `led_by`: term and
    /// leader as this member knows them.
    #[must_use]
    pub fn new(from: u64, term: u64, led_by: (u64, u64)) -> Self {
        Self { from, is_of_leader: (term, from) == led_by }
    }

    /// Whether this attempt ends the other one, which is under way, and takes its place;
    /// `stands_still`: no part of the other one has come for a while.
    ///
    /// A sender that begins again has given its former attempt up. A program that is no leader, but
    /// says so, must not keep the leader away; while a state of the former leader, which is as good
    /// as that of the next one, is not begun anew as long as it comes.
    #[must_use]
    pub fn replaces(&self, other: &Self, stands_still: bool) -> bool {
        self.from == other.from || self.is_of_leader && (!other.is_of_leader || stands_still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_ends_those_of_its_sender_and_of_strangers() {
        let of_leader = Attempt::new(2, 5, (5, 2));
        let strangers = [Attempt::new(3, 5, (5, 2)), Attempt::new(2, 4, (5, 2)), Attempt::new(4, 9, (5, 0))];
        for stranger in strangers {
            assert!(of_leader.replaces(&stranger, false));
            for stands_still in [false, true] {
                assert_eq!(stranger.replaces(&of_leader, stands_still), stranger.from == 2, "{stranger:?}");
            }
        }
        assert!(!strangers[0].replaces(&strangers[2], true) && !strangers[2].replaces(&strangers[0], true));
        let of_next = Attempt::new(3, 6, (6, 3));
        assert!(!of_next.replaces(&of_leader, false), "the state of the former leader goes on");
        assert!(of_next.replaces(&of_leader, true), "unless it does not");
        assert!(!of_leader.replaces(&of_next, false));
        assert!(Attempt::new(2, 6, (6, 3)).replaces(&of_leader, false), "it has begun again");
    }
}
