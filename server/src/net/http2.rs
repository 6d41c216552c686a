//! One HTTP/2 connection on its core: bytes in, calls, bytes out. The replies of a turn leave in
//! one send.

mod batch;
mod memory;
mod plain;
mod reading;
mod reclaim;
mod time;
mod unfinished;
mod wait_queue;
mod waiting;

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use revd_http2::{Connection, ErrorCode, Event, Fault, HeadersKind, Role};
use revd_member::error::{Code, Status};
use serde_json::json;

use crate::api::call::{Message, Source};
use crate::api::method::Method;
use crate::api::replies::{Replies as ReplySink, prefix};
use crate::config::Served;
use crate::limits;
use crate::net::busy::TurnShare;
use crate::net::calls::{
    Call, CallKind, Calls, OpenStreamingCall, StreamState, UnaryCall, UnaryRequest, ends_soon,
};
use crate::net::context::EdgeContext;
use crate::net::deadline::{Deadlines, Timer, deadline_exceeded, milliseconds};
use crate::net::http2::batch::InputBatch;
use crate::net::http2::memory::ConnectionMemory;
use crate::net::http2::unfinished::UnfinishedInput;
use crate::net::http2::wait_queue::WaitQueue;
use crate::net::keepalive::PingRules;
use crate::net::messages::{Assembly, Incoming, RequestQueue, held};
use crate::net::ready_queue::ReadyQueue;
use crate::net::reply::{self, ResponseEncoder};
use crate::net::request_headers::{CallHeaders, HeaderDecoder, RequestHeaders};
use crate::net::socket::Transport;
use crate::net::unread::ReadProgress;
use crate::observe::turns::Loop;
use crate::queues::gate::Pass;

/// A connection whose header block cannot be decoded.
const BAD_BLOCK: Fault = Fault::new(ErrorCode::Compression, "a header block cannot be decoded");
/// A client that pings too often, in grpc-go's words.
const TOO_MANY_PINGS: Fault = Fault::new(ErrorCode::EnhanceYourCalm, "too_many_pings");

/// A connection and its calls.
pub(super) struct Http2<T> {
    socket: T,
    shared: Rc<EdgeContext>,
    connection: Connection<StreamState>,
    header_decoder: HeaderDecoder,
    encoder: ResponseEncoder,
    calls: Calls,
    ready: ReadyQueue,
    /// Input behind the last complete frame.
    partial: Vec<u8>,
    memory: ConnectionMemory,
    unfinished: UnfinishedInput,
    /// `partial` holds complete frames that were left for this turn.
    is_behind: bool,
    reading: ReadProgress,
    waiting: WaitQueue,
    /// When the client last made progress with its replies.
    taken: u64,
    keepalive: PingRules,
    timer: Timer,
    deadlines: Deadlines,
    refilled: u64,
    /// When the graceful shutdown began.
    told: Option<u64>,
    /// Where only metrics and health are served: when the last request came.
    asked: Option<u64>,
    has_failed: bool,
    /// When this turn began, in microseconds, and whether another follows at once.
    began: u64,
    comes_back: bool,
    turns: TurnShare,
    batch: InputBatch,
}

/// Whether the connection goes on after a turn.
enum TurnEnd {
    Waiting,
    Over,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadOutcome {
    /// There may be more input.
    Some,
    /// There is no more input, or it is for the next turn.
    Enough,
    /// The client has closed its side.
    End,
}

impl<T: Transport> Http2<T> {
    /// A connection whose preface was read.
    #[must_use]
    pub(super) fn new(
        socket: T,
        common_name: Option<Rc<str>>,
        way: (Source, Served),
        shared: Rc<EdgeContext>,
    ) -> Self {
        let now = shared.clock.milliseconds();
        let config = shared.http2;
        Self {
            connection: Connection::new(Role::Server, config),
            header_decoder: HeaderDecoder::new(config.header_bytes_max as usize, common_name, way),
            encoder: ResponseEncoder::default(),
            calls: Calls::default(),
            ready: ReadyQueue::default(),
            partial: Vec::new(),
            memory: ConnectionMemory::new(shared.api.budgets()),
            unfinished: UnfinishedInput::new(now),
            is_behind: false,
            reading: ReadProgress::new(&shared.unread),
            waiting: WaitQueue::default(),
            taken: now,
            keepalive: PingRules::new(shared.keepalive, now),
            timer: Timer::default(),
            deadlines: Deadlines::default(),
            refilled: now,
            told: None,
            asked: (way.1 == Served::Metrics).then_some(now),
            has_failed: false,
            began: 0,
            comes_back: false,
            turns: TurnShare::new(&shared.busy),
            batch: InputBatch::default(),
            socket,
            shared,
        }
    }

