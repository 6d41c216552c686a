//! Row 85 of the bugs never to have: a revoked certificate is refused wherever a member listens;
//! beside an etcd.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::tls::certificates::{Authority, Issued, WithRevoked};
use crate::tls::members::flags;

const SOON: Duration = Duration::from_secs(60);

/// Whether a request is answered at a URL, through the file of a socket if there is one.
fn is_answered((file, url): &(String, String), authority: &Authority, client: &Issued) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http1.1", "--max-time", "10", "--cacert", &authority.file]);
    curl.args(["--cert", &client.cert, "--key", &client.key]);
    if !file.is_empty() {
        curl.args(["--unix-socket", file]);
    }
    let said = curl.arg(url).output().unwrap();
    said.status.success() && !said.stdout.is_empty()
}

#[test]
fn bug_085_a_revoked_certificate_is_refused_at_each_kind_of_url_as_by_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let WithRevoked { authority, own, good, revoked, list } = WithRevoked::new(&dir.path().join("c"));
    let said = [Product::Revd, Product::Etcd].map(|product| {
        let data = dir.path().join(format!("{product:?}"));
        let file = dir.path().join(format!("{product:?}.sock")).to_str().unwrap().to_owned();
        let [clients, metrics, peers] = [(); 3].map(|()| free_address());
        let listen = format!("https://{clients},unixs://{file}");
        let probes = format!("https://{metrics}");
        let tls = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
        let more = ["--client-cert-auth", "--client-crl-file", &list, "--peer-crl-file", &list];
        let urls = ["--listen-client-urls", &listen, "--listen-metrics-urls", &probes];
        let more = [&tls[..], &more, &urls].concat();
        let flags = flags(0, &[format!("https://{peers}")], &authority.file, &own, &more);
        let _server = Server::spawn_member(product, clients, &data, &flags);
        let place = |file: &str, url: String| (file.to_owned(), url);
        let places = [
            place("", format!("https://{clients}/health")),
            place("", format!("https://{metrics}/health")),
            place(&file, "https://localhost/health".to_owned()),
            place("", format!("https://{peers}/version")),
        ];
        for place in &places {
            let is_served = || is_answered(place, &authority, &good);
            wait_until(SOON, is_served, || format!("a good certificate is refused at {place:?}"));
        }
        places.map(|place| is_answered(&place, &authority, &revoked))
    });
    assert_eq!(said, [[false; 4]; 2], "at URLs of clients, of metrics, of a file, of members");
}
