//! An attack, its target, and the replies to the attacker.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use revd_http2::PREFACE;
use revd_http2::raw::frame;

use super::newcomers::{Newcomers, newcomer};
use super::{priority, together};
use crate::caller::Caller;
use crate::clock;
use crate::wire::client::{addresses, host};

/// Until an attacker comes back.
const PAUSE: Duration = Duration::from_millis(5);
/// How long each read and write on a connection may take, but for reads of TLS.
const PATIENCE: Duration = Duration::from_millis(500);

/// Replies and errors of the attacker, and how often each came.
#[derive(Debug, Default)]
pub struct AttackerTold(Mutex<BTreeMap<String, u64>>);

impl AttackerTold {
    /// Counts a reply or an error.
    pub fn told(&self, what: &str) {
        self.told_times(what, 1);
    }

    /// The same, several times.
    pub fn told_times(&self, what: &str, times: u64) {
        if times == 0 {
            return;
        }
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Messages with numbers in them would fill the table with one line each.
        let short: String = what.chars().take(100).collect();
        if tally.len() < 50 || tally.contains_key(&short) {
            *tally.entry(short).or_insert(0) += times;
        }
    }

    /// How the calls of a connection ended.
    pub fn ends<'e>(&self, ends: impl IntoIterator<Item = &'e Result<(), String>>) {
        ends.into_iter().for_each(|end| self.told(end.as_ref().map_or_else(String::as_str, |()| "ok")));
    }

    /// All of it, most frequent first.
    #[must_use]
    pub fn all(&self) -> Vec<(String, u64)> {
        let tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = tally.iter().map(|(what, times)| (what.clone(), *times)).collect();
        all.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        all
    }
}

/// The server under attack.
#[derive(Debug)]
pub struct AttackTarget {
    /// With `http://`, or `https://` for attacks that have TLS.
    pub endpoint: String,
    pub tally: AttackerTold,
    /// Set when the attack must end.
    pub is_over: AtomicBool,
    /// The sizes of the issue, or a fraction that takes seconds.
    pub is_full: bool,
    newcomers: Newcomers,
}

impl AttackTarget {
    /// A server, at the sizes that take seconds. Newcomers have the priority of this thread.
    #[must_use]
    pub fn new(endpoint: &str) -> Self {
        let endpoint = endpoint.to_owned();
        let address = endpoint.clone();
        Self {
            endpoint,
            tally: AttackerTold::default(),
            is_over: AtomicBool::new(false),
            is_full: false,
            newcomers: Newcomers::start(move || newcomer(&address)),
        }
    }

    /// Whether the attacker should go.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// One size or the other.
    pub(super) const fn size(&self, short: usize, full: usize) -> usize {
        if self.is_full { full } else { short }
    }

    pub(super) fn address(&self) -> &str {
        host(&self.endpoint).unwrap_or(&self.endpoint)
    }

    /// A connection.
    pub(super) fn caller(&self) -> anyhow::Result<Caller> {
        Caller::connect(&self.endpoint)
    }

    /// A connection on which nothing was said yet.
    pub(super) fn silent(&self) -> anyhow::Result<TcpStream> {
        // The kernel asks again after a second where many connections are not accepted yet.
        let stream = TcpStream::connect_timeout(&addresses(&self.endpoint)?[0], together::PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(together::PATIENCE))?;
        Ok(stream)
    }

    /// Tells how a caller that comes now is served.
    pub(super) fn newcomer(&self) {
        self.tally.told(&self.newcomers.come());
    }

    /// A connection after the preface, for bytes that are no calls.
    pub(super) fn raw(&self) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat())?;
        Ok(stream)
    }

    /// Rests until it is over, at most so long.
    pub(super) fn linger(&self, time: Duration) {
        let until = clock::nanos() + clock::in_nanos(time);
        while !self.is_over() && clock::nanos() < until {
            clock::rest(Duration::from_millis(10));
        }
    }
}

/// One kind of attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    /// The finding it shows, as in docs/PERFORMANCE.md; 0: those that were there before.
    pub finding: u8,
    /// Fills the store.
    pub before: fn(&AttackTarget) -> anyhow::Result<()>,
    /// Once. An error is that of the connection when the server ended it.
    pub strike: fn(&AttackTarget) -> anyhow::Result<()>,
    /// A reply that must have come at least once; empty: none in particular.
    pub right: &'static str,
    /// A reply that must never have come.
    pub wrong: &'static str,
    /// Descriptors that the server may have; none: as many as there are.
    pub descriptors: Option<u32>,
    /// The server has users, of whom honest callers are one.
    pub has_users: bool,
    /// The server has a certificate, and honest callers call over TLS.
    pub has_tls: bool,
    /// It asks callers for certificates, and honest ones show theirs.
    pub asks_callers: bool,
}

impl Attack {
    pub(super) const fn new(
        name: &'static str,
        finding: u8,
        strike: fn(&AttackTarget) -> anyhow::Result<()>,
    ) -> Self {
        Self {
            name,
            finding,
            before: |_| Ok(()),
            strike,
            right: "",
            wrong: "",
            descriptors: None,
            has_users: false,
            has_tls: false,
            asks_callers: false,
        }
    }

    pub(super) const fn after(mut self, before: fn(&AttackTarget) -> anyhow::Result<()>) -> Self {
        self.before = before;
        self
    }

    pub(super) const fn told(mut self, right: &'static str) -> Self {
        self.right = right;
        self
    }

    pub(super) const fn with_users(mut self) -> Self {
        self.has_users = true;
        self
    }

    pub(super) const fn over_tls(mut self) -> Self {
        self.has_tls = true;
        self
    }

    pub(super) const fn asked_for_certificates(mut self) -> Self {
        self.asks_callers = true;
        self.over_tls()
    }

    pub(super) const fn never(mut self, wrong: &'static str) -> Self {
        self.wrong = wrong;
        self
    }

    /// Strikes until it is over, and counts how often.
    pub fn go_on(&self, target: &AttackTarget, times: &AtomicU64) {
        priority::give_way_to_all();
        while !target.is_over() {
            if let Err(error) = (self.strike)(target) {
                target.tally.told(&format!("{error:#}"));
            }
            times.fetch_add(1, Ordering::Relaxed);
            clock::rest(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_what_was_told_most_frequent_first() {
        let tally = AttackerTold::default();
        tally.ends(&[Ok(()), Err("no".to_owned()), Ok(())]);
        assert_eq!(tally.all(), [("ok".to_owned(), 2), ("no".to_owned(), 1)]);
    }
}
