//! Failed logins: a client that guesses passwords has to wait, longer after each guess.
//!
//! Guesses are counted of a name by an address; some are free, then tries are refused for up to
//! half a minute. After very many guesses in that name from everywhere, or from that address in all
//! names, only the first one is free: a password that is right at once is never refused for what
//! others guess elsewhere, so no stranger keeps a user out. An address that has logged in under a
//! name before is not refused in it at all, or a neighbour behind the same address could keep the
//! user out; what its tries cost is shared fairly by the queue of passwords, which they wait in by
//! their standing.
//!
//! A try is judged when it comes, and again when a thread takes its password up: of many that come
//! at once, those behind the free ones are refused once the free ones have failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use revd_member::error::Error;

use crate::api::auth::known::Known;
use crate::api::call::{Address, Source};
use crate::clock::Ticker;
use crate::limits;

/// Node view: guesses, and where users have logged in.
#[derive(Debug)]
pub(super) struct Logins {
    counted: Mutex<Counted>,
    clock: Ticker,
}

/// A name that is logged in under, and the address where that is tried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    name: String,
    address: Address,
}

impl Origin {
    pub(super) fn new(name: &str, address: Address) -> Self {
        let name = name[..name.floor_char_boundary(limits::LOGIN_NAME_BYTES_MAX)].to_owned();
        Self { name, address }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// How likely a login is its user's own, by where the same password was right before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// In this name on this connection.
    Connection,
    /// In this name from this address.
    Address,
    /// Neither.
    New,
}

#[derive(Debug)]
struct Counted {
    by_origin: Table<Origin>,
    by_name: Table<String>,
    by_address: Table<Address>,
    addresses: Known<Address>,
    connections: Known<u64>,
}

/// Counts by what they are of; beyond its bound the one that was not touched for longest goes.
#[derive(Debug)]
struct Table<K> {
    counts: BTreeMap<K, Guesses>,
    oldest: BTreeSet<(u64, K)>,
    max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Guesses {
    count: u32,
    /// By the clock in milliseconds.
    last: u64,
}

impl Guesses {
    /// Those of long ago are forgotten.
    fn count_at(self, now: u64) -> u32 {
        if now.saturating_sub(self.last) > limits::LOGINS_FORGOTTEN_MS { 0 } else { self.count }
    }

    /// Until when the next try is refused; so many are free.
    fn refused_until(self, free: u32, now: u64) -> u64 {
        let beyond = (self.count_at(now) + 1).saturating_sub(free);
        if beyond == 0 {
            return 0;
        }
        let wait = limits::GUESS_WAIT_MS.saturating_mul(1 << (beyond - 1).min(16));
        self.last.saturating_add(wait.min(limits::GUESS_WAIT_MS_MAX))
    }
}

impl<K: Ord + Clone> Table<K> {
    fn new(max: usize) -> Self {
        Self { counts: BTreeMap::new(), oldest: BTreeSet::new(), max }
    }

    fn add(&mut self, key: &K, now: u64) {
        let before = self.remove(key);
        if self.counts.len() >= self.max
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.counts.remove(&oldest);
        }
        let count = before.map_or(0, |guesses| guesses.count_at(now)).saturating_add(1);
        self.oldest.insert((now, key.clone()));
        self.counts.insert(key.clone(), Guesses { count, last: now });
    }

    fn remove(&mut self, key: &K) -> Option<Guesses> {
        let guesses = self.counts.remove(key)?;
        self.oldest.remove(&(guesses.last, key.clone()));
        Some(guesses)
    }

    fn count(&self, key: &K, now: u64) -> u32 {
        self.counts.get(key).map_or(0, |guesses| guesses.count_at(now))
    }
}

impl Default for Logins {
    fn default() -> Self {
        let counted = Counted {
            by_origin: Table::new(limits::LOGIN_ORIGINS_MAX),
            by_name: Table::new(limits::LOGIN_NAMES_MAX),
            by_address: Table::new(limits::LOGIN_ADDRESSES_MAX),
            addresses: Known::default(),
            connections: Known::default(),
        };
        Self { counted: Mutex::new(counted), clock: Ticker::new() }
    }
}

impl Logins {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A login in this name, from there, may be tried; the user's hash is not known yet.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when it has to wait.
    pub(super) fn may_try(&self, origin: &Origin) -> Result<(), Error> {
        self.may_try_at(origin, None, self.clock.milliseconds())
    }

    /// The same when the password is taken up: it will be compared with this hash.
    ///
    /// # Errors
    /// As [`Logins::may_try`].
    pub(super) fn may_compare(&self, origin: &Origin, hash: &[u8]) -> Result<(), Error> {
        self.may_try_at(origin, Some(crc32fast::hash(hash)), self.clock.milliseconds())
    }

