//! The ends of certificates, as those see them who watch over a member.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Server, TempDir, peers, wait_until};
use crate::tls::certificates::{Authority, Wanted};

const SOON: Duration = Duration::from_secs(30);
/// The first second of 2090, in which certificates of tests end, and of 2021.
const END: &str = "3786912000";
const END_OF_OLD: &str = "1609459200";

fn metrics(server: &Server) -> String {
    let mut curl = Command::new("curl");
    let url = format!("{}/metrics", server.endpoint());
    let output = curl.args(["-sSk", "--max-time", "10", &url]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_end_of_each_certificate_is_a_metric_and_a_warning() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    let server = Server::revd(&dir.path().join("revd"), &flags);
    let sample = |end: &str| {
        format!("revd_certificate_end_seconds{{tls_of=\"client\",file=\"{}\"}} {end}\n", own.cert)
    };
    let shown = metrics(&server);
    assert!(shown.contains(&sample(END)), "{shown}");
    assert!(!server.log().contains("a certificate"), "it is far away");
    let old = authority.issue(Wanted { file: "old", is_over: true, serial: 8, ..Wanted::default() });
    std::fs::copy(&old.cert, &own.cert).unwrap();
    std::fs::copy(&old.key, &own.key).unwrap();
    wait_until(SOON, || metrics(&server).contains(&sample(END_OF_OLD)), || server.log());
    wait_until(SOON, || server.log().contains("a certificate has expired"), || server.log());
}
