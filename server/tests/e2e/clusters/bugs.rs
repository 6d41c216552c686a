//! Bugs that clusters of etcd and others had, one test each; the numbers are those of the project's
//! list of known bugs.

use std::time::Duration;

use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest, LeaseGrantRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest,
    MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, PutRequest, RangeRequest, RequestOp,
    StatusRequest, TxnRequest,
};

use super::workload::survives;
use crate::harness::{
    Client, Cluster, Product, Random, TempDir, Wiring, free_address, from_env, products_of_clusters, run,
    within,
};

/// Longer than a cluster needs to elect a leader, or to write some thousand keys.
const MOMENTS: Duration = Duration::from_secs(120);

async fn with_cluster(
    product: Product,
    wiring: Wiring,
    flags: &[&str],
    test: impl AsyncFnOnce(&mut Cluster, &TempDir),
) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, wiring, dir.path(), 3, flags).await;
    test(&mut cluster, &dir).await;
}

fn put(key: &str, value: impl Into<bytes::Bytes>) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.into(), ..PutRequest::default() }
}

fn range(key: &str, revision: i64) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), revision, ..RangeRequest::default() }
}

fn txn(ops: Vec<Request>) -> TxnRequest {
    let success = ops.into_iter().map(|op| RequestOp { request: Some(op) }).collect();
    TxnRequest { success, ..TxnRequest::default() }
}

/// The revision of all members, which have the same records of all revisions.
async fn common_revision(cluster: &Cluster) -> i64 {
    cluster.wait_until_all_answer().await;
    let mut all = Vec::new();
    for client in cluster.clients() {
        let reply = client.hash_of_keys(None).await;
        all.push((reply.hash_revision, reply.compact_revision, reply.hash));
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "members differ: {all:?}");
    all[0].0
}

/// Makes a defragmentation take some time.
async fn fill(client: &Client, keys: usize) {
    for number in 0..keys {
        client.kv.clone().put(put(&format!("filler/{number:04}"), vec![b'f'; 10_000])).await.unwrap();
    }
    let all = DeleteRangeRequest {
        key: "filler/".into(),
        range_end: format!("filler/{:04}", keys / 2).into(),
        ..DeleteRangeRequest::default()
    };
    let revision = client.kv.clone().delete_range(all).await.unwrap().into_inner().header.unwrap().revision;
    client.kv.clone().compact(CompactionRequest { revision, physical: true }).await.unwrap();
}

/// etcd #14685: a member that was killed while it defragmented carried entries out twice
/// afterwards, and its revision grew beyond that of the others.
#[test]
fn bug_004_members_that_are_killed_while_they_defragment_stay_equal() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, _| {
            fill(&cluster.client(0), 1_000).await;
            let mut random = Random::new(from_env("REVD_CLUSTER_SEED", 1));
            survives(cluster, async |cluster, _| {
                for round in 0..from_env("REVD_CLUSTER_KILLS", 4) {
                    let member = usize::try_from(round).unwrap() % 3;
                    let mut maintenance = cluster.client(member).maintenance;
                    let under_way =
                        tokio::spawn(async move { maintenance.defragment(DefragmentRequest {}).await });
                    tokio::time::sleep(Duration::from_millis(1 + random.below(60))).await;
                    cluster.members[member].kill();
                    drop(under_way.await.unwrap());
                    cluster.members[member].spawn_again();
                    cluster.wait_until_all_answer().await;
                }
            })
            .await;
            common_revision(cluster).await;
        }));
    }
}

