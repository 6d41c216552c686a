//! Failed logins: a client that guesses passwords has to wait, longer after each guess.
//!
//! Guesses are counted three times: of a name by an address, of a name by all addresses, and of all
//! names by an address. By the first count, tries are refused for up to half a minute. By the
//! others, which begin later, they are delayed: they go one after the other at a steady pace, one
//! at a time from each address in that name, so that one that guesses without an end delays others
//! by a step. An address that has logged in under a name before is delayed by neither of these, and
//! never refused for guesses in that name: it takes turns with its neighbours, by connections.
//!
//! A try counts from when it begins: of many at once in one name no more go on than may fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use revd_member::error::Error;

use crate::api::call::{Address, Source};
use crate::clock::Ticker;
use crate::limits;
use crate::queues::sleep::sleep;

/// Node view: guesses, and where users have logged in.
#[derive(Debug)]
pub struct Logins {
    counted: Mutex<Counted>,
    clock: Ticker,
}

type Pair = (String, Address);

#[derive(Debug)]
struct Counted {
    by_both: Table<Pair>,
    by_name: Table<String>,
    by_address: Table<Address>,
    /// The last successful logins.
    known: Table<Pair>,
    delayed: Delayed,
}

/// Counts by what they are of; beyond its bound the one that was not touched for longest goes.
#[derive(Debug)]
struct Table<K> {
    counts: BTreeMap<K, Guesses>,
    oldest: BTreeSet<(u64, K)>,
    max: usize,
}

/// All times are by the clock in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Guesses {
    failed: u32,
    /// When the last one has failed.
    last: u64,
    /// Tries whose outcome is not known yet.
    under_way: u32,
    /// When the next one may go on that is delayed.
    next: u64,
    touched: u64,
}

impl Guesses {
    /// Those of long ago are forgotten.
    fn failed_at(&self, now: u64) -> u32 {
        if now.saturating_sub(self.last) > limits::LOGINS_FORGOTTEN_MS { 0 } else { self.failed }
    }

    /// Until when the next try is refused; some are free.
    fn refused_until(&self, now: u64) -> u64 {
        let limits::GuessLimits { free, wait_ms, wait_ms_max } = limits::GUESSES_BY_BOTH;
        let beyond = self.failed_at(now).saturating_sub(free - 1);
        if beyond == 0 {
            return 0;
        }
        let wait = wait_ms.saturating_mul(1 << (beyond - 1).min(16));
        self.last.saturating_add(wait.min(wait_ms_max))
    }
}

impl<K: Ord + Clone> Table<K> {
    fn new(max: usize) -> Self {
        Self { counts: BTreeMap::new(), oldest: BTreeSet::new(), max }
    }

    fn get(&self, key: &K) -> Guesses {
        self.counts.get(key).copied().unwrap_or_default()
    }

    fn change(&mut self, key: &K, now: u64, change: impl FnOnce(&mut Guesses)) {
        let mut guesses = self.remove(key).unwrap_or_default();
        if self.counts.len() >= self.max
            && let Some((_, oldest)) = self.oldest.pop_first()
        {
            self.counts.remove(&oldest);
        }
        change(&mut guesses);
        guesses.touched = now;
        self.oldest.insert((now, key.clone()));
        self.counts.insert(key.clone(), guesses);
    }

    fn remove(&mut self, key: &K) -> Option<Guesses> {
        let guesses = self.counts.remove(key)?;
        self.oldest.remove(&(guesses.touched, key.clone()));
        Some(guesses)
    }

    fn add_failed(&mut self, key: &K, now: u64) {
        self.change(key, now, |guesses| {
            guesses.failed = guesses.failed_at(now).saturating_add(1);
            guesses.last = now;
        });
    }

    /// From when on a try may go on, if they are delayed: each has its own time.
    fn slot(&self, key: &K, free: u32, now: u64) -> Option<u64> {
        let guesses = self.get(key);
        (guesses.failed_at(now) >= free).then(|| guesses.next.max(now))
    }
}

