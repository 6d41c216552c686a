//! Honest callers beside an attack: gets and puts by the clock, a watch of their puts, leases kept
//! alive in time.
//!
//! One thread, one connection for each of the three kinds. Latencies count from when a call was
//! meant to begin; after the last one all answers are waited for, so that a server that stands
//! still shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, RangeRequest, WatchResponse,
};

use super::machine::{MachineWatch, Span};
use super::priority;
use super::store::{GRANT, PUT, RANGE};
use crate::caller::Caller;
use crate::clock;
use crate::clock::SECOND;
use crate::login;
use crate::wire::RpcMethod;

/// Gets a second; every tenth call is a put instead.
const RATE: u64 = 1_000;
/// Leases, each on a stream of its own.
const LEASES: usize = 20;
/// Seconds of each lease, kept alive four times as often.
const TTL: i64 = 4;
/// After this long without an answer a call counts as lost.
const GIVE_UP: Duration = Duration::from_secs(60);
const KEY: &str = "honest";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// Their figures. Times are nanoseconds.
#[derive(Debug, Clone, Default)]
pub struct Noticed {
    /// Of gets and puts, sorted.
    pub gets: Vec<u64>,
    pub puts: Vec<u64>,
    /// Of gets, but for the time in which the machine stood still, sorted.
    pub calm_gets: Vec<u64>,
    /// Calls that failed, by error.
    pub errors: BTreeMap<String, u64>,
    /// Faults of the watch and of leases that must not happen.
    pub lost: Vec<String>,
}

impl Noticed {
    /// A quantile of sorted times, in nanoseconds; infinite without any.
    #[must_use]
    pub fn quantile(times: &[u64], share: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let at = (times.len() as f64 * share) as usize;
        times.get(at.min(times.len().saturating_sub(1))).map_or(f64::INFINITY, |time| *time as f64)
    }

    /// The slowest of sorted times, in nanoseconds; infinite without any.
    #[must_use]
    pub fn slowest(times: &[u64]) -> f64 {
        Self::quantile(times, 1.0)
    }

    fn fail(&mut self, what: &str) {
        *self.errors.entry(what.chars().take(100).collect()).or_insert(0) += 1;
    }
}

/// A call on its way.
struct Asked {
    due: u64,
    put: Option<i64>,
}

struct HonestCalls {
    caller: Caller,
    asked: BTreeMap<u32, Asked>,
    /// The number of the last put that was sent.
    number: i64,
    /// Put and acknowledged, and not yet seen by the watch.
    unseen: BTreeSet<i64>,
    /// Gets that were answered: when they were meant to begin, and when they ended.
    gets: Vec<Span>,
}

impl HonestCalls {
    fn begin(&mut self, due: u64, is_put: bool, noticed: &mut Noticed) {
        let begun = if is_put {
            self.number += 1;
            let value = self.number.to_string().into();
            let put = PutRequest { key: KEY.into(), value, ..PutRequest::default() };
            self.caller.begin(PUT, &put.encode_to_vec())
        } else {
            let get = RangeRequest { key: KEY.into(), ..RangeRequest::default() };
            self.caller.begin(RANGE, &get.encode_to_vec())
        };
        match begun {
            Some(token) => {
                self.asked.insert(token, Asked { due, put: is_put.then_some(self.number) });
            }
            None => noticed.fail("no stream is free: earlier calls are not answered"),
        }
    }

    fn turn(&mut self, endpoint: &str, wait: Duration, noticed: &mut Noticed) {
        let turned = self.caller.turn(wait);
        self.caller.heard.messages.clear();
        let now = clock::nanos();
        for (token, outcome) in std::mem::take(&mut self.caller.heard.ended) {
            let Some(asked) = self.asked.remove(&token) else { continue };
            let took = now.saturating_sub(asked.due);
            match (outcome, asked.put) {
                (Ok(()), Some(number)) => {
                    self.unseen.insert(number);
                    noticed.puts.push(took);
                }
                (Ok(()), None) => self.gets.push((asked.due, now.max(asked.due))),
                (Err(what), _) => noticed.fail(&what),
            }
        }
        if let Err(error) = turned {
            noticed.fail(&format!("connection: {error:#}"));
            std::mem::take(&mut self.asked)
                .into_values()
                .for_each(|_| noticed.fail("lost with its connection"));
            match Caller::connect(endpoint) {
                Ok(caller) => self.caller = caller,
                Err(_) => clock::rest(Duration::from_millis(50)),
            }
        }
    }
}