/// etcd #18667 and #21432: a range at an old revision in a transaction failed on one member only.
/// etcd #18679: a transaction that failed half-way left what came before the failure.
#[test]
fn bug_007_bug_008_transactions_fail_on_all_members_and_leave_nothing() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, _| {
            let client = cluster.client(0);
            for _ in 0..5 {
                client.kv.clone().put(put("k", "v")).await.unwrap();
            }
            client.kv.clone().compact(CompactionRequest { revision: 4, physical: false }).await.unwrap();
            let before = common_revision(cluster).await;
            let leased = PutRequest { lease: 99, ..put("b", "v") };
            let nameless = PutRequest { ignore_value: true, ..put("missing", "") };
            let failures = [
                (
                    Request::RequestRange(range("k", 2)),
                    "etcdserver: mvcc: required revision has been compacted",
                ),
                (
                    Request::RequestRange(range("k", 99)),
                    "etcdserver: mvcc: required revision is a future revision",
                ),
                (Request::RequestPut(leased), "etcdserver: requested lease not found"),
                (Request::RequestPut(nameless), "etcdserver: key not found"),
            ];
            for mut member in cluster.clients() {
                for (failing, text) in failures.clone() {
                    let ops =
                        vec![Request::RequestPut(put("a", "v")), failing, Request::RequestPut(put("c", "v"))];
                    let failed = member.kv.txn(txn(ops.clone())).await.unwrap_err();
                    assert_eq!(failed.message(), text, "{product:?}");
                    let nested = txn(vec![Request::RequestPut(put("d", "v")), Request::RequestTxn(txn(ops))]);
                    assert_eq!(member.kv.txn(nested).await.unwrap_err().message(), text, "{product:?}");
                }
            }
            assert_eq!(common_revision(cluster).await, before, "{product:?}");
            for mut member in cluster.clients() {
                let all = RangeRequest { range_end: "e".into(), ..range("a", 0) };
                assert_eq!(member.kv.range(all).await.unwrap().into_inner().count, 0, "{product:?}");
                // One that reads what is still there makes one revision on each.
                let ops = vec![Request::RequestRange(range("k", 4)), Request::RequestPut(put("k", "w"))];
                assert!(member.kv.txn(txn(ops)).await.unwrap().into_inner().succeeded);
            }
            assert_eq!(common_revision(cluster).await, before + 3, "{product:?}");
        }));
    }
}

/// Requests that leave an entry of each kind in the log, but those of users and roles.
async fn one_of_each(client: &Client, step: usize) -> bool {
    let (mut kv, mut lease, mut cluster) = (client.kv.clone(), client.lease.clone(), client.cluster.clone());
    let mut maintenance = client.maintenance.clone();
    let alarm = |action: AlarmAction| AlarmRequest {
        action: action as i32,
        member_id: 7,
        alarm: AlarmType::Nospace as i32,
    };
    let learner = async || {
        let request = MemberListRequest { linearizable: true };
        let members = client.cluster.clone().member_list(request).await.unwrap().into_inner().members;
        members.into_iter().find(|member| member.is_learner).unwrap().id
    };
    let url = || vec![format!("http://{}", free_address())];
    match step {
        0 => drop(kv.put(put("a", "v")).await.unwrap()),
        1 => drop(
            kv.txn(txn(vec![Request::RequestPut(put("b", "v")), Request::RequestPut(put("c", "v"))]))
                .await
                .unwrap(),
        ),
        2 => {
            let request = DeleteRangeRequest { key: "b".into(), ..DeleteRangeRequest::default() };
            drop(kv.delete_range(request).await.unwrap());
        }
        3 => drop(kv.compact(CompactionRequest { revision: 4, physical: false }).await.unwrap()),
        4 => drop(lease.lease_grant(LeaseGrantRequest { id: 7, ttl: 600 }).await.unwrap()),
        5 => drop(kv.put(PutRequest { lease: 7, ..put("leased", "v") }).await.unwrap()),
        6 => drop(lease.lease_grant(LeaseGrantRequest { id: -8, ttl: 600 }).await.unwrap()),
        7 => drop(lease.lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap()),
        8 => drop(maintenance.alarm(alarm(AlarmAction::Activate)).await.unwrap()),
        9 => {
            assert_eq!(
                kv.put(put("a", "w")).await.unwrap_err().message(),
                "etcdserver: mvcc: database space exceeded"
            );
            drop(maintenance.alarm(alarm(AlarmAction::Deactivate)).await.unwrap());
        }
        10 => {
            let request = MemberAddRequest { peer_ur_ls: url(), is_learner: true };
            within(MOMENTS, "no learner can be added", async || {
                cluster.member_add(request.clone()).await.ok()
            })
            .await;
        }
        11 => {
            let id = learner().await;
            drop(cluster.member_update(MemberUpdateRequest { id, peer_ur_ls: url() }).await.unwrap());
        }
        12 => {
            let id = learner().await;
            drop(cluster.member_remove(MemberRemoveRequest { id }).await.unwrap());
        }
        _ => return false,
    }
    true
}

/// Tables beside the keys, as a member has them.
async fn tables(client: &Client) -> String {
    let (mut lease, mut cluster, mut maintenance) =
        (client.lease.clone(), client.cluster.clone(), client.maintenance.clone());
    let mut leases = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    leases.sort_by_key(|lease| lease.id);
    let mut members = cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner().members;
    members.sort_by_key(|member| member.id);
    let alarms = maintenance.alarm(AlarmRequest::default()).await.unwrap().into_inner().alarms;
    format!("{leases:?} {members:?} {alarms:?}")
}

