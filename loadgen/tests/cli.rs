//! The program as people use it, against a real revd.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod fake;
mod programs;

use std::path::Path;
use std::process::Command;

use fake::{Fake, Faults};
use programs::{good, loadgen, revd, texts};
use revd_loadgen::presets;
use revd_loadgen::result::RunResult;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every scenario runs, is right by its own checks, and measures something.
#[test]
fn all_scenarios_run_against_revd() {
    let folder = tempfile::tempdir().unwrap();
    let (suite, json) = (folder.path().join("all.toml"), folder.path().join("all.json"));
    let mut toml = "[defaults]\nduration = 0.5\nwarmup = 0.1\nkeys = { count = 500 }\n".to_owned();
    for (name, _) in presets::NAMES {
        toml += &format!("[[scenario]]\npreset = \"{name}\"\n");
        toml += match name {
            "lease-expiry" => "total = 50\nops = [{ op = \"lease-expiry\", ttl = 1 }]\n",
            "watch-fanout" | "watch-latency" => {
                "rate = 50.0\nwatch = { watchers = 100, streams = 10, conns = 5 }\n"
            }
            // Three compactions, and keys in four transactions.
            "large" => {
                "rate = 1000.0\nclients = 200\nduration = 2.2\ncompact-every = 0.5\ndisk-probe = 0.05\n"
            }
            _ => "",
        };
    }
    std::fs::write(&suite, toml).unwrap();
    let revd = revd();
    good(&["suite", text(&suite), "--server", text(&revd), "--json", text(&json), "--quiet"]);
    let runs = RunResult::read(&json).unwrap();
    assert_eq!(runs.len(), presets::NAMES.len());
    for run in &runs {
        let name = &run.plan.name;
        assert!(run.is_good(), "{name}: {:?} {:?}", run.violations, run.stopped);
        let round = &run.rounds[0];
        assert!(!round.ops.is_empty() && round.ops.iter().all(|op| op.count > 0), "{name} measured nothing");
        assert!(round.ops.iter().all(|op| op.errors.is_empty()), "{name}: {:?}", round.ops[0].errors);
        assert!(round.cost.as_ref().is_some_and(|cost| cost.cpu_seconds > 0.0), "{name} cost nothing");
        if let Some(events) = round.events.filter(|_| !run.plan.ops.is_empty()) {
            assert!(events.expected > 0 && events.delivered == events.expected, "{name}: {events:?}");
        }
    }
}

/// A small one of the large scenario: all that it measures over time is in its result, in what it
/// says and on its page.
#[test]
fn a_run_is_measured_over_time_beside_compactions_and_a_probe_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (folder.path().join("large.json"), folder.path().join("large.html"));
    let revd = revd();
    let words = ["run", "large", "--server", text(&revd), "--key-space-size", "1000", "--rate", "1100", "-q"];
    let sizes = ["--clients", "100", "--duration", "3s", "--compact-every", "500ms", "--disk-probe", "20ms"];
    let files = ["--json", text(&json), "--html", text(&html)];
    let out = good(&[&words[..], &sizes, &files].concat());
    let run = &RunResult::read(&json).unwrap()[0];
    assert!(run.is_good(), "{:?} {:?}", run.violations, run.stopped);
    let round = &run.rounds[0];
    let names: Vec<_> = round.ops.iter().map(|op| op.name.as_str()).collect();
    assert_eq!(names, ["put", "get", "compact"]);
    assert!(round.ops.iter().all(|op| op.errors.is_empty()), "{:?}", round.ops[2].errors);
    assert!(round.ops[0].count > 5 * round.ops[1].count, "ten puts for each get");

    // The one at the end of the run is none; on a machine that stands still some come together.
    let revisions: Vec<_> = round.compactions.iter().map(|mark| mark.revision).collect();
    assert!((2..=5).contains(&revisions.len()) && revisions.is_sorted(), "{revisions:?}");
    assert_eq!(round.ops[2].count, revisions.len() as u64);
    assert!(revisions[0] > 1000_i64.div_euclid(128), "{revisions:?} are those of puts");
    let times: Vec<_> = round.samples.iter().map(|sample| sample.at).collect();
    assert!((1..=3).contains(&times.len()) && times.is_sorted(), "{times:?}");
    for sample in &round.samples {
        assert!(sample.memory_bytes > 0 && sample.written_bytes > 0, "{sample:?}");
        let (data, longest) = (sample.data_bytes.unwrap(), sample.longest_file_bytes.unwrap());
        assert!(data > 100_000 && longest > 0, "{sample:?}: a thousand keys of 320 bytes");
    }
    assert!(round.disk_probe.len() >= 3 && round.disk_probe.iter().all(|slowest| *slowest > 0.0));

    for words in [
        "sockets every 250 us (turn-every)",
        "raw fdatasync of 4 KiB",
        "put: p99.9 ",
        "of which 0 failed",
        "data on disk, after each",
    ] {
        assert!(out.contains(words), "{words} is not in {out}");
    }
    let page = std::fs::read_to_string(&html).unwrap();
    for words in [
        "slowest each second",
        "sockets every 250 us (turn-every)",
        "raw fdatasync",
        "data of the server on disk",
        "class=\"mark\"",
        ": compaction at ",
    ] {
        assert!(page.contains(words), "{words} is not on the page");
    }
}

