//! `--limit-user`: how much a user may ask of a member, in calls and in bytes, each second.
//!
//! Each user that is named there has two buckets, which all edges of the member share. A bucket is
//! one number: the time at which it is empty again. A call is let in while that is no more than a
//! second ahead, so that a user may spend a second's worth at once. Bytes of a reply are known when
//! it is made: they count against the next call.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use revd_member::auth::Caller;
use revd_member::error::Error;

use crate::clock::Ticker;
use crate::config::UserLimit;

/// A second is what may be spent at once.
const BURST_NANOSECONDS: u64 = 1_000_000_000;

/// Node view: the limits of users, as the operator has them.
#[derive(Debug)]
pub struct UserLimits {
    buckets: BTreeMap<String, Buckets>,
    clock: Ticker,
}

#[derive(Debug)]
struct Buckets {
    calls: Bucket,
    bytes: Bucket,
}

/// Spends so many a second.
#[derive(Debug)]
struct Bucket {
    /// Nanoseconds of a thousand of them; 0 without a limit.
    per_thousand: u64,
    /// By the clock in nanoseconds: when all that was spent is earned again.
    empty_at: AtomicU64,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        let per_thousand = 1_000_000_000_000_u64.checked_div(per_second).unwrap_or(0);
        Self { per_thousand, empty_at: AtomicU64::new(0) }
    }

    fn has_room(&self, now: u64) -> bool {
        self.empty_at.load(Ordering::Relaxed) <= now.saturating_add(BURST_NANOSECONDS)
    }

    fn spend(&self, count: u64, now: u64) {
        if self.per_thousand > 0 {
            let cost = count.saturating_mul(self.per_thousand) / 1_000;
            let spent = |empty_at: u64| Some(empty_at.max(now).saturating_add(cost));
            let _ = self.empty_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        }
    }
}

impl UserLimits {
    /// Those of these users; none of others.
    #[must_use]
    pub fn new(limits: &BTreeMap<String, UserLimit>) -> Self {
        let buckets = limits.iter().map(|(name, limit)| {
            let (calls, bytes) = (Bucket::new(limit.calls), Bucket::new(limit.bytes));
            (name.clone(), Buckets { calls, bytes })
        });
        Self { buckets: buckets.collect(), clock: Ticker::new() }
    }

    /// No user has a limit.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// A call of so many bytes is let in.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when its user has asked for too much lately.
    pub(crate) fn take(&self, caller: &Caller, bytes: usize) -> Result<(), Error> {
        if self.is_empty() { Ok(()) } else { self.take_at(caller, bytes, self.now()) }
    }

    fn take_at(&self, caller: &Caller, bytes: usize, now: u64) -> Result<(), Error> {
        let Some(buckets) = self.of(caller) else { return Ok(()) };
        if !buckets.calls.has_room(now) || !buckets.bytes.has_room(now) {
            return Err(Error::TooManyRequests);
        }
        buckets.calls.spend(1, now);
        buckets.bytes.spend(bytes as u64, now);
        Ok(())
    }

    /// A reply has so many bytes.
    pub(crate) fn replied(&self, caller: &Caller, bytes: impl FnOnce() -> usize) {
        if !self.is_empty()
            && let Some(buckets) = self.of(caller)
        {
            buckets.bytes.spend(bytes() as u64, self.now());
        }
    }

    fn of(&self, caller: &Caller) -> Option<&Buckets> {
        let Caller::User(user) = caller else { return None };
        self.buckets.get(&user.name)
    }

    fn now(&self) -> u64 {
        self.clock.microseconds().saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use revd_member::auth::User;

    fn user(name: &str) -> Caller {
        Caller::User(Arc::new(User { name: name.to_owned(), revision: None }))
    }

    const SECOND: u64 = 1_000_000_000;

    /// How many calls are let in within so many seconds, of one each ten microseconds.
    fn let_in(limits: &UserLimits, caller: &Caller, bytes: usize, from: u64, seconds: u64) -> u64 {
        let times = (from * SECOND..(from + seconds) * SECOND).step_by(10_000);
        times.filter(|now| limits.take_at(caller, bytes, *now).is_ok()).count() as u64
    }

    #[test]
    fn a_user_has_its_rate_and_others_have_none() {
        let limit = |calls, bytes| UserLimit { calls, bytes };
        let given = [("ann", limit(100, 0)), ("bob", limit(0, 1_000)), ("cat", limit(3_000, 90_000))];
        let limits = UserLimits::new(&given.map(|(name, limit)| (name.to_owned(), limit)).into());
        let between = |count: u64, least, most| {
            assert!((least..=most).contains(&count), "{count} calls, not {least} to {most}");
        };
        // A second's worth at once, then as much each second.
        between(let_in(&limits, &user("ann"), 1_000_000, 1, 4), 495, 505);
        between(let_in(&limits, &user("ann"), 0, 50, 4), 495, 505);
        between(let_in(&limits, &user("bob"), 10, 1, 4), 495, 505);
        between(let_in(&limits, &user("cat"), 45, 1, 4), 9_995, 10_005);
        assert_eq!(let_in(&limits, &user("dan"), 10, 1, 1), 100_000);
        assert_eq!(let_in(&limits, &Caller::Member, 10, 1, 1), 100_000);
    }

    #[test]
    fn a_long_reply_is_paid_for_by_the_calls_behind_it() {
        let given = [("ann".to_owned(), UserLimit { calls: 0, bytes: 1_000 })];
        let limits = UserLimits::new(&given.into());
        let buckets = limits.of(&user("ann")).unwrap();
        assert_eq!(limits.take_at(&user("ann"), 10, 0), Ok(()));
        buckets.bytes.spend(5_000, 0);
        assert_eq!(limits.take_at(&user("ann"), 10, 4 * SECOND), Err(Error::TooManyRequests));
        assert_eq!(limits.take_at(&user("ann"), 10, 5 * SECOND), Ok(()));
    }
}
