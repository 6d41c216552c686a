//! A member whose state is not what the log has made it: it is found, named and sent no clients,
//! and is replaced. These tests are of revd alone: etcd looks for such members a minute apart, or
//! not at all.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use revd_engine::db::{Db, DbOptions};
use revd_engine::disk::MmapDisk;
use revd_engine::meta::Table;
use revd_engine::mvcc::{CheckpointKind, Store};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, CompactionRequest, LeaseGrantRequest, LeaseRevokeRequest, MemberListRequest,
    PutRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest,
};
use tonic::{Code, Status};

use crate::harness::{Client, Cluster, Product, Server, TempDir, Wiring, peers, run, within};

const CORRUPT: i32 = 2;
/// A member is to be named within a second or so; this is for machines that stand still.
const DEADLINE: Duration = Duration::from_secs(20);

async fn put(client: &Client, key: &str, lease: i64) -> Result<(), Status> {
    let (key, value) = (key.to_owned().into(), "value".into());
    let request = PutRequest { key, value, lease, ..PutRequest::default() };
    client.kv.clone().put(request).await.map(drop)
}

async fn get(client: &Client, serializable: bool) -> Result<usize, Status> {
    let request = RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() };
    Ok(client.kv.clone().range(request).await?.into_inner().kvs.len())
}

async fn alarms(client: &Client, action: i32, member_id: u64) -> Vec<AlarmMember> {
    let request = AlarmRequest { action, member_id, alarm: if action == 0 { 0 } else { CORRUPT } };
    client.maintenance.clone().alarm(request).await.unwrap().into_inner().alarms
}

async fn id(cluster: &Cluster, member: usize) -> u64 {
    let status = cluster.client(member).maintenance.status(StatusRequest {}).await.unwrap();
    status.into_inner().header.unwrap().member_id
}

/// Writes into the tree file of a member that is stopped: every checksum is right, and the content
/// is not what the log says.
fn forge(member: &Server) {
    let tree = member.data_dir().join("member/tree.revd");
    let disk = Arc::new(MmapDisk::open(&tree).unwrap());
    let mut store = Store::open(disk, DbOptions::default()).unwrap();
    let mut txn = store.begin();
    txn.put(b"k", b"forged", 0);
    txn.commit();
    let checkpoint = store.checkpoint(CheckpointKind::WithIndex).unwrap();
    assert!(store.finish_checkpoint(checkpoint.write().unwrap()).no_space.is_none());
}

/// Changes the value of the newest record in the tree file of a member that is stopped: every
/// checksum is right, and no later write depends on it.
fn forge_value(member: &Server) {
    let tree = member.data_dir().join("member/tree.revd");
    let mut db = Db::open(Arc::new(MmapDisk::open(&tree).unwrap()), DbOptions::default()).unwrap();
    let state = db.snapshot();
    let (mut cursor, mut newest) = (state.cursor(Table(0)), None);
    cursor.seek(&[]).unwrap();
    while let Some((key, record)) = cursor.next().unwrap() {
        newest = Some((key.to_vec(), record.to_vec()));
    }
    let (key, mut record) = newest.unwrap();
    *record.last_mut().unwrap() ^= 1;
    let mut txn = db.begin().unwrap();
    txn.put(Table(0), &key, &record).unwrap();
    txn.set_user(state.user());
    txn.commit().unwrap();
}

fn etcdctl(server: &Server, line: &str) -> Option<String> {
    let mut command = Command::new(peers()?.path("etcdctl"));
    command.args(["--endpoints", &server.endpoint()]).args(line.split_whitespace());
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    // Go's library puts one space or two between the parts of an alarm.
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Waits until this member is named, as the others have it.
async fn wait_until_named(client: &Client, named: u64) {
    within(DEADLINE, "no member is named", async || {
        let alarms = alarms(client, 0, 0).await;
        if alarms.is_empty() {
            return None;
        }
        assert_eq!(alarms, [AlarmMember { member_id: named, alarm: CORRUPT }]);
        Some(())
    })
    .await;
}

#[test]
fn a_member_with_another_state_is_named_sends_clients_away_and_is_replaced() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &[]).await;
        let sound = cluster.client(0);
        for _ in 0..3 {
            put(&sound, "k", 0).await.unwrap();
        }
        assert!(get(&cluster.client(1), false).await.is_ok()); // it has applied them
        let named = id(&cluster, 1).await;
        cluster.members[1].stop();
        forge(&cluster.members[1]);
        cluster.members[1].start_again();
        let mut watch = cluster.client(1).watch.clone();
        let create = WatchCreateRequest { key: "other".into(), ..WatchCreateRequest::default() };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
        let watching = watch.watch(requests).await.map(tonic::Response::into_inner);
        let _ = put(&sound, "k", 0).await;
        wait_until_named(&sound, named).await;
        // Writes are refused everywhere, in etcd's words; reads are served by the others alone.
        let refused = put(&sound, "k", 0).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::DataLoss, "etcdserver: corrupt cluster"));
        assert_eq!(get(&sound, false).await.unwrap(), 1);
        assert_eq!(get(&sound, true).await.unwrap(), 1);
        let corrupt = cluster.client(1);
        within(DEADLINE, "it serves", async || get(&corrupt, true).await.err()).await;
        for refused in [get(&corrupt, false).await.unwrap_err(), put(&corrupt, "k", 0).await.unwrap_err()] {
            assert_eq!(refused.code(), Code::Unavailable);
            assert!(refused.message().starts_with("etcdserver: corrupt member"), "{refused}");
        }
        if let Ok(mut watching) = watching {
            let end = within(DEADLINE, "its watchers go on", async || watching.message().await.err()).await;
            assert_eq!(end.code(), Code::Unavailable, "{end}");
        }
        assert_eq!(alarms(&corrupt, 0, 0).await.len(), 1, "operators are answered");
        if let Some(text) = etcdctl(&cluster.members[0], "alarm list") {
            assert_eq!(text, format!("memberID:{named} alarm:CORRUPT"));
        }
        // As long as it is there, the alarm comes back.
        alarms(&sound, 2, named).await;
        wait_until_named(&sound, named).await;
        cluster.remove(1).await;
        match etcdctl(&cluster.members[0], "alarm disarm") {
            Some(text) => assert_eq!(text, format!("memberID:{named} alarm:CORRUPT")),
            None => assert_eq!(alarms(&sound, 2, named).await.len(), 1),
        }
        put(&sound, "k", 0).await.unwrap();
        let added = cluster.add(dir.path()).await;
        cluster.members[added].wait_until_ready();
        cluster.wait_until_answers(added).await;
        put(&cluster.client(added), "k", 0).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(alarms(&sound, 0, 0).await, []);
    });
}

