//! Failed logins: a client that guesses passwords has to wait, longer after each guess.
//!
//! Guesses are counted three times: of a name by an address, of a name by all addresses, and of all
//! names by an address. The first count makes a client wait for up to half a minute. The others
//! begin later and ask for a second at most, and they do not count for an address that has logged
//! in under that name before: a stranger who guesses keeps no user out, and neither does a
//! neighbour behind the same address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use revd_member::error::Error;

use crate::api::call::Address;
use crate::clock::Ticker;
use crate::limits::{self, GuessLimits};

/// Node view: guesses, and where users have logged in.
#[derive(Debug)]
pub struct Logins {
    counted: Mutex<Counted>,
    clock: Ticker,
}

#[derive(Debug)]
struct Counted {
    by_both: Table<(String, Address)>,
    by_name: Table<String>,
    by_address: Table<Address>,
    /// The last successful logins.
    known: Table<(String, Address)>,
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
    /// Until when the next try has to wait; some are free.
    fn wait_until(self, limits: &GuessLimits) -> u64 {
        let beyond = self.count.saturating_sub(limits.free);
        if beyond == 0 {
            return 0;
        }
        let wait = limits.wait_ms.saturating_mul(1 << (beyond - 1).min(16));
        self.last.saturating_add(wait.min(limits.wait_ms_max))
    }
}

impl<K: Ord + Clone> Table<K> {
    fn new(max: usize) -> Self {
        Self { counts: BTreeMap::new(), oldest: BTreeSet::new(), max }
    }

    /// Counts one more; those of long ago are forgotten.
    fn add(&mut self, key: K, now: u64) {
        let before = self.remove(&key);
        if self.counts.len() >= self.max
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.counts.remove(&oldest);
        }
        let recent = before.filter(|guesses| now.saturating_sub(guesses.last) <= limits::LOGINS_FORGOTTEN_MS);
        let count = recent.map_or(0, |guesses| guesses.count).saturating_add(1);
        self.oldest.insert((now, key.clone()));
        self.counts.insert(key, Guesses { count, last: now });
    }

    fn remove(&mut self, key: &K) -> Option<Guesses> {
        let guesses = self.counts.remove(key)?;
        self.oldest.remove(&(guesses.last, key.clone()));
        Some(guesses)
    }

    fn waits(&self, key: &K, limits: &GuessLimits, now: u64) -> bool {
        self.counts.get(key).is_some_and(|guesses| now < guesses.wait_until(limits))
    }
}

impl Default for Logins {
    fn default() -> Self {
        let counted = Counted {
            by_both: Table::new(limits::LOGIN_PAIRS_MAX),
            by_name: Table::new(limits::LOGIN_NAMES_MAX),
            by_address: Table::new(limits::LOGIN_ADDRESSES_MAX),
            known: Table::new(limits::LOGIN_PAIRS_MAX),
        };
        Self { counted: Mutex::new(counted), clock: Ticker::new() }
    }
}

fn key(name: &str, address: Address) -> (String, Address) {
    (name[..name.floor_char_boundary(limits::LOGIN_NAME_BYTES_MAX)].to_owned(), address)
}

impl Logins {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A login in this name, from there, may be tried.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when it has to wait.
    pub(super) fn may_try(&self, name: &str, address: Address) -> Result<(), Error> {
        self.may_try_at(name, address, self.clock.milliseconds())
    }

