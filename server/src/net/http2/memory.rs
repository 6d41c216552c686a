//! What a connection holds of its core's memory: counted once a turn, and given back when others need it more.

use revd_http2::{ErrorCode, Fault};
use revd_member::budget::{Hold, Share};
use revd_member::error::Status;

use crate::api::Budgets;
use crate::api::method::Method;
use crate::limits;
use crate::net::calls::{Call, CallKind, StreamState};
use crate::net::connection::READ_BYTES;
use crate::net::http2::Http2;
use crate::net::http2::time::milliseconds;
use crate::net::pace::{Look, Pace};
use crate::net::socket::Transport;
use crate::observe::bounds::Bound;

/// Why a connection ends whose client keeps others waiting.
const SLOW_READER: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "replies are taken too slowly while others wait for their memory",
};
/// The same of one that has begun a header block for which there is no room.
const NO_BLOCK_ROOM: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "requests hold what they may of this core's memory: no room for a header block in several frames",
};
/// The same of one whose frame or header block does not go on.
const UNFINISHED: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "a frame or a header block was begun and is not ended, and other requests need its memory",
};

/// A connection's parts of the core's memory.
pub(super) struct Memory {
    /// Requests, from their first byte until they are handled.
    pub requests: Share,
    /// Replies that are made or were not taken yet.
    pub replies: Share,
    /// What watch streams have yet to take.
    pub watches: Share,
    /// Replies that wait to be sent, as of the last turn ...
    backlog: Hold,
    /// ... but those of watch streams, which are here.
    events: Hold,
    /// A frame that has come in part, likewise.
    partial: Hold,
    /// A header block that has come in part.
    block: Hold,
    pub pace: Pace,
}

impl Memory {
    /// Nothing is held.
    pub(super) fn new(budgets: &Budgets) -> Self {
        let (requests, replies) = (budgets.requests.share(), budgets.replies.share());
        let (backlog, partial, block) = (replies.hold(), requests.hold(), requests.hold());
        let watches = budgets.watches.share();
        let events = watches.hold();
        Self { requests, replies, watches, backlog, events, partial, block, pace: Pace::default() }
    }

    /// Others need what it holds of what they need: replies, of which a little does not count, or events of watches.
    fn is_in_the_way(&self) -> bool {
        let Self { replies, watches, .. } = self;
        let much = replies.held() + watches.held() >= limits::PACE_BYTES_MIN;
        (much && replies.held() > 0 && replies.is_in_the_way())
            || (watches.held() > 0 && watches.is_in_the_way())
    }

    /// Something is left at the end of a turn that was not looked at in it. Calls under way do not count: they end by themselves.
    fn has_rest(&self) -> bool {
        let unfinished = self.partial.bytes() + self.block.bytes();
        unfinished > 0 || self.watches.held() > 0 || self.replies.held() >= limits::PACE_BYTES_MIN
    }

    /// Too little to look whether the client gets on with it.
    fn holds_little(&self) -> bool {
        let (requests, replies, watches) = (self.requests.held(), self.replies.held(), self.watches.held());
        requests == 0 && watches == 0 && replies < limits::PACE_BYTES_MIN
    }
}

/// Whether a call ends soon by itself, so that its client may be kept waiting for it.
pub(super) fn is_brief(method: Method, is_long: bool) -> bool {
    !is_long && !matches!(method, Method::Unary(unary) if unary.is_endless())
}

impl<T: Transport> Http2<T> {
    /// Counts what waits to be sent: at once when a reply that is not short joins it, so that the next one knows of it.
    pub(super) fn count_backlog(&mut self) {
        let events = self.connection.backlog_apart();
        self.memory.events.set(events);
        self.memory.backlog.set(self.connection.backlog() - events);
    }

    /// Counts what waits at the end of a turn.
    pub(super) fn count(&mut self, now: u64) {
        let has_read_all = !self.comes_back && !self.is_behind && !self.is_full_of_requests();
        self.count_backlog();
        self.memory.partial.set(self.partial.capacity());
        let block = self.connection.unfinished_block();
        // A turn follows in which the timer is set.
        self.comes_back |=
            self.begun.note(now, self.connection.has_settings(), block.map(|(stream, _)| stream));
        if has_read_all {
            self.end_late(now);
        }
        let bytes = block.map_or(0, |(_, bytes)| bytes);
        let more = bytes.saturating_sub(self.memory.block.bytes());
        if more == 0 {
            self.memory.block.set(bytes);
        } else if self.memory.block.grow(more).is_err() && !self.has_failed {
            self.memory.requests.refuse();
            self.fail(NO_BLOCK_ROOM);
            self.comes_back = true; // to say so
        }
        // What was counted only now is looked at from now on, also if nothing else comes on this connection, ever.
        self.comes_back |= !self.memory.pace.is_looking() && self.memory.has_rest();
    }

