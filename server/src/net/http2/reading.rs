//! Reading: what has come is taken apart and dealt with, and what is left of it waits for the next turn.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use revd_http2::Fault;

use crate::limits;
use crate::net::http2::Http2;
use crate::net::socket::Transport;

/// What a turn does of what was read: as much as it has time for. Much of that time would go into asking for it, if it was
/// asked for behind each frame.
#[derive(Debug, Default)]
pub(super) struct Batch {
    steps: u32,
    /// Bytes of replies that waited to be sent when the clock was last asked.
    backlog: usize,
    is_over: bool,
}

impl Batch {
    /// A frame was dealt with, or a call begun, and so many bytes of replies wait now; whether that is enough for this turn, which
    /// has lasted for so many microseconds of `most`. Large replies take as long as many small ones.
    fn step(&mut self, backlog: usize, most: u64, lasted: impl FnOnce() -> u64) -> bool {
        self.steps += 1;
        if self.steps.is_multiple_of(limits::BATCH_STEPS) || backlog > self.backlog + limits::BATCH_BYTES {
            self.backlog = backlog;
            self.is_over |= lasted() >= most;
        }
        self.is_over
    }
}

/// What reading has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// There may be more.
    Some,
    /// There is nothing more, or it is for the next turn.
    Enough,
    /// The client has closed its side.
    End,
}

impl<T: Transport> Http2<T> {
    /// Reads once, and does what was read.
    pub(super) fn read(&mut self, context: &mut Context<'_>, now: u64) -> io::Result<Read> {
        if std::mem::take(&mut self.is_behind) {
            self.received(&[], now);
            if self.is_behind {
                self.reading.more(0);
                return Ok(Read::Enough);
            }
            // What was answered is sent before the socket is asked for more: there may be none, ever.
            return Ok(Read::Some);
        }
        let buffer = Rc::clone(&self.shared.read);
        let mut buffer = buffer.borrow_mut();
        let Poll::Ready(bytes) = self.socket.poll_read(context, &mut buffer)? else {
            self.reading.all();
            return Ok(Read::Enough);
        };
        if bytes == 0 {
            return Ok(Read::End);
        }
        self.received(&buffer[..bytes], now);
        // There is more, of somebody who sends much: others of the core come first.
        if bytes == buffer.len() || self.is_behind || self.is_late() {
            self.comes_back = true;
            self.reading.more(bytes);
            return Ok(Read::Enough);
        }
        Ok(Read::Some)
    }

    fn received(&mut self, bytes: &[u8], now: u64) {
        self.keepalive.heard(now);
        self.connection.out().give_buffer(|| self.shared.scratch.borrow_mut().take());
        if self.partial.is_empty() {
            let mut rest = bytes;
            self.events(&mut rest, now);
            self.begun.went_on(rest.len() < bytes.len());
            self.partial.extend_from_slice(rest);
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(bytes);
            let mut rest = &whole[..];
            self.events(&mut rest, now);
            let used = whole.len() - rest.len();
            self.begun.went_on(used > 0);
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

    /// The turn has done enough, and there will be another one.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that one turn deals with, of so many that take so many microseconds each, and the time that this takes.
    fn turn(frames: u64, microseconds: u64, bytes: usize) -> (u64, u64) {
        let (mut batch, mut done, mut backlog) = (Batch::default(), 0, 0);
        while done < frames {
            done += 1;
            backlog += bytes;
            if batch.step(backlog, limits::BATCH_MICROSECONDS, || done * microseconds) {
                assert!(batch.step(backlog, limits::BATCH_MICROSECONDS, || 0), "it stays over");
                break;
            }
        }
        (done, done * microseconds)
    }

    #[test]
    fn a_turn_is_over_when_it_has_lasted_long_enough_whatever_is_left_to_do() {
        let look = u64::from(limits::BATCH_STEPS);
        assert_eq!(
            turn(limits::BATCH_MICROSECONDS - 1, 1, 100).0,
            limits::BATCH_MICROSECONDS - 1,
            "cheap calls stay together"
        );
        for microseconds in [1, 20, 100, 500] {
            let (_, lasted) = turn(1_000_000, microseconds, 100);
            assert!(lasted >= limits::BATCH_MICROSECONDS);
            assert!(
                lasted <= limits::BATCH_MICROSECONDS + look * microseconds,
                "{lasted} of {microseconds} each"
            );
            let (_, lasted) = turn(1_000_000, microseconds, limits::BATCH_BYTES + 1);
            assert!(lasted < limits::BATCH_MICROSECONDS + microseconds, "{lasted} of large replies");
        }
    }
}
