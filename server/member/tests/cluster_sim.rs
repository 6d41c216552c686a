//! A cluster in a simulator: the shipped log cores of one to six members, with their state
//! machines, on one thread and from a seed. The network delays, loses and cuts; members crash and
//! lose what is not written; clocks run apart; members are added, join, are promoted and removed.
//! Then the cluster heals, and everything must end.
//!
//! Held against every run:
//!
//! - one leader a term;
//! - an index holds one entry: whatever a member applies, before or after a crash, every other one
//!   applies there too, with the same revision after it;
//! - nothing acknowledged is taken back, and reads are linearizable: the revision that a put or a
//!   read returns is not below that of any put or read that had returned when it was called;
//! - members have the same state hash behind the same entry, and none is named as corrupt;
//! - members, votes and ids of former members are the same everywhere behind an entry;
//! - a leader has the votes of a quorum of voters, and a committed entry is in the logs of one:
//!   learners count for nothing;
//! - a member ends when it was removed, and never else; a change that is let through leaves a
//!   cluster that serves, whichever added members are never started;
//! - a change of members whose caller hears that it is done is in the log once, and one that is
//!   refused has no effect;
//! - every call ends: it is answered, or its caller is told that it is lost.
//!
//! `REVD_CLUSTER_SEEDS` says how many seeds are tried, from `REVD_CLUSTER_FIRST` on; a failure
//! names its seeds.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[path = "cluster_sim/changes.rs"]
mod changes;
#[path = "cluster_sim/cluster.rs"]
mod cluster;
#[path = "cluster_sim/files.rs"]
mod files;
#[path = "cluster_sim/history.rs"]
mod history;
#[path = "cluster_sim/member.rs"]
mod member;
#[path = "cluster_sim/network.rs"]
mod network;
#[path = "cluster_sim/operator.rs"]
mod operator;
#[path = "cluster_sim/running.rs"]
mod running;
#[path = "cluster_sim/told.rs"]
mod told;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use revd_engine::mutants::ARE_PLANTED;
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
    run_wild(Cluster::new(seed, members, pre_votes))
}

/// The members change too.
fn run_with_changes(seed: u64) -> Seen {
    let mut cluster = Cluster::new(seed, [1, 3, 3, 5][usize::try_from(seed % 4).unwrap()], PreVotes::On);
    cluster.changes_members = true;
    run_wild(cluster)
}

fn run_wild(mut cluster: Cluster) -> Seen {
    for _ in 0..STEPS {
        cluster.step();
    }
    cluster.heal();
    cluster.end()
}

/// Runs many seeds; the sum of what was seen.
fn run_many(run: fn(u64) -> Seen, usually: u64) -> (u64, Seen) {
    let wanted: u64 = std::env::var("REVD_CLUSTER_SEEDS").map_or(usually, |text| text.parse().unwrap());
    let first: u64 = std::env::var("REVD_CLUSTER_FIRST").map_or(0, |text| text.parse().unwrap());
    let wanted = first + wanted;
    let (seeds, seen) = (AtomicU64::new(first), Mutex::new(Seen::default()));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = seeds.fetch_add(1, Ordering::Relaxed);
                    if seed >= wanted {
                        return;
                    }
                    if ARE_PLANTED && !failed.lock().unwrap().is_empty() {
                        return; // one is enough
                    }
                    match std::panic::catch_unwind(|| run(seed)) {
                        Ok(run) => seen.lock().unwrap().add(&run),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    (wanted, seen)
}

#[test]
fn members_agree_whatever_fails() {
    let (wanted, seen) = run_many(run, 40);
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

#[test]
fn members_agree_while_they_come_and_go() {
    let (wanted, seen) = run_many(run_with_changes, 20);
    let is_everything = seen.is_everything() && seen.changes.is_everything();
    assert!(wanted < 20 || is_everything, "something never happened: {seen:?}");
}

#[test]
fn members_are_replaced_until_none_of_the_first_is_left() {
    for seed in 0..2 {
        let mut cluster = Cluster::new(seed, 1, PreVotes::On);
        cluster.replace_all();
        cluster.heal();
        let seen = cluster.end();
        assert!(seen.puts > 20 && seen.changes.removed >= 5, "seed {seed}: {seen:?}");
    }
}

/// Without the vote of the one that is removed, the other one never learns that it is alone.
#[test]
fn the_other_one_of_two_voters_hears_of_a_removal() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, 2, PreVotes::On);
        cluster.remove_the_leader_of_two();
        cluster.heal();
        let seen = cluster.end();
        assert_eq!((seen.changes.leaders_removed, seen.changes.told), (1, 1), "seed {seed}");
    }
}

/// Answers go only where a member dials: one that was away while others came and went dials back
/// those that dial it.
#[test]
fn a_member_that_was_away_answers_one_that_it_does_not_know() {
    for seed in 0..10 {
        let mut cluster = Cluster::new(seed, 3, PreVotes::On);
        if seed < 5 {
            cluster.need_the_vote_of_one_that_was_away();
        } else {
            cluster.follow_a_leader_that_is_not_known();
        }
        cluster.heal();
        assert!(cluster.end().changes.guests > 0, "seed {seed}");
    }
}

/// Row 47 (tikv#8381): members crash while they join, also between two votes; each term has one
/// leader all the same.
#[test]
fn bug_047_members_that_crash_while_they_join_keep_their_promises() {
    for seed in [400, 404] {
        let seen = run_with_changes(seed);
        assert!(seen.crashes > 0 && seen.changes.voters > 0, "seed {seed}");
    }
}

/// A hash that begins with another entry can be compared with no other one.
#[test]
fn hashes_that_began_apart_begin_anew_together() {
    for seed in 0..3 {
        let mut cluster = Cluster::new(seed, 3, PreVotes::On);
        (0..2_000).for_each(|_| cluster.step());
        let begun = cluster.forget_hash(usize::try_from(seed).unwrap(), 6_000);
        assert!(begun[0] > 1 && begun.iter().all(|since| *since == begun[0]), "seed {seed}: {begun:?}");
    }
}

/// The same seed is the same run.
#[test]
fn a_seed_is_one_run() {
    for seed in [3, 4] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_eq!(run_with_changes(seed), run_with_changes(seed), "seed {seed} with changes");
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
