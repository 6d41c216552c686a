//! Leases: the same replies as etcd's, keys that live as long as they must and no
//! longer, and bugs that others had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest,
};
use revd_proto::mvccpb::event::EventType;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use crate::harness::{
    Client, PATIENT, Random, Server, connect, from_env, run, with_clusters_beside, with_etcd_beside,
    with_restartable_server, with_server,
};

/// Seconds after a lease's end in which its keys are gone, as docs/COMPAT.md says.
const SLACK: Duration = Duration::from_secs(1);
/// Time a busy machine may add to that.
const BUSY: Duration = Duration::from_secs(20);

#[expect(clippy::disallowed_methods, reason = "leases are about time")]
fn now() -> Instant {
    Instant::now()
}

async fn grant(client: &Client, id: i64, ttl: i64) -> Result<i64, Status> {
    let mut lease = client.lease.clone();
    lease.lease_grant(LeaseGrantRequest { ttl, id }).await.map(|reply| reply.into_inner().id)
}

async fn put(client: &Client, key: &str, lease: i64) -> Result<(), Status> {
    let put = PutRequest { key: key.to_owned().into(), lease, ..PutRequest::default() };
    client.kv.clone().put(put).await.map(drop)
}

async fn exists(client: &Client, key: &str) -> bool {
    let range = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    client.kv.clone().range(range).await.unwrap().into_inner().count > 0
}

async fn keep_alive(client: &Client, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
    let requests = tokio_stream::iter([LeaseKeepAliveRequest { id }]);
    let mut replies = client.lease.clone().lease_keep_alive(requests).await?.into_inner();
    replies.message().await.map(|reply| reply.expect("an answer to the only keepalive"))
}

/// Seconds of leases that a test asks for: out of bounds and short ones, and others.
const ANY_TTL: [i64; 9] = [-5, 0, 1, 2, 60, 100, 9_000_000_000, 9_000_000_001, i64::MAX];
/// None that ends within a test.
const LONG_TTL: [i64; 5] = [600, 1_000, 9_000_000_000, 9_000_000_001, i64::MAX];

/// A random call about leases, its reply or error as text; times are left out.
async fn call(client: &Client, random: &mut Random, ttls: &[i64]) -> String {
    let id = random.pick(&[i64::MIN, -1, 0, 1, 2, 3, 4, 5, 6, i64::MAX]);
    let key = format!("k{}", random.below(6));
    let kind = random.below(9);
    let error = |status: Status| format!("{id}: {:?} {}", status.code(), status.message());
    let mut lease = client.lease.clone();
    let text = match kind {
        0 | 1 if id != 0 => {
            let ttl = random.pick(ttls);
            lease.lease_grant(LeaseGrantRequest { ttl, id }).await.map(|reply| {
                let reply = reply.into_inner();
                format!("{} {} {} {}", reply.header.unwrap().revision, reply.id, reply.ttl, reply.error)
            })
        }
        2 => lease
            .lease_revoke(LeaseRevokeRequest { id })
            .await
            .map(|reply| reply.into_inner().header.unwrap().revision.to_string()),
        3 => keep_alive(client, id).await.map(|reply| format!("{} {}", reply.id, reply.ttl)),
        4 => lease.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: random.one_in(2) }).await.map(
            |reply| {
                let mut reply = reply.into_inner();
                reply.keys.sort();
                let lives = reply.ttl.signum();
                format!("{} {} {lives} {:?}", reply.header.unwrap().revision, reply.granted_ttl, reply.keys)
            },
        ),
        5 => lease.lease_leases(LeaseLeasesRequest {}).await.map(|reply| {
            let mut ids: Vec<i64> = reply.into_inner().leases.iter().map(|lease| lease.id).collect();
            ids.sort_unstable();
            format!("{ids:?}")
        }),
        6 => {
            let delete = DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
            client
                .kv
                .clone()
                .delete_range(delete)
                .await
                .map(|reply| format!("{:?}", reply.into_inner().deleted))
        }
        _ => {
            let ignore_lease = random.one_in(4);
            let put = PutRequest {
                key: key.into(),
                lease: if ignore_lease { 0 } else { id },
                ignore_lease,
                prev_kv: true,
                ..PutRequest::default()
            };
            client.kv.clone().put(put).await.map(|reply| format!("{:?}", reply.into_inner().prev_kv))
        }
    };
    format!("{kind} {}", text.unwrap_or_else(error))
}

