//! Reading: input is cut into frames and processed; input beyond the work of a turn waits for the
//! next.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use revd_http2::Fault;

use crate::limits;
use crate::net::http2::{Http2, ReadOutcome};
use crate::net::socket::Transport;

impl<T: Transport> Http2<T> {
    /// Reads the socket once and processes what was read.
    pub(super) fn read(&mut self, context: &mut Context<'_>, now: u64) -> io::Result<ReadOutcome> {
        if std::mem::take(&mut self.is_behind) {
            self.received(&[], now);
            if self.is_behind {
                self.reading.more(0);
                return Ok(ReadOutcome::Enough);
            }
            // Replies are sent before the socket is read again: the client may send nothing more.
            return Ok(ReadOutcome::Some);
        }
        let buffer = Rc::clone(&self.shared.read_buffer);
        let mut buffer = buffer.borrow_mut();
        let Poll::Ready(bytes) = self.socket.poll_read(context, &mut buffer)? else {
            if self.socket.has_unread() {
                self.comes_back = true;
                self.reading.more(0);
            } else {
                self.reading.all();
            }
            return Ok(ReadOutcome::Enough);
        };
        if bytes == 0 {
            return Ok(ReadOutcome::End);
        }
        self.received(&buffer[..bytes], now);
        // A client that sends much: other connections of the core come first.
        if bytes == buffer.len() || self.is_behind || self.is_late() {
            self.comes_back = true;
            self.reading.more(bytes);
            return Ok(ReadOutcome::Enough);
        }
        Ok(ReadOutcome::Some)
    }

    fn received(&mut self, bytes: &[u8], now: u64) {
        self.keepalive.heard(now);
        self.connection.out().give_buffer(|| self.shared.spare_buffers.borrow_mut().take_send_buffer());
        if self.partial.is_empty() {
            let mut rest = bytes;
            self.events(&mut rest, now);
            self.unfinished.went_on(rest.len() < bytes.len());
            self.partial.extend_from_slice(rest);
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(bytes);
            let mut rest = &whole[..];
            self.events(&mut rest, now);
            let used = whole.len() - rest.len();
            self.unfinished.went_on(used > 0);
            whole.drain(..used);
            if !whole.is_empty() {
                self.partial = whole;
            }
        }
    }

    fn events(&mut self, input: &mut &[u8], now: u64) {
        while !self.has_failed {
            let result = match self.connection.receive(input) {
                Ok(Some(event)) => self.event(event, now),
                Ok(None) => return,
                Err(fault) => Err(fault),
            };
            self.calls.reap();
            if let Err(fault) = result {
                self.fail(fault);
            } else if self.has_unpacked() || self.has_worked() {
                self.is_behind = true;
                return;
            }
        }
        *input = &[];
    }

    /// Whether the turn has done enough; then another one follows.
    pub(super) fn has_worked(&mut self) -> bool {
        let (clock, began) = (self.shared.clock, self.began);
        let most = self.turns.microseconds(limits::BATCH_MICROSECONDS);
        let lasted = || clock.microseconds().saturating_sub(began);
        let is_over = self.batch.step(self.connection.backlog(), most, lasted);
        self.comes_back |= is_over;
        is_over
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        if let Some(limit) = fault.limit {
            self.shared.api.reached(limit.into());
        }
        self.connection.fail(fault);
        self.calls.reap();
        self.partial = Vec::new();
        self.has_failed = true;
    }
}
