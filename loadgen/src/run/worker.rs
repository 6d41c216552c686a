//! One thread of a run: its connections, its clock, its callers. A turn sends due calls, reads
//! replies, and waits for the next of either.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::epoll::{Event, EventData, EventFlags};

use crate::arrivals::Arrivals;
use crate::clock;
use crate::clock::SECOND;
use crate::login;
use crate::plan::{OpKind, Plan};
use crate::run::callers::{CallerState, Callers, WATCH};
use crate::run::connections::Connections;
use crate::run::looks::Looks;
use crate::run::patience::Patience;
use crate::run::shared::RunShared;
use crate::run::watchers::{create, create_for_leases};
use crate::run::worker_report::WorkerReport;
use crate::scenario::{NextCall, OpSource};
use crate::wire::RpcMethod;

/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;
/// The connection, one of callers, that the watcher of the thread's leases is on.
const LEASE_LINK: usize = 0;
/// A turn waits no longer, so that decisions of other threads are seen.
const TURN_MAX: u64 = 50_000_000;

/// A thread.
pub(super) struct Worker {
    plan: Plan,
    thread: usize,
    shared: Arc<RunShared>,
    connections: Connections,
    callers: Callers,
    arrivals: Option<Arrivals>,
    /// Calls this thread may still begin.
    left: u64,
    /// Arrivals had to wait for a caller in the last turn.
    was_full: bool,
    body: Vec<u8>,
    swept: u64,
    reported: (u64, u64, u64),
    start_revision: i64,
    /// CPU time and time at the end of the warm-up.
    meter: (u64, u64),
    is_metered: bool,
    /// When calls that were due were begun last.
    issued: u64,
    looks: Looks,
}

/// This thread's share of something.
fn share(all: u64, thread: usize, threads: usize) -> u64 {
    all / threads as u64 + u64::from((thread as u64) < all % threads as u64)
}

fn share_of(all: usize, thread: usize, threads: usize) -> usize {
    usize::try_from(share(all as u64, thread, threads)).unwrap_or(0)
}

impl Worker {
    /// Connects.
    ///
    /// # Errors
    /// When an endpoint cannot be reached.
    pub(super) fn new(
        plan: &Plan,
        thread: usize,
        shared: &Arc<RunShared>,
        start_revision: i64,
    ) -> anyhow::Result<Self> {
        let source = OpSource::new(plan, thread);
        let mut worker = Self {
            connections: Connections::new()?,
            callers: Callers::new(plan, source, crate::plan::WATCH_NAME),
            arrivals: None,
            left: plan.total.map_or(u64::MAX, |total| share(total, thread, plan.threads)),
            was_full: false,
            body: Vec::new(),
            swept: 0,
            reported: (0, 0, 0),
            plan: plan.clone(),
            thread,
            shared: Arc::clone(shared),
            start_revision,
            meter: (0, 0),
            is_metered: false,
            issued: 0,
            looks: Looks::new(plan.turn_every),
        };
        let clients = share_of(plan.clients, thread, plan.threads).max(1);
        let shared_conns = share_of(plan.conns.max(plan.threads), thread, plan.threads);
        let conns = if plan.connects() { clients } else { shared_conns };
        for number in 0..conns {
            worker.connections.add(plan, number * plan.threads + thread, false)?;
        }
        if !plan.ops.is_empty() {
            for number in 0..clients {
                worker.callers.callers.push(CallerState::new(number % conns));
                let caller = u32::try_from(number).context("too many callers")?;
                worker.callers.idle.rest(caller, number % conns);
            }
        }
        Ok(worker)
    }

    /// Everything from opening watchers to the last answer.
    pub(super) fn run(mut self) -> anyhow::Result<WorkerReport> {
        // The system may wake a thread 50 us late otherwise, to save power.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let catches_up = self.plan.catches_up();
        if !catches_up {
            self.open_watchers()?;
            while !self.callers.watchers.are_ready() && !self.is_stopped() {
                self.turn(TURN_MAX)?;
            }
        }
        self.shared.ready.fetch_add(1, Relaxed);
        while self.shared.start.load(Relaxed) == 0 && !self.is_stopped() {
            self.turn(1_000_000)?;
        }
        let start = self.shared.start.load(Relaxed);
        while clock::nanos() < start && !self.is_stopped() {
            self.turn(start.saturating_sub(clock::nanos()).min(TURN_MAX))?;
        }
        let warmup = clock::from_seconds(self.plan.warmup);
        let length = warmup + clock::from_seconds(self.plan.duration);
        let until = if self.plan.total.is_some() { u64::MAX } else { start.saturating_add(length) };
        self.callers.counts_from = start.saturating_add(warmup);
        self.callers.counts_until = until;
        if let Some(rate) = self.plan.rate {
            let rate = rate / self.plan.threads as f64;
            let offset = self.thread as f64 / self.plan.threads as f64;
            let seed = self.plan.seed ^ (self.thread as u64) << 32;
            self.arrivals = Some(Arrivals::new(self.plan.arrivals, rate, start, length, offset, seed));
        }
        if catches_up {
            self.open_watchers()?;
        }
        self.meter = (clock::thread_cpu(), clock::nanos());
        self.traffic(until)?;
        let (cpu, time) = (clock::thread_cpu() - self.meter.0, clock::nanos() - self.meter.1);
        self.drain()?;
        Ok(self.report(cpu, cpu as f64 / time.max(1) as f64))
    }

