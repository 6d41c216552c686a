//! Members that are killed, stand still, or do not hear each other, under load.
//!
//! `REVD_CLUSTER_KILLS`, `REVD_CLUSTER_FAULTS` and `REVD_CLUSTER_SNAPSHOTS` make the tests longer,
//! `REVD_CLUSTER_SEED` another.

use std::time::Duration;

use super::workload::survives;
use crate::harness::{
    Cluster, Product, Random, TempDir, Wiring, from_env, products_of_clusters, run, within,
};

/// Longer than a cluster needs to elect a leader and to write some thousand keys.
const MOMENTS: Duration = Duration::from_secs(120);

/// Milliseconds, from a seed.
fn some_time(random: &mut Random, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + random.below(to - from))
}

/// The leader half of the time, else any.
async fn victim(cluster: &Cluster, random: &mut Random) -> usize {
    if random.one_in(2) {
        return cluster.leader().await;
    }
    usize::try_from(random.below(cluster.members.len() as u64)).unwrap()
}

/// Runs clients while the fault happens so many times.
async fn test_faults(
    product: Product,
    wiring: Wiring,
    times: u64,
    mut fault: impl AsyncFnMut(&mut Cluster, &mut Random),
) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, wiring, dir.path(), 3, &[]).await;
    let mut random = Random::new(from_env("REVD_CLUSTER_SEED", 1));
    let acknowledged = survives(&mut cluster, async |cluster, _| {
        for _ in 0..times {
            tokio::time::sleep(some_time(&mut random, 100, 600)).await;
            fault(cluster, &mut random).await;
            cluster.wait_until_all_answer().await;
        }
    })
    .await;
    assert!(
        acknowledged as u64 > 50 * times,
        "the load was too small to show anything: {acknowledged} writes"
    );
}

/// One member or two are gone for a while; with two, nothing can be written.
#[test]
fn nothing_acknowledged_is_lost_when_members_are_killed() {
    for product in products_of_clusters() {
        let kills = from_env("REVD_CLUSTER_KILLS", 6);
        run(test_faults(product, Wiring::Direct, kills, async |cluster, random| {
            let first = victim(cluster, random).await;
            let second = random.one_in(4).then_some((first + 1) % cluster.members.len());
            let victims = [Some(first), second];
            victims.into_iter().flatten().for_each(|member| cluster.members[member].kill());
            tokio::time::sleep(some_time(random, 0, 2_000)).await;
            for member in victims.into_iter().flatten() {
                cluster.members[member].spawn_again();
            }
        }));
    }
}

/// A member on the other side of a cut network serves no stale linearizable read, and what it
/// could not agree on it does not acknowledge.
#[test]
fn members_that_are_cut_off_from_each_other_agree_afterwards() {
    for product in products_of_clusters() {
        let faults = from_env("REVD_CLUSTER_FAULTS", 4);
        run(test_faults(product, Wiring::Proxied, faults, async |cluster, random| {
            let first = victim(cluster, random).await;
            if random.one_in(3) {
                // Both hear the third, but not each other.
                cluster.network().cut(first, (first + 1) % cluster.members.len());
            } else {
                cluster.isolate(first);
            }
            tokio::time::sleep(some_time(random, 200, 4_000)).await;
            cluster.mend();
        }));
    }
}

/// A leader that stood still and goes on does not believe that it still leads.
#[test]
fn members_that_stand_still_go_on_behind_the_others() {
    for product in products_of_clusters() {
        let faults = from_env("REVD_CLUSTER_FAULTS", 4);
        run(test_faults(product, Wiring::Direct, faults, async |cluster, random| {
            let member = victim(cluster, random).await;
            cluster.members[member].signal("STOP");
            tokio::time::sleep(some_time(random, 200, 4_000)).await;
            cluster.members[member].signal("CONT");
        }));
    }
}

/// The others have forgotten the entries that it lacks: it gets a snapshot, under load.
#[test]
fn a_member_that_was_away_for_long_comes_back_by_snapshot() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let flags = ["--snapshot-count=20", "--snapshot-catchup-entries=10"];
            let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &flags).await;
            let mut random = Random::new(from_env("REVD_CLUSTER_SEED", 1));
            survives(&mut cluster, async |cluster, workload| {
                for round in 1..=from_env("REVD_CLUSTER_SNAPSHOTS", 3) {
                    let member = victim(cluster, &mut random).await;
                    cluster.members[member].kill();
                    let enough = workload.newest() + 2_000;
                    within(MOMENTS, "nothing is written without one member", async || {
                        (workload.newest() > enough).then_some(())
                    })
                    .await;
                    cluster.save_without(member).await;
                    cluster.members[member].spawn_again();
                    cluster.wait_until_all_answer().await;
                    // The tests' etcd is silent. A leader that has sent a state keeps the log
                    // for a while, so that only the first time is sure.
                    if product == Product::Revd && round == 1 {
                        cluster.members[member].wait_until_says("received a state", "it had all it needs");
                    }
                }
            })
            .await;
        });
    }
}

/// Without the vote of the one that was away, the one that it has never heard of cannot lead.
#[test]
fn a_member_that_was_away_votes_for_one_that_it_does_not_know() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let flags = ["--strict-reconfig-check=false"];
            let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &flags).await;
            cluster.members[2].kill();
            let new = cluster.add_with(dir.path(), false, &flags).await;
            cluster.wait_until_answers(new).await;
            cluster.remove(1).await;
            cluster.members[0].kill();
            cluster.members[2].spawn_again();
            cluster.wait_until_answers(2).await;
            cluster.wait_until_answers(new).await;
            cluster.members[0].spawn_again();
            cluster.wait_until_all_answer().await;
        });
    }
}

/// New members come, the original ones go, until none is left.
#[test]
fn members_are_replaced_one_by_one_under_load() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
            survives(&mut cluster, async |cluster, workload| {
                for original in 0..3 {
                    let new = cluster.add(dir.path()).await;
                    cluster.wait_until_answers(new).await;
                    workload.joins(cluster, new);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    workload.leaves(original);
                    cluster.remove(original).await;
                    assert_eq!(
                        cluster.present().collect::<Vec<_>>(),
                        (original + 1..=new).collect::<Vec<_>>()
                    );
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            })
            .await;
        });
    }
}