/// The tries that are delayed.
#[derive(Debug, Default)]
struct Delayed {
    of: BTreeMap<Address, Vec<(u64, String)>>,
    len: usize,
}

impl Delayed {
    fn has_room(&self, address: Address) -> bool {
        self.len < limits::PASSWORDS_WAITING_MAX
            && self.of.get(&address).map_or(0, Vec::len) < limits::PASSWORDS_PER_ADDRESS_MAX
    }

    /// There is one in this name, from there; of the same connection, where that matters.
    fn has(&self, name: &str, address: Address, connection: Option<u64>) -> bool {
        let of = self.of.get(&address).map_or(&[][..], Vec::as_slice);
        of.iter().any(|(by, of)| of == name && connection.is_none_or(|connection| connection == *by))
    }

    fn add(&mut self, name: &str, source: Source) {
        self.of.entry(source.address).or_default().push((source.connection, name.to_owned()));
        self.len += 1;
    }

    fn remove(&mut self, name: &str, source: Source) {
        let Some(of) = self.of.get_mut(&source.address) else { return };
        let Some(at) = of.iter().position(|(by, of)| *by == source.connection && of == name) else {
            return;
        };
        of.swap_remove(at);
        self.len -= 1;
        if of.is_empty() {
            self.of.remove(&source.address);
        }
    }
}

impl Default for Logins {
    fn default() -> Self {
        let counted = Counted {
            by_both: Table::new(limits::LOGIN_PAIRS_MAX),
            by_name: Table::new(limits::LOGIN_NAMES_MAX),
            by_address: Table::new(limits::LOGIN_ADDRESSES_MAX),
            known: Table::new(limits::LOGIN_PAIRS_MAX),
            delayed: Delayed::default(),
        };
        Self { counted: Mutex::new(counted), clock: Ticker::new() }
    }
}

/// When a try may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Then; it counts as one under way.
    At(u64),
    /// Others have to end before: it should ask again.
    Later,
}

impl Counted {
    /// The turn of a try.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when it is refused.
    fn turn(&mut self, pair: &Pair, source: Source, now: u64) -> Result<Turn, Error> {
        let refused = Err(Error::TooManyRequests);
        let (name, address) = pair;
        let own = self.by_both.get(pair);
        let failed = own.failed_at(now);
        let is_known = self.known.counts.contains_key(pair);
        let at = if is_known {
            self.by_both.slot(pair, limits::GUESSES_BY_BOTH.free, now)
        } else {
            if now < own.refused_until(now) {
                return refused;
            }
            if failed.saturating_add(own.under_way) >= limits::GUESSES_BY_BOTH.free && own.under_way > 0 {
                return if failed < limits::GUESSES_BY_BOTH.free { Ok(Turn::Later) } else { refused };
            }
            let of_name = self.by_name.slot(name, limits::GUESSES_BY_ONE_FREE, now);
            of_name.max(self.by_address.slot(address, limits::GUESSES_BY_ONE_FREE, now))
        };
        if let Some(at) = at {
            let connection = is_known.then_some(source.connection);
            if at - now > limits::LOGIN_DELAY_MS_MAX || self.delayed.has(name, *address, connection) {
                return refused;
            }
            self.take_slots(pair, is_known, at, now);
        }
        self.by_both.change(pair, now, |own| own.under_way = own.under_way.saturating_add(1));
        Ok(Turn::At(at.unwrap_or(now)))
    }

    /// The time of a try is taken: the next ones come behind it.
    fn take_slots(&mut self, pair: &Pair, is_known: bool, at: u64, now: u64) {
        let (name, address) = pair;
        if is_known {
            let pace = limits::GUESSES_KNOWN_PACE_MS;
            return self.by_both.change(pair, now, |own| own.next = at + pace);
        }
        let take = |guesses: &mut Guesses| guesses.next = at + limits::GUESSES_BY_ONE_PACE_MS;
        if self.by_name.slot(name, limits::GUESSES_BY_ONE_FREE, now).is_some() {
            self.by_name.change(name, now, take);
        }
        if self.by_address.slot(address, limits::GUESSES_BY_ONE_FREE, now).is_some() {
            self.by_address.change(address, now, take);
        }
    }
}

