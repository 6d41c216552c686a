//! What a connection does by the clock: calls whose time is over end, silent clients are asked, stalled ones given up.

use std::task::Context;
use std::time::Duration;

use revd_proto::http2::ErrorCode;
use tonic::Status;

use crate::limits;
use crate::net::calls::{Call, CallKind, StreamState};
use crate::net::http2::Http2;
use crate::net::keepalive::Check;
use crate::net::socket::Transport;

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

pub(super) fn overdue() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

impl<T: Transport> Http2<T> {
    /// Ends calls whose time is over, those too whose message is still on its way or waits for its turn.
    fn end_overdue(&mut self, now: u64) {
        let due = |(slot, call): (usize, &Call)| (call.deadline <= now).then_some(slot);
        let slots: Vec<usize> = self.calls.iter().filter_map(due).collect();
        for slot in slots {
            let Some(Call { stream, kind, .. }) = self.calls.get(slot) else { continue };
            let stream = *stream;
            match kind {
                CallKind::Unary(_) => self.refuse(stream, &overdue()),
                CallKind::Streaming(_) => self.end(stream, &Err(overdue())),
            }
            self.connection.reset(stream, ErrorCode::Cancel);
            self.calls.reap();
        }
        let mut next = self.calls.iter().map(|(_, call)| call.deadline).min().unwrap_or(u64::MAX);
        let mut late = Vec::new();
        for (stream, state) in self.connection.streams() {
            match state {
                StreamState::Asking(asking) if asking.deadline <= now => late.push(stream),
                StreamState::Asking(asking) => next = next.min(asking.deadline),
                _ => {}
            }
        }
        for stream in late {
            self.refuse(stream, &overdue());
            self.connection.reset(stream, ErrorCode::Cancel);
        }
        self.timer.set(Some(next));
    }

    /// Ends calls whose time is over, and looks after silent clients.
    pub(super) fn look_at_time(&mut self, context: &mut Context<'_>, now: u64) {
        if self.timer.is_due(now) {
            self.end_overdue(now);
        }
        if self.has_failed || self.connection.backlog() >= limits::SEND_BUFFER_BYTES {
            let until = self.taken + milliseconds(limits::STALL_DEADLINE);
            self.has_failed |= now >= until;
            self.timer.add(until);
        } else {
            self.taken = now; // little waits: nothing is stalled
        }
        if let Some(told) = self.told.filter(|_| !self.connection.is_going_away()) {
            let until = told + milliseconds(limits::LAST_CALL_DEADLINE);
            if now >= until {
                self.connection.go_away();
            } else {
                self.timer.add(until);
            }
        }
        match self.keepalive.check(now) {
            Some(Check::At(then)) => self.timer.add(then),
            Some(Check::Ask) => {
                self.connection.ping(*b"revdping");
                if let Some(Check::At(then)) = self.keepalive.check(now) {
                    self.timer.add(then);
                }
            }
            Some(Check::Gone) => self.has_failed = true,
            None => {}
        }
        self.look_at_memory(now);
        self.timer.poll(context, now);
    }
}
