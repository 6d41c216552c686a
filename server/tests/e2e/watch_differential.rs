//! One watch call on revd and one on etcd, asked the same and told the same.

use std::collections::BTreeMap;
use std::time::Duration;

use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchResponse,
};

use crate::harness::{
    Client, PATIENT, Random, WatchStream, connect, from_env, with_clusters_beside, with_etcd_beside,
};

/// Longer than etcd takes between two looks at watchers that are behind.
const QUIET: Duration = Duration::from_millis(250);

#[derive(Debug, Clone)]
enum Step {
    Watch(RequestUnion),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(i64),
}

struct Generator {
    random: Random,
    revision: i64,
    compacted: i64,
}

impl Generator {
    fn key(&mut self) -> Vec<u8> {
        vec![
            b'a' + u8::try_from(self.random.below(3)).unwrap(),
            b'0' + u8::try_from(self.random.below(3)).unwrap(),
        ]
    }

    fn put(&mut self) -> PutRequest {
        let value = vec![b'v'; usize::try_from(self.random.below(9)).unwrap()];
        PutRequest { key: self.key().into(), value: value.into(), ..PutRequest::default() }
    }

    fn revision(&mut self) -> i64 {
        let near = i64::try_from(self.random.below(4)).unwrap() - 2;
        match self.random.below(6) {
            0 | 1 => 0,
            2 => self.revision + near,
            3 => self.compacted + near,
            4 => -1,
            _ => 1 + i64::try_from(self.random.below(self.revision.unsigned_abs())).unwrap(),
        }
    }

    fn create(&mut self) -> WatchCreateRequest {
        let key = self.key();
        WatchCreateRequest {
            range_end: match self.random.below(5) {
                0 | 1 => vec![key[0] + 1],
                2 => vec![0],
                3 => self.key(),
                _ => Vec::new(),
            }
            .into(),
            key: if self.random.one_in(12) { Vec::new() } else { key }.into(),
            start_revision: self.revision(),
            filters: (0..3).filter(|_| self.random.one_in(6)).collect(),
            prev_kv: self.random.one_in(2),
            fragment: self.random.one_in(4),
            progress_notify: self.random.one_in(4),
            watch_id: if self.random.one_in(3) {
                i64::try_from(self.random.below(8)).unwrap() - 2
            } else {
                0
            },
        }
    }

    fn step(&mut self) -> Step {
        match self.random.below(20) {
            0..=6 => Step::Watch(RequestUnion::CreateRequest(self.create())),
            7 | 8 => {
                let watch_id = i64::try_from(self.random.below(8)).unwrap() - 1;
                Step::Watch(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }))
            }
            9 => Step::Watch(RequestUnion::ProgressRequest(WatchProgressRequest {})),
            10..=13 => Step::Put(self.put()),
            14 | 15 => {
                let key = self.key();
                let range_end = if self.random.one_in(2) { vec![key[0] + 1] } else { Vec::new() };
                let range_end = range_end.into();
                Step::Delete(DeleteRangeRequest {
                    key: key.into(),
                    range_end,
                    ..DeleteRangeRequest::default()
                })
            }
            16..=18 => {
                let mut keys: Vec<_> = (0..3).map(|_| self.put()).collect();
                keys.sort_by(|left, right| left.key.cmp(&right.key));
                keys.dedup_by(|left, right| left.key == right.key);
                let op = |put| RequestOp { request: Some(Request::RequestPut(put)) };
                Step::Txn(TxnRequest { success: keys.into_iter().map(op).collect(), ..TxnRequest::default() })
            }
            _ => {
                let span = (self.revision - self.compacted).unsigned_abs();
                Step::Compact(self.compacted + i64::try_from(self.random.below(span + 1)).unwrap())
            }
        }
    }
}

/// Responses and events by watcher.
type Told = BTreeMap<i64, Vec<String>>;

struct Side {
    client: Client,
    /// Of the member that the watch call is on.
    watching: Client,
    stream: WatchStream,
}

impl Side {
    fn of(client: Client, watching: Client) -> Self {
        Self { stream: watching.open_watch(), client, watching }
    }