/// etcd #11651, #13937, #14429: entries that changed no key left the applied index where it was; a
/// start carried them out again, or failed.
#[test]
fn bug_009_members_that_start_again_after_an_entry_of_any_kind_stay_equal() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, _| {
            let mut step = 0;
            loop {
                let leader = cluster.leader().await;
                if !one_of_each(&cluster.client(leader), step).await {
                    break;
                }
                let member = (leader + 1 + step % 2) % 3;
                cluster.members[member].kill();
                cluster.members[member].spawn_again();
                cluster.wait_until_answers(member).await;
                step += 1;
            }
            let (revision, before) = (common_revision(cluster).await, tables(&cluster.client(0)).await);
            for member in &mut cluster.members {
                member.kill();
            }
            cluster.members.iter_mut().for_each(crate::harness::Server::spawn_again);
            assert_eq!(common_revision(cluster).await, revision, "{product:?}");
            for client in cluster.clients() {
                assert_eq!(tables(&client).await, before, "{product:?}");
            }
        }));
    }
}

/// etcd #20271: a state that was installed during a defragmentation damaged the file.
#[test]
fn bug_012_states_are_sent_and_installed_while_members_defragment_and_compact() {
    for product in products_of_clusters() {
        let flags = ["--snapshot-count=20", "--snapshot-catchup-entries=10"];
        run(with_cluster(product, Wiring::Proxied, &flags, async |cluster, _| {
            fill(&cluster.client(0), 600).await;
            survives(cluster, async |cluster, workload| {
                let away = (cluster.leader().await + 1) % 3;
                cluster.isolate(away);
                let enough = workload.newest() + 4_000;
                within(MOMENTS, "nothing is written without one member", async || {
                    (workload.newest() > enough).then_some(())
                })
                .await;
                cluster.save_without(away).await;
                cluster.mend();
                let is_back = std::cell::Cell::new(false);
                // A revision before the clients began: their watches may go back to that.
                let busy = async |member: usize| {
                    let client = cluster.client(member);
                    while !is_back.get() {
                        let _ = client.maintenance.clone().defragment(DefragmentRequest {}).await;
                        let _ = client
                            .kv
                            .clone()
                            .compact(CompactionRequest { revision: 2, physical: true })
                            .await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let coming_back = async {
                    cluster.wait_until_all_answer().await;
                    is_back.set(true);
                };
                tokio::join!(busy(0), busy(1), busy(2), coming_back);
                if product == Product::Revd {
                    cluster.members[away].wait_until_says("received a state", "it had all it needs");
                }
            })
            .await;
            common_revision(cluster).await;
        }));
    }
}

/// The segments of a member's log, oldest first.
fn segments(data_dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let folder = std::fs::read_dir(data_dir.join("member/wal")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        folder.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).collect();
    segments.sort();
    segments
}

/// Flips a bit of a record in the middle of what a member has written to its log.
fn damage_log(data_dir: &std::path::Path) {
    let segments = segments(data_dir);
    let mut bytes = std::fs::read(&segments[0]).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    // Not between frames, where nothing would be lost.
    let middle = used / 2 + bytes[used / 2..].windows(8).position(|part| part == b"vvvvvvvv").unwrap();
    bytes[middle] ^= 0x10;
    std::fs::write(&segments[0], bytes).unwrap();
}

/// Members of a former study (FAST 2018) took damage in the middle of their log for its end, and
/// voted and acknowledged without what they had lost. One of revd or etcd does not start.
#[test]
fn bug_017_a_member_whose_log_is_damaged_in_the_middle_does_not_take_part() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, dir| {
            let damaged = (cluster.leader().await + 1) % 3;
            let other = cluster.client((damaged + 1) % 3);
            for _ in 0..100 {
                other.kv.clone().put(put("k", vec![b'v'; 2_000])).await.unwrap();
            }
            let revision = common_revision(cluster).await;
            let status = cluster.client(damaged).maintenance.status(StatusRequest {}).await.unwrap();
            let id = status.into_inner().header.unwrap().member_id;
            cluster.members[damaged].kill();
            damage_log(cluster.members[damaged].data_dir());
            cluster.members[damaged].spawn_again();
            let server = &mut cluster.members[damaged];
            within(MOMENTS, "it starts with a shorter log", async || (!server.is_running()).then_some(()))
                .await;
            let log = server.log();
            assert!(product == Product::Etcd || log.contains(".wal") && log.contains("offset"), "{log}");
            // It is removed, and what it had comes from the others.
            other.cluster.clone().member_remove(MemberRemoveRequest { id }).await.unwrap();
            cluster.forget(damaged);
            let new = cluster.add(dir.path()).await;
            cluster.wait_until_answers(new).await;
            assert_eq!(common_revision(cluster).await, revision);
        }));
    }
}