    fn may_try_at(&self, name: &str, address: Address, now: u64) -> Result<(), Error> {
        let counted = self.counted();
        let both = key(name, address);
        let waits = counted.by_both.waits(&both, &limits::GUESSES_BY_BOTH, now)
            || (!counted.known.counts.contains_key(&both)
                && (counted.by_name.waits(&both.0, &limits::GUESSES_BY_ONE, now)
                    || counted.by_address.waits(&address, &limits::GUESSES_BY_ONE, now)));
        if waits { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// A login was right: the guesses before it are forgotten, and the address is known.
    pub(super) fn succeeded(&self, name: &str, address: Address) {
        self.succeeded_at(name, address, self.clock.milliseconds());
    }

    fn succeeded_at(&self, name: &str, address: Address, now: u64) {
        let (both, mut counted) = (key(name, address), self.counted());
        counted.by_both.remove(&both);
        counted.known.add(both, now);
    }

    /// A login has failed.
    pub(super) fn failed(&self, name: &str, address: Address) {
        self.failed_at(name, address, self.clock.milliseconds());
    }

    fn failed_at(&self, name: &str, address: Address, now: u64) {
        let (both, mut counted) = (key(name, address), self.counted());
        counted.by_name.add(both.0.clone(), now);
        counted.by_address.add(address, now);
        counted.by_both.add(both, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u32) -> Address {
        Address::of(std::net::Ipv4Addr::from(number).into())
    }

    const HERE: u32 = 7;

    #[test]
    fn guessing_takes_longer_and_longer_where_it_is_done() {
        let logins = Logins::default();
        let GuessLimits { free, wait_ms, wait_ms_max } = limits::GUESSES_BY_BOTH;
        let mut now = 0;
        for _ in 0..free {
            assert_eq!(logins.may_try_at("ann", at(HERE), now), Ok(()));
            logins.failed_at("ann", at(HERE), now);
        }
        let mut wait = wait_ms;
        for _ in 0..10 {
            logins.failed_at("ann", at(HERE), now);
            assert_eq!(logins.may_try_at("ann", at(HERE), now + wait - 1), Err(Error::TooManyRequests));
            now += wait;
            assert_eq!(logins.may_try_at("ann", at(HERE), now), Ok(()));
            wait = wait_ms_max.min(2 * wait);
        }
        assert_eq!(wait, wait_ms_max);
        assert_eq!(logins.may_try_at("ann", at(8), now), Ok(()), "from elsewhere");
        assert_eq!(logins.may_try_at("bob", at(HERE), now), Ok(()), "another one from there");
        logins.failed_at("ann", at(HERE), now);
        logins.succeeded_at("ann", at(HERE), now);
        assert_eq!(logins.may_try_at("ann", at(HERE), now), Ok(()));
    }

    /// The names of users are no secret: a stranger guesses in one from everywhere, all the time.
    #[test]
    fn a_stranger_keeps_no_user_out_where_it_has_logged_in() {
        let logins = Logins::default();
        logins.succeeded_at("ann", at(HERE), 0);
        for number in 0..5_000 {
            logins.failed_at("ann", at(1_000 + number), 1);
        }
        assert_eq!(logins.may_try_at("ann", at(HERE), 1), Ok(()), "where it has logged in");
        assert_eq!(logins.may_try_at("ann", at(8), 1), Err(Error::TooManyRequests), "elsewhere it waits");
        let second = 1 + limits::GUESSES_BY_ONE.wait_ms_max;
        assert_eq!(logins.may_try_at("ann", at(8), second), Ok(()), "a second at most");
        assert_eq!(logins.may_try_at("bob", at(8), 1), Ok(()), "other users do not");
    }

    /// Many share one address: one of them guesses in all names.
    #[test]
    fn a_neighbour_keeps_no_user_out() {
        let logins = Logins::default();
        logins.succeeded_at("ann", at(HERE), 0);
        for number in 0..5_000 {
            logins.failed_at(&format!("user {number}"), at(HERE), 1);
        }
        assert_eq!(logins.may_try_at("ann", at(HERE), 1), Ok(()));
        assert_eq!(logins.may_try_at("bob", at(HERE), 1), Err(Error::TooManyRequests));
        let second = 1 + limits::GUESSES_BY_ONE.wait_ms_max;
        assert_eq!(logins.may_try_at("bob", at(HERE), second), Ok(()), "for a second at most");
    }

    #[test]
    fn counts_are_bounded() {
        let logins = Logins::default();
        for number in 0..2 * u32::try_from(limits::LOGIN_PAIRS_MAX).unwrap() {
            logins.failed_at(&number.to_string(), at(number), u64::from(number));
            logins.succeeded_at("ann", at(number), u64::from(number));
        }
        let counted = logins.counted();
        let lens = (counted.by_both.counts.len(), counted.known.counts.len());
        assert_eq!(lens, (limits::LOGIN_PAIRS_MAX, limits::LOGIN_PAIRS_MAX));
        let lens = (counted.by_name.counts.len(), counted.by_address.counts.len());
        assert_eq!(lens, (limits::LOGIN_NAMES_MAX, limits::LOGIN_ADDRESSES_MAX));
        assert_eq!(counted.by_both.oldest.len(), limits::LOGIN_PAIRS_MAX);
        assert!(!counted.by_both.counts.contains_key(&key("0", at(0))), "the oldest make room");
    }
}