    /// Where the password with this hash was right before in this name.
    pub(super) fn standing(&self, name: &str, source: Source, hash: &[u8]) -> Standing {
        let Origin { name, address } = Origin::new(name, source.address);
        let (counted, hash) = (self.counted(), Some(crc32fast::hash(hash)));
        if counted.connections.has(&name, source.connection, hash) {
            Standing::Connection
        } else if counted.addresses.has(&name, address, hash) {
            Standing::Address
        } else {
            Standing::New
        }
    }

    fn may_try_at(&self, origin: &Origin, hash: Option<u32>, now: u64) -> Result<(), Error> {
        let counted = self.counted();
        let Some(guesses) = counted.by_origin.counts.get(origin) else { return Ok(()) };
        if counted.addresses.has(&origin.name, origin.address, hash) {
            return Ok(());
        }
        let elsewhere = counted.by_name.count(&origin.name, now);
        let is_attacked =
            elsewhere.max(counted.by_address.count(&origin.address, now)) >= limits::GUESSES_BEFORE_ALARM;
        let free = if is_attacked { 1 } else { limits::GUESSES_FREE };
        if now < guesses.refused_until(free, now) { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// A login was right: the guesses before it are forgotten; its address and its connection are
    /// known.
    pub(super) fn succeeded(&self, origin: &Origin, connection: u64, hash: &[u8]) {
        self.succeeded_with(origin, connection, crc32fast::hash(hash));
    }

    fn succeeded_with(&self, origin: &Origin, connection: u64, hash: u32) {
        let mut counted = self.counted();
        counted.by_origin.remove(origin);
        counted.addresses.add(&origin.name, origin.address, hash);
        counted.connections.add(&origin.name, connection, hash);
    }

    /// A login has failed.
    pub(super) fn failed(&self, origin: &Origin) {
        self.failed_at(origin, self.clock.milliseconds());
    }

    fn failed_at(&self, origin: &Origin, now: u64) {
        let mut counted = self.counted();
        counted.by_name.add(&origin.name, now);
        counted.by_address.add(&origin.address, now);
        counted.by_origin.add(origin, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: u32 = 7;
    const REFUSED: Result<(), Error> = Err(Error::TooManyRequests);

    fn of(name: &str, from: u32) -> Origin {
        Origin::new(name, Address::of(std::net::Ipv4Addr::from(from).into()))
    }

    #[test]
    fn guessing_takes_longer_and_longer_where_it_is_done() {
        let logins = Logins::default();
        let mut now = 1;
        for _ in 0..limits::GUESSES_FREE {
            assert_eq!(logins.may_try_at(&of("ann", HERE), None, now), Ok(()));
            logins.failed_at(&of("ann", HERE), now);
        }
        let mut wait = limits::GUESS_WAIT_MS;
        for _ in 0..10 {
            assert_eq!(logins.may_try_at(&of("ann", HERE), None, now + wait - 1), REFUSED);
            now += wait;
            assert_eq!(logins.may_try_at(&of("ann", HERE), None, now), Ok(()));
            logins.failed_at(&of("ann", HERE), now);
            wait = limits::GUESS_WAIT_MS_MAX.min(2 * wait);
        }
        assert_eq!(wait, limits::GUESS_WAIT_MS_MAX);
        assert_eq!(logins.may_try_at(&of("ann", 8), None, now), Ok(()), "from elsewhere");
        assert_eq!(logins.may_try_at(&of("bob", HERE), None, now), Ok(()), "another one from there");
        logins.succeeded_with(&of("ann", HERE), 1, 5);
        assert_eq!(logins.may_try_at(&of("ann", HERE), None, now), Ok(()));
    }

    /// A check takes 50 ms, and the guesser comes back as soon as it may: its guesses must not be
    /// forgotten with each of the longest waits.
    #[test]
    fn a_guesser_that_waits_as_long_as_it_has_to_is_not_forgotten() {
        let logins = Logins::default();
        let (mut now, mut guesses) = (0, 0_u64);
        while now < 3_600_000 {
            if logins.may_try_at(&of("ann", HERE), None, now).is_ok() {
                guesses += 1;
                now += 50;
                logins.failed_at(&of("ann", HERE), now);
            } else {
                now += 10;
            }
        }
        let longest = 3_600_000 / limits::GUESS_WAIT_MS_MAX;
        assert!(guesses <= u64::from(limits::GUESSES_FREE) + 8 + longest, "{guesses} in an hour");
        now += limits::LOGINS_FORGOTTEN_MS;
        assert_eq!(logins.may_try_at(&of("ann", HERE), None, now), Ok(()), "it is in the end");
    }

    /// The names of users are no secret: strangers guess in one from everywhere, all the time. The
    /// user's own first try, from wherever it comes, is judged by its password.
    #[test]
    fn strangers_keep_no_user_out() {
        let logins = Logins::default();
        logins.succeeded_with(&of("ann", HERE), 1, 5);
        for number in 0..5_000 {
            logins.failed_at(&of("ann", 1_000 + number), 1);
        }
        assert_eq!(logins.may_try_at(&of("ann", HERE), None, 1), Ok(()), "where it has logged in");
        assert_eq!(logins.may_try_at(&of("ann", 8), None, 1), Ok(()), "where it has not");
        logins.failed_at(&of("ann", 8), 1);
        assert_eq!(logins.may_try_at(&of("ann", 8), None, 1), REFUSED, "a guess has to wait at once");
        assert_eq!(logins.may_try_at(&of("ann", 8), None, 1 + limits::GUESS_WAIT_MS), Ok(()));
        logins.failed_at(&of("bob", 8), 1);
        assert_eq!(logins.may_try_at(&of("bob", 8), None, 1), Ok(()), "guesses in other names are free");
    }

    /// Many share one address: one of them guesses in all names, and then in that of a user who is
    /// there too.
    #[test]
    fn a_neighbour_keeps_no_user_out() {
        let logins = Logins::default();
        logins.succeeded_with(&of("ann", HERE), 1, 5);
        for number in 0..5_000 {
            logins.failed_at(&of(&format!("user {number}"), HERE), 1);
            logins.failed_at(&of("ann", HERE), 1);
        }
        assert_eq!(logins.may_try_at(&of("ann", HERE), None, 1), Ok(()), "known there");
        assert_eq!(logins.may_try_at(&of("bob", HERE), None, 1), Ok(()), "the first try of bob");
        logins.failed_at(&of("bob", HERE), 1);
        assert_eq!(logins.may_try_at(&of("bob", HERE), None, 1), REFUSED, "no second one at once");
        assert_eq!(logins.may_try_at(&of("bob", 8), None, 1), Ok(()), "elsewhere");
    }

    /// A password that was changed may have been known to somebody there.
    #[test]
    fn an_address_is_known_until_the_password_is_changed() {
        let logins = Logins::default();
        logins.succeeded_with(&of("ann", HERE), 1, 5);
        (0..limits::GUESSES_FREE).for_each(|_| logins.failed_at(&of("ann", HERE), 1));
        assert_eq!(logins.may_try_at(&of("ann", HERE), None, 1), Ok(()), "the hash is not looked up yet");
        assert_eq!(logins.may_try_at(&of("ann", HERE), Some(5), 1), Ok(()));
        assert_eq!(logins.may_try_at(&of("ann", HERE), Some(6), 1), REFUSED);
    }

    #[test]
    fn a_login_stands_by_where_its_password_was_right() {
        let logins = Logins::default();
        let source = |from, connection| Source { address: of("", from).address, connection };
        logins.succeeded(&of("bob", HERE), 3, b"hash");
        let standing = |name, from, connection, hash| logins.standing(name, source(from, connection), hash);
        assert_eq!(standing("bob", HERE, 3, b"hash"), Standing::Connection);
        assert_eq!(standing("bob", HERE, 4, b"hash"), Standing::Address);
        assert_eq!(standing("bob", 8, 4, b"hash"), Standing::New);
        assert_eq!(standing("ann", HERE, 3, b"hash"), Standing::New, "another name");
        assert_eq!(standing("bob", HERE, 3, b"another"), Standing::New, "the password has changed");
    }

    #[test]
    fn counts_are_bounded() {
        let logins = Logins::default();
        let long = "n".repeat(2 * limits::LOGIN_NAME_BYTES_MAX);
        for number in 0..2 * u32::try_from(limits::LOGIN_ORIGINS_MAX).unwrap() {
            logins.failed_at(&of(&format!("{number} {long}"), number), u64::from(number));
        }
        let counted = logins.counted();
        assert_eq!(counted.by_origin.counts.len(), limits::LOGIN_ORIGINS_MAX);
        let lens = (counted.by_name.counts.len(), counted.by_address.counts.len());
        assert_eq!(lens, (limits::LOGIN_NAMES_MAX, limits::LOGIN_ADDRESSES_MAX));
        assert_eq!(counted.by_origin.oldest.len(), limits::LOGIN_ORIGINS_MAX);
        assert!(!counted.by_origin.counts.contains_key(&of(&format!("0 {long}"), 0)), "the oldest go");
        assert!(counted.by_name.counts.keys().all(|name| name.len() <= limits::LOGIN_NAME_BYTES_MAX));
    }
}