/// The watch of the puts.
struct HonestWatch {
    caller: Caller,
    /// Numbers of puts, and the revision of the last.
    seen: BTreeSet<i64>,
    revision: i64,
    is_lost: bool,
}

impl HonestWatch {
    fn begin(endpoint: &str) -> anyhow::Result<Self> {
        let mut caller = Caller::connect(endpoint)?;
        super::watches::watch(&mut caller, KEY, 0)?;
        anyhow::ensure!(caller.until(GIVE_UP, |heard| heard.count > 0)?, "the watch is not created");
        Ok(Self { caller, seen: BTreeSet::new(), revision: 0, is_lost: false })
    }

    fn turn(&mut self, wait: Duration, noticed: &mut Noticed) {
        if self.is_lost {
            return;
        }
        let turned = self.caller.turn(wait);
        for (_, body) in std::mem::take(&mut self.caller.heard.messages) {
            let Ok(response) = WatchResponse::decode(&body[..]) else { continue };
            for kv in response.events.into_iter().filter_map(|event| event.kv) {
                if kv.mod_revision <= self.revision {
                    noticed.lost.push(format!("watch: {} after {}", kv.mod_revision, self.revision));
                }
                self.revision = kv.mod_revision;
                self.seen
                    .extend(std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse::<i64>().ok()));
            }
            if response.canceled {
                noticed.lost.push(format!("watch: canceled {:?}", response.cancel_reason));
            }
        }
        let ended = self.caller.heard.ended.pop_first().map(|(_, end)| format!("{end:?}"));
        if let Some(why) = ended.or(turned.err().map(|error| format!("{error:#}"))) {
            noticed.lost.push(format!("watch: {why}"));
            self.is_lost = true;
        }
    }
}

/// Leases that must not end.
struct HonestLeases {
    caller: Caller,
    /// Id and stream of each.
    held: Vec<(i64, u32)>,
    due: u64,
    is_lost: bool,
}

impl HonestLeases {
    fn begin(endpoint: &str) -> anyhow::Result<Self> {
        let mut caller = Caller::connect(endpoint)?;
        let mut held = Vec::new();
        for _ in 0..LEASES {
            let granted: LeaseGrantResponse = caller.ask(GRANT, &LeaseGrantRequest { ttl: TTL, id: 0 })?;
            let (stream, _) = caller.open(KEEP_ALIVE).context("no more streams")?;
            held.push((granted.id, stream));
        }
        Ok(Self { caller, held, due: 0, is_lost: false })
    }

    fn turn(&mut self, wait: Duration, noticed: &mut Noticed) {
        if self.is_lost {
            return;
        }
        let now = clock::nanos();
        if now >= self.due {
            self.due = now + TTL.unsigned_abs() * SECOND / 4;
            for (id, stream) in &self.held {
                self.caller.client.send_message(*stream, &LeaseKeepAliveRequest { id: *id }.encode_to_vec());
            }
        }
        let turned = self.caller.turn(wait);
        for (_, body) in std::mem::take(&mut self.caller.heard.messages) {
            let reply = LeaseKeepAliveResponse::decode(&body[..]).unwrap_or_default();
            if reply.ttl <= 0 {
                noticed.lost.push("lease: gone, though kept alive in time".to_owned());
            }
        }
        for (_, end) in std::mem::take(&mut self.caller.heard.ended) {
            noticed.lost.push(format!("lease: the stream has ended: {end:?}"));
        }
        if let Err(error) = turned {
            noticed.lost.push(format!("lease: {error:#}"));
            self.is_lost = true;
        }
    }

