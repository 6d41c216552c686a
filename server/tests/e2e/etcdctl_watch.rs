//! A real etcdctl that watches, holds leases, locks and leads: on revd and
//! on etcd, with the same output.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Peers, Server, TempDir, peers, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);

struct Ctl<'p> {
    peers: &'p Peers,
    endpoint: String,
    dir: &'p TempDir,
}

/// An etcdctl that goes on until it is told to end; its output so far is in a file.
struct Running {
    child: Child,
    output: std::path::PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until the output has so many lines.
    fn lines(&self, count: usize) -> String {
        let enough = || self.output().lines().count() >= count;
        wait_until(DEADLINE, enough, || format!("only this was printed: {}", self.output()));
        self.output()
    }

    /// Ends it. The signal of Ctrl-C would be ignored where a shell has started the tests in the
    /// background.
    fn interrupt(&mut self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        self.child.wait().unwrap();
    }
}

impl Ctl<'_> {
    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(self.peers.path("etcdctl"));
        command.args(["--endpoints", &self.endpoint]).args(line);
        command
    }

    fn run(&self, line: &[&str]) -> String {
        let output = self.command(line).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, name: &str, line: &[&str], input: &str) -> Running {
        let path = |what: &str| self.dir.path().join(format!("{name}-{}-{what}", self.endpoint.len()));
        std::fs::write(path("in"), input).unwrap();
        let output = path("out");
        let file = std::fs::File::create(&output).unwrap();
        let mut command = self.command(line);
        // An interactive watch goes on until its input ends: it is held open.
        if input.is_empty() {
            command.stdin(Stdio::null())
        } else {
            command.stdin(Stdio::piped())
        };
        let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        if let Some(stdin) = &mut child.stdin {
            std::io::Write::write_all(stdin, input.as_bytes()).unwrap();
        }
        Running { child, output }
    }
}

/// Runs a scenario on revd and on etcd; what it shows must be the same.
fn both(scenario: impl Fn(&Ctl<'_>) -> String) {
    let Some(peers) = peers() else { return };
    let (ours, theirs) = (TempDir::new(), TempDir::new());
    let revd = Server::revd(&ours.path().join("data"), &["--watch-progress-notify-interval", "1s"]);
    let etcd = Server::etcd(
        &peers.path("etcd"),
        &theirs.path().join("data"),
        &["--watch-progress-notify-interval", "1s"],
    );
    let shown = |server: &Server, dir| scenario(&Ctl { peers, endpoint: server.endpoint(), dir });
    assert_eq!(shown(&revd, &ours), shown(&etcd, &theirs));
}

fn changes(ctl: &Ctl<'_>) {
    ctl.run(&["put", "w/1", "one"]);
    ctl.run(&["put", "w/2", "two"]);
    ctl.run(&["put", "w/1", "uno"]);
    ctl.run(&["del", "w/", "--prefix"]);
}

#[test]
fn watches_print_the_same() {
    both(|ctl| {
        let mut shown = String::new();
        changes(ctl);
        for (lines, flags) in [
            (15, &["w/", "--prefix", "--rev", "2"][..]),
            (21, &["w/", "--prefix", "--rev", "2", "--prev-kv"]),
            (9, &["w/1", "--rev", "1"]),
            (15, &["w/1", "w/3", "--rev", "2"]),
        ] {
            let watching = ctl.start("past", &[&["watch"][..], flags].concat(), "");
            shown += &watching.lines(lines);
        }
        let watching = ctl.start("json", &["watch", "w/", "--prefix", "--rev", "2", "-w", "json"], "");
        let json = watching.lines(1);
        shown += json.split_once("\"Events\"").map_or("no events", |(_, events)| events);
        let executing = ctl.start(
            "exec",
            &[
                "watch",
                "w/1",
                "--rev",
                "2",
                "--",
                "sh",
                "-c",
                "echo $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_VALUE",
            ],
            "",
        );
        shown += &executing.lines(12);
        shown
    });
}

#[test]
fn interactive_watches_and_progress_print_the_same() {
    both(|ctl| {
        let requests = "watch w/1\nwatch w/ --prefix --prev-kv\nprogress\n";
        let watching = ctl.start("interactive", &["watch", "-i"], requests);
        let progress = watching.lines(1);
        assert!(progress.contains("progress notify: 1"), "{progress}");
        changes(ctl);
        // Both watchers print, in any order: everything by lines.
        let mut lines: Vec<String> = watching.lines(31).lines().map(str::to_owned).collect();
        lines.retain(|line| !line.contains("progress notify"));
        lines.sort();
        let notified = ctl.start("notified", &["watch", "idle", "--progress-notify"], "");
        let notified = notified.lines(1);
        assert!(notified.contains("progress notify: 5"), "{notified}");
        lines.join("\n")
    });
}

#[test]
fn leases_locks_and_elections_print_the_same() {
    both(|ctl| {
        let id = |text: &str| text.split(' ').nth(1).unwrap().to_owned();
        let granted = ctl.run(&["lease", "grant", "100"]);
        let lease = id(&granted);
        ctl.run(&["put", "leased/1", "x", "--lease", &lease]);
        ctl.run(&["put", "leased/2", "x", "--lease", &lease]);
        let mut shown = granted.clone();
        let left = ctl.run(&["lease", "timetolive", &lease, "--keys"]);
        // In no order, says etcd.
        shown += &left.replace("leased/2 leased/1", "leased/1 leased/2");
        shown += &ctl.run(&["lease", "keep-alive", "--once", &lease]);
        shown += &ctl.run(&["lease", "list"]);
        let mut keeping = ctl.start("keep", &["lease", "keep-alive", &lease], "");
        shown += keeping.lines(1).lines().next().unwrap();
        keeping.interrupt();
        shown += &ctl.run(&["lease", "revoke", &lease]);
        assert_eq!(ctl.run(&["get", "leased/", "--prefix"]), "");
        shown += &ctl.run(&["lease", "timetolive", &lease]);

        let mut held = ctl.start("held", &["lock", "mutex"], "");
        let key = held.lines(1);
        assert!(key.starts_with("mutex/"), "{key}");
        let mut waiting = ctl.start("waiting", &["lock", "mutex"], "");
        shown += &ctl.run(&["lock", "other", "echo", "done"]);
        assert_eq!(waiting.output(), "", "locked twice");
        held.interrupt();
        assert!(waiting.lines(1).starts_with("mutex/"));
        waiting.interrupt();

        let mut leader = ctl.start("leader", &["elect", "race", "first"], "");
        let won = leader.lines(2);
        assert!(won.starts_with("race/") && won.ends_with("first\n"), "{won}");
        let observing = ctl.start("observing", &["elect", "-l", "race"], "");
        assert!(observing.lines(2).ends_with("first\n"));
        let mut next = ctl.start("next", &["elect", "race", "second"], "");
        leader.interrupt();
        assert!(next.lines(2).ends_with("second\n"));
        assert!(observing.lines(4).ends_with("second\n"));
        next.interrupt();
        // The TTL a lease has left differs by the time things took.
        let left = |line: &str| match (line.find("remaining("), line.find("s)")) {
            (Some(start), Some(_)) => format!("{}{}", &line[..start], &line[line.rfind("s)").unwrap()..]),
            _ => line.to_owned(),
        };
        shown.replace(&lease, "LEASE").lines().map(left).collect::<Vec<_>>().join("\n")
    });
}