/// Stops member 1 of three and changes a value in its file.
async fn with_another_value(dir: &TempDir, flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, flags).await;
    for _ in 0..3 {
        put(&cluster.client(0), "k", 0).await.unwrap();
    }
    get(&cluster.client(1), false).await.unwrap(); // it has applied them
    cluster.members[1].stop();
    forge_value(&cluster.members[1]);
    cluster
}

#[test]
fn a_member_that_is_to_compare_its_keys_first_does_not_start_with_others() {
    run(async {
        for flag in ["--feature-gates=InitialCorruptCheck=true", "--experimental-initial-corrupt-check"] {
            let dir = TempDir::new();
            let mut cluster = with_another_value(&dir, &[flag]).await;
            cluster.members[1].spawn_again();
            let refused = &mut cluster.members[1];
            assert!(!refused.wait().success());
            let log = refused.log();
            assert!(log.contains("found data inconsistency with peers"), "{log}");
            cluster.members[2].stop();
            cluster.members[2].start_again();
            assert!(cluster.members[2].log().contains("initial corruption checking passed; no corruption"));
        }
    });
}

/// No later write depends on the value, so that only these checks see it.
#[test]
fn a_leader_that_is_to_compare_keys_names_a_member_with_others() {
    run(async {
        let of_all = ["--corrupt-check-time=500ms"];
        let of_compactions = ["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=500ms"];
        for flags in [&of_all[..], &of_compactions] {
            let dir = TempDir::new();
            let mut cluster = with_another_value(&dir, flags).await;
            let sound = cluster.client(0);
            let leader = cluster.leader().await;
            assert_ne!(leader, 1);
            cluster.members[1].start_again();
            let named = id(&cluster, 1).await;
            put(&sound, "k", 0).await.unwrap();
            if flags == of_compactions {
                // Of what it drops, no later hash is made.
                let compaction = CompactionRequest { revision: 4, physical: true };
                sound.kv.clone().compact(compaction).await.unwrap();
            }
            wait_until_named(&sound, named).await;
        }
    });
}

/// Leases, compactions at other times than those of checkpoints, members that were away and get a
/// state, another leader: all members have the same state, and none is named.
#[test]
fn members_that_agree_are_never_named() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--snapshot-count=50", "--snapshot-catchup-entries=10"];
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &flags).await;
        for away in [0, 1, 2] {
            cluster.members[away].kill();
            let client = cluster.client((away + 1) % 3);
            within(DEADLINE, "nothing is written", async || put(&client, "k", 0).await.ok()).await;
            let mut lease = client.lease.clone();
            let grant = LeaseGrantRequest { id: 7, ttl: 600 };
            lease.lease_grant(grant).await.unwrap();
            for key in 0..80 {
                put(&client, &format!("key {}", key % 9), if key % 2 == 0 { 7 } else { 0 }).await.unwrap();
            }
            let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
            let revision = status.header.unwrap().revision - 20;
            let compaction = CompactionRequest { revision, physical: away == 1 };
            client.kv.clone().compact(compaction).await.unwrap();
            lease.lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap();
            cluster.members[away].start_again();
            cluster.wait_until_answers(away).await;
            put(&client, "k", 0).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            assert_eq!(alarms(&client, 0, 0).await, [], "{away} was away");
        }
        let members = MemberListRequest { linearizable: true };
        let members = cluster.client(0).cluster.clone().member_list(members).await.unwrap();
        assert_eq!(members.into_inner().members.len(), 3);
    });
}
