//! Many runs on some threads, and the replay of one.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use revd_checker::LeasesJudged;

use crate::faults::{Fault, Pace, storm};
pub use crate::ledger::Ledger;
use crate::world::World;

thread_local! {
    /// A failure on this thread is expected, and not worth a message.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A run that has failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// How much happened in it.
    pub pace: Pace,
    /// The message.
    pub why: String,
    /// The ledger of all that had happened until then.
    pub ledger: Box<Ledger>,
}

impl Failure {
    /// The command that replays it.
    #[must_use]
    pub fn command(&self) -> String {
        let pace = if self.pace == Pace::Sparse { " --sparse" } else { "" };
        format!("cargo run --profile sim -p revd-sim -- --first {} --seeds 1{pace}", self.seed)
    }
}

fn hush() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                loud(info);
            }
        }));
    });
}

/// Runs a seed with those of its faults that are kept, all if none are named.
///
/// # Errors
/// The reason why the run has failed.
pub fn run(seed: u64, pace: Pace, keep: Option<&BTreeSet<usize>>) -> Result<Ledger, Failure> {
    let faults: Vec<Fault> = storm(seed, pace)
        .into_iter()
        .enumerate()
        .filter_map(|(at, fault)| keep.is_none_or(|keep| keep.contains(&at)).then_some(fault))
        .collect();
    run_world(World::new(seed, pace), (seed, pace), faults)
}

/// Runs this one to its end.
fn run_world(mut world: World, (seed, pace): (u64, Pace), faults: Vec<Fault>) -> Result<Ledger, Failure> {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        world.plan(faults);
        world.run();
    }));
    let ledger = world.ledger();
    // A world that has failed may fail once more when it goes.
    let has_run = ran.is_ok();
    let judged = catch_unwind(AssertUnwindSafe(move || {
        if has_run {
            world.judge()
        } else {
            drop(world);
            LeasesJudged::default()
        }
    }));
    let panic = match ran.and(judged) {
        Ok(LeasesJudged { ended, times }) => {
            return Ok(Ledger { leases_ended: ended as u64, lease_times: times as u64, ..ledger });
        }
        Err(panic) => panic,
    };
    let why = panic.downcast_ref::<String>().cloned();
    let why = why.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let failed = BTreeSet::from([seed]);
    let ledger = Box::new(Ledger { failed, fewest_faults: None, ..ledger });
    Err(Failure { seed, pace, why: why.unwrap_or_default(), ledger })
}

/// Runs the same without a message.
fn run_quietly(seed: u64, pace: Pace, keep: &BTreeSet<usize>) -> Result<Ledger, Failure> {
    hush();
    let before = IS_QUIET.replace(true);
    let result = run(seed, pace, Some(keep));
    IS_QUIET.set(before);
    result
}

/// Runs seeds from this one on, until so many are done or it is to end; so many at a time.
#[must_use]
pub fn run_many(
    (first, count): (u64, u64),
    pace: Pace,
    threads: usize,
    is_over: impl Fn() -> bool + Sync,
) -> (Ledger, Vec<Failure>) {
    let next = AtomicU64::new(first);
    let sum = Mutex::new((Ledger::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let result = run(seed, pace, None);
                    let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    match result {
                        Ok(ledger) => sum.0.add(&ledger),
                        Err(failure) => {
                            println!("seed {seed} has failed");
                            sum.0.add(&failure.ledger);
                            sum.1.push(failure);
                        }
                    }
                }
            });
        }
    });
    sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The faults of a seed that fails without which it does not fail: it is cut down by halves first,
/// then one by one.
#[must_use]
pub fn shrink(seed: u64, pace: Pace) -> BTreeSet<usize> {
    let mut kept: BTreeSet<usize> = (0..storm(seed, pace).len()).collect();
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let mut has_shrunk = false;
        for chunk in kept.clone().into_iter().collect::<Vec<usize>>().chunks(part) {
            let fewer: BTreeSet<usize> = kept.iter().copied().filter(|at| !chunk.contains(at)).collect();
            if run_quietly(seed, pace, &fewer).is_err() {
                (kept, has_shrunk) = (fewer, true);
            }
        }
        if !has_shrunk || part == 1 {
            part /= 2;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks that lie lose what they have called durable: such runs fail, somewhere in the storm.
    #[test]
    fn the_ledger_of_a_failed_run_has_what_happened_until_then() {
        hush();
        IS_QUIET.set(true);
        let pace = Pace::Dense;
        let failure = (0..6).find_map(|seed| {
            let mut world = World::new(seed, pace);
            world.lie();
            run_world(world, (seed, pace), storm(seed, pace)).err()
        });
        let failure = failure.expect("a run fails");
        let ledger = &failure.ledger;
        let happened: u64 = ledger.faults.values().sum();
        let is_told = ledger.seeds == 1 && ledger.simulated > 0 && ledger.elections > 0 && happened > 0;
        assert!(is_told, "{ledger}");
        assert_eq!((&ledger.failed, ledger.fewest_faults), (&BTreeSet::from([failure.seed]), None));
    }
}