fn pair(name: &str, address: Address) -> Pair {
    (name[..name.floor_char_boundary(limits::LOGIN_NAME_BYTES_MAX)].to_owned(), address)
}

impl Logins {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a login in this name, from there, may be tried.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when it may not.
    pub(super) async fn turn(&self, name: &str, source: Source) -> Result<Try<'_>, Error> {
        let pair = pair(name, source.address);
        let began = self.clock.milliseconds();
        let mut place = None;
        loop {
            let now = self.clock.milliseconds();
            let turn = self.counted().turn(&pair, source, now)?;
            // From here on it counts, also when its caller goes away while it waits.
            let tried = matches!(turn, Turn::At(_)).then(|| Try { logins: self, pair: Some(pair.clone()) });
            let wait = match turn {
                Turn::At(at) => at.saturating_sub(now),
                Turn::Later if now - began > limits::LOGIN_DELAY_MS_MAX => {
                    return Err(Error::TooManyRequests);
                }
                Turn::Later => limits::LOGIN_ASK_AGAIN_MS,
            };
            if wait > 0 && place.is_none() {
                place = Some(Place::taken(self, &pair.0, source)?);
            }
            if wait > 0 {
                sleep(Duration::from_millis(wait)).await;
            }
            if let Some(tried) = tried {
                return Ok(tried);
            }
        }
    }

    fn succeeded_at(&self, pair: &Pair, now: u64) {
        let mut counted = self.counted();
        let under_way = counted.by_both.remove(pair).map_or(0, |own| own.under_way);
        if under_way > 1 {
            counted.by_both.change(pair, now, |own| own.under_way = under_way - 1);
        }
        counted.known.change(pair, now, |_| ());
    }

    fn failed_at(&self, pair: &Pair, now: u64) {
        let mut counted = self.counted();
        counted.by_name.add_failed(&pair.0, now);
        counted.by_address.add_failed(&pair.1, now);
        counted.by_both.change(pair, now, |own| own.under_way = own.under_way.saturating_sub(1));
        counted.by_both.add_failed(pair, now);
    }

    fn given_up_at(&self, pair: &Pair, now: u64) {
        let mut counted = self.counted();
        let own = counted.by_both.get(pair);
        if own.under_way <= 1 && own.failed_at(now) == 0 && own.next <= now {
            counted.by_both.remove(pair);
        } else {
            counted.by_both.change(pair, now, |own| own.under_way = own.under_way.saturating_sub(1));
        }
    }
}

/// A try that is under way: it has to say how it ended. One whose caller goes away says nothing.
#[derive(Debug)]
pub(super) struct Try<'l> {
    logins: &'l Logins,
    pair: Option<Pair>,
}

impl Try<'_> {
    /// The login was right: the guesses before it are forgotten, and the address is known.
    pub(super) fn succeeded(mut self) {
        let Some(pair) = self.pair.take() else { return };
        self.logins.succeeded_at(&pair, self.logins.clock.milliseconds());
    }

    /// The login has failed.
    pub(super) fn failed(mut self) {
        let Some(pair) = self.pair.take() else { return };
        self.logins.failed_at(&pair, self.logins.clock.milliseconds());
    }
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        let Some(pair) = self.pair.take() else { return };
        self.logins.given_up_at(&pair, self.logins.clock.milliseconds());
    }
}

/// A place among the tries that are delayed.
struct Place<'l> {
    logins: &'l Logins,
    name: &'l str,
    source: Source,
}

impl<'l> Place<'l> {
    fn taken(logins: &'l Logins, name: &'l str, source: Source) -> Result<Self, Error> {
        let delayed = &mut logins.counted().delayed;
        if !delayed.has_room(source.address) {
            return Err(Error::TooManyRequests);
        }
        delayed.add(name, source);
        Ok(Self { logins, name, source })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.logins.counted().delayed.remove(self.name, self.source);
    }
}

#[cfg(test)]
mod tests;
