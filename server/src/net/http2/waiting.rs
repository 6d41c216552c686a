//! Calls that wait: until the client has read replies, or until ranges of many keys are done.

use bytes::Bytes;
use revd_member::error::Status;

use crate::api;
use crate::limits;
use crate::net::calls::StreamState;
use crate::net::http2::Http2;
use crate::net::messages::held;
use crate::net::request_headers::CallHeaders;
use crate::net::socket::Transport;
use crate::observe::bounds::Bound;

impl<T: Transport> Http2<T> {
    /// Back-pressure: whether the client has so many replies yet to read that its next calls wait.
    /// Frames that are no calls are processed all the same.
    pub(super) fn is_congested(&self) -> bool {
        let backlog = self.connection.backlog() - self.connection.backlog_apart();
        backlog > limits::REPLY_BYTES_PER_CONNECTION
            || (backlog > limits::PACE_BYTES_MIN && !self.memory.replies.fits(0))
    }

    /// Whether a long call cannot begin in this turn: enough are under way, or the turn is over for
    /// them.
    fn must_wait(&mut self) -> bool {
        if self.calls.long() >= limits::LONG_CALLS_PER_CONNECTION {
            return true; // a long call that ends wakes the connection
        }
        self.is_late()
    }

    /// Whether the turn has lasted long enough for long calls; then another one follows.
    pub(super) fn is_late(&mut self) -> bool {
        let most = self.turns.microseconds(limits::TURN_MICROSECONDS);
        let is_late = self.shared.clock.microseconds() > self.began + most;
        self.comes_back |= is_late;
        is_late
    }

    /// Begins calls that have waited; whether there were any.
    pub(super) fn begin_waiting(&mut self) -> bool {
        let before = self.waiting.len();
        while !self.is_congested()
            && let Some(stream) = self.waiting.front()
        {
            let state = self.connection.stream(stream);
            if matches!(state, Some(StreamState::Request(asking)) if asking.is_long) && self.must_wait() {
                break;
            }
            if self.has_worked() {
                break;
            }
            self.waiting.pop();
            let Some(StreamState::Request(asking)) = self.connection.stream(stream) else { continue };
            let Some(message) = asking.message.take() else { continue };
            let (head, deadline, is_long) = (asking.head.clone(), asking.deadline, asking.is_long);
            self.ask(stream, head, message, deadline, is_long);
            self.calls.reap();
        }
        self.waiting.len() < before
    }

    /// Begins a call whose message is complete, or has it wait.
    pub(super) fn ask_in_turn(&mut self, stream: u32, head: CallHeaders, message: Bytes, deadline: u64) {
        let is_long = api::may_be_long(head.method, &message);
        let must_wait = is_long && (!self.waiting.is_empty() || self.must_wait());
        if !must_wait && !self.is_congested() {
            return self.ask(stream, head, message, deadline, is_long);
        }
        let calls_max = self.shared.http2.streams_max as usize;
        if self.waiting.push(stream, message.len(), calls_max).is_err() {
            let text = "too many queued calls: the client is not reading replies, or ranges of many keys are not done";
            self.shared.api.reached(Bound::WaitingCalls);
            return self.refuse(stream, &Status::resource_exhausted(text));
        }
        if let Some(StreamState::Request(asking)) = self.connection.stream(stream) {
            asking.hold = Some(held(&self.memory.requests, &message));
            asking.waits = true;
            asking.message = Some(message);
            asking.is_long = is_long;
        }
    }
}
