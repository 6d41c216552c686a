//! Three members of revd find each other, elect a leader and replicate, and do so again after the
//! leader is killed and after all of them were stopped.

use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::harness::{Cluster, Product, TempDir, Wiring, run};

/// Writes a key through one member.
async fn put(cluster: &Cluster, member: usize, key: &str) {
    let request = PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() };
    let reply = cluster.client(member).kv.put(request).await;
    reply.unwrap_or_else(|status| panic!("member {member} does not write {key}: {status}"));
}

/// The keys that every member serves, with the revision of each; linearizable.
async fn keys(cluster: &Cluster) -> Vec<(String, i64)> {
    let mut of_all = Vec::new();
    for mut client in cluster.clients() {
        let request = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
        let reply = client.kv.range(request).await.unwrap().into_inner();
        let key = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let keys: Vec<_> = reply.kvs.iter().map(|kv| (key(&kv.key), kv.mod_revision)).collect();
        of_all.push(keys);
    }
    assert!(of_all.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {of_all:?}");
    of_all.swap_remove(0)
}

#[test]
fn three_members_of_revd_elect_a_leader_and_replicate() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &[]).await;
        for member in 0..3 {
            put(&cluster, member, &format!("k{member}")).await;
        }
        let expected = |names: &[&str]| -> Vec<(String, i64)> {
            names.iter().zip(2..).map(|(name, revision)| ((*name).to_owned(), revision)).collect()
        };
        assert_eq!(keys(&cluster).await, expected(&["k0", "k1", "k2"]));
        // Two go on without the one that led, and it catches up.
        let leader = cluster.leader().await;
        cluster.members[leader].kill();
        let other = (leader + 1) % 3;
        cluster.wait_until_answers(other).await;
        put(&cluster, other, "k3").await;
        cluster.members[leader].start_again();
        cluster.wait_until_all_answer().await;
        assert_eq!(keys(&cluster).await, expected(&["k0", "k1", "k2", "k3"]));
        // All stop and come back.
        for member in &mut cluster.members {
            member.stop();
        }
        for member in &mut cluster.members {
            member.spawn_again();
        }
        cluster.wait_until_all_answer().await;
        put(&cluster, 0, "k4").await;
        assert_eq!(keys(&cluster).await, expected(&["k0", "k1", "k2", "k3", "k4"]));
    });
}

/// The log of the others begins behind what a member has: it is sent the state, and goes on from
/// there with the log, also after another restart.
#[test]
fn a_member_of_revd_that_lags_behind_the_log_gets_the_state() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--snapshot-count=20", "--snapshot-catchup-entries=5"];
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &flags).await;
        put(&cluster, 0, "k000").await;
        let away = (cluster.leader().await + 1) % 3;
        for round in 1..=3 {
            cluster.members[away].kill();
            for number in 0..100 {
                put(&cluster, (away + 1) % 3, &format!("k{round}{number:02}")).await;
            }
            cluster.save_without(away).await;
            cluster.members[away].spawn_again();
            cluster.wait_until_all_answer().await;
            assert_eq!(keys(&cluster).await.len(), 1 + round * 100);
            // From then on the log is kept for a while for the one that has got a state.
            if round == 1 {
                cluster.members[away].wait_until_says("received a state", "it was not behind the log");
            }
            put(&cluster, away, "k000").await;
        }
        cluster.members[away].stop();
        cluster.members[away].spawn_again();
        cluster.wait_until_all_answer().await;
        let keys = keys(&cluster).await;
        assert_eq!((keys.len(), keys[0].1), (301, 305));
    });
}

/// Values of the keys that follow make the log longer than what stays of it in memory.
async fn put_much(cluster: &Cluster, member: usize, round: usize) {
    for number in 0..40 {
        let key = format!("k{round}{number:02}").into();
        let request = PutRequest { key, value: vec![b'v'; 1 << 20].into(), ..PutRequest::default() };
        cluster.client(member).kv.put(request).await.unwrap();
    }
}

/// Entries that others wrote while it was away, or stood still, are read from their segments, also
/// after all were started anew, and no state is sent.
#[test]
fn a_member_of_revd_that_was_away_comes_back_by_the_log_on_disk() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &[]).await;
        let away = (cluster.leader().await + 1) % 3;
        let here = (away + 1) % 3;
        put(&cluster, here, "k000").await;
        cluster.members[away].kill();
        put_much(&cluster, here, 1).await;
        cluster.members[away].spawn_again();
        cluster.wait_until_all_answer().await;
        assert_eq!(keys(&cluster).await.len(), 41);
        cluster.members[away].signal("STOP");
        put_much(&cluster, here, 2).await;
        cluster.members[away].signal("CONT");
        cluster.wait_until_all_answer().await;
        assert_eq!(keys(&cluster).await.len(), 81);
        cluster.members[away].kill();
        put_much(&cluster, here, 3).await;
        let others = [here, (away + 2) % 3];
        others.iter().for_each(|other| cluster.members[*other].kill());
        others.iter().for_each(|other| cluster.members[*other].spawn_again());
        cluster.members[away].spawn_again();
        cluster.wait_until_all_answer().await;
        assert_eq!(keys(&cluster).await.len(), 121);
        for member in &cluster.members {
            let log = member.log();
            assert!(!log.contains("received a state") && !log.contains("sending the state"), "{log}");
        }
    });
}