    /// Serves until the client is gone or breaks the protocol, or until the core ends and all calls
    /// are done: then the socket is returned, to be read until the client closes it.
    pub(super) async fn serve(mut self: Box<Self>, pass: &Pass) -> Option<T> {
        std::future::poll_fn(|context| {
            self.ready.register(context);
            if !self.turns.begin() {
                // Woken before its turn, in which everything is looked at. Perhaps by a keepalive:
                // leases do not expire until it is read.
                self.reading.more(0);
                return Poll::Pending;
            }
            let ended = self.turn(context, pass);
            let took = self.shared.clock.microseconds() - self.began;
            let doing = || json!({"open-streams": self.connection.open_streams()});
            self.shared.api.turns().record(Loop::Connection, took, doing);
            match ended {
                Ok(TurnEnd::Waiting) => Poll::Pending,
                Ok(TurnEnd::Over) | Err(_) => {
                    self.turns.end(context, took, false);
                    Poll::Ready(())
                }
            }
        })
        .await;
        (self.has_left() && !self.has_failed).then_some(self.socket)
    }

    /// All streams are answered, and no more are taken up.
    fn has_left(&self) -> bool {
        self.connection.is_going_away() && self.connection.open_streams() == 0
    }

    fn turn(&mut self, context: &mut Context<'_>, pass: &Pass) -> io::Result<TurnEnd> {
        self.began = self.shared.clock.microseconds();
        if self.told.is_none() && pass.poll_closed(context).is_ready() {
            self.told = Some(self.shared.clock.milliseconds());
            self.connection.last_call();
        }
        self.shared.messages.unpacked.set(0);
        self.batch = InputBatch::default();
        let now = self.began / 1_000;
        if now >= self.refilled + limits::ALLOWANCE_MILLISECONDS {
            self.refilled = now;
            self.connection.refill();
        }
        loop {
            self.run_woken();
            self.look_at_time(context, now);
            let mut is_blocked = self.send(context, now)?.is_pending();
            // Sending has made room for calls that wait. The replies of calls that begin now are
            // sent at once: nothing else may wake this task.
            while self.begin_waiting() && !is_blocked {
                is_blocked = self.send(context, now)?.is_pending();
            }
            let is_done = self.has_failed || self.has_left();
            let is_stalled = self.has_failed && now >= self.taken + milliseconds(limits::STALL_DEADLINE);
            if (is_done && !is_blocked) || is_stalled {
                let _ = self.socket.poll_close(context);
                return Ok(TurnEnd::Over);
            }
            // Back-pressure: stop reading requests while the client does not drain our replies.
            let is_unread = self.has_failed || self.connection.out().len() >= limits::SEND_BUFFER_BYTES;
            if is_blocked && is_unread {
                if self.comes_back {
                    // Only this turn is over: the client may well read its replies.
                    self.reading.more(0);
                } else {
                    self.reading.all(); // leases do not wait for keepalives of that client
                }
                break;
            }
            if self.is_full_of_requests() {
                self.reading.more(0); // reading goes on when some requests are done
                break;
            }
            match self.read(context, now)? {
                ReadOutcome::Some => {}
                ReadOutcome::Enough => break,
                ReadOutcome::End => return Ok(TurnEnd::Over),
            }
        }
        self.count(now);
        let took = self.shared.clock.microseconds() - self.began;
        self.turns.end(context, took, std::mem::take(&mut self.comes_back));
        Ok(TurnEnd::Waiting)
    }

