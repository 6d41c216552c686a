//! A loadgen that is ended by a signal leaves no server, and no folder.

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
/// After which a comparison is ended: a busy machine has measured nothing after the first.
const RUN_SECONDS: [u64; 3] = [4, 16, 64];

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

/// Parent and words of a process, as long as it runs.
fn process(pid: u32) -> Option<(u32, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (state != "Z").then(|| (parent, String::from_utf8_lossy(&words).into_owned()))
}

/// All processes: their parents and words.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    names.filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?))
}

/// As loadgen asks.
fn has_setpriv() -> bool {
    let said = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).output();
    said.is_ok_and(|said| said.status.success())
}

/// Whether programs that are started here end at a hangup; not so below `nohup`.
fn hangups_are_heard() -> bool {
    let status = Command::new("sh").args(["-c", "kill -HUP $$"]).status();
    status.unwrap().signal() == Some(1)
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

    /// Waits until so many of its servers run: `setpriv`, which becomes one, is none yet.
    fn wait_for_servers(&mut self, count: usize) {
        let own = self.child.id();
        wait_until("servers are not started", || {
            assert!(self.child.try_wait().unwrap().is_none(), "loadgen has ended");
            let children = processes().filter(|(parent, _)| *parent == own);
            let is_server = |words: &str| self.is_at_work(words) && !words.starts_with("setpriv");
            children.filter(|(_, words)| is_server(words)).count() == count
        });
    }

    /// Whether these are the words of a process that was sent to its folder.
    fn is_at_work(&self, words: &str) -> bool {
        words.contains(text(self.folder.path()))
    }

    fn signal(&self, signal: &str) {
        let told = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(told.unwrap().success());
    }

    /// How it ends.
    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("loadgen does not end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits until none of its servers is left, whoever is their parent now.
    fn wait_for_nobody(&self) {
        wait_until("a server is left", || !processes().any(|(_, words)| self.is_at_work(&words)));
    }

    /// It ends with this code, and leaves nothing.
    fn assert_ends(&mut self, code: i32, what: &str) {
        assert_eq!(self.ended().code(), Some(code), "{what}");
        self.wait_for_nobody();
        assert!(is_empty(self.folder.path()), "{what}");
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
        loadgen.wait_for_servers(1);
        // In the middle of peace, or of the attack.
        clock::rest(Duration::from_secs(4));
        loadgen.signal(signal);
        loadgen.assert_ends(code, only);
    }
}

#[test]
fn figures_that_are_ended_leave_nothing() {
    let (a, b) = (format!("one={}", text(&revd())), format!("two={}", text(&revd())));
    let mut loadgen = Loadgen::start(&["figures", "footprint", "--a", &a, "--b", &b]);
    loadgen.wait_for_servers(2);
    clock::rest(Duration::from_secs(1));
    loadgen.signal("-TERM");
    loadgen.assert_ends(143, "footprint");
}

/// Servers that do not come up are waited for, but not by somebody who has had enough.
#[test]
fn starts_that_are_ended_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = mute(folder.path());
    let third = if hangups_are_heard() { ("-HUP", 129) } else { ("-INT", 130) };
    let commands: [(&[&str], (&str, i32)); 3] = [
        (&["versus", "-q", "--a", &server, "--b", &server], ("-INT", 130)),
        (&["attacks", "--only-a", "--a", &server], ("-INT", 130)),
        (&["put", "-q", "--server", &server], third),
    ];
    for (words, (signal, code)) in commands {
        let mut loadgen = Loadgen::start(words);
        loadgen.wait_for_servers(1);
        loadgen.signal(signal);
        loadgen.assert_ends(code, words[0]);
    }
}

#[test]
fn a_comparison_that_is_ended_keeps_its_results_and_leaves_nothing() {
    let kept = tempfile::tempdir().unwrap();
    let json = kept.path().join("kept.json");
    let (a, b) = (format!("one={}", text(&revd())), format!("two={}", text(&revd())));
    let words = ["versus", "-q", "--a", &a, "--b", &b, "--scenario", "put,get", "--rounds", "1"];
    let words = [&words[..], &["--duration", "300s", "--json", text(&json)]].concat();
    for seconds in RUN_SECONDS {
        let mut loadgen = Loadgen::start(&words);
        loadgen.wait_for_servers(2);
        clock::rest(Duration::from_secs(seconds));
        loadgen.signal("-TERM");
        loadgen.assert_ends(143, "versus");
        let is_interrupted = |run: &RunResult| run.stopped.as_deref() == Some("interrupted");
        if RunResult::read(&json).is_ok_and(|runs| runs.iter().any(is_interrupted)) {
            return;
        }
    }
    panic!("no result is kept");
}

/// It can do nothing then; the system ends its servers where there is `setpriv`.
#[test]
fn servers_do_not_outlive_a_loadgen_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut loadgen = Loadgen::start(&["put", "-q", "--server", &mute(folder.path())]);
    loadgen.wait_for_servers(1);
    loadgen.signal("-KILL");
    assert_eq!(loadgen.ended().signal(), Some(9));
    if has_setpriv() {
        loadgen.wait_for_nobody();
    }
}
