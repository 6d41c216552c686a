//! Bugs that other watch implementations had, by their names; those about order, gaps and hand-over
//! are `watch_sim`'s and `watch_storm`'s.

use std::time::Duration;

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, WatchCancelRequest, WatchCreateRequest,
    WatchProgressRequest, WatchResponse,
};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use crate::harness::{Client, Server, TempDir, WatchStream, from_env, run, with_server};
use revd_checker::{Changes, Transcript};

async fn put(client: &Client, key: &str, value: &str) -> i64 {
    let put =
        PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..PutRequest::default() };
    client.kv.clone().put(put).await.unwrap().into_inner().header.unwrap().revision
}

fn create(stream: &WatchStream, key: &str, start_revision: i64) {
    let request =
        WatchCreateRequest { key: key.to_owned().into(), start_revision, ..WatchCreateRequest::default() };
    stream.ask(RequestUnion::CreateRequest(request));
}

async fn next(stream: &mut WatchStream) -> WatchResponse {
    stream.next_within(Duration::from_secs(30)).await.expect("a response").expect("a good response")
}

fn revision(response: &WatchResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// Row 65 (etcd #18089, #19179): a deletion at exactly the compacted revision was dropped.
#[test]
fn bug_065_a_deletion_at_the_compacted_revision() {
    with_server(&[], async |_, client| {
        put(client, "k", "v").await;
        let mut kv = client.kv.clone();
        let delete = DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() };
        let deleted = kv.delete_range(delete).await.unwrap().into_inner().header.unwrap().revision;
        kv.compact(CompactionRequest { revision: deleted, physical: true }).await.unwrap();
        put(client, "other", "v").await;
        let mut stream = client.open_watch();
        create(&stream, "k", deleted);
        assert!(next(&mut stream).await.created);
        let told = next(&mut stream).await;
        assert_eq!((told.events.len(), told.events[0].r#type), (1, EventType::Delete as i32));
        assert_eq!(told.events[0].kv.as_ref().unwrap().mod_revision, deleted);
    });
}

/// The same through the watch checker, which has to find the bug in an
/// etcd 3.5.1, and nothing in revd.
#[test]
fn bug_065_is_found_in_an_old_etcd() {
    if from_env("REVD_LONG", 0) == 0 {
        eprintln!("skipped: fetches an etcd 3.5.1, REVD_LONG=1 runs it");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/peers/build.sh");
    let built = std::process::Command::new(script).arg("--old").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = String::from_utf8(built.stdout).unwrap();
    let (peers, version) = printed.trim().rsplit_once(' ').unwrap();
    assert_eq!(version, "3.5.1");
    run(async {
        let dir = TempDir::new();
        let old = Server::etcd(&std::path::Path::new(peers).join("etcd"), &dir.path().join("old"), &[]);
        let revd = Server::revd(&dir.path().join("revd"), &[]);
        let problem = deletion_at_the_compacted_revision(&old.client().await).await.unwrap_err();
        println!("etcd 3.5.1: {problem:.200}");
        assert!(problem.contains("told Event") || problem.contains("never told"), "{problem}");
        deletion_at_the_compacted_revision(&revd.client().await).await.unwrap();
    });
}

/// Puts and deletes a key, compacts at the deletion, watches from there; what the checker says.
async fn deletion_at_the_compacted_revision(client: &Client) -> Result<usize, String> {
    let mut history = Changes::default();
    let event = |kind: EventType, kv: KeyValue| Event { r#type: kind as i32, kv: Some(kv), prev_kv: None };
    let put_event = |revision, version, created| {
        let key = "k".into();
        let (create_revision, value) = (created, "v".into());
        event(
            EventType::Put,
            KeyValue { key, create_revision, mod_revision: revision, version, value, lease: 0 },
        )
    };
    let first = put(client, "k", "v").await;
    history.push(put_event(first, 1, first));
    let mut kv = client.kv.clone();
    let delete = DeleteRangeRequest { key: "k".into(), ..DeleteRangeRequest::default() };
    let deleted = kv.delete_range(delete).await.unwrap().into_inner().header.unwrap().revision;
    let gone = KeyValue { key: "k".into(), mod_revision: deleted, ..KeyValue::default() };
    history.push(event(EventType::Delete, gone));
    kv.compact(CompactionRequest { revision: deleted, physical: true }).await.unwrap();
    history.compacted = deleted;
    let last = put(client, "k", "v").await;
    history.push(put_event(last, 1, last));
    let request =
        WatchCreateRequest { key: "k".into(), start_revision: deleted, ..WatchCreateRequest::default() };
    let mut stream = client.open_watch();
    stream.ask(RequestUnion::CreateRequest(request.clone()));
    let mut transcript = Transcript::new(request);
    while let Some(response) = stream.next_within(Duration::from_secs(1)).await {
        transcript.responses.push(response.unwrap());
    }
    transcript.complete_to = Some(last);
    transcript.check(&history)
}

/// Row 66 (etcd #20221, #9775): a watch of the future was told of the present.
#[test]
fn bug_066_watches_of_the_future() {
    with_server(&["--watch-progress-notify-interval", "100ms"], async |_, client| {
        let now = put(client, "k", "0").await;
        let mut stream = client.open_watch();
        for ahead in 1..=100 {
            let request = WatchCreateRequest {
                key: "k".into(),
                start_revision: now + ahead,
                progress_notify: true,
                watch_id: ahead,
                ..WatchCreateRequest::default()
            };
            stream.ask(RequestUnion::CreateRequest(request));
            assert!(next(&mut stream).await.created);
        }
        for _ in 0..110 {
            put(client, "k", "v").await;
        }
        let mut told = vec![0; 101];
        while told[1..].iter().sum::<i64>() < (11..=110).sum() {
            let response = next(&mut stream).await;
            let ahead = usize::try_from(response.watch_id).unwrap();
            for event in &response.events {
                let expected = now + response.watch_id + told[ahead];
                assert_eq!(event.kv.as_ref().unwrap().mod_revision, expected, "of watcher {ahead}");
                told[ahead] += 1;
            }
            assert!(!response.events.is_empty() || revision(&response) >= now + response.watch_id);
        }
    });
}

/// Row 68 (etcd #17566): an idle watch was never told of progress. And what
/// follows a busy interval: nothing.
#[test]
fn bug_068_progress_of_an_idle_watch() {
    with_server(&["--watch-progress-notify-interval", "200ms"], async |_, client| {
        let mut stream = client.open_watch();
        let request =
            WatchCreateRequest { key: "idle".into(), progress_notify: true, ..WatchCreateRequest::default() };
        stream.ask(RequestUnion::CreateRequest(request));
        create(&stream, "silent", 0);
        for _ in 0..2 {
            assert!(next(&mut stream).await.created);
        }
        for _ in 0..3 {
            let now = put(client, "other", "v").await;
            loop {
                let told = next(&mut stream).await;
                assert_eq!((told.watch_id, told.events.len()), (0, 0));
                if revision(&told) >= now {
                    break;
                }
            }
        }
    });
}

/// Row 69 (etcd #14563, #9281): watch id 0 was mixed up with no id.
#[test]
fn bug_069_watch_ids() {
    with_server(&[], async |_, client| {
        let mut stream = client.open_watch();
        let ask = |watch_id| {
            let request = WatchCreateRequest { key: "k".into(), watch_id, ..WatchCreateRequest::default() };
            stream.ask(RequestUnion::CreateRequest(request));
        };
        [0, 1, 1, 0, i64::MAX, -7, 0].into_iter().for_each(ask);
        let mut ids = Vec::new();
        for _ in 0..7 {
            let created = next(&mut stream).await;
            ids.push((created.watch_id, created.canceled));
        }
        let refused = (-1, true);
        assert_eq!(
            ids,
            [(0, false), (1, false), refused, (2, false), (i64::MAX, false), (-7, false), (3, false)]
        );
        stream.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 }));
        assert_eq!(next(&mut stream).await, WatchResponse { watch_id: 0, canceled: true, ..told_at(1) });
        stream.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 }));
        put(client, "k", "v").await;
        let mut told: Vec<i64> = Vec::new();
        for _ in 0..5 {
            told.push(next(&mut stream).await.watch_id);
        }
        told.sort_unstable();
        assert_eq!(told, [-7, 1, 2, 3, i64::MAX], "all but the canceled one, which was not canceled twice");
    });
}

