//! Errors while a cluster changes its leader, or has none: etcd's texts and codes, since clients go
//! by them.

use std::time::Duration;

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseTimeToLiveRequest, MoveLeaderRequest,
    PutRequest, RangeRequest, StatusRequest, WatchCreateRequest, WatchRequest,
};
use tonic::{Code, Request, Status};

use crate::harness::{Client, Cluster, Product, TempDir, Wiring, products_of_clusters, run, within};

/// Longer than a request waits for a leader: 5 s and two election timeouts.
const PATIENCE: Duration = Duration::from_secs(30);

fn get(serializable: bool) -> RangeRequest {
    RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() }
}

fn put() -> PutRequest {
    PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() }
}

fn needs_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request
}

/// A watch that is to end without a leader, up to the reply that it is created.
async fn watch_while_led(client: &Client) -> Result<tonic::Streaming<impl Sized>, Status> {
    let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut stream = client.watch.clone().watch(needs_leader(requests)).await?.into_inner();
    stream.message().await?;
    Ok(stream)
}

/// The first answer to a keepalive on a stream of its own.
async fn keep_alive(client: &Client, id: i64) -> Result<i64, Status> {
    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut stream = client.lease.clone().lease_keep_alive(requests).await?.into_inner();
    Ok(stream.message().await?.expect("an answer").ttl)
}

fn said<T>(result: Result<T, Status>) -> (Code, String) {
    match result {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

/// A member whose cluster has no quorum: it says so, and serves what it can alone.
async fn test_without_a_quorum(product: Product) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    let left = (cluster.leader().await + 1) % 3;
    let client = cluster.client(left);
    client.kv.clone().put(put()).await.unwrap();
    client.lease.clone().lease_grant(LeaseGrantRequest { id: 7, ttl: 600 }).await.unwrap();
    let mut watching = watch_while_led(&client).await.unwrap();
    for member in (0..3).filter(|member| *member != left) {
        cluster.members[member].kill();
    }
    within(PATIENCE, "there is still a leader", async || {
        let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        (status.leader == 0 && status.errors == ["etcdserver: no leader"]).then_some(())
    })
    .await;

    // Requests that need nobody else.
    let local = client.kv.clone().range(get(true)).await.unwrap().into_inner();
    assert_eq!(local.kvs.len(), 1);
    let leases = client.lease.clone().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(leases.leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [7]);

    // Requests that are refused at once, and streams, which revd refuses once there was no leader
    // for as long as an election may take.
    let no_leader = (Code::Unavailable, "etcdserver: no leader".to_owned());
    assert_eq!(said(client.kv.clone().range(needs_leader(get(true))).await), no_leader);
    within(PATIENCE, "a watch begins without a leader", async || {
        (said(watch_while_led(&client).await) == no_leader).then_some(())
    })
    .await;

    // Requests that wait for a leader, as long as a request may.
    let (mut kv, mut writer, mut lease) = (client.kv.clone(), client.kv.clone(), client.lease.clone());
    let (read, written, kept, ttl, watched) = tokio::join!(
        kv.range(get(false)),
        writer.put(put()),
        keep_alive(&client, 7),
        lease.lease_time_to_live(LeaseTimeToLiveRequest { id: 7, keys: true }),
        tokio::time::timeout(PATIENCE, watching.message()),
    );
    assert_eq!(said(read), (Code::Unavailable, "etcdserver: request timed out".to_owned()), "{product:?}");
    assert_eq!(said(written), (Code::DeadlineExceeded, "context deadline exceeded".to_owned()));
    assert_eq!(said(kept), no_leader, "a keepalive");
    assert_eq!(said(ttl), no_leader, "a lease's time to live");
    // A stream that had a leader has waited for three election timeouts.
    assert_eq!(said(watched.expect("it ends")), no_leader, "a watch");
}

#[test]
fn a_member_without_a_quorum_says_so_and_serves_what_it_can_alone() {
    for product in products_of_clusters() {
        run(test_without_a_quorum(product));
    }
}

/// The time of a lease is the leader's, its keys are those of any member, with all that were put
/// before.
async fn test_times(product: Product) {
    let dir = TempDir::new();
    let cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    let clients = cluster.clients();
    clients[0].lease.clone().lease_grant(LeaseGrantRequest { id: 7, ttl: 600 }).await.unwrap();
    let mut expected = Vec::new();
    for round in 0..30 {
        let key = format!("key {round:02}");
        let put = PutRequest { key: key.clone().into(), lease: 7, ..PutRequest::default() };
        clients[round % 3].kv.clone().put(put).await.unwrap();
        expected.push(key);
        for client in &clients {
            let request = LeaseTimeToLiveRequest { id: 7, keys: true };
            let told = client.lease.clone().lease_time_to_live(request).await.unwrap().into_inner();
            let mut keys: Vec<_> =
                told.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            keys.sort();
            assert_eq!((told.id, told.granted_ttl, keys), (7, 600, expected.clone()), "{product:?}");
            assert!((500..=600).contains(&told.ttl), "{} seconds", told.ttl);
        }
    }
    for client in &clients {
        let request = LeaseTimeToLiveRequest { id: 8, keys: true };
        let told = client.lease.clone().lease_time_to_live(request).await.unwrap().into_inner();
        assert_eq!((told.id, told.ttl, told.granted_ttl, told.keys.len()), (8, -1, 0, 0), "{product:?}");
    }
}

#[test]
fn members_agree_on_the_time_and_the_keys_of_a_lease() {
    for product in products_of_clusters() {
        run(test_times(product));
    }
}

/// Leases are kept alive through members that do not lead, also while the leader is another one
/// each time.
async fn test_keepalives(product: Product) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    for round in 0..3 {
        let leader = cluster.leader().await;
        let client = cluster.client((leader + 1) % 3);
        let id = 100 + round;
        client.lease.clone().lease_grant(LeaseGrantRequest { id, ttl: 20 }).await.unwrap();
        let (asking, asked) = tokio::sync::mpsc::channel(1);
        let requests = tokio_stream::wrappers::ReceiverStream::new(asked);
        // There is no response before there is a request.
        asking.send(LeaseKeepAliveRequest { id }).await.unwrap();
        let mut stream = client.lease.clone().lease_keep_alive(requests).await.unwrap().into_inner();
        for beat in 0..40 {
            if beat == 5 {
                cluster.members[leader].kill();
            }
            let kept = stream.message().await.expect("the client hears nothing of the election").unwrap();
            assert_eq!((kept.id, kept.ttl), (id, 20), "{product:?}, round {round}, beat {beat}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            asking.send(LeaseKeepAliveRequest { id }).await.unwrap();
        }
        cluster.members[leader].spawn_again();
        cluster.wait_until_all_answer().await;
    }
}

#[test]
fn leases_live_on_through_elections_for_clients_of_any_member() {
    for product in products_of_clusters() {
        run(test_keepalives(product));
    }
}

/// A read that waits while the leader changes is told so, or served by the next one; nothing else.
async fn test_reads(product: Product) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    let (mut served, mut refused) = (0, 0);
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let clients = [1, 2].map(|next| cluster.client((leader + next) % 3));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let reading = async |client: &Client| {
            let mut results = Vec::new();
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                results.push(said(client.kv.clone().range(get(false)).await));
            }
            results
        };
        let killing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cluster.members[leader].kill();
            tokio::time::sleep(Duration::from_secs(4)).await;
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        let (one, two, ()) = tokio::join!(reading(&clients[0]), reading(&clients[1]), killing);
        for (code, text) in one.into_iter().chain(two) {
            match (code, text.as_str()) {
                (Code::Ok, _) => served += 1,
                (Code::Unavailable, "etcdserver: leader changed") => refused += 1,
                other => panic!("{product:?}: {other:?}"),
            }
        }
        cluster.members[leader].spawn_again();
        cluster.wait_until_all_answer().await;
    }
    assert!(served > 100, "{served} reads were served, {refused} told that the leader changed");
}

