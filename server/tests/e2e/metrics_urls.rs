//! `--listen-metrics-urls`: what is answered there, to whom, from when on, and beside how many
//! clients; as with an etcd.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, run, wait_until};
use crate::probes::{REQUESTS, ask};
use crate::tls::certificates::{Authority, Issued, Wanted};

/// Longer than a member needs for anything that is asked of it here.
const MOMENTS: Duration = Duration::from_secs(60);
/// Files that a process may open which is crowded.
const FILES: u32 = 256;

/// Flags of a member with such URLs, alone or one of three whose others never come.
fn flags(metrics: &str, is_alone: bool) -> Vec<String> {
    let urls = [0, 1, 2].map(|_| format!("http://{}", free_address()));
    let members = if is_alone { 1 } else { 3 };
    let names = ["default", "second", "third"];
    let initial: Vec<_> =
        names.iter().zip(&urls).take(members).map(|(name, url)| format!("{name}={url}")).collect();
    let initial = initial.join(",");
    let of_peers = ["--listen-peer-urls", &urls[0], "--initial-advertise-peer-urls", &urls[0]];
    let more = ["--initial-cluster", &initial, "--listen-metrics-urls", metrics];
    [&of_peers[..], &more].concat().into_iter().map(str::to_owned).collect()
}

/// The one who asks, and how.
#[derive(Clone, Copy)]
struct Asker<'a> {
    authority: &'a str,
    client: Option<&'a Issued>,
    version: &'a str,
}

/// The reply to curl: status, version of HTTP, type, and whether there is a body; nothing if there
/// is no answer.
fn told(asker: Asker<'_>, method: &str, url: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "20", "-o", "/dev/null", asker.version, "-w"]);
    curl.arg("%{http_code} HTTP/%{http_version} %{content_type} %{size_download}");
    if !asker.authority.is_empty() {
        curl.args(["--cacert", asker.authority]);
    }
    if let Some(client) = asker.client {
        curl.args(["--cert", &client.cert, "--key", &client.key]);
    }
    match method {
        // With -X HEAD alone curl would wait for a body.
        "HEAD" => curl.arg("-I"),
        "POST with a body" => curl.args(["-X", "POST", "-d", "a=b"]),
        method => curl.args(["-X", method]),
    };
    let said = curl.arg(url).output().unwrap();
    if !said.status.success() {
        return "nothing".to_owned();
    }
    let said = String::from_utf8(said.stdout).unwrap();
    let (said, bytes) = said.rsplit_once(' ').unwrap();
    format!("{said}, a body: {}", method != "HEAD" && bytes != "0")
}

const METHODS: [&str; 4] = ["GET", "HEAD", "POST", "POST with a body"];
const PATHS: [&str; 7] = ["/metrics", "/health", "/livez", "/readyz", "/version", "/nothing", "/metrics/x"];

/// All methods and paths at a URL.
fn all_told(asker: Asker<'_>, kind: &str, url: &str) -> Vec<String> {
    let asked = PATHS.iter().flat_map(|path| METHODS.map(|method| (method, *path)));
    let line = |(method, path): (&str, &str)| {
        let mut said = told(asker, method, &format!("{url}{path}"));
        // An etcd over HTTP/2 that has answered may cut the body off before curl has sent it all.
        for _ in 0..5 {
            if said != "nothing" || method != "POST with a body" {
                break;
            }
            said = told(asker, method, &format!("{url}{path}"));
        }
        format!("{kind} {}: {method} {path}: {said}", asker.version)
    };
    asked.map(line).collect()
}

fn can_put(url: &str, authority: &str, client: &Issued) -> bool {
    crate::tls::etcdctl(url, authority, Some(client), "put k v --command-timeout 3s").0
}

