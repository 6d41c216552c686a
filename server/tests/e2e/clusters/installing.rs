//! A member that is killed while a state comes to it, or is on its way into its place.
//!
//! `REVD_CLUSTER_INSTALLS` makes the test longer, `REVD_CLUSTER_SEED` another.

use std::time::Duration;

use revd_proto::etcdserverpb::PutRequest;

use super::workload::survives;
use crate::harness::{Cluster, Product, Random, TempDir, Wiring, from_env, run, within};

/// Longer than a cluster needs to write some thousand keys.
const MOMENTS: Duration = Duration::from_secs(120);
/// Large values, so that a state takes a while.
const FILLERS: usize = 80;
const FILLER_BYTES: usize = 500_000;

/// Each time the member is away until the others have forgotten what it lacks, comes back, and is
/// killed some time after the state has begun to come: while parts come, while it is synced and
/// opened, named, or just there.
#[test]
fn bug_020_members_that_are_killed_while_a_state_comes_lose_nothing() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--snapshot-count=20", "--snapshot-catchup-entries=10"];
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &flags).await;
        let mut random = Random::new(from_env("REVD_CLUSTER_SEED", 1));
        let away = (cluster.leader().await + 1) % 3;
        let mut client = cluster.client((away + 1) % 3);
        for number in 0..FILLERS {
            let (key, value) = (format!("filler {number}").into(), vec![7; FILLER_BYTES].into());
            client.kv.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
        }
        let mut begun = 0;
        survives(&mut cluster, async |cluster, workload| {
            for _ in 0..from_env("REVD_CLUSTER_INSTALLS", 6) {
                cluster.members[away].kill();
                let enough = workload.newest() + 300;
                within(MOMENTS, "nothing is written without one member", async || {
                    (workload.newest() > enough).then_some(())
                })
                .await;
                let before = states_begun(cluster, away);
                cluster.members[away].spawn_again();
                // One that came to its end keeps the log of its sender for a while.
                for _ in 0..300 {
                    if states_begun(cluster, away) > before {
                        begun += 1;
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                tokio::time::sleep(Duration::from_millis(random.below(600))).await;
            }
            cluster.members[away].kill();
            cluster.members[away].spawn_again();
            cluster.wait_until_all_answer().await;
        })
        .await;
        assert!(begun >= 2, "only {begun} states began to come");
        let left = dir.path().join(format!("m{away}")).join("member");
        assert!(!left.join("receiving.tmp").exists() && !left.join("received.revd").exists());
    });
}

/// States that others have begun to send.
fn states_begun(cluster: &Cluster, away: usize) -> usize {
    let others = (0..cluster.members.len()).filter(|member| *member != away);
    let begun =
        |member: usize| cluster.members[member].log().matches("sending the state to a member").count();
    others.map(begun).sum()
}