    fn is_stopped(&self) -> bool {
        self.shared.is_stopped() || self.callers.watchers.broken.is_some()
    }

    fn open_watchers(&mut self) -> anyhow::Result<()> {
        let (thread, threads) = (self.thread, self.plan.threads);
        let now = clock::nanos();
        if let Some(watch) = self.plan.watch.clone() {
            let first = self.connections.links.len();
            let conns = share_of(watch.conns, thread, threads);
            let streams = share_of(watch.streams, thread, threads);
            for number in 0..conns.max(usize::from(streams > 0)) {
                self.connections.add(&self.plan, number * threads + thread, true)?;
            }
            let conns = self.connections.links.len() - first;
            for number in 0..streams {
                let global = number * threads + thread;
                let requests = (global..watch.watchers)
                    .step_by(watch.streams)
                    .map(|watcher| create(&self.plan, &watch, watcher, self.start_revision));
                let token = WATCH | u32::try_from(number).context("too many streams")?;
                let link = &mut self.connections.links[first + number % conns];
                let client = link.client.as_mut().context("the connection is lost")?;
                self.callers.watchers.open(client, token, now, requests)?;
                link.is_dirty = true;
            }
        }
        if self.watches_leases() {
            let request = create_for_leases(&self.plan, thread);
            let token = WATCH | u32::try_from(self.callers.watchers.streams()).context("too many streams")?;
            let link = &mut self.connections.links[LEASE_LINK];
            let client = link.client.as_mut().context("the connection is lost")?;
            self.callers.watchers.open(client, token, now, std::iter::once(request))?;
            link.is_dirty = true;
        }
        Ok(())
    }

    fn watches_leases(&self) -> bool {
        self.plan.ops.iter().any(|op| matches!(op.kind, OpKind::LeaseExpiry { .. }))
    }

    fn traffic(&mut self, until: u64) -> anyhow::Result<()> {
        loop {
            let now = clock::nanos();
            self.callers.now = now;
            if now >= self.callers.counts_from && !self.is_metered {
                self.is_metered = true;
                self.meter = (clock::thread_cpu(), now);
            }
            let is_over = now >= until || (self.left == 0 && self.callers.busy == 0);
            let has_caught_up =
                self.plan.ops.is_empty() && self.plan.catches_up() && self.callers.watchers.behind() == 0;
            if is_over || has_caught_up || self.is_stopped() {
                if self.arrivals.is_some() && !self.is_stopped() {
                    self.issue(now, until); // calls that became due since the last look
                }
                return Ok(());
            }
            self.issue(now, until);
            let next = match &self.arrivals {
                Some(arrivals) if !self.was_full && self.left > 0 => {
                    arrivals.next().saturating_sub(clock::nanos())
                }
                _ => TURN_MAX,
            };
            self.turn(next.min(TURN_MAX).min(until.saturating_sub(now)))?;
        }
    }

    /// Begins due calls.
    fn issue(&mut self, now: u64, until: u64) {
        self.issued = now;
        let Some(arrivals) = &mut self.arrivals else {
            // Closed loop: an idle caller calls again.
            let most = usize::try_from(self.left).unwrap_or(usize::MAX);
            let links = &self.connections.links;
            for caller in self.callers.idle.take_all(most, |client| links[client].can_call()) {
                self.begin(caller, now, now);
            }
            return;
        };
        let mut next = arrivals.next();
        let was_full = std::mem::take(&mut self.was_full);
        while next <= now && next < until && self.left > 0 {
            let Some(caller) = self.take_idle() else {
                self.was_full = true;
                return;
            };
            if !was_full {
                self.callers.late += now.saturating_sub(next).max(1);
            }
            self.begin(caller, next, now);
            let Some(arrivals) = &mut self.arrivals else { return };
            arrivals.advance();
            next = arrivals.next();
        }
    }

    fn take_idle(&mut self) -> Option<u32> {
        let links = &self.connections.links;
        self.callers.idle.take(|client| links[client].can_call())
    }