/// Reads in pages go on beside them, a revision is compacted once, and failures are counted.
#[test]
fn compactions_go_beside_any_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("list.json");
    let revd = revd();
    let words = ["range", "--paginate", "--limit", "50", "--clients", "4", "--key-space-size", "500"];
    let more =
        ["--compact-every", "100ms", "--duration", "1s", "--rounds", "2", "-q", "--server", text(&revd)];
    good(&[&words[..], &more, &["--json", text(&json)]].concat());
    let run = &RunResult::read(&json).unwrap()[0];
    // Nothing is written, so there is one thing to compact, and nothing in the second round.
    let counts: Vec<_> = run.rounds.iter().map(|round| round.compactions.len()).collect();
    assert_eq!(counts, [1, 0]);
    assert!(run.rounds.iter().flat_map(|round| &round.ops).all(|op| op.errors.is_empty()));

    let fake = Fake::start(Faults { refuses_compactions: true, ..Faults::default() });
    let words =
        ["put", "--rate", "200", "--duration", "1s", "--warmup", "0s", "--compact-every", "200ms", "-q"];
    let out = good(&[&words[..], &["--endpoints", &fake.endpoint, "--json", text(&json)]].concat());
    let round = &RunResult::read(&json).unwrap()[0].rounds[0];
    assert!(!round.compactions.is_empty() && round.compactions.iter().all(|mark| mark.error.is_some()));
    let failed: u64 = round.ops[1].errors.values().sum();
    assert!(failed == round.compactions.len() as u64 && out.contains(&format!("{failed} failed")), "{out}");
}

/// A user in the environment that has no password: calls in its name fail for it, and nothing else.
#[test]
fn a_user_without_a_password_is_in_the_way_of_its_calls_alone() {
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        command.args(words).env("ETCDCTL_USER", "ann").env_remove("ETCDCTL_PASSWORD").output().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let suite = folder.path().join("suite.toml");
    let toml = "[[scenario]]\npreset = \"put\"\nduration = 0.2\nwarmup = 0.1\n";
    std::fs::write(&suite, toml).unwrap();
    // The last one starts a server of its own.
    for words in [
        &["scenarios"][..],
        &["completions", "bash"],
        &["suite", text(&suite), "--server", text(&revd()), "-q"],
    ] {
        let output = run(words);
        assert!(output.status.success(), "{words:?}: {:?}", texts(&output));
    }
    let fake = Fake::start(Faults::default());
    let output = run(&["put", "--endpoints", &fake.endpoint, "--duration", "100ms"]);
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{out}");
    assert!(err.contains("ETCDCTL_USER ann: its password is missing"), "{out}\n{err}");
}

