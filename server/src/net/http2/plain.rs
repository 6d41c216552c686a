//! Plain HTTP requests on an HTTP/2 connection: probes that ask for health, and scrapes. They need
//! no user, so that their replies are bounded before they are made.

use std::rc::Rc;

use ::http::StatusCode;
use bytes::Bytes;
use revd_http2::ErrorCode;

use crate::config::Served;
use crate::net::calls::{Call, CallKind, StreamState};
use crate::net::http;
use crate::net::http2::Http2;
use crate::net::plain::PlainReply;
use crate::net::reply;
use crate::net::request_headers::PlainHeaders;
use crate::net::socket::Transport;
use crate::observe::bounds::Bound;

impl<T: Transport> Http2<T> {
    /// Data of a plain HTTP request: it is dropped, but must be as long as `content-length` says
    /// (section 8.1.1).
    pub(super) fn plain_data(&mut self, stream: u32, bytes: usize, end: bool) {
        let Some(StreamState::Plain(head)) = self.connection.stream(stream) else { return };
        if let Some(left) = &mut head.content_length {
            match left.checked_sub(bytes as u64) {
                Some(less) if less == 0 || !end => *left = less,
                _ => return self.connection.reset(stream, ErrorCode::Protocol),
            }
        }
        if !end {
            return self.connection.credit(stream, bytes);
        }
        let PlainHeaders { method, path, served, .. } = &mut **head;
        let (method, path, served) = (std::mem::take(method), std::mem::take(path), *served);
        self.asked = self.asked.map(|_| self.shared.clock.milliseconds());
        // Unlike calls they do not wait: a probe is told at once. The few connections there are for
        // metrics do not depend on the room that clients leave.
        let fits = served == Served::Metrics || self.memory.replies.fits(http::room_for(&path));
        if self.is_congested() || !fits {
            self.shared.api.reached(Bound::ReplyBytes);
            return self.answer_plain(stream, PlainReply::empty(StatusCode::SERVICE_UNAVAILABLE));
        }
        let api = Rc::clone(&self.shared.api);
        let call = Box::pin(async move { http::answer(&api, served, &method, &path).await });
        let (hold, kind) = (self.memory.requests.hold(), CallKind::Plain(call));
        let slot = self.insert(Call { stream, is_long: false, is_brief: true, hold, kind });
        self.run(slot);
    }

    pub(super) fn answer_plain(&mut self, stream: u32, answer: PlainReply) {
        self.finish(stream);
        let is_over = answer.text.is_empty() || answer.is_head_alone;
        self.connection.send_head(stream, &reply::plain(&answer), is_over);
        if !is_over {
            // A queued text counts as long as it is, not as it grew.
            let text = Bytes::from(answer.text.into_bytes().into_boxed_slice());
            self.connection.send_data(stream, &[text]);
            self.connection.send_end(stream, None);
            self.count_backlog();
        }
    }
}
