//! `/metrics`: text that Prometheus can read, names and types of etcd's, figures that are true.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, WatchCreateRequest,
};

use crate::harness::{
    Client, Cluster, Product, Server, TempDir, Wiring, peers, run, with_etcd_beside, with_server, within,
};

/// Longer than a cluster needs to elect a leader.
const MOMENTS: Duration = Duration::from_secs(120);

/// A family of samples: its type, and each sample by its name and labels as they are written.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: BTreeMap<String, f64>,
}

impl Family {
    /// The names of the labels of its samples, but for the bounds of buckets.
    fn labels(&self) -> BTreeSet<String> {
        self.samples
            .keys()
            .flat_map(|sample| labels(sample))
            .map(|(name, _)| name)
            .filter(|name| name != "le")
            .collect()
    }
}

type Metrics = BTreeMap<String, Family>;

fn labels(sample: &str) -> Vec<(String, String)> {
    let Some((_, labels)) = sample.split_once('{') else { return Vec::new() };
    let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{sample}")).split("\",");
    let label = |text: &str| {
        let (name, value) = text.split_once("=\"").unwrap_or_else(|| panic!("{sample}"));
        assert!(is_name(name), "{sample}");
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    };
    labels.map(label).collect()
}

fn is_name(name: &str) -> bool {
    let is_known = |char: char| char == '_' || char == ':' || char.is_ascii_alphanumeric();
    !name.starts_with(|char: char| char.is_ascii_digit()) && !name.is_empty() && name.chars().all(is_known)
}

/// Reads the text as Prometheus does, and refuses what it refuses.
fn parsed(text: &str) -> Metrics {
    assert!(text.ends_with('\n'));
    let (mut metrics, mut now) = (Metrics::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name) && !help.is_empty(), "{line}");
            assert!(!metrics.contains_key(name), "{name} is there twice");
            name.clone_into(&mut now);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, now, "a type belongs to the help before it");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            metrics.insert(name.to_owned(), Family { kind: kind.to_owned(), ..Family::default() });
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let family = metrics.get_mut(&now).unwrap_or_else(|| panic!("{line} is of no family"));
            let name = sample.split('{').next().unwrap();
            let suffix = name.strip_prefix(&*now).unwrap_or_else(|| panic!("{line} in {now}"));
            let is_known = match &*family.kind {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                "summary" => ["", "_sum", "_count"].contains(&suffix),
                _ => suffix.is_empty(),
            };
            assert!(is_known, "{line} in {now}");
            labels(sample);
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(family.samples.insert(sample.to_owned(), value).is_none(), "{sample} is there twice");
        }
    }
    metrics.iter().filter(|(_, family)| family.kind == "histogram").for_each(check_histogram);
    metrics
}

/// Buckets hold those before them, and the last one holds all.
fn check_histogram((name, family): (&String, &Family)) {
    let mut series: BTreeMap<Vec<_>, Vec<(f64, f64)>> = BTreeMap::new();
    for (sample, value) in family.samples.iter().filter(|(sample, _)| sample.contains("_bucket{")) {
        let (ends, others): (Vec<_>, _) = labels(sample).into_iter().partition(|(name, _)| name == "le");
        let end = if ends[0].1 == "+Inf" { f64::INFINITY } else { ends[0].1.parse().unwrap() };
        series.entry(others).or_default().push((end, *value));
    }
    for (labels, mut buckets) in series {
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {labels:?}: {buckets:?}");
        assert_eq!(buckets.last().unwrap().0, f64::INFINITY, "{name} {labels:?}");
    }
    let all = |suffix: &str| {
        let samples =
            family.samples.iter().filter(|(sample, _)| sample.split('{').next().unwrap().ends_with(suffix));
        samples.map(|(_, value)| value).sum::<f64>()
    };
    let infinite = family.samples.iter().filter(|(sample, _)| sample.contains("le=\"+Inf\""));
    assert!((all("_count") - infinite.map(|(_, value)| value).sum::<f64>()).abs() < 0.5, "{name}");
}