/// In ZooKeeper a file of the log that was missing in the middle was passed over without a word.
#[test]
fn bug_023_a_member_without_a_part_of_its_log_does_not_start() {
    run(with_cluster(Product::Revd, Wiring::Direct, &[], async |cluster, _| {
        // Members keep the log for each other: some segments of 16 MiB.
        let client = cluster.client(0);
        for number in 0..70 {
            client.kv.clone().put(put(&format!("k{number}"), vec![b'v'; 1_000_000])).await.unwrap();
        }
        let revision = common_revision(cluster).await;
        cluster.members[2].kill();
        let all = segments(cluster.members[2].data_dir());
        assert!(all.len() >= 3, "{all:?}");
        for missing in &all[1..all.len() - 1] {
            let aside = missing.with_extension("aside");
            std::fs::rename(missing, &aside).unwrap();
            cluster.members[2].spawn_again();
            let server = &mut cluster.members[2];
            within(MOMENTS, "it starts without it", async || (!server.is_running()).then_some(())).await;
            let name = missing.file_stem().unwrap().to_str().unwrap();
            let words = format!("segment {} of the log is missing", u64::from_str_radix(name, 16).unwrap());
            assert!(server.log().contains(&words), "{words}: {}", server.log());
            std::fs::rename(&aside, missing).unwrap();
        }
        cluster.members[2].spawn_again();
        assert_eq!(common_revision(cluster).await, revision);
    }));
}

/// etcd #3504: a member that has lost its disk came back with its old id, as if it had promised
/// nothing. etcd's own members refuse that: the cluster knows them already.
#[test]
fn bug_054_a_member_that_has_lost_its_data_does_not_come_back_with_its_id() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, dir| {
            let client = cluster.client(0);
            for _ in 0..50 {
                client.kv.clone().put(put("k", "v")).await.unwrap();
            }
            common_revision(cluster).await;
            let wiped = (cluster.leader().await + 1) % 3;
            let mut status =
                cluster.client(wiped).maintenance.status(StatusRequest {}).await.unwrap().into_inner();
            let id = status.header.take().unwrap().member_id;
            cluster.members[wiped].kill();
            let data = cluster.members[wiped].data_dir().to_owned();
            std::fs::remove_dir_all(&data).unwrap();
            cluster.members[wiped].spawn_again();
            let server = &mut cluster.members[wiped];
            within(MOMENTS, "it goes on as if it were new", async || (!server.is_running()).then_some(()))
                .await;
            let log = server.log();
            assert!(product == Product::Etcd || log.contains("already been bootstrapped"), "{log}");
            // It is removed, and comes back as another one.
            let left = cluster.client((wiped + 1) % 3);
            left.cluster.clone().member_remove(MemberRemoveRequest { id }).await.unwrap();
            cluster.forget(wiped);
            let new = cluster.add(dir.path()).await;
            cluster.wait_until_answers(new).await;
            common_revision(cluster).await;
        }));
    }
}

/// Another leader twenty times; the most seconds that a member says are left of lease 7, each time.
async fn left_with_twenty_leaders(product: Product, cluster: &mut Cluster) -> Vec<i64> {
    let clients = cluster.clients();
    let mut ids = Vec::new();
    for client in &clients {
        let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        ids.push(status.header.unwrap().member_id);
    }
    let mut left = Vec::new();
    for round in 0..20 {
        let leader = cluster.leader().await;
        let target_id = ids[(leader + 1) % 3];
        let moved = clients[leader].maintenance.clone().move_leader(MoveLeaderRequest { target_id }).await;
        moved.unwrap_or_else(|status| panic!("{product:?}, round {round}: {status}"));
        cluster.wait_until_all_answer().await;
        let mut most = 0;
        for client in &clients {
            let request = LeaseTimeToLiveRequest { id: 7, keys: false };
            let told = client.lease.clone().lease_time_to_live(request).await.unwrap().into_inner();
            most = most.max(told.ttl);
        }
        left.push(most);
    }
    left
}

