//! Members that stand still or hear nobody for a while, with clients that stay: bugs that clusters
//! of etcd had, by their numbers in the project's list.
//!
//! `REVD_AWAY_WRITES` says how much is written while a member hears nobody, `REVD_CLUSTER_STOPS`
//! how often the leader stands still.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::PutRequest;
use tokio::task::spawn_local;

use super::workload::survives;
use crate::harness::{
    Client, Cluster, Product, Random, TempDir, Wiring, from_env, products_of_clusters, run, within,
};

/// Callers that write at the same time, beside the clients whose calls are recorded.
const CALLERS: u64 = 64;
/// Before a caller whose call failed calls again.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than a cluster needs to elect a leader.
const MOMENTS: Duration = Duration::from_secs(120);

/// Puts of keys that no recorded client knows, as fast as these members take them.
async fn write_much(clients: [Client; 2], writes: u64) {
    let left = Rc::new(Cell::new(writes));
    let callers = (0..CALLERS).map(|caller| {
        let (left, client) = (Rc::clone(&left), clients[usize::try_from(caller % 2).unwrap()].clone());
        spawn_local(async move {
            while let Some(number) = left.get().checked_sub(1) {
                left.set(number);
                let key = format!("much/{:05}", number % 50_000).into();
                let put = PutRequest { key, value: vec![b'v'; 100].into(), ..PutRequest::default() };
                // A busy machine may lose its leader on the way.
                if client.kv.clone().put(put).await.is_err() {
                    left.set(left.get() + 1);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}

/// etcd #15271: watchers of a member that was sent the state were told again what they knew. They
/// are told of everything, once, or canceled; and no member's revision goes back.
#[test]
fn bug_063_watchers_of_a_member_that_gets_the_state_are_told_of_everything_once() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let flags = ["--snapshot-count=50", "--snapshot-catchup-entries=5"]; // entries hold many puts
            let mut cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &flags).await;
            survives(&mut cluster, async |cluster, workload| {
                workload.has_others("much/");
                let away = (cluster.leader().await + 1) % 3;
                cluster.isolate(away);
                let others = [1, 2].map(|next| cluster.client((away + next) % 3));
                write_much(others.clone(), from_env("REVD_AWAY_WRITES", 20_000)).await;
                cluster.mend();
                // The load goes on while it comes back.
                let is_back = Cell::new(false);
                let loading = async {
                    while !is_back.get() {
                        write_much(others.clone(), 500).await;
                    }
                };
                let coming_back = async {
                    cluster.wait_until_answers(away).await;
                    is_back.set(true);
                };
                tokio::join!(loading, coming_back);
                if product == Product::Revd {
                    cluster.members[away].wait_until_says("received a state", "it had all it needs");
                }
            })
            .await;
        });
    }
}

/// etcd #20418: a leader that had stood still served a read by the late answer to an earlier round.
/// Here reads come to its sockets when others have written elsewhere already.
#[test]
fn bug_043_a_leader_that_stood_still_serves_no_stale_read() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let mut cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &[]).await;
            let mut random = Random::new(from_env("REVD_CLUSTER_SEED", 1));
            let stops = from_env("REVD_CLUSTER_STOPS", 2);
            survives(&mut cluster, async |cluster, workload| {
                for stop in 0..stops {
                    let leader = cluster.leader().await;
                    tokio::time::sleep(Duration::from_millis(random.below(400))).await;
                    cluster.members[leader].signal("STOP");
                    // Every other time nobody can tell it that another one leads.
                    if stop % 2 == 0 {
                        cluster.isolate(leader);
                    }
                    let longest = if stops > 2 { 8_000 } else { 2_000 };
                    tokio::time::sleep(Duration::from_millis(500 + random.below(longest))).await;
                    let enough = workload.newest() + 50;
                    within(MOMENTS, "nothing is written without the leader", async || {
                        (workload.newest() > enough).then_some(())
                    })
                    .await;
                    workload.reads(leader, 50);
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    cluster.members[leader].signal("CONT");
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    cluster.mend();
                    cluster.wait_until_all_answer().await;
                }
            })
            .await;
        });
    }
}