    fn begin(&mut self, caller: u32, intended: u64, now: u64) {
        self.left -= 1;
        self.callers.busy += 1;
        let op = self.callers.source.choose();
        self.callers.callers[caller as usize].begins(op, intended, now);
        self.ask(caller, now);
    }

    /// Makes the next call of a caller's operation.
    fn ask(&mut self, caller: u32, now: u64) {
        let state = &mut self.callers.callers[caller as usize];
        state.asked = now;
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        let ask = NextCall { caller, intended: state.intended, now, body: &mut body };
        let method = self.callers.source.op(state.op).request(ask);
        if !self.send(caller, method, &body, now) {
            self.callers.blocked.push((caller, method, body.clone()));
        }
        self.body = body;
    }

    /// Sends a call; false when the connection has no stream for it.
    fn send(&mut self, caller: u32, method: RpcMethod, body: &[u8], now: u64) -> bool {
        let state = &mut self.callers.callers[caller as usize];
        let number = state.client;
        let Connections { epoll, links } = &mut self.connections;
        let link = &mut links[number];
        if let Some(address) = link.anew
            && let Err(error) = link.connect_anew(epoll, number, address)
        {
            self.callers.fail(caller as usize, &format!("{error:#}"));
            return true;
        }
        let Some(client) = &mut link.client else {
            self.callers.fail(caller as usize, "the connection is lost");
            return true;
        };
        let stream = if !method.is_held() {
            client.call(method, caller, body)
        } else if state.held != 0 {
            client.send_message(state.held, body);
            Some(state.held)
        } else {
            let opened = client.open(method, caller);
            opened.inspect(|stream| client.send_message(*stream, body))
        };
        let Some(stream) = stream else { return false };
        link.is_dirty = true;
        let op = state.op;
        let least = self.callers.least(op);
        self.callers.callers[caller as usize].asks(method, stream, now, least);
        true
    }

    /// In an open loop, waits until the thread may look again; the patience that is left then. The
    /// rest of a request goes out as soon as the server takes it: it has waited for its look.
    fn wait_for_look(&self, patience: u64) -> u64 {
        if self.arrivals.is_none() {
            return patience;
        }
        let time = self.looks.until_next(clock::nanos());
        if time == 0 || self.connections.have_unsent() {
            return patience;
        }
        clock::rest(Duration::from_nanos(time));
        patience.saturating_sub(time)
    }

