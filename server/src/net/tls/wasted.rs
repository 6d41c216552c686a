//! The price of handshakes that came to nothing, by the address that they came from.
//!
//! An address may waste one of so many parts of the core's time, and some milliseconds at once.
//! Beyond that the next handshakes of the same address wait, which keeps those of no other address
//! waiting. Handshakes that succeed cost an address nothing, however many they are.

use std::collections::BTreeMap;

use crate::limits;

/// Microseconds of a core at which an address will have paid for what it has wasted.
#[derive(Debug, Default)]
pub(super) struct Wasted(BTreeMap<u128, u64>);

impl Wasted {
    /// The core has spent so many microseconds on a handshake that came to nothing.
    pub(super) fn charge(&mut self, from: u128, microseconds: u64, now: u64) {
        let paid = self.0.get(&from).copied().unwrap_or(0).max(now);
        let price = microseconds.saturating_mul(limits::WASTED_PARTS);
        let longest = now + FREE + limits::WASTED_WAIT_MICROSECONDS_MAX;
        if !self.0.contains_key(&from) && self.0.len() >= limits::WASTING_ADDRESSES_MAX {
            self.make_room(now);
        }
        self.0.insert(from, paid.saturating_add(price).min(longest));
    }

    /// Microseconds until a handshake of this address may have its turn.
    pub(super) fn wait(&self, from: u128, now: u64) -> u64 {
        self.0.get(&from).map_or(0, |paid| paid.saturating_sub(now + FREE))
    }

    /// Forgets those who have paid, or the one who will have first.
    fn make_room(&mut self, now: u64) {
        self.0.retain(|_, paid| *paid > now);
        if self.0.len() >= limits::WASTING_ADDRESSES_MAX {
            let first = self.0.iter().min_by_key(|(_, paid)| **paid).map(|(from, _)| *from);
            first.and_then(|from| self.0.remove(&from));
        }
    }
}

/// Microseconds in which what an address may waste at once is paid for.
const FREE: u64 = limits::WASTED_MICROSECONDS_FREE * limits::WASTED_PARTS;

#[cfg(test)]
mod tests {
    use super::*;

    /// Handshakes of one address in a time, each of which costs so much and comes to nothing.
    fn wasted(cost: u64, time: u64) -> u64 {
        let (mut wasted, mut now, mut all) = (Wasted::default(), 1_000_000, 0);
        let end = now + time;
        while now < end {
            let wait = wasted.wait(7, now);
            assert!(wait <= limits::WASTED_WAIT_MICROSECONDS_MAX, "{wait}");
            assert_eq!(wasted.wait(8, now), 0, "it keeps no other address waiting");
            now += wait + cost;
            all += cost;
            wasted.charge(7, cost, now);
        }
        all
    }

    #[test]
    fn an_address_wastes_its_part_of_the_time_and_no_more() {
        let second = 1_000_000;
        for cost in [20, 300, 5_000] {
            let part = (wasted(cost, 100 * second) / 100) as f64 / (second / limits::WASTED_PARTS) as f64;
            assert!((0.8..1.1).contains(&part), "{cost}: {part}");
        }
        // At first it may waste more.
        let free = limits::WASTED_MICROSECONDS_FREE;
        assert!(wasted(300, free) >= free);
    }

    #[test]
    fn what_is_wasted_is_forgotten_in_time() {
        let mut wasted = Wasted::default();
        (0..1_000).for_each(|_| wasted.charge(7, 300, 0));
        let wait = wasted.wait(7, 0);
        assert_eq!(wait, limits::WASTED_WAIT_MICROSECONDS_MAX, "of all that was wasted meanwhile");
        assert_eq!((wasted.wait(7, wait - 1), wasted.wait(7, wait)), (1, 0));
        wasted.charge(7, 300, wait + 60_000_000);
        assert_eq!(wasted.wait(7, wait + 60_000_000), 0, "it may waste something at once again");
        wasted.charge(7, u64::MAX, u64::MAX / 2);
    }

    #[test]
    fn many_addresses_are_not_kept() {
        let (mut wasted, max) = (Wasted::default(), limits::WASTING_ADDRESSES_MAX);
        let spend = |wasted: &mut Wasted, from: u128, cost| wasted.charge(from, cost, 0);
        (0..max as u64).for_each(|from| spend(&mut wasted, from.into(), 50_000 - from));
        (0..3).for_each(|more| spend(&mut wasted, u128::MAX - more, 1));
        assert_eq!(wasted.0.len(), max);
        assert!(wasted.wait(0, 0) > 0, "the ones that waste the most are kept");
        spend(&mut wasted, 0, 1);
        assert_eq!(wasted.0.len(), max, "it is one of them");
        wasted.charge(u128::MAX - 9, 1, 60_000_000);
        assert_eq!(wasted.0.len(), 1, "all the others have paid");
    }
}
