//! Runs of the simulator.
//!
//! `REVD_SIM_SEEDS` says how many seeds are tried, from `REVD_SIM_FIRST` on; a failure names them.
//! With `REVD_SIM_UNTIL=failure` none is tried behind it.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use revd_sim::faults::{Pace, storm};
use revd_sim::runs::{Ledger, run_many};
use revd_sim::world::World;

fn number(name: &str, usually: u64) -> u64 {
    std::env::var(name).map_or(usually, |text| text.parse().unwrap())
}

#[test]
fn a_seed_is_one_run() {
    let digest = |seed: u64| {
        let mut world = World::new(seed, Pace::Dense);
        world.plan(storm(seed, Pace::Dense));
        world.run();
        world.digest()
    };
    for seed in 0..2 {
        assert_eq!(digest(seed), digest(seed), "seed {seed}");
    }
    assert_ne!(digest(0), digest(1));
}

#[test]
fn members_agree_whatever_fails() {
    let usually = if cfg!(debug_assertions) { 12 } else { 1_000 };
    let (first, count) = (number("REVD_SIM_FIRST", 0), number("REVD_SIM_SEEDS", usually));
    let is_one_enough = std::env::var("REVD_SIM_UNTIL").is_ok_and(|until| until == "failure");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut ledger, mut failures) = (Ledger::default(), Vec::new());
    let at_once = if is_one_enough { 2 } else { count };
    for seed in (first..first + count).step_by(usize::try_from(at_once).unwrap()) {
        let (some, failed) =
            run_many((seed, at_once.min(first + count - seed)), Pace::Dense, threads, || false);
        ledger.add(&some);
        failures.extend(failed);
        if is_one_enough && !failures.is_empty() {
            break;
        }
    }
    println!("{ledger}");
    let commands: Vec<String> = failures.iter().map(|it| format!("{}: {}", it.command(), it.why)).collect();
    let seeds: Vec<u64> = failures.iter().map(|it| it.seed).collect();
    assert!(failures.is_empty(), "seeds {seeds:?} fail:\n{}", commands.join("\n"));
    assert!(ledger.fewest_faults >= Some(20), "{:?} faults have happened in a run", ledger.fewest_faults);
    assert!(!ledger.is_long() || ledger.never_met() == (vec![], vec![]), "{:?}", ledger.never_met());
}

/// Frames that a member took for durable are gone after the power has failed: the member refuses to
/// start, or the simulator sees it, which else would not see a sync that is missing.
#[test]
fn syncs_that_lie_are_seen() {
    let is_seen = |seed: u64| {
        let ended = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, Pace::Dense);
            world.lie();
            world.plan(storm(seed, Pace::Dense));
            world.run();
        });
        let why = ended.err().and_then(|panic| panic.downcast::<String>().ok());
        why.is_some_and(|why| why.contains("has lost what was durable") || why.contains("cannot start"))
    };
    let seen = (0..6).filter(|seed| is_seen(*seed)).count();
    assert!(seen >= 4, "seen in {seen} of 6 runs");
}

/// Hours with calm times, in which leases have to end.
#[test]
fn sparse_storms_have_calm_times() {
    let (ledger, failures) = run_many((0, 2), Pace::Sparse, 2, || false);
    assert_eq!(failures, []);
    assert!(ledger.calm > ledger.simulated / 10, "{ledger}");
}