    /// All of them must still be there.
    fn check(&self, endpoint: &str, noticed: &mut Noticed) {
        for (id, _) in &self.held {
            let request = LeaseTimeToLiveRequest { id: *id, keys: false }.encode_to_vec();
            let reply =
                login::ask(endpoint, RpcMethod::Other("/etcdserverpb.Lease/LeaseTimeToLive"), &request);
            match reply.map(|body| LeaseTimeToLiveResponse::decode(&body[..])) {
                Ok(Ok(reply)) if reply.ttl > 0 => {}
                Ok(reply) => noticed.lost.push(format!("lease: {:?} s left", reply.map(|reply| reply.ttl))),
                Err(error) => return noticed.lost.push(format!("lease: {error:#}")),
            }
        }
    }
}

/// Calls until it is over, on a thread of its own, and then waits for the last replies. Sets
/// `has_begun` at the start.
///
/// # Errors
/// When it cannot begin.
pub fn call(endpoint: &str, has_begun: &AtomicBool, is_over: &AtomicBool) -> anyhow::Result<Noticed> {
    let calling = || {
        let _ = rustix::thread::set_current_timer_slack(Some(std::num::NonZeroU64::MIN));
        priority::come_first();
        call_here(endpoint, has_begun, is_over)
    };
    let called = std::thread::scope(|threads| threads.spawn(calling).join());
    called.map_err(|_| anyhow::anyhow!("the honest callers have panicked"))?
}

fn call_here(endpoint: &str, has_begun: &AtomicBool, is_over: &AtomicBool) -> anyhow::Result<Noticed> {
    let mut noticed = Noticed::default();
    let caller = Caller::connect(endpoint)?;
    let mut calls =
        HonestCalls { caller, asked: BTreeMap::new(), number: 0, unseen: BTreeSet::new(), gets: Vec::new() };
    let (mut watching, mut leases) = (HonestWatch::begin(endpoint)?, HonestLeases::begin(endpoint)?);
    let watch = MachineWatch::start();
    has_begun.store(true, Ordering::Relaxed);
    let start = clock::nanos();
    let (mut sent, mut ended) = (0_u64, None);
    loop {
        let now = clock::nanos();
        if is_over.load(Ordering::Relaxed) && ended.is_none() {
            ended = Some(now);
        }
        let due = start + sent * SECOND / RATE;
        if ended.is_none() && now >= due {
            calls.begin(due, sent % 10 == 9, &mut noticed);
            sent += 1;
        }
        if let Some(ended) = ended {
            calls.unseen.retain(|number| !watching.seen.contains(number));
            let is_done = calls.asked.is_empty() && (watching.is_lost || calls.unseen.is_empty());
            if is_done || now > ended + clock::in_nanos(GIVE_UP) {
                break;
            }
        }
        let rest = (start + sent * SECOND / RATE).saturating_sub(clock::nanos());
        let rest = if ended.is_some() { Duration::from_millis(1) } else { Duration::from_nanos(rest) };
        calls.turn(endpoint, rest, &mut noticed);
        if sent % 4 == 0 || ended.is_some() {
            watching.turn(Duration::ZERO, &mut noticed);
            leases.turn(Duration::ZERO, &mut noticed);
        }
    }
    calls.asked.values().for_each(|_| noticed.fail("no answer"));
    if !watching.is_lost && !calls.unseen.is_empty() {
        noticed.lost.push(format!("watch: no events of {} puts", calls.unseen.len()));
    }
    leases.turn(Duration::from_millis(1), &mut noticed);
    leases.check(endpoint, &mut noticed);
    let stood = watch.end();
    let took = |(due, ended): &Span| ended - due;
    noticed.gets = calls.gets.iter().map(took).collect();
    noticed.calm_gets = calls.gets.iter().map(|get| stood.took(*get)).collect();
    noticed.gets.sort_unstable();
    noticed.calm_gets.sort_unstable();
    noticed.puts.sort_unstable();
    Ok(noticed)
}