/// etcd #9395 and others: leases began anew with each leader.
#[test]
fn bug_076_leases_end_however_often_the_leader_changes() {
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &[], async |cluster, _| {
            let client = cluster.client(0);
            client.lease.clone().lease_grant(LeaseGrantRequest { id: 7, ttl: 100 }).await.unwrap();
            let left = left_with_twenty_leaders(product, cluster).await;
            // A new leader adds the time of an election.
            assert!(left.iter().all(|left| (1..=102).contains(left)), "{product:?}: {left:?}");
        }));
    }
}

/// The same with checkpoints: the time left of a long lease is noted in the log every five minutes,
/// and a new leader goes on from there. (In virtual time: script `bug_076...` in
/// `member/tests/scripts/lease/`.)
#[test]
fn bug_076_what_was_checkpointed_does_not_grow_with_twenty_leaders() {
    if from_env("REVD_LONG", 0) == 0 {
        eprintln!("skipped: waits for a checkpoint, more than five minutes; REVD_LONG=1 runs it");
        return;
    }
    let flags = ["--feature-gates=LeaseCheckpoint=true,LeaseCheckpointPersist=true"];
    for product in products_of_clusters() {
        run(with_cluster(product, Wiring::Direct, &flags, async |cluster, _| {
            let client = cluster.client(0);
            client.lease.clone().lease_grant(LeaseGrantRequest { id: 7, ttl: 1000 }).await.unwrap();
            tokio::time::sleep(Duration::from_secs(310)).await;
            let left = left_with_twenty_leaders(product, cluster).await;
            assert!(left.iter().all(|left| (1..=702).contains(left)), "{product:?}: {left:?}");
        }));
    }
}

/// Ids and names of all members, as one of them knows them.
async fn rows(client: &Client) -> Vec<(u64, String, bool)> {
    let request = MemberListRequest { linearizable: true };
    let members = client.cluster.clone().member_list(request).await.unwrap().into_inner().members;
    let mut rows: Vec<_> = members.into_iter().map(|row| (row.id, row.name, row.is_learner)).collect();
    rows.sort();
    rows
}

/// etcd #20967, #20995: members that were removed were there again after a start, and in states
/// that were sent. A cluster that is forced to one member: `disaster.rs`.
#[test]
fn bug_058_members_that_were_removed_stay_away() {
    for product in products_of_clusters() {
        let flags = ["--snapshot-count=20", "--snapshot-catchup-entries=5"];
        run(with_cluster(product, Wiring::Direct, &flags, async |cluster, dir| {
            let removed = cluster.add(dir.path()).await;
            cluster.wait_until_answers(removed).await;
            let status = cluster.client(removed).maintenance.status(StatusRequest {}).await.unwrap();
            let id = status.into_inner().header.unwrap().member_id;
            let client = cluster.client(0);
            // All have to be connected for five seconds.
            within(MOMENTS, "it cannot be removed", async || {
                client.cluster.clone().member_remove(MemberRemoveRequest { id }).await.ok()
            })
            .await;
            cluster.forget(removed);
            cluster.wait_until_ends(removed).await;
            let expected = rows(&client).await;
            assert_eq!(expected.len(), 3);
            for round in 0..3 {
                // In the last round one of them is sent a state that has the removal in it: once a
                // checkpoint has let the leader cut its log.
                for attempt in 1.. {
                    let away = (cluster.leader().await + 1) % 3;
                    let present = cluster.client((away + 1) % 3);
                    cluster.members[away].kill();
                    for number in 0..100 * (round / 2) {
                        present.kv.clone().put(put(&format!("k{number}"), "v")).await.unwrap();
                    }
                    cluster.members[away].spawn_again();
                    cluster.wait_until_all_answer().await;
                    for client in cluster.clients() {
                        assert_eq!(rows(&client).await, expected, "{product:?}, round {round}");
                    }
                    if round < 2 || product == Product::Etcd {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(300)).await; // its log is written behind it
                    if cluster.members[away].log().contains("received a state") {
                        break;
                    }
                    assert!(attempt < 10, "it was not behind the log");
                }
                (0..3).for_each(|member| cluster.members[member].kill());
                (0..3).for_each(|member| cluster.members[member].spawn_again());
                cluster.wait_until_all_answer().await;
                for client in cluster.clients() {
                    assert_eq!(rows(&client).await, expected, "{product:?}, after round {round}");
                }
            }
            // It ends again, by itself.
            cluster.members[removed].spawn_again();
            cluster.wait_until_ends(removed).await;
            common_revision(cluster).await;
        }));
    }
}
