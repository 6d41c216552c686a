//! A cluster in a simulator: the shipped log cores of three and of five members, with their state
//! machines, on one thread and from a seed. The network delays, loses and cuts; members crash and
//! lose what is not written; clocks run apart. Then the cluster heals, and everything must end.
//!
//! Held against every run:
//!
//! - one leader a term;
//! - an index holds one entry: whatever a member applies, before or after a crash, every other one
//!   applies there too, with the same revision after it;
//! - nothing acknowledged is taken back, and reads are linearizable: the revision that a put or a
//!   read returns is not below that of any put or read that had returned when it was called;
//! - every call ends: it is answered, or its caller is told that it is lost.
//!
//! `REVD_CLUSTER_SEEDS` says how many seeds are tried; a failure names its seed.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "cluster_sim/cluster.rs"]
mod cluster;
#[path = "cluster_sim/history.rs"]
mod history;
#[path = "cluster_sim/member.rs"]
mod member;
#[path = "cluster_sim/network.rs"]
mod network;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cluster::Cluster;
use crate::history::Seen;

/// Steps of one run before it heals.
const STEPS: usize = 20_000;

fn run(seed: u64) -> Seen {
    let members = if seed.is_multiple_of(3) { 5 } else { 3 };
    let mut cluster = Cluster::new(seed, members);
    for _ in 0..STEPS {
        cluster.step();
    }
    cluster.heal();
    cluster.end()
}

#[test]
fn members_agree_whatever_fails() {
    let wanted: u64 = std::env::var("REVD_CLUSTER_SEEDS").map_or(40, |text| text.parse().unwrap());
    let (seeds, seen) = (AtomicU64::new(0), Mutex::new(Seen::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    if seed >= wanted {
                        return;
                    }
                    let run = std::panic::catch_unwind(|| run(seed));
                    let run = run.unwrap_or_else(|_| panic!("seed {seed}"));
                    seen.lock().unwrap().add(&run);
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    assert!(wanted < 20 || seen.is_everything(), "something never happened: {seen:?}");
}

/// The same seed is the same run.
#[test]
fn a_seed_is_one_run() {
    for seed in [3, 4] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
