//! The ends of certificates, as those see them who watch over a member.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Server, TempDir, peers, said_of_both, wait_until};
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

/// Thirty days before the end, once at the start; earlier there is nothing to say.
#[test]
fn a_certificate_that_ends_soon_is_a_warning() {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let ends = |file, days, serial| {
        authority.issue(Wanted { file, serial, ends_in_days: Some(days), ..Wanted::default() })
    };
    let (soon, later) = (ends("soon", 20, 8), ends("later", 40, 9));
    let of_clients = ["--cert-file", &soon.cert, "--key-file", &soon.key];
    let of_peers = ["--peer-cert-file", &later.cert, "--peer-key-file", &later.key];
    let server = Server::revd(&dir.path().join("revd"), &[of_clients, of_peers].concat());
    let log = server.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("a certificate")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let file = format!("\"file\":\"{}\"", soon.cert);
    let parts =
        ["\"warn\"", "a certificate expires soon", &file, "\"tls-of\":\"client\"", "\"days-left\":20"];
    for part in parts {
        assert!(warnings[0].contains(part), "no {part} in {}", warnings[0]);
    }
}

/// Whether a certificate counts after so many days, as openssl sees it.
fn lasts(file: &Path, days: u64) -> bool {
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-checkend", &(days * 24 * 3600).to_string(), "-in"]).arg(file);
    openssl.stdout(Stdio::null()).status().expect("openssl is there").success()
}

#[test]
fn own_certificates_count_for_as_many_years_as_are_said_as_with_an_etcd() {
    let own = ["--auto-tls", "--peer-auto-tls"];
    for (more, years) in [(&[][..], 1), (&["--self-signed-cert-validity", "3"], 3)] {
        let said = said_of_both(&[&own[..], more].concat(), async |server: &Server| {
            ["client", "peer"].map(|whom| {
                let file = server.data_dir().join("fixtures").join(whom).join("cert.pem");
                assert!(file.is_file(), "{}", file.display());
                [365 * years - 1, 365 * years + 1].map(|days| lasts(&file, days))
            })
        });
        assert_eq!(said, [[true, false]; 2], "{years} years");
    }
}