    /// Ends a connection whose settings or header block have not come whole in time. Only when all is read that has come: what
    /// lies in the socket of a core that stood still is in time.
    fn end_late(&mut self, now: u64) {
        if let Some((fault, bound)) = self.begun.late(now).filter(|_| !self.has_failed) {
            self.shared.api.reached(bound);
            self.fail(fault);
            self.comes_back = true; // to say so
        }
    }

    /// Requests hold what they may, and some will be done without anything more from the client: it waits for those.
    /// Otherwise more has to be read, or those that are begun would never end.
    pub(super) fn is_full_of_requests(&self) -> bool {
        self.calls.brief_bytes() > 0 && !self.memory.requests.fits(2 * READ_BYTES)
    }

    /// As much was unpacked as in one turn may be.
    pub(super) fn has_unpacked(&mut self) -> bool {
        let is_much = self.shared.messages.unpacked.get() >= limits::UNPACKED_BYTES_PER_TURN;
        self.comes_back |= is_much;
        is_much
    }

    /// Looks whether the client gets on with what it holds.
    pub(super) fn look_at_memory(&mut self, now: u64) {
        if self.memory.holds_little() {
            return self.memory.pace.rest();
        }
        let Memory { replies, watches, pace, .. } = &mut self.memory;
        let (watched, held) = (watches.held(), replies.held() + watches.held());
        match pace.look(now, held, watched) {
            Look::At(then) => return self.timer.add(then),
            Look::Over { is_slow } => {
                if is_slow && !self.has_failed && self.memory.is_in_the_way() {
                    self.shared.api.reached(Bound::SlowReaders);
                    self.fail(SLOW_READER);
                    self.taken = (now + limits::FAREWELL_MILLISECONDS)
                        .saturating_sub(milliseconds(limits::STALL_DEADLINE));
                } else {
                    self.end_unfinished_block();
                    self.end_unfinished();
                }
            }
        }
        self.timer.add(now + limits::PACE_INTERVAL);
    }

    /// Ends the connection when a frame or a header block does not go on, though it is read, and others need what it holds.
    fn end_unfinished_block(&mut self) {
        let waits_for_us = self.is_behind || self.is_full_of_requests();
        let is_begun = self.connection.unfinished_block().is_some() || !self.partial.is_empty();
        if is_begun
            && !waits_for_us
            && !self.has_failed
            && self.begun.look()
            && self.memory.requests.is_in_the_way()
        {
            self.shared.api.reached(Bound::UnfinishedRequests);
            self.fail(UNFINISHED);
        }
    }

    /// Refuses requests that were begun long ago and are not ended, the oldest first, for as long as others need what they
    /// hold.
    fn end_unfinished(&mut self) {
        let mut found = Vec::new();
        for (stream, state) in self.connection.streams_mut() {
            let looks = match state {
                StreamState::Asking(asking) if !asking.waits => &mut asking.looks,
                StreamState::Running(running) => match self.calls.get(running.slot) {
                    Some(Call { kind: CallKind::Streaming(streaming), .. })
                        if !streaming.assembly.is_empty() =>
                    {
                        &mut streaming.looks
                    }
                    _ => continue,
                },
                _ => continue,
            };
            *looks += 1;
            if *looks >= limits::UNFINISHED_LOOKS {
                found.push(stream);
            }
        }
        for stream in found {
            if !self.memory.requests.is_in_the_way() {
                return;
            }
            self.shared.api.reached(Bound::UnfinishedRequests);
            let status = Status::resource_exhausted(
                "the request was begun and is not ended, and other requests need its memory: send it again, and whole",
            );
            match self.connection.stream(stream) {
                Some(StreamState::Running(_)) => self.end(stream, &Err(status)),
                _ => self.refuse(stream, &status),
            }
            self.connection.reset(stream, ErrorCode::Cancel);
            self.calls.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_member::budget::Budget;

    #[test]
    fn a_few_events_are_in_the_way_of_watches_and_not_of_replies() {
        let [requests, replies, watches] = [(); 3].map(|()| Budget::new(10 * limits::PACE_BYTES_MIN));
        let budgets = Budgets { requests, replies, watches };
        let memory = Memory::new(&budgets);
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
