//! TLS between members.

use std::path::Path;
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::tls::certificates::{Authority, HERE, Issued, Wanted};
use crate::tls::etcdctl;

const SOON: Duration = Duration::from_secs(60);

/// Flags of one member of a cluster at these addresses, and more.
pub(super) fn flags_of_cluster(at: usize, urls: &[String], more: &[&str]) -> Vec<String> {
    let initial: Vec<String> = urls.iter().enumerate().map(|(at, url)| format!("m{at}={url}")).collect();
    let name = format!("m{at}");
    let own = [
        "--name",
        &name,
        "--listen-peer-urls",
        &urls[at],
        "--initial-advertise-peer-urls",
        &urls[at],
        "--initial-cluster",
        &initial.join(","),
    ];
    own.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
}

/// The same, with TLS between them.
pub(super) fn flags(at: usize, urls: &[String], authority: &str, own: &Issued, more: &[&str]) -> Vec<String> {
    let own = [
        "--peer-cert-file",
        &own.cert,
        "--peer-key-file",
        &own.key,
        "--peer-client-cert-auth",
        "--peer-trusted-ca-file",
        authority,
    ];
    flags_of_cluster(at, urls, &[&own, more].concat())
}

struct Members {
    servers: Vec<Server>,
    owns: Vec<Issued>,
    urls: Vec<String>,
}

fn start(dir: &Path, authority: &Authority, names: &[&str]) -> Members {
    let urls: Vec<String> = (0..3).map(|_| format!("https://{}", free_address())).collect();
    let own = |at: usize| {
        let file = format!("m{at}");
        let serial = 10 + at as u64;
        authority.issue(Wanted { file: &file, common_name: Some(names[at]), serial, ..Wanted::default() })
    };
    let owns: Vec<Issued> = (0..3).map(own).collect();
    let start = |at: usize| {
        let more = ["--peer-cert-allowed-cn", "member,other"];
        let flags = flags(at, &urls, &authority.file, &owns[at], &more);
        Server::spawn_member(Product::Revd, free_address(), &dir.join(format!("m{at}")), &flags)
    };
    let servers = (0..3).map(start).collect();
    Members { servers, owns, urls }
}

fn put(server: &Server) -> bool {
    etcdctl(&server.endpoint(), "", None, "put k v").0
}

#[test]
fn three_members_speak_tls_and_change_certificates_one_after_the_other() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let Members { mut servers, owns, .. } = start(dir.path(), &authority, &["member", "member", "other"]);
    for server in &mut servers {
        server.wait_until_ready();
        assert!(put(server));
    }
    for at in 0..3 {
        let wanted = Wanted { file: "new", common_name: Some("member"), serial: 20, ..Wanted::default() };
        let new = authority.issue(wanted);
        std::fs::copy(&new.cert, &owns[at].cert).unwrap();
        std::fs::copy(&new.key, &owns[at].key).unwrap();
        let loaded = || servers[at].log().contains("certificates were loaded anew");
        wait_until(SOON, loaded, || servers[at].log());
        servers[at].kill();
        // The one that leads may be gone, and what it was asked for.
        wait_until(SOON, || put(&servers[(at + 1) % 3]), || "two of three go on".to_owned());
        servers[at].start_again();
        for server in &servers {
            assert!(put(server));
        }
    }
}

/// Row 95 of the bugs never to have: any certificate of the authority may speak raft.
#[test]
fn bug_095_a_certificate_without_the_right_name_is_no_member() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let names = ["member", "member", "client"];
    let Members { mut servers, urls, .. } = start(dir.path(), &authority, &names);
    for server in &mut servers[..2] {
        server.wait_until_ready();
        assert!(put(server), "two have the quorum");
    }
    let refused = || servers[0].log().contains("invalid peer certificate");
    wait_until(SOON, refused, || servers[0].log());
    assert!(!etcdctl(&servers[2].endpoint(), "", None, "get k --command-timeout 2s").0, "it is alone");
    // Nor is one without any name, or without a certificate; a request of a tool is answered alike.
    let get = |client: Option<&Issued>| {
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "--max-time", "10", "--cacert", &authority.file]);
        if let Some(client) = client {
            curl.args(["--cert", &client.cert, "--key", &client.key]);
        }
        curl.arg(format!("{}/version", urls[0])).output().unwrap().status.success()
    };
    let of =
        |file, common_name, names| authority.issue(Wanted { file, common_name, names, ..Wanted::default() });
    let local = &["127.0.0.1", HERE][..];
    assert!(get(Some(&of("right", Some("member"), local))));
    assert!(!get(None), "no certificate");
    assert!(!get(Some(&of("nameless", None, local))), "no common name");
    assert!(!get(Some(&of("elsewhere", Some("member"), &["10.1.2.3"]))), "of another host");
    assert!(!get(Some(&of("nowhere", Some("member"), &[]))), "of no host");
}

#[test]
fn members_with_certificates_of_their_own_find_each_other() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let urls: Vec<String> = (0..3).map(|_| format!("https://{}", free_address())).collect();
    let start = |at: usize| {
        let flags = flags_of_cluster(at, &urls, &["--peer-auto-tls"]);
        Server::spawn_member(Product::Revd, free_address(), &dir.path().join(format!("m{at}")), &flags)
    };
    let mut servers: Vec<_> = (0..3).map(start).collect();
    for server in &mut servers {
        server.wait_until_ready();
        assert!(put(server));
    }
}
