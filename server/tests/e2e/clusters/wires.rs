//! Lines between members, and to them, that are worse than cut: damaged, late, slow, half-open, in
//! one direction only.

use std::time::Duration;

use revd_proto::etcdserverpb::{PutRequest, RangeRequest, StatusRequest};

use super::workload::survives;
use crate::harness::{
    Cluster, Fault, Party, Product, TempDir, Way, Wiring, products_of_clusters, run, wait_until, within,
};

/// Longer than a cluster needs to elect a leader.
const MOMENTS: Duration = Duration::from_secs(60);

/// Both directions between all members.
fn ways(members: usize) -> Vec<Way> {
    let pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).map(|(from, to)| Way::between(from, to)).collect()
}

/// Frames of peers have checksums: a flipped bit costs the connection, and nothing of the frame is
/// applied. This is of revd alone: the connections of etcd's peers have none without TLS.
#[test]
fn damaged_frames_of_peers_end_their_connection_and_are_never_applied() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &[]).await;
        survives(&mut cluster, async |cluster, _| {
            for _ in 0..4 {
                let network = cluster.network();
                let struck =
                    ways(3).into_iter().map(|way| network.strike(way, Fault::Corrupt { every: 20_000 }));
                let struck: Vec<_> = struck.collect();
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                let met: u64 = struck.into_iter().map(|strike| network.relieve(strike)).sum();
                assert!(met > 0, "no bit was flipped");
                cluster.wait_until_all_answer().await;
            }
        })
        .await;
        let logs = || cluster.members.iter().map(|member| member.log()).collect::<String>();
        let why = || format!("no member has said that a frame is damaged: {}", logs());
        wait_until(MOMENTS, || logs().contains("checksum"), why);
        assert!(!logs().contains("a bug in revd"), "{}", logs());
    });
}

/// The term and the leader as a member has them.
async fn leadership(cluster: &Cluster, member: usize) -> (u64, u64) {
    let status = cluster.client(member).maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    (status.raft_term, status.leader)
}

/// Each direction between two of three members is silent in turn: the third hears both, so that a
/// leader is found that stays, and what clients write through some member is acknowledged.
#[test]
fn bug_052_members_that_hear_each_other_one_way_alone_keep_a_leader() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let mut cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &[]).await;
            survives(&mut cluster, async |cluster, workload| {
                for way in ways(3) {
                    let strike = cluster.network().strike(way, Fault::Silence);
                    // Longer than a lost leader takes to be missed, and another to be elected.
                    let mut steady = (0, leadership(cluster, 0).await);
                    within(MOMENTS, "elections do not end", async || {
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        let mut seen = Vec::new();
                        for member in 0..3 {
                            seen.push(leadership(cluster, member).await);
                        }
                        let now = seen.into_iter().max().unwrap();
                        let is_steady = now == steady.1 && now.1 != 0;
                        steady = (if is_steady { steady.0 + 1 } else { 0 }, now);
                        (steady.0 == 6).then_some(())
                    })
                    .await;
                    let enough = workload.newest() + 20;
                    within(MOMENTS, "nothing is written", async || {
                        (workload.newest() > enough).then_some(())
                    })
                    .await;
                    assert!(cluster.network().relieve(strike) > 0, "{way:?} carries nothing anyhow");
                    cluster.wait_until_all_answer().await;
                }
            })
            .await;
        });
    }
}

/// HTTP/2 garbage hurts the connection that it comes on; calls on others are answered meanwhile.
#[test]
fn damaged_bytes_on_a_client_port_hurt_their_connection_alone() {
    run(async {
        let dir = TempDir::new();
        let cluster = Cluster::start(Product::Revd, Wiring::AllProxied, dir.path(), 1, &[]).await;
        let [mut client, stranger] = cluster.clients_behind_proxies(0, Duration::from_secs(10));
        for (from, to) in [(Party::Strangers, Party::Member(0)), (Party::Member(0), Party::Strangers)] {
            cluster.network().strike(Way { from, to }, Fault::Corrupt { every: 300 });
        }
        let mut refused = 0;
        for number in 0..300 {
            // Reads alone: a damaged write is another write.
            let key = format!("key {number}").into_bytes();
            let read = RangeRequest { key: key.clone().into(), ..RangeRequest::default() };
            let reading =
                tokio::time::timeout(Duration::from_secs(1), async { stranger.kv.clone().range(read).await });
            let put = PutRequest { key: key.into(), value: "v".into(), ..PutRequest::default() };
            let (read, put) = tokio::join!(reading, client.kv.put(put));
            put.unwrap_or_else(|status| panic!("another connection is hurt: {status:?}"));
            refused += u64::from(!read.is_ok_and(|read| read.is_ok()));
        }
        assert!(refused > 10, "only {refused} damaged calls failed");
    });
}
