//! Tests of failed logins, by a clock of their own.

use super::*;
use crate::limits::GuessLimits;

const HERE: u32 = 7;
const REFUSED: Result<Turn, Error> = Err(Error::TooManyRequests);

fn at(number: u32) -> Address {
    Address::of(std::net::Ipv4Addr::from(number).into())
}

fn ask(logins: &Logins, name: &str, from: u32, connection: u64, now: u64) -> Result<Turn, Error> {
    let source = Source { address: at(from), connection };
    logins.counted().turn(&pair(name, at(from)), source, now)
}

fn fail(logins: &Logins, name: &str, from: u32, now: u64) {
    logins.failed_at(&pair(name, at(from)), now);
}

fn succeed(logins: &Logins, name: &str, from: u32, now: u64) {
    logins.succeeded_at(&pair(name, at(from)), now);
}

#[test]
fn guessing_takes_longer_and_longer_where_it_is_done() {
    let logins = Logins::default();
    let GuessLimits { free, wait_ms, wait_ms_max } = limits::GUESSES_BY_BOTH;
    let mut now = 1;
    for _ in 0..free {
        assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)));
        fail(&logins, "ann", HERE, now);
    }
    let mut wait = wait_ms;
    for _ in 0..10 {
        assert_eq!(ask(&logins, "ann", HERE, 1, now + wait - 1), REFUSED);
        now += wait;
        assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)));
        assert_eq!(ask(&logins, "ann", HERE, 2, now), REFUSED, "one at a time");
        fail(&logins, "ann", HERE, now);
        wait = wait_ms_max.min(2 * wait);
    }
    assert_eq!(wait, wait_ms_max);
    assert_eq!(ask(&logins, "ann", 8, 1, now), Ok(Turn::At(now)), "from elsewhere");
    assert_eq!(ask(&logins, "bob", HERE, 1, now), Ok(Turn::At(now)), "another one from there");
    now += wait;
    assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)));
    succeed(&logins, "ann", HERE, now);
    assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)));
}

/// A check takes 50 ms, and the guesser comes back as soon as it may: its guesses were forgotten
/// with each of the longest waits.
#[test]
fn who_waits_for_as_long_as_it_has_to_is_not_forgotten() {
    let logins = Logins::default();
    let (mut now, mut guesses) = (0, 0_u64);
    while now < 3_600_000 {
        if ask(&logins, "ann", HERE, 1, now).is_ok() {
            guesses += 1;
            now += 50;
            fail(&logins, "ann", HERE, now);
        } else {
            now += 10;
        }
    }
    let GuessLimits { free, wait_ms_max, .. } = limits::GUESSES_BY_BOTH;
    assert!(guesses <= u64::from(free) + 8 + 3_600_000 / wait_ms_max, "{guesses} in an hour");
    now += limits::LOGINS_FORGOTTEN_MS;
    assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)), "it is in the end");
}

/// All of them passed before the first one had failed.
#[test]
fn of_many_at_once_no_more_go_on_than_may_fail() {
    let free = limits::GUESSES_BY_BOTH.free;
    for are_right in [false, true] {
        let logins = Logins::default();
        let turns: Vec<_> = (0..256).map(|number| ask(&logins, "ann", HERE, number, 1)).collect();
        let count = |turn| turns.iter().filter(|other| **other == Ok(turn)).count();
        assert_eq!((count(Turn::At(1)), count(Turn::Later)), (free as usize, 256 - free as usize));
        for _ in 0..free {
            if are_right {
                succeed(&logins, "ann", HERE, 60);
            } else {
                fail(&logins, "ann", HERE, 60);
            }
        }
        let next = ask(&logins, "ann", HERE, 1, 61);
        assert_eq!(next, if are_right { Ok(Turn::At(61)) } else { REFUSED });
    }
}

/// A caller that goes away leaves nothing behind.
#[test]
fn a_try_that_is_given_up_does_not_count() {
    let logins = Logins::default();
    for now in 0..100 {
        assert_eq!(ask(&logins, "ann", HERE, 1, now), Ok(Turn::At(now)));
        drop(Try { logins: &logins, pair: Some(pair("ann", at(HERE))) });
    }
    let source = Source { address: at(HERE), connection: 1 };
    drop(Place::taken(&logins, "ann", source).unwrap());
    let counted = logins.counted();
    assert!(counted.by_both.counts.is_empty() && counted.by_both.oldest.is_empty());
    assert!(counted.delayed.len == 0 && counted.delayed.of.is_empty());
}