#[test]
fn reads_are_served_or_told_that_the_leader_changed() {
    for product in products_of_clusters() {
        run(test_reads(product));
    }
}

/// A watch of a client whose member stops comes to a member that has just begun, while the leader
/// moves: etcd's client gives such a watch up once it is refused. (An etcd refuses it in that
/// moment, in which its clients seldom come.)
async fn test_moves() {
    let dir = TempDir::new();
    // A move takes far less than this, on a busy machine too.
    let flags = ["--heartbeat-interval", "500", "--election-timeout", "5000"];
    let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &flags).await;
    let begun = (cluster.leader().await + 1) % 3;
    cluster.members[begun].stop();
    cluster.members[begun].spawn_again();
    let client = cluster.client(begun);
    within(PATIENCE, "it serves nobody", async || watch_while_led(&client).await.ok()).await;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let goes_on = || !is_over.load(std::sync::atomic::Ordering::Relaxed);
    let moving = async {
        while goes_on() {
            let leader = cluster.leader().await;
            let next = (0..3).find(|member| ![leader, begun].contains(member)).expect("one of three");
            let id = async || {
                let status = cluster.client(next).maintenance.status(StatusRequest {}).await?.into_inner();
                Ok::<_, Status>(status.header.expect("a header").member_id)
            };
            let request = MoveLeaderRequest { target_id: id().await.unwrap() };
            // It fails where the one before has not heard yet that it leads.
            let _ = cluster.client(leader).maintenance.move_leader(request).await;
        }
    };
    // Until the member has had no leader often enough, as calls with one reply are told.
    let led = std::cell::Cell::new(tokio::time::Instant::now());
    let looking = async {
        let mut leaderless = 0;
        within(2 * PATIENCE, "the member always has a leader", async || {
            match said(client.kv.clone().range(needs_leader(get(true))).await) {
                (Code::Unavailable, text) if text == "etcdserver: no leader" => leaderless += 1,
                _ => led.set(tokio::time::Instant::now()),
            }
            (leaderless > 5).then_some(())
        })
        .await;
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let watching = async {
        while goes_on() {
            let result = watch_while_led(&client).await;
            // A move that came to nothing may leave none for longer.
            let has_just_been_led = led.get().elapsed() < Duration::from_secs(4);
            assert!(result.is_ok() || !has_just_been_led, "{:?}", said(result));
        }
    };
    tokio::join!(moving, looking, watching);
}

#[test]
fn watches_that_come_to_a_member_that_has_just_begun_outlive_moves_of_the_leader() {
    if products_of_clusters().contains(&Product::Revd) {
        run(test_moves());
    }
}