#[test]
fn replies_are_those_of_etcd() {
    // The shortest lease lives 75 s then: none ends in the middle, however busy the machine is.
    with_etcd_beside(&["--election-timeout=50000"], async |revd, etcd| {
        let (ours, theirs) = (revd.client().await, etcd.client().await);
        let calls = from_env("REVD_LEASE_CALLS", 2_000);
        let (mut random, mut same) = (Random::new(5), Random::new(5));
        let mut seen = BTreeMap::new();
        for number in 0..calls {
            let left = call(&ours, &mut random, &ANY_TTL).await;
            let right = call(&theirs, &mut same, &ANY_TTL).await;
            assert_eq!(left, right, "call {number}");
            *seen.entry(left.contains("etcdserver: ")).or_insert(0) += 1;
        }
        println!("{calls} calls equal; with an error: {seen:?}");
        assert_eq!(seen.len(), 2);
    });
}

/// Calls are spread over the members; each has caught up when it is asked.
#[test]
fn replies_of_three_members_are_those_of_three_etcds() {
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let (ours, theirs) = (ours.clients(), theirs.clients());
        let (mut random, mut same) = (Random::new(6), Random::new(6));
        for number in 0..from_env("REVD_LEASE_CALLS", 1_500) {
            let member = usize::try_from(number).unwrap() % 3;
            let (ours, theirs) = (&ours[member], &theirs[member]);
            tokio::join!(exists(ours, "k"), exists(theirs, "k"));
            let left = call(ours, &mut random, &LONG_TTL).await;
            let right = call(theirs, &mut same, &LONG_TTL).await;
            assert_eq!(left, right, "call {number} of member {member}");
        }
    });
}

/// Bugs 77 (ids below zero were not loaded) and 79 (a key outlived its lease).
#[test]
fn leases_and_their_keys_survive_a_restart() {
    with_restartable_server(&[], async |server, client| {
        let ids = [i64::MIN, -1, 1, 77, i64::MAX];
        for id in ids {
            grant(&client, id, 1000).await.unwrap();
            put(&client, &format!("key of {id}"), id).await.unwrap();
            put(&client, "moves on", id).await.unwrap();
        }
        let long = "long".repeat(50_000);
        put(&client, &long, 77).await.unwrap();
        put(&client, "key of 1", 0).await.unwrap();
        for way in ["kill", "stop"] {
            if way == "kill" {
                server.kill();
            } else {
                server.stop();
            }
            server.start_again();
            let client = server.client().await;
            let mut lease = client.lease.clone();
            let found = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
            assert_eq!(found.len(), ids.len());
            for id in ids {
                let request = LeaseTimeToLiveRequest { id, keys: true };
                let reply = lease.lease_time_to_live(request).await.unwrap().into_inner();
                let mut keys = vec![format!("key of {id}")];
                match id {
                    1 => keys.clear(),
                    77 => keys.push(long.clone()),
                    i64::MAX => keys.push("moves on".to_owned()),
                    _ => {}
                }
                assert_eq!((reply.granted_ttl, reply.keys.len()), (1000, keys.len()), "{id} after a {way}");
                assert!(keys.iter().all(|key| reply.keys.iter().any(|found| found == key.as_bytes())));
            }
        }
        let client = server.client().await;
        let revoke = |id| {
            let mut lease = client.lease.clone();
            async move { lease.lease_revoke(LeaseRevokeRequest { id }).await.unwrap().into_inner() }
        };
        let before = revoke(1).await.header.unwrap().revision;
        let after = revoke(77).await.header.unwrap().revision;
        assert_eq!(after, before + 1, "all keys of a lease go in one revision, none in none");
        assert!(!exists(&client, "key of 77").await && !exists(&client, &long).await);
        assert!(exists(&client, "key of 1").await && exists(&client, "moves on").await);
        revoke(i64::MAX).await;
        assert!(!exists(&client, "moves on").await);
    });
}

/// Bugs 74 (a keepalive right after its grant found nothing) and 75 (a
/// keepalive of a revoked lease was fine).
#[test]
fn keepalives_and_revokes_take_their_turns() {
    with_server(&["--cores", "2"], async |server, _| {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(server.client().await);
        }
        for round in 0..from_env("REVD_LEASE_ROUNDS", 1_000) {
            let one = &clients[usize::try_from(round % 4).unwrap()];
            let other = &clients[usize::try_from((round + 1) % 4).unwrap()];
            let id = grant(one, 0, 60).await.unwrap();
            assert_eq!(keep_alive(other, id).await.unwrap().ttl, 60);
            let mut lease = one.lease.clone();
            let (during, revoked) =
                tokio::join!(keep_alive(other, id), lease.lease_revoke(LeaseRevokeRequest { id }));
            let revoked = revoked.unwrap().into_inner().header.unwrap().revision;
            let during = during.unwrap();
            assert!(during.ttl == 60 || during.ttl == 0);
            assert!(during.header.unwrap().revision <= revoked);
            assert_eq!(keep_alive(other, id).await.unwrap().ttl, 0, "it is revoked");
        }
    });
}

