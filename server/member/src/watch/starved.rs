//! Streams that have nothing to send and find no room in their core's memory for more: others hold
//! it.
//!
//! ```text
//! has room --own bound, or no share--> full --taking what waits--> has room
//!                                       |                             ^
//!                         nothing waits, no share --> starved --others let go
//! ```
//!
//! A stream on which something waits is looked at again when its client takes that. A starved
//! stream has no client that would: any release of memory wakes the hub, which looks at all starved
//! streams, the longest waiting first.

use std::collections::BTreeMap;

/// The starved streams of a hub, in the order in which they starved.
#[derive(Debug, Default)]
pub(super) struct Starved {
    /// Streams by their tickets, which ascend.
    streams: BTreeMap<u64, usize>,
    next_ticket: u64,
    /// The value of [`crate::budget::Budget::releases`] when the last look at them began.
    looked_at: u64,
    /// The ticket from which on a look that is under way has yet to come by.
    look: Option<u64>,
}

impl Starved {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The stream that has waited longest.
    pub(super) fn first(&self) -> Option<usize> {
        self.streams.first_key_value().map(|(_, stream)| *stream)
    }

    /// One more stream is starved; its ticket.
    pub(super) fn add(&mut self, stream: usize) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.streams.insert(ticket, stream);
        // A release of memory before the first stream starved woke no task: look at it once in any
        // case.
        self.look.get_or_insert(ticket);
        ticket
    }

    /// The stream with this ticket is not starved any more.
    pub(super) fn remove(&mut self, ticket: u64) {
        self.streams.remove(&ticket);
    }

    /// A look is under way, or due because memory was released since the last one began.
    pub(super) fn is_looking(&self, releases: u64) -> bool {
        self.look.is_some() || self.looked_at != releases
    }

    /// Begins a look at all of them if memory was released since the last one, and none is under
    /// way.
    pub(super) fn look(&mut self, releases: u64) {
        if self.look.is_none() && self.looked_at != releases {
            (self.looked_at, self.look) = (releases, Some(0));
        }
    }

    /// The next stream of the look that is under way, until it has come by all of them.
    pub(super) fn next(&mut self) -> Option<usize> {
        let next = self.streams.range(self.look?..).next();
        self.look = next.map(|(ticket, _)| ticket + 1);
        next.map(|(_, stream)| *stream)
    }
}
