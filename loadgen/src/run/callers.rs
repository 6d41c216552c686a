//! Callers of one thread, and what answers do to them. No socket is touched here.

use crate::clock;
use crate::login;
use crate::plan::Plan;
use crate::record::{OpRecord, histogram};
use crate::run::idle::IdleCallers;
use crate::run::watchers::RunWatchers;
use crate::scenario::{OpSource, ReplyVerdict};
use crate::wire::fields;
use crate::wire::head::CallFailure;
use crate::wire::{ReplySink, RpcMethod};
use hdrhistogram::Histogram;

/// Tokens of watch streams have this bit.
pub(super) const WATCH: u32 = 1 << 31;

/// A caller, which waits for its answer.
#[derive(Debug, Default)]
pub(super) struct CallerState {
    pub(super) client: usize,
    pub(super) op: usize,
    pub(super) is_busy: bool,
    /// When its operation was meant to begin, and when it did.
    pub(super) intended: u64,
    pub(super) begun: u64,
    /// When the call under way was sent, or was to be, while its connection has no stream for it.
    pub(super) asked: u64,
    /// The stream of the call under way; 0 for none.
    pub(super) stream: u32,
    /// A stream that it keeps.
    pub(super) held: u32,
    is_on_held: bool,
    /// The meaning of the messages so far.
    verdict: Option<ReplyVerdict>,
    /// The stream of the call whose token was refused, and how often in a row that was so.
    pub(super) refused_on: u32,
    refusals: u32,
    /// The newest revision it has seen, and the least that its answer must show.
    revision: i64,
    least: i64,
}

impl CallerState {
    /// On this connection, and with nothing to do.
    pub(super) fn new(client: usize) -> Self {
        Self { client, ..Self::default() }
    }

    /// It begins an operation.
    pub(super) fn begins(&mut self, op: usize, intended: u64, now: u64) {
        (self.op, self.is_busy, self.intended) = (op, true, intended);
        (self.begun, self.asked) = (now, now);
    }

    /// It has made a call, when `newest` was confirmed to any caller.
    pub(super) fn asks(&mut self, method: RpcMethod, stream: u32, now: u64, newest: i64) {
        self.is_on_held = method.is_held();
        if self.is_on_held {
            self.held = stream
        } else {
            self.stream = stream
        }
        self.asked = now;
        self.verdict = None;
        self.least = newest;
    }
}

/// Everything of a thread but its sockets.
pub(super) struct Callers {
    pub(super) callers: Vec<CallerState>,
    /// Those who have nothing to do.
    pub(super) idle: IdleCallers,
    /// Those whose operation needs another call.
    pub(super) again: Vec<u32>,
    /// Those whose call was refused for its token.
    pub(super) refused: Vec<u32>,
    /// Calls that their connection had no stream for.
    pub(super) blocked: Vec<(u32, RpcMethod, Vec<u8>)>,
    pub(super) busy: usize,
    pub(super) source: OpSource,
    pub(super) watchers: RunWatchers,
    /// One for each operation, and the last for watchers.
    pub(super) records: Vec<OpRecord>,
    /// How late calls were sent that could have been sent in time.
    pub(super) late: Histogram<u64>,
    /// Calls whose intended start is from here on and before there are measured.
    pub(super) counts_from: u64,
    pub(super) counts_until: u64,
    /// Events that watchers should get for what was confirmed.
    pub(super) expected: u64,
    /// Calls whose outcome is not known, and may have changed something.
    pub(super) unknown: u64,
    pub(super) violations: Vec<String>,
    /// By operation: whether it sees everything that was confirmed before.
    are_linearizable: Vec<bool>,
    /// The newest revision that was confirmed to any caller of the thread.
    pub(super) newest: i64,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) last_error: String,
    endpoints: Vec<String>,
    /// When this turn began, or bytes were read last: replies have no earlier time, since they may
    /// have come while others were read, or while the thread waited for its CPU.
    pub(super) now: u64,
    /// The connection whose turn it is.
    pub(super) client: usize,
}

/// A caller gives up when its token is refused once more than this, each time a new one.
const REFUSALS_MAX: u32 = 3;

/// Violations that are kept.
const VIOLATIONS_MAX: usize = 10;

impl Callers {
    pub(super) fn new(plan: &Plan, source: OpSource, watch_name: &str) -> Self {
        let names = plan.ops.iter().map(|op| op.name()).chain([watch_name]);
        Self {
            callers: Vec::new(),
            idle: IdleCallers::default(),
            again: Vec::new(),
            refused: Vec::new(),
            blocked: Vec::new(),
            busy: 0,
            source,
            watchers: RunWatchers::new(plan),
            records: names.map(OpRecord::new).collect(),
            late: histogram(),
            counts_from: u64::MAX,
            counts_until: u64::MAX,
            expected: 0,
            unknown: 0,
            violations: Vec::new(),
            are_linearizable: plan.ops.iter().map(|op| op.kind.is_linearizable()).collect(),
            newest: 0,
            done: 0,
            failed: 0,
            last_error: String::new(),
            endpoints: plan.endpoints.clone(),
            now: 0,
            client: 0,
        }
    }

