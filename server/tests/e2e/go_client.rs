//! etcd's own Go client (`bench/peers/interop/main.go`): watches, leases, mutexes, elections, software transactions, and
//! the Lock and Election services. Other languages: `bench/peers/interop/run.sh`.

use std::process::Command;

use crate::harness::{Server, TempDir, peers};

#[test]
fn the_go_client_works() {
    let Some(peers) = peers() else { return };
    let dir = TempDir::new();
    let server = Server::revd(&dir.path().join("data"), &[]);
    let output = Command::new(peers.path("interop")).arg(server.endpoint()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("all checks passed"), "{text}");
}