    /// Sends until everything is sent, or the kernel takes no more.
    fn send(&mut self, context: &mut Context<'_>, now: u64) -> io::Result<Poll<()>> {
        loop {
            self.connection.pump();
            for stream in self.connection.take_drained() {
                self.refill_stream(stream);
            }
            let out = self.connection.out();
            if out.is_empty() {
                if let Some(buffer) = out.take_buffer() {
                    self.shared.spare_buffers.borrow_mut().keep_send_buffer(buffer);
                }
                return Ok(Poll::Ready(()));
            }
            let before = out.len();
            if self.socket.poll_write(context, out)?.is_pending() {
                return Ok(Poll::Pending);
            }
            self.memory.pace.took(before - out.len());
            self.taken = now;
            // Large replies are sent in several turns: copying megabytes takes milliseconds.
            if !self.connection.out().is_empty() && self.is_late() {
                return Ok(Poll::Pending);
            }
        }
    }

    /// Polls the call of a stream whose queue has run empty, if it has more replies.
    fn refill_stream(&mut self, stream: u32) {
        if let Some(StreamState::Running(running)) = self.connection.stream(stream) {
            let slot = running.slot;
            if let Some(Call { kind: CallKind::Streaming(streaming), .. }) = self.calls.get(slot)
                && streaming.is_full
            {
                self.run(slot);
            }
        }
    }

    fn event(&mut self, event: Event<'_>, now: u64) -> Result<(), Fault> {
        match event {
            Event::Headers { stream, block, kind, end } => {
                if kind != HeadersKind::Head {
                    let may_be = self.header_decoder.skip(&block).map_err(|_| BAD_BLOCK)?;
                    match kind {
                        HeadersKind::Trailers if may_be => self.data(stream, &[], true),
                        HeadersKind::Trailers => self.connection.reset(stream, ErrorCode::Protocol),
                        _ => {}
                    }
                    return Ok(());
                }
                let head = self.header_decoder.read(&block).map_err(|_| BAD_BLOCK)?;
                self.head(stream, head, end, now);
            }
            Event::Data { stream, data, end } => self.data(stream, data, end),
            Event::Ping => {
                let has_calls = self.connection.open_streams() > 0;
                if !self.keepalive.ping(now, has_calls, self.connection.take_has_sent()) {
                    return Err(TOO_MANY_PINGS);
                }
            }
            Event::Window => self.encoder.table(self.connection.peer_table_bytes()),
            Event::Reset { .. } | Event::Pong(_) | Event::GoAway { .. } => {}
        }
        Ok(())
    }

    fn head(&mut self, stream: u32, head: RequestHeaders, end: bool, now: u64) {
        match head {
            RequestHeaders::Call(head) => self.begin(stream, head, end, now),
            RequestHeaders::Refused(status) => self.refuse(stream, &status),
            RequestHeaders::Rejected(http, status) => {
                self.connection.send_head(stream, &reply::rejection(http, &status), true);
            }
            RequestHeaders::Malformed => self.connection.reset(stream, ErrorCode::Protocol),
            RequestHeaders::TooLarge => {
                self.connection.send_head(stream, &reply::too_large(), true);
            }
            RequestHeaders::Plain(head) => {
                if let Some(state) = self.connection.stream(stream) {
                    *state = StreamState::Plain(Box::new(head));
                }
                if end {
                    self.data(stream, &[], true);
                }
            }
        }
    }

    fn begin(&mut self, stream: u32, head: CallHeaders, end: bool, now: u64) {
        if head.timeout == Some(0) {
            // Also streaming calls, which would begin at once.
            return self.refuse(stream, &deadline_exceeded());
        }
        let deadline = head.timeout.map_or(u64::MAX, |timeout| now.saturating_add(timeout));
        self.end_by(stream, deadline);
        match head.method {
            Method::Unary(_) => {
                let asking = UnaryRequest::new(head, deadline);
                if let Some(state) = self.connection.stream(stream) {
                    *state = StreamState::Request(Box::new(asking));
                }
            }
            Method::Streaming(method) => {
                let ConnectionMemory { requests, replies, watches, .. } = &self.memory;
                let is_watch = method.is_watch();
                if is_watch {
                    self.connection.count_apart(stream);
                }
                let (sink, replies) = ReplySink::new(if is_watch { watches } else { replies });
                let requests = Rc::new(RequestQueue::new(requests));
                let incoming = Box::new(Incoming(Rc::clone(&requests)));
                let call = Rc::clone(&self.shared.api).streaming(method, head.metadata, incoming, sink);
                let streaming = OpenStreamingCall {
                    call: Some(call),
                    replies,
                    requests,
                    assembly: Assembly::default(),
                    gzip: head.gzip,
                    looks: 0,
                    has_head: false,
                    is_full: false,
                    result: None,
                };
                let kind = CallKind::Streaming(Box::new(streaming));
                let hold = self.memory.requests.hold();
                let slot = self.insert(Call { stream, is_long: false, is_brief: false, hold, kind });
                if !end {
                    self.run(slot);
                }
            }
        }
        if end {
            self.data(stream, &[], true);
        }
    }