/// One lease of the checker: a key that is kept alive for a while.
struct Kept {
    key: String,
    ttl: Duration,
    /// When the last keepalive was sent that was answered, and when its answer came.
    sent: Instant,
    answered: Instant,
}

/// Grants a lease and keeps it alive at random times for a while.
async fn keep(client: Client, number: u64) -> Kept {
    let mut random = Random::new(number);
    let ttl = 2 + i64::try_from(random.below(3)).unwrap();
    let sent = now();
    let id = grant(&client, 0, ttl).await.unwrap();
    let key = format!("kept/{number}");
    put(&client, &key, id).await.unwrap();
    let mut kept = Kept { key, ttl: Duration::from_secs(ttl.unsigned_abs()), sent, answered: now() };
    for _ in 0..random.below(12) {
        tokio::time::sleep(kept.ttl.mul_f64(0.2 + random.below(4) as f64 / 10.0)).await;
        let sent = now();
        // It fails while the server is away, and finds nothing if that took too long.
        if keep_alive(&client, id).await.is_ok_and(|reply| reply.ttl > 0) {
            (kept.sent, kept.answered) = (sent, now());
        }
    }
    kept
}

#[test]
fn no_key_goes_early_and_none_stays() {
    with_restartable_server(&[], async |server, client| {
        let start = now();
        let watcher = tokio::spawn(deletions(client.clone(), from_env("REVD_LEASES", 100)));
        let keeping: Vec<_> = (0..from_env("REVD_LEASES", 100))
            .map(|number| tokio::spawn(keep(client.clone(), number)))
            .collect();
        // A pause of the process, then a restart: both in the middle of it.
        tokio::time::sleep(Duration::from_secs(4)).await;
        server.signal("STOP");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.signal("CONT");
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.kill();
        server.start_again();
        let back = now();
        let mut kept = Vec::new();
        for task in keeping {
            kept.push(task.await.unwrap());
        }
        let gone = watcher.await.unwrap();
        let mut latest = Duration::ZERO;
        for Kept { key, ttl, sent, answered } in kept {
            let at = gone[&key];
            assert!(at >= sent + ttl, "{key} went {:?} too early", sent + ttl - at);
            // A new leader gives every lease its whole time again, and a second more.
            let due = (answered + ttl).max(back + ttl + Duration::from_secs(1));
            let due = if at < back { answered + ttl } else { due };
            latest = latest.max(at.saturating_duration_since(due));
            assert!(at < due + SLACK + BUSY, "{key} stayed {:?} too long", at - due);
        }
        println!(
            "{} leases in {:?}, the latest key {latest:?} after its lease's end",
            gone.len(),
            now() - start
        );
    });
}

/// When each of so many keys was deleted.
async fn deletions(client: Client, count: u64) -> BTreeMap<String, Instant> {
    let mut gone = BTreeMap::new();
    let mut revision = 1;
    while (gone.len() as u64) < count {
        let mut stream = client.open_watch();
        stream.ask(RequestUnion::CreateRequest(WatchCreateRequest {
            key: "kept/".into(),
            range_end: "kept0".into(),
            start_revision: revision + 1,
            ..WatchCreateRequest::default()
        }));
        while let Some(Ok(response)) = stream.next_within(Duration::from_secs(1)).await {
            for event in response.events {
                let kv = event.kv.unwrap();
                revision = kv.mod_revision;
                if event.r#type == EventType::Delete as i32 {
                    gone.insert(String::from_utf8(kv.key.to_vec()).unwrap(), now());
                }
            }
        }
    }
    gone
}

