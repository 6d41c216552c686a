//! A real etcdctl that knows all members, while each of them is restarted in turn and a leader is
//! killed: what it is told to have written is there, and its errors are those that it prints of a
//! cluster of etcd.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Cluster, Product, Server, TempDir, Wiring, peers, products_of_clusters, run, within};

/// Longer than a member needs to stop, or a watch to be told of what was written.
const MOMENTS: Duration = Duration::from_secs(120);

/// Parts of what etcdctl says when a fault meets a call: its client's own words, and etcd's.
const EXPLAINED: [&str; 8] = [
    "code = Unavailable",
    "context deadline exceeded",
    "etcdserver: leader changed",
    "etcdserver: no leader",
    "etcdserver: request timed out",
    "etcdserver: server stopped",
    "is unhealthy", // `endpoint health` of a member that is away
    "unhealthy cluster",
];

/// Commands of one caller, one after the other; `#` is a number that counts up.
const CALLERS: [&[&str]; 3] = [
    &["put w/a #"],
    &["put w/b #", "get w/ --prefix", "member list", "endpoint status"],
    &["put w/c #", "lease grant 60", "lease list", "get w/ --prefix --consistency s", "alarm list"],
];

fn etcdctl(endpoints: &str, line: &str) -> Command {
    let mut command = Command::new(peers().expect("tests of etcd have it").path("etcdctl"));
    command.args(["--endpoints", endpoints]).args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// Replies to the callers.
#[derive(Default)]
struct Told {
    /// Puts that succeeded: key and value.
    written: Vec<(String, String)>,
    errors: Vec<String>,
    calls: usize,
}

/// Commands until it is over.
fn call(endpoints: &str, commands: &[&str], is_over: &AtomicBool, told: &Mutex<Told>) {
    for number in 0_usize.. {
        for command in commands {
            let line = command.replace('#', &number.to_string());
            let output = etcdctl(endpoints, &line).output().unwrap();
            let mut told = told.lock().unwrap();
            told.calls += 1;
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                told.errors.push(format!("{line}: {text}"));
            } else if let ["put", key, value] = line.split(' ').collect::<Vec<_>>()[..] {
                told.written.push((key.to_owned(), value.to_owned()));
            }
        }
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// `etcdctl watch`, and the keys and values that it prints.
struct Watching {
    process: Child,
    heard: Arc<Mutex<Vec<(String, String)>>>,
}

impl Watching {
    fn start(endpoints: &str) -> Self {
        let mut command = etcdctl(endpoints, "watch w/ --prefix");
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(process.stdout.take().unwrap()).lines();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        std::thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            while let (Some(kind), Some(key), Some(value)) = (lines.next(), lines.next(), lines.next()) {
                assert_eq!(kind, "PUT");
                hearing.lock().unwrap().push((key, value));
            }
        });
        Self { process, heard }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Each member is stopped and started, then the leader is killed.
async fn disturb(cluster: &mut Cluster) {
    for member in 0..cluster.members.len() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.members[member].signal("TERM");
        let server: &mut Server = &mut cluster.members[member];
        within(MOMENTS, "a member does not stop", async || (!server.is_running()).then_some(())).await;
        cluster.members[member].spawn_again();
        cluster.wait_until_all_answer().await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.members[leader].spawn_again();
    cluster.wait_until_all_answer().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
}

async fn goes_on(product: Product) {
    let dir = TempDir::new();
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    let endpoints = cluster.members.iter().map(Server::endpoint).collect::<Vec<_>>().join(",");
    let watching = Watching::start(&endpoints);
    within(MOMENTS, "etcdctl watches nothing", async || {
        assert!(etcdctl(&endpoints, "put w/begin 0").output().unwrap().status.success());
        (!watching.heard.lock().unwrap().is_empty()).then_some(())
    })
    .await;
    let (is_over, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::default())));
    let callers = CALLERS.map(|commands| {
        let (endpoints, is_over, told) = (endpoints.clone(), Arc::clone(&is_over), Arc::clone(&told));
        std::thread::spawn(move || call(&endpoints, commands, &is_over, &told))
    });
    disturb(&mut cluster).await;
    is_over.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let Told { written, errors, calls } = std::mem::take(&mut *told.lock().unwrap());
    let has_heard = |heard: &[(String, String)]| written.iter().all(|put| heard.contains(put));
    within(MOMENTS, "the watch is not told of what was written", async || {
        has_heard(&watching.heard.lock().unwrap()).then_some(())
    })
    .await;
    // Numbers of a key go up: none is told twice, none behind a later one.
    let heard = watching.heard.lock().unwrap();
    for key in ["w/a", "w/b", "w/c"] {
        let numbers =
            heard.iter().filter(|(of, _)| of == key).map(|(_, number)| number.parse::<u64>().unwrap());
        assert!(numbers.is_sorted_by(|one, next| one < next), "{product:?}: {heard:?}");
        let got = etcdctl(&endpoints, &format!("get {key} --print-value-only")).output().unwrap();
        let last = heard.iter().rfind(|(of, _)| of == key).unwrap();
        assert_eq!(String::from_utf8_lossy(&got.stdout).trim(), last.1, "{product:?}: {key}");
    }
    let strange: Vec<_> =
        errors.iter().filter(|text| !EXPLAINED.iter().any(|part| text.contains(part))).collect();
    assert!(strange.is_empty(), "{product:?}: {strange:#?}");
    println!("{calls} calls, {} puts, errors: {errors:#?}", written.len());
    assert!(written.len() > 50, "{product:?}: the load was too small to show anything");
}

#[test]
fn etcdctl_goes_on_through_a_rolling_restart_and_a_lost_leader() {
    for product in products_of_clusters().into_iter().filter(|_| peers().is_some()) {
        run(goes_on(product));
    }
}
