//! etcd's own Go client (`bench/peers/interop/main.go`): watches, leases, mutexes,
//! elections, software transactions, and the Lock and Election services. Other
//! languages: `bench/peers/interop/run.sh`.

use std::process::Command;

use crate::harness::{Server, TempDir, from_env, peers};

/// Runs the client against a member.
pub fn works(endpoint: &str, args: &[&str]) {
    let Some(peers) = peers() else { return };
    let output = Command::new(peers.path("interop")).arg(endpoint).args(args).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("all checks passed"), "{text}");
}

fn check(args: &[&str]) {
    let dir = TempDir::new();
    works(&Server::revd(&dir.path().join("data"), &[]).endpoint(), args);
}

#[test]
fn the_go_client_works() {
    check(&[]);
}

/// It pings whenever data comes and the last ping was answered, to measure the bandwidth.
#[test]
fn clients_that_measure_while_much_is_sent_are_not_sent_away() {
    let rounds = from_env("REVD_PING_ROUNDS", 3).to_string();
    check(&["pings", &rounds, &rounds]);
}
