//! What a loadgen leaves that is ended by a signal: no server, and no folder.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

#[allow(dead_code, reason = "other tests use the rest")]
mod programs;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use programs::revd;
use revd_loadgen::clock;
use revd_loadgen::result::RunResult;

/// Longer than anything takes that is waited for here.
const PATIENCE: u64 = 120 * clock::SECOND;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = clock::nanos() + PATIENCE;
    while !is_so() {
        assert!(clock::nanos() < until, "{what}");
        clock::rest(Duration::from_millis(5));
    }
}

/// State, parent and words of a process, as long as it runs.
fn process(pid: u32) -> Option<(u32, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (state != "Z").then(|| (parent, String::from_utf8_lossy(&words).into_owned()))
}

fn children(parent: u32) -> Vec<u32> {
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| process(*pid).is_some_and(|(of, _)| of == parent)).collect()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// A loadgen whose folders are all in one.
struct Loadgen {
    child: Child,
    folder: tempfile::TempDir,
}

impl Loadgen {
    fn start(words: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        command.args(words).env("TMPDIR", folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap(), folder }
    }

    /// Its servers, so many of them, once they have written something below its folder.
    fn servers(&mut self, count: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let (own, folder) = (self.child.id(), text(self.folder.path()).to_owned());
        let is_server = |pid: &u32| process(*pid).is_some_and(|(_, words)| words.contains(&folder));
        wait_until("servers are not started", || {
            assert!(self.child.try_wait().unwrap().is_none(), "loadgen has ended");
            found = children(own).into_iter().filter(is_server).collect();
            found.len() == count && !is_empty(self.folder.path())
        });
        found
    }

    fn signal(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(told.unwrap().success());
    }

    /// How it ends; none of these processes is left.
    fn ended(&mut self, servers: &[u32]) -> ExitStatus {
        let mut status = None;
        wait_until("loadgen does not end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        wait_until("a server is left", || servers.iter().all(|pid| process(*pid).is_none()));
        status.unwrap()
    }
}

impl Drop for Loadgen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that never answers; `$4` is its data directory.
fn mute(folder: &Path) -> String {
    let program = folder.join("mute");
    let text = "#!/bin/sh\ncase $1 in --version | --help) exit ;; esac\ntouch \"$4\"\nexec tail -f \"$4\"\n";
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("mute={}", program.to_str().unwrap())
}

#[test]
fn attacks_that_are_ended_leave_nothing() {
    let server = format!("revd={}", text(&revd()));
    let words = ["attacks", "--only-a", "--a", &server, "--only"];
    // The second has a folder for a program with fewer descriptors, too.
    for (only, signal, code) in [("TLS: oversized", "-TERM", 143), ("descriptors", "-INT", 130)] {
        let mut loadgen = Loadgen::start(&[&words[..], &[only]].concat());
        let servers = loadgen.servers(1);
        // In the middle of peace, or of the attack.
        clock::rest(Duration::from_secs(4));
        loadgen.signal(signal);
        assert_eq!(loadgen.ended(&servers).code(), Some(code), "{only}");
        assert!(is_empty(loadgen.folder.path()), "{only}");
    }
}

#[test]
fn figures_that_are_ended_leave_nothing() {
    let (a, b) = (format!("one={}", text(&revd())), format!("two={}", text(&revd())));
    let mut loadgen = Loadgen::start(&["figures", "footprint", "--a", &a, "--b", &b]);
    let servers = loadgen.servers(2);
    clock::rest(Duration::from_secs(1));
    loadgen.signal("-TERM");
    assert_eq!(loadgen.ended(&servers).code(), Some(143));
    assert!(is_empty(loadgen.folder.path()));
}

/// Servers that do not come up are waited for, but not by somebody who has had enough.
#[test]
fn starts_that_are_ended_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = mute(folder.path());
    let commands: [&[&str]; 3] = [
        &["versus", "-q", "--a", &server, "--b", &server],
        &["attacks", "--only-a", "--a", &server],
        &["put", "-q", "--server", &server],
    ];
    for words in commands {
        let mut loadgen = Loadgen::start(words);
        let servers = loadgen.servers(1);
        loadgen.signal("-INT");
        assert_eq!(loadgen.ended(&servers).code(), Some(130), "{words:?}");
        assert!(is_empty(loadgen.folder.path()), "{words:?}");
    }
}

#[test]
fn a_comparison_that_is_ended_keeps_its_results_and_leaves_nothing() {
    let kept = tempfile::tempdir().unwrap();
    let json = kept.path().join("kept.json");
    let (a, b) = (format!("one={}", text(&revd())), format!("two={}", text(&revd())));
    let words = ["versus", "-q", "--a", &a, "--b", &b, "--scenario", "put,get", "--rounds", "1"];
    let mut loadgen = Loadgen::start(&[&words[..], &["--duration", "300s", "--json", text(&json)]].concat());
    let servers = loadgen.servers(2);
    clock::rest(Duration::from_secs(4));
    loadgen.signal("-TERM");
    assert_eq!(loadgen.ended(&servers).code(), Some(143));
    assert!(is_empty(loadgen.folder.path()));
    let runs = RunResult::read(&json).unwrap();
    assert!(runs.iter().any(|run| run.stopped.as_deref() == Some("interrupted")));
}

/// It can do nothing then; the system ends its servers where there is `setpriv`.
#[test]
fn servers_do_not_outlive_a_loadgen_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut loadgen = Loadgen::start(&["put", "-q", "--server", &mute(folder.path())]);
    let servers = loadgen.servers(1);
    loadgen.signal("-KILL");
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    let expected = if has_setpriv { &servers[..] } else { &[] };
    assert_eq!(loadgen.ended(expected).signal(), Some(9));
}
