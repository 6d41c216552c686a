//! Failed logins: who guesses passwords has to wait, longer after each guess.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use revd_member::error::Error;

use crate::clock::Ticker;
use crate::limits;

/// Node view: names for which logins have failed.
#[derive(Debug)]
pub struct Logins {
    failed: Mutex<BTreeMap<String, Failures>>,
    clock: Ticker,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    /// By the clock in milliseconds.
    last: u64,
}

impl Failures {
    /// Until when the next try has to wait; some are free.
    fn wait_until(self) -> u64 {
        let beyond = self.count.saturating_sub(limits::LOGIN_FAILURES_FREE);
        if beyond == 0 {
            return 0;
        }
        let wait = limits::LOGIN_WAIT_MS.saturating_mul(1 << (beyond - 1).min(16));
        self.last.saturating_add(wait.min(limits::LOGIN_WAIT_MS_MAX))
    }

    fn is_over(self, now: u64) -> bool {
        now.saturating_sub(self.last) > limits::LOGIN_WAIT_MS_MAX
    }
}

impl Default for Logins {
    fn default() -> Self {
        Self { failed: Mutex::default(), clock: Ticker::new() }
    }
}

impl Logins {
    /// A login in this name may be tried.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when it has to wait.
    pub(super) fn may_try(&self, name: &str) -> Result<(), Error> {
        self.may_try_at(name, self.clock.milliseconds())
    }

    fn may_try_at(&self, name: &str, now: u64) -> Result<(), Error> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = failed.get(name).is_some_and(|failures| now < failures.wait_until());
        if waits { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// A login in this name was right: the guesses before it are forgotten.
    pub(super) fn succeeded(&self, name: &str) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// A login in this name has failed.
    pub(super) fn failed(&self, name: &str) {
        self.failed_at(name, self.clock.milliseconds());
    }

    fn failed_at(&self, name: &str, now: u64) {
        let failed = &mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &name[..name.floor_char_boundary(limits::LOGIN_NAME_BYTES_MAX)];
        if failed.len() >= limits::LOGIN_NAMES_MAX && !failed.contains_key(name) {
            failed.retain(|_, failures| !failures.is_over(now));
        }
        if failed.len() >= limits::LOGIN_NAMES_MAX && !failed.contains_key(name) {
            return; // many names are guessed: bcrypt's threads are the bound
        }
        let failures = failed.entry(name.to_owned()).or_insert(Failures { count: 0, last: now });
        let count = if failures.is_over(now) { 0 } else { failures.count };
        *failures = Failures { count: count.saturating_add(1), last: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_takes_longer_and_longer() {
        let logins = Logins::default();
        for _ in 0..limits::LOGIN_FAILURES_FREE {
            logins.failed_at("ann", 0);
        }
        assert_eq!(logins.may_try_at("ann", 0), Ok(()));
        logins.failed_at("ann", 0);
        assert_eq!(logins.may_try_at("ann", limits::LOGIN_WAIT_MS - 1), Err(Error::TooManyRequests));
        assert_eq!(logins.may_try_at("ann", limits::LOGIN_WAIT_MS), Ok(()));
        logins.failed_at("ann", 0);
        assert_eq!(logins.may_try_at("ann", limits::LOGIN_WAIT_MS), Err(Error::TooManyRequests));
        assert_eq!(logins.may_try_at("bob", 0), Ok(()));
        for number in 0..2 * limits::LOGIN_NAMES_MAX {
            logins.failed_at(&number.to_string(), 0);
        }
        assert_eq!(logins.failed.lock().unwrap().len(), limits::LOGIN_NAMES_MAX);
    }
}
