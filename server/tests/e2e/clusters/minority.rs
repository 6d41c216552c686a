//! A member that does not hear the others any more says what an etcd says in its place, to every
//! kind of call; and goes on when it hears them again.

use std::time::Duration;

use revd_proto::etcdserverpb::downgrade_request::DowngradeAction;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, DowngradeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest,
    MemberRemoveRequest, MemberUpdateRequest, PutRequest, RangeRequest, StatusRequest, TxnRequest,
    WatchCreateRequest, WatchRequest,
};
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use crate::harness::{Client, Cluster, Product, TempDir, Wiring, peers, products_of_clusters, run, within};

/// Longer than a lost leader takes to be missed, and a watch that needs one to end.
const MOMENTS: Duration = Duration::from_secs(30);

/// Each call, and how it ended.
type Said = Vec<(&'static str, String)>;

fn outcome<T>(result: Result<T, Status>) -> String {
    match result {
        Ok(_) => "answered".to_owned(),
        Err(status) => format!("{:?}: {}", status.code(), status.message()),
    }
}

/// The same request, for a call that is refused where no leader is known.
fn needs_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request
}

fn put() -> PutRequest {
    PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() }
}

fn get(serializable: bool) -> RangeRequest {
    RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() }
}

async fn keep_alive(client: &Client, needs: bool) -> String {
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    sender.send(LeaseKeepAliveRequest { id: 7 }).unwrap();
    let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(requests);
    let request = if needs { needs_leader(requests) } else { Request::new(requests) };
    match client.lease.clone().lease_keep_alive(request).await {
        Err(status) => outcome::<()>(Err(status)),
        Ok(replies) => outcome(replies.into_inner().message().await),
    }
}

/// Every kind of call to a member without a leader, all at once.
async fn calls(client: &Client) -> Said {
    let (mut kv, mut lease) = (client.kv.clone(), client.lease.clone());
    let (mut kv_2, mut kv_3, mut kv_4, mut kv_5) = (kv.clone(), kv.clone(), kv.clone(), kv.clone());
    let (mut kv_6, mut lease_2, mut lease_3) = (kv.clone(), lease.clone(), lease.clone());
    let (mut lease_4, mut cluster, mut cluster_2) =
        (lease.clone(), client.cluster.clone(), client.cluster.clone());
    let (mut maintenance, read) = (client.maintenance.clone(), TxnRequest::default());
    let alarm = AlarmRequest::default();
    let compaction = CompactionRequest { revision: 1, physical: false };
    let to_live = LeaseTimeToLiveRequest { id: 7, keys: false };
    let all = tokio::join!(
        async { ("get, serializable", outcome(kv.range(get(true)).await)) },
        async { ("get", outcome(kv_2.range(get(false)).await)) },
        async { ("put", outcome(kv_3.put(put()).await)) },
        async { ("put that needs a leader", outcome(kv_4.put(needs_leader(put())).await)) },
        async { ("transaction", outcome(kv_5.txn(read).await)) },
        async { ("compaction", outcome(kv_6.compact(compaction).await)) },
        async { ("lease grant", outcome(lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 0 }).await)) },
        async { ("lease revoke", outcome(lease_2.lease_revoke(LeaseRevokeRequest { id: 7 }).await)) },
        async { ("time to live", outcome(lease_3.lease_time_to_live(to_live).await)) },
        async { ("leases", outcome(lease_4.lease_leases(LeaseLeasesRequest {}).await)) },
        async { ("members", outcome(cluster.member_list(MemberListRequest { linearizable: true }).await)) },
        async { ("own members", outcome(cluster_2.member_list(MemberListRequest::default()).await)) },
        async { ("alarms", outcome(maintenance.alarm(alarm).await)) },
        async { ("keepalive", keep_alive(client, false).await) },
    );
    let needy = keep_alive(client, true).await;
    let (a, b, c, d, e, f, g, h, i, j, k, l, m, n) = all;
    vec![a, b, c, d, e, f, g, h, i, j, k, l, m, n, ("keepalive that needs a leader", needy)]
}

/// Creates a watch that needs a leader; how it ends.
async fn watch(client: &Client) -> JoinHandle<String> {
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
    let union = Some(RequestUnion::CreateRequest(create));
    sender.send(WatchRequest { request_union: union }).unwrap();
    let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(requests);
    let mut replies = client.watch.clone().watch(needs_leader(requests)).await.unwrap().into_inner();
    let first = replies.message().await.unwrap().expect("a watch is created");
    assert!(first.created, "{first:?}");
    tokio::spawn(async move {
        let _open = sender;
        match replies.message().await {
            Ok(Some(reply)) => format!("canceled: {}, {:?}", reply.canceled, reply.cancel_reason),
            Ok(None) => "ended".to_owned(),
            Err(status) => outcome::<()>(Err(status)),
        }
    })
}

async fn scenario(product: Product) -> Said {
    let dir = TempDir::new();
    let cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &[]).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.lease.clone().lease_grant(LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
    client.kv.clone().put(put()).await.unwrap();
    let watching = watch(&client).await;
    cluster.isolate(leader);
    // On its way when the leader is lost.
    let writing = client.clone();
    let writing = tokio::spawn(async move { outcome(writing.kv.clone().put(put()).await) });
    let reading = client.clone();
    let reading = tokio::spawn(async move { outcome(reading.kv.clone().range(get(false)).await) });
    let status = within(MOMENTS, "a leader without a quorum goes on", async || {
        let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        (status.leader == 0).then_some(status)
    })
    .await;
    let mut others = cluster.present().filter(|other| *other != leader);
    assert!(others.all(|other| cluster.network().holds_back(leader, other)), "the cut has no effect");
    // A request that comes within half a second of the loss may count as one on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut said = vec![("status", format!("{:?}", status.errors))];
    said.extend(calls(&client).await);
    said.push(("put on its way", writing.await.unwrap()));
    said.push(("get on its way", reading.await.unwrap()));
    let watch = tokio::time::timeout(MOMENTS, watching).await.expect("the watch goes on").unwrap();
    said.push(("watch that needs a leader", watch));
    cluster.mend();
    cluster.wait_until_all_answer().await;
    said.push(("put afterwards", outcome(client.kv.clone().put(put()).await)));
    said
}