    /// Sends, waits for at most `patience` nanoseconds, reads.
    fn turn(&mut self, patience: u64) -> anyhow::Result<()> {
        self.flush();
        let patience = self.wait_for_look(patience);
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 256];
        let ready = self.connections.wait(patience, &mut events)?;
        self.callers.now = clock::nanos();
        let (looked, mut has_unread) = (self.callers.now, ready == events.len());
        for event in &events[..ready] {
            let (flags, data) = (event.flags, event.data);
            let link = usize::try_from(data.u64()).unwrap_or(usize::MAX);
            if flags.contains(EventFlags::OUT) {
                self.connections.links[link].is_dirty = true;
            }
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                has_unread |= self.read(link);
            }
        }
        self.looks.note(looked, has_unread);
        let now = self.callers.now;
        while !self.callers.again.is_empty() {
            for caller in std::mem::take(&mut self.callers.again) {
                self.ask(caller, now);
            }
        }
        if !self.callers.refused.is_empty() {
            self.renew_tokens(now);
        }
        for (caller, method, body) in std::mem::take(&mut self.callers.blocked) {
            if !self.send(caller, method, &body, now) {
                self.callers.blocked.push((caller, method, body));
            }
        }
        if now >= self.swept + SECOND / 10 {
            self.swept = now;
            self.sweep(now);
        }
        Ok(())
    }

    /// Calls whose token was refused have done nothing: they are made again, with a new one. Others
    /// wait for the login meanwhile, as callers behind one client do. Many are refused for one
    /// token: the first of them logs in.
    fn renew_tokens(&mut self, now: u64) {
        for caller in std::mem::take(&mut self.callers.refused) {
            let CallerState { client, refused_on, .. } = self.callers.callers[caller as usize];
            let link = &mut self.connections.links[client];
            let client = link.client.as_mut().filter(|client| !client.has_former_token(refused_on));
            let renewed = client.map_or(Ok(()), |client| login::renew(client, &link.endpoint));
            match renewed {
                Ok(()) => self.ask(caller, now),
                Err(error) => self.callers.fail(caller as usize, &format!("{error:#}")),
            }
        }
    }

    /// Reads a connection once; whether there may be more.
    fn read(&mut self, number: usize) -> bool {
        thread_local! {
            static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BYTES]);
        }
        let Connections { epoll, links } = &mut self.connections;
        let link = &mut links[number];
        let Some(client) = &mut link.client else { return false };
        self.callers.client = number;
        let result = BUFFER.with_borrow_mut(|buffer| client.read(buffer, &mut self.callers));
        link.is_dirty = true; // credit for what was read
        let has_more = match result {
            Ok(has_more) => has_more,
            Err(error) => {
                self.lose(number, &error);
                return false;
            }
        };
        // It was made for one operation, which is over.
        if link.anew.is_some() && !self.callers.callers[number].is_busy {
            link.close(epoll);
            return false;
        }
        let slow = self.plan.watch.as_ref().map_or(0, |watch| watch.slow);
        if slow > 0 && link.is_watch {
            link.rests_until = self.callers.now + slow * 1_000_000;
            link.listen(epoll, number);
            return false;
        }
        has_more
    }

    fn flush(&mut self) {
        for (number, error) in self.connections.flush() {
            self.lose(number, &error);
        }
    }

    /// A connection is gone: everything on it fails, and is not tried again.
    fn lose(&mut self, number: usize, error: &io::Error) {
        if self.connections.lose(number, self.callers.now) {
            let what = format!("connection lost: {error}");
            if self.connections.links[number].is_watch || (number == LEASE_LINK && self.watches_leases()) {
                self.callers.watchers.broken.get_or_insert(format!("watchers: {what}"));
            }
            self.callers.lose(number, &what);
        }
    }

    /// Now and then: calls that take too long, connections that are lost, slow watchers, news for
    /// the progress line.
    fn sweep(&mut self, now: u64) {
        let links = &mut self.connections.links;
        self.callers.time_out(now, clock::from_seconds(self.plan.timeout), |client, stream| {
            if let Some(client) = &mut links[client].client {
                client.cancel(stream);
            }
        });
        if let Err(error) = self.connections.sweep(now) {
            self.shared.stop(&format!("{error:#}"));
        }
        let counts = (self.callers.done, self.callers.failed, self.callers.watchers.delivered);
        self.shared.done.fetch_add(counts.0 - self.reported.0, Relaxed);
        self.shared.failed.fetch_add(counts.1 - self.reported.1, Relaxed);
        self.shared.events.fetch_add(counts.2 - self.reported.2, Relaxed);
        self.reported = counts;
        self.shared.newest.fetch_max(self.callers.newest, Relaxed);
    }

    /// Waits for replies on their way.
    fn drain(&mut self) -> anyhow::Result<()> {
        let longest = self.plan.ops.iter().map(|op| match op.kind {
            OpKind::LeaseExpiry { ttl } => u64::try_from(ttl).unwrap_or(0) * SECOND,
            _ => 0,
        });
        let longest = longest.max().unwrap_or(0);
        let mut patience = Patience::new(clock::nanos(), self.callers.watchers.delivered, longest);
        let mut is_confirmed = false;
        while !patience.is_over(clock::nanos()) && !self.is_stopped() {
            // Watchers of other threads wait for the events of what these callers have written.
            if self.callers.busy == 0 && !std::mem::replace(&mut is_confirmed, true) {
                self.shared.confirm(self.callers.expected);
            }
            let waits = self.callers.busy > 0
                || self.callers.source.waiting() > 0
                || self.callers.watchers.behind() > 0
                || (self.plan.watch.is_some() && !self.shared.is_all_delivered());
            if !waits {
                break;
            }
            self.turn(TURN_MAX / 10)?;
            self.callers.now = clock::nanos();
            self.sweep(self.callers.now);
            // Each of the others confirms by its own patience at the latest: this has an end.
            let waits_for_others =
                self.plan.watch.is_some() && is_confirmed && !self.shared.are_all_confirmed();
            patience.note(clock::nanos(), self.callers.watchers.delivered, waits_for_others);
        }
        if !is_confirmed {
            self.shared.confirm(self.callers.expected);
        }
        self.sweep(clock::nanos());
        Ok(())
    }

    fn report(mut self, cpu: u64, busy: f64) -> WorkerReport {
        if let Some(broken) = self.callers.watchers.broken.take() {
            self.shared.stop(&broken);
        }
        // A run that was stopped did not come to those that became due later.
        let end = self.callers.counts_until.min(self.issued + 1);
        let mut unsent = 0;
        while let Some(arrivals) =
            self.arrivals.as_mut().filter(|arrivals| self.left > 0 && arrivals.next() < end)
        {
            arrivals.advance();
            self.left -= 1;
            unsent += 1;
        }
        WorkerReport::of(self.callers, cpu, busy, unsent)
    }
}
