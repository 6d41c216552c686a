//! Streams that have nothing to send and find no room in their core's memory for more: others hold it.
//!
//! ```text
//! has room --own bound, or no share--> full --taking what waits--> has room
//!                                       |                             ^
//!                         nothing waits, no share --> starved --others let go
//! ```
//!
//! A stream on which something waits is looked at again when its client takes that. One on which nothing waits has nobody
//! who would: whoever lets go of something wakes the hub, and it looks at all of these, those first that have waited longest.

use std::collections::BTreeMap;
use std::task::Context;

use crate::watch::hub::Hub;
use crate::watch::pass::Budget;

/// Who they are.
#[derive(Debug, Default)]
pub(super) struct Starved {
    /// In the order they came.
    streams: BTreeMap<u64, usize>,
    next: u64,
    /// What [`crate::budget::Budget::releases`] was when the last look at them began.
    looked_at: u64,
    /// Who is next in a look that is under way.
    look: Option<u64>,
}

impl Starved {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }
}

impl Hub {
    /// A watcher of the stream was not told of something for want of room: it will be looked at again.
    pub(super) fn wait_for_room(&mut self, stream: usize) {
        if !self.streams[stream].fill() {
            self.starve(stream);
        }
    }

    /// There is no room for a stream on which nothing waits.
    pub(super) fn starve(&mut self, stream: usize) {
        let waiting = &mut self.streams[stream];
        if waiting.starved.is_none() && !waiting.is_closed {
            let ticket = self.starved.next;
            waiting.starved = Some(ticket);
            self.starved.streams.insert(ticket, stream);
            self.starved.next += 1;
            // At least once: nobody may have listened before there was anybody.
            self.starved.look.get_or_insert(ticket);
        }
    }

    /// A stream does not wait for others any more.
    pub(super) fn forget_starved(&mut self, stream: usize) {
        if let Some(ticket) = self.streams[stream].starved.take() {
            self.starved.streams.remove(&ticket);
        }
    }

    /// Something was let go of since they were looked at, or not all of them were.
    pub(super) fn may_feed(&self) -> bool {
        let Some((_, first)) = self.starved.streams.first_key_value() else { return false };
        let releases = self.streams[*first].share().budget().releases();
        self.starved.look.is_some() || self.starved.looked_at != releases
    }

    /// The task of `context` is woken when others let go of something, if anybody waits for that.
    pub(super) fn listen(&self, context: &Context<'_>) {
        if let Some((_, first)) = self.starved.streams.first_key_value() {
            self.streams[*first].share().budget().listen(context.waker());
        }
    }

    /// Lets those go on for whom there is room again.
    pub(super) fn feed(&mut self, budget: &mut Budget) {
        let Some((_, first)) = self.starved.streams.first_key_value() else { return };
        let releases = self.streams[*first].share().budget().releases();
        if self.starved.look.is_none() && self.starved.looked_at != releases {
            (self.starved.looked_at, self.starved.look) = (releases, Some(0));
        }
        while let Some(from) = self.starved.look
            && !budget.is_spent()
        {
            let Some((ticket, stream)) = self.starved.streams.range(from..).next() else {
                self.starved.look = None;
                return;
            };
            let stream = *stream;
            self.starved.look = Some(ticket + 1);
            budget.spend(1);
            if self.streams[stream].has_room_again() {
                self.forget_starved(stream);
                self.readmit(stream);
                budget.spend(self.streams[stream].admitted_last);
            }
        }
    }
}