/// A response of the first member at some revision.
fn told_at(revision: i64) -> WatchResponse {
    let header = revd_proto::etcdserverpb::ResponseHeader {
        cluster_id: 0xcdf8_1819_4e3a_8c32,
        member_id: 0x8e9e_05c5_2164_694d,
        revision,
        raft_term: 2,
    };
    WatchResponse { header: Some(header), ..WatchResponse::default() }
}

/// Row 71 (etcd #15402): large reads on the same connection starved watches.
#[test]
fn bug_071_large_reads_beside_a_watch() {
    with_server(&[], async |_, client| {
        for number in 0..40 {
            put(client, &format!("large/{number}"), &"x".repeat(100_000)).await;
        }
        let mut stream = client.open_watch();
        create(&stream, "k", 0);
        assert!(next(&mut stream).await.created);
        let reading: Vec<_> = (0..8)
            .map(|_| {
                let mut kv = client.kv.clone();
                tokio::spawn(async move {
                    let (key, range_end) = ("large/".into(), "large0".into());
                    let range = RangeRequest { key, range_end, ..RangeRequest::default() };
                    for reads in 0.. {
                        if kv.range(range.clone()).await.is_err() {
                            return reads;
                        }
                    }
                    0
                })
            })
            .collect();
        // Each event comes while the reads go on, before the next put is sent.
        for _ in 0..50 {
            let at = put(client, "k", "v").await;
            assert_eq!(next(&mut stream).await.events[0].kv.as_ref().unwrap().mod_revision, at);
        }
        reading.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// Row 72 (etcd #11850, #18784, #20066): canceled watches left memory behind.
#[test]
fn bug_072_canceled_watches_leave_nothing_behind() {
    with_server(&["--cores", "1"], async |server, client| {
        let memory = || server.resident() / 1024;
        let rounds = from_env("REVD_WATCHES_CANCELED", 800_000) / 2_000;
        let mut grown = Vec::new();
        for round in 0..rounds {
            let mut stream = client.open_watch();
            for number in 0..1_000 {
                create(&stream, &format!("{round}/{number}"), if number % 3 == 0 { 1 } else { 0 });
            }
            for _ in 0..1_000 {
                assert!(next(&mut stream).await.created);
            }
            // Half of them are canceled, the other half ends with the call.
            for watch_id in 0..500 {
                stream.ask(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
            }
            for _ in 0..500 {
                assert!(next(&mut stream).await.canceled);
            }
            // As with etcd there is no answer while a watcher is yet to be told of the past.
            let progress = loop {
                stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
                if let Some(response) = stream.next_within(Duration::from_secs(1)).await {
                    break response.expect("a good response");
                }
            };
            assert_eq!(progress.watch_id, -1);
            drop(stream);
            grown.push(memory());
        }
        let half = grown[grown.len() / 2];
        println!(
            "{rounds} rounds of 1,000 watchers: {half} kB after half of them, {} kB at the end",
            grown[grown.len() - 1]
        );
        // The allocator takes steps of 4 MB; 60 bytes left behind by each watcher would be 12.
        assert!(grown[grown.len() - 1] < half + 12_000, "it grows: {grown:?}");
    });
}

/// Streams end with the server's own word, not with a broken connection.
#[test]
fn a_stopping_server_ends_its_streams() {
    with_server(&[], async |server, client| {
        let mut stream = client.open_watch();
        create(&stream, "k", 0);
        assert!(next(&mut stream).await.created);
        server.signal("TERM");
        let status = stream.next_within(Duration::from_secs(30)).await.unwrap().unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (tonic::Code::Unavailable, "etcdserver: server stopped")
        );
    });
}