/// Calls that revd answers in its own way: a write that is lost with its leader at once, where etcd
/// waits for the time-out; the list of leases by the leader alone, as the other questions about
/// leases; alarms as any read, where etcd proposes an entry.
const OWN_WAY: [(&str, &str, &str); 3] = [
    (
        "put on its way",
        "Unavailable: etcdserver: request timed out, possibly due to previous leader failure",
        "Unavailable: etcdserver: request timed out",
    ),
    ("leases", "Unavailable: etcdserver: no leader", "answered"),
    ("alarms", "Unavailable: etcdserver: request timed out", "DeadlineExceeded: context deadline exceeded"),
];

/// The outcome that etcd has, where a difference is meant.
fn as_etcd((what, said): (&'static str, String)) -> (&'static str, String) {
    let own = OWN_WAY.iter().find(|(own, ours, _)| *own == what && *ours == said);
    (what, own.map_or(said, |(_, _, theirs)| (*theirs).to_owned()))
}

#[test]
fn a_member_that_hears_nobody_says_what_etcd_says() {
    for product in products_of_clusters().into_iter().filter(|_| peers().is_some()) {
        run(async {
            let (ours, theirs) = tokio::join!(scenario(product), scenario(Product::Etcd));
            assert_eq!(ours.into_iter().map(as_etcd).collect::<Said>(), theirs);
        });
    }
}

/// Less than the time of a request, which is 5 s and two election timeouts, and enough for a call
/// that waits for nobody.
const AT_ONCE: Duration = Duration::from_secs(6);

/// A call, how it ended, and whether it did so at once.
async fn timed<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, Status>>,
) -> (&'static str, String) {
    let mut call = std::pin::pin!(call);
    match tokio::time::timeout(AT_ONCE, &mut call).await {
        Ok(result) => (what, format!("at once: {}", outcome(result))),
        Err(_) => (what, outcome(call.await)),
    }
}

/// An operator's calls to one of two members whose other one is down.
async fn changes(product: Product) -> Said {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 2, &[]).await;
    cluster.wait_until_all_answer().await;
    let client = cluster.client(0);
    let status = async || client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    let own = status().await.header.unwrap().member_id;
    let members = client.cluster.clone().member_list(MemberListRequest::default()).await.unwrap();
    let other = members.into_inner().members.iter().find(|member| member.id != own).unwrap().id;
    cluster.members[1].kill();
    within(MOMENTS, "a leader without a quorum goes on", async || (status().await.leader == 0).then_some(()))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let peer_ur_ls = || vec!["http://127.0.0.1:1".to_owned()];
    let add = |is_learner| MemberAddRequest { peer_ur_ls: peer_ur_ls(), is_learner };
    let update = MemberUpdateRequest { id: own, peer_ur_ls: peer_ur_ls() };
    let cancel = DowngradeRequest { action: DowngradeAction::Cancel as i32, ..DowngradeRequest::default() };
    let (mut one, mut two, mut three) =
        (client.cluster.clone(), client.cluster.clone(), client.cluster.clone());
    let (mut four, mut five, mut maintenance) =
        (client.cluster.clone(), client.cluster.clone(), client.maintenance.clone());
    let said = tokio::join!(
        timed("add", one.member_add(add(false))),
        timed("add a learner", two.member_add(add(true))),
        timed("remove this one", three.member_remove(MemberRemoveRequest { id: own })),
        timed("remove the other one", four.member_remove(MemberRemoveRequest { id: other })),
        timed("update", five.member_update(update)),
        timed("cancel a downgrade", maintenance.downgrade(cancel)),
    );
    vec![said.0, said.1, said.2, said.3, said.4, said.5]
}

/// Calls that wait for a leader: how revd ends them, and etcd. It lets its clients wait for changes
/// as long as they like, and says that a downgrade is canceled where it logs that it could not.
const LEADERLESS: [(&str, &str, &str); 3] = [
    ("remove the other one", "Unavailable: etcdserver: request timed out", "Cancelled: Timeout expired"),
    ("update", "Unavailable: etcdserver: request timed out", "Cancelled: Timeout expired"),
    ("cancel a downgrade", "Unavailable: etcdserver: request timed out", "answered"),
];

/// As far as one that is left alone can judge a change of members, it does so at once.
#[test]
fn one_of_two_members_that_is_left_alone_says_what_etcd_says_to_changes() {
    for product in products_of_clusters().into_iter().filter(|_| peers().is_some()) {
        run(async {
            let (ours, theirs) = tokio::join!(changes(product), changes(Product::Etcd));
            let own = |(what, said): (&'static str, String)| {
                let own = LEADERLESS.iter().find(|(own, ours, _)| *own == what && *ours == said);
                (what, own.map_or(said, |(_, _, theirs)| (*theirs).to_owned()))
            };
            let ours: Said = ours.into_iter().map(own).collect();
            assert_eq!(ours, theirs);
            assert_eq!(ours[0].1, "at once: Unavailable: etcdserver: unhealthy cluster");
        });
    }
}