fn scrape(server: &Server) -> Metrics {
    parsed(&text_of(server))
}

/// The text that a server shows.
pub(crate) fn text_of(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap();
    }
    whole
}

/// The only sample of a family, or the one with all of these labels.
fn value(metrics: &Metrics, family: &str, wanted: &[(&str, &str)]) -> f64 {
    let samples = &metrics.get(family).unwrap_or_else(|| panic!("no {family}")).samples;
    let fits = |sample: &str| {
        let has = labels(sample);
        wanted.iter().all(|(name, value)| has.iter().any(|(known, its)| known == name && its == value))
    };
    samples.iter().filter(|(sample, _)| fits(sample)).map(|(_, value)| value).sum()
}

/// Some calls, of which both count the same.
async fn work(client: &Client) {
    for number in 0..5 {
        let put = PutRequest { key: format!("k{number}").into(), ..PutRequest::default() };
        client.kv.clone().put(put).await.unwrap();
    }
    let delete = DeleteRangeRequest { key: "k1".into(), ..DeleteRangeRequest::default() };
    client.kv.clone().delete_range(delete).await.unwrap();
    client.lease.clone().lease_grant(LeaseGrantRequest { id: 7, ttl: 600 }).await.unwrap();
    let range = RangeRequest { key: "k".into(), revision: 99, ..RangeRequest::default() };
    client.kv.clone().range(range).await.unwrap_err();
    for serializable in [false, false, true] {
        let get = RangeRequest { key: "k2".into(), serializable, ..RangeRequest::default() };
        client.kv.clone().range(get).await.unwrap();
    }
}

/// A family with a name of etcd's is that of etcd: same type, same labels, same figure where both
/// did the same.
#[test]
fn metrics_are_called_as_etcd_calls_them_and_count_the_same() {
    with_etcd_beside(&[], async |revd, etcd| {
        work(&revd.client().await).await;
        work(&etcd.client().await).await;
        let (ours, theirs) = (scrape(revd), scrape(etcd));
        let mut compared = 0;
        for (name, family) in &ours {
            if name.starts_with("revd_") {
                continue;
            }
            let their = theirs.get(name).unwrap_or_else(|| panic!("etcd has no {name}"));
            assert_eq!(family.kind, their.kind, "{name}");
            if !family.samples.is_empty() && !their.samples.is_empty() {
                assert_eq!(family.labels(), their.labels(), "{name}");
                compared += 1;
            }
        }
        assert!(compared > 30, "only {compared} families are in both");
        for name in [
            "etcd_server_has_leader",
            "etcd_server_is_leader",
            "etcd_server_is_learner",
            "etcd_server_leader_changes_seen_total",
            "etcd_server_proposals_pending",
            "etcd_server_proposals_failed_total",
            "etcd_server_quota_backend_bytes",
            "etcd_debugging_mvcc_current_revision",
            "etcd_debugging_mvcc_compact_revision",
            "etcd_debugging_mvcc_keys_total",
            "etcd_debugging_mvcc_watcher_total",
            "etcd_debugging_lease_granted_total",
            "etcd_debugging_auth_revision",
        ] {
            assert_eq!(value(&ours, name, &[]), value(&theirs, name, &[]), "{name}");
        }
        for (method, code, calls) in [("Put", "OK", 5.0), ("Range", "OK", 3.0), ("Range", "OutOfRange", 1.0)]
        {
            let labels = [("grpc_method", method), ("grpc_code", code), ("grpc_service", "etcdserverpb.KV")];
            for metrics in [&ours, &theirs] {
                assert_eq!(value(metrics, "grpc_server_handled_total", &labels), calls, "{labels:?}");
            }
        }
        let put = [("grpc_method", "Put"), ("grpc_type", "unary")];
        assert_eq!(value(&ours, "grpc_server_started_total", &put), 5.0);
        assert!(value(&ours, "process_resident_memory_bytes", &[]) > 1e6);
        let version = [("server_version", "3.7.1")];
        assert_eq!(value(&ours, "etcd_server_version", &version), 1.0);
    });
}

