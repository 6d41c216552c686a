//! The crate `etcd-client`, a third-party client. It needs a protoc when it is built, so it
//! lives in a crate of its own outside the workspace (`bench/peers/etcd-client`), built here
//! with the protoc of a dev-dependency.

use std::path::Path;
use std::process::Command;

use crate::harness::{Server, TempDir};

#[test]
fn the_crate_etcd_client_works() {
    let dir = TempDir::new();
    works(&Server::revd(&dir.path().join("data"), &[]).endpoint());
}

/// Runs the client against these members.
pub fn works(endpoints: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(root.join("bench/peers/etcd-client/Cargo.toml"))
        .arg("--target-dir")
        .arg(root.join("target/peers/etcd-client"))
        .args(["--", endpoints])
        .env("PROTOC", protoc_bin_vendored::protoc_bin_path().unwrap())
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("all checks passed"), "{text}");
}