#[test]
fn results_are_kept_compared_and_judged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let revd = revd();
    let run = |json: &str| {
        let words = [
            "put",
            "--server",
            text(&revd),
            "--duration",
            "300ms",
            "--warmup",
            "100ms",
            "--rounds",
            "3",
            "-q",
        ];
        let (json, csv, hlog, html) = (path(json), path("a.csv"), path("a.hlog"), path("a.html"));
        let files =
            ["--json", text(&json), "--csv", text(&csv), "--hlog", text(&hlog), "--html", text(&html)];
        good(&[&words[..], &files].concat())
    };
    let out = run("base.json");
    assert!(out.contains("| put") && out.contains("server:") && out.contains("median of 3 rounds"), "{out}");
    run("new.json");
    assert!(std::fs::read_to_string(path("a.csv")).unwrap().lines().count() == 4);
    assert!(std::fs::read_to_string(path("a.hlog")).unwrap().contains("Tag=put/put"));
    assert!(std::fs::read_to_string(path("a.html")).unwrap().contains("latency by percentile"));

    let (base, new, xml) = (path("base.json"), path("new.json"), path("gate.xml"));
    let compare =
        |rule: &str| loadgen(&["compare", text(&base), text(&new), "--fail-if", rule, "--junit", text(&xml)]);
    assert_eq!(compare("put.p50 > 1000x").status.code(), Some(0));
    assert!(std::fs::read_to_string(&xml).unwrap().contains("failures=\"0\""));
    let closed = compare("put.p50 > 0.001x");
    assert_eq!(closed.status.code(), Some(3), "{}", texts(&closed).0);
    assert!(std::fs::read_to_string(&xml).unwrap().contains("failures=\"1\""));
    assert!(good(&["history", text(&base), text(&new)]).contains("put/put"));
    good(&["report", text(&base), "-o", text(&path("again.html"))]);
}

#[test]
fn habits_of_etcds_benchmark_are_understood() {
    let fake = Fake::start(Faults::default());
    let endpoint = ["--endpoints", fake.endpoint.as_str()];
    for words in [
        &[
            "put",
            "--conns=2",
            "--clients=4",
            "--total=200",
            "--sequential-keys",
            "--key-size=8",
            "--val-size=256",
        ][..],
        &["range", "foo", "--total", "100", "--consistency=s", "--limit=10"],
        &["txn-put", "--total=100", "--txn-ops=4", "--key-space-size=50"],
        &["watch-latency", "--streams=2", "--watchers-per-stream=3", "--put-total=20", "--put-rate=200"],
        &["watch", "--streams=2", "--watch-per-stream=3", "--put-total=20"],
        &["txn-mixed", "foo", "--total=100", "--rw-ratio=2"],
    ] {
        let out = good(&[&["benchmark"], words, &endpoint].concat());
        assert!(
            out.contains("Summary:\n  Total:\t") && out.contains("Latency distribution:"),
            "{words:?}: {out}"
        );
        assert!(out.contains("Requests/sec:\t"), "{out}");
    }
}

#[test]
fn bad_input_is_named_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let partial = folder.path().join("partial.json");
    let dying = Fake::start(Faults { dies_after: Some(200), ..Faults::default() });
    let cases: [(&[&str], &str); 10] = [
        (&["put", "--endpoints", "127.0.0.1:1"], "127.0.0.1:1 does not answer"),
        (&["put", "--endpoints", "no.such.host.invalid:1"], "no.such.host.invalid:1"),
        (&["put", "--endpoints", "https://127.0.0.1:1"], "connecting to https://127.0.0.1:1"),
        (&["put", "--cacert", "no.such.pem"], "no.such.pem"),
        (&["put", "--endpoints", "nonsense"], "nonsense is no endpoint"),
        (&["run", "putt"], "there is no scenario `putt`"),
        (&["put", "--rate=-3"], "--rate -3"),
        (&["put", "--key-order", "fast"], "`fast` is no order"),
        (&["versus", "--a", "no-such-server"], "there is no program `no-such-server`"),
        (
            &[
                "put",
                "--rate=500",
                "--warmup=0s",
                "--endpoints",
                &dying.endpoint,
                "--json",
                text(&partial),
                "-q",
            ],
            "INCOMPLETE",
        ),
    ];
    for (words, expected) in cases {
        let output = loadgen(words);
        let (out, err) = texts(&output);
        assert!(!output.status.success(), "{words:?} went well");
        assert!(out.contains(expected) || err.contains(expected), "{words:?}: {out}\n{err}");
    }
    let kept = RunResult::read(&partial).unwrap();
    assert!(kept[0].stopped.is_some() && kept[0].op("put").next().unwrap().count > 50);
}

