//! The memory of its core that a connection holds, counted once a turn.

use revd_member::budget::{Hold, NoRoom, Share};

use crate::api::Budgets;
use crate::limits;
use crate::net::pace::Pace;

/// A connection's parts of the core's memory.
pub(super) struct ConnectionMemory {
    /// Share of the budget of requests, which count from their first byte until they are handled.
    pub requests: Share,
    /// Share of the budget of replies, which count until the client has read them.
    pub replies: Share,
    /// Share of the budget of watch replies.
    pub watches: Share,
    /// Replies that wait to be sent, as of the last turn, without those of watch streams.
    backlog: Hold,
    /// Replies of watch streams that wait to be sent.
    events: Hold,
    /// A frame that has arrived in part.
    partial: Hold,
    /// A header block that has arrived in part.
    block: Hold,
    pub pace: Pace,
}

impl ConnectionMemory {
    /// Nothing is held.
    pub(super) fn new(budgets: &Budgets) -> Self {
        let (requests, replies) = (budgets.requests.share(), budgets.replies.share());
        let (backlog, partial, block) = (replies.hold(), requests.hold(), requests.hold());
        let watches = budgets.watches.share();
        let events = watches.hold();
        Self { requests, replies, watches, backlog, events, partial, block, pace: Pace::default() }
    }

    /// Whether others need memory that this connection holds, of the budget that they need it from.
    /// A few bytes of replies do not count; watch replies count however few they are.
    pub(super) fn is_in_the_way(&self) -> bool {
        let Self { replies, watches, .. } = self;
        let much = replies.held() + watches.held() >= limits::PACE_BYTES_MIN;
        (much && replies.held() > 0 && replies.is_in_the_way())
            || (watches.held() > 0 && watches.is_in_the_way())
    }

    /// Whether the connection holds something at the end of a turn that only its client can end.
    /// Calls under way do not count: they end by themselves.
    pub(super) fn has_rest(&self) -> bool {
        let unfinished = self.partial.bytes() + self.block.bytes();
        unfinished > 0 || self.watches.held() > 0 || self.replies.held() >= limits::PACE_BYTES_MIN
    }

    /// Whether the connection holds too little to look at its client's pace.
    pub(super) fn holds_little(&self) -> bool {
        let (requests, replies, watches) = (self.requests.held(), self.replies.held(), self.watches.held());
        requests == 0 && watches == 0 && replies < limits::PACE_BYTES_MIN
    }

    /// Counts replies that wait to be sent, and of those the part that belongs to watch streams.
    pub(super) fn count_backlog(&mut self, backlog: usize, of_watches: usize) {
        self.events.set(of_watches);
        self.backlog.set(backlog - of_watches);
    }

    /// Counts a frame and a header block that have come in part.
    ///
    /// # Errors
    /// When there is no room for the header block; it is not counted then.
    pub(super) fn count_unfinished(&mut self, partial: usize, block: usize) -> Result<(), NoRoom> {
        self.partial.set(partial);
        let more = block.saturating_sub(self.block.bytes());
        if more > 0 {
            return self.block.grow(more);
        }
        self.block.set(block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_member::budget::Budget;

    #[test]
    fn a_few_watch_replies_are_in_the_way_of_watches_and_not_of_replies() {
        let [requests, replies, watches, sessions] =
            [(); 4].map(|()| Budget::new(10 * limits::PACE_BYTES_MIN));
        let budgets = Budgets { requests, replies, watches, sessions };
        let memory = ConnectionMemory::new(&budgets);
        let [mut events, mut replies] = [memory.watches.hold(), memory.replies.hold()];
        let [mut others_events, mut others_replies] =
            [budgets.watches.share(), budgets.replies.share()].map(|share| share.hold());
        events.add(100);
        others_replies.add(9 * limits::PACE_BYTES_MIN);
        assert!(!memory.is_in_the_way(), "it holds nothing of what is short");
        replies.add(100);
        assert!(!memory.is_in_the_way(), "next to nothing");
        replies.add(limits::PACE_BYTES_MIN);
        assert!(memory.is_in_the_way());
        replies.set(0);
        others_replies.set(0);
        others_events.add(9 * limits::PACE_BYTES_MIN);
        assert!(memory.is_in_the_way(), "events count however few they are");
        events.set(0);
        replies.add(limits::PACE_BYTES_MIN);
        assert!(!memory.is_in_the_way(), "it holds no events");
    }
}