    fn insert(&mut self, call: Call) -> usize {
        let stream = call.stream;
        let running = self.calls.insert(call);
        let slot = running.slot;
        if let Some(state) = self.connection.stream(stream) {
            *state = StreamState::Running(running);
        }
        slot
    }

    /// Data of a stream; `end` when the client has ended its half.
    fn data(&mut self, stream: u32, data: &[u8], end: bool) {
        match self.connection.stream(stream) {
            Some(StreamState::Request(asking)) => {
                let UnaryRequest { head, assembly, message, .. } = &mut **asking;
                let (mut result, share) = (Ok(()), &self.memory.requests);
                if message.is_none() {
                    let cut = |bytes| {
                        message.get_or_insert(bytes);
                    };
                    result = assembly.add(data, head.gzip, &self.shared.messages, share, cut);
                }
                if message.is_some() {
                    // Messages behind the first are ignored.
                    (result, *assembly) = (Ok(()), Assembly::default());
                }
                if !end && result.is_ok() {
                    result = asking.hold_message(share);
                }
                let UnaryRequest { head, deadline, assembly, message, .. } = &mut **asking;
                let (deadline, unfinished) = (*deadline, !assembly.is_empty());
                let message = if end { message.take() } else { None };
                match (result, message) {
                    (Err(status), _) => self.refuse(stream, &status),
                    (Ok(()), Some(message)) => {
                        let head = head.clone();
                        self.ask_in_turn(stream, head, message, deadline);
                    }
                    (Ok(()), _) if end => {
                        let text = if unfinished { "unexpected EOF" } else { "EOF" };
                        self.refuse(stream, &Status::unknown(text));
                    }
                    // Credit is returned at once: size limit and memory budget bound a message, not
                    // the window.
                    (Ok(()), _) => self.connection.credit(stream, data.len()),
                }
            }
            Some(StreamState::Running(running)) => {
                let slot = running.slot;
                if let Some(Call { kind: CallKind::Streaming(streaming), .. }) = self.calls.get(slot) {
                    let (credit, is_news) =
                        streaming.add(data, end, &self.shared.messages, &self.memory.requests);
                    self.connection.credit(stream, credit);
                    if is_news {
                        self.run(slot);
                    }
                }
            }
            Some(StreamState::Plain(_)) => self.plain_data(stream, data.len(), end),
            _ => self.connection.credit(stream, data.len()),
        }
    }

    /// Begins a unary call: it is polled once, and again when it is woken.
    fn ask(&mut self, stream: u32, head: CallHeaders, message: Bytes, deadline: u64, is_long: bool) {
        let Method::Unary(method) = head.method else { return };
        // Also checked for a call that has waited or came late in a long turn: a call that its
        // client has given up must not change anything.
        if deadline != u64::MAX && deadline <= self.shared.clock.milliseconds() {
            return self.refuse(stream, &deadline_exceeded());
        }
        let api = Rc::clone(&self.shared.api);
        let replies = &self.memory.replies;
        if let Some(reply) = api.answer_at_once(method, &head.metadata, &message, is_long, replies) {
            return self.reply(stream, Ok(reply));
        }
        let hold = held(&self.memory.requests, &message);
        let replies = replies.clone();
        let mut call: UnaryCall = Box::pin(api.unary(method, head.metadata, message, replies));
        let waker = self.ready.waker(self.calls.next_slot());
        match call.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => self.reply(stream, result),
            Poll::Pending => {
                let is_brief = ends_soon(head.method, is_long);
                self.insert(Call { stream, is_long, is_brief, hold, kind: CallKind::Unary(call) });
            }
        }
    }

    /// Marks the request of a stream as answered; its answer may still be under way.
    fn finish(&mut self, stream: u32) {
        if let Some(state) = self.connection.stream(stream) {
            *state = StreamState::Answered;
        }
    }

