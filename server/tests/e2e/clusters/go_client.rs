//! etcd's own Go client (`bench/peers/failover/main.go`) on three members that are killed and
//! restarted: writes, a watch, a mutex, an election, sessions.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{
    Cluster, Product, TempDir, Wiring, from_env, go_program, peers, products_of_clusters, run, within,
};

/// Longer than the client needs to look at what it was told.
const MOMENTS: Duration = Duration::from_secs(120);

/// The client at work; it is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn goes_on(product: Product, faults: impl AsyncFnOnce(&mut Cluster)) {
    let dir = TempDir::new();
    let program = go_program(dir.path(), "failover").expect("Go is there");
    let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &[]).await;
    let said = dir.path().join("said");
    let output = std::fs::File::create(&said).unwrap();
    let mut command = Command::new(program);
    command.arg(cluster.members.iter().map(|member| member.endpoint()).collect::<Vec<_>>().join(","));
    command.stdin(Stdio::piped()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut client = Running(command.spawn().unwrap());
    faults(&mut cluster).await;
    drop(client.0.stdin.take());
    let ended = within(MOMENTS, "the client does not end", async || client.0.try_wait().unwrap()).await;
    let said = std::fs::read_to_string(said).unwrap();
    assert!(ended.success() && said.contains("all checks passed"), "{said}");
    println!("{said}");
}

fn is_there() -> bool {
    let is_there = peers().is_some() && Command::new("go").arg("version").output().is_ok();
    if !is_there {
        eprintln!("skipped: no Go, or no etcd");
    }
    is_there
}

#[test]
fn etcds_client_goes_on_when_leaders_are_killed() {
    for product in products_of_clusters().into_iter().filter(|_| is_there()) {
        run(goes_on(product, async |cluster| {
            for _ in 0..from_env("REVD_CLUSTER_KILLS", 3) {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let leader = cluster.leader().await;
                cluster.members[leader].kill();
                tokio::time::sleep(Duration::from_secs(1)).await;
                cluster.members[leader].spawn_again();
                cluster.wait_until_all_answer().await;
            }
        }));
    }
}

/// Each member is stopped and started, one after the other.
#[test]
fn etcds_client_goes_on_through_a_rolling_restart() {
    for product in products_of_clusters().into_iter().filter(|_| is_there()) {
        run(goes_on(product, async |cluster| {
            for member in 0..cluster.members.len() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                cluster.members[member].signal("TERM");
                let server = &mut cluster.members[member];
                within(MOMENTS, "a member does not stop", async || (!server.is_running()).then_some(()))
                    .await;
                cluster.members[member].spawn_again();
                cluster.wait_until_all_answer().await;
            }
        }));
    }
}
