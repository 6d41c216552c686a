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
//! - members have the same state hash behind the same entry, and none is named as corrupt;
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

use revd_engine::random::Random;

use crate::cluster::Cluster;
use crate::history::Seen;
use crate::member::PreVotes;
use crate::network::Link;

/// Steps of one run before it heals.
const STEPS: usize = 20_000;

fn run(seed: u64) -> Seen {
    let pre_votes = match seed % 4 {
        0 => PreVotes::Off,
        1 => PreVotes::Toggled,
        _ => PreVotes::On,
    };
    run_with(seed, pre_votes)
}

fn run_with(seed: u64, pre_votes: PreVotes) -> Seen {
    let members = if seed.is_multiple_of(3) { 5 } else { 3 };
    let mut cluster = Cluster::new(seed, members, pre_votes);
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

/// Row 51 (raft-rs#42, raft-rs#84): a member that asks before an election and one that does not
/// waited for each other for ever, and votes were not set back.
#[test]
fn bug_051_members_change_one_by_one_whether_they_ask_before_an_election() {
    for seed in 51..57 {
        run_with(seed, PreVotes::Toggled);
    }
}

/// Members compare the hashes of what they have applied.
#[test]
fn a_member_whose_state_is_not_what_the_log_has_made_it_is_named() {
    for seed in 0..6 {
        let members = if seed < 3 { 3 } else { 5 };
        let at = usize::try_from(seed % members).unwrap();
        let mut cluster = Cluster::new(seed, members, PreVotes::On);
        (0..2_000).for_each(|_| cluster.step());
        // A second has ten ticks of each member; a member ticks in one of so many steps.
        let second = 10 * 50 * usize::try_from(members).unwrap();
        let named = cluster.forge(at, 3 * second);
        assert_eq!(named, vec![vec![at as u64 + 1]; named.len()], "seed {seed}");
    }
}

/// The same seed is the same run.
#[test]
fn a_seed_is_one_run() {
    for seed in [3, 4] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Members of a majority in which each reaches each other, if there is one.
fn connected_majority(members: u64, cuts: &[Link]) -> bool {
    let is_cut = |from, to| cuts.contains(&(from, to)) || cuts.contains(&(to, from));
    (0_u64..1 << members).any(|set| {
        let chosen: Vec<u64> = (1..=members).filter(|id| set >> (id - 1) & 1 == 1).collect();
        let pairs = || chosen.iter().flat_map(|from| chosen.iter().map(move |to| (*from, *to)));
        chosen.len() as u64 * 2 > members && pairs().all(|(from, to)| from == to || !is_cut(from, to))
    })
}

/// The leader behind these cuts is there after three election times, and is the same after three
/// more.
fn keeps_its_leader(seed: u64, members: u64, cuts: &[Link]) {
    // A member ticks in one of so many steps; the longest election timeout has twenty ticks.
    let election = 20 * 50 * usize::try_from(members).unwrap();
    let mut cluster = Cluster::new(seed, members, PreVotes::On);
    let leader = cluster.leader_behind_cuts(cuts, 3 * election);
    assert!(leader.is_some(), "no leader behind {cuts:?}");
    let later = cluster.leader_behind_cuts(cuts, 3 * election);
    assert_eq!(leader, later, "the leader does not stay behind {cuts:?}");
}

/// Row 52 (Cloudflare, November 2020): members that reach some others only, or one way only, kept
/// a cluster in elections for hours.
#[test]
fn bug_052_a_connected_majority_keeps_its_leader_whatever_else_is_cut() {
    let links = |members: u64| -> Vec<Link> {
        let all = (1..=members).flat_map(|from| (1..=members).map(move |to| (from, to)));
        all.filter(|(from, to)| from != to).collect()
    };
    let all = links(3);
    let mut tried = 0;
    for mask in 0_u64..64 {
        let cuts: Vec<Link> = (0..6).filter(|at| mask >> at & 1 == 1).map(|at| all[at]).collect();
        if connected_majority(3, &cuts) {
            keeps_its_leader(mask, 3, &cuts);
            tried += 1;
        }
    }
    assert_eq!(tried, 37);
    let (all, mut random) = (links(5), Random::new(52));
    while tried < 37 + 12 {
        let cuts: Vec<Link> = all.iter().copied().filter(|_| random.one_in(3)).collect();
        if connected_majority(5, &cuts) {
            keeps_its_leader(tried, 5, &cuts);
            tried += 1;
        }
    }
}
