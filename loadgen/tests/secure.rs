//! TLS and users, against a real revd that has both.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod programs;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use programs::{good, loadgen, revd, texts};
use revd_loadgen::certificates::ServerCertificate;
use revd_loadgen::result::RunResult;
use revd_loadgen::servers::{Security, ServerSpec, Servers, find};
use revd_loadgen::suite::Suite;
use revd_loadgen::wire::RpcMethod;
use revd_loadgen::wire::users::{Credentials, set_for};
use revd_loadgen::{clock, login, probe};

const SHORT: [&str; 7] = ["--duration", "400ms", "--warmup", "100ms", "--quiet", "--key-space-size", "100"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn spec(security: Security) -> ServerSpec {
    let program = find(&format!("revd={}", text(&revd()))).unwrap();
    ServerSpec { program, members: 1, security, ..ServerSpec::default() }
}

fn server(security: Security) -> Servers {
    Servers::start(&spec(security)).unwrap()
}

/// The runs of a file: all calls went well, and nothing was wrong.
fn judge(json: &Path) -> Vec<RunResult> {
    let runs = RunResult::read(json).unwrap();
    for run in &runs {
        assert!(run.is_good(), "{}: {:?} {:?}", run.plan.name, run.violations, run.stopped);
        for op in run.rounds.iter().flat_map(|round| &round.ops) {
            assert!(op.count > 0 && op.errors.is_empty(), "{}: {:?}", op.name, op.errors);
        }
    }
    runs
}

/// Which servers are believed, and who may call.
#[test]
fn certificates_and_users_count_as_they_do_for_etcdctl() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let server = server(Security { tls: true, auth: true });
    let authority = server.data_folder().join("authority.pem");
    let run = |words: &[&str]| {
        let endpoint = ["--endpoints", server.endpoint(), "--json", text(&json)];
        loadgen(&[&["put"], &SHORT[..], &endpoint, words].concat())
    };
    let cacert = ["--cacert", text(&authority)];
    for user in [&["--user", "loadgen:loadgen"][..], &["--user", "loadgen", "--password", "loadgen"]] {
        let output = run(&[&cacert, user].concat());
        assert!(output.status.success(), "{:?}", texts(&output));
        judge(&json);
    }
    // Where other users of the machine see no password.
    let file = folder.path().join("password");
    std::fs::write(&file, "loadgen\n").unwrap();
    let output = run(&[&cacert[..], &["--user", "loadgen", "--password-file", text(&file)]].concat());
    assert!(output.status.success(), "{:?}", texts(&output));
    let output = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["put", "--endpoints", server.endpoint()])
        .args(SHORT)
        .args(cacert)
        .envs([("ETCDCTL_USER", "loadgen"), ("ETCDCTL_PASSWORD", "loadgen")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", texts(&output));
    let output = run(&["--insecure-skip-tls-verify", "--user", "root:loadgen"]);
    assert!(output.status.success(), "{:?}", texts(&output));
    let user = ["--user", "loadgen:loadgen"];
    for (words, why) in [
        (&user[..], "invalid peer certificate"),
        (&cacert[..], "user name is empty"),
        (&[&cacert[..], &["--user", "loadgen:wrong"]].concat()[..], "authentication failed"),
        (&[&cacert[..], &["--user", "loadgen"]].concat()[..], "its password is missing"),
        (&[&cacert[..], &["--cert", "no.such.pem", "--key", "no.such.key"]].concat()[..], "no.such.key"),
    ] {
        let output = run(words);
        let (out, err) = texts(&output);
        assert!(!output.status.success(), "{words:?} went well");
        assert!(out.contains(why) || err.contains(why), "{words:?}: {out}\n{err}");
    }
}

/// A certificate is shown where it is asked for, and is that of `--cert`.
#[test]
fn a_server_that_asks_for_certificates_serves_those_who_show_one() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let stranger = ServerCertificate::make(folder.path()).unwrap();
    let asking = ServerSpec { asks_callers: true, ..spec(Security { tls: true, auth: false }) };
    let server = Servers::start(&asking).unwrap();
    let file = |name: &str| text(&server.data_folder().join(name)).to_owned();
    let [authority, cert, key] = ["authority.pem", "server.pem", "server.key"].map(file);
    let run = |words: &[&str]| {
        let known = ["--endpoints", server.endpoint(), "--cacert", &authority, "--json", text(&json)];
        loadgen(&[&["put"], &SHORT[..], &known, words].concat())
    };
    // A certificate that does not say what it is for is good for clients as well.
    let output = run(&["--cert", &cert, "--key", &key]);
    assert!(output.status.success(), "{:?}", texts(&output));
    judge(&json);
    for words in [&[][..], &["--cert", &stranger.cert, "--key", &stranger.key]] {
        let output = run(words);
        let (out, err) = texts(&output);
        assert!(!output.status.success(), "{words:?} went well");
        assert!(
            [&out, &err].iter().any(|said| said.contains("received fatal alert")),
            "{words:?}: {out}\n{err}"
        );
    }
}