/// The names of users are no secret: strangers guess in one from everywhere, all the time.
#[test]
fn strangers_keep_no_user_out() {
    let logins = Logins::default();
    succeed(&logins, "ann", HERE, 0);
    for number in 0..5_000 {
        fail(&logins, "ann", 1_000 + number, 1);
    }
    assert_eq!(ask(&logins, "ann", HERE, 1, 1), Ok(Turn::At(1)), "where it has logged in");
    assert_eq!(ask(&logins, "bob", 8, 1, 1), Ok(Turn::At(1)), "another user");
    // Each of five strangers has a try waiting, always.
    let mut waiting: Vec<(u64, u32)> = Vec::new();
    let mut now = 1;
    for address in 6_000..6_005 {
        let Ok(Turn::At(at)) = ask(&logins, "ann", address, 1, now) else { panic!("refused") };
        waiting.push((at, address));
    }
    for round in 0..50 {
        now += 10;
        let Ok(Turn::At(turn)) = ask(&logins, "ann", 8 + round, 1, now) else { panic!("refused") };
        assert!(turn - now <= 6 * limits::GUESSES_BY_ONE_PACE_MS, "it waits for {}", turn - now);
        while now < turn {
            now += 10;
            for (at, address) in &mut waiting {
                if *at <= now {
                    fail(&logins, "ann", *address, now);
                    *address += 10;
                    let Ok(Turn::At(next)) = ask(&logins, "ann", *address, 1, now) else { panic!("refused") };
                    *at = next;
                }
            }
        }
        logins.given_up_at(&pair("ann", at(8 + round)), now);
    }
}

/// One that waits in a name is all that an address has in it.
#[test]
fn a_stranger_has_one_try_waiting_in_a_name() {
    let logins = Logins::default();
    for number in 0..limits::GUESSES_BY_ONE_FREE {
        fail(&logins, "ann", 1_000 + number, 1);
    }
    let source = Source { address: at(HERE), connection: 1 };
    let place = Place::taken(&logins, "ann", source).unwrap();
    assert_eq!(ask(&logins, "ann", HERE, 2, 1), REFUSED);
    assert!(ask(&logins, "ann", 8, 2, 1).is_ok());
    drop(place);
    assert!(ask(&logins, "ann", HERE, 2, 1).is_ok());
}

/// Many share one address: one of them guesses in all names, and then in that of a user who is
/// there too.
#[test]
fn a_neighbour_keeps_no_user_out() {
    let logins = Logins::default();
    succeed(&logins, "ann", HERE, 0);
    for number in 0..5_000 {
        fail(&logins, &format!("user {number}"), HERE, 1);
    }
    assert_eq!(ask(&logins, "ann", HERE, 1, 1), Ok(Turn::At(1)));
    logins.given_up_at(&pair("ann", at(HERE)), 1);
    let step = limits::GUESSES_BY_ONE_PACE_MS;
    assert_eq!(ask(&logins, "bob", HERE, 1, 1), Ok(Turn::At(1)));
    assert_eq!(ask(&logins, "eve", HERE, 2, 1), Ok(Turn::At(1 + step)), "one after the other");
    for _ in 0..5_000 {
        fail(&logins, "ann", HERE, 1);
    }
    // The neighbour's next guess comes with each turn that it gets.
    let (mut now, mut guess) = (1, 1);
    let pace = limits::GUESSES_KNOWN_PACE_MS;
    for _ in 0..50 {
        now += 10;
        if guess <= now {
            fail(&logins, "ann", HERE, now);
            let Ok(Turn::At(next)) = ask(&logins, "ann", HERE, 666, now) else { panic!("refused") };
            guess = next;
        }
        let Ok(Turn::At(turn)) = ask(&logins, "ann", HERE, 1, now) else { panic!("ann is refused") };
        assert!(turn - now <= 2 * pace, "it waits for {}", turn - now);
        logins.given_up_at(&pair("ann", at(HERE)), turn);
        now = turn;
    }
    // Without an end: a row of them that is too long is refused.
    let refused = (0..1_000).filter(|number| ask(&logins, "ann", HERE, *number, now) == REFUSED).count();
    assert!(refused >= 1_000 - usize::try_from(1 + limits::LOGIN_DELAY_MS_MAX / pace).unwrap(), "{refused}");
}

#[test]
fn counts_are_bounded() {
    let logins = Logins::default();
    for number in 0..2 * u32::try_from(limits::LOGIN_PAIRS_MAX).unwrap() {
        fail(&logins, &number.to_string(), number, u64::from(number));
        succeed(&logins, "ann", number, u64::from(number));
    }
    let mut counted = logins.counted();
    let lens = (counted.by_both.counts.len(), counted.known.counts.len());
    assert_eq!(lens, (limits::LOGIN_PAIRS_MAX, limits::LOGIN_PAIRS_MAX));
    let lens = (counted.by_name.counts.len(), counted.by_address.counts.len());
    assert_eq!(lens, (limits::LOGIN_NAMES_MAX, limits::LOGIN_ADDRESSES_MAX));
    assert_eq!(counted.by_both.oldest.len(), limits::LOGIN_PAIRS_MAX);
    assert!(!counted.by_both.counts.contains_key(&pair("0", at(0))), "the oldest make room");
    let source = |address, connection| Source { address: at(address), connection };
    let mut taken = 0;
    for address in 0..10 {
        for connection in 0..300 {
            if counted.delayed.has_room(at(address)) {
                counted.delayed.add("ann", source(address, connection));
                taken += 1;
            }
        }
        assert!(taken <= limits::PASSWORDS_PER_ADDRESS_MAX * (address as usize + 1));
    }
    assert_eq!(taken, limits::PASSWORDS_WAITING_MAX);
}