/// They follow what happens: sizes, watchers, and calls that are given up.
#[test]
fn metrics_follow_the_member() {
    with_server(&[], async |server, client| {
        let before = scrape(server);
        let watch = client.open_watch();
        let create = WatchCreateRequest { key: "k".into(), ..WatchCreateRequest::default() };
        watch.ask(RequestUnion::CreateRequest(create));
        within(MOMENTS, "nobody counts the watcher", async || {
            (value(&scrape(server), "etcd_debugging_mvcc_watcher_total", &[]) == 1.0).then_some(())
        })
        .await;
        let watching = [("grpc_method", "Watch"), ("grpc_service", "etcdserverpb.Watch")];
        assert_eq!(value(&scrape(server), "grpc_server_started_total", &watching), 1.0);
        drop(watch);
        within(MOMENTS, "the watch that is no more counts", async || {
            let now = scrape(server);
            let ended = value(&now, "grpc_server_handled_total", &watching);
            (ended == 1.0 && value(&now, "etcd_debugging_mvcc_watcher_total", &[]) == 0.0).then_some(())
        })
        .await;
        let applied = |metrics: &Metrics| value(metrics, "etcd_server_proposals_applied_total", &[]);
        client.kv.clone().put(PutRequest { key: "k".into(), ..PutRequest::default() }).await.unwrap();
        assert!(applied(&scrape(server)) > applied(&before));
    });
}

/// One member leads, as the figures say, and those who stay have seen two leaders.
#[test]
fn a_cluster_has_one_leader_by_its_metrics() {
    run(async {
        let dir = TempDir::new();
        let mut cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &[]).await;
        let leads = |cluster: &Cluster, member: usize| {
            value(&scrape(&cluster.members[member]), "etcd_server_is_leader", &[])
        };
        assert_eq!((0..3).map(|member| leads(&cluster, member)).sum::<f64>(), 1.0);
        let first = cluster.leader().await;
        assert_eq!(leads(&cluster, first), 1.0);
        cluster.members[first].kill();
        let stays = [1, 2].map(|next| (first + next) % 3);
        within(MOMENTS, "no other member leads", async || {
            let leaders = stays.map(|member| leads(&cluster, member));
            (leaders.into_iter().sum::<f64>() == 1.0).then_some(())
        })
        .await;
        for member in stays {
            within(MOMENTS, "a member counts one leader", async || {
                let seen =
                    value(&scrape(&cluster.members[member]), "etcd_server_leader_changes_seen_total", &[]);
                (seen >= 2.0).then_some(())
            })
            .await;
        }
        cluster.members[first].spawn_again();
        cluster.wait_until_all_answer().await;
    });
}

/// It reads `process_resident_memory_bytes` before and after it has written 10,000 keys.
#[test]
fn etcdctl_measures_how_data_scales() {
    with_etcd_beside(&[], async |revd, etcd| {
        let shapes = [&*revd, etcd].map(|server| {
            let etcdctl = peers().unwrap().path("etcdctl");
            let mut command = Command::new(etcdctl);
            command.args(["--endpoints", &server.endpoint(), "check", "datascale", "--load=s"]);
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success(), "{text}");
            let first = text.lines().next().unwrap().to_owned();
            let (_, verdict) = text.rsplit_once("PASS: ").unwrap_or_else(|| panic!("{text}"));
            let (words, figure) = verdict.lines().next().unwrap().split_once(" : ").unwrap();
            let megabytes: f64 = figure.strip_suffix(" MB.").unwrap().parse().unwrap();
            assert!(megabytes < 500.0, "{megabytes}");
            (first, words.to_owned())
        });
        assert_eq!(shapes[0], shapes[1]);
    });
}