    fn counts(&self, intended: u64) -> bool {
        (self.counts_from..self.counts_until).contains(&intended)
    }

    fn measured(&mut self, caller: usize) {
        let CallerState { op, intended, begun, .. } = self.callers[caller];
        self.done += 1;
        if self.counts(intended) {
            let (latency, service) = (self.now.saturating_sub(intended), self.now.saturating_sub(begun));
            self.records[op].add(latency, service, self.now.saturating_sub(self.counts_from));
        }
    }

    /// The operation of the caller has failed.
    pub(super) fn fail(&mut self, caller: usize, what: &str) {
        let CallerState { op, intended, .. } = self.callers[caller];
        if !self.callers[caller].is_busy {
            return;
        }
        self.failed += 1;
        self.unknown += 1;
        what.clone_into(&mut self.last_error);
        self.source.op(op).failed(u32::try_from(caller).unwrap_or(u32::MAX));
        if self.counts(intended) {
            self.records[op].fail(what, self.now.saturating_sub(self.counts_from));
        }
        self.rest(caller);
    }

    fn rest(&mut self, caller: usize) {
        self.callers[caller].is_busy = false;
        self.callers[caller].stream = 0;
        self.busy -= 1;
        let client = self.callers[caller].client;
        self.idle.rest(u32::try_from(caller).unwrap_or(u32::MAX), client);
    }

    /// A connection is gone: every call on it fails.
    pub(super) fn lose(&mut self, client: usize, what: &str) {
        for caller in 0..self.callers.len() {
            if self.callers[caller].client == client {
                self.callers[caller].held = 0;
                self.fail(caller, what);
            }
        }
        let callers = &self.callers;
        self.blocked.retain(|(caller, ..)| callers[*caller as usize].client != client);
        for waiting in [&mut self.again, &mut self.refused] {
            waiting.retain(|caller| callers[*caller as usize].client != client);
        }
    }

    /// Calls that have waited for longer than `timeout` fail; `cancel` is told of their connections
    /// and streams.
    pub(super) fn time_out(&mut self, now: u64, timeout: u64, mut cancel: impl FnMut(usize, u32)) {
        for caller in 0..self.callers.len() {
            let CallerState { is_busy, asked, client, stream, held, .. } = self.callers[caller];
            if is_busy && asked.saturating_add(timeout) < now {
                cancel(client, if stream != 0 { stream } else { held });
                self.callers[caller].held = 0;
                self.fail(caller, "no answer in time");
                self.blocked.retain(|(blocked, ..)| *blocked as usize != caller);
            }
        }
    }

    /// Whether the call on a stream failed for its token alone, and another token may help.
    fn may_renew(&mut self, caller: usize, stream: u32, what: &str) -> bool {
        let caller = &mut self.callers[caller];
        if !caller.is_busy || !self.endpoints.iter().any(|endpoint| login::is_refused(endpoint, what)) {
            return false;
        }
        (caller.stream, caller.refused_on) = (0, stream);
        caller.refusals += 1;
        caller.refusals <= REFUSALS_MAX
    }

    /// A call was answered.
    fn answered(&mut self, caller: usize, verdict: ReplyVerdict) {
        let op = self.callers[caller].op;
        (self.callers[caller].stream, self.callers[caller].refusals) = (0, 0);
        self.expected += self.source.op(op).confirmed();
        let token = u32::try_from(caller).unwrap_or(u32::MAX);
        match verdict {
            ReplyVerdict::Done => {
                self.measured(caller);
                self.rest(caller);
            }
            ReplyVerdict::DoneMore => {
                self.measured(caller);
                self.again.push(token);
            }
            ReplyVerdict::Silent => self.rest(caller),
            ReplyVerdict::More => self.again.push(token),
            ReplyVerdict::Conflict => {
                if self.counts(self.callers[caller].intended) {
                    self.records[op].conflicts += 1;
                }
                self.again.push(token);
            }
            ReplyVerdict::Prepared => {
                (self.callers[caller].intended, self.callers[caller].begun) = (self.now, self.now);
                self.again.push(token);
            }
            ReplyVerdict::GaveUp(what) => self.fail(caller, what),
            ReplyVerdict::Failed(what) => {
                self.note(format!("{}: {what}", self.records[op].name));
                self.fail(caller, what);
            }
        }
    }

    /// Notes a violation.
    fn note(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }

    /// The revision that an answer to a question asked now must show at least.
    pub(super) fn least(&self, op: usize) -> i64 {
        if self.are_linearizable[op] { self.newest } else { 0 }
    }

    /// A caller never sees the revision go back, and a linearizable reply shows every write that
    /// was confirmed before the call.
    fn check_revision(&mut self, caller: usize, body: &[u8]) {
        let (revision, seen) = (fields::revision(body), self.callers[caller].revision);
        if revision < seen {
            self.note(format!("a reply of revision {revision} came behind one of {seen} to the same caller"));
        }
        let least = self.callers[caller].least;
        if revision < least {
            self.note(format!(
                "a linearizable reply shows revision {revision}, when {least} was confirmed before"
            ));
        }
        self.callers[caller].revision = revision.max(seen);
        self.newest = self.newest.max(revision);
    }
}

impl ReplySink for Callers {
    fn arrived(&mut self) {
        self.now = clock::nanos();
    }

    fn message(&mut self, token: u32, body: &[u8]) {
        if token & WATCH != 0 {
            let stream = (token & !WATCH) as usize;
            let Self { watchers, source, records, now, counts_from, .. } = self;
            let last = records.len() - 1;
            return watchers.message(stream, body, *now, source, |(op, delay)| {
                // By when the write was meant to begin.
                if now.saturating_sub(delay) >= *counts_from || op.is_some() {
                    let at = now.saturating_sub(*counts_from);
                    records[op.unwrap_or(last)].add(delay, delay, at);
                }
            });
        }
        let caller = token as usize;
        self.check_revision(caller, body);
        let op = self.callers[caller].op;
        self.source.op(op).replied_at(self.now);
        let verdict = self.source.op(op).reply(token, body);
        if self.callers[caller].is_on_held {
            self.answered(caller, verdict);
        } else {
            self.callers[caller].verdict = Some(verdict);
        }
    }

    fn end(&mut self, token: u32, outcome: Result<(), CallFailure>) {
        if token & WATCH != 0 {
            let why = outcome.err().map_or_else(|| "it ended".to_owned(), |failure| failure.0);
            self.watchers.broken.get_or_insert(format!("a watch stream is gone: {why}"));
            return;
        }
        let caller = token as usize;
        let state = &mut self.callers[caller];
        let stream = if state.is_on_held { std::mem::take(&mut state.held) } else { state.stream };
        match (outcome, self.callers[caller].verdict.take()) {
            (Ok(()), Some(verdict)) => self.answered(caller, verdict),
            (Ok(()), None) => self.fail(caller, "the call ended without a reply"),
            (Err(CallFailure(what)), _) if self.may_renew(caller, stream, &what) => self.refused.push(token),
            (Err(CallFailure(what)), _) => self.fail(caller, &what),
        }
    }

    fn reset(&mut self, stream: u32, code: u32) {
        let client = self.client;
        let of = |caller: &CallerState| {
            caller.client == client && (caller.stream == stream || caller.held == stream)
        };
        if let Some(caller) = self.callers.iter().position(of) {
            if self.callers[caller].held == stream {
                self.callers[caller].held = 0;
            }
            self.fail(caller, &format!("the server reset the stream (code {code})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OpKind, PlannedOp};

    const TIMEOUT: u64 = 30 * clock::SECOND;

    /// One caller of puts, who has rested so far.
    fn callers() -> Callers {
        let plan = Plan { ops: vec![PlannedOp::new(OpKind::Put { prev_kv: false })], ..Plan::default() };
        let mut callers = Callers::new(&plan, OpSource::new(&plan, 0), "watch");
        callers.callers.push(CallerState::new(0));
        callers
    }

    #[test]
    fn bytes_that_have_arrived_move_the_present_time_forward() {
        let mut callers = callers();
        let before = clock::nanos();
        callers.arrived();
        let first = callers.now;
        clock::rest(std::time::Duration::from_millis(1));
        callers.arrived();
        assert!(first >= before && callers.now >= first + 1_000_000, "{first} and {}", callers.now);
    }

    /// The connection has no stream for the call: it times out as one that was sent does, and not
    /// by the call before.
    #[test]
    fn a_call_that_waits_for_a_stream_has_its_whole_time() {
        let mut callers = callers();
        let now = 100 * clock::SECOND;
        callers.callers[0].begins(0, now, now);
        callers.busy = 1;
        callers.blocked.push((0, RpcMethod::Put, Vec::new()));
        callers.time_out(now + TIMEOUT, TIMEOUT, |_, _| panic!("it has its time until now"));
        assert_eq!((callers.busy, callers.failed, callers.blocked.len()), (1, 0, 1));
        callers.time_out(now + TIMEOUT + 1, TIMEOUT, |_, stream| assert_eq!(stream, 0));
        assert_eq!((callers.busy, callers.failed, callers.blocked.len()), (0, 1, 0));
    }
}
