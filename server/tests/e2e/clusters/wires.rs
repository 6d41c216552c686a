//! Lines between members, and to them, that are worse than cut: damaged, late, slow, half-open, in
//! one direction only.

use std::time::Duration;

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use super::workload::survives;
use crate::harness::{Cluster, Fault, Party, Product, TempDir, Way, Wiring, run};

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
        let logs: String = cluster.members.iter().map(|member| member.log()).collect();
        assert!(logs.contains("checksum"), "no member has said that a frame is damaged: {logs}");
        assert!(!logs.contains("a bug in revd"), "{logs}");
    });
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