/// Many leases that end at once, while puts go on; and a keepalive that waits
/// for the end of one that is due.
#[test]
fn many_leases_end_at_once() {
    with_restartable_server(&[], async |_, client| {
        let count = from_env("REVD_LEASES_AT_ONCE", 3_000);
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..count {
            let client = client.clone();
            calls.spawn(async move {
                let id = grant(&client, 0, 3).await.unwrap();
                put(&client, &format!("many/{number}"), id).await
            });
            if calls.len() > 200 {
                calls.join_next().await.unwrap().unwrap().unwrap();
            }
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
        let left = || async {
            let range = RangeRequest {
                key: "many/".into(),
                range_end: "many0".into(),
                count_only: true,
                ..RangeRequest::default()
            };
            client.kv.clone().range(range).await.unwrap().into_inner().count
        };
        let start = now();
        let mut puts = 0;
        while left().await > 0 {
            put(&client, "goes on", 0).await.unwrap();
            puts += 1;
            assert!(start.elapsed() < Duration::from_secs(3) + SLACK + BUSY, "{} are left", left().await);
        }
        println!("{count} leases gone, {puts} puts meanwhile");
        let mut lease = client.lease.clone();
        assert!(lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases.is_empty());
    });
}

/// A keepalive stream answers in order, one reply per request, also for leases that are not there.
#[test]
fn a_keepalive_stream_answers_in_order() {
    with_server(&[], async |_, client| {
        for id in 1..=50 {
            grant(client, id, 60 + id).await.unwrap();
        }
        let (requests, receiver) = mpsc::unbounded_channel();
        let mut lease = client.lease.clone();
        let order: Vec<i64> = (0..2_000).map(|number| number * 7 % 100).collect();
        order.iter().for_each(|id| requests.send(LeaseKeepAliveRequest { id: *id }).unwrap());
        let mut replies =
            lease.lease_keep_alive(UnboundedReceiverStream::new(receiver)).await.unwrap().into_inner();
        for id in order {
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!((reply.id, reply.ttl), (id, if (1..=50).contains(&id) { 60 + id } else { 0 }));
        }
        drop(requests);
        assert_eq!(replies.message().await.unwrap(), None, "no more requests, no more replies");
    });
}

/// Keeps leases alive, each on a stream of its own, three times in their time, until told to stop;
/// how many answers came, and the longest that one of them took.
async fn keep_alive_until(
    client: Client,
    id: i64,
    ttl: Duration,
    stop: Arc<AtomicBool>,
) -> (usize, Duration) {
    let (requests, from) = mpsc::unbounded_channel();
    requests.send(LeaseKeepAliveRequest { id }).unwrap();
    let stream = client.lease.clone().lease_keep_alive(UnboundedReceiverStream::new(from)).await;
    let mut replies = stream.unwrap().into_inner();
    let (mut answers, mut slowest, mut asked) = (0, Duration::ZERO, now());
    loop {
        let reply = replies.message().await.expect("a keepalive stream goes on").expect("it is not over");
        assert!(reply.ttl > 0, "lease {id} is gone after {answers} answers, the last within {slowest:?}");
        slowest = slowest.max(asked.elapsed());
        answers += 1;
        if stop.load(Ordering::Relaxed) {
            return (answers, slowest);
        }
        tokio::time::sleep(ttl / 3).await;
        asked = now();
        requests.send(LeaseKeepAliveRequest { id }).unwrap();
    }
}

/// Leases that are kept alive live on while `work` is done; what it returns.
/// Keepalives have a thread and a connection of their own: what keeps the client of
/// `work` busy is not the server's doing.
async fn leases_live_through<T>(server: &Server, count: i64, ttl: i64, work: impl Future<Output = T>) -> T {
    let (stop, endpoint) = (Arc::new(AtomicBool::new(false)), server.endpoint());
    let (begun, all_begun) = oneshot::channel();
    let told = Arc::clone(&stop);
    let keeping = std::thread::spawn(move || run(keep_alive_all(endpoint, count, ttl, begun, told)));
    all_begun.await.unwrap();
    let done = work.await;
    stop.store(true, Ordering::Relaxed);
    let (answers, slowest) = keeping.join().unwrap();
    println!("{answers} keepalives answered, each within {slowest:?}");
    let client = server.client().await;
    let left = client.lease.clone().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(left.leases.len(), usize::try_from(count).unwrap());
    for id in 1..=count {
        assert!(exists(&client, &format!("held by {id}")).await);
    }
    done
}

/// Grants leases that hold a key each and keeps them alive until told to stop; how many answers
/// came, and the longest that one of them took.
async fn keep_alive_all(
    endpoint: String,
    count: i64,
    ttl: i64,
    begun: oneshot::Sender<()>,
    stop: Arc<AtomicBool>,
) -> (usize, Duration) {
    let client = connect(&endpoint).await;
    let mut all = Vec::new();
    for id in 1..=count {
        grant(&client, id, ttl).await.unwrap();
        put(&client, &format!("held by {id}"), id).await.unwrap();
        let ttl = Duration::from_secs(ttl.unsigned_abs());
        all.push(tokio::spawn(keep_alive_until(client.clone(), id, ttl, Arc::clone(&stop))));
    }
    begun.send(()).unwrap();
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    for keeping in all {
        let (more, longest) = keeping.await.unwrap();
        answers += more;
        slowest = slowest.max(longest);
    }
    (answers, slowest)
}

/// Puts keys under a prefix, 128 in a transaction.
async fn fill(client: &Client, prefix: &str, keys: u64) {
    let mut filling = tokio::task::JoinSet::new();
    for part in 0..keys.div_ceil(128) {
        let op = |key: u64| {
            let put = PutRequest { key: format!("{prefix}{key:012}").into(), ..PutRequest::default() };
            RequestOp { request: Some(Request::RequestPut(put)) }
        };
        let success = (part * 128..keys.min(part * 128 + 128)).map(op).collect();
        let mut kv = client.kv.clone();
        filling.spawn(async move { kv.txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap() });
        if filling.len() >= 64 {
            filling.join_next().await;
        }
    }
    filling.join_all().await;
}

/// Issue 14, number 6: 50 of 50 leases of 5 s were lost during one delete of 3 million keys.
#[test]
fn leases_that_are_kept_alive_outlive_a_delete_of_very_many_keys() {
    with_server(&[], async |server, client| {
        let keys = from_env("REVD_LEASE_KEYS", 60_000);
        fill(client, "many/", keys).await;
        let (reply, took) = leases_live_through(server, 50, 5, async {
            let begun = now();
            let delete = DeleteRangeRequest {
                key: "many/".into(),
                range_end: "many0".into(),
                ..DeleteRangeRequest::default()
            };
            let reply = client.kv.clone().delete_range(delete).await.unwrap().into_inner();
            (reply, begun.elapsed())
        })
        .await;
        println!("{keys} keys deleted in {took:?}");
        assert_eq!(reply.deleted, i64::try_from(keys).unwrap());
        assert!(exists(client, "held by 1").await && !exists(client, "many/000000000001").await);
    });
}

/// Issue 14, number 6: 395 keepalive streams ended with `too many requests` under
/// 40,000 puts at a time on one core.
#[test]
fn keepalive_streams_go_on_under_floods_of_puts() {
    with_restartable_server(&["--cores=1"], async |server, _| {
        let puts = from_env("REVD_LEASE_PUTS", 25_000);
        let refused = leases_live_through(server, 20, 5, async {
            let mut refused = 0;
            for _ in 0..2 {
                let mut putting = tokio::task::JoinSet::new();
                for connection in 0..puts.div_ceil(8_000) {
                    let client = server.client().await;
                    for at in 0..puts.min(8_000) {
                        let client = client.clone();
                        putting.spawn(async move { put(&client, &format!("{connection} {at}"), 0).await });
                    }
                }
                let results = putting.join_all().await;
                refused += results.iter().filter(|result| result.is_err()).count();
            }
            refused
        })
        .await;
        println!("{refused} puts refused");
    });
}

/// Many leases end at the same time, and one with many keys: others are served,
/// and each key goes with its lease.
#[test]
fn leases_that_end_together_are_revoked_in_parts() {
    with_restartable_server(&[], async |_, client| {
        let count = from_env("REVD_LEASE_COUNT", 2_500);
        grant(&client, -1, 600).await.unwrap();
        put(&client, "stays", -1).await.unwrap();
        let mut granting = tokio::task::JoinSet::new();
        for id in 1..=i64::try_from(count).unwrap() {
            let client = client.clone();
            granting.spawn(async move {
                grant(&client, id, 5).await.unwrap();
                // It may be over already on a busy machine.
                let _ = put(&client, &format!("held/{id}"), id).await;
            });
        }
        granting.join_all().await;
        let ended = now();
        loop {
            let left = client.lease.clone().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
            if left.leases.len() == 1 {
                break;
            }
            assert!(ended.elapsed() < Duration::from_secs(5) + BUSY * 6, "{} are left", left.leases.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let held = RangeRequest { key: "held/".into(), range_end: "held0".into(), ..RangeRequest::default() };
        assert_eq!(client.kv.clone().range(held).await.unwrap().into_inner().count, 0);
        assert!(exists(&client, "stays").await);
    });
}