/// An interrupted run keeps its measurements, and is marked as incomplete.
#[test]
fn a_run_that_is_interrupted_keeps_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.json");
    let fake = Fake::start(Faults::default());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["put", "--rate=500", "--duration=300s", "--warmup=0s", "-q", "--endpoints", &fake.endpoint])
        .args(["--json", text(&kept)])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    revd_loadgen::clock::rest(std::time::Duration::from_millis(1_500));
    let told = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(told.success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    let runs = RunResult::read(&kept).unwrap();
    assert_eq!(runs[0].stopped.as_deref(), Some("interrupted"));
    assert!(runs[0].op("put").next().unwrap().count > 100);
}

#[test]
fn help_names_examples_and_shells_are_completed() {
    assert!(good(&["--help"]).contains("loadgen versus --a revd --b etcd"));
    assert!(good(&["scenarios"]).contains("watch-fanout"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(&["completions", shell]).contains("watch-fanout"));
    }
}

/// Two servers in turns; the same program twice here, so that no other has to be there.
#[test]
fn two_servers_are_compared_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let (html, json) = (folder.path().join("v.html"), folder.path().join("v.json"));
    let (a, b) = (format!("one={}", text(&revd())), format!("two={}", text(&revd())));
    let words = [
        "versus",
        "--a",
        &a,
        "--b",
        &b,
        "--scenario",
        "put,watch-latency",
        "--rounds",
        "2",
        "--duration",
        "300ms",
    ];
    let out = good(&[&words[..], &["-q", "--html", text(&html), "--json", text(&json)]].concat());
    assert!(out.contains("one") && out.contains("server CPU") && out.contains("ratio"), "{out}");
    let runs = RunResult::read(&json).unwrap();
    assert_eq!(runs.iter().map(|run| run.rounds.len()).collect::<Vec<_>>(), [2, 2, 2, 2]);
    assert!(std::fs::read_to_string(&html).unwrap().contains("one beside two"));
    let again = good(&["report", text(&json), "--pairs", "one,two", "-o", text(&html)]);
    assert!(again.contains("| put"), "{again}");
    assert!(std::fs::read_to_string(&html).unwrap().contains("one beside two"));
}

/// A pair of two builds of one server, each with its label.
#[test]
fn figures_of_two_builds_have_a_column_each() {
    let (a, b) = (format!("old={}", text(&revd())), format!("new={}", text(&revd())));
    let out = good(&["figures", "ranges", "--a", &a, "--b", &b, "--rounds", "1", "--keys", "100"]);
    for part in
        ["loadgen figures ranges", "CPU per call or event: old", " new |", "page of 500 out of 100 keys"]
    {
        assert!(out.contains(part), "{part} is not in {out}");
    }
}

/// Callers are spread over three members, and their leader is killed.
#[test]
fn clusters_are_measured() {
    let (a, b) = (format!("old={}", text(&revd())), format!("new={}", text(&revd())));
    let words = ["--members", "3", "--a", &a, "--b", &b];
    let out = good(
        &[&["versus", "--scenario", "put", "--rounds", "1", "--duration", "300ms"], &words[..]].concat(),
    );
    assert!(out.contains("server CPU") && !out.contains("WRONG"), "{out}");
    let out = good(&[&["figures", "failover", "--kills", "1"], &words[..]].concat());
    assert!(out.contains("writes accepted again, median") && out.contains("1 kills of the leader"), "{out}");
    let refused = loadgen(&["figures", "failover", "--a", &a, "--b", &b]);
    assert!(!refused.status.success() && texts(&refused).1.contains("need --members 3"), "{refused:?}");
}

#[test]
fn a_sweep_finds_where_a_server_does_not_keep_up() {
    let fake = Fake::start(Faults::default());
    let words = [
        "put",
        "--sweep",
        "100..400:3",
        "--duration",
        "300ms",
        "--warmup",
        "0s",
        "--endpoints",
        &fake.endpoint,
    ];
    let out = good(&words);
    assert!(out.contains("| 100") && (out.contains("knee") || out.contains("keep up")), "{out}");
}