    fn reply(&mut self, stream: u32, result: Result<Message, Status>) {
        let message = match result {
            Ok(message) => message,
            Err(status) => return self.refuse(stream, &status),
        };
        let prefix = match prefix(message.iter().map(Bytes::len).sum()) {
            Ok(prefix) => prefix,
            Err(status) => return self.refuse(stream, &status),
        };
        if message.len() < limits::FRAME_PARTS_MAX {
            let mut parts: [&[u8]; limits::FRAME_PARTS_MAX] = [&[]; limits::FRAME_PARTS_MAX];
            parts[0] = &prefix;
            parts[1..].iter_mut().zip(&message).for_each(|(part, bytes)| *part = bytes);
            let (head, trailers, after) = self.encoder.short();
            if self.connection.send_short(stream, &head, &parts[..=message.len()], &trailers) {
                self.encoder = after;
                return;
            }
        }
        let mut chunks = vec![Bytes::copy_from_slice(&prefix)];
        chunks.extend(message);
        let head = self.encoder.head();
        self.connection.send_head(stream, &head, false);
        self.connection.send_data(stream, &chunks);
        self.connection.send_end(stream, Some(&reply::trailers(&Ok(()))));
        self.count_backlog();
        self.finish(stream);
    }

    /// Ends a call that has not replied yet with an error.
    fn refuse(&mut self, stream: u32, status: &Status) {
        if status.code() == Code::Unauthenticated {
            self.batch.strange();
        }
        self.finish(stream);
        let block = self.encoder.refusal(status);
        self.connection.send_head(stream, &block, true);
    }

    fn run_woken(&mut self) {
        let mut slots = std::mem::take(&mut self.shared.spare_buffers.borrow_mut().woken_slots);
        self.ready.take(&mut slots);
        if !slots.is_empty() {
            self.connection.out().give_buffer(|| self.shared.spare_buffers.borrow_mut().take_send_buffer());
        }
        for slot in slots.drain(..) {
            // Calls that find no time are the first of the next turn. They do not wake the task,
            // which would be ready at once (see `give_way`).
            if self.is_late() {
                self.ready.put_back(slot);
                continue;
            }
            self.run(slot);
            self.calls.reap();
        }
        self.shared.spare_buffers.borrow_mut().woken_slots = slots;
    }

    /// Polls a call.
    fn run(&mut self, slot: usize) {
        let waker = self.ready.waker(slot);
        let mut context = Context::from_waker(&waker);
        let Some(Call { stream, kind, .. }) = self.calls.get(slot) else { return };
        let stream = *stream;
        match kind {
            CallKind::Plain(call) => {
                if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
                    self.answer_plain(stream, answer);
                }
            }
            CallKind::Unary(call) => {
                if let Poll::Ready(result) = call.as_mut().poll(&mut context) {
                    self.reply(stream, result);
                }
            }
            CallKind::Streaming(streaming) => {
                let room = limits::STREAM_BYTES_MAX.saturating_sub(self.connection.queued(stream));
                let replies = streaming.poll(&mut context, room);
                let credit = streaming.requests.credit(0);
                let has_head = streaming.has_head;
                streaming.has_head |= !replies.chunks.is_empty();
                let result = if replies.is_over { streaming.result.take() } else { None };
                self.connection.credit(stream, credit);
                if !replies.chunks.is_empty() {
                    if !has_head {
                        let head = self.encoder.head();
                        self.connection.send_head(stream, &head, false);
                    }
                    self.connection.send_data(stream, &replies.chunks);
                    self.count_backlog();
                }
                if let Some(result) = result {
                    self.end(stream, &result);
                }
            }
        }
    }

    /// Ends a streaming call.
    fn end(&mut self, stream: u32, result: &Result<(), Status>) {
        let Some(StreamState::Running(running)) = self.connection.stream(stream) else { return };
        let slot = running.slot;
        let Some(Call { kind: CallKind::Streaming(streaming), .. }) = self.calls.get(slot) else { return };
        match result {
            Err(status) if !streaming.has_head => self.refuse(stream, status),
            _ => {
                if !streaming.has_head {
                    streaming.has_head = true;
                    let head = self.encoder.head();
                    self.connection.send_head(stream, &head, false);
                }
                self.connection.send_end(stream, Some(&reply::trailers(result)));
            }
        }
    }
}
