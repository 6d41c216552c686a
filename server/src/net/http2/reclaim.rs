//! Reclaiming memory: connections and requests that make no progress end when others need the
//! memory that they hold.

use revd_http2::{ErrorCode, Fault};
use revd_member::error::Status;

use crate::limits;
use crate::net::calls::{Call, CallKind, StreamState};
use crate::net::deadline::milliseconds;
use crate::net::http2::Http2;
use crate::net::http2::memory::ConnectionMemory;
use crate::net::pace::PaceCheck;
use crate::net::socket::Transport;
use crate::observe::bounds::Bound;

/// A connection whose client reads too slowly.
const SLOW_READER: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "replies are taken too slowly while others wait for their memory",
};
/// A connection with a header block for which there is no memory.
const NO_BLOCK_ROOM: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "requests hold what they may of this core's memory: no room for a header block in several frames",
};
/// A connection whose frame or header block makes no progress.
const UNFINISHED: Fault = Fault {
    code: ErrorCode::EnhanceYourCalm,
    limit: None,
    reason: "a frame or a header block was begun and is not ended, and other requests need its memory",
};

impl<T: Transport> Http2<T> {
    /// Counts the replies that wait to be sent: at the end of a turn, and at once behind a reply
    /// that is not short, so that the next reply knows of it.
    pub(super) fn count_backlog(&mut self) {
        let backlog = self.connection.backlog() + self.socket.held().sealed;
        self.memory.count_backlog(backlog, self.connection.backlog_apart());
    }

    /// Counts what the connection holds at the end of a turn.
    pub(super) fn count(&mut self, now: u64) {
        let has_read_all = !self.comes_back && !self.is_behind && !self.is_full_of_requests();
        self.count_backlog();
        let block = self.connection.unfinished_block();
        // The next turn sets the timer.
        self.comes_back |=
            self.unfinished.note(now, self.connection.has_settings(), block.map(|(stream, _)| stream));
        if has_read_all {
            self.end_late(now);
        }
        let block_bytes = block.map_or(0, |(_, bytes)| bytes);
        let partial = self.partial.capacity() + self.socket.held().received;
        let counted = self.memory.count_unfinished(partial, block_bytes);
        if counted.is_err() && !self.has_failed {
            self.memory.requests.refuse();
            self.fail(NO_BLOCK_ROOM);
            self.comes_back = true; // to send the GOAWAY
        }
        // Memory that was counted only now is looked at from now on, even if the client sends
        // nothing more.
        self.comes_back |= !self.memory.pace.is_looking() && self.memory.has_rest();
    }

    /// Ends a connection whose first SETTINGS or header block did not arrive in time. Only when the
    /// socket is read to its end: bytes in the socket of a core that stood still are in time.
    fn end_late(&mut self, now: u64) {
        if let Some((fault, bound)) = self.unfinished.late(now).filter(|_| !self.has_failed) {
            self.shared.api.reached(bound);
            self.fail(fault);
            self.comes_back = true; // to send the GOAWAY
        }
    }

    /// Back-pressure: requests hold as much memory as they may, and some of them will end without
    /// more input, so that reading can wait for those. Without such requests reading must go on, or
    /// requests that have arrived in part would never end.
    pub(super) fn is_full_of_requests(&self) -> bool {
        self.calls.brief_bytes() > 0 && !self.memory.requests.fits(2 * limits::READ_BYTES)
    }

    /// Whether as many bytes were decompressed as one turn may; then another one follows.
    pub(super) fn has_unpacked(&mut self) -> bool {
        let is_much = self.shared.messages.unpacked.get() >= limits::UNPACKED_BYTES_PER_TURN;
        self.comes_back |= is_much;
        is_much
    }

    /// Looks whether the client makes progress with what its connection holds.
    pub(super) fn look_at_memory(&mut self, now: u64) {
        if self.memory.holds_little() {
            return self.memory.pace.rest();
        }
        let ConnectionMemory { replies, watches, pace, .. } = &mut self.memory;
        let (watched, held) = (watches.held(), replies.held() + watches.held());
        match pace.look(now, held, watched) {
            PaceCheck::At(then) => return self.timer.add(then),
            PaceCheck::Over { is_slow } => {
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

    /// Ends the connection if a frame or header block makes no progress although the socket is
    /// read, and others need the memory.
    fn end_unfinished_block(&mut self) {
        let waits_for_us = self.is_behind || self.is_full_of_requests();
        let has_block = self.connection.unfinished_block().is_some();
        let is_begun = has_block || !self.partial.is_empty() || self.socket.held().received > 0;
        if is_begun
            && !waits_for_us
            && !self.has_failed
            && self.unfinished.look()
            && self.memory.requests.is_in_the_way()
        {
            self.shared.api.reached(Bound::UnfinishedRequests);
            self.fail(UNFINISHED);
        }
    }

    /// Refuses requests that have been incomplete for too long, the oldest first, for as long as
    /// others need the memory.
    fn end_unfinished(&mut self) {
        let mut found = Vec::new();
        for (stream, state) in self.connection.streams_mut() {
            let looks = match state {
                StreamState::Request(asking) if !asking.waits => &mut asking.looks,
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
