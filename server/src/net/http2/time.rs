//! Timed work of a connection: deadlines of calls, pings to silent clients, the end of stalled
//! ones.

use std::task::Context;

use revd_http2::{Connection, ErrorCode};

use crate::limits;
use crate::net::calls::{Call, CallKind, StreamState};
use crate::net::deadline::{deadline_exceeded, milliseconds};
use crate::net::http2::Http2;
use crate::net::keepalive::PingStep;
use crate::net::socket::Transport;

/// Whether a call on the stream is not answered yet.
fn is_under_way(connection: &Connection<StreamState>, stream: u32) -> bool {
    matches!(connection.peek(stream), Some(StreamState::Request(_) | StreamState::Running(_)))
}

impl<T: Transport> Http2<T> {
    /// Sets the deadline of a call.
    pub(super) fn end_by(&mut self, stream: u32, deadline: u64) {
        let Self { deadlines, connection, timer, .. } = self;
        timer.add(deadline);
        deadlines.add(deadline, stream, connection.open_streams(), |stream| is_under_way(connection, stream));
    }

    /// Ends calls whose deadline has passed, also those whose message is incomplete or that wait.
    fn end_overdue(&mut self, now: u64) {
        while let Some(stream) = self.deadlines.pop_due(now) {
            match self.connection.stream(stream) {
                Some(StreamState::Request(_)) => self.refuse(stream, &deadline_exceeded()),
                Some(StreamState::Running(running)) => match self.calls.get(running.slot) {
                    Some(Call { kind: CallKind::Streaming(_), .. }) => {
                        self.end(stream, &Err(deadline_exceeded()))
                    }
                    _ => self.refuse(stream, &deadline_exceeded()),
                },
                _ => continue,
            }
            self.connection.reset(stream, ErrorCode::Cancel);
            self.calls.reap();
        }
        let Self { deadlines, connection, timer, .. } = self;
        timer.set(deadlines.next(|stream| is_under_way(connection, stream)));
    }

    /// There are few connections for metrics: one that asks nothing any more makes room, as one of
    /// HTTP/1 does. A request that comes meanwhile is refused unread: its client asks again
    /// elsewhere.
    fn end_idle(&mut self, asked: u64, now: u64) {
        let until = asked + milliseconds(limits::HTTP1_DEADLINE);
        if now < until {
            return self.timer.add(until);
        }
        self.connection.go_away();
        let end = until + milliseconds(limits::LAST_CALL_DEADLINE);
        if now < end {
            self.timer.add(end);
        } else {
            self.has_failed = true; // and the rules of stalled ones wake the task
        }
    }

    /// Does the timed work that is due, and sets the timer for the next.
    pub(super) fn look_at_time(&mut self, context: &mut Context<'_>, now: u64) {
        if self.timer.is_due(now) {
            self.end_overdue(now);
        }
        if let Some(asked) = self.asked {
            self.end_idle(asked, now);
        }
        if self.has_failed || self.connection.backlog() >= limits::SEND_BUFFER_BYTES {
            let until = self.taken + milliseconds(limits::STALL_DEADLINE);
            self.has_failed |= now >= until;
            self.timer.add(until);
        } else {
            self.taken = now; // little is unsent: the client does not stall
        }
        if let Some(told) = self.told.filter(|_| !self.connection.is_going_away()) {
            let until = told + milliseconds(limits::LAST_CALL_DEADLINE);
            if now >= until {
                self.connection.go_away();
            } else {
                self.timer.add(until);
            }
        }
        if let Some(due) = self.unfinished.due().filter(|due| *due > now) {
            self.timer.add(due);
        }
        match self.keepalive.check(now) {
            Some(PingStep::At(then)) => self.timer.add(then),
            Some(PingStep::Ask) => {
                self.connection.ping(*b"revdping");
                if let Some(PingStep::At(then)) = self.keepalive.check(now) {
                    self.timer.add(then);
                }
            }
            Some(PingStep::Gone) => self.has_failed = true,
            None => {}
        }
        self.look_at_memory(now);
        self.timer.poll(context, now);
    }
}