/// Auth that is switched off and on again ends all tokens: each call goes well none the less.
#[test]
fn a_token_that_is_refused_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("run.json");
    let server = server(Security { tls: false, auth: true });
    let endpoint = server.endpoint();
    let mut child = Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["mixed", "--mix", "put=4,get=4,cas=1,lease-keepalive=1", "--duration", "6s"])
        .args(["--no-preload", "--quiet", "--endpoints", endpoint, "--json", text(&json)])
        .args(["--user", "loadgen:loadgen", "--clients", "20", "--conns", "4", "--threads", "2"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let root = Credentials { name: "root".to_owned(), password: "loadgen".to_owned() };
    set_for(revd_loadgen::wire::client::host(endpoint).unwrap(), root);
    let revision = || probe::status(endpoint).unwrap().revision;
    let before = revision();
    while revision() < before + 100 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended before it did anything");
        clock::rest(Duration::from_millis(10));
    }
    for _ in 0..5 {
        for path in ["/etcdserverpb.Auth/AuthDisable", "/etcdserverpb.Auth/AuthEnable"] {
            login::ask(endpoint, RpcMethod::Other(path), &[]).unwrap();
        }
        clock::rest(Duration::from_millis(200));
    }
    assert!(child.wait().unwrap().success());
    judge(&json);
}

/// A revd that is asked over its metrics, while it runs, how often its users have changed.
struct WatchedServer {
    /// As `versus` takes it.
    flag: String,
    newest: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    asking: Option<JoinHandle<()>>,
}

impl WatchedServer {
    fn new(name: &str, folder: &Path) -> Self {
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let script = folder.join(name);
        let text =
            format!("#!/bin/sh\nexec {} \"$@\" --listen-metrics-urls http://{metrics}\n", text(&revd()));
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (newest, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (Arc::clone(&newest), Arc::clone(&is_over));
        let asking = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                seen.fetch_max(auth_revision(metrics).unwrap_or(0), Ordering::Relaxed);
                clock::rest(Duration::from_millis(10));
            }
        });
        let flag = format!("{name}={}", self::text(&script));
        Self { flag, newest, is_over, asking: Some(asking) }
    }

    /// Whether it had users since this was asked before.
    fn had_users(&self) -> bool {
        self.newest.swap(0, Ordering::Relaxed) > 5
    }
}

impl Drop for WatchedServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(asking) = self.asking.take() {
            let _ = asking.join();
        }
    }
}

fn auth_revision(metrics: SocketAddr) -> Option<u64> {
    let mut stream = TcpStream::connect(metrics).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut told = String::new();
    stream.read_to_string(&mut told).ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("etcd_debugging_auth_revision "))?;
    line.trim().parse().ok()
}

/// `versus` makes certificates and users for both, or for one of them: where there are users, calls
/// go well in the name of one alone.
#[test]
fn two_servers_are_secured_alike() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("versus.json");
    let servers = ["one", "two"].map(|name| WatchedServer::new(name, folder.path()));
    let run = |words: &[&str]| {
        let [a, b] = &servers;
        let pair = ["versus", "--a", &a.flag, "--b", &b.flag, "--rounds", "1", "-q", "--json", text(&json)];
        good(&[&pair, words].concat());
        let runs = judge(&json);
        let secure = runs.iter().map(|run| run.plan.endpoints[0].starts_with("https://")).collect::<Vec<_>>();
        (secure, [a.had_users(), b.had_users()])
    };
    let short = ["--scenario", "put,watch-latency,connect", "--duration", "300ms"];
    assert_eq!(run(&short), (vec![false; 6], [false; 2]));
    let both = [&short[..], &["--tls", "--auth"]].concat();
    assert_eq!(run(&both), (vec![true; 6], [true; 2]));
    let one = [&["--scenario", "get", "--duration", "300ms"][..], &["--tls", "a", "--auth", "b"]].concat();
    assert_eq!(run(&one), (vec![true, false], [false, true]));
    let suite = folder.path().join("suite.toml");
    let toml = "tls = \"both\"\nauth = \"a\"\n[[scenario]]\npreset = \"put\"\nduration = 0.3\nwarmup = 0.1\n";
    std::fs::write(&suite, toml).unwrap();
    assert_eq!(run(&["--suite", text(&suite)]), (vec![true, true], [true, false]));
    assert_eq!(run(&["--suite", text(&suite), "--tls", "b"]), (vec![false, true], [true, false]));
    good(&["suite", text(&suite), "--server", text(&revd()), "-q", "--json", text(&json)]);
    assert!(judge(&json)[0].plan.endpoints[0].starts_with("https://"));
}

#[test]
fn the_suites_that_come_with_it_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 5);
    for file in files {
        assert!(!Suite::read(&file).unwrap().plans().unwrap().is_empty(), "{}", file.display());
    }
}