    /// Carries a step out; the store's revision after it, if it has one.
    async fn carry_out(&mut self, step: &Step) -> Option<i64> {
        let kv = &mut self.client.kv;
        let header = match step.clone() {
            Step::Watch(request) => {
                // Revisions of requests are near the newest: the member has to have it.
                let newest = RangeRequest { key: "k".into(), ..RangeRequest::default() };
                self.watching.kv.range(newest).await.unwrap();
                self.stream.ask(request);
                return None;
            }
            Step::Put(put) => kv.put(put).await.unwrap().into_inner().header,
            Step::Delete(delete) => kv.delete_range(delete).await.unwrap().into_inner().header,
            Step::Txn(txn) => kv.txn(txn).await.unwrap().into_inner().header,
            Step::Compact(revision) => {
                kv.compact(CompactionRequest { revision, physical: true }).await.ok()?.into_inner().header
            }
        };
        header.map(|header| header.revision)
    }

    /// Everything that comes until nothing does, by watcher: events joined, since
    /// etcd may batch them otherwise.
    async fn hear(&mut self, told: &mut Told) {
        while let Some(response) = self.stream.next_within(QUIET).await {
            let response = response.unwrap();
            let lines = told.entry(response.watch_id).or_default();
            if response.events.is_empty() {
                let header = response.header.as_ref().unwrap().revision;
                lines.push(format!("{header}: {:?}", WatchResponse { header: None, ..response }));
            } else {
                lines.extend(response.events.iter().map(|event| format!("{event:?}")));
            }
        }
    }
}

/// Replies of both; if they differ, one of them may only be slower.
async fn told_by_both(sides: &mut [Side; 2]) -> (Told, Told) {
    let (left, right) = sides.split_at_mut(1);
    let (mut revd, mut etcd) = (Told::new(), Told::new());
    for _ in 0..40 {
        tokio::join!(left[0].hear(&mut revd), right[0].hear(&mut etcd));
        if revd == etcd {
            break;
        }
    }
    (revd, etcd)
}

async fn compare(mut sides: [Side; 2]) {
    let steps = from_env("REVD_WATCH_STEPS", 120);
    let seed = from_env("REVD_WATCH_SEED", 1);
    let mut generator = Generator { random: Random::new(seed), revision: 1, compacted: 0 };
    let mut lines = 0;
    let mut done = Vec::new();
    for number in 0..steps {
        let step = generator.step();
        done.push(step.clone());
        let mut revisions = Vec::new();
        for side in &mut sides {
            revisions.push(side.carry_out(&step).await);
        }
        assert_eq!(revisions[0], revisions[1], "step {number}: {step:?}");
        generator.revision = revisions[0].unwrap_or(generator.revision);
        if let (Step::Compact(revision), Some(_)) = (&step, revisions[0]) {
            generator.compacted = *revision;
        }
        let (revd, etcd) = told_by_both(&mut sides).await;
        assert_eq!(revd, etcd, "seed {seed}, step {number}; steps so far: {done:#?}");
        lines += revd.values().map(Vec::len).sum::<usize>();
    }
    println!("{steps} steps, {lines} responses and events, all equal");
    assert!(lines > 50, "too little happened");
}

#[test]
fn watchers_of_both_are_told_the_same() {
    with_etcd_beside(&[], async |revd, etcd| {
        let clients = [connect(&revd.endpoint()).await, connect(&etcd.endpoint()).await];
        compare(clients.map(|client| Side::of(client.clone(), client))).await;
    });
}

/// The watch call is on a follower, writes go to the leader.
#[test]
fn watchers_on_a_follower_of_both_are_told_the_same() {
    with_clusters_beside(&PATIENT, async |ours, theirs| {
        let mut sides = Vec::new();
        for cluster in [ours, theirs] {
            let leader = cluster.leader().await;
            sides.push(Side::of(cluster.client(leader), cluster.client((leader + 1) % 3)));
        }
        compare(sides.try_into().ok().unwrap()).await;
    });
}