/// In plain and with TLS, where the certificate is that for clients, who have to show their own.
#[test]
fn metrics_and_health_have_urls_of_their_own_as_with_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let issue = |file, serial| authority.issue(Wanted { file, serial, ..Wanted::default() });
    let (own, client) = (issue("own", 2), issue("client", 3));
    let said = [Product::Revd, Product::Etcd].map(|product| {
        let [plain, secure] = ["http", "https"].map(|scheme| format!("{scheme}://{}", free_address()));
        let mut flags = flags(&format!("{plain},{secure}"), true);
        let tls = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
        flags.extend([&tls[..], &["--client-cert-auth"]].concat().into_iter().map(str::to_owned));
        let data = dir.path().join(format!("{product:?}"));
        let mut server = Server::spawn_member(product, free_address(), &data, &flags);
        server.wait_until_ready();
        let known = Asker { authority: &authority.file, client: Some(&client), version: "--http1.1" };
        let newer = Asker { version: "--http2", ..known };
        let unknown = Asker { client: None, ..newer };
        // It listens before it has a leader.
        let is_well = || told(known, "GET", &format!("{plain}/health")).starts_with("200");
        wait_until(MOMENTS, is_well, || "it does not become healthy".to_owned());
        let mut said = all_told(known, "plain", &plain);
        said.extend(all_told(known, "secure", &secure));
        said.extend(all_told(newer, "secure", &secure));
        // Of other paths those are refused as calls that come over HTTP/2: docs/COMPAT.md.
        let at_clients = all_told(newer, "clients", &server.endpoint());
        said.extend(at_clients.into_iter().filter(|line| !line.contains("/nothing") && !line.contains("/x")));
        said.push(told(unknown, "GET", &format!("{plain}/health")));
        said.push(told(unknown, "GET", &format!("{secure}/health")));
        let puts = [&server.endpoint(), &secure].map(|url| can_put(url, &authority.file, &client));
        assert_eq!(puts, [true, false], "calls are made elsewhere");
        said
    });
    for (ours, theirs) in said[0].iter().zip(&said[1]) {
        assert_eq!(ours, theirs);
    }
    let last: Vec<bool> = said[0][said[0].len() - 2..].iter().map(|it| it == "nothing").collect();
    assert_eq!(last, [false, true], "a certificate is asked for with TLS");
}

/// A member that waits for the others of its cluster, and the address of its metrics.
fn lonely(product: Product, data: &Path) -> (Server, SocketAddr) {
    let metrics = free_address();
    let flags = flags(&format!("http://{metrics}"), false);
    let server = Server::spawn_member(product, free_address(), data, &flags);
    wait_until(MOMENTS, || TcpStream::connect(metrics).is_ok(), || "nobody listens".to_owned());
    (server, metrics)
}

/// That it has no leader is what they are for.
#[test]
fn metrics_are_shown_before_clients_are_let_in_as_by_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    // Clients are let in after a while all the same, so that a busy machine may be too late to see.
    let is_first = (0..5).any(|attempt| {
        let (server, metrics) = lonely(Product::Revd, &dir.path().join(format!("{attempt}")));
        assert!(ask(metrics, "GET /livez").contains("200 OK"));
        TcpStream::connect(server.address).is_err()
    });
    assert!(is_first, "clients are let in first");
    let said = [Product::Revd, Product::Etcd].map(|product| {
        let (_server, metrics) = lonely(product, &dir.path().join(format!("{product:?}")));
        let asking = REQUESTS
            .iter()
            .map(|request| std::thread::spawn(move || format!("{request}: {}", ask(metrics, request))));
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect::<Vec<String>>()
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0][0].contains("RAFT NO LEADER"), "{}", said[0][0]);
    let failed = said[0].iter().filter(|line| line.contains("linearizable_read failed")).count();
    assert_eq!(failed, 3, "{said:#?}");
}

/// A client that stays: it has said what it speaks.
fn idle(address: SocketAddr) -> Option<TcpStream> {
    let mut client = TcpStream::connect(address).ok()?;
    client.set_read_timeout(Some(MOMENTS)).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").ok()?;
    let mut first = [0; 9];
    client.read_exact(&mut first).is_ok().then_some(client)
}

#[test]
fn a_crowd_of_clients_keeps_no_probe_away_and_no_crowd_of_probes_a_client() {
    run(async {
        let dir = TempDir::new();
        let metrics = free_address();
        let urls = format!("http://{metrics}");
        let flags = ["--listen-metrics-urls", &urls];
        let server = Server::revd_with_files(FILES, &dir.path().join("data"), &flags);
        let crowd = |address| -> Vec<TcpStream> { (0..FILES).filter_map(|_| idle(address)).collect() };
        let clients = crowd(server.address);
        assert!(clients.len() > 100 && clients.len() < FILES as usize, "{} are in", clients.len());
        for request in ["GET /health", "GET /readyz", "GET /metrics"] {
            assert!(ask(metrics, request).contains("200 OK"), "{request}");
        }
        let probes = crowd(metrics);
        assert!((8..=64).contains(&probes.len()), "{} are in", probes.len());
        // They take none of the clients' places either.
        drop(clients);
        wait_until(MOMENTS, || idle(server.address).is_some(), || "nobody is let in".to_owned());
        let again = crowd(server.address);
        assert!(again.len() > 100, "{} are in", again.len());
        // And those that ask nothing make room.
        let is_answered = || {
            let mut probe = TcpStream::connect(metrics).unwrap();
            let mut status = [0; 12];
            let asked = probe.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
            asked.is_ok() && probe.read_exact(&mut status).is_ok() && status == *b"HTTP/1.1 200"
        };
        wait_until(MOMENTS, is_answered, || "no probe is let in".to_owned());
        drop(probes);
    });
}
