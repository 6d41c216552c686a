//! Learners as read replicas: one voter and three learners, each of which shows what was
//! acknowledged before it was asked, and tells its watchers of all of it. Without the flag a
//! learner answers as etcd's do.

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest, WatchCreateRequest};

use crate::harness::{Client, Cluster, Product, TempDir, Wiring, run, within};

const PUTS: usize = 50;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }
}

async fn put(client: &Client, key: &str, value: usize) {
    let (key, value) = (key.to_owned().into(), value.to_string().into());
    client.kv.clone().put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
}

/// Waits until a member answers linearizable reads.
async fn answers(client: &Client) {
    within(PATIENCE, "a learner does not read", async || client.kv.clone().range(get("k")).await.ok()).await;
}

#[test]
fn learners_serve_linearizable_reads_and_watches_where_their_operator_says_so() {
    run(async {
        let dir = TempDir::new();
        let flags = ["--max-learners=4"];
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 1, &flags).await;
        let voter = cluster.client(0);
        put(&voter, "k", 0).await;
        let mut learners = Vec::new();
        for _ in 0..3 {
            let member = cluster.add_with(dir.path(), true, &["--learner-reads"]).await;
            learners.push(cluster.client(member));
            answers(learners.last().unwrap()).await;
        }
        let mut watches = Vec::new();
        for learner in &learners {
            let mut watch = learner.open_watch();
            let create =
                WatchCreateRequest { key: "k".into(), start_revision: 2, ..WatchCreateRequest::default() };
            watch.ask(RequestUnion::CreateRequest(create));
            assert!(watch.next_within(PATIENCE).await.unwrap().unwrap().created);
            watches.push(watch);
        }
        for value in 1..=PUTS {
            put(&voter, "k", value).await;
            for learner in &learners {
                let reply = learner.kv.clone().range(get("k")).await.unwrap().into_inner();
                assert_eq!(reply.kvs[0].value, value.to_string().as_bytes(), "a stale read");
            }
        }
        for watch in &mut watches {
            let mut seen = Vec::new();
            while seen.len() <= PUTS {
                let events = watch.next_within(PATIENCE).await.unwrap().unwrap().events;
                seen.extend(events.into_iter().map(|event| event.kv.unwrap().mod_revision));
            }
            assert_eq!(seen, (2..=i64::try_from(PUTS).unwrap() + 2).collect::<Vec<_>>());
        }
        let refused = learners[0].kv.clone().put(PutRequest::default()).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: rpc not supported for learner");
        // One without the flag.
        let member = cluster.add_with(dir.path(), true, &[]).await;
        let strict = cluster.client(member);
        let serializable = RangeRequest { serializable: true, ..get("k") };
        within(PATIENCE, "a learner does not answer", async || {
            strict.kv.clone().range(serializable.clone()).await.ok()
        })
        .await;
        let refused = strict.kv.clone().range(get("k")).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: rpc not supported for learner");
    });
}
