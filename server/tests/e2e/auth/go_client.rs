//! etcd's Go client in the name of a user whose token ends (`bench/peers/users/main.go`): calls, a
//! lease and a watch go on, with simple tokens and signed ones, at revd and at etcd.

use std::process::Command;

use crate::harness::{Server, TempDir, go_program, peers};

#[test]
fn a_go_client_outlives_its_tokens() {
    let dir = TempDir::new();
    let Some(peers) = peers() else { return };
    let Some(program) = go_program(dir.path(), "users") else { return };
    let secret = dir.path().join("secret");
    std::fs::write(&secret, b"a secret of thirty-two bytes or so").unwrap();
    let signed = format!("--auth-token=jwt,sign-method=HS256,ttl=2s,priv-key={}", secret.display());
    std::thread::scope(|scope| {
        for (seconds, flag) in [("1", "--auth-token-ttl=1"), ("2", &*signed)] {
            for is_revd in [true, false] {
                let data = dir.path().join(format!("{seconds} {is_revd}"));
                let program = &program;
                scope.spawn(move || {
                    let flags = ["--bcrypt-cost=4", flag];
                    let server = if is_revd {
                        Server::revd(&data, &flags)
                    } else {
                        Server::etcd(&peers.path("etcd"), &data, &flags)
                    };
                    let mut client = Command::new(program);
                    client.arg(server.endpoint()).arg(seconds);
                    // etcd's watches go on without a right (docs/COMPAT.md, 30).
                    client.args(if is_revd { &["watches", "end"][..] } else { &[] });
                    let output = client.output().unwrap();
                    let said = [output.stdout, output.stderr].concat();
                    let said = String::from_utf8_lossy(&said);
                    assert!(output.status.success() && said.contains("all checks passed"), "{flag}: {said}");
                });
            }
        }
    });
}
