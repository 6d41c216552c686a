//! The price of handshakes that came to nothing, by the address that they came from.
//!
//! New handshakes of the same address wait for some times as long as such ones have cost, none of
//! them long, and not for ever: others behind that address may be honest. Handshakes that succeed
//! cost nothing, however many they are.

use std::collections::BTreeMap;

use crate::limits;

/// The addresses that have wasted something.
#[derive(Debug, Default)]
pub(super) struct Wasted(BTreeMap<u128, Debt>);

/// Times in microseconds of a core.
#[derive(Debug, Default)]
struct Debt {
    /// The address has waited for all that it has wasted.
    until: u64,
    /// The handshake that waits now has waited for its part, or the next one has if that one gives
    /// up; none if no one has waited since one has computed.
    next: Option<u64>,
}

impl Wasted {
    /// The core has spent so many microseconds on a handshake that came to nothing.
    pub(super) fn charge(&mut self, from: u128, microseconds: u64, now: u64) {
        let is_full = |waiting: &BTreeMap<_, _>| waiting.len() >= limits::WASTING_ADDRESSES_MAX;
        if is_full(&self.0) && !self.0.contains_key(&from) {
            self.0.retain(|_, debt| debt.until > now);
            if is_full(&self.0) {
                return; // of so many, this one is forgiven
            }
        }
        let until = &mut self.0.entry(from).or_default().until;
        // One failure, however long it computed, adds no more than one handshake may wait.
        let wait =
            microseconds.saturating_mul(limits::WASTED_TIMES).min(limits::WASTED_WAIT_MICROSECONDS_MAX);
        *until = (*until).max(now).saturating_add(wait).min(now + limits::WASTED_MICROSECONDS_KEPT);
    }

    /// Nothing was wasted yet.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Microseconds that a new handshake of this address waits, whose turn it is: what is left of
    /// the wait of those before it that gave up, if there are any.
    pub(super) fn wait(&mut self, from: u128, now: u64) -> u64 {
        let Some(debt) = self.0.get_mut(&from) else { return 0 };
        let wait = debt.until.saturating_sub(now).min(limits::WASTED_WAIT_MICROSECONDS_MAX);
        debt.next.get_or_insert(now + wait).saturating_sub(now)
    }

    /// A new handshake of this address computes: the next one has a wait of its own.
    pub(super) fn has_waited(&mut self, from: u128) {
        if let Some(debt) = self.0.get_mut(&from) {
            debt.next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_waits_for_some_times_as_long_as_it_has_wasted() {
        let (mut wasted, most) = (Wasted::default(), limits::WASTED_WAIT_MICROSECONDS_MAX);
        wasted.charge(7, 10, 1_000);
        assert_eq!(wasted.wait(7, 1_000), 10 * limits::WASTED_TIMES);
        assert_eq!(wasted.wait(8, 1_000), 0, "no other address");
        wasted.charge(7, 20, 1_030);
        assert_eq!(wasted.wait(7, 1_030), 10 * limits::WASTED_TIMES - 30, "what is left of that");
        let first = 1_000 + 10 * limits::WASTED_TIMES;
        assert_eq!(wasted.wait(7, first), 0, "it has waited, or one before it");
        wasted.has_waited(7);
        assert_eq!(wasted.wait(7, first), 20 * limits::WASTED_TIMES, "and for the other one");
        wasted.has_waited(7);
        (0..1_000).for_each(|_| wasted.charge(7, 300, 2_000));
        // Many that came to nothing together: several wait for them, and none of them long.
        let end = 2_000 + limits::WASTED_MICROSECONDS_KEPT;
        for now in [2_000, 2_000 + most, end / 2, end - most] {
            assert_eq!(wasted.wait(7, now), most, "at {now}");
            wasted.has_waited(7);
        }
        assert_eq!((wasted.wait(7, end - 1), wasted.wait(7, end)), (1, 0));
        wasted.has_waited(7);
        wasted.charge(7, u64::MAX, 9_000_000);
        assert_eq!(wasted.wait(7, 9_000_000), most);
    }

    #[test]
    fn addresses_that_have_waited_are_not_kept_behind_many_others() {
        let (mut wasted, max) = (Wasted::default(), limits::WASTING_ADDRESSES_MAX);
        (0..2 * max as u128).for_each(|from| wasted.charge(from, 1_000, 0));
        assert_eq!(wasted.0.len(), max);
        assert!(wasted.wait(0, 0) > 0 && wasted.wait(2 * max as u128 - 1, 0) == 0);
        let new = u128::MAX;
        wasted.charge(new, 1_000, 60_000_000);
        assert!(wasted.0.len() == 1 && wasted.wait(new, 60_000_000) > 0);
    }
}
